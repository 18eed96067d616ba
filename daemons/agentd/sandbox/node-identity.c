/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads ELF files that anybody may have made: every offset is checked by pread() itself, every count is bounded. */
#include <elf.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "basic/string-util.h"
#include "sandbox/node-identity.h"

#define FILES_MAX 128
#define BYTES_MAX (INT64_C(2) << 30)
#define SEGMENTS_MAX 64U
#define DYNAMIC_MAX 1024U
#define NAME_SIZE_MAX 256

typedef struct Identity {
        int root;
        char *dirs[96]; /* where the loader looks */
        const char *origin; /* directory of the program, while that itself is read and has a plain path; else NULL */
        size_t n_dirs;
        struct {
                dev_t dev;
                ino_t ino;
        } seen[FILES_MAX];
        size_t n_seen;
        char *names[FILES_MAX]; /* of libraries; those behind N_DONE are still to be looked for */
        size_t n_names, n_done;
        FILE *text;
        int64_t bytes; /* hashed */
        bool vague; /* something could not be told */
} Identity;

static int open_inside(int root, const char *path) {
        struct open_how how = {
                .flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
                .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
        };
        int fd = (int) syscall(SYS_openat2, root, path, &how, sizeof how);

        return fd < 0 ? -errno : fd;
}

static bool read_at(int fd, void *buf, size_t size, uint64_t offset) {
        return offset <= INT64_MAX && pread(fd, buf, size, (off_t) offset) == (ssize_t) size;
}

static int add_name(Identity *id, const char *name) {
        for (size_t i = 0; i < id->n_names; i++)
                if (streq(id->names[i], name))
                        return 0;
        if (id->n_names >= FILES_MAX) {
                id->vague = true;
                return 0;
        }
        id->names[id->n_names] = strdup(name);
        return id->names[id->n_names++] ? 0 : -ENOMEM;
}

static int add_file(Identity *id, const char *label, int fd);

/* Where VADDR is in the file. */
static bool find_offset(const Elf64_Phdr *ph, size_t n, uint64_t vaddr, uint64_t *ret) {
        for (size_t i = 0; i < n; i++)
                if (ph[i].p_type == PT_LOAD && vaddr >= ph[i].p_vaddr && vaddr - ph[i].p_vaddr < ph[i].p_filesz) {
                        *ret = vaddr - ph[i].p_vaddr + ph[i].p_offset;
                        return true;
                }
        return false;
}

static int add_directory(Identity *id, const char *dir);

