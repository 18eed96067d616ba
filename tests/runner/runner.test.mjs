// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What the default runner promises for tasks of kind "command", tried against a fake bridge that speaks the real
// protocol. Run with: node --test tests/runner/*.test.mjs

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';

import { FakeBridge, problem, runTask } from './fake-bridge.mjs';

const sh = (script, ...args) => ['/bin/sh', '-c', script, 'sh', ...args];
const node = (script, ...args) => [process.execPath, '-e', script, ...args];
const stopped = (end) => assert.deepEqual([end.code, end.bridge.results.length], [143, 1], end.stderr);
const accepted = (end) => assert.deepEqual([end.code, end.signal, end.bridge.results.length], [0, null, 1], end.stderr);

test('text on standard output is the result', async () => {
        const end = await runTask({ command: sh('cat; echo " from $0"'), input: 'hello' });
        accepted(end);
        assert.deepEqual(end.result, { status: 'success', output: 'hello from sh\n' });
        assert.deepEqual(end.bridge.log('stdout'), ['hello from sh']);
});

test('one JSON document is passed on as it was written', async () => {
        const text = '{"n": 12345678901234567890, "x": [1.0, "ü"]}';
        const end = await runTask({ command: sh('cat'), input: text, input_type: 'json' });
        accepted(end);
        assert.ok(end.bridge.rawResult.includes(text));
});

test('JSON that the bridge finds too odd becomes text', async () => {
        const end = await runTask({ command: sh('cat'), input: '{"a":1,"a":2}' }, {
                setup(bridge) {
                        let first = true;
                        bridge.intercept = (request, response) => {
                                if (request.url !== '/v1/run/result' || !first)
                                        return false;
                                first = false;
                                request.resume();
                                problem(response, 400, 'The member "a" is there twice.');
                                return true;
                        };
                },
        });
        accepted(end);
        assert.equal(end.result.output, '{"a":1,"a":2}');
        assert.match(end.result.message, /twice/);
});

test('a result file wins over standard output', async () => {
        const end = await runTask({ command: sh('echo chatter; echo \'{"answer":42}\' > "$AGENT_RESULT_FILE"') });
        accepted(end);
        assert.deepEqual(end.result, { status: 'success', output: { answer: 42 } });
        assert.deepEqual(end.bridge.log('stdout'), ['chatter']);
});

test('a result file that is not JSON is told', async () => {
        const end = await runTask({ command: sh('echo chatter; echo "{" > "$AGENT_RESULT_FILE"') });
        accepted(end);
        assert.equal(end.result.output, 'chatter\n');
        assert.match(end.result.message, /not JSON/);
});

test('1 MiB of input arrives on standard input and in the file, which only its owner can read', async () => {
        const input = 'äöü€'.repeat(1024 * 1024 / 9);
        const end = await runTask({
                input,
                command: sh('sha256sum < "$AGENT_INPUT_FILE"; sha256sum; stat -c %a "$AGENT_INPUT_FILE"'),
        });
        accepted(end);
        const digest = createHash('sha256').update(input).digest('hex');
        assert.equal(end.result.output, `${digest}  -\n${digest}  -\n600\n`);
});

test('a program that closes its input early is none the worse', async () => {
        const end = await runTask({ input: 'x'.repeat(1024 * 1024), command: sh('exec <&-; sleep 0.2; echo done') });
        accepted(end);
        assert.deepEqual(end.result, { status: 'success', output: 'done\n' });
});

test('exit codes and signals are told as they are', async () => {
        let end = await runTask({ command: sh('echo partial; echo so >&2; echo why >&2; exit 3') });
        accepted(end);
        assert.deepEqual(end.result, { status: 'failed', message: 'why', exit_code: 3, output: 'partial\n' });
        assert.deepEqual(end.bridge.log('stderr'), ['so', 'why']);

        end = await runTask({ command: sh('kill -SEGV $$') });
        accepted(end);
        assert.deepEqual(end.result, { status: 'failed', signal: 11, output: '' });
});

