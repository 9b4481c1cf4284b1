/* SPDX-License-Identifier: Apache-2.0
 * The JSON writer: commas where they belong, and no text of a peer breaks out of its string. */
#include "common/jsonw.h"
#include "tests/cases.h"

static void
expect_text(kvp_buf_t *out, const char *want)
{
    kvp_buf_append(out, "", 1);
    assert_int_equal(out->err, KVP_OK);
    assert_string_equal((const char *)out->data, want);
    kvp_buf_fini(out);
}

TEST(test_commas_between_values_only)
{
    kvp_buf_t out;
    kvp_jsonw_t w;

    kvp_buf_init(&out, 0);
    kvp_jsonw_init(&w, &out);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_u64(&w, "n", UINT64_MAX);
    kvp_jsonw_open(&w, "empty", '{');
    kvp_jsonw_close(&w, '}');
    kvp_jsonw_open(&w, "list", '[');
    for (int i = 0; i < 2; i++) {
        kvp_jsonw_open(&w, NULL, '{');
        kvp_jsonw_bool(&w, "yes", i == 0);
        kvp_jsonw_text(&w, "text", "t");
        kvp_jsonw_close(&w, '}');
    }
    kvp_jsonw_close(&w, ']');
    kvp_jsonw_hex(&w, "id", (const uint8_t *)"\x00\xff\x1a", 3);
    kvp_jsonw_close(&w, '}');
    expect_text(&out, "{\"n\":18446744073709551615,\"empty\":{},\"list\":[{\"yes\":true,\"text\":\"t\"},"
                      "{\"yes\":false,\"text\":\"t\"}],\"id\":\"00ff1a\"}");
}

TEST(test_text_is_escaped)
{
    kvp_buf_t out;
    kvp_jsonw_t w;

    kvp_buf_init(&out, 0);
    kvp_jsonw_init(&w, &out);
    kvp_jsonw_text(&w, NULL, "a\"b\\c\nd\x1f\xc3\xa4");
    expect_text(&out, "\"a\\\"b\\\\c\\nd\\u001f\xc3\xa4\"");
}

TEST(test_bytes_that_are_no_utf8_are_replaced)
{
    kvp_buf_t out;
    kvp_jsonw_t w;

    kvp_buf_init(&out, 0);
    kvp_jsonw_init(&w, &out);
    kvp_jsonw_text(&w, NULL, "a\xff\xc3(\xe2\x82z");
    expect_text(&out, "\"a\\ufffd\\ufffd(\\ufffd\\ufffdz\"");
}

TEST(test_full_buffer_keeps_its_error)
{
    kvp_buf_t out;
    kvp_jsonw_t w;

    kvp_buf_init(&out, 8);
    kvp_jsonw_init(&w, &out);
    kvp_jsonw_text(&w, NULL, "too long for eight bytes");
    assert_int_equal(out.err, KVP_LIMIT);
    kvp_buf_fini(&out);
}

TEST_MAIN()
