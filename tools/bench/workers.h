/* SPDX-License-Identifier: Apache-2.0
 * Rounds of a bench with one or several processes. The processes are children of the tool, each with its own
 * handle, threads and set, and wait for one another between legs. The tool itself only keeps time, adds up the
 * results, and removes the put keys between legs. */
#ifndef KVP_TOOLS_BENCH_WORKERS_H
#define KVP_TOOLS_BENCH_WORKERS_H

#include "tools/bench/round.h"

typedef struct kvp_bench_workers kvp_bench_workers_t;

/* kvp_bench_workers_open starts the processes and returns when all are prepared. conf and common are borrowed
 * until kvp_bench_workers_close. It returns an exit code; failures have been printed. *workers_out is set in any
 * case. Call it before the tool has threads. */
int kvp_bench_workers_open(const kvp_cli_verb_t *verb, const kvp_bench_conf_t *conf, const kvp_cli_common_t *common,
                           kvp_bench_workers_t **workers_out);

/* kvp_bench_workers_fill_ns returns the time of putting the set, in the slowest process; 0 = no set was put. */
uint64_t kvp_bench_workers_fill_ns(const kvp_bench_workers_t *workers);

/* kvp_bench_workers_round runs legs until their times add up to round_ns, and adds up the results. The time of a
 * leg is from the first process's start to the last one's end. sum_out begins at 0 and ends at the total time of
 * the legs; it is set also after a failure. */
int kvp_bench_workers_round(kvp_bench_workers_t *workers, uint64_t round_ns, kvp_bench_leg_t *sum_out);

/* kvp_bench_workers_close ends the processes; with removes_set it also removes their objects. Returns an exit code. */
int kvp_bench_workers_close(kvp_bench_workers_t *workers, bool removes_set);

#endif
