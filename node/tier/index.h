/* SPDX-License-Identifier: Apache-2.0
 * The index of the SSD tier: the place of each digest's newest record. 32 bytes for each record, in many small hash
 * tables with open addressing. A table grows by an eighth when it is seven eighths full, so a record costs at most 41
 * bytes from some ten thousand records on, and an insertion moves at most one table. Peers choose digests, so a
 * secret decides the slots. Not thread-safe. */
#ifndef KVP_NODE_TIER_INDEX_H
#define KVP_NODE_TIER_INDEX_H

#include "node/tier/format.h"

#define KVP_TIER_SHARDS 4096u

typedef struct {
    struct {
        kvp_tier_entry_t *slots; /* the entries of the table; an entry with units 0 is empty */
        uint32_t cap;
        uint32_t n;
    } shards[KVP_TIER_SHARDS];
    kvp_mix_t mix;
    uint64_t n;
    uint64_t bytes; /* the bytes of memory that the index uses */
} kvp_tier_index_t;

void kvp_tier_index_init(kvp_tier_index_t *index, uint64_t secret);
void kvp_tier_index_fini(kvp_tier_index_t *index);

/* kvp_tier_index_find returns the digest's entry or NULL, borrowed until the next change of the index.
 * kvp_tier_index_put adds an entry, or replaces the digest's entry: false = no memory. kvp_tier_index_remove removes
 * an entry that find returned. */
kvp_tier_entry_t *kvp_tier_index_find(const kvp_tier_index_t *index, kvp_digest_t digest);
bool kvp_tier_index_put(kvp_tier_index_t *index, const kvp_tier_entry_t *entry) KVP_MUST_USE;
void kvp_tier_index_remove(kvp_tier_index_t *index, kvp_tier_entry_t *entry);

/* kvp_tier_index_next returns the next entry from *cursor on (0 = the first) and advances the cursor; NULL at the end.
 * The cursor stays valid over changes. A change moves other entries of the same table (shard), and any of them may then
 * be missed or returned twice. */
const kvp_tier_entry_t *kvp_tier_index_next(const kvp_tier_index_t *index, uint64_t *cursor);

#endif
