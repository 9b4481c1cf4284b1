/* SPDX-License-Identifier: Apache-2.0
 * e2e_eio: preloaded into a master, a disk on which the log fails. In the directory that E2E_EIO names, a file `eio-write` makes each
 * write of what lies in `log` fail with EIO, and a file `eio-sync` each sync of it. Any thread.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REPLACES __attribute__((visibility("default")))

REPLACES ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at);

/* Whether this file is to fail now; errno is EIO then, and else as it was. */
static bool
fails(int fd, const char *how)
{
    const char *data = getenv("E2E_EIO");
    const int before = errno;
    char link[32], path[PATH_MAX], log[PATH_MAX];

    if (data == NULL) return false;
    snprintf(path, sizeof path, "%s/eio-%s", data, how);
    if (access(path, F_OK) == 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, path, sizeof path - 1);
        path[len < 0 ? 0 : len] = '\0';
        int log_len = snprintf(log, sizeof log, "%s/log", data);
        errno = EIO;
        if (strncmp(path, log, (size_t)log_len) == 0) return true;
    }
    errno = before;
    return false;
}

REPLACES ssize_t
write(int fd, const void *bytes, size_t len)
{
    return fails(fd, "write") ? -1 : (ssize_t)syscall(SYS_write, fd, bytes, len);
}

REPLACES ssize_t
pwrite64(int fd, const void *bytes, size_t len, off64_t at)
{
    return fails(fd, "write") ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, bytes, len, at);
}

REPLACES int
fsync(int fd)
{
    return fails(fd, "sync") ? -1 : (int)syscall(SYS_fsync, fd);
}

REPLACES int
fdatasync(int fd)
{
    return fails(fd, "sync") ? -1 : (int)syscall(SYS_fdatasync, fd);
}
