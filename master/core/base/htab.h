/* SPDX-License-Identifier: Apache-2.0
 * Hash table of records that embed a node. It grows and shrinks by a bucket or two with a record that comes or goes (linear
 * hashing), and its buckets never move, so no step is ever long. Whoever keeps it brings hashes that no stranger can
 * choose, and tells records of one hash apart.
 */
#ifndef KVP_MASTER_CORE_BASE_HTAB_H
#define KVP_MASTER_CORE_BASE_HTAB_H

#include "common/base.h"

typedef struct kvp_htabnode {
    struct kvp_htabnode *next;
    uint64_t hash;
} kvp_htabnode_t;

typedef struct {
    kvp_htabnode_t **blocks[32]; /* block b has 2^b buckets, those from 2^b - 1 on */
    uint32_t buckets_n;
    uint32_t n;
} kvp_htab_t;

void kvp_htab_fini(kvp_htab_t *tab); /* forgets what is in it */
void kvp_htab_add(kvp_htab_t *tab, kvp_htabnode_t *node, uint64_t hash); /* the node is in no table */
void kvp_htab_del(kvp_htab_t *tab, kvp_htabnode_t *node); /* the node is in this one */

/* kvp_htab_find returns the first record with that hash, kvp_htab_next the next one behind it; NULL = none. */
kvp_htabnode_t *kvp_htab_find(const kvp_htab_t *tab, uint64_t hash);
kvp_htabnode_t *kvp_htab_next(const kvp_htabnode_t *node);

/* kvp_htab_first and kvp_htab_after walk over everything while nothing is added or deleted. */
kvp_htabnode_t *kvp_htab_first(const kvp_htab_t *tab);
kvp_htabnode_t *kvp_htab_after(const kvp_htab_t *tab, const kvp_htabnode_t *node);

#endif
