/* SPDX-License-Identifier: Apache-2.0
 * See proxy.h.
 *
 * Design notes.
 * - libmicrohttpd parses and frames on the client's side, libcurl on the servers'; both run on this thread's loop. A connection that waits for a server is suspended, and resumed when there is
 *   something for it.
 * - Nothing of an answer is kept but what the client has not read yet: a client that is slow pauses its server.
 * - While nothing is passed on a failed request can be sent to another server. From the first byte on it cannot: then the body ends without an end.
 * - libmicrohttpd does not look at a suspended connection, so one whose client has gone is found by a look at all of them, 20 times a second.
 */
#include "conductor/proxy/proxy.h"

#include "common/clock.h"
#include "common/jsonw.h"
#include "common/list.h"
#include "common/log.h"
#include "common/thread.h"
#include "conductor/proxy/body.h"
#include "conductor/proxy/question.h"
#include "conductor/proxy/upstream.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX (32u << 20)
#define REQUESTS_MAX 4096u
#define HELD_MAX (512u << 20) /* bytes of all bodies */
#define OUT_MAX (256u << 10) /* bytes of an answer that wait for the client */
#define PIECE_BYTES (16u << 10)
#define CONNECTION_LIMIT 8192u
#define CONNECTION_TIMEOUT_S 30u /* of one that sends nothing */
#define UPLOAD_NS (60 * KVP_NS_PER_S)
#define LOOK_MS 50u
#define TRIES_MAX 8u /* servers that a request may be sent to, of each role */
#define ID_MAX 128u
#define PREFILL_ANSWER_MAX (16u << 20)
#define ROUTE_MS 1000u /* that the router may take */
#define SESSION_MAX 256u

const kvp_proxy_conf_t kvp_proxy_defaults = {
    .connect_ms = 2000, .prefill_ms = 120000, .first_ms = 600000, .idle_ms = 300000};

typedef enum { X_BODY, X_BOOTSTRAP, X_PREFILL, X_ANSWER } state_t;

typedef struct exchange {
    kvp_list_t link; /* proxy->exchanges */
    struct kvp_proxy *p;
    struct MHD_Connection *conn;
    bool is_get;
    const char *path; /* of ours, or a constant */
    uint64_t begun_ns;
    kvp_buf_t body;
    kvp_body_t fields;
    char id[ID_MAX + 1], auth[2048], session[SESSION_MAX + 1];
    state_t state;
    bool is_suspended, is_gone, is_too_large;

    kvp_call_t *call; /* under way; NULL = none */
    uint32_t server; /* of it */
    uint64_t route; /* that led there; 0 = none */
    int64_t rank; /* of that server, by the router; -1 = any */
    kvp_buf_t sent; /* its body */
    uint32_t tried[TRIES_MAX], tried_n;
    kvp_buf_t prefill; /* what the prefill server answered */
    char params[1024]; /* for the decode server, if has_params; "" = those of the answer */
    bool has_params;
    char transfer[40]; /* id of the transfer, where the engine's id is told at a bootstrap server */
    char why[256]; /* of the last failure */

    uint32_t status; /* of the answer; 0 = there is none yet */
    char type[128];
    int64_t length; /* -1 = not told */
    kvp_buf_t out;
    size_t out_at;
    bool is_queued; /* libmicrohttpd has the answer */
    bool has_ended, is_whole;
} exchange_t;

typedef struct {
    kvp_proxy_t *p;
    uint32_t status;
} check_t;

struct kvp_proxy {
    kvp_proxy_conf_t conf;
    char router[KVP_HOSTPORT_TEXT_MAX + 16]; /* its URL; "" = servers are used in turn */
    bool (*has_instances)(void *arg);
    void *has_instances_arg;
    bool is_routing; /* instances are registered, */
    bool is_lost; /* and the router could not choose among them */
    pthread_mutex_t lock; /* of the fleet's places and numbers; the texts of a server that a request goes to stay */
    kvp_fleet_t fleet;
    check_t checks[KVP_FLEET_MAX]; /* by server */
    uv_loop_t uv;
    uv_async_t stop;
    uv_idle_t more;
    uv_timer_t look;
    uv_poll_t front;
    struct MHD_Daemon *mhd;
    kvp_upstream_t *up;
    pthread_t thread;
    bool has_uv, has_thread;
    kvp_list_t exchanges;
    uint32_t exchanges_n;
    uint64_t held;
    uint64_t id, ids; /* drawn at the start; ids that were made */
    struct {
        uint64_t requests, refused, failed, broken, plain,
            gone; /* broken: after the first byte; plain: without their prefill */
        uint64_t routed, unrouted; /* choices by the router, and such as it could not make */
    } stats;
};

/* ---- the client's side of an exchange */
static void on_more(uv_idle_t *idle);

static void
resume(exchange_t *x)
{
    if (!x->is_suspended) return;
    x->is_suspended = false;
    MHD_resume_connection(x->conn);
    uv_idle_start(&x->p->more, on_more);
}

/* An answer of ours, in JSON. */
static void
answer_text(exchange_t *x, uint32_t status, const char *type, const char *text)
{
    x->status = status;
    if (type != x->type) snprintf(x->type, sizeof x->type, "%s", type);
    x->length = (int64_t)strlen(text);
    kvp_buf_reset(&x->out);
    x->out_at = 0;
    kvp_buf_append(&x->out, text, strlen(text));
    x->has_ended = x->is_whole = true;
    resume(x);
}

