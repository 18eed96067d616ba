// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The runner's side of the bridge: a small HTTP/1.1 client for the platform's own routes.
//
// It promises: the run token is read from its file for each request, kept in no variable, and sent to the
// bridge alone; a call that did not reach the bridge, or that the bridge could not serve just now, is
// made again with growing pauses, since the bridge may be restarted at any moment and all its control calls
// are idempotent; an answer is read up to a limit, and half an answer is none.
//
// It is written over sockets and makes one connection a call, because loading node:http (or fetch) would
// cost every run more than all its calls together.

'use strict';

const fs = require('node:fs');
const net = require('node:net');

const RETRY_FIRST_MS = 20;
const RETRY_LONGEST_MS = 2000;
const RETRY_TOTAL_MS = 120_000;
const SILENCE_MS = 60_000;
const HEAD_MAX = 64 * 1024;
const ANSWER_MAX = 16 * 1024 * 1024;

const RETRY_STATUS = new Set([429, 502, 503, 504]);
const RETRY_ERRORS = new Set(['EAGAIN', 'ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT']);

/** The bridge said no. */
class BridgeError extends Error {
        constructor(method, path, answer) {
                super(`${method} ${path}: ${detail(answer.body) || `the bridge answered ${answer.status}`}`);
                this.status = answer.status;
        }
}

/** The sentence in an application/problem+json answer. */
function detail(body) {
        try {
                const problem = JSON.parse(body.toString());
                return problem.detail || problem.title || '';
        } catch {
                return '';
        }
}

const failure = (code, message) => Object.assign(new Error(message), { code });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Bridge {
        #address;
        #tokenFile;
        // Once the run is being stopped there is no time to wait for a bridge that does not answer.
        patience = RETRY_TOTAL_MS;

        constructor(base, tokenFile) {
                const match = /^http:\/\/([^/:]+):(\d+)\/?$/.exec(base);
                if (!match || !tokenFile)
                        throw new Error('AGENT_BRIDGE and AGENT_TOKEN_FILE are not set: the runner is started by agentd.');
                this.#address = { host: match[1], port: Number(match[2]), autoSelectFamily: false, noDelay: true };
                this.#tokenFile = tokenFile;
        }

        token() {
                return fs.readFileSync(this.#tokenFile, 'latin1').trim();
        }

        async task() {
                // Held back by the bridge for as long as it likes: a pre-warmed runner waits here.
                const body = await this.#call('GET', '/v1/run', { silence: 0 });
                return JSON.parse(body.toString());
        }

        /** RESULT is JSON text. */
        async result(result) {
                await this.#call('POST', '/v1/run/result', { type: 'application/json', body: result });
        }

        /** LINES is NDJSON. */
        async logs(lines) {
                await this.#call('POST', '/v1/logs', { type: 'application/x-ndjson', body: lines });
        }

        /** open() returns a fresh stream of exactly SIZE bytes: it is called once per try. */
        async artifact(name, type, size, open) {
                await this.#call('PUT', `/v1/artifacts/${encodeURIComponent(name)}`, { type, size, open });
        }

        /** One call, tried until it is answered for good. Resolves to the answer's body. */
        async #call(method, path, options) {
                const start = performance.now();

                for (let wait = RETRY_FIRST_MS; ; wait = Math.min(wait * 2, RETRY_LONGEST_MS)) {
                        let error, asked = 0;
                        try {
                                const answer = await this.#once(method, path, options);
                                if (answer.status >= 200 && answer.status < 300)
                                        return answer.body;
                                error = new BridgeError(method, path, answer);
                                asked = Math.min(Number(answer.headers.get('retry-after')) * 1000 || 0, 10_000);
                        } catch (caught) {
                                error = caught;
                        }
                        if (!RETRY_STATUS.has(error.status) && !RETRY_ERRORS.has(error.code))
                                throw error;

                        const next = Math.max(wait * (0.75 + Math.random() / 2), asked);
                        if (performance.now() - start + next > this.patience)
                                throw error;
                        await pause(next);
                }
        }

        #once(method, path, { type, body = '', size, open, silence = SILENCE_MS }) {
                return new Promise((resolve, reject) => {
                        const head = [
                                `${method} ${path} HTTP/1.1`,
                                `Host: ${this.#address.host}:${this.#address.port}`,
                                `Authorization: Bearer ${this.token()}`,
                                'Connection: close',
                        ];
                        if (type)
                                head.push(`Content-Type: ${type}`, `Content-Length: ${size ?? Buffer.byteLength(body)}`);

                        const socket = net.connect(this.#address);
                        const answer = new Answer();
                        const file = open?.();

                        const end = (error) => {
                                socket.destroy();
                                file?.destroy();
                                if (error)
                                        reject(error);
                                else
                                        resolve(answer);
                        };

                        socket.setTimeout(silence, () => end(failure('ETIMEDOUT', `${method} ${path}: no answer`)));
                        // A bridge that refuses a body without reading it answers and closes: the answer counts.
                        socket.on('error', (error) => end(answer.done ? null : error));
                        socket.on('end', () => end(answer.finish() ? null : failure('ECONNRESET', `${method} ${path}: half an answer`)));
                        socket.on('data', (chunk) => {
                                try {
                                        if (answer.push(chunk))
                                                end();
                                } catch (error) {
                                        end(new Error(`${method} ${path}: ${error.message}`));
                                }
                        });

                        socket.write(`${head.join('\r\n')}\r\n\r\n${body}`);
                        if (file) {
                                file.on('error', end);
                                file.pipe(socket, { end: false });
                        }
                });
        }
}

