/* SPDX-License-Identifier: Apache-2.0
 * See orphans.h. */
#include "conductor/index/orphans.h"

#include "common/log.h"

#include <stdlib.h>

static kvp_digest_t
parent_key(uint32_t space, uint64_t parent)
{
    return (kvp_digest_t){.lo = parent, .hi = space};
}

static kvp_digest_t
block_key(uint32_t block)
{
    return (kvp_digest_t){.lo = block, .hi = 0};
}

static void
set_node(kvp_digestmap_t *map, kvp_digest_t key, uint32_t node)
{
    uint64_t *at = kvp_digestmap_insert(map, key);

    if (at == NULL) kvp_panic("out of memory: blocks without a depth");
    *at = node;
}

static uint32_t
new_node(kvp_orphans_t *o)
{
    const uint32_t cap = o->cap == 0 ? 64 : 2 * o->cap, node = o->free;

    if (node != 0) {
        o->free = o->nodes[node].next;
        return node;
    }
    o->nodes = realloc(o->nodes, cap * sizeof *o->nodes);
    if (o->nodes == NULL) kvp_panic("out of memory: blocks without a depth");
    for (uint32_t i = cap - 1; i > 0 && i >= o->cap; i--) {
        o->nodes[i].next = o->free;
        o->free = i;
    }
    o->cap = cap;
    return new_node(o);
}

void
kvp_orphans_add(kvp_orphans_t *o, uint32_t block, uint32_t space, uint64_t parent)
{
    const kvp_digest_t key = parent_key(space, parent);
    const uint64_t *first;
    uint32_t node;

    if (kvp_digestmap_at(&o->by_block, block_key(block)) != NULL) return;
    node = new_node(o);
    first = kvp_digestmap_at(&o->by_parent, key);
    o->nodes[node] = (kvp_orphan_t){parent, space, block, first == NULL ? 0 : (uint32_t)*first, 0};
    if (first != NULL) o->nodes[*first].before = node;
    set_node(&o->by_parent, key, node);
    set_node(&o->by_block, block_key(block), node);
}

void
kvp_orphans_remove(kvp_orphans_t *o, uint32_t block)
{
    const uint64_t *at = kvp_digestmap_at(&o->by_block, block_key(block));
    kvp_orphan_t *node;
    uint32_t number;

    if (at == NULL) return;
    number = (uint32_t)*at;
    node = &o->nodes[number];
    if (node->next != 0) o->nodes[node->next].before = node->before;
    if (node->before != 0)
        o->nodes[node->before].next = node->next;
    else if (node->next != 0)
        set_node(&o->by_parent, parent_key(node->space, node->parent), node->next);
    else
        kvp_digestmap_remove(&o->by_parent, parent_key(node->space, node->parent));
    kvp_digestmap_remove(&o->by_block, block_key(block));
    node->next = o->free;
    o->free = number;
}

uint32_t
kvp_orphans_take(kvp_orphans_t *o, uint32_t space, uint64_t parent)
{
    const uint64_t *at = kvp_digestmap_at(&o->by_parent, parent_key(space, parent));
    uint32_t block;

    if (at == NULL) return 0;
    block = o->nodes[*at].block;
    kvp_orphans_remove(o, block);
    return block;
}

void
kvp_orphans_init(kvp_orphans_t *o, uint64_t seed)
{
    *o = (kvp_orphans_t){.nodes = NULL};
    kvp_digestmap_init(&o->by_parent, seed);
    kvp_digestmap_init(&o->by_block, seed);
}

void
kvp_orphans_fini(kvp_orphans_t *o)
{
    kvp_digestmap_fini(&o->by_parent);
    kvp_digestmap_fini(&o->by_block);
    free(o->nodes);
}
