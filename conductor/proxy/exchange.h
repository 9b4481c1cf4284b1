/* SPDX-License-Identifier: Apache-2.0
 * A request on its way: from its whole body to the last byte of its answer. The exchange chooses
 * servers, sends the copies, and has the bytes for the client; front.c delivers them. All on the
 * thread of its loop. Design notes.
 * - Only the part of an answer that the client has not read yet is kept: a slow client pauses its
 *   server.
 * - Before the first byte to the client a failed request can be sent to another server. After it,
 *   the body ends without an end mark.
 * - A POST is delivered at most twice in each role: computing it is expensive, and a request that
 *   crashes servers must not crash all of them. A delivery is a request that a server may have
 *   seen. An answer of 429 is no delivery: the server has done no work. The second delivery uses a
 *   new connection, to another server if there is one. */
#ifndef KVP_CONDUCTOR_PROXY_EXCHANGE_H
#define KVP_CONDUCTOR_PROXY_EXCHANGE_H

#include "common/list.h"
#include "conductor/proxy/body.h"
#include "conductor/proxy/paths.h"
#include "conductor/proxy/places.h"
#include "conductor/proxy/proxy.h"
#include "conductor/proxy/upstream.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_EXCHANGE_OUT_MAX (256u << 10) /* bytes of an answer that wait for the client */
#define KVP_EXCHANGE_ID_MAX 128u
#define KVP_ROUTE_MS 1000u /* time limit of the router */
#define KVP_EXCHANGE_TRIES_MAX 64u /* servers that a request may be tried at, of each role */

/* Shared by all threads of a proxy. */
typedef struct {
    kvp_proxy_conf_t conf;
    char router[KVP_HOSTPORT_TEXT_MAX + 16]; /* its URL; "" = servers are used in turn */
    bool (*has_instances)(void *arg);
    void *has_instances_arg;
    void (*left_out)(void *arg, const uint64_t *urls, uint32_t n); /* NULL = no listener */
    void *left_out_arg;
    _Atomic bool is_routing; /* instances are registered, */
    _Atomic bool is_lost; /* and the router could not choose among them */
    _Atomic bool is_without_params; /* the log has the line about a prefill server without params */
    pthread_mutex_t lock; /* of the fleet; the URLs of a server that a request goes to stay */
    kvp_fleet_t fleet;
    uint64_t id; /* drawn at the start */
    _Atomic uint64_t ids; /* that were made */
    kvp_uploads_t places; /* for bodies */
    _Atomic uint32_t open; /* exchanges, without uploads */
    _Atomic uint64_t given_up_bytes; /* bodies of requests that clients gave up (giveup.h) */
    struct {
        _Atomic uint64_t requests, refused, failed, broken, plain,
            gone; /* broken: after the first byte; plain: without their prefill */
        _Atomic uint64_t routed, unrouted; /* the router's choices, and failures to choose */
    } stats;
} kvp_proxy_shared_t;

static inline void
kvp_count(_Atomic uint64_t *n)
{
    atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

typedef enum {
    KVP_X_BODY,
    KVP_X_BOOTSTRAP,
    KVP_X_PREFILL,
    KVP_X_ANSWER,
    KVP_X_WHOLE, /* the answer has ended, */
    KVP_X_BROKEN /* or broke off */
} kvp_exchange_state_t;

/* Of the prompt's cache, from the prefill server to the decode server. */
typedef enum {
    KVP_HANDOVER_NONE, /* the decode server computes the prompt */
    KVP_HANDOVER_ASKED, /* the prefill server is asked to keep the cache */
    KVP_HANDOVER_READY /* params names the cache */
} kvp_handover_t;

typedef struct kvp_exchange {
    kvp_proxy_shared_t *shared;
    kvp_upstream_t *up;
    void (*on_news)(struct kvp_exchange *x); /* bytes for the client have come, or the exchange has ended */
    char path[KVP_PATH_MAX + 1];
    kvp_path_kind_t kind;
    kvp_buf_t body;
    kvp_body_t fields;
    char id[KVP_EXCHANGE_ID_MAX + 1], auth[4096], session[257]; /* the client's; an id is made where it has none */
    kvp_exchange_state_t state;

    kvp_call_t *call; /* under way; NULL = none */
    uint32_t server; /* of it */
    uint64_t route; /* the route of this choice; 0 = none */
    int64_t rank; /* of this server; -1 = any */
    bool is_rank_taken; /* the bootstrap server named the rank */
    kvp_buf_t sent; /* its body */
    uint32_t tried[KVP_EXCHANGE_TRIES_MAX], tried_n;
    uint32_t deliveries; /* in this role */
    uint32_t again; /* server for one more delivery without an alternative; KVP_SERVER_NONE = none */
    kvp_buf_t told; /* what a prefill server, a bootstrap server or the router has answered */
    kvp_handover_t handover;
    kvp_buf_t params; /* the decode server's kv_transfer_params, ended by a zero */
    char engine[KVP_FLEET_ENGINE_MAX + 1], transfer[40]; /* ids, with a bootstrap server that states the first */
    char why[256]; /* of the last failure */

    uint32_t status; /* of the answer; 0 = there is none yet */
    char type[128];
    int64_t length; /* -1 = unknown */
    kvp_buf_t headers; /* the server's (headers.h) */
    kvp_buf_t out;
    size_t out_at;
    struct { /* the last answer of 429, for the client if no server has room */
        bool is_there;
        char type[128];
        kvp_buf_t headers, body;
    } busy;
    bool is_passed; /* a byte of it has gone to the client */
} kvp_exchange_t;

static inline bool
kvp_exchange_is_get(const kvp_exchange_t *x)
{
    return x->kind == KVP_PATH_MODELS;
}

static inline bool
kvp_exchange_has_ended(const kvp_exchange_t *x)
{
    return x->state == KVP_X_WHOLE || x->state == KVP_X_BROKEN;
}

void kvp_exchange_init(kvp_exchange_t *x, kvp_proxy_shared_t *shared, kvp_upstream_t *up, const char *path,
                       kvp_path_kind_t kind, void (*on_news)(kvp_exchange_t *x));
void kvp_exchange_begin(kvp_exchange_t *x); /* the body is whole; may call on_news */
size_t kvp_exchange_take(kvp_exchange_t *x, char *bytes, size_t max); /* of the available bytes */
void kvp_exchange_cancel(kvp_exchange_t *x); /* the client has left; legal at any time */
/* kvp_exchange_break ends an answer of which the client has a part, because the proxy stops. It
 * calls on_news. */
void kvp_exchange_break(kvp_exchange_t *x);
void kvp_exchange_fini(kvp_exchange_t *x);

uint32_t kvp_servers_count(kvp_proxy_shared_t *shared, kvp_server_role_t role);

/* What a check of a server, and the end of a route, make of an answer: nothing. */
bool kvp_skip_bytes(void *arg, const void *bytes, size_t len);

#endif
