/* SPDX-License-Identifier: Apache-2.0
 * See front.h.
 *
 * Design notes.
 * - libmicrohttpd parses the clients' requests and frames the answers. A client's connection is suspended while its
 *   request waits for a server, and resumed when there are bytes to send.
 * - A FIN of a client means that the client has left (clients.h).
 * - A client must not mistake a cut answer for a complete one. A cut chunked answer lacks its last chunk. Any
 *   other answer may end with its connection, so the connection is reset. A reset drops the bytes that the kernel
 *   has not delivered yet, so the proxy first waits, 5 s at most, until the client has received them. */
#include "conductor/proxy/front.h"

#include "common/clock.h"
#include "common/hostid.h"
#include "common/log.h"
#include "common/parse.h"
#include "common/thread.h"
#include "conductor/proxy/checks.h"
#include "conductor/proxy/clients.h"
#include "conductor/proxy/cors.h"
#include "conductor/proxy/headers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BODY_MAX (32u << 20)
#define METRICS_MAX (16u << 20)
#define REQUESTS_MAX 4096u
#define PIECE_BYTES (16u << 10)
#define CONNECTION_TIMEOUT_S 30u /* an idle connection of a client is closed after this time */
#define LOOK_MS 50u
#define CUT_NS (5 * KVP_NS_PER_S) /* time for a client to receive the rest of an answer that broke off */

static const char too_large[] = "the body is longer than 32 MiB";

typedef struct {
    kvp_list_t link; /* element of the list front->requests */
    kvp_front_t *f;
    struct MHD_Connection *conn;
    uint64_t begun_ns;
    kvp_exchange_t x;
    kvp_upload_t place; /* the body's share of the memory limits (places.h) */
    uint32_t refusal; /* HTTP status if the body is too large (413) or gets no memory (503); 0 = no refusal */
    bool is_suspended, is_gone;
    bool is_under_way; /* a flag: the request is counted in shared->open */
    bool is_chunked; /* a flag: the answer uses chunked coding */
    uint64_t cut_ns; /* time at which the answer broke off; 0 = it has not */
} request_t;

struct kvp_front {
    kvp_proxy_shared_t *shared;
    bool watches;
    kvp_checks_t *checks; /* the periodic checks; NULL = another front runs them */
    uv_loop_t uv;
    uv_async_t stop, displaced;
    uv_idle_t more;
    uv_timer_t look;
    uv_poll_t front, left;
    struct MHD_Daemon *mhd;
    kvp_upstream_t *up;
    pthread_t thread;
    bool has_uv, has_thread, is_asked_to_stop;
    uint64_t stopping_ns; /* time at which the stop began; 0 = not stopping */
    kvp_list_t requests;
    kvp_clients_t clients;
};

static void on_more(uv_idle_t *idle);

static void
resume_request(request_t *r)
{
    if (!r->is_suspended) return;
    r->is_suspended = false;
    MHD_resume_connection(r->conn);
    uv_idle_start(&r->f->more, on_more);
}

static void
on_news(kvp_exchange_t *x)
{
    request_t *r = kvp_container_of(x, request_t, x);

    if (x->state == KVP_X_BROKEN && r->cut_ns == 0) r->cut_ns = kvp_now_ns();
    resume_request(r);
}

/* ---- cutting answers */
static int
fd_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);

    return info == NULL ? -1 : info->connect_fd;
}

/* Resets the connection. libmicrohttpd then finds the connection broken, in any state, and closes it. */
static void
reset_conn(struct MHD_Connection *conn)
{
    const struct sockaddr none = {.sa_family = AF_UNSPEC};

    (void)connect(fd_of(conn), &none, sizeof none);
}

