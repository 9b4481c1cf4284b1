/* SPDX-License-Identifier: Apache-2.0
 * Miss-ratio curves against exact LRU caches, at 12 sizes of each trace: a real one (KVP_TRACE, absent: left out), a
 * generated one of chats, one of two tenants with objects of many sizes, and one of two million keys. An exact cache
 * looks up a request's leading run, then uses all its blocks. */
#include "master/core/base/curve.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES 12u
#define RUN_MAX 2048u

/* ---- traces: requests of blocks */
typedef struct {
    uint32_t *blocks, *ends; /* ends[r]: where request r ends in blocks */
    uint64_t *bytes; /* of each block number */
    uint32_t blocks_n, requests_n, numbers_n;
} trace_t;

static uint64_t random_state;

static uint32_t
below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) * n >> 31);
}

static void
trace_open(trace_t *t, uint32_t blocks_max, uint32_t numbers_max)
{
    *t = (trace_t){.blocks = malloc(blocks_max * sizeof(uint32_t)),
                   .ends = malloc(blocks_max * sizeof(uint32_t)),
                   .bytes = malloc(numbers_max * sizeof(uint64_t))};
    for (uint32_t i = 0; i < numbers_max; i++)
        t->bytes[i] = 65536;
}

static void
trace_close(trace_t *t)
{
    free(t->blocks);
    free(t->ends);
    free(t->bytes);
}

static void
add_block(trace_t *t, uint32_t number)
{
    t->blocks[t->blocks_n++] = number;
    t->numbers_n = (uint32_t)kvp_max_u64(t->numbers_n, number + 1);
}

/* Chats with a shared system prompt: each turn repeats the blocks of its chat and adds some. Popular chats go on more
 * often. `plain` of 256 requests have blocks of their own alone. */
static void
make_chats(trace_t *t, uint32_t requests, uint32_t chats_n, uint32_t plain)
{
    uint32_t next = 8, *chats = calloc((size_t)chats_n * RUN_MAX, sizeof *chats), *n = calloc(chats_n, sizeof *n);

    for (uint32_t r = 0; r < requests; r++) {
        const uint32_t chat = below(below(chats_n) + 1), own = below(256) < plain;
        uint32_t *blocks = &chats[(size_t)chat * RUN_MAX];

        for (uint32_t i = 0; i < 8; i++)
            add_block(t, i);
        if (n[chat] > 40) n[chat] = 0;
        for (uint32_t i = 0; !own && i < n[chat]; i++)
            add_block(t, blocks[i]);
        for (uint32_t i = 0, more = 1 + below(12); i < more; i++) {
            if (!own) blocks[n[chat]++] = next;
            add_block(t, next++);
        }
        t->ends[t->requests_n++] = t->blocks_n;
    }
    free(chats);
    free(n);
}

static bool
read_trace(trace_t *t)
{
    static char line[65536];
    const char *path = getenv("KVP_TRACE");
    FILE *f = path == NULL ? NULL : fopen(path, "re");

    if (f == NULL) return false;
    while (fgets(line, sizeof line, f) != NULL) {
        char *at = strstr(line, "\"hash_ids\": [");

        for (at = at == NULL ? NULL : at + 13; at != NULL && *at >= '0' && *at <= '9'; at += *at == ',' ? 2 : 0)
            add_block(t, (uint32_t)strtoul(at, &at, 10));
        t->ends[t->requests_n++] = t->blocks_n;
    }
    fclose(f);
    return true;
}

/* ---- an exact LRU cache: a list by last use */
typedef struct {
    uint32_t *prev, *next; /* by number + 1; 0 is the list's end */
    bool *is_in;
    uint64_t bytes;
} cache_t;

static void
cache_unlink(cache_t *c, const trace_t *t, uint32_t i)
{
    c->next[c->prev[i]] = c->next[i];
    c->prev[c->next[i]] = c->prev[i];
    c->is_in[i] = false;
    c->bytes -= t->bytes[i - 1];
}

