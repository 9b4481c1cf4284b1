/* SPDX-License-Identifier: Apache-2.0
 * Small hash map u64 -> u32 (open addressing, linear probing, deletion by shifting back). Key 0 is
 * not allowed. A resize goes a few slots with each change, the first touch of new memory included,
 * so none is ever long. */
#ifndef KVP_MASTER_CORE_BASE_UMAP_H
#define KVP_MASTER_CORE_BASE_UMAP_H

#include "common/hash.h"

typedef struct {
    uint64_t *keys;
    uint32_t *vals; /* behind the keys */
    uint32_t cap; /* a power of two, or 0: no table */
    uint32_t shift; /* 64 less its bits */
} kvp_umaptab_t;

typedef struct {
    kvp_umaptab_t now, old; /* old: what a resize has not moved yet */
    uint32_t old_left; /* slots of it from this one on are empty */
    kvp_umaptab_t next; /* the next table; empty */
    uint32_t next_left; /* bytes of it to touch before use */
    kvp_mix_t mix; /* from the seed */
    uint32_t n;
} kvp_umap_t;

/* kvp_umap_init: with a seed that strangers do not know, they cannot choose keys that meet. fini
 * leaves an empty map with the same seed. */
void kvp_umap_init(kvp_umap_t *map, uint64_t seed);
void kvp_umap_fini(kvp_umap_t *map);
/* kvp_umap_set inserts or replaces. */
void kvp_umap_set(kvp_umap_t *map, uint64_t key, uint32_t val);
bool kvp_umap_get(const kvp_umap_t *map, uint64_t key, uint32_t *val_out);
bool kvp_umap_del(kvp_umap_t *map, uint64_t key);

/* Memory for the core's own tables: a daemon that cannot get it stops with a message. Sizes that came from outside are
 * bounded before they get here. Zeroed. */
void *kvp_core_alloc(size_t n, size_t size);

#endif
