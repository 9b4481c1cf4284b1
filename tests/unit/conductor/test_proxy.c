/* SPDX-License-Identifier: Apache-2.0
 * Bodies of requests, and which server gets the next one. */
#include "conductor/proxy/body.h"
#include "conductor/proxy/copies.h"
#include "conductor/proxy/fleet.h"
#include "conductor/proxy/headers.h"
#include "conductor/proxy/paths.h"
#include "conductor/proxy/places.h"
#include "conductor/proxy/question.h"
#include "conductor/base/url.h"
#include "tests/cases.h"

#include <stdio.h>
#include <string.h>

#define MS 1000000ull

TEST(test_bodies)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "[]",
                                      "1",
                                      "{",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "{a:1}",
                                      "{\"a\":1}}",
                                      "{\"a\":01}",
                                      "{\"a\":1.}",
                                      "{\"a\":+1}",
                                      "{\"a\":tru}",
                                      "{\"a\":\"\\x\"}",
                                      "{\"a\":\"\\u12g4\"}",
                                      "{\"a\":\"\n\"}",
                                      "{\"a\":\"",
                                      "{\"a\":[1,2}",
                                      "{\"a\":{\"b\":1]}",
                                      "{\"a\":\"\xff\"}",
                                      "{\"a\":1 \"b\":2}",
                                      "{\"a\":[1 2]}",
                                      "{\"a\":[,]}",
                                      "{\"a\":{,}}",
                                      "{,}"};
    static const char *const good[] = {"{}", " { } ",
                                       "{\"a\":-0.5e+10,\"b\":[[],{},[{\"c\":[1,2,{\"d\":null}]}],true,false]}",
                                       "{\"a\":\"\\\"\\u00e9\\\\\",\"\":1}", "{\"a\":{\"b\":{}}}"};
    kvp_body_t body;
    const char *why;

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        why = NULL;
        if (kvp_body_read(bad[i], strlen(bad[i]), &body, &why)) fail_msg("taken: %s", bad[i]);
        assert_non_null(why);
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++)
        if (!kvp_body_read(good[i], strlen(good[i]), &body, &why)) fail_msg("not taken: %s: %s", good[i], why);
}

TEST(test_copies)
{
    static const char text[] = " {\"model\" : \"m\", \"stream\":true ,\"n\":[1, 2],\"stream\":false}";
    static const char *const without[] = {"stream", "none", NULL};
    static const char *const all[] = {"model", "stream", "n", NULL};
    kvp_body_t body;
    kvp_buf_t out;
    const char *why, *value;
    size_t len;

    kvp_buf_init(&out, 0);
    assert_true(kvp_body_read(text, strlen(text), &body, &why));
    value = kvp_body_find(&body, "stream", &len);
    assert_true(value != NULL && len == 5 && memcmp(value, "false", 5) == 0);
    assert_null(kvp_body_find(&body, "strea", &len));
    kvp_body_copy(&body, without, "\"x\":1", &out);
    assert_int_equal(out.len, strlen("{\"model\":\"m\",\"n\":[1, 2],\"x\":1}"));
    assert_memory_equal(out.data, "{\"model\":\"m\",\"n\":[1, 2],\"x\":1}", out.len);
    kvp_buf_reset(&out);
    kvp_body_copy(&body, all, "", &out);
    assert_memory_equal(out.data, "{}", 2);
    kvp_buf_reset(&out);
    kvp_body_copy(&body, all, "\"x\":1", &out);
    assert_memory_equal(out.data, "{\"x\":1}", 7);
    kvp_buf_fini(&out);
}

static void
check_copies(const char *request, const char *params, const char *prefill, const char *decode)
{
    kvp_body_t body;
    kvp_buf_t out;
    const char *why;

    kvp_buf_init(&out, 0);
    assert_true(kvp_body_read(request, strlen(request), &body, &why));
    kvp_copy_for_prefill(&body, params, &out);
    kvp_buf_append(&out, "", 1);
    assert_string_equal(out.data, prefill);
    kvp_buf_reset(&out);
    kvp_copy_for_decode(&body, params, &out);
    kvp_buf_append(&out, "", 1);
    assert_string_equal(out.data, decode);
    kvp_buf_fini(&out);
}

