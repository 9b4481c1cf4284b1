/* SPDX-License-Identifier: Apache-2.0
 * The router's choices, and what servers tell of their load. */
#include "conductor/index/spaces.h"
#include "conductor/router/load.h"
#include "conductor/index/chain.h"
#include "conductor/router/router.h"
#include "conductor/router/tokens.h"
#include "tests/cases.h"

#include <stdio.h>
#include <string.h>

#define S 1000000000ull
#define N 3u

typedef struct {
    kvp_router_t *r;
    kvp_candidate_t c[N];
    uint64_t hashes[64];
} rig_t;

static void
open_rig(rig_t *g)
{
    memset(g, 0, sizeof *g);
    g->r = kvp_router_create(&kvp_router_defaults);
    assert_non_null(g->r);
    for (uint32_t i = 0; i < N; i++) {
        char name[8];

        snprintf(name, sizeof name, "i%u", i);
        g->c[i].target = kvp_router_target(g->r, name, 0);
        assert_int_equal(kvp_router_target(g->r, name, 0), g->c[i].target);
    }
    assert_int_not_equal(kvp_router_target(g->r, "i0", 1), g->c[0].target);
    for (uint64_t i = 0; i < 64; i++)
        g->hashes[i] = 1000 + i;
}

static kvp_choice_t
pick(rig_t *g, uint32_t tokens, uint64_t session, uint64_t now_ns)
{
    kvp_choice_t out;

    kvp_router_pick(
        g->r,
        &(kvp_route_ask_t){
            .tokens = tokens, .block_size = 16, .hashes = g->hashes, .blocks = tokens / 16, .session = session},
        g->c, N, now_ns, &out);
    return out;
}

/* 1000 tokens take 100 ms to compute, 5 from CPU, 20 from disk. */
TEST(test_estimates)
{
    rig_t g;
    kvp_choice_t r;

    open_rig(&g);
    g.c[0].matched = g.c[0].gpu = 400;
    g.c[1].matched = g.c[1].cpu = 800;
    g.c[2].matched = 900; /* from disk */
    r = pick(&g, 1000, 0, S);
    assert_int_equal(r.at, 1);
    assert_true(r.compute_ms > 19.9 && r.compute_ms < 20.1 && r.fetch_ms > 3.9 && r.fetch_ms < 4.1 && r.queue_ms == 0);
    assert_int_equal(r.longest, 2);
    r = pick(&g, 1000, 0, S);
    assert_int_equal(r.at, 2); /* the other one is busy with the first */
    assert_true(r.fetch_ms > 17.9 && r.fetch_ms < 18.1);
    kvp_router_note(g.r, g.c[2].target, 100, 0, S);
    kvp_router_note(g.r, g.c[1].target, 0, 100, S);
    assert_int_equal(pick(&g, 1000, 0, S).at, 0); /* recomputing 600 tokens is sooner than to wait */
    kvp_router_destroy(g.r);
}

TEST(test_pending_sessions_and_ends)
{
    rig_t g;
    kvp_choice_t first, again;
    kvp_router_stats_t st;

    open_rig(&g);
    first = pick(&g, 1024, 7, S);
    assert_int_equal(first.pending, 0);
    kvp_router_stats(g.r, &st);
    assert_int_equal(st.open, 1);
    assert_true(kvp_router_done(g.r, first.id, S));
    assert_false(kvp_router_done(g.r, first.id, S));
    assert_false(kvp_router_done(g.r, 0, S));
    again = pick(&g, 1024, 0, S); /* its events have not come */
    assert_int_equal(again.at, first.at);
    assert_int_equal(again.pending, 1024);
    assert_true(again.queue_ms == 0);
    (void)kvp_router_done(g.r, again.id, S);
    for (uint32_t i = 0; i < 64; i++)
        g.hashes[i]++; /* another prompt of the same session */
    again = pick(&g, 1024, 7, S);
    assert_true(again.at == first.at && again.has_affinity);
    (void)kvp_router_done(g.r, again.id, S);
    again = pick(&g, 1024, 0, 30 * S); /* what never came does not count for ever */
    assert_int_equal(again.pending, 0);
    kvp_router_tick(g.r, 89 * S);
    kvp_router_stats(g.r, &st);
    assert_int_equal(st.open, 1);
    kvp_router_tick(g.r, 91 * S);
    kvp_router_stats(g.r, &st);
    assert_true(st.open == 0 && st.expired == 1 && st.done == 3 && st.routes == 4);
    for (uint32_t i = 0; i < KVP_ROUTER_OPEN_MAX + 10; i++)
        (void)pick(&g, 16, 0, 100 * S);
    kvp_router_stats(g.r, &st);
    assert_int_equal(st.open, KVP_ROUTER_OPEN_MAX);
    kvp_router_destroy(g.r);
}

