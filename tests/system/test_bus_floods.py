# SPDX-License-Identifier: LGPL-2.1-or-later
"""What one user asks of agentd without end costs agentd little, and others nothing but their turn."""

import json
import pathlib
import subprocess
import threading

import inside
from client import BUS_NAME, MANAGER, MANAGER_PATH, agentctl, call_as, run, show, wait_until

OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
LIMITS_EXCEEDED = "org.freedesktop.DBus.Error.LimitsExceeded"

# A client of the bus that waits for nothing.
CLIENT = r"""
import os, socket, struct, sys, threading

def pad(b, n):
    return b + bytes(-len(b) % n)

def string(s):
    return struct.pack("<I", len(s)) + s.encode() + b"\0"

def call(destination, path, interface, member, signature="", body=b"", serial=1, flags=0):
    fields = b""
    for code, kind, value in ((1, "o", path), (6, "s", destination), (2, "s", interface), (3, "s", member)):
        fields = pad(fields, 8) + bytes((code, 1)) + kind.encode() + b"\0" + string(value)
    if signature:
        fields = pad(fields, 8) + b"\x08\x01g\0" + bytes((len(signature),)) + signature.encode() + b"\0"
    return pad(b"l\x01" + bytes((flags, 1)) + struct.pack("<III", len(body), serial, len(fields)) + fields, 8) + body

rest = {}  # what came and was not looked at

def answer(s, serial):
    data = rest.pop(s, b"")
    while True:
        while len(data) < 16 or len(data) < 16 + struct.unpack_from("<I", data, 12)[0]:
            data += s.recv(65536) or sys.exit("the bus hung up")
        body, _, fields = struct.unpack_from("<III", data, 4)
        size = 16 + fields + -fields % 8 + body
        while len(data) < size:
            data += s.recv(65536) or sys.exit("the bus hung up")
        message, data = data[:size], data[size:]
        # The field with the serial that is answered.
        if b"\x05\x01u\0" + struct.pack("<I", serial) in message[16:16 + fields]:
            rest[s] = data
            return

def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect("/run/dbus/system_bus_socket")
    s.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\nBEGIN\r\n")
    while not s.recv(1) == b"\n":
        pass
    bus = "org.freedesktop.DBus"
    s.sendall(call(bus, "/org/freedesktop/DBus", bus, "Hello"))
    answer(s, 1)
    return s

at = "org.agentd1", "/org/agentd1"
peer = "org.freedesktop.DBus.Peer"
"""

# Sends COUNT calls of ExecuteAgent with inputs of SIZE bytes, over several connections, and asks for no answers; at last
# a question on each, whose answer says that all before it was dealt with.
FLOOD = CLIENT + r"""
def flood(agent, size, count):
    s = connect()
    body = pad(pad(pad(string(agent), 4) + string("x" * size), 4) + struct.pack("<I", 0), 8)
    for i in range(count):
        s.sendall(call(*at, "org.agentd1.Manager", "ExecuteAgent", "ssa{sv}", body, 2, 1))
    s.sendall(call(*at, peer, "Ping", serial=3))
    answer(s, 3)

agent, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
threads = [threading.Thread(target=flood, args=(agent, size, count // 4)) for _ in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print("done")
"""


def most_memory(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) // 1024


def test_calls_stay_in_the_queues_of_the_bus(agentd, users):
    """What was not dealt with yet is not in agentd's memory: the bus has a bound for each user."""
    agentd.call("ListAgents")
    pid = show("agentd.service", "MainPID")
    for agent in ("nosuch", "root/nosuch"):  # one's own, and another's, for which polkit is asked
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
        before = most_memory(pid)
        assert run("python3", "-c", FLOOD, agent, 1000000, 2000, user="bob").stdout == "done\n"
        assert most_memory(pid) - before < 600, agent
    assert show("agentd.service", "MainPID") == pid


