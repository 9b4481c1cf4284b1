/* SPDX-License-Identifier: Apache-2.0
 * See api.h. Shapes of requests and answers are those of the Indexer API. */
#include "conductor/api.h"

#include "common/process.h"
#include "conductor/index/chain.h"
#include "conductor/base/numbers.h"
#include "common/daemon/page.h"
#include "conductor/router/asked.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#define LOOP_MS 5000u /* time limit of a call on the loop's thread: the loop may be busy with events */
#define NOT_KEPT "the data directory does not keep this change yet; GET /health says why"

/* ---- handlers that read or change the registry: their work runs on the loop's thread */
typedef struct {
    kvp_api_t *api;
    kvp_registration_t reg;
    kvp_err_t err;
    kvp_buf_t *out; /* the body of the answer so far */
    char why[160]; /* text of the error, if err is not KVP_OK */
} ask_t;

static bool
ask_loop(kvp_api_t *api, kvp_loop_fn fn, ask_t *ask, kvp_http_response_t *response)
{
    ask->api = api;
    if (kvp_loop_call(api->loop, fn, ask, LOOP_MS) == KVP_OK) return true;
    kvp_http_error(response, 503, "the conductor is busy, or ends");
    return false;
}

static bool
read_registration(const kvp_http_request_t *request, kvp_http_response_t *response, bool key_only,
                  kvp_registration_t *out)
{
    json_object *body = kvp_http_body_json(request, response);
    char why[160];
    bool is_ok;

    if (body == NULL) return false;
    is_ok = kvp_registration_read(body, key_only, out, why);
    if (!is_ok) kvp_http_error(response, 400, "%s", why);
    json_object_put(body);
    return is_ok;
}

static void
loop_register(void *arg)
{
    ask_t *ask = arg;

    ask->err = kvp_registry_add(ask->api->registry, &ask->reg, ask->why);
}

static void
on_register(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_jsonw_t w;
    ask_t ask;

    if (!read_registration(request, response, false, &ask.reg) || !ask_loop(arg, loop_register, &ask, response)) return;
    if (ask.err == KVP_LIMIT || ask.err == KVP_INVALID || ask.err == KVP_HELD) {
        kvp_http_error(response, ask.err == KVP_HELD ? 409 : 400, "%s", ask.why);
        return;
    }
    if (ask.err != KVP_OK) {
        kvp_http_error(response, 500, "%s", kvp_err_text(ask.err));
        return;
    }
    const bool is_kept = kvp_registry_is_kept(((kvp_api_t *)arg)->registry);
    w = kvp_http_json(response, 200);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "status", "registered successfully");
    if (!is_kept) kvp_jsonw_text(&w, "warning", NOT_KEPT);
    kvp_jsonw_text(&w, "instance_id", ask.reg.instance);
    kvp_jsonw_close(&w, '}');
}

static void
loop_unregister(void *arg)
{
    ask_t *ask = arg;

    ask->err = kvp_registry_remove(ask->api->registry, &ask->reg);
}

static void
on_unregister(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    char removed[3 * KVP_NAME_TEXT_MAX];
    kvp_jsonw_t w;
    ask_t ask;

    if (!read_registration(request, response, true, &ask.reg) || !ask_loop(arg, loop_unregister, &ask, response))
        return;
    if (ask.err != KVP_OK) {
        kvp_http_error(response, 404, "the publisher is not registered");
        return;
    }
    const bool is_kept = kvp_registry_is_kept(((kvp_api_t *)arg)->registry);
    snprintf(removed, sizeof removed, "%s|%s|%u", ask.reg.instance, ask.reg.tenant, ask.reg.rank);
    w = kvp_http_json(response, 200);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "status", "unregistered successfully");
    if (!is_kept) kvp_jsonw_text(&w, "warning", NOT_KEPT);
    kvp_jsonw_open(&w, "removed_instances", '[');
    kvp_jsonw_text(&w, NULL, removed);
    kvp_jsonw_close(&w, ']');
    kvp_jsonw_close(&w, '}');
}

static void
loop_services(void *arg)
{
    ask_t *ask = arg;
    kvp_jsonw_t w;

    kvp_jsonw_init(&w, ask->out);
    kvp_registry_write_services(ask->api->registry, &w);
}

static const uint32_t hit_lengths[KVP_HIT_LENGTHS] = {0, 255, 1023, 4095, 16383, UINT32_MAX};

