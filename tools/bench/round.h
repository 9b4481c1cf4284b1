/* SPDX-License-Identifier: Apache-2.0
 * Runs one operation against a pool in one process, and measures throughput and latency. The timed parts are legs.
 * Preparation, new keys, and verification of moved bytes happen between legs. workers.h combines legs of several
 * processes into rounds. */
#ifndef KVP_TOOLS_BENCH_ROUND_H
#define KVP_TOOLS_BENCH_ROUND_H

#include "tools/bench/ops.h"
#include "tools/base/cli.h"

#include "common/hist.h"

#define KVP_BENCH_THREADS_MAX 64u
#define KVP_BENCH_PROCESSES_MAX 64u
#define KVP_BENCH_SET_MAX (64ull << 30)
#define KVP_BENCH_OBJECTS_MAX (1ull << 31) /* limit of the objects of one process */

/* Counters of the handles that a bench uses. */
typedef struct {
    uint64_t known; /* number of objects that were got without a message to the master */
    /* RDMA counters; 0 for other transports */
    uint64_t work_requests, doorbells, signaled_completions, system_calls;
} kvp_bench_counts_t;

typedef struct {
    uint64_t begun_ns, ended_ns; /* start and end by CLOCK_MONOTONIC, which is comparable between processes */
    uint64_t calls, objects, bytes;
    uint64_t errors; /* number of objects with an error; not included in the counts above */
    int first_error;
    uint64_t wrong_bytes;
    kvp_bench_counts_t counts; /* counters of the handle, for operations that move bytes */
    kvp_hist_t call; /* latency of calls in ns from the due time; in a closed loop from the start */
    kvp_hist_t service; /* latency of calls in ns from the actual start */
} kvp_bench_leg_t;

typedef struct kvp_bench kvp_bench_t;

/* kvp_bench_is_one_pass returns whether a leg makes at most one pass over the set, because keys can be put or
 * removed only once, or because a second pass would not be cold. */
bool kvp_bench_is_one_pass(const kvp_bench_conf_t *conf);

/* kvp_bench_pool_bytes returns the size of a new pool that has room for the sets of all processes.
 * kvp_bench_set_bytes returns the size of these sets alone. */
uint64_t kvp_bench_pool_bytes(const kvp_bench_conf_t *conf);
uint64_t kvp_bench_set_bytes(const kvp_bench_conf_t *conf);

/* kvp_bench_explain returns a sentence about the likely cause of this error in this bench, or NULL if no likely
 * cause is known. The text is static. */
const char *kvp_bench_explain(const kvp_bench_conf_t *conf, int err);

/* kvp_bench_open opens the pool, creates memory and keys, puts the set unless the operation puts,
 * and makes an untimed pass (not if a leg is one pass); for puts, two passes with different keys.
 * *fill_ns_out is the time of putting the set (0 = not put). verb, conf and common are borrowed
 * until kvp_bench_close. It returns exit codes as kvp_cli_open; failures have been printed. */
int kvp_bench_open(const kvp_cli_verb_t *verb, const kvp_bench_conf_t *conf, const kvp_cli_common_t *common,
                   uint32_t process, kvp_bench_t **bench_out, uint64_t *fill_ns_out);
void kvp_bench_close(kvp_bench_t *bench);

/* kvp_bench_prepare prepares the next leg, untimed: it makes a new handle or new keys, puts the set again, or
 * poisons the memory, as the operation needs. kvp_bench_leg runs for budget_ns, or to the end of the set, and then
 * verifies. Errors of single objects are counted; if a whole call fails, kvp_bench_leg returns its error. */
int kvp_bench_prepare(kvp_bench_t *bench);
int kvp_bench_leg(kvp_bench_t *bench, uint64_t budget_ns, kvp_bench_leg_t *leg_out);

void kvp_bench_leg_init(kvp_bench_leg_t *leg);

/* kvp_bench_leg_add adds the counts and latencies of leg to sum, but not its start and end. */
void kvp_bench_leg_add(kvp_bench_leg_t *sum, const kvp_bench_leg_t *leg);

#endif
