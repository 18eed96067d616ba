/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The properties of a run's transient unit: the sandbox. Each line is a promise of SECURITY.md, and tests/system
 * tries the act that it forbids. What is no secret and what costs too much to hide is said there too.
 *
 * Two of them are for agentd rather than for the sandbox: Type=exec makes the start job wait until the program was
 * executed, so that a sandbox that cannot be set up is told apart from a program that fails; RemainAfterExit=yes keeps
 * the end of a run known to PID 1 while no agentd is there to see it (see systemd-client.c).
 */
#include <sched.h>
#include <sys/random.h>

#include "basic/string-util.h"
#include "run.h"
#include "sandbox/proc-files.h"
#include "unit-property.h"

#define INIT_INSIDE "/run/agent-init" /* /run is the unit's own tmpfs, so the image needs no place for it */
#define INPUT_INSIDE "/run/agent-input"
#define CHECK_INSIDE "/run/agent-check"
#define AGENT_HOME "/home/agent"
#define CHECK_OUTPUT_MAX UINT64_C(65536)

/* agent-init goes before the command, because the first process of a PID namespace gets no signals that it does not
 * handle, and all orphans. */
static int append_command_line(sd_bus_message *m, const char *init, char *const *command) {
        _cleanup_strv_free_ char **argv = NULL;

        TRY(strv_extend(&argv, init));
        for (char *const *a = command; *a; a++)
                TRY(strv_extend(&argv, *a));
        return append_exec(m, argv);
}

static int append_command(sd_bus_message *m, const Run *run) {
        _cleanup_free_ char *node = NULL, *main = NULL;

        if (run->definition->kind == AGENT_EXEC) {
                _cleanup_free_ char *limit = strprintf("%" PRIu64, run->definition->limits.log);
                _cleanup_strv_free_ char **argv = NULL;

                if (!limit)
                        return -ENOMEM;
                TRY(strv_extend(&argv, "--log"));
                TRY(strv_extend(&argv, limit));
                for (char *const *a = run->definition->command; *a; a++)
                        TRY(strv_extend(&argv, *a));
                return append_command_line(m, INIT_INSIDE, argv);
        }
        TRY(runner_node_path(run->runner, &node));
        main = strprintf(RUNNER_INSIDE "/%s", run->runner->main);
        if (!main)
                return -ENOMEM;
        return append_command_line(m, INIT_INSIDE, (char *const[]) { node, main, NULL });
}

/* All scripts of the runner, behind one that has to be refused. */
static int append_check(sd_bus_message *m, const Run *run) {
        uint64_t seconds = MAX(run->manager->settings->runner_check_timeout_usec / USEC_PER_SEC, UINT64_C(1));
        _cleanup_free_ char *node = NULL, *limit = strprintf("%" PRIu64, seconds);
        _cleanup_strv_free_ char **argv = NULL;

        if (!limit)
                return -ENOMEM;
        TRY(runner_node_path(run->runner, &node));
        TRY(strv_extend(&argv, limit));
        TRY(strv_extend(&argv, node));
        TRY(strv_extend(&argv, RUNNER_BROKEN));
        for (char **s = run->runner->check; *s; s++) {
                _cleanup_free_ char *path = strprintf(RUNNER_INSIDE "/%s", *s);

                if (!path)
                        return -ENOMEM;
                TRY(strv_extend(&argv, path));
        }
        return append_command_line(m, CHECK_INSIDE, argv);
}

