/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The upper bits of a digest's hash choose the table. Its lower bits, scaled to the table's length,
 * choose the home slot, so lengths need not be powers of two. A removal leaves no tombstone: the following entries
 * move up. */
#include "node/tier/index.h"

#include "common/pages.h"

#define FIRST_CAP 8u
#define CURSOR_SHIFT 32

void
kvp_tier_index_init(kvp_tier_index_t *index, uint64_t secret)
{
    *index = (kvp_tier_index_t){.mix = kvp_mix_make(secret), .bytes = sizeof *index};
}

void
kvp_tier_index_fini(kvp_tier_index_t *index)
{
    for (uint32_t s = 0; s < KVP_TIER_SHARDS; s++)
        kvp_table_free(index->shards[s].slots, index->shards[s].cap, sizeof(kvp_tier_entry_t));
    *index = (kvp_tier_index_t){.mix = index->mix, .bytes = sizeof *index};
}

static uint64_t
hash_of(const kvp_tier_index_t *index, kvp_digest_t digest)
{
    return kvp_mix64(&index->mix, digest.lo, digest.hi);
}

static uint32_t
shard_of(uint64_t hash)
{
    return (uint32_t)(hash >> 32) % KVP_TIER_SHARDS;
}

static uint32_t
home_of(uint64_t hash, uint32_t cap)
{
    return (uint32_t)((hash & UINT32_MAX) * cap >> 32);
}

/* Returns the digest's slot, or the empty slot where it would be added. The table is never full. */
static kvp_tier_entry_t *
place_of(kvp_tier_entry_t *slots, uint32_t cap, uint64_t hash, kvp_digest_t digest)
{
    uint32_t at = home_of(hash, cap);

    while (slots[at].units != 0 && !kvp_digest_eq(slots[at].digest, digest))
        at = at + 1 == cap ? 0 : at + 1;
    return &slots[at];
}

kvp_tier_entry_t *
kvp_tier_index_find(const kvp_tier_index_t *index, kvp_digest_t digest)
{
    uint64_t hash = hash_of(index, digest);
    uint32_t s = shard_of(hash);
    kvp_tier_entry_t *entry;

    if (index->shards[s].cap == 0) return NULL;
    entry = place_of(index->shards[s].slots, index->shards[s].cap, hash, digest);
    return entry->units == 0 ? NULL : entry;
}

static bool
grow_shard(kvp_tier_index_t *index, uint32_t s)
{
    uint32_t cap = index->shards[s].cap, next = cap == 0 ? FIRST_CAP : cap + cap / 8 + 1;
    kvp_tier_entry_t *old = index->shards[s].slots, *slots = kvp_table_alloc(next, sizeof *slots);

    if (slots == NULL) return false;
    for (uint32_t i = 0; i < cap; i++)
        if (old[i].units != 0) *place_of(slots, next, hash_of(index, old[i].digest), old[i].digest) = old[i];
    kvp_table_free(old, cap, sizeof *old);
    index->shards[s].slots = slots;
    index->shards[s].cap = next;
    index->bytes += (uint64_t)(next - cap) * sizeof *slots;
    return true;
}

bool
kvp_tier_index_put(kvp_tier_index_t *index, const kvp_tier_entry_t *entry)
{
    uint64_t hash = hash_of(index, entry->digest);
    uint32_t s = shard_of(hash);
    kvp_tier_entry_t *at;

    if ((index->shards[s].n + 1) * 8 > index->shards[s].cap * 7 && !grow_shard(index, s)) return false;
    at = place_of(index->shards[s].slots, index->shards[s].cap, hash, entry->digest);
    if (at->units == 0) {
        index->shards[s].n++;
        index->n++;
    }
    *at = *entry;
    return true;
}

void
kvp_tier_index_remove(kvp_tier_index_t *index, kvp_tier_entry_t *entry)
{
    uint32_t s = shard_of(hash_of(index, entry->digest));
    kvp_tier_entry_t *slots = index->shards[s].slots;
    uint32_t cap = index->shards[s].cap, hole = (uint32_t)(entry - slots), at = hole;

    for (;;) {
        at = at + 1 == cap ? 0 : at + 1;
        if (slots[at].units == 0) break;
        uint32_t home = home_of(hash_of(index, slots[at].digest), cap);

        if ((at + cap - home) % cap < (at + cap - hole) % cap) continue; /* an entry must not move before its home */
        slots[hole] = slots[at];
        hole = at;
    }
    slots[hole] = (kvp_tier_entry_t){0};
    index->shards[s].n--;
    index->n--;
}

const kvp_tier_entry_t *
kvp_tier_index_next(const kvp_tier_index_t *index, uint64_t *cursor)
{
    while (*cursor >> CURSOR_SHIFT < KVP_TIER_SHARDS) {
        uint32_t s = (uint32_t)(*cursor >> CURSOR_SHIFT), i = (uint32_t)*cursor;

        if (i >= index->shards[s].cap) {
            *cursor = (uint64_t)(s + 1) << CURSOR_SHIFT;
            continue;
        }
        ++*cursor;
        if (index->shards[s].slots[i].units != 0) return &index->shards[s].slots[i];
    }
    return NULL;
}
