/* SPDX-License-Identifier: Apache-2.0
 * See tokens.h.
 */
#include "conductor/router/tokens.h"

#include "common/clock.h"

#include <curl/curl.h>
#include <json-c/json.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define TIMEOUT_MS 2000L
#define ANSWER_MAX (64u << 20)
#define KEPT 4096u /* texts, and */
#define KEPT_BYTES (64u << 20) /* bytes of their tokens */
#define AWAY 1024u
#define AWAY_NS (5 * KVP_NS_PER_S) /* for which a server that failed is not asked again */

typedef struct {
    XXH128_hash_t key;
    uint32_t *tokens; /* owned; NULL = the place is free */
    size_t n;
} kept_t;

struct kvp_tokens {
    pthread_mutex_t mutex; /* of what is kept */
    kept_t kept[KEPT]; /* by their keys: one text a place */
    size_t bytes, sweep;
    struct {
        XXH64_hash_t url;
        uint64_t until_ns;
    } away[AWAY]; /* by url */
};

static bool
find_kept(kvp_tokens_t *t, XXH128_hash_t key, kvp_buf_t *out)
{
    const kept_t *k = &t->kept[key.low64 % KEPT];
    bool is_there;

    pthread_mutex_lock(&t->mutex);
    is_there = k->tokens != NULL && XXH128_isEqual(k->key, key);
    if (is_there) kvp_buf_append(out, k->tokens, k->n * sizeof *k->tokens);
    pthread_mutex_unlock(&t->mutex);
    return is_there && out->err == KVP_OK;
}

static void
drop(kvp_tokens_t *t, kept_t *k)
{
    t->bytes -= k->n * sizeof *k->tokens;
    free(k->tokens);
    *k = (kept_t){.tokens = NULL};
}

static void
keep(kvp_tokens_t *t, XXH128_hash_t key, const uint32_t *tokens, size_t n)
{
    kept_t *k = &t->kept[key.low64 % KEPT];
    uint32_t *copy = n * sizeof *copy > KEPT_BYTES / 8 ? NULL : malloc((n + 1) * sizeof *copy);

    if (copy == NULL) return;
    memcpy(copy, tokens, n * sizeof *copy);
    pthread_mutex_lock(&t->mutex);
    drop(t, k);
    *k = (kept_t){key, copy, n};
    t->bytes += n * sizeof *copy;
    for (; t->bytes > KEPT_BYTES; t->sweep++)
        if (&t->kept[t->sweep % KEPT] != k) drop(t, &t->kept[t->sweep % KEPT]);
    pthread_mutex_unlock(&t->mutex);
}

/* ---- asking */
static size_t
on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    kvp_buf_append(arg, bytes, size * n);
    return ((kvp_buf_t *)arg)->err == KVP_OK ? size * n : 0;
}

/* *is_away_out: it is the server that cannot, not the text. */
static bool
ask(const char *url, const char *body, kvp_buf_t *answer, bool *is_away_out, char why[160])
{
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    char at[640];
    long status = 0;
    CURLcode code = CURLE_OUT_OF_MEMORY;

    snprintf(at, sizeof at, "%s/tokenize", url);
    if (easy != NULL && headers != NULL) {
        curl_easy_setopt(easy, CURLOPT_URL, at);
        curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, TIMEOUT_MS);
        curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(easy, CURLOPT_PROXY, "");
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);
        code = curl_easy_perform(easy);
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
    if (code != CURLE_OK)
        snprintf(why, 160, "%.100s does not tokenize: %s", url, curl_easy_strerror(code));
    else if (status != 200)
        snprintf(why, 160, "%.100s does not tokenize: it answers %ld", url, status);
    *is_away_out = code != CURLE_OK || status >= 500;
    return code == CURLE_OK && status == 200;
}

static bool
read_tokens(const kvp_buf_t *answer, kvp_buf_t *out)
{
    json_object *told = json_tokener_parse((const char *)answer->data), *list = NULL;
    bool is_good = json_object_object_get_ex(told, "tokens", &list) && json_object_is_type(list, json_type_array);

    for (size_t i = 0; is_good && i < json_object_array_length(list); i++) {
        json_object *one = json_object_array_get_idx(list, i);
        const int64_t number = json_object_is_type(one, json_type_int) ? json_object_get_int64(one) : -1;
        const uint32_t token = (uint32_t)number;

        is_good = number >= 0 && number <= UINT32_MAX;
        kvp_buf_append(out, &token, sizeof token);
    }
    json_object_put(told);
    return is_good && out->err == KVP_OK;
}

bool
kvp_tokens_is_away(kvp_tokens_t *t, const char *url)
{
    const XXH64_hash_t h = XXH3_64bits(url, strlen(url));
    bool is_away;

    pthread_mutex_lock(&t->mutex);
    is_away = t->away[h % AWAY].url == h && kvp_boot_ns() < t->away[h % AWAY].until_ns;
    pthread_mutex_unlock(&t->mutex);
    return is_away;
}

static void
set_away(kvp_tokens_t *t, const char *url)
{
    const XXH64_hash_t h = XXH3_64bits(url, strlen(url));

    pthread_mutex_lock(&t->mutex);
    t->away[h % AWAY].url = h;
    t->away[h % AWAY].until_ns = kvp_boot_ns() + AWAY_NS;
    pthread_mutex_unlock(&t->mutex);
}

bool
kvp_tokens_of(kvp_tokens_t *t, const char *url, const char *body, kvp_buf_t *out, char why[160])
{
    const XXH128_hash_t key = XXH3_128bits(body, strlen(body));
    kvp_buf_t answer;
    bool is_ok, is_away;

    if (find_kept(t, key, out)) return true;
    kvp_buf_reset(out);
    kvp_buf_init(&answer, ANSWER_MAX);
    is_ok = ask(url, body, &answer, &is_away, why);
    kvp_buf_append(&answer, "", 1);
    if (is_ok && (answer.err != KVP_OK || !read_tokens(&answer, out))) {
        snprintf(why, 160, "%.100s tells no tokens", url);
        is_ok = false;
    }
    kvp_buf_fini(&answer);
    if (is_away) set_away(t, url);
    if (is_ok) keep(t, key, (const uint32_t *)out->data, out->len / sizeof(uint32_t));
    return is_ok;
}

/* ---- life */
kvp_tokens_t *
kvp_tokens_create(void)
{
    kvp_tokens_t *t = calloc(1, sizeof *t);

    if (t == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(t);
        return NULL;
    }
    pthread_mutex_init(&t->mutex, NULL);
    return t;
}

void
kvp_tokens_destroy(kvp_tokens_t *t)
{
    if (t == NULL) return;
    for (size_t i = 0; i < KEPT; i++)
        free(t->kept[i].tokens);
    pthread_mutex_destroy(&t->mutex);
    curl_global_cleanup();
    free(t);
}
