/* SPDX-License-Identifier: Apache-2.0
 * The table of operations that bench knows. To add an operation of kvpool.h, write one more function and one more
 * row in ops.c. Options, help, preparation and checks follow from the row's flags. */
#ifndef KVP_TOOLS_BENCH_OPS_H
#define KVP_TOOLS_BENCH_OPS_H

#include "client/kvpool.h"

#include "common/base.h"

#define KVP_BENCH_MOVES 1u /* the operation moves the objects' bytes, which are then verified */
#define KVP_BENCH_PUTS 2u /* the operation puts new keys; other operations use a set that is put before the bench */
#define KVP_BENCH_REMOVES 4u /* the operation removes its objects, so they are put again before each timed leg */
#define KVP_BENCH_ASKS 8u /* for this operation an absent key is a result, not an error */
#define KVP_BENCH_BATCH 16u /* the operation takes several objects in a call */
#define KVP_BENCH_KNOWN 32u /* the operation gets by cached locations; other operations run without this cache */
#define KVP_BENCH_WRITES 64u /* the operation moves bytes to the pool; without this flag bytes come from the pool */
#define KVP_BENCH_SHARED 128u /* the operation needs memory that this host shares with a node */

/* The arguments of one call; all are borrowed for the call. */
typedef struct {
    kvpool_t *pool;
    kvpool_item_t *items; /* array of n items; NULL for operations without KVP_BENCH_MOVES */
    const kvpool_key_t *keys;
    size_t n; /* number of objects in the call; 1 for operations without KVP_BENCH_BATCH */
    int *results; /* result of each object: 1 = done or present, 0 = absent, else its error */
} kvp_bench_call_t;

typedef struct {
    const char *name;
    uint32_t flags;
    int (*call)(const kvp_bench_call_t *call); /* makes the call; if it returns KVPOOL_OK, the results are set */
} kvp_bench_op_t;

typedef struct {
    const kvp_bench_op_t *op;
    uint64_t value_bytes;
    uint32_t pieces; /* number of pieces of each value, for operations that move bytes in batches */
    uint32_t key_bytes;
    uint32_t batch; /* number of objects in one call */
    uint32_t threads; /* number of threads; they share one handle, and each has its own objects and memory */
    uint32_t processes; /* number of processes; each has its own set and handle */
    uint64_t objects; /* number of objects of each process; a multiple of batch * threads */
    double absent; /* share of objects that are never put */
    double calls_per_s; /* rate of calls of all threads in all processes (open loop); 0 = closed loop */
    bool is_cold; /* a flag: each leg uses a new handle, whose mappings are not yet touched */
    bool does_evict; /* a flag: the bench leaves its objects in the pool, so that puts cause evictions */
    uint64_t round_ns; /* time of a round, from which the time limits of its preparation follow */
    uint64_t run; /* number of this run, which makes its keys different from those of other runs */
} kvp_bench_conf_t;

/* kvp_bench_op_find returns the operation with that name, or NULL. kvp_bench_op_names returns all names, separated
 * by commas. */
const kvp_bench_op_t *kvp_bench_op_find(const char *name);
const char *kvp_bench_op_names(void);

#endif
