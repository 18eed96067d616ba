/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The agent's program, set apart from the runner that starts it. Both have the same user, and for the kernel that would
 * mean that the one may read and write the other's memory (/proc/PID/mem, process_vm_writev()), look at its environment and
 * descriptors, and signal it: the agent would speak as the platform.
 *
 * So the program is executed in a Landlock domain. Whoever is in a domain may trace only what is in it too, and by
 * "trace" the kernel means all of the above but signals, which the scope adds. With ProtectProc=invisible even the names in
 * /proc of what is outside are gone. The program's children are in its domain, so among these it debugs and signals as
 * ever; the domain restricts nothing else, files least of all.
 *
 * Where there is no Landlock of this kind (before 6.12, or the kernel was booted without it, or agentd is in a container
 * whose filter withholds it) that is no reason not to run: agentd warns of it when it starts. Anything else that goes wrong
 * is.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "apart.h"
#include "lib/basic/landlock.h"

static int enter_domain(void) {
        const struct landlock_ruleset_attr attr = { .scoped = LANDLOCK_SCOPE_SIGNAL };
        long fd;

        if (landlock_abi() < LANDLOCK_ABI_SCOPES)
                return 0;
        fd = syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
        if (fd < 0)
                return -errno;
        if (syscall(SYS_landlock_restrict_self, (int) fd, 0) < 0)
                return -errno;
        return close((int) fd);
}

int apart_exec(char *const argv[]) {
        int e, r;

        r = enter_domain();
        if (r < 0) {
                dprintf(STDERR_FILENO, "The program cannot be set apart from its runner: %s\n", strerror(-r));
                return 126;
        }
        execvp(argv[0], argv);
        e = errno;
        dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(e));
        return e == ENOENT ? 127 : 126;
}
