/* SPDX-License-Identifier: Apache-2.0
 * The objects of a bench: keys, items, and the registered memory of their values. The pieces of an object are stored as
 * in a layer-wise cache: piece p of all objects in one row, so that no two pieces of an object are neighbours. */
#ifndef KVP_TOOLS_BENCH_SET_H
#define KVP_TOOLS_BENCH_SET_H

#include "tools/bench/ops.h"

typedef struct {
    kvp_bench_conf_t conf;
    uint32_t process; /* number of this process, which makes its keys different from those of other processes */
    bool has_values; /* each object has its own memory; false: the objects share a little memory, and `items` is NULL */
    size_t late_at; /* number of objects after which putting the set was stopped; 0 = the set was put in time */
    uint32_t generation; /* number of times that all objects got new keys; a part of the keys */
    uint64_t piece_bytes, stride;
    uint8_t *memory;
    uint64_t memory_bytes;
    char *texts;
    kvpool_key_t *keys;
    kvpool_item_t *items;
    kvpool_iov_t *iov;
} kvp_bench_set_t;

/* kvp_bench_set_init makes keys, items and memory, and fills in the contents. NOMEM: the values' memory could not
 * be allocated; kvp_bench_set_fini is still legal. */
int kvp_bench_set_init(kvp_bench_set_t *set, const kvp_bench_conf_t *conf, uint32_t process);
void kvp_bench_set_fini(kvp_bench_set_t *set);

/* kvp_bench_set_rename gives new keys to all objects. */
void kvp_bench_set_rename(kvp_bench_set_t *set);

/* kvp_bench_set_put puts every object that is not absent, batch objects in a call, or more if they are small. The puts
 * are in a random order, so that later calls in the set's order access the pool's index randomly. It returns an error
 * of the pool, or of an object. After end_ns it stops, sets late_at, and returns DEADLINE. */
int kvp_bench_set_put(kvp_bench_set_t *set, kvpool_t *pool, uint32_t batch, uint64_t end_ns);

/* Functions on the contents of n objects from `first` on: poison overwrites the contents, fill restores them, and
 * wrong returns the number of bytes that differ. */
void kvp_bench_set_poison(kvp_bench_set_t *set, size_t first, size_t n);
void kvp_bench_set_fill(kvp_bench_set_t *set, size_t first, size_t n);
uint64_t kvp_bench_set_wrong(const kvp_bench_set_t *set, size_t first, size_t n);

#endif
