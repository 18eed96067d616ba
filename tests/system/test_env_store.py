# SPDX-License-Identifier: LGPL-2.1-or-later
"""The store under environments: what fsck finds, what prune removes, and what neither may touch."""

import json
import os
import pathlib
import shutil

import dbus
import pytest

from client import STATE, agentctl, run, wait_until
from test_env_generations import freeze_change, said

LAYERS = pathlib.Path(STATE, "layers")
GENERATIONS = pathlib.Path(STATE, "generations")


def layer_file(digest):
    return LAYERS / (digest.replace(":", "-") + ".erofs")


def fsck(agentd):
    """(result, detail, document)"""
    path = str(agentd.call("CheckEnvironments", dbus.Dictionary({}, signature="sv")))
    result, detail = agentd.complete(path)
    with os.fdopen(agentd.call("OpenResult", path=path, interface="org.agentd1.Operation").take()) as f:
        return result, detail, json.load(f)


def prune(agentd, agent="", **options):
    options = {k: dbus.UInt32(v) for k, v in options.items()}
    return tuple(int(n) for n in agentd.call("PruneEnvironments", agent, dbus.Dictionary(options, signature="sv")))


@pytest.fixture
def agent(agentd, make_agent):
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    freeze_change(agentd, name, f"echo {name} > ~/me")
    return name


def top_layer(name):
    return json.loads(agentctl("env", "show", name).stdout)["layers"][-1]["digest"]


def test_a_flipped_bit_is_found_and_named(agentd, agent):
    assert fsck(agentd)[0] == "done"
    digest = top_layer(agent)
    file = layer_file(digest)
    copy = file.read_bytes()
    broken = bytearray(copy)
    broken[len(broken) // 2] ^= 1
    file.chmod(0o644)
    try:
        file.write_bytes(broken)
        result, detail, document = fsck(agentd)
        assert result == "failed" and digest in detail and "damaged" in detail
        [problem] = document["problems"]
        assert problem["kind"] == "layer-damaged" and problem["digest"] == digest
        assert [u["agent"] for u in problem["users"]] == ["root/" + agent] and problem["users"][0]["head"]
        done = agentctl("env", "fsck", check=False)
        assert done.returncode == 1 and f"root/{agent}, generation 2 (head)" in done.stdout
    finally:
        file.write_bytes(copy)
        file.chmod(0o444)
    assert fsck(agentd)[0] == "done"


def test_a_missing_layer_is_found(agentd, agent):
    digest = top_layer(agent)
    file, aside = layer_file(digest), LAYERS / "aside"
    file.rename(aside)
    try:
        result, detail, document = fsck(agentd)
        assert result == "failed" and document["problems"][0]["kind"] == "layer-missing"
        # Nobody is sent there.
        agentd.call("RollbackEnvironment", agent, "1", dbus.Dictionary({}, signature="sv"))
        with pytest.raises(dbus.DBusException) as e:
            agentd.call("RollbackEnvironment", agent, "2", dbus.Dictionary({}, signature="sv"))
        assert e.value.get_dbus_name().endswith(".EnvironmentDamaged") and digest in e.value.get_dbus_message()
    finally:
        aside.rename(file)


def test_a_lost_document_is_written_anew(agentd, agent):
    head = str(agentd.call("ListGenerations", agent)[0][0])
    file = GENERATIONS / (head.replace(":", "-") + ".json")
    text = file.read_bytes()
    file.unlink()
    result, _, document = fsck(agentd)
    assert result == "done" and [r["digest"] for r in document["repaired"]] == [head] and file.read_bytes() == text
    file.chmod(0o644)
    file.write_bytes(b"{}")
    assert fsck(agentd)[0] == "done" and file.read_bytes() == text


def test_prune_keeps_what_is_needed(agentd, agent, image):
    prune(agentd)
    before = set(os.listdir(LAYERS))
    assert prune(agentd) == (0, 0, 0)
    for i in range(4):
        freeze_change(agentd, agent, f"echo {i} > ~/me; head -c 100000 /dev/urandom > ~/noise")
    rows = [str(r[0]) for r in agentd.call("ListGenerations", agent)]
    assert len(rows) == 6
    # A stack of layers: those below a generation that stays must stay as well.
    assert prune(agentd, agent, keep=2) == (4, 0, 0)
    assert [str(r[0]) for r in agentd.call("ListGenerations", agent)] == rows[:2]
    agentd.call("RollbackEnvironment", agent, "5", dbus.Dictionary({}, signature="sv"))
    assert prune(agentd, agent, keep=1) == (0, 0, 0)  # the newest and the head
    path = agentd.execute(agent, "cat ~/me")
    assert agentd.finish(path)[0] == "success" and said(agentd, path) == "2"
    assert before <= set(os.listdir(LAYERS)) and fsck(agentd)[0] == "done"


def test_layers_go_with_the_last_that_needs_them(agentd, make_agent, image):
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    freeze_change(agentd, name, f"echo {name} > ~/me")
    digest = top_layer(name)
    assert layer_file(digest).exists()
    agentd.call("RemoveAgent", name)
    assert digest in [o["digest"] for o in fsck(agentd)[2]["unused"]]
    generations, layers, freed = prune(agentd)
    assert generations == 0 and layers >= 1 and freed > 0 and not layer_file(digest).exists()
    wait_until(lambda: not os.path.ismount(f"/run/agentd/layers/{digest[7:]}"), "the layer's unmount")
    assert fsck(agentd)[2]["unused"] == []


def test_an_image_that_is_removed_leaves_its_layer_to_its_environments(agentd, agent, unique, image):
    name = unique("i")
    run("sh", "-c", f"mkdir -p /tmp/{name}/etc /tmp/{name}/bin; echo {name} > /tmp/{name}/etc/x; tar -C /tmp/{name} -cf /tmp/{name}.tar .")
    assert agentd.import_image(name, f"/tmp/{name}.tar")[0] == "done"
    digest = next(str(i[1]) for i in agentd.call("ListImages") if i[0] == name)
    other = unique()
    agentd.call("CreateAgent", json.dumps({"name": other, "image": name, "kind": "exec", "command": ["/bin/x"]}))
    agentd.call("RemoveImage", name)
    prune(agentd)
    assert layer_file(digest).exists()
    agentd.call("RemoveAgent", other)
    prune(agentd)
    assert not layer_file(digest).exists()
    shutil.rmtree(f"/tmp/{name}")


def test_kept_changes_stand_on_their_generation(agentd, agent):
    path = agentd.execute(agent, "echo kept > ~/kept", keep=True)
    assert agentd.finish(path)[0] == "success"
    agentd.call("RollbackEnvironment", agent, "1", dbus.Dictionary({}, signature="sv"))
    assert prune(agentd, agent, keep=1)[0] == 0
    agentd.call("RollbackEnvironment", agent, "2", dbus.Dictionary({}, signature="sv"))
    assert agentd.freeze(agent, path)[0] == "done"
