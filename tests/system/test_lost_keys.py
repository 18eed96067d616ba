# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keys that rest encrypted by the machine's secret, which may be lost or become another one: agentd goes on with a new key, as
nothing hangs on the old one; the strong room refuses, says why, and leaves the credentials as they are.
"""

import contextlib
import os
import pathlib
import shutil

import pytest

import inside
from client import MANAGER, MANAGER_PATH, agentctl, journal, run, show, systemctl, wait_until

SECRET = pathlib.Path("/var/lib/systemd/credential.secret")
STORE = pathlib.Path("/etc/credstore.encrypted")
SIGNING, ASIDE = STORE / "agentd.signing-key", STORE / "agentd.signing-key.unreadable"
SEALING = STORE / "agent-credential.sealing-key"
CREDENTIALS = pathlib.Path("/var/lib/agent-credential")
KEY_PROBLEM, CREDENTIALS_PROBLEM = "4d1c6a0f7b2e4f6c8a35e9d07c1b2f84", "9e0f3c5ab0714d6d8f3b2a7c6d415e93"
STRONG_ROOM = "agent-credentiald.service"


def told(message_id):
    return journal("-b", "-o", "cat", f"MESSAGE_ID={message_id}").splitlines()


def state(agentd):
    return str(agentd.get(MANAGER_PATH, "SigningKey", interface=MANAGER))


@contextlib.contextmanager
def without(path):
    aside = pathlib.Path("/var/tmp", path.name + ".test")
    shutil.move(path, aside)
    try:
        yield
    finally:
        shutil.move(aside, path)


@pytest.fixture
def whole():
    """Other tests get the machine with a key that can be opened."""
    yield
    systemctl("restart", "agentd.service")  # what was sealed by a secret that is gone is replaced
    systemctl("restart", "agentd.service")
    ASIDE.unlink(missing_ok=True)


@pytest.fixture
def held(agentd, make_agent, make_service, upstream, unique):
    """An agent whose runs call a service before and after a gate that the test opens."""
    name = unique()
    gate = upstream.gate(name)
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service("the-real-one")
    code = inside.PRELUDE + f"""
first = bridge("GET", "/v1/services/{service}/{name}")[0]
bridge("GET", "/v1/services/{service}/gate/{name}")
say([first, bridge("GET", "/v1/run")[0], bridge("GET", "/v1/services/{service}/{name}")[0]])
"""
    agent = make_agent(inside.COMMAND, kind="command", services=[service])

    class Held:
        def __init__(self):
            self.service, self.code, self.open = service, code, gate.open

        def begin(self):
            path = agentd.execute(agent, code)
            gate.arrived(1)
            return path

        def works(self, path=None):
            path = path or agentd.execute(agent, code)
            assert agentd.finish(path)[0] == "success", agentd.log(path)
            assert agentd.result(path)["output"] == [200, 200, 200]

    return Held()


@pytest.mark.parametrize("what", ["secret", "file"])
def test_a_signing_key_that_cannot_be_opened(agentd, held, whole, what):
    """agentd has a new one, and says so; runs of before go on, and so do later ones."""
    assert state(agentd) == "sealed"
    live, before = held.begin(), len(told(KEY_PROBLEM))
    if what == "file":
        SIGNING.write_bytes(os.urandom(400))
    old = SIGNING.read_bytes()
    with without(SECRET) if what == "secret" else contextlib.nullcontext():
        systemctl("restart", "agentd.service")
        assert state(agentd) == "replaced" and ASIDE.read_bytes() == old != SIGNING.read_bytes()
        assert "replaced" in show("agentd.service", "StatusText")
        messages = told(KEY_PROBLEM)[before:]
        assert len(messages) == 1 and str(ASIDE) in messages[0]
        held.open()
        held.works(live)
        held.works()
        systemctl("restart", "agentd.service")
        assert state(agentd) == "sealed"
        held.works()


def test_a_signing_key_that_cannot_be_kept(agentd, held, whole):
    """It is in memory then; each start has another one, and runs do not notice."""
    dropin = pathlib.Path("/run/systemd/system/agentd.service.d/lost-keys.conf")
    live = held.begin()
    SIGNING.write_bytes(b"nothing")
    dropin.parent.mkdir(parents=True, exist_ok=True)
    dropin.write_text(f"[Service]\nReadOnlyPaths={STORE}\n")
    try:
        systemctl("daemon-reload")
        systemctl("restart", "agentd.service")
        assert state(agentd) == "volatile" and "see the journal" in show("agentd.service", "StatusText")
        assert SIGNING.read_bytes() == b"nothing" and not ASIDE.exists()
        assert "systemd-creds encrypt" in told(KEY_PROBLEM)[-1]
        systemctl("restart", "agentd.service")
        held.open()
        held.works(live)
        held.works()
    finally:
        dropin.unlink()
        systemctl("daemon-reload")
    systemctl("restart", "agentd.service")
    assert state(agentd) == "replaced" and ASIDE.read_bytes() == b"nothing"
    held.works()


def sealed():
    return {str(p): p.read_bytes() for p in CREDENTIALS.rglob("*") if p.is_file()}


@pytest.mark.parametrize("lost", [SECRET, SEALING], ids=["secret", "key"])
def test_credentials_whose_key_cannot_be_opened(agentd, held, lost):
    """None is used, none is lost, no other key is made; it is told once, and all is well when the key is back."""
    held.open()
    held.works()
    before, messages, key = sealed(), len(told(CREDENTIALS_PROBLEM)), SEALING.read_bytes()
    assert before
    with without(lost):
        systemctl("restart", STRONG_ROOM, check=False)
        wait_until(lambda: len(told(CREDENTIALS_PROBLEM)) > messages, "the message", every=0.2)
        done = agentctl("credential", "set", held.service, stdin="another", check=False)
        assert done.returncode != 0 and "systemctl status agent-credentiald" in done.stderr, done.stderr
        count = int(show(STRONG_ROOM, "NRestarts"))
        wait_until(lambda: int(show(STRONG_ROOM, "NRestarts")) > count + 1, "another try", every=0.2)
        new = told(CREDENTIALS_PROBLEM)[messages:]
        assert len(new) == 1 and "none is lost" in new[0] and "from a backup" in new[0], new
        assert new[0] in journal("-b", "-u", STRONG_ROOM)
        assert show("agent-credentiald.socket", "ActiveState") == "active"
        assert sealed() == before and (lost == SECRET) == SEALING.exists()
    wait_until(lambda: show(STRONG_ROOM, "ActiveState") == "active", "the strong room")
    assert sealed() == before and SEALING.read_bytes() == key
    held.works()
