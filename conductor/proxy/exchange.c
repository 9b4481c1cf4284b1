/* SPDX-License-Identifier: Apache-2.0
 * See exchange.h. */
#include "conductor/proxy/exchange.h"

#include "common/clock.h"
#include "common/jsonw.h"
#include "common/log.h"
#include "conductor/proxy/copies.h"
#include "conductor/proxy/giveup.h"
#include "conductor/proxy/headers.h"
#include "conductor/proxy/question.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define TOLD_MAX (16u << 20)
#define BUSY 429u /* status 429: the server has no room and has not begun to work on the request */
#define DELIVERIES_MAX 2u /* most deliveries of a POST to servers of one role */

/* ---- answers that the proxy itself writes */
static void
answer_text(kvp_exchange_t *x, uint32_t status, const char *type, const char *text)
{
    x->status = status;
    if (type != x->type) snprintf(x->type, sizeof x->type, "%s", type);
    x->length = (int64_t)strlen(text);
    kvp_buf_reset(&x->out);
    x->out_at = 0;
    kvp_buf_append(&x->out, text, strlen(text));
    x->state = KVP_X_WHOLE;
    x->on_news(x);
}

static void
answer_error(kvp_exchange_t *x, uint32_t status, const char *why)
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
        kvp_count(&x->shared->stats.refused);
    else
        kvp_count(&x->shared->stats.failed);
    kvp_buf_reset(&x->headers);
    answer_text(x, status, "application/json", text.err == KVP_OK ? (const char *)text.data : "{}");
    kvp_buf_fini(&text);
}

/* Makes a request id that is unique over all requests of all proxies. */
static void
make_id(kvp_proxy_shared_t *p, char *out, size_t cap)
{
    snprintf(out, cap, "%016llx%016llx", (unsigned long long)p->id, (unsigned long long)++p->ids);
}

/* ---- choosing and releasing servers */
static void send_next(kvp_exchange_t *x);
static void send_again(kvp_exchange_t *x);

static void
end_server(kvp_exchange_t *x, kvp_server_end_t end)
{
    const int64_t rank = x->is_rank_taken ? x->rank : -1;

    kvp_route_done(x->shared, x->up, x->route);
    x->route = 0;
    x->rank = -1;
    x->is_rank_taken = false;
    if (x->server == KVP_SERVER_NONE) return;
    pthread_mutex_lock(&x->shared->lock);
    if (rank >= 0) kvp_fleet_end_rank(&x->shared->fleet, x->server, (uint32_t)rank);
    if (kvp_fleet_end(&x->shared->fleet, x->server, end, kvp_now_ns()))
        kvp_log_warn("proxy", "left out for a while: %s server=%s", x->why, x->shared->fleet.servers[x->server].url);
    pthread_mutex_unlock(&x->shared->lock);
    x->server = KVP_SERVER_NONE;
}

uint32_t
kvp_servers_count(kvp_proxy_shared_t *p, kvp_server_role_t role)
{
    pthread_mutex_lock(&p->lock);
    const uint32_t n = kvp_fleet_count(&p->fleet, role);
    pthread_mutex_unlock(&p->lock);

    return n;
}

/* Returns how a call without a usable answer counts for its server. */
static kvp_server_end_t
end_of(const char *why, uint32_t status, kvp_call_fate_t fate)
{
    if (why != NULL) return fate == KVP_CALL_STALE ? KVP_SERVER_CLOSED : KVP_SERVER_FAILED;
    if (status == BUSY) return KVP_SERVER_DID;
    return status == 500 ? KVP_SERVER_ERRED : KVP_SERVER_FAILED;
}

/* Counts the delivery. Returns whether the server may have seen the request and begun to work on it. */
static bool
note_delivery(kvp_exchange_t *x, const char *why, uint32_t status, kvp_call_fate_t fate)
{
    if (fate == KVP_CALL_UNSENT || fate == KVP_CALL_LOCAL || (why == NULL && status == BUSY)) return false;
    x->deliveries++;
    if (fate == KVP_CALL_STALE) x->again = x->server;
    return true;
}