static uint64_t
run_cache(const trace_t *t, uint64_t size)
{
    cache_t c = {
        .prev = calloc(t->numbers_n + 1, 4), .next = calloc(t->numbers_n + 1, 4), .is_in = calloc(t->numbers_n + 1, 1)};
    uint64_t hits = 0;

    for (uint32_t r = 0, from = 0; r < t->requests_n; from = t->ends[r++]) {
        for (uint32_t b = from; b < t->ends[r] && c.is_in[t->blocks[b] + 1]; b++)
            hits++;
        for (uint32_t b = from; b < t->ends[r]; b++) {
            const uint32_t i = t->blocks[b] + 1;

            if (c.is_in[i]) cache_unlink(&c, t, i);
            c.prev[i] = c.prev[0];
            c.next[c.prev[0]] = i;
            c.next[i] = 0;
            c.prev[0] = i;
            c.is_in[i] = true;
            c.bytes += t->bytes[i - 1];
            while (c.bytes > size)
                cache_unlink(&c, t, c.next[0]);
        }
    }
    free(c.prev);
    free(c.next);
    free(c.is_in);
    return hits;
}

/* ---- the estimate */
static kvp_curve_t *
run_curve(const trace_t *t, uint64_t seed)
{
    static kvp_digest_t digests[RUN_MAX];
    kvp_curve_t *curve = kvp_curve_create(0);

    for (uint32_t r = 0, from = 0; r < t->requests_n; from = t->ends[r++]) {
        for (uint32_t b = from; b < t->ends[r]; b++)
            digests[b - from] = kvp_key_digest(seed, 0, &t->blocks[b], sizeof t->blocks[b]);
        kvp_curve_ask(curve, digests, t->ends[r] - from, true);
        for (uint32_t b = from; b < t->ends[r]; b++)
            kvp_curve_put(curve, digests[b - from], t->bytes[t->blocks[b]]);
    }
    return curve;
}

/* Fails if the estimate is wrong by more than half a point in the mean over all sizes and seeds, or a point anywhere.
 */
static void
check_curve(const trace_t *t, const char *name, uint32_t seeds)
{
    static const double times[SIZES / 2] = {0.25, 0.5, 1, 2, 4, 8};
    uint64_t all = 0, sizes[SIZES];
    double exact[SIZES], sum = 0, worst = 0;
    uint32_t samples = 0;

    for (uint32_t i = 0; i < t->numbers_n; i++)
        all += t->bytes[i];
    for (uint32_t i = 0; i < SIZES; i++) {
        sizes[i] = (uint64_t)(times[i % 6] * (i < 6 ? 0.05 : 0.1) * (double)all);
        exact[i] = (double)run_cache(t, sizes[i]) / t->blocks_n;
    }
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        kvp_curve_t *curve = run_curve(t, seed);

        for (uint32_t i = 0; i < SIZES; i++) {
            const double error = 100 * (kvp_curve_hits(curve, sizes[i]) - exact[i]), size = error < 0 ? -error : error;

            sum += size;
            worst = size > worst ? size : worst;
        }
        samples = kvp_curve_samples(curve);
        kvp_curve_destroy(curve);
    }
    print_message("%s: %u uses, %u keys, %u samples, mean %.2f, worst %.2f points\n", name, t->blocks_n, t->numbers_n,
                  samples, sum / (SIZES * seeds), worst);
    assert_true(sum / (SIZES * seeds) <= 0.5 && worst <= 1.0);
    assert_true(samples <= KVP_CURVE_SAMPLES);
}

TEST(test_real_trace)
{
    trace_t t;

    trace_open(&t, 400000, 400000);
    if (!read_trace(&t)) {
        trace_close(&t);
        print_message("KVP_TRACE names no readable trace\n");
        skip();
    }
    check_curve(&t, "conversation", 20);
    trace_close(&t);
}

TEST(test_chats)
{
    trace_t t;

    random_state = 1;
    trace_open(&t, 400000, 400000);
    make_chats(&t, 8000, 500, 64);
    check_curve(&t, "chats", 20);
    trace_close(&t);
}

TEST(test_two_tenants_and_many_sizes)
{
    trace_t t;

    random_state = 2;
    trace_open(&t, 800000, 800000);
    make_chats(&t, 9000, 900, 100);
    for (uint32_t i = 0; i < t.numbers_n; i++)
        t.bytes[i] = 4096u << below(9);
    check_curve(&t, "many sizes", 20);
    trace_close(&t);
}

TEST(test_two_million_keys)
{
    trace_t t;

    random_state = 3;
    trace_open(&t, 12000000, 2600000);
    make_chats(&t, 330000, 30000, 60);
    assert_true(t.numbers_n >= 2000000);
    check_curve(&t, "two million keys", 3);
    trace_close(&t);
}

TEST_MAIN()
