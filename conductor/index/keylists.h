/* SPDX-License-Identifier: Apache-2.0
 * The keys that a view holds in each slot and namespace, so that one stream of events can be cleared without a look at the others. A list is as long as its stream's blocks are many,
 * and a list without blocks is freed.
 */
#ifndef KVP_CONDUCTOR_INDEX_KEYLISTS_H
#define KVP_CONDUCTOR_INDEX_KEYLISTS_H

#include "common/buf.h"
#include "common/digestmap.h"

typedef struct {
    uint32_t slot, space;
    uint32_t held; /* keys that are held */
    uint32_t next; /* of a free list: the next one */
    kvp_buf_t keys; /* uint64_t; also keys that are held no more, until the list is packed */
} kvp_keylist_t;

typedef struct {
    kvp_keylist_t *lists; /* the first one is not used */
    uint32_t cap, free;
    kvp_digestmap_t at; /* numbers of lists */
} kvp_keylists_t;

void kvp_keylists_init(kvp_keylists_t *l, uint64_t seed);
void kvp_keylists_fini(kvp_keylists_t *l);

/* kvp_keylists_add: the key is held from now on. is_held(arg, slot, key) is asked when a list is packed. kvp_keylists_remove: one key less is held. */
void kvp_keylists_add(kvp_keylists_t *l, uint32_t slot, uint32_t space, uint64_t key,
                      bool (*is_held)(void *arg, uint32_t slot, uint64_t key), void *arg);
void kvp_keylists_remove(kvp_keylists_t *l, uint32_t slot, uint32_t space);

/* kvp_keylists_held: how many keys are held there. kvp_keylists_take gives the list away, with keys that are held and others: the caller's to free, and to remove one by one. */
uint32_t kvp_keylists_held(const kvp_keylists_t *l, uint32_t slot, uint32_t space);
void kvp_keylists_take(kvp_keylists_t *l, uint32_t slot, uint32_t space, kvp_buf_t *keys_out);
/* kvp_keylists_drop: nothing is held in those slots, a bit each. */
void kvp_keylists_drop(kvp_keylists_t *l, uint32_t slots);

#endif
