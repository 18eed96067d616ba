# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is one user's is nobody else's: bob gets at nothing of alice's, by no method, property or object; what is
between the daemons is closed to both of them; and alice needs no more than her own name.
"""

import json
import os
import uuid

import pytest

import inside
from client import BUS_NAME, PROPERTIES, RUN, TEST_ROOTFS, agentctl, call_as, run, show, systemctl

DENIED = {"org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"}


@pytest.fixture(scope="module")
def hers(agentd, users, upstream, image):
    """Alice has an image, a service with its secret, an agent, and a finished run with result, log and artifact."""
    alice, _ = users
    mark = uuid.uuid4().hex[:8]
    names = {k: f"{k}-{mark}" for k in ("image", "service", "agent")}
    secret = f"secret-{uuid.uuid4().hex}"
    (answer,) = call_as(alice, ("ImportImage", names["image"], {"fd": TEST_ROOTFS}, {"options": {}}))
    assert "value" in answer, answer
    assert agentd.complete(answer["value"])[0] == "done"
    service = {
        "name": names["service"],
        "base_url": upstream.url,
        "auth": {"kind": "bearer"},
        "allow": [{"methods": ["GET"], "paths": ["/*"]}],
    }
    agent = {
        "name": names["agent"],
        "image": names["image"],
        "kind": "command",
        "command": inside.COMMAND,
        "services": [names["service"]],
    }
    for answer in call_as(alice, ("CreateService", json.dumps(service)), ("CreateAgent", json.dumps(agent))):
        assert "value" in answer, answer
    agentctl("credential", "set", names["service"], stdin=secret, user=alice)
    upstream.on(f"/api/{mark}", lambda r: r.reply(200, {"hers": r.headers["Authorization"] == f"Bearer {secret}"}))
    code = (
        inside.PRELUDE
        + f"""
print("a line of hers", file=sys.stderr)
open(os.environ["AGENT_ARTIFACTS_DIR"] + "/hers.txt", "w").write("hers")
say(json.loads(bridge("GET", "/v1/services/{names["service"]}/{mark}")[2]))
"""
    )
    (answer,) = call_as(alice, ("ExecuteAgent", names["agent"], code, {"options": {}}))
    assert "value" in answer, answer
    result, message = agentd.finish(answer["value"])
    assert result == "success", message
    yield {**names, "secret": secret, "path": answer["value"], "id": agentd.run_id(answer["value"])}
    call_as(
        alice, ("RemoveAgent", names["agent"]), ("RemoveService", names["service"]), ("RemoveImage", names["image"])
    )


def test_lists_of_images_say_whose_they_are(agentd, users, image, hers):
    """For her own, and those of root that she may use; another user's are not there."""
    rows = {(str(r[0]), str(r[4])) for r in agentd.call("ListImages")}
    assert {(image, "root"), (hers["image"], "alice")} <= rows
    of_alice, of_bob = ({(r[0], r[4]) for r in call_as(u, ("ListImages",))[0]["value"]} for u in users[:2])
    assert {(image, "root"), (hers["image"], "alice")} <= of_alice and (image, "root") in of_bob
    assert {owner for _, owner in of_bob} <= {"root", "bob"}


def test_owner_needs_nobody(users, hers):
    """Every method that the manual gives to owners works for an ordinary user, without polkit or a password."""
    options = {"options": {}}
    answers = call_as(
        users[0],
        ("ListAgents",),
        ("GetAgent", hers["agent"]),
        ("GetAgent", f"alice/{hers['agent']}"),
        ("ListImages",),
        ("GetService", hers["service"]),
        ("ListServices",),
        ("GetRun", hers["id"]),
        ("GetResult", hers["id"]),
        ("GetReceipt", hers["id"]),
        ("OpenRunLog", hers["id"], False),
        ("ListArtifacts", hers["id"]),
        ("OpenArtifact", hers["id"], "hers.txt"),
        ("ListRuns", options),
        ("ListGenerations", hers["agent"]),
        (BUS_NAME, hers["path"], PROPERTIES, "GetAll", [RUN]),
    )
    assert [a.get("error") for a in answers] == [None] * len(answers), answers
    values = [a["value"] for a in answers]
    assert hers["agent"] in str(values[0]) and hers["image"] in str(values[3]) and hers["service"] in values[4]
    assert json.loads(values[7])["output"] == {"hers": True}
    assert "a line of hers" in values[9] and values[11] == "hers" and hers["id"] in str(values[12])
    assert values[14]["Result"] == "success" and values[14]["User"] == "alice"
    assert hers["secret"] not in str(values)


