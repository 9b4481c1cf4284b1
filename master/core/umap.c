/* SPDX-License-Identifier: Apache-2.0
 * Design notes. While a resize is under way two tables are live. What is new goes into the new one, and every change moves
 * MOVE_SLOTS of the old one over, from its end to its start: behind what is left of it all is empty, so that only its very
 * last slot, where probing wraps, needs a deletion by shifting; any other is just emptied. The move is over before the next
 * resize is due, which is cap / 4 changes away at least.
 */
#include "master/core/umap.h"

#include <stdlib.h>

#define CAP_MIN 8u
#define MOVE_SLOTS 16u
#define CAP_KEPT 64u /* of a map that is empty */

void *
kvp_core_alloc(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL) kvp_panic("out of memory: %zu records of %zu bytes", n, size);
    return p;
}

/* ---- one table */
static uint32_t
home(const kvp_umaptab_t *tab, uint64_t key)
{
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 33;
    return (uint32_t)key & (tab->cap - 1);
}

/* The slot of key, or the free slot where it belongs. */
static uint32_t
probe(const kvp_umaptab_t *tab, uint64_t key)
{
    uint32_t i = home(tab, key);

    while (tab->keys[i] != 0 && tab->keys[i] != key)
        i = (i + 1) & (tab->cap - 1);
    return i;
}

/* Where the key's value lies; NULL = it is not there. */
static uint32_t *
find(const kvp_umaptab_t *tab, uint64_t key)
{
    uint32_t i;

    if (tab->cap == 0) return NULL;
    i = probe(tab, key);
    return tab->keys[i] == 0 ? NULL : &tab->vals[i];
}

static void
add(const kvp_umaptab_t *tab, uint64_t key, uint32_t val)
{
    uint32_t i = probe(tab, key);

    tab->keys[i] = key;
    tab->vals[i] = val;
}

/* Empties the slot: what was pushed past it moves back. */
static void
clear(const kvp_umaptab_t *tab, uint32_t hole)
{
    uint32_t mask = tab->cap - 1;

    for (uint32_t i = (hole + 1) & mask; tab->keys[i] != 0; i = (i + 1) & mask) {
        /* Move back only what may not sit behind the hole. */
        if (((i - home(tab, tab->keys[i])) & mask) < ((i - hole) & mask)) continue;
        tab->keys[hole] = tab->keys[i];
        tab->vals[hole] = tab->vals[i];
        hole = i;
    }
    tab->keys[hole] = 0;
}

static void
tab_fini(kvp_umaptab_t *tab)
{
    free(tab->keys);
    free(tab->vals);
    *tab = (kvp_umaptab_t){0};
}

/* ---- resizing */
static void
begin(kvp_umap_t *map, uint32_t cap)
{
    map->old = map->now;
    map->old_left = map->old.cap;
    map->now.cap = cap;
    map->now.keys = kvp_core_alloc(cap, sizeof *map->now.keys);
    map->now.vals = kvp_core_alloc(cap, sizeof *map->now.vals);
}

static void
move_some(kvp_umap_t *map)
{
    for (uint32_t n = 0; n < MOVE_SLOTS && map->old_left > 0; n++) {
        uint32_t last = map->old_left - 1;

        for (; map->old.keys[last] != 0; clear(&map->old, last))
            add(&map->now, map->old.keys[last], map->old.vals[last]);
        map->old_left = last;
    }
    if (map->old_left == 0) tab_fini(&map->old);
}

/* Before an insertion, and after a deletion. */
static void
maybe_resize(kvp_umap_t *map)
{
    uint32_t cap = map->now.cap;

    if (map->old.cap != 0)
        move_some(map);
    else if (map->n * 4 >= cap * 3)
        begin(map, cap == 0 ? CAP_MIN : cap * 2);
    else if (cap > CAP_MIN && map->n * 8 < cap)
        begin(map, cap / 2);
}

/* ---- the map */
void
kvp_umap_fini(kvp_umap_t *map)
{
    tab_fini(&map->now);
    tab_fini(&map->old);
    *map = (kvp_umap_t){0};
}

static uint32_t *
val_of(const kvp_umap_t *map, uint64_t key)
{
    uint32_t *val;

    if (map->n == 0 || key == 0) return NULL;
    val = find(&map->now, key);
    return val != NULL ? val : find(&map->old, key);
}

void
kvp_umap_set(kvp_umap_t *map, uint64_t key, uint32_t val)
{
    uint32_t *at = val_of(map, key);

    if (at != NULL) {
        *at = val;
        return;
    }
    maybe_resize(map);
    add(&map->now, key, val);
    map->n++;
}

bool
kvp_umap_get(const kvp_umap_t *map, uint64_t key, uint32_t *val_out)
{
    const uint32_t *at = val_of(map, key);

    if (at == NULL) return false;
    *val_out = *at;
    return true;
}

bool
kvp_umap_del(kvp_umap_t *map, uint64_t key)
{
    const kvp_umaptab_t *tab = &map->now;

    if (map->n == 0 || key == 0) return false;
    if (find(tab, key) == NULL) tab = &map->old;
    if (find(tab, key) == NULL) return false;
    clear(tab, probe(tab, key));
    map->n--;
    if (map->n == 0 && map->now.cap > CAP_KEPT)
        kvp_umap_fini(map);
    else
        maybe_resize(map);
    return true;
}
