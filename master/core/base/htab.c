/* SPDX-License-Identifier: Apache-2.0
 * Linear hashing. With 2^l + s buckets, s below 2^l, a hash belongs to bucket h mod 2^(l+1) where that one is there, else
 * to h mod 2^l. One bucket more takes a part of one other; one bucket less gives everything back to that one.
 */
#include "master/core/base/htab.h"

#include "common/pages.h"

/* The greatest power of two that is not above n. */
static uint32_t
floor_pow2(uint32_t n)
{
    return 1u << (31 - __builtin_clz(n));
}

static uint32_t
block_of(uint32_t bucket)
{
    return 31u - (uint32_t)__builtin_clz(bucket + 1);
}

static kvp_htabnode_t **
bucket_at(const kvp_htab_t *tab, uint32_t bucket)
{
    uint32_t block = block_of(bucket);

    return &tab->blocks[block][bucket + 1 - (1u << block)];
}

static uint32_t
bucket_of(const kvp_htab_t *tab, uint64_t hash)
{
    uint32_t low = floor_pow2(tab->buckets_n);
    uint32_t bucket = (uint32_t)hash & (2 * low - 1);

    return bucket < tab->buckets_n ? bucket : bucket - low;
}

static void
block_make(kvp_htab_t *tab, uint32_t block)
{
    tab->blocks[block] = kvp_table_alloc(1ull << block, sizeof **tab->blocks);
    if (tab->blocks[block] == NULL) kvp_panic("out of memory: a table of %u", 1u << block);
}

static void
block_drop(kvp_htab_t *tab, uint32_t block)
{
    kvp_table_free(tab->blocks[block], 1ull << block, sizeof **tab->blocks);
    tab->blocks[block] = NULL;
}

void
kvp_htab_fini(kvp_htab_t *tab)
{
    for (uint32_t b = 0; b < KVP_ARRAY_LEN(tab->blocks); b++)
        block_drop(tab, b);
    *tab = (kvp_htab_t){0};
}

static void
push(const kvp_htab_t *tab, kvp_htabnode_t *node)
{
    kvp_htabnode_t **head = bucket_at(tab, bucket_of(tab, node->hash));

    node->next = *head;
    *head = node;
}

/* Takes the chain of that bucket and hands out its records anew. */
static void
redistribute(const kvp_htab_t *tab, kvp_htabnode_t **head)
{
    kvp_htabnode_t *node = *head, *next;

    *head = NULL;
    for (; node != NULL; node = next) {
        next = node->next;
        push(tab, node);
    }
}

static void
grow(kvp_htab_t *tab)
{
    uint32_t bucket = tab->buckets_n, block = block_of(bucket);

    if (tab->blocks[block] == NULL) block_make(tab, block);
    tab->buckets_n++;
    if (bucket > 0) redistribute(tab, bucket_at(tab, bucket - floor_pow2(bucket)));
}

static void
shrink(kvp_htab_t *tab)
{
    uint32_t bucket = --tab->buckets_n, block = block_of(bucket);

    redistribute(tab, bucket_at(tab, bucket));
    if (bucket + 1 > 1u << block) return;
    block_drop(tab, block);
}

void
kvp_htab_add(kvp_htab_t *tab, kvp_htabnode_t *node, uint64_t hash)
{
    node->hash = hash;
    if (tab->n++ == tab->buckets_n) grow(tab);
    push(tab, node);
}

void
kvp_htab_del(kvp_htab_t *tab, kvp_htabnode_t *node)
{
    kvp_htabnode_t **at = bucket_at(tab, bucket_of(tab, node->hash));

    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    /* Not at once: a table that swings about a size is left alone. */
    tab->n--;
    for (uint32_t i = 0; i < 2 && tab->n < tab->buckets_n / 2; i++)
        shrink(tab);
}

static kvp_htabnode_t *
with_hash(kvp_htabnode_t *node, uint64_t hash)
{
    while (node != NULL && node->hash != hash)
        node = node->next;
    return node;
}

kvp_htabnode_t *
kvp_htab_find(const kvp_htab_t *tab, uint64_t hash)
{
    return tab->n == 0 ? NULL : with_hash(*bucket_at(tab, bucket_of(tab, hash)), hash);
}

kvp_htabnode_t *
kvp_htab_next(const kvp_htabnode_t *node)
{
    return with_hash(node->next, node->hash);
}

static kvp_htabnode_t *
first_from(const kvp_htab_t *tab, uint32_t bucket)
{
    for (; bucket < tab->buckets_n; bucket++)
        if (*bucket_at(tab, bucket) != NULL) return *bucket_at(tab, bucket);
    return NULL;
}

kvp_htabnode_t *
kvp_htab_first(const kvp_htab_t *tab)
{
    return first_from(tab, 0);
}

kvp_htabnode_t *
kvp_htab_after(const kvp_htab_t *tab, const kvp_htabnode_t *node)
{
    return node->next != NULL ? node->next : first_from(tab, bucket_of(tab, node->hash) + 1);
}
