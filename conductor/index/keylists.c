/* SPDX-License-Identifier: Apache-2.0
 * See keylists.h. */
#include "conductor/index/keylists.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define SPARE 64u /* a list is packed when it has this many more removed keys than held keys */

static kvp_digest_t
key_of(uint32_t slot, uint32_t space)
{
    return (kvp_digest_t){.lo = space, .hi = slot};
}

static kvp_keylist_t *
find_list(const kvp_keylists_t *l, uint32_t slot, uint32_t space)
{
    const uint64_t *at = kvp_digestmap_at(&l->at, key_of(slot, space));

    return at == NULL ? NULL : &l->lists[*at];
}

static void
grow_lists(kvp_keylists_t *l)
{
    const uint32_t cap = l->cap == 0 ? 8 : 2 * l->cap;

    l->lists = realloc(l->lists, cap * sizeof *l->lists);
    if (l->lists == NULL) kvp_panic("out of memory: keys of streams");
    for (uint32_t i = cap - 1; i > 0 && i >= l->cap; i--) {
        l->lists[i] = (kvp_keylist_t){.next = l->free};
        l->free = i;
    }
    l->cap = cap;
}

static kvp_keylist_t *
make_list(kvp_keylists_t *l, uint32_t slot, uint32_t space)
{
    uint64_t *at = kvp_digestmap_insert(&l->at, key_of(slot, space));
    kvp_keylist_t *list;

    if (at == NULL) kvp_panic("out of memory: keys of streams");
    if (l->free == 0) grow_lists(l);
    *at = l->free;
    list = &l->lists[l->free];
    l->free = list->next;
    *list = (kvp_keylist_t){.slot = slot, .space = space};
    kvp_buf_init(&list->keys, 0);
    return list;
}

static void
free_list(kvp_keylists_t *l, kvp_keylist_t *list)
{
    kvp_buf_fini(&list->keys);
    kvp_digestmap_remove(&l->at, key_of(list->slot, list->space));
    list->next = l->free;
    l->free = (uint32_t)(list - l->lists);
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Packs the list: keeps each held key once, and drops all other keys. */
static void
pack_list(kvp_keylist_t *list, bool (*is_held)(void *arg, uint32_t slot, uint64_t key), void *arg)
{
    uint64_t *keys = (uint64_t *)list->keys.data;
    const size_t n = list->keys.len / sizeof *keys;
    size_t kept = 0;

    qsort(keys, n, sizeof *keys, by_value);
    for (size_t i = 0; i < n; i++)
        if ((kept == 0 || keys[kept - 1] != keys[i]) && is_held(arg, list->slot, keys[i])) keys[kept++] = keys[i];
    list->keys.len = kept * sizeof *keys;
}

void
kvp_keylists_add(kvp_keylists_t *l, uint32_t slot, uint32_t space, uint64_t key,
                 bool (*is_held)(void *arg, uint32_t slot, uint64_t key), void *arg)
{
    kvp_keylist_t *list = find_list(l, slot, space);

    if (list == NULL) list = make_list(l, slot, space);
    if (list->keys.len / sizeof key >= 2ull * list->held + SPARE) pack_list(list, is_held, arg);
    list->held++;
    kvp_buf_append(&list->keys, &key, sizeof key);
    if (list->keys.err != KVP_OK) kvp_panic("out of memory: keys of streams");
}

void
kvp_keylists_remove(kvp_keylists_t *l, uint32_t slot, uint32_t space)
{
    kvp_keylist_t *list = find_list(l, slot, space);

    if (list != NULL && --list->held == 0) free_list(l, list);
}

uint32_t
kvp_keylists_held(const kvp_keylists_t *l, uint32_t slot, uint32_t space)
{
    const kvp_keylist_t *list = find_list(l, slot, space);

    return list == NULL ? 0 : list->held;
}

void
kvp_keylists_take(kvp_keylists_t *l, uint32_t slot, uint32_t space, kvp_buf_t *keys_out)
{
    kvp_keylist_t *list = find_list(l, slot, space);

    kvp_buf_init(keys_out, 0);
    if (list == NULL) return;
    *keys_out = list->keys;
    kvp_buf_init(&list->keys, 0);
}

void
kvp_keylists_drop(kvp_keylists_t *l, uint32_t slots)
{
    for (uint32_t i = 1; i < l->cap && l->at.n > 0; i++) {
        kvp_keylist_t *list = &l->lists[i];

        if (list->held == 0 || (slots & 1u << list->slot) == 0) continue;
        list->held = 0;
        free_list(l, list);
    }
}

void
kvp_keylists_init(kvp_keylists_t *l, uint64_t seed)
{
    *l = (kvp_keylists_t){.lists = NULL};
    kvp_digestmap_init(&l->at, seed);
}

void
kvp_keylists_fini(kvp_keylists_t *l)
{
    kvp_keylists_drop(l, UINT32_MAX);
    kvp_digestmap_fini(&l->at);
    free(l->lists);
}
