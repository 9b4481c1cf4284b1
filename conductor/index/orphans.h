/* SPDX-License-Identifier: Apache-2.0
 * A table of blocks whose depth is unknown, by the parent for which they wait. Only the writer uses it. */
#ifndef KVP_CONDUCTOR_INDEX_ORPHANS_H
#define KVP_CONDUCTOR_INDEX_ORPHANS_H

#include "common/digestmap.h"

typedef struct {
    uint64_t parent;
    uint32_t space, block;
    /* neighbours in the list of one parent's blocks; next of a free node: the next free node; 0 = none */
    uint32_t next, before;
} kvp_orphan_t;

typedef struct {
    kvp_orphan_t *nodes; /* array of nodes; element 0 is unused */
    uint32_t cap, free;
    kvp_digestmap_t by_parent, by_block; /* indices of nodes: first node of each parent, and node of each block */
} kvp_orphans_t;

void kvp_orphans_init(kvp_orphans_t *o, uint64_t seed);
void kvp_orphans_fini(kvp_orphans_t *o);

/* kvp_orphans_add records that the block waits for its parent's depth, unless it waits already. */
void kvp_orphans_add(kvp_orphans_t *o, uint32_t block, uint32_t space, uint64_t parent);
void kvp_orphans_remove(kvp_orphans_t *o, uint32_t block); /* removes the block, if it waits for a parent */
/* kvp_orphans_take removes and returns one block that waits for the parent. 0 = no block waits. */
uint32_t kvp_orphans_take(kvp_orphans_t *o, uint32_t space, uint64_t parent);

#endif