static int append_environment(sd_bus_message *m, const Run *run) {
        _cleanup_strv_free_ char **env = NULL;
        const char *const base[] = {
                "AGENT_BRIDGE=http://127.0.0.1:8377",
                "HOME=" AGENT_HOME,
                "USER=agent",
                "LOGNAME=agent",
                "SHELL=/bin/sh",
                "LANG=C.UTF-8",
                "AGENT_INPUT_FILE=" INPUT_INSIDE,
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        };
        const char *const own[][2] = {
                { "AGENT_RUN_ID=%s", run->row->id },
                { "HOSTNAME=%s", run->definition->name },
                { "AGENT_TOKEN_FILE=/run/credentials/%s/token", run->unit_name },
        };

        for (size_t i = 0; i < ELEMENTSOF(base); i++)
                TRY(strv_extend(&env, base[i]));
        for (size_t i = 0; i < ELEMENTSOF(own); i++) {
                const char *p = strstr(own[i][0], "%s");
                _cleanup_free_ char *e = strprintf("%.*s%s%s", (int) (p - own[i][0]), own[i][0], own[i][1], p + 2);

                if (!e)
                        return -ENOMEM;
                TRY(strv_extend(&env, e));
        }
        /* How a runner starts the agent's program: agent-init/apart.c. */
        if (run->definition->kind != AGENT_EXEC)
                TRY(strv_extend(&env, "AGENT_LAUNCHER=" INIT_INSIDE));
        if (run->definition->proxy)
                TRY(strv_extend(&env, "AGENT_PROXY=http://127.0.0.1:8378"));
        TRY(append_strv(m, "Environment", env));
        /* An agent of kind command gets its own variables from the runner. This property anybody can read, so they are
         * in a file. */
        if (run->definition->kind == AGENT_EXEC && strv_length(run->definition->environment) > 0) {
                _cleanup_free_ char *path = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/environment", run->row->id);

                if (!path)
                        return -ENOMEM;
                TRY(sd_bus_message_append(m, "(sv)", "EnvironmentFiles", "a(sb)", 1, path, 0));
        }
        return 0;
}

static int append_binds(sd_bus_message *m, const Run *run, bool check) {
        _cleanup_free_ char *dir = strprintf(AGENTD_RUNTIME_DIR "/runs/%s", run->row->id), *input = NULL;

        input = dir ? strprintf("%s/input", dir) : NULL;
        if (!input)
                return -ENOMEM;
        TRY(sd_bus_message_open_container(m, 'r', "sv"));
        TRY(sd_bus_message_append(m, "s", "BindReadOnlyPaths"));
        TRY(sd_bus_message_open_container(m, 'v', "a(ssbt)"));
        TRY(sd_bus_message_open_container(m, 'a', "(ssbt)"));
        TRY(sd_bus_message_append(m, "(ssbt)", check ? LIBEXECDIR "/agent-check" : LIBEXECDIR "/agent-init",
                                  check ? CHECK_INSIDE : INIT_INSIDE, 0, UINT64_C(0)));
        if (!check)
                TRY(sd_bus_message_append(m, "(ssbt)", input, INPUT_INSIDE, 0, UINT64_C(0)));
        if (run->runner) {
                _cleanup_free_ char *layer = strprintf(AGENTD_RUNTIME_DIR "/layers/%s", run->runner->digest + 7),
                                    *runner = strprintf("%s/runner", strempty(layer));

                if (!layer || !runner)
                        return -ENOMEM;
                TRY(sd_bus_message_append(m, "(ssbt)", layer, RUNNER_ROOT, 0, UINT64_C(0)));
                TRY(sd_bus_message_append(m, "(ssbt)", runner, RUNNER_INSIDE, 0, UINT64_C(0)));
        }
        for (const ProcFile *f = proc_files; f->name; f++) {
                _cleanup_free_ char *source = strprintf("%s/proc/%s", dir, f->name);

                if (!source)
                        return -ENOMEM;
                TRY(sd_bus_message_append(m, "(ssbt)", source, f->path, 0, UINT64_C(0)));
        }
        {
                _cleanup_free_ char *socket = strprintf("%s/bridge.sock", dir);

                if (!socket)
                        return -ENOMEM;
                /* Not there yet where the same is set up for a check of the runner. */
                TRY(sd_bus_message_append(m, "(ssbt)", socket, "/run/agent-bridge.sock", 1, UINT64_C(0)));
        }
        TRY(sd_bus_message_close_container(m));
        TRY(sd_bus_message_close_container(m));
        return sd_bus_message_close_container(m);
}

/* nproc and its like go by affinity: as many CPUs as the quota covers, taken at random, so that not all runs meet on
 * the first ones. */
