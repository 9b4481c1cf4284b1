/* SPDX-License-Identifier: Apache-2.0
 * One request to a daemon of ours over HTTP, and its JSON.
 */
#ifndef KVP_TOOLS_BASE_HTTP_H
#define KVP_TOOLS_BASE_HTTP_H

#include "common/base.h"

#include <json-c/json.h>

/* kvp_cli_http asks at (HOST:PORT) for the path, with POST and that body, or GET where body is NULL.
 * *answer_out is the body of the answer, json_object_put gives it back; NULL where it is no JSON.
 * INVALID (at), UNREACHABLE (also where it is silent for 5 s), PROTO (what comes is no HTTP), INTERNAL
 * (another status than 200), LIMIT (more than 64 MiB). *why_out is set for UNREACHABLE: a text that
 * lives until the next call. */
kvp_err_t kvp_cli_http(const char *at, const char *path, const char *body, struct json_object **answer_out,
                       const char **why_out) KVP_MUST_USE;

#endif
