/* SPDX-License-Identifier: Apache-2.0 */
#include "common/recpool.h"

#include "common/pages.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX (1u << (32 - KVP_RECPOOL_BITS))

static size_t
block_bytes(const kvp_recpool_t *pool)
{
    return sizeof(kvp_recpool_block_t) + (size_t)pool->record_bytes * KVP_RECPOOL_BLOCK;
}

void
kvp_recpool_init(kvp_recpool_t *pool, uint32_t record_bytes, uint32_t link_at, uint32_t max)
{
    *pool = (kvp_recpool_t){
        .record_bytes = record_bytes,
        .link_at = link_at,
        .max = max,
        .open = KVP_RECPOOL_NONE,
        .spare = KVP_RECPOOL_NONE,
    };
}

void
kvp_recpool_init_claimed(kvp_recpool_t *pool, uint32_t record_bytes, uint32_t link_at, uint32_t back_at, uint32_t max)
{
    kvp_recpool_init(pool, record_bytes, link_at, max);
    pool->back_at = back_at;
}

void
kvp_recpool_fini(kvp_recpool_t *pool)
{
    for (uint32_t b = 0; b < pool->blocks_n; b++)
        kvp_pages_free(pool->blocks[b], block_bytes(pool));
    free(pool->blocks);
    kvp_recpool_init_claimed(pool, pool->record_bytes, pool->link_at, pool->back_at, pool->max);
}

bool
kvp_recpool_fini_some(kvp_recpool_t *pool, uint32_t blocks)
{
    for (; pool->blocks_n > 0; pool->blocks_n--) {
        if (blocks-- == 0) return false;
        kvp_pages_free(pool->blocks[pool->blocks_n - 1], block_bytes(pool));
    }
    kvp_recpool_fini(pool);
    return true;
}

/* ---- blocks of records */
static void
block_open(kvp_recpool_t *pool, uint32_t b)
{
    pool->blocks[b]->prev = KVP_RECPOOL_NONE;
    pool->blocks[b]->next = pool->open;
    if (pool->open != KVP_RECPOOL_NONE) pool->blocks[pool->open]->prev = b;
    pool->open = b;
}

static void
block_close(kvp_recpool_t *pool, uint32_t b)
{
    kvp_recpool_block_t *block = pool->blocks[b];

    if (block->prev != KVP_RECPOOL_NONE)
        pool->blocks[block->prev]->next = block->next;
    else
        pool->open = block->next;
    if (block->next != KVP_RECPOOL_NONE) pool->blocks[block->next]->prev = block->prev;
}

/* Doubles the directory of blocks. The directory is small: 8 bytes for 4096 records. */
static bool
directory_grow(kvp_recpool_t *pool)
{
    uint32_t cap = pool->blocks_cap == 0 ? 1 : pool->blocks_cap * 2;
    kvp_recpool_block_t **blocks = realloc(pool->blocks, cap * sizeof *blocks);

    if (blocks == NULL) return false;
    pool->memory_bytes += (cap - pool->blocks_cap) * sizeof *blocks;
    pool->blocks = blocks;
    pool->blocks_cap = cap;
    return true;
}

/* Allocates block b. The first block of a pool may stay nearly empty, so its pages are not touched in advance. */
static bool
block_make_at(kvp_recpool_t *pool, uint32_t b)
{
    kvp_recpool_block_t *block;

    if (b >= BLOCKS_MAX || (uint64_t)b << KVP_RECPOOL_BITS >= pool->max) return false;
    while (b >= pool->blocks_cap)
        if (!directory_grow(pool)) return false;
    block = pool->blocks_n == 0 ? kvp_pages_alloc(block_bytes(pool)) : kvp_pages_take(block_bytes(pool));
    if (block == NULL) return false;
    block->free_head = KVP_RECPOOL_BLOCK;
    while (b >= pool->blocks_n)
        pool->blocks[pool->blocks_n++] = NULL;
    pool->blocks[b] = block;
    block_open(pool, b);
    return true;
}

/* Allocates the missing block with the lowest number. */
static bool
block_make(kvp_recpool_t *pool)
{
    while (pool->hole < pool->blocks_n && pool->blocks[pool->hole] != NULL)
        pool->hole++;
    return block_make_at(pool, pool->hole);
}

static void
block_drop(kvp_recpool_t *pool, uint32_t b)
{
    block_close(pool, b);
    pool->memory_bytes -= (uint64_t)pool->blocks[b]->made * pool->record_bytes;
    kvp_pages_free(pool->blocks[b], block_bytes(pool));
    pool->blocks[b] = NULL;
    pool->hole = (uint32_t)kvp_min_u64(pool->hole, b);
    while (pool->blocks_n > 0 && pool->blocks[pool->blocks_n - 1] == NULL)
        pool->blocks_n--;
}

