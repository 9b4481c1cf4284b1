/* SPDX-License-Identifier: Apache-2.0
 * The host's id and the directory of this user's sockets. libc and xxhash only; nothing is kept between calls.
 */
#include "common/hostid.h"
#include "common/hash.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* read_line reads the first line of a small file; "" where there is none. */
static void
read_line(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, cap - 1);

    if (fd >= 0) close(fd);
    out[n < 0 ? 0 : n] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
}

void
kvp_host_id(char out[KVP_HOST_ID_MAX + 1])
{
    char text[2 * 64 + 1]; /* machine id, then boot id: 32 and 36 characters */
    kvp_digest_t id;

    read_line("/etc/machine-id", text, 65);
    read_line("/proc/sys/kernel/random/boot_id", text + strlen(text), 65);
    if (text[0] == '\0') {
        if (gethostname(out, KVP_HOST_ID_MAX) != 0) snprintf(out, KVP_HOST_ID_MAX + 1, "localhost");
        out[KVP_HOST_ID_MAX] = '\0';
        return;
    }
    /* Hashed: the machine id itself is not for strangers (machine-id(5)). */
    id = kvp_key_digest(0, 0, text, strlen(text));
    snprintf(out, KVP_HOST_ID_MAX + 1, "%016" PRIx64 "%016" PRIx64, id.hi, id.lo);
}

/* own_dir makes the directory if need be. It must then be a real one, ours, and nobody else's to enter: whoever can
 * create files in it could pose as the pool. */
static bool
own_dir(const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) != 0 && errno != EEXIST) return false;
    if (lstat(path, &st) != 0) return false;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 0077) != 0) {
        errno = EPERM;
        return false;
    }
    return access(path, W_OK | X_OK) == 0;
}

/* try_dir formats a candidate into out and says whether it serves. */
static bool KVP_PRINTF(3, 4) try_dir(char *out, size_t cap, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(out, cap, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= cap) {
        errno = ENAMETOOLONG;
        return false;
    }
    return own_dir(out);
}

kvp_err_t
kvp_runtime_dir(char *out, size_t cap)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    uid_t uid = geteuid();

    if (xdg != NULL && xdg[0] == '/' && try_dir(out, cap, "%s/kvpool", xdg)) return KVP_OK;
    if (uid == 0 && try_dir(out, cap, "/run/kvpool")) return KVP_OK;
    if (try_dir(out, cap, "/tmp/kvpool-%u", (unsigned)uid)) return KVP_OK;
    kvp_log_warn("hostid", "no directory for sockets of user %u: %s: %m", (unsigned)uid, out);
    return KVP_SYS;
}