# Opens the log of a run again and again, and reads none of it; says how often that was possible, and what came then.
HOLDER = r"""
import dbus, sys
name, path, interface, run = sys.argv[1:]
manager = dbus.Interface(dbus.SystemBus().get_object(name, path, introspect=False), interface)
held = []
try:
    while len(held) < 500:
        held.append(manager.OpenRunLog(run, True))
except dbus.DBusException as e:
    print(len(held), e.get_dbus_name(), flush=True)
sys.stdin.read()
"""


def test_logs_that_nobody_reads(agentd, users, image, unique):
    """Who opens a log and does not read it keeps a program waiting. One user cannot have all that there may be."""
    name = unique()
    definition = {"name": name, "image": image, "kind": "exec", "command": ["/bin/sleep", "infinity"]}
    paths = []
    for user in users:
        assert "value" in call_as(user, ("CreateAgent", json.dumps(definition)))[0]
        paths.append(call_as(user, ("ExecuteAgent", name, "", {"options": {}}))[0]["value"])
    try:
        ids = [agentd.run_id(p) for p in paths]
        argv = ["runuser", "-u", users[0], "--", "python3", "-c", HOLDER, BUS_NAME, MANAGER_PATH, MANAGER, ids[0]]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            number, error = holder.stdout.readline().split()
            assert error == LIMITS_EXCEEDED and 10 < int(number) < 100
            assert call_as(users[1], ("OpenRunLog", ids[1], False))[0] == {"value": ""}
            agentd.call("OpenRunLog", ids[0], False).take()
            holder.stdin.close()
            holder.wait()
        wait_until(lambda: "value" in call_as(users[0], ("OpenRunLog", ids[0], False))[0], "the end of what was held")
    finally:
        for user, path in zip(users, paths):
            call_as(user, ("CancelRun", agentd.run_id(path)))
            agentd.finish(path)
            call_as(user, ("RemoveAgent", name))


def test_definitions_have_a_bound_in_bytes(agentd, users, image, unique, text_file):
    """Who asks for all objects gets all definitions in one message, and the bus hangs up on who sends what is too large."""
    user, prefix, pid = users[1], unique(), show("agentd.service", "MainPID")
    large = {f"V{i}": "x" * 32000 for i in range(7)}

    def definition(name, environment):
        return json.dumps({"name": name, "image": image, "kind": "exec", "command": ["/bin/true"],
                           "environment": environment})

    names = [f"{prefix}-{i}" for i in range(120)]
    made = call_as(user, *(("CreateAgent", definition(name, large)) for name in names))
    try:
        refused = [m["error"] for m in made if "error" in m]
        assert set(refused) == {LIMITS_EXCEEDED} and 10 < len(names) - len(refused) < 100
        # The same by the other ways.
        name = names[0]
        archive = text_file("")
        agentctl("env", "export", f"{user}/{name}", archive)
        run("chmod", "644", archive)
        path = call_as(user, ("ImportEnvironment", prefix, {"fd": archive}, {"options": {}}))[0]["value"]
        result, detail = agentd.complete(path)
        assert result == "failed" and "Remove some" in detail
        last = next(n for n, m in zip(names, made) if "error" in m)
        small = call_as(user, ("CreateAgent", definition(last, {})), ("UpdateAgent", definition(last, large)),
                        ("UpdateAgent", definition(name, {})), ("UpdateAgent", definition(last, large)))
        assert ["error" in s for s in small] == [False, True, False, False]
        for who in (user, "root", users[0]):
            shown = call_as(who, (BUS_NAME, MANAGER_PATH, OBJECT_MANAGER, "GetManagedObjects", []))[0]["value"]
            assert any(path.endswith(f"/{user}/{name.replace('-', '_2d')}") for path in shown) == (who != users[0])
        assert show("agentd.service", "MainPID") == pid
    finally:
        call_as(user, *(("RemoveAgent", name) for name in [*names, prefix]))


