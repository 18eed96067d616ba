/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The texts are plain snapshots: programs size their pools and caches by them, nobody should measure with them. CPU
 * numbers start at 0 whichever CPUs the run is really bound to.
 */
#include <fcntl.h>
#include <unistd.h>

#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "sandbox/proc-files.h"

#define CPUINFO_MAX (1U << 20)

const ProcFile proc_files[] = {
        { "cpuinfo",    "/proc/cpuinfo" },
        { "stat",       "/proc/stat" },
        { "meminfo",    "/proc/meminfo" },
        { "empty",      "/proc/cmdline" },
        { "boot_id",    "/proc/sys/kernel/random/boot_id" },
        { "hostname",   "/proc/sys/kernel/hostname" },
        { "online",     "/sys/devices/system/cpu/online" },
        { "online",     "/sys/devices/system/cpu/possible" },
        { "hostname",   "/etc/hostname" },
        { "hosts",      "/etc/hosts" },
        { "machine-id", "/etc/machine-id" },
        {}
};

static int put(int dirfd, const char *name, const char *text) {
        _cleanup_close_ int fd = -EBADF;
        int r;

        if (!text)
                return -ENOMEM;
        fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
        if (fd < 0)
                return -errno;
        r = write_full(fd, text, strlen(text));
        if (r >= 0 && fchmod(fd, 0444) < 0) /* whatever the umask */
                r = -errno;
        return r;
}

/* N times the host's first processor, numbered from 0; a block ends with an empty line. */
static int put_cpuinfo(int dirfd, unsigned n) {
        _cleanup_free_ char *host = NULL, *out = NULL;
        size_t size = 0;
        FILE *f;
        int r;

        r = read_full_file_at(AT_FDCWD, "/proc/cpuinfo", CPUINFO_MAX, &host, NULL);
        if (r < 0)
                return r;
        f = open_memstream(&out, &size);
        if (!f)
                return -ENOMEM;
        for (unsigned i = 0; i < n; i++) {
                /* The first block again and again: no two CPUs of a run differ. */
                for (const char *p = host; *p && *p != '\n';) {
                        const char *end = strchr(p, '\n') ?: p + strlen(p);

                        if (startswith(p, "processor"))
                                fprintf(f, "processor\t: %u\n", i);
                        else
                                fprintf(f, "%.*s\n", (int) (end - p), p);
                        p = *end ? end + 1 : end;
                }
                fputc('\n', f);
        }
        if (fclose(f) != 0)
                return -ENOMEM;
        return put(dirfd, "cpuinfo", out);
}

/* One number of a host's file: what follows KEY at the start of a line. */
static uint64_t host_number(const char *path, const char *key, uint64_t fallback) {
        _cleanup_free_ char *text = NULL;
        unsigned long long v;

        if (read_full_file_at(AT_FDCWD, path, CPUINFO_MAX, &text, NULL) < 0)
                return fallback;
        for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
                const char *e = startswith(p, key);

                if (e && sscanf(e, " %llu", &v) == 1)
                        return v;
        }
        return fallback;
}

static int put_stat(int dirfd, unsigned n) {
        _cleanup_free_ char *out = NULL;
        size_t size = 0;
        FILE *f;

        f = open_memstream(&out, &size);
        if (!f)
                return -ENOMEM;
        fputs("cpu  0 0 0 0 0 0 0 0 0 0\n", f);
        for (unsigned i = 0; i < n; i++)
                fprintf(f, "cpu%u 0 0 0 0 0 0 0 0 0 0\n", i);
        /* Start times of processes are counted from the real boot: ps would be wrong with another. */
        fprintf(f, "intr 0\nctxt 0\nbtime %" PRIu64 "\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n"
                "softirq 0 0 0 0 0 0 0 0 0 0 0\n", host_number("/proc/stat", "btime", 0));
        if (fclose(f) != 0)
                return -ENOMEM;
        return put(dirfd, "stat", out);
}

