/* SPDX-License-Identifier: Apache-2.0
 * An exchange: one request, from its complete body to the last byte of its answer. The exchange chooses servers,
 * sends them the copies of the request, and collects the bytes for the client; front.c delivers these bytes. All
 * functions run on the thread of the loop. Design notes.
 * - Only the part of an answer that the client has not read yet is kept: a slow client pauses its server.
 * - Before the first byte to the client, a failed request can be sent to another server. After it, a failure ends the
 *   client's body without an end mark.
 * - A POST is delivered at most twice in each role: computing it is expensive, and a request that crashes servers
 *   must not crash all of them. A delivery is a request that a server may have seen. An answer of 429 is no delivery:
 *   the server has done no work. The second delivery uses a new connection, to another server if there is one. */
#ifndef KVP_CONDUCTOR_PROXY_EXCHANGE_H
#define KVP_CONDUCTOR_PROXY_EXCHANGE_H

#include "common/daemon/http_tokens.h"
#include "common/list.h"
#include "conductor/proxy/body.h"
#include "conductor/proxy/paths.h"
#include "conductor/proxy/places.h"
#include "conductor/proxy/proxy.h"
#include "conductor/proxy/upstream.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_EXCHANGE_OUT_MAX (256u << 10) /* limit of answer bytes that wait for the client */
#define KVP_EXCHANGE_ID_MAX 128u
#define KVP_ROUTE_MS 1000u /* time limit of a call to the router */
#define KVP_EXCHANGE_TRIES_MAX 64u /* most servers of one role that are tried for one request */

/* The state that all threads of a proxy share. */
typedef struct {
    kvp_proxy_conf_t conf;
    kvp_http_tokens_t keys; /* keys of clients, with --api-keys */
    char router_auth[96]; /* header line for requests to the router, with this process's own token; "" = none */
    char router[KVP_HOSTPORT_TEXT_MAX + 16]; /* URL of the router; "" = no router: servers are used in turn */
    bool (*has_instances)(void *arg);
    void *has_instances_arg;
    /* called when the set of left-out servers changes; NULL = no listener */
    void (*left_out)(void *arg, const uint64_t *urls, uint32_t n);
    void *left_out_arg;
    _Atomic bool is_routing; /* a flag: instances are registered, so the router is asked */
    _Atomic bool is_lost; /* a flag: the router's last answer named no usable server */
    _Atomic bool is_without_params; /* a flag: an answer without kv_transfer_params has been logged */
    pthread_mutex_t lock; /* mutex that guards fleet; the URLs of a server in use do not change */
    kvp_fleet_t fleet;
    uint64_t id; /* random id of this proxy, drawn at its start */
    _Atomic uint64_t ids; /* number of request ids made so far */
    kvp_uploads_t places; /* memory limits for request bodies */
    _Atomic uint32_t open; /* number of exchanges in progress, without uploads */
    _Atomic uint64_t given_up_bytes; /* total length of the bodies of given-up requests (giveup.h), in bytes */
    struct {
        /* counters: broken: answers that broke off after the first byte; plain: requests whose decode server computes
         * the prompt; gone: clients that left */
        _Atomic uint64_t requests, refused, failed, broken, plain, gone;
        _Atomic uint64_t routed, unrouted; /* counters of queries to the router: with a usable server; without one */
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
    KVP_X_WHOLE, /* final state: the answer is complete */
    KVP_X_BROKEN /* final state: the answer broke off */
} kvp_exchange_state_t;

/* The state of the transfer of the prompt's cache from the prefill server to the decode server. */
typedef enum {
    KVP_HANDOVER_NONE, /* no transfer: the decode server computes the prompt */
    KVP_HANDOVER_ASKED, /* the prefill server was asked to keep the cache */
    KVP_HANDOVER_READY /* the cache is computed, and params names it */
} kvp_handover_t;

typedef struct kvp_exchange {
    kvp_proxy_shared_t *shared;
    kvp_upstream_t *up;
    void (*on_news)(struct kvp_exchange *x); /* called when answer bytes have arrived, or the exchange has ended */
    char path[KVP_PATH_MAX + 1];
    kvp_path_kind_t kind;
    kvp_buf_t body;
    kvp_body_t fields;
    char id[KVP_EXCHANGE_ID_MAX + 1], auth[4096], session[257]; /* values of the client's headers; id: made if absent */
    kvp_exchange_state_t state;

    kvp_call_t *call; /* the call in progress; NULL = none */
    uint32_t server; /* number of the server to which the current call goes */
    uint64_t route; /* id of the router's route for this choice; 0 = none */
    int64_t rank; /* data-parallel rank of the server for this request; -1 = any */
    bool is_rank_taken; /* a flag: the rank was chosen from the ranks that the bootstrap server reported */
    kvp_buf_t sent; /* body of the current call to a server */
    uint32_t tried[KVP_EXCHANGE_TRIES_MAX], tried_n;
    uint32_t deliveries; /* number of deliveries to servers of the current role */
    uint32_t again; /* server that may get a second delivery if no other server is left; KVP_SERVER_NONE = none */
    kvp_buf_t told; /* body of the answer from a prefill server, a bootstrap server or the router */
    kvp_handover_t handover;
    kvp_buf_t params; /* value of kv_transfer_params for the decode server, zero-terminated */
    /* ids of the engine and of the transfer, if a bootstrap server reports the engine's id */
    char engine[KVP_FLEET_ENGINE_MAX + 1], transfer[40];
    char why[256]; /* text of the last failure of a server for this request */

    /* time of the request; time of the first byte of the last server's answer, 0 = none yet */
    uint64_t begun_ns, first_ns;
    uint32_t status; /* HTTP status of the answer; 0 = no answer yet */
    char type[128];
    int64_t length; /* length of the answer's body; -1 = unknown */
    kvp_buf_t headers; /* headers of the server's answer (headers.h) */
    kvp_buf_t out;
    size_t out_at;
    struct { /* the last answer of 429, which the client gets if no server has room */
        bool is_there;
        char type[128];
        kvp_buf_t headers, body;
    } busy;
    bool is_passed; /* a flag: the answer to the client has begun */
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
void kvp_exchange_begin(kvp_exchange_t *x); /* starts the exchange when the body is complete; may call on_news */
/* moves at most max bytes of the answer to `bytes`, and returns their number */
size_t kvp_exchange_take(kvp_exchange_t *x, char *bytes, size_t max);
void kvp_exchange_cancel(kvp_exchange_t *x); /* ends the exchange after the client has left; legal at any time */
/* kvp_exchange_break ends an answer that the client has received in part, because the proxy stops. It calls on_news. */
void kvp_exchange_break(kvp_exchange_t *x);
void kvp_exchange_fini(kvp_exchange_t *x);

uint32_t kvp_servers_count(kvp_proxy_shared_t *shared, kvp_server_role_t role);

/* Callback on_bytes that ignores the body, for checks of servers and reports of a route's end. */
bool kvp_skip_bytes(void *arg, const void *bytes, size_t len);

#endif