test('a program that is missing, or none, is a failure that names it', async () => {
        let end = await runTask({ command: ['/nonexistent/program'] });
        accepted(end);
        assert.equal(end.result.exit_code, 127);
        assert.match(end.result.message, /\/nonexistent\/program/);

        end = await runTask({ command: ['/etc/passwd'] });
        accepted(end);
        assert.equal(end.result.exit_code, 126);

        end = await runTask({ command: ['/bin/echo', 'nul\0inside'] });
        accepted(end);
        assert.equal(end.result.exit_code, 126);
});

test('arguments reach the program as they are, without a shell', async () => {
        const args = ['$HOME', '`id`', 'two words', '', '*', 'ü'];
        const end = await runTask({ command: node('console.log(JSON.stringify(process.argv.slice(1)))', '--', ...args) });
        accepted(end);
        assert.deepEqual(end.result.output, args);
});

test('a launcher of the platform starts the program, which does not hear of it', async (t) => {
        const launcher = path.join(fs.mkdtempSync(path.join(process.env.TMPDIR ?? '/tmp', 'launcher-')), 'launch');
        t.after(() => fs.rmSync(path.dirname(launcher), { recursive: true }));
        fs.writeFileSync(launcher, '#!/bin/sh\n[ "$1" = --apart ] || exit 99\nshift\nLAUNCHED=yes exec "$@"\n', { mode: 0o755 });
        let end = await runTask({ command: sh('echo "$LAUNCHED ${AGENT_LAUNCHER-none} $1"', 'two words') },
                { env: { AGENT_LAUNCHER: launcher } });
        accepted(end);
        assert.equal(end.result.output, 'yes none two words\n');

        end = await runTask({ command: ['/bin/true'] }, { env: { AGENT_LAUNCHER: '/nonexistent/launcher' } });
        accepted(end);
        assert.equal(end.result.exit_code, 127);
});

test('a kind that is not known is refused plainly', async () => {
        const end = await runTask({ kind: 'constructor', command: ['/bin/true'] });
        accepted(end);
        assert.equal(end.result.status, 'failed');
        assert.match(end.result.message, /kind "constructor"/);
});

test('the environment: the definition\'s, the services\', the usual variables; nothing of the runner\'s own', async () => {
        const end = await runTask({
                command: node('console.log(JSON.stringify(process.env))'),
                environment: { LEVEL: 'high', ANTHROPIC_BASE_URL: 'http://other', AGENT_BRIDGE: 'http://evil', AGENT_X: '1' },
                services: ['market-data', 'openai', 'anthropic', 'gemini'],
        }, { env: { INVOCATION_ID: 'abc', NODE_OPTIONS: '--no-warnings', LISTEN_FDS: '1', AGENT_PROXY: 'http://127.0.0.1:8378' } });
        accepted(end);

        const env = end.result.output;
        const services = `http://127.0.0.1:${end.bridge.port}/v1/services`;
        assert.equal(env.LEVEL, 'high');
        assert.equal(env.AGENT_BRIDGE, `http://127.0.0.1:${end.bridge.port}`);
        assert.equal(env.AGENT_SERVICE_MARKET_DATA_URL, `${services}/market-data`);
        assert.equal(env.OPENAI_BASE_URL, `${services}/openai/v1`);
        assert.equal(env.ANTHROPIC_BASE_URL, 'http://other');
        assert.equal(env.GOOGLE_GEMINI_BASE_URL, `${services}/gemini`);
        for (const name of ['OPENAI_API_KEY', 'ANTHROPIC_API_KEY', 'GEMINI_API_KEY'])
                assert.equal(env[name], end.bridge.token);
        for (const name of ['http_proxy', 'HTTPS_PROXY'])
                assert.equal(env[name], `http://run:${end.bridge.token}@127.0.0.1:8378`);
        for (const name of ['AGENT_X', 'INVOCATION_ID', 'NODE_OPTIONS', 'LISTEN_FDS'])
                assert.equal(env[name], undefined);
});