/* Fails if a field that a copy changes or drops passes under another spelling of its name or a second time, or if one
 * deeper in the body does not. */
TEST(test_copies_for_servers)
{
#define ONE_TOKEN "\"max_tokens\":1,\"max_completion_tokens\":1,\"min_tokens\":1,\"stream\":false"
    check_copies("{}", NULL, "{" ONE_TOKEN "}", "{}");
    check_copies("{\"kv_transfer_params\":{\"a\":1}}", "{\"b\":2}", "{" ONE_TOKEN ",\"kv_transfer_params\":{\"b\":2}}",
                 "{\"kv_transfer_params\":{\"b\":2}}");
    check_copies("{\"kv_transfer_params\":1,\"x\":{\"kv_transfer_params\":3},\"kv_transfer_params\":2}", NULL,
                 "{\"x\":{\"kv_transfer_params\":3}," ONE_TOKEN "}", "{\"x\":{\"kv_transfer_params\":3}}");
    check_copies("{\"\\u006bv\\u005Ftransfer_param\\u0073\":1,\"kv_transfer_params\\u0000\":2}", NULL,
                 "{\"kv_transfer_params\\u0000\":2," ONE_TOKEN "}", "{\"kv_transfer_params\\u0000\":2}");
    check_copies("{\"stream\\u005foptions\":{},\"\\u0073tream\":true,\"max\\u005Ftokens\":9,\"max_tokens\":8,"
                 "\"min_token\\u0073\":4,\"max_completion_token\\u0073\":5}",
                 NULL, "{" ONE_TOKEN "}",
                 "{\"stream\\u005foptions\":{},\"\\u0073tream\":true,\"max\\u005Ftokens\":9,\"max_tokens\":8,"
                 "\"min_token\\u0073\":4,\"max_completion_token\\u0073\":5}");
    check_copies("{\"\\u006e\":4,\"best_of\":3,\"use_beam_search\":true}", NULL,
                 "{" ONE_TOKEN ",\"n\":1,\"best_of\":1}", "{\"\\u006e\":4,\"best_of\":3,\"use_beam_search\":true}");
#undef ONE_TOKEN
}

TEST(test_names_of_fields)
{
    static const char *const same[] = {"a/b", "a\\/b", "\\u0061/\\u0062", "a\\u002Fb", "a\\u002fb"};
    static const char *const other[] = {"a/", "a/bc", "a\\\\/b", "A/b", "\\u0161/b", "a\\u0000/b", "", "a\\nb"};
    kvp_body_t body;
    char text[64];
    const char *why;

    for (size_t i = 0; i < KVP_ARRAY_LEN(same) + KVP_ARRAY_LEN(other); i++) {
        const bool is_same = i < KVP_ARRAY_LEN(same);

        snprintf(text, sizeof text, "{\"%s\":1}", is_same ? same[i] : other[i - KVP_ARRAY_LEN(same)]);
        assert_true(kvp_body_read(text, strlen(text), &body, &why));
        if (kvp_body_is_named(&body, 0, "a/b") != is_same) fail_msg("%s", text);
    }
    snprintf(text, sizeof text, "%s", "{\"\\b\\f\\n\\r\\t\\\"\\\\\":1}");
    assert_true(kvp_body_read(text, strlen(text), &body, &why));
    assert_true(kvp_body_is_named(&body, 0, "\b\f\n\r\t\"\\"));
}

