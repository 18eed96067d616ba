# SPDX-License-Identifier: LGPL-2.1-or-later
"""agentctl, the real program, against a fake org.agentd1 on a bus of its own (fake_agentd.py).

The program is $AGENTCTL, or the one of the build directory, or the one that is installed.
"""

import hashlib
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
TIMEOUT = 600

BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>
"""


def find_agentctl():
    candidates = [os.environ.get("AGENTCTL"), "/build/daemons/agentctl/agentctl", shutil.which("agentctl")]
    for path in candidates:
        if path and os.access(path, os.X_OK):
            return path
    pytest.fail("no agentctl: build the project, or name the program in $AGENTCTL")


class Bed:
    """The bus, the fake, and the program under test."""

    def __init__(self, directory):
        self.program = find_agentctl()
        self.directory = directory
        socket = directory / "bus"
        config = directory / "bus.conf"
        config.write_text(BUS_CONFIG.format(socket=socket))
        self.env = {k: v for k, v in os.environ.items() if k not in ("PAGER", "AGENTD_PAGER", "NO_COLOR")}
        self.env.update(DBUS_SYSTEM_BUS_ADDRESS=f"unix:path={socket}", LC_ALL="C.UTF-8", TZ="UTC",
                        PATH=f"{pathlib.Path(self.program).parent}:{os.environ['PATH']}")
        self.bus = subprocess.Popen(["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address"],
                                    stdout=subprocess.PIPE)
        assert self.bus.stdout.readline()
        self.fake = subprocess.Popen([sys.executable, HERE / "fake_agentd.py"], env=self.env, stdout=subprocess.PIPE)
        assert self.fake.stdout.readline() == b"ready\n"

    def stop(self):
        for process in (self.fake, self.bus):
            process.terminate()
            process.wait()
            process.stdout.close()

    def __call__(self, *args, stdin=b"", status=0, **kwargs):
        done = subprocess.run([self.program, *args], env=self.env, input=stdin, capture_output=True, timeout=TIMEOUT,
                              **kwargs)
        done.out, done.err = (b.decode(errors="replace") for b in (done.stdout, done.stderr))
        assert done.returncode == status, done
        return done

    def json(self, *args, **kwargs):
        return json.loads(self(*args, "--json=short", **kwargs).out)

    def test_call(self, path, member):
        """A method of org.agentd1.Test, by dbus-send, whose reply is JSON."""
        out = subprocess.run(["dbus-send", "--system", "--print-reply=literal", "--dest=org.agentd1", path,
                              f"org.agentd1.Test.{member}"], env=self.env, check=True, capture_output=True).stdout
        return json.loads(out.decode().strip())

    def popen(self, *args, **kwargs):
        return subprocess.Popen([self.program, *args], env=self.env, **kwargs)

    def on_terminal(self, *args, answer=None, expect=None, send_signal=None):
        """Runs with all three standard streams on a terminal; what appears there, and the exit status. When EXPECT
        has appeared, ANSWER is typed or SEND_SIGNAL sent."""
        master, slave = pty.openpty()
        process = self.popen(*args, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        seen = b""
        while select.select([master], [], [], TIMEOUT)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            seen += data
            if expect and expect.encode() in seen:
                expect = None
                if answer is not None:
                    os.write(master, answer)
                if send_signal is not None:
                    process.send_signal(send_signal)
        status = process.wait(TIMEOUT)
        os.close(master)
        return seen.decode(errors="replace"), status


@pytest.fixture(scope="module")
def ctl(tmp_path_factory):
    bed = Bed(tmp_path_factory.mktemp("agentctl"))
    yield bed
    bed.stop()


# --- run --------------------------------------------------------------------------------------------------------

RESULTS = {"success": 0, "failed": 1, "exit-code": 10, "signal": 11, "timeout": 12, "oom-kill": 13, "canceled": 14,
           "out-of-credit": 15, "sandbox-failed": 16, "lost": 17, "news-to-us": 3}


@pytest.mark.parametrize("result,status", RESULTS.items())
def test_run_wait_exit_status(ctl, result, status):
    done = ctl("run", f"end-{result}", "--wait", "--input", "hello", status=status)
    assert done.out == ("did: hello\n" if result in ("success", "failed") else "")
    if result == "success":
        assert done.err == ""
    else:
        assert re.fullmatch(rf"agentctl: Run [0-9a-f]{{32}} ended as {result}: It ended as {result}\.\n", done.err)


def test_run_without_wait(ctl):
    done = ctl("run", "hang")
    assert re.fullmatch(r"[0-9a-f]{32}\n", done.out) and done.err == ""
    answer = ctl.json("run", "hang")
    assert answer["path"] == "/org/agentd1/run/" + answer["run"]


def test_what_there_is_to_say_of_a_success(ctl):
    """That an output was cut off, or an artifact not kept, is not lost on who only reads stdout."""
    done = ctl("run", "cut", "--wait", "--input=x")
    assert done.out == "did: x\n" and done.err == "Its end\\x1b was kept.\n"
    assert ctl("result", "last").err == done.err and ctl("result", "last", "-q").err == ""
    assert ctl("run", "cut", "--wait", "-q").err == ""
    answer = ctl("run", "cut", "--wait", "--json=short")
    assert answer.err == "" and json.loads(answer.out)["output"] == "did: "
    assert ctl("run", "early", "--wait").err == ""


def test_run_finished_before_the_reply(ctl):
    assert ctl("run", "early", "--wait", "--input=x").out == "did: x\n"


def test_signal_before_the_reply_is_not_missed(ctl):
    """Only the signal tells the end here: the run's properties go on to say "running"."""
    done = ctl("run", "early-stale", "--wait", status=10)
    assert "Exit code 7." in done.err


