/* SPDX-License-Identifier: Apache-2.0
 * The live view: the model that two samples give, and its drawing at any size of the terminal. */
#include "tools/base/json_out.h"
#include "tools/top/draw.h"
#include "tools/top/model.h"
#include "tests/cases.h"

#include <string.h>

#define HOSTILE "\x1b[2J\xc2\x9b<b>\"\\\n"

/* Returns a sample of a pool with so many nodes, whose counters are multiples of `times`. */
static struct json_object *
make_sample(unsigned term, unsigned uptime_ms, int64_t times, unsigned nodes)
{
    static const char *const counters[] = {"commits",   "put_bytes",      "gets",        "get_misses",
                                           "lookups",   "lookup_found",   "exists",      "exists_misses",
                                           "evictions", "evicted_age_ms", "put_no_space"};
    static const int factors[] = {10, 4096, 100, 0, 100, 50, 0, 0, 4, 20000, 0};
    struct json_object *sample = json_object_new_object(), *pool = json_object_new_object(),
                       *list = json_object_new_object(), *segments = json_object_new_array(),
                       *tiers = json_object_new_array();

    for (size_t i = 0; i < KVP_ARRAY_LEN(counters); i++)
        json_object_object_add(list, counters[i], json_object_new_int64(factors[i] * times));
    json_object_object_add(pool, "term", json_object_new_int((int)term));
    json_object_object_add(pool, "uptime_ms", json_object_new_int((int)uptime_ms));
    json_object_object_add(pool, "counters", list);
    for (unsigned i = 0; i < nodes; i++) {
        struct json_object *node = json_object_new_object(), *tier = json_object_new_object();
        char name[400];

        memset(name, 'n', sizeof name);
        snprintf(name + (i == 0 ? 200 : 0), 100, "%s%u", i == 1 ? HOSTILE : "node", i);
        json_object_object_add(node, "node", json_object_new_string(name));
        json_object_object_add(node, "state", json_object_new_string(i == 2 ? "draining" : "up"));
        json_object_object_add(node, "transport", json_object_new_string(i == 3 ? "none" : "shm"));
        json_object_object_add(node, "used_bytes", json_object_new_int((int)i));
        json_object_object_add(node, "size_bytes", json_object_new_int(100));
        json_object_array_add(segments, node);
        strcat(name, "/ssd");
        json_object_object_add(tier, "node", json_object_new_string(name));
        json_object_object_add(tier, "used_bytes", json_object_new_int(7));
        if (i % 2 == 0) json_object_array_add(tiers, json_object_get(tier));
        json_object_put(tier);
    }
    json_object_object_add(sample, "pool", pool);
    json_object_object_add(sample, "segments", segments);
    json_object_object_add(sample, "tiers", tiers);
    return sample;
}

/* Returns the model of two samples, which are freed. */
static struct json_object *
make_model(struct json_object *before, struct json_object *now)
{
    struct json_object *model = kvp_top_model(before, now);

    json_object_put(before);
    json_object_put(now);
    return model;
}

static double
head_of(struct json_object *model, const char *name)
{
    struct json_object *value = kvp_json_get(kvp_json_get(model, "head"), name);

    return value == NULL ? -1 : json_object_get_double(value);
}

TEST(test_rates_are_those_of_the_interval)
{
    struct json_object *model = make_model(make_sample(1, 1000, 1, 2), make_sample(1, 3000, 5, 2));

    assert_float_equal(head_of(model, "puts_per_s"), 20, 1e-6);
    assert_float_equal(head_of(model, "put_bytes_per_s"), 8192, 1e-6);
    assert_float_equal(head_of(model, "lookups_per_s"), 200, 1e-6);
    assert_float_equal(head_of(model, "hit_ratio"), 0.75, 1e-6);
    assert_float_equal(head_of(model, "evicted_age_s"), 5, 1e-6);
    assert_float_equal(head_of(model, "ssd_used_bytes"), 7, 1e-6);
    json_object_put(model);
}

