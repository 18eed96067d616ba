/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The unit in which agent-image works. It is root, because layers hold files of any owner, but with only the
 * capabilities that this takes, no network (except to build an image from a mirror), and nothing to write but its
 * staging directory.
 */
#include <linux/capability.h>
#include <sys/mount.h>

#include "basic/string-util.h"
#include "operation.h"
#include "unit-property.h"

static int build_argv(const Operation *o, char ***ret) {
        static const char *const verbs[] = {
                [OPERATION_IMPORT_IMAGE] = "import",
                [OPERATION_BUILD_IMAGE] = "build",
                [OPERATION_FREEZE] = "freeze",
                [OPERATION_DIFF] = "diff",
                [OPERATION_FLATTEN] = "flatten",
                [OPERATION_EXPORT] = "export",
                [OPERATION_IMPORT_ENVIRONMENT] = "import-environment",
                [OPERATION_DEPLOY_RUNNER] = "runner",
        };
        _cleanup_strv_free_ char **argv = NULL;
        _cleanup_free_ char *s = NULL;
        const Settings *settings = o->manager->settings;

        TRY(strv_extend(&argv, LIBEXECDIR "/agent-image"));
        TRY(strv_extend(&argv, verbs[o->kind]));
        TRY(strv_extend(&argv, "--out"));
        TRY(strv_extend(&argv, o->image));
        TRY(strv_extend(&argv, "--staging"));
        TRY(strv_extend(&argv, o->staging));
        if (o->kind == OPERATION_FREEZE && o->edit) {
                _cleanup_free_ char *view = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/root", o->views[0].id),
                                    *place = operation_edit_place(o),
                                    *raw = place ? strprintf("%s/upper", place) : NULL,
                                    *base = strprintf("%u", (unsigned) o->edit->base);

                if (!view || !raw || !base)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--upper"));
                TRY(strv_extend(&argv, view));
                TRY(strv_extend(&argv, "--raw"));
                TRY(strv_extend(&argv, raw));
                TRY(strv_extend(&argv, "--raw-base"));
                TRY(strv_extend(&argv, base));
        } else if (o->kind == OPERATION_FREEZE) {
                s = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/rw/upper", o->run);
                if (!s)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--upper"));
                TRY(strv_extend(&argv, s));
        } else if (o->kind == OPERATION_FLATTEN) {
                for (char **l = o->views[0].layers; *l; l++) {
                        _cleanup_free_ char *path = strprintf(AGENTD_RUNTIME_DIR "/layers/%s", *l + strlen("sha256:"));

                        if (!path)
                                return -ENOMEM;
                        TRY(strv_extend(&argv, "--layer"));
                        TRY(strv_extend(&argv, path));
                }
                s = strprintf(AGENTD_RUNTIME_DIR "/layers/%s", o->views[1].layers[0] + strlen("sha256:"));
                if (!s)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--from"));
                TRY(strv_extend(&argv, s));
        } else if (o->kind == OPERATION_EXPORT) {
                s = strprintf("%s/config.json", o->staging);
                if (!s)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--config"));
                TRY(strv_extend(&argv, s));
                TRY(strv_extend(&argv, "--name"));
                TRY(strv_extend(&argv, o->subject));
                for (char **l = o->holds; *l; l++) {
                        _cleanup_free_ char *path = NULL;

                        TRY(layer_store_path(o->manager->layers, *l, &path));
                        TRY(strv_extend(&argv, "--layer"));
                        TRY(strv_extend(&argv, path));
                }
        } else if (o->kind == OPERATION_DIFF) {
                static const char *const names[OPERATION_VIEWS_MAX] = { "--from", "--to" };

                for (size_t i = 0; i < OPERATION_VIEWS_MAX; i++) {
                        _cleanup_free_ char *root = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/root", o->views[i].id);

                        if (!root)
                                return -ENOMEM;
                        TRY(strv_extend(&argv, names[i]));
                        TRY(strv_extend(&argv, root));
                }
        } else {
                _cleanup_free_ char *size = strprintf("%" PRIu64, settings->image_max_size),
                                    *entries = strprintf("%" PRIu64, settings->image_max_entries);

                if (!size || !entries)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--max-size"));
                TRY(strv_extend(&argv, size));
                TRY(strv_extend(&argv, "--max-entries"));
                TRY(strv_extend(&argv, entries));
        }
        /* The other end of these is somebody else's. */
        if (o->input_fd >= 0 && o->result_fd < 0 && settings->image_idle_usec != UINT64_MAX) {
                _cleanup_free_ char *idle = strprintf("%" PRIu64, settings->image_idle_usec);

                if (!idle)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--idle-timeout"));
                TRY(strv_extend(&argv, idle));
        }
        if (o->deploy.from) {
                TRY(strv_extend(&argv, "--from"));
                TRY(strv_extend(&argv, o->deploy.from));
        }
        if (o->kind == OPERATION_BUILD_IMAGE) {
                if (o->mirror) {
                        TRY(strv_extend(&argv, "--mirror"));
                        TRY(strv_extend(&argv, o->mirror));
                }
                if (o->packages && o->packages[0]) {
                        TRY(strv_extend(&argv, "--packages"));
                        for (char **p = o->packages; *p; p++)
                                TRY(strv_extend(&argv, *p));
                }
        }
        if (o->kind == OPERATION_FREEZE) {
                _cleanup_free_ char *size = strprintf("%" PRIu64, settings->image_max_size);

                if (!size)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--max-size"));
                TRY(strv_extend(&argv, size));
        }
        *ret = TAKE_PTR(argv);
        return 0;
}

