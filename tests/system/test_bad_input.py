# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is wrong with a call is told by an error of its own name and a sentence that says what to do, and nothing
half-made stays: definitions, inputs, names. (Images: test_bad_images.py. Rights: test_rights.py.)
"""

import json

import dbus
import pytest

import inside
from client import DEADLINE, agentctl, call_as, run

MIB = 1 << 20
ERROR = "org.agentd1.Error."


def refused(error, call, *args, **kw):
    """CALL fails with ERROR (short for ours) and a sentence; returns it."""
    with pytest.raises(dbus.DBusException) as e:
        call(*args, **kw)
    name, message = e.value.get_dbus_name(), e.value.get_dbus_message()
    assert name == (error if "." in error else ERROR + error), f"{name}: {message}"
    assert len(message) > 15 and "\n" not in message.strip(), message
    return message


def inventory(agentd):
    """All that a refused call could have made."""
    return (
        sorted(map(str, agentd.call("ListAgents"))),
        sorted(map(str, agentd.call("ListImages"))),
        sorted(map(str, agentd.call("ListServices"))),
        int(agentd.get("/org/agentd1", "NQueued", "org.agentd1.Manager")),
        len(agentd.call("ListRuns", dbus.Dictionary({"limit": dbus.UInt32(1000)}, signature="sv"))),
    )


GOOD = {"name": "well", "image": "test-base", "kind": "exec", "command": ["/bin/true"]}


def without(key):
    return json.dumps({k: v for k, v in GOOD.items() if k != key})


# definition (text, or keys on top of a good one) and what the message must name
DEFINITIONS = {
    "empty": ("", ""),
    "no JSON": ("name: x", "line 1"),
    "two documents": (json.dumps(GOOD) + json.dumps(GOOD), "line"),
    "cut off": (json.dumps(GOOD)[:-5], "line"),
    "an array": ("[]", "object"),
    "a string": ('"well"', "object"),
    "null": ("null", "object"),
    "comment": ("// x\n" + json.dumps(GOOD), "line 1"),
    "trailing comma": (json.dumps(GOOD)[:-1] + ",}", "line"),
    "no name": (without("name"), "name"),
    "no image": (without("image"), "image"),
    "no kind": (without("kind"), "kind"),
    "no command": (without("command"), "command"),
    "repeated key": (json.dumps(GOOD)[:-1] + ', "kind": "exec"}', "kind"),
    "unknown key": ({"imagge": "x"}, "imagge"),
    "unknown key, with its line": (json.dumps(GOOD, indent=1)[:-2] + ',\n "colour": 1\n}', "line 8"),
    "unknown kind": ({"kind": "magic"}, "kind"),
    "unknown limit": ({"limits": {"memroy": "1G"}}, "memroy"),
    "unknown isolation": ({"isolation": "none"}, "isolation"),
    "name with slash": ({"name": "a/b"}, "name"),
    "name with dots": ({"name": ".."}, "name"),
    "name with newline": ({"name": "a\nb"}, "name"),
    "name with NUL": ({"name": "a\0b"}, ""),
    "long name": ({"name": "a" * 300}, "name"),
    "upper case": ({"name": "Well"}, "name"),
    "empty name": ({"name": ""}, "name"),
    "name is a number": ({"name": 7}, "name"),
    "command is a string": ({"command": "/bin/true"}, "command"),
    "command is empty": ({"command": []}, "command"),
    "command is relative": ({"command": ["true"]}, "command"),
    "command with NUL": ({"command": ["/bin/true", "a\0b"]}, ""),
    "command of numbers": ({"command": ["/bin/sleep", 5]}, "command"),
    "too long command": ({"command": ["/bin/true"] * 257}, "command"),
    "memory is negative": ({"limits": {"memory": -1}}, "memory"),
    "memory is no size": ({"limits": {"memory": "much"}}, "memory"),
    "memory overflows": ({"limits": {"memory": "99999999999999999T"}}, "memory"),
    "memory above maximum": ({"limits": {"memory": "1T"}}, "memory"),
    "cpu is zero": ({"limits": {"cpu": 0}}, "cpu"),
    "timeout above maximum": ({"limits": {"timeout": "10year"}}, "timeout"),
    "limits is an array": ({"limits": []}, "limits"),
    "concurrency is zero": ({"concurrency": 0}, "concurrency"),
    "concurrency is huge": ({"concurrency": 1e300}, "concurrency"),
    "environment of the platform": ({"environment": {"AGENT_TOKEN_FILE": "/x"}}, "AGENT_TOKEN_FILE"),
    "environment for sockets": ({"environment": {"LISTEN_FDS": "1"}}, "LISTEN_FDS"),
    "environment with equals": ({"environment": {"A=B": "1"}}, ""),
    "environment with newline in name": ({"environment": {"A\nB": "1"}}, ""),
    "environment of a number": ({"environment": {"A": 1}}, "A"),
    "service twice": ({"services": ["a", "a"]}, "services"),
    "service with odd name": ({"services": ["../a"]}, "services"),
    "deep": ("[" * 5000, ""),
    "too large": (json.dumps({**GOOD, "description": "x" * (256 << 10)}), ""),
}


@pytest.mark.parametrize("member", ["CreateAgent", "UpdateAgent"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_definition(agentd, image, name, member):
    document, names = DEFINITIONS[name]
    text = document if isinstance(document, str) else json.dumps({**GOOD, **document})
    before = inventory(agentd)
    message = refused("InvalidDefinition", agentd.call, member, text)
    assert names in message, message
    assert inventory(agentd) == before


def test_definition_names_what_is_not_there(agentd, image):
    before = inventory(agentd)
    assert "no-such" in refused("NoSuchImage", agentd.call, "CreateAgent", json.dumps({**GOOD, "image": "no-such"}))
    assert "no-such" in refused(
        "NoSuchService", agentd.call, "CreateAgent", json.dumps({**GOOD, "services": ["no-such"]})
    )
    assert "well" in refused("NoSuchAgent", agentd.call, "UpdateAgent", json.dumps(GOOD))
    assert inventory(agentd) == before


def test_agent_exists(agentd, make_agent, image):
    name = make_agent("exit 0")
    refused("AgentExists", agentd.call, "CreateAgent", json.dumps({**GOOD, "name": name}))


NAMES = {
    "slash": "a/b/c",
    "dots": "..",
    "absolute": "/etc/passwd",
    "newline": "a\nb",
    "long": "a" * 300,
    "empty": "",
    "space": "a b",
    "escape": "a\x1bb",
    "umlaut": "ä",
    "upper": "A",
    "dash": "-x",
    "percent": "%00",
    "user": "root/../x",
    "nobody": "no-such-user/agent",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize(
    "member",
    [
        "ExecuteAgent",
        "GetAgent",
        "RemoveAgent",
        "ListGenerations",
        "FreezeEnvironment",
        "GetService",
        "RemoveService",
        "RemoveImage",
        "BuildImage",
    ],
)
def test_name(agentd, member, name):
    options = dbus.Dictionary({}, signature="sv")
    args = {"ExecuteAgent": ["", options], "FreezeEnvironment": [options], "BuildImage": [options]}.get(member, [])
    before = inventory(agentd)
    with pytest.raises(dbus.DBusException) as e:
        agentd.call(member, name, *args)
    assert e.value.get_dbus_name() in {
        ERROR + x for x in ("InvalidName", "NoSuchAgent", "NoSuchImage", "NoSuchService", "InvalidOption")
    }, e.value
    assert len(e.value.get_dbus_message()) > 15
    assert inventory(agentd) == before


@pytest.mark.parametrize("member", ["GetRun", "CancelRun", "GetReceipt", "GetResult", "ListArtifacts"])
@pytest.mark.parametrize("run_id", ["", "x", "0" * 31, "0" * 32, "0" * 33, "A" * 32, "../" + "0" * 29, "\n" * 32])
def test_run_id(agentd, member, run_id):
    refused("NoSuchRun", agentd.call, member, run_id)


def test_nul_cannot_come_in(agentd):
    """Not even in a message that was not made by a library: the bus or sd-bus refuses it."""
    done = run(
        "busctl", "call", "org.agentd1", "/org/agentd1", "org.agentd1.Manager", "GetAgent", "s", "a\nb", check=False
    )
    assert done.returncode != 0 and "name" in done.stderr.lower()


def test_unknown_agent(agentd):
    message = refused("NoSuchAgent", agentd.execute, "no-such-agent")
    assert "no-such-agent" in message and "agent create" in message
    done = agentctl("run", "no-such-agent", check=False)
    assert done.returncode == 3 and "no-such-agent" in done.stderr


def test_input_of_one_mebibyte(agentd, make_agent):
    """Goes through whole, by the bus and by the command line; one byte more is refused by both."""
    agent = make_agent(inside.COMMAND, kind="command")
    code = "import sys, json; print(json.dumps(%d))\n#"
    text = code % MIB + "x" * (MIB - len(code % MIB))
    assert len(text) == MIB
    path = agentd.execute(agent, text)
    assert agentd.finish(path)[0] == "success" and agentd.result(path)["output"] == MIB
    before = inventory(agentd)
    assert str(MIB) in refused("InputTooLarge", agentd.execute, agent, text + "x")
    done = agentctl("run", "--wait", agent, "--input-file=-", stdin=text)
    assert done.stdout.strip() == str(MIB)
    done = agentctl("run", "--wait", agent, "--input-file=-", stdin=text + "x", check=False)
    assert done.returncode in (2, 3) and "1" in done.stderr
    assert inventory(agentd)[4] == before[4] + 1


def test_input_arrives_as_it_was(agentd, make_agent):
    """On stdin and in the file, whatever it is."""
    agent = make_agent(
        [
            "/usr/bin/python3",
            "-c",
            "import sys, os, json; a = sys.stdin.buffer.read();"
            "b = open(os.environ['AGENT_INPUT_FILE'], 'rb').read(); print(json.dumps([a.hex(), b.hex()]))",
        ],
        kind="command",
    )
    for text in (
        "",
        "plain",
        '{"a": 1}',
        "two\nlines\n",
        "\t\x01\x7f",
        "ünïcode 😀",
        "\u2028",
        '"',
        "{",
        "null",
        "-1e400",
    ):
        path = agentd.execute(agent, text)
        assert agentd.finish(path)[0] == "success"
        assert agentd.result(path)["output"] == [text.encode().hex()] * 2


def test_input_that_is_no_utf8(agentd, make_agent, text_file):
    agent = make_agent("exit 0")
    before = inventory(agentd)
    for data in (b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"a\0b"):
        done = agentctl("run", agent, f"--input-file={text_file(data)}", check=False)
        assert done.returncode in (2, 3) and len(done.stderr.strip()) > 15, done
    assert inventory(agentd) == before


OPTIONS = {
    "unknown": {"colour": "red"},
    "session type": {"session": dbus.UInt32(1)},
    "session name": {"session": "a/b"},
    "long session": {"session": "a" * 300},
    "timeout type": {"timeout-usec": "5"},
    "timeout zero": {"timeout-usec": dbus.UInt64(0)},
    "priority": {"priority": dbus.Int32(101)},
    "priority type": {"priority": dbus.UInt32(1)},
    "keep type": {"keep": "yes"},
    "key": {"idempotency-key": "a\nb"},
    "labels type": {"labels": "x"},
    "label name": {"labels": dbus.Dictionary({"a/b": "x"}, signature="ss")},
    "label value": {"labels": dbus.Dictionary({"a": "x" * 5000}, signature="ss")},
    "labels": {"labels": dbus.Dictionary({f"l{i}": "x" for i in range(100)}, signature="ss")},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_option(agentd, make_agent, name):
    agent = make_agent("exit 0")
    before = inventory(agentd)
    key = next(iter(OPTIONS[name]))
    assert key in refused(
        "InvalidOption", agentd.call, "ExecuteAgent", agent, "", dbus.Dictionary(OPTIONS[name], signature="sv")
    )
    assert inventory(agentd) == before


def test_parent_that_is_none(agentd, make_agent):
    agent = make_agent("exit 0")
    path = agentd.execute(agent)
    agentd.finish(path)
    for parent in (agentd.run_id(path), "0" * 32, "x"):
        refused("NoSuchRun", agentd.execute, agent, parent_run=parent)


FILTERS = {
    "unknown": {"colour": "red"},
    "limit": {"limit": dbus.UInt32(0)},
    "big limit": {"limit": dbus.UInt32(1001)},
    "limit type": {"limit": "5"},
    "state": {"state": "dancing"},
    "result": {"result": "great"},
}


@pytest.mark.parametrize("name", FILTERS)
def test_filter(agentd, name):
    refused("InvalidOption", agentd.call, "ListRuns", dbus.Dictionary(FILTERS[name], signature="sv"))


@pytest.mark.parametrize("member", ["ImportImage", "ImportEnvironment", "ExportEnvironment"])
def test_options_where_there_are_none(agentd, make_agent, member):
    agent, before = make_agent("exit 0"), inventory(agentd)
    with open("/dev/null", "r+b") as null:
        fd = dbus.types.UnixFd(null.fileno())
        arguments = (agent, "head", fd) if member == "ExportEnvironment" else ("other", fd)
        refused("InvalidOption", agentd.call, member, *arguments, dbus.Dictionary({"colour": "red"}, signature="sv"))
    assert inventory(agentd) == before


SERVICE = {
    "name": "svc",
    "base_url": "https://localhost/api",
    "allow": [{"methods": ["GET"], "paths": ["/*"]}],
    "auth": {"kind": "bearer"},
}
SERVICES = {
    "no JSON": ("{", "line"),
    "unknown key": ({"secret": "x"}, "secret"),
    "http": ({"base_url": "http://example.org"}, "base_url"),
    "ftp": ({"base_url": "ftp://example.org"}, "base_url"),
    "user": ({"base_url": "https://a:b@example.org"}, "base_url"),
    "query": ({"base_url": "https://example.org/?a=b"}, "base_url"),
    "dots": ({"base_url": "https://example.org/../x"}, "base_url"),
    "newline": ({"base_url": "https://example.org/\r\nHost: x"}, "base_url"),
    "port": ({"base_url": "https://a:99999"}, "base_url"),
    "no allow": ({"allow": None}, "allow"),
    "path": ({"allow": [{"methods": ["GET"], "paths": ["x"]}]}, "path"),
    "path dots": ({"allow": [{"methods": ["GET"], "paths": ["/../*"]}]}, "path"),
    "method": ({"allow": [{"methods": ["GET\r\nX: y"], "paths": ["/*"]}]}, "method"),
    "auth": ({"auth": {"kind": "magic"}}, "kind"),
    "header": ({"auth": {"kind": "header", "name": "Host"}}, "name"),
    "name": ({"name": "../x"}, "name"),
    "token url": (
        {"auth": {"kind": "oauth2-client-credentials", "token_url": "http://x/", "client_id": "a"}},
        "token_url",
    ),
}


@pytest.mark.parametrize("name", SERVICES)
def test_service_definition(agentd, name):
    keys, named = SERVICES[name]
    before = inventory(agentd)
    text = keys if isinstance(keys, str) else json.dumps({**SERVICE, **keys})
    assert named in refused("InvalidDefinition", agentd.call, "CreateService", text)
    assert inventory(agentd) == before


@pytest.mark.parametrize(
    "secret",
    [b"", b"\n", b"two\nlines", b"nul\0", b"\xff\xfe", b"x" * 70000, "ü".encode(), b'{"a": 1}'],
    ids=["empty", "newline", "lines", "nul", "bytes", "large", "umlaut", "number"],
)
def test_secret(make_service, secret, text_file):
    service = make_service()
    done = run("agentctl", "credential", "set", service, stdin=secret, check=False, timeout=DEADLINE)
    assert done.returncode in (2, 3) and len(done.stderr) > 10
    assert service not in agentctl("credential", "list").stdout


def test_call_with_other_types(users):
    """A message of another signature is refused as such, by sd-bus."""
    assert [
        r["error"]
        for r in call_as(users[0], ("ExecuteAgent", "x"), ("GetRun", 5), ("NoSuchMember",), ("CreateAgent", "{}", "{}"))
    ] == ["org.freedesktop.DBus.Error.InvalidArgs"] * 2 + [
        "org.freedesktop.DBus.Error.AccessDenied",
        "org.freedesktop.DBus.Error.InvalidArgs",
    ]
