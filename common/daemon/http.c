/* SPDX-License-Identifier: Apache-2.0
 * The HTTP server of a daemon. libmicrohttpd handles the protocol; this file routes requests, limits bodies and
 * writes errors as JSON. All functions run on libmicrohttpd's single thread, except the setup (create to destroy) and
 * kvp_http_unpark. Slow handlers run on separate threads; the connection is suspended meanwhile, so no other thread
 * accesses its request. */
#include "common/daemon/http.h"

#include "common/clock.h"
#include "common/daemon/http_tls.h"
#include "common/daemon/http_tokens.h"
#include "common/hostid.h"
#include "common/http_guard.h"
#include "common/daemon/http_places.h"
#include "common/daemon/jobs.h"
#include "common/log.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECTIONS_MORE 64u /* addition to libmicrohttpd's limit, for closed connections that it has not freed yet */
#define CONNECTION_TIMEOUT_S 10u
#define CONNECTION_MEMORY_BYTES (32u << 10)
#define JSON_TYPE "application/json"
#define HEADERS_MAX 8u
/* limit of body bytes that are read and dropped after the body's limit, so that the client can receive the answer
 * 413; after that the connection is closed */
#define DRAIN_MAX_BYTES (8u << 20)
#define SLOW_THREADS 4
/* default limit of requests that wait for a slow handler or run in one; it also limits how long a request waits */
#define SLOW_MAX 32u
/* size of the pieces of a response; a response up to this size is sent at once, without the time limit of a transfer */
#define PIECE_BYTES (64u << 10)
#define TLS_VERSIONS "NORMAL:-VERS-ALL:+VERS-TLS1.3" /* for GnuTLS */

typedef struct {
    kvp_list_t link;
    const char *method;
    const char *path;
    size_t path_len;
    kvp_http_fn fn;
    void *arg;
    size_t body_max;
    bool is_slow;
} route_t;

struct kvp_http {
    struct MHD_Daemon *mhd; /* libmicrohttpd's server; NULL = not running */
    kvp_http_places_t places;
    kvp_list_t routes;
    kvp_jobs_t slow;
    bool has_slow;
    bool is_loopback; /* a flag: the server listens at a loopback address */
    _Atomic size_t held_bytes; /* total bytes of all bodies, and of the memory that handlers have claimed */
    _Atomic uint32_t slow_n; /* number of requests that are queued or running in slow handlers, without parked ones */
    uint32_t slow_max;
    kvp_http_tokens_t tokens;
    kvp_http_tls_t tls;
    bool is_starting;
    char start_error[256]; /* message of libmicrohttpd about a failed start */
};

struct kvp_http_response {
    kvp_http_t *http;
    unsigned status;
    char type[96];
    kvp_buf_t body;
    char *headers[HEADERS_MAX][2]; /* names and values of the response's headers */
    size_t header_count;
    size_t held_bytes; /* bytes of the request and response that are included in http->held_bytes */
};

struct kvp_http_request {
    struct MHD_Connection *connection;
    kvp_http_place_t *place; /* place of the request's connection in http->places */
    const route_t *route; /* route of the slow handler that has the request */
    kvp_job_t job;
    const char *method;
    const char *path;
    const char *rest;
    uint64_t begun_ns;
    const char *refusal; /* reason to refuse the request, for any path; NULL = accepted */
    unsigned refusal_status;
    char why[KVP_IDENTITY_WHY_MAX]; /* reason for people, if the request is refused for its token */
    kvp_buf_t body;
    size_t dropped_bytes;
    /* a flag: a slow handler has filled the response; the handler's thread sets it before the connection is
     * resumed, and the server reads it after that */
    bool is_answered;
    bool is_parked; /* a flag: the handler has called kvp_http_park in its current run */
    /* A count of two events: the handler has returned after parking, and kvp_http_unpark was called. They occur in
     * any order; the second one runs the handler again. */
    _Atomic uint32_t parks;
    void *note;
    kvp_http_response_t response;
};

/* A large response body that libmicrohttpd is sending and then frees. */
typedef struct {
    uint8_t *data;
    size_t len;
    uint64_t end_ns;
} outgoing_t;

