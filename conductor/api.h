/* SPDX-License-Identifier: Apache-2.0
 * The HTTP paths of the conductor. The HTTP server's thread answers queries from the index. Slow handlers (/route,
 * /register) have threads of their own. All work on the list of publishers runs on the loop's thread. */
#ifndef KVP_CONDUCTOR_API_H
#define KVP_CONDUCTOR_API_H

#include "common/daemon/http.h"
#include "common/daemon/loop.h"
#include "common/metrics.h"
#include "conductor/events/registry.h"
#include "conductor/router/route.h"

#define KVP_QUESTION_MAX (16u << 20) /* limit of the body of a query, in bytes */

#define KVP_HIT_LENGTHS 6u

typedef struct {
    kvp_registry_t *registry; /* the registry and the loop are borrowed */
    kvp_loop_t *loop;
    kvp_routes_t *routes; /* handlers of the router's paths; the API object owns them */
    kvp_match_scratch_t *scratch;
    kvp_metrics_t *process; /* the metrics that every daemon has */
    kvp_buf_t numbers, tokens, rest; /* buffers for the current query: its numbers, its tokens and its other fields */
    bool has_proxy; /* flag: the path /servers exists; set by the owner before the server starts */
    /* counters: queries; tokens in whole blocks of the queries; tokens of the longest match of each query, over
     * all instances */
    _Atomic uint64_t questions, asked_tokens, matched_tokens;
    /* counters of queries by length of the longest match, in tokens: 0, up to 255, 1023, 4095, 16383, more */
    _Atomic uint64_t hits[KVP_HIT_LENGTHS];
} kvp_api_t;

/* kvp_api_route binds all paths. NOMEM, SYS. kvp_api_fini frees the memory that *api owns; call it after the
 * server has stopped. */
kvp_err_t kvp_api_route(kvp_api_t *api, kvp_http_t *http, kvp_loop_t *loop, kvp_registry_t *registry,
                        const kvp_router_weights_t *weights) KVP_MUST_USE;
void kvp_api_fini(kvp_api_t *api);

#endif
