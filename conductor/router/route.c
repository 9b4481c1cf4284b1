/* SPDX-License-Identifier: Apache-2.0
 * See route.h.
 *
 * Design notes.
 * - A query is parked (kvp_http_park) while a server tokenizes its text. So no thread waits, and queries whose tokens
 *   are known are answered before it.
 * - One mutex guards the router: a choice takes microseconds.
 * - The choice is made inside the epoch of the index's answers, because they may be freed after it. */
#include "conductor/router/route.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"
#include "conductor/index/chain.h"
#include "conductor/base/numbers.h"
#include "conductor/router/asked.h"
#include "conductor/router/load.h"
#include "conductor/router/tokens.h"

#include <json-c/json.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BODY_MAX (16u << 20)
#define LEFT_OUT_MAX 1024u
#define KEEP_BYTES (1u << 20) /* largest buffer that is kept between requests */

/* Buffers of a handler, kept for later requests. */
typedef struct idle {
    struct idle *next;
    kvp_match_scratch_t *scratch;
    kvp_buf_t numbers, rest, other, hashes, tokens;
    uint32_t tokens_n; /* number of tokens in the prompt */
} idle_t;

struct kvp_routes {
    kvp_registry_t *registry;
    kvp_tokens_t *tokens;
    kvp_load_t *load;
    pthread_mutex_t mutex; /* mutex that guards router, models, idle and left_out */
    kvp_router_t *router;
    kvp_models_t models;
    idle_t *idle;
    uint64_t without_tokens;
    uint64_t left_out[LEFT_OUT_MAX]; /* hashes of the URLs of left-out servers */
    uint32_t left_out_n;
};

static bool
is_left_out(const kvp_routes_t *routes, const kvp_roster_row_t *m)
{
    const uint64_t url = routes->left_out_n == 0 ? 0 : XXH3_64bits(m->url, strlen(m->url));

    for (uint32_t i = 0; i < routes->left_out_n; i++)
        if (routes->left_out[i] == url) return true;
    return false;
}

/* ---- the model of a request, which may be an adapter, or another name that its servers list */
typedef enum { NO_MODEL, LORA_OF_EVENTS, LORA_OF_REGISTRATION, LISTED, REGISTERED } known_t;

/* Returns how the instance knows the model in the request: as its registered model, as a listed name, as an
 * adapter, or not at all. */
static known_t
known_as(const kvp_routes_t *routes, const kvp_asked_t *q, const kvp_roster_row_t *m, kvp_model_kind_t *kind_out)
{
    *kind_out = KVP_MODEL_ADAPTER;
    if (!kvp_asked_may_serve(q, m) || strcmp(m->tenant, q->tenant) != 0) return NO_MODEL;
    if (strcmp(m->model, q->model) == 0) return REGISTERED;
    *kind_out = kvp_models_kind(&routes->models, m->instance, q->model, kvp_boot_ns() / KVP_NS_PER_MS);
    if (*kind_out != KVP_MODEL_NONE) return LISTED;
    *kind_out = KVP_MODEL_ADAPTER;
    if (m->lora[0] != '\0' && strcmp(m->lora, q->model) == 0) return LORA_OF_REGISTRATION;
    return kvp_registry_has_lora(routes->registry, m->model, q->model) ? LORA_OF_EVENTS : NO_MODEL;
}

/* Replaces the model name in the query by the name with which instances are registered. If the query's name is that
 * of an adapter, q->lora is set to it. */
static void
find_model(kvp_routes_t *routes, kvp_asked_t *q)
{
    char model[KVP_NAME_TEXT_MAX + 1] = "";
    known_t best = NO_MODEL;
    bool is_adapter = false;

    pthread_mutex_lock(&routes->mutex);
    kvp_epoch_reader_t *reader = kvp_registry_enter(routes->registry);
    const kvp_roster_t *roster = kvp_registry_roster(routes->registry);
    for (uint32_t i = 0; i < roster->n && best != REGISTERED; i++) {
        kvp_model_kind_t kind;
        const known_t known = known_as(routes, q, &roster->members[i], &kind);

        if (known <= best) continue;
        best = known;
        is_adapter = kind == KVP_MODEL_ADAPTER;
        snprintf(model, sizeof model, "%s", roster->members[i].model);
    }
    kvp_epoch_leave(reader);
    pthread_mutex_unlock(&routes->mutex);
    if (best == NO_MODEL || best == REGISTERED) return;
    if (best == LISTED) strcpy(q->listed, q->model);
    if (is_adapter && q->lora[0] == '\0') strcpy(q->lora, q->model);
    strcpy(q->model, model);
}

