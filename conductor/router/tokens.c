/* SPDX-License-Identifier: Apache-2.0
 * See tokens.h. All calls to servers belong to the thread; the mutex guards data shared with callers. */
#include "conductor/router/tokens.h"

#include "common/clock.h"
#include "common/digestmap.h"
#include "common/thread.h"
#include "conductor/index/chain.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define TIMEOUT_MS 2000u /* time limit of a query for a text's tokens */
#define SECOND_MS 300u /* silence of the first server after which the second server is asked, too */
#define AWAY_MS 5000u /* time for which a server that failed is not asked */
#define FORGET_MS 60000u /* time after which a failed server that is not asked is forgotten */
#define ANSWER_MAX (64u << 20)
#define ASKS_MAX 1024u
#define CONNECTIONS_MAX 512L
#define CONNECTIONS_OF_SERVER_MAX 16L
#define KEPT 4096u /* limit of the number of texts in the cache */
#define KEPT_BYTES (64u << 20) /* limit of the cache's hashes, in bytes */

typedef struct {
    XXH128_hash_t key;
    uint64_t *hashes; /* hashes of the text's blocks; owned; NULL = the place is free */
    uint32_t blocks, tokens;
} kept_t;

/* The state of a server that is being asked or has failed, packed into a 64-bit value of the map. */
typedef struct {
    uint32_t at_ms; /* if has_failed: not asked before this time; else time of the last byte; on a clock that wraps */
    uint16_t under_way;
    uint8_t has_failed;
    uint8_t is_used; /* always 1, so that the packed value is never 0 */
} server_t;

typedef struct kvp_tokens_call {
    kvp_tokens_ask_t *ask;
    uint32_t nth; /* index of the call's server in ask->urls */
    CURL *easy;
    struct curl_slist *headers;
    size_t bytes;
    kvp_tokenized_t reading;
} call_t;

struct kvp_tokens {
    pthread_mutex_t mutex; /* guards all fields, except those of the thread */
    kept_t kept[KEPT]; /* the cache of texts; a text's key decides its place */
    size_t kept_bytes, sweep;
    kvp_digestmap_t servers; /* packed server_t of each server, by the hash of its URL */
    uint64_t swept_ns;
    uint64_t offers; /* number of offers of servers with an equal load, by which such servers are chosen in turn */
    kvp_list_t queue; /* queries that the thread has not taken yet */
    uint32_t asks_n; /* number of queries in the queue and at the thread */
    bool is_over;
    pthread_t thread; /* only the thread uses the fields below */
    CURLM *multi;
    kvp_list_t active;
};

/* ---- the cache of texts */
static XXH128_hash_t
key_of(const char *body, uint32_t block_size, uint64_t seed)
{
    return XXH3_128bits_withSeed(body, strlen(body), seed ^ block_size);
}

bool
kvp_tokens_find(kvp_tokens_t *t, const char *body, uint32_t block_size, uint64_t seed, kvp_buf_t *hashes,
                uint32_t *tokens_n_out)
{
    const XXH128_hash_t key = key_of(body, block_size, seed);
    const kept_t *k = &t->kept[key.low64 % KEPT];
    bool is_there;

    pthread_mutex_lock(&t->mutex);
    is_there = k->hashes != NULL && XXH128_isEqual(k->key, key);
    if (is_there) {
        kvp_buf_append(hashes, k->hashes, k->blocks * sizeof *k->hashes);
        *tokens_n_out = k->tokens;
    }
    pthread_mutex_unlock(&t->mutex);
    return is_there && hashes->err == KVP_OK;
}

static void
drop_kept(kvp_tokens_t *t, kept_t *k)
{
    t->kept_bytes -= k->blocks * sizeof *k->hashes;
    free(k->hashes);
    *k = (kept_t){.hashes = NULL};
}

static void
keep_result(kvp_tokens_t *t, const kvp_tokens_ask_t *ask)
{
    const XXH128_hash_t key = key_of(ask->body, ask->block_size, ask->seed);
    const size_t bytes = ask->hashes.len;
    kept_t *k = &t->kept[key.low64 % KEPT];
    uint64_t *copy = bytes > KEPT_BYTES / 8 ? NULL : malloc(bytes + sizeof *copy);

    if (copy == NULL) return;
    if (bytes > 0) memcpy(copy, ask->hashes.data, bytes);
    pthread_mutex_lock(&t->mutex);
    drop_kept(t, k);
    *k = (kept_t){key, copy, (uint32_t)(bytes / sizeof *copy), ask->tokens_n};
    t->kept_bytes += bytes;
    for (; t->kept_bytes > KEPT_BYTES; t->sweep++)
        if (&t->kept[t->sweep % KEPT] != k) drop_kept(t, &t->kept[t->sweep % KEPT]);
    pthread_mutex_unlock(&t->mutex);
}

