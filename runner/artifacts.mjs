// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Uploads the files that the program left in its artifacts directory.
//
// It promises: files are streamed, never held in memory; what cannot be kept (a directory, a file over the
// run's limits, a name that the bridge refuses) is told in a sentence for the result's message, and keeps
// nothing else from being uploaded.

const fs = process.getBuiltinModule('node:fs');
const { Readable } = process.getBuiltinModule('node:stream');

const TYPES = {
        csv: 'text/csv', gif: 'image/gif', html: 'text/html', jpeg: 'image/jpeg', jpg: 'image/jpeg',
        json: 'application/json', md: 'text/markdown', pdf: 'application/pdf', png: 'image/png',
        svg: 'image/svg+xml', txt: 'text/plain', webp: 'image/webp', xml: 'application/xml', zip: 'application/zip',
};

const typeOf = (name) => TYPES[name.slice(name.lastIndexOf('.') + 1).toLowerCase()] ?? 'application/octet-stream';
const utf8 = new TextDecoder('utf-8', { fatal: true });

/** Returns what went wrong, one sentence each. */
export async function uploadArtifacts(bridge, directory, limits) {
        const problems = [];
        let kept = 0;

        let entries;
        try {
                entries = fs.readdirSync(directory, { encoding: 'buffer' });
        } catch {
                return problems;
        }

        // Bytewise, so that the same files are kept in each run where there are more of them than allowed.
        for (const raw of entries.sort(Buffer.compare)) {
                const shown = JSON.stringify(raw.toString());
                try {
                        const name = utf8.decode(raw);
                        const path = Buffer.concat([Buffer.from(`${directory}/`), raw]);
                        const stat = fs.statSync(path);
                        if (!stat.isFile())
                                problems.push(`Artifact ${shown} is not a file.`);
                        else if (stat.size > (limits.artifact_bytes ?? Infinity))
                                problems.push(`Artifact ${shown} has ${stat.size} bytes; ${limits.artifact_bytes} are allowed.`);
                        else if (kept >= (limits.artifacts ?? Infinity))
                                problems.push(`Artifact ${shown} is one too many; ${limits.artifacts} are allowed.`);
                        else {
                                await bridge.artifact(name, typeOf(name), stat.size, () => open(path, stat.size));
                                kept++;
                        }
                } catch (error) {
                        problems.push(error instanceof TypeError
                                ? `Artifact ${shown} has a name that is not UTF-8.`
                                : `Artifact ${shown} was not kept: ${error.message}`);
                }
        }
        return problems;
}

function open(path, size) {
        // "end" keeps a file that something still appends to at the length that was announced; -1 would mean no end.
        return size > 0 ? fs.createReadStream(path, { end: size - 1 }) : Readable.from([]);
}
