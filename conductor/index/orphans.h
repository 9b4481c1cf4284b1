/* SPDX-License-Identifier: Apache-2.0
 * Blocks whose depth is unknown, by the parent that they wait for. The writer's alone.
 */
#ifndef KVP_CONDUCTOR_INDEX_ORPHANS_H
#define KVP_CONDUCTOR_INDEX_ORPHANS_H

#include "common/digestmap.h"

typedef struct {
    uint64_t parent;
    uint32_t space, block;
    uint32_t next, before; /* of the same parent; for a free node, next is the next free one. 0 = none */
} kvp_orphan_t;

typedef struct {
    kvp_orphan_t *nodes; /* the first one is unused */
    uint32_t cap, free;
    kvp_digestmap_t by_parent, by_block; /* numbers of nodes */
} kvp_orphans_t;

void kvp_orphans_init(kvp_orphans_t *o, uint64_t seed);
void kvp_orphans_fini(kvp_orphans_t *o);

/* kvp_orphans_add: the block waits for the parent, unless it waits already. */
void kvp_orphans_add(kvp_orphans_t *o, uint32_t block, uint32_t space, uint64_t parent);
void kvp_orphans_remove(kvp_orphans_t *o, uint32_t block); /* if it waits */
/* kvp_orphans_take removes and returns one block that waits for the parent. 0 = none. */
uint32_t kvp_orphans_take(kvp_orphans_t *o, uint32_t space, uint64_t parent);

#endif
