/* SPDX-License-Identifier: Apache-2.0
 * An array of pointers that grows by blocks. Each block is as long as all blocks before it together. Blocks never
 * move: growth copies nothing, and touches no new memory before its use. The zero value is an empty array. */
#ifndef KVP_MASTER_CORE_BASE_BLOCKS_H
#define KVP_MASTER_CORE_BASE_BLOCKS_H

#include "common/base.h"

#define KVP_BLOCKS_FIRST_BITS 6u

typedef struct {
    void **blocks[32 - KVP_BLOCKS_FIRST_BITS + 1];
} kvp_blocks_t;

/* kvp_blocks_reach grows the array so that element i is usable; the element's initial value is undefined. */
void kvp_blocks_reach(kvp_blocks_t *b, uint32_t i);
void kvp_blocks_fini(kvp_blocks_t *b);

static inline void **
kvp_blocks_at(const kvp_blocks_t *b, uint32_t i)
{
    uint64_t biased = (uint64_t)i + (1u << KVP_BLOCKS_FIRST_BITS);
    uint32_t top = 63u - (uint32_t)__builtin_clzll(biased);

    return &b->blocks[top - KVP_BLOCKS_FIRST_BITS][biased - (1ull << top)];
}

#endif