/* Returns whether the instance's server lists the model name q->listed ("" = true). The caller has the mutex. */
static bool
lists_it(const kvp_routes_t *routes, const kvp_asked_t *q, const kvp_roster_row_t *m)
{
    return q->listed[0] == '\0' ||
           kvp_models_kind(&routes->models, m->instance, q->listed, kvp_boot_ns() / KVP_NS_PER_MS) != KVP_MODEL_NONE;
}

/* Returns the block size of an instance that may serve the request. 0 = there is no such instance. */
static uint32_t
find_block_size(const kvp_routes_t *routes, const kvp_asked_t *q)
{
    kvp_epoch_reader_t *reader = kvp_registry_enter(routes->registry);
    const kvp_roster_t *roster = kvp_registry_roster(routes->registry);
    uint32_t found = 0;

    for (uint32_t i = 0; i < roster->n && found == 0; i++)
        if (strcmp(roster->members[i].model, q->model) == 0 && kvp_asked_may_serve(q, &roster->members[i]))
            found = roster->members[i].block_size;
    kvp_epoch_leave(reader);
    return found;
}

/* ---- tokens of a text */
/* A parked query that waits for the tokens of its text. */
typedef struct {
    kvp_tokens_ask_t ask;
    kvp_http_request_t *request; /* the parked HTTP request of the query */
    json_object *in; /* the query's JSON; owned; q borrows from it */
    json_object *body; /* body of the call to a server's /tokenize; owned */
    kvp_asked_t q;
} waiting_t;

static void
free_waiting(waiting_t *w)
{
    kvp_buf_fini(&w->ask.hashes);
    json_object_put(w->body);
    json_object_put(w->in);
    free(w);
}

static void
on_tokenized(kvp_tokens_ask_t *ask)
{
    kvp_http_unpark(kvp_container_of(ask, waiting_t, ask)->request);
}

static void
offer_servers(kvp_routes_t *routes, const kvp_asked_t *q, kvp_tokens_ask_t *ask)
{
    pthread_mutex_lock(&routes->mutex);
    kvp_epoch_reader_t *reader = kvp_registry_enter(routes->registry);
    const kvp_roster_t *roster = kvp_registry_roster(routes->registry);
    for (uint32_t i = 0; i < roster->n; i++) {
        const kvp_roster_row_t *m = &roster->members[i];

        if (m->url[0] != '\0' && strcmp(m->model, q->model) == 0 && kvp_asked_may_serve(q, m) &&
            lists_it(routes, q, m) && !is_left_out(routes, m))
            kvp_tokens_offer(routes->tokens, ask, m->url);
    }
    kvp_epoch_leave(reader);
    pthread_mutex_unlock(&routes->mutex);
}

/* Makes the body of a call to /tokenize for the query's text. NULL = failure, with the reason in *why. */
static json_object *
make_question(json_object *in, const kvp_asked_t *q, char why[160])
{
    /* names of the query's fields, other than the text, that affect its tokens */
    static const char *const more[] = {"tools",
                                       "chat_template",
                                       "chat_template_kwargs",
                                       "add_special_tokens",
                                       "add_generation_prompt",
                                       "continue_final_message"};
    json_object *text = NULL, *body;
    const char *name = "prompt";

    if (!json_object_object_get_ex(in, name, &text)) {
        name = "messages";
        if (!json_object_object_get_ex(in, name, &text)) {
            snprintf(why, 160, "neither token_ids nor prompt nor messages were given");
            return NULL;
        }
    }
    body = json_object_new_object();
    json_object_object_add(body, "model", json_object_new_string(q->lora[0] != '\0' ? q->lora : q->model));
    json_object_object_add(body, name, json_object_get(text));
    for (size_t i = 0; i < KVP_ARRAY_LEN(more); i++)
        if (json_object_object_get_ex(in, more[i], &text)) json_object_object_add(body, more[i], json_object_get(text));
    return body;
}

