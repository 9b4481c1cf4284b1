/* SPDX-License-Identifier: Apache-2.0
 * Working memory of one call: a bump allocator and the two frame buffers. Taken from a pool of the handle, so that a
 * call on the hot path allocates nothing. A scratch belongs to one thread at a time; the pool is any thread's.
 */
#ifndef KVP_CLIENT_DATA_SCRATCH_H
#define KVP_CLIENT_DATA_SCRATCH_H

#include "common/buf.h"
#include "common/hash.h"
#include "common/list.h"

#include <pthread.h>

typedef struct kvp_scratch_block kvp_scratch_block_t;

typedef struct {
    kvp_list_t link;
    kvp_scratch_block_t *blocks; /* newest first */
    kvp_buf_t out; /* the frame to send */
    kvp_buf_t in; /* the answer */
    kvp_sum_state_t *sum; /* NULL until first use */
} kvp_scratch_t;

typedef struct {
    pthread_mutex_t lock; /* a leaf */
    kvp_list_t idle; /* guarded by lock */
    uint32_t idle_n;
} kvp_scratch_pool_t;

void kvp_scratch_pool_init(kvp_scratch_pool_t *pool);
void kvp_scratch_pool_fini(kvp_scratch_pool_t *pool);

/* kvp_scratch_take returns an empty scratch, or NULL on no memory; rele gives it back. */
kvp_scratch_t *kvp_scratch_take(kvp_scratch_pool_t *pool);
void kvp_scratch_rele(kvp_scratch_pool_t *pool, kvp_scratch_t *scratch);

/* kvp_scratch_alloc returns n * size bytes, not zeroed, aligned to 64, valid until reset or rele; NULL on no memory or
 * overflow. reset forgets everything allocated and keeps the buffers. */
void *kvp_scratch_alloc(kvp_scratch_t *scratch, size_t n, size_t size);
void kvp_scratch_reset(kvp_scratch_t *scratch);

/* kvp_scratch_sum returns a state for a sum of several pieces, begun; it stays the scratch's. NULL on no memory. */
kvp_sum_state_t *kvp_scratch_sum(kvp_scratch_t *scratch);

#endif
