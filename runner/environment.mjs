// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The environment of the agent's program.
//
// It promises: what the platform says (AGENT_*) cannot be changed by the agent's definition; the usual
// variables of well-known SDKs and command line tools point at the bridge, with the run token as their
// "key", so that such programs work unmodified; the definition may override those.

// Of the runner's own process, not of the agent's.
const DROPPED = [
        'AGENT_LAUNCHER', 'INVOCATION_ID', 'JOURNAL_STREAM', 'LISTEN_FDNAMES', 'LISTEN_FDS', 'LISTEN_PID', 'MANAGERPID',
        'MEMORY_PRESSURE_WATCH', 'MEMORY_PRESSURE_WRITE', 'NODE_COMPILE_CACHE', 'NODE_OPTIONS', 'NOTIFY_SOCKET',
        'SYSTEMD_EXEC_PID', 'WATCHDOG_PID', 'WATCHDOG_USEC',
];

// Services with these names are the APIs that everybody's SDK knows. Base URLs are those of the API's root
// ("https://…" without a version); what comes after is what the SDK expects in its variable.
const WELL_KNOWN = {
        openai: (url, token) => ({ OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: token }),
        anthropic: (url, token) => ({ ANTHROPIC_BASE_URL: url, ANTHROPIC_API_KEY: token }),
        gemini: (url, token) => ({ GOOGLE_GEMINI_BASE_URL: url, GEMINI_API_KEY: token }),
};

/** "market-data" → "AGENT_SERVICE_MARKET_DATA_URL". */
export function serviceVariable(name) {
        return `AGENT_SERVICE_${name.toUpperCase().replace(/[^A-Z0-9]/g, '_')}_URL`;
}

export function programEnvironment(own, task, token, paths) {
        const platform = {};
        const usual = {};

        for (const [name, value] of Object.entries(own))
                if (DROPPED.includes(name))
                        continue;
                else if (name.startsWith('AGENT_'))
                        platform[name] = value;
                else
                        usual[name] = value;

        // The forward proxy, where the agent has one. Both spellings: each program looks at another one.
        if (own.AGENT_PROXY) {
                const proxy = own.AGENT_PROXY.replace('://', `://run:${token}@`);
                for (const name of ['http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'])
                        usual[name] = proxy;
                usual.no_proxy = usual.NO_PROXY = '127.0.0.1,localhost';
        }

        for (const name of serviceNames(task)) {
                const url = `${own.AGENT_BRIDGE}/v1/services/${name}`;
                platform[serviceVariable(name)] = url;
                if (Object.hasOwn(WELL_KNOWN, name))
                        Object.assign(usual, WELL_KNOWN[name](url, token));
        }

        for (const [name, value] of Object.entries(task.environment ?? {}))
                if (!name.startsWith('AGENT_'))
                        usual[name] = value;

        return { ...usual, ...platform, ...paths };
}

/** Names, given as a list or as the keys of an object of definitions. */
function serviceNames(task) {
        const services = task.services ?? [];
        return Array.isArray(services) ? services : Object.keys(services);
}
