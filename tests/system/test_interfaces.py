# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interfaces on the bus are those of the installed XML files, member by member; signals come after what they tell
is stored.
"""

import glob
import os
import re
import xml.etree.ElementTree as ET

import dbus
import pytest

from client import AGENT, BUS_NAME, MANAGER, MANAGER_PATH, OPERATION, RUN, run

INTERFACES = "/usr/share/dbus-1/interfaces"
ANNOTATION = "org.freedesktop.DBus.Property.EmitsChangedSignal"


def members(interface):
    """{(kind, name): what matters of it}; names of arguments count, since bindings are made from them."""
    found = {}
    for e in interface:
        if e.tag == "method":
            args = [(a.get("direction", "in"), a.get("type"), a.get("name")) for a in e.findall("arg")]
            found["method", e.get("name")] = sorted(args, key=lambda a: a[0])
        elif e.tag == "signal":
            found["signal", e.get("name")] = [(a.get("type"), a.get("name")) for a in e.findall("arg")]
        elif e.tag == "property":
            emits = {a.get("name"): a.get("value") for a in e.findall("annotation")}.get(ANNOTATION, "true")
            found["property", e.get("name")] = (
                e.get("type"),
                e.get("access"),
                "true" if emits == "invalidates" else emits,
            )
    return found


def installed(name):
    root = ET.parse(f"{INTERFACES}/{name}.xml").getroot()
    return members(next(i for i in root.findall("interface") if i.get("name") == name))


def live(bus, service, path, name):
    text = bus.call_blocking(service, path, "org.freedesktop.DBus.Introspectable", "Introspect", "", [])
    for i in ET.fromstring(str(text)).findall("interface"):
        if i.get("name") == name:
            return members(i)
    raise AssertionError(f"{path} of {service} has no interface {name}")


@pytest.fixture(scope="module")
def run_path(agentd, probe_agent):
    path = agentd.execute(probe_agent, "pass")
    agentd.finish(path)
    return path


@pytest.fixture
def objects(agentd, probe_agent, run_path):
    """Where each interface is to be found: (service, path). An operation is known only to the agentd that carried it out."""
    agent = next(str(row[3]) for row in agentd.call("ListAgents") if str(row[0]) == probe_agent)
    with open("/dev/null") as f:
        operation = str(
            agentd.call("ImportImage", "test-none", dbus.types.UnixFd(f), dbus.Dictionary({}, signature="sv"))
        )
    agentd.complete(operation)
    return {
        MANAGER: (BUS_NAME, MANAGER_PATH),
        RUN: (BUS_NAME, run_path),
        AGENT: (BUS_NAME, agent),
        OPERATION: (BUS_NAME, operation),
        "org.agentd1.Report": (BUS_NAME, "/org/agentd1/report"),
        "org.agentd1.Credentials": ("org.agentd1.Credentials", "/org/agentd1/Credentials"),
        "org.agentd1.Bridge": ("org.agentd1.Bridge", "/org/agentd1/Bridge"),
    }


def test_every_interface_is_installed(objects):
    files = {os.path.basename(f).removesuffix(".xml") for f in glob.glob(f"{INTERFACES}/org.agentd1*.xml")}
    assert files == set(objects)


@pytest.mark.parametrize(
    "name", [MANAGER, RUN, AGENT, OPERATION, "org.agentd1.Report", "org.agentd1.Credentials", "org.agentd1.Bridge"]
)
def test_interface(agentd, objects, name):
    service, path = objects[name]
    want, have = installed(name), live(agentd.bus, service, path, name)
    assert set(have) == set(want)
    assert {k: (want[k], have[k]) for k in want if want[k] != have[k]} == {}


def test_no_interface_more(agentd, objects):
    """No object has an interface of ours that no file describes."""
    for service, path in objects.values():
        text = str(agentd.bus.call_blocking(service, path, "org.freedesktop.DBus.Introspectable", "Introspect", "", []))
        names = {i.get("name") for i in ET.fromstring(text).findall("interface")}
        assert {n for n in names if n.startswith("org.agentd1")} <= set(objects), path


def test_properties_have_values(agentd, objects):
    for name in (MANAGER, RUN, AGENT, OPERATION):
        service, path = objects[name]
        values = agentd.bus.call_blocking(service, path, "org.freedesktop.DBus.Properties", "GetAll", "s", [name])
        assert set(map(str, values)) == {n for kind, n in installed(name) if kind == "property"}
    assert re.fullmatch(r"\d+\.\d+.*", str(agentd.get(MANAGER_PATH, "Version", MANAGER)))
    assert str(agentd.get(MANAGER_PATH, "Runner", MANAGER)).startswith("sha256:")


def test_objects_are_listed(agentd, objects, make_agent):
    """Agents and unfinished runs are in the object manager's list, for root those of everybody."""
    path = agentd.execute(make_agent("exec sleep 1000"))
    listed = agentd.call("GetManagedObjects", interface="org.freedesktop.DBus.ObjectManager")
    assert path in listed and objects[AGENT][1] in listed
    assert str(listed[path][RUN]["Id"]) == agentd.run_id(path)