CALLS = {
    "execute": lambda h: ("ExecuteAgent", f"alice/{h['agent']}", "", {"options": {}}),
    "get agent": lambda h: ("GetAgent", f"alice/{h['agent']}"),
    "remove agent": lambda h: ("RemoveAgent", f"alice/{h['agent']}"),
    "generations": lambda h: ("ListGenerations", f"alice/{h['agent']}"),
    "freeze": lambda h: ("FreezeEnvironment", f"alice/{h['agent']}", {"options": {"from-run": h["id"]}}),
    "get run": lambda h: ("GetRun", h["id"]),
    "cancel": lambda h: ("CancelRun", h["id"]),
    "result": lambda h: ("GetResult", h["id"]),
    "receipt": lambda h: ("GetReceipt", h["id"]),
    "log": lambda h: ("OpenRunLog", h["id"], False),
    "artifacts": lambda h: ("ListArtifacts", h["id"]),
    "artifact": lambda h: ("OpenArtifact", h["id"], "hers.txt"),
    "credentials": lambda h: (
        "org.agentd1.Credentials",
        "/org/agentd1/Credentials",
        "org.agentd1.Credentials",
        "ListCredentials",
        ["alice"],
    ),
    "remove credential": lambda h: (
        "org.agentd1.Credentials",
        "/org/agentd1/Credentials",
        "org.agentd1.Credentials",
        "RemoveCredential",
        ["alice", h["service"]],
    ),
    "set credential": lambda h: (
        "org.agentd1.Credentials",
        "/org/agentd1/Credentials",
        "org.agentd1.Credentials",
        "SetCredential",
        ["alice", h["service"], {"fd": "/etc/hostname"}],
    ),
    "report result": lambda h: (
        BUS_NAME,
        "/org/agentd1/report",
        "org.agentd1.Report",
        "ReportResult",
        [h["id"], 1, '{"status": "success"}'],
    ),
    "report call": lambda h: (
        BUS_NAME,
        "/org/agentd1/report",
        "org.agentd1.Report",
        "ReportCall",
        [h["id"], 1, "x", "{}"],
    ),
    "report calls": lambda h: (
        BUS_NAME,
        "/org/agentd1/report",
        "org.agentd1.Report",
        "ReportCalls",
        [[{"struct": [h["id"], 1, "x", "{}"]}]],
    ),
    "report artifact": lambda h: (
        BUS_NAME,
        "/org/agentd1/report",
        "org.agentd1.Report",
        "BeginArtifact",
        [h["id"], 1, "x", 100],
    ),
    "commit artifact": lambda h: (
        BUS_NAME,
        "/org/agentd1/report",
        "org.agentd1.Report",
        "CommitArtifact",
        [h["id"], 1, "x", 100, "text/plain"],
    ),
    "bridge runs": lambda h: ("org.agentd1.Bridge", "/org/agentd1/Bridge", "org.agentd1.Bridge", "ListRegistered", []),
    "bridge register": lambda h: (
        "org.agentd1.Bridge",
        "/org/agentd1/Bridge",
        "org.agentd1.Bridge",
        "RegisterRun",
        [h["id"], {"fd": "/dev/null"}],
    ),
    "bridge unregister": lambda h: (
        "org.agentd1.Bridge",
        "/org/agentd1/Bridge",
        "org.agentd1.Bridge",
        "UnregisterRun",
        [h["id"]],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_stranger_is_denied(users, hers, name):
    before = call_as(
        users[0], ("GetReceipt", hers["id"]), ("ListArtifacts", hers["id"]), ("ListGenerations", hers["agent"])
    )
    (answer,) = call_as(users[1], CALLS[name](hers))
    assert answer.get("error") in DENIED, answer
    assert len(answer["message"]) > 5
    assert (
        call_as(users[0], ("GetReceipt", hers["id"]), ("ListArtifacts", hers["id"]), ("ListGenerations", hers["agent"]))
        == before
    )


@pytest.mark.parametrize("name", [n for n in CALLS if n.startswith(("report", "commit", "bridge"))])
def test_owner_is_no_daemon(users, hers, name):
    """What is for the daemons is denied to the owner, too."""
    (answer,) = call_as(users[0], CALLS[name](hers))
    assert answer.get("error") in DENIED, answer


def test_stranger_sees_nothing(users, hers):
    """Lists show one's own, and objects of others do not exist."""
    options = {"options": {}}
    answers = call_as(
        users[1],
        ("ListAgents",),
        ("ListRuns", options),
        ("ListServices",),
        ("ListImages",),
        ("GetService", hers["service"]),
        ("ListRuns", {"options": {"agent": hers["agent"]}}),
        ("ListRuns", {"options": {"agent": f"alice/{hers['agent']}"}}),
        ("ListRuns", {"options": {"before": hers["id"]}}),
        (BUS_NAME, "/org/agentd1", "org.freedesktop.DBus.ObjectManager", "GetManagedObjects", []),
        (BUS_NAME, hers["path"], PROPERTIES, "GetAll", [RUN]),
        (BUS_NAME, hers["path"], PROPERTIES, "Get", [RUN, "Result"]),
        (BUS_NAME, hers["path"], RUN, "Cancel", []),
        (
            BUS_NAME,
            f"/org/agentd1/agent/alice/{hers['agent'].replace('-', '_2d')}",
            PROPERTIES,
            "GetAll",
            ["org.agentd1.Agent"],
        ),
    )
    text = json.dumps([a.get("value") for a in answers])
    for key in ("agent", "service", "image", "id", "secret"):
        assert hers[key] not in text, key
    assert all("error" in a for a in answers[9:]), answers[9:]


def test_stranger_cannot_use_her_service_or_image(users, hers):
    agent = {"name": "thief", "image": hers["image"], "kind": "exec", "command": ["/bin/true"]}
    own = {**agent, "image": "test-base", "services": [hers["service"]]}
    answers = call_as(users[1], ("CreateAgent", json.dumps(agent)), ("CreateAgent", json.dumps(own)))
    assert [a.get("error", "").rsplit(".", 1)[1] for a in answers] == ["NoSuchImage", "NoSuchService"], answers


def test_same_names_are_two_things(agentd, users, hers):
    """Bob may have an agent of the same name, which is his."""
    agent = {"name": hers["agent"], "image": "test-base", "kind": "exec", "command": ["/bin/false"]}
    created, run_answer = call_as(
        users[1], ("CreateAgent", json.dumps(agent)), ("ExecuteAgent", hers["agent"], "", {"options": {}})
    )
    assert "value" in created and "value" in run_answer, (created, run_answer)
    assert agentd.finish(run_answer["value"])[0] == "exit-code"
    assert str(agentd.get(run_answer["value"], "User")) == "bob"
    assert "value" in call_as(users[1], ("RemoveAgent", hers["agent"]))[0]
    assert "value" in call_as(users[0], ("GetAgent", hers["agent"]))[0]


def test_ordinary_users_cannot_say_who_triggered(agentd, users, hers):
    for trigger in ("timer", "http", "agent"):
        (answer,) = call_as(users[0], ("ExecuteAgent", hers["agent"], "", {"options": {"trigger": trigger}}))
        assert answer.get("error") == "org.agentd1.Error.InvalidOption", answer


def test_files_are_closed(users, hers):
    """State, runs, live files, credentials and the sockets of the daemons are closed to users of the host."""
    for path in (
        "/var/lib/agentd",
        "/var/lib/agent-credential",
        "/run/agentd/runs",
        "/run/agentd/layers",
        "/run/agentd/live",
        "/etc/credstore.encrypted",
    ):
        assert run("ls", path, user=users[1], check=False).returncode != 0, path
    for path in ("/run/agent-credential/material", "/run/agent-bridged/control"):
        assert (
            run(
                "python3",
                "-c",
                f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})",
                user=users[1],
                check=False,
            ).returncode
            != 0
        ), path


