/* SPDX-License-Identifier: Apache-2.0
 * The standard hash of blocks: XXH3-64 with a seed, over the hash of all blocks before and the
 * block's tokens. Source: the KV events API, "Hashing standard". */
#ifndef KVP_CONDUCTOR_INDEX_CHAIN_H
#define KVP_CONDUCTOR_INDEX_CHAIN_H

#include "common/base.h"

#include <xxhash.h>

/* kvp_chain_next returns the hash of a prompt up to the end of its next block, whose n tokens are given. before is
 * the hash of the tokens before the block; NULL = the block is the first one. */
static inline uint64_t
kvp_chain_next(const uint64_t *before, const uint32_t *tokens, size_t n, uint64_t seed)
{
    const uint64_t local = XXH3_64bits_withSeed(tokens, n * sizeof *tokens, seed);
    const uint64_t both[2] = {before == NULL ? 0 : *before, local};

    return before == NULL ? local : XXH3_64bits_withSeed(both, sizeof both, seed);
}

#endif