static void
answer_error(exchange_t *x, uint32_t status, const char *why)
{
    kvp_buf_t text;
    kvp_jsonw_t w;

    kvp_buf_init(&text, 0);
    kvp_jsonw_init(&w, &text);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_open(&w, "error", '{');
    kvp_jsonw_text(&w, "message", why);
    kvp_jsonw_text(&w, "type", status < 500 ? "invalid_request_error" : "upstream_error");
    kvp_jsonw_u64(&w, "code", status);
    kvp_jsonw_close(&w, '}');
    kvp_jsonw_close(&w, '}');
    kvp_buf_append(&text, "", 1);
    if (status < 500)
        x->p->stats.refused++;
    else
        x->p->stats.failed++;
    answer_text(x, status, "application/json", text.err == KVP_OK ? (const char *)text.data : "{}");
    kvp_buf_fini(&text);
}

/* Unlike any other, of this proxy and of others. */
static void
make_id(kvp_proxy_t *p, char *out, size_t cap)
{
    snprintf(out, cap, "%016llx%016llx", (unsigned long long)p->id, (unsigned long long)++p->ids);
}

/* ---- servers */
static void send_next(exchange_t *x);

static void
skip_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    (void)arg;
    (void)status;
    (void)type;
    (void)length;
}

static bool
skip_bytes(void *arg, const void *bytes, size_t len)
{
    (void)arg;
    (void)bytes;
    (void)len;
    return true;
}

static void
skip_end(void *arg, const char *why)
{
    (void)arg;
    (void)why;
}

/* A route of which the router is not told ends there by itself, after a while. */
static void
end_route(kvp_proxy_t *p, uint64_t route)
{
    static const kvp_call_ops_t ops = {skip_head, skip_bytes, skip_end};
    char url[sizeof p->router + 16], body[48];
    const int n = snprintf(body, sizeof body, "{\"route_id\":%llu}", (unsigned long long)route);

    if (route == 0) return;
    snprintf(url, sizeof url, "%s/route/done", p->router);
    (void)kvp_upstream_start(p->up,
                             &(kvp_call_conf_t){.url = url,
                                                .body = body,
                                                .body_len = (size_t)n,
                                                .copies_body = true,
                                                .connect_ms = ROUTE_MS,
                                                .first_ms = ROUTE_MS,
                                                .idle_ms = ROUTE_MS},
                             &ops, NULL);
}

static void
end_server(exchange_t *x, kvp_server_end_t end)
{
    end_route(x->p, x->route);
    x->route = 0;
    x->rank = -1;
    if (x->server == KVP_SERVER_NONE) return;
    pthread_mutex_lock(&x->p->lock);
    kvp_fleet_end(&x->p->fleet, x->server, end, kvp_now_ns());
    pthread_mutex_unlock(&x->p->lock);
    x->server = KVP_SERVER_NONE;
}

static uint32_t
count(kvp_proxy_t *p, kvp_server_role_t role)
{
    pthread_mutex_lock(&p->lock);
    const uint32_t n = kvp_fleet_count(&p->fleet, role);
    pthread_mutex_unlock(&p->lock);

    return n;
}

static bool
is_disaggregated(kvp_proxy_t *p)
{
    return count(p, KVP_SERVER_PREFILL) > 0 && count(p, KVP_SERVER_DECODE) > 0;
}

/* False: none is left. */
static bool
pick(exchange_t *x, kvp_server_role_t role)
{
    if (x->tried_n == TRIES_MAX) return false;
    pthread_mutex_lock(&x->p->lock);
    x->server = kvp_fleet_pick(&x->p->fleet, role, x->p->router[0] != '\0', x->tried, x->tried_n);
    pthread_mutex_unlock(&x->p->lock);
    if (x->server == KVP_SERVER_NONE) return false;
    x->tried[x->tried_n++] = x->server;
    return true;
}

/* The one that the router named, if it may be chosen. */
static bool
take(exchange_t *x, kvp_server_role_t role, const kvp_told_t *told)
{
    pthread_mutex_lock(&x->p->lock);
    x->server = kvp_fleet_take(&x->p->fleet, role, told->url, x->tried, x->tried_n);
    pthread_mutex_unlock(&x->p->lock);
    if (x->server == KVP_SERVER_NONE) return false;
    x->tried[x->tried_n++] = x->server;
    x->route = told->route;
    x->rank = told->rank;
    return true;
}