def test_bridge_and_strong_room_see_little(agentd, hers):
    """Their root has what their units name, and neither the host's mounts nor those of runs, however many there are."""
    path = agentd.execute(f"alice/{hers['agent']}", "import time; time.sleep(600)")
    agentd.wait_state(path, "running")
    try:
        root = f"/run/agentd/runs/{agentd.run_id(path)}/root"
        assert os.path.ismount(root)
        systemctl("restart", "agent-bridged", "agent-credentiald")  # with the run's mounts there already
        assert os.listdir("/var/lib/agent-credential")
        for unit in ("agent-bridged", "agent-credentiald"):
            seen = f"/proc/{show(unit, 'MainPID')}/root"
            for there in ("/run/agentd/live", "/run/agentd/keys", "/etc/agentd", "/usr/lib/agentd"):
                assert os.listdir(seen + there), (unit, there)
            for hidden in ("/run/agentd/runs", "/run/agentd/layers", "/var/lib/agentd", "/home", "/mnt"):
                assert os.path.exists(hidden) and not os.path.exists(seen + hidden), (unit, hidden)
            # The two have one root; places to mount on that one of them needs are empty in the other.
            assert set(os.listdir(seen + "/var")) <= {"lib", "tmp"}, unit
            sealed = seen + "/var/lib/agent-credential"
            assert bool(os.path.exists(sealed) and os.listdir(sealed)) == (unit == "agent-credentiald")
            for empty in ("/etc/credstore", "/etc/credstore.encrypted", "/root", "/tmp", "/var/tmp"):
                assert not os.path.exists(seen + empty) or os.listdir(seen + empty) == [], (unit, empty)
            with open(f"/proc/{show(unit, 'MainPID')}/mountinfo", encoding="utf-8") as f:
                mounts = [line.split() for line in f]
            assert "/etc" in [m[4] for m in mounts], unit
            assert not [m for m in mounts if "/runs/" in m[4] or "/layers/" in m[4]], unit
            for m in mounts:
                own = m[4].startswith(("/dev/", "/proc", "/tmp", "/var/")) or m[4] == "/run/agent-credential"
                assert "ro" in m[5].split(",") or own, (unit, m)
            assert os.stat(seen + "/run/agent-credential").st_uid == 0
    finally:
        agentd.call("Cancel", path=path, interface=RUN)
        agentd.finish(path)


