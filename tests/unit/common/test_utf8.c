/* SPDX-License-Identifier: Apache-2.0
 * What is UTF-8 and what is not, at the edges of each length. */
#include "common/utf8.h"
#include "tests/cases.h"

#include <string.h>

TEST(test_edges_of_each_length)
{
    static const char *const good[] = {"",
                                       "\x7f",
                                       "\xc2\x80",
                                       "\xdf\xbf",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf",
                                       "a\xc3\xa4z"};
    static const char *const bad[] = {"\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",     "\xed\xa0\x80",
                                      "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80",
                                      "\xff",         "a\xc3(",           "a\xe2\x82",        "\xc2"};
    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++)
        assert_true(kvp_is_utf8(good[i], strlen(good[i])));
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        assert_false(kvp_is_utf8(bad[i], strlen(bad[i])));
    assert_true(kvp_is_utf8("a\0b", 3));
    assert_int_equal(kvp_utf8_step("\xe2\x82\xac!", 4), 3);
    assert_int_equal(kvp_utf8_step("\xe2\x82\xac!", 2), 0);
}

TEST_MAIN()
