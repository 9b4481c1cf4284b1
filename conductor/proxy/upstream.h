/* SPDX-License-Identifier: Apache-2.0
 * Requests to servers, over http:// on a libuv loop: what comes is handed on as it comes. All on
 * the loop's thread. Answers are read by llhttp. Connections are kept. The server may close a kept
 * connection at any time, so a request on it may end without a byte; then upstream sends the
 * request once more, over a new connection, unless the caller keeps that for itself (is_once). */
#ifndef KVP_CONDUCTOR_PROXY_UPSTREAM_H
#define KVP_CONDUCTOR_PROXY_UPSTREAM_H

#include "common/buf.h"

#include <uv.h>

typedef struct kvp_upstream kvp_upstream_t;
typedef struct kvp_call kvp_call_t;

/* The part of an ended request that the server may have seen. */
typedef enum {
    KVP_CALL_UNSENT, /* nothing: there was no connection */
    KVP_CALL_SENT, /* all of it */
    KVP_CALL_LOCAL, /* nothing, by our own fault: no descriptor, port or memory was free */
    KVP_CALL_STALE /* all of it, or nothing: the request used a kept connection, which ended without a byte */
} kvp_call_fate_t;

/* kvp_upstream_start calls no callback. After on_end the call is freed. */
typedef struct {
    void (*on_head)(void *arg, uint32_t status, const char *content_type,
                    int64_t length); /* type NULL = none; length -1 = unknown */
    bool (*on_bytes)(void *arg, const void *bytes, size_t len); /* false: they were taken, but no more is read until
                                                                   kvp_call_resume; what has been read comes */
    void (*on_end)(void *arg, const char *why, kvp_call_fate_t fate); /* why NULL = whole; else why not */
} kvp_call_ops_t;

typedef struct {
    const char *url; /* http://HOST[:PORT][/PATH] */
    bool is_get; /* else POST */
    const char *body; /* borrowed until on_end, unless copies_body; NULL = none */
    size_t body_len;
    bool copies_body;
    bool is_once; /* a stale connection ends the call (KVP_CALL_STALE) */
    bool wants_new; /* no kept connection is used */
    const char *const *headers; /* "Name: value", ended by NULL; NULL = none; copied */
    uint64_t connect_ms; /* time limit of connecting */
    uint64_t first_ms; /* of the first byte of the answer after that; 0 = none */
    uint64_t idle_ms; /* of silence after that; 0 = none */
} kvp_call_conf_t;

kvp_err_t kvp_upstream_create(uv_loop_t *uv, kvp_upstream_t **out) KVP_MUST_USE;
/* kvp_upstream_close drops all calls, without a word, and closes its handles, which takes a turn of
 * the loop; kvp_upstream_destroy after that. */
void kvp_upstream_close(kvp_upstream_t *up);
void kvp_upstream_destroy(kvp_upstream_t *up);

kvp_call_t *kvp_upstream_start(kvp_upstream_t *up, const kvp_call_conf_t *conf, const kvp_call_ops_t *ops,
                               void *arg); /* NULL = no memory, or the url is none */
const kvp_buf_t *kvp_call_headers(const kvp_call_t *call); /* of its answer (headers.h), within on_head; borrowed */
void kvp_call_resume(kvp_call_t *call);
void kvp_call_cancel(kvp_call_t *call); /* nothing is called back any more */

/* kvp_call_is_unanswered returns whether the server has sent nothing yet. kvp_call_give_up ends the
 * request of such a call, and waits for a sign of the server. The server sees the end of the
 * client's stream. on_end is called with the first byte (why is NULL), when the connection has
 * ended, or when is_over returns true, which is called 20 times a second. No other callback
 * follows. The call takes over the bytes of its body, and arg, which it frees. */
typedef bool (*kvp_call_is_over_fn)(void *arg);
typedef void (*kvp_call_on_end_fn)(void *arg, const char *why, kvp_call_fate_t fate);
bool kvp_call_is_unanswered(const kvp_call_t *call);
void kvp_call_give_up(kvp_call_t *call, kvp_buf_t *body, kvp_call_is_over_fn is_over, kvp_call_on_end_fn on_end,
                      void *arg);

#endif
