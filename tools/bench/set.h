/* SPDX-License-Identifier: Apache-2.0
 * The objects of a bench: keys, items, and the registered memory of their bytes. An object of
 * several pieces lies as in a layer-wise cache: piece p of all objects in one row, so that no two
 * pieces of an object are neighbours. */
#ifndef KVP_TOOLS_BENCH_SET_H
#define KVP_TOOLS_BENCH_SET_H

#include "tools/bench/ops.h"

typedef struct {
    kvp_bench_conf_t conf;
    uint32_t process; /* separates this process's keys from other processes' */
    bool has_values; /* each object has memory of its own; else they share a little, and `items` is NULL */
    uint32_t generation; /* of the keys */
    uint64_t piece_bytes, stride;
    uint8_t *memory;
    uint64_t memory_bytes;
    char *texts;
    kvpool_key_t *keys;
    kvpool_item_t *items;
    kvpool_iov_t *iov;
} kvp_bench_set_t;

/* kvp_bench_set_init makes everything, with contents filled in. NOMEM is for the memory alone; fini copes with it. */
int kvp_bench_set_init(kvp_bench_set_t *set, const kvp_bench_conf_t *conf, uint32_t process);
void kvp_bench_set_fini(kvp_bench_set_t *set);

/* kvp_bench_set_rename gives all objects new keys. */
void kvp_bench_set_rename(kvp_bench_set_t *set);

/* kvp_bench_set_put puts every object that is not absent, batch objects a call, in an order that is not the set's: who
 * then goes over the set asks an index in random order. An error of the pool, or of an object. */
int kvp_bench_set_put(kvp_bench_set_t *set, kvpool_t *pool, uint32_t batch);

/* Contents: poisoned, put back, and how many bytes differ, of n objects from first on. */
void kvp_bench_set_poison(kvp_bench_set_t *set, size_t first, size_t n);
void kvp_bench_set_fill(kvp_bench_set_t *set, size_t first, size_t n);
uint64_t kvp_bench_set_wrong(const kvp_bench_set_t *set, size_t first, size_t n);

#endif
