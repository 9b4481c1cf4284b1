/* SPDX-License-Identifier: Apache-2.0
 * Keys in the form of vLLM's store connector: "MODEL@tp_rank:R@pcp0@dcp0@pp_rank:0@group:0@" and the block's hash as 64
 * hex digits. Long common prefixes and an unpredictable hash are the usual load of an index. Pure. */
#ifndef KVP_TOOLS_BENCH_KEY_H
#define KVP_TOOLS_BENCH_KEY_H

#include "common/base.h"

#define KVP_BENCH_KEY_MIN 104u /* length of the shortest key, whose model name has one byte */
#define KVP_BENCH_RUN_TEXT 17u /* size of the text of a run's number: 16 hex digits and the terminator */

/* kvp_bench_key_write writes the key for (run, number), of exactly len bytes (at least KVP_BENCH_KEY_MIN), without
 * a terminator. The last 16 bytes are kvp_bench_run_text(run), by which all keys of a run can be found. */
void kvp_bench_key_write(char *dst, size_t len, uint64_t run, uint64_t number);
const char *kvp_bench_run_text(uint64_t run, char dst[KVP_BENCH_RUN_TEXT]);

/* kvp_bench_is_absent returns whether the object belongs to the given share of objects that are never put. The
 * result is the same in each call. */
bool kvp_bench_is_absent(uint64_t object, double share);

/* kvp_bench_shuffle fills order with a permutation of 0 to n - 1 that depends on seed. */
void kvp_bench_shuffle(uint32_t *order, size_t n, uint64_t seed);

#endif
