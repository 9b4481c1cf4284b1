/* SPDX-License-Identifier: Apache-2.0
 * The generated workload: reproducible, in order of time, and shaped like conversations; and the contents of blocks.
 */
#include "client/cli/replay/lru_sim.h"
#include "client/cli/base/pattern.h"
#include "client/cli/replay/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 3000u

static void
test_equal_seeds_give_equal_requests(void **state)
{
    kvp_workload_t a = {0}, b = {0}, c = {0};
    assert_int_equal(kvp_workload_generate(&a, 7, REQUESTS), KVP_OK);
    assert_int_equal(kvp_workload_generate(&b, 7, REQUESTS), KVP_OK);
    assert_int_equal(kvp_workload_generate(&c, 8, REQUESTS), KVP_OK);
    assert_int_equal(a.requests_n, REQUESTS);
    assert_int_equal(a.ids_n, b.ids_n);
    assert_memory_equal(a.ids, b.ids, a.ids_n * sizeof(*a.ids));
    for (size_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(a.requests[i].timestamp_ms, b.requests[i].timestamp_ms);
        assert_int_equal(a.requests[i].output_tokens, b.requests[i].output_tokens);
    }
    assert_true(a.ids_n != c.ids_n || memcmp(a.ids, c.ids, a.ids_n * sizeof(*a.ids)) != 0);
    kvp_workload_fini(&a);
    kvp_workload_fini(&b);
    kvp_workload_fini(&c);
}

static void
test_requests_are_well_formed(void **state)
{
    kvp_workload_t w = {0};
    assert_int_equal(kvp_workload_generate(&w, 1, REQUESTS), KVP_OK);
    size_t at = 0;
    for (size_t i = 0; i < w.requests_n; i++) {
        const kvp_request_t *r = &w.requests[i];
        assert_int_equal(r->ids_at, at);
        assert_int_equal(r->ids_n, (r->input_tokens + KVP_BLOCK_TOKENS - 1) / KVP_BLOCK_TOKENS);
        assert_true(r->ids_n > 0 && r->ids_n <= 256);
        assert_true(r->output_tokens > 0);
        if (i > 0) assert_true(r->timestamp_ms >= w.requests[i - 1].timestamp_ms);
        at += r->ids_n;
    }
    assert_int_equal(at, w.ids_n);
    kvp_workload_fini(&w);
}

/* An id stands for a prefix: whatever came before it once, always comes before it. */
static void
test_an_id_has_one_predecessor(void **state)
{
    kvp_workload_t w = {0};
    assert_int_equal(kvp_workload_generate(&w, 3, REQUESTS), KVP_OK);
    uint64_t *before = calloc(w.ids_n + 256, sizeof(*before)); /* 0 = not seen yet, else predecessor + 2 */
    assert_non_null(before);
    for (size_t i = 0; i < w.requests_n; i++) {
        const uint64_t *ids = w.ids + w.requests[i].ids_at;
        for (size_t b = 0; b < w.requests[i].ids_n; b++) {
            const uint64_t want = b == 0 ? 1 : ids[b - 1] + 2;
            assert_true(ids[b] < w.ids_n + 256);
            if (before[ids[b]] != 0) assert_int_equal(before[ids[b]], want);
            before[ids[b]] = want;
        }
    }
    free(before);
    kvp_workload_fini(&w);
}

static void
test_conversations_are_worth_caching(void **state)
{
    kvp_workload_t w = {0};
    kvp_lru_sim_t *sim = NULL;
    size_t distinct = 0, hits = 0;
    assert_int_equal(kvp_workload_generate(&w, 1, REQUESTS), KVP_OK);
    assert_int_equal(kvp_workload_distinct(&w, &distinct), KVP_OK);
    assert_true(distinct > w.ids_n / 10 && distinct < w.ids_n * 3 / 4);
    assert_int_equal(kvp_lru_sim_create((uint32_t)(distinct / 10), &sim), KVP_OK);
    for (size_t i = 0; i < w.requests_n; i++)
        hits += kvp_lru_sim_request(sim, w.ids + w.requests[i].ids_at, w.requests[i].ids_n);
    assert_true(hits > w.ids_n / 4);
    kvp_lru_sim_destroy(sim);
    kvp_workload_fini(&w);
}

static void
test_add_keeps_what_was_there(void **state)
{
    kvp_workload_t w = {0};
    size_t distinct = 0;
    const uint64_t first[] = {5, 6}, second[] = {5, 9, 9};
    assert_int_equal(kvp_workload_add(&w, &(kvp_request_t){.ids_n = 2}, first), KVP_OK);
    assert_int_equal(kvp_workload_add(&w, &(kvp_request_t){.ids_n = 0}, NULL), KVP_OK);
    assert_int_equal(kvp_workload_add(&w, &(kvp_request_t){.ids_n = 3}, second), KVP_OK);
    assert_int_equal(kvp_workload_add(&w, &(kvp_request_t){.ids_n = KVP_REQUEST_BLOCKS_MAX + 1}, first), KVP_LIMIT);
    assert_int_equal(w.requests_n, 3);
    assert_int_equal(w.ids_n, 5);
    assert_int_equal(w.requests[2].ids_at, 2);
    assert_int_equal(w.ids[4], 9);
    assert_int_equal(kvp_workload_longest(&w), 3);
    assert_int_equal(kvp_workload_distinct(&w, &distinct), KVP_OK);
    assert_int_equal(distinct, 3);
    kvp_workload_fini(&w);
    assert_int_equal(kvp_workload_distinct(&w, &distinct), KVP_OK);
    assert_int_equal(distinct, 0);
}

static void
test_pattern_finds_every_wrong_byte(void **state)
{
    static const size_t sizes[] = {1, 7, 8, 63, 64, 65, 200, 4096, 4099};
    uint8_t block[4099 + 1];
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const size_t len = sizes[s];
        block[len] = 0x5a;
        kvp_pattern_fill(block, len, 3, 17);
        assert_int_equal(block[len], 0x5a);
        assert_int_equal(kvp_pattern_wrong(block, len, 3, 17), 0);
        for (size_t i = 0; i < len; i += 1 + i / 16) {
            block[i] ^= 0x40;
            assert_int_equal(kvp_pattern_wrong(block, len, 3, 17), 1);
            block[i] ^= 0x40;
        }
        if (len < 64) continue;
        assert_true(kvp_pattern_wrong(block, len, 3, 18) > len / 2);
        assert_true(kvp_pattern_wrong(block, len, 4, 17) > len / 2);
        kvp_pattern_poison(block, len);
        assert_int_equal(block[len], 0x5a);
        for (size_t line = 0; line + 64 <= len; line += 64)
            assert_memory_equal(block, block + line, 8);
        assert_true(kvp_pattern_wrong(block, len, 3, 17) > len / 64);
    }
}

/* Bytes of the right block from the wrong place are wrong bytes. */
static void
test_pattern_depends_on_the_place(void **state)
{
    uint8_t block[8192];
    kvp_pattern_fill(block, sizeof(block), 0, 42);
    assert_true(kvp_pattern_wrong(block + 64, 4096, 0, 42) > 4000);
    assert_true(kvp_pattern_wrong(block + 4096, 4096, 0, 42) > 4000);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_seeds_give_equal_requests), cmocka_unit_test(test_requests_are_well_formed),
        cmocka_unit_test(test_an_id_has_one_predecessor),       cmocka_unit_test(test_conversations_are_worth_caching),
        cmocka_unit_test(test_add_keeps_what_was_there),        cmocka_unit_test(test_pattern_finds_every_wrong_byte),
        cmocka_unit_test(test_pattern_depends_on_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