static bool
is_below(const route_t *route, const char *path)
{
    bool is_prefix = route->path_len > 1 && route->path[route->path_len - 1] == '/';
    return is_prefix && strncmp(path, route->path, route->path_len) == 0;
}

/* find_path returns a route with the longest path that covers the given path, for any method. */
static const route_t *
find_path(const kvp_http_t *http, const char *path)
{
    const route_t *best = NULL;
    kvp_list_foreach (pos, &http->routes) {
        const route_t *route = kvp_list_entry(pos, route_t, link);
        if (strcmp(route->path, path) != 0 && !is_below(route, path)) continue;
        if (best == NULL || route->path_len > best->path_len) best = route;
    }
    return best;
}

static const route_t *
find_method(const kvp_http_t *http, const char *path, const char *method)
{
    kvp_list_foreach (pos, &http->routes) {
        const route_t *route = kvp_list_entry(pos, route_t, link);
        if (strcmp(route->path, path) == 0 && strcmp(route->method, method) == 0) return route;
    }
    return NULL;
}

static void
answer_not_allowed(const kvp_http_t *http, const char *path, kvp_http_response_t *response)
{
    char allow[128] = "";
    size_t len = 0;
    kvp_list_foreach (pos, &http->routes) {
        const route_t *route = kvp_list_entry(pos, route_t, link);
        if (strcmp(route->path, path) != 0 || len >= sizeof(allow)) continue;
        len += (size_t)snprintf(allow + len, sizeof(allow) - len, "%s%s", len > 0 ? ", " : "", route->method);
    }
    kvp_http_error(response, MHD_HTTP_METHOD_NOT_ALLOWED, "method not allowed here; allowed: %s", allow);
    kvp_ignore(kvp_http_set_header(response, MHD_HTTP_HEADER_ALLOW, allow), "the text says the same");
}

static const char *
method_of(const char *method)
{
    return strcmp(method, MHD_HTTP_METHOD_HEAD) == 0 ? MHD_HTTP_METHOD_GET : method;
}

static size_t
body_max(const kvp_http_t *http, const char *path, const char *method)
{
    const route_t *at = find_path(http, path);
    if (at != NULL) at = find_method(http, at->path, method_of(method));
    return at != NULL ? at->body_max : KVP_HTTP_BODY_MAX;
}

static void
end_slow(kvp_http_request_t *request)
{
    request->is_answered = true;
    MHD_resume_connection(request->connection);
}

/* Queues the handler of a parked request again, after kvp_http_unpark. */
static void
run_again(kvp_http_request_t *request)
{
    kvp_http_t *http = request->response.http;
    request->parks = 0;
    http->slow_n++;
    if (kvp_jobs_add(&http->slow, &request->job)) return;
    /* The server is stopping, so the handler runs here: only the handler frees the note of kvp_http_park. */
    request->job.run(&request->job);
}

static void
run_slow(kvp_job_t *job)
{
    kvp_http_request_t *request = kvp_container_of(job, kvp_http_request_t, job);
    kvp_http_t *http = request->response.http;
    request->is_parked = false;
    request->route->fn(request->route->arg, request, &request->response);
    http->slow_n--;
    if (!request->is_parked)
        end_slow(request);
    else if (atomic_fetch_add(&request->parks, 1) == 1)
        run_again(request);
}

kvp_http_request_t *
kvp_http_park(const kvp_http_request_t *request, void *note)
{
    /* removes const: handlers see a const request, but the server owns the memory */
    kvp_http_request_t *parked = (kvp_http_request_t *)request;
    parked->is_parked = true;
    parked->note = note;
    return parked;
}

void
kvp_http_unpark(kvp_http_request_t *request)
{
    if (atomic_fetch_add(&request->parks, 1) == 1) run_again(request);
}

void *
kvp_http_note(const kvp_http_request_t *request)
{
    return request->note;
}

/* hand_over gives the request to a thread for slow handlers. It returns false if the request was refused; the
 * response is then filled. */