/* ---- servers; the caller has the mutex */
static uint32_t
now_ms(void)
{
    return (uint32_t)(kvp_boot_ns() / KVP_NS_PER_MS);
}

static kvp_digest_t
server_key(const char *url)
{
    return (kvp_digest_t){.lo = XXH3_64bits(url, strlen(url)), .hi = 1};
}

static server_t
server_of(const kvp_tokens_t *t, const char *url)
{
    const uint64_t *val = kvp_digestmap_at(&t->servers, server_key(url));
    server_t s = {.is_used = 1};

    if (val != NULL) memcpy(&s, val, sizeof s);
    return s;
}

static void
set_server(kvp_tokens_t *t, const char *url, const server_t *s)
{
    uint64_t *val;

    _Static_assert(sizeof *s == sizeof *val, "it is packed");
    if (s->under_way == 0 && !s->has_failed) {
        kvp_digestmap_remove(&t->servers, server_key(url));
        return;
    }
    val = kvp_digestmap_insert(&t->servers, server_key(url));
    if (val != NULL) memcpy(val, s, sizeof *s);
}

static bool
is_away(const server_t *s, uint32_t ms)
{
    return s->has_failed && (s->under_way > 0 || (int32_t)(s->at_ms - ms) > 0);
}

/* Forgets failed servers that are not asked any more, since they have probably left. */
static void
forget_servers(kvp_tokens_t *t)
{
    const uint32_t ms = now_ms();
    const kvp_digestmap_at_t *at;
    kvp_digestmap_t left;

    kvp_digestmap_init(&left, t->servers.seed);
    for (uint32_t i = 0; (at = kvp_digestmap_next(&t->servers, &i)) != NULL;) {
        server_t s;
        uint64_t *val;

        memcpy(&s, &at->val, sizeof s);
        if (s.under_way == 0 && (int32_t)(ms - s.at_ms) > (int32_t)FORGET_MS) continue;
        val = kvp_digestmap_insert(&left, at->digest);
        if (val != NULL) *val = at->val;
    }
    kvp_digestmap_fini(&t->servers);
    t->servers = left;
}

void
kvp_tokens_offer(kvp_tokens_t *t, kvp_tokens_ask_t *of, const char *url)
{
    uint32_t at = 2;

    pthread_mutex_lock(&t->mutex);
    const server_t s = server_of(t, url);
    if (!is_away(&s, now_ms()) && strcmp(of->urls[0], url) != 0) {
        if (of->urls[0][0] == '\0' || s.under_way < of->under_way[0]) {
            at = 0;
            of->equal = 1;
        } else if (s.under_way == of->under_way[0] && ++of->equal > 0 && ++t->offers % of->equal == 0) {
            at = 0;
        } else if (of->urls[1][0] == '\0' || s.under_way < of->under_way[1]) {
            at = 1;
        }
    }
    pthread_mutex_unlock(&t->mutex);
    if (at == 2) return;
    if (at == 0) {
        memcpy(of->urls[1], of->urls[0], sizeof of->urls[1]);
        of->under_way[1] = of->under_way[0];
    }
    snprintf(of->urls[at], sizeof of->urls[at], "%s", url);
    of->under_way[at] = s.under_way;
}

typedef enum { ANSWERED, FAILED, CANCELLED } end_t;

static void
count_server(kvp_tokens_t *t, const char *url, bool is_begin, end_t end)
{
    pthread_mutex_lock(&t->mutex);
    server_t s = server_of(t, url);

    if (is_begin) {
        if (s.under_way++ == 0 && !s.has_failed) s.at_ms = now_ms();
    } else {
        if (s.under_way > 0) s.under_way--;
        if (end != CANCELLED) s.has_failed = end == FAILED;
        if (end != CANCELLED) s.at_ms = now_ms() + (end == FAILED ? AWAY_MS : 0);
    }
    set_server(t, url, &s);
    pthread_mutex_unlock(&t->mutex);
}

static void
note_heard(kvp_tokens_t *t, const char *url)
{
    pthread_mutex_lock(&t->mutex);
    server_t s = server_of(t, url);

    s.at_ms = s.has_failed ? s.at_ms : now_ms();
    set_server(t, url, &s);
    pthread_mutex_unlock(&t->mutex);
}

/* Returns for how many ms the first server of the query has sent nothing, to any query, but at most since it was
 * asked. A server that is busy with other texts is not silent. */
