/* SPDX-License-Identifier: Apache-2.0
 * Lists of the keys that a view holds in each slot and namespace, so that one stream of events can be cleared without a
 * walk over all others. A list's length follows the number of its stream's blocks, and an empty list is freed. */
#ifndef KVP_CONDUCTOR_INDEX_KEYLISTS_H
#define KVP_CONDUCTOR_INDEX_KEYLISTS_H

#include "common/buf.h"
#include "common/digestmap.h"

typedef struct {
    uint32_t slot, space;
    uint32_t held; /* number of keys in the list that the view still holds */
    uint32_t next; /* in an unused element: index of the next unused element; 0 = none */
    kvp_buf_t keys; /* keys (uint64_t); removed keys remain until the list is packed */
} kvp_keylist_t;

typedef struct {
    kvp_keylist_t *lists; /* array of lists; element 0 is unused */
    uint32_t cap, free;
    kvp_digestmap_t at; /* maps a slot and a namespace to the index of their list */
} kvp_keylists_t;

void kvp_keylists_init(kvp_keylists_t *l, uint64_t seed);
void kvp_keylists_fini(kvp_keylists_t *l);

/* kvp_keylists_add records a held key. When a list is packed, is_held(arg, slot, key) tells held keys from removed
 * ones. kvp_keylists_remove records that one key of the slot and namespace is not held any more. */
void kvp_keylists_add(kvp_keylists_t *l, uint32_t slot, uint32_t space, uint64_t key,
                      bool (*is_held)(void *arg, uint32_t slot, uint64_t key), void *arg);
void kvp_keylists_remove(kvp_keylists_t *l, uint32_t slot, uint32_t space);

/* kvp_keylists_held returns the number of held keys. kvp_keylists_take gives the list to the caller, including
 * removed keys: the caller frees the list, and removes the keys one by one. */
uint32_t kvp_keylists_held(const kvp_keylists_t *l, uint32_t slot, uint32_t space);
void kvp_keylists_take(kvp_keylists_t *l, uint32_t slot, uint32_t space, kvp_buf_t *keys_out);
/* kvp_keylists_drop empties the lists of all slots whose bits are set in `slots`. */
void kvp_keylists_drop(kvp_keylists_t *l, uint32_t slots);

#endif