@pytest.mark.parametrize(
    "path",
    [
        "/org/agentd1/run/" + "0" * 32,
        "/org/agentd1/run/x",
        "/org/agentd1/agent/root/no_2dsuch",
        "/org/agentd1/operation/0",
        "/org/agentd1/other",
    ],
)
def test_objects_that_are_not(agentd, path):
    with pytest.raises(dbus.DBusException) as e:
        agentd.bus.call_blocking(BUS_NAME, path, "org.freedesktop.DBus.Properties", "GetAll", "s", [RUN])
    assert e.value.get_dbus_name() in (
        "org.freedesktop.DBus.Error.UnknownObject",
        "org.freedesktop.DBus.Error.UnknownInterface",
    )


def test_policy_names_every_method(objects):
    """The bus policy lets ordinary users call each method that is for them, by name, and no other."""
    policy = ET.parse("/usr/share/dbus-1/system.d/org.agentd1.conf").getroot()
    default = next(p for p in policy.findall("policy") if p.get("context") == "default")
    allowed = {
        (a.get("send_interface"), a.get("send_member")) for a in default.findall("allow") if a.get("send_interface")
    }
    ours = {(i, n) for i in (MANAGER, RUN, AGENT, OPERATION) for kind, n in installed(i) if kind == "method"}
    assert {a for a in allowed if a[0].startswith("org.agentd1")} == ours
    assert default.find("deny").get("send_destination") == BUS_NAME


def watch(agentd, member, interface, path=None, seen=None, **kw):
    """At each such signal, what SEEN returns at that very moment."""
    got = []
    agentd.bus.add_signal_receiver(
        lambda *args, **k: got.append((args, seen(*args, **k) if seen else None)), member, interface, None, path, **kw
    )
    return got


def test_signals_of_a_run_come_after_the_commit(agentd, make_agent):
    """At RunFinished state, result and receipt are there for any client, and were before: the store has them."""

    def state(run_id, path, *_):
        row = run(
            "sqlite3",
            "-readonly",
            "/var/lib/agentd/store.db",
            f"select state from runs where id='{run_id}'",
            check=False,
        ).stdout.strip()
        return str(agentd.get(path, "State")), agentd.receipt(path)["result"], row

    new = watch(agentd, "RunNew", MANAGER, MANAGER_PATH)
    finished = watch(agentd, "RunFinished", MANAGER, MANAGER_PATH, state)
    path = agentd.execute(make_agent("exit 3"))
    mine = agentd.wait_for(lambda: [(a, s) for a, s in finished if str(a[1]) == path], what="RunFinished")
    assert len(mine) == 1 and mine[0][1][:2] == ("finished", "exit-code"), mine
    assert [str(a[1]) for a, _ in new].count(path) == 1


def test_changes_are_announced_in_order(agentd, make_agent):
    """PropertiesChanged for each state; it names what changed and keeps the values for those who may ask."""
    states, values = [], []
    agentd.bus.add_signal_receiver(
        lambda interface, changed, invalidated, path=None: (
            states.append((path, str(agentd.get(path, "State")))),
            values.append((dict(changed), list(map(str, invalidated)))),
        ),
        "PropertiesChanged",
        "org.freedesktop.DBus.Properties",
        None,
        None,
        arg0=RUN,
        path_keyword="path",
    )
    path = agentd.execute(make_agent("exit 0"))
    agentd.wait_for(lambda: (path, "finished") in states, what="the last change")
    order = ["queued", "preparing", "running", "finished"]
    mine = [order.index(s) for p, s in states if p == path]
    assert mine == sorted(mine) and len(mine) >= 2 and mine[-1] == 3
    assert all(changed == {} and "State" in invalidated for changed, invalidated in values)


def test_signals_of_agents(agentd, make_agent, unique):
    name = unique()
    new, removed = (watch(agentd, m, MANAGER, MANAGER_PATH) for m in ("AgentNew", "AgentRemoved"))
    make_agent("exit 0", name=name)
    agentd.call("RemoveAgent", name)
    agentd.wait_for(lambda: any(str(a[0]) == name for a, _ in removed), what="AgentRemoved")
    assert [str(a[0]) for a, _ in new].count(name) == 1


def test_an_operation_can_be_read_after_its_end(agentd, text_file, unique):
    with open(text_file("no tar"), "rb") as f:
        path = str(agentd.call("ImportImage", unique("img"), dbus.types.UnixFd(f), dbus.Dictionary({}, signature="sv")))
    result, detail = agentd.complete(path)
    assert (str(agentd.get(path, "State", OPERATION)), str(agentd.get(path, "Detail", OPERATION))) == (result, detail)
    assert str(agentd.get(path, "Kind", OPERATION)) == "import-image"


def test_activation(agentd):
    """The first call starts the daemon; a call while it is down waits for it."""
    run("systemctl", "stop", "agentd.service")
    assert str(agentd.get(MANAGER_PATH, "Version", MANAGER))
    assert run("systemctl", "is-active", "agentd.service").stdout.strip() == "active"
