/* SPDX-License-Identifier: Apache-2.0
 * Keys in the form of vLLM's store connector: "MODEL@tp_rank:R@pcp0@dcp0@pp_rank:0@group:0@" and
 * the block's hash as 64 hex digits. Long common prefixes and an unpredictable hash are the usual
 * load of an index. Pure. */
#ifndef KVP_TOOLS_BENCH_KEY_H
#define KVP_TOOLS_BENCH_KEY_H

#include "common/base.h"

#define KVP_BENCH_KEY_MIN 104u /* with a model's name of one byte */
#define KVP_BENCH_RUN_TEXT 17u /* 16 digits and the terminator */

/* kvp_bench_key_write writes the key of exactly len bytes (KVP_BENCH_KEY_MIN or more, no
 * terminator) for (run, number). Its last 16 bytes are kvp_bench_run_text(run), by which a run's
 * leftovers can be found. */
void kvp_bench_key_write(char *dst, size_t len, uint64_t run, uint64_t number);
const char *kvp_bench_run_text(uint64_t run, char dst[KVP_BENCH_RUN_TEXT]);

/* kvp_bench_is_absent decides for each object, always alike, whether it belongs to the share that is never put. */
bool kvp_bench_is_absent(uint64_t object, double share);

/* kvp_bench_shuffle fills order with 0 to n - 1 in an order that seed decides. */
void kvp_bench_shuffle(uint32_t *order, size_t n, uint64_t seed);

#endif
