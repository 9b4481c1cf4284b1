/* SPDX-License-Identifier: Apache-2.0
 * Binary heap of records that embed a node: the least key first. A record's key may be changed by
 * removing it and adding it again; all is O(log n), and the heap owns nothing but its array
 * (blocks.h: it grows without moving). */
#ifndef KVP_MASTER_CORE_BASE_HEAP_H
#define KVP_MASTER_CORE_BASE_HEAP_H

#include "master/core/base/blocks.h"

typedef struct {
    uint64_t key;
    uint32_t at; /* place in the heap, from 1; 0 = not in it */
} kvp_heapnode_t;

typedef struct {
    kvp_blocks_t nodes;
    uint32_t n;
} kvp_heap_t;

void kvp_heap_fini(kvp_heap_t *heap); /* forgets its members */
void kvp_heap_add(kvp_heap_t *heap, kvp_heapnode_t *node, uint64_t key); /* the node is in no heap */
void kvp_heap_del(kvp_heap_t *heap, kvp_heapnode_t *node); /* legal on a node outside the heap */

static inline kvp_heapnode_t *
kvp_heap_least(const kvp_heap_t *heap)
{
    return heap->n == 0 ? NULL : *kvp_blocks_at(&heap->nodes, 0);
}

#define kvp_heap_entry(node, type, member) kvp_container_of(node, type, member)

#endif