/* Fails if one hand-over would be loaded for several prompts or choices, or if one prompt loses it. */
TEST(test_what_is_handed_over)
{
    static const char *const several_prompts[] = {
        "{\"prompt\":[\"a\",\"b\"]}",
        "{\"prompt\":[[1],[2]]}",
        "{\"pr\\u006fmpt\": [ \"a\" , \"b\" ]}",
        "{\"prompt\":[\"a\",\"b\"],\"prompt\":\"a\"}",
        "{\"prompt_embeds\":[\"a\",\"b\"]}",
        "{\"prompt\":\"a\",\"prompt_embeds\":\"b\"}",
    };
    static const char *const one_prompt[] = {
        "{}",
        "{\"prompt\":\"a\"}",
        "{\"prompt\":[\"a,b\"]}",
        "{\"prompt\":[1,2]}",
        "{\"prompt\":[[1,2]]}",
        "{\"prompt\":[ -1,2]}",
        "{\"prompt\":[]}",
        "{\"messages\":[{},{}],\"n\":2}",
        "{\"prompt\":null,\"prompt_embeds\":\"b\"}",
        "{\"x\":{\"prompt\":[\"a\",\"b\"]}}",
    };
    static const char *const several_choices[] = {"{\"n\":2}",         "{\"best_of\":3}", "{\"use_beam_search\":true}",
                                                  "{\"n\":2,\"n\":1}", "{\"\\u006e\":2}", "{\"n\":\"2\"}"};
    static const char *const one_choice[] = {"{}", "{\"n\":1,\"best_of\":1,\"use_beam_search\":false}",
                                             "{\"n\":null,\"best_of\":null,\"use_beam_search\":null}"};
    const struct {
        bool (*is_several)(const kvp_body_t *request);
        const char *const *texts;
        size_t n;
        bool want;
    } sets[] = {{kvp_has_several_prompts, several_prompts, KVP_ARRAY_LEN(several_prompts), true},
                {kvp_has_several_prompts, one_prompt, KVP_ARRAY_LEN(one_prompt), false},
                {kvp_has_several_choices, several_choices, KVP_ARRAY_LEN(several_choices), true},
                {kvp_has_several_choices, one_choice, KVP_ARRAY_LEN(one_choice), false}};
    kvp_body_t body;
    const char *why;

    for (size_t s = 0; s < KVP_ARRAY_LEN(sets); s++)
        for (size_t i = 0; i < sets[s].n; i++) {
            assert_true(kvp_body_read(sets[s].texts[i], strlen(sets[s].texts[i]), &body, &why));
            if (sets[s].is_several(&body) != sets[s].want) fail_msg("%s", sets[s].texts[i]);
        }
}

static uint32_t
pick(kvp_fleet_t *f, const uint32_t *tried, uint32_t tried_n)
{
    return kvp_fleet_pick(f, KVP_SERVER_REPLICA, false, tried, tried_n);
}

TEST(test_fleet)
{
    static kvp_fleet_t f;
    uint32_t a, b, c, tried[2];

    assert_int_equal(pick(&f, NULL, 0), KVP_SERVER_NONE);
    a = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://a", "");
    b = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://b", "");
    c = kvp_fleet_add(&f, KVP_SERVER_PREFILL, "http://a", "");
    assert_int_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://a", ""), a);
    assert_int_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "", ""), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_count(&f, KVP_SERVER_REPLICA), 2);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(pick(&f, NULL, 0), i % 2 == 0 ? a : b);
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_PREFILL, false, NULL, 0), c);
    kvp_fleet_end(&f, b, KVP_SERVER_DID, 0);
    assert_int_equal(kvp_fleet_check(&f, 0), KVP_SERVER_NONE);
    kvp_fleet_end(&f, b, KVP_SERVER_FAILED, 0);
    for (uint32_t i = 0; i < 3; i++) /* b is left out */
        assert_int_equal(pick(&f, NULL, 0), a);
    tried[0] = a;
    tried[1] = b;
    assert_int_equal(pick(&f, tried, 1), b); /* where there is no other */
    assert_int_equal(pick(&f, tried, 2), KVP_SERVER_NONE);
    kvp_fleet_end(&f, b, KVP_SERVER_LEFT, 0);
    assert_int_equal(kvp_fleet_check(&f, 499 * MS), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_check(&f, 500 * MS), b);
    assert_int_equal(kvp_fleet_check(&f, 500 * MS), KVP_SERVER_NONE);
    kvp_fleet_checked(&f, b, KVP_CHECK_DOWN, 500 * MS);
    assert_int_equal(kvp_fleet_check(&f, 1499 * MS), KVP_SERVER_NONE); /* twice as long */
    for (uint64_t i = 0, now_ns = 1500 * MS; i < 20; i++, now_ns += 15000 * MS) { /* 15 s at most */
        assert_int_equal(kvp_fleet_check(&f, now_ns), b);
        kvp_fleet_checked(&f, b, i == 19 ? KVP_CHECK_UP : KVP_CHECK_DOWN, now_ns);
    }
    assert_false(f.servers[b].is_down);
    assert_int_equal(pick(&f, tried, 1), b);
    assert_int_not_equal(f.servers[b].fails, 0); /* a check alone does not make its failures forgotten */
    kvp_fleet_end(&f, b, KVP_SERVER_DID, 0);
    assert_int_equal(f.servers[b].fails, 0);
    for (uint32_t i = 0; i < 3; i++) { /* the third error in a row, not one that one request has */
        assert_int_equal(pick(&f, tried, 1), b);
        assert_int_equal(kvp_fleet_left_out(&f), 0);
        assert_int_equal(kvp_fleet_end(&f, b, KVP_SERVER_ERRED, 0), i == 2);
    }
    assert_int_equal(kvp_fleet_left_out(&f), 1);
    kvp_fleet_checked(&f, kvp_fleet_check(&f, 30000 * MS), KVP_CHECK_UP, 0);
    for (uint32_t i = 0; i < 3; i++) { /* the second closing in a row */
        assert_true(kvp_fleet_take_again(&f, b));
        assert_int_equal(kvp_fleet_end(&f, b, i == 0 ? KVP_SERVER_DID : KVP_SERVER_CLOSED, 0), i == 2);
    }
    assert_true(kvp_fleet_take_again(&f, b)); /* also while it is left out */
    kvp_fleet_end(&f, b, KVP_SERVER_LEFT, 0);
    kvp_fleet_end(&f, c, KVP_SERVER_FAILED, 0);
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_PREFILL, false, NULL, 0), KVP_SERVER_NONE);
    assert_true(kvp_fleet_remove(&f, KVP_SERVER_REPLICA, "http://b"));
    assert_false(kvp_fleet_remove(&f, KVP_SERVER_REPLICA, "http://b"));
    assert_false(kvp_fleet_take_again(&f, b));
    assert_int_equal(pick(&f, tried, 1), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://d", ""), b);
    assert_true(kvp_fleet_remove(&f, KVP_SERVER_REPLICA, "http://a")); /* it has requests under way */
    assert_int_not_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://e", ""), a);
}

