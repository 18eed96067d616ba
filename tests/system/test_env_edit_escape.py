# SPDX-License-Identifier: LGPL-2.1-or-later
"""What root of a session in an edit cannot do, act by act: in the session it must fail, in a plain unit of the host it must
succeed. And what a session leaves behind, for those who read it afterwards: the freeze, the next session, the next run.
"""

import ctypes
import inspect
import json
import pathlib

import pytest

import acts
import acts_edit
import acts_kernel  # noqa: F401 - registers acts
import acts_world  # noqa: F401
import inside
from client import STATE, agentctl, run, show, wait_until
from test_env_generations import said
from test_isolation import world  # noqa: F401 - a fixture

# Those of runs that hold here, too; others a session may do within its own namespaces, as it is root there.
HOLD = {
    "see_files_of_another_run", "read_shared_memory_file", "read_tmp_file", "read_var_tmp_file",
    "see_arguments_of_another_run", "see_environment_of_another_run", "read_token_of_another_run",
    "read_credential_of_another_run", "read_live_file_of_another_run", "enter_root_of_another_run",
    "read_memory_of_another_run", "hold_another_run", "signal_another_run", "name_cgroup_of_another_unit",
    "attach_system_v_memory", "open_message_queue", "find_key_in_kernel_keyring", "reach_host_loopback",
    "reach_host_loopback_as_any_address", "reach_address_of_host", "reach_host_loopback_v6", "reach_mapped_loopback",
    "reach_address_of_host_v6", "reach_host_by_udp", "resolve_a_name", "reach_abstract_socket", "reach_path_socket",
    "open_raw_socket", "call_by_another_abi", "make_a_device", "go_realtime",
    *(name for name in acts.ACTS if name.startswith("reach_")),
    *("call_" + name for name in ("kexec_load", "init_module", "finit_module", "delete_module", "swapon", "swapoff", "iopl",
                                  "syslog", "acct", "bpf", "add_key", "request_key", "keyctl", "settimeofday",
                                  "quotactl", "perf_event_open", "open_by_handle_at", "userfaultfd", "io_uring_setup")),
}
ALL = sorted(HOLD | set(acts_edit.EDIT_ACTS))


def program(context, names):
    text = acts.program(context, []).rsplit("\nmain(", 1)[0] + "\n" + inspect.getsource(acts_edit)
    text = "\n".join(line for line in text.split("\n") if not line.startswith("from acts import"))
    return inside.PRELUDE + text + f"\nACTS.update(EDIT_ACTS)\nmain({context!r}, {sorted(names)!r})\n"


def handle_of(path):
    class Handle(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128)]

    handle, mount_id = Handle(size=128), ctypes.c_int()
    assert ctypes.CDLL(None).name_to_handle_at(-100, str(path).encode(), ctypes.byref(handle), ctypes.byref(mount_id), 0) == 0
    return bytes(handle.bytes[: handle.size]).hex(), handle.type


