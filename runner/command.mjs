// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Tasks of kind "command": runs one program of the agent's environment, without a shell.
//
// It promises: the program gets the task on its standard input and in the file AGENT_INPUT_FILE; what it
// says on standard output (or writes to AGENT_RESULT_FILE, if it does) is the result, as JSON where it is
// one JSON document, else as text; its exit code or signal is told as it is; SIGTERM is passed on to its
// whole process group, followed by SIGKILL after a grace, and ends the runner too, once the rest of the output is
// told; no process of that group outlives it.

import { Capture } from './capture.mjs';
import { programEnvironment } from './environment.mjs';
import { LogStream } from './logs.mjs';
import { uploadArtifacts } from './artifacts.mjs';

// Not "import": that would build the ES module face of each, with all its lazy members.
const { spawn } = process.getBuiltinModule('node:child_process');
const fs = process.getBuiltinModule('node:fs');
const os = process.getBuiltinModule('node:os');

const OUTPUT_MAX = 1024 * 1024;
const KILL_AFTER_MS = 3000;
// How long output is awaited from processes that outlive the program, before and after these are killed.
const LINGER_MS = 1000;
// What a stopped run may spend on telling its end.
const STOP_PATIENCE_MS = 1000;
// Who stopped the run wants to see it stopped, and not that it ended well.
const STOPPED = 128 + os.constants.signals.SIGTERM;
const LAST_LINE_MAX = 500;

/** Returns the runner's exit status. */
export async function run(bridge, task) {
        const paths = prepare(task);
        const limit = task.limits?.result_bytes ?? OUTPUT_MAX;
        const stdout = new Capture(Math.min(limit, OUTPUT_MAX));
        const stderr = new Capture(0);
        const logs = new LogStream(bridge, task.limits?.log_bytes ?? 16 * 1024 * 1024);

        const end = await runProgram(bridge, task, paths, stdout, stderr, logs);
        const problems = await uploadArtifacts(bridge, paths.AGENT_ARTIFACTS_DIR, task.limits ?? {});
        const output = readOutput(paths.AGENT_RESULT_FILE, stdout, limit, problems);
        for (const problem of problems)
                logs.line('runner', problem);
        await logs.flush();

        await postResult(bridge, end, output, [...describe(end, stderr), ...problems], limit);
        return end.stopped ? STOPPED : 0;
}

/** Files and directories for the program, as the variables that tell it about them. */
function prepare(task) {
        const directory = fs.mkdtempSync(`${os.tmpdir()}/agent-`);
        const artifacts = process.env.AGENT_ARTIFACTS_DIR ?? '/tmp/artifacts';

        fs.writeFileSync(`${directory}/input`, task.input ?? '', { mode: 0o600 });
        fs.mkdirSync(artifacts, { recursive: true, mode: 0o700 });
        return {
                AGENT_INPUT_FILE: `${directory}/input`,
                AGENT_RESULT_FILE: `${directory}/result.json`,
                AGENT_ARTIFACTS_DIR: artifacts,
        };
}

/** Resolves to {code}, {signal} or {code, error}, with {stopped} as it is then, when the program and its output have ended. */
async function runProgram(bridge, task, paths, stdout, stderr, logs) {
        // The platform's launcher sets the program apart from us: it cannot get at our memory, descriptors or token.
        const launcher = process.env.AGENT_LAUNCHER;
        const [program, ...args] = launcher ? [launcher, '--apart', ...task.command] : task.command;
        let child;
        try {
                child = spawn(program, args, {
                        // A process group of its own, so that a signal reaches the program's children too.
                        detached: true,
                        env: programEnvironment(process.env, task, bridge.token(), paths),
                        stdio: ['pipe', 'pipe', 'pipe'],
                });
        } catch (error) {
                return { code: 126, error };
        }

        let killer, stopped = false;
        const stop = () => {
                stopped = true;
                bridge.patience = STOP_PATIENCE_MS;
                kill(child, 'SIGTERM');
                killer ??= setTimeout(kill, KILL_AFTER_MS, child, 'SIGKILL');
        };
        process.removeAllListeners('SIGTERM');
        process.on('SIGTERM', stop);

        const ended = new Promise((resolve) => {
                child.on('error', (error) => {
                        // Also emitted for failures later on, which are none of the program's.
                        if (child.pid === undefined)
                                resolve({ code: error.code === 'ENOENT' ? 127 : 126, error });
                });
                child.on('exit', (code, signal) => resolve(signal ? { signal } : { code }));
        });
        const closed = Promise.all([child.stdout, child.stderr].map((stream) =>
                new Promise((resolve) => stream.on('close', resolve))));

        logs.attach(child.stdout, 'stdout', (chunk) => stdout.push(chunk));
        logs.attach(child.stderr, 'stderr', (chunk) => stderr.push(chunk));
        // A program that does not want its task closes its end early.
        child.stdin.on('error', () => {});
        child.stdin.end(task.input ?? '');

        const end = await ended;
        clearTimeout(killer);
        if (child.pid !== undefined) {
                await waitOutput(closed, logs);
                kill(child, 'SIGKILL');
                await waitOutput(closed, logs);
        }
        // What is still open now is held by a process that left the group.
        child.stdin.destroy();
        child.stdout.destroy();
        child.stderr.destroy();
        // Who stops a unit signals all its processes at once: the program's end may be seen before our own signal.
        return { ...end, get stopped() { return stopped; } };
}