static void
write_hits(const kvp_api_t *api, kvp_jsonw_t *w)
{
    kvp_jsonw_open(w, "questions", '{');
    kvp_jsonw_u64(w, "answered", atomic_load(&api->questions));
    kvp_jsonw_u64(w, "asked_tokens", atomic_load(&api->asked_tokens));
    kvp_jsonw_u64(w, "matched_tokens", atomic_load(&api->matched_tokens));
    kvp_jsonw_open(w, "hit_lengths", '[');
    for (uint32_t i = 0; i < KVP_HIT_LENGTHS; i++) {
        kvp_jsonw_open(w, NULL, '{');
        if (hit_lengths[i] < UINT32_MAX) kvp_jsonw_u64(w, "up_to_tokens", hit_lengths[i]);
        kvp_jsonw_u64(w, "n", atomic_load(&api->hits[i]));
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
    kvp_jsonw_close(w, '}');
}

static void
count_hit(kvp_api_t *api, uint64_t asked_tokens, uint64_t matched_tokens)
{
    uint32_t i = 0;

    while (matched_tokens > hit_lengths[i])
        i++;
    atomic_fetch_add_explicit(&api->hits[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&api->questions, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&api->asked_tokens, asked_tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&api->matched_tokens, matched_tokens, memory_order_relaxed);
}

static void
loop_view(void *arg)
{
    ask_t *ask = arg;
    kvp_jsonw_t w;

    kvp_jsonw_init(&w, ask->out);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_registry_write_view(ask->api->registry, &w);
    write_hits(ask->api, &w);
    kvp_routes_write_view(ask->api->routes, &w);
    kvp_jsonw_bool(&w, "has_proxy", ask->api->has_proxy);
    kvp_jsonw_close(&w, '}');
}

static void
loop_metrics(void *arg)
{
    ask_t *ask = arg;

    kvp_registry_write_metrics(ask->api->registry, ask->out);
}

static void
loop_unreachable(void *arg)
{
    ask_t *ask = arg;
    kvp_jsonw_t w;

    kvp_jsonw_init(&w, ask->out);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "status", "ready");
    kvp_registry_write_unreachable(ask->api->registry, &w);
    kvp_jsonw_close(&w, '}');
}

/* Runs fn in the loop's thread. Returns false, with an error as the answer, if the loop did not respond in time. */
static bool
answer_from_loop(kvp_api_t *api, kvp_loop_fn fn, kvp_http_response_t *response, const char *type)
{
    ask_t ask = {.out = kvp_http_out(response)};

    if (!ask_loop(api, fn, &ask, response)) return false;
    kvp_http_status(response, 200);
    kvp_http_type(response, type);
    return true;
}

static void
on_services(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)request;
    (void)answer_from_loop(arg, loop_services, response, "application/json");
}

static void
on_view(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)request;
    (void)answer_from_loop(arg, loop_view, response, "application/json");
}

static void
on_metrics(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_api_t *api = arg;
    char text[1024];
    int n;

    (void)request;
    if (!answer_from_loop(api, loop_metrics, response, "text/plain; version=0.0.4; charset=utf-8")) return;
    kvp_metrics_render(api->process, kvp_http_out(response));
    n = snprintf(text, sizeof text,
                 "# HELP kvpool_conductor_questions_total questions that were answered\n# TYPE "
                 "kvpool_conductor_questions_total counter\n"
                 "kvpool_conductor_questions_total %llu\n"
                 "# HELP kvpool_conductor_asked_tokens_total tokens of their whole blocks\n# TYPE "
                 "kvpool_conductor_asked_tokens_total counter\n"
                 "kvpool_conductor_asked_tokens_total %llu\n"
                 "# HELP kvpool_conductor_matched_tokens_total of these, such as some instance holds\n# TYPE "
                 "kvpool_conductor_matched_tokens_total counter\n"
                 "kvpool_conductor_matched_tokens_total %llu\n",
                 (unsigned long long)atomic_load(&api->questions), (unsigned long long)atomic_load(&api->asked_tokens),
                 (unsigned long long)atomic_load(&api->matched_tokens));
    kvp_buf_append(kvp_http_out(response), text, (size_t)n);
    kvp_routes_write_metrics(api->routes, kvp_http_out(response));
}

static void
say_status(kvp_http_response_t *response, unsigned status, const char *text)
{
    kvp_jsonw_t w = kvp_http_json(response, status);

    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "status", text);
    kvp_jsonw_close(&w, '}');
}

static void
on_ready(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_api_t *api = arg;
    ask_t ask = {.api = api, .out = kvp_http_out(response)};

    (void)request;
    if (!kvp_registry_is_ready(api->registry)) {
        say_status(response, 503, "what publishers hold is being replayed");
    } else if (kvp_loop_call(api->loop, loop_unreachable, &ask, LOOP_MS) == KVP_OK) {
        kvp_http_status(response, 200);
        kvp_http_type(response, "application/json");
    } else {
        say_status(response, 200, "ready"); /* the answer lacks the unreachable publishers: the loop is too busy */
    }
}