/* Chooses the next server of the role. Returns false if no server is left. */
static bool
pick_server(kvp_exchange_t *x, kvp_server_role_t role)
{
    kvp_fleet_t *f = &x->shared->fleet;

    pthread_mutex_lock(&x->shared->lock);
    if (x->tried_n < KVP_EXCHANGE_TRIES_MAX)
        x->server = kvp_fleet_pick(f, role, x->shared->router[0] != '\0', x->tried, x->tried_n);
    if (x->server != KVP_SERVER_NONE) {
        x->tried[x->tried_n++] = x->server;
    } else if (x->again != KVP_SERVER_NONE && kvp_fleet_take_again(f, x->again)) {
        x->server = x->again;
        x->again = KVP_SERVER_NONE;
    }
    pthread_mutex_unlock(&x->shared->lock);
    return x->server != KVP_SERVER_NONE;
}

/* Takes the server that the router has chosen. Returns false if the server is not available. */
static bool
take_routed(kvp_exchange_t *x, kvp_server_role_t role, const kvp_routed_t *told)
{
    pthread_mutex_lock(&x->shared->lock);
    x->server = kvp_fleet_take(&x->shared->fleet, role, told->url, x->tried, x->tried_n);
    pthread_mutex_unlock(&x->shared->lock);
    if (x->server == KVP_SERVER_NONE) return false;
    x->tried[x->tried_n++] = x->server;
    x->route = told->route;
    x->rank = told->rank;
    return true;
}

static void
start_call(kvp_exchange_t *x, const char *base, const char *path, bool is_get, const kvp_call_ops_t *ops,
           uint64_t first_ms)
{
    char url[KVP_FLEET_URL_MAX + KVP_PATH_MAX + 1], id[KVP_EXCHANGE_ID_MAX + 32], auth[sizeof x->auth + 32], rank[64];
    const bool is_delivery = !is_get && x->server != KVP_SERVER_NONE; /* a POST to a server, not to the router */
    const char *headers[5] = {NULL};
    uint32_t n = 0;

    snprintf(url, sizeof url, "%s%s", base, path);
    snprintf(id, sizeof id, "X-Request-Id: %s", x->id);
    snprintf(auth, sizeof auth, "Authorization: %s", x->auth);
    snprintf(rank, sizeof rank, "X-data-parallel-rank: %lld", (long long)x->rank);
    headers[n++] = id;
    if (base == x->shared->router && x->shared->router_auth[0] != '\0')
        headers[n++] = x->shared->router_auth;
    else if (x->auth[0] != '\0')
        headers[n++] = auth;
    if (x->rank >= 0) headers[n++] = rank;
    if (!is_get) headers[n++] = "Content-Type: application/json";
    x->call = x->sent.err != KVP_OK
                  ? NULL
                  : kvp_upstream_start(x->up,
                                       &(kvp_call_conf_t){.url = url,
                                                          .is_get = is_get,
                                                          .body = (const char *)x->sent.data,
                                                          .body_len = is_get ? 0 : x->sent.len,
                                                          .is_once = is_delivery,
                                                          .wants_new = is_delivery && x->deliveries > 0,
                                                          .headers = headers,
                                                          .connect_ms = x->shared->conf.connect_ms,
                                                          .first_ms = first_ms,
                                                          .idle_ms = x->shared->conf.idle_ms},
                                       ops, x);
    if (x->call != NULL) {
        if (x->server == KVP_SERVER_NONE || x->state == KVP_X_BOOTSTRAP) return;
        pthread_mutex_lock(&x->shared->lock);
        kvp_fleet_sent(&x->shared->fleet, x->server, kvp_now_ns());
        pthread_mutex_unlock(&x->shared->lock);
        return;
    }
    end_server(x, KVP_SERVER_LEFT);
    answer_error(x, 503, "out of memory");
}

/* Ends the exchange with 503 if the call failed for a local reason, such as no free descriptor. No server is
 * marked as failed. Other servers are not tried, because the same reason would affect them. Returns false if the
 * reason is not local. */
static bool
end_locally(kvp_exchange_t *x, const char *why, kvp_call_fate_t fate)
{
    char text[256];

    if (fate != KVP_CALL_LOCAL) return false;
    snprintf(text, sizeof text,
             "the proxy cannot open a connection to a server: %.100s; is its limit of open files too low?", why);
    end_server(x, KVP_SERVER_LEFT);
    answer_error(x, 503, text);
    return true;
}

/* ---- the call to the prefill server */
static void
go_to_answer(kvp_exchange_t *x)
{
    x->tried_n = x->deliveries = 0;
    x->again = KVP_SERVER_NONE;
    x->state = KVP_X_ANSWER;
    send_next(x);
}