test('output that is not UTF-8', async () => {
        const end = await runTask({ command: sh('printf "a\\377b\\000c\\303"') });
        accepted(end);
        assert.equal(end.result.output, 'a\ufffdb\ufffdc\ufffd');
        assert.deepEqual(end.bridge.log('stdout'), ['a\ufffdb\ufffdc\ufffd']);
});

test('1 MiB of random bytes fits into the result\'s limit', async () => {
        const end = await runTask({ command: sh('head -c 1048576 /dev/urandom') });
        accepted(end);
        assert.ok(Buffer.byteLength(end.bridge.rawResult) <= 1048576);
        assert.ok(end.result.output.length > 300_000);
});

test('a result file over the limit is told, not cut', async () => {
        const end = await runTask({
                command: node('require("fs").writeFileSync(process.env.AGENT_RESULT_FILE, JSON.stringify("x".repeat(5000)))'),
                limits: { result_bytes: 4096, log_bytes: 4096, artifacts: 1, artifact_bytes: 1 },
        });
        accepted(end);
        assert.match(end.result.message, /belong in an artifact/);
});

test('100 MB of output: the end is the result, the log is cut at its limit, the runner stays small', async () => {
        let peak = 0;
        const limit = 2 * 1024 * 1024;
        const end = await runTask({
                command: node('const line = Buffer.alloc(1e5, "x"); line[99999] = 10; let left = 1000;' +
                        'const more = () => { while (left-- > 0) if (!process.stdout.write(line)) return process.stdout.once("drain", more);' +
                        '  process.stdout.write("the end"); }; more()'),
                limits: { result_bytes: 1048576, log_bytes: limit, artifacts: 1, artifact_bytes: 1 },
        }, {
                during(runner, bridge) {
                        const probe = setInterval(() => {
                                try {
                                        const status = fs.readFileSync(`/proc/${runner.pid}/status`, 'utf8');
                                        peak = Math.max(peak, Number(/VmHWM:\s+(\d+)/.exec(status)?.[1] ?? 0));
                                } catch { /* It has ended. */ }
                        }, 20);
                        runner.on('exit', () => clearInterval(probe));
                },
        });
        accepted(end);
        assert.equal(end.result.status, 'success');
        assert.ok(end.result.output.endsWith('x\nthe end'));
        assert.ok(Buffer.byteLength(end.bridge.rawResult) <= 1048576);
        assert.match(end.result.message, /100000007 bytes/);

        const logged = end.bridge.lines.reduce((sum, line) => sum + line.message.length, 0);
        assert.ok(logged <= limit && logged > limit / 2, `${logged}`);
        assert.match(end.bridge.log('runner')[0], /limit is reached/);
        assert.match(end.bridge.log('stdout')[0], /^x{8192} … \(91807 more bytes\)$/);
        assert.ok(peak > 0 && peak < 160 * 1024, `${peak} KiB`);
});

test('a bridge that does not read makes the program wait, not the runner grow', async () => {
        let served = 0;
        let release;
        const end = await runTask({
                command: node('const fs = require("fs"); const line = "y".repeat(999) + "\\n"; let n = 0;' +
                        'const note = setInterval(() => fs.writeFileSync(process.env.HOME + "/written", String(n)), 20);' +
                        'const more = () => { while (n < 4000) { n++; if (!process.stdout.write(line)) return process.stdout.once("drain", more); } clearInterval(note); };' +
                        'more()'),
        }, {
                setup(bridge) {
                        bridge.intercept = (request, response) => {
                                if (request.url !== '/v1/logs' || served++ > 0)
                                        return false;
                                request.resume();
                                release = () => response.writeHead(204).end();
                                return true;
                        };
                },
                async during(runner, bridge) {
                        const written = () => { try { return Number(fs.readFileSync(path.join(bridge.directory, 'written'))); } catch { return 0; } };
                        let before = -1, same = 0;
                        while (same < 5) {
                                await new Promise((resolve) => setTimeout(resolve, 50));
                                same = release && written() > 0 && written() === before ? same + 1 : 0;
                                before = written();
                        }
                        assert.ok(before < 2000, `${before} lines were written`);
                        release();
                },
        });
        accepted(end);
        assert.ok(end.result.output.length > 1040000 && Buffer.byteLength(end.bridge.rawResult) <= 1048576);
        assert.equal(end.result.status, 'success');
        // The first batch was taken by the bridge of this test without being recorded.
        assert.ok(end.bridge.log('stdout').length > 3900);
});

