/* SPDX-License-Identifier: Apache-2.0
 * router_sim: a trace of requests over simulated instances, with four ways to choose an instance:
 * the router (conductor/router), the longest prefix alone, the least load alone, and round-robin.
 * An instance computes prompts one after another, and has an LRU cache of blocks. Its events follow
 * after each prompt, not when the prompt is sent. Many prompts begin with a hot prefix, like a
 * system prompt. Prints for each policy the cached tokens and the time to the first token.
 *
 * usage: router_sim TRACE [instances [load [cache_blocks]]] default: 8 instances, load 0.7 (of
 * their capacity without caches), 2500 blocks each Exit code 1 if the router misses its goals. */
#include "tools/replay/lru_sim.h"
#include "tools/replay/trace.h"
#include "conductor/router/router.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INSTANCES_MAX 64u
#define BLOCK 512u
#define HOT_BLOCKS 8u
#define HOT_SHARE 60u /* of 100 prompts */
#define TOKENS_S 10000.0 /* tokens that an instance computes in a second */
#define TOKEN_MS 20.0 /* of an output token */

typedef enum { ROUTER, PREFIX, LEAST, TURNS, POLICIES } policy_t;
static const char *const names[POLICIES] = {"router", "longest prefix", "least load", "in turns"};

typedef struct {
    double at_ms;
    uint32_t request, instance;
    uint64_t route;
    bool is_end; /* of the whole request; else of its prompt */
} event_t;

typedef struct {
    kvp_workload_t work;
    double scale; /* of the trace's time */
    uint32_t instances;
    uint32_t cache_blocks;
} conf_t;

typedef struct {
    kvp_lru_sim_t *caches[INSTANCES_MAX];
    double free_at[INSTANCES_MAX];
    uint32_t open[INSTANCES_MAX], turn;
    kvp_router_t *router;
    event_t *heap;
    size_t heap_n;
    uint64_t chain[KVP_REQUEST_BLOCKS_MAX + HOT_BLOCKS];
    size_t chain_n;
    double *first_ms;
    uint64_t tokens, reused;
} sim_t;