/* Sets whether a close of the socket sends a reset instead of a FIN, also if the process is killed. */
static void
set_reset_at_close(struct MHD_Connection *conn, bool is_on)
{
    const struct linger linger = {.l_onoff = is_on};

    (void)setsockopt(fd_of(conn), SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

/* Returns whether the client has acknowledged all bytes that were sent, or CUT_NS has passed since the cut. */
static bool
has_taken_all(const request_t *r)
{
    int left;

    return ioctl(fd_of(r->conn), SIOCOUTQ, &left) != 0 || left == 0 || kvp_now_ns() - r->cut_ns > CUT_NS;
}

static void
look_after_cut(kvp_front_t *f)
{
    const uint64_t now_ns = kvp_now_ns();

    kvp_list_foreach_safe (pos, tmp, &f->requests) {
        request_t *r = kvp_list_entry(pos, request_t, link);

        if (r->cut_ns == 0 || r->is_chunked) continue;
        if (r->is_suspended && has_taken_all(r))
            resume_request(r);
        else if (!r->is_suspended && now_ns - r->cut_ns > CUT_NS)
            reset_conn(r->conn); /* resets the connection if the client reads nothing for too long */
    }
}

/* Returns the client of the connection; NULL if there was no memory for it. */
static kvp_client_t *
client_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info == NULL ? NULL : info->socket_context;
}

/* ---- answers to clients */
static enum MHD_Result
add_cors(struct MHD_Connection *conn, struct MHD_Response *r)
{
    const kvp_client_t *c = client_of(conn);
    const kvp_front_t *f = c == NULL ? NULL : c->front;

    return f == NULL ? MHD_YES : kvp_cors_add(f->shared->conf.allow_origin, conn, r);
}

static ssize_t
read_out(void *arg, uint64_t pos, char *bytes, size_t max)
{
    request_t *r = arg;
    const size_t n = r->is_gone ? 0 : kvp_exchange_take(&r->x, bytes, max);

    (void)pos;
    if (n > 0) return (ssize_t)n;
    if (r->is_gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (r->x.state == KVP_X_WHOLE) return MHD_CONTENT_READER_END_OF_STREAM;
    if (r->x.state == KVP_X_BROKEN && (r->is_chunked || has_taken_all(r))) return MHD_CONTENT_READER_END_WITH_ERROR;
    r->is_suspended = true;
    MHD_suspend_connection(r->conn);
    return 0;
}

/* Adds the server's headers that may pass. libmicrohttpd refuses some headers, for example those without a value;
 * they are left out. */
static void
add_headers(const kvp_exchange_t *x, struct MHD_Response *r)
{
    const char *name, *value;

    for (size_t at = 0; kvp_headers_next(&x->headers, &at, &name, &value);)
        if (kvp_headers_passes(&x->headers, name)) (void)MHD_add_response_header(r, name, value);
}

static enum MHD_Result
queue_answer(request_t *q, bool is_http10)
{
    kvp_exchange_t *x = &q->x;
    const bool is_now = x->state == KVP_X_WHOLE;
    /* A complete answer is sent together with its head, in one packet. */
    struct MHD_Response *r =
        is_now ? MHD_create_response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_MUST_COPY)
               : MHD_create_response_from_callback(x->length >= 0 ? (uint64_t)x->length : MHD_SIZE_UNKNOWN, PIECE_BYTES,
                                                   read_out, q, NULL);
    enum MHD_Result ok = r == NULL ? MHD_NO : MHD_YES;

    if (ok == MHD_YES) ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, x->type);
    if (ok == MHD_YES) ok = MHD_add_response_header(r, "X-Request-Id", x->id);
    if (ok == MHD_YES) ok = add_cors(q->conn, r);
    if (ok == MHD_YES) add_headers(x, r);
    if (ok == MHD_YES) ok = MHD_queue_response(q->conn, x->status, r);
    if (r != NULL) MHD_destroy_response(r);
    x->is_passed = ok == MHD_YES;
    q->is_chunked = !is_now && x->length < 0 && !is_http10;
    if (!is_now && !q->is_chunked) set_reset_at_close(q->conn, true);
    return ok;
}