static uint64_t
silence_ms(kvp_tokens_t *t, const kvp_tokens_ask_t *ask)
{
    const uint64_t asked_ms = (kvp_now_ns() - ask->since_ns) / KVP_NS_PER_MS;

    pthread_mutex_lock(&t->mutex);
    const server_t s = server_of(t, ask->urls[0]);
    pthread_mutex_unlock(&t->mutex);
    return s.has_failed ? asked_ms : kvp_min_u64(asked_ms, now_ms() - s.at_ms);
}

/* ---- parsing of an answer: {"tokens": [NUMBER, ...], ...} */
static bool
add_token(kvp_tokenized_t *r, const char *text)
{
    uint64_t number = 0, hash;
    uint32_t token;

    for (; *text >= '0' && *text <= '9' && number <= UINT32_MAX; text++)
        number = number * 10 + (uint64_t)(*text - '0');
    if (*text != '\0' || number > UINT32_MAX || r->tokens_n == UINT32_MAX) return false;
    token = (uint32_t)number;
    const uint64_t *hashes = (const uint64_t *)r->hashes.data;
    const size_t blocks = r->hashes.len / sizeof *hashes;

    r->tokens_n++;
    if (blocks == KVP_TOKENIZED_BLOCKS_MAX) return true;
    kvp_buf_append(&r->block, &token, sizeof token);
    if (r->block.len < (size_t)r->block_size * sizeof token) return r->block.err == KVP_OK;
    hash = kvp_chain_next(blocks == 0 ? NULL : &hashes[blocks - 1], (const uint32_t *)r->block.data, r->block_size,
                          r->seed);
    kvp_buf_append(&r->hashes, &hash, sizeof hash);
    kvp_buf_reset(&r->block);
    return r->hashes.err == KVP_OK;
}

static bool
on_value(void *arg, const kvp_jsonscan_t *s, kvp_json_event_t event)
{
    static const char *const list[] = {"tokens"};
    kvp_tokenized_t *r = arg;

    if (s->depth > 2 || (s->depth == 2 && !r->is_inside)) return true;
    if (s->depth == 2) {
        r->is_failed |= event != KVP_JSON_WORD || !add_token(r, s->text);
    } else if (kvp_jsonscan_is_at(s, list, 1)) {
        r->is_inside = event == KVP_JSON_BEGIN;
        /* an answer with a second list of tokens, or with an object in place of the list, is malformed */
        r->is_failed |= r->is_inside && (r->has_begun || s->text_len != 0);
        r->has_begun |= r->is_inside;
    }
    return !r->is_failed;
}

void
kvp_tokenized_init(kvp_tokenized_t *r, uint32_t block_size, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    kvp_jsonscan_init(&r->scan, on_value, r);
    r->block_size = block_size;
    r->seed = seed;
}

bool
kvp_tokenized_feed(kvp_tokenized_t *r, const char *bytes, size_t len)
{
    r->is_failed = r->is_failed || !kvp_jsonscan_feed(&r->scan, bytes, len);
    return !r->is_failed;
}

bool
kvp_tokenized_is_whole(const kvp_tokenized_t *r)
{
    return r->has_begun && !r->is_failed && kvp_jsonscan_is_whole(&r->scan);
}

void
kvp_tokenized_fini(kvp_tokenized_t *r)
{
    kvp_buf_fini(&r->block);
    kvp_buf_fini(&r->hashes);
}

/* ---- calls to servers, on the thread */
static size_t
on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    call_t *c = arg;

    c->bytes += size * n;
    note_heard(c->ask->tokens, c->ask->urls[c->nth]);
    return c->bytes <= ANSWER_MAX && kvp_tokenized_feed(&c->reading, bytes, size * n) ? size * n : 0;
}

static void
free_call(call_t *c)
{
    curl_slist_free_all(c->headers);
    curl_easy_cleanup(c->easy);
    kvp_tokenized_fini(&c->reading);
    free(c);
}

