/* SPDX-License-Identifier: Apache-2.0
 * Reads the files of the log in libuv's pool, a piece at a time, because a disk may hang. Used in the loop's thread. */
#ifndef KVP_MASTER_HA_READER_H
#define KVP_MASTER_HA_READER_H

#include "master/shell/log_file.h"

#include <uv.h>

typedef struct {
    uv_work_t work;
    kvp_log_file_t file; /* copy of the files' positions, because the loop may remove files during a read */
    bool is_reading; /* flag: a read is running, and the fields below belong to the thread pool */
    uint64_t at; /* log position of the piece */
    size_t n; /* bytes of the piece; 0 = none */
    kvp_err_t err;
    int error; /* errno of `err` */
    size_t most; /* limit of the bytes in one read */
    uint8_t *bytes; /* owned */
} kvp_reader_t;

/* kvp_reader_init: NOMEM. kvp_reader_fini is legal on a zeroed reader; no read may be running. */
kvp_err_t kvp_reader_init(kvp_reader_t *r) KVP_MUST_USE;
void kvp_reader_fini(kvp_reader_t *r);

/* kvp_reader_get returns the bytes of the files from the position `at` on, valid until the next call. *n_out 0: they
 * are not read yet, and the loop gets another turn when they are. No byte at `to` or later is read; at = to begins no
 * read. Errors are those of kvp_log_file_pread, with errno in r->error, and CLOSED: the files end at the position. */
kvp_err_t kvp_reader_get(kvp_reader_t *r, uv_loop_t *uv, const kvp_log_file_t *file, uint64_t at, uint64_t to,
                         const uint8_t **bytes_out, size_t *n_out) KVP_MUST_USE;

/* kvp_reader_reset discards the piece, because the files have changed. Returns false if a read is running: call again
 * later. */
bool kvp_reader_reset(kvp_reader_t *r);

#endif