static void
start_call(exchange_t *x, const char *base, const char *path, bool is_get, const kvp_call_ops_t *ops, uint64_t first_ms)
{
    char url[KVP_FLEET_URL_MAX + 64], id[ID_MAX + 32], auth[sizeof x->auth + 32], rank[64];
    const char *headers[5] = {NULL};
    uint32_t n = 0;

    snprintf(url, sizeof url, "%s%s", base, path);
    snprintf(id, sizeof id, "X-Request-Id: %s", x->id);
    snprintf(auth, sizeof auth, "Authorization: %s", x->auth);
    snprintf(rank, sizeof rank, "X-data-parallel-rank: %lld", (long long)x->rank);
    headers[n++] = id;
    if (x->auth[0] != '\0') headers[n++] = auth;
    if (x->rank >= 0) headers[n++] = rank;
    if (!is_get) headers[n++] = "Content-Type: application/json";
    x->call = kvp_upstream_start(x->p->up,
                                 &(kvp_call_conf_t){.url = url,
                                                    .is_get = is_get,
                                                    .body = (const char *)x->sent.data,
                                                    .body_len = is_get ? 0 : x->sent.len,
                                                    .headers = headers,
                                                    .connect_ms = x->p->conf.connect_ms,
                                                    .first_ms = first_ms,
                                                    .idle_ms = x->p->conf.idle_ms},
                                 ops, x);
    if (x->call != NULL) return;
    end_server(x, KVP_SERVER_LEFT);
    answer_error(x, 503, "out of memory");
}

/* ---- prefill */
static const char *const prefill_without[] = {"max_tokens",     "max_completion_tokens", "min_tokens", "stream",
                                              "stream_options", "kv_transfer_params",    NULL};
static const char *const decode_without[] = {"kv_transfer_params", NULL};

static void
go_to_answer(exchange_t *x)
{
    x->tried_n = 0;
    x->state = X_ANSWER;
    send_next(x);
}

static void
on_prefill_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    exchange_t *x = arg;

    x->status = status;
    (void)length;
    snprintf(x->type, sizeof x->type, "%s", type == NULL ? "application/json" : type);
    kvp_buf_reset(&x->prefill);
}

static bool
on_prefill_bytes(void *arg, const void *bytes, size_t len)
{
    exchange_t *x = arg;

    kvp_buf_append(&x->prefill, bytes, len);
    return true;
}

static bool
take_params(exchange_t *x)
{
    const kvp_server_t *s = &x->p->fleet.servers[x->server];
    kvp_body_t told;
    const char *why, *params;
    size_t len;

    x->has_params = true;
    if (s->bootstrap[0] != '\0') {
        snprintf(x->params, sizeof x->params,
                 "\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_bootstrap_"
                 "addr\":\"%s\",\"remote_engine_id\":\"%s\",\"transfer_id\":\"%s\"}",
                 s->bootstrap, s->engine, x->transfer);
        return true;
    }
    if (x->prefill.err != KVP_OK || !kvp_body_read((const char *)x->prefill.data, x->prefill.len, &told, &why))
        return false;
    params = kvp_body_find(&told, "kv_transfer_params", &len);
    x->has_params = params != NULL && params[0] == '{';
    if (!x->has_params) return true; /* the decode server computes */
    memmove(x->prefill.data, params, len);
    x->prefill.len = len;
    x->params[0] = '\0';
    return true;
}

static void
on_prefill_end(void *arg, const char *why)
{
    exchange_t *x = arg;
    const uint32_t status = x->status;

    x->call = NULL;
    x->status = 0;
    if (why == NULL && status >= 400 && status < 500) { /* the engine's own word */
        end_server(x, KVP_SERVER_DID);
        kvp_buf_append(&x->prefill, "", 1);
        x->p->stats.refused++;
        answer_text(x, status, x->type, x->prefill.err == KVP_OK ? (const char *)x->prefill.data : "");
        return;
    }
    if (why == NULL && status >= 200 && status < 300 && take_params(x)) {
        end_server(x, KVP_SERVER_DID);
        go_to_answer(x);
        return;
    }
    if (why == NULL)
        snprintf(x->why, sizeof x->why, "a prefill server answered %u", status);
    else
        snprintf(x->why, sizeof x->why, "a prefill server failed: %.200s", why);
    end_server(x, KVP_SERVER_FAILED);
    send_next(x);
}

static const kvp_call_ops_t prefill_ops = {on_prefill_head, on_prefill_bytes, on_prefill_end};

static void
send_prefill(exchange_t *x)
{
    const kvp_server_t *s = &x->p->fleet.servers[x->server];
    char more[320];

    if (s->bootstrap[0] != '\0') {
        make_id(x->p, x->transfer, sizeof x->transfer);
        snprintf(more, sizeof more,
                 "\"max_tokens\":1,\"max_completion_tokens\":1,\"min_tokens\":1,\"stream\":false,\"kv_transfer_"
                 "params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"transfer_id\":\"%s\"}",
                 x->transfer);
    } else {
        snprintf(more, sizeof more,
                 "\"max_tokens\":1,\"max_completion_tokens\":1,\"min_tokens\":1,\"stream\":false,\"kv_transfer_"
                 "params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                 "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}");
    }
    kvp_buf_reset(&x->sent);
    kvp_body_copy(&x->fields, prefill_without, more, &x->sent);
    x->state = X_PREFILL;
    start_call(x, s->url, x->path, false, &prefill_ops, x->p->conf.prefill_ms);
}

