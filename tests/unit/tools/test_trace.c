/* SPDX-License-Identifier: Apache-2.0
 * Reading traces: what is in them, and what is wrong with them. The published trace is checked where it is. */
#include "tools/replay/lru_sim.h"
#include "tools/replay/trace.h"
#include "tests/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOOD                                                                                                           \
    "{\"timestamp\": 5, \"input_length\": 1025, \"output_length\": 9, \"hash_ids\": [0, 3, 18446744073709551615]}"

static char path[64];

static void
write_trace(const char *text, size_t len)
{
    snprintf(path, sizeof(path), "/tmp/kvp-test-trace-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), len);
    close(fd);
}

static kvp_err_t
load(const char *text, size_t limit, kvp_workload_t *w, char why[KVP_TRACE_WHY_MAX])
{
    write_trace(text, strlen(text));
    kvp_err_t err = kvp_trace_load(path, limit, w, why);
    unlink(path);
    return err;
}

TEST(test_fields_are_read)
{
    kvp_workload_t w = {0};
    char why[KVP_TRACE_WHY_MAX];
    size_t distinct = 1;
    assert_int_equal(kvp_workload_distinct(&w, &distinct), KVP_OK);
    assert_int_equal(distinct, 0);
    assert_int_equal(load(GOOD "\n\n" GOOD "\r\n  \n" GOOD, 100, &w, why), KVP_OK);
    assert_int_equal(w.requests_n, 3);
    assert_int_equal(w.requests[1].timestamp_ms, 5);
    assert_int_equal(w.requests[1].input_tokens, 1025);
    assert_int_equal(w.requests[1].output_tokens, 9);
    assert_int_equal(w.requests[1].ids_n, 3);
    assert_int_equal(w.ids[w.requests[1].ids_at + 1], 3);
    assert_true(w.ids[w.requests[1].ids_at + 2] == UINT64_MAX);
    assert_int_equal(w.ids_n, 9);
    assert_int_equal(kvp_workload_distinct(&w, &distinct), KVP_OK);
    assert_int_equal(distinct, 3);
    kvp_workload_fini(&w);
}

TEST(test_limit_stops_before_the_rest)
{
    kvp_workload_t w = {0};
    char why[KVP_TRACE_WHY_MAX];
    assert_int_equal(load(GOOD "\n" GOOD "\nnonsense\n", 2, &w, why), KVP_OK);
    assert_int_equal(w.requests_n, 2);
    kvp_workload_fini(&w);
}

TEST(test_bad_lines_are_named)
{
    static const struct {
        const char *line;
        const char *says;
    } cases[] = {
        {"nonsense", "line 3"},
        {"[]", "not a JSON object"},
        {"7", "line 3"},
        {"{", "ends in the middle"},
        {GOOD " {}", "something follows"},
        {"{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}", "timestamp"},
        {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}", "timestamp"},
        {"{\"timestamp\": 1, \"input_length\": \"1\", \"output_length\": 1, \"hash_ids\": []}", "input_length"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1e300, \"hash_ids\": []}", "output_length"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}", "hash_ids"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 4}", "hash_ids"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1, -2]}", "hash id"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1, 2.5]}", "hash id"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [[[[[[[[1]]]]]]]]}", "line 3"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kvp_workload_t w = {0};
        char text[1024], why[KVP_TRACE_WHY_MAX] = "";
        snprintf(text, sizeof(text), "%s\n\n%s\n", GOOD, cases[i].line);
        assert_int_equal(load(text, 100, &w, why), KVP_INVALID);
        assert_non_null(strstr(why, cases[i].says));
        assert_non_null(strstr(why, "line 3"));
        kvp_workload_fini(&w);
    }
}

TEST(test_giants_are_refused)
{
    kvp_workload_t w = {0};
    char why[KVP_TRACE_WHY_MAX];
    const size_t cap = KVP_TRACE_LINE_MAX + 64;
    char *text = malloc(cap);
    assert_non_null(text);
    memset(text, 'x', cap);
    write_trace(text, cap);
    assert_int_equal(kvp_trace_load(path, 100, &w, why), KVP_LIMIT);
    assert_non_null(strstr(why, "line 1"));
    unlink(path);

    size_t at = (size_t)sprintf(text, "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0");
    for (size_t i = 0; i < KVP_REQUEST_BLOCKS_MAX; i++)
        at += (size_t)sprintf(text + at, ",0");
    at += (size_t)sprintf(text + at, "]}\n");
    write_trace(text, at);
    assert_int_equal(kvp_trace_load(path, 100, &w, why), KVP_INVALID);
    assert_int_equal(w.requests_n, 0);
    unlink(path);
    free(text);
    kvp_workload_fini(&w);
}

TEST(test_absent_file)
{
    kvp_workload_t w = {0};
    char why[KVP_TRACE_WHY_MAX];
    assert_int_equal(kvp_trace_load("/nonexistent/trace", 100, &w, why), KVP_SYS);
    assert_non_null(strstr(why, "No such file"));
}

/* The published figures of simulated LRU (share of the accesses, to three digits) over the published trace. */
TEST(test_published_trace)
{
    static const struct {
        double share, ratio;
    } published[] = {{0.02, 0.079}, {0.05, 0.195}, {0.1, 0.278}, {0.2, 0.345}, {0.4, 0.360}};
    const char *file = getenv("KVP_TRACE");
    kvp_workload_t w = {0};
    char why[KVP_TRACE_WHY_MAX];
    size_t distinct = 0;
    if (file == NULL || access(file, R_OK) != 0) {
        print_message("KVP_TRACE names no readable trace\n");
        skip();
    }
    assert_int_equal(kvp_trace_load(file, 1 << 20, &w, why), KVP_OK);
    assert_int_equal(w.requests_n, 12031);
    assert_int_equal(w.ids_n, 288500);
    assert_int_equal(kvp_workload_distinct(&w, &distinct), KVP_OK);
    assert_int_equal(distinct, 182790);
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        kvp_lru_sim_t *sim = NULL;
        size_t hits = 0;
        assert_int_equal(kvp_lru_sim_create((uint32_t)((double)distinct * published[i].share), &sim), KVP_OK);
        for (size_t r = 0; r < w.requests_n; r++)
            hits += kvp_lru_sim_request(sim, w.ids + w.requests[r].ids_at, w.requests[r].ids_n);
        assert_true(fabs((double)hits / (double)w.ids_n - published[i].ratio) < 0.0006);
        kvp_lru_sim_destroy(sim);
    }
    kvp_workload_fini(&w);
}

TEST_MAIN()