static bool
hand_over(kvp_http_t *http, kvp_http_request_t *request, const route_t *route)
{
    if (http->slow_n >= http->slow_max || !kvp_http_places_hold(&http->places, request->place)) {
        kvp_http_error(&request->response, MHD_HTTP_SERVICE_UNAVAILABLE, "too many requests are under way");
        return false;
    }
    kvp_http_places_park(request->place);
    request->route = route;
    request->job.run = run_slow;
    http->slow_n++;
    /* suspends the connection before the job is queued, because the job may end before kvp_jobs_add returns */
    MHD_suspend_connection(request->connection);
    if (kvp_jobs_add(&http->slow, &request->job)) return true;
    http->slow_n--;
    kvp_http_error(&request->response, MHD_HTTP_SERVICE_UNAVAILABLE, "going down");
    end_slow(request);
    return true;
}

/* dispatch_request calls the handler. It returns true if the response is complete. Otherwise a slow handler has
 * the request, and the server calls this function again when the handler has ended. */
static bool
dispatch_request(kvp_http_t *http, kvp_http_request_t *request, kvp_http_response_t *response)
{
    if (request->is_answered) return true;
    if (request->refusal != NULL) {
        kvp_http_error(response, request->refusal_status, "%s", request->refusal);
        if (request->refusal_status == MHD_HTTP_UNAUTHORIZED)
            kvp_ignore(kvp_http_set_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer"), "the text says it");
        return true;
    }
    if (request->body.err == KVP_LIMIT) {
        kvp_http_error(response, MHD_HTTP_CONTENT_TOO_LARGE, "body is larger than %zu bytes", request->body.limit);
        return true;
    }
    if (request->body.err != KVP_OK) {
        kvp_http_error(response, MHD_HTTP_SERVICE_UNAVAILABLE, "%s", kvp_err_text(request->body.err));
        return true;
    }
    const route_t *at = find_path(http, request->path);
    if (at == NULL) {
        kvp_http_error(response, MHD_HTTP_NOT_FOUND, "no such path");
        return true;
    }
    const route_t *route = find_method(http, at->path, method_of(request->method));
    if (route == NULL) {
        answer_not_allowed(http, at->path, response);
        return true;
    }
    request->rest = is_below(route, request->path) ? request->path + route->path_len : "";
    if (route->is_slow) return !hand_over(http, request, route);
    route->fn(route->arg, request, response);
    return true;
}

static void
response_fini(kvp_http_response_t *response)
{
    for (size_t i = 0; i < response->header_count; i++) {
        free(response->headers[i][0]);
        free(response->headers[i][1]);
    }
    kvp_buf_fini(&response->body);
}

static ssize_t
read_outgoing(void *arg, uint64_t at, char *dst, size_t max)
{
    const outgoing_t *out = arg;
    size_t n = out->len - (size_t)at;
    if (n == 0) return MHD_CONTENT_READER_END_OF_STREAM;
    if (kvp_now_ns() > out->end_ns) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n > max) n = max;
    memcpy(dst, out->data + at, n);
    return (ssize_t)n;
}

static void
free_outgoing(void *arg)
{
    outgoing_t *out = arg;
    free(out->data);
    free(out);
}

/* Makes libmicrohttpd's response and gives it the body. Returns NULL without memory; the body then stays with the
 * caller. */
static struct MHD_Response *
make_reply(kvp_buf_t *body)
{
    struct MHD_Response *reply;
    if (body->len <= PIECE_BYTES) {
        reply = MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
    } else {
        outgoing_t *out = malloc(sizeof(*out));
        if (out == NULL) return NULL;
        *out = (outgoing_t){.data = body->data, .len = body->len, .end_ns = kvp_now_ns() + KVP_HTTP_TRANSFER_NS};
        reply = MHD_create_response_from_callback(body->len, PIECE_BYTES, read_outgoing, out, free_outgoing);
        if (reply == NULL) free(out);
    }
    if (reply == NULL) return NULL;
    body->data = NULL;
    body->cap = 0;
    return reply;
}