static int append_affinity(sd_bus_message *m, unsigned n) {
        cpu_set_t have, want;
        unsigned count, skip;

        CPU_ZERO(&want);
        if (sched_getaffinity(0, sizeof have, &have) < 0)
                return -errno;
        count = (unsigned) CPU_COUNT(&have);
        if (n >= count)
                return 0;
        if (getrandom(&skip, sizeof skip, 0) != sizeof skip)
                return -EIO;
        skip %= count;
        for (unsigned i = 0, seen = 0, taken = 0; taken < n; i = (i + 1) % CPU_SETSIZE)
                if (CPU_ISSET(i, &have) && seen++ >= skip && !CPU_ISSET(i, &want)) {
                        CPU_SET(i, &want);
                        taken++;
                }
        TRY(sd_bus_message_open_container(m, 'r', "sv"));
        TRY(sd_bus_message_append(m, "s", "CPUAffinity"));
        TRY(sd_bus_message_open_container(m, 'v', "ay"));
        TRY(sd_bus_message_append_array(m, 'y', &want, CPU_ALLOC_SIZE(CPU_SETSIZE)));
        TRY(sd_bus_message_close_container(m));
        return sd_bus_message_close_container(m);
}

static int append_sandbox(sd_bus_message *m, const Run *run) {
        _cleanup_free_ char *root = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/root", run->row->id),
                            *netns = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/netns", run->row->id),
                            *pts = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/pts", run->row->id),
                            *uid = strprintf("%u", (unsigned) run->uid);
        static const char *const yes[] = {
                "DynamicUser", "MountAPIVFS", "PrivateUsers", "PrivateDevices", "PrivateIPC", "PrivateNetwork",
                "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectClock", "ProtectHostname",
                "NoNewPrivileges", "RestrictSUIDSGID", "LockPersonality", "RestrictRealtime",
        };

        if (!root || !netns || !pts || !uid)
                return -ENOMEM;
        for (size_t i = 0; i < ELEMENTSOF(yes); i++)
                TRY(append_bool(m, yes[i], true));
        /* DynamicUser= with a number: the unit gets exactly this uid, to which the root is id-mapped already. */
        TRY(append_string(m, "User", uid));
        TRY(append_string(m, "RootDirectory", root));
        TRY(append_string(m, "WorkingDirectory", AGENT_HOME));
        TRY(append_string(m, "ProtectSystem", "strict"));
        TRY(append_strv(m, "ReadWritePaths", (char *[]) { (char *) "+" AGENT_HOME, NULL }));
        TRY(append_string(m, "PrivateTmpEx", "disconnected"));
        TRY(append_string(m, "PrivatePIDs", "yes"));
        /* The path wins over PrivateNetwork=, which is there so that no failure can mean the host's network. */
        TRY(append_string(m, "NetworkNamespacePath", netns));
        TRY(append_string(m, "ProtectProc", "invisible"));
        /* Not "yes": that would show the names of all other runs' units below /sys/fs/cgroup. */
        TRY(append_string(m, "ProtectControlGroupsEx", "strict"));
        TRY(append_uint64(m, "CapabilityBoundingSet", 0));
        TRY(append_uint64(m, "AmbientCapabilities", 0));
        TRY(append_uint64(m, "RestrictNamespaces", 0));
        TRY(append_bool(m, "BindLogSockets", false));
        TRY(sd_bus_message_append(m, "(sv)", "RestrictAddressFamilies", "(bas)", 1, 3, "AF_INET", "AF_INET6",
                                  "AF_UNIX"));
        TRY(sd_bus_message_append(m, "(sv)", "SystemCallFilter", "(bas)", 1, 2, "@system-service", "@pkey"));
        /* io_uring does without system calls what the filters of families and calls would refuse (it opens sockets of
         * any family); keyrings and userfaultfd() are nothing but surface of the kernel here. */
        TRY(sd_bus_message_append(m, "(sv)", "SystemCallFilter", "(bas)", 0, 7, "@resources", "@privileged", "@keyring",
                                  "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd"));
        TRY(sd_bus_message_append(m, "(sv)", "SystemCallArchitectures", "as", 1, "native"));
        TRY(sd_bus_message_append(m, "(sv)", "SystemCallErrorNumber", "i", EPERM));
        TRY(append_string(m, "KeyringMode", "private"));
        TRY(sd_bus_message_append(m, "(sv)", "UMask", "u", (uint32_t) 0077));
        TRY(append_string(m, "DevicePolicy", "closed"));
        /* PrivateDevices= alone leaves the host's /dev/shm, /dev/pts and /dev/hugepages in place. */
        TRY(sd_bus_message_append(m, "(sv)", "TemporaryFileSystem", "a(ss)", 1, "/dev/shm",
                                  "size=64M,mode=1777,nosuid,nodev"));
        TRY(sd_bus_message_append(m, "(sv)", "BindPaths", "a(ssbt)", 1, pts, "/dev/pts", 0, UINT64_C(0)));
        TRY(append_strv(m, "InaccessiblePaths", (char *[]) { (char *) "-+/dev/hugepages", NULL }));
        return 0;
}

