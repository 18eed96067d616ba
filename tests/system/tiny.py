# SPDX-License-Identifier: LGPL-2.1-or-later
"""An image and a runner that are as small as can be, where the tests' own ones would take too long or too much room: a shell
and a few programs, and a runner that brings its own interpreter for just what the platform asks of one.
"""

import json
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

PROGRAMS = ["bash", "cat", "sha256sum", "cut", "rm", "mkdir", "ls", "head", "ln", "mv", "chmod", "touch", "sleep"]


def write_tiny_image(path):
    """A root file system, from the machine's own programs, as a tar in PATH."""
    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        for d in ("usr/bin", "usr/lib64", "usr/lib", "etc", "tmp", "opt", "home", "root", "var/tmp"):
            (root / d).mkdir(parents=True)
        for d in ("bin", "lib", "lib64"):
            (root / d).symlink_to("usr/" + d)
        libraries = set()
        for name in PROGRAMS:
            program = shutil.which(name)
            shutil.copy(program, root / "usr/bin" / name)
            words = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
            libraries |= {word for word in words if word.startswith("/")}
        (root / "usr/bin/sh").symlink_to("bash")
        for library in libraries:
            target = root / "usr" / library.lstrip("/").removeprefix("usr/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nagent:x:1000:\n")
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as t:
            t.add(root, ".", filter=lambda i: i.replace(uid=0, gid=0, uname="", gname="", deep=False))


# Just enough of an interpreter for the checks, and for a runner that reports success.
NODE = r"""#!/bin/bash
if [ "$1" = --check ]; then
        IFS= read -r line <"$2"
        [ "$line" = "// script" ] && exit 0
        echo "$2:1" >&2
        exit 1
fi
IFS= read -r token <"$AGENT_TOKEN_FILE" || [ -n "$token" ] || exit 1
call() {
        exec 9<>/dev/tcp/127.0.0.1/8377 || return 1
        printf '%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\n' "$1" "$2" "$token" >&9
        printf 'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#3}" "$3" >&9
        IFS= read -r answer <&9
        exec 9>&-
        [[ $answer == *" 20"* ]]
}
call GET /v1/run '' || exit 1
until call POST /v1/run/result '{"status":"success","output":1}'; do
        : >/home/agent/refused
        sleep 0.2
done
"""


def write_tiny_runner(folder, version, padding=20000, wait=False):
    """A runner in FOLDER, which is made anew; PADDING makes its scripts larger; WAIT: until there is a file "go" in the run's home."""
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/node").write_text(NODE.replace("until call", ("until [ -e /home/agent/go ]; do sleep 0.1; done\n" if wait else "") + "until call"))
    (folder / "bin/node").chmod(0o755)
    for i in range(5):
        (folder / f"part{i}.cjs").write_text(f"// script\n// {version}\n" + "//\n" * padding)
    (folder / "main.cjs").write_text(f"// script\n// {version}\n")
    (folder / "runner.json").write_text(json.dumps({
        "name": "tiny", "version": version, "main": "main.cjs", "check": ["*.cjs"], "node": "bin/node"}))
    return folder
