/* SPDX-License-Identifier: Apache-2.0
 * An HTTP client for calls to servers, over http:// on a libuv loop: received bytes are passed on as they arrive.
 * All functions run on the loop's thread. llhttp parses the answers. Connections are kept for reuse. A server may
 * close a kept connection at any time, so a request on it may end without a byte. Then the request is sent once
 * more, over a new connection, unless the caller does this itself (is_once). */
#ifndef KVP_CONDUCTOR_PROXY_UPSTREAM_H
#define KVP_CONDUCTOR_PROXY_UPSTREAM_H

#include "common/buf.h"

#include <uv.h>

typedef struct kvp_upstream kvp_upstream_t;
typedef struct kvp_call kvp_call_t;

/* How much of an ended request the server may have seen. */
typedef enum {
    KVP_CALL_UNSENT, /* the server has seen nothing of the request, because there was no connection */
    KVP_CALL_SENT, /* the server may have seen all of the request */
    KVP_CALL_LOCAL, /* the server has seen nothing of the request: no local descriptor, port or memory was free */
    KVP_CALL_STALE /* the server has seen all of the request or nothing: the kept connection ended without a byte */
} kvp_call_fate_t;

/* Callbacks of a call. kvp_upstream_start itself calls none of them. on_end must not use the call, which is freed. */
typedef struct {
    /* callback that receives the answer's status; content_type NULL = none; length of the body, -1 = unknown */
    void (*on_head)(void *arg, uint32_t status, const char *content_type, int64_t length);
    /* callback that receives bytes of the body. Returning false pauses reading until kvp_call_resume; bytes that
     * were already read still arrive. */
    bool (*on_bytes)(void *arg, const void *bytes, size_t len);
    /* callback at the end of a call; why NULL = the answer is complete; else the reason of the failure */
    void (*on_end)(void *arg, const char *why, kvp_call_fate_t fate);
} kvp_call_ops_t;

typedef struct {
    const char *url; /* URL in the form http://HOST[:PORT][/PATH] */
    bool is_get; /* a flag: the request is a GET instead of a POST */
    const char *body; /* the body of a POST; borrowed until the call has ended (on_end or kvp_call_cancel), unless
                         copies_body is set; NULL = none */
    size_t body_len;
    bool copies_body;
    bool is_once; /* a flag: if a kept connection ends without a byte, the call ends with KVP_CALL_STALE */
    bool wants_new; /* a flag: use a new connection, not a kept one */
    const char *const *headers; /* header lines "Name: value" of the request, ended by NULL; NULL = none; copied */
    uint64_t connect_ms; /* time limit of connecting to the server */
    uint64_t first_ms; /* time limit of the first byte of the answer's body, from the start; 0 = none */
    uint64_t idle_ms; /* longest pause after the first byte of the body; 0 = no limit */
} kvp_call_conf_t;

kvp_err_t kvp_upstream_create(uv_loop_t *uv, kvp_upstream_t **out) KVP_MUST_USE;
/* kvp_upstream_close drops all calls without a callback, and closes the handles, which takes a turn of the loop.
 * Call kvp_upstream_destroy after that. */
void kvp_upstream_close(kvp_upstream_t *up);
void kvp_upstream_destroy(kvp_upstream_t *up);

/* kvp_upstream_start starts a call; NULL = no memory, or the url is malformed */
kvp_call_t *kvp_upstream_start(kvp_upstream_t *up, const kvp_call_conf_t *conf, const kvp_call_ops_t *ops, void *arg);
/* kvp_call_headers returns the headers of the answer (headers.h); valid within on_head; borrowed */
const kvp_buf_t *kvp_call_headers(const kvp_call_t *call);
void kvp_call_resume(kvp_call_t *call);
void kvp_call_cancel(kvp_call_t *call); /* drops the call; no callback follows */

/* kvp_call_is_unanswered returns whether the server has sent nothing yet. kvp_call_give_up ends the request of such a
 * call, and waits for a sign of the server. The server sees the end of the client's stream. on_end is called with the
 * first byte (why is NULL), when the connection has ended, or when is_over, which is called 20 times a second, returns
 * true. No other callback follows. The call takes over the body's bytes, and takes over and frees arg. */
typedef bool (*kvp_call_is_over_fn)(void *arg);
typedef void (*kvp_call_on_end_fn)(void *arg, const char *why, kvp_call_fate_t fate);
bool kvp_call_is_unanswered(const kvp_call_t *call);
void kvp_call_give_up(kvp_call_t *call, kvp_buf_t *body, kvp_call_is_over_fn is_over, kvp_call_on_end_fn on_end,
                      void *arg);

#endif
