/* SPDX-License-Identifier: Apache-2.0
 * Metrics: the text that Prometheus reads, what may not be registered, and adding from several threads. */
#include "common/metrics.h"
#include "tests/cases.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int
setup(void **state)
{
    *state = kvp_metrics_create();
    return *state == NULL;
}

static int
teardown(void **state)
{
    kvp_metrics_destroy(*state);
    return 0;
}

static void
assert_renders(kvp_metrics_t *metrics, const char *want)
{
    kvp_buf_t text = {0};
    kvp_metrics_render(metrics, &text);
    kvp_buf_append(&text, "", 1);
    assert_int_equal(text.err, KVP_OK);
    assert_string_equal((char *)text.data, want);
    kvp_buf_fini(&text);
}

static double
whole(void *arg)
{
    return *(double *)arg;
}

static double
half(void *arg)
{
    return *(double *)arg / 2;
}

TEST_WITH(test_render_groups_series_by_family, setup, teardown)
{
    kvp_metrics_t *metrics = *state;
    double gets = 1e15 - 1, puts = 4, level = -4, seven = 7;
    assert_int_equal(kvp_metrics_counter_fn(metrics, "kvp_ops_total", "op=\"get\"", "Operations.", whole, &gets),
                     KVP_OK);
    assert_int_equal(kvp_metrics_gauge_fn(metrics, "kvp_level_bytes", NULL, "Level\nin \\ bytes.", half, &level),
                     KVP_OK);
    assert_int_equal(kvp_metrics_counter_fn(metrics, "kvp_ops_total", "op=\"put\"", "Operations.", half, &puts),
                     KVP_OK);
    assert_int_equal(kvp_metrics_gauge_fn(metrics, "kvp_half", NULL, "Half.", half, &seven), KVP_OK);
    assert_int_equal(kvp_metrics_counter_fn(metrics, "kvp_half_total", NULL, "Half.", half, &seven), KVP_OK);
    assert_renders(metrics, "# HELP kvp_ops_total Operations.\n"
                            "# TYPE kvp_ops_total counter\n"
                            "kvp_ops_total{op=\"get\"} 999999999999999\n"
                            "kvp_ops_total{op=\"put\"} 2\n"
                            "# HELP kvp_level_bytes Level\\nin \\\\ bytes.\n"
                            "# TYPE kvp_level_bytes gauge\n"
                            "kvp_level_bytes -2\n"
                            "# HELP kvp_half Half.\n"
                            "# TYPE kvp_half gauge\n"
                            "kvp_half 3.5\n"
                            "# HELP kvp_half_total Half.\n"
                            "# TYPE kvp_half_total counter\n"
                            "kvp_half_total 3.5\n");
}

TEST_WITH(test_render_of_a_histogram_is_cumulative_and_scaled, setup, teardown)
{
    kvp_metrics_t *metrics = *state;
    static const uint64_t bounds[] = {1000, 1000000};
    kvp_histogram_t *histogram;
    assert_int_equal(
        kvp_metrics_histogram(metrics, "kvp_get_seconds", "op=\"get\"", "Time of a get.", bounds, 2, 1e-9, &histogram),
        KVP_OK);
    kvp_histogram_add(histogram, 1);
    kvp_histogram_add(histogram, 1000);
    kvp_histogram_add(histogram, 1001);
    kvp_histogram_add(histogram, 2000000000);
    assert_renders(metrics, "# HELP kvp_get_seconds Time of a get.\n"
                            "# TYPE kvp_get_seconds histogram\n"
                            "kvp_get_seconds_bucket{op=\"get\",le=\"1e-06\"} 2\n"
                            "kvp_get_seconds_bucket{op=\"get\",le=\"0.001\"} 3\n"
                            "kvp_get_seconds_bucket{op=\"get\",le=\"+Inf\"} 4\n"
                            "kvp_get_seconds_sum{op=\"get\"} 2.000002002\n"
                            "kvp_get_seconds_count{op=\"get\"} 4\n");
}

TEST_WITH(test_register_when_name_or_labels_are_bad, setup, teardown)
{
    kvp_metrics_t *metrics = *state;
    static const char *const names[] = {"", "x_total ", "1x_total", "x-y_total", "x", "_total", "x_totals"};
    static const char *const labels[] = {"a",        "a=b",     "a=\"b",     "a=\"b\",",       "1=\"b\"",  ",",
                                         "a=\"\n\"", "a=\"b\\", "a=\"\\x\"", "a=\"b\"c=\"d\"", "le=\"1\"", "a = \"b\""};
    double value = 0;
    for (size_t i = 0; i < KVP_ARRAY_LEN(names); i++) {
        assert_int_equal(kvp_metrics_counter_fn(metrics, names[i], NULL, "h", whole, &value), KVP_INVALID);
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(labels); i++) {
        assert_int_equal(kvp_metrics_counter_fn(metrics, "x_total", labels[i], "h", whole, &value), KVP_INVALID);
    }
    assert_int_equal(kvp_metrics_gauge_fn(metrics, "x_total", NULL, "h", whole, &value), KVP_INVALID);
    assert_renders(metrics, "");
}

