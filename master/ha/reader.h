/* SPDX-License-Identifier: Apache-2.0
 * Reads the files of the log in libuv's pool, a piece at a time: a disk may hang. On the loop's thread.
 */
#ifndef KVP_MASTER_HA_READER_H
#define KVP_MASTER_HA_READER_H

#include "master/shell/log_file.h"

#include <uv.h>

typedef struct {
    uv_work_t work;
    kvp_log_file_t file; /* where files begin: the loop may forget some meanwhile */
    bool is_reading; /* the fields below are the pool's */
    uint64_t at; /* position of the piece */
    size_t n; /* bytes of it; 0 = none */
    kvp_err_t err;
    int error; /* errno of it */
    size_t most; /* bytes of one read */
    uint8_t *bytes; /* owned */
} kvp_reader_t;

/* kvp_reader_init: NOMEM. kvp_reader_fini is legal on a zeroed reader, and when no read is under way. */
kvp_err_t kvp_reader_init(kvp_reader_t *r) KVP_MUST_USE;
void kvp_reader_fini(kvp_reader_t *r);

/* kvp_reader_get returns what the files have from that position on, valid until the next call.
 * *n_out 0: it is not read yet, and the loop has another turn when it is. No byte at `to` or after
 * it is read; at = to begins no read. Errors are kvp_log_file_pread's, with errno in r->error, and
 * CLOSED: the files end there. */
kvp_err_t kvp_reader_get(kvp_reader_t *r, uv_loop_t *uv, const kvp_log_file_t *file, uint64_t at, uint64_t to,
                         const uint8_t **bytes_out, size_t *n_out) KVP_MUST_USE;

/* kvp_reader_reset: the files have changed. False: a read is under way; call again later. */
bool kvp_reader_reset(kvp_reader_t *r);

#endif