function kill(child, signal) {
        try {
                if (child.pid !== undefined)
                        process.kill(-child.pid, signal);
        } catch {
                // Nobody is left.
        }
}

/** Waits for the end of the output, up to LINGER_MS in which it is not us who keep it waiting. */
async function waitOutput(closed, logs) {
        let done = false;
        closed.then(() => { done = true; });
        for (let waited = 0; waited < LINGER_MS && !done; waited += logs.paused ? 0 : 50) {
                let timer;
                await Promise.race([closed, new Promise((resolve) => { timer = setTimeout(resolve, 50); })]);
                clearTimeout(timer);
        }
}

/** Returns {json: text of one JSON document} or {text}. */
function readOutput(file, stdout, limit, problems) {
        let text = null;
        try {
                const stat = fs.statSync(file);
                if (stat.size > limit)
                        problems.push(`The result file has ${stat.size} bytes; ${limit} are allowed. Large results belong in an artifact.`);
                else if (stat.isFile())
                        text = fs.readFileSync(file, 'utf8');
        } catch {
                // Most programs write none.
        }

        if (text !== null) {
                if (isJson(text))
                        return { json: text };
                problems.push('The result file is not JSON; standard output was taken instead.');
        }

        text = stdout.text();
        if (stdout.cut) {
                problems.push(`Standard output had ${stdout.total} bytes; its end was kept.`);
                return { text };
        }
        return isJson(text) ? { json: text } : { text };
}

function isJson(text) {
        try {
                JSON.parse(text);
                return true;
        } catch {
                return false;
        }
}

async function postResult(bridge, end, output, sentences, limit) {
        const result = { status: end.code === 0 ? 'success' : 'failed' };
        const message = sentences.join(' ');
        if (message)
                result.message = message.length > 4096 ? `${message.slice(0, 4095)}…` : message;
        if (end.signal)
                result.signal = os.constants.signals[end.signal];
        else if (end.code !== 0)
                result.exit_code = end.code;

        if (output.json !== undefined) {
                // The document goes out as the program wrote it: through JSON.parse() large numbers would change.
                const text = JSON.stringify(result).slice(0, -1) + `,"output":${output.json}}`;
                const size = Buffer.byteLength(text);
                let problem;
                if (size <= limit)
                        try {
                                return await bridge.result(text);
                        } catch (error) {
                                // Stricter than JSON.parse(): repeated members, NUL, very deep nesting.
                                if (error.status !== 400 && error.status !== 422)
                                        throw error;
                                problem = `The result was taken as text: ${error.message}`;
                        }
                else
                        problem = `The result has ${size} bytes; ${limit} are allowed, and its end was kept as text.`;
                result.message = result.message ? `${result.message} ${problem}` : problem;
        }

        result.output = output.text ?? output.json;
        await bridge.result(fit(result, limit));
}

/** Why it failed, as far as exit code and signal do not say it: most programs tell on their last line. */
function describe(end, stderr) {
        if (end.error)
                return [`The program could not be started: ${end.error.message}.`];
        if (end.code === 0 || end.signal)
                return [];
        const line = stderr.text().trimEnd().split('\n').at(-1).trim();
        return line ? [line.length > LAST_LINE_MAX ? `${line.slice(0, LAST_LINE_MAX)}…` : line] : [];
}

/** As JSON text of at most LIMIT bytes, for which the beginning of the output is left out where needed. */
function fit(result, limit) {
        for (;;) {
                const text = JSON.stringify(result);
                const size = Buffer.byteLength(text);
                if (size <= limit || result.output.length === 0)
                        return text;
                // Escapes are not spread evenly, so this is a guess; a few turns are enough.
                const surplus = Math.ceil((size - limit) * result.output.length / size * 1.05) + 16;
                let cut = result.output.slice(surplus);
                if ((cut.charCodeAt(0) & 0xfc00) === 0xdc00)
                        cut = cut.slice(1);
                result.output = cut;
        }
}