/* Three requests in a row without a byte are a doubt, and a check settles it. */
TEST(test_silent_servers)
{
    static kvp_fleet_t f;
    const char *unfit[2];
    uint32_t a, b, since;

    a = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://a", "");
    b = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://b", "");
    for (uint32_t i = 0; i < 5; i++) { /* a byte between any two of them is enough */
        assert_int_equal(kvp_fleet_take(&f, KVP_SERVER_REPLICA, "http://a", NULL, 0), a);
        kvp_fleet_sent(&f, a, (1000 + i) * MS);
        if (i == 2) kvp_fleet_hear(&f, a, (1000 + i) * MS);
        assert_int_equal(kvp_fleet_check(&f, (1200 + i) * MS), KVP_SERVER_NONE);
    }
    kvp_fleet_sent(&f, a, 1300 * MS);
    assert_int_equal(kvp_fleet_check(&f, 1252 * MS), KVP_SERVER_NONE); /* they may all have come at once */
    assert_int_equal(kvp_fleet_check(&f, 1253 * MS), a);
    assert_int_equal(kvp_fleet_check(&f, 1253 * MS), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_take(&f, KVP_SERVER_REPLICA, "http://a", NULL, 0), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_unfit(&f, KVP_SERVER_REPLICA, NULL, 0, unfit, 2), 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(pick(&f, NULL, 0), b);
    assert_int_equal(pick(&f, &b, 1), a); /* where there is no other */
    assert_int_equal(kvp_fleet_left_out(&f), 0);
    assert_true(kvp_fleet_checked(&f, a, KVP_CHECK_DOWN, 6000 * MS));
    assert_int_equal(kvp_fleet_left_out(&f), 1);
    /* Clients that give up make it look no idler; a check that succeeds does. */
    since = kvp_fleet_give_up(&f, a, 6000 * MS);
    assert_int_equal(kvp_fleet_give_up(&f, a, 6000 * MS), since);
    assert_int_equal(f.servers[a].open, 6);
    assert_false(kvp_fleet_return(&f, a, since, KVP_SERVER_LEFT, 6000 * MS));
    assert_int_equal(f.servers[a].open, 5);
    assert_int_equal(kvp_fleet_check(&f, 6500 * MS), a);
    assert_false(kvp_fleet_checked(&f, a, KVP_CHECK_UP, 6500 * MS));
    assert_int_equal(f.servers[a].open, 4);
    assert_false(kvp_fleet_is_given_up(&f, a, since));
    assert_false(kvp_fleet_return(&f, a, since, KVP_SERVER_LEFT, 6500 * MS));
    assert_int_equal(f.servers[a].open, 4);
    /* One that was given up is enough after 5 s. A check that could not be made, or failed beside an answer, says
     * nothing. */
    (void)kvp_fleet_give_up(&f, a, 7000 * MS);
    assert_int_equal(kvp_fleet_check(&f, 11999 * MS), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_check(&f, 12000 * MS), a);
    assert_false(kvp_fleet_checked(&f, a, KVP_CHECK_NONE, 12000 * MS));
    assert_int_equal(kvp_fleet_check(&f, 17000 * MS), a);
    kvp_fleet_sent(&f, a, 17000 * MS);
    kvp_fleet_hear(&f, a, 17001 * MS);
    assert_false(kvp_fleet_checked(&f, a, KVP_CHECK_DOWN, 22000 * MS));
    assert_int_equal(kvp_fleet_left_out(&f), 0);
}

static uint32_t displaced;

static void
count_displaced(kvp_upload_t *place)
{
    (void)place;
    displaced++;
}

TEST(test_places)
{
    kvp_upload_t a = {.bytes = 0}, b = a, c = a;
    kvp_uploads_t p;

    kvp_places_init(&p, 2, 100);
    kvp_list_init(&a.link);
    kvp_list_init(&b.link);
    kvp_list_init(&c.link);
    kvp_places_enter(&p, &a, count_displaced);
    kvp_places_enter(&p, &b, count_displaced);
    kvp_places_enter(&p, &c, count_displaced);
    assert_true(a.is_displaced && !b.is_displaced && displaced == 1 && kvp_places_uploads(&p) == 2);
    assert_false(kvp_places_grow(&p, &a, 1));
    kvp_places_leave(&p, &a);
    assert_true(kvp_places_grow(&p, &b, 60) && kvp_places_grow(&p, &c, 40));
    assert_true(kvp_places_grow(&p, &c, 60)); /* b is older */
    assert_true(b.is_displaced && !kvp_places_finish(&p, &b) && displaced == 2);
    assert_false(kvp_places_grow(&p, &c, 1)); /* there is no other upload */
    assert_true(kvp_places_finish(&p, &c));
    kvp_places_leave(&p, &b);
    assert_true(p.bytes == 100 && p.uploads_n == 0); /* its request is under way */
    kvp_places_leave(&p, &c);
    assert_true(p.bytes == 0 && displaced == 2);
    kvp_places_fini(&p);
}

TEST(test_fleet_by_load)
{
    static kvp_fleet_t f;
    const char *unfit[4];
    uint32_t a, b;

    a = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://a", "");
    b = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://b", "");
    assert_int_equal(kvp_fleet_take(&f, KVP_SERVER_REPLICA, "http://a", NULL, 0), a);
    assert_int_equal(kvp_fleet_take(&f, KVP_SERVER_REPLICA, "http://a", NULL, 0), a);
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_REPLICA, true, NULL, 0), b);
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_REPLICA, true, NULL, 0), b);
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_REPLICA, true, NULL, 0), a); /* equal: in turn */
    assert_int_equal(kvp_fleet_take(&f, KVP_SERVER_DECODE, "http://a", NULL, 0), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_take(&f, KVP_SERVER_REPLICA, "http://a", &a, 1), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_unfit(&f, KVP_SERVER_REPLICA, &a, 1, unfit, 4), 1);
    assert_string_equal(unfit[0], "http://a");
    kvp_fleet_end(&f, b, KVP_SERVER_FAILED, 0);
    assert_int_equal(kvp_fleet_take(&f, KVP_SERVER_REPLICA, "http://b", NULL, 0), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_unfit(&f, KVP_SERVER_REPLICA, &a, 1, unfit, 4), 2);
    assert_int_equal(kvp_fleet_unfit(&f, KVP_SERVER_REPLICA, &a, 1, unfit, 1), 1);
}

