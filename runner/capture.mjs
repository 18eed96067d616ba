// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What is kept of a program's output for its result: the last LIMIT bytes, in one ring buffer, so that a
// program which writes without end, in however small pieces, costs no more than that.
//
// The end is kept and not the beginning, because programs say last what they found out.

const FIRST = 16 * 1024;

export class Capture {
        #buffer = Buffer.allocUnsafe(FIRST);
        #limit;
        total = 0;

        constructor(limit) {
                this.#limit = Math.max(limit, FIRST);
        }

        get cut() {
                return this.total > this.#limit;
        }

        push(chunk) {
                if (chunk.length >= this.#limit) {
                        // Only its own end remains; laid so that the ring's seam is where the total says.
                        this.total += chunk.length - this.#limit;
                        chunk = chunk.subarray(chunk.length - this.#limit);
                }

                this.#grow(this.total + chunk.length);
                const at = this.total % this.#limit;
                const first = chunk.copy(this.#buffer, at, 0, Math.min(chunk.length, this.#limit - at));
                if (first < chunk.length)
                        chunk.copy(this.#buffer, 0, first);
                this.total += chunk.length;
        }

        #grow(needed) {
                let size = this.#buffer.length;
                if (needed <= size || size === this.#limit)
                        return;
                while (size < needed)
                        size *= 2;
                const larger = Buffer.allocUnsafe(Math.min(size, this.#limit));
                this.#buffer.copy(larger, 0, 0, this.total);
                this.#buffer = larger;
        }

        bytes() {
                if (!this.cut)
                        return this.#buffer.subarray(0, this.total);
                const seam = this.total % this.#limit;
                return Buffer.concat([this.#buffer.subarray(seam), this.#buffer.subarray(0, seam)]);
        }

        /** As text: what is not UTF-8, or NUL, becomes U+FFFD; a character cut in two at the beginning is left out. */
        text() {
                let bytes = this.bytes();
                if (this.cut) {
                        let skip = 0;
                        while (skip < 3 && (bytes[skip] & 0xc0) === 0x80)
                                skip++;
                        bytes = bytes.subarray(skip);
                }
                return bytes.toString('utf8').replaceAll('\0', '\ufffd');
        }
}