/** One HTTP answer, read piece by piece. */
class Answer {
        status = 0;
        headers = new Map();
        body = null;
        done = false;
        #pending = Buffer.alloc(0);
        #chunks = [];
        #total = 0;

        /** True when the answer is complete. */
        push(data) {
                this.#pending = this.#pending.length > 0 ? Buffer.concat([this.#pending, data]) : data;
                while (!this.status)
                        if (!this.#head())
                                return false;
                if (this.headers.get('transfer-encoding') === 'chunked')
                        while (this.#chunk());
                else
                        this.#take(Math.min(this.#pending.length, this.#length() - this.#total));
                if (this.headers.get('transfer-encoding') !== 'chunked' && this.#total === this.#length())
                        this.#complete();
                return this.done;
        }

        /** The connection has ended: true if that leaves a whole answer. */
        finish() {
                if (!this.done && this.status && this.#length() === Infinity && !this.headers.has('transfer-encoding'))
                        this.#complete();
                return this.done;
        }

        #length() {
                if (this.status === 204 || this.status === 304)
                        return 0;
                return this.headers.has('content-length') ? Number(this.headers.get('content-length')) : Infinity;
        }

        #head() {
                const end = this.#pending.indexOf('\r\n\r\n');
                if (end < 0) {
                        if (this.#pending.length > HEAD_MAX)
                                throw new Error('the answer\'s head has no end');
                        return false;
                }

                const [first, ...lines] = this.#pending.toString('latin1', 0, end).split('\r\n');
                const match = /^HTTP\/1\.[01] ([1-9]\d\d)(?: |$)/.exec(first);
                if (!match)
                        throw new Error('the answer is not HTTP');
                this.#pending = this.#pending.subarray(end + 4);

                // Interim answers (100 Continue) come before the real one.
                if (match[1].startsWith('1'))
                        return true;
                for (const line of lines) {
                        const colon = line.indexOf(':');
                        this.headers.set(line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim());
                }
                this.status = Number(match[1]);
                return true;
        }

        /** True when there may be another one. */
        #chunk() {
                const end = this.#pending.indexOf('\r\n');
                if (end < 0)
                        return false;
                const size = Number.parseInt(this.#pending.toString('latin1', 0, end), 16);
                if (!(size >= 0 && size <= ANSWER_MAX))
                        throw new Error('the answer is not HTTP');
                if (this.#pending.length < end + 2 + size + 2)
                        return false;
                this.#pending = this.#pending.subarray(end + 2);
                this.#take(size);
                this.#pending = this.#pending.subarray(2);
                if (size === 0)
                        this.#complete();
                return size > 0;
        }

        #take(size) {
                this.#total += size;
                if (this.#total > ANSWER_MAX)
                        throw new Error(`the answer has more than ${ANSWER_MAX} bytes`);
                if (size > 0)
                        this.#chunks.push(this.#pending.subarray(0, size));
                this.#pending = this.#pending.subarray(size);
        }

        #complete() {
                this.body = Buffer.concat(this.#chunks);
                this.done = true;
        }
}

module.exports = { Bridge, BridgeError };
