/* SPDX-License-Identifier: Apache-2.0
 * A small HTTP server for a daemon's admin port, over libmicrohttpd. One thread (epoll) runs all handlers in turn, so
 * a handler may block only for milliseconds (kvp_loop_call). Handlers that may wait longer (kvp_http_route_slow) run
 * on separate threads, so they delay no other request.
 *
 * The server limits the number of connections (http_places.h chooses the connection to close), idle connections
 * (10 s), bodies (1 MiB, or the limit of the route), transfers of bodies (a minute in each direction), and the
 * memory of all bodies (KVP_HTTP_HELD_MAX). Requests from web pages of other origins are refused with 403,
 * except visits of the page at "/" (http_guard.h). Errors are {"error": "..."}. */
#ifndef KVP_COMMON_DAEMON_HTTP_H
#define KVP_COMMON_DAEMON_HTTP_H

#include "common/buf.h"
#include "common/jsonw.h"
#include "common/parse.h"
#include "common/trust/identity.h"

#include <json-c/json_types.h>

#define KVP_HTTP_BODY_MAX (1u << 20)
#define KVP_HTTP_HELD_MAX (400u << 20) /* limit of the bytes of all request bodies, and of kvp_http_claim */

typedef struct kvp_http kvp_http_t;
typedef struct kvp_http_request kvp_http_request_t;
typedef struct kvp_http_response kvp_http_response_t;

/* A handler reads the request and fills the response; both are invalid after it returns. An unchanged response is
 * 200 without a body. Slow handlers run on separate threads, all others on the server's thread. */
typedef void (*kvp_http_fn)(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response);

/* kvp_http_create returns NULL without memory. kvp_http_destroy stops the server first. */
kvp_http_t *kvp_http_create(void);
void kvp_http_destroy(kvp_http_t *http);

/* kvp_http_route binds a method and a path to fn; call it before the start. A path that ends in a slash covers
 * everything below it ("/" covers only itself), and the longest match wins. A HEAD request is handled as GET.
 * method and path are borrowed for the server's life. ALREADY, NOMEM. */
kvp_err_t kvp_http_route(kvp_http_t *http, const char *method, const char *path, kvp_http_fn fn, void *arg)
    KVP_MUST_USE;

/* kvp_http_route_large binds a handler like kvp_http_route, for bodies of at most body_max bytes. */
kvp_err_t kvp_http_route_large(kvp_http_t *http, const char *method, const char *path, size_t body_max, kvp_http_fn fn,
                               void *arg) KVP_MUST_USE;

/* kvp_http_route_slow binds a handler that may block for seconds. All slow handlers share 4 threads. Bodies have
 * at most body_max bytes. */
kvp_err_t kvp_http_route_slow(kvp_http_t *http, const char *method, const char *path, size_t body_max, kvp_http_fn fn,
                              void *arg) KVP_MUST_USE;

/* kvp_http_size changes two limits; call it before the start. places: connections that the server keeps (default 256),
 * half of which may be held (http_places.h). slow: requests queued or running in slow handlers (default 32). */
void kvp_http_size(kvp_http_t *http, uint32_t places, uint32_t slow);

/* kvp_http_protect makes requests need a token of that file; http_tokens.c has the role for each path. NULL = no
 * request needs one. has_metrics: /metrics needs a token as well. tls: the server speaks TLS alone, with this process's
 * certificate of that role, which is read here once (ADR 0057); KVP_MAY_NOTHING = without TLS. Call it before the
 * start. The errors of kvp_http_tokens_open and kvp_http_tls_load, logged. kvp_http_own_token returns the value of
 * Authorization for this process's requests to itself, which permits everything; "" = no request needs a token. */
kvp_err_t kvp_http_protect(kvp_http_t *http, const char *token_file, bool has_metrics, kvp_authrole_t tls) KVP_MUST_USE;
const char *kvp_http_own_token(const kvp_http_t *http);

/* Parking, for a slow handler that must wait for an event. The handler calls kvp_http_park and returns without an
 * answer, so its thread is free for other requests. kvp_http_unpark makes the server call the handler again. Call
 * it exactly once for each park, from any thread, also before the handler has returned. In the repeated call
 * kvp_http_note returns the note given to kvp_http_park, otherwise NULL. All parked requests must be unparked
 * before kvp_http_stop. */
kvp_http_request_t *kvp_http_park(const kvp_http_request_t *request, void *note);
void kvp_http_unpark(kvp_http_request_t *request);
void *kvp_http_note(const kvp_http_request_t *request);

/* kvp_http_start binds and serves. *bound_out is the requested address with the port that the kernel chose.
 * UNREACHABLE: the host does not resolve; SYS: binding fails; logged. */
kvp_err_t kvp_http_start(kvp_http_t *http, const kvp_hostport_t *at, kvp_hostport_t *bound_out) KVP_MUST_USE;

/* kvp_http_stop waits until all running handlers and all queued slow handlers have returned; no handler runs after
 * it. Not to be called from a handler. Legal on a server that was not started. */
void kvp_http_stop(kvp_http_t *http);

/* Access to the request; results are borrowed until the handler returns. kvp_http_rest returns the decoded part of the
 * path below a route that ends in a slash, without the query; otherwise "". A path with a NUL is answered with 404. */
const char *kvp_http_rest(const kvp_http_request_t *request);
const kvp_buf_t *kvp_http_body(const kvp_http_request_t *request);
/* kvp_http_arg returns the decoded value of an argument of the query, the first one of this name; "" if the request
 * has none, or a value with a NUL. */
const char *kvp_http_arg(const kvp_http_request_t *request, const char *name);

/* kvp_http_body_json parses the body strictly: UTF-8, no half of a surrogate pair, at most 32 levels and 4096
 * values, and not null. The caller releases the result with json_object_put. On failure it sends an error (400;
 * 503 without memory) and returns NULL. In http_json.c. */
json_object *kvp_http_body_json(const kvp_http_request_t *request, kvp_http_response_t *response);
/* kvp_http_text_json parses a text like kvp_http_body_json: a body from which the handler has removed parts. */
json_object *kvp_http_text_json(const kvp_buf_t *text, kvp_http_response_t *response);

/* Access to the response. The buffer of kvp_http_out belongs to the response. Types, header names and header
 * values are copied. At most 8 headers; their names and values must not contain control characters (INVALID). */
void kvp_http_status(kvp_http_response_t *response, unsigned status);
void kvp_http_type(kvp_http_response_t *response, const char *content_type);
kvp_buf_t *kvp_http_out(kvp_http_response_t *response);
kvp_err_t kvp_http_set_header(kvp_http_response_t *response, const char *name, const char *value) KVP_MUST_USE;

/* kvp_http_claim adds bytes to the server's account of memory, for memory that the request needs beside its body
 * until the answer is sent, such as a large response. Over the server's limit it returns false, and the response
 * is 503. Call it from the handler. */
bool kvp_http_claim(kvp_http_response_t *response, size_t bytes) KVP_MUST_USE;

/* kvp_http_json begins an answer in JSON; the handler then writes the value. kvp_http_error answers {"error":
 * text}. Both replace the response's earlier content. Without memory the answer becomes 503. */
kvp_jsonw_t kvp_http_json(kvp_http_response_t *response, unsigned status) KVP_MUST_USE;
void kvp_http_error(kvp_http_response_t *response, unsigned status, const char *fmt, ...) KVP_PRINTF(3, 4);

#endif