static int append_limits(sd_bus_message *m, const RunLimits *l) {
        TRY(append_uint64(m, "MemoryMax", l->memory));
        TRY(append_uint64(m, "MemorySwapMax", 0));
        TRY(append_uint64(m, "TasksMax", l->tasks));
        TRY(append_uint64(m, "CPUQuotaPerSecUSec", l->cpu));
        TRY(append_affinity(m, (unsigned) ((l->cpu + 999999) / 1000000)));
        TRY(append_uint64(m, "LimitNOFILE", l->files));
        TRY(append_uint64(m, "LimitNOFILESoft", l->files));
        /* None. With 0 the kernel would still start the program that the host may have for them (agent-init/limits.c). */
        TRY(append_uint64(m, "LimitCORE", 1));
        TRY(append_uint64(m, "LimitCORESoft", 1));
        TRY(append_string(m, "KillMode", "mixed"));
        TRY(append_string(m, "OOMPolicy", "kill"));
        TRY(append_bool(m, "CPUAccounting", true));
        TRY(append_bool(m, "MemoryAccounting", true));
        TRY(append_bool(m, "IOAccounting", true));
        TRY(append_bool(m, "TasksAccounting", true));
        return append_string(m, "MemoryPressureWatch", "off");
}

static int append_times(sd_bus_message *m, const Run *run) {
        TRY(append_uint64(m, "RuntimeMaxUSec", run->row->timeout_usec));
        TRY(append_uint64(m, "TimeoutStopUSec", run->manager->settings->stop_timeout_usec));
        return append_uint64(m, "TimeoutStartUSec", 60 * USEC_PER_SEC);
}

static int append_log_fields(sd_bus_message *m, const Run *run) {
        const char *const fields[][2] = {
                { "AGENT_RUN=", run->row->id }, { "AGENT_NAME=", run->row->agent }, { "AGENT_USER=", run->row->user }
        };

        TRY(sd_bus_message_open_container(m, 'r', "sv"));
        TRY(sd_bus_message_append(m, "s", "LogExtraFields"));
        TRY(sd_bus_message_open_container(m, 'v', "aay"));
        TRY(sd_bus_message_open_container(m, 'a', "ay"));
        for (size_t i = 0; i < ELEMENTSOF(fields); i++) {
                _cleanup_free_ char *f = strprintf("%s%s", fields[i][0], fields[i][1]);

                if (!f)
                        return -ENOMEM;
                TRY(sd_bus_message_append_array(m, 'y', f, strlen(f)));
        }
        TRY(sd_bus_message_close_container(m));
        TRY(sd_bus_message_close_container(m));
        return sd_bus_message_close_container(m);
}

/* agents-<user>.slice; "-" nests slices, so the user's name is escaped as systemd-escape does. */
static int slice_name(const char *user, char **ret) {
        _cleanup_free_ char *path = NULL, *slice = NULL;
        int r;

        r = sd_bus_path_encode("/x", user, &path); /* "_2d" for "-" and so on: letters, digits, underscore only */
        if (r < 0)
                return r;
        slice = strprintf("agents-%s.slice", path + 3);
        if (!slice)
                return -ENOMEM;
        *ret = TAKE_PTR(slice);
        return 0;
}

