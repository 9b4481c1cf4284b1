/* SPDX-License-Identifier: Apache-2.0
 * A pool of records of one size, each with a small number. Records are in blocks that never move. The pool allocates a
 * block when all others are full, and returns an empty block to the system (pages.h), except one, so its memory
 * follows its use. Single-threaded. Take and give cost O(1), and allocate or free at most one block. */
#ifndef KVP_COMMON_RECPOOL_H
#define KVP_COMMON_RECPOOL_H

#include "common/base.h"

#define KVP_RECPOOL_NONE UINT32_MAX
#define KVP_RECPOOL_BITS 12u
#define KVP_RECPOOL_BLOCK (1u << KVP_RECPOOL_BITS) /* number of records in a block */

typedef struct {
    uint32_t n; /* number of the block's records that are in use */
    uint32_t made; /* the records [0, made) have been used or blanked; the others were never touched */
    uint32_t free_head; /* index of the first free record in the block; KVP_RECPOOL_BLOCK = none */
    uint32_t prev, next; /* neighbours of the block in the list of blocks with a free record */
    _Alignas(64) uint8_t records[];
} kvp_recpool_block_t;

typedef struct {
    kvp_recpool_block_t **blocks; /* directory of the blocks by number; NULL = the block is not allocated */
    uint32_t record_bytes;
    uint32_t link_at; /* offset in a record of four bytes that the pool overwrites while the record is free */
    uint32_t back_at; /* offset in a record of four more bytes, which kvp_recpool_claim needs; 0 = no claims */
    uint32_t max; /* limit of the number of records in the pool */
    uint32_t n; /* number of the pool's records that are in use */
    uint32_t blocks_n, blocks_cap; /* blocks_n: highest block number + 1; blocks_cap: size of the directory */
    uint32_t hole; /* number of a block below which all blocks are allocated */
    uint32_t open; /* number of the first block with a free record; KVP_RECPOOL_NONE = none */
    uint32_t spare; /* number of an empty block that is kept for reuse; KVP_RECPOOL_NONE = none */
    uint64_t memory_bytes; /* bytes of memory in use: all records ever touched in allocated blocks, and the directory */
} kvp_recpool_t;

/* kvp_recpool_init makes an empty pool without allocating memory. record_bytes is a multiple of 4. */
void kvp_recpool_init(kvp_recpool_t *pool, uint32_t record_bytes, uint32_t link_at, uint32_t max);
/* kvp_recpool_init_claimed makes a pool that supports kvp_recpool_claim. This needs four more bytes of each free
 * record, at offset back_at, which is not 0. */
void kvp_recpool_init_claimed(kvp_recpool_t *pool, uint32_t record_bytes, uint32_t link_at, uint32_t back_at,
                              uint32_t max);
void kvp_recpool_fini(kvp_recpool_t *pool);
/* kvp_recpool_fini_some frees at most `blocks` blocks, and returns true when all are freed. Between these calls
 * the pool must not be used. */
bool kvp_recpool_fini_some(kvp_recpool_t *pool, uint32_t blocks);

/* kvp_recpool_take returns the number of a record, with undefined bytes, that is now in use; KVP_RECPOOL_NONE if
 * max records are in use or there is no memory. kvp_recpool_give frees the record; only its link bytes change. */
uint32_t kvp_recpool_take(kvp_recpool_t *pool);
void kvp_recpool_give(kvp_recpool_t *pool, uint32_t number);

/* kvp_recpool_claim takes the record with the given number, which must be free. It is for memory whose records
 * were numbered by an earlier process. Records below number that were never touched are set to `blank`
 * (record_bytes) and become free. False: no memory, or number is max or more. Costs O(records of a block) once for
 * each block, otherwise O(1). */
bool kvp_recpool_claim(kvp_recpool_t *pool, uint32_t number, const void *blank) KVP_MUST_USE;

/* kvp_recpool_was_made returns whether the record has been used before and still has memory; it may be free now. */
static inline bool
kvp_recpool_was_made(const kvp_recpool_t *pool, uint32_t number)
{
    const kvp_recpool_block_t *block =
        number >> KVP_RECPOOL_BITS < pool->blocks_n ? pool->blocks[number >> KVP_RECPOOL_BITS] : NULL;

    return block != NULL && (number & (KVP_RECPOOL_BLOCK - 1)) < block->made;
}

/* kvp_recpool_at returns the record with the number; it must have memory. Borrowed; records do not move. */
static inline void *
kvp_recpool_at(const kvp_recpool_t *pool, uint32_t number)
{
    kvp_recpool_block_t *block = pool->blocks[number >> KVP_RECPOOL_BITS];

    return block->records + (size_t)(number & (KVP_RECPOOL_BLOCK - 1)) * pool->record_bytes;
}

/* kvp_recpool_limit returns a number above all record numbers in use. */
uint32_t kvp_recpool_limit(const kvp_recpool_t *pool);

#endif