/* ---- what is to happen, the next first */
static void
push(sim_t *s, event_t e)
{
    size_t at = s->heap_n++;

    for (; at > 0 && s->heap[(at - 1) / 2].at_ms > e.at_ms; at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = e;
}

static event_t
pop(sim_t *s)
{
    const event_t first = s->heap[0], last = s->heap[--s->heap_n];
    size_t at = 0;

    for (size_t child; (child = 2 * at + 1) < s->heap_n; at = child) {
        if (child + 1 < s->heap_n && s->heap[child + 1].at_ms < s->heap[child].at_ms) child++;
        if (s->heap[child].at_ms >= last.at_ms) break;
        s->heap[at] = s->heap[child];
    }
    s->heap[at] = last;
    return first;
}

/* ---- one request */
static void
make_chain(const conf_t *conf, sim_t *s, uint32_t number)
{
    const kvp_request_t *r = &conf->work.requests[number];

    s->chain_n = 0;
    /* All requests of a conversation are hot or none is: their first block is the same. */
    if (r->ids_n > 0 && conf->work.ids[r->ids_at] * 2654435761u % 100 < HOT_SHARE)
        for (uint32_t i = 0; i < HOT_BLOCKS; i++)
            s->chain[s->chain_n++] = UINT64_MAX - i;
    for (size_t i = 0; i < r->ids_n; i++)
        s->chain[s->chain_n++] = conf->work.ids[r->ids_at + i];
}

static uint32_t
cached(const sim_t *s, uint32_t instance)
{
    uint32_t n = 0;

    while (n < s->chain_n && kvp_lru_sim_has(s->caches[instance], s->chain[n]))
        n++;
    return n;
}

static uint32_t
choose(const conf_t *conf, sim_t *s, policy_t policy, double now_ms, uint64_t *route_out)
{
    kvp_candidate_t candidates[INSTANCES_MAX] = {0};
    uint32_t best = s->turn++ % conf->instances;
    kvp_choice_t route;

    *route_out = 0;
    if (policy == TURNS) return best;
    for (uint32_t k = 0; k < conf->instances; k++) {
        const uint32_t i = (s->turn + k) % conf->instances, n = cached(s, i);

        candidates[i] = (kvp_candidate_t){.target = i, .matched = n * BLOCK, .gpu = n * BLOCK};
        if (policy == PREFIX && n > cached(s, best)) best = i;
        if (policy == LEAST && s->open[i] < s->open[best]) best = i;
    }
    if (policy != ROUTER) return best;
    kvp_router_pick(s->router,
                    &(kvp_route_ask_t){.tokens = (uint32_t)s->chain_n * BLOCK,
                                       .block_size = BLOCK,
                                       .hashes = s->chain,
                                       .blocks = (uint32_t)s->chain_n},
                    candidates, conf->instances, (uint64_t)(now_ms * 1e6) + 1, &route);
    *route_out = route.id;
    return route.at;
}

static void
arrive(const conf_t *conf, sim_t *s, policy_t policy, uint32_t number, double now_ms)
{
    const kvp_request_t *r = &conf->work.requests[number];
    uint64_t route;
    uint32_t i, has;
    double begin_ms, end_ms;

    make_chain(conf, s, number);
    i = choose(conf, s, policy, now_ms, &route);
    has = cached(s, i);
    begin_ms = fmax(now_ms, s->free_at[i]);
    end_ms = begin_ms + 1000.0 * (double)(s->chain_n - has) * BLOCK / TOKENS_S + 1;
    s->free_at[i] = end_ms;
    s->open[i]++;
    s->first_ms[number] = end_ms - now_ms;
    s->tokens += s->chain_n * BLOCK;
    s->reused += (uint64_t)has * BLOCK;
    push(s, (event_t){end_ms, number, i, 0, false});
    push(s, (event_t){end_ms + TOKEN_MS * (double)r->output_tokens, number, i, route, true});
}

static void
happen(const conf_t *conf, sim_t *s, const event_t *e)
{
    if (e->is_end) {
        s->open[e->instance]--;
        if (e->route != 0) (void)kvp_router_done(s->router, e->route, (uint64_t)(e->at_ms * 1e6) + 1);
        return;
    }
    make_chain(conf, s, e->request);
    (void)kvp_lru_sim_request(s->caches[e->instance], s->chain, s->chain_n);
}

/* ---- one policy */
typedef struct {
    double reuse, mean_ms, p90_ms;
} result_t;

static int
by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static result_t
run(const conf_t *conf, policy_t policy)
{
    static sim_t s;
    const size_t n = conf->work.requests_n;
    double sum = 0;

    memset(&s, 0, sizeof s);
    s.router = kvp_router_create(&kvp_router_defaults);
    s.heap = calloc(2 * n + 2, sizeof *s.heap);
    s.first_ms = calloc(n, sizeof *s.first_ms);
    if (s.router == NULL || s.heap == NULL || s.first_ms == NULL) exit(1);
    for (uint32_t i = 0; i < conf->instances; i++) {
        char name[16];

        snprintf(name, sizeof name, "i%u", i);
        if (kvp_lru_sim_create(conf->cache_blocks, &s.caches[i]) != KVP_OK || kvp_router_target(s.router, name, 0) != i)
            exit(1);
    }
    for (uint32_t number = 0; number < n; number++) {
        const double now_ms = (double)conf->work.requests[number].timestamp_ms * conf->scale;

        while (s.heap_n > 0 && s.heap[0].at_ms <= now_ms) {
            const event_t e = pop(&s);

            happen(conf, &s, &e);
        }
        kvp_router_tick(s.router, (uint64_t)(now_ms * 1e6) + 1);
        arrive(conf, &s, policy, number, now_ms);
    }
    for (size_t i = 0; i < n; i++)
        sum += s.first_ms[i];
    qsort(s.first_ms, n, sizeof *s.first_ms, by_value);
    const result_t result = {(double)s.reused / (double)s.tokens, sum / (double)n, s.first_ms[n * 9 / 10]};

    for (uint32_t i = 0; i < conf->instances; i++)
        kvp_lru_sim_destroy(s.caches[i]);
    kvp_router_destroy(s.router);
    free(s.heap);
    free(s.first_ms);
    return result;
}

int
main(int argc, char **argv)
{
    conf_t conf = {.instances = argc > 2 ? (uint32_t)atoi(argv[2]) : 8,
                   .cache_blocks = argc > 4 ? (uint32_t)atoi(argv[4]) : 2500};
    const double load = argc > 3 ? atof(argv[3]) : 0.7;
    char why[KVP_TRACE_WHY_MAX];
    result_t results[POLICIES];
    uint64_t tokens = 0;
    bool is_short = false;

    if (argc < 2 || conf.instances == 0 || conf.instances > INSTANCES_MAX || load <= 0 || conf.cache_blocks == 0) {
        fprintf(stderr, "usage: router_sim TRACE [instances [load [cache_blocks]]]\n");
        return 2;
    }
    if (kvp_trace_load(argv[1], SIZE_MAX, &conf.work, why) != KVP_OK || conf.work.requests_n < 2) {
        fprintf(stderr, "router_sim: %s\n", why);
        return 1;
    }
    for (size_t i = 0; i < conf.work.requests_n; i++)
        tokens += (conf.work.requests[i].ids_n + HOT_BLOCKS * HOT_SHARE / 100) * BLOCK;
    const uint64_t last_ms = conf.work.requests[conf.work.requests_n - 1].timestamp_ms;
    conf.scale = 1000.0 * (double)tokens / (TOKENS_S * conf.instances * load * (double)last_ms);
    printf("%zu requests, %u instances of %u blocks, load %.2f\n", conf.work.requests_n, conf.instances,
           conf.cache_blocks, load);
    for (policy_t p = 0; p < POLICIES; p++) {
        results[p] = run(&conf, p);
        printf("%-15s  %5.1f %% of tokens cached; first token after %8.0f ms in the mean, 90 %% within %8.0f ms\n",
               names[p], 100 * results[p].reuse, results[p].mean_ms, results[p].p90_ms);
        is_short |= p != ROUTER && results[p].mean_ms <= results[ROUTER].mean_ms;
    }
    is_short |= results[ROUTER].reuse < 0.9 * results[PREFIX].reuse;
    printf("router: %.2f of the tokens that the longest prefix reuses (asked 0.90), mean %.2f of the best of the "
           "others (asked below 1): %s\n",
           results[ROUTER].reuse / results[PREFIX].reuse,
           results[ROUTER].mean_ms /
               fmin(results[PREFIX].mean_ms, fmin(results[LEAST].mean_ms, results[TURNS].mean_ms)),
           is_short ? "SHORT" : "pass");
    kvp_workload_fini(&conf.work);
    return is_short ? 1 : 0;
}
