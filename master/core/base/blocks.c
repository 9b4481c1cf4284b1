/* SPDX-License-Identifier: Apache-2.0 */
#include "master/core/base/blocks.h"

#include <stdlib.h>

void
kvp_blocks_reach(kvp_blocks_t *b, uint32_t i)
{
    uint64_t biased = (uint64_t)i + (1u << KVP_BLOCKS_FIRST_BITS);
    uint32_t top = 63u - (uint32_t)__builtin_clzll(biased);
    void ***block = &b->blocks[top - KVP_BLOCKS_FIRST_BITS];

    /* malloc does not touch the block's memory: the operating system provides each page at its first use */
    if (*block == NULL) *block = malloc(sizeof **block << top);
    if (*block == NULL) kvp_panic("out of memory: %u records", i);
}

void
kvp_blocks_fini(kvp_blocks_t *b)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(b->blocks); i++)
        free(b->blocks[i]);
    *b = (kvp_blocks_t){0};
}