/* Asks the next server of the query. Returns false if no server, no time or no memory is left. */
static bool
start_call(kvp_tokens_ask_t *ask)
{
    const char *url = ask->asked < 2 ? ask->urls[ask->asked] : "";
    const uint64_t gone_ms = (kvp_now_ns() - ask->since_ns) / KVP_NS_PER_MS;
    char at[KVP_TOKENIZER_URL_MAX + 16];
    call_t *c = url[0] == '\0' || gone_ms >= TIMEOUT_MS ? NULL : calloc(1, sizeof *c);

    if (c == NULL) return false;
    c->ask = ask;
    c->nth = ask->asked++;
    kvp_tokenized_init(&c->reading, ask->block_size, ask->seed);
    c->easy = curl_easy_init();
    c->headers = curl_slist_append(NULL, "Content-Type: application/json");
    /* an empty Expect header, because libcurl otherwise waits for "100 Continue" before it sends the body */
    if (c->headers != NULL) (void)curl_slist_append(c->headers, "Expect:");
    if (c->easy == NULL || c->headers == NULL) {
        free_call(c);
        return false;
    }
    snprintf(at, sizeof at, "%s/tokenize", url);
    curl_easy_setopt(c->easy, CURLOPT_URL, at);
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, (long)(TIMEOUT_MS - gone_ms));
    curl_easy_setopt(c->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c->easy, CURLOPT_PROXY, "");
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, ask->body);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    curl_multi_add_handle(ask->tokens->multi, c->easy);
    ask->calls[c->nth] = c;
    count_server(ask->tokens, url, true, CANCELLED);
    return true;
}

static void
end_call(call_t *c, end_t end)
{
    kvp_tokens_ask_t *ask = c->ask;

    count_server(ask->tokens, ask->urls[c->nth], false, end);
    curl_multi_remove_handle(ask->tokens->multi, c->easy);
    ask->calls[c->nth] = NULL;
    free_call(c);
}

/* Ends the query. If the second server has answered while the first one was silent, the first one counts as failed. */
static void
finish_ask(kvp_tokens_ask_t *ask, bool is_over)
{
    kvp_tokens_t *t = ask->tokens;

    for (uint32_t i = 0; i < 2; i++)
        if (ask->calls[i] != NULL)
            end_call(ask->calls[i], is_over || i > 0 || silence_ms(t, ask) < SECOND_MS ? CANCELLED : FAILED);
    kvp_list_del(&ask->link);
    pthread_mutex_lock(&t->mutex);
    t->asks_n--;
    pthread_mutex_unlock(&t->mutex);
    if (ask->is_ok) keep_result(t, ask);
    ask->done(ask);
}

static void
take_end(call_t *c, CURLcode code)
{
    kvp_tokens_ask_t *ask = c->ask;
    const char *url = ask->urls[c->nth];
    long status = 0;

    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    const bool is_none = status == 200 && (code == CURLE_WRITE_ERROR || code == CURLE_OK);

    ask->is_ok = code == CURLE_OK && status == 200 && kvp_tokenized_is_whole(&c->reading);
    if (ask->is_ok) {
        ask->tokens_n = c->reading.tokens_n;
        ask->hashes = c->reading.hashes;
        c->reading.hashes = (kvp_buf_t){.data = NULL};
    } else if (is_none) {
        snprintf(ask->why, sizeof ask->why, "%.100s tells no tokens", url);
    } else if (code != CURLE_OK && code != CURLE_WRITE_ERROR) {
        snprintf(ask->why, sizeof ask->why, "%.100s does not tokenize: %s", url, curl_easy_strerror(code));
    } else {
        snprintf(ask->why, sizeof ask->why, "%.100s does not tokenize: it answers %ld", url, status);
    }
    if (code == CURLE_OPERATION_TIMEDOUT && c->nth == 0 && silence_ms(ask->tokens, ask) < SECOND_MS)
        end_call(c, CANCELLED); /* the call timed out, but the server answers other texts */
    else
        end_call(c, (code != CURLE_OK && code != CURLE_WRITE_ERROR) || status >= 500 ? FAILED : ANSWERED);
    if (ask->is_ok || (ask->calls[0] == NULL && ask->calls[1] == NULL && !start_call(ask))) finish_ask(ask, false);
}

static void
take_queue(kvp_tokens_t *t)
{
    kvp_list_t taken;

    kvp_list_init(&taken);
    pthread_mutex_lock(&t->mutex);
    while (!kvp_list_is_empty(&t->queue)) {
        kvp_list_t *link = t->queue.next;

        kvp_list_del(link);
        kvp_list_add_tail(&taken, link);
    }
    if (kvp_now_ns() - t->swept_ns > FORGET_MS * KVP_NS_PER_MS) {
        t->swept_ns = kvp_now_ns();
        forget_servers(t);
    }
    pthread_mutex_unlock(&t->mutex);
    while (!kvp_list_is_empty(&taken)) {
        kvp_tokens_ask_t *ask = kvp_list_first(&taken, kvp_tokens_ask_t, link);

        kvp_list_del(&ask->link);
        kvp_list_add_tail(&t->active, &ask->link);
        if (!start_call(ask)) finish_ask(ask, true);
    }
}