def test_end_without_signal_is_found(ctl):
    done = ctl("run", "silent", "--wait", status=11)
    assert "Killed by SIGKILL." in done.err


def test_end_while_agentd_is_restarted(ctl):
    assert ctl("run", "away", "--wait", "--input=y").out == "did: y\n"


def test_run_json(ctl):
    answer = ctl.json("run", "json", "--wait")
    assert answer["result"] == "success" and answer["output"] == {"best": "AAPL", "n": 3}
    assert ctl.json("run", "end-timeout", "--wait", status=12) | {"run": "", "path": ""} == {
        "run": "", "path": "", "result": "timeout", "message": "It ended as timeout.", "output": None}
    assert json.loads(ctl("run", "json", "--wait").out) == {"best": "AAPL", "n": 3}
    assert ctl("run", "null", "--wait").out == ""


def test_run_options_reach_the_service(ctl):
    ctl("run", "early", "--session=s1", "--keep", "--idempotency-key=k1", "--timeout=1h 30min", "--priority=-5",
        "--label=a=b", "--label", "c=d=e", "--input", '{"q":"grün"}')
    call = ctl.test_call("/org/agentd1", "Calls")[-1]
    assert call["input"] == '{"q":"grün"}'
    assert call["options"] == {"session": "s1", "keep": True, "idempotency-key": "k1", "priority": -5,
                               "timeout-usec": 5_400_000_000, "labels": {"a": "b", "c": "d=e"}}
    ctl("run", "early")
    assert ctl.test_call("/org/agentd1", "Calls")[-1] == {"input": "", "options": {}}


def test_same_key_same_run(ctl):
    first = ctl("run", "early", "--idempotency-key=same").out
    assert ctl("run", "early", "--idempotency-key=same").out == first
    assert ctl("run", "early", "--idempotency-key=same", "--wait").out == "did: \n"


def test_input_file(ctl, tmp_path):
    file = tmp_path / "input"
    file.write_bytes("grün\n".encode())
    assert ctl("run", "early", "--wait", f"--input-file={file}").out == "did: grün\n"
    assert ctl("run", "early", "--wait", "--input-file=-", stdin=b"in").out == "did: in\n"

    file.write_bytes(b"ab\xff")
    assert "not valid UTF-8 (byte 3 is 0xff)" in ctl("run", "early", f"--input-file={file}", status=3).err
    file.write_bytes(b"a\0b")
    assert "NUL at byte 2" in ctl("run", "early", f"--input-file={file}", status=3).err
    file.write_bytes(b"x" * (1 << 20))
    assert len(ctl("run", "early", "--wait", f"--input-file={file}").out) == len("did: \n") + (1 << 20)
    file.write_bytes(b"x" * ((1 << 20) + 1))
    assert "at most 1 MiB" in ctl("run", "early", f"--input-file={file}", status=3).err
    assert "No such file" in ctl("run", "early", f"--input-file={file}.not", status=3).err
    ctl("run", "early", f"--input-file={file}", "--input=x", status=2)
    done = subprocess.run([ctl.program, "run", "early", b"--input=\xff"], env=ctl.env, capture_output=True, check=False)
    assert done.returncode == 3 and b"not valid UTF-8" in done.stderr