static enum MHD_Result
answer_now(struct MHD_Connection *conn, uint32_t status, const char *type, const char *text, size_t len)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result ok = r == NULL ? MHD_NO : MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);

    if (ok == MHD_YES) ok = add_cors(conn, r);
    if (ok == MHD_YES && status == 400) ok = MHD_add_response_header(r, "Connection", "close");
    if (ok == MHD_YES) ok = MHD_queue_response(conn, status, r);
    if (r != NULL) MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result
refuse_request(struct MHD_Connection *conn, uint32_t status, const char *why)
{
    char text[256];
    const int n = snprintf(text, sizeof text, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"code\":%u}}", why,
                           status < 500 ? "invalid_request_error" : "upstream_error", status);

    return answer_now(conn, status, "application/json", text, (size_t)n);
}

/* Answers /health and /healthcheck. /health reports whether requests can be served, /healthcheck only that the
 * proxy runs. */
static enum MHD_Result
on_health(kvp_proxy_shared_t *p, struct MHD_Connection *conn, bool is_check)
{
    const kvp_fleet_t *fleet = &p->fleet;
    char text[256];

    pthread_mutex_lock(&p->lock);
    const bool is_ok = is_check || kvp_fleet_is_serving(fleet);
    const int n =
        snprintf(text, sizeof text,
                 "{\"status\":\"%s\",\"prefill_instances\":%u,\"decode_instances\":%u,\"replica_instances\":%u,"
                 "\"left_out\":%u}",
                 is_ok ? "ok" : "a role has no server in use", kvp_fleet_count(fleet, KVP_SERVER_PREFILL),
                 kvp_fleet_count(fleet, KVP_SERVER_DECODE), kvp_fleet_count(fleet, KVP_SERVER_REPLICA),
                 kvp_fleet_left_out(fleet));
    pthread_mutex_unlock(&p->lock);
    return answer_now(conn, is_ok ? 200 : 503, "application/json", text, (size_t)n);
}

/* Writes the latencies of the present servers. */
static void
write_latencies(kvp_proxy_shared_t *p, bool is_whole, kvp_buf_t *out)
{
    static const char *const roles[KVP_SERVER_ROLES] = {"replica", "prefill", "decode"};

    kvp_latency_head(is_whole, out);
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->fleet.n; i++) {
        const kvp_fleet_server_t *server = &p->fleet.servers[i];

        if (server->is_gone || server->latency == NULL || server->role == KVP_SERVER_PREFILL) continue;
        kvp_latency_write(server->latency, is_whole, server->url, roles[server->role], out);
    }
    pthread_mutex_unlock(&p->lock);
}

static enum MHD_Result
on_metrics(kvp_proxy_shared_t *p, struct MHD_Connection *conn)
{
    char text[2048];
    enum MHD_Result result;
    kvp_buf_t all;
    int n = 0;

#define COUNTER(name, help, value)                                                                                     \
    n += snprintf(text + n, sizeof text - (size_t)n,                                                                   \
                  "# HELP kvpool_proxy_%s %s\n# TYPE kvpool_proxy_%s counter\nkvpool_proxy_%s %llu\n", name, help,     \
                  name, name, (unsigned long long)atomic_load(&(value)))
    COUNTER("requests_total", "requests", p->stats.requests);
    COUNTER("refused_total", "requests that were answered 4xx, by a server's word or ours", p->stats.refused);
    COUNTER("failed_total", "requests that no server could answer", p->stats.failed);
    COUNTER("broken_total", "answers that broke off after their first byte", p->stats.broken);
    COUNTER("plain_total", "requests that were decoded without their prefill", p->stats.plain);
    COUNTER("gone_total", "clients that went before their answer was whole", p->stats.gone);
    COUNTER("routed_total", "servers that the router chose", p->stats.routed);
    COUNTER("unrouted_total", "requests that the router could not place, so the load decided", p->stats.unrouted);
#undef COUNTER
    n += snprintf(text + n, sizeof text - (size_t)n,
                  "# HELP kvpool_proxy_open requests under way\n# TYPE kvpool_proxy_open gauge\nkvpool_proxy_open %u\n"
                  "# HELP kvpool_proxy_uploads requests whose bodies are still coming\n"
                  "# TYPE kvpool_proxy_uploads gauge\nkvpool_proxy_uploads %u\n",
                  atomic_load(&p->open), kvp_places_uploads(&p->places));
    kvp_buf_init(&all, METRICS_MAX);
    kvp_buf_append(&all, text, (size_t)n);
    for (int is_whole = 0; is_whole < 2; is_whole++)
        write_latencies(p, is_whole != 0, &all);
    if (all.err == KVP_OK)
        result = answer_now(conn, 200, "text/plain; version=0.0.4; charset=utf-8", (const char *)all.data, all.len);
    else
        result = answer_now(conn, 503, "text/plain", "out of memory", 13);
    kvp_buf_fini(&all);
    return result;
}