TEST_WITH(test_register_when_it_exists_or_differs, setup, teardown)
{
    kvp_metrics_t *metrics = *state;
    static const uint64_t falling[] = {2, 1};
    double value = 0;
    kvp_histogram_t *histogram;
    assert_int_equal(kvp_metrics_gauge_fn(metrics, "x", NULL, "h", whole, &value), KVP_OK);
    assert_int_equal(kvp_metrics_gauge_fn(metrics, "x", "", "h", whole, &value), KVP_ALREADY);
    assert_int_equal(kvp_metrics_gauge_fn(metrics, "x", "a=\"1\"", "other", whole, &value), KVP_INVALID);
    assert_int_equal(kvp_metrics_histogram(metrics, "x", "a=\"1\"", "h", falling, 1, 1, &histogram), KVP_INVALID);
    assert_int_equal(kvp_metrics_histogram(metrics, "y", NULL, "h", falling, 2, 1, &histogram), KVP_INVALID);
    assert_int_equal(kvp_metrics_histogram(metrics, "y", NULL, "h", falling, 0, 1, &histogram), KVP_INVALID);
}

TEST_WITH(test_a_borrowed_histogram_and_its_quantiles, setup, teardown)
{
    kvp_metrics_t *metrics = *state;
    static const uint64_t bounds[] = {1, 10, 100};
    kvp_histogram_t histogram = {.bounds = bounds, .bound_count = KVP_ARRAY_LEN(bounds)};
    uint64_t count = 1;
    assert_int_equal(kvp_histogram_quantile(&histogram, 0.5, &count), 0);
    assert_int_equal(count, 0);
    for (uint64_t i = 0; i < 10; i++)
        kvp_histogram_add(&histogram, i < 5 ? 1 : i < 9 ? 7 : 1000);
    assert_int_equal(kvp_histogram_quantile(&histogram, 0, &count), 1);
    assert_int_equal(kvp_histogram_quantile(&histogram, 0.5, &count), 1);
    assert_int_equal(kvp_histogram_quantile(&histogram, 0.51, &count), 10);
    assert_int_equal(kvp_histogram_quantile(&histogram, 0.99, &count), 100);
    assert_int_equal(count, 10);
    assert_int_equal(kvp_metrics_histogram_at(metrics, "x", NULL, "h", 1, &histogram), KVP_OK);
    assert_int_equal(kvp_metrics_histogram_at(metrics, "x", NULL, "h", 1, &histogram), KVP_ALREADY);
    kvp_histogram_add(&histogram, 2);
    assert_renders(metrics, "# HELP x h\n# TYPE x histogram\nx_bucket{le=\"1\"} 5\nx_bucket{le=\"10\"} 10\n"
                            "x_bucket{le=\"100\"} 10\nx_bucket{le=\"+Inf\"} 11\nx_sum 1035\nx_count 11\n");
}

enum { THREADS = 3, ADDS = 20000 };
typedef struct {
    kvp_metrics_t *metrics;
    kvp_histogram_t *histogram;
} shared_t;

static void *
add_many(void *arg)
{
    shared_t *shared = arg;
    for (uint64_t i = 0; i < ADDS; i++)
        kvp_histogram_add(shared->histogram, i * 1000000);
    return NULL;
}

TEST_WITH(test_nothing_is_lost_when_threads_add_while_rendering, setup, teardown)
{
    shared_t shared = {.metrics = *state};
    assert_int_equal(kvp_metrics_histogram(shared.metrics, "y_seconds", NULL, "h", kvp_metric_latency_bounds,
                                           KVP_METRIC_LATENCY_BOUNDS, 1e-9, &shared.histogram),
                     KVP_OK);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, &shared), 0);
    for (int i = 0; i < 20; i++) {
        kvp_buf_t text = {0};
        kvp_metrics_render(shared.metrics, &text);
        kvp_buf_fini(&text);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    uint64_t count = 0;
    for (size_t i = 0; i <= KVP_METRIC_LATENCY_BOUNDS; i++)
        count += shared.histogram->buckets[i];
    assert_int_equal(count, THREADS * ADDS);
}

TEST_MAIN()