/* Records that bytes have arrived from the call's server. */
static void
hear_server(kvp_exchange_t *x)
{
    if (x->server != KVP_SERVER_NONE && x->state != KVP_X_BOOTSTRAP)
        kvp_fleet_hear(&x->shared->fleet, x->server, kvp_now_ns());
}

static void
on_answer_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    kvp_exchange_t *x = arg;
    const kvp_buf_t *headers = kvp_call_headers(x->call);

    hear_server(x);
    x->status = status;
    x->length = length;
    snprintf(x->type, sizeof x->type, "%s", type == NULL ? "application/json" : type);
    kvp_buf_reset(&x->headers);
    kvp_buf_append(&x->headers, headers->data, headers->len);
}

static void
on_told_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    kvp_exchange_t *x = arg;

    on_answer_head(x, status, type, length);
    kvp_buf_reset(&x->told);
}

static bool
on_told_bytes(void *arg, const void *bytes, size_t len)
{
    kvp_exchange_t *x = arg;

    kvp_buf_append(&x->told, bytes, len);
    return true;
}

static bool
take_params(kvp_exchange_t *x)
{
    const kvp_fleet_server_t *s = &x->shared->fleet.servers[x->server];
    kvp_body_t told;
    const char *why, *params;
    size_t len;

    kvp_buf_reset(&x->params);
    if (x->handover == KVP_HANDOVER_NONE) {
        kvp_count(&x->shared->stats.plain);
        return true;
    }
    if (s->bootstrap[0] != '\0') {
        char text[KVP_FLEET_URL_MAX + KVP_FLEET_ENGINE_MAX + 256];
        const int n =
            snprintf(text, sizeof text,
                     "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_bootstrap_addr\":\"%s\","
                     "\"remote_engine_id\":\"%s\",\"transfer_id\":\"%s\"}",
                     s->bootstrap, x->engine, x->transfer);

        kvp_buf_append(&x->params, text, (size_t)n + 1);
        if (x->params.err == KVP_OK) x->handover = KVP_HANDOVER_READY;
        return x->params.err == KVP_OK;
    }
    if (x->told.err != KVP_OK || !kvp_body_read((const char *)x->told.data, x->told.len, &told, &why)) return false;
    params = kvp_body_find(&told, "kv_transfer_params", &len);
    if (params == NULL || params[0] != '{') {
        x->handover = KVP_HANDOVER_NONE;
        kvp_count(&x->shared->stats.plain);
        if (!atomic_exchange(&x->shared->is_without_params, true))
            kvp_log_warn("proxy",
                         "a prefill server answers without kv_transfer_params, so the decode server computes the "
                         "prompt again: check that its connector has a bootstrap port server=%s",
                         s->url);
        return true;
    }
    kvp_buf_append(&x->params, params, len);
    kvp_buf_append(&x->params, "", 1);
    if (x->params.err == KVP_OK) x->handover = KVP_HANDOVER_READY;
    return x->params.err == KVP_OK;
}

