/* SPDX-License-Identifier: Apache-2.0
 * The files of the master's log: see log_file.h. A file's name is the position of its first byte, so the directory is
 * the index of the log, and no second index can disagree with it. */
#include "master/shell/log_file.h"

#include "common/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOOT_BYTES 40u
#define READ_BYTES (1u << 20)

static void
name_of(uint64_t from, char name[KVP_LOG_NAME_BYTES])
{
    snprintf(name, KVP_LOG_NAME_BYTES, "%016" PRIx64 ".log", from);
}

static bool
parse_name(const char *name, uint64_t *from_out)
{
    char again[KVP_LOG_NAME_BYTES];

    if (sscanf(name, "%16" SCNx64 ".log", from_out) != 1) return false;
    name_of(*from_out, again);
    return strcmp(again, name) == 0;
}

static kvp_err_t
log_failure(const kvp_log_file_t *lf, const char *what)
{
    kvp_log_error("master", "cannot %s the log: %m dir=%s/log", what, lf->dir);
    return KVP_SYS;
}

void
kvp_log_file_init(kvp_log_file_t *lf)
{
    *lf = (kvp_log_file_t){.dir_fd = -1, .fd = -1};
}

void
kvp_log_file_fini(kvp_log_file_t *lf)
{
    if (lf->fd >= 0) close(lf->fd);
    if (lf->dir_fd >= 0) close(lf->dir_fd);
    kvp_log_file_init(lf);
}

