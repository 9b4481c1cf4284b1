/* SPDX-License-Identifier: Apache-2.0
 * The operations that bench knows: a row each. An operation that kvpool.h gains becomes one more function and one more
 * row of the table in ops.c; options, help, setting up and judging follow from its flags.
 */
#ifndef KVP_TOOLS_BENCH_OPS_H
#define KVP_TOOLS_BENCH_OPS_H

#include "client/kvpool.h"

#include "common/base.h"

#define KVP_BENCH_MOVES 1u /* moves the objects' bytes, which are verified */
#define KVP_BENCH_PUTS 2u /* keys that are new; else the set is put before */
#define KVP_BENCH_REMOVES 4u /* removes its objects: the set is put again */
#define KVP_BENCH_ASKS 8u /* an absent key is an answer, not a failure */
#define KVP_BENCH_BATCH 16u /* takes several objects a call */
#define KVP_BENCH_KNOWN 32u /* reads from cached locations; other operations cache none */
#define KVP_BENCH_WRITES 64u /* the bytes go to the pool; else they come from it */
#define KVP_BENCH_SHARED 128u /* needs memory that this host shares with a node */

/* One call. Everything is borrowed for the call. */
typedef struct {
    kvpool_t *pool;
    kvpool_item_t *items; /* n of them; NULL without KVP_BENCH_MOVES */
    const kvpool_key_t *keys;
    size_t n; /* 1 without KVP_BENCH_BATCH */
    int *results; /* 1 = done or present, 0 = absent, else the object's error */
} kvp_bench_call_t;

typedef struct {
    const char *name;
    uint32_t flags;
    int (*call)(const kvp_bench_call_t *call); /* KVPOOL_OK: results are set */
} kvp_bench_op_t;

typedef struct {
    const kvp_bench_op_t *op;
    uint64_t value_bytes;
    uint32_t pieces; /* pieces of each value; for operations that move bytes in batches */
    uint32_t key_bytes;
    uint32_t batch; /* objects a call */
    uint32_t threads; /* on one handle, each with its own objects and memory */
    uint32_t processes; /* each with a set and a handle of its own */
    uint64_t objects; /* of each process; a multiple of batch * threads */
    double absent; /* share of absent objects */
    double calls_per_s; /* of all threads of all processes, open loop; 0 = closed loop */
    bool is_cold; /* each leg is the first pass of a new handle over its mappings */
    bool does_evict; /* puts without removal, so that new objects need eviction */
    uint64_t run; /* separates this run's keys from other runs' */
} kvp_bench_conf_t;

/* kvp_bench_op_find returns the operation of that name, or NULL. kvp_bench_op_names is all names
 * with commas between. */
const kvp_bench_op_t *kvp_bench_op_find(const char *name);
const char *kvp_bench_op_names(void);

#endif
