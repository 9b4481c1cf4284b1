/* SPDX-License-Identifier: Apache-2.0
 * Executes a transfer on memory that is mapped in this process, by copies in pieces: what shm and mem do in submit.
 */
#ifndef KVP_CLIENT_TRANSPORT_LOCAL_H
#define KVP_CLIENT_TRANSPORT_LOCAL_H

#include "client/transport/copy.h"
#include "client/transport/transport.h"

/* An endpoint's state for it. */
typedef struct {
    kvp_copy_sum_t sum;
    uint64_t now_ns; /* clock, as old as `unclocked` bytes of copying */
    uint64_t unclocked;
} kvp_local_t;

/* kvp_local_begin reads the clock, once for a batch. */
void kvp_local_begin(kvp_local_t *local);

/* kvp_local_run moves the bytes of a transfer that kvp_xfer_check accepted. at is where roffset lies here, guard where
 * the guard's word lies (NULL for a transfer that has none). Fills sum; returns the status: OK, STALE, DEADLINE. */
kvp_err_t kvp_local_run(kvp_local_t *local, kvp_xfer_t *xfer, void *at, const void *guard) KVP_MUST_USE;

#endif
