# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that tests send into a sandbox: an agent whose input is a Python program, and what all of those begin
with.
"""

COMMAND = ["/usr/bin/python3", "-c", "import sys; exec(compile(sys.stdin.read(), '<probe>', 'exec'))"]

# Plain Python of the image; nothing but the standard library. `say` prints the run's result.
PRELUDE = r'''
import base64, ctypes, errno, hashlib, http.client, json, os, re, signal, socket, stat, struct, subprocess, sys, time

def say(value):
    json.dump(value, sys.stdout)
    sys.stdout.flush()

def token():
    with open(os.environ["AGENT_TOKEN_FILE"]) as f:
        return f.read().strip()

def connect():
    return http.client.HTTPConnection("127.0.0.1", 8377, timeout=3600)

def bridge(method, path, body=None, headers=None, auth=True):
    """One request to the bridge on a connection of its own: status, headers, body."""
    headers = dict(headers or {})
    if auth:
        headers.setdefault("Authorization", "Bearer " + (token() if auth is True else auth))
    c = connect()
    try:
        c.request(method, path, body, headers)
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
    finally:
        c.close()

def patient(method, path, body=None, headers=None, tries=100000):
    """The same, as a real client does over a restart of what it calls: once more where the connection broke or the
    other side said that it is not ready."""
    for i in range(tries):
        try:
            answer = bridge(method, path, body, headers)
        except (OSError, http.client.HTTPException):
            answer = None
        if answer and answer[0] not in (429, 502, 503, 504):
            return answer
        time.sleep(0.02)
    raise RuntimeError("no answer in %d tries: %s" % (tries, answer))

def syscall(number, *args):
    """A system call by its number; the error's name, or "ok"."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(ctypes.c_long(number), *args) < 0:
        return errno.errorcode[ctypes.get_errno()]
    return "ok"
'''