TEST(test_no_rate_over_two_masters_or_without_an_earlier_sample)
{
    struct json_object *models[] = {
        make_model(NULL, make_sample(1, 3000, 5, 1)),
        make_model(make_sample(1, 1000, 1, 1), make_sample(2, 3000, 5, 1)),
        make_model(make_sample(1, 3000, 1, 1), make_sample(1, 1000, 5, 1)),
        make_model(make_sample(1, 1000, 9, 1), make_sample(1, 3000, 5, 1)),
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(models); i++) {
        assert_float_equal(head_of(models[i], "puts_per_s"), -1, 0);
        assert_float_equal(head_of(models[i], "hit_ratio"), -1, 0);
        assert_float_equal(head_of(models[i], "nodes"), 1, 0);
        json_object_put(models[i]);
    }
}

TEST(test_latencies_and_tenants_are_read_from_metrics)
{
    static const char *const text[] = {
        "kvpool_master_call_seconds_bucket{call=\"get\",le=\"1e-05\"} 100\n"
        "kvpool_master_call_seconds_bucket{call=\"get\",le=\"+Inf\"} 100\n",
        "# HELP kvpool_master_call_seconds work\nkvpool_master_call_seconds_bucket{call=\"get\nkvpool_master_\n{} \n"
        "kvpool_master_call_seconds_bucket{call=\"get\",le=\"1e-05\"} 150\n"
        "kvpool_master_call_seconds_bucket{call=\"get\",le=\"+Inf\"} 200\n"
        "kvpool_master_tenant_objects{tenant=\"a\\\"\\\\\\n\"} 5\n"
        "kvpool_master_hit_ratio{tenant=\"a\\\"\\\\\\n\",window=\"1h\"} 0.25\n"
        "kvpool_master_hit_ratio{tenant=\"\",window=\"1h\"} 0.5\nkvpool_master_call_seconds_bucket{call=\"x"};
    struct json_object *before = make_sample(1, 1000, 1, 1), *now = make_sample(1, 3000, 2, 1), *model, *row;

    json_object_object_add(before, "metrics", kvp_top_metrics(text[0]));
    json_object_object_add(now, "metrics", kvp_top_metrics(text[1]));
    model = make_model(before, now);
    row = json_object_array_get_idx(kvp_json_get(kvp_json_get(model, "tables"), "calls"), 0);
    assert_string_equal(kvp_json_get_text(row, "call"), "get");
    assert_float_equal(json_object_get_double(kvp_json_get(row, "rate_per_s")), 50, 1e-6);
    assert_float_equal(json_object_get_double(kvp_json_get(row, "p50_us")), 10, 1e-3);
    assert_float_equal(json_object_get_double(kvp_json_get(row, "p99_us")), 10, 1e-3); /* the last bound there is */
    row = json_object_array_get_idx(kvp_json_get(kvp_json_get(model, "tables"), "tenants"), 0);
    assert_string_equal(kvp_json_get_text(row, "tenant"), "a\"\\\n");
    assert_int_equal(kvp_json_get_u64(row, "objects"), 5);
    assert_float_equal(json_object_get_double(kvp_json_get(row, "hit_ratio_hour")), 0.25, 0);
    json_object_put(model);
}

/* Draws the model, and returns the rows as lines. */
static const char *
draw_lines(struct json_object *model, kvp_top_view_t *view, uint32_t columns, uint32_t rows)
{
    static char cells[300 * 80 + 1], styles[80 + 1], text[300 * 81];
    size_t at = 0;

    cells[(size_t)columns * rows] = styles[rows] = '!';
    kvp_top_draw(model, "title" HOSTILE, "no route" HOSTILE, view, columns, rows, cells, styles);
    assert_int_equal(cells[(size_t)columns * rows], '!');
    assert_int_equal(styles[rows], '!');
    for (uint32_t r = 0; r < rows; r++) {
        assert_non_null(memchr(" br", styles[r], 3));
        for (uint32_t c = 0; c < columns; c++)
            assert_in_range(cells[(size_t)r * columns + c], 0x20, 0x7e);
        at += (size_t)snprintf(text + at, sizeof text - at, "%.*s\n", (int)columns, cells + (size_t)r * columns);
    }
    return text;
}

