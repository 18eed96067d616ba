/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who has the same user may set the limits (prlimit()) of a process that it may neither trace nor signal: the kernel asks no
 * more there, and Landlock has no say in it. An agent's program could take the runner's or agent-init's processor time, and
 * the kernel would kill it, or their files, or memory.
 *
 * Setting limits by the number of a process is therefore refused, as all other such calls are by the unit's filter; one's own
 * limits are set by the number 0, which is what setrlimit() and ulimit do, and reading is free. A filter cannot tell one's
 * own number from others', so that this one is refused as well.
 *
 * The kernel knows of a filter like this that all other system calls pass it whatever their arguments are, and does not run
 * it for them.
 */
#include <endian.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "limits.h"

#if __BYTE_ORDER == __LITTLE_ENDIAN
#define LOW(field) ((unsigned) offsetof(struct seccomp_data, field))
#define HIGH(field) (LOW(field) + 4)
#else
#define LOW(field) ((unsigned) offsetof(struct seccomp_data, field) + 4)
#define HIGH(field) ((unsigned) offsetof(struct seccomp_data, field))
#endif

#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (at))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, (what))

int limits_own_only(void) {
        /* prlimit(pid, resource, new, old), of which PID has 32 bits. There is one architecture: SystemCallArchitectures=. */
        struct sock_filter code[] = {
                LOAD(offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 0, 6),
                LOAD(LOW(args[0])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, 0),
                LOAD(LOW(args[2])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3),
                LOAD(HIGH(args[2])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
                RETURN(SECCOMP_RET_ALLOW),
                RETURN(SECCOMP_RET_ERRNO | EPERM),
        };
        const struct sock_fprog program = { .len = sizeof code / sizeof *code, .filter = code };

        /* The unit has NoNewPrivileges=, as this wants. */
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}
