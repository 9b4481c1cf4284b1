/* SPDX-License-Identifier: Apache-2.0
 * Rounds of a bench that runs in one or several processes at once: children of the tool, each with
 * a handle, threads and a set of its own, that wait for one another between legs. The tool itself
 * only keeps time, adds up, and removes between legs what puts left. */
#ifndef KVP_TOOLS_BENCH_WORKERS_H
#define KVP_TOOLS_BENCH_WORKERS_H

#include "tools/bench/round.h"

typedef struct kvp_bench_workers kvp_bench_workers_t;

/* kvp_bench_workers_open starts the processes and returns when all are set up. conf and common are
 * borrowed until close. Exit codes; a failure was printed. *workers_out is set in any case. Call
 * before the tool has threads. */
int kvp_bench_workers_open(const kvp_cli_verb_t *verb, const kvp_bench_conf_t *conf, const kvp_cli_common_t *common,
                           kvp_bench_workers_t **workers_out);

/* kvp_bench_workers_fill_ns is how long putting the set took, the longest of the processes; 0 =
 * there was none to put. */
uint64_t kvp_bench_workers_fill_ns(const kvp_bench_workers_t *workers);

/* kvp_bench_workers_round adds up legs until round_ns have passed in them, each from the first
 * process's start to the last one's end. sum_out lasts from 0 to the time of all legs; it is set
 * also after a failure. */
int kvp_bench_workers_round(kvp_bench_workers_t *workers, uint64_t round_ns, kvp_bench_leg_t *sum_out);

/* kvp_bench_workers_close ends the processes; with removes_set it also removes their objects. Exit
 * codes. */
int kvp_bench_workers_close(kvp_bench_workers_t *workers, bool removes_set);

#endif