/* ---- the engine's id, where a bootstrap server tells it */
static void
on_bootstrap_end(void *arg, const char *why)
{
    exchange_t *x = arg;
    kvp_server_t *s = &x->p->fleet.servers[x->server];
    kvp_body_t told, first;
    const char *bad, *value, *engine;
    size_t len;

    x->call = NULL;
    x->status = 0;
    /* {"0": {"engine_id": "..."}}, by rank */
    if (why == NULL && kvp_body_read((const char *)x->prefill.data, x->prefill.len, &told, &bad) &&
        (value = kvp_body_find(&told, "0", &len)) != NULL && kvp_body_read(value, len, &first, &bad) &&
        (engine = kvp_body_find(&first, "engine_id", &len)) != NULL && len > 2 && engine[0] == '"' &&
        len - 2 <= KVP_FLEET_ENGINE_MAX && memchr(engine, '\\', len) == NULL) {
        memcpy(s->engine, engine + 1, len - 2);
        s->engine[len - 2] = '\0';
        send_prefill(x);
        return;
    }
    snprintf(x->why, sizeof x->why, "a bootstrap server tells no engine: %.200s",
             why == NULL ? "its answer is another one" : why);
    end_server(x, KVP_SERVER_FAILED);
    send_next(x);
}

static const kvp_call_ops_t bootstrap_ops = {on_prefill_head, on_prefill_bytes, on_bootstrap_end};

/* ---- the answer */
static void
on_answer_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    exchange_t *x = arg;

    x->status = status;
    x->length = length;
    snprintf(x->type, sizeof x->type, "%s", type == NULL ? "application/json" : type);
}

static bool
on_answer_bytes(void *arg, const void *bytes, size_t len)
{
    exchange_t *x = arg;

    if (x->status >= 500) return true;
    if (x->out.len - x->out_at > OUT_MAX) return false;
    kvp_buf_append(&x->out, bytes, len);
    resume(x);
    return true;
}

static void
end_broken(exchange_t *x, const char *why)
{
    static const char event[] =
        "data: {\"error\": {\"message\": \"the server failed\", \"type\": \"upstream_error\", \"code\": 502}}\n\n";

    x->p->stats.broken++;
    kvp_log_warn("proxy", "an answer broke off: %s", why);
    if (strncmp(x->type, "text/event-stream", 17) == 0 && x->length < 0)
        kvp_buf_append(&x->out, event, sizeof event - 1);
    x->has_ended = true;
    x->is_whole = false;
    resume(x);
}

static void
on_answer_end(void *arg, const char *why)
{
    exchange_t *x = arg;

    x->call = NULL;
    if (why == NULL && x->out.err != KVP_OK) why = "out of memory";
    if (why == NULL && x->status < 500) {
        end_server(x, KVP_SERVER_DID);
        x->has_ended = x->is_whole = true;
        resume(x);
        return;
    }
    if (why == NULL)
        snprintf(x->why, sizeof x->why, "a server answered %u", x->status);
    else
        snprintf(x->why, sizeof x->why, "a server failed: %.200s", why);
    end_server(x, KVP_SERVER_FAILED);
    if (x->is_queued) {
        end_broken(x, x->why);
        return;
    }
    x->status = 0; /* nothing has gone out: another server may do better */
    kvp_buf_reset(&x->out);
    send_next(x);
}

static const kvp_call_ops_t answer_ops = {on_answer_head, on_answer_bytes, on_answer_end};

static void
send_answer(exchange_t *x)
{
    kvp_buf_reset(&x->sent);
    if (!x->has_params) {
        kvp_buf_append(&x->sent, x->body.data, x->body.len);
    } else if (x->params[0] != '\0') {
        kvp_body_copy(&x->fields, decode_without, x->params, &x->sent);
    } else {
        kvp_buf_t more;

        kvp_buf_init(&more, 0);
        kvp_buf_append(&more, "\"kv_transfer_params\":", 21);
        kvp_buf_append(&more, x->prefill.data, x->prefill.len);
        kvp_buf_append(&more, "", 1);
        kvp_body_copy(&x->fields, decode_without, more.err == KVP_OK ? (const char *)more.data : "", &x->sent);
        kvp_buf_fini(&more);
    }
    start_call(x, x->p->fleet.servers[x->server].url, x->path, x->is_get, &answer_ops, x->p->conf.first_ms);
}

/* To x->server, or what is to be done where it is none. */
static void
send_to(exchange_t *x)
{
    const kvp_server_t *s = x->server == KVP_SERVER_NONE ? NULL : &x->p->fleet.servers[x->server];
    char text[400];

    if (x->state == X_ANSWER && s != NULL) {
        send_answer(x);
    } else if (x->state == X_ANSWER) {
        snprintf(text, sizeof text, "%s", x->why[0] == '\0' ? "there is no server" : x->why);
        answer_error(x, x->why[0] == '\0' ? 503 : 502, text);
    } else if (s == NULL) {
        x->p->stats.plain++; /* the decode server computes all by itself */
        x->has_params = false;
        go_to_answer(x);
    } else {
        kvp_buf_reset(&x->prefill);
        if (s->bootstrap[0] == '\0' || s->engine[0] != '\0') {
            send_prefill(x);
        } else {
            x->state = X_BOOTSTRAP;
            start_call(x, s->bootstrap, "/query", true, &bootstrap_ops, x->p->conf.connect_ms * 2);
        }
    }
}

static kvp_server_role_t
role_of(exchange_t *x)
{
    if (x->state != X_ANSWER) return KVP_SERVER_PREFILL;
    return is_disaggregated(x->p) ? KVP_SERVER_DECODE : KVP_SERVER_REPLICA;
}

