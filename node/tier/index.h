/* SPDX-License-Identifier: Apache-2.0
 * The place of each digest's newest record: 32 bytes a record, in many small tables of open
 * addressing. A table grows by an eighth when it is seven eighths full, so a record costs at most
 * 41 bytes with some ten thousand records or more, and an insertion moves at most one table. Peers
 * choose digests, so a secret decides the slots. Not thread-safe. */
#ifndef KVP_NODE_TIER_INDEX_H
#define KVP_NODE_TIER_INDEX_H

#include "node/tier/format.h"

#define KVP_TIER_SHARDS 4096u

typedef struct {
    struct {
        kvp_tier_entry_t *slots; /* units 0 = empty */
        uint32_t cap;
        uint32_t n;
    } shards[KVP_TIER_SHARDS];
    kvp_mix_t mix;
    uint64_t n;
    uint64_t bytes; /* of memory */
} kvp_tier_index_t;

void kvp_tier_index_init(kvp_tier_index_t *index, uint64_t secret);
void kvp_tier_index_fini(kvp_tier_index_t *index);

/* kvp_tier_index_find returns the digest's entry or NULL; borrowed until the next call that changes
 * the index. _put adds it, or replaces what the digest has: false = no memory. _remove takes what
 * _find returned. */
kvp_tier_entry_t *kvp_tier_index_find(const kvp_tier_index_t *index, kvp_digest_t digest);
bool kvp_tier_index_put(kvp_tier_index_t *index, const kvp_tier_entry_t *entry) KVP_MUST_USE;
void kvp_tier_index_remove(kvp_tier_index_t *index, kvp_tier_entry_t *entry);

/* kvp_tier_index_next returns the next entry from *cursor on (0 = the first) and moves it; NULL at
 * the end. Valid over changes, but what changes may be missed or met twice. */
const kvp_tier_entry_t *kvp_tier_index_next(const kvp_tier_index_t *index, uint64_t *cursor);

#endif