/* Parks the request until a server has returned the tokens; the parked query holds references to `in` and `body`.
 * Returns false, with the reason in *why, if the request was not parked. */
static bool
ask_for_tokens(kvp_routes_t *routes, const kvp_http_request_t *request, json_object *in, json_object *body,
               const kvp_asked_t *q, char why[160])
{
    waiting_t *w = calloc(1, sizeof *w);

    if (w == NULL) {
        snprintf(why, 160, "%s", kvp_err_text(KVP_NOMEM));
        return false;
    }
    w->ask.body = json_object_to_json_string_ext(body, JSON_C_TO_STRING_PLAIN);
    w->ask.block_size = q->block_size;
    w->ask.seed = kvp_registry_hash_seed(routes->registry);
    w->ask.done = on_tokenized;
    offer_servers(routes, q, &w->ask);
    if (w->ask.urls[0][0] == '\0') {
        snprintf(why, 160, "no instance of the model has a url that could tokenize, or has done so lately");
        free(w);
        return false;
    }
    w->q = *q;
    w->in = json_object_get(in);
    w->body = json_object_get(body);
    w->request = kvp_http_park(request, w);
    if (!kvp_tokens_ask(routes->tokens, &w->ask)) kvp_http_unpark(w->request);
    return true;
}

static bool
hash_tokens(const kvp_routes_t *routes, uint32_t block_size, idle_t *with)
{
    const uint32_t *tokens = (const uint32_t *)with->tokens.data;
    const size_t blocks = with->tokens.len / sizeof *tokens / block_size;
    uint64_t *hashes = (uint64_t *)kvp_buf_reserve(&with->hashes, (blocks + 1) * sizeof *hashes);

    for (size_t i = 0; hashes != NULL && i < blocks; i++)
        hashes[i] = kvp_chain_next(i == 0 ? NULL : &hashes[i - 1], tokens + i * block_size, block_size,
                                   kvp_registry_hash_seed(routes->registry));
    with->hashes.len = hashes == NULL ? 0 : blocks * sizeof *hashes;
    with->tokens_n = (uint32_t)(with->tokens.len / sizeof *tokens);
    return hashes != NULL;
}

/* ---- the choice of a target, inside the index's epoch */
typedef struct {
    kvp_routes_t *routes;
    const kvp_asked_t *q;
    idle_t *with;
    const kvp_namespace_t *space;
    const char *unknown; /* reason why the tokens are unknown; NULL = they are known */
    kvp_http_response_t *response;
} choosing_t;

static uint32_t
run_on(const kvp_answer_t *a, const char *medium)
{
    for (uint32_t i = 0; i < a->media_n; i++)
        if (strcmp(a->media[i].name, medium) == 0) return a->media[i].run;
    return 0;
}

static void
write_reason(const kvp_choice_t *r, const kvp_candidate_t *c, const kvp_answer_t *answers, const uint32_t *of,
             uint32_t tokens, const char *unknown, kvp_jsonw_t *w)
{
    char text[768], more[320] = "";

    if (unknown != NULL) {
        snprintf(text, sizeof text, "by load alone, because %s: %u requests under way here", unknown, r->open);
    } else {
        if (r->longest != r->at && c[r->longest].matched > c[r->at].matched)
            snprintf(more, sizeof more,
                     r->is_longest_away ? "; %s has %u tokens, but its server is not there"
                                        : "; %s has %u tokens, but its first token is expected after %.0f ms",
                     answers[of[r->longest]].member->instance, c[r->longest].matched, r->longest_ms);
        snprintf(text, sizeof text,
                 "first token expected after %.0f ms: %.0f ms behind others, %.0f ms to compute %u tokens, %.0f ms to "
                 "fetch; %u of %u tokens are there%s%s%s",
                 r->queue_ms + r->compute_ms + r->fetch_ms, r->queue_ms, r->compute_ms, tokens - r->matched,
                 r->fetch_ms, r->matched, tokens,
                 r->pending > 0 ? ", or will be with a prompt that was sent there" : "",
                 r->has_affinity ? "; its session was here before" : "", more);
    }
    const size_t at = strlen(text);
    if (r->is_away) snprintf(text + at, sizeof text - at, "; its server is unreachable or left out, like all others");
    kvp_jsonw_text(w, "reason", text);
}

