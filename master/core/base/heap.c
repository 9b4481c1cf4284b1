/* SPDX-License-Identifier: Apache-2.0
 * A binary heap. The key of node i is not greater than the keys of nodes 2i + 1 and 2i + 2. */
#include "master/core/base/heap.h"

static kvp_heapnode_t *
get_node(const kvp_heap_t *heap, uint32_t i)
{
    return *kvp_blocks_at(&heap->nodes, i);
}

static void
put_node(const kvp_heap_t *heap, uint32_t i, kvp_heapnode_t *node)
{
    *kvp_blocks_at(&heap->nodes, i) = node;
    node->at = i + 1;
}

static void
swap_nodes(const kvp_heap_t *heap, uint32_t a, uint32_t b)
{
    kvp_heapnode_t *node = get_node(heap, a);

    put_node(heap, a, get_node(heap, b));
    put_node(heap, b, node);
}

static uint64_t
key_at(const kvp_heap_t *heap, uint32_t i)
{
    return get_node(heap, i)->key;
}

static void
restore_order(const kvp_heap_t *heap, uint32_t i)
{
    while (i > 0 && key_at(heap, i) < key_at(heap, (i - 1) / 2)) {
        swap_nodes(heap, i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t least = i;

        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < heap->n; child++)
            if (key_at(heap, child) < key_at(heap, least)) least = child;
        if (least == i) return;
        swap_nodes(heap, i, least);
        i = least;
    }
}

void
kvp_heap_fini(kvp_heap_t *heap)
{
    kvp_blocks_fini(&heap->nodes);
    *heap = (kvp_heap_t){0};
}

void
kvp_heap_add(kvp_heap_t *heap, kvp_heapnode_t *node, uint64_t node_key)
{
    kvp_blocks_reach(&heap->nodes, heap->n);
    node->key = node_key;
    put_node(heap, heap->n++, node);
    restore_order(heap, heap->n - 1);
}

void
kvp_heap_del(kvp_heap_t *heap, kvp_heapnode_t *node)
{
    uint32_t i = node->at - 1;

    if (node->at == 0) return;
    node->at = 0;
    heap->n--;
    if (i == heap->n) return;
    put_node(heap, i, get_node(heap, heap->n));
    restore_order(heap, i);
}
