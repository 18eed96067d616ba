#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small org.agentd1 for tests of its clients.

It speaks the interfaces of dbus/*.xml without running anything: the name of the agent, image or service that a
client asks for says what shall happen (see Manager.ExecuteAgent). It also plays org.agentd1.Credentials, and offers
org.agentd1.Test, through which a test looks at what arrived. It prints "ready" once it owns its names.
"""

import hashlib
import json
import os
import sys
import threading

import dbus
import dbus.mainloop.glib
import dbus.service
from gi.repository import GLib

MANAGER = "org.agentd1.Manager"
RUN = "org.agentd1.Run"
OPERATION = "org.agentd1.Operation"
AGENT = "org.agentd1.Agent"
PROPERTIES = "org.freedesktop.DBus.Properties"
T0 = 1_767_225_600_000_000  # 2026-01-01
HOSTILE = "a\u202eb\u009b31mc\nd"  # U+202E, C1's CSI, a new line
DIGEST = "sha256:" + "0123456789abcdef" * 4


def error(name, message):
    return dbus.exceptions.DBusException(message, name=name)


def agent_error(name, message):
    return error("org.agentd1.Error." + name, message)


class Propertied(dbus.service.Object):
    """An object whose properties are a dictionary of one interface."""

    def __init__(self, bus, path, interface, values):
        super().__init__(bus, path)
        self.interface, self.values = interface, values

    @dbus.service.method(PROPERTIES, in_signature="s", out_signature="a{sv}")
    def GetAll(self, interface):
        if interface != self.interface:
            raise error("org.freedesktop.DBus.Error.UnknownInterface", interface)
        return self.values

    @dbus.service.signal(PROPERTIES, signature="sa{sv}as")
    def PropertiesChanged(self, interface, changed, invalidated):
        pass

    def change(self, **values):
        """Tells names without values, as agentd does: not everybody on the bus may read them."""
        self.values.update(values)
        self.PropertiesChanged(self.interface, {}, list(values))


class Run(Propertied):
    def __init__(self, manager, number, agent, options):
        self.id = f"0198a1b2c3{number:02x}" + hashlib.sha256(str(number).encode()).hexdigest()[:20]
        self.manager, self.options = manager, options
        self.result_document, self.log = "", []
        super().__init__(manager.bus, "/org/agentd1/run/" + self.id, RUN, {
            "Id": self.id, "Agent": agent, "User": "root", "Trigger": "dbus", "Session": options.get("session", ""),
            "State": "queued", "Result": "", "Message": "", "Attempt": dbus.UInt32(1),
            "Unit": f"agent-run-{self.id}.service", "Generation": DIGEST, "Environment": DIGEST, "Runner": DIGEST,
            "CreatedUSec": dbus.UInt64(T0 + number), "StartedUSec": dbus.UInt64(0), "FinishedUSec": dbus.UInt64(0),
            "DeadlineUSec": dbus.UInt64(T0 + 600_000_000)})

    def end(self, result, message="", signal=True):
        if self.values["State"] == "finished":
            return
        self.values.update(State="finished", Result=result, Message=message,
                           StartedUSec=dbus.UInt64(T0 + 1_000_000), FinishedUSec=dbus.UInt64(T0 + 2_500_000))
        if signal:
            self.PropertiesChanged(RUN, {}, ["State", "Result"])
            self.manager.RunFinished(self.id, self.__dbus_object_path__, result, message)

    @property
    def __dbus_object_path__(self):
        return "/org/agentd1/run/" + self.id

    @dbus.service.method(RUN)
    def Cancel(self):
        self.end("canceled", "Canceled.")


class Operation(Propertied):
    def __init__(self, manager, kind, subject):
        self.manager, self.id = manager, str(len(manager.operations) + 1)
        self.path = "/org/agentd1/operation/" + self.id
        super().__init__(manager.bus, self.path, OPERATION, {
            "Id": self.id, "Kind": kind, "Subject": subject, "State": "running", "Step": "", "Detail": "",
            "Progress": dbus.UInt64(0)})
        manager.operations.append(self)

    def end(self, result, detail):
        if self.values["State"] != "running":
            return False
        self.change(State=result, Detail=detail)
        self.manager.OperationFinished(self.id, self.path, result, detail)
        return False

    @dbus.service.method(OPERATION)
    def Cancel(self):
        GLib.timeout_add(20, self.end, "canceled", "")

    @dbus.service.method(OPERATION, out_signature="h")
    def OpenResult(self):
        fd = os.memfd_create("result")
        os.write(fd, json.dumps(self.document).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        passed = dbus.types.UnixFd(fd)
        os.close(fd)
        return passed


class Manager(dbus.service.Object):
    def __init__(self, bus):
        super().__init__(bus, "/org/agentd1")
        self.bus, self.runs, self.operations, self.calls, self.keys = bus, {}, [], [], {}
        self.agents, self.services, self.images = {}, {}, {"base": DIGEST}
        self.agent_objects = {}

    # Signals of Manager

    @dbus.service.signal(MANAGER, signature="soss")
    def RunFinished(self, run_id, path, result, message):
        pass

    @dbus.service.signal(MANAGER, signature="soss")
    def OperationFinished(self, operation, path, result, detail):
        pass

    # Runs

    @dbus.service.method(MANAGER, in_signature="ssa{sv}", out_signature="o")
    def ExecuteAgent(self, agent, text, options):
        """AGENT is what happens: "end-RESULT" ends so after 50 ms; "early" ends before the reply; "early-stale" sends
        the signal before the reply, but its state stays "running"; "silent" ends without a signal; "away" ends
        while the service has no name; "hang" never ends; "error-NAME" fails."""
        self.calls.append({"input": str(text), "options": json.loads(json.dumps(options, default=str))})
        if agent.startswith("error-"):
            raise agent_error(agent[6:], f"No, because {agent}")
        if agent == "denied":
            raise error("org.freedesktop.DBus.Error.AccessDenied", "You may not.")
        key = options.get("idempotency-key")
        if key in self.keys:
            return self.runs[self.keys[key]].__dbus_object_path__

        run = Run(self, len(self.runs), agent, options)
        self.runs[run.id] = run
        if key:
            self.keys[key] = run.id
        for state in ("preparing", "running"):
            run.change(State=state)
        run.values["StartedUSec"] = dbus.UInt64(T0 + 1_000_000)
        output = {"json": {"best": "AAPL", "n": 3}, "null": None, "escape": "\x1b[2Jboo"}.get(agent, f"did: {text}")
        run.result_document = json.dumps({"status": "success", "output": output} |
                                         ({"message": "Its end\x1b was kept."} if agent == "cut" else {}))
        if agent.startswith("end-"):
            result = agent[4:]
            GLib.timeout_add(50, lambda: run.end(result, "" if result == "success" else f"It ended as {result}."))
            if result not in ("success", "failed"):
                run.result_document = ""
        elif agent in ("early", "json", "null", "escape", "cut"):
            run.end("success")
        elif agent == "early-stale":
            self.RunFinished(run.id, run.__dbus_object_path__, "exit-code", "Exit code 7.")
        elif agent == "silent":
            run.end("signal", "Killed by SIGKILL.", signal=False)
        elif agent == "away":
            GLib.timeout_add(50, self.go_away, run)
        return run.__dbus_object_path__

    def go_away(self, run):
        self.bus.release_name("org.agentd1")
        run.end("success", signal=False)
        GLib.timeout_add(300, lambda: bool(self.bus.request_name("org.agentd1")) and False)
        return False

    def run(self, run_id):
        if run_id not in self.runs:
            raise agent_error("NoSuchRun", f'There is no run "{run_id}".')
        return self.runs[run_id]

    @dbus.service.method(MANAGER, in_signature="s", out_signature="o")
    def GetRun(self, run_id):
        return self.run(run_id).__dbus_object_path__

    @dbus.service.method(MANAGER, in_signature="a{sv}", out_signature="a(sosssssttt)")
    def ListRuns(self, options):
        rows = []
        for run in sorted(self.runs.values(), key=lambda r: r.id, reverse=True):
            v = run.values
            if "before" in options and run.id >= options["before"]:
                continue
            if any(k in options and options[k] != v[k.capitalize()] for k in ("agent", "state", "result")):
                continue
            rows.append((run.id, run.__dbus_object_path__, v["User"], v["Agent"], v["State"], v["Result"], v["Trigger"],
                         v["CreatedUSec"], v["StartedUSec"], v["FinishedUSec"]))
        return dbus.Array(rows[:options.get("limit", 100)], signature="(sosssssttt)")

    @dbus.service.method(MANAGER, in_signature="s")
    def CancelRun(self, run_id):
        run = self.run(run_id)
        if run.values["State"] == "finished":
            raise agent_error("RunFinished", f'Run "{run_id}" is over already.')
        run.end("canceled", "Canceled.")

    @dbus.service.method(MANAGER, in_signature="s", out_signature="s")
    def GetReceipt(self, run_id):
        run = self.run(run_id)
        if run.values["State"] != "finished":
            raise agent_error("RunNotFinished", f'Run "{run_id}" is not finished')
        return json.dumps({"v": 1, "run": run.id, "cpu_usec": 2**53 + 1})

    @dbus.service.method(MANAGER, in_signature="s", out_signature="s")
    def GetResult(self, run_id):
        return self.run(run_id).result_document

    @dbus.service.method(MANAGER, in_signature="sb", out_signature="h")
    def OpenRunLog(self, run_id, follow):
        """With FOLLOW, the first pipe ends too early, as if the service had been restarted."""
        run = self.run(run_id)
        read_end, write_end = os.pipe()
        lines = [{"ts": T0 + i, "priority": p, "message": m} for i, (p, m) in enumerate(
            [(6, "one"), (4, "two \x1b[31mred"), (3, "three"), (6, "four")])]
        first = follow and not run.log
        run.log.append(follow)

        def write():
            with os.fdopen(write_end, "w") as f:
                for line in lines[:2] if first else lines:
                    f.write(json.dumps(line) + "\n")
                if first:
                    f.write('{"ts":17672256')
            if follow and not first:
                GLib.idle_add(run.end, "success")

        threading.Thread(target=write, daemon=True).start()
        fd = dbus.types.UnixFd(read_end)
        os.close(read_end)
        return fd

    @dbus.service.method(MANAGER, in_signature="s", out_signature="a(sts)")
    def ListArtifacts(self, run_id):
        self.run(run_id)
        return [("chart.png", dbus.UInt64(70_000), "image/png"), ("grün.csv", dbus.UInt64(3), "text/csv")]

    @dbus.service.method(MANAGER, in_signature="ss", out_signature="h")
    def OpenArtifact(self, run_id, name):
        self.run(run_id)
        if name not in ("chart.png", "grün.csv"):
            raise agent_error("NoSuchArtifact", f'Run "{run_id}" has no artifact "{name}".')
        fd = os.memfd_create("artifact")
        os.write(fd, b"\x89PNG" + bytes(69_996) if name == "chart.png" else b"1,2")
        os.lseek(fd, 0, os.SEEK_SET)
        passed = dbus.types.UnixFd(fd)
        os.close(fd)
        return passed

    # Agents

    def put_agent(self, definition, exists):
        try:
            name = json.loads(definition)["name"]
        except (ValueError, KeyError):
            raise agent_error("InvalidDefinition", "line 1: name: missing") from None
        if exists != (name in self.agents):
            raise agent_error("NoSuchAgent" if exists else "AgentExists", f'root has {"no" if exists else "an"} agent "{name}". '
                              f'It is {"made" if exists else "changed"} by: agentctl agent {"create" if exists else "update"} FILE.')
        self.agents[name] = definition
        path = "/org/agentd1/agent/root/" + name
        if path not in self.agent_objects:
            self.agent_objects[path] = Propertied(self.bus, path, AGENT, {
                "Name": name, "User": "root", "Definition": definition, "Generation": DIGEST,
                "CreatedUSec": dbus.UInt64(T0)})
        self.agent_objects[path].values["Definition"] = definition
        return path

    @dbus.service.method(MANAGER, in_signature="s", out_signature="o")
    def CreateAgent(self, definition):
        return self.put_agent(definition, False)

    @dbus.service.method(MANAGER, in_signature="s", out_signature="o")
    def UpdateAgent(self, definition):
        return self.put_agent(definition, True)

    @dbus.service.method(MANAGER, in_signature="s")
    def RemoveAgent(self, name):
        if name not in self.agents:
            raise agent_error("NoSuchAgent", f'There is no agent "{name}".')
        del self.agents[name]

    @dbus.service.method(MANAGER, in_signature="s", out_signature="o")
    def GetAgent(self, name):
        if name not in self.agents:
            raise agent_error("NoSuchAgent", f'There is no agent "{name}".')
        return "/org/agentd1/agent/root/" + name

    @dbus.service.method(MANAGER, out_signature="a(ssso)")
    def ListAgents(self):
        return dbus.Array([(n, "root", DIGEST, "/org/agentd1/agent/root/" + n) for n in self.agents],
                          signature="(ssso)")

    # Images and environments

    def operation(self, kind, subject, detail, document=None, result="done"):
        """SUBJECT is what happens: "early" ends before the reply, "slow" never, "bad" fails, "gone" vanishes with
        a restart; else there is some progress first."""
        operation = Operation(self, kind, subject)
        operation.document = document
        if subject == "early":
            operation.end("done", detail)
        elif subject == "bad":
            GLib.timeout_add(50, operation.end, "failed", "This is no tar archive.")
        elif subject == "gone":
            GLib.timeout_add(50, self.lose, operation)
        elif subject != "slow":
            GLib.timeout_add(20, lambda: operation.change(Step="unpacking", Progress=dbus.UInt64(12345)))
            GLib.timeout_add(300, operation.end, result, detail)
        else:
            GLib.timeout_add(20, lambda: operation.change(Step="unpacking", Progress=dbus.UInt64(1)))
        return operation.path

    def lose(self, operation):
        operation.remove_from_connection()
        self.bus.release_name("org.agentd1")
        self.bus.request_name("org.agentd1")
        return False

    @dbus.service.method(MANAGER, in_signature="sha{sv}", out_signature="o")
    def ImportImage(self, name, fd, options):
        with os.fdopen(fd.take(), "rb") as f:
            digest = "sha256:" + hashlib.sha256(f.read()).hexdigest()
        return self.operation("import-image", name, digest)

    @dbus.service.method(MANAGER, in_signature="sa{sv}", out_signature="o")
    def BuildImage(self, name, options):
        self.calls.append({"options": json.loads(json.dumps(options))})
        return self.operation("build-image", name, DIGEST)

    @dbus.service.method(MANAGER, in_signature="sa{sv}", out_signature="o")
    def FreezeEnvironment(self, agent, options):
        if "from-run" not in options:
            raise agent_error("NoSuchEdit", f'The environment of "{agent}" is not being edited.')
        self.run(options["from-run"])
        self.calls.append({"options": json.loads(json.dumps(options))})
        return self.operation("freeze", agent, DIGEST)

    @dbus.service.method(MANAGER, out_signature="a(sstts)")
    def ListImages(self):
        return [(n, d, dbus.UInt64(266 * 1024 * 1024), dbus.UInt64(T0), "root") for n, d in self.images.items()]

    @dbus.service.method(MANAGER, in_signature="s")
    def RemoveImage(self, name):
        if name not in self.images:
            raise agent_error("NoSuchImage", f'There is no image "{name}".')

    @dbus.service.method(MANAGER, in_signature="s", out_signature="a(sstssbt)")
    def ListGenerations(self, agent):
        return [(DIGEST, "sha256:" + "f" * 64, dbus.UInt64(T0), "root", "a\nnote", True, dbus.UInt64(2)),
                ("sha256:" + "f" * 64, "", dbus.UInt64(T0), "root", "", False, dbus.UInt64(1))]

    @dbus.service.method(MANAGER, in_signature="ss", out_signature="s")
    def ShowGeneration(self, agent, generation):
        if agent == "hostile":
            return json.dumps({"digest": DIGEST, "note": HOSTILE}, ensure_ascii=False)
        return json.dumps({"digest": DIGEST, "asked": str(generation)})

    @dbus.service.method(MANAGER, in_signature="ssa{sv}", out_signature="s")
    def RollbackEnvironment(self, agent, generation, options):
        if options.get("expected-head", DIGEST) != DIGEST:
            raise agent_error("HeadMoved", f"The head is {DIGEST} by now; nothing was changed.")
        return DIGEST

    @dbus.service.method(MANAGER, in_signature="sssa{sv}", out_signature="o")
    def DiffGenerations(self, agent, old, new, options):
        if agent == "same":
            return self.operation("diff", agent, "", {"paths": [], "packages": [], "truncated": False,
                                                      "totals": {"added": 0, "removed": 0, "changed": 0, "bytes": 0}})
        if agent == "hostile":
            return self.operation("diff", agent, "", {
                "paths": [{"path": HOSTILE, "change": "added", "type": HOSTILE, "what": [HOSTILE]}],
                "packages": [{"manager": HOSTILE, "name": HOSTILE, "to": HOSTILE}], "truncated": False,
                "totals": {"added": 1, "removed": 0, "changed": 0, "bytes": 0}})
        return self.operation("diff", agent, "", {
            "paths": [{"path": "/etc/new", "change": "added", "type": "file", "to_size": 2048},
                      {"path": "/etc/old", "change": "removed", "type": "symlink", "from_size": 3},
                      {"path": "/bin/x", "change": "changed", "type": "file", "from_size": 1, "to_size": 1,
                       "what": ["content", "time"]}],
            "packages": [{"manager": "dpkg", "name": "jq", "from": "1.6", "to": "1.7"},
                         {"manager": "pip", "name": "six", "to": "1.16"}],
            "totals": {"added": 1, "removed": 1, "changed": 1, "bytes": -5}, "truncated": False})

    @dbus.service.method(MANAGER, in_signature="ssha{sv}", out_signature="o")
    def ExportEnvironment(self, agent, generation, fd, options):
        with os.fdopen(fd.take(), "w") as f:
            f.write(f"generation {generation}")
        return self.operation("export", agent, DIGEST)

    @dbus.service.method(MANAGER, in_signature="sha{sv}", out_signature="o")
    def ImportEnvironment(self, agent, fd, options):
        os.close(fd.take())
        return self.operation("import-environment", agent, DIGEST)

    @dbus.service.method(MANAGER, in_signature="sa{sv}", out_signature="uut")
    def PruneEnvironments(self, agent, options):
        return int(options.get("keep", 0)), 2, dbus.UInt64(3072)

    @dbus.service.method(MANAGER, in_signature="sa{sv}", out_signature="ut")
    def PruneRuns(self, agent, options):
        assert agent in ("", "analyst")
        n = int(options.get("keep", 100)) + int(options.get("older-than-usec", 0)) // 1000000
        return dbus.UInt32(n), dbus.UInt64(1024 if options.get("dry-run") else 2048)

    @dbus.service.method(MANAGER, in_signature="a{sv}", out_signature="o")
    def CheckEnvironments(self, options):
        problem = {"kind": "layer-damaged", "digest": DIGEST, "message": f"The layer {DIGEST} is damaged.",
                   "users": [{"agent": "root/a", "number": 3, "head": True, "generation": DIGEST}, {"image": "root/base"}]}
        return self.operation("fsck", "store", "It is damaged.", {
            "layers": 4, "bytes": 4096, "generations": 7, "problems": [problem], "repaired": [],
            "unused": [{"digest": DIGEST, "size": 1}]}, "failed")

    @dbus.service.method(MANAGER, out_signature="s")
    def GetDiskUsage(self):
        return json.dumps({"agents": [{"agent": "root/a", "generations": 2, "layers": 3, "bytes": 4096, "own": 1024,
                                       "shared": 3072}], "images": [], "total": 8192, "unused": {"layers": 1, "bytes": 1}})

    # Services

    def put_service(self, definition, exists):
        name = json.loads(definition)["name"]
        if exists != (name in self.services):
            raise agent_error("NoSuchService" if exists else "ServiceExists", f'"{name}"')
        self.services[name] = definition

    @dbus.service.method(MANAGER, in_signature="s")
    def CreateService(self, definition):
        self.put_service(definition, False)

    @dbus.service.method(MANAGER, in_signature="s")
    def UpdateService(self, definition):
        self.put_service(definition, True)

    @dbus.service.method(MANAGER, in_signature="s")
    def RemoveService(self, name):
        if self.services.pop(name, None) is None:
            raise agent_error("NoSuchService", f'There is no service "{name}".')

    @dbus.service.method(MANAGER, in_signature="s", out_signature="s")
    def GetService(self, name):
        if name not in self.services:
            raise agent_error("NoSuchService", f'There is no service "{name}".')
        return self.services[name]

    @dbus.service.method(MANAGER, out_signature="a(ssss)")
    def ListServices(self):
        return dbus.Array([(n, "root", "https://localhost:8443/api", "bearer") for n in self.services],
                          signature="(ssss)")

    # What a test wants to know

    @dbus.service.method("org.agentd1.Test", out_signature="s")
    def Calls(self):
        return json.dumps(self.calls)


class Credentials(dbus.service.Object):
    def __init__(self, bus):
        super().__init__(bus, "/org/agentd1/Credentials")
        self.secrets = {}

    @dbus.service.method("org.agentd1.Credentials", in_signature="ssh")
    def SetCredential(self, user, service, fd):
        with os.fdopen(fd.take(), "rb") as f:
            self.secrets[f"{user}/{service}"] = f.read().decode("latin-1")

    @dbus.service.method("org.agentd1.Credentials", in_signature="ss")
    def RemoveCredential(self, user, service):
        if self.secrets.pop(f"{user}/{service}", None) is None:
            raise agent_error("NoSuchCredential", f'"{service}" has no credential.')

    @dbus.service.method("org.agentd1.Credentials", in_signature="s", out_signature="a(sst)")
    def ListCredentials(self, user):
        return dbus.Array([(k.split("/")[1], "bearer", dbus.UInt64(T0)) for k in self.secrets
                           if k.split("/")[0] == user], signature="(sst)")

    @dbus.service.method("org.agentd1.Test", out_signature="s")
    def Secrets(self):
        return json.dumps(self.secrets)


def main():
    dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
    bus = dbus.bus.BusConnection(os.environ["DBUS_SYSTEM_BUS_ADDRESS"])
    Manager(bus)
    Credentials(bus)
    for name in ("org.agentd1", "org.agentd1.Credentials"):
        bus.request_name(name)
    print("ready", flush=True)
    GLib.MainLoop().run()


if __name__ == "__main__":
    sys.exit(main())