static void
write_choice(const choosing_t *ch, const kvp_choice_t *r, const kvp_candidate_t *c, const kvp_answer_t *answers,
             uint32_t n, const uint32_t *of, uint32_t tokens)
{
    static const char *const usual[] = {"GPU", "CPU", "DISK"}; /* media that an answer always contains */
    const kvp_answer_t *a = &answers[of[r->at]];
    kvp_jsonw_t w = kvp_http_json(ch->response, 200);
    uint32_t ranks = 0;

    for (uint32_t i = 0; i < n; i++)
        ranks += strcmp(answers[i].member->instance, a->member->instance) == 0;

    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "instance_id", a->member->instance);
    kvp_jsonw_text(&w, "url", a->member->url);
    kvp_jsonw_u64(&w, "dp_rank", a->member->rank);
    kvp_jsonw_u64(&w, "dp_ranks", ranks);
    kvp_jsonw_u64(&w, "route_id", r->id);
    if (ch->q->lora[0] != '\0') kvp_jsonw_text(&w, "lora_name", ch->q->lora);
    if (ch->unknown == NULL) kvp_jsonw_u64(&w, "prompt_tokens", tokens);
    kvp_jsonw_open(&w, "matched", '{');
    kvp_jsonw_u64(&w, "tokens", r->matched);
    kvp_jsonw_u64(&w, "pending", r->pending);
    for (size_t i = 0; i < KVP_ARRAY_LEN(usual); i++)
        kvp_jsonw_u64(&w, usual[i], (uint64_t)run_on(a, usual[i]) * ch->q->block_size);
    for (uint32_t i = 0; i < a->media_n; i++)
        if (!kvp_is_listed("GPU,CPU,DISK", a->media[i].name))
            kvp_jsonw_u64(&w, a->media[i].name, (uint64_t)a->media[i].run * ch->q->block_size);
    kvp_jsonw_close(&w, '}');
    kvp_jsonw_open(&w, "load", '{');
    kvp_jsonw_u64(&w, "open_routes", r->open);
    kvp_jsonw_u64(&w, "running", r->running);
    kvp_jsonw_u64(&w, "waiting", r->waiting);
    kvp_jsonw_u64(&w, "queue_ms", (uint64_t)r->queue_ms);
    kvp_jsonw_close(&w, '}');
    kvp_jsonw_u64(&w, "expected_ms", (uint64_t)(r->queue_ms + r->compute_ms + r->fetch_ms));
    write_reason(r, c, answers, of, tokens, ch->unknown, &w);
    kvp_jsonw_close(&w, '}');
}

