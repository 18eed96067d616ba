/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The unit of an edit session: systemd-nspawn as its own container's manager, on the root that the worker has composed.
 * Whoever works in there is root of a user namespace, with nothing of the host but the terminal or pipes they came
 * with: no socket, a process and mount namespace of their own, and a network namespace in which there is the bridge's
 * forward proxy and nothing else. That one is made by the worker, and PID 1 puts nspawn into it
 * (NetworkNamespacePath=), which makes none of its own then. So it belongs to the host's user namespace: the session's
 * root cannot change anything in it, and the listener can be put there before anything of the session runs.
 */
#include "basic/string-util.h"
#include "edit-session.h"
#include "unit-property.h"

static int add(char ***argv, char *text) {
        int r = text ? strv_extend(argv, text) : -ENOMEM;

        free(text);
        return r;
}

static int build_argv(const Operation *o, char ***ret) {
        static const char *const fixed[] = {
                "/usr/bin/systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--settings=no",
                "--private-users-ownership=off", "--as-pid2", "--resolv-conf=off", "--timezone=off",
                "--link-journal=no", "--background=", "--user=root", "--chdir=/root", "--setenv=HOME=/root",
                "--setenv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--setenv=LANG=C.UTF-8",
                NULL
        };
        _cleanup_strv_free_ char **argv = NULL;

        TRY(strv_copy((char *const *) fixed, &argv));
        TRY(add(&argv, strprintf("--machine=" SANDBOX_EDIT_MACHINE "%s", o->views[0].id)));
        TRY(add(&argv, strprintf("--hostname=%s", o->edit->agent)));
        TRY(add(&argv, strprintf("--directory=" AGENTD_RUNTIME_DIR "/runs/%s/root", o->views[0].id)));
        TRY(add(&argv, strprintf("--private-users=%u:65536", (unsigned) o->edit->base)));
        TRY(add(&argv, strprintf("--console=%s", o->tty ? "interactive" : "pipe")));
        if (o->term)
                TRY(add(&argv, strprintf("--setenv=TERM=%s", o->term)));
        /* Without a value: nspawn takes those of its own environment, which is EnvironmentFile='s. */
        for (const char *const *v = edit_session_variables(o); *v; v++)
                TRY(add(&argv, strprintf("--setenv=%s", *v)));
        TRY(strv_extend(&argv, "--"));
        if (o->command && o->command[0])
                for (char **c = o->command; *c; c++)
                        TRY(strv_extend(&argv, *c));
        else {
                TRY(strv_extend(&argv, "/bin/sh"));
                TRY(strv_extend(&argv, "-c"));
                TRY(strv_extend(&argv, "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi"));
        }
        *ret = TAKE_PTR(argv);
        return 0;
}

int edit_unit_properties(sd_bus_message *m, void *userdata) {
        const Operation *o = userdata;
        _cleanup_free_ char *description = NULL, *namespace = NULL, *environment = NULL;
        _cleanup_strv_free_ char **argv = NULL;

        TRY(build_argv(o, &argv));
        description = strprintf("agentd: edit of %s by %s", o->edit->key, o->holder);
        if (!description)
                return -ENOMEM;
        TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)(sv)", "Description", "s", description, "Type", "s", "exec",
                                  "RemainAfterExit", "b", 1, "CollectMode", "s", "inactive", "Slice", "s",
                                  "agents.slice", "Delegate", "b", 1));
        TRY(append_exec(m, argv));
        if (o->tty)
                TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)", "StandardInput", "s", "tty", "StandardOutput", "s",
                                          "tty", "StandardError", "s", "tty", "TTYPath", "s", o->tty));
        else
                TRY(sd_bus_message_append(m, "(sv)(sv)(sv)", "StandardInputFileDescriptor", "h", o->stdio[0],
                                          "StandardOutputFileDescriptor", "h", o->stdio[1],
                                          "StandardErrorFileDescriptor", "h", o->stdio[2]));
        namespace = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/netns", o->views[0].id);
        environment = strprintf(EDIT_ENVIRONMENT_FILE, o->views[0].id);
        if (!namespace || !environment)
                return -ENOMEM;
        TRY(append_string(m, "NetworkNamespacePath", namespace));
        TRY(sd_bus_message_append(m, "(sv)", "EnvironmentFiles", "a(sb)", 1, environment, 1 /* it may be missing */));
        if (o->term) {
                _cleanup_free_ char *term = strprintf("TERM=%s", o->term);

                if (!term)
                        return -ENOMEM;
                /* nspawn would ask the terminal for its colour (see also --background=), and take what was typed ahead
                 * for the answer. */
                TRY(sd_bus_message_append(m, "(sv)", "Environment", "as", 2, term, "SYSTEMD_ADJUST_TERMINAL_TITLE=0"));
        }
        /* On top of nspawn's own filter. AF_VSOCK and the like know no network namespaces: by them a session could
         * speak to whatever the host runs on, or to its other guests. Nothing of this is needed to install packages. */
        TRY(sd_bus_message_append(m, "(sv)", "RestrictAddressFamilies", "(bas)", 1, 4, "AF_UNIX", "AF_INET", "AF_INET6",
                                  "AF_NETLINK"));
        TRY(sd_bus_message_append(m, "(sv)(sv)(sv)", "SystemCallArchitectures", "as", 1, "native", "SystemCallFilter",
                                  "(bas)", 0, 12, "@clock", "@module", "@raw-io", "@swap", "bpf", "perf_event_open",
                                  "userfaultfd", "io_uring_setup", "open_by_handle_at", "keyctl", "add_key",
                                  "request_key", "SystemCallErrorNumber", "i", EPERM));
        TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)", "MemoryMax", "t", UINT64_C(4) << 30, "TasksMax", "t",
                                  UINT64_C(4096), "TimeoutStopUSec", "t", 10 * USEC_PER_SEC, "KillMode", "s", "mixed"));
        return sd_bus_message_append(m, "(sv)(sv)", "OOMPolicy", "s", "continue", "LimitCORE", "t", UINT64_C(0));
}
