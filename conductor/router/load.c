/* SPDX-License-Identifier: Apache-2.0
 * See load.h. */
#include "conductor/router/load.h"

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_MS 1000
#define TIMEOUT_MS 900L
#define TEXT_MAX (4u << 20)
#define TAG_MAX 256u
#define AT_ONCE 256L /* limit of the connections to servers at a time */

typedef struct call {
    struct call *next;
    CURL *easy;
    struct kvp_load *load;
    kvp_buf_t text; /* body of the answer to /metrics */
    size_t models_bytes;
    kvp_models_list_t *models; /* parser of the list of models; NULL = a call of /metrics */
    char tag[TAG_MAX];
} call_t;

struct kvp_load {
    kvp_load_ops_t ops;
    pthread_t thread;
    CURLM *multi;
    call_t *calls;
    _Atomic bool is_over;
};

/* ---- parsing of /metrics */
/* Names of the gauges in vLLM and SGLang: running requests at even indices, waiting requests at odd indices. */
static const char *const gauges[] = {"vllm:num_requests_running", "vllm:num_requests_waiting",
                                     "sglang:num_running_reqs", "sglang:num_queue_reqs"};

/* Returns the data-parallel rank in the labels of a line; the labels end at `end`. */
static uint32_t
rank_of(const char *labels, const char *end)
{
    static const char *const keys[] = {"engine=\"", "dp_rank=\""};

    for (size_t i = 0; i < KVP_ARRAY_LEN(keys); i++) {
        const char *at = memmem(labels, (size_t)(end - labels), keys[i], strlen(keys[i]));

        if (at != NULL) return (uint32_t)strtoul(at + strlen(keys[i]), NULL, 10);
    }
    return 0;
}

uint32_t
kvp_load_parse(const char *text, uint32_t running[KVP_LOAD_RANKS_MAX], uint32_t waiting[KVP_LOAD_RANKS_MAX])
{
    uint32_t n = 0;

    memset(running, 0, KVP_LOAD_RANKS_MAX * sizeof *running);
    memset(waiting, 0, KVP_LOAD_RANKS_MAX * sizeof *waiting);
    for (const char *line = text, *end; *line != '\0'; line = *end == '\0' ? end : end + 1) {
        end = strchrnul(line, '\n');
        for (size_t i = 0; i < KVP_ARRAY_LEN(gauges); i++) {
            const size_t len = strlen(gauges[i]);
            const char *value;
            double number;
            uint32_t rank;

            if ((size_t)(end - line) <= len || memcmp(line, gauges[i], len) != 0) continue;
            if (line[len] != '{' && line[len] != ' ') continue;
            value = line[len] == '{' ? memrchr(line, '}', (size_t)(end - line)) : line + len - 1;
            if (value == NULL) continue;
            rank = rank_of(line + len, value + 1);
            number = strtod(value + 1, NULL);
            if (rank >= KVP_LOAD_RANKS_MAX || !(number >= 0 && number < 1e9)) continue;
            /* adds up all models of a rank, because a server may report each of its models on a line */
            (i % 2 == 0 ? running : waiting)[rank] += (uint32_t)number;
            n = rank + 1 > n ? rank + 1 : n;
        }
    }
    return n;
}

/* ---- calls to servers */
static size_t
on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    call_t *c = arg;

    if (c->models != NULL) {
        c->models_bytes += size * n;
        return c->models_bytes <= TEXT_MAX && kvp_models_list_feed(c->models, bytes, size * n) ? size * n : 0;
    }
    kvp_buf_append(&c->text, bytes, size * n);
    return c->text.err == KVP_OK ? size * n : 0;
}

static void
on_listed(void *arg, const char *name, kvp_model_kind_t kind)
{
    const call_t *c = arg;

    c->load->ops.listed(c->load->ops.arg, c->tag, name, kind);
}

static void
free_call(call_t *c)
{
    curl_easy_cleanup(c->easy);
    kvp_buf_fini(&c->text);
    free(c->models);
    free(c);
}

