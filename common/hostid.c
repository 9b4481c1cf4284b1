/* SPDX-License-Identifier: Apache-2.0
 * The id of the host, the directory of this user's sockets, and the users whose processes are trusted there. Uses
 * only libc and xxhash. Nothing is stored between calls, except in the environment. */
#include "common/hostid.h"
#include "common/hash.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNMAPPED_UID 65534u
#define DIRS 3u /* number of places where a user's sockets may be */
/* longest path of the directory, with the terminator; a socket's name must fit after it in sockaddr_un.sun_path */
#define RUNTIME_DIR_BYTES 76u

/* read_line reads the first line of a small file; "" if the file cannot be read. */
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
    char text[2 * 64 + 1]; /* text to hash: the machine id (32 characters), then the boot id (36 characters) */
    kvp_digest_t id;

    read_line("/etc/machine-id", text, 65);
    read_line("/proc/sys/kernel/random/boot_id", text + strlen(text), 65);
    if (text[0] == '\0') {
        if (gethostname(out, KVP_HOST_ID_MAX) != 0) snprintf(out, KVP_HOST_ID_MAX + 1, "localhost");
        out[KVP_HOST_ID_MAX] = '\0';
        return;
    }
    /* The ids are hashed, because the machine id must not be shown to strangers (machine-id(5)). */
    id = kvp_key_digest(0, 0, text, strlen(text));
    snprintf(out, KVP_HOST_ID_MAX + 1, "%016" PRIx64 "%016" PRIx64, id.hi, id.lo);
}

/* ---- the directory of this user's sockets */
/* name_dir writes the path of the i-th directory that may hold this user's sockets. Returns false if there is no
 * i-th directory, or if its path is too long. */
static bool
name_dir(uint32_t i, char *out, size_t cap)
{
    const char *named = getenv("KVPOOL_RUNTIME_DIR"), *xdg = getenv("XDG_RUNTIME_DIR");
    int n = -1;

    if (named != NULL && named[0] != '\0')
        n = i == 0 && named[0] == '/' ? snprintf(out, cap, "%s", named) : -1;
    else if (i == 0 && xdg != NULL && xdg[0] == '/')
        n = snprintf(out, cap, "%s/kvpool", xdg);
    else if (i == 1 && geteuid() == 0)
        n = snprintf(out, cap, "/run/kvpool");
    else if (i == 2)
        n = snprintf(out, cap, "/tmp/kvpool-%u", (unsigned)geteuid());
    errno = n < 0 ? EINVAL : ENAMETOOLONG;
    return n >= 0 && (size_t)n < cap;
}

/* Returns whether only the owner can create files in the directory: another user who can create a socket there could
 * pose as the pool. The directory $KVPOOL_RUNTIME_DIR may be readable for its group. */
static bool
is_safe(const char *path, bool is_to_be_ours)
{
    const char *named = getenv("KVPOOL_RUNTIME_DIR");
    mode_t refused = named != NULL && strcmp(named, path) == 0 ? 0027 : 0077;
    struct stat st;

    if (lstat(path, &st) != 0) return false;
    errno = EPERM;
    if (!S_ISDIR(st.st_mode) || (st.st_mode & refused) != 0) return false;
    return is_to_be_ours ? st.st_uid == geteuid() : kvp_uid_is_trusted(st.st_uid);
}

kvp_err_t
kvp_runtime_dir(char *out, size_t cap)
{
    int cause = EINVAL;

    out[0] = '\0';
    for (uint32_t i = 0; i < DIRS; i++) {
        if (name_dir(i, out, cap) && (mkdir(out, 0700) == 0 || errno == EEXIST) && is_safe(out, true) &&
            access(out, W_OK | X_OK) == 0)
            return KVP_OK;
        if (errno != EINVAL) cause = errno;
    }
    errno = cause;
    kvp_log_warn("hostid", "no directory for sockets of user %u: %s: %m", (unsigned)geteuid(), out);
    return KVP_SYS;
}

static bool
is_name_of(kvp_socket_t kind, const char *name)
{
    int end = 0;

    if (kind == KVP_SOCKET_MASTER)
        (void)sscanf(name, "master-%*5[0-9].sock%n", &end);
    else if (kind == KVP_SOCKET_NODE)
        (void)sscanf(name, "node-%*10[0-9]-%*8[0-9a-f].sock%n", &end);
    else
        (void)sscanf(name, "@kvpool-peer-%*16[0-9a-f]%n", &end);
    return end > 0 && name[end] == '\0';
}

