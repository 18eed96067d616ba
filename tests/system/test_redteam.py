# SPDX-License-Identifier: LGPL-2.1-or-later
"""What hostile code in a run, or a hostile user of the host, tried with success once."""

import json
import os
import pathlib
import socket
import subprocess

import dbus
import pytest

from client import BUS_NAME, OPERATION, agentctl, call_as, run, show, wait_until

INTROSPECTABLE = "org.freedesktop.DBus.Introspectable"


def test_names_of_others_are_not_told(agentd, users, make_agent, unique):
    """Introspection shows a user what is his own, as ObjectManager does."""
    name = make_agent(["/bin/sh", "-c", "exec sleep 300"], name=unique("").strip("-"))
    path = agentd.execute(name)
    agentd.wait_state(path, "running")
    for node, secret in (("agent", name), ("run", agentd.run_id(path))):
        at = (BUS_NAME, f"/org/agentd1/{node}", INTROSPECTABLE, "Introspect", [])
        assert secret in call_as("root", at)[0]["value"]
        assert secret not in call_as("bob", at)[0]["value"]


def test_variables_are_told_to_the_run_only(agentd, users, make_agent):
    """Anybody can read the properties of a unit; what an agent of kind exec finds in its environment is not there."""
    values = {"API_KEY": 'hush "q" $HOME `b` \\n end\\', "LINES": "one\n\ttwo", "EMPTY": "", "SPACES": "  # it's ;  "}
    command = ["/usr/bin/python3", "-c", f"import os; print([os.environ[k] for k in {sorted(values)}], flush=True); "
               "import time; time.sleep(300)"]
    path = agentd.execute(make_agent(command, environment=values))
    agentd.wait_state(path, "running")
    shown = run("systemctl", "show", f"agent-run-{agentd.run_id(path)}.service", user="bob").stdout
    assert "AGENT_RUN_ID=" in shown and "hush" not in shown
    name = make_agent([*command[:2], command[2].split("import time")[0]], environment=values)
    path = agentd.execute(name)
    assert agentd.finish(path)[0] == "success"
    assert str([values[k] for k in sorted(values)]) in agentd.log(path)


def test_documents_that_nobody_reads(probe):
    """One run cannot make the bridge hold more than a bounded number of large answers; it may go on afterwards."""
    out = probe(r'''
request = ("GET /v1/run HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n" % token()).encode()
held, seen = [], []
for i in range(200):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    s.connect(("127.0.0.1", 8377))
    s.sendall(request)
    seen.append(s.recv(12).decode())
    held.append(s)
for s in held:
    s.close()
say([seen, patient("GET", "/v1/run")[0]])
''' + "#" * 1000000)
    assert set(out[0]) == {"HTTP/1.1 200", "HTTP/1.1 503"}
    assert 10 < out[0].count("HTTP/1.1 200") < 100
    assert out[1] == 200


def test_bodies_that_never_end(probe):
    """The same for documents that are collected."""
    out = probe(r'''
head = ("POST /v1/run/result HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\n"
        % token()).encode()
held, refused = [], 0
for i in range(60):
    s = socket.create_connection(("127.0.0.1", 8377))
    try:
        s.sendall(head + b" " * 999999)
    except ConnectionError:
        pass
    held.append(s)
for s in held:
    s.setblocking(False)
while not refused:
    for s in held:
        try:
            refused += s.recv(12) == b"HTTP/1.1 503"
        except OSError:
            pass
for s in held:
    s.close()
say([refused > 0, patient("GET", "/v1/run")[0]])
''')
    assert out == [True, 200]


def test_two_writers_of_one_artifact(probe):
    """What was committed cannot be written any more, by whoever began the same name before."""
    code = r'''
def begin(size):
    s = socket.create_connection(("127.0.0.1", 8377))
    s.sendall(("PUT /v1/artifacts/twice HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n"
               "Expect: 100-continue\r\n\r\n" % (token(), size)).encode())
    assert s.recv(4096).startswith(b"HTTP/1.1 100"), "not begun"
    return s
late = begin(10)
late.sendall(b"AAAAA")
second = bridge("PUT", "/v1/artifacts/twice", b"BBB")[0]
late.sendall(b"AAAAA")
say([second, late.recv(12).decode(), bridge("GET", "/v1/artifacts/twice")[2].decode()])
'''
    assert probe(code) == [201, "HTTP/1.1 422", "BBB"]


def test_operations_that_are_over_do_not_pile_up(agentd, users):
    """Each keeps a document for those who ask late; of one user's the oldest go."""
    call = ("CheckEnvironments", {"options": {}})
    first = call_as("alice", call)[0]["value"]
    agentd.complete(first)
    for _ in range(40):
        agentd.complete(call_as("alice", call)[0]["value"])
    at = (BUS_NAME, "/org/agentd1/operation", INTROSPECTABLE, "Introspect", [])
    assert call_as("alice", at)[0]["value"].count("<node name=") <= 33
    assert "error" in call_as("alice", (BUS_NAME, first, OPERATION, "OpenResult", []))[0]


