/* SPDX-License-Identifier: Apache-2.0
 * The hour that the master remembers, and the size of the document that shows it. */
#include "master/history.h"
#include "master/overview.h"

#include "tests/cases.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#define DOCUMENT_MAX (1u << 20)

static kvp_history_t history;
static kvp_labelled_t labelled;
static kvp_ha_status_t masters;

static kvp_sample_t
sample_at(uint64_t at_ms, uint64_t commits)
{
    return (kvp_sample_t){.at_ms = at_ms, .core = {.commits = commits}};
}

TEST(test_the_oldest_samples_make_room)
{
    memset(&history, 0, sizeof history);
    assert_null(kvp_history_before(&history, 1));
    for (uint32_t i = 0; i < KVP_HISTORY_SAMPLES + 5; i++) {
        const kvp_sample_t s = sample_at(1000 + i * KVP_HISTORY_STEP_MS, i);

        kvp_history_note(&history, &s);
        assert_int_equal(kvp_history_get(&history, history.n - 1)->core.commits, i);
    }
    assert_int_equal(history.n, KVP_HISTORY_SAMPLES);
    assert_int_equal(kvp_history_get(&history, 0)->core.commits, 5);
    assert_int_equal(kvp_history_before(&history, 0)->core.commits, 5);
    assert_int_equal(kvp_history_before(&history, 1000 + 7 * KVP_HISTORY_STEP_MS)->core.commits, 7);
    assert_int_equal(kvp_history_before(&history, 999 + 8 * KVP_HISTORY_STEP_MS)->core.commits, 7);
    assert_int_equal(kvp_history_before(&history, UINT64_MAX)->core.commits, KVP_HISTORY_SAMPLES + 4);
    assert_int_equal(kvp_history_rise(3, 5), 2);
    assert_int_equal(kvp_history_rise(5, 3), 0); /* another core counts from 0 */
}

TEST(test_quantiles_are_bounds_of_buckets)
{
    kvp_sample_t from = sample_at(0, 0), to = from;

    assert_int_equal(kvp_history_quantile(&from, &to, 2, 0.5), 0);
    from.times[2][0] = UINT32_MAX; /* the count goes on from 0 */
    to.times[2][0] = 97;
    to.times[2][3] = 1;
    to.times[2][KVP_METRIC_LATENCY_BOUNDS] = 1;
    assert_int_equal(kvp_history_count(&from, &to, 2), 100);
    assert_int_equal(kvp_history_count(&from, &to, 1), 0);
    assert_int_equal(kvp_history_quantile(&from, &to, 2, 0.5), kvp_metric_latency_bounds[0]);
    assert_int_equal(kvp_history_quantile(&from, &to, 2, 0.99), kvp_metric_latency_bounds[3]);
    assert_int_equal(kvp_history_quantile(&from, &to, 2, 0.999), UINT64_MAX);
}

/* The most that there can be: 256 nodes with SSDs, all shown tenants, an hour, names of which each byte is escaped. */
TEST(test_the_document_has_a_bound)
{
    const kvp_master_ident_t ident = {.term = 1};
    const kvp_sample_t now = sample_at(UINT64_MAX / 2, UINT64_MAX);
    const kvp_overview_t in = {.role = "leader",
                               .conductor = "",
                               .ident = &ident,
                               .ha = &masters,
                               .labelled = &labelled,
                               .history = &history,
                               .now = &now};
    kvp_buf_t text;
    kvp_jsonw_t w;

    memset(&history, 0, sizeof history);
    for (uint32_t i = 0; i < KVP_HISTORY_SAMPLES; i++) {
        kvp_sample_t s = sample_at(i * KVP_HISTORY_STEP_MS, i % 2 == 0 ? 0 : UINT64_MAX);

        s.core.used_bytes = UINT64_MAX;
        kvp_history_note(&history, &s);
    }
    labelled.nodes_n = KVP_LABELLED_NODES;
    labelled.tenants_n = KVP_MASTER_TENANTS;
    for (uint32_t i = 0; i < KVP_LABELLED_NODES; i++) {
        labelled.nodes[i].size_bytes = labelled.nodes[i].used_bytes = labelled.nodes[i].objects = UINT64_MAX;
        memset(labelled.nodes[i].name, 1, KVP_NAME_MAX);
    }
    for (uint32_t i = 0; i < KVP_MASTER_TENANTS; i++) {
        labelled.tenants[i].has_curve = true;
        memset(labelled.tenants[i].name, 1, KVP_TENANT_NAME_MAX);
    }
    masters.masters_n = KVP_ELECTION_MEMBERS_MAX;
    kvp_buf_init(&text, 0);
    kvp_jsonw_init(&w, &text);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_overview_write(&w, &in);
    kvp_jsonw_close(&w, '}');
    kvp_buf_append(&text, "", 1);
    assert_int_equal(text.err, KVP_OK);
    assert_true(text.len < DOCUMENT_MAX);
    json_object *json = json_tokener_parse((const char *)text.data);
    assert_non_null(json);
    assert_int_equal(json_object_array_length(json_object_object_get(json, "nodes")), KVP_LABELLED_NODES);
    json_object *columns = json_object_object_get(json, "history");
    json_object_object_foreach(columns, name, column) if (strcmp(name, "ago_ms") != 0)
        assert_int_equal(json_object_array_length(column), KVP_HISTORY_SAMPLES - 1);
    json_object_put(json);
    kvp_buf_fini(&text);
}

TEST_MAIN()