static void
on_health(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    const kvp_api_t *api = arg;
    kvp_jsonw_t w = kvp_http_json(response, 200);
    char text[KVP_TROUBLE_MAX];

    (void)request;
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "status", kvp_registry_trouble(api->registry, text, sizeof text) ? "degraded" : "ok");
    kvp_jsonw_text(&w, "version", KVP_RELEASE);
    kvp_registry_write_why(api->registry, &w);
    kvp_jsonw_close(&w, '}');
}

/* ---- handlers of queries: how much of a prompt each instance holds */
/* Writes the answer for one instance from the answers for its ranks, which are adjacent in `answers`: the longest
 * match of any rank, per medium and over all media. Returns the longest match of the instance in blocks. */
static uint64_t
write_instance(kvp_jsonw_t *w, uint32_t block_size, const kvp_answer_t *answers, uint32_t n)
{
    const char *names[KVP_MEDIA_MAX + 3] = {"GPU", "CPU", "DISK"}; /* names of media that an answer always contains */
    uint64_t best[KVP_ARRAY_LEN(names)] = {0}, longest = 0;
    uint32_t media_n = 3;

    for (uint32_t i = 0; i < n; i++) {
        longest = kvp_max_u64(longest, answers[i].run);
        for (uint32_t k = 0; k < answers[i].media_n; k++) {
            uint32_t at = 0;

            while (at < media_n && strcmp(names[at], answers[i].media[k].name) != 0)
                at++;
            if (at == KVP_ARRAY_LEN(names)) continue;
            names[at] = answers[i].media[k].name;
            media_n = (uint32_t)kvp_max_u64(media_n, at + 1);
            best[at] = kvp_max_u64(best[at], answers[i].media[k].run);
        }
    }
    kvp_jsonw_open(w, answers[0].member->instance, '{');
    kvp_jsonw_u64(w, "longest_matched", longest * block_size);
    for (uint32_t i = 0; i < media_n; i++)
        kvp_jsonw_u64(w, names[i], best[i] * block_size);
    kvp_jsonw_open(w, "DP", '{');
    for (uint32_t i = 0; i < n; i++) {
        char rank[16];

        snprintf(rank, sizeof rank, "%u", answers[i].member->rank);
        kvp_jsonw_u64(w, rank, (uint64_t)answers[i].run * block_size);
    }
    kvp_jsonw_close(w, '}');
    kvp_jsonw_close(w, '}');
    return longest;
}

static void
answer_question(kvp_api_t *api, const kvp_asked_t *q, const uint64_t *hashes, size_t n, kvp_http_response_t *response)
{
    const kvp_namespace_t space = {
        .model = q->model, .tenant = q->tenant, .salt = q->salt, .lora = q->lora, .block_size = q->block_size};
    kvp_jsonw_t w = kvp_http_json(response, 200);
    kvp_epoch_reader_t *reader = kvp_registry_enter(api->registry);
    uint32_t answers_n = 0;
    uint64_t longest = 0;
    const kvp_answer_t *a;
    const bool is_ok = kvp_registry_match(api->registry, &space, q->instance[0] == '\0' ? NULL : q->instance, hashes, n,
                                          api->scratch, &a, &answers_n);

    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_open(&w, q->tenant, '{');
    for (uint32_t first = 0, i = 0; is_ok && first < answers_n; first = i) {
        while (i < answers_n && strcmp(a[i].member->instance, a[first].member->instance) == 0)
            i++;
        longest = kvp_max_u64(longest, write_instance(&w, q->block_size, a + first, i - first));
    }
    kvp_jsonw_close(&w, '}');
    kvp_jsonw_close(&w, '}');
    kvp_epoch_leave(reader);
    if (is_ok)
        count_hit(api, n * q->block_size, longest * q->block_size);
    else
        kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
}

/* Reads the numbers in the query's field named `array`, or if it is missing in the field named `other`, into
 * api->numbers, and the query's other fields into *q. Returns false after sending an error answer. */
static bool
take_question(kvp_api_t *api, const kvp_http_request_t *request, kvp_http_response_t *response, const char *array,
              const char *other, uint64_t max, kvp_asked_t *q)
{
    char why[160];
    bool is_found = false, is_ok;
    json_object *rest;

    kvp_buf_reset(&api->numbers);
    kvp_buf_reset(&api->rest);
    is_ok = kvp_numbers_take(kvp_http_body(request), array, max, &api->rest, &api->numbers, &is_found, why);
    if (is_ok && !is_found && other != NULL) {
        kvp_buf_reset(&api->rest);
        is_ok = kvp_numbers_take(kvp_http_body(request), other, max, &api->rest, &api->numbers, &is_found, why);
    }
    if (is_ok && (api->numbers.err != KVP_OK || api->rest.err != KVP_OK)) {
        kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
        return false;
    }
    if (!is_ok) {
        kvp_http_error(response, 400, "%s", why);
        return false;
    }
    rest = kvp_http_text_json(&api->rest, response);
    if (rest == NULL) return false;
    if (!is_found) snprintf(why, sizeof why, "%s is missing, or not an array", array);
    is_ok = is_found && kvp_asked_read_names(rest, q, why) &&
            kvp_json_u32(rest, "block_size", UINT64_MAX, 1, KVP_TOKENS_MAX, &q->block_size, why) &&
            kvp_json_salt(rest, q->salt, why);
    json_object_put(rest);
    if (!is_ok) kvp_http_error(response, 400, "%s", why);
    return is_ok;
}

