/* SPDX-License-Identifier: Apache-2.0
 * Reads the files of the log in libuv's pool: see reader.h. */
#include "master/ha/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (256u << 10)

kvp_err_t
kvp_reader_init(kvp_reader_t *r)
{
    *r = (kvp_reader_t){.bytes = malloc(PIECE_BYTES)};
    r->work.data = r;
    return r->bytes == NULL ? KVP_NOMEM : KVP_OK;
}

void
kvp_reader_fini(kvp_reader_t *r)
{
    free(r->bytes);
    r->bytes = NULL;
}

static void
on_read(uv_work_t *work)
{
    kvp_reader_t *r = work->data;

    r->err = kvp_log_file_pread(&r->file, r->at, r->bytes, r->most, &r->n);
    r->error = errno;
    if (r->err == KVP_OK && r->n == 0) r->err = KVP_CLOSED;
}

static void
on_read_end(uv_work_t *work, int status)
{
    kvp_reader_t *r = work->data;

    (void)status;
    r->is_reading = false;
}

kvp_err_t
kvp_reader_get(kvp_reader_t *r, uv_loop_t *uv, const kvp_log_file_t *file, uint64_t at, uint64_t to,
               const uint8_t **bytes_out, size_t *n_out)
{
    const kvp_err_t err = !r->is_reading && r->at == at ? r->err : KVP_OK;

    *n_out = 0;
    if (r->is_reading) return KVP_OK;
    r->err = KVP_OK;
    if (err != KVP_OK) return err;
    if (at >= r->at && at < r->at + r->n) {
        *bytes_out = r->bytes + (at - r->at);
        *n_out = r->n - (at - r->at);
    } else if (at < to) {
        r->is_reading = true;
        r->file.dir_fd = file->dir_fd;
        r->file.files = file->files;
        memcpy(r->file.from, file->from, sizeof file->from);
        r->at = at;
        r->most = kvp_min_u64(PIECE_BYTES, to - at);
        r->n = 0;
        (void)uv_queue_work(uv, &r->work, on_read, on_read_end);
    }
    return KVP_OK;
}

bool
kvp_reader_reset(kvp_reader_t *r)
{
    if (r->is_reading) return false;
    r->n = 0;
    r->err = KVP_OK;
    return true;
}
