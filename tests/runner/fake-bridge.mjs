// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A bridge for the runner's tests: speaks the runner's routes over HTTP, records what it was told, and can be
// stopped, started again on the same port, and made to fail.

import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';

const RUNNER = new URL('../../runner/main.cjs', import.meta.url).pathname;

export class FakeBridge {
        requests = [];
        results = [];
        lines = [];
        artifacts = new Map();
        token = 'header.payload.signature';
        // (request, response) → true when it has dealt with the request itself.
        intercept = () => false;

        constructor(task, options = {}) {
                this.task = { v: 1, run: '0'.repeat(32), attempt: 1, agent: 'test', user: 'root', session: null, kind: 'command',
                        environment: {}, input: '', input_type: 'text', limits: { result_bytes: 1048576, artifact_bytes: 104857600,
                                artifacts: 100, log_bytes: 16777216 }, ...task };
                this.directory = fs.mkdtempSync(path.join(os.tmpdir(), 'runner-test-'));
                fs.mkdirSync(path.join(this.directory, 'tmp'));
                fs.writeFileSync(path.join(this.directory, 'token'), `${this.token}\n`);
                this.started = options.started;
        }

        async start() {
                this.server = http.createServer((request, response) => this.serve(request, response));
                await new Promise((resolve, reject) => {
                        this.server.on('error', reject);
                        this.server.listen(this.port ?? 0, '127.0.0.1', resolve);
                });
                this.port = this.server.address().port;
                return this;
        }

        // As a bridge that is killed: connections end in the middle of whatever they do.
        async stop() {
                this.server.closeAllConnections();
                await new Promise((resolve) => this.server.close(resolve));
        }

        async restart(pause = 100) {
                await this.stop();
                await new Promise((resolve) => setTimeout(resolve, pause));
                await this.start();
        }

        async close() {
                await this.stop();
                fs.rmSync(this.directory, { recursive: true, force: true });
        }

        async serve(request, response) {
                const route = `${request.method} ${request.url}`;
                this.requests.push(route);
                if (this.intercept(request, response))
                        return;
                if (request.headers.authorization !== `Bearer ${this.token}`)
                        return problem(response, 401, 'The token is not of a live run.');

                const artifact = /^PUT \/v1\/artifacts\/([^/]+)$/.exec(route);
                if (artifact) {
                        const name = decodeURIComponent(artifact[1]);
                        if (name.startsWith('.') || /[\x00-\x1f\x7f/]/.test(name) || Buffer.byteLength(name) > 255) {
                                request.resume();
                                return problem(response, 400, 'This is no name for an artifact.');
                        }
                        const hash = createHash('sha256');
                        let size = 0;
                        request.on('data', (chunk) => { hash.update(chunk); size += chunk.length; });
                        request.on('end', () => {
                                this.artifacts.set(name, { size, type: request.headers['content-type'], digest: hash.digest('hex') });
                                response.writeHead(201).end();
                        });
                        return;
                }

                let body;
                try {
                        const chunks = [];
                        for await (const chunk of request)
                                chunks.push(chunk);
                        body = Buffer.concat(chunks);
                } catch {
                        return;
                }

                switch (route) {
                case 'GET /v1/run':
                        return response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(this.task));
                case 'POST /v1/run/result':
                        if (body.length > this.task.limits.result_bytes)
                                return problem(response, 413, 'The result is too large.');
                        this.rawResult = body.toString();
                        this.results.push(JSON.parse(this.rawResult));
                        return response.writeHead(204).end();
                case 'POST /v1/logs':
                        this.lines.push(...body.toString().trimEnd().split('\n').map((line) => JSON.parse(line)));
                        return response.writeHead(204).end();
                default:
                        return problem(response, 404, 'There is no such route.');
                }
        }

        spawnRunner(env = {}) {
                return spawn(process.execPath, [RUNNER], {
                        env: {
                                PATH: process.env.PATH, HOME: this.directory, TMPDIR: path.join(this.directory, 'tmp'),
                                AGENT_RUN_ID: this.task.run, AGENT_BRIDGE: `http://127.0.0.1:${this.port}`,
                                AGENT_TOKEN_FILE: path.join(this.directory, 'token'),
                                AGENT_ARTIFACTS_DIR: path.join(this.directory, 'artifacts'), ...env,
                        },
                        stdio: ['ignore', 'pipe', 'pipe'],
                });
        }

        async run(during = () => {}, env = {}) {
                const runner = this.spawnRunner(env);
                let stderr = '';
                runner.stdout.resume();
                runner.stderr.on('data', (chunk) => { stderr += chunk; });
                await during(runner);
                const [code, signal] = await new Promise((resolve) => {
                        if (runner.exitCode !== null || runner.signalCode !== null)
                                resolve([runner.exitCode, runner.signalCode]);
                        runner.on('exit', (...args) => resolve(args));
                });
                return { code, signal, stderr, result: this.results.at(-1) };
        }

        log(stream) {
                return this.lines.filter((line) => line.stream === stream).map((line) => line.message);
        }
}

export function problem(response, status, detail) {
        response.writeHead(status, { 'content-type': 'application/problem+json' });
        response.end(JSON.stringify({ status, detail }));
}

/** Runs one task against a bridge of its own. SETUP may change the bridge before the runner starts. */
export async function runTask(task, { setup = () => {}, during, env } = {}) {
        const bridge = await new FakeBridge(task).start();
        try {
                setup(bridge);
                return { ...await bridge.run(during && ((runner) => during(runner, bridge)), env), bridge };
        } finally {
                await bridge.close();
        }
}
