/* SPDX-License-Identifier: Apache-2.0
 * Binary heap. nodes[i] is not greater than nodes[2i + 1] and nodes[2i + 2].
 */
#include "master/core/heap.h"

#include <stdlib.h>

static void
put(kvp_heap_t *heap, uint32_t i, kvp_heapnode_t *node)
{
    heap->nodes[i] = node;
    node->at = i + 1;
}

static void
swap(kvp_heap_t *heap, uint32_t a, uint32_t b)
{
    kvp_heapnode_t *node = heap->nodes[a];

    put(heap, a, heap->nodes[b]);
    put(heap, b, node);
}

static uint64_t
key(const kvp_heap_t *heap, uint32_t i)
{
    return heap->nodes[i]->key;
}

static void
settle(kvp_heap_t *heap, uint32_t i)
{
    while (i > 0 && key(heap, i) < key(heap, (i - 1) / 2)) {
        swap(heap, i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t least = i;

        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < heap->n; child++)
            if (key(heap, child) < key(heap, least)) least = child;
        if (least == i) return;
        swap(heap, i, least);
        i = least;
    }
}

void
kvp_heap_fini(kvp_heap_t *heap)
{
    free(heap->nodes);
    *heap = (kvp_heap_t){0};
}

void
kvp_heap_add(kvp_heap_t *heap, kvp_heapnode_t *node, uint64_t node_key)
{
    if (heap->n == heap->cap) {
        heap->cap = heap->cap == 0 ? 16 : heap->cap * 2;
        heap->nodes = realloc(heap->nodes, heap->cap * sizeof *heap->nodes);
        if (heap->nodes == NULL) kvp_panic("out of memory: a heap of %u", heap->cap);
    }
    node->key = node_key;
    put(heap, heap->n++, node);
    settle(heap, heap->n - 1);
}

void
kvp_heap_del(kvp_heap_t *heap, kvp_heapnode_t *node)
{
    uint32_t i = node->at - 1;

    if (node->at == 0) return;
    node->at = 0;
    heap->n--;
    if (i == heap->n) return;
    put(heap, i, heap->nodes[heap->n]);
    settle(heap, i);
}

const char *
kvp_heap_check(const kvp_heap_t *heap)
{
    for (uint32_t i = 0; i < heap->n; i++) {
        if (heap->nodes[i]->at != i + 1) return "a node of a heap is elsewhere";
        if (i > 0 && key(heap, i) < key(heap, (i - 1) / 2)) return "a heap is out of order";
    }
    return NULL;
}
