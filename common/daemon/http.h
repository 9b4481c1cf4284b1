/* SPDX-License-Identifier: Apache-2.0
 * The small HTTP server behind a daemon's admin port, over libmicrohttpd. One thread of its own
 * (epoll) runs all handlers in turn: a handler may block for milliseconds (kvp_loop_call), never
 * for longer. Handlers that may wait (kvp_http_route_slow) have threads of their own, so they delay
 * no other request.
 *
 * The server bounds: connections (http_places.h chooses the connection that gives way), idle
 * connections (10 s), bodies (1 MiB, or the slow route's own bound), transfers of bodies (a minute
 * in each direction), and the memory of all bodies (KVP_HTTP_HELD_MAX). Requests from web pages of
 * other origins are refused with 403 (http_guard.h). Errors are {"error": "..."}. */
#ifndef KVP_COMMON_DAEMON_HTTP_H
#define KVP_COMMON_DAEMON_HTTP_H

#include "common/buf.h"
#include "common/jsonw.h"
#include "common/parse.h"

#include <json-c/json_types.h>

#define KVP_HTTP_BODY_MAX (1u << 20)
#define KVP_HTTP_HELD_MAX (400u << 20) /* bytes of all requests and responses under way */

typedef struct kvp_http kvp_http_t;
typedef struct kvp_http_request kvp_http_request_t;
typedef struct kvp_http_response kvp_http_response_t;

/* A handler reads the request and fills the response; both end when the handler returns. An
 * untouched response is 200 without a body. Runs on the server's thread. */
typedef void (*kvp_http_fn)(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response);

/* NULL on no memory. destroy stops first. */
kvp_http_t *kvp_http_create(void);
void kvp_http_destroy(kvp_http_t *http);

/* kvp_http_route binds a method and a path to fn, before start. A path that ends in a slash stands
 * for everything below it ("/" for itself only), and the longest match wins. HEAD goes where GET
 * goes. method and path are borrowed for the server's life. ALREADY, NOMEM. */
kvp_err_t kvp_http_route(kvp_http_t *http, const char *method, const char *path, kvp_http_fn fn, void *arg)
    KVP_MUST_USE;

/* kvp_http_route_large is the same for bodies of up to body_max bytes. */
kvp_err_t kvp_http_route_large(kvp_http_t *http, const char *method, const char *path, size_t body_max, kvp_http_fn fn,
                               void *arg) KVP_MUST_USE;

/* kvp_http_route_slow adds a handler that may block for seconds. All slow handlers share 4 threads.
 * Their bodies have body_max bytes at most. */
kvp_err_t kvp_http_route_slow(kvp_http_t *http, const char *method, const char *path, size_t body_max, kvp_http_fn fn,
                              void *arg) KVP_MUST_USE;

/* kvp_http_size, before start: connections that the server keeps (256 otherwise), of which half may
 * have a request, and requests that may be queued or running at slow handlers (32). */
void kvp_http_size(kvp_http_t *http, uint32_t places, uint32_t slow);

/* A slow handler whose answer waits for something parks the request, and returns without an answer:
 * the thread is free for other requests. kvp_http_unpark of what park returned, from any thread,
 * exactly once for each park, and also before the handler has returned, has the handler called
 * again; kvp_http_note is then the note of the park, else NULL. All parked requests must be
 * unparked before kvp_http_stop. */
kvp_http_request_t *kvp_http_park(const kvp_http_request_t *request, void *note);
void kvp_http_unpark(kvp_http_request_t *request);
void *kvp_http_note(const kvp_http_request_t *request);

/* kvp_http_start binds and serves; bound_out is the requested address with the port that the kernel
 * chose. UNREACHABLE for a host that does not resolve, SYS where binding fails; logged. */
kvp_err_t kvp_http_start(kvp_http_t *http, const kvp_hostport_t *at, kvp_hostport_t *bound_out) KVP_MUST_USE;

/* kvp_http_stop waits until the handlers under way have returned, and slow ones that are queued; no
 * handler runs after it. Not from a handler. Legal on a server that was not started. */
void kvp_http_stop(kvp_http_t *http);

/* The request; borrowed until the handler returns. kvp_http_rest is the part of the path below a
 * route that ends in a slash, else ""; decoded, without the query. A path with a NUL is 404. */
const char *kvp_http_rest(const kvp_http_request_t *request);
const kvp_buf_t *kvp_http_body(const kvp_http_request_t *request);

/* kvp_http_body_json parses the body strictly: UTF-8, no half of a surrogate pair, 32 levels and
 * 4096 values at most, and not null. On failure it has answered (400; 503 on no memory) and returns
 * NULL. Returned to json_object_put. In http_json.c. */
json_object *kvp_http_body_json(const kvp_http_request_t *request, kvp_http_response_t *response);
/* kvp_http_text_json is the same for what is left of a body of which the handler took parts itself. */
json_object *kvp_http_text_json(const kvp_buf_t *text, kvp_http_response_t *response);

/* The response. The buffer is the response's; type and header names and values are copied. At most 8 headers; header
 * names and values must be free of control characters (INVALID). */
void kvp_http_status(kvp_http_response_t *response, unsigned status);
void kvp_http_type(kvp_http_response_t *response, const char *content_type);
kvp_buf_t *kvp_http_out(kvp_http_response_t *response);
kvp_err_t kvp_http_set_header(kvp_http_response_t *response, const char *name, const char *value) KVP_MUST_USE;

/* kvp_http_claim accounts for memory that the request needs beside its body until the answer is
 * sent: a large response, a copy. Returns false over the server's limit, and the response is then
 * 503. Call from the handler. */
bool kvp_http_claim(kvp_http_response_t *response, size_t bytes) KVP_MUST_USE;

/* kvp_http_json begins a JSON answer; the handler writes the value. kvp_http_error answers
 * {"error": text}. Both replace the response's earlier content. Without memory the answer becomes
 * 503. */
kvp_jsonw_t kvp_http_json(kvp_http_response_t *response, unsigned status) KVP_MUST_USE;
void kvp_http_error(kvp_http_response_t *response, unsigned status, const char *fmt, ...) KVP_PRINTF(3, 4);

#endif
