/* SPDX-License-Identifier: Apache-2.0
 * A full pool under churn: the real core of the master, one client that puts, uses and removes, and one node that
 * answers every RETIRE at once. No bytes move; the benchmark measures where the master places objects and which
 * objects it evicts for them. For bench/alloc_bench.c and its test. One thread; a broken invariant panics. */
#ifndef KVP_BENCH_CHURN_H
#define KVP_BENCH_CHURN_H

#include "common/base.h"

#define CHURN_SIZES_MAX 4u

/* Which lengths are put: each of sizes as often as the others, or without sizes log-uniform from least to most. */
typedef struct {
    const char *name;
    uint64_t sizes[CHURN_SIZES_MAX]; /* 0 = no more */
    uint64_t least, most;
} churn_mix_t;

extern const churn_mix_t churn_one, churn_three, churn_any;

typedef struct {
    uint64_t size_bytes; /* of the segment, payload */
    uint64_t chunk_bytes;
    uint64_t steps;
    uint64_t seed;
} churn_conf_t;

/* Shares are of mounted bytes: the segment's payload area and the pages of its metadata areas that are in use. They are
 * taken after each step of the second half. */
typedef struct {
    double least, mean; /* payload bytes of committed objects */
    double metadata; /* superblocks, descriptors and key cells, at the end */
    double free; /* bytes in free extents, at the end */
    uint64_t puts;
    uint64_t evictions;
    /* An LRU of bytes evicts as many bytes as this, but always the oldest. How far from it: the
     * share of the pool's bytes that was used longer ago than what is evicted, averaged over
     * evicted bytes; and the share of evicted bytes from the half of the pool that was used last. */
    double rank_mean, young;
    double put_ns; /* processor time in the core, with all its answers and evictions, on average */
} churn_result_t;

/* churn_run fills a pool and then makes steps. A step removes an object drawn by chance, uses
 * another one, and puts until something had to be evicted, so that the pool is full again. */
void churn_run(const churn_conf_t *conf, const churn_mix_t *mix, churn_result_t *result_out);

#endif
