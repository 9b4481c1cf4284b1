/* SPDX-License-Identifier: Apache-2.0
 * A claim: a window (neighbouring extents) reserved for a waiting put, which gets its place when all of it is free. */
#ifndef KVP_MASTER_CORE_SPACE_CLAIM_H
#define KVP_MASTER_CORE_SPACE_CLAIM_H

#include "common/list.h"
#include "master/core/catalog/chunk.h"

typedef struct kvp_claim {
    kvp_list_t records; /* retire records of the extents in the window */
    kvp_list_t of_segment; /* segment->claims */
    kvp_list_t of_attempt; /* attempt->claims */
    kvp_list_t ready; /* link in space->claims_ready, when the whole window is free */
    kvp_chunk_t *chunk; /* the chunk of the window; NULL = no window */
    uint64_t from, to; /* the window's first byte and its end, as offsets in the chunk */
    uint32_t left; /* number of retire records of the window that are not free yet */
} kvp_claim_t;

#endif
