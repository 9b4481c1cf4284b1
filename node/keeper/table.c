/* SPDX-License-Identifier: Apache-2.0 */
#include "node/keeper/table.h"

#include "common/list.h"
#include "common/log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void
close_all(const int *fds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]);
}

kvp_err_t
kvp_keeper_table_files(kvp_keeper_table_t *t, const kvp_keeper_msg_t *msg, const int *fds)
{
    kvp_err_t err = KVP_OK;

    if (t->total == 0 && msg->first == 0) {
        t->files = calloc(msg->total, sizeof *t->files);
        if (t->files == NULL) err = KVP_NOMEM;
        t->total = err == KVP_OK ? msg->total : 0;
    }
    if (err == KVP_OK && (msg->total != t->total || msg->first != t->files_n || msg->fds_n > t->total - t->files_n))
        err = KVP_INVALID;
    if (err != KVP_OK) {
        close_all(fds, msg->fds_n);
        return err;
    }
    for (uint32_t i = 0; i < msg->fds_n; i++)
        t->files[t->files_n++] = fds[i];
    return KVP_OK;
}

kvp_err_t
kvp_keeper_table_writer(kvp_keeper_table_t *t, uint64_t process, uint64_t incarnation, int pidfd)
{
    kvp_keeper_writer_t *more;
    kvp_err_t err = KVP_OK;

    for (uint32_t i = 0; i < t->writers_n; i++) {
        if (t->writers[i].process != process || t->writers[i].incarnation != incarnation) continue;
        close(pidfd);
        return KVP_OK;
    }
    if (t->writers_n == KVP_KEEPER_WRITERS_MAX) err = KVP_LIMIT;
    more = err != KVP_OK ? NULL : kvp_grow(t->writers, t->writers_n, &t->writers_cap, 64, sizeof *more);
    if (more == NULL) {
        close(pidfd);
        return err == KVP_OK ? KVP_NOMEM : err;
    }
    t->writers = more;
    t->writers[t->writers_n++] = (kvp_keeper_writer_t){.process = process, .incarnation = incarnation, .pidfd = pidfd};
    return KVP_OK;
}

void
kvp_keeper_table_over(kvp_keeper_table_t *t, uint64_t process, uint64_t incarnation)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->writers_n; i++) {
        const kvp_keeper_writer_t w = t->writers[i];

        if (w.process == process && (incarnation == 0 || w.incarnation == incarnation))
            close(w.pidfd);
        else
            t->writers[n++] = w;
    }
    t->writers_n = n;
}

bool
kvp_keeper_table_is_whole(const kvp_keeper_table_t *t)
{
    return t->total > 0 && t->files_n == t->total;
}

uint64_t
kvp_keeper_table_bytes(const kvp_keeper_table_t *t)
{
    uint64_t bytes = 0;
    struct stat st;

    for (uint32_t i = 0; i < t->files_n; i++)
        if (fstat(t->files[i], &st) == 0) bytes += (uint64_t)st.st_blocks * 512;
    return bytes;
}

/* punch_out frees the pages of a memory file. The caller frees metadata files before payload files, so a reader with
 * mappings finds no SEALED word of freed payload. */
static void
punch_out(int fd)
{
    struct stat st;

    if (fstat(fd, &st) == 0 && st.st_size > 0 &&
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, st.st_size) != 0)
        kvp_log_warn("keeper", "cannot punch out memory: %m");
}

void
kvp_keeper_table_clear(kvp_keeper_table_t *t, bool is_last)
{
    for (uint32_t i = 0; is_last && i < t->files_n; i++)
        punch_out(t->files[i]);
    close_all(t->files, t->files_n);
    for (uint32_t i = 0; i < t->writers_n; i++)
        close(t->writers[i].pidfd);
    free(t->files);
    free(t->writers);
    *t = (kvp_keeper_table_t){.total = 0};
}
