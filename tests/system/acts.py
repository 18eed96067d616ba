# SPDX-License-Identifier: LGPL-2.1-or-later
"""What code in a sandbox must not be able to do, act by act (acts_world.py, acts_kernel.py), as a program that is
sent into a sandbox and, to show that the act itself works, into a plain unit of the host. Each act is a function that
returns where it succeeded and raises where it did not; C is what it is told of the world. Standard library only.
"""

import ctypes
import errno
import inspect
import json
import os
import signal
import sys

ACTS = {}
USER_ACTS = set()  # those whose control is an ordinary user of the host: for root they prove nothing
C = {}
PARENT = os.getppid()  # of this program, not of the children that try the acts


def act(f):
    ACTS[f.__name__] = f
    return f


def user_act(f):
    USER_ACTS.add(f.__name__)
    return act(f)


def libc(function, *args):
    lib = ctypes.CDLL(None, use_errno=True)
    lib.syscall.restype = ctypes.c_long
    r = getattr(lib, function)(*args)
    if r < 0:
        raise OSError(ctypes.get_errno(), function)
    return r


def attempt(function):
    """Runs it in a child, since some acts are deadly: [succeeded, what was seen]."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        signal.alarm(1200)
        try:
            answer = [True, str(function())[:100]]
        except BaseException as e:
            code = errno.errorcode.get(getattr(e, "errno", None), "")
            answer = [False, f"{type(e).__name__} {code} {e}"[:200]]
        os.write(w, json.dumps(answer).encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    end = os.waitpid(pid, 0)[1]
    return json.loads(text) if text else [False, f"killed by signal {end & 127}"]


def main(context, names):
    C.update(context)
    print(json.dumps({name: attempt(ACTS[name]) for name in names}))
    sys.stdout.flush()


def program(context, names):
    """The text of a program that tries the acts NAMES and prints what came of each."""
    import acts_kernel
    import acts_world

    text = "".join(inspect.getsource(m) for m in (sys.modules[__name__], acts_world, acts_kernel))
    lines = [line for line in text.split("\n") if not line.startswith("from acts import")]
    return "\n".join(lines) + f"\nmain({context!r}, {sorted(names)!r})\n"
