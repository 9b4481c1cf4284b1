/* SPDX-License-Identifier: Apache-2.0 */
#include "master/core/umap.h"

#include <stdlib.h>

#define CAP_MIN 8u

void *
kvp_core_alloc(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL) kvp_panic("out of memory: %zu records of %zu bytes", n, size);
    return p;
}

static uint32_t
home(const kvp_umap_t *map, uint64_t key)
{
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 33;
    return (uint32_t)key & (map->cap - 1);
}

/* The slot of key, or the free slot where it belongs. */
static uint32_t
probe(const kvp_umap_t *map, uint64_t key)
{
    uint32_t i = home(map, key);

    while (map->keys[i] != 0 && map->keys[i] != key)
        i = (i + 1) & (map->cap - 1);
    return i;
}

static void
resize(kvp_umap_t *map, uint32_t cap)
{
    kvp_umap_t old = *map;

    map->cap = cap;
    map->keys = kvp_core_alloc(cap, sizeof *map->keys);
    map->vals = kvp_core_alloc(cap, sizeof *map->vals);
    for (uint32_t i = 0; i < old.cap; i++) {
        uint32_t at;

        if (old.keys[i] == 0) continue;
        at = probe(map, old.keys[i]);
        map->keys[at] = old.keys[i];
        map->vals[at] = old.vals[i];
    }
    free(old.keys);
    free(old.vals);
}

void
kvp_umap_fini(kvp_umap_t *map)
{
    free(map->keys);
    free(map->vals);
    *map = (kvp_umap_t){0};
}

void
kvp_umap_set(kvp_umap_t *map, uint64_t key, uint32_t val)
{
    uint32_t i;

    if (map->n * 4 >= map->cap * 3) resize(map, map->cap == 0 ? CAP_MIN : map->cap * 2);
    i = probe(map, key);
    if (map->keys[i] == 0) map->n++;
    map->keys[i] = key;
    map->vals[i] = val;
}

bool
kvp_umap_get(const kvp_umap_t *map, uint64_t key, uint32_t *val_out)
{
    uint32_t i;

    if (map->n == 0 || key == 0) return false;
    i = probe(map, key);
    if (map->keys[i] == 0) return false;
    *val_out = map->vals[i];
    return true;
}

bool
kvp_umap_del(kvp_umap_t *map, uint64_t key)
{
    uint32_t hole, i;

    if (map->n == 0 || key == 0) return false;
    hole = probe(map, key);
    if (map->keys[hole] == 0) return false;
    for (i = (hole + 1) & (map->cap - 1); map->keys[i] != 0; i = (i + 1) & (map->cap - 1)) {
        uint32_t want = home(map, map->keys[i]);

        /* Move back only what may not sit behind the hole. */
        if (((i - want) & (map->cap - 1)) < ((i - hole) & (map->cap - 1))) continue;
        map->keys[hole] = map->keys[i];
        map->vals[hole] = map->vals[i];
        hole = i;
    }
    map->keys[hole] = 0;
    map->n--;
    if (map->cap > CAP_MIN && map->n * 8 < map->cap) resize(map, map->cap / 2);
    return true;
}