def test_errors_are_one_line_with_a_hint(ctl):
    done = ctl("run", "error-NoSuchAgent", status=3)
    assert done.err == 'agentctl: No, because error-NoSuchAgent. "agentctl agent list" shows what there is.\n'
    assert ctl("run", "error-QueueFull", "--wait", status=3).err == "agentctl: No, because error-QueueFull\n"
    assert ctl("run", "denied", status=3).err == "agentctl: You may not.\n"
    for error in ("InvalidInput", "InputTooLarge", "InvalidOption", "IdempotencyConflict"):
        assert ctl("run", f"error-{error}", status=3).err.count("\n") == 1


def test_no_service_and_no_bus(ctl, tmp_path):
    env = dict(ctl.env, DBUS_SYSTEM_BUS_ADDRESS=f"unix:path={tmp_path}/none")
    done = subprocess.run([ctl.program, "runs"], env=env, capture_output=True, check=False)
    assert done.returncode == 3 and done.stderr.startswith(b"agentctl: Cannot connect to the system bus")


def test_progress_on_a_terminal(ctl):
    seen, status = ctl.on_terminal("run", "end-success", "--wait", "--input=z")
    assert status == 0
    assert re.search(r"Run [0-9a-f]{32}: running", seen) and "did: z" in seen and "success after 1.500s" in seen
    seen, status = ctl.on_terminal("run", "end-success", "--wait", "--input=z", "-q")
    assert status == 0 and seen == "did: z\r\n"


def test_output_cannot_drive_the_terminal(ctl):
    seen, status = ctl.on_terminal("run", "escape", "--wait", "-q")
    assert status == 0 and seen == "\\x1b[2Jboo\r\n"
    assert ctl("run", "escape", "--wait").out == "\x1b[2Jboo\n"  # a file gets what was put out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_the_run_alone(ctl, number):
    seen, status = ctl.on_terminal("run", "hang", "--wait", expect=": running", send_signal=number)
    assert status == 130
    run = re.search(r"Run ([0-9a-f]{32}) goes on", seen)[1]
    assert f"agentctl logs -f {run}" in seen and f"agentctl cancel {run}" in seen
    assert ctl.json("status", run)["state"] == "running"


# --- runs -------------------------------------------------------------------------------------------------------

def test_runs_and_status(ctl):
    run = ctl("run", "hang").out.strip()
    rows = ctl.json("runs")
    assert rows[0]["id"] == run and rows[0]["state"] == "running" and rows[0]["result"] is None
    assert rows[0]["finished_usec"] is None
    assert all(r["result"] == "timeout" for r in ctl.json("runs", "--result=timeout"))
    assert ctl.json("runs", "--agent=hang", "-n", "1")[0]["id"] == run
    assert ctl.json("runs", "--agent=nobody") == []
    assert len(ctl.json("runs", "-n", "2")) == 2
    assert len(ctl.json("runs", "-n", "all")) > 2

    table = ctl("runs").out.splitlines()
    assert table[0].split() == ["RUN", "USER", "AGENT", "STATE", "RESULT", "TRIGGER", "CREATED", "DURATION"]
    assert table[-1] == f"{len(table) - 3} runs."
    assert ctl("runs", "--no-legend", "-n1").out.split()[0] == run
    assert ctl("runs", "--agent=nobody").out == "No runs.\n"

    status = ctl.json("status", "last")
    assert status["id"] == run and status["unit"] == f"agent-run-{run}.service" and status["attempt"] == 1
    assert status["finished_usec"] is None
    assert f"Run: {run}\n" in ctl("status", run).out


def test_part_of_an_id(ctl):
    a, b = (ctl("run", "hang").out.strip() for _ in range(2))
    assert ctl.json("status", a[:14])["id"] == a
    assert ctl.json("status", b[-8:])["id"] == b
    assert "Several runs match" in ctl("status", a[:8], status=3).err
    assert "There is no run" in ctl("status", "ffffffff", status=3).err
    for text in ("abc", "ABCDEF", "../../etc", "", a + "0"):
        assert "is no run" in ctl("status", text, status=2).err
    assert "NoSuchRun" not in ctl("status", "f" * 32, status=3).err


def test_cancel(ctl):
    run = ctl("run", "hang").out.strip()
    assert run in ctl("cancel", run).err
    assert ctl.json("status", run)["result"] == "canceled"
    assert "is over already" in ctl("cancel", run, status=3).err
    run = ctl("run", "hang").out.strip()
    assert ctl.json("cancel", run) == {"run": run, "result": "canceled"}


def test_logs(ctl):
    run = ctl("run", "hang").out.strip()
    assert ctl("logs", run).out == textwrap.dedent("""\
        Jan 01 00:00:00 one
        Jan 01 00:00:00 two \\x1b[31mred
        Jan 01 00:00:00 three
        Jan 01 00:00:00 four
        """)
    lines = [json.loads(line) for line in ctl("logs", run, "--json=short").out.splitlines()]
    assert [line["message"] for line in lines] == ["one", "two \x1b[31mred", "three", "four"]


