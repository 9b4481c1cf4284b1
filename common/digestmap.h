/* SPDX-License-Identifier: Apache-2.0
 * A hash map from digests to non-zero numbers: open addressing with linear probing. Peers choose digests, so a
 * secret seed decides the slots. Zeroed memory is an empty map with seed 0. */
#ifndef KVP_COMMON_DIGESTMAP_H
#define KVP_COMMON_DIGESTMAP_H

#include "common/hash.h"

typedef struct {
    kvp_digest_t digest;
    uint64_t val; /* value that the map has for the digest; 0 = the slot is free */
} kvp_digestmap_at_t;

typedef struct {
    kvp_digestmap_at_t *slots;
    uint32_t cap; /* number of slots in the map: a power of two, or 0 */
    uint32_t n;
    uint64_t seed;
    kvp_mix_t mix; /* hash secret made from the seed; valid while cap > 0 */
} kvp_digestmap_t;

void kvp_digestmap_init(kvp_digestmap_t *map, uint64_t seed); /* makes an empty map; seed: a secret of the process */
void kvp_digestmap_fini(kvp_digestmap_t *map); /* frees the memory and leaves an empty map with the same seed */

/* kvp_digestmap_reserve gives an empty map room for n entries, so that none of the next n insertions moves an
 * entry. It returns false without memory. */
bool kvp_digestmap_reserve(kvp_digestmap_t *map, uint32_t n) KVP_MUST_USE;

/* kvp_digestmap_at returns a pointer to the digest's value, or NULL. The pointer is borrowed until the next
 * insertion; the caller may change the value, but not to 0. kvp_digestmap_insert also adds a missing entry, with
 * value 0, which the caller must replace at once; NULL without memory. */
uint64_t *kvp_digestmap_at(const kvp_digestmap_t *map, kvp_digest_t digest);
uint64_t *kvp_digestmap_insert(kvp_digestmap_t *map, kvp_digest_t digest);

/* kvp_digestmap_remove removes the digest, if it is present; other entries may move. */
void kvp_digestmap_remove(kvp_digestmap_t *map, kvp_digest_t digest);

/* kvp_digestmap_next returns the next entry from slot *at on, and moves *at past it; NULL at the end. */
const kvp_digestmap_at_t *kvp_digestmap_next(const kvp_digestmap_t *map, uint32_t *at);

#endif