test('artifacts are streamed with their names and types', async () => {
        const end = await runTask({
                command: sh('cd "$AGENT_ARTIFACTS_DIR"; head -c 30000000 /dev/zero > big.bin; echo a,b > "mit Leerzeichen & ü?.CSV";' +
                        ': > empty.txt; printf x > "100%.png"; mkdir sub; mkfifo pipe; printf y > .hidden; printf z > "new\nline"; printf q > "$(printf "\\377")";' +
                        'ln -s /nonexistent dangling; ln -s empty.txt link.txt; echo \'"ok"\''),
                limits: { result_bytes: 1048576, artifact_bytes: 40000000, artifacts: 100, log_bytes: 1048576 },
        });
        accepted(end);
        assert.equal(end.result.status, 'success');
        assert.equal(end.result.output, 'ok');

        const kept = Object.fromEntries([...end.bridge.artifacts].map(([name, file]) => [name, [file.size, file.type]]));
        assert.deepEqual(kept, {
                'big.bin': [30000000, 'application/octet-stream'],
                'mit Leerzeichen & ü?.CSV': [4, 'text/csv'],
                'empty.txt': [0, 'text/plain'],
                'link.txt': [0, 'text/plain'],
                '100%.png': [1, 'image/png'],
        });
        for (const odd of ['sub', 'pipe', '.hidden', 'new\\nline', 'dangling', 'not UTF-8'])
                assert.ok(end.result.message.includes(odd), odd);
});

test('artifacts over the limits are told', async () => {
        const end = await runTask({
                command: sh('cd "$AGENT_ARTIFACTS_DIR"; for i in 1 2 3; do echo > $i; done; head -c 2000 /dev/zero > 0'),
                limits: { result_bytes: 1048576, artifact_bytes: 1000, artifacts: 2, log_bytes: 1048576 },
        });
        accepted(end);
        assert.deepEqual([...end.bridge.artifacts.keys()], ['1', '2']);
        assert.match(end.result.message, /"0" has 2000 bytes; 1000 are allowed/);
        assert.match(end.result.message, /"3" is one too many; 2 are allowed/);
});

test('the bridge restarts while the program runs, and while each answer is due', async () => {
        for (const route of ['/v1/run', '/v1/logs', '/v1/artifacts/file', '/v1/run/result']) {
                let hit = 0;
                const end = await runTask({
                        command: sh('echo one; head -c 3000000 /dev/zero > "$AGENT_ARTIFACTS_DIR/file"; echo \'{"x":1}\' > "$AGENT_RESULT_FILE"'),
                }, {
                        setup(bridge) {
                                bridge.intercept = (request) => {
                                        if (request.url !== route || hit++ > 0)
                                                return false;
                                        bridge.restart();
                                        return true;
                                };
                        },
                });
                assert.equal(end.code, 0, `${route}: ${end.stderr}`);
                assert.ok(hit >= 2, route);
                assert.deepEqual(end.result, { status: 'success', output: { x: 1 } });
                assert.deepEqual(end.bridge.log('stdout'), ['one']);
                assert.equal(end.bridge.artifacts.get('file').size, 3000000);
        }
});