/* Chooses the target and writes the answer. Returns false if no instance may serve the request. */
static bool
choose_target(const choosing_t *ch, const kvp_answer_t *answers, uint32_t n)
{
    const kvp_asked_t *q = ch->q;
    const uint32_t tokens = ch->unknown != NULL ? 0 : ch->with->tokens_n;
    kvp_candidate_t *candidates = calloc(n + 1, sizeof *candidates);
    uint32_t *of = calloc(n + 1, sizeof *of), candidates_n = 0;
    const kvp_route_ask_t ask = {
        .tokens = tokens,
        .block_size = q->block_size,
        .hashes = ch->unknown != NULL ? NULL : (const uint64_t *)ch->with->hashes.data,
        .blocks = ch->unknown != NULL ? 0 : (uint32_t)(ch->with->hashes.len / sizeof(uint64_t)),
        .space = kvp_space_hash(ch->space),
        .session = q->session[0] == '\0' ? 0
                                         : XXH3_64bits_withSeed(q->session, strlen(q->session),
                                                                XXH3_64bits(q->tenant, strlen(q->tenant))),
    };
    kvp_choice_t route = {.at = KVP_ROUTE_NONE};

    pthread_mutex_lock(&ch->routes->mutex);
    for (uint32_t i = 0; candidates != NULL && of != NULL && i < n; i++) {
        const uint32_t target =
            kvp_asked_may_serve(q, answers[i].member) && lists_it(ch->routes, q, answers[i].member)
                ? kvp_router_target(ch->routes->router, answers[i].member->instance, answers[i].member->rank)
                : KVP_ROUTE_NONE;

        if (target == KVP_ROUTE_NONE) continue;
        of[candidates_n] = i;
        candidates[candidates_n++] =
            (kvp_candidate_t){target, answers[i].run * q->block_size, run_on(&answers[i], "GPU") * q->block_size,
                              run_on(&answers[i], "CPU") * q->block_size, is_left_out(ch->routes, answers[i].member)};
    }
    kvp_router_tick(ch->routes->router, kvp_boot_ns());
    if (candidates_n > 0) kvp_router_pick(ch->routes->router, &ask, candidates, candidates_n, kvp_boot_ns(), &route);
    ch->routes->without_tokens += ch->unknown != NULL;
    pthread_mutex_unlock(&ch->routes->mutex);
    if (route.at != KVP_ROUTE_NONE) write_choice(ch, &route, candidates, answers, n, of, tokens);
    free(candidates);
    free(of);
    return route.at != KVP_ROUTE_NONE;
}

/* ---- HTTP handlers */
static idle_t *
take_idle(kvp_routes_t *routes)
{
    idle_t *with;

    pthread_mutex_lock(&routes->mutex);
    with = routes->idle;
    if (with != NULL) routes->idle = with->next;
    pthread_mutex_unlock(&routes->mutex);
    if (with == NULL) with = calloc(1, sizeof *with);
    if (with != NULL && with->scratch == NULL) with->scratch = kvp_scratch_create();
    return with;
}

static void
empty_buf(kvp_buf_t *buf)
{
    if (buf->cap > KEEP_BYTES)
        kvp_buf_fini(buf);
    else
        kvp_buf_reset(buf);
}

static void
give_idle(kvp_routes_t *routes, idle_t *with)
{
    empty_buf(&with->numbers);
    empty_buf(&with->rest);
    empty_buf(&with->other);
    empty_buf(&with->hashes);
    empty_buf(&with->tokens);
    pthread_mutex_lock(&routes->mutex);
    with->next = routes->idle;
    routes->idle = with;
    pthread_mutex_unlock(&routes->mutex);
}

/* Copies the token numbers of the body (token_ids or prompt) to the buffer of tokens. */
static void
take_numbers(idle_t *with)
{
    const uint64_t *numbers = (const uint64_t *)with->numbers.data;

    for (size_t i = 0; i < with->numbers.len / sizeof *numbers; i++) {
        const uint32_t token = (uint32_t)numbers[i];

        kvp_buf_append(&with->tokens, &token, sizeof token);
    }
}

/* Answers the query. unknown is the reason why the tokens are unknown; NULL = their hashes are in `with`. */
static void
answer_with(kvp_routes_t *routes, const kvp_asked_t *q, const char *unknown, idle_t *with,
            kvp_http_response_t *response)
{
    const kvp_namespace_t space = {
        .model = q->model, .tenant = q->tenant, .salt = q->salt, .lora = q->lora, .block_size = q->block_size};
    const choosing_t ch = {
        .routes = routes, .q = q, .with = with, .space = &space, .unknown = unknown, .response = response};
    kvp_epoch_reader_t *reader = kvp_registry_enter(routes->registry);
    const kvp_answer_t *answers;
    uint32_t n;

    if (!kvp_registry_match(routes->registry, &space, q->instance[0] == '\0' ? NULL : q->instance,
                            (const uint64_t *)with->hashes.data, with->hashes.len / sizeof(uint64_t), with->scratch,
                            &answers, &n))
        kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
    else if (!choose_target(&ch, answers, n))
        kvp_http_error(response, 503,
                       "no instance of that model, block size, tenant and role is registered, or all are excluded");
    kvp_epoch_leave(reader);
}