def test_logs_follow_goes_on_after_a_restart(ctl):
    """The fake ends the first pipe in the middle of a line; each line is to be seen once all the same."""
    run = ctl("run", "hang").out.strip()
    lines = ctl("logs", "-f", run).out.splitlines()
    assert [line.split()[3] for line in lines] == ["one", "two", "three", "four"]


def test_result_and_receipt(ctl):
    run = ctl("run", "json").out.strip()
    assert json.loads(ctl("result", run).out) == {"best": "AAPL", "n": 3}
    assert ctl.json("result", run) == {"status": "success", "output": {"best": "AAPL", "n": 3}}
    assert ctl.json("receipt", run)["cpu_usec"] == 2**53 + 1
    assert json.loads(ctl("receipt", run).out)["run"] == run
    run = ctl("run", "hang").out.strip()
    assert ctl("receipt", run, status=3).err == (
        f'agentctl: Run "{run}" is not finished. "agentctl status RUN" tells how far it is.\n')
    run = ctl.json("run", "end-signal", "--wait", status=11)["run"]
    assert "posted no result" in ctl("result", run, status=3).err


def test_artifacts(ctl, tmp_path):
    run = ctl("run", "early").out.strip()
    assert ctl.json("artifacts", run) == [{"name": "chart.png", "size": 70000, "content_type": "image/png"},
                                          {"name": "grün.csv", "size": 3, "content_type": "text/csv"}]
    assert ctl("artifact", run, "chart.png").stdout == b"\x89PNG" + bytes(69_996)
    ctl("artifact", run, "chart.png", "-o", str(tmp_path))
    assert (tmp_path / "chart.png").stat().st_size == 70_000
    file = tmp_path / "x"
    file.write_text("old")
    ctl("artifact", run, "grün.csv", f"--output={file}", "-q")
    assert file.read_text() == "1,2" and sorted(p.name for p in tmp_path.iterdir()) == ["chart.png", "x"]
    assert ctl("artifact", run, "grün.csv", "-o", "/dev/stdout").out == "1,2"
    assert "no artifact" in ctl("artifact", run, "no", status=3).err
    seen, status = ctl.on_terminal("artifact", run, "chart.png")
    assert status == 2 and "PNG" not in seen


# --- agents, environments, images, services -----------------------------------------------------------------------

def test_agents(ctl, tmp_path):
    file = tmp_path / "analyst.json"
    file.write_text("{}")
    assert ctl("agent", "create", str(file), status=3).err == f"agentctl: {file}: line 1: name: missing\n"
    file.write_text('{"name": "analyst", "image": "base"}')
    assert ctl("agent", "create", str(file)).err == "Agent analyst created.\n"
    assert ctl("agent", "create", "-", stdin=file.read_bytes(), status=3).err.count("agent update") == 1
    assert ctl.json("agent", "update", str(file)) == {"name": "analyst", "result": "updated"}
    assert ctl.json("agent", "list") == [{"name": "analyst", "user": "root", "generation": "sha256:" + "0123456789abcdef" * 4,
                                          "path": "/org/agentd1/agent/root/analyst"}]
    assert ctl.json("agent", "show", "analyst")["definition"] == {"name": "analyst", "image": "base"}
    assert "sha256:0123456789ab\n" in ctl("agent", "list").out
    assert "Agent: analyst\n" in ctl("agent", "show", "analyst").out
    ctl("agent", "remove", "analyst")
    assert ctl.json("agent", "list") == []
    assert "There is no agent" in ctl("agent", "show", "analyst", status=3).err


def test_environment(ctl):
    rows = ctl.json("env", "log", "analyst")
    assert [r["head"] for r in rows] == [True, False] and rows[1]["parent"] is None and rows[0]["note"] == "a\nnote"
    assert "a\\x0anote" in ctl("env", "log", "analyst").out
    run = ctl("run", "early", "--keep").out.strip()
    done = ctl("env", "freeze", "analyst", f"--from-run={run[-10:]}", "--note=with numpy")
    assert done.out.startswith("sha256:") and "new generation" in done.err
    assert ctl.test_call("/org/agentd1", "Calls")[-1]["options"] == {"from-run": run, "note": "with numpy"}
    assert "not being edited" in ctl("env", "freeze", "analyst", status=3).err


