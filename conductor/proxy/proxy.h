/* SPDX-License-Identifier: Apache-2.0
 * The proxy: an OpenAI-compatible front, which sends each request to a prefill server and then to a
 * decode server, or to a replica, and passes the answer on as it comes. Threads of its own, each
 * with a loop. ADR 0035, 0036. */
#ifndef KVP_CONDUCTOR_PROXY_PROXY_H
#define KVP_CONDUCTOR_PROXY_PROXY_H

#include "common/buf.h"
#include "common/parse.h"
#include "conductor/proxy/fleet.h"

#define KVP_PROXY_THREADS_MAX 64u

typedef struct {
    kvp_hostport_t listen;
    uint32_t threads; /* 1 .. KVP_PROXY_THREADS_MAX */
    uint64_t connect_ms; /* most that a connection to a server may take */
    uint64_t prefill_ms; /* and a prefill */
    uint64_t first_ms; /* and the first byte of an answer */
    uint64_t idle_ms; /* and the following fields, each */
    uint64_t upload_ms; /* and a client's head, and its body */
    const char *allow_origin; /* which web pages may ask (cors.h); borrowed for the proxy's life */
} kvp_proxy_conf_t;
extern const kvp_proxy_conf_t kvp_proxy_defaults; /* but for listen */

typedef struct kvp_proxy kvp_proxy_t;

/* kvp_proxy_start binds and serves; *bound_out is where. SYS, NOMEM; logged. kvp_proxy_stop ends
 * all requests, and the thread, and frees it; NULL is legal. */
kvp_err_t kvp_proxy_create(const kvp_proxy_conf_t *conf, kvp_proxy_t **out) KVP_MUST_USE;
/* kvp_proxy_route_by, before the start: the conductor's router at the address chooses the instance
 * that computes a prompt, as long as has_instances returns true, and the load decides all other
 * choices. Without this call servers are used in turn. has_instances is called on the proxy's
 * thread. */
void kvp_proxy_route_by(kvp_proxy_t *p, const kvp_hostport_t *router, bool (*has_instances)(void *arg), void *arg);
/* kvp_proxy_report_to, before the start: left_out is called, on a thread of the proxy's, when other
 * servers are left out than before, with the XXH3 hashes of the URLs of all that are. */
void kvp_proxy_report_to(kvp_proxy_t *p, void (*left_out)(void *arg, const uint64_t *urls, uint32_t n), void *arg);
kvp_err_t kvp_proxy_start(kvp_proxy_t *p, kvp_hostport_t *bound_out) KVP_MUST_USE;
void kvp_proxy_stop(kvp_proxy_t *p);

/* The servers, at any time, from any thread. kvp_proxy_add: url in the form of kvp_base_url;
 * bootstrap "" = none; an existing one is OK; LIMIT. kvp_proxy_remove: NOT_FOUND; requests under
 * way continue. kvp_proxy_each: fn must not call the proxy. */
kvp_err_t kvp_proxy_add(kvp_proxy_t *p, kvp_server_role_t role, const char *url, const char *bootstrap) KVP_MUST_USE;
kvp_err_t kvp_proxy_remove(kvp_proxy_t *p, kvp_server_role_t role, const char *url) KVP_MUST_USE;
void kvp_proxy_each(kvp_proxy_t *p, void (*fn)(void *arg, const kvp_fleet_server_t *server), void *arg);

#endif
