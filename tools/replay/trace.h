/* SPDX-License-Identifier: Apache-2.0
 * What replay plays: a list of requests, each a chain of block ids; equal ids mean the same prefix
 * block. It is read from a trace: one JSON object a line with timestamp (ms), input_length and
 * output_length (tokens) and hash_ids (one id for each 512-token block of the prompt), as published
 * with Mooncake's FAST'25 paper. One thread. */
#ifndef KVP_TOOLS_REPLAY_TRACE_H
#define KVP_TOOLS_REPLAY_TRACE_H

#include "common/base.h"

#define KVP_TRACE_LINE_MAX (1u << 20) /* bytes */
#define KVP_TRACE_WHY_MAX 256
#define KVP_REQUEST_BLOCKS_MAX 8192u /* limit of one lookup */
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

/* kvp_trace_load appends the file's first requests, at most limit. The file is not trusted: INVALID
 * for a malformed line, LIMIT over the bounds here, SYS, NOMEM; why then has the fault, with the
 * line's number, and the workload is partly filled. Blank lines are skipped. */
kvp_err_t kvp_trace_load(const char *path, size_t limit, kvp_workload_t *workload, char why[KVP_TRACE_WHY_MAX])
    KVP_MUST_USE;

/* kvp_workload_distinct counts the distinct ids. NOMEM. */
kvp_err_t kvp_workload_distinct(const kvp_workload_t *workload, size_t *distinct_out) KVP_MUST_USE;

#endif
