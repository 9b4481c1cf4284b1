/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A resize begins with untouched memory, where every new key would wait for a page fault. So before any key moves
 *   to the new table, every change of the map touches TOUCH_BYTES of the new table, until all are touched.
 * - Then two tables are live. New keys go into the new table, and every change moves MOVE_SLOTS slots of the old
 *   table, from its end to its start. All slots after the unmoved rest are empty, so only the old table's very last
 *   slot, where probing wraps, needs a deletion by shifting; any other slot is just emptied.
 * - A growing table is 5/8 full at the beginning, and at most 3/4 when the new table is ready; a shrinking table is
 *   1/8 full and fills a quarter of the new table. No other resize begins before the move is over.
 * - A key's place is the upper bits of the key mixed with the map's secret. */
#include "master/core/base/umap.h"

#include "common/pages.h"

#include <stdlib.h>

#define CAP_MIN 8u
#define MOVE_SLOTS 16u
#define TOUCH_BYTES 512u
#define ENTRY_BYTES (sizeof(uint64_t) + sizeof(uint32_t))
#define CAP_KEPT 64u /* a map that becomes empty frees a table of more than this many slots */

void *
kvp_core_alloc(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL) kvp_panic("out of memory: %zu records of %zu bytes", n, size);
    return p;
}

/* ---- one table. Callers compute a key's hash once and pass it to all functions. */
static uint64_t
hash_of(const kvp_umap_t *map, uint64_t key)
{
    return kvp_mix64(&map->mix, key, 0);
}

/* Returns the slot of the key, or the free slot where the key belongs. */
static uint32_t
probe_slot(const kvp_umaptab_t *tab, uint64_t key, uint64_t hash)
{
    uint32_t i = (uint32_t)(hash >> tab->shift);

    while (tab->keys[i] != 0 && tab->keys[i] != key)
        i = (i + 1) & (tab->cap - 1);
    return i;
}

/* Returns a pointer to the key's value; NULL = the table has no such key. */
static uint32_t *
find_val(const kvp_umaptab_t *tab, uint64_t key, uint64_t hash)
{
    uint32_t i;

    if (tab->cap == 0) return NULL;
    i = probe_slot(tab, key, hash);
    return tab->keys[i] == 0 ? NULL : &tab->vals[i];
}

static void
add_pair(const kvp_umaptab_t *tab, uint64_t key, uint64_t hash, uint32_t val)
{
    uint32_t i = probe_slot(tab, key, hash);

    tab->keys[i] = key;
    tab->vals[i] = val;
}

/* Empties the slot. Keys that probing had pushed past the slot move back. */
static void
clear_slot(const kvp_umap_t *map, const kvp_umaptab_t *tab, uint32_t hole)
{
    uint32_t mask = tab->cap - 1;

    for (uint32_t i = (hole + 1) & mask; tab->keys[i] != 0; i = (i + 1) & mask) {
        uint32_t home = (uint32_t)(hash_of(map, tab->keys[i]) >> tab->shift);

        /* Skip a key whose home lies after the hole: moved back to the hole, it could not be found. */
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        tab->keys[hole] = tab->keys[i];
        tab->vals[hole] = tab->vals[i];
        hole = i;
    }
    tab->keys[hole] = 0;
}

static void
tab_fini(kvp_umaptab_t *tab)
{
    kvp_table_free(tab->keys, tab->cap, ENTRY_BYTES);
    *tab = (kvp_umaptab_t){0};
}

/* ---- resizing */
static void
prepare_table(kvp_umap_t *map, uint32_t cap)
{
    map->next.cap = cap;
    map->next.shift = 64 - (uint32_t)__builtin_ctz(cap);
    map->next.keys = kvp_table_alloc(cap, ENTRY_BYTES);
    if (map->next.keys == NULL) kvp_panic("out of memory: a map of %u", cap);
    map->next.vals = (uint32_t *)(void *)(map->next.keys + cap);
    map->next_left = cap * (uint32_t)ENTRY_BYTES;
}

static void
begin_move(kvp_umap_t *map)
{
    map->old = map->now;
    map->old_left = map->old.cap;
    map->now = map->next;
    map->next = (kvp_umaptab_t){0};
}

static void
touch_some(kvp_umap_t *map)
{
    volatile uint8_t *bytes = (volatile uint8_t *)map->next.keys;

    map->next_left -= (uint32_t)kvp_min_u64(map->next_left, TOUCH_BYTES);
    bytes[map->next_left] = 0;
    if (map->next_left == 0) begin_move(map);
}

static void
move_some(kvp_umap_t *map)
{
    for (uint32_t n = 0; n < MOVE_SLOTS && map->old_left > 0; n++) {
        uint32_t last = map->old_left - 1;

        for (; map->old.keys[last] != 0; clear_slot(map, &map->old, last))
            add_pair(&map->now, map->old.keys[last], hash_of(map, map->old.keys[last]), map->old.vals[last]);
        map->old_left = last;
    }
    if (map->old_left == 0) tab_fini(&map->old);
}

/* Continues a resize, or begins one if the map is too full or empty. Called before insertions and after deletions. */
static void
maybe_resize(kvp_umap_t *map)
{
    uint32_t cap = map->now.cap;

    if (map->old.cap != 0)
        move_some(map);
    else if (map->next.cap != 0)
        touch_some(map);
    else if (map->n * 8ull >= cap * 5ull)
        prepare_table(map, cap * 2);
    else if (cap > CAP_MIN && map->n * 8ull < cap)
        prepare_table(map, cap / 2);
}

/* ---- the map */
void
kvp_umap_init(kvp_umap_t *map, uint64_t seed)
{
    *map = (kvp_umap_t){.mix = kvp_mix_make(seed)};
}

void
kvp_umap_fini(kvp_umap_t *map)
{
    tab_fini(&map->now);
    tab_fini(&map->old);
    tab_fini(&map->next);
    *map = (kvp_umap_t){.mix = map->mix};
}

static uint32_t *
val_of(const kvp_umap_t *map, uint64_t key, uint64_t hash)
{
    uint32_t *val;

    if (map->n == 0 || key == 0) return NULL;
    val = find_val(&map->now, key, hash);
    return val != NULL ? val : find_val(&map->old, key, hash);
}

void
kvp_umap_set(kvp_umap_t *map, uint64_t key, uint32_t val)
{
    uint64_t hash = hash_of(map, key);
    uint32_t *at = val_of(map, key, hash);

    if (at != NULL) {
        *at = val;
        return;
    }
    if (map->now.cap == 0) {
        prepare_table(map, CAP_MIN);
        begin_move(map);
    }
    maybe_resize(map);
    add_pair(&map->now, key, hash, val);
    map->n++;
}

bool
kvp_umap_get(const kvp_umap_t *map, uint64_t key, uint32_t *val_out)
{
    const uint32_t *at = val_of(map, key, hash_of(map, key));

    if (at == NULL) return false;
    *val_out = *at;
    return true;
}

bool
kvp_umap_del(kvp_umap_t *map, uint64_t key)
{
    uint64_t hash = hash_of(map, key);
    const uint32_t *at = val_of(map, key, hash);
    const kvp_umaptab_t *tab = &map->now;

    if (at == NULL) return false;
    if (at < tab->vals || at >= tab->vals + tab->cap) tab = &map->old;
    clear_slot(map, tab, (uint32_t)(at - tab->vals));
    map->n--;
    if (map->n == 0 && map->now.cap > CAP_KEPT)
        kvp_umap_fini(map);
    else
        maybe_resize(map);
    return true;
}
