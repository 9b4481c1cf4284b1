/* SPDX-License-Identifier: Apache-2.0
 * Key digests and content sums, all XXH3. libxxhash chooses the vector code at run time where it
 * can. */
#ifndef KVP_COMMON_HASH_H
#define KVP_COMMON_HASH_H

#include "common/base.h"

#define KVP_KEY_MAX 1024u

typedef struct {
    uint64_t lo;
    uint64_t hi;
} kvp_digest_t;

static inline bool
kvp_digest_eq(kvp_digest_t a, kvp_digest_t b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

#define KVP_TENANT_NAME_MAX 128u

/* kvp_tenant_id is the number of the tenant of a name, part of digests and descriptors: 0 for ""
 * and "default", for others 32 bits of XXH3-64 of the name, never 0. Two names may collide; a
 * master admits only one of two colliding names. */
uint32_t kvp_tenant_id(const char *name);

/* kvp_key_digest is the index key of (tenant, key): XXH3-128 of the key's bytes, seeded with the pool's seed mixed
 * with the tenant, so that equal keys of two tenants differ. PROTOCOL "Digests". */
kvp_digest_t kvp_key_digest(uint64_t pool_seed, uint32_t tenant, const void *key, size_t len);

/* kvp_key_hash2 is an independent second hash of the same, kept in descriptors: a digest collision, forged or not, is
 * seen by the reader. */
uint64_t kvp_key_hash2(uint64_t pool_seed, uint32_t tenant, const void *key, size_t len);

/* kvp_mix_t is a secret of the process for hash tables whose keys strangers choose: without the
 * secret, a peer cannot construct colliding keys. kvp_mix_make derives a secret from a seed; tables
 * of one process may share the seed, and no peer ever learns it. kvp_mix returns the 128-bit
 * product, whose upper bits in either half depend on both words. kvp_mix64 folds the halves: a
 * product modulo 2^64 would let chosen keys collide under every secret. */
typedef struct {
    uint64_t a, b;
} kvp_mix_t;

kvp_mix_t kvp_mix_make(uint64_t seed);

static inline unsigned __int128
kvp_mix(const kvp_mix_t *mix, uint64_t lo, uint64_t hi)
{
    return (unsigned __int128)(lo ^ mix->a) * (hi ^ mix->b);
}

static inline uint64_t
kvp_mix64(const kvp_mix_t *mix, uint64_t lo, uint64_t hi)
{
    unsigned __int128 mixed = kvp_mix(mix, lo, hi);

    return (uint64_t)mixed ^ (uint64_t)(mixed >> 64);
}

/* Content sum: XXH3-64, seed 0, over the object's bytes. 0 is never returned (it means "no sum"): it is mapped to 1. */
typedef struct kvp_sum_state kvp_sum_state_t;
uint64_t kvp_sum(const void *data, size_t len);

/* Streaming form for fused copies and scatter lists. kvp_sum_create returns a 64-byte aligned
 * state, or NULL without memory; kvp_sum_destroy frees the state. A reset makes a state reusable. */
kvp_sum_state_t *kvp_sum_create(void);
void kvp_sum_destroy(kvp_sum_state_t *state);
void kvp_sum_reset(kvp_sum_state_t *state);
void kvp_sum_update(kvp_sum_state_t *state, const void *data, size_t len);
uint64_t kvp_sum_digest(const kvp_sum_state_t *state);

#endif