/* Puts the hashes of the query's tokens into `with`; if this fails, *why is the reason. Returns false only if the
 * request was parked until a server has tokenized the text. */
static bool
take_tokens(kvp_routes_t *routes, const kvp_http_request_t *request, json_object *in, const kvp_asked_t *q,
            idle_t *with, bool has_tokens, char why[160])
{
    json_object *body;
    bool is_parked;

    if (has_tokens) {
        take_numbers(with);
        if (!hash_tokens(routes, q->block_size, with) || with->tokens.err != KVP_OK)
            snprintf(why, 160, "%s", kvp_err_text(KVP_NOMEM));
        return true;
    }
    body = make_question(in, q, why);
    if (body == NULL) return true;
    if (kvp_tokens_find(routes->tokens, json_object_to_json_string_ext(body, JSON_C_TO_STRING_PLAIN), q->block_size,
                        kvp_registry_hash_seed(routes->registry), &with->hashes, &with->tokens_n)) {
        json_object_put(body);
        return true;
    }
    is_parked = ask_for_tokens(routes, request, in, body, q, why);
    json_object_put(body);
    return !is_parked;
}

static void
begin_question(kvp_routes_t *routes, const kvp_http_request_t *request, kvp_http_response_t *response, idle_t *with)
{
    char why[160] = "";
    bool has_tokens = false;
    json_object *in;
    kvp_asked_t q;

    if (!kvp_numbers_take(kvp_http_body(request), "token_ids", UINT32_MAX, &with->rest, &with->numbers, &has_tokens,
                          why)) {
        kvp_http_error(response, 400, "%s", why);
        return;
    }
    /* The field `prompt` may be an array of token ids. Any other array is passed on to a server, which checks it. */
    if (!has_tokens &&
        !kvp_numbers_take(&with->rest, "prompt", UINT32_MAX, &with->other, &with->numbers, &has_tokens, why))
        has_tokens = false;
    why[0] = '\0';
    in = kvp_http_text_json(has_tokens && with->other.len > 0 ? &with->other : &with->rest, response);
    if (in == NULL) return;
    memset(&q, 0, sizeof q);
    if (!kvp_asked_read(in, &q, why)) {
        kvp_http_error(response, 400, "%s", why);
        json_object_put(in);
        return;
    }
    find_model(routes, &q);
    if (q.block_size == 0) q.block_size = find_block_size(routes, &q);
    if (q.block_size == 0)
        kvp_http_error(response, 503, "no instance of that model and role is registered, or all are excluded");
    else if (take_tokens(routes, request, in, &q, with, has_tokens, why))
        answer_with(routes, &q, why[0] == '\0' ? NULL : why, with, response);
    json_object_put(in);
}

/* Answers a parked query after a server has returned the tokens, or after all servers failed or timed out. */
static void
end_question(kvp_routes_t *routes, waiting_t *w, kvp_http_response_t *response, idle_t *with)
{
    if (w->ask.is_ok) {
        kvp_buf_append(&with->hashes, w->ask.hashes.data, w->ask.hashes.len);
        with->tokens_n = w->ask.tokens_n;
        if (with->hashes.err != KVP_OK) {
            w->ask.is_ok = false;
            snprintf(w->ask.why, sizeof w->ask.why, "%s", kvp_err_text(KVP_NOMEM));
        }
    }
    answer_with(routes, &w->q, w->ask.is_ok ? NULL : w->ask.why, with, response);
    free_waiting(w);
}

static void
on_route(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_routes_t *routes = arg;
    waiting_t *w = kvp_http_note(request);
    idle_t *with = take_idle(routes);

    if (with == NULL || with->scratch == NULL) {
        kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
        if (w != NULL) free_waiting(w);
    } else if (w != NULL) {
        end_question(routes, w, response, with);
    } else {
        begin_question(routes, request, response, with);
    }
    if (with != NULL) give_idle(routes, with);
}