static void
on_told(void *arg, const char *why)
{
    exchange_t *x = arg;
    kvp_proxy_t *p = x->p;
    const char *text = (const char *)x->prefill.data;
    kvp_told_t told = {.route = 0};
    bool is_told = why == NULL && x->status == 200 && kvp_told_read(text, x->prefill.len, &told);

    x->call = NULL;
    x->status = 0;
    if (is_told && take(x, role_of(x), &told)) {
        p->stats.routed++;
        p->is_lost = false;
        send_to(x);
        return;
    }
    p->stats.unrouted++;
    end_route(p, told.route);
    if (!p->is_lost)
        kvp_log_warn("proxy", "the router could not choose, so the load does: %.*s",
                     why != NULL ? 200 : (int)kvp_min_u64(x->prefill.len, 200), why != NULL ? why : text);
    p->is_lost = true;
    (void)pick(x, role_of(x));
    send_to(x);
}

/* The prompt decides where it is computed; whoever decodes it needs no more than room. */
static void
ask_router(exchange_t *x)
{
    static const kvp_call_ops_t ops = {on_prefill_head, on_prefill_bytes, on_told};
    const kvp_server_role_t role = role_of(x);
    const char *unfit[KVP_QUESTION_EXCLUDE_MAX];
    kvp_proxy_t *p = x->p;

    kvp_buf_reset(&x->sent);
    pthread_mutex_lock(&p->lock);
    const uint32_t n = kvp_fleet_unfit(&p->fleet, role, x->tried, x->tried_n, unfit, KVP_QUESTION_EXCLUDE_MAX);
    kvp_question_write(&x->fields, x->session, unfit, n, &x->sent);
    pthread_mutex_unlock(&p->lock);
    start_call(x, p->router, "/route", false, &ops, ROUTE_MS);
}

/* The next server that may have it. */
static void
send_next(exchange_t *x)
{
    const kvp_server_role_t role = role_of(x);

    if (x->p->is_routing && !x->is_get && role != KVP_SERVER_DECODE && x->tried_n < TRIES_MAX) {
        ask_router(x);
        return;
    }
    if (!pick(x, role) && x->is_get) (void)pick(x, KVP_SERVER_PREFILL);
    send_to(x);
}

/* ---- a request */
static void
copy_header(exchange_t *x, const char *name, char *out, size_t cap)
{
    const char *value = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, name);

    if (value == NULL || strlen(value) >= cap) return;
    for (const char *c = value; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return;
    strcpy(out, value);
}

static void
begin(exchange_t *x)
{
    const char *why;

    x->p->stats.requests++;
    copy_header(x, "X-Request-Id", x->id, sizeof x->id);
    copy_header(x, "Authorization", x->auth, sizeof x->auth);
    copy_header(x, "X-Session-Id", x->session, sizeof x->session);
    if (x->id[0] == '\0') make_id(x->p, x->id, sizeof x->id);
    x->state = X_ANSWER;
    if (!x->is_get) {
        if (x->body.err != KVP_OK || !kvp_body_read((const char *)x->body.data, x->body.len, &x->fields, &why)) {
            char text[128];

            snprintf(text, sizeof text, "the body: %s", x->body.err != KVP_OK ? "out of memory" : why);
            answer_error(x, 400, text);
            return;
        }
        if (is_disaggregated(x->p)) x->state = X_PREFILL;
    }
    send_next(x);
}

/* ---- libmicrohttpd */
static ssize_t
read_out(void *arg, uint64_t pos, char *bytes, size_t max)
{
    exchange_t *x = arg;
    const size_t n = kvp_min_u64(max, x->out.len - x->out_at);

    (void)pos;
    if (n > 0) {
        memcpy(bytes, x->out.data + x->out_at, n);
        x->out_at += n;
        if (x->out_at == x->out.len) {
            kvp_buf_reset(&x->out);
            x->out_at = 0;
        }
        if (x->call != NULL && x->out.len - x->out_at < OUT_MAX / 2) kvp_call_resume(x->call);
        return (ssize_t)n;
    }
    if (x->is_gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (x->has_ended) return x->is_whole ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
    x->is_suspended = true;
    MHD_suspend_connection(x->conn);
    return 0;
}

static enum MHD_Result
queue_answer(exchange_t *x)
{
    /* One that is whole by now leaves with its head, in one packet. */
    struct MHD_Response *r =
        x->has_ended && x->is_whole
            ? MHD_create_response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_MUST_COPY)
            : MHD_create_response_from_callback(x->length >= 0 ? (uint64_t)x->length : MHD_SIZE_UNKNOWN, PIECE_BYTES,
                                                read_out, x, NULL);
    enum MHD_Result ok = r == NULL ? MHD_NO : MHD_YES;

    if (ok == MHD_YES) ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, x->type);
    if (ok == MHD_YES) ok = MHD_add_response_header(r, "X-Request-Id", x->id);
    if (ok == MHD_YES) ok = MHD_queue_response(x->conn, x->status, r);
    if (r != NULL) MHD_destroy_response(r);
    x->is_queued = ok == MHD_YES;
    return ok;
}

static enum MHD_Result
answer_now(struct MHD_Connection *conn, uint32_t status, const char *type, const char *text, size_t len)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result ok = r == NULL ? MHD_NO : MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);

    if (ok == MHD_YES) ok = MHD_queue_response(conn, status, r);
    if (r != NULL) MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result
