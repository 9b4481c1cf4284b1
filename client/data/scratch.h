/* SPDX-License-Identifier: Apache-2.0
 * Working memory of one call (a scratch): a bump allocator and the two frame buffers. Calls take it from a pool of
 * the handle, so a call on the hot path does no malloc. One thread at a time uses a scratch; any thread may use the
 * pool. */
#ifndef KVP_CLIENT_DATA_SCRATCH_H
#define KVP_CLIENT_DATA_SCRATCH_H

#include "common/buf.h"
#include "common/hash.h"
#include "common/list.h"

#include <pthread.h>

typedef struct kvp_scratch_block kvp_scratch_block_t;

typedef struct {
    kvp_list_t link;
    kvp_scratch_block_t *blocks; /* blocks of memory, the newest first */
    kvp_buf_t out; /* the message to send */
    kvp_buf_t in; /* the received answer */
    kvp_sum_state_t *sum; /* reusable state for checksums of several pieces; NULL until the first use */
} kvp_scratch_t;

typedef struct {
    pthread_mutex_t lock; /* lock of the idle list, a leaf: its holder takes no other lock */
    kvp_list_t idle; /* list of unused scratches; guarded by lock */
    uint32_t idle_n;
} kvp_scratch_pool_t;

void kvp_scratch_pool_init(kvp_scratch_pool_t *pool);
void kvp_scratch_pool_fini(kvp_scratch_pool_t *pool);

/* kvp_scratch_take returns an empty scratch, or NULL without memory. kvp_scratch_rele gives the scratch back to the
 * pool. */
kvp_scratch_t *kvp_scratch_take(kvp_scratch_pool_t *pool);
void kvp_scratch_rele(kvp_scratch_pool_t *pool, kvp_scratch_t *scratch);

/* kvp_scratch_alloc returns n * size bytes, not zeroed, aligned to 64, valid until kvp_scratch_reset or
 * kvp_scratch_rele; NULL without memory or on overflow. kvp_scratch_reset frees all allocations and keeps the frame
 * buffers. */
void *kvp_scratch_alloc(kvp_scratch_t *scratch, size_t n, size_t size);
void kvp_scratch_reset(kvp_scratch_t *scratch);

/* kvp_scratch_sum returns a state for the checksum of several pieces, already begun. The state belongs to the
 * scratch. NULL without memory. */
kvp_sum_state_t *kvp_scratch_sum(kvp_scratch_t *scratch);

#endif
