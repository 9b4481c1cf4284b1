/* SPDX-License-Identifier: Apache-2.0
 * One operation against a pool, over and over, by one process: throughput and latency of a call. What is timed comes in
 * legs; setting up, new keys, and verifying what was moved happen between them. workers.h makes rounds of legs of
 * several processes.
 */
#ifndef KVP_TOOLS_BENCH_ROUND_H
#define KVP_TOOLS_BENCH_ROUND_H

#include "tools/bench/ops.h"
#include "tools/base/cli.h"

#include "common/hist.h"

#define KVP_BENCH_THREADS_MAX 64u
#define KVP_BENCH_PROCESSES_MAX 64u
#define KVP_BENCH_SET_MAX (64ull << 30)
#define KVP_BENCH_OBJECTS_MAX (1ull << 31) /* of one process */

/* What handles counted. */
typedef struct {
    uint64_t known; /* objects that were got with no message to the master */
    uint64_t work_requests, doorbells, signaled_completions, system_calls; /* over rdma */
} kvp_bench_counts_t;

typedef struct {
    uint64_t begun_ns, ended_ns; /* CLOCK_MONOTONIC: comparable between processes */
    uint64_t calls, objects, bytes;
    uint64_t errors; /* objects; not counted in the ones above */
    int first_error;
    uint64_t wrong_bytes;
    kvp_bench_counts_t counts; /* for operations that move bytes */
    kvp_hist_t call; /* ns from when the call was due; in a closed loop that is when it began */
    kvp_hist_t service; /* ns from the actual start */
} kvp_bench_leg_t;

typedef struct kvp_bench kvp_bench_t;

/* kvp_bench_is_one_pass: a leg goes over the set at most once, because keys can be put or removed once only, or because
 * a second pass would not be cold. */
bool kvp_bench_is_one_pass(const kvp_bench_conf_t *conf);

/* kvp_bench_pool_bytes is what a pool of its own must hold for all processes; kvp_bench_set_bytes
 * is what their sets take of any pool. */
uint64_t kvp_bench_pool_bytes(const kvp_bench_conf_t *conf);
uint64_t kvp_bench_set_bytes(const kvp_bench_conf_t *conf);

/* kvp_bench_explain explains an object's expected error in this bench: a sentence, or NULL. Static
 * storage. */
const char *kvp_bench_explain(const kvp_bench_conf_t *conf, int err);

/* kvp_bench_open opens the pool, creates memory and keys, puts the set if the operation needs it,
 * and runs over it once or, for puts, until all of the pool's memory has been written. *fill_ns_out
 * is the time of putting the set (0 = not put). verb, conf and common are borrowed until close.
 * Exit codes as kvp_cli_open's; a failure was printed. */
int kvp_bench_open(const kvp_cli_verb_t *verb, const kvp_bench_conf_t *conf, const kvp_cli_common_t *common,
                   uint32_t process, kvp_bench_t **bench_out, uint64_t *fill_ns_out);
void kvp_bench_close(kvp_bench_t *bench);

/* kvp_bench_prepare readies the next leg, untimed: a new handle, new keys, the set put again, memory poisoned.
 * kvp_bench_leg runs for budget_ns, or to the end of the set, then verifies. Errors of single objects are counted; a
 * call that fails whole is its own error. */
int kvp_bench_prepare(kvp_bench_t *bench);
int kvp_bench_leg(kvp_bench_t *bench, uint64_t budget_ns, kvp_bench_leg_t *leg_out);

void kvp_bench_leg_init(kvp_bench_leg_t *leg);

/* kvp_bench_leg_add adds counts and latencies, not times. */
void kvp_bench_leg_add(kvp_bench_leg_t *sum, const kvp_bench_leg_t *leg);

#endif