@pytest.fixture(scope="module")
def outcome(world, agentd, image, unique, tmp_path_factory):  # noqa: F811
    """What came of every act, in a session and outside."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "tree").mkdir()
    (folder / "tree/file").write_text("x")
    run("mkfs.erofs", "-T0", folder / "image", folder / "tree")
    layer = next(p for p in pathlib.Path("/run/agentd/layers").iterdir() if (p / "etc/passwd").exists())
    handle, kind = handle_of(layer / "etc/passwd")
    context = dict(world, erofs=(folder / "image").read_bytes().hex(), handle=handle, handle_type=kind, layer=str(layer),
                   cgroup=show("systemd-journald.service", "ControlGroup"))
    name = unique()
    agentd.call("CreateAgent", json.dumps({"name": name, "image": image, "kind": "exec", "command": ["/bin/true"]}))
    text = program(dict(context, whiteouts="/root"), ALL)
    done = agentctl("env", "edit", name, "--", *inside.COMMAND, stdin=text, check=False)
    agentctl("env", "discard", name)
    agentd.call("RemoveAgent", name)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    argv = ["systemd-run", "--quiet", "--wait", "--collect", "--pipe", *inside.COMMAND]
    return there, json.loads(run(*argv, stdin=program(dict(context, whiteouts="/dev/shm"), ALL)).stdout)


@pytest.mark.parametrize("name", ALL)
def test_act(outcome, name):
    there, here = outcome
    assert not there[name][0], f"a session could {name}: {there[name][1]}"
    if not here[name][0]:
        pytest.skip(f"fails in the session, but here even root cannot: {here[name][1]}")


# --- what a session leaves for others ---


@pytest.fixture
def edited(agentd, image, unique, shell):
    """Makes agents, edits them by a shell script, freezes; gives the agent's name."""
    made = []

    def make(script, freeze=True):
        name = unique()
        agentd.call("CreateAgent", json.dumps({"name": name, "image": image, "kind": "command",
                                               "command": inside.COMMAND}))
        made.append(name)
        done = agentctl("env", "edit", name, "--", "/bin/sh", "-euc", script)
        assert done.returncode == 0
        if freeze:
            agentctl("env", "freeze", name)
        return name

    yield make
    for name in made:
        agentctl("env", "discard", name, check=False)
        agentd.call("RemoveAgent", name)


def test_setuid_programs_and_capabilities(agentd, edited):
    """They work in a session, where other users are its own, and are nothing but files in a run."""
    name = edited(r"""
        cp /usr/bin/id /usr/local/bin/suid; chmod 4755 /usr/local/bin/suid
        cp /usr/bin/python3 /usr/local/bin/caps; setcap cap_setuid,cap_dac_override,cap_sys_admin+ep /usr/local/bin/caps
        chmod u+s /usr/bin/python3.*""")
    probe = "suid -u; caps -c 'import os; os.setuid(0); print(\"root\")' 2>&1 | tail -1; head -c 4 /etc/shadow 2>&1"
    session = agentctl("env", "edit", name, "--", "setpriv", "--reuid=agent", "--regid=agent", "--clear-groups", "/bin/sh",
                       "-c", probe, check=False).stdout.split("\n")
    assert session[:2] == ["0", "root"], "where nothing locks them they work"
    agentctl("env", "discard", name)
    path = agentd.execute(name, f"""
import subprocess, os
print(subprocess.run(["/bin/sh", "-c", {probe!r}], stdout=-1, stderr=subprocess.STDOUT, text=True).stdout)
print(os.getuid() == os.geteuid() != 0, open("/proc/self/status").read().split("CapEff:")[1].split()[0])""")
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    out = said(agentd, path).split("\n")
    assert out[0] != "0" and "root" not in out[1] and "root:" not in out[2], out
    assert out[-1].split() == ["True", "0" * 16] or out[-2].split() == ["True", "0" * 16], out


def test_symlinks_where_others_walk(agentd, edited, tmp_path):
    """The freeze empties caches and takes mount points away, the next session and the next run mount there: no link of a
    session's leads any of them out of it, and none of them takes anything away on the host."""
    victim = pathlib.Path(STATE).parent / f"victim-{tmp_path.name}"
    (victim / "lists").mkdir(parents=True)
    (victim / "lists/file").write_text("x")
    (victim / "runner").mkdir()
    try:
        name = edited(f"""
            for d in /var/lib/apt /var/cache/apt /var/cache/ldconfig /root/.cache /root/.npm /home/agent/.cache /var/tmp; do
                rm -rf $d; ln -s {victim} $d
            done
            rm -f /etc/hostname /etc/hosts /etc/machine-id /etc/resolv.conf
            for f in hostname hosts machine-id resolv.conf; do ln -s {victim}/lists/file /etc/$f; done
            rm -rf /opt/agentd; ln -s ../../../../../../..{victim} /opt/agentd
            rm -rf /srv; ln -s /proc/1/root{victim} /srv
            echo kept > /etc/kept""", freeze=False)
        before = sorted(str(p) for p in victim.rglob("*"))
        assert agentctl("env", "edit", name, "--", "cat", "/etc/kept").stdout == "kept\n"
        done = agentctl("env", "freeze", name, check=False)  # not with what is in the way of a mount
        assert done.returncode == 1 and "/opt/agentd is no directory any more" in done.stderr, done.stderr
        agentctl("env", "edit", name, "--", "/bin/sh", "-euc",
                 "rm -rf /opt/agentd; cd /etc; rm -rf hostname hosts machine-id; : > hostname; : > hosts; : > machine-id")
        agentctl("env", "freeze", name)
        assert agentctl("env", "edit", name, "--", "cat", "/etc/kept").stdout == "kept\n"
        agentctl("env", "discard", name)
        path = agentd.execute(name, "print(open('/etc/kept').read())")
        result, message = agentd.finish(path)
        assert result == "success", (result, message)  # on a root of its own, where the rest leads nowhere
        assert sorted(str(p) for p in victim.rglob("*")) == before and (victim / "lists/file").read_text() == "x"
    finally:
        run("rm", "-rf", victim)