def test_generations(ctl):
    assert ctl.json("env", "show", "analyst", "3")["asked"] == "3" and ctl.json("env", "show", "analyst")["asked"] == "head"
    assert ctl("env", "rollback", "analyst", "1").out.strip().startswith("sha256:")
    assert ctl("env", "rollback", "analyst", "1", "--expected-head=head").out.strip().startswith("sha256:")
    assert "HeadMoved" not in ctl("env", "rollback", "analyst", "1", "--expected-head=sha256:" + "f" * 64, status=3).err
    out = ctl("env", "diff", "analyst", "1").out
    for line in ("~ dpkg: jq 1.6 -> 1.7", "+ pip: six 1.16", "+ /etc/new 2.0K", "- /etc/old [symlink]", "~ /bin/x (content, time)"):
        assert line in out.splitlines()
    assert ctl("env", "diff", "same", "1").out == "0 added, 0 removed, 0 changed; 0B more.\n"
    assert "5B less" in out and ctl.json("env", "diff", "analyst", "1", "2")["totals"]["bytes"] == -5
    assert ctl("env", "diff", "bad", "1", status=1).out == ""


HOSTILE = "a\u202eb\u009b31mc\nd"  # as fake_agentd.py has it


def test_text_of_strangers(ctl):
    """Cannot drive a terminal, nor look like something else, wherever it is shown; as JSON its value is exact."""
    shown = r"a\xe2\x80\xaeb\xc2\x9b31mc\x0ad"
    out = ctl("env", "diff", "hostile", "1").out
    assert out.splitlines()[:2] == [f"+ {shown}: {shown} {shown}", f"+ {shown} [{shown}] ({shown})"], out
    assert ctl.json("env", "diff", "hostile", "1")["paths"][0]["path"] == HOSTILE
    for args in (["env", "show", "hostile"], ["env", "diff", "hostile", "1", "--json=pretty"]):
        seen, status = ctl.on_terminal("--no-pager", *args)
        assert status == 0 and "\u202e" not in seen and "\u009b" not in seen and r"a\u202eb\u009b31mc\nd" in seen, seen
        assert HOSTILE in json.dumps(json.loads(ctl(*args).out), ensure_ascii=False).replace("\\n", "\n")


def test_store(ctl):
    assert "0 generations and 2 layers removed, 3.0K freed." in ctl("env", "prune").out
    assert "1 generation and 2 layers removed, 3.0K freed." in ctl("env", "prune", "--keep=1").out
    for words in (["--keep=4"], ["--keep", "4"], ["analyst", "--keep", "4"]):
        assert ctl.json("env", "prune", *words)["generations"] == 4
    for words in (["--keep", "0"], ["--keep"], ["--keep=x"]):
        ctl("env", "prune", *words, status=2)
    assert "does not take --keep=N." in ctl("run", "analyst", "--keep=3", status=2).err
    done = ctl("env", "fsck", status=1)
    assert "  root/a, generation 3 (head), sha256:" in done.out and "  image root/base" in done.out
    assert "4 layers (4.0K) and 7 generations checked, 1 problem." in done.out.splitlines()
    assert "It is damaged." in done.err and "1 layer is needed by nobody: agentctl env prune." in done.out
    assert ctl.json("env", "fsck", status=1)["layers"] == 4
    assert "root/a" in ctl("env", "du").out and "nobody needs 1B" in ctl("env", "du").out


def test_export_and_import(ctl, tmp_path):
    file = tmp_path / "there.tar"
    done = ctl("env", "export", "analyst", str(file), "2")
    assert done.out.startswith("sha256:") and done.err == "The environment of analyst is exported.\n"
    assert file.read_text() == "generation 2" and [p.name for p in tmp_path.iterdir()] == ["there.tar"]
    assert ctl("env", "export", "analyst", str(file), "-q").err == ""
    assert ctl.json("env", "export", "analyst", str(file)) | {"operation": "", "detail": ""} == {
        "operation": "", "subject": "analyst", "result": "done", "detail": ""}
    assert ctl("env", "export", "analyst", "-").out == "generation head"
    assert ctl("env", "export", "bad", str(tmp_path / "bad"), status=1).out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["there.tar"]
    nowhere = tmp_path / "not/there.tar"
    assert f'Cannot write "{nowhere}": No such file' in ctl("env", "export", "analyst", str(nowhere), status=3).err
    done = ctl("env", "import", "copy", str(file))
    assert done.out.startswith("sha256:") and done.err == "The environment of copy is imported.\n"


