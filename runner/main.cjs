// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The default runner: takes one task from the bridge, runs it, posts the result, exits.
//
// It promises: the request for the task is on its way before anything else is loaded (a run's start-up
// time is mostly this file's); exit status 0 when the platform has accepted a result, whatever that
// result says, 1 when it could not be told, 143 when the run was stopped by SIGTERM.
//
// This file and bridge.cjs are CommonJS, because Node 20 spends 4 ms on its ES module loader before the first line
// of a module runs. The others are ES modules, loaded while the bridge looks for the task.

'use strict';

const { Bridge } = require('./bridge.cjs');

const KINDS = { command: './command.mjs' };

async function main() {
        const bridge = new Bridge(process.env.AGENT_BRIDGE, process.env.AGENT_TOKEN_FILE);
        const asked = bridge.task();

        // While the bridge answers, or holds a pre-warmed runner back, load what the task most probably needs;
        // but only once the event loop has had its turn at connecting and sending the request.
        asked.catch(() => {});
        await new Promise(setImmediate);
        await new Promise(setImmediate);
        // As process 1 of its PID namespace the runner would be deaf to this signal otherwise.
        process.on('SIGTERM', () => process.exit(143));
        await import(KINDS.command);

        const task = await asked;
        if (Object.hasOwn(KINDS, task.kind)) {
                const kind = await import(KINDS[task.kind]);
                return await kind.run(bridge, task);
        }
        await bridge.result(JSON.stringify({ status: 'failed', message: `This runner cannot run tasks of kind "${task.kind}".` }));
        return 0;
}

main().catch((error) => {
        process.stderr.write(`runner: ${error.message}\n`);
        return 1;
}).then((status) => {
        // At once: nothing that the agent left open (a pipe held by a process that outlived it) may keep the run alive.
        process.exit(status);
});
