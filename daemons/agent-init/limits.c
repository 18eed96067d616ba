/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who has the same user may set the limits (prlimit()) of a process that it may neither trace nor signal: the kernel
 * asks no more there, and Landlock has no say in it. An agent's program could take the runner's or agent-init's
 * processor time, and the kernel would kill it, or their files, or memory.
 *
 * Setting limits by the number of a process is therefore refused, as all other such calls are by the unit's filter;
 * one's own limits are set by the number 0, which is what setrlimit() and ulimit do, and reading is free. A filter
 * cannot tell one's own number from others', so that this one is refused as well.
 *
 * And the limit of core dumps stays as it is: a byte (run-unit.c). Where the host has a program that takes them
 * (core_pattern), the kernel starts it for each process that crashes, as root and in no run's control group, at any
 * limit but this one; a run that crashes all the time would have the host's processors. Many programs want none, and
 * some do not go on where they cannot say so: they are told that it is done, which it is.
 *
 * The kernel knows of a filter like this that all other system calls pass it whatever their arguments are, and does
 * not run it for them.
 */
#include <endian.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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
        /* prlimit(pid, resource, new, old), of which PID and RESOURCE have 32 bits. There is one architecture
         * (SystemCallArchitectures=), and the older setrlimit() is not let through by the unit's filter. */
        struct sock_filter code[] = {
                LOAD(offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 1, 0),
                RETURN(SECCOMP_RET_ALLOW),
                LOAD(LOW(args[2])), /* who only reads may do so */
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2),
                LOAD(HIGH(args[2])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 5, 0),
                LOAD(LOW(args[0])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
                RETURN(SECCOMP_RET_ERRNO | EPERM),
                LOAD(LOW(args[1])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, RLIMIT_CORE, 1, 0),
                RETURN(SECCOMP_RET_ALLOW),
                RETURN(SECCOMP_RET_ERRNO), /* 0 */
        };
        const struct sock_fprog program = { .len = sizeof code / sizeof *code, .filter = code };

        /* The unit has NoNewPrivileges=, as this wants. */
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}