/* Asks the second server of each query whose first one is silent for SECOND_MS. Returns the ms until the next check. */
static int
start_seconds(kvp_tokens_t *t)
{
    uint64_t next_ms = 1000;

    kvp_list_foreach (pos, &t->active) {
        kvp_tokens_ask_t *ask = kvp_list_entry(pos, kvp_tokens_ask_t, link);

        if (ask->asked != 1 || ask->urls[1][0] == '\0') continue;
        const uint64_t silent_ms = silence_ms(t, ask);

        if (silent_ms >= SECOND_MS)
            (void)start_call(ask);
        else
            next_ms = kvp_min_u64(next_ms, SECOND_MS - silent_ms);
    }
    return (int)next_ms + 1;
}

static bool
is_over(kvp_tokens_t *t)
{
    pthread_mutex_lock(&t->mutex);
    const bool is = t->is_over;
    pthread_mutex_unlock(&t->mutex);
    return is;
}

static void *
run_tokens(void *arg)
{
    kvp_tokens_t *t = arg;
    int running, left;
    CURLMsg *message;

    while (!is_over(t)) {
        take_queue(t);
        (void)curl_multi_perform(t->multi, &running);
        while ((message = curl_multi_info_read(t->multi, &left)) != NULL) {
            call_t *c;

            if (message->msg != CURLMSG_DONE) continue;
            const CURLcode code = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &c);
            take_end(c, code);
        }
        (void)curl_multi_poll(t->multi, NULL, 0, start_seconds(t), NULL);
    }
    take_queue(t);
    while (!kvp_list_is_empty(&t->active)) {
        kvp_tokens_ask_t *ask = kvp_list_first(&t->active, kvp_tokens_ask_t, link);

        snprintf(ask->why, sizeof ask->why, "the conductor ends");
        finish_ask(ask, true);
    }
    return NULL;
}

bool
kvp_tokens_ask(kvp_tokens_t *t, kvp_tokens_ask_t *ask)
{
    ask->tokens = t;
    ask->is_ok = false;
    ask->asked = 0;
    ask->calls[0] = ask->calls[1] = NULL;
    ask->since_ns = kvp_now_ns();
    ask->hashes = (kvp_buf_t){.data = NULL};
    kvp_list_init(&ask->link);
    snprintf(ask->why, sizeof ask->why, "out of memory");
    pthread_mutex_lock(&t->mutex);
    const bool is_taken = !t->is_over && t->asks_n < ASKS_MAX;
    if (is_taken) {
        t->asks_n++;
        kvp_list_add_tail(&t->queue, &ask->link);
    } else {
        snprintf(ask->why, sizeof ask->why, "too many texts wait for their tokens");
    }
    pthread_mutex_unlock(&t->mutex);
    if (is_taken) curl_multi_wakeup(t->multi);
    return is_taken;
}

/* ---- creation and destruction */
kvp_tokens_t *
kvp_tokens_create(void)
{
    kvp_tokens_t *t = calloc(1, sizeof *t);

    if (t == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(t);
        return NULL;
    }
    pthread_mutex_init(&t->mutex, NULL);
    kvp_digestmap_init(&t->servers, kvp_random_u64());
    kvp_list_init(&t->queue);
    kvp_list_init(&t->active);
    t->multi = curl_multi_init();
    t->is_over = t->multi == NULL;
    if (t->multi != NULL) {
        curl_multi_setopt(t->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, CONNECTIONS_MAX);
        curl_multi_setopt(t->multi, CURLMOPT_MAX_HOST_CONNECTIONS, CONNECTIONS_OF_SERVER_MAX);
        if (kvp_thread_start(&t->thread, "kvp-tokens", run_tokens, t) == KVP_OK) return t;
        t->is_over = true;
    }
    kvp_tokens_destroy(t);
    return NULL;
}

void
kvp_tokens_stop(kvp_tokens_t *t)
{
    pthread_mutex_lock(&t->mutex);
    const bool was_over = t->is_over;
    t->is_over = true;
    pthread_mutex_unlock(&t->mutex);
    if (was_over) return;
    curl_multi_wakeup(t->multi);
    pthread_join(t->thread, NULL);
}

void
kvp_tokens_destroy(kvp_tokens_t *t)
{
    if (t == NULL) return;
    kvp_tokens_stop(t);
    for (size_t i = 0; i < KEPT; i++)
        free(t->kept[i].hashes);
    kvp_digestmap_fini(&t->servers);
    curl_multi_cleanup(t->multi);
    pthread_mutex_destroy(&t->mutex);
    curl_global_cleanup();
    free(t);
}