def test_prune_runs(ctl):
    assert ctl("prune-runs", "--keep=5").out == "5 runs removed, with 2.0K.\n"
    assert ctl("prune-runs", "--keep=1").out == "1 run removed, with 2.0K.\n"
    assert ctl("prune-runs", "analyst", "--keep", "5", "--dry-run").out == "5 runs would be removed, with 1.0K.\n"
    assert ctl.json("prune-runs", "--older-than=2min") == {"runs": 220, "bytes": 2048, "dry_run": False}
    assert ctl.json("prune-runs", "--keep=0", "--older-than=1h", "--dry-run")["runs"] == 3600
    for words in ([], ["--keep"], ["--keep=x"], ["--older-than=0"], ["--older-than=soon"], ["a", "b", "--keep=1"]):
        ctl("prune-runs", *words, status=2)
    ctl("run", "analyst", "--keep=0", status=2)


def test_image_import(ctl, tmp_path):
    file = tmp_path / "root.tar"
    file.write_bytes(b"not really a tar" * 1000)
    expected = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    assert ctl("image", "import", "new", str(file)).out == expected + "\n"
    done = ctl("image", "import", "new", str(file), "-q")
    assert done.out == expected + "\n" and done.err == ""
    assert ctl("image", "import", "early", "-", stdin=file.read_bytes()).out == expected + "\n"
    assert ctl.json("image", "import", "new", str(file)) | {"operation": ""} == {
        "operation": "", "subject": "new", "result": "done", "detail": expected}
    assert ctl("image", "import", "bad", str(file), status=1).err == "agentctl: This is no tar archive.\n"
    assert re.fullmatch(r"/org/agentd1/operation/\d+\n", ctl("image", "import", "slow", str(file), "--no-wait").out)
    assert "is a directory" in ctl("image", "import", "new", str(tmp_path), status=3).err
    assert "restarted meanwhile" in ctl("image", "import", "gone", str(file), status=3).err
    seen, status = ctl.on_terminal("image", "import", "new", str(file))
    assert status == 0 and "unpacking 12.3k" in seen and "Image new imported." in seen


def test_interrupt_cancels_an_operation(ctl):
    seen, status = ctl.on_terminal("image", "build", "slow", expect="unpacking", send_signal=signal.SIGINT)
    assert status == 14 and "Canceling." in seen and seen.endswith("Canceled.\r\n")


def test_image_build_list_remove(ctl):
    ctl("image", "build", "new", "python3-numpy", "gcc", "--mirror=https://mirror.example/debian")
    assert ctl.test_call("/org/agentd1", "Calls")[-1]["options"] == {
        "packages": ["python3-numpy", "gcc"], "mirror": "https://mirror.example/debian"}
    ctl("image", "build", "new")
    assert ctl.test_call("/org/agentd1", "Calls")[-1]["options"] == {}
    assert ctl.json("image", "list")[0]["size"] == 266 << 20
    assert "266.0M" in ctl("image", "list").out
    ctl("image", "remove", "base")
    assert "There is no image" in ctl("image", "remove", "other", status=3).err


def test_services(ctl, tmp_path):
    file = tmp_path / "s.json"
    file.write_text('{"name":"market-data","auth":{"kind":"bearer"}}')
    assert ctl("service", "add", str(file)).err == "Service market-data added.\n"
    assert ctl.json("service", "list")[0]["auth"] == "bearer"
    assert ctl.json("service", "show", "market-data")["auth"] == {"kind": "bearer"}
    assert json.loads(ctl("service", "show", "market-data").out)["name"] == "market-data"
    ctl("service", "update", str(file))
    ctl("service", "remove", "market-data")
    assert "There is no service" in ctl("service", "show", "market-data", status=3).err


# --- credentials ------------------------------------------------------------------------------------------------

def secrets(ctl):
    return ctl.test_call("/org/agentd1/Credentials", "Secrets")


def test_credentials(ctl):
    done = ctl("credential", "set", "api", stdin=b"s3cret-one\n")
    assert "s3cret" not in done.out + done.err and secrets(ctl)["/api"] == "s3cret-one"
    ctl("credential", "set", "api", "--user=alice", stdin=b"a" * 48 * 1024)
    assert secrets(ctl)["alice/api"] == "a" * 48 * 1024
    assert "at most" in ctl("credential", "set", "api", stdin=b"a" * 49_153, status=3).err
    assert "empty" in ctl("credential", "set", "api", status=3).err

    read_end, write_end = os.pipe()
    os.write(write_end, b"by-fd")
    os.close(write_end)
    ctl("credential", "set", "other", f"--fd={read_end}", pass_fds=[read_end])
    os.close(read_end)
    assert secrets(ctl)["/other"] == "by-fd"

    assert [r["service"] for r in ctl.json("credential", "list")] == ["api", "other"]
    assert [r["service"] for r in ctl.json("credential", "list", "--user=alice")] == ["api"]
    assert ctl("credential", "set", "mistyped", stdin=b"x").err.endswith(
        "There is no service mistyped yet: agentctl service add FILE.\n")
    assert ctl("credential", "set", "mistyped", "-q", stdin=b"x").err == ""
    ctl("service", "add", "-", stdin=b'{"name":"typed-well"}')
    assert ctl("credential", "set", "typed-well", stdin=b"x").err == "The credential of typed-well is set.\n"
    for name in ("mistyped", "typed-well"):
        ctl("credential", "remove", name)
    ctl("service", "remove", "typed-well")
    ctl("credential", "remove", "other")
    assert "has no credential" in ctl("credential", "remove", "other", status=3).err


