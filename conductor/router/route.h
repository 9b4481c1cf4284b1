/* SPDX-License-Identifier: Apache-2.0
 * POST /route and /route/done: the router over HTTP, with its inputs: the index's answers, the tokens of texts,
 * and the servers' load. */
#ifndef KVP_CONDUCTOR_ROUTER_ROUTE_H
#define KVP_CONDUCTOR_ROUTER_ROUTE_H

#include "common/daemon/http.h"
#include "conductor/events/registry.h"
#include "conductor/router/router.h"

typedef struct kvp_routes kvp_routes_t;

/* kvp_routes_create makes the handlers' state. registry is borrowed until kvp_routes_destroy. NOMEM; SYS, logged. */
kvp_err_t kvp_routes_create(kvp_registry_t *registry, const kvp_router_weights_t *weights, kvp_routes_t **out)
    KVP_MUST_USE;
kvp_err_t kvp_routes_route(kvp_routes_t *routes, kvp_http_t *http) KVP_MUST_USE;
/* makes the handlers answer all parked queries, without tokens; call it before the HTTP server stops */
void kvp_routes_stop(kvp_routes_t *routes);
/* frees the handlers' state; call it after the HTTP server has stopped; NULL is legal */
void kvp_routes_destroy(kvp_routes_t *routes);
/* kvp_routes_set_left_out replaces the set of servers that a proxy leaves out, given by the XXH3 hashes of their
 * URLs. No text is sent to these servers for its tokens, and no request if another instance may serve it. Any
 * thread may call it. */
void kvp_routes_set_left_out(kvp_routes_t *routes, const uint64_t *urls, uint32_t n);
/* kvp_routes_write_view writes the member "routes": the counts of the router's decisions; for any thread */
void kvp_routes_write_view(kvp_routes_t *routes, kvp_jsonw_t *w);
void kvp_routes_write_metrics(kvp_routes_t *routes, kvp_buf_t *out); /* appends the router's metrics; for any thread */

#endif