TEST(test_ranks)
{
    static const char text[] =
        "{\"2\":{\"engine_id\":\"a\",\"w\":{}},\"7\":{\"engine_id\":\"b\"},\"x\":{\"engine_id\":\"c\"},\"-1\":"
        "{\"engine_id\":\"d\"},\"8\":{\"engine_id\":\"\"},\"9\":{},\"10\":7,\"2\":{\"engine_id\":\"e\"},"
        "\"4294967296\":{\"engine_id\":\"f\"},\"\":{\"engine_id\":\"g\"}}";
    static const char *const none[] = {"", "[]", "{}", "{\"0\":{\"engine_id\":\"a\\nb\"}}"};
    static kvp_server_rank_t ranks[KVP_FLEET_RANKS_MAX];
    static kvp_fleet_t f;
    kvp_server_rank_t got;
    uint32_t a;

    for (size_t i = 0; i < KVP_ARRAY_LEN(none); i++)
        assert_int_equal(kvp_ranks_read(none[i], strlen(none[i]), ranks), 0);
    assert_int_equal(kvp_ranks_read(text, strlen(text), ranks), 2);
    assert_int_equal(ranks[0].rank, 2);
    assert_string_equal(ranks[0].engine, "e");
    assert_int_equal(ranks[1].rank, 7);
    a = kvp_fleet_add(&f, KVP_SERVER_PREFILL, "http://a", "http://b");
    assert_false(kvp_fleet_take_rank(&f, a, -1, 0, &got));
    assert_true(kvp_fleet_set_ranks(&f, a, ranks, 2, 0));
    for (uint32_t i = 0; i < 4; i++) { /* in turn */
        assert_true(kvp_fleet_take_rank(&f, a, -1, 0, &got));
        assert_int_equal(got.rank, i % 2 == 0 ? 2 : 7);
    }
    kvp_fleet_end_rank(&f, a, 7);
    for (uint32_t i = 0; i < 2; i++) { /* fewest under way, then in turn */
        assert_true(kvp_fleet_take_rank(&f, a, -1, 0, &got));
        assert_int_equal(got.rank, i == 0 ? 7 : 2);
    }
    assert_true(kvp_fleet_take_rank(&f, a, 2, 0, &got)); /* wanted */
    assert_int_equal(got.rank, 2);
    ranks[0].rank = 9;
    assert_true(kvp_fleet_set_ranks(&f, a, ranks, 2, 0)); /* 2 is gone; 7 has what it had */
    assert_true(kvp_fleet_take_rank(&f, a, 2, 0, &got));
    assert_int_equal(got.rank, 9);
    assert_int_equal(got.open, 1);
    kvp_fleet_end_rank(&f, a, 2);
    assert_false(kvp_fleet_take_rank(&f, a, -1, 5000 * MS, &got)); /* too old */
    assert_true(kvp_fleet_set_ranks(&f, a, ranks, 2, 5000 * MS));
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_PREFILL, false, NULL, 0), a);
    kvp_fleet_end(&f, a, KVP_SERVER_FAILED, 5000 * MS);
    assert_false(kvp_fleet_take_rank(&f, a, -1, 5000 * MS, &got)); /* another process may be there */
    kvp_fleet_fini(&f);
}