/* make_excuse makes a response without allocating a body, for a request that ran out of memory. */
static struct MHD_Response *
make_excuse(kvp_http_response_t *response)
{
    static char text[] = "{\"error\":\"no memory for the answer\"}";
    response->status = MHD_HTTP_SERVICE_UNAVAILABLE;
    kvp_http_type(response, JSON_TYPE);
    return MHD_create_response_from_buffer(sizeof(text) - 1, text, MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result
send_response(kvp_http_request_t *request)
{
    kvp_http_response_t *response = &request->response;
    kvp_http_places_t *places = &response->http->places;
    struct MHD_Response *reply = response->body.err == KVP_OK ? make_reply(&response->body) : make_excuse(response);
    if (reply == NULL) return MHD_NO;
    enum MHD_Result ok = MHD_YES;
    if (response->type[0] != '\0') ok = MHD_add_response_header(reply, MHD_HTTP_HEADER_CONTENT_TYPE, response->type);
    for (size_t i = 0; i < response->header_count && ok == MHD_YES; i++) {
        ok = MHD_add_response_header(reply, response->headers[i][0], response->headers[i][1]);
    }
    if (ok == MHD_YES && kvp_http_places_are_scarce(places)) {
        ok = MHD_add_response_header(reply, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    if (ok == MHD_YES) ok = MHD_queue_response(request->connection, response->status, reply);
    if (response->body.len > PIECE_BYTES)
        kvp_ignore(kvp_http_places_hold(places, request->place),
                   "where there is none it may be cut off for a newcomer");
    kvp_http_places_move(places, request->place, kvp_now_ns());
    MHD_destroy_response(reply);
    return ok;
}

static enum MHD_Result
answer_request(kvp_http_t *http, kvp_http_request_t *request)
{
    if (!dispatch_request(http, request, &request->response)) return MHD_YES;
    return send_response(request);
}

static bool
hold_bytes(kvp_http_response_t *response, size_t bytes)
{
    size_t held = atomic_fetch_add(&response->http->held_bytes, bytes);
    if (bytes > KVP_HTTP_HELD_MAX || held > KVP_HTTP_HELD_MAX - bytes) {
        atomic_fetch_sub(&response->http->held_bytes, bytes);
        return false;
    }
    response->held_bytes += bytes;
    return true;
}

static enum MHD_Result
take_body(kvp_http_request_t *request, const char *data, size_t *len)
{
    kvp_http_places_t *places = &request->response.http->places;
    uint64_t now_ns = kvp_now_ns();
    if (now_ns - request->begun_ns > KVP_HTTP_TRANSFER_NS) return MHD_NO;
    if (request->body.err == KVP_OK && !request->place->is_held) {
        if (kvp_http_places_hold(places, request->place))
            kvp_http_places_move(places, request->place, now_ns);
        else
            request->body.err = KVP_EAGAIN;
    }
    if (request->body.err == KVP_OK && !hold_bytes(&request->response, *len)) request->body.err = KVP_EAGAIN;
    kvp_buf_append(&request->body, data, *len);
    if (request->body.err != KVP_OK) {
        request->dropped_bytes += *len;
        if (request->dropped_bytes > DRAIN_MAX_BYTES) return MHD_NO;
    }
    *len = 0;
    return MHD_YES;
}

static enum MHD_Result
read_header(void *guard, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    kvp_http_guard_header(guard, name, value);
    return MHD_YES;
}

/* Returns the reason to refuse a request by its headers; NULL = accepted. */
static const char *
check_headers(const kvp_http_t *http, struct MHD_Connection *connection, const char *url, const char *method)
{
    const bool is_page = strcmp(url, "/") == 0 && strcmp(method_of(method), MHD_HTTP_METHOD_GET) == 0;
    kvp_http_guard_t guard = {0};

    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, read_header, &guard);
    return kvp_http_guard_check(&guard, http->is_loopback, is_page);
}

/* Sets the refusal of the request, if it needs a token and its token does not permit it. */
static void
check_token(kvp_http_t *http, kvp_http_request_t *request, const char *url, const char *method)
{
    const char *token =
        MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    char from[KVP_PEER_TEXT_MAX];
    unsigned status;

    kvp_peer_text(MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd, from);
    status = kvp_http_tokens_check(&http->tokens, method, url, token, from, request->why);
    if (status == 0) return;
    request->refusal = request->why;
    request->refusal_status = status;
}

/* Called by libmicrohttpd for a request: first with the headers, then with each piece of the body, then once more
 * for the answer. */
static enum MHD_Result
on_request(void *cls, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
           const char *upload_data, size_t *upload_data_size, void **con_cls)
{
    (void)version;
    kvp_http_t *http = cls;
    kvp_http_request_t *request = *con_cls;
    if (request == NULL) {
        kvp_http_place_t *place =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
        uint64_t now_ns = kvp_now_ns();
        if (place == NULL || !kvp_http_places_begin(&http->places, place, now_ns)) return MHD_NO;
        request = calloc(1, sizeof(*request));
        if (request == NULL) return MHD_NO;
        request->connection = connection;
        request->place = place;
        request->rest = "";
        request->begun_ns = now_ns;
        request->response.http = http;
        request->response.status = MHD_HTTP_OK;
        request->refusal = check_headers(http, connection, url, method);
        request->refusal_status = MHD_HTTP_FORBIDDEN;
        if (request->refusal == NULL) check_token(http, request, url, method);
        kvp_buf_init(&request->body, request->refusal != NULL ? 1 : body_max(http, url, method));
        *con_cls = request;
        return MHD_YES;
    }
    request->method = method;
    request->path = url;
    return *upload_data_size > 0 ? take_body(request, upload_data, upload_data_size) : answer_request(http, request);
}

static void
on_completed(void *cls, struct MHD_Connection *connection, void **con_cls, enum MHD_RequestTerminationCode code)
{
    (void)connection, (void)code;
    kvp_http_t *http = cls;
    kvp_http_request_t *request = *con_cls;
    if (request == NULL) return;
    kvp_http_places_finish(&http->places, request->place);
    atomic_fetch_sub(&http->held_bytes, request->response.held_bytes);
    response_fini(&request->response);
    kvp_buf_fini(&request->body);
    free(request);
    *con_cls = NULL;
}

/* Called at the start and the end of a connection. place_out is libmicrohttpd's pointer for our state of the
 * connection. Without memory it stays NULL, and the connection is closed. */
static void
on_connection(void *cls, struct MHD_Connection *connection, void **place_out, enum MHD_ConnectionNotificationCode code)
{
    kvp_http_t *http = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        kvp_http_place_t *place = malloc(sizeof(*place));
        if (place == NULL)
            shutdown(fd, SHUT_RDWR);
        else
            kvp_http_places_enter(&http->places, place, fd, kvp_now_ns());
        *place_out = place;
    } else if (*place_out != NULL) {
        kvp_http_places_leave(&http->places, *place_out);
        free(*place_out);
        *place_out = NULL;
    }
}

static void on_mhd_log(void *cls, const char *fmt, va_list ap) KVP_PRINTF(2, 0);

/* Logs a message of libmicrohttpd at level debug, because peers can cause most messages at will. Messages during
 * the start are stored for the start's error. */
static void
on_mhd_log(void *cls, const char *fmt, va_list ap)
{
    kvp_http_t *http = cls;
    char line[sizeof(http->start_error)];
    vsnprintf(line, sizeof(line), fmt, ap);
    line[strcspn(line, "\n")] = '\0';
    if (http->is_starting) {
        memcpy(http->start_error, line, sizeof(line));
    } else {
        kvp_log_debug("http", "%s", line);
    }
}

kvp_http_t *
kvp_http_create(void)
{
    kvp_http_t *http = calloc(1, sizeof(*http));
    if (http == NULL) return NULL;
    kvp_list_init(&http->routes);
    kvp_http_places_init(&http->places);
    http->slow_max = SLOW_MAX;
    return http;
}

void
kvp_http_destroy(kvp_http_t *http)
{
    if (http == NULL) return;
    kvp_http_stop(http);
    kvp_list_foreach_safe (pos, tmp, &http->routes)
        free(kvp_list_entry(pos, route_t, link));
    kvp_http_tokens_close(&http->tokens);
    kvp_http_tls_free(&http->tls);
    free(http);
}

kvp_err_t
kvp_http_protect(kvp_http_t *http, const char *token_file, bool has_metrics, kvp_authrole_t tls)
{
    const kvp_err_t err = tls == KVP_MAY_NOTHING ? KVP_OK : kvp_http_tls_load(&http->tls, tls);

    return err != KVP_OK ? err : kvp_http_tokens_open(&http->tokens, token_file, has_metrics, KVP_MAY_NOTHING);
}

const char *
kvp_http_own_token(const kvp_http_t *http)
{
    return http->tokens.own;
}

void
kvp_http_size(kvp_http_t *http, uint32_t places, uint32_t slow)
{
    http->places.max = places;
    http->slow_max = slow;
}

static kvp_err_t
add_route(kvp_http_t *http, const route_t *wanted)
{
    const char *path = wanted->path;
    if (path[0] != '/') kvp_panic("http: route '%s' does not begin with a slash", path);
    if (find_method(http, path, wanted->method) != NULL) return KVP_ALREADY;
    route_t *route = calloc(1, sizeof(*route));
    if (route == NULL) return KVP_NOMEM;
    *route = *wanted;
    route->path_len = strlen(path);
    kvp_list_add_tail(&http->routes, &route->link);
    http->has_slow |= route->is_slow;
    return KVP_OK;
}

kvp_err_t
kvp_http_route(kvp_http_t *http, const char *method, const char *path, kvp_http_fn fn, void *arg)
{
    const route_t route = {.method = method, .path = path, .fn = fn, .arg = arg, .body_max = KVP_HTTP_BODY_MAX};
    return add_route(http, &route);
}

kvp_err_t
kvp_http_route_large(kvp_http_t *http, const char *method, const char *path, size_t body_max_bytes, kvp_http_fn fn,
                     void *arg)
{
    const route_t route = {.method = method, .path = path, .fn = fn, .arg = arg, .body_max = body_max_bytes};
    return add_route(http, &route);
}

kvp_err_t
kvp_http_route_slow(kvp_http_t *http, const char *method, const char *path, size_t body_max_bytes, kvp_http_fn fn,
                    void *arg)
{
    const route_t route = {
        .method = method, .path = path, .fn = fn, .arg = arg, .body_max = body_max_bytes, .is_slow = true};
    return add_route(http, &route);
}

/* Decodes a path. A path with an encoded NUL becomes empty: handlers read zero-terminated text, so the path would
 * be cut and name another resource. */
static size_t
unescape_path(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls, (void)connection;
    if (strstr(text, "%00") == NULL) return MHD_http_unescape(text);
    text[0] = '\0';
    return 0;
}

static struct MHD_Daemon *
start_daemon(kvp_http_t *http, const struct addrinfo *at)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG | MHD_ALLOW_SUSPEND_RESUME;
    if (at->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
    if (http->tls.cert != NULL) flags |= MHD_USE_TLS;
    const struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, http->tls.cert},
                                         {MHD_OPTION_HTTPS_MEM_KEY, 0, http->tls.key},
                                         {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)TLS_VERSIONS},
                                         {MHD_OPTION_END, 0, NULL}};
    http->is_starting = true;
    snprintf(http->start_error, sizeof(http->start_error), "libmicrohttpd does not start");
    struct MHD_Daemon *mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, http, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, http, MHD_OPTION_SOCK_ADDR,
        at->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape_path, NULL, MHD_OPTION_CONNECTION_LIMIT,
        http->places.max + CONNECTIONS_MORE, MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_ARRAY,
        http->tls.cert != NULL ? tls : tls + KVP_ARRAY_LEN(tls) - 1, MHD_OPTION_END);
    http->is_starting = false;
    return mhd;
}

