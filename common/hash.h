/* SPDX-License-Identifier: Apache-2.0
 * Digests of keys and checksums of contents, all by XXH3. If possible, libxxhash chooses its vector code at run
 * time. */
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

/* kvp_tenant_id returns the number of the tenant with that name, which is a part of digests and descriptors: 0 for
 * "" and "default"; for all other names 32 bits of the name's XXH3-64, never 0. Two names may collide; a master
 * admits only one of them. */
uint32_t kvp_tenant_id(const char *name);

/* kvp_key_digest returns the index key of (tenant, key): the XXH3-128 of the key's bytes. The seed is the pool's
 * seed mixed with the tenant, so that equal keys of two tenants have different digests. PROTOCOL "Digests". */
kvp_digest_t kvp_key_digest(uint64_t pool_seed, uint32_t tenant, const void *key, size_t len);

/* kvp_key_hash2 returns a second, independent hash of (tenant, key), which is stored in objects' descriptors. By this
 * hash a reader detects a collision of digests, even a forged one. */
uint64_t kvp_key_hash2(uint64_t pool_seed, uint32_t tenant, const void *key, size_t len);

/* A secret of the process for hash tables whose keys come from peers: without the secret, a peer cannot construct
 * colliding keys. kvp_mix_make derives a secret from a seed; tables of one process may share the seed, which no
 * peer ever gets. kvp_mix returns the 128-bit product; the upper bits of both halves depend on both words.
 * kvp_mix64 folds the halves, because with a product modulo 2^64 chosen keys would collide under every secret. */
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

/* Checksum of an object's bytes: XXH3-64 with seed 0. The value 0 means "no checksum", so a result of 0 is
 * replaced by 1. */
typedef struct kvp_sum_state kvp_sum_state_t;
uint64_t kvp_sum(const void *data, size_t len);

/* Streaming form of kvp_sum, for bytes in several pieces. kvp_sum_create returns a state with 64-byte
 * alignment, or NULL without memory; kvp_sum_destroy frees it. kvp_sum_reset begins a new checksum. */
kvp_sum_state_t *kvp_sum_create(void);
void kvp_sum_destroy(kvp_sum_state_t *state);
void kvp_sum_reset(kvp_sum_state_t *state);
void kvp_sum_update(kvp_sum_state_t *state, const void *data, size_t len);
uint64_t kvp_sum_digest(const kvp_sum_state_t *state);

#endif