refuse(struct MHD_Connection *conn, uint32_t status, const char *why)
{
    char text[256];
    const int n = snprintf(text, sizeof text, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"code\":%u}}", why,
                           status < 500 ? "invalid_request_error" : "upstream_error", status);

    return answer_now(conn, status, "application/json", text, (size_t)n);
}

static enum MHD_Result
on_healthcheck(kvp_proxy_t *p, struct MHD_Connection *conn)
{
    char text[256];
    const int n =
        snprintf(text, sizeof text,
                 "{\"status\":\"ok\",\"prefill_instances\":%u,\"decode_instances\":%u,\"replica_instances\":%u}",
                 count(p, KVP_SERVER_PREFILL), count(p, KVP_SERVER_DECODE), count(p, KVP_SERVER_REPLICA));

    return answer_now(conn, 200, "application/json", text, (size_t)n);
}

static enum MHD_Result
on_metrics(kvp_proxy_t *p, struct MHD_Connection *conn)
{
    char text[2048];
    int n = 0;

#define COUNTER(name, help, value)                                                                                     \
    n += snprintf(text + n, sizeof text - (size_t)n,                                                                   \
                  "# HELP kvpool_proxy_%s %s\n# TYPE kvpool_proxy_%s counter\nkvpool_proxy_%s %llu\n", name, help,     \
                  name, name, (unsigned long long)(value))
    COUNTER("requests_total", "requests", p->stats.requests);
    COUNTER("refused_total", "requests that were answered 4xx, by a server's word or ours", p->stats.refused);
    COUNTER("failed_total", "requests that no server could answer", p->stats.failed);
    COUNTER("broken_total", "answers that broke off after their first byte", p->stats.broken);
    COUNTER("plain_total", "requests that were decoded without their prefill", p->stats.plain);
    COUNTER("gone_total", "clients that went before their answer was whole", p->stats.gone);
    COUNTER("routed_total", "servers that the router chose", p->stats.routed);
    COUNTER("unrouted_total", "times that it could not, so that the load did", p->stats.unrouted);
#undef COUNTER
    n += snprintf(text + n, sizeof text - (size_t)n,
                  "# HELP kvpool_proxy_open requests under way\n# TYPE kvpool_proxy_open gauge\nkvpool_proxy_open %u\n",
                  p->exchanges_n);
    return answer_now(conn, 200, "text/plain; version=0.0.4; charset=utf-8", text, (size_t)n);
}

static exchange_t *
make_exchange(kvp_proxy_t *p, struct MHD_Connection *conn, const char *path, bool is_get)
{
    exchange_t *x = calloc(1, sizeof *x);

    if (x == NULL) return NULL;
    kvp_list_init(&x->link);
    kvp_list_add_tail(&p->exchanges, &x->link);
    p->exchanges_n++;
    x->p = p;
    x->conn = conn;
    x->path = path;
    x->is_get = is_get;
    x->length = -1;
    x->server = KVP_SERVER_NONE;
    x->rank = -1;
    x->begun_ns = kvp_now_ns();
    kvp_buf_init(&x->body, BODY_MAX);
    kvp_buf_init(&x->prefill, PREFILL_ANSWER_MAX);
    return x;
}

/* A request's first call: what it is. */
static enum MHD_Result
on_first(kvp_proxy_t *p, struct MHD_Connection *conn, const char *url, const char *method, void **ctx)
{
    static const struct {
        const char *method, *path;
        bool is_passed;
    } paths[] = {{"POST", "/v1/completions", true},
                 {"POST", "/v1/chat/completions", true},
                 {"GET", "/v1/models", true},
                 {"GET", "/healthcheck", false},
                 {"GET", "/metrics", false}};
    bool is_known = false;

    for (size_t i = 0; i < KVP_ARRAY_LEN(paths); i++) {
        if (strcmp(url, paths[i].path) != 0) continue;
        is_known = true;
        if (strcmp(method, paths[i].method) != 0) continue;
        if (!paths[i].is_passed) return strcmp(url, "/metrics") == 0 ? on_metrics(p, conn) : on_healthcheck(p, conn);
        if (p->exchanges_n >= REQUESTS_MAX) return refuse(conn, 503, "too many requests are under way");
        *ctx = make_exchange(p, conn, paths[i].path, strcmp(method, "GET") == 0);
        return *ctx == NULL ? MHD_NO : MHD_YES;
    }
    return refuse(conn, is_known ? 405 : 404, is_known ? "method not allowed here" : "no such path");
}

static enum MHD_Result
on_request(void *arg, struct MHD_Connection *conn, const char *url, const char *method, const char *version,
           const char *upload, size_t *upload_len, void **ctx)
{
    kvp_proxy_t *p = arg;
    exchange_t *x = *ctx;

    (void)version;
    if (x == NULL) return on_first(p, conn, url, method, ctx);
    if (*upload_len > 0) {
        if (kvp_now_ns() - x->begun_ns > UPLOAD_NS) return MHD_NO;
        if (!x->is_too_large && (x->body.len + *upload_len > BODY_MAX || p->held + *upload_len > HELD_MAX))
            x->is_too_large = true;
        if (!x->is_too_large) {
            kvp_buf_append(&x->body, upload, *upload_len);
            p->held += *upload_len;
        }
        *upload_len = 0;
        return MHD_YES;
    }
    if (x->is_gone) return MHD_NO;
    if (x->is_too_large) return refuse(conn, 413, "the body is longer than 32 MiB, or too much is under way");
    if (x->state == X_BODY) begin(x);
    if (x->out.len > 0 || x->has_ended) return queue_answer(x);
    x->is_suspended = true;
    MHD_suspend_connection(conn);
    return MHD_YES;
}

