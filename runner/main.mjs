// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The default runner: takes one task from the bridge, runs it, posts the result, exits.
//
// It promises: the request for the task is on its way before anything else is loaded (a run's start-up
// time is mostly this file's); exit status 0 when the platform has accepted a result, whatever that
// result says, 1 when it could not be told, 143 when the run was stopped by SIGTERM.

import { Bridge } from './bridge.mjs';

const KINDS = { command: './command.mjs' };

try {
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
        const kind = Object.hasOwn(KINDS, task.kind) ? await import(KINDS[task.kind]) : null;
        if (kind)
                process.exitCode = await kind.run(bridge, task);
        else
                await bridge.result(JSON.stringify({ status: 'failed', message: `This runner cannot run tasks of kind "${task.kind}".` }));
} catch (error) {
        process.stderr.write(`runner: ${error.message}\n`);
        process.exitCode = 1;
}

// Nothing that the agent left open (a pipe held by a process that outlived it) may keep the run alive.
process.exit();
