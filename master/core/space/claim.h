/* SPDX-License-Identifier: Apache-2.0
 * A claim: the window of extents that a put which waits has for its own as soon as all of them are free.
 */
#ifndef KVP_MASTER_CORE_SPACE_CLAIM_H
#define KVP_MASTER_CORE_SPACE_CLAIM_H

#include "common/list.h"
#include "master/core/catalog/chunk.h"

typedef struct kvp_claim {
    kvp_list_t records; /* retire records of the window */
    kvp_list_t of_segment; /* segment->claims */
    kvp_list_t of_attempt; /* attempt->claims */
    kvp_list_t ready; /* in space->claims_ready: all of its window is free */
    kvp_chunk_t *chunk; /* NULL = no window */
    uint64_t from, to; /* the window in the chunk, bytes */
    uint32_t left; /* records of the window that are not free yet */
} kvp_claim_t;

#endif