def test_secret_is_nowhere_in_the_clear(hers):
    """Neither in the store, nor in the strong room's files, nor in the journal, nor in any daemon's environment."""
    for top in ("/var/lib/agentd", "/var/lib/agent-credential", "/run/agentd", "/etc/credstore.encrypted"):
        for d, dirs, files in os.walk(top):
            dirs[:] = [x for x in dirs if x != "layers"]  # other tests' files
            for name in files:
                if not name.endswith(".erofs"):
                    with open(f"{d}/{name}", "rb") as f:
                        assert hers["secret"].encode() not in f.read(), f"{d}/{name}"
    assert hers["secret"] not in run("journalctl", "--no-pager", "-o", "export", "-u", "agent*").stdout
    shown = run("systemctl", "show", "--all", "agentd", "agent-bridged", "agent-credentiald").stdout
    assert hers["secret"] not in shown


def test_root_may(agentd, hers):
    """Root is asked nothing."""
    path = agentd.execute(f"alice/{hers['agent']}", "print(1)")
    assert agentd.finish(path)[0] == "success"
    assert (str(agentd.get(path, "User")), agentd.receipt(path)["user"]) == ("alice", "alice")


def test_a_number_that_somebody_else_has_now(agentd, image, unique):
    """What a user leaves behind is not for whoever gets the number; for the same user it is there as ever."""
    old, new, uid, agent = "u" + unique("").strip("-"), "u" + unique("").strip("-"), "29876", unique()
    definition = {"name": agent, "image": image, "kind": "exec", "command": ["/bin/echo", "hello"]}
    run("useradd", "-u", uid, old)
    try:
        assert "value" in call_as(old, ("CreateAgent", json.dumps(definition)))[0]
        path = call_as(old, ("ExecuteAgent", agent, "", {"options": {}}))[0]["value"]
        agentd.finish(path)
        run_id = agentd.run_id(path)
        at = (BUS_NAME, path, PROPERTIES, "Get", [RUN, "State"])
        reads = [("GetReceipt", run_id), ("GetResult", run_id), ("OpenRunLog", run_id, False), ("GetRun", run_id), at]
        assert all("value" in r for r in call_as(old, *reads))
        run("usermod", "-l", new, old)
        assert all("error" in r for r in call_as(new, *reads))
        run("usermod", "-l", old, new)
        assert all("value" in r for r in call_as(old, *reads))
        assert "value" in call_as(old, ("RemoveAgent", agent))[0]
    finally:
        for name in (old, new):
            run("userdel", name, check=False)