/* ---- connections of clients */
static void
on_connection(void *arg, struct MHD_Connection *conn, void **ctx, enum MHD_ConnectionNotificationCode code)
{
    kvp_front_t *f = arg;

    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        *ctx = kvp_clients_enter(&f->clients, f, fd_of(conn), kvp_now_ns());
    else
        kvp_clients_leave(&f->clients, *ctx);
}

/* ---- requests of clients */
static void
wake_owner(kvp_upload_t *place)
{
    uv_async_send(&kvp_container_of(place, request_t, place)->f->displaced);
}

static request_t *
make_request(kvp_front_t *f, struct MHD_Connection *conn, const char *path, kvp_path_kind_t kind)
{
    request_t *r = calloc(1, sizeof *r);

    if (r == NULL) return NULL;
    kvp_list_init(&r->link);
    kvp_list_add_tail(&f->requests, &r->link);
    kvp_list_init(&r->place.link);
    r->f = f;
    r->conn = conn;
    r->begun_ns = kvp_now_ns();
    kvp_exchange_init(&r->x, f->shared, f->up, path, kind, on_news);
    kvp_buf_init(&r->x.body, BODY_MAX);
    client_of(conn)->request = r;
    if (!kvp_exchange_is_get(&r->x)) kvp_places_enter(&f->shared->places, &r->place, wake_owner);
    return r;
}

static void
copy_header(request_t *r, const char *name, char *out, size_t cap)
{
    const char *value = MHD_lookup_connection_value(r->conn, MHD_HEADER_KIND, name);

    if (value == NULL || strlen(value) >= cap) return;
    for (const char *c = value; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return;
    strcpy(out, value);
}

/* ---- checks of a request's head: if two parsers could disagree about the end of the request, it is refused */
typedef struct {
    uint32_t lengths, codings;
    bool is_bad, is_other_coding;
    uint64_t length;
    size_t authorization_len;
} framing_t;

static enum MHD_Result
note_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    framing_t *f = arg;

    (void)kind;
    if (name[strcspn(name, " \t")] != '\0') {
        f->is_bad = true;
    } else if (strcasecmp(name, "Content-Length") == 0) {
        f->lengths++;
        if (value == NULL || kvp_parse_u64(value, &f->length) != KVP_OK) f->is_bad = true;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        f->codings++;
        if (value == NULL || strcasecmp(value, "chunked") != 0) f->is_other_coding = true;
    } else if (strcasecmp(name, "Authorization") == 0 && value != NULL) {
        f->authorization_len = strlen(value);
    }
    return MHD_YES;
}