/* Fails if a prompt that was just sent somewhere counts there for the same tokens of another namespace. */
TEST(test_pending_of_another_namespace)
{
    rig_t g;
    kvp_choice_t out;
    uint64_t seen = 0;

    open_rig(&g);
    for (uint64_t space = 1; space <= N; space++) {
        kvp_router_pick(
            g.r, &(kvp_route_ask_t){.tokens = 1024, .block_size = 16, .hashes = g.hashes, .blocks = 64, .space = space},
            g.c, N, S, &out);
        assert_int_equal(out.pending, 0);
        seen |= 1ull << out.at;
        assert_true(kvp_router_done(g.r, out.id, S));
    }
    assert_int_equal(seen, (1u << N) - 1); /* nothing attracts them, so they go in turns */
    kvp_router_destroy(g.r);
}

static uint64_t
hash_of(const char *model, const char *tenant, const char *salt, const char *lora, uint32_t block_size)
{
    return kvp_space_hash(&(kvp_namespace_t){model, tenant, salt, lora, block_size});
}

TEST(test_hashes_of_namespaces)
{
    const uint64_t is = hash_of("m", "t", "s", "l", 16);

    assert_int_equal(hash_of("m", "t", "s", "l", 16), is);
    assert_int_not_equal(hash_of("n", "t", "s", "l", 16), is);
    assert_int_not_equal(hash_of("m", "u", "s", "l", 16), is);
    assert_int_not_equal(hash_of("m", "t", "", "l", 16), is);
    assert_int_not_equal(hash_of("m", "t", "l", "s", 16), is);
    assert_int_not_equal(hash_of("m", "t", "s", "", 16), is);
    assert_int_not_equal(hash_of("m", "t", "s", "l", 32), is);
}

/* Fails if instances that have left keep their places, or if what was sent to one of them counts for its successor. */
TEST(test_instances_that_come_and_go)
{
    const kvp_route_ask_t ask = {
        .tokens = 16, .block_size = 16, .hashes = (const uint64_t[]){5}, .blocks = 1, .session = 9};
    kvp_router_t *r = kvp_router_create(&kvp_router_defaults);
    kvp_choice_t out;
    char name[32];

    for (uint32_t i = 0; i < 100000; i++) {
        kvp_candidate_t c;

        snprintf(name, sizeof name, "instance-%u", i);
        c = (kvp_candidate_t){.target = kvp_router_target(r, name, i % 3)};
        assert_int_not_equal(c.target, KVP_ROUTE_NONE);
        kvp_router_pick(r, &ask, &c, 1, S, &out);
        assert_true(out.at == 0 && out.pending == 0 && !out.has_affinity);
        if (i % 2000 != 0) continue;
        kvp_router_sweep(r); /* it was seen before this one, and not before the next one */
        kvp_router_sweep(r);
        assert_true(kvp_router_find(r, name, i % 3) != KVP_ROUTE_NONE); /* a route is open there */
        kvp_router_tick(r, 100 * S);
        kvp_router_sweep(r);
        assert_int_equal(kvp_router_find(r, name, i % 3), KVP_ROUTE_NONE);
    }
    kvp_router_destroy(r);
}

/* Without tokens the load alone decides, in turns where it is the same. */
TEST(test_by_load_alone)
{
    uint32_t chosen[N] = {0};
    rig_t g;

    open_rig(&g);
    for (uint32_t i = 0; i < 30; i++)
        chosen[pick(&g, 0, 0, S).at]++;
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(chosen[i], 10);
    kvp_router_destroy(g.r);
}

TEST(test_texts_of_servers)
{
    uint32_t running[KVP_LOAD_RANKS_MAX], waiting[KVP_LOAD_RANKS_MAX];

    assert_int_equal(kvp_load_parse("", running, waiting), 0);
    assert_int_equal(kvp_load_parse("# HELP x\nvllm:num_requests_running{engine=\"0\",model_name=\"a}b\"} "
                                    "3.0\nvllm:num_requests_waiting{engine=\"1\"} 2\n"
                                    "vllm:num_requests_running_total{engine=\"5\"} "
                                    "9\nvllm:num_requests_running{engine=\"0\",model_name=\"c\"} 1e0",
                                    running, waiting),
                     2);
    assert_true(running[0] == 4 && waiting[0] == 0 && waiting[1] == 2);
    assert_int_equal(
        kvp_load_parse("sglang:num_running_reqs 7\nsglang:num_queue_reqs{dp_rank=\"0\"} 8\n", running, waiting), 1);
    assert_true(running[0] == 7 && waiting[0] == 8);
    assert_int_equal(kvp_load_parse("vllm:num_requests_running{engine=\"99\"} 1\nvllm:num_requests_running{ "
                                    "1\nvllm:num_requests_running{} nan\n"
                                    "vllm:num_requests_waiting{} -1\nvllm:num_requests_waiting",
                                    running, waiting),
                     0);
}

/* ---- lists of models */
typedef struct {
    char text[4096];
} listing_t;

static void
on_listed(void *arg, const char *name, kvp_model_kind_t kind)
{
    listing_t *l = arg;

    snprintf(l->text + strlen(l->text), sizeof l->text - strlen(l->text), "%s%s ", kind == KVP_MODEL_ADAPTER ? "+" : "",
             name);
}