static void
on_done(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_routes_t *routes = arg;
    json_object *in = kvp_http_body_json(request, response), *id = NULL;
    bool is_known;

    if (in == NULL) return;
    if (!json_object_is_type(in, json_type_object) || !json_object_object_get_ex(in, "route_id", &id) ||
        !json_object_is_type(id, json_type_int) || json_object_get_int64(id) <= 0) {
        kvp_http_error(response, 400, "route_id is missing, or no whole number above 0");
        json_object_put(in);
        return;
    }
    pthread_mutex_lock(&routes->mutex);
    is_known = kvp_router_done(routes->router, json_object_get_uint64(id), kvp_boot_ns());
    pthread_mutex_unlock(&routes->mutex);
    json_object_put(in);
    if (!is_known) {
        kvp_http_error(response, 404, "that route is done, or was never made");
        return;
    }
    kvp_jsonw_t w = kvp_http_json(response, 200);

    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "status", "done");
    kvp_jsonw_close(&w, '}');
}

/* ---- load of the servers */
/* Called by the load poller each second: lists the servers to poll, and drops targets of unregistered instances. */
static void
on_list(void *arg, void (*add)(void *to, const char *url, const char *tag, bool wants_models), void *to)
{
    kvp_routes_t *routes = arg;
    const char *last = "";

    pthread_mutex_lock(&routes->mutex);
    kvp_epoch_reader_t *reader = kvp_registry_enter(routes->registry);
    const kvp_roster_t *roster = kvp_registry_roster(routes->registry);
    for (uint32_t i = 0; i < roster->n; i++)
        (void)kvp_router_target(routes->router, roster->members[i].instance, roster->members[i].rank);
    kvp_router_tick(routes->router, kvp_boot_ns());
    kvp_router_sweep(routes->router);
    for (uint32_t i = 0; i < roster->n; i++) {
        const kvp_roster_row_t *m = &roster->members[i];

        if (m->url[0] == '\0' || strcmp(m->instance, last) == 0) continue; /* ranks of one instance are adjacent */
        last = m->instance;
        add(to, m->url, m->instance, kvp_models_is_due(&routes->models, m->instance, kvp_boot_ns() / KVP_NS_PER_MS));
    }
    kvp_epoch_leave(reader);
    pthread_mutex_unlock(&routes->mutex);
}

static void
on_asked(void *arg, const char *tag, bool is_there)
{
    kvp_routes_t *routes = arg;

    pthread_mutex_lock(&routes->mutex);
    kvp_router_note_there(routes->router, tag, is_there);
    pthread_mutex_unlock(&routes->mutex);
}

static void
on_told(void *arg, const char *tag, uint32_t rank, uint32_t running, uint32_t waiting)
{
    kvp_routes_t *routes = arg;
    uint32_t target;

    pthread_mutex_lock(&routes->mutex);
    target = kvp_router_find(routes->router, tag, rank);
    if (target != KVP_ROUTE_NONE) kvp_router_note(routes->router, target, running, waiting, kvp_boot_ns());
    pthread_mutex_unlock(&routes->mutex);
}

static void
on_listed(void *arg, const char *tag, const char *name, kvp_model_kind_t kind)
{
    kvp_routes_t *routes = arg;

    pthread_mutex_lock(&routes->mutex);
    kvp_models_note(&routes->models, tag, name, kind, kvp_boot_ns() / KVP_NS_PER_MS);
    pthread_mutex_unlock(&routes->mutex);
}

void
kvp_routes_set_left_out(kvp_routes_t *routes, const uint64_t *urls, uint32_t n)
{
    pthread_mutex_lock(&routes->mutex);
    routes->left_out_n = (uint32_t)kvp_min_u64(n, LEFT_OUT_MAX);
    memcpy(routes->left_out, urls, routes->left_out_n * sizeof *urls);
    pthread_mutex_unlock(&routes->mutex);
}