static void
on_query_by_hash(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_api_t *api = arg;
    kvp_asked_t q;

    if (!take_question(api, request, response, "seq_hashes", "block_hash", UINT64_MAX, &q)) return;
    answer_question(api, &q, (const uint64_t *)api->numbers.data, api->numbers.len / sizeof(uint64_t), response);
}

/* Answers a query with token ids. Only whole blocks of tokens are looked up. */
static void
on_query(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_api_t *api = arg;
    uint64_t *numbers;
    uint32_t *tokens;
    kvp_asked_t q;
    size_t n, blocks;

    if (!take_question(api, request, response, "token_ids", NULL, UINT32_MAX, &q)) return;
    numbers = (uint64_t *)api->numbers.data;
    n = api->numbers.len / sizeof *numbers;
    blocks = n / q.block_size;
    kvp_buf_reset(&api->tokens);
    tokens = (uint32_t *)kvp_buf_reserve(&api->tokens, (n + 1) * sizeof *tokens);
    if (tokens == NULL) {
        kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
        return;
    }
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)numbers[i];
    for (size_t i = 0; i < blocks; i++)
        numbers[i] = kvp_chain_next(i == 0 ? NULL : &numbers[i - 1], tokens + i * q.block_size, q.block_size,
                                    kvp_registry_hash_seed(api->registry));
    answer_question(api, &q, numbers, blocks, response);
}

static void
on_page(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg;
    (void)request;
    kvp_page_answer(&kvp_page, response);
}

/* ---- registration of the HTTP routes, and cleanup */
kvp_err_t
kvp_api_route(kvp_api_t *api, kvp_http_t *http, kvp_loop_t *loop, kvp_registry_t *registry,
              const kvp_router_weights_t *weights)
{
    const struct {
        const char *method, *path;
        kvp_http_fn fn;
        size_t body_max;
    } routes[] = {{"POST", "/query", on_query, KVP_QUESTION_MAX},
                  {"POST", "/query_by_hash", on_query_by_hash, KVP_QUESTION_MAX},
                  {"GET", "/services", on_services, KVP_HTTP_BODY_MAX},
                  {"GET", "/global_view", on_view, KVP_HTTP_BODY_MAX},
                  {"GET", "/metrics", on_metrics, KVP_HTTP_BODY_MAX},
                  {"GET", "/ready", on_ready, KVP_HTTP_BODY_MAX},
                  {"GET", "/health", on_health, KVP_HTTP_BODY_MAX},
                  {"GET", "/", on_page, KVP_HTTP_BODY_MAX}};

    memset(api, 0, sizeof *api);
    api->registry = registry;
    api->loop = loop;
    api->scratch = kvp_scratch_create();
    if (api->scratch == NULL) return KVP_NOMEM;
    api->process = kvp_metrics_create();
    if (api->process == NULL) return KVP_NOMEM;
    kvp_err_t err = kvp_process_add(api->process);
    if (err == KVP_OK) err = kvp_routes_create(registry, weights, &api->routes);
    if (err == KVP_OK) err = kvp_routes_route(api->routes, http);
    if (err != KVP_OK) return err;
    /* The handlers of /register and /unregister wait for the disk, so they run on the server's slow threads. */
    err = kvp_http_route_slow(http, "POST", "/register", KVP_HTTP_BODY_MAX, on_register, api);
    if (err == KVP_OK) err = kvp_http_route_slow(http, "POST", "/unregister", KVP_HTTP_BODY_MAX, on_unregister, api);
    if (err != KVP_OK) return err;
    for (size_t i = 0; i < KVP_ARRAY_LEN(routes); i++) {
        err = kvp_http_route_large(http, routes[i].method, routes[i].path, routes[i].body_max, routes[i].fn, api);

        if (err != KVP_OK) return err;
    }
    return KVP_OK;
}

void
kvp_api_fini(kvp_api_t *api)
{
    kvp_routes_destroy(api->routes);
    kvp_metrics_destroy(api->process);
    kvp_scratch_destroy(api->scratch);
    kvp_buf_fini(&api->numbers);
    kvp_buf_fini(&api->tokens);
    kvp_buf_fini(&api->rest);
}