/* ---- free records of a block: a list through the records, doubly linked in a pool with claims */
static uint32_t
link_get(const kvp_recpool_block_t *block, const kvp_recpool_t *pool, uint32_t i, uint32_t at)
{
    uint32_t link;

    memcpy(&link, block->records + (size_t)i * pool->record_bytes + at, sizeof link);
    return link;
}

static void
link_set(kvp_recpool_block_t *block, const kvp_recpool_t *pool, uint32_t i, uint32_t at, uint32_t link)
{
    memcpy(block->records + (size_t)i * pool->record_bytes + at, &link, sizeof link);
}

/* Makes record i the first of the block's free records. */
static void
free_first(kvp_recpool_block_t *block, const kvp_recpool_t *pool, uint32_t i)
{
    block->free_head = i;
    if (pool->back_at != 0 && i != KVP_RECPOOL_BLOCK) link_set(block, pool, i, pool->back_at, KVP_RECPOOL_BLOCK);
}

static void
free_push(kvp_recpool_block_t *block, const kvp_recpool_t *pool, uint32_t i)
{
    uint32_t next = block->free_head;

    link_set(block, pool, i, pool->link_at, next);
    if (pool->back_at != 0 && next != KVP_RECPOOL_BLOCK) link_set(block, pool, next, pool->back_at, i);
    free_first(block, pool, i);
}

static void
free_unlink(kvp_recpool_block_t *block, const kvp_recpool_t *pool, uint32_t i)
{
    uint32_t prev = link_get(block, pool, i, pool->back_at), next = link_get(block, pool, i, pool->link_at);
    bool is_first = block->free_head == i;

    if (!is_first && (prev >= block->made || link_get(block, pool, prev, pool->link_at) != i))
        kvp_panic("recpool: claim of a record that is in use");
    if (is_first) {
        free_first(block, pool, next);
        return;
    }
    link_set(block, pool, prev, pool->link_at, next);
    if (next != KVP_RECPOOL_BLOCK) link_set(block, pool, next, pool->back_at, prev);
}

/* ---- taking and giving records */
/* Returns how many records the block may have; the last block of a pool may have fewer. */
static uint32_t
records_of(const kvp_recpool_t *pool, uint32_t b)
{
    return (uint32_t)kvp_min_u64(KVP_RECPOOL_BLOCK, pool->max - ((uint64_t)b << KVP_RECPOOL_BITS));
}

uint32_t
kvp_recpool_take(kvp_recpool_t *pool)
{
    kvp_recpool_block_t *block;
    uint32_t b, i;

    if (pool->open == KVP_RECPOOL_NONE && !block_make(pool)) return KVP_RECPOOL_NONE;
    b = pool->open;
    block = pool->blocks[b];
    i = block->free_head;
    if (i == KVP_RECPOOL_BLOCK) {
        i = block->made++;
        pool->memory_bytes += pool->record_bytes;
    } else {
        free_first(block, pool, link_get(block, pool, i, pool->link_at));
    }
    if (++block->n == records_of(pool, b)) block_close(pool, b);
    if (pool->spare == b) pool->spare = KVP_RECPOOL_NONE;
    pool->n++;
    return b << KVP_RECPOOL_BITS | i;
}

bool
kvp_recpool_claim(kvp_recpool_t *pool, uint32_t number, const void *blank)
{
    uint32_t b = number >> KVP_RECPOOL_BITS, i = number & (KVP_RECPOOL_BLOCK - 1);
    kvp_recpool_block_t *block;

    if (number >= pool->max) return false;
    if ((b >= pool->blocks_n || pool->blocks[b] == NULL) && !block_make_at(pool, b)) return false;
    block = pool->blocks[b];
    for (; block->made <= i; block->made++) {
        memcpy(kvp_recpool_at(pool, b << KVP_RECPOOL_BITS | block->made), blank, pool->record_bytes);
        free_push(block, pool, block->made);
        pool->memory_bytes += pool->record_bytes;
    }
    free_unlink(block, pool, i);
    if (++block->n == records_of(pool, b)) block_close(pool, b);
    if (pool->spare == b) pool->spare = KVP_RECPOOL_NONE;
    pool->n++;
    return true;
}

void
kvp_recpool_give(kvp_recpool_t *pool, uint32_t number)
{
    uint32_t b = number >> KVP_RECPOOL_BITS, i = number & (KVP_RECPOOL_BLOCK - 1);
    kvp_recpool_block_t *block = pool->blocks[b];

    free_push(block, pool, i);
    pool->n--;
    if (block->n-- == records_of(pool, b)) block_open(pool, b);
    if (block->n > 0) return;
    /* One empty block is kept, so that a pool whose size varies around a block's edge does not allocate and free
     * blocks in turns. */
    if (pool->spare == KVP_RECPOOL_NONE)
        pool->spare = b;
    else
        block_drop(pool, b);
}

uint32_t
kvp_recpool_limit(const kvp_recpool_t *pool)
{
    return pool->blocks_n << KVP_RECPOOL_BITS;
}
