/* SPDX-License-Identifier: Apache-2.0
 * The workload of replay: a list of requests. Each request is a chain of block ids; equal ids mean the same prefix
 * block. A workload is read from a trace, with one JSON object in each line: timestamp (ms), input_length and
 * output_length (tokens) and hash_ids (one id for each 512-token block of the prompt), as published with
 * Mooncake's FAST'25 paper. For one thread. */
#ifndef KVP_TOOLS_REPLAY_TRACE_H
#define KVP_TOOLS_REPLAY_TRACE_H

#include "common/base.h"

#define KVP_TRACE_LINE_MAX (1u << 20) /* longest line of a trace, in bytes */
#define KVP_TRACE_WHY_MAX 256
#define KVP_REQUEST_BLOCKS_MAX 8192u /* most blocks of a request, which is the limit of one look-up */
#define KVP_WORKLOAD_IDS_MAX (64u << 20)

typedef struct {
    uint64_t timestamp_ms;
    uint64_t input_tokens;
    uint64_t output_tokens;
    size_t ids_at; /* index of the request's first id: its chain is workload.ids[ids_at .. ids_at + ids_n) */
    size_t ids_n;
} kvp_request_t;

/* A list of requests with all their ids. Zeroed memory is an empty workload. */
typedef struct {
    kvp_request_t *requests;
    size_t requests_n, requests_cap;
    uint64_t *ids;
    size_t ids_n, ids_cap;
} kvp_workload_t;

void kvp_workload_fini(kvp_workload_t *workload);

/* kvp_trace_load appends the first requests of the file, at most limit. Blank lines are skipped. The file is not
 * trusted: INVALID for a malformed line, LIMIT above the limits in this header, SYS, NOMEM. After an error, why
 * contains the fault with the line's number, and the workload is partly filled. */
kvp_err_t kvp_trace_load(const char *path, size_t limit, kvp_workload_t *workload, char why[KVP_TRACE_WHY_MAX])
    KVP_MUST_USE;

/* kvp_workload_distinct counts the distinct ids of the workload. NOMEM. */
kvp_err_t kvp_workload_distinct(const kvp_workload_t *workload, size_t *distinct_out) KVP_MUST_USE;

#endif
