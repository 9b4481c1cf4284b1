/* SPDX-License-Identifier: Apache-2.0
 * A list of requests, each a chain of block ids: what replay plays. It is read from a trace (trace.h) or generated here:
 * conversations that begin with one of a few shared system prompts and grow turn by turn. Equal ids mean the same prefix
 * block. Pure; one thread.
 */
#ifndef KVP_CLIENT_CLI_REPLAY_WORKLOAD_H
#define KVP_CLIENT_CLI_REPLAY_WORKLOAD_H

#include "common/base.h"

#define KVP_BLOCK_TOKENS 512u
#define KVP_REQUEST_BLOCKS_MAX 8192u /* what one lookup takes */
#define KVP_WORKLOAD_IDS_MAX (64u << 20)

typedef struct {
    uint64_t timestamp_ms;
    uint64_t input_tokens;
    uint64_t output_tokens;
    size_t ids_at; /* its chain is workload.ids[ids_at .. ids_at + ids_n) */
    size_t ids_n;
} kvp_request_t;

/* The zero value is an empty workload. */
typedef struct {
    kvp_request_t *requests;
    size_t requests_n, requests_cap;
    uint64_t *ids;
    size_t ids_n, ids_cap;
} kvp_workload_t;

void kvp_workload_fini(kvp_workload_t *workload);

/* kvp_workload_add appends a request with ids_n ids, copied; request's ids_at is not looked at. LIMIT beyond the bounds
 * above, NOMEM; the workload stays as it was then. */
kvp_err_t kvp_workload_add(kvp_workload_t *workload, const kvp_request_t *request, const uint64_t *ids) KVP_MUST_USE;

/* kvp_workload_generate appends n requests in order of time; equal seeds give equal requests. NOMEM, LIMIT. */
kvp_err_t kvp_workload_generate(kvp_workload_t *workload, uint64_t seed, size_t n) KVP_MUST_USE;

/* kvp_workload_distinct counts the distinct ids. NOMEM. */
kvp_err_t kvp_workload_distinct(const kvp_workload_t *workload, size_t *distinct_out) KVP_MUST_USE;

size_t kvp_workload_longest(const kvp_workload_t *workload); /* blocks of the longest request */

#endif