/* mmdebstrap needs more of the host: apt's keys and settings, the names of users. */
static int append_build_paths(sd_bus_message *m, const Operation *o) {
        TRY(sd_bus_message_append(m, "(sv)(sv)", "ProtectSystem", "s", "strict", "ProtectHome", "s", "yes"));
        TRY(append_strv(m, "ReadWritePaths", (char *[]) { o->staging, NULL }));
        return append_strv(m, "InaccessiblePaths",
                           (char *[]){ (char *) "-/run/dbus", (char *) "-/run/systemd/private",
                                       (char *) "-" AGENTD_RUNTIME_DIR "/live", (char *) "-/run/agent-credential",
                                       (char *) "-/var/lib/agent-credential", (char *) "-" AGENTD_STATE_DIR "/store.db",
                                       (char *) "-/etc/credstore.encrypted", NULL });
}

static int append_bind(sd_bus_message *m, const char *path) {
        return path ? sd_bus_message_append(m, "(ssbt)", path, path, 0, (uint64_t) MS_REC) : -ENOMEM;
}

/*
 * All others see the programs in /usr and what they work on, and nothing else of the host: mkfs.erofs goes by paths and
 * follows links, so whoever could change the tree under it would have it read what they please, as root.
 */
static int append_paths(sd_bus_message *m, const Operation *o) {
        static const char *const programs[] = { "/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/proc" };
        _cleanup_free_ char *upper = NULL, *raw = NULL, *place = NULL;

        /* Below a root that is empty already, not over the host's: there systemd would unmount what is mounted, each
         * run's root among it, one by one, and look through all others after each. */
        TRY(sd_bus_message_append(m, "(sv)(sv)", "RootDirectory", "s", AGENTD_EMPTY_ROOT, "BindLogSockets", "b", 0));
        /* Not beside ProtectSystem=strict, which has a say of its own about "/". */
        TRY(sd_bus_message_append(m, "(sv)", "TemporaryFileSystem", "a(ss)", 1, "/", "mode=0755,ro"));
        TRY(sd_bus_message_open_container(m, 'r', "sv"));
        TRY(sd_bus_message_append(m, "s", "BindReadOnlyPaths"));
        TRY(sd_bus_message_open_container(m, 'v', "a(ssbt)"));
        TRY(sd_bus_message_open_container(m, 'a', "(ssbt)"));
        for (size_t i = 0; i < ELEMENTSOF(programs); i++)
                TRY(sd_bus_message_append(m, "(ssbt)", programs[i], programs[i], 1, (uint64_t) MS_REC));
        for (size_t i = 0; i < OPERATION_VIEWS_MAX; i++)
                if (o->kind == OPERATION_DIFF) {
                        _cleanup_free_ char *root = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/root", o->views[i].id);

                        TRY(append_bind(m, root));
                } else if (o->kind == OPERATION_FLATTEN)
                        for (char **l = o->views[i].layers; l && *l; l++) {
                                _cleanup_free_ char *path = strprintf(AGENTD_RUNTIME_DIR "/layers/%s",
                                                                      *l + strlen("sha256:"));

                                TRY(append_bind(m, path));
                        }
        if (o->kind == OPERATION_EXPORT)
                for (char **l = o->holds; *l; l++) {
                        _cleanup_free_ char *path = NULL;

                        TRY(layer_store_path(o->manager->layers, *l, &path));
                        TRY(append_bind(m, path));
                }
        if (o->deploy.from)
                TRY(append_bind(m, o->deploy.from));
        TRY(sd_bus_message_close_container(m));
        TRY(sd_bus_message_close_container(m));
        TRY(sd_bus_message_close_container(m));

        /* A freeze takes private attributes and mount points out of the upper in place. */
        if (o->kind == OPERATION_FREEZE) {
                upper = o->edit ? strprintf(AGENTD_RUNTIME_DIR "/runs/%s/root", o->views[0].id) :
                                  strprintf(AGENTD_RUNTIME_DIR "/runs/%s/rw/upper", o->run);
                place = o->edit ? operation_edit_place(o) : NULL;
                raw = place ? strprintf("%s/upper", place) : NULL;
                if (!upper || (o->edit && !raw))
                        return -ENOMEM;
        }
        TRY(sd_bus_message_open_container(m, 'r', "sv"));
        TRY(sd_bus_message_append(m, "s", "BindPaths"));
        TRY(sd_bus_message_open_container(m, 'v', "a(ssbt)"));
        TRY(sd_bus_message_open_container(m, 'a', "(ssbt)"));
        TRY(append_bind(m, o->staging));
        if (upper)
                TRY(append_bind(m, upper));
        if (raw)
                TRY(append_bind(m, raw));
        TRY(sd_bus_message_close_container(m));
        TRY(sd_bus_message_close_container(m));
        return sd_bus_message_close_container(m);
}

