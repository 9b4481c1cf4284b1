/* SPDX-License-Identifier: Apache-2.0
 * The hour that the master remembers, and the size of the document that shows it. */
#include "master/history.h"
#include "master/overview.h"

#include "tests/cases.h"

#include "proto/wire.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCUMENT_MAX (1u << 20)

static kvp_history_t history;
static kvp_labelled_t labelled;
static kvp_ha_status_t masters;
static kvp_changes_t changes;

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
                               .changes = &changes,
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
    changes.n = KVP_CHANGES_MAX;
    for (uint32_t i = 0; i < KVP_CHANGES_MAX; i++) {
        changes.ring[i].at_ms = now.at_ms;
        memset(changes.ring[i].text, 1, KVP_CHANGE_TEXT_MAX - 1);
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
    assert_int_equal(json_object_array_length(json_object_object_get(json, "changes")), KVP_CHANGES_MAX);
    json_object *columns = json_object_object_get(json, "history");
    json_object_object_foreach(columns, name, column) if (strcmp(name, "ago_ms") != 0)
        assert_int_equal(json_object_array_length(column), KVP_HISTORY_SAMPLES - 1);
    json_object_put(json);
    kvp_buf_fini(&text);
}

/* ---- what has changed */
/* Looks a second later, and returns the newest change if there are n new ones; else it fails. */
static const char *
look(uint32_t n)
{
    const uint32_t next = changes.next;

    changes.now.at_ms += 1000;
    kvp_changes_note(&changes);
    assert_int_equal((changes.next + KVP_CHANGES_MAX - next) % KVP_CHANGES_MAX, n);
    return kvp_changes_get(&changes, 0)->text;
}

static void
set_node(uint32_t i, const char *name, uint32_t state)
{
    snprintf(changes.now.nodes[i].name, sizeof changes.now.nodes[i].name, "%s", name);
    changes.now.nodes[i].state = state;
}

static void
set_wrong(const char *code, const char *text)
{
    changes.now.wrong.n = code != NULL;
    changes.now.wrong.lines[0].code = code;
    snprintf(changes.now.wrong.lines[0].text, sizeof changes.now.wrong.lines[0].text, "%s", text);
}

TEST(test_each_change_is_noted_once)
{
    memset(&changes, 0, sizeof changes);
    changes.now = (kvp_look_t){.is_leader = true, .term = 1, .nodes_n = 1, .counts = {7, 0}};
    set_node(0, "a", KVP_SEG_LOST);
    assert_string_equal(look(1), "this master leads, in term 1"); /* the nodes of the log are no change */
    set_node(0, "a", KVP_SEG_UP);
    assert_string_equal(look(1), "node a is back");
    changes.now.nodes_n = 2;
    set_node(1, "b", KVP_SEG_UP);
    assert_string_equal(look(1), "node b joined the pool");
    set_node(0, "a", KVP_SEG_LOST);
    set_wrong("node_lost", "node a is lost: its objects cannot be read until it is back");
    assert_string_equal(look(1), "node a is lost: its connection ended");
    set_wrong("ssd_behind", "objects were evicted: 4 lately");
    changes.now.nodes_n = 1; /* another node is the first one now */
    set_node(0, "b", KVP_SEG_DRAINING);
    look(3);
    assert_string_equal(kvp_changes_get(&changes, 2)->text, "objects were evicted: 4 lately");
    assert_string_equal(kvp_changes_get(&changes, 1)->text, "node a did not come back, and is given up");
    assert_string_equal(kvp_changes_get(&changes, 0)->text, "node b is draining");
    set_wrong("ssd_behind", "objects were evicted: 5 lately");
    look(0);
    set_wrong(NULL, "");
    assert_string_equal(look(1), "over: objects were evicted");
    changes.now.nodes_n = 0;
    assert_string_equal(look(1), "node b left the pool");
}

TEST(test_evictions_begin_and_end)
{
    memset(&changes, 0, sizeof changes);
    changes.now = (kvp_look_t){.is_leader = true, .counts = {7, 3}};
    look(1);
    for (int i = 0; i < 70; i++) {
        changes.now.counts[0]++;
        look(i == 0);
    }
    for (int i = 1; i < 60; i++)
        look(0);
    assert_string_equal(look(1), "evictions ended: none for a minute");
    changes.now.counts[1]++;
    assert_string_equal(look(1), "puts are refused: no node is up that takes them");
    for (int i = 0; i < 59; i++)
        look(0);
    look(1);
    changes.now.nodes_n = 1;
    set_node(0, "a", KVP_SEG_UP);
    changes.now.counts[1]++;
    look(2);
    assert_string_equal(kvp_changes_get(&changes, 0)->text, "puts are refused: no memory can be evicted for them");
    changes.now.nodes[0].is_drained = true;
    set_node(0, "a", KVP_SEG_LOST);
    assert_string_equal(look(1), "node a is away: it was drained, and no object is lost with it");
}

TEST(test_leaders_change_and_a_standby_compares_no_nodes)
{
    memset(&changes, 0, sizeof changes);
    look(0);
    snprintf(changes.now.leader, sizeof changes.now.leader, "h:1");
    changes.now.term = 4;
    assert_string_equal(look(1), "master h:1 leads, in term 4");
    changes.now.nodes_n = KVP_LABELLED_NODES;
    look(0);
    changes.now.leader[0] = '\0';
    assert_string_equal(look(1), "no master leads");
    changes.now.is_leader = true;
    changes.now.term = 5;
    assert_string_equal(look(1), "this master leads, in term 5");
    changes.now.nodes_n = 0; /* more at once than are kept */
    look(KVP_LABELLED_NODES % KVP_CHANGES_MAX);
    assert_int_equal(changes.n, KVP_CHANGES_MAX);
}

TEST_MAIN()
