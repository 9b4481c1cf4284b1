/* SPDX-License-Identifier: Apache-2.0
 * Traces as files: one JSON object a line with timestamp (ms), input_length and output_length (tokens) and hash_ids (one
 * id for each 512-token block of the prompt), as published with Mooncake's FAST'25 paper. One thread.
 */
#ifndef KVP_CLIENT_CLI_REPLAY_TRACE_H
#define KVP_CLIENT_CLI_REPLAY_TRACE_H

#include "client/cli/replay/workload.h"

#define KVP_TRACE_LINE_MAX (1u << 20) /* bytes */
#define KVP_TRACE_WHY_MAX 256

/* kvp_trace_load appends the file's first requests, at most limit of them. Nothing in the file is trusted: INVALID for a
 * line that is not such an object, LIMIT beyond the bounds here and in workload.h, SYS, NOMEM; why then says what is
 * wrong, with the line's number, and the workload is part filled. Blank lines are skipped. */
kvp_err_t kvp_trace_load(const char *path, size_t limit, kvp_workload_t *workload, char why[KVP_TRACE_WHY_MAX])
    KVP_MUST_USE;

/* kvp_trace_save writes the workload in the same format. SYS (why says more). */
kvp_err_t kvp_trace_save(const char *path, const kvp_workload_t *workload, char why[KVP_TRACE_WHY_MAX]) KVP_MUST_USE;

#endif