/* Debian's node has "$ORIGIN/../lib:$ORIGIN/". */
static int add_run_path(Identity *id, int fd, uint64_t offset) {
        char path[1024] = "";
        char *save = NULL;
        ssize_t k;

        k = offset > INT64_MAX || !id->origin ? -1 : pread(fd, path, sizeof path - 1, (off_t) offset);
        if (k <= 0 || strlen(path) == sizeof path - 1) {
                id->vague = true;
                return 0;
        }
        for (char *p = strtok_r(path, ":", &save); p; p = strtok_r(NULL, ":", &save)) {
                const char *below = startswith(p, "$ORIGIN");
                _cleanup_free_ char *dir = below ? strprintf("%s%s", id->origin, below) : strdup(p);
                int r;

                if (!dir)
                        return -ENOMEM;
                if (strchr(dir, '$') || (!below && dir[0] != '/')) {
                        id->vague = true;
                        continue;
                }
                r = add_directory(id, dir);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int read_dynamic(Identity *id, int fd, const Elf64_Phdr *ph, size_t n, const Elf64_Phdr *dynamic) {
        uint64_t strings = 0, run_path = UINT64_MAX, needed[FILES_MAX];
        size_t n_needed = 0;
        bool found = false;
        int r;

        for (size_t i = 0; i < DYNAMIC_MAX && i < dynamic->p_filesz / sizeof(Elf64_Dyn); i++) {
                Elf64_Dyn d;

                if (!read_at(fd, &d, sizeof d, dynamic->p_offset + i * sizeof d)) {
                        id->vague = true;
                        return 0;
                }
                if (d.d_tag == DT_NULL)
                        break;
                if (d.d_tag == DT_NEEDED && n_needed < FILES_MAX)
                        needed[n_needed++] = d.d_un.d_val;
                else if (d.d_tag == DT_RUNPATH && run_path == UINT64_MAX)
                        run_path = d.d_un.d_val;
                else if (d.d_tag == DT_NEEDED || d.d_tag == DT_RPATH || d.d_tag == DT_RUNPATH || d.d_tag == DT_AUDIT ||
                         d.d_tag == DT_DEPAUDIT || d.d_tag == DT_FILTER || d.d_tag == DT_AUXILIARY)
                        id->vague = true;
                else if (d.d_tag == DT_STRTAB)
                        found = find_offset(ph, n, d.d_un.d_ptr, &strings);
        }
        if ((n_needed > 0 || run_path != UINT64_MAX) && !found)
                id->vague = true;
        if (found && run_path != UINT64_MAX) {
                r = run_path > UINT32_MAX ? -EBADMSG : add_run_path(id, fd, strings + run_path);
                if (r == -ENOMEM)
                        return r;
                if (r < 0)
                        id->vague = true;
        }
        for (size_t i = 0; found && i < n_needed; i++) {
                char name[NAME_SIZE_MAX] = "";
                ssize_t k;

                if (needed[i] > UINT32_MAX)
                        k = -1;
                else
                        k = pread(fd, name, sizeof name - 1, (off_t) (strings + needed[i]));
                if (k <= 0 || strlen(name) == sizeof name - 1 || isempty(name) || strchr(name, '/')) {
                        id->vague = true;
                        continue;
                }
                r = add_name(id, name);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int read_elf(Identity *id, int fd) {
        Elf64_Phdr ph[SEGMENTS_MAX];
        Elf64_Ehdr eh;
        int r = 0;

        if (!read_at(fd, &eh, sizeof eh, 0) || memcmp(eh.e_ident, ELFMAG, SELFMAG) != 0 ||
            eh.e_ident[EI_CLASS] != ELFCLASS64 || eh.e_ident[EI_DATA] != ELFDATA2LSB ||
            eh.e_phentsize != sizeof(Elf64_Phdr) || eh.e_phnum > SEGMENTS_MAX ||
            !read_at(fd, ph, eh.e_phnum * sizeof *ph, eh.e_phoff)) {
                id->vague = true; /* a script, or for another machine */
                return 0;
        }
        for (size_t i = 0; r >= 0 && i < eh.e_phnum; i++)
                if (ph[i].p_type == PT_DYNAMIC)
                        r = read_dynamic(id, fd, ph, eh.e_phnum, &ph[i]);
                else if (ph[i].p_type == PT_INTERP) {
                        char path[NAME_SIZE_MAX] = "";
                        _cleanup_close_ int interpreter = -EBADF;

                        if (ph[i].p_filesz < sizeof path && read_at(fd, path, ph[i].p_filesz, ph[i].p_offset))
                                interpreter = open_inside(id->root, path);
                        if (interpreter < 0)
                                id->vague = true;
                        else
                                r = add_file(id, "loader", interpreter);
                }
        return r;
}

/* Adds the file to the text once, whatever it is called, and reads what it needs itself (of the program, that was read
 * before). */
static int add_file(Identity *id, const char *label, int fd) {
        char digest[DIGEST_LEN + 1];
        struct stat st;
        int r;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode)) {
                id->vague = true;
                return 0;
        }
        for (size_t i = 0; i < id->n_seen; i++)
                if (id->seen[i].dev == st.st_dev && id->seen[i].ino == st.st_ino)
                        return 0;
        if (id->n_seen >= FILES_MAX) {
                id->vague = true;
                return 0;
        }
        id->seen[id->n_seen].dev = st.st_dev;
        id->seen[id->n_seen++].ino = st.st_ino;
        if (st.st_size > BYTES_MAX - id->bytes) {
                id->vague = true;
                return streq(label, "node") ? -EFBIG : 0;
        }
        id->bytes += st.st_size;
        if (lseek(fd, 0, SEEK_SET) < 0)
                return -errno;
        r = digest_fd(fd, digest);
        if (r < 0)
                return r;
        fprintf(id->text, "%s %s\n", label, digest);
        return streq(label, "node") ? 0 : read_elf(id, fd);
}

static int add_directory(Identity *id, const char *dir) {
        static const char *const levels[] = { "", "/glibc-hwcaps/x86-64-v4", "/glibc-hwcaps/x86-64-v3",
                                              "/glibc-hwcaps/x86-64-v2" };

        for (size_t i = 0; i < ELEMENTSOF(levels); i++) {
                char *s = strprintf("%s%s", dir, levels[i]);

                if (!s)
                        return -ENOMEM;
                if (id->n_dirs >= ELEMENTSOF(id->dirs)) {
                        free(s);
                        id->vague = true;
                        return 0;
                }
                id->dirs[id->n_dirs++] = s;
        }
        return 0;
}

static int add_directories(Identity *id) {
        static const char *const plain[] = { "usr/local/lib", "lib", "usr/lib", "lib64", "usr/lib64" };
        static const char *const by_machine[] = { "usr/local/lib/%s-linux-gnu", "lib/%s-linux-gnu",
                                                  "usr/lib/%s-linux-gnu" };
        struct utsname u;
        int r = uname(&u) < 0 ? -errno : 0;

        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(plain); i++)
                r = add_directory(id, plain[i]);
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(by_machine); i++) {
                const char *at = strstr(by_machine[i], "%s");
                _cleanup_free_ char *dir = strprintf("%.*s%s%s", (int) (at - by_machine[i]), by_machine[i], u.machine,
                                                     at + 2);

                r = dir ? add_directory(id, dir) : -ENOMEM;
        }
        return r;
}

