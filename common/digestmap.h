/* SPDX-License-Identifier: Apache-2.0
 * A map from digests to numbers that are not 0: open addressing with linear probing. Peers choose digests, so a secret
 * says where they lie. The zero value is an empty map with seed 0.
 */
#ifndef KVP_COMMON_DIGESTMAP_H
#define KVP_COMMON_DIGESTMAP_H

#include "common/hash.h"

typedef struct {
    kvp_digest_t digest;
    uint64_t val; /* 0 = the place is empty */
} kvp_digestmap_at_t;

typedef struct {
    kvp_digestmap_at_t *slots;
    uint32_t cap; /* a power of two, or 0 */
    uint32_t n;
    uint64_t seed;
    kvp_mix_t mix; /* from the seed, while cap > 0 */
} kvp_digestmap_t;

void kvp_digestmap_init(kvp_digestmap_t *map, uint64_t seed); /* a secret of the process */
void kvp_digestmap_fini(kvp_digestmap_t *map); /* and empty again, with the same seed */

/* kvp_digestmap_reserve makes an empty map long enough for n entries, so that no insertion up to there moves any. False
 * where there is no memory. */
bool kvp_digestmap_reserve(kvp_digestmap_t *map, uint32_t n) KVP_MUST_USE;

/* kvp_digestmap_at returns the digest's value, which the caller may change but to 0 (borrowed until the next insertion), or NULL. _insert also makes it, with value 0 that the caller replaces at once; NULL where there is no
 * memory. */
uint64_t *kvp_digestmap_at(const kvp_digestmap_t *map, kvp_digest_t digest);
uint64_t *kvp_digestmap_insert(kvp_digestmap_t *map, kvp_digest_t digest);

/* kvp_digestmap_remove takes the digest out, if it is there; others move. */
void kvp_digestmap_remove(kvp_digestmap_t *map, kvp_digest_t digest);

/* kvp_digestmap_next returns the next entry from *at on and moves *at behind it; NULL at the end. */
const kvp_digestmap_at_t *kvp_digestmap_next(const kvp_digestmap_t *map, uint32_t *at);

#endif
