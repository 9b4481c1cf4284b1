/* SPDX-License-Identifier: Apache-2.0
 * The proxy: an OpenAI-compatible server that sends each request to a prefill server and then to a decode server, or to
 * a replica, and passes the answer on as it arrives. It has threads of its own, each with a loop. ADR 0035, 0036. */
#ifndef KVP_CONDUCTOR_PROXY_PROXY_H
#define KVP_CONDUCTOR_PROXY_PROXY_H

#include "common/buf.h"
#include "common/parse.h"
#include "conductor/proxy/fleet.h"

#define KVP_PROXY_THREADS_MAX 64u

typedef struct {
    kvp_hostport_t listen;
    uint32_t threads; /* number of the proxy's threads, 1 .. KVP_PROXY_THREADS_MAX */
    uint64_t connect_ms; /* time limit of connecting to a server */
    uint64_t prefill_ms; /* time limit until the first byte of the body of a prefill server's answer */
    uint64_t first_ms; /* time limit until the first byte of the body of any other server's answer */
    uint64_t idle_ms; /* longest pause within the body of a server's answer */
    uint64_t upload_ms; /* time limit for a client to send the head of a request, and again for its body */
    const char *api_keys; /* token file whose tokens clients need; NULL = none; borrowed */
    bool has_metrics_token; /* flag: /metrics needs one, too */
    const char *allow_origin; /* origins of web pages that may use the proxy (cors.h); borrowed for its life */
} kvp_proxy_conf_t;
extern const kvp_proxy_conf_t kvp_proxy_defaults; /* default values of all fields except listen */

typedef struct kvp_proxy kvp_proxy_t;

/* kvp_proxy_create makes a proxy. kvp_proxy_start binds (a failure is logged) and serves; *bound_out is the address.
 * SYS, NOMEM. kvp_proxy_stop ends all requests and threads, and frees the proxy; NULL is legal. */
kvp_err_t kvp_proxy_create(const kvp_proxy_conf_t *conf, kvp_proxy_t **out) KVP_MUST_USE;
/* Call kvp_proxy_route_by before the start. As long as has_instances returns true, the conductor's router at the given
 * address chooses the server that computes a prompt; all other choices depend on the load of the servers. token: value
 * of Authorization for the router; "" = none. Without this call servers are used in turn. has_instances is called on a
 * thread of the proxy. */
void kvp_proxy_route_by(kvp_proxy_t *p, const kvp_hostport_t *router, const char *token,
                        bool (*has_instances)(void *arg), void *arg);
/* kvp_proxy_report_to must be called before the start. left_out is called on a thread of the proxy when the set of
 * left-out servers changes, with the XXH3 hashes of the URLs of all left-out servers. */
void kvp_proxy_report_to(kvp_proxy_t *p, void (*left_out)(void *arg, const uint64_t *urls, uint32_t n), void *arg);
kvp_err_t kvp_proxy_start(kvp_proxy_t *p, kvp_hostport_t *bound_out) KVP_MUST_USE;
void kvp_proxy_stop(kvp_proxy_t *p);

/* Changes and lists the servers, at any time, from any thread. kvp_proxy_add adds a server: url in the form of
 * kvp_base_url; bootstrap "" = none; adding an existing server is OK; LIMIT. kvp_proxy_remove removes a server, or
 * returns NOT_FOUND; requests in progress continue. kvp_proxy_each calls fn for each server; fn must not call the
 * proxy. */
kvp_err_t kvp_proxy_add(kvp_proxy_t *p, kvp_server_role_t role, const char *url, const char *bootstrap) KVP_MUST_USE;
kvp_err_t kvp_proxy_remove(kvp_proxy_t *p, kvp_server_role_t role, const char *url) KVP_MUST_USE;
void kvp_proxy_each(kvp_proxy_t *p, void (*fn)(void *arg, const kvp_fleet_server_t *server), void *arg);

#endif
