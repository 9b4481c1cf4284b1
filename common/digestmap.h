/* SPDX-License-Identifier: Apache-2.0
 * A map from digests to non-zero numbers: open addressing with linear probing. Peers choose
 * digests, so a secret seed decides the slots. The zero value is an empty map with seed 0. */
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

/* kvp_digestmap_reserve makes an empty map large enough for n entries, so that none of the next n
 * insertions moves an entry. Returns false without memory. */
bool kvp_digestmap_reserve(kvp_digestmap_t *map, uint32_t n) KVP_MUST_USE;

/* kvp_digestmap_at returns the digest's value or NULL. The pointer is borrowed until the next
 * insertion; the caller may change the value, but not to 0. kvp_digestmap_insert also makes the
 * entry, with value 0 for the caller to replace at once; NULL without memory. */
uint64_t *kvp_digestmap_at(const kvp_digestmap_t *map, kvp_digest_t digest);
uint64_t *kvp_digestmap_insert(kvp_digestmap_t *map, kvp_digest_t digest);

/* kvp_digestmap_remove removes the digest if present; other entries move. */
void kvp_digestmap_remove(kvp_digestmap_t *map, kvp_digest_t digest);

/* kvp_digestmap_next returns the next entry from *at on, and advances *at; NULL at the end. */
const kvp_digestmap_at_t *kvp_digestmap_next(const kvp_digestmap_t *map, uint32_t *at);

#endif