test('half an answer, an interim answer, a chunked answer, and 503 with Retry-After', async () => {
        let hit = 0;
        const end = await runTask({ command: sh('echo fine') }, {
                setup(bridge) {
                        bridge.intercept = (request, response) => {
                                const body = JSON.stringify(bridge.task);
                                if (request.url !== '/v1/run')
                                        return false;
                                switch (hit++) {
                                case 0:
                                        response.writeHead(200, { 'content-length': body.length });
                                        response.write(body.slice(0, 10), () => response.destroy());
                                        return true;
                                case 1:
                                        response.writeHead(503, { 'retry-after': '0' }).end();
                                        return true;
                                default:
                                        response.writeProcessing();
                                        response.writeHead(200);
                                        response.write(body.slice(0, 10));
                                        setTimeout(() => response.end(body.slice(10)), 20);
                                        return true;
                                }
                        };
                },
        });
        accepted(end);
        assert.equal(hit, 3);
        assert.equal(end.result.output, 'fine\n');
});

test('a token that is refused ends the runner at once', async () => {
        const end = await runTask({ command: ['/bin/true'] }, { setup: (bridge) => { bridge.token = 'another'; } });
        assert.equal(end.code, 1);
        assert.match(end.stderr, /not of a live run/);
        assert.deepEqual(end.bridge.requests, ['GET /v1/run']);
});

test('a log that is refused does not fail the run', async () => {
        const end = await runTask({ command: sh('echo one; sleep 0.1; echo two') }, {
                setup: (bridge) => {
                        bridge.intercept = (request, response) => {
                                if (request.url === '/v1/logs') {
                                        request.resume();
                                        problem(response, 413, 'Enough.');
                                }
                                return request.url === '/v1/logs';
                        };
                },
        });
        accepted(end);
        assert.deepEqual(end.result, { status: 'success', output: 'one\ntwo\n' });
});

const until = async (condition) => {
        while (!condition())
                await new Promise((resolve) => setTimeout(resolve, 10));
};
const alive = (pid) => {
        try {
                return !/^State:\s+Z/m.test(fs.readFileSync(`/proc/${pid}/status`, 'utf8'));
        } catch {
                return false;
        }
};

test('SIGTERM is passed on to the whole process group, and ends the runner after the result', async () => {
        const end = await runTask({ command: sh('sleep 1000 & echo $!; wait') }, {
                async during(runner, bridge) {
                        await until(() => bridge.log('stdout').length > 0);
                        runner.kill('SIGTERM');
                },
        });
        stopped(end);
        assert.deepEqual(end.result, { status: 'failed', signal: 15, output: end.result.output });
        await until(() => !alive(Number(end.result.output)));
});

test('SIGTERM while the runner waits for its task', async () => {
        const end = await runTask({ command: ['/bin/true'] }, {
                setup: (bridge) => { bridge.intercept = () => true; },
                async during(runner, bridge) {
                        await until(() => bridge.requests.length > 0);
                        runner.kill('SIGTERM');
                },
        });
        assert.ok(end.code === 143 || end.signal === 'SIGTERM');
});

test('a program that ignores SIGTERM is killed', async () => {
        const end = await runTask({ command: sh('trap "" TERM; echo ready; while :; do sleep 1; done') }, {
                async during(runner, bridge) {
                        await until(() => bridge.log('stdout').length > 0);
                        runner.kill('SIGTERM');
                },
        });
        stopped(end);
        assert.equal(end.result.signal, 9);
});

test('SIGTERM with no bridge there: the runner does not stay', async () => {
        const bridge = await new FakeBridge({ command: sh('echo ready; sleep 1000') }).start();
        const end = await bridge.run(async (runner) => {
                await until(() => bridge.log('stdout').length > 0);
                await bridge.stop();
                runner.kill('SIGTERM');
        });
        assert.equal(end.code, 1);
        fs.rmSync(bridge.directory, { recursive: true });
});

test('a child that outlives the program and holds its output does not hold the run', async () => {
        const end = await runTask({ command: sh('sleep 1000 & echo $!') });
        accepted(end);
        assert.equal(end.result.status, 'success');
        await until(() => !alive(end.result.output));

        // Not even one that left the process group.
        const other = await runTask({ command: sh('setsid sleep 30 & echo $!') });
        accepted(other);
        assert.equal(other.result.status, 'success');
        process.kill(other.result.output);
});