def test_secret_is_refused_in_argv(ctl):
    done = ctl("credential", "set", "api", "s3cret", stdin=b"x", status=2)
    assert "s3cret" not in done.err and "stdin" in done.err


def test_secret_is_not_echoed(ctl):
    seen, status = ctl.on_terminal("credential", "set", "tty", expect="(not shown): ", answer=b"tYpeX\x7fd\r")
    assert status == 0 and "tY" not in seen and secrets(ctl)["/tty"] == "tYped"
    seen, status = ctl.on_terminal("credential", "set", "tty", expect="(not shown): ", answer=b"half\x03")
    assert status == 3 and "nothing was changed" in seen and secrets(ctl)["/tty"] == "tYped"


# --- the rest ---------------------------------------------------------------------------------------------------

LISTINGS = [["runs"], ["agent", "list"], ["image", "list"], ["service", "list"], ["credential", "list"],
            ["env", "log", "x"], ["artifacts", "last"]]


@pytest.mark.parametrize("verb", LISTINGS, ids=" ".join)
def test_every_listing_is_json(ctl, verb):
    ctl("run", "early")
    if verb == ["runs"]:
        verb = ["runs", "--state=finished"]  # the others grow older from call to call
    short, pretty, plain = (ctl(*verb, mode).out for mode in ("--json=short", "--json", "-j"))
    assert isinstance(json.loads(short), list) and json.loads(pretty) == json.loads(short) == json.loads(plain)
    assert short.count("\n") == 1
    assert ctl(*verb, "--json=off").out == ctl(*verb).out


def test_usage(ctl):
    ctl(status=2)
    ctl("nonsense", status=2)
    ctl("agent", status=2)
    ctl("agent", "nonsense", status=2)
    ctl("run", status=2)
    ctl("run", "a", "b", status=2)
    assert ctl("runs", "a", status=2).err == "agentctl: Too many arguments: agentctl runs\n"
    ctl("run", "a", "--follow", status=2)
    ctl("runs", "--nonsense", status=2)
    ctl("runs", "--json=xml", status=2)
    for words in (["nonsense"], ["agent", "nonsense"], ["agnet", "list"]):
        done = ctl(*words, "--help", status=2)
        assert done.out == "" and f'There is no verb "{" ".join(words)}".' in done.err
        assert ctl(*words, status=2).err == done.err
    assert re.fullmatch(r"agentctl \d+\.\d+\.\d+\n", ctl("--version").out)
    assert ctl("help").out == ctl("--help").out
    assert ctl("help", "run").out == ctl("run", "--help").out
    assert ctl("help", "agent").out == ctl("agent", "--help").out
    assert ctl("help", "agent", "list").out == ctl("agent", "list", "-h").out


def test_full_disk_is_an_error(ctl):
    with open("/dev/full", "w") as full:
        done = subprocess.run([ctl.program, "agent", "list"], env=ctl.env, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3 and b"No space left" in done.stderr


def verbs_and_options(ctl):
    """From the program's own help: (verb, its options)."""
    listing = ctl("help").out.split("Common options:")[0]
    verbs = [m[1] for m in re.finditer(r"^  ((?:[a-z]+ )?[a-z-]+?)(?: [A-Z[].*)?  ", listing, re.M)]
    assert {"run", "credential set", "prune-runs"} <= set(verbs) and len(verbs) > 50
    for verb in verbs:
        yield verb, re.findall(r"(?<=  )--[a-z-]+", ctl("help", *verb.split()).out)


def test_manual_and_completions_are_complete(ctl):
    manual = (TOP / "man/agentctl.1").read_text().replace("\\-", "-")
    completions = [(TOP / "daemons/agentctl/completion" / name).read_text() for name in ("agentctl", "_agentctl")]
    for verb, options in verbs_and_options(ctl):
        assert f".B {verb}" in manual, verb
        assert options
        for text in (manual, *completions):
            for word in (*verb.split(), *options):
                assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), (verb, word)


