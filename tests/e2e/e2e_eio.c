/* SPDX-License-Identifier: Apache-2.0
 * e2e_eio: preloaded into a master, a node or a conductor, a disk that fails. In the directory that E2E_EIO names, a
 * file makes what is done to what lies in `log`, to `kvpool.tier` or to a conductor's files, fail: `eio-write` each
 * write, `eio-sync` each sync, `eio-read` each read with EIO, `enospc-write` each write with ENOSPC; `short-read` and
 * `short-write` cut each of more than two blocks, `stall-read`, `stall-write` and `stall-sync` let each wait until the
 * file is gone. Of the tier it is what an engine of threads does. Any thread. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK 4096u
#define REPLACES __attribute__((visibility("default")))

REPLACES ssize_t pread64(int fd, void *bytes, size_t len, off64_t at);
REPLACES ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at);

REPLACES ssize_t preadv64(int fd, const struct iovec *iov, int n, off64_t at);
REPLACES ssize_t pwritev64v2(int fd, const struct iovec *iov, int n, off64_t at, int flags);

static bool
is_meant(const char *file)
{
    return strncmp(file, "/log", 4) == 0 || strcmp(file, "/kvpool.tier") == 0 || strncmp(file, "/joins", 6) == 0 ||
           strncmp(file, "/registrations.json", 19) == 0;
}

/* Whether that is to happen to this file now; errno is err then, and else as it was. */
static bool
happens(int fd, const char *what, int err)
{
    const char *data = getenv("E2E_EIO");
    const int before = errno;
    char link[48], path[PATH_MAX];

    if (data == NULL) return false;
    snprintf(path, sizeof path, "%s/%s", data, what);
    if (access(path, F_OK) == 0) {
        snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd);
        ssize_t len = readlink(link, path, sizeof path - 1);
        path[len < 0 ? 0 : len] = '\0';
        errno = err;
        if (strncmp(path, data, strlen(data)) == 0 && is_meant(path + strlen(data))) return true;
    }
    errno = before;
    return false;
}

static bool
fails(int fd, const char *how)
{
    return happens(fd, how, EIO);
}

static void
wait_out(int fd, const char *stall)
{
    while (happens(fd, stall, 0))
        usleep(10000);
}

/* What of it a faulty disk moves. */
static struct iovec
cut(int fd, const char *stall, const char *how, const struct iovec *iov)
{
    wait_out(fd, stall);
    return (struct iovec){.iov_base = iov->iov_base,
                          .iov_len = iov->iov_len > 2 * BLOCK && happens(fd, how, 0) ? iov->iov_len / 3 / 512 * 512
                                                                                     : iov->iov_len};
}

REPLACES ssize_t
preadv64(int fd, const struct iovec *iov, int n, off64_t at)
{
    struct iovec moved = cut(fd, "stall-read", "short-read", iov);

    if (n != 1) abort();
    return fails(fd, "eio-read") ? -1 : (ssize_t)syscall(SYS_preadv, fd, &moved, 1, at, 0);
}

REPLACES ssize_t
pwritev64v2(int fd, const struct iovec *iov, int n, off64_t at, int flags)
{
    struct iovec moved = cut(fd, "stall-write", "short-write", iov);

    if (n != 1) abort();
    if (fails(fd, "eio-write") || happens(fd, "enospc-write", ENOSPC)) return -1;
    return (ssize_t)syscall(SYS_pwritev2, fd, &moved, 1, at, 0, flags);
}

REPLACES ssize_t
pread64(int fd, void *bytes, size_t len, off64_t at)
{
    wait_out(fd, "stall-read");
    return fails(fd, "eio-read") ? -1 : (ssize_t)syscall(SYS_pread64, fd, bytes, len, at);
}

REPLACES ssize_t
write(int fd, const void *bytes, size_t len)
{
    wait_out(fd, "stall-write");
    return fails(fd, "eio-write") ? -1 : (ssize_t)syscall(SYS_write, fd, bytes, len);
}

REPLACES ssize_t
pwrite64(int fd, const void *bytes, size_t len, off64_t at)
{
    wait_out(fd, "stall-write");
    return fails(fd, "eio-write") ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, bytes, len, at);
}

REPLACES int
fsync(int fd)
{
    wait_out(fd, "stall-sync");
    return fails(fd, "eio-sync") ? -1 : (int)syscall(SYS_fsync, fd);
}

REPLACES int
fdatasync(int fd)
{
    wait_out(fd, "stall-sync");
    return fails(fd, "eio-sync") ? -1 : (int)syscall(SYS_fdatasync, fd);
}