kvp_err_t
kvp_runtime_socket(kvp_socket_t kind, const char *told, char *out, size_t cap)
{
    const char *slash = strrchr(told, '/'), *name = slash == NULL ? told : slash + 1;
    struct stat st;

    if (!is_name_of(kind, name)) return KVP_INVALID;
    if (kind == KVP_SOCKET_PEER) return (size_t)snprintf(out, cap, "%s", name) < cap ? KVP_OK : KVP_UNREACHABLE;
    for (uint32_t i = 0; i < DIRS; i++) {
        size_t len;

        if (!name_dir(i, out, cap) || !is_safe(out, false)) continue;
        len = strlen(out);
        if ((size_t)snprintf(out + len, cap - len, "/%s", name) >= cap - len) continue;
        if (lstat(out, &st) == 0 && S_ISSOCK(st.st_mode)) return KVP_OK;
    }
    return KVP_UNREACHABLE;
}

/* ---- users whose processes are trusted */
/* next_uid reads the next user id of a comma-separated list. Returns false at the end, or if the text is no id. */
static bool
next_uid(const char **at, uid_t *uid_out)
{
    char *end;
    unsigned long value;

    if (**at < '0' || **at > '9') return false;
    value = strtoul(*at, &end, 10);
    if (value >= UINT32_MAX || (*end != ',' && *end != '\0')) return false;
    *at = *end == ',' ? end + 1 : end;
    *uid_out = (uid_t)value;
    return true;
}

/* Returns whether the uid may be any user: inside a user namespace the kernel reports every unmapped user with
 * this number. */
static bool
is_anybody(uid_t uid)
{
    unsigned long from = 0, to = 0, n = 0;
    char line[96];

    if (uid != UNMAPPED_UID) return false;
    read_line("/proc/self/uid_map", line, sizeof line);
    return sscanf(line, "%lu %lu %lu", &from, &to, &n) != 3 || n != UINT32_MAX;
}

bool
kvp_uid_is_trusted(uid_t uid)
{
    const char *list = getenv("KVPOOL_TRUST_UID");
    uid_t trusted;

    if (is_anybody(uid)) return false;
    if (uid == geteuid() || uid == 0) return true;
    while (list != NULL && next_uid(&list, &trusted))
        if (trusted == uid) return true;
    return false;
}

bool
kvp_peer_is_trusted(int unix_fd)
{
    struct ucred who;
    socklen_t len = sizeof who;

    return getsockopt(unix_fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && kvp_uid_is_trusted(who.uid);
}

kvp_err_t
kvp_runtime_set(const char *dir, const char *trusted)
{
    char made[RUNTIME_DIR_BYTES];
    const char *at = trusted;
    uid_t uid;

    while (at != NULL && next_uid(&at, &uid))
        continue;
    if (at != NULL && *at != '\0') {
        kvp_log_error("hostid", "--trust-uid takes numbers of users, separated by commas: %s", trusted);
        return KVP_INVALID;
    }
    if ((trusted != NULL && setenv("KVPOOL_TRUST_UID", trusted, 1) != 0) ||
        (dir != NULL && setenv("KVPOOL_RUNTIME_DIR", dir, 1) != 0))
        return KVP_NOMEM;
    if (dir == NULL || kvp_runtime_dir(made, sizeof made) == KVP_OK) return KVP_OK;
    kvp_log_error("hostid",
                  "--runtime-dir has to be an absolute path, of at most %u bytes, to a directory of this user, of mode "
                  "0700 or 0750",
                  RUNTIME_DIR_BYTES - 1);
    return KVP_INVALID;
}

void
kvp_peer_text(int fd, char out[KVP_PEER_TEXT_MAX])
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof(at);
    struct ucred cred = {0};
    char host[64], port[8];

    snprintf(out, KVP_PEER_TEXT_MAX, "unknown");
    if (getpeername(fd, (struct sockaddr *)&at, &len) != 0) return;
    if (at.ss_family == AF_UNIX) {
        len = sizeof(cred);
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
            snprintf(out, KVP_PEER_TEXT_MAX, "pid %d uid %u", (int)cred.pid, (unsigned)cred.uid);
        return;
    }
    if (getnameinfo((struct sockaddr *)&at, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(out, KVP_PEER_TEXT_MAX, at.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

bool
kvp_addr_is_loopback(const struct sockaddr *at)
{
    if (at->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr);
    return at->sa_family == AF_INET && ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}
