/* SPDX-License-Identifier: Apache-2.0
 * Digests of keys and checksums of contents, over libxxhash. If the library has its x86 dispatcher, the code for
 * SSE2, AVX2 or AVX-512 is chosen at run time, so the build can target x86-64-v2. All variants give the same
 * results, which travel on the wire. */
#include "common/hash.h"

#ifdef KVP_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <string.h>

/* Converts our type to libxxhash's state. kvp_sum_state_t is never defined: it hides xxhash.h. */
static XXH3_state_t *
xxh_of(kvp_sum_state_t *state)
{
    return (XXH3_state_t *)state;
}

static uint64_t
tenant_seed(uint64_t pool_seed, uint32_t tenant)
{
    return pool_seed ^ (tenant * 0x9E3779B97F4A7C15ull);
}

static uint64_t
never_zero(uint64_t sum)
{
    return sum == 0 ? 1 : sum;
}

uint32_t
kvp_tenant_id(const char *name)
{
    uint32_t id;

    if (name[0] == '\0' || strcmp(name, "default") == 0) return 0;
    id = (uint32_t)XXH3_64bits(name, strlen(name));
    return id == 0 ? 1 : id;
}

kvp_digest_t
kvp_key_digest(uint64_t pool_seed, uint32_t tenant, const void *key, size_t len)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(key, len, tenant_seed(pool_seed, tenant));
    return (kvp_digest_t){.lo = h.low64, .hi = h.high64};
}

uint64_t
kvp_key_hash2(uint64_t pool_seed, uint32_t tenant, const void *key, size_t len)
{
    uint64_t inverse = ~tenant_seed(pool_seed, tenant);
    return XXH3_64bits_withSeed(key, len, inverse << 32 | inverse >> 32);
}

kvp_mix_t
kvp_mix_make(uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits(&seed, sizeof seed);
    return (kvp_mix_t){.a = h.low64, .b = h.high64 | 1};
}

uint64_t
kvp_sum(const void *data, size_t len)
{
    return never_zero(XXH3_64bits(data, len));
}

kvp_sum_state_t *
kvp_sum_create(void)
{
    XXH3_state_t *xxh = XXH3_createState();
    if (xxh == NULL) return NULL;
    kvp_sum_reset((kvp_sum_state_t *)xxh);
    return (kvp_sum_state_t *)xxh;
}

void
kvp_sum_destroy(kvp_sum_state_t *state)
{
    XXH3_freeState(xxh_of(state));
}

void
kvp_sum_reset(kvp_sum_state_t *state)
{
    XXH3_64bits_reset(xxh_of(state));
}

void
kvp_sum_update(kvp_sum_state_t *state, const void *data, size_t len)
{
    XXH3_64bits_update(xxh_of(state), data, len);
}

uint64_t
kvp_sum_digest(const kvp_sum_state_t *state)
{
    return never_zero(XXH3_64bits_digest((const XXH3_state_t *)state));
}
