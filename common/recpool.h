/* SPDX-License-Identifier: Apache-2.0
 * Records of one size, named by small numbers. Records lie in blocks that never move. The pool
 * allocates a block when all others are full, and returns a block to the system (pages.h) with its
 * last record, so memory follows use. Single-threaded; take and give cost O(1), and allocate or
 * free at most one block. */
#ifndef KVP_COMMON_RECPOOL_H
#define KVP_COMMON_RECPOOL_H

#include "common/base.h"

#define KVP_RECPOOL_NONE UINT32_MAX
#define KVP_RECPOOL_BITS 12u
#define KVP_RECPOOL_BLOCK (1u << KVP_RECPOOL_BITS) /* records */

typedef struct {
    uint32_t n; /* records in use */
    uint32_t made; /* records ever used; those above were never touched */
    uint32_t free_head; /* index in the block, KVP_RECPOOL_BLOCK = none */
    uint32_t prev, next; /* blocks with a free record */
    _Alignas(64) uint8_t records[];
} kvp_recpool_block_t;

typedef struct {
    kvp_recpool_block_t **blocks; /* NULL = given back */
    uint32_t record_bytes;
    uint32_t link_at; /* four bytes of a record that is not in use, which the pool writes */
    uint32_t back_at; /* and four more, for claims; 0 = there are none */
    uint32_t max; /* most records */
    uint32_t n; /* records in use */
    uint32_t blocks_n, blocks_cap; /* n: one above the highest block */
    uint32_t hole; /* no block below is missing */
    uint32_t open; /* first block with a free record, KVP_RECPOOL_NONE = none */
    uint32_t spare; /* an empty block that is kept, KVP_RECPOOL_NONE = none */
    uint64_t memory_bytes; /* of all records ever touched in allocated blocks, and of the directory */
} kvp_recpool_t;

/* kvp_recpool_init takes nothing yet. record_bytes is a multiple of 4. */
void kvp_recpool_init(kvp_recpool_t *pool, uint32_t record_bytes, uint32_t link_at, uint32_t max);
/* kvp_recpool_init_claimed: for kvp_recpool_claim, which finds its way by four more bytes, not at offset 0. */
void kvp_recpool_init_claimed(kvp_recpool_t *pool, uint32_t record_bytes, uint32_t link_at, uint32_t back_at,
                              uint32_t max);
void kvp_recpool_fini(kvp_recpool_t *pool);
/* kvp_recpool_fini_some frees up to `blocks` blocks, and returns true after the last. Between these
 * calls the pool must not be used. */
bool kvp_recpool_fini_some(kvp_recpool_t *pool, uint32_t blocks);

/* kvp_recpool_take returns the number of a record that is now in use, its bytes undefined;
 * KVP_RECPOOL_NONE when max are in use or there is no memory. kvp_recpool_give ends its use; only
 * the links change. */
uint32_t kvp_recpool_take(kvp_recpool_t *pool);
void kvp_recpool_give(kvp_recpool_t *pool, uint32_t number);

/* kvp_recpool_claim takes the record of a given number, which must be free: for memory that was
 * numbered by an earlier process. Records below number that were never touched become `blank`
 * (record_bytes) and free. Returns false without memory, or for a number of max or more. O(records
 * of a block) once per block; else O(1). */
bool kvp_recpool_claim(kvp_recpool_t *pool, uint32_t number, const void *blank) KVP_MUST_USE;

/* kvp_recpool_was_made returns whether the record has memory; the record may be free. */
static inline bool
kvp_recpool_was_made(const kvp_recpool_t *pool, uint32_t number)
{
    const kvp_recpool_block_t *block =
        number >> KVP_RECPOOL_BITS < pool->blocks_n ? pool->blocks[number >> KVP_RECPOOL_BITS] : NULL;

    return block != NULL && (number & (KVP_RECPOOL_BLOCK - 1)) < block->made;
}

/* kvp_recpool_at returns an allocated record (borrowed; records do not move). */
static inline void *
kvp_recpool_at(const kvp_recpool_t *pool, uint32_t number)
{
    kvp_recpool_block_t *block = pool->blocks[number >> KVP_RECPOOL_BITS];

    return block->records + (size_t)(number & (KVP_RECPOOL_BLOCK - 1)) * pool->record_bytes;
}

/* kvp_recpool_limit is above every number in use. */
uint32_t kvp_recpool_limit(const kvp_recpool_t *pool);

#endif