TEST(test_fleet_that_serves)
{
    static kvp_fleet_t f;
    uint32_t p, d;

    assert_false(kvp_fleet_is_serving(&f));
    kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://r", "");
    assert_true(kvp_fleet_is_serving(&f));
    d = kvp_fleet_add(&f, KVP_SERVER_DECODE, "http://d", "");
    assert_true(kvp_fleet_is_serving(&f)); /* it computes alone */
    p = kvp_fleet_add(&f, KVP_SERVER_PREFILL, "http://p", "");
    f.servers[p].is_down = true;
    assert_false(kvp_fleet_is_serving(&f));
    f.servers[p].is_down = false;
    f.servers[d].is_down = true;
    assert_false(kvp_fleet_is_serving(&f));
    kvp_fleet_add(&f, KVP_SERVER_DECODE, "http://e", "");
    assert_true(kvp_fleet_is_serving(&f));
}

TEST(test_headers)
{
    static const char text[] = "Content-Type\0text/plain\0connection\0close, X-Hop ,Date\0X-Empty\0\0retry-after\0"
                               "7";
    static const char *const passes[] = {"Retry-After", "Server", "Set-Cookie", "Content-Encoding",
                                         "X-Ho",        "X-Hopp", "closed"};
    static const char *const stays[] = {"x-hop",
                                        "DATE",
                                        "Connection",
                                        "keep-alive",
                                        "Transfer-Encoding",
                                        "content-length",
                                        "Trailer",
                                        "Upgrade",
                                        "X-Request-ID",
                                        "Access-Control-Allow-Origin",
                                        "Proxy-Authenticate",
                                        "Content-type"};
    kvp_buf_t list = {.data = (uint8_t *)text, .len = sizeof text};
    const char *name, *value;
    size_t at = 0, n = 0;

    while (kvp_headers_next(&list, &at, &name, &value))
        n++;
    assert_int_equal(n, 4);
    assert_string_equal(kvp_headers_find(&list, "Retry-After"), "7");
    assert_string_equal(kvp_headers_find(&list, "x-empty"), "");
    assert_null(kvp_headers_find(&list, "7"));
    for (size_t i = 0; i < KVP_ARRAY_LEN(passes); i++)
        assert_true(kvp_headers_passes(&list, passes[i]));
    for (size_t i = 0; i < KVP_ARRAY_LEN(stays); i++)
        assert_false(kvp_headers_passes(&list, stays[i]));
}