static void
on_completed(void *arg, struct MHD_Connection *conn, void **ctx, enum MHD_RequestTerminationCode code)
{
    kvp_proxy_t *p = arg;
    exchange_t *x = *ctx;

    (void)conn;
    if (x == NULL) return;
    *ctx = NULL;
    if (x->call != NULL) {
        kvp_call_cancel(x->call);
        p->stats.gone += code != MHD_REQUEST_TERMINATED_COMPLETED_OK;
    }
    end_server(x, KVP_SERVER_LEFT);
    p->held -= x->body.len;
    p->exchanges_n--;
    kvp_list_del(&x->link);
    kvp_buf_fini(&x->body);
    kvp_buf_fini(&x->sent);
    kvp_buf_fini(&x->prefill);
    kvp_buf_fini(&x->out);
    free(x);
}

/* ---- the loop */
/* libmicrohttpd says by a timeout of 0 that some connection has more to do, which its descriptor does not tell. The loop does not wait while p->more is active. */
static void
run_front(kvp_proxy_t *p)
{
    MHD_UNSIGNED_LONG_LONG ms;

    if (p->mhd == NULL) return;
    uv_idle_stop(&p->more);
    MHD_run(p->mhd); /* may resume connections */
    if (MHD_get_timeout(p->mhd, &ms) == MHD_YES && ms == 0) uv_idle_start(&p->more, on_more);
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

/* ---- checks of servers that are left out: whatever is not an error of the server's says that it is there */
static void
on_check_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    check_t *check = arg;

    (void)type;
    (void)length;
    check->status = status;
}

static void
end_check(const check_t *check, bool is_up)
{
    kvp_proxy_t *p = check->p;

    pthread_mutex_lock(&p->lock);
    kvp_fleet_checked(&p->fleet, (uint32_t)(check - p->checks), is_up, kvp_now_ns());
    pthread_mutex_unlock(&p->lock);
}

static void
on_check_end(void *arg, const char *why)
{
    const check_t *check = arg;

    end_check(check, why == NULL && check->status < 500);
}

static void
start_checks(kvp_proxy_t *p)
{
    static const kvp_call_ops_t ops = {on_check_head, skip_bytes, on_check_end};

    for (;;) {
        char url[KVP_FLEET_URL_MAX + 16];

        pthread_mutex_lock(&p->lock);
        const uint32_t server = kvp_fleet_check(&p->fleet, kvp_now_ns());
        pthread_mutex_unlock(&p->lock);
        if (server == KVP_SERVER_NONE) return;
        p->checks[server] = (check_t){.p = p};
        snprintf(url, sizeof url, "%s/health", p->fleet.servers[server].url);
        if (kvp_upstream_start(p->up,
                               &(kvp_call_conf_t){.url = url,
                                                  .is_get = true,
                                                  .connect_ms = p->conf.connect_ms,
                                                  .first_ms = p->conf.connect_ms,
                                                  .idle_ms = p->conf.connect_ms},
                               &ops, &p->checks[server]) == NULL)
            end_check(&p->checks[server], false);
    }
}

/* Clients that have gone while their connections are suspended. */
static void
on_look(uv_timer_t *timer)
{
    kvp_proxy_t *p = timer->data;

    kvp_list_foreach_safe (pos, tmp, &p->exchanges) {
        exchange_t *x = kvp_list_entry(pos, exchange_t, link);
        const union MHD_ConnectionInfo *info =
            x->is_suspended ? MHD_get_connection_info(x->conn, MHD_CONNECTION_INFO_CONNECTION_FD) : NULL;
        struct pollfd fd = {.events = POLLRDHUP};

        if (info == NULL) continue;
        fd.fd = info->connect_fd;
        if (poll(&fd, 1, 0) <= 0) continue;
        x->is_gone = true;
        if (x->call != NULL) kvp_call_cancel(x->call);
        p->stats.gone += x->call != NULL;
        x->call = NULL;
        end_server(x, KVP_SERVER_LEFT);
        resume(x);
    }
    p->is_routing = p->router[0] != '\0' && p->has_instances(p->has_instances_arg);
    start_checks(p);
    run_front(p);
}

static void
on_stop(uv_async_t *async)
{
    kvp_proxy_t *p = async->data;

    kvp_list_foreach (pos, &p->exchanges) {
        exchange_t *x = kvp_list_entry(pos, exchange_t, link);

        x->is_gone = true;
        resume(x); /* libmicrohttpd ends no suspended connection */
    }
    uv_poll_stop(&p->front);
    MHD_stop_daemon(p->mhd);
    p->mhd = NULL;
    kvp_upstream_close(p->up);
    uv_close((uv_handle_t *)&p->front, NULL);
    uv_close((uv_handle_t *)&p->more, NULL);
    uv_close((uv_handle_t *)&p->look, NULL);
    uv_close((uv_handle_t *)&p->stop, NULL);
}

