/* SPDX-License-Identifier: Apache-2.0
 * POST /route and /route/done: the router over HTTP, and its inputs: the index's answers, tokens of
 * texts, servers' load. */
#ifndef KVP_CONDUCTOR_ROUTER_ROUTE_H
#define KVP_CONDUCTOR_ROUTER_ROUTE_H

#include "common/daemon/http.h"
#include "conductor/events/registry.h"
#include "conductor/router/router.h"

typedef struct kvp_routes kvp_routes_t;

/* registry is borrowed until destroy. NOMEM, SYS; logged. */
kvp_err_t kvp_routes_create(kvp_registry_t *registry, const kvp_router_weights_t *weights, kvp_routes_t **out)
    KVP_MUST_USE;
kvp_err_t kvp_routes_route(kvp_routes_t *routes, kvp_http_t *http) KVP_MUST_USE;
void kvp_routes_stop(
    kvp_routes_t *routes); /* questions that wait for tokens are answered without; before the HTTP server stops */
void kvp_routes_destroy(kvp_routes_t *routes); /* after the HTTP server has stopped; NULL is legal */
/* kvp_routes_set_left_out, of any thread: the servers that a proxy leaves out, by the XXH3 hashes of
 * their URLs; all of them, each time. No text is sent to them for its tokens, and no request where
 * another instance may have it. */
void kvp_routes_set_left_out(kvp_routes_t *routes, const uint64_t *urls, uint32_t n);
void kvp_routes_write_metrics(kvp_routes_t *routes, kvp_buf_t *out); /* of any thread */

#endif