/* Checks the head of a request. Returns 0 if it is acceptable, else the HTTP status, with the reason in *why_out. */
static uint32_t
check_head(struct MHD_Connection *conn, const char **why_out)
{
    framing_t f = {0};

    (void)MHD_get_connection_values(conn, MHD_HEADER_KIND, note_header, &f);
    *why_out = "the head does not tell plainly where the body ends";
    if (f.is_bad || f.lengths + f.codings > 1) return 400;
    *why_out = "no transfer coding but chunked is known here";
    if (f.is_other_coding) return 501;
    *why_out = "Authorization is longer than 4095 bytes";
    if (f.authorization_len >= sizeof((kvp_exchange_t *)NULL)->auth) return 431;
    *why_out = too_large;
    return f.length > BODY_MAX ? 413 : 0;
}

/* Returns 0 if the client's key permits the request, or if no key is needed, else the HTTP status and the reason. */
static uint32_t
check_key(kvp_front_t *f, struct MHD_Connection *conn, const char *method, const char *url,
          char why_out[KVP_IDENTITY_WHY_MAX])
{
    const char *key = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Authorization");
    char from[KVP_PEER_TEXT_MAX];

    if (f->shared->keys.file == NULL) return 0;
    kvp_peer_text(MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd, from);
    return kvp_http_tokens_check(&f->shared->keys, method, url, key, from, why_out);
}

/* Handles libmicrohttpd's first call for a request: checks the head, and answers at once or creates the request. */
static enum MHD_Result
on_first(kvp_front_t *f, struct MHD_Connection *conn, const char *url, const char *method, void **ctx)
{
    kvp_path_kind_t kind;
    const char *why;
    char denial[KVP_IDENTITY_WHY_MAX];

    kvp_client_t *c = client_of(conn);
    if (c == NULL || f->stopping_ns != 0) return MHD_NO;
    kvp_clients_begin(c);
    const uint32_t status = check_head(conn, &why);
    if (status != 0) return refuse_request(conn, status, why);
    if (!kvp_cors_allows(f->shared->conf.allow_origin, conn))
        return refuse_request(conn, 403,
                              "web pages of this origin may not ask here; --allow-origin names those that may");
    if (strcmp(method, "OPTIONS") == 0) return kvp_cors_answer_options(f->shared->conf.allow_origin, conn);
    const uint32_t denied = check_key(f, conn, method, url, denial);
    if (denied != 0) return refuse_request(conn, denied, denial);
    const uint32_t found = kvp_path_find(method, url, &kind);
    if (found != 200) return refuse_request(conn, found, found == 405 ? "method not allowed here" : "no such path");
    if (kind == KVP_PATH_METRICS) return on_metrics(f->shared, conn);
    if (kind == KVP_PATH_HEALTH || kind == KVP_PATH_HEALTHCHECK)
        return on_health(f->shared, conn, kind == KVP_PATH_HEALTHCHECK);
    if ((kind == KVP_PATH_RESPONSE || kind == KVP_PATH_OTHER) && kvp_servers_count(f->shared, KVP_SERVER_DECODE) > 0)
        return refuse_request(conn, 404, "only replicas serve this path, and here are prefill and decode servers");
    if (c->has_left) return MHD_NO;
    *ctx = make_request(f, conn, url, kind);
    return *ctx == NULL ? MHD_NO : MHD_YES;
}

/* Starts the exchange when the body is complete. False: the upload was displaced, or too many requests are open. */
static bool
begin_request(request_t *r)
{
    kvp_proxy_shared_t *p = r->f->shared;

    if (!kvp_places_finish(&p->places, &r->place)) return false;
    r->is_under_way = true;
    if (atomic_fetch_add(&p->open, 1) >= REQUESTS_MAX) return false;
    copy_header(r, "X-Request-Id", r->x.id, sizeof r->x.id);
    if (p->keys.file == NULL) copy_header(r, "Authorization", r->x.auth, sizeof r->x.auth); /* else the key is ours */
    copy_header(r, "X-Session-Id", r->x.session, sizeof r->x.session);
    kvp_exchange_begin(&r->x);
    return true;
}