static void *
run(void *arg)
{
    kvp_proxy_t *p = arg;

    uv_run(&p->uv, UV_RUN_DEFAULT);
    return NULL;
}

/* ---- life */
kvp_err_t
kvp_proxy_create(const kvp_proxy_conf_t *conf, kvp_proxy_t **out)
{
    kvp_proxy_t *p = calloc(1, sizeof *p);

    if (p == NULL) return KVP_NOMEM;
    p->conf = *conf;
    p->id = kvp_random_u64();
    (void)pthread_mutex_init(&p->lock, NULL);
    kvp_list_init(&p->exchanges);
    *out = p;
    return KVP_OK;
}

void
kvp_proxy_route_by(kvp_proxy_t *p, const kvp_hostport_t *router, bool (*has_instances)(void *arg), void *arg)
{
    char at[KVP_HOSTPORT_TEXT_MAX];

    snprintf(p->router, sizeof p->router, "http://%s", kvp_format_hostport(router, at));
    p->has_instances = has_instances;
    p->has_instances_arg = arg;
}

kvp_err_t
kvp_proxy_add(kvp_proxy_t *p, kvp_server_role_t role, const char *url, const char *bootstrap)
{
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) return KVP_INVALID;
    pthread_mutex_lock(&p->lock);
    const uint32_t at = kvp_fleet_add(&p->fleet, role, url, bootstrap);
    pthread_mutex_unlock(&p->lock);

    return at == KVP_SERVER_NONE ? KVP_LIMIT : KVP_OK;
}

kvp_err_t
kvp_proxy_remove(kvp_proxy_t *p, kvp_server_role_t role, const char *url)
{
    pthread_mutex_lock(&p->lock);
    const bool was_there = kvp_fleet_remove(&p->fleet, role, url);
    pthread_mutex_unlock(&p->lock);

    return was_there ? KVP_OK : KVP_NOT_FOUND;
}

void
kvp_proxy_each(kvp_proxy_t *p, void (*fn)(void *arg, const kvp_server_t *server), void *arg)
{
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->fleet.n; i++)
        if (!p->fleet.servers[i].is_gone) fn(arg, &p->fleet.servers[i]);
    pthread_mutex_unlock(&p->lock);
}

static void
on_mhd_log(void *arg, const char *fmt, va_list args)
{
    char text[256];

    (void)arg;
    vsnprintf(text, sizeof text, fmt, args);
    kvp_log_debug("proxy", "%s", text);
}

static struct MHD_Daemon *
listen_at(kvp_proxy_t *p)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    unsigned flags = MHD_USE_EPOLL | MHD_USE_ERROR_LOG | MHD_ALLOW_SUSPEND_RESUME;
    struct MHD_Daemon *mhd;
    struct addrinfo *found;
    char port[16];

    snprintf(port, sizeof port, "%u", p->conf.listen.port);
    if (getaddrinfo(p->conf.listen.host, port, &hints, &found) != 0) return NULL;
    if (found->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
    mhd = MHD_start_daemon(flags, 0, NULL, NULL, on_request, p, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, p,
                           MHD_OPTION_SOCK_ADDR, found->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, on_completed, p,
                           MHD_OPTION_CONNECTION_LIMIT, CONNECTION_LIMIT, MHD_OPTION_CONNECTION_TIMEOUT,
                           CONNECTION_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(64u << 10),
                           MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    freeaddrinfo(found);
    return mhd;
}

kvp_err_t
kvp_proxy_start(kvp_proxy_t *p, kvp_hostport_t *bound_out)
{
    kvp_err_t err = KVP_SYS;

    if (uv_loop_init(&p->uv) != 0) return KVP_SYS;
    p->has_uv = true;
    p->mhd = listen_at(p);
    if (p->mhd == NULL) {
        kvp_log_error("proxy", "cannot listen: %m host=%s port=%u", p->conf.listen.host, p->conf.listen.port);
        return KVP_SYS;
    }
    *bound_out = p->conf.listen;
    bound_out->port = MHD_get_daemon_info(p->mhd, MHD_DAEMON_INFO_BIND_PORT)->port;
    err = kvp_upstream_create(&p->uv, &p->up);
    if (err != KVP_OK) return err;
    p->more.data = p->front.data = p->look.data = p->stop.data = p;
    (void)uv_async_init(&p->uv, &p->stop, on_stop);
    (void)uv_idle_init(&p->uv, &p->more);
    (void)uv_timer_init(&p->uv, &p->look);
    (void)uv_timer_start(&p->look, on_look, LOOK_MS, LOOK_MS);
    (void)uv_poll_init(&p->uv, &p->front, MHD_get_daemon_info(p->mhd, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd);
    (void)uv_poll_start(&p->front, UV_READABLE, on_front);
    err = kvp_thread_start(&p->thread, "kvp-proxy", run, p);
    p->has_thread = err == KVP_OK;
    return err;
}

void
kvp_proxy_stop(kvp_proxy_t *p)
{
    if (p == NULL) return;
    if (p->has_thread) {
        uv_async_send(&p->stop);
        pthread_join(p->thread, NULL);
    } else if (p->mhd != NULL) {
        MHD_stop_daemon(p->mhd);
    }
    kvp_upstream_destroy(p->up);
    if (p->has_uv) (void)uv_loop_close(&p->uv);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