TEST(test_paths)
{
    static const struct {
        const char *method, *url;
        uint32_t status;
        kvp_path_kind_t kind;
    } cases[] = {{"POST", "/v1/completions", 200, KVP_PATH_COMPLETION},
                 {"GET", "/v1/models", 200, KVP_PATH_MODELS},
                 {"GET", "/v1/models/m", 200, KVP_PATH_MODELS},
                 {"GET", "/v1/models/org/m.gguf", 200, KVP_PATH_MODELS},
                 {"GET", "/v1/models/org%2Fm", 200, KVP_PATH_MODELS},
                 {"POST", "/v1/models/m", 405, 0},
                 {"GET", "/v1/models/", 404, 0},
                 {"GET", "/v1/models/../x", 404, 0},
                 {"GET", "/v1/models/a/%2E./x", 404, 0},
                 {"GET", "/v1/models/a/..", 404, 0},
                 {"GET", "/v1/models/.", 404, 0},
                 {"GET", "/v1/models/...", 200, KVP_PATH_MODELS},
                 {"GET", "/v1/models/a b", 404, 0},
                 {"GET", "/v1/modelsx", 404, 0},
                 {"GET", "/tokenize", 405, 0},
                 {"POST", "/detokenize", 200, KVP_PATH_OTHER},
                 {"POST", "/v1/responses", 200, KVP_PATH_RESPONSE},
                 {"GET", "/health", 200, KVP_PATH_HEALTH},
                 {"GET", "/healthz", 404, 0}};
    char longest[KVP_PATH_MAX + 2];

    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        kvp_path_kind_t kind;
        const uint32_t status = kvp_path_find(cases[i].method, cases[i].url, &kind);

        if (status != cases[i].status || (status == 200 && kind != cases[i].kind))
            fail_msg("%s: %u", cases[i].url, status);
    }
    memset(longest, 'a', sizeof longest);
    memcpy(longest, "/v1/models/", 11);
    longest[KVP_PATH_MAX + 1] = '\0';
    assert_int_equal(kvp_path_find("GET", longest, &(kvp_path_kind_t){0}), 404);
    longest[KVP_PATH_MAX] = '\0';
    assert_int_equal(kvp_path_find("GET", longest, &(kvp_path_kind_t){0}), 200);
}