TEST(test_every_size_of_the_terminal_and_every_name)
{
    for (unsigned nodes = 0; nodes <= 40; nodes += 8) {
        struct json_object *model = make_model(make_sample(1, 1000, 1, nodes), make_sample(1, 3000, 5, nodes));

        for (uint32_t columns = 1; columns < 300; columns += columns < 20 ? 1 : 60)
            for (uint32_t rows = 1; rows < 80; rows += rows < 20 ? 1 : 20)
                for (int mode = KVP_TOP_TABLES; mode <= KVP_TOP_HELP; mode++)
                    for (uint32_t table = 0; kvp_top_tables[table] != NULL; table++) {
                        kvp_top_view_t view = {.mode = (kvp_top_mode_t)mode, .table = table, .sort = 99, .scroll = 99};

                        draw_lines(model, &view, columns, rows);
                        draw_lines(NULL, &view, columns, rows);
                    }
        json_object_put(model);
    }
}

TEST(test_keys_sort_filter_scroll_pause_and_quit)
{
    struct json_object *model = make_model(make_sample(1, 1000, 1, 40), make_sample(1, 3000, 5, 40));
    kvp_top_view_t view = {0};
    const char *lines = draw_lines(model, &view, 80, 40);

    assert_non_null(strstr(lines, "node node2 is draining"));
    assert_non_null(strstr(lines, "no transport leads from here to node node3"));
    assert_non_null(strstr(lines, "\\x1b[2J\\xc2\\x9b<"));
    assert_null(strstr(lines, "  node9  "));
    for (const char *key = ">>>"; *key != '\0'; key++)
        assert_true(kvp_top_key(&view, *key));
    lines = strstr(draw_lines(model, &view, 200, 40), "nodes:"); /* by share of use: the fullest first */
    assert_non_null(lines);
    assert_true(strstr(lines, "node39") < strstr(lines, "node38") && strstr(lines, "39.0 %") != NULL);
    assert_true(kvp_top_key(&view, 'r'));
    lines = strstr(draw_lines(model, &view, 200, 40), "nodes:");
    assert_true(strstr(lines, "node4 ") < strstr(lines, "node5 ") && strstr(lines, "node39") == NULL);
    for (int i = 0; i < 9; i++)
        assert_true(kvp_top_key(&view, KVP_TOP_KEY_PAGE_DOWN));
    assert_non_null(strstr(draw_lines(model, &view, 200, 40), "node39"));
    assert_in_range(view.scroll, 1, 39);
    for (const char *key = "/DEx38\x7f\x7f\x7f"
                           "38q\n";
         *key != '\0'; key++)
        assert_true(kvp_top_key(&view, *key));
    assert_string_equal(view.filter, "DE38q");
    assert_non_null(strstr(draw_lines(model, &view, 200, 40), "nodes: 0 of 40 match   filter: DE38q"));
    for (const char *key = "/\x7f\r"; *key != '\0'; key++)
        assert_true(kvp_top_key(&view, *key));
    lines = draw_lines(model, &view, 200, 40);
    assert_true(strstr(lines, "node38") != NULL && strstr(lines, "node37") == NULL);
    assert_true(kvp_top_key(&view, 'p') && view.is_paused);
    assert_non_null(strstr(draw_lines(model, &view, 200, 40), "PAUSED"));
    assert_true(kvp_top_key(&view, 'h') && strstr(draw_lines(model, &view, 80, 40), "Ctrl-C       quit") != NULL);
    assert_non_null(strstr(draw_lines(model, &view, 40, 60), "has more.")); /* no text is cut */
    assert_true(kvp_top_key(&view, 'x') && view.mode == KVP_TOP_TABLES);
    assert_non_null(strstr(draw_lines(model, &view, 40, 60), "           takes no new objects"));
    for (int i = 0; i < 5; i++)
        assert_true(kvp_top_key(&view, '\t'));
    assert_int_equal(view.table, 0);
    assert_false(kvp_top_key(&view, 'q'));
    json_object_put(model);
}

TEST_MAIN()