static void
take_upload(request_t *r, const char *bytes, size_t len)
{
    kvp_proxy_shared_t *p = r->f->shared;

    if (r->x.body.len + len > BODY_MAX) r->refusal = 413;
    if (r->refusal != 0) return;
    if (kvp_places_grow(&p->places, &r->place, len))
        kvp_buf_append(&r->x.body, bytes, len);
    else
        r->refusal = 503;
}

static enum MHD_Result
on_request(void *arg, struct MHD_Connection *conn, const char *url, const char *method, const char *version,
           const char *upload, size_t *upload_len, void **ctx)
{
    request_t *r = *ctx;

    if (r == NULL) return on_first(arg, conn, url, method, ctx);
    if (*upload_len > 0) {
        if (kvp_now_ns() - r->begun_ns > r->f->shared->conf.upload_ms * KVP_NS_PER_MS) return MHD_NO;
        take_upload(r, upload, *upload_len);
        *upload_len = 0;
        return MHD_YES;
    }
    if (r->is_gone) return MHD_NO;
    if (r->refusal != 0)
        return refuse_request(conn, r->refusal,
                              r->refusal == 413 ? too_large
                                                : "the bodies of the requests under way are 512 MiB by now");
    if (r->x.state == KVP_X_BODY && !begin_request(r))
        return refuse_request(conn, 503, "too many requests are under way");
    if (r->x.out.len > 0 || kvp_exchange_has_ended(&r->x))
        return queue_answer(r, strcmp(version, MHD_HTTP_VERSION_1_0) == 0);
    r->is_suspended = true;
    MHD_suspend_connection(conn);
    return MHD_YES;
}