def test_a_receipt_has_a_bound_in_bytes(agentd, make_service, make_agent):
    """What cannot be stored would keep a run live for ever, and with it its place."""
    service = make_service(base_url="https://localhost:1/")  # where nobody listens
    code = inside.PRELUDE + f"""
c = connect()
for i in range(1300):
    c.request("GET", "/v1/services/{service}/" + "a" * 7900, headers={{"Authorization": "Bearer " + token()}})
    c.getresponse().read()
say(1300)
"""
    path = agentd.execute(make_agent(inside.COMMAND, kind="command", services=[service]), code)
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"] == 1300
    calls = agentd.receipt(path)["calls"]
    assert 900 < len(calls) < 1100 and len(json.dumps(calls)) < 9 << 20


CREDENTIALS = ("org.agentd1.Credentials", "/org/agentd1/Credentials", "org.agentd1.Credentials")

# Offers secrets that do not come, until one is refused, and says why.
SILENT = r"""
import dbus, dbus.mainloop.glib, os, sys
from gi.repository import GLib
dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
loop, name, path, interface, service = GLib.MainLoop(), *sys.argv[1:]
room = dbus.Interface(dbus.SystemBus().get_object(name, path, introspect=False), interface)

def failed(e):
    print(e.get_dbus_name(), flush=True)
    loop.quit()

pipes = [os.pipe() for _ in range(40)]
for r, w in pipes:
    room.SetCredential("", service, dbus.types.UnixFd(r), reply_handler=lambda: None, error_handler=failed)
loop.run()
sys.stdin.read()
"""


def test_secrets_that_do_not_come(users, unique):
    """The strong room waits for so many at a time, and one user has a share of that."""
    alice, bob = users
    names, room = [unique() for _ in range(3)], "agent-credentiald.service"
    agentctl("credential", "set", names[0], stdin="s3cret-of-root")
    pid = show(room, "MainPID")
    try:
        argv = ["runuser", "-u", bob, "--", "python3", "-c", SILENT, *CREDENTIALS, names[1]]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout.readline().strip() == LIMITS_EXCEEDED
            agentctl("credential", "set", names[2], user=alice, stdin="s3cret-of-alice")
            agentctl("credential", "set", names[0], stdin="s3cret-of-root")
            holder.stdin.close()
        assert show(room, "MainPID") == pid
    finally:
        for user, name in zip((None, bob, alice), names):
            agentctl("credential", "remove", name, user=user, check=False)


# Keeps NUMBER thousands of calls waiting all the time, until it is stopped; says each time that a thousand was dealt with.
ENDLESS = CLIENT + r"""
s, lock = connect(), threading.Lock()
batch = call(*at, peer, "Ping", serial=2, flags=1) * 999 + call(*at, peer, "Ping", serial=3)

def send(number):
    for _ in range(number):
        with lock:
            s.sendall(batch)

threading.Thread(target=send, args=(int(sys.argv[1]),)).start()
threading.Thread(target=lambda: sys.stdin.read() or os._exit(0)).start()
while True:
    answer(s, 3)
    print(flush=True)
    send(1)
"""


def test_runs_go_on_while_somebody_floods(agentd, users, make_agent):
    """What others have to say to agentd waits its turn; but what agentd hears of PID 1 and the bridge, and so a run that has
    begun, does not."""
    name, waiting = make_agent("true"), 200
    agentd.finish(agentd.execute(name))
    dealt_with = []

    def count():
        for line in flooder.stdout:
            dealt_with.append(line)

    argv = ["runuser", "-u", "bob", "--", "python3", "-c", ENDLESS, str(waiting)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flooder:
        counter = threading.Thread(target=count)
        counter.start()
        try:
            wait_until(lambda: dealt_with, "the flood")
            path = agentd.execute(name)
            begun = len(dealt_with)
            agentd.wait_for(lambda: path in agentd.finished_runs, what="the end of a run")
            assert flooder.poll() is None and len(dealt_with) - begun < waiting
            wait_until(lambda: len(dealt_with) > begun, "more of the flood")
        finally:
            flooder.stdin.close()
            counter.join()