def test_one_user_cannot_fill_the_store_with_names(users):
    """What is made by one call and kept for ever has a bound for each user."""
    definition = {"base_url": "https://example.com", "auth": {"kind": "none"}, "allow": []}
    names = [f"flood-{i}" for i in range(1001)]
    made = call_as("bob", *(("CreateService", json.dumps({"name": n, **definition})) for n in names))
    gone = call_as("bob", *(("RemoveService", n) for n in names))
    refused = [m for m in made if "error" in m]
    assert refused and all(m["error"] == "org.freedesktop.DBus.Error.LimitsExceeded" for m in refused), refused[:3]
    assert len(refused) + sum("error" not in g for g in gone) == len(names)


def test_lines_cost_more_than_their_bytes(probe, make_agent, agentd):
    """Many short lines fill the journal like few long ones."""
    agent = make_agent(["/usr/bin/python3", "-c", "import sys; exec(compile(sys.stdin.read(), '<probe>', 'exec'))"],
                       kind="command", limits={"log": "64K"})
    code = r'''
say([bridge("POST", "/v1/logs", b"a\n" * 20000)[0], bridge("POST", "/v1/logs", b"a\n")[0]])
'''
    first, second = probe(code, agent=agent)
    assert first in (200, 413) and second == 413


def close_edit(agentd, name):
    for member in ("CloseEdit", "DiscardEdit"):
        try:
            path = agentd.call(member, name)
            if path:
                agentd.complete(str(path))
        except dbus.DBusException:
            pass


def test_a_session_cannot_give_away_what_it_has_open(agentd, make_agent, tmp_path):
    """Whoever held a directory of an edit could swap it for a link while a freeze reads it as root. What a session has
    of the outside is pipes, files and terminals; by those no file leaves it."""
    name = make_agent("true")
    none = dbus.Dictionary({}, signature="sv")
    inner = ["/usr/bin/python3", "-c", "import os, socket; d = os.open('/srv', os.O_RDONLY); "
             "socket.send_fds(socket.socket(fileno=os.dup(0)), [b'x'], [d])"]
    ours, theirs = socket.socketpair()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    read, write = os.pipe()
    fds = {"pair": theirs.fileno(), "listener": listening.fileno(), "directory": os.open(tmp_path, os.O_RDONLY),
           "path": os.open("/etc/passwd", os.O_PATH), "nothing": os.eventfd(0),
           "device": os.open("/dev/fuse", os.O_RDWR)}
    try:
        for what, fd in fds.items():
            for at in range(3):
                stdio = [dbus.types.UnixFd(fd if i == at else write) for i in range(3)]
                with pytest.raises(dbus.DBusException) as e:
                    agentd.call("EditEnvironment", name, inner, *stdio, none)
                assert e.value.get_dbus_name() == "org.freedesktop.DBus.Error.InvalidArgs", what
        # Nothing is begun by a call that is refused.
        assert not [e for e in agentd.call("ListEdits") if str(e[1]) == name]
        # What it takes, and that it is the kind that is refused, not the call.
        null = os.open("/dev/null", os.O_RDWR)
        with open(tmp_path / "file", "w+") as f:
            path = str(agentd.call("EditEnvironment", name, ["/bin/echo", "out"], dbus.types.UnixFd(null),
                                   dbus.types.UnixFd(f.fileno()), dbus.types.UnixFd(write), none))
            assert agentd.complete(path)[0] == "done"
            assert f.seek(0) == 0 and f.read() == "out\n"
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            socket.recv_fds(ours, 1, 1)
        os.close(null)
    finally:
        close_edit(agentd, name)
        for fd in (*list(fds.values())[2:], read, write):
            os.close(fd)
        for s in (ours, theirs, listening):
            s.close()


def test_sessions_of_services(agentd, make_agent):
    """Under systemd, standard output is a socket of the journal's; agentctl carries it."""
    name = make_agent("true")
    ins, outs = socket.socketpair(), socket.socketpair()
    try:
        argv = ["agentctl", "env", "edit", name, "--", "/bin/sh", "-c", "read a; echo $a; head -c 300000 /dev/zero"]
        child = subprocess.Popen(argv, stdin=ins[1], stdout=outs[1])
        for s in (ins[1], outs[1]):
            s.close()
        ins[0].sendall(b"line\n")
        got = b""
        while piece := outs[0].recv(65536):
            got += piece
        assert child.wait() == 0 and got == b"line\n" + bytes(300000)
    finally:
        close_edit(agentd, name)
        for s in (ins[0], outs[0]):
            s.close()