def test_each_verb_has_its_options_everywhere(ctl):
    """Manual and both completions give a verb what its help gives it, and the completions nothing else."""
    manual = (TOP / "man/agentctl.1").read_text().split(".SH VERBS")[1].split(".SH OPTIONS")[0].replace("\\-", "-")
    zsh = (TOP / "daemons/agentctl/completion/_agentctl").read_text()
    shared = dict(re.findall(r"local -a (\w+)=\((.*(?:\n {16}.*)*)", zsh))
    branches = {}
    for names, body in re.findall(r"^ {16}(\S.*)\)\n((?: {24}.*\n)*)", zsh.split("case $verb in")[-1], re.M):
        for word, text in shared.items():
            body = body.replace(f"${word} ", text + " ")
        for name in names.split(" | "):
            branches[name.strip("'")] = set(re.findall(r"--[a-z][a-z-]+", re.sub(r"\[.*?\]", "", body)))
    for verb, options in verbs_and_options(ctl):
        section = re.search(rf"^\.TP\n\.B {verb}(?![\w-]| [a-z]).*\n((?:(?!\.TP|\.SS).*\n)*)", manual, re.M)
        own = [o for o in options if o in ctl("help", *verb.split()).out.split("Common options:")[0]]
        assert section and all(o in section[1] for o in own), (verb, own)
        assert {w for w in complete(ctl, *verb.split(), "--")} == set(options), verb
        assert branches.get(verb, branches["*"]) == set(options), verb


def test_help_of_a_verb_is_about_that_verb(ctl):
    for verb, _ in verbs_and_options(ctl):
        out = ctl("help", *verb.split()).out
        assert not re.search(r" $", out, re.M) and " them." not in out.splitlines()[2], verb
    assert re.search(r"--keep +Keep the run's changes", ctl("run", "--help").out)
    assert re.search(r"--keep=N +The N newest stay", ctl("prune-runs", "--help").out)


def complete(ctl, *words):
    """What bash would offer for the last of WORDS."""
    script = f"""
        compopt() {{ :; }}
        source {TOP}/daemons/agentctl/completion/agentctl
        COMP_WORDS=({' '.join(f"'{w}'" for w in ('agentctl', *words))}); COMP_CWORD={len(words)}
        _agentctl; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    out = subprocess.run(["bash", "-c", script], env=ctl.env, check=True, capture_output=True, text=True)
    assert out.stderr == ""
    return out.stdout.split()


def test_bash_completion_knows_which_options_have_values(ctl):
    ctl("agent", "create", "-", stdin=b'{"name":"painter"}')
    for verb, options in verbs_and_options(ctl):
        words = verb.split()
        usual = complete(ctl, *words, "")
        for option in re.findall(r"(--[a-z-]+)=[A-Z]", ctl("help", *words).out):
            if option != "--expected-head":  # is looked up with the agent before it
                assert complete(ctl, *words, option, "7", "") == usual, (verb, option)
                assert complete(ctl, *words, option, "=", "7", "") == usual, (verb, option)
    ctl("agent", "remove", "painter")


def test_bash_completion(ctl):
    ctl("agent", "create", "-", stdin=b'{"name":"painter"}')
    ctl("service", "add", "-", stdin=b'{"name":"paint-api"}')
    run = ctl("run", "hang").out.strip()
    assert complete(ctl, "ru") == ["run", "runs", "runner"]
    assert complete(ctl, "agent", "") == ["list", "show", "create", "update", "remove"]
    assert complete(ctl, "run", "pain") == ["painter"]
    assert complete(ctl, "run", "--input", "x", "pain") == ["painter"]
    assert complete(ctl, "run", "--input", "=", "x", "pain") == ["painter"]
    assert complete(ctl, "status", "la") == ["last"]
    assert run in complete(ctl, "status", run[:10])
    assert run in complete(ctl, "cancel", "")
    assert complete(ctl, "artifact", "last", "ch") == ["chart.png"]
    assert "paint-api" in complete(ctl, "credential", "set", "")
    for words in (["show"], ["diff"], ["diff", "1"], ["rollback"], ["export", "file"]):
        assert complete(ctl, "env", words[0], "painter", *words[1:], "") == ["head", "0123456789ab", "f" * 12], words
    assert complete(ctl, "env", "rollback", "painter", "1", "--expected-head", "=", "f") == ["f" * 12]
    assert complete(ctl, "run", "--sess") == ["--session"]
    assert complete(ctl, "runs", "--state", "=", "pre") == ["preparing"]
    assert complete(ctl, "help", "env", "fr") == ["freeze"]