int operation_unit_properties(sd_bus_message *m, void *userdata) {
        const Operation *o = userdata;
        const bool build = o->kind == OPERATION_BUILD_IMAGE;
        /* Reading and making overlayfs' own marks: in an upper that is frozen, and in layers that are merged. */
        const bool marks = o->kind == OPERATION_FREEZE || o->kind == OPERATION_FLATTEN;
        const uint64_t marks_caps = UINT64_C(1) << CAP_SYS_ADMIN | UINT64_C(1) << CAP_MKNOD;
        /* Files of any owner and mode. */
        const uint64_t files_caps = UINT64_C(1) << CAP_CHOWN | UINT64_C(1) << CAP_DAC_OVERRIDE |
                                    UINT64_C(1) << CAP_DAC_READ_SEARCH | UINT64_C(1) << CAP_FOWNER |
                                    UINT64_C(1) << CAP_FSETID | UINT64_C(1) << CAP_SETFCAP;
        /* mmdebstrap makes a chroot and runs the packages' own scripts in it. */
        const uint64_t build_caps = files_caps | marks_caps | UINT64_C(1) << CAP_SYS_CHROOT |
                                    UINT64_C(1) << CAP_SETUID | UINT64_C(1) << CAP_SETGID | UINT64_C(1) << CAP_KILL |
                                    UINT64_C(1) << CAP_SYS_PTRACE;
        const uint64_t caps = build ? build_caps : marks ? files_caps | marks_caps : files_caps;
        _cleanup_strv_free_ char **argv = NULL;
        _cleanup_free_ char *description = NULL;

        TRY(build_argv(o, &argv));
        description = strprintf("agentd: %s of %s/%s", operation_kind_to_string(o->kind), o->user, o->subject);
        if (!description)
                return -ENOMEM;
        TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)", "Description", "s", description, "Type", "s", "exec",
                                  "RemainAfterExit", "b", 1, "CollectMode", "s", "inactive", "Slice", "s",
                                  "agents.slice"));
        TRY(append_exec(m, argv));

        if (o->input_fd >= 0)
                TRY(sd_bus_message_append(m, "(sv)", "StandardInputFileDescriptor", "h", o->input_fd));
        TRY(sd_bus_message_append(m, "(sv)", "StandardOutputFileDescriptor", "h", o->output_fd));

        TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)", "PrivateTmpEx", "s", "disconnected", "PrivateIPC", "b", 1,
                                  "NoNewPrivileges", "b", (int) !build, "ProtectClock", "b", 1));
        TRY(build ? append_build_paths(m, o) : append_paths(m, o));
        TRY(sd_bus_message_append(m, "(sv)(sv)", "CapabilityBoundingSet", "t", caps,
                                  "AmbientCapabilities", "t", UINT64_C(0)));
        if (!build) {
                TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)(sv)", "PrivateNetwork", "b", 1, "PrivateDevices",
                                          "b", 1, "ProtectKernelTunables", "b", 1, "ProtectKernelModules", "b", 1,
                                          "ProtectKernelLogs", "b", 1, "ProtectHostname", "b", 1));
                TRY(sd_bus_message_append(m, "(sv)", "RestrictAddressFamilies", "(bas)", 1, 1, "AF_UNIX"));
                TRY(sd_bus_message_append(m, "(sv)(sv)(sv)", "RestrictNamespaces", "t", UINT64_C(0), "LockPersonality",
                                          "b", 1, "RestrictRealtime", "b", 1));
                TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)", "ProtectControlGroupsEx", "s", "strict", "ProtectProc",
                                          "s", "invisible", "MemoryDenyWriteExecute", "b", 1, "KeyringMode", "s",
                                          "private"));
                TRY(sd_bus_message_append(m, "(sv)", "SystemCallFilter", "(bas)", 1, 3, "@system-service", "@chown",
                                          "mknodat"));
                TRY(sd_bus_message_append(m, "(sv)(sv)", "SystemCallArchitectures", "as", 1, "native",
                                          "SystemCallErrorNumber", "i", EPERM));
        }
        TRY(sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)", "MemoryMax", "t", UINT64_C(4) << 30, "MemorySwapMax", "t",
                                  UINT64_C(0), "TasksMax", "t", UINT64_C(512), "RuntimeMaxUSec", "t",
                                  o->manager->settings->image_timeout_usec, "TimeoutStopUSec", "t", 10 * USEC_PER_SEC));
        if (o->kind == OPERATION_FLATTEN)
                TRY(sd_bus_message_append(m, "(sv)", "Nice", "i", 15));
        /* As in a run (run-unit.c): with 0 the kernel would start the host's program for core dumps all the same. */
        return sd_bus_message_append(m, "(sv)(sv)(sv)", "OOMPolicy", "s", "kill", "LimitCORE", "t", UINT64_C(1),
                                     "LimitCORESoft", "t", UINT64_C(1));
}