static int put_meminfo(int dirfd, uint64_t memory_max) {
        static const char *const zeros[] = {
                "Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Dirty", "Writeback",
                "AnonPages", "Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim", "PageTables",
                "Committed_AS",
        };
        uint64_t host = host_number("/proc/meminfo", "MemTotal:", 0);
        uint64_t total = memory_max > 0 ? MIN(memory_max / 1024, host) : host;
        _cleanup_free_ char *out = NULL;
        size_t size = 0;
        FILE *f;

        f = open_memstream(&out, &size);
        if (!f)
                return -ENOMEM;
        fprintf(f,
                "MemTotal:       %8" PRIu64 " kB\nMemFree:        %8" PRIu64 " kB\nMemAvailable:   %8" PRIu64 " kB\n",
                total, total, total);
        for (size_t i = 0; i < ELEMENTSOF(zeros); i++)
                fprintf(f, "%s:%*s%8d kB\n", zeros[i], (int) (15 - strlen(zeros[i])), "", 0);
        if (fclose(f) != 0)
                return -ENOMEM;
        return put(dirfd, "meminfo", out);
}

/* 32 hex digits that belong to the run, but do not tell its id. */
static int run_hex(const char *label, const char *run, char ret[static 33]) {
        _cleanup_free_ char *text = strprintf("agentd %s %s", label, run);
        char digest[DIGEST_LEN + 1];
        int r;

        if (!text)
                return -ENOMEM;
        r = digest_bytes(text, strlen(text), digest);
        if (r < 0)
                return r;
        /* A random (version 4) UUID by its looks, as both ids are. */
        memcpy(ret, digest + 7, 32);
        ret[32] = 0;
        ret[12] = '4';
        ret[16] = '8';
        return 0;
}

static int put_ids(int dirfd, const char *run) {
        _cleanup_free_ char *boot = NULL, *machine = NULL;
        char hex[33];
        int r;

        r = run_hex("boot-id", run, hex);
        if (r < 0)
                return r;
        boot = strprintf("%.8s-%.4s-%.4s-%.4s-%.12s\n", hex, hex + 8, hex + 12, hex + 16, hex + 20);
        r = put(dirfd, "boot_id", boot);
        if (r < 0)
                return r;
        r = run_hex("machine-id", run, hex);
        if (r < 0)
                return r;
        machine = strprintf("%s\n", hex);
        return put(dirfd, "machine-id", machine);
}

static int put_names(int dirfd, const char *hostname) {
        _cleanup_free_ char *name = strprintf("%s\n", hostname);
        _cleanup_free_ char *hosts = strprintf("127.0.0.1\tlocalhost\n127.0.1.1\t%s\n"
                                               "::1\tlocalhost ip6-localhost ip6-loopback\n", hostname);
        int r;

        r = put(dirfd, "hostname", name);
        return r < 0 ? r : put(dirfd, "hosts", hosts);
}

int proc_files_write(int dirfd, const char *run, unsigned cpus, uint64_t memory_max, const char *hostname) {
        _cleanup_free_ char *online = NULL;
        long host = sysconf(_SC_NPROCESSORS_ONLN);
        int r;

        /* A limit above what the host has is no more than that. */
        if (host > 0 && (cpus == 0 || cpus > (unsigned) host))
                cpus = (unsigned) host;
        cpus = MAX(cpus, 1U);
        online = cpus == 1 ? strdup("0\n") : strprintf("0-%u\n", cpus - 1);
        r = put(dirfd, "online", online);
        if (r >= 0)
                r = put_cpuinfo(dirfd, cpus);
        if (r >= 0)
                r = put_stat(dirfd, cpus);
        if (r >= 0)
                r = put_meminfo(dirfd, memory_max);
        if (r >= 0)
                r = put(dirfd, "empty", "\n");
        if (r >= 0)
                r = put_ids(dirfd, run);
        if (r >= 0)
                r = put_names(dirfd, hostname ?: "agent");
        return r;
}