/* Returns the part after the last colon of a message such as "Failed to bind to port 0: Address already in use".
 * The port in it is wrong, because the library gets an address and does not know the port. */
static const char *
find_reason(const char *line)
{
    const char *colon = strrchr(line, ':');
    return colon != NULL && colon[1] == ' ' ? colon + 2 : line;
}

kvp_err_t
kvp_http_start(kvp_http_t *http, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
{
    char text[KVP_HOSTPORT_TEXT_MAX];
    char port[8];
    snprintf(port, sizeof(port), "%u", at->port);
    struct addrinfo *found;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    int rc = getaddrinfo(at->host, port, &hints, &found);
    if (rc != 0) {
        kvp_log_error("http", "cannot resolve %s: %s", kvp_format_hostport(at, text), gai_strerror(rc));
        return KVP_UNREACHABLE;
    }
    if (http->has_slow) {
        kvp_err_t err = kvp_jobs_start(&http->slow, SLOW_THREADS, "kvp-http-slow");
        if (err != KVP_OK) {
            freeaddrinfo(found);
            return err;
        }
    }
    http->is_loopback = kvp_addr_is_loopback(found->ai_addr);
    http->mhd = start_daemon(http, found);
    freeaddrinfo(found);
    if (http->mhd == NULL) {
        kvp_jobs_stop(&http->slow);
        kvp_log_error("http", "cannot listen at %s: %s", kvp_format_hostport(at, text), find_reason(http->start_error));
        return KVP_SYS;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->mhd, MHD_DAEMON_INFO_BIND_PORT);
    *bound_out = *at;
    if (info != NULL) bound_out->port = info->port;
    return KVP_OK;
}

void
kvp_http_stop(kvp_http_t *http)
{
    if (http->mhd == NULL) return;
    kvp_jobs_stop(&http->slow); /* ends slow handlers first: libmicrohttpd cannot stop with suspended connections */
    MHD_stop_daemon(http->mhd);
    http->mhd = NULL;
}

const char *
kvp_http_rest(const kvp_http_request_t *request)
{
    return request->rest;
}

const char *
kvp_http_arg(const kvp_http_request_t *request, const char *name)
{
    const char *value = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);

    return value == NULL ? "" : value;
}