/* All files of that name count: which one is mapped depends on the machine's CPU and on the loader's cache. */
static int add_library(Identity *id, const char *name) {
        bool found = false;
        int r = 0;

        for (size_t i = 0; r >= 0 && i < id->n_dirs; i++) {
                _cleanup_free_ char *path = strprintf("%s/%s", id->dirs[i], name);
                _cleanup_close_ int fd = path ? open_inside(id->root, path) : -ENOMEM;

                if (fd == -ENOMEM)
                        return fd;
                if (fd < 0)
                        continue;
                found = true;
                r = add_file(id, path, fd);
        }
        if (!found)
                id->vague = true;
        return r;
}

static int add_configuration(Identity *id, const char *path) {
        _cleanup_close_ int fd = open_inside(id->root, path);
        char digest[DIGEST_LEN + 1] = "-";
        int r;

        if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR)
                id->vague = true;
        if (fd >= 0) {
                struct stat st;

                if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > BYTES_MAX - id->bytes) {
                        id->vague = true;
                        return 0;
                }
                r = digest_fd(fd, digest);
                if (r < 0)
                        return r;
        }
        fprintf(id->text, "%s %s\n", path, digest);
        return 0;
}

static int collect(Identity *id, const char *own) {
        static const char *const configuration[] = { "etc/ld.so.preload", "etc/ld.so.cache" };
        _cleanup_close_ int fd = own ? open(own, O_RDONLY | O_NONBLOCK | O_CLOEXEC)
                                     : open_inside(id->root, "usr/bin/node");
        char link[8];
        struct stat st;
        int r;

        if (fd < 0)
                return own ? -errno : fd;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || (st.st_mode & 0111) == 0)
                return -ENOEXEC;
        if (!own && readlinkat(id->root, "usr/bin/node", link, sizeof link) < 0 && errno == EINVAL)
                id->origin = "usr/bin";
        r = add_directories(id);
        if (r >= 0)
                r = read_elf(id, fd);
        id->origin = NULL;
        if (r >= 0)
                r = add_file(id, "node", fd);
        while (r >= 0 && id->n_done < id->n_names)
                r = add_library(id, id->names[id->n_done++]);
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(configuration); i++)
                r = add_configuration(id, configuration[i]);
        return r;
}

int node_identity(const char *root, const char *own, const char *environment, char ret[static DIGEST_LEN + 1],
                  char message[STEP_MESSAGE_MAX]) {
        _cleanup_close_ int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        _cleanup_free_ char *text = NULL;
        Identity id = { .root = root_fd };
        size_t size = 0;
        int r;

        if (root_fd < 0)
                return step_fail(message, -errno, "Cannot open the root");
        id.text = open_memstream(&text, &size);
        if (!id.text)
                return -ENOMEM;
        r = collect(&id, own);
        if (id.vague)
                fprintf(id.text, "environment %s\n", environment);
        if (fclose(id.text) != 0)
                r = -ENOMEM;
        for (size_t i = 0; i < id.n_dirs; i++)
                free(id.dirs[i]);
        for (size_t i = 0; i < id.n_names; i++)
                free(id.names[i]);
        if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP)
                return step_fail(message, -ENOENT, "There is no %s", own ?: "/usr/bin/node");
        if (r < 0)
                return step_fail(message, r, "Cannot read %s", own ?: "/usr/bin/node");
        return digest_bytes(text, size, ret);
}
