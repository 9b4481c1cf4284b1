/* SPDX-License-Identifier: Apache-2.0
 * The keys that a view holds in each slot and namespace, so that one stream of events can be
 * cleared without a walk over the others. A list's length follows its stream's blocks, and an empty
 * list is freed. */
#ifndef KVP_CONDUCTOR_INDEX_KEYLISTS_H
#define KVP_CONDUCTOR_INDEX_KEYLISTS_H

#include "common/buf.h"
#include "common/digestmap.h"

typedef struct {
    uint32_t slot, space;
    uint32_t held; /* held keys */
    uint32_t next; /* of a free list: the next free one */
    kvp_buf_t keys; /* uint64_t; also keys that are held no more, until the list is packed */
} kvp_keylist_t;

typedef struct {
    kvp_keylist_t *lists; /* the first one is unused */
    uint32_t cap, free;
    kvp_digestmap_t at; /* numbers of lists */
} kvp_keylists_t;

void kvp_keylists_init(kvp_keylists_t *l, uint64_t seed);
void kvp_keylists_fini(kvp_keylists_t *l);

/* kvp_keylists_add: the key is held from now on. is_held(arg, slot, key) is asked when a list is
 * packed. kvp_keylists_remove: one key less is held. */
void kvp_keylists_add(kvp_keylists_t *l, uint32_t slot, uint32_t space, uint64_t key,
                      bool (*is_held)(void *arg, uint32_t slot, uint64_t key), void *arg);
void kvp_keylists_remove(kvp_keylists_t *l, uint32_t slot, uint32_t space);

/* kvp_keylists_held returns the number of held keys. kvp_keylists_take gives the list to the
 * caller, with held keys and others: the caller frees the list, and removes the keys one by one. */
uint32_t kvp_keylists_held(const kvp_keylists_t *l, uint32_t slot, uint32_t space);
void kvp_keylists_take(kvp_keylists_t *l, uint32_t slot, uint32_t space, kvp_buf_t *keys_out);
/* kvp_keylists_drop: nothing is held in those slots, a bit each. */
void kvp_keylists_drop(kvp_keylists_t *l, uint32_t slots);

#endif