void
kvp_routes_write_metrics(kvp_routes_t *routes, kvp_buf_t *out)
{
    kvp_router_stats_t st;
    uint64_t without;
    char text[1024];
    int n;

    pthread_mutex_lock(&routes->mutex);
    kvp_router_stats(routes->router, &st);
    without = routes->without_tokens;
    pthread_mutex_unlock(&routes->mutex);
    n = snprintf(
        text, sizeof text,
        "# HELP kvpool_conductor_routes_total routed requests\n# TYPE kvpool_conductor_routes_total "
        "counter\nkvpool_conductor_routes_total %llu\n# HELP kvpool_conductor_routes_without_tokens_total of these, "
        "routed by load alone\n# TYPE kvpool_conductor_routes_without_tokens_total "
        "counter\nkvpool_conductor_routes_without_tokens_total %llu\n# HELP kvpool_conductor_routes_expired_total "
        "routes that nobody ended\n# TYPE kvpool_conductor_routes_expired_total "
        "counter\nkvpool_conductor_routes_expired_total %llu\n# HELP kvpool_conductor_routes_open routes under way\n# "
        "TYPE kvpool_conductor_routes_open gauge\nkvpool_conductor_routes_open %u\n",
        (unsigned long long)st.routes, (unsigned long long)without, (unsigned long long)st.expired, st.open);
    kvp_buf_append(out, text, (size_t)n);
}

void
kvp_routes_write_view(kvp_routes_t *routes, kvp_jsonw_t *w)
{
    kvp_router_stats_t st;
    uint64_t without;

    pthread_mutex_lock(&routes->mutex);
    kvp_router_stats(routes->router, &st);
    without = routes->without_tokens;
    pthread_mutex_unlock(&routes->mutex);
    kvp_jsonw_open(w, "routes", '{');
    kvp_jsonw_u64(w, "routed", st.routes);
    kvp_jsonw_u64(w, "without_tokens", without);
    kvp_jsonw_u64(w, "expired", st.expired);
    kvp_jsonw_u64(w, "open", st.open);
    kvp_jsonw_close(w, '}');
}

/* ---- creation and destruction */
kvp_err_t
kvp_routes_create(kvp_registry_t *registry, const kvp_router_weights_t *weights, kvp_routes_t **out)
{
    kvp_routes_t *routes = calloc(1, sizeof *routes);
    kvp_err_t err;

    if (routes == NULL) return KVP_NOMEM;
    routes->registry = registry;
    pthread_mutex_init(&routes->mutex, NULL);
    kvp_models_init(&routes->models, kvp_random_u64());
    routes->tokens = kvp_tokens_create();
    routes->router = kvp_router_create(weights);
    err = routes->tokens == NULL || routes->router == NULL
              ? KVP_NOMEM
              : kvp_load_start(&(kvp_load_ops_t){on_list, on_asked, on_told, on_listed, routes}, &routes->load);
    if (err == KVP_OK)
        *out = routes;
    else
        kvp_routes_destroy(routes);
    return err;
}

kvp_err_t
kvp_routes_route(kvp_routes_t *routes, kvp_http_t *http)
{
    kvp_err_t err = kvp_http_route_slow(http, "POST", "/route", BODY_MAX, on_route, routes);

    return err == KVP_OK ? kvp_http_route(http, "POST", "/route/done", on_done, routes) : err;
}

void
kvp_routes_stop(kvp_routes_t *routes)
{
    if (routes != NULL) kvp_tokens_stop(routes->tokens);
}

void
kvp_routes_destroy(kvp_routes_t *routes)
{
    if (routes == NULL) return;
    kvp_load_stop(routes->load);
    for (idle_t *i = routes->idle, *next; i != NULL; i = next) {
        next = i->next;
        kvp_scratch_destroy(i->scratch);
        kvp_buf_fini(&i->numbers);
        kvp_buf_fini(&i->rest);
        kvp_buf_fini(&i->other);
        kvp_buf_fini(&i->hashes);
        kvp_buf_fini(&i->tokens);
        free(i);
    }
    kvp_router_destroy(routes->router);
    kvp_models_fini(&routes->models);
    kvp_tokens_destroy(routes->tokens);
    pthread_mutex_destroy(&routes->mutex);
    free(routes);
}
