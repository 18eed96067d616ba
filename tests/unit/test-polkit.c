/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves on a private bus, with a polkit of our own, that a verdict is asked for once and bound to its
 * question: yes, no, "only interactively", no polkit at all, an error of polkit, an action that changes between
 * the two passes, an object that goes away meanwhile, and the two who need no polkit.
 *
 * Three processes: dbus-daemon, the caller (not root), and this one, which is both the service and polkit. Skipped
 * where there is no dbus-daemon.
 */

#undef NDEBUG

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "bus/bus-error.h"
#include "bus/polkit.h"

#define CALLER_UID 65534

static char directory[] = "/tmp/test-polkit-XXXXXX";
static BusPolkit *polkit;
static uid_t caller_uid;
static unsigned n_asked, n_calls;
static bool polkit_answers = true, vanish_now;
static sd_bus_slot *vanishing;

/* ---- polkit ---- */

static int check_authorization(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        const char *kind, *key, *name, *action;
        bool yes, challenge = false;
        uint32_t flags;
        int r;

        n_asked++;
        if (!polkit_answers)
                return sd_bus_error_set(e, SD_BUS_ERROR_NO_MEMORY, "none left");

        r = sd_bus_message_read(m, "(sa{sv})s", &kind, 1, &key, "s", &name, &action);
        assert(r >= 0 && streq(kind, "system-bus-name") && streq(key, "name") && name[0] == ':');
        assert(sd_bus_message_skip(m, "a{ss}") >= 0);
        assert(sd_bus_message_read(m, "u", &flags) >= 0);

        if (vanish_now) /* the object of the call goes away while it waits */
                vanishing = sd_bus_slot_unref(vanishing);

        yes = streq(action, POLKIT_ACTION_EXECUTE);
        if (streq(action, POLKIT_ACTION_DEPLOY_RUNNER)) {
                yes = flags & 1;
                challenge = !yes;
        }
        return sd_bus_reply_method_return(m, "(bba{ss})", yes, challenge, 0);
}

static const sd_bus_vtable polkit_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD("CheckAuthorization", "(sa{sv})sa{ss}us", "(bba{ss})", check_authorization,
                      SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_VTABLE_END,
};

/* ---- the service ---- */

static int verify(sd_bus_message *m, const char *action, uid_t good, sd_bus_error *e) {
        static const char *const details[] = { "agent", "analyst", NULL };
        int r;

        r = bus_verify_async(polkit, m, action, details, good, e);
        if (r < 0)
                return r;
        if (r == 0)
                return 1; /* will be called again */
        return sd_bus_reply_method_return(m, NULL);
}

static int method_do(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        const char *action;

        n_calls++;
        vanish_now = streq(sd_bus_message_get_path(m), "/vanishing");
        assert(sd_bus_message_read(m, "s", &action) >= 0);
        return verify(m, action, (uid_t) -1, e);
}

static int method_own(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        uid_t euid;

        assert(bus_sender_euid(m, &euid) == 0 && euid == caller_uid);
        return verify(m, POLKIT_ACTION_MANAGE, caller_uid, e);
}

/* The answer to one question must not open another door. */
static int method_change(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        static unsigned pass = 0;
        return verify(m, pass++ == 0 ? POLKIT_ACTION_EXECUTE : POLKIT_ACTION_MANAGE, (uid_t) -1, e);
}

static int method_control(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        const char *what;
        int r = 0;

        assert(sd_bus_message_read(m, "s", &what) >= 0);
        if (streq(what, "no-polkit"))
                r = sd_bus_release_name(sd_bus_message_get_bus(m), "org.freedesktop.PolicyKit1");
        else if (streq(what, "broken-polkit"))
                polkit_answers = false;
        assert(r >= 0);
        /* asked, calls, in flight */
        r = sd_bus_reply_method_return(m, "uuu", n_asked, n_calls, (uint32_t) bus_polkit_pending(polkit));
        n_asked = n_calls = 0;
        return r;
}