int run_unit_properties(sd_bus_message *m, void *userdata) {
        const Run *run = userdata;
        _cleanup_free_ char *slice = NULL, *description = NULL, *token = NULL;
        _cleanup_close_ int record = -EBADF;

        TRY(slice_name(run->row->user, &slice));
        record = run_open_exit_record(run);
        if (record < 0)
                return record;
        description = strprintf("Agent %s/%s, run %s", run->row->user, run->row->agent, run->row->id);
        token = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/token", run->row->id);
        if (!description || !token)
                return -ENOMEM;

        TRY(append_string(m, "Description", description));
        TRY(append_string(m, "Type", "exec"));
        TRY(append_bool(m, "RemainAfterExit", true));
        TRY(append_string(m, "CollectMode", "inactive"));
        TRY(append_string(m, "Slice", slice));
        TRY(append_command(m, run));
        TRY(append_environment(m, run));
        TRY(append_bool(m, "SetLoginEnvironment", false));
        /* What it prints has no say in how loud it is: an "emergency" would be on all terminals of the host. */
        TRY(append_bool(m, "SyslogLevelPrefix", false));
        /* From a file that only root can read: what is given by SetCredential= or Environment= anybody could read back.
         */
        TRY(sd_bus_message_append(m, "(sv)", "LoadCredential", "a(ss)", 1, "token", token));
        TRY(sd_bus_message_append(m, "(sv)", "ExtraFileDescriptors", "a(hs)", 1, record, "exit"));
        TRY(append_sandbox(m, run));
        TRY(append_binds(m, run, false));
        TRY(append_limits(m, &run->definition->limits));
        TRY(append_times(m, run));
        return append_log_fields(m, run);
}

/*
 * The check of a runner in the sandbox of a run, before anything of the run is started: the same root, user, namespaces
 * and filters. Only the limits are not the agent's, because the verdict is for all agents with that node; and it gets
 * neither token nor input.
 */
int run_check_properties(sd_bus_message *m, Run *run, int output_fd, int record_fd) {
        _cleanup_free_ char *slice = NULL, *description = NULL;
        RunLimits limits = run->definition->limits;

        limits.memory = MAX(limits.memory, UINT64_C(512) << 20);
        limits.cpu = MAX(limits.cpu, USEC_PER_SEC);
        limits.tasks = MAX(limits.tasks, UINT64_C(64));
        limits.files = MAX(limits.files, UINT64_C(1024));
        TRY(slice_name(run->row->user, &slice));
        description = strprintf("Check of the runner %s %s, run %s", run->runner->name, run->runner->version,
                                run->row->id);
        if (!description)
                return -ENOMEM;

        TRY(append_string(m, "Description", description));
        TRY(append_string(m, "Type", "oneshot"));
        TRY(append_bool(m, "RemainAfterExit", true));
        TRY(append_string(m, "CollectMode", "inactive-or-failed"));
        TRY(append_string(m, "Slice", slice));
        TRY(append_check(m, run));
        /* OpenSSL's configuration could load code from the environment; a verdict must not depend on that. */
        TRY(append_strv(m, "Environment",
                        (char *[]) { (char *) "HOME=" AGENT_HOME, (char *) "LANG=C.UTF-8", (char *) "NO_COLOR=1",
                                     (char *) "NODE_DISABLE_COLORS=1", (char *) "OPENSSL_CONF=/dev/null", NULL }));
        TRY(append_bool(m, "SetLoginEnvironment", false));
        TRY(append_string(m, "StandardInput", "null"));
        TRY(append_string(m, "StandardOutput", "null"));
        TRY(sd_bus_message_append(m, "(sv)", "StandardErrorFileDescriptor", "h", output_fd));
        TRY(sd_bus_message_append(m, "(sv)", "ExtraFileDescriptors", "a(hs)", 1, record_fd, "exit"));
        TRY(append_uint64(m, "LimitFSIZE", CHECK_OUTPUT_MAX));
        TRY(append_uint64(m, "LimitFSIZESoft", CHECK_OUTPUT_MAX));
        TRY(append_sandbox(m, run));
        TRY(append_binds(m, run, true));
        TRY(append_limits(m, &limits));
        /* Each script has its own limit, kept by agent-check; this one is for the case that nothing else holds. */
        TRY(append_uint64(m, "TimeoutStartUSec",
                          (strv_length(run->runner->check) + 2) * run->manager->settings->runner_check_timeout_usec +
                                  60 * USEC_PER_SEC));
        TRY(append_uint64(m, "TimeoutStopUSec", USEC_PER_SEC));
        return append_log_fields(m, run);
}