/* Fed in pieces of that many bytes. NULL: it is no list. */
static const char *
list_of(listing_t *l, const char *text, size_t piece)
{
    const size_t len = strlen(text);
    kvp_models_list_t list;

    l->text[0] = '\0';
    kvp_models_list_init(&list, on_listed, l);
    for (size_t at = 0; at < len; at += piece)
        if (!kvp_models_list_feed(&list, text + at, kvp_min_u64(piece, len - at))) return NULL;
    return kvp_jsonscan_is_whole(&list.scan) ? l->text : NULL;
}

TEST(test_lists_of_models)
{
    static const char good[] =
        " {\"object\":\"list\",\"data\":[{\"id\":\"base\",\"parent\":null},{\"parent\":\"base\", "
        "\"permission\":[{\"id\":\"p\",\"parent\":\"p\"}],\"id\":\"sql\"},{\"id\":7},[{\"id\":\"no\"}],"
        "{\"id\":\"a\\\"b\"}],\"x\":{\"id\":\"no\"},\"n\":[-1.5e+3,0,true,[]]}\n";
    static const char *const bad[] = {"",
                                      "[1]",
                                      "{\"data\":[{\"id\":\"a\"}]",
                                      "{\"a\" 1}",
                                      "{\"a\":1,}",
                                      "{\"a\":[1,]}",
                                      "{\"a\":01}",
                                      "{a:1}",
                                      "{\"a\":1]",
                                      "{\"a\":nul}",
                                      "{\"a\":1}x",
                                      "{\"a\":1.}",
                                      "{\"a\":\"\n\"}",
                                      "{\"a\":-}",
                                      "\"a\"",
                                      "{\"a\":[1 2]}",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{,}",
                                      "{\"a\":1 \"b\":2}"};
    char deep[200] = "{\"a\":";
    listing_t l;

    for (size_t piece = 1; piece <= sizeof good; piece++)
        assert_string_equal(list_of(&l, good, piece), "base +sql ");
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        assert_null(list_of(&l, bad[i], 100));
    memset(deep + strlen(deep), '[', KVP_JSONSCAN_DEPTH_MAX);
    assert_null(list_of(&l, deep, sizeof deep));
}

static bool
read_tokens(const char *text, kvp_tokenized_t *out)
{
    kvp_tokenized_init(out, 2, 5);
    return kvp_tokenized_feed(out, text, strlen(text)) && kvp_tokenized_is_whole(out);
}

TEST(test_answers_of_tokenizers)
{
    static const char *const bad[] = {"{\"tokens\":7}",
                                      "{\"tokens\":[1,-2]}",
                                      "{\"tokens\":[1.5]}",
                                      "{\"tokens\":[4294967296]}",
                                      "{\"tokens\":[\"1\"]}",
                                      "{\"tokens\":[null]}",
                                      "{\"tokens\":[1],\"tokens\":[1]}",
                                      "{\"tokens\":{\"\":1}}",
                                      "{\"tokens\":[[1]]}",
                                      "{\"x\":{\"tokens\":[1]}}",
                                      "{\"tokens\":[1]",
                                      "{}"};
    static const char good[] =
        "{\"count\":5,\"token_strs\":[\"\\u0041]\"],\"tokens\":[ 1, 2,3 ,4294967295,0],\"x\":{\"tokens\":[9]}}";
    const uint32_t tokens[4] = {1, 2, 3, UINT32_MAX};
    const uint64_t first = kvp_chain_next(NULL, tokens, 2, 5), second = kvp_chain_next(&first, tokens + 2, 2, 5);
    kvp_tokenized_t out;

    assert_true(read_tokens(good, &out));
    assert_true(out.tokens_n == 5 && out.hashes.len == 16);
    assert_true(memcmp(out.hashes.data, &first, 8) == 0 && memcmp(out.hashes.data + 8, &second, 8) == 0);
    kvp_tokenized_fini(&out);
    assert_true(read_tokens("{\"tokens\":[]}", &out));
    assert_true(out.tokens_n == 0 && out.hashes.len == 0);
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        assert_false(read_tokens(bad[i], &out));
        kvp_tokenized_fini(&out);
    }
}

/* Fails if names that no server lists any more stay known, or keep memory. */
TEST(test_models_that_come_and_go)
{
    kvp_models_t m;
    char name[32];

    kvp_models_init(&m, 1);
    assert_true(kvp_models_is_due(&m, "i", 1) && !kvp_models_is_due(&m, "i", 5000) && kvp_models_is_due(&m, "i", 5001));
    for (uint64_t i = 0; i < 100000; i++) {
        snprintf(name, sizeof name, "adapter-%u", (unsigned)i);
        kvp_models_note(&m, "i", name, KVP_MODEL_ADAPTER, 10000 + 10 * i);
        assert_int_equal(kvp_models_kind(&m, "i", name, 10000 + 10 * i), KVP_MODEL_ADAPTER);
        assert_int_equal(kvp_models_kind(&m, "j", name, 10000 + 10 * i), KVP_MODEL_NONE);
        assert_int_equal(kvp_models_kind(&m, "i", name, 30000 + 10 * i), KVP_MODEL_NONE);
        assert_true(m.map.n < 5000);
    }
    kvp_models_fini(&m);
}

TEST_MAIN()
