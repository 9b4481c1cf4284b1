/* SPDX-License-Identifier: Apache-2.0
 * One operation against a pool, over and over, in rounds: throughput and latency of a call. Setting up and a first pass
 * are not timed, and what was moved is verified after each round, outside of the time as well.
 */
#ifndef KVP_CLIENT_BENCH_H
#define KVP_CLIENT_BENCH_H

#include "client/kvpool.h"

#include "common/hist.h"

#define KVP_BENCH_THREADS_MAX 64u
#define KVP_BENCH_SET_MAX (64ull << 30)

typedef enum {
    KVP_BENCH_GET,
    KVP_BENCH_PUT, /* of new keys: once the pool is full, each call evicts */
    KVP_BENCH_EXISTS, /* of keys that are there */
    KVP_BENCH_LOOKUP, /* longest prefix and release, of keys that are there */
} kvp_bench_op_t;

typedef struct {
    kvp_bench_op_t op;
    uint64_t value_bytes;
    uint32_t batch; /* objects a call */
    uint32_t threads; /* on one handle, each with its own objects and memory */
    uint64_t set_bytes; /* that a round goes over; rounded up to whole batches for all threads */
    uint64_t round_ns;
} kvp_bench_conf_t;

typedef struct {
    uint64_t elapsed_ns;
    uint64_t calls, objects, bytes;
    uint64_t errors; /* objects; not counted in the ones above */
    int first_error;
    uint64_t wrong_bytes;
    kvp_hist_t call; /* nanoseconds */
} kvp_bench_round_t;

typedef struct kvp_bench kvp_bench_t;

/* kvp_bench_objects is the number of objects of the set. kvp_bench_pool_bytes is what the pool must hold for it, with
 * room for new keys while a put goes round. */
uint64_t kvp_bench_objects(const kvp_bench_conf_t *conf);
uint64_t kvp_bench_pool_bytes(const kvp_bench_conf_t *conf);

/* kvp_bench_open makes memory and keys, fills the pool where the operation reads, and goes over everything once. pool is
 * borrowed until kvp_bench_close. An error of the pool, or NOMEM. */
int kvp_bench_open(const kvp_bench_conf_t *conf, kvpool_t *pool, kvp_bench_t **bench_out);
void kvp_bench_close(kvp_bench_t *bench);

/* kvp_bench_round runs for round_ns. Errors of single objects are counted; its own error means that a call failed
 * whole. */
int kvp_bench_round(kvp_bench_t *bench, kvp_bench_round_t *round_out);

#endif
