/* SPDX-License-Identifier: Apache-2.0 */
#include "common/digestmap.h"

#include "common/pages.h"

#define FIRST_CAP 64u

void
kvp_digestmap_init(kvp_digestmap_t *map, uint64_t seed)
{
    *map = (kvp_digestmap_t){.seed = seed};
}

void
kvp_digestmap_fini(kvp_digestmap_t *map)
{
    kvp_table_free(map->slots, map->cap, sizeof *map->slots);
    kvp_digestmap_init(map, map->seed);
}

static uint32_t
home_of(const kvp_digestmap_t *map, kvp_digest_t digest)
{
    return (uint32_t)(kvp_mix64(&map->mix, digest.lo, digest.hi) >> 32) & (map->cap - 1);
}

/* place_of returns the slot of the digest, or the free slot in which it would be inserted. The table is never full. */
static uint32_t
place_of(const kvp_digestmap_t *map, kvp_digest_t digest)
{
    uint32_t at = home_of(map, digest);

    while (map->slots[at].val != 0 && !kvp_digest_eq(map->slots[at].digest, digest))
        at = (at + 1) & (map->cap - 1);
    return at;
}

bool
kvp_digestmap_reserve(kvp_digestmap_t *map, uint32_t n)
{
    uint32_t cap = FIRST_CAP;

    while (cap / 2 < n)
        cap *= 2;
    map->slots = kvp_table_alloc(cap, sizeof *map->slots);
    if (map->slots == NULL) return false;
    map->cap = cap;
    map->mix = kvp_mix_make(map->seed);
    return true;
}

static bool
grow_map(kvp_digestmap_t *map)
{
    kvp_digestmap_t grown = {.cap = map->cap == 0 ? FIRST_CAP : map->cap * 2,
                             .n = map->n,
                             .seed = map->seed,
                             .mix = kvp_mix_make(map->seed)};

    grown.slots = kvp_table_alloc(grown.cap, sizeof *grown.slots);
    if (grown.slots == NULL) return false;
    for (uint32_t i = 0; i < map->cap; i++)
        if (map->slots[i].val != 0) grown.slots[place_of(&grown, map->slots[i].digest)] = map->slots[i];
    kvp_table_free(map->slots, map->cap, sizeof *map->slots);
    *map = grown;
    return true;
}

uint64_t *
kvp_digestmap_at(const kvp_digestmap_t *map, kvp_digest_t digest)
{
    uint32_t at;

    if (map->cap == 0) return NULL;
    at = place_of(map, digest);
    return map->slots[at].val == 0 ? NULL : &map->slots[at].val;
}

uint64_t *
kvp_digestmap_insert(kvp_digestmap_t *map, kvp_digest_t digest)
{
    uint32_t at;

    if (map->n + 1 > map->cap / 2 && !grow_map(map)) return NULL;
    at = place_of(map, digest);
    if (map->slots[at].val == 0) {
        map->slots[at].digest = digest;
        map->n++;
    }
    return &map->slots[at].val;
}

/* Removes the digest. The following entries of the probe sequence move up, but never before their home slot.
 * Source: Knuth, The Art of Computer Programming 3, 6.4, algorithm R. */
void
kvp_digestmap_remove(kvp_digestmap_t *map, kvp_digest_t digest)
{
    const uint32_t mask = map->cap - 1;
    uint32_t hole;

    if (map->cap == 0) return;
    hole = place_of(map, digest);
    if (map->slots[hole].val == 0) return;
    for (uint32_t at = (hole + 1) & mask; map->slots[at].val != 0; at = (at + 1) & mask) {
        if (((at - home_of(map, map->slots[at].digest)) & mask) < ((at - hole) & mask)) continue;
        map->slots[hole] = map->slots[at];
        hole = at;
    }
    map->slots[hole].val = 0;
    map->n--;
}

const kvp_digestmap_at_t *
kvp_digestmap_next(const kvp_digestmap_t *map, uint32_t *at)
{
    while (*at < map->cap) {
        const kvp_digestmap_at_t *found = &map->slots[(*at)++];

        if (found->val != 0) return found;
    }
    return NULL;
}