/* ---- opening */
static int
by_position(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static kvp_err_t
list_files(kvp_log_file_t *lf)
{
    int fd = openat(lf->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    kvp_err_t err = KVP_OK;
    uint64_t from;

    if (dir == NULL) {
        if (fd >= 0) close(fd);
        return log_failure(lf, "list");
    }
    for (const struct dirent *entry; err == KVP_OK && (entry = readdir(dir)) != NULL;) {
        struct stat st;

        if (!parse_name(entry->d_name, &from)) continue;
        if (lf->files == KVP_LOG_FILES_MAX)
            err = KVP_LIMIT;
        else
            lf->from[lf->files++] = from;
        if (fstatat(lf->dir_fd, entry->d_name, &st, 0) == 0) lf->found_bytes += (uint64_t)st.st_size;
    }
    closedir(dir);
    if (err != KVP_OK) kvp_log_error("master", "too many files of a log dir=%s/log", lf->dir);
    qsort(lf->from, lf->files, sizeof *lf->from, by_position);
    return err;
}

static size_t
read_text(int dir_fd, const char *name, char text[BOOT_BYTES])
{
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, BOOT_BYTES);

    if (fd >= 0) close(fd);
    return n < 0 ? 0 : (size_t)n;
}

static kvp_err_t
note_boot(const kvp_log_file_t *lf)
{
    char text[BOOT_BYTES];
    size_t len = read_text(AT_FDCWD, "/proc/sys/kernel/random/boot_id", text);
    int fd = openat(lf->dir_fd, "boot", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool is_written = fd >= 0 && write(fd, text, len) == (ssize_t)len && fsync(fd) == 0;
    kvp_err_t err = is_written ? KVP_OK : log_failure(lf, "write the boot of");

    if (fd >= 0) close(fd);
    return err;
}

static void
leave_out(kvp_log_file_t *lf, uint32_t first, uint32_t n, kvp_log_gone_t *gone_out)
{
    gone_out->n = n;
    memcpy(gone_out->from, &lf->from[first], n * sizeof *lf->from);
    memmove(&lf->from[first], &lf->from[first + n], (lf->files - first - n) * sizeof *lf->from);
    lf->files -= n;
}

void
kvp_log_file_remove(const kvp_log_file_t *lf, const kvp_log_gone_t *gone)
{
    char name[KVP_LOG_NAME_BYTES];

    for (uint32_t i = 0; i < gone->n; i++) {
        name_of(gone->from[i], name);
        (void)unlinkat(lf->dir_fd, name, 0); /* after a failure, a start reads the old file and then the newer base */
    }
}

static void
remove_files(kvp_log_file_t *lf, uint32_t first, uint32_t n)
{
    kvp_log_gone_t gone;

    leave_out(lf, first, n, &gone);
    kvp_log_file_remove(lf, &gone);
}

static bool
is_of_this_boot(const kvp_log_file_t *lf)
{
    char now[BOOT_BYTES], then[BOOT_BYTES];
    size_t now_len = read_text(AT_FDCWD, "/proc/sys/kernel/random/boot_id", now);
    size_t then_len = read_text(lf->dir_fd, "boot", then);

    return now_len > 0 && now_len == then_len && memcmp(now, then, now_len) == 0;
}

kvp_err_t
kvp_log_file_look(kvp_log_file_t *lf, int dir_fd, const char *dir)
{
    kvp_err_t err;

    lf->dir = dir;
    lf->dir_fd = openat(dir_fd, "log", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lf->dir_fd < 0) return log_failure(lf, "open");
    err = list_files(lf);
    lf->is_boot_due = !is_of_this_boot(lf);
    lf->may_lack_end = lf->is_boot_due && lf->files > 0;
    return err;
}

kvp_err_t
kvp_log_file_open(kvp_log_file_t *lf, int dir_fd, const char *dir, bool is_new)
{
    kvp_err_t err;

    lf->dir = dir;
    if (mkdirat(dir_fd, "log", 0700) != 0 && errno != EEXIST) return log_failure(lf, "make the directory of");
    err = kvp_log_file_look(lf, dir_fd, dir);
    if (err != KVP_OK || (!is_new && !lf->may_lack_end)) return err;
    if (lf->files > 0)
        kvp_log_warn("master", "%s: a new log begins, and nodes are asked for their objects dir=%s/log",
                     is_new ? "the log belongs to a pool that is not known here any more"
                            : "the log is of another boot of this machine, or of another one, and may lack its end",
                     lf->dir);
    if (!is_new) return KVP_OK;
    remove_files(lf, 0, lf->files);
    lf->may_lack_end = false;
    lf->is_boot_due = true;
    return KVP_OK;
}

/* ---- reading */
static int
open_file(const kvp_log_file_t *lf, uint64_t from, int flags)
{
    char name[KVP_LOG_NAME_BYTES];

    name_of(from, name);
    return openat(lf->dir_fd, name, flags | O_CLOEXEC, 0600);
}

/* Passes the bytes of the file that begins at position *at to fn, and advances *at. *ok_out: fn wants more bytes. */
static kvp_err_t
read_file(const kvp_log_file_t *lf, uint64_t *at, uint8_t *piece, kvp_log_file_fn fn, void *arg, bool *ok_out)
{
    int fd = open_file(lf, *at, O_RDONLY);
    ssize_t n = -1;

    while (fd >= 0 && *ok_out && (n = read(fd, piece, READ_BYTES)) > 0) {
        *ok_out = fn(arg, piece, (size_t)n) == KVP_OK;
        *at += (uint64_t)n;
    }
    if (n < 0) kvp_ignore(log_failure(lf, "read"), "returned below");
    if (fd >= 0) close(fd);
    return n < 0 ? KVP_SYS : KVP_OK;
}

kvp_err_t
kvp_log_file_read(const kvp_log_file_t *lf, kvp_log_file_fn fn, void *arg, uint64_t *read_out)
{
    uint8_t *piece = malloc(READ_BYTES);
    const uint64_t from = lf->files > 0 ? lf->from[0] : 0;
    uint64_t at = from;
    kvp_err_t err = piece == NULL ? KVP_NOMEM : KVP_OK;
    bool goes_on = true;

    for (uint32_t i = 0; err == KVP_OK && i < lf->files && goes_on && at == lf->from[i]; i++)
        err = read_file(lf, &at, piece, fn, arg, &goes_on);
    free(piece);
    *read_out = at - from;
    return err;
}

kvp_err_t
kvp_log_file_pread(const kvp_log_file_t *lf, uint64_t at, void *bytes, size_t len, size_t *n_out)
{
    uint32_t i = lf->files;
    ssize_t n;
    int fd;

    while (i > 0 && lf->from[i - 1] > at)
        i--;
    if (i == 0) return KVP_NOT_FOUND;
    if (i < lf->files) len = kvp_min_u64(len, lf->from[i] - at);
    fd = open_file(lf, lf->from[i - 1], O_RDONLY);
    n = fd < 0 ? -1 : pread(fd, bytes, len, (off_t)(at - lf->from[i - 1]));
    if (fd >= 0) close(fd);
    if (n < 0) return KVP_SYS;
    *n_out = (size_t)n;
    return KVP_OK;
}

void
kvp_log_file_begin_at(kvp_log_file_t *lf, uint64_t position)
{
    if (lf->fd >= 0) close(lf->fd);
    lf->fd = -1;
    remove_files(lf, 0, lf->files);
    lf->end = position;
    lf->may_lack_end = false;
}

/* ---- writing */
kvp_err_t
kvp_log_file_cut(kvp_log_file_t *lf, uint64_t kept)
{
    uint32_t n = 0;

    lf->end = lf->files > 0 ? lf->from[0] + kept : 0;
    while (n < lf->files && lf->from[n] < lf->end)
        n++;
    remove_files(lf, n, lf->files - n);
    if (lf->fd >= 0) close(lf->fd);
    lf->fd = -1;
    if (n == 0) return KVP_OK;
    lf->fd = open_file(lf, lf->from[n - 1], O_WRONLY);
    if (lf->fd < 0 || ftruncate(lf->fd, (off_t)(lf->end - lf->from[n - 1])) != 0) return log_failure(lf, "cut");
    return KVP_OK;
}

/* ---- damage */
void
kvp_log_file_find(const kvp_log_file_t *lf, uint64_t kept, char name_out[KVP_LOG_NAME_BYTES], uint64_t *at_out)
{
    uint64_t end = lf->files > 0 ? lf->from[0] + kept : kept;
    uint32_t n = lf->files;

    while (n > 1 && lf->from[n - 1] > end)
        n--;
    name_of(lf->files > 0 ? lf->from[n - 1] : 0, name_out);
    *at_out = lf->files > 0 ? end - lf->from[n - 1] : 0;
}

static bool
copy_rest(const kvp_log_file_t *lf, uint64_t file, uint64_t from, const char *to)
{
    int in = open_file(lf, file, O_RDONLY);
    int out = openat(lf->dir_fd, to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t n = in < 0 || out < 0 ? -1 : 1;
    off_t at = (off_t)(from - file);

    while (n > 0)
        n = sendfile(out, in, &at, READ_BYTES);
    if (n == 0 && fsync(out) != 0) n = -1;
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    if (out >= 0 && n < 0) (void)unlinkat(lf->dir_fd, to, 0);
    return n == 0;
}

/* The file `boot` is removed first: if this call is interrupted, the next start sets may_lack_end, and asks nodes. */
kvp_err_t
kvp_log_file_set_aside(kvp_log_file_t *lf, uint64_t kept, char name_out[KVP_LOG_NAME_BYTES])
{
    uint64_t end = lf->from[0] + kept;
    char name[KVP_LOG_NAME_BYTES];

    if ((unlinkat(lf->dir_fd, "boot", 0) != 0 && errno != ENOENT) || fsync(lf->dir_fd) != 0)
        return log_failure(lf, "set aside the rest of");
    for (uint32_t i = lf->files; i-- > 0;) {
        uint64_t from = kvp_max_u64(lf->from[i], end);

        if (i + 1 < lf->files && lf->from[i + 1] <= end) break; /* this file ends before the cut */
        snprintf(name, sizeof name, "%016" PRIx64 ".damaged", from);
        if (!copy_rest(lf, lf->from[i], from, name)) return log_failure(lf, "set aside the rest of");
        memcpy(name_out, name, sizeof name);
    }
    return kvp_log_file_cut(lf, kept);
}

kvp_err_t
kvp_log_file_write(kvp_log_file_t *lf, const void *bytes, size_t len)
{
    size_t done = 0;

    if (lf->files == 0) kvp_panic("a log that begins without a base");
    uint64_t from = lf->from[lf->files - 1];

    while (done < len) {
        ssize_t n = pwrite(lf->fd, (const uint8_t *)bytes + done, len - done, (off_t)(lf->end - from + done));

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return KVP_SYS;
        done += (size_t)n;
    }
    if (lf->is_boot_due && note_boot(lf) != KVP_OK) return KVP_SYS;
    lf->is_boot_due = false;
    lf->end += len;
    return KVP_OK;
}

kvp_err_t
kvp_log_file_sync(const kvp_log_file_t *lf)
{
    return lf->is_never_synced || lf->fd < 0 || fdatasync(lf->fd) == 0 ? KVP_OK : KVP_SYS;
}

kvp_err_t
kvp_log_file_turn(kvp_log_file_t *lf)
{
    int fd;

    if (lf->files == KVP_LOG_FILES_MAX) {
        errno = EMFILE;
        return KVP_SYS;
    }
    fd = open_file(lf, lf->end, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) return KVP_SYS;
    if (!lf->is_never_synced && fsync(lf->dir_fd) != 0) { /* without this sync a power loss could remove the new file */
        close(fd);
        return KVP_SYS;
    }
    lf->has_lost |= kvp_log_file_sync(lf) != KVP_OK;
    if (lf->fd >= 0) close(lf->fd);
    lf->fd = fd;
    if (lf->files == 0 || lf->from[lf->files - 1] != lf->end) lf->from[lf->files++] = lf->end;
    return KVP_OK;
}

void
kvp_log_file_forget(kvp_log_file_t *lf, uint64_t before, kvp_log_gone_t *gone_out)
{
    uint32_t n = 0;

    while (n + 1 < lf->files && lf->from[n + 1] <= before)
        n++;
    leave_out(lf, 0, n, gone_out);
}

uint64_t
kvp_log_file_bytes(const kvp_log_file_t *lf)
{
    return lf->files == 0 ? 0 : lf->end - lf->from[0];
}