def test_what_reads_changes_sees_nothing_of_the_host(agentd, unique):
    """mkfs.erofs follows links, as root: there is nothing where they could lead."""
    read, write = os.pipe()
    path = str(agentd.call("ImportImage", unique(), dbus.types.UnixFd(read), dbus.Dictionary({}, signature="sv")))
    os.close(read)
    try:
        pattern = f"agent-op-{path.rsplit('/')[-1]}-*"
        listing = ["systemctl", "list-units", "--plain", "--no-legend", pattern]
        unit = wait_until(lambda: run(*listing).stdout.split(), "the unit")[0]
        pid = wait_until(lambda: int(show(unit, "MainPID")), "its process")
        root = pathlib.Path(f"/proc/{pid}/root")
        wait_until(lambda: pathlib.Path(f"/proc/{pid}/comm").read_text() == "agent-image\n", "its program")
        assert (root / "usr/lib/agentd/agent-image").exists() and os.listdir(root / "var/lib/agentd/tmp")
        assert os.listdir("/var/lib/agentd/layers") and pathlib.Path("/etc/shadow").exists()
        for hidden in ("etc/shadow", "etc/passwd", "var/lib/agentd/layers", "var/lib/agentd/store.db",
                       "var/lib/agentd/edits", "var/lib/agent-credential", "run/agentd", "run/dbus", "root", "home",
                       "mnt", "src", "boot"):
            assert not os.path.lexists(root / hidden), hidden
        assert os.statvfs(root).f_flag & os.ST_RDONLY
    finally:
        agentd.call("Cancel", path=path, interface=OPERATION)
        os.close(write)
    assert agentd.complete(path)[0] == "canceled"


def test_directories_inside_one_another_without_end(agentd, make_agent):
    """To take them away costs agentd neither an fd nor a frame for each."""
    name = make_agent("true")
    deep = ("import os; os.chdir('/srv')\n"
            "for i in range(6000): os.mkdir('d'); os.chdir('d')\n")
    try:
        agentctl("env", "edit", name, "--", "/usr/bin/python3", "-c", deep)
        done = agentctl("env", "freeze", name, check=False)
        assert done.returncode != 0 and ("inside one another" in done.stderr or "longer than" in done.stderr)
        edit = [p for p in pathlib.Path("/var/lib/agentd/edits").iterdir()  # but for those that are being removed
                if (p / "edit.json").exists() and json.loads((p / "edit.json").read_text())["agent"] == name][0]
        gone, pid, most = edit.with_name(".gone-" + edit.name), show("agentd.service", "MainPID"), [0]
        agentctl("env", "discard", name)

        def is_gone():
            most[0] = max(most[0], len(os.listdir(f"/proc/{pid}/fd")))
            return not gone.exists()

        wait_until(is_gone, "the removal")
        assert not edit.exists() and most[0] < 300 and show("agentd.service", "MainPID") == pid, most
    finally:
        close_edit(agentd, name)


def test_files_of_nothing(agentd, make_agent):
    """Holes become bytes in a layer: one file could fill the disk of the store. What fits can be frozen afterwards."""
    name = make_agent("true")
    try:
        agentctl("env", "edit", name, "--", "/bin/sh", "-ec", "truncate -s 1T /srv/holes; echo x > /srv/file")
        done = agentctl("env", "freeze", name, check=False)
        assert done.returncode != 0 and "MaxSize=" in done.stderr
        agentctl("env", "edit", name, "--", "truncate", "-s", "1M", "/srv/holes")
        agentctl("env", "freeze", name)
    finally:
        close_edit(agentd, name)


def test_names_that_steer_a_terminal(agentd, make_agent):
    """Also by the control characters beyond ASCII, which some terminals take in UTF-8."""
    name = make_agent("true")
    try:
        script = "import os; [os.close(os.open(b'/srv/n' + c, os.O_CREAT)) for c in (b'\\x1b[31m', b'\\xc2\\x9b31m')]"
        agentctl("env", "edit", name, "--", "/usr/bin/python3", "-c", script)
        agentctl("env", "freeze", name)
        shown = agentctl("env", "diff", name, "1").stdout
        assert r"/srv/n\x1b[31m" in shown and r"/srv/n\xc2\x9b31m" in shown
    finally:
        close_edit(agentd, name)


def test_arrays_without_end(agentd, make_agent, unique):
    """What is refused is refused at once, and the loop goes on: to count them again for each would take minutes."""
    name, pid = make_agent("true"), show("agentd.service", "MainPID")
    null = dbus.types.UnixFd(os.open("/dev/null", os.O_RDWR))
    many, none = dbus.Array(["x"] * 1000000, signature="s"), dbus.Dictionary({}, signature="sv")
    calls = [lambda: agentd.call("EditEnvironment", name, many, null, null, null, none),
             lambda: agentd.call("OpenEditTerminal", name, many, none),
             lambda: agentd.call("EditEnvironment", name, ["/bin/true", "x" * 1000000], null, null, null, none),
             lambda: agentd.call("EditEnvironment", name, ["/bin/true"], null, null, null,
                                 dbus.Dictionary({"allow-hosts": many}, signature="sv")),
             lambda: agentd.call("BuildImage", unique(), dbus.Dictionary({"packages": many}, signature="sv"))]
    for call in calls:
        with pytest.raises(dbus.DBusException) as e:
            call()
        assert e.value.get_dbus_name() == "org.agentd1.Error.InvalidOption"
    assert show("agentd.service", "MainPID") == pid
    assert not [e for e in agentd.call("ListEdits") if str(e[1]) == name]
    try:
        longest = "x" * 100000
        path = str(agentd.call("EditEnvironment", name, ["/bin/true"] + [longest] * 5, null, null, null, none))
        assert agentd.complete(path)[0] == "done"
    finally:
        close_edit(agentd, name)