const kvp_buf_t *
kvp_http_body(const kvp_http_request_t *request)
{
    return &request->body;
}

void
kvp_http_status(kvp_http_response_t *response, unsigned status)
{
    response->status = status;
}

void
kvp_http_type(kvp_http_response_t *response, const char *content_type)
{
    snprintf(response->type, sizeof(response->type), "%s", content_type);
}

kvp_buf_t *
kvp_http_out(kvp_http_response_t *response)
{
    return &response->body;
}

static bool
is_printable(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return false;
    }
    return true;
}

kvp_err_t
kvp_http_set_header(kvp_http_response_t *response, const char *name, const char *value)
{
    if (!is_printable(name) || !is_printable(value)) return KVP_INVALID;
    if (response->header_count == HEADERS_MAX) return KVP_LIMIT;
    char *name_copy = strdup(name);
    char *value_copy = strdup(value);
    if (name_copy == NULL || value_copy == NULL) {
        free(name_copy);
        free(value_copy);
        return KVP_NOMEM;
    }
    response->headers[response->header_count][0] = name_copy;
    response->headers[response->header_count][1] = value_copy;
    response->header_count++;
    return KVP_OK;
}

bool
kvp_http_claim(kvp_http_response_t *response, size_t bytes)
{
    if (hold_bytes(response, bytes)) return true;
    kvp_http_error(response, MHD_HTTP_SERVICE_UNAVAILABLE, "too much is under way; try again");
    return false;
}

kvp_jsonw_t
kvp_http_json(kvp_http_response_t *response, unsigned status)
{
    kvp_jsonw_t writer;
    kvp_buf_reset(&response->body);
    kvp_jsonw_init(&writer, &response->body);
    kvp_http_type(response, JSON_TYPE);
    response->status = status;
    return writer;
}

void
kvp_http_error(kvp_http_response_t *response, unsigned status, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    kvp_jsonw_t answer = kvp_http_json(response, status);
    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_text(&answer, "error", text);
    kvp_jsonw_close(&answer, '}');
}
