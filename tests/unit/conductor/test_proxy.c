/* SPDX-License-Identifier: Apache-2.0
 * Bodies of requests, and which server gets the next one.
 */
#include "conductor/proxy/body.h"
#include "conductor/proxy/fleet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <string.h>

#define MS 1000000ull

static void
test_bodies(void **state)
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

    (void)state;
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        why = NULL;
        if (kvp_body_read(bad[i], strlen(bad[i]), &body, &why)) fail_msg("taken: %s", bad[i]);
        assert_non_null(why);
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++)
        if (!kvp_body_read(good[i], strlen(good[i]), &body, &why)) fail_msg("not taken: %s: %s", good[i], why);
}

static void
test_copies(void **state)
{
    static const char text[] = " {\"model\" : \"m\", \"stream\":true ,\"n\":[1, 2],\"stream\":false}";
    static const char *const without[] = {"stream", "none", NULL};
    static const char *const all[] = {"model", "stream", "n", NULL};
    kvp_body_t body;
    kvp_buf_t out;
    const char *why, *value;
    size_t len;

    (void)state;
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

static uint32_t
pick(kvp_fleet_t *f, const uint32_t *tried, uint32_t tried_n)
{
    return kvp_fleet_pick(f, KVP_SERVER_REPLICA, tried, tried_n);
}

static void
test_fleet(void **state)
{
    static kvp_fleet_t f;
    uint32_t a, b, c, tried[2];

    (void)state;
    assert_int_equal(pick(&f, NULL, 0), KVP_SERVER_NONE);
    a = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://a", "");
    b = kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://b", "");
    c = kvp_fleet_add(&f, KVP_SERVER_PREFILL, "http://a", "");
    assert_int_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://a", ""), a);
    assert_int_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "", ""), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_count(&f, KVP_SERVER_REPLICA), 2);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(pick(&f, NULL, 0), i % 2 == 0 ? a : b);
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_PREFILL, NULL, 0), c);
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
    kvp_fleet_checked(&f, b, false, 500 * MS);
    assert_int_equal(kvp_fleet_check(&f, 1499 * MS), KVP_SERVER_NONE); /* twice as long */
    for (uint64_t i = 0, now_ns = 1500 * MS; i < 20; i++, now_ns += 30000 * MS) { /* 30 s at most */
        assert_int_equal(kvp_fleet_check(&f, now_ns), b);
        kvp_fleet_checked(&f, b, i == 19, now_ns);
    }
    assert_false(f.servers[b].is_down);
    assert_int_equal(pick(&f, tried, 1), b);
    assert_int_not_equal(f.servers[b].fails, 0); /* a check alone does not make its failures forgotten */
    kvp_fleet_end(&f, b, KVP_SERVER_DID, 0);
    assert_int_equal(f.servers[b].fails, 0);
    kvp_fleet_end(&f, c, KVP_SERVER_FAILED, 0);
    assert_int_equal(kvp_fleet_pick(&f, KVP_SERVER_PREFILL, NULL, 0), KVP_SERVER_NONE);
    assert_true(kvp_fleet_remove(&f, KVP_SERVER_REPLICA, "http://b"));
    assert_false(kvp_fleet_remove(&f, KVP_SERVER_REPLICA, "http://b"));
    assert_int_equal(pick(&f, tried, 1), KVP_SERVER_NONE);
    assert_int_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://d", ""), b);
    assert_true(kvp_fleet_remove(&f, KVP_SERVER_REPLICA, "http://a")); /* it has requests under way */
    assert_int_not_equal(kvp_fleet_add(&f, KVP_SERVER_REPLICA, "http://e", ""), a);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bodies), cmocka_unit_test(test_copies),
                                       cmocka_unit_test(test_fleet)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