static const sd_bus_vtable service_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD("Do", "s", NULL, method_do, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD("Own", NULL, NULL, method_own, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD("Change", NULL, NULL, method_change, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD("Control", "s", "uuu", method_control, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_VTABLE_END,
};

/* ---- the caller ---- */

static int call_at(sd_bus *bus, const char *path, const char *member, const char *action, bool interactive,
                   sd_bus_error *e) {
        sd_bus_message *m = NULL;
        int r;

        sd_bus_error_free(e);
        *e = SD_BUS_ERROR_NULL;
        assert(sd_bus_message_new_method_call(bus, &m, "org.agentd1.Test", path, "org.agentd1.Test", member) >= 0);
        if (action)
                assert(sd_bus_message_append(m, "s", action) >= 0);
        assert(sd_bus_message_set_allow_interactive_authorization(m, interactive) >= 0);
        r = sd_bus_call(bus, m, 600 * USEC_PER_SEC, e, NULL);
        sd_bus_message_unref(m);
        return r;
}

static void control(sd_bus *bus, const char *what, unsigned asked, unsigned calls) {
        sd_bus_error e = SD_BUS_ERROR_NULL;
        sd_bus_message *reply = NULL;
        uint32_t a, c, n;

        assert(sd_bus_call_method(bus, "org.agentd1.Test", "/test", "org.agentd1.Test", "Control", &e, &reply, "s",
                                  what) >= 0);
        assert(sd_bus_message_read(reply, "uuu", &a, &c, &n) >= 0);
        sd_bus_message_unref(reply);

        /* What no second pass has used goes away when there is nothing else to do. */
        for (unsigned i = 0; n != 0 && i < 100000; i++) {
                uint32_t x;

                usleep(1000);
                assert(sd_bus_call_method(bus, "org.agentd1.Test", "/test", "org.agentd1.Test", "Control", &e, &reply,
                                          "s", "") >= 0);
                assert(sd_bus_message_read(reply, "uuu", &x, &x, &n) >= 0);
                sd_bus_message_unref(reply);
        }
        if (a != asked || c != calls || n != 0)
                fprintf(stderr, "asked %u (expected %u), calls %u (expected %u), in flight %u\n", a, asked, c, calls,
                        n);
        assert(a == asked && c == calls && n == 0);
}

static void connect_bus(const char *address, sd_bus **ret) {
        assert(sd_bus_new(ret) >= 0);
        assert(sd_bus_set_address(*ret, address) >= 0);
        assert(sd_bus_set_bus_client(*ret, true) >= 0);
        assert(sd_bus_start(*ret) >= 0);
}

static void caller(const char *address) {
        sd_bus_error e = SD_BUS_ERROR_NULL;
        sd_bus *bus = NULL;

        connect_bus(address, &bus);

        assert(call_at(bus, "/test", "Do", POLKIT_ACTION_EXECUTE, false, &e) >= 0);
        control(bus, "", 1, 2);

        assert(call_at(bus, "/test", "Do", POLKIT_ACTION_MANAGE, true, &e) < 0);
        assert(sd_bus_error_has_name(&e, SD_BUS_ERROR_ACCESS_DENIED));
        control(bus, "", 1, 2);

        assert(call_at(bus, "/test", "Do", POLKIT_ACTION_DEPLOY_RUNNER, false, &e) < 0);
        assert(sd_bus_error_has_name(&e, SD_BUS_ERROR_INTERACTIVE_AUTHORIZATION_REQUIRED));
        assert(call_at(bus, "/test", "Do", POLKIT_ACTION_DEPLOY_RUNNER, true, &e) >= 0);
        control(bus, "", 2, 4);

        assert(call_at(bus, "/test", "Own", NULL, false, &e) >= 0);
        control(bus, "", 0, 0);

        assert(call_at(bus, "/test", "Change", NULL, false, &e) < 0);
        assert(sd_bus_error_has_name(&e, SD_BUS_ERROR_ACCESS_DENIED));
        control(bus, "", 1, 0);

        /* No handler is found the second time: that is the answer, and the question is forgotten. */
        assert(call_at(bus, "/vanishing", "Do", POLKIT_ACTION_EXECUTE, false, &e) < 0);
        assert(sd_bus_error_has_name(&e, SD_BUS_ERROR_UNKNOWN_OBJECT) ||
               sd_bus_error_has_name(&e, SD_BUS_ERROR_UNKNOWN_METHOD));
        control(bus, "", 1, 1);

        control(bus, "broken-polkit", 0, 0);
        assert(call_at(bus, "/test", "Do", POLKIT_ACTION_EXECUTE, false, &e) < 0);
        assert(sd_bus_error_has_name(&e, SD_BUS_ERROR_ACCESS_DENIED));
        control(bus, "no-polkit", 1, 2);
        assert(call_at(bus, "/test", "Do", POLKIT_ACTION_EXECUTE, false, &e) < 0);
        assert(sd_bus_error_has_name(&e, SD_BUS_ERROR_ACCESS_DENIED));
        control(bus, "", 0, 2);

        sd_bus_error_free(&e);
        sd_bus_flush_close_unref(bus);
}

static int on_child(sd_event_source *s, const siginfo_t *si, void *userdata) {
        return sd_event_exit(sd_event_source_get_event(s),
                             si->si_code == CLD_EXITED && si->si_status == 0 ? 0 : EXIT_FAILURE);
}

static pid_t start_bus(char **ret_address) {
        static const char config[] =
                "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" "
                "\"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">"
                "<busconfig><type>session</type><auth>EXTERNAL</auth><listen>unix:path=%s/bus</listen>"
                "<policy context=\"default\"><allow send_destination=\"*\"/><allow receive_sender=\"*\"/><allow "
                "own=\"*\"/>"
                "<allow user=\"*\"/></policy></busconfig>";
        _cleanup_free_ char *path = strprintf("%s/bus.conf", directory), *text = NULL, *arg = NULL;
        char line[256] = {};
        int fds[2];
        pid_t pid;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        text = strprintf(config, directory);
#pragma GCC diagnostic pop
        assert(write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
        assert(pipe(fds) == 0);
        arg = strprintf("--config-file=%s", path);

        pid = fork();
        assert(pid >= 0);
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                dup2(fds[1], STDOUT_FILENO);
                close(fds[0]);
                close(fds[1]);
                execlp("dbus-daemon", "dbus-daemon", arg, "--nofork", "--nopidfile", "--print-address", NULL);
                _exit(77);
        }
        close(fds[1]);
        if (read(fds[0], line, sizeof(line) - 1) <= 0) {
                int status;

                waitpid(pid, &status, 0);
                fprintf(stderr, "No dbus-daemon here, skipping.\n");
                exit(77);
        }
        close(fds[0]);
        line[strcspn(line, "\n")] = 0;
        *ret_address = strdup(line);
        return pid;
}

int main(void) {
        _cleanup_free_ char *address = NULL;
        sd_event *event = NULL;
        sd_bus *bus = NULL;
        pid_t daemon_pid, pid;
        sigset_t mask;
        int r;

        assert(bus_error_register() == 0);
        {
                sd_bus_error e = SD_BUS_ERROR_NULL;

                assert(sd_bus_error_set(&e, BUS_ERROR_QUEUE_FULL, "x") == -EAGAIN);
                sd_bus_error_free(&e);
        }

        assert(mkdtemp(directory) && chmod(directory, 0755) == 0);
        daemon_pid = start_bus(&address);
        caller_uid = geteuid() == 0 ? CALLER_UID : geteuid();

        assert(sd_event_default(&event) >= 0);
        connect_bus(address, &bus);
        assert(sd_bus_add_object_vtable(bus, NULL, "/test", "org.agentd1.Test", service_vtable, NULL) >= 0);
        assert(sd_bus_add_object_vtable(bus, &vanishing, "/vanishing", "org.agentd1.Test", service_vtable, NULL) >= 0);
        assert(sd_bus_add_object_vtable(bus, NULL, "/org/freedesktop/PolicyKit1/Authority",
                                        "org.freedesktop.PolicyKit1.Authority", polkit_vtable, NULL) >= 0);
        assert(sd_bus_request_name(bus, "org.agentd1.Test", 0) >= 0);
        assert(sd_bus_request_name(bus, "org.freedesktop.PolicyKit1", 0) >= 0);
        assert(sd_bus_attach_event(bus, event, SD_EVENT_PRIORITY_NORMAL) >= 0);
        assert(bus_polkit_new(bus, &polkit) == 0);

        assert(sigemptyset(&mask) == 0 && sigaddset(&mask, SIGCHLD) == 0 && sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
        pid = fork();
        assert(pid >= 0);
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                alarm(1200);
                if (geteuid() == 0)
                        assert(setgroups(0, NULL) == 0 && setresgid(CALLER_UID, CALLER_UID, CALLER_UID) == 0 &&
                               setresuid(CALLER_UID, CALLER_UID, CALLER_UID) == 0);
                caller(address);
                _exit(0);
        }
        assert(sd_event_add_child(event, NULL, pid, WEXITED, on_child, NULL) >= 0);

        r = sd_event_loop(event);

        polkit = bus_polkit_free(polkit);
        sd_bus_slot_unref(vanishing);
        sd_bus_flush_close_unref(bus);
        sd_event_unref(event);
        kill(daemon_pid, SIGTERM);
        waitpid(daemon_pid, NULL, 0);
        rm_rf_at(AT_FDCWD, directory);
        return r == 0 ? 0 : 1;
}
