/* SPDX-License-Identifier: Apache-2.0
 * A binary heap of records that embed a node, with the least key first. To change a record's key, remove the record and
 * add it again. Each operation is O(log n). The heap owns only its array (blocks.h: it grows without moving). */
#ifndef KVP_MASTER_CORE_BASE_HEAP_H
#define KVP_MASTER_CORE_BASE_HEAP_H

#include "master/core/base/blocks.h"

typedef struct {
    uint64_t key;
    uint32_t at; /* position of the node in the heap, counted from 1; 0 = the node is in no heap */
} kvp_heapnode_t;

typedef struct {
    kvp_blocks_t nodes;
    uint32_t n;
} kvp_heap_t;

void kvp_heap_fini(kvp_heap_t *heap); /* frees the array, not the nodes */
void kvp_heap_add(kvp_heap_t *heap, kvp_heapnode_t *node, uint64_t key); /* the node must be in no heap */
void kvp_heap_del(kvp_heap_t *heap, kvp_heapnode_t *node); /* removes the node; no effect if the node is in no heap */

static inline kvp_heapnode_t *
kvp_heap_least(const kvp_heap_t *heap)
{
    return heap->n == 0 ? NULL : *kvp_blocks_at(&heap->nodes, 0);
}

#define kvp_heap_entry(node, type, member) kvp_container_of(node, type, member)

#endif