@pytest.mark.parametrize("script", [
    "mv /opt /home/agent/opt; ln -s /home/agent/opt /opt; chown -R agent: /home/agent",
    "rm -rf /opt/agentd; mkdir -p /home/agent/x; ln -s /home/agent/x /opt/agentd; chown -R agent: /home/agent",
    "rm -rf /opt/agentd; mkdir -p /opt/agentd /home/agent/x; ln -s /home/agent/x /opt/agentd/runner; chown -R agent: /home/agent",
    "rm -rf /opt; ln -s /home/agent /opt",
    "rm -rf /opt; mkdir /home/agent/a; chown agent: /home/agent/a; ln -s /home/agent/a /opt",
    "rm -rf /opt; ln -s /home/agent/none /opt",
    "chown -R agent: /opt; chmod 777 /opt",
    "rm -rf /opt/agentd; mkdir -p /opt/agentd/runner; echo 'process.exit(0)' > /opt/agentd/runner/main.cjs",
    "mkdir -p /opt/agentd; echo '{\"type\":\"module\"}' > /opt/agentd/package.json; cp /opt/agentd/package.json /opt/",
])
def test_the_place_of_the_runner(agentd, edited, script):
    """Whatever an environment has there, the run has the platform's runner, and nothing that the agent does moves it; where a
    link leads to another place, it cannot be frozen."""
    name = edited(script, freeze=False)
    done = agentctl("env", "freeze", name, check=False)
    if "ln -s" in script:
        assert done.returncode == 1 and "is no directory any more" in done.stderr, done.stderr
        return
    assert done.returncode == 0, done.stderr
    path = agentd.execute(name, r"""
import hashlib, json, os
def digest():
    return hashlib.sha256(open("/opt/agentd/runner/main.cjs", "rb").read()).hexdigest()
seen, moved = [digest()], []
for top in ("/opt/agentd/runner", "/opt/agentd", "/opt", os.path.realpath("/opt/agentd/runner"),
            os.path.dirname(os.path.realpath("/opt/agentd/runner")), "/home/agent/opt/agentd", "/home/agent/opt", "/home/agent/x",
            "/home/agent/a", "/home/agent/a/agentd", "/home/agent/agentd", "/home/agent"):
    try:
        os.rename(top, top + ".moved")
        moved.append(top)
        os.makedirs(top + "/agentd/runner", exist_ok=True)
    except OSError:
        pass
try:
    seen.append(digest())
except OSError as e:
    seen.append(str(e))
print(json.dumps([seen, moved]))""")
    result, message = agentd.finish(path)
    assert result == "success", (result, message)
    seen, moved = agentd.result(path)["output"]
    real = run("sha256sum", "/usr/lib/agentd/runner/main.cjs").stdout.split()[0]
    assert seen == [real, real], (seen, moved)


def test_nothing_is_left_on_the_host(agentd, edited):
    name = edited("true", freeze=False)
    agentctl("env", "discard", name)
    wait_until(lambda: "agentd-edit" not in pathlib.Path("/proc/1/mountinfo").read_text(), "no mount")
    assert not [p for p in pathlib.Path("/run/systemd/nspawn").rglob("edit-*")]