static void
on_prefill_end(void *arg, const char *why, kvp_call_fate_t fate)
{
    kvp_exchange_t *x = arg;
    const uint32_t status = x->status;

    x->call = NULL;
    x->status = 0;
    if (end_locally(x, why, fate)) return;
    note_delivery(x, why, status, fate);
    /* a 4xx status is the engine's error for the request itself, so the client gets it */
    if (why == NULL && status >= 400 && status < 500 && status != BUSY) {
        end_server(x, KVP_SERVER_DID);
        kvp_buf_append(&x->told, "", 1);
        kvp_count(&x->shared->stats.refused);
        answer_text(x, status, x->type, x->told.err == KVP_OK ? (const char *)x->told.data : "");
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
    end_server(x, end_of(why, status, fate));
    send_again(x);
}

static const kvp_call_ops_t prefill_ops = {on_told_head, on_told_bytes, on_prefill_end};

static void
send_prefill(kvp_exchange_t *x)
{
    const kvp_fleet_server_t *s = &x->shared->fleet.servers[x->server];
    char params[192] = "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                       "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";

    if (s->bootstrap[0] != '\0') {
        make_id(x->shared, x->transfer, sizeof x->transfer);
        snprintf(params, sizeof params,
                 "{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"transfer_id\":\"%s\"}", x->transfer);
    }
    kvp_buf_reset(&x->sent);
    kvp_copy_for_prefill(&x->fields, x->handover == KVP_HANDOVER_ASKED ? params : NULL, &x->sent);
    x->state = KVP_X_PREFILL;
    start_call(x, s->url, x->path, false, &prefill_ops, x->shared->conf.prefill_ms);
}

/* ---- the ranks of a server and the ids of their engines, from its bootstrap server */
/* Chooses the rank that the router named, or the next rank if the server no longer has this rank. Returns false if
 * the ranks are unknown. */
static bool
take_rank(kvp_exchange_t *x)
{
    kvp_server_rank_t rank;

    pthread_mutex_lock(&x->shared->lock);
    x->is_rank_taken = kvp_fleet_take_rank(&x->shared->fleet, x->server, x->rank, kvp_now_ns(), &rank);
    pthread_mutex_unlock(&x->shared->lock);
    if (!x->is_rank_taken) return false;
    x->rank = rank.rank;
    strcpy(x->engine, rank.engine);
    return true;
}

static bool
note_ranks(kvp_exchange_t *x)
{
    kvp_server_rank_t ranks[KVP_FLEET_RANKS_MAX];
    const uint32_t n = x->told.err != KVP_OK ? 0 : kvp_ranks_read((const char *)x->told.data, x->told.len, ranks);

    if (n == 0) return false;
    pthread_mutex_lock(&x->shared->lock);
    const bool is_set = kvp_fleet_set_ranks(&x->shared->fleet, x->server, ranks, n, kvp_now_ns());
    pthread_mutex_unlock(&x->shared->lock);
    return is_set;
}

static void
on_bootstrap_end(void *arg, const char *why, kvp_call_fate_t fate)
{
    kvp_exchange_t *x = arg;
    const bool is_told = why == NULL && x->status == 200 && note_ranks(x) && take_rank(x);

    x->call = NULL;
    x->status = 0;
    if (end_locally(x, why, fate)) return;
    if (is_told) {
        send_prefill(x);
        return;
    }
    snprintf(x->why, sizeof x->why, "a bootstrap server's answer names no engine: %.200s",
             why == NULL ? "its answer is another one" : why);
    end_server(x, KVP_SERVER_FAILED);
    send_again(x);
}

static const kvp_call_ops_t bootstrap_ops = {on_told_head, on_told_bytes, on_bootstrap_end};

/* ---- the answer for the client */
static bool
is_stream(const kvp_exchange_t *x)
{
    static const char name[] = "text/event-stream";
    const size_t len = sizeof name - 1;

    /* the proxy cannot insert an error event into an answer with a content encoding */
    if (kvp_headers_find(&x->headers, "Content-Encoding") != NULL) return false;
    return strncasecmp(x->type, name, len) == 0 && (x->type[len] == '\0' || strchr("; \t", x->type[len]) != NULL);
}

/* Sets the status to 500 if the first event of a stream is an error with a 5xx code. Some servers send such an event
 * after a status of 200. */
static void
note_error_event(kvp_exchange_t *x, const char *bytes, size_t len)
{
    static const char start[] = "data: {\"error\"";
    const char *end = memchr(bytes, '\n', len), *why, *value;
    kvp_body_t event, error;
    size_t value_len;

    if (len < sizeof start - 1 || memcmp(bytes, start, sizeof start - 1) != 0 || end == NULL) return;
    if (kvp_body_read(bytes + 6, (size_t)(end - bytes) - 6, &event, &why) &&
        (value = kvp_body_find(&event, "error", &value_len)) != NULL && kvp_body_read(value, value_len, &error, &why) &&
        (value = kvp_body_find(&error, "code", &value_len)) != NULL && value_len == 3 && value[0] == '5')
        x->status = 500;
}

static bool
on_answer_bytes(void *arg, const void *bytes, size_t len)
{
    kvp_exchange_t *x = arg;

    hear_server(x);
    if (x->first_ns == 0) x->first_ns = kvp_now_ns();
    if (!x->is_passed && x->out.len == 0 && is_stream(x)) note_error_event(x, bytes, len);
    if (x->status >= 500) return true;
    kvp_buf_append(&x->out, bytes, len);
    if (x->status == BUSY) { /* an answer of 429 is kept until the other servers have been asked */
        /* a body that is too long is dropped, and the answer passes without it */
        if (x->out.len > KVP_EXCHANGE_OUT_MAX) x->out.err = KVP_LIMIT;
        return true;
    }
    x->on_news(x);
    return x->out.len - x->out_at <= KVP_EXCHANGE_OUT_MAX;
}

/* Ends an answer that broke off. An event stream gets an error event. It may have broken off inside an event, so a
 * blank line ends that event first. message: plain text. */
static void
end_broken(kvp_exchange_t *x, const char *message)
{
    char event[256];
    const int n = snprintf(event, sizeof event,
                           "\n\ndata: {\"error\": {\"message\": \"%s\", \"type\": \"upstream_error\", \"code\": "
                           "502}}\n\n",
                           message);

    kvp_count(&x->shared->stats.broken);
    if (is_stream(x) && x->length < 0) kvp_buf_append(&x->out, event, (size_t)n);
    x->state = KVP_X_BROKEN;
    x->on_news(x);
}

static void
keep_busy(kvp_exchange_t *x)
{
    if (x->out.err != KVP_OK) kvp_buf_reset(&x->out);
    x->busy.is_there = true;
    strcpy(x->busy.type, x->type);
    kvp_buf_swap(&x->busy.headers, &x->headers);
    kvp_buf_swap(&x->busy.body, &x->out);
}

static void
answer_busy(kvp_exchange_t *x)
{
    x->status = BUSY;
    strcpy(x->type, x->busy.type);
    kvp_buf_swap(&x->headers, &x->busy.headers);
    kvp_buf_swap(&x->out, &x->busy.body);
    x->length = (int64_t)x->out.len;
    x->state = KVP_X_WHOLE;
    kvp_count(&x->shared->stats.refused);
    x->on_news(x);
}

/* Records the time until the server's whole answer had arrived. */
static void
note_latency(kvp_exchange_t *x)
{
    const uint64_t now_ns = kvp_now_ns();
    kvp_latency_t *latency;

    pthread_mutex_lock(&x->shared->lock);
    latency = x->shared->fleet.servers[x->server].latency;
    kvp_latency_add(latency, (x->first_ns == 0 ? now_ns : x->first_ns) - x->begun_ns, now_ns - x->begun_ns);
    pthread_mutex_unlock(&x->shared->lock);
}

static void
on_answer_end(void *arg, const char *why, kvp_call_fate_t fate)
{
    kvp_exchange_t *x = arg;
    x->call = NULL;
    if (end_locally(x, why, fate)) return;
    const bool was_delivered = note_delivery(x, why, x->status, fate);
    if (why != NULL || x->status >= 500 || x->status == BUSY) x->first_ns = 0; /* another server may answer */
    if (why == NULL && x->status != BUSY && x->out.err != KVP_OK) why = "out of memory";
    if (why == NULL && x->status < 500 && x->status != BUSY) {
        note_latency(x);
        end_server(x, KVP_SERVER_DID);
        x->state = KVP_X_WHOLE;
        x->on_news(x);
        return;
    }
    if (why == NULL)
        snprintf(x->why, sizeof x->why, "a server answered %u", x->status);
    else
        snprintf(x->why, sizeof x->why, "a server failed: %.200s", why);
    if (was_delivered && x->handover == KVP_HANDOVER_READY) x->again = x->server;
    if (why == NULL && x->status == BUSY) keep_busy(x);
    end_server(x, end_of(why, x->status, fate));
    if (x->is_passed) {
        kvp_log_warn("proxy", "an answer broke off: %s", x->why);
        end_broken(x, "the server failed");
        return;
    }
    x->status = 0; /* no byte has been sent to the client, so another server can be tried */
    kvp_buf_reset(&x->out);
    if (was_delivered && x->handover == KVP_HANDOVER_READY) {
        /* The computed cache may be lost with the prefill server, or already fetched by this decode server. So the
         * next delivery computes the whole prompt. */
        kvp_count(&x->shared->stats.plain);
        x->handover = KVP_HANDOVER_NONE;
    }
    send_again(x);
}

static const kvp_call_ops_t answer_ops = {on_answer_head, on_answer_bytes, on_answer_end};

static void
send_answer(kvp_exchange_t *x)
{
    kvp_buf_reset(&x->sent);
    if (!kvp_exchange_is_get(x) && x->shared->fleet.servers[x->server].role == KVP_SERVER_DECODE)
        kvp_copy_for_decode(&x->fields, x->handover == KVP_HANDOVER_READY ? (const char *)x->params.data : NULL,
                            &x->sent);
    else
        kvp_buf_append(&x->sent, x->body.data, x->body.len);
    start_call(x, x->shared->fleet.servers[x->server].url, x->path, kvp_exchange_is_get(x), &answer_ops,
               x->shared->conf.first_ms);
}

/* ---- sending to the next server */
/* Sends the request to x->server, or handles the case that no server is left. */
static void
send_to(kvp_exchange_t *x)
{
    const kvp_fleet_server_t *s = x->server == KVP_SERVER_NONE ? NULL : &x->shared->fleet.servers[x->server];
    char text[400];

    if (x->state == KVP_X_ANSWER && s != NULL) {
        send_answer(x);
    } else if (x->state == KVP_X_ANSWER && x->busy.is_there) {
        answer_busy(x);
    } else if (x->state == KVP_X_ANSWER) {
        snprintf(text, sizeof text, "%s", x->why[0] == '\0' ? "there is no server" : x->why);
        answer_error(x, x->why[0] == '\0' ? 503 : 502, text);
    } else if (s == NULL) {
        kvp_count(&x->shared->stats.plain); /* no prefill server is left: the decode server computes the prompt */
        x->handover = KVP_HANDOVER_NONE;
        go_to_answer(x);
    } else {
        if (s->bootstrap[0] == '\0' || take_rank(x)) {
            send_prefill(x);
        } else {
            x->state = KVP_X_BOOTSTRAP;
            start_call(x, s->bootstrap, "/query", true, &bootstrap_ops, x->shared->conf.connect_ms * 2);
        }
    }
}

static kvp_server_role_t
role_of(kvp_exchange_t *x)
{
    if (x->state != KVP_X_ANSWER) return KVP_SERVER_PREFILL;
    return kvp_servers_count(x->shared, KVP_SERVER_DECODE) > 0 ? KVP_SERVER_DECODE : KVP_SERVER_REPLICA;
}

static void
on_told(void *arg, const char *why, kvp_call_fate_t fate)
{
    kvp_exchange_t *x = arg;
    kvp_proxy_shared_t *p = x->shared;
    const char *text = x->told.len == 0 ? "" : (const char *)x->told.data;
    kvp_routed_t told = {.route = 0};
    bool is_told = why == NULL && x->status == 200 && kvp_told_read(text, x->told.len, &told);

    (void)fate;
    x->call = NULL;
    x->status = 0;
    if (is_told && take_routed(x, role_of(x), &told)) {
        kvp_count(&p->stats.routed);
        p->is_lost = false;
        send_to(x);
        return;
    }
    kvp_count(&p->stats.unrouted);
    kvp_route_done(p, x->up, told.route);
    if (!p->is_lost && is_told)
        kvp_log_warn(
            "proxy",
            "the router chose a server that is not available here, so the server with the least load is used url=%s",
            told.url);
    else if (!p->is_lost)
        kvp_log_warn("proxy", "the router could not choose, so the server with the least load is used: %.*s",
                     why != NULL ? 200 : (int)kvp_min_u64(x->told.len, 200), why != NULL ? why : text);
    p->is_lost = true;
    (void)pick_server(x, role_of(x));
    send_to(x);
}

/* Asks the router to choose a prefill server or a replica, because the server that computes the prompt should have
 * its prefix cached. A decode server is chosen by its load alone. */
static void
ask_router(kvp_exchange_t *x)
{
    static const kvp_call_ops_t ops = {on_told_head, on_told_bytes, on_told};
    const kvp_server_role_t role = role_of(x);
    const char *unfit[KVP_QUESTION_EXCLUDE_MAX];
    kvp_proxy_shared_t *p = x->shared;

    kvp_buf_reset(&x->sent);
    pthread_mutex_lock(&p->lock);
    const uint32_t n = kvp_fleet_unfit(&p->fleet, role, x->tried, x->tried_n, unfit, KVP_QUESTION_EXCLUDE_MAX);
    const bool has_any = n < kvp_fleet_count(&p->fleet, role);
    if (has_any) kvp_question_write(&x->fields, x->session, unfit, n, &x->sent);
    pthread_mutex_unlock(&p->lock);
    if (!has_any) {
        (void)pick_server(x, role);
        send_to(x);
        return;
    }
    start_call(x, p->router, "/route", false, &ops, KVP_ROUTE_MS);
}

/* Sends the request to the next available server, chosen by the router if possible. */
static void
send_next(kvp_exchange_t *x)
{
    const kvp_server_role_t role = role_of(x);

    if (x->shared->is_routing && (x->kind == KVP_PATH_COMPLETION || x->kind == KVP_PATH_RESPONSE) &&
        role != KVP_SERVER_DECODE && x->tried_n < KVP_EXCHANGE_TRIES_MAX && kvp_servers_count(x->shared, role) > 0) {
        ask_router(x);
        return;
    }
    if (!pick_server(x, role) && kvp_exchange_is_get(x)) (void)pick_server(x, KVP_SERVER_PREFILL);
    send_to(x);
}

/* Continues after a server gave no usable answer: sends the request to the next server, or ends the exchange. */
static void
send_again(kvp_exchange_t *x)
{
    if (kvp_exchange_is_get(x) || x->deliveries < DELIVERIES_MAX)
        send_next(x);
    else
        send_to(x);
}

/* ---- the start and end of an exchange */
void
kvp_exchange_init(kvp_exchange_t *x, kvp_proxy_shared_t *shared, kvp_upstream_t *up, const char *path,
                  kvp_path_kind_t kind, void (*on_news)(kvp_exchange_t *x))
{
    x->shared = shared;
    x->up = up;
    x->on_news = on_news;
    snprintf(x->path, sizeof x->path, "%s", path);
    x->kind = kind;
    x->length = -1;
    x->rank = -1;
    x->server = x->again = KVP_SERVER_NONE;
    kvp_buf_init(&x->told, TOLD_MAX);
}

/* Decides whether the request begins at a prefill server. A request with several prompts goes directly to a decode
 * server, which would load the single handed-over cache for all its prompts. */
static void
begin_prefill(kvp_exchange_t *x)
{
    if (kvp_has_several_prompts(&x->fields)) {
        kvp_count(&x->shared->stats.plain);
        return;
    }
    x->state = KVP_X_PREFILL;
    if (!kvp_has_several_choices(&x->fields)) x->handover = KVP_HANDOVER_ASKED;
}

void
kvp_exchange_begin(kvp_exchange_t *x)
{
    const char *why;

    kvp_count(&x->shared->stats.requests);
    x->begun_ns = kvp_now_ns();
    if (x->id[0] == '\0') make_id(x->shared, x->id, sizeof x->id);
    x->state = KVP_X_ANSWER;
    if (!kvp_exchange_is_get(x)) {
        if (x->body.err != KVP_OK || !kvp_body_read((const char *)x->body.data, x->body.len, &x->fields, &why)) {
            char text[128];

            snprintf(text, sizeof text, "the body: %s", x->body.err != KVP_OK ? "out of memory" : why);
            answer_error(x, 400, text);
            return;
        }
        if (x->kind == KVP_PATH_COMPLETION && kvp_servers_count(x->shared, KVP_SERVER_DECODE) > 0) begin_prefill(x);
    }
    send_next(x);
}

size_t
kvp_exchange_take(kvp_exchange_t *x, char *bytes, size_t max)
{
    const size_t n = kvp_min_u64(max, x->out.len - x->out_at);

    if (n == 0) return 0;
    memcpy(bytes, x->out.data + x->out_at, n);
    x->out_at += n;
    if (x->out_at == x->out.len) {
        kvp_buf_reset(&x->out);
        x->out_at = 0;
    }
    if (x->call != NULL && x->out.len - x->out_at < KVP_EXCHANGE_OUT_MAX / 2) kvp_call_resume(x->call);
    return n;
}

void
kvp_exchange_cancel(kvp_exchange_t *x)
{
    if (kvp_give_up(x)) return;
    if (x->call != NULL) kvp_call_cancel(x->call);
    x->call = NULL;
    end_server(x, KVP_SERVER_LEFT);
}

void
kvp_exchange_break(kvp_exchange_t *x)
{
    if (kvp_exchange_has_ended(x)) return;
    kvp_exchange_cancel(x);
    end_broken(x, "the proxy is being stopped");
}

void
kvp_exchange_fini(kvp_exchange_t *x)
{
    kvp_buf_fini(&x->body);
    kvp_buf_fini(&x->sent);
    kvp_buf_fini(&x->told);
    kvp_buf_fini(&x->params);
    kvp_buf_fini(&x->headers);
    kvp_buf_fini(&x->busy.headers);
    kvp_buf_fini(&x->busy.body);
    kvp_buf_fini(&x->out);
}