static void
start_call(kvp_load_t *load, const char *url, const char *tag, bool is_models)
{
    call_t *c = calloc(1, sizeof *c);
    char at[640];

    if (c == NULL) return;
    c->load = load;
    kvp_buf_init(&c->text, TEXT_MAX);
    snprintf(c->tag, sizeof c->tag, "%s", tag);
    snprintf(at, sizeof at, "%s%s", url, is_models ? "/v1/models" : "/metrics");
    c->easy = curl_easy_init();
    if (is_models) c->models = malloc(sizeof *c->models);
    if (c->easy == NULL || (is_models && c->models == NULL)) {
        free_call(c);
        return;
    }
    if (is_models) kvp_models_list_init(c->models, on_listed, c);
    curl_easy_setopt(c->easy, CURLOPT_URL, at);
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, TIMEOUT_MS);
    curl_easy_setopt(c->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c->easy, CURLOPT_PROXY, "");
    curl_easy_setopt(c->easy, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    curl_multi_add_handle(load->multi, c->easy);
    c->next = load->calls;
    load->calls = c;
}

static void
add_call(void *to, const char *url, const char *tag, bool wants_models)
{
    kvp_load_t *load = to;

    start_call(load, url, tag, false);
    if (wants_models) start_call(load, url, tag, true);
}

static void
take_answer(kvp_load_t *load, call_t *c)
{
    uint32_t running[KVP_LOAD_RANKS_MAX], waiting[KVP_LOAD_RANKS_MAX], n;

    kvp_buf_append(&c->text, "", 1);
    if (c->text.err != KVP_OK) return;
    n = kvp_load_parse((const char *)c->text.data, running, waiting);
    for (uint32_t rank = 0; rank < n; rank++)
        load->ops.told(load->ops.arg, c->tag, rank, running[rank], waiting[rank]);
}

static void
end_calls(kvp_load_t *load)
{
    for (call_t *c = load->calls, *next; c != NULL; c = next) {
        next = c->next;
        curl_multi_remove_handle(load->multi, c->easy);
        free_call(c);
    }
    load->calls = NULL;
}

/* Runs the calls to servers until all have ended, or until the time until_ns. */
static void
run_calls(kvp_load_t *load, uint64_t until_ns)
{
    int running = 1, left;
    CURLMsg *message;

    while (running > 0 && !load->is_over && kvp_now_ns() < until_ns) {
        if (curl_multi_perform(load->multi, &running) != CURLM_OK) break;
        while ((message = curl_multi_info_read(load->multi, &left)) != NULL) {
            call_t *c;

            if (message->msg != CURLMSG_DONE) continue;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &c);
            if (c->models != NULL) continue; /* the list was parsed as it arrived */
            load->ops.asked(load->ops.arg, c->tag, message->data.result != CURLE_COULDNT_CONNECT);
            if (message->data.result == CURLE_OK) take_answer(load, c);
        }
        if (running > 0) curl_multi_poll(load->multi, NULL, 0, 100, NULL);
    }
}

static void *
run_load(void *arg)
{
    kvp_load_t *load = arg;

    while (!load->is_over) {
        const uint64_t until_ns = kvp_now_ns() + EVERY_MS * KVP_NS_PER_MS;

        load->ops.list(load->ops.arg, add_call, load);
        run_calls(load, until_ns);
        end_calls(load);
        for (uint64_t now_ns; !load->is_over && (now_ns = kvp_now_ns()) < until_ns;)
            curl_multi_poll(load->multi, NULL, 0, (int)((until_ns - now_ns) / KVP_NS_PER_MS) + 1, NULL);
    }
    return NULL;
}

/* ---- start and stop */
kvp_err_t
kvp_load_start(const kvp_load_ops_t *ops, kvp_load_t **out)
{
    kvp_load_t *load = calloc(1, sizeof *load);
    kvp_err_t err = KVP_NOMEM;

    if (load == NULL) return err;
    load->ops = *ops;
    load->multi = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_multi_init() : NULL;
    if (load->multi != NULL) {
        curl_multi_setopt(load->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, AT_ONCE);
        err = kvp_thread_start(&load->thread, "kvp-load", run_load, load);
    }
    if (err == KVP_OK) {
        *out = load;
        return KVP_OK;
    }
    kvp_log_error("router", "cannot ask servers for their load: %s", kvp_err_name(err));
    curl_multi_cleanup(load->multi);
    free(load);
    return err;
}

void
kvp_load_stop(kvp_load_t *load)
{
    if (load == NULL) return;
    load->is_over = true;
    curl_multi_wakeup(load->multi);
    pthread_join(load->thread, NULL);
    end_calls(load);
    curl_multi_cleanup(load->multi);
    curl_global_cleanup();
    free(load);
}