static void
on_completed(void *arg, struct MHD_Connection *conn, void **ctx, enum MHD_RequestTerminationCode code)
{
    kvp_front_t *f = arg;
    request_t *r = *ctx;

    kvp_client_t *c = client_of(conn);
    if (c != NULL) {
        c->request = NULL;
        kvp_clients_expect(&f->clients, c, kvp_now_ns());
    }
    if (r == NULL) return;
    *ctx = NULL;
    /* After this callback libmicrohttpd ends the connection with a FIN, which would look like the end of a complete
     * answer. So the connection of an incomplete answer without chunks is reset. */
    if (r->x.is_passed && !r->is_chunked && code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        set_reset_at_close(conn, false);
    else if (r->x.is_passed && !r->is_chunked)
        reset_conn(conn);
    if (r->x.call != NULL && code != MHD_REQUEST_TERMINATED_COMPLETED_OK) kvp_count(&f->shared->stats.gone);
    kvp_exchange_cancel(&r->x);
    kvp_places_leave(&f->shared->places, &r->place);
    atomic_fetch_sub(&f->shared->open, r->is_under_way);
    kvp_list_del(&r->link);
    kvp_exchange_fini(&r->x);
    free(r);
}

/* ---- the loop of the thread */
/* Runs libmicrohttpd once. A timeout of 0 means that libmicrohttpd has work that its descriptor does not show. The
 * loop does not wait while f->more is active. */
static void
run_front(kvp_front_t *f)
{
    MHD_UNSIGNED_LONG_LONG ms;

    if (f->mhd == NULL) return;
    uv_idle_stop(&f->more);
    MHD_run(f->mhd); /* may resume suspended connections */
    if (MHD_get_timeout(f->mhd, &ms) == MHD_YES && ms == 0) uv_idle_start(&f->more, on_more);
}

static void
on_more(uv_idle_t *idle)
{
    run_front(idle->data);
}

static void
on_front(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    run_front(poll->data);
}

/* Drops a request whose client or memory is lost, in any state of its connection. */
static void
drop_request(request_t *r)
{
    r->is_gone = true;
    if (r->x.call != NULL) kvp_count(&r->f->shared->stats.gone);
    kvp_exchange_cancel(&r->x);
    if (r->is_suspended)
        resume_request(r);
    else
        reset_conn(r->conn);
}

/* Handles ended connections. Bytes that arrived together with the end are read first, so that libmicrohttpd has
 * answered all requests that need no server. */
static void
on_left(uv_poll_t *poll, int status, int events)
{
    kvp_front_t *f = poll->data;
    kvp_client_t *c;

    (void)status;
    (void)events;
    kvp_clients_find_left(&f->clients);
    run_front(f);
    while ((c = kvp_clients_take_left(&f->clients)) != NULL) {
        if (c->request != NULL)
            drop_request(c->request);
        else if (c->since_ns != 0)
            (void)shutdown(c->fd, SHUT_RDWR); /* makes libmicrohttpd notice that the connection has ended */
    }
    uv_idle_start(&f->more, on_more);
}

/* Drops the requests whose uploads were displaced. */
static void
on_displaced(uv_async_t *async)
{
    kvp_front_t *f = async->data;

    kvp_list_foreach (pos, &f->requests) {
        request_t *r = kvp_list_entry(pos, request_t, link);

        if (r->place.is_displaced && !r->is_gone) drop_request(r);
    }
}

static void
finish_stop(kvp_front_t *f)
{
    kvp_list_foreach (pos, &f->requests) {
        request_t *r = kvp_list_entry(pos, request_t, link);

        if (r->x.is_passed && !r->is_chunked) reset_conn(r->conn);
        r->is_gone = true;
        resume_request(r); /* resumes the request, because libmicrohttpd does not end a suspended connection */
    }
    uv_poll_stop(&f->front);
    uv_poll_stop(&f->left);
    MHD_stop_daemon(f->mhd);
    f->mhd = NULL;
    kvp_upstream_close(f->up);
    uv_close((uv_handle_t *)&f->front, NULL);
    uv_close((uv_handle_t *)&f->more, NULL);
    uv_close((uv_handle_t *)&f->look, NULL);
    uv_close((uv_handle_t *)&f->stop, NULL);
    uv_close((uv_handle_t *)&f->left, NULL);
    uv_close((uv_handle_t *)&f->displaced, NULL);
}

static void
on_look(uv_timer_t *timer)
{
    kvp_front_t *f = timer->data;

    look_after_cut(f);
    kvp_clients_cut(&f->clients, f->shared->conf.upload_ms * KVP_NS_PER_MS, kvp_now_ns());
    if (f->checks != NULL) kvp_checks_look(f->checks);
    run_front(f);
    if (f->stopping_ns != 0 &&
        (kvp_list_is_empty(&f->requests) || kvp_now_ns() - f->stopping_ns > CUT_NS + LOOK_MS * 2 * KVP_NS_PER_MS))
        finish_stop(f);
}

/* Stops the front: cuts the answers in progress. Clients have CUT_NS to receive the part that was already sent. */
static void
on_stop(uv_async_t *async)
{
    kvp_front_t *f = async->data;
    const int listening = MHD_quiesce_daemon(f->mhd);

    if (listening >= 0) close(listening);
    f->stopping_ns = kvp_now_ns();
    kvp_list_foreach (pos, &f->requests) {
        request_t *r = kvp_list_entry(pos, request_t, link);

        if (r->x.is_passed) {
            kvp_exchange_break(&r->x);
            continue;
        }
        drop_request(r);
    }
    on_look(&f->look);
}

static void *
run_thread(void *arg)
{
    kvp_front_t *f = arg;

    uv_run(&f->uv, UV_RUN_DEFAULT);
    return NULL;
}

/* ---- starting and stopping a front */
static void
on_mhd_log(void *arg, const char *fmt, va_list args)
{
    char text[256];

    (void)arg;
    vsnprintf(text, sizeof text, fmt, args);
    kvp_log_debug("proxy", "%s", text);
}

/* Leaves the escapes in a path, so that the path is passed on exactly as the client wrote it. */
static size_t
keep_escapes(void *arg, struct MHD_Connection *conn, char *text)
{
    (void)arg;
    (void)conn;
    return strlen(text);
}

/* Starts libmicrohttpd on a duplicate of the listening socket. Returns NULL on failure. */
static struct MHD_Daemon *
start_mhd(kvp_front_t *f, int listening)
{
    const int fd = fcntl(listening, F_DUPFD_CLOEXEC, 0);
    struct MHD_Daemon *mhd;

    if (fd < 0) return NULL;
    mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, f,
        MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, f, MHD_OPTION_NOTIFY_CONNECTION, on_connection, f, MHD_OPTION_CONNECTION_LIMIT, f->clients.max,
        MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(32u << 10),
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
    if (mhd == NULL) close(fd);
    return mhd;
}

static kvp_err_t
build_front(kvp_front_t *f, int listening)
{
    kvp_err_t err;

    if (uv_loop_init(&f->uv) != 0) return KVP_SYS;
    f->has_uv = true;
    err =
        kvp_clients_init(&f->clients, listening, (uint32_t)kvp_max_u64(kvp_clients_max() / f->shared->conf.threads, 1));
    if (err != KVP_OK) return err;
    f->mhd = start_mhd(f, listening);
    if (f->mhd == NULL) return KVP_SYS;
    err = kvp_upstream_create(&f->uv, &f->up);
    if (err == KVP_OK && f->watches) {
        f->checks = kvp_checks_create(f->shared, f->up);
        if (f->checks == NULL) err = KVP_NOMEM;
    }
    if (err != KVP_OK) return err;
    f->more.data = f->front.data = f->look.data = f->stop.data = f->left.data = f->displaced.data = f;
    (void)uv_async_init(&f->uv, &f->stop, on_stop);
    (void)uv_async_init(&f->uv, &f->displaced, on_displaced);
    (void)uv_poll_init(&f->uv, &f->left, f->clients.watch);
    (void)uv_poll_start(&f->left, UV_READABLE, on_left);
    (void)uv_idle_init(&f->uv, &f->more);
    (void)uv_timer_init(&f->uv, &f->look);
    (void)uv_timer_start(&f->look, on_look, LOOK_MS, LOOK_MS);
    (void)uv_poll_init(&f->uv, &f->front, MHD_get_daemon_info(f->mhd, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd);
    (void)uv_poll_start(&f->front, UV_READABLE, on_front);
    err = kvp_thread_start(&f->thread, "kvp-proxy", run_thread, f);
    f->has_thread = err == KVP_OK;
    return err;
}

kvp_err_t
kvp_front_start(kvp_proxy_shared_t *shared, int listening, bool watches, kvp_front_t **out)
{
    kvp_front_t *f = calloc(1, sizeof *f);
    kvp_err_t err;

    if (f == NULL) return KVP_NOMEM;
    f->shared = shared;
    f->watches = watches;
    kvp_list_init(&f->requests);
    err = build_front(f, listening);
    if (err == KVP_OK)
        *out = f;
    else
        kvp_front_stop(f);
    return err;
}

void
kvp_front_ask_to_stop(kvp_front_t *f)
{
    if (f == NULL || !f->has_thread || f->is_asked_to_stop) return;
    f->is_asked_to_stop = true;
    uv_async_send(&f->stop);
}

void
kvp_front_stop(kvp_front_t *f)
{
    if (f == NULL) return;
    if (f->has_thread) {
        kvp_front_ask_to_stop(f);
        pthread_join(f->thread, NULL);
    } else if (f->mhd != NULL) {
        MHD_stop_daemon(f->mhd);
    }
    kvp_upstream_destroy(f->up);
    kvp_checks_destroy(f->checks);
    kvp_clients_fini(&f->clients);
    if (f->has_uv) (void)uv_loop_close(&f->uv);
    free(f);
}
