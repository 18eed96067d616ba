// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Sends a program's output to the run's log, line by line, in batches.
//
// It promises: bounded memory, whatever the program writes: while QUEUE_MAX bytes wait for the bridge, the
// program's pipes are not read, so that the program waits as well; a line of more than LINE_MAX bytes is cut
// and says so; after the run's log limit further lines are only read and dropped, which is said once.
// A log that cannot be delivered never fails a run.

const LINE_MAX = 8 * 1024;
const QUEUE_MAX = 256 * 1024;
const BATCH_MAX = 64 * 1024;

export class LogStream {
        #bridge;
        #left;
        #queue = [];
        #queued = 0;
        #streams = [];
        #sending = null;
        paused = false;

        constructor(bridge, limit) {
                this.#bridge = bridge;
                this.#left = limit;
        }

        /** Reads READABLE to its end; each chunk is also given to OBSERVE. */
        attach(readable, name, observe) {
                const line = new LineBuffer((text) => this.line(name, text));
                this.#streams.push(readable);
                readable.on('data', (chunk) => {
                        observe?.(chunk);
                        if (this.#left > 0)
                                line.push(chunk);
                });
                readable.on('end', () => line.end());
                readable.on('error', () => {});
        }

        line(stream, message) {
                if (this.#left <= 0)
                        return;

                let entry = JSON.stringify({ stream, message }) + '\n';
                this.#left -= Buffer.byteLength(entry);
                if (this.#left <= 0)
                        entry = JSON.stringify({ stream: 'runner', message: 'The run\'s log limit is reached; further lines are dropped.' }) + '\n';
                this.#queue.push(entry);
                this.#queued += entry.length;
                if (this.#queued >= QUEUE_MAX)
                        this.#pause();
                this.#sending ??= this.#send();
        }

        /** Resolves when all that was queued is delivered, or given up. */
        async flush() {
                while (this.#sending)
                        await this.#sending;
        }

        async #send() {
                // Lines that come in one piece go out in one batch.
                await null;
                while (this.#queue.length > 0) {
                        let size = 0, count = 0;
                        while (count < this.#queue.length && (count === 0 || size + this.#queue[count].length <= BATCH_MAX))
                                size += this.#queue[count++].length;

                        const batch = this.#queue.splice(0, count).join('');
                        try {
                                await this.#bridge.logs(batch);
                        } catch (error) {
                                process.stderr.write(`runner: log lines are lost: ${error.message}\n`);
                                this.#left = 0;
                                this.#queue = [];
                                size = this.#queued;
                        }
                        this.#queued -= size;
                        if (this.paused && this.#queued < QUEUE_MAX / 2)
                                this.#resume();
                }
                this.#sending = null;
        }

        #pause() {
                this.paused = true;
                for (const stream of this.#streams)
                        stream.pause();
        }

        #resume() {
                this.paused = false;
                for (const stream of this.#streams)
                        stream.resume();
        }
}

/** Cuts bytes into lines without ever holding more than one line's limit. */
class LineBuffer {
        #bytes = Buffer.allocUnsafe(LINE_MAX);
        #used = 0;
        #dropped = 0;
        #emit;

        constructor(emit) {
                this.#emit = emit;
        }

        push(chunk) {
                for (let at = 0; at < chunk.length;) {
                        const newline = chunk.indexOf(10, at);
                        const end = newline < 0 ? chunk.length : newline;
                        const copied = chunk.copy(this.#bytes, this.#used, at, end);
                        this.#used += copied;
                        this.#dropped += end - at - copied;
                        if (newline < 0)
                                return;
                        this.#line();
                        at = newline + 1;
                }
        }

        end() {
                if (this.#used > 0)
                        this.#line();
        }

        #line() {
                let used = this.#used;
                if (used > 0 && this.#dropped === 0 && this.#bytes[used - 1] === 13)
                        used--;
                let text = this.#bytes.toString('utf8', 0, used).replaceAll('\0', '\ufffd');
                if (this.#dropped > 0)
                        text += ` … (${this.#dropped} more bytes)`;
                this.#used = 0;
                this.#dropped = 0;
                this.#emit(text);
        }
}
