/* SPDX-License-Identifier: Apache-2.0
 * A small hash map u64 -> u32 (open addressing, linear probing, deletion by shifting back). Key 0 is not allowed.
 * Each change of the map does a small part of a resize, also the first touch of new memory, so no change takes long. */
#ifndef KVP_MASTER_CORE_BASE_UMAP_H
#define KVP_MASTER_CORE_BASE_UMAP_H

#include "common/hash.h"

typedef struct {
    uint64_t *keys;
    uint32_t *vals; /* the table's values, in the same memory block as the keys, after them */
    uint32_t cap; /* number of the table's slots: a power of two; 0 = no table */
    uint32_t shift; /* 64 - log2(cap): a hash shifted right by this is a slot */
} kvp_umaptab_t;

typedef struct {
    kvp_umaptab_t now, old; /* now: the table for new keys; old: the table from which a resize still moves keys */
    uint32_t old_left; /* all slots of `old` from this index on were moved, and are empty */
    kvp_umaptab_t next; /* the table for the next resize, empty while its memory is being touched */
    uint32_t next_left; /* bytes of `next` to touch before its use */
    kvp_mix_t mix; /* secret for hashing, made from the seed */
    uint32_t n;
} kvp_umap_t;

/* kvp_umap_init sets the hash seed. If peers do not know the seed, they cannot choose keys that collide.
 * kvp_umap_fini leaves an empty map with the same seed. */
void kvp_umap_init(kvp_umap_t *map, uint64_t seed);
void kvp_umap_fini(kvp_umap_t *map);
/* kvp_umap_set inserts the key or replaces its value. */
void kvp_umap_set(kvp_umap_t *map, uint64_t key, uint32_t val);
bool kvp_umap_get(const kvp_umap_t *map, uint64_t key, uint32_t *val_out);
bool kvp_umap_del(kvp_umap_t *map, uint64_t key);

/* kvp_core_alloc returns zeroed memory for the core's own tables. Without memory it stops the daemon with a message.
 * The caller limits sizes that a peer chose. */
void *kvp_core_alloc(size_t n, size_t size);

#endif