TEST(test_urls)
{
    static const char *const good[][2] = {{"http://a", "http://a"},
                                          {"https://a.b:65535//", "https://a.b:65535"},
                                          {"http://[::1]:80/x/v1/", "http://[::1]:80/x"},
                                          {"http://a/v1", "http://a"},
                                          {"http://[::1]", "http://[::1]"},
                                          {"http://a:80/x]", "http://a:80/x]"}};
    static const char *const bad[] = {
        "",          "a",         "http://",        "http:///v1",  "ftp://a",     "http://a b", "http://a?x",
        "http://:1", "http://a:", "http://a:99999", "http://[::1", "http://a:1x", "http://u@a", "http://[]x"};
    char out[24], long_host[400] = "http://";
    kvp_hostport_t at;
    const char *path;

    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++) {
        assert_int_equal(kvp_base_url(good[i][0], strlen(good[i][0]), out, sizeof out), KVP_OK);
        assert_string_equal(out, good[i][1]);
    }
    assert_int_equal(kvp_url_split("http://[::1]:81/x", &at, &path), KVP_OK);
    assert_string_equal(at.host, "::1");
    assert_int_equal(at.port, 81);
    assert_string_equal(path, "/x");
    assert_int_equal(kvp_url_split("https://a", &at, &path), KVP_OK);
    assert_int_equal(at.port, 443);
    assert_string_equal(path, "");
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        assert_int_equal(kvp_base_url(bad[i], strlen(bad[i]), out, sizeof out), KVP_INVALID);
    assert_int_equal(kvp_base_url("http://abcdefghijklmnopq", 24, out, sizeof out), KVP_INVALID); /* no room */
    memset(long_host + 7, 'a', KVP_HOST_MAX);
    assert_int_equal(kvp_base_url(long_host, 7 + KVP_HOST_MAX, long_host, sizeof long_host), KVP_INVALID);
    assert_int_equal(kvp_base_url(long_host, 6 + KVP_HOST_MAX, long_host, sizeof long_host), KVP_OK);
}

static void
check_question(const char *request, const char *session, const char *want)
{
    static const char *const exclude[] = {"http://a\"b"};
    kvp_body_t body;
    kvp_buf_t out;
    const char *why;

    kvp_buf_init(&out, 0);
    assert_true(kvp_body_read(request, strlen(request), &body, &why));
    kvp_question_write(&body, session, exclude, session[0] != '\0', &out);
    kvp_buf_append(&out, "", 1);
    assert_string_equal(out.data, want);
    kvp_buf_fini(&out);
}

TEST(test_questions)
{
    static const char *const none[] = {"", "{}", "{\"url\":7}", "{\"url\":\"\"}", "{\"url\":\"a\\nb\"}", "[]"};
    static const char good[] = "{\"url\":\"http://a\",\"dp_rank\":1,\"dp_ranks\":2,\"route_id\":18446744073709551615}";
    kvp_routed_t told;

    check_question(
        "{\"prompt\":\"[1]\",\"model\":\"m\",\"max_tokens\":1,\"user\":\"u\"}", "",
        "{\"role\":\"prefill\",\"model\":\"m\",\"prompt\":\"[1]\",\"session_id\":\"4579340e26f3ee71\",\"exclude\":[]}");
    check_question("{\"prompt\":[ 1, 2],\"model\":\"m\",\"user\":\"u\"}", "s",
                   "{\"role\":\"prefill\",\"model\":\"m\",\"token_ids\":[ 1, 2],\"session_id\":\"d6b9d4d14ff6be13\","
                   "\"exclude\":[\"http://a\\\"b\"]}");
    check_question("{\"prompt\":[ \"1\" ],\"messages\":[],\"tools\":[{}]}", "",
                   "{\"role\":\"prefill\",\"messages\":[],\"tools\":[{}],\"prompt\":\"1\",\"exclude\":[]}");
    check_question("{\"prompt\":[[1, 2]]}", "", "{\"role\":\"prefill\",\"token_ids\":[1, 2],\"exclude\":[]}");
    check_question("{\"prompt\":[\"1\",\"2\"]}", "", "{\"role\":\"prefill\",\"prompt\":[\"1\",\"2\"],\"exclude\":[]}");
    for (size_t i = 0; i < KVP_ARRAY_LEN(none); i++)
        assert_false(kvp_told_read(none[i], strlen(none[i]), &told));
    assert_true(kvp_told_read(good, strlen(good), &told));
    assert_string_equal(told.url, "http://a");
    assert_int_equal(told.rank, 1);
    assert_true(told.route == UINT64_MAX);
    assert_true(
        kvp_told_read("{\"url\":\"x\",\"dp_rank\":3,\"dp_ranks\":1}", 36, &told)); /* the others are not known here */
    assert_int_equal(told.rank, 3);
    assert_true(kvp_told_read("{\"url\":\"x\",\"route_id\":-1}", 25, &told));
    assert_int_equal(told.rank, -1);
    assert_int_equal(told.route, 0);
}

TEST_MAIN()
