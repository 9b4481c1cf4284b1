/* SPDX-License-Identifier: Apache-2.0
 * Which requests a control port takes for those of a web page. */
#include "common/http_guard.h"
#include "tests/cases.h"

/* One request: the values of Host, Origin and Sec-Fetch-Site (NULL = absent), and whether it passes at a listener of
 * any address and at one of a loopback address. */
typedef struct {
    const char *host, *origin, *site;
    bool passes, passes_loopback;
} row_t;

static bool
passes(const row_t *row, bool is_loopback)
{
    kvp_http_guard_t guard = {0};

    kvp_http_guard_header(&guard, "Accept", "*/*");
    if (row->site != NULL) kvp_http_guard_header(&guard, "sec-fetch-site", row->site);
    if (row->origin != NULL) kvp_http_guard_header(&guard, "ORIGIN", row->origin);
    if (row->host != NULL) kvp_http_guard_header(&guard, "host", row->host);
    return kvp_http_guard_check(&guard, is_loopback, false) == NULL;
}

TEST(test_pages_of_others_are_refused)
{
    static const row_t rows[] = {
        /* programs */
        {"127.0.0.1:9003", NULL, NULL, true, true},
        {NULL, NULL, NULL, true, true},
        {"localhost:9003", NULL, NULL, true, true},
        {"LocalHost", NULL, NULL, true, true},
        {"[::1]:9003", NULL, NULL, true, true},
        {"[::1]", NULL, NULL, true, true},
        {"10.0.0.7", NULL, NULL, true, true},
        {"db7", NULL, NULL, true, true},
        /* the server's own page, a bookmark */
        {"127.0.0.1:9003", "http://127.0.0.1:9003", "same-origin", true, true},
        {"127.0.0.1", "http://127.0.0.1:80", NULL, true, true},
        {"kv.example:443", "https://KV.example", "same-origin", true, false},
        {"127.0.0.1:9003", NULL, "none", true, true},
        /* pages of others */
        {"127.0.0.1:9003", NULL, "cross-site", false, false},
        {"127.0.0.1:9003", NULL, " Cross-Site\t", false, false},
        {"127.0.0.1:9003", "http://127.0.0.1:9003", "cross-site", false, false},
        {"127.0.0.1:9003", "https://evil.example", NULL, false, false},
        {"127.0.0.1:9003", "http://127.0.0.1:8888", "same-site", false, false},
        {"127.0.0.1:9003", "http://127.0.0.1", NULL, false, false},
        {"127.0.0.1:9003", "http://127.0.0.1:9003.evil.example", NULL, false, false},
        {"127.0.0.1:9003", "null", NULL, false, false},
        {"127.0.0.1:9003", "", NULL, false, false},
        {"127.0.0.1:9003", "http://", NULL, false, false},
        {"127.0.0.1:9003", "file://127.0.0.1:9003", NULL, false, false},
        {NULL, "http://127.0.0.1:9003", NULL, false, false},
        /* their names made to point here */
        {"evil.example:9003", NULL, NULL, true, false},
        {"evil.example:9003", "http://evil.example:9003", "same-origin", true, false},
        {"evil:9003", "http://evil:9003", NULL, true, false},
        {"evil", NULL, "same-origin", true, false},
        {"127.0.0.1.evil.example", NULL, NULL, true, false},
        {"localhost.evil.example", NULL, NULL, true, false},
        {"127.0.0.1:9003.evil.example", NULL, NULL, true, false},
        {"[::1]evil.example", NULL, NULL, true, false},
        {"[::1", NULL, NULL, true, false},
        {"[localhost]", NULL, NULL, true, false},
        {"127.0.0.1@evil.example", NULL, NULL, true, false},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++) {
        if (passes(&rows[i], false) != rows[i].passes) fail_msg("row %zu, any address", i);
        if (passes(&rows[i], true) != rows[i].passes_loopback) fail_msg("row %zu, loopback", i);
    }
}

TEST(test_a_header_twice_is_refused)
{
    static const char *const names[] = {"Host", "Origin"};

    for (size_t i = 0; i < KVP_ARRAY_LEN(names); i++) {
        kvp_http_guard_t guard = {0};

        kvp_http_guard_header(&guard, "Host", "127.0.0.1");
        kvp_http_guard_header(&guard, "Origin", "http://127.0.0.1");
        assert_null(kvp_http_guard_check(&guard, true, false));
        kvp_http_guard_header(&guard, names[i], i == 0 ? "127.0.0.1" : "http://127.0.0.1");
        assert_non_null(kvp_http_guard_check(&guard, true, false));
    }
}

TEST(test_a_link_of_another_site_opens_the_page_and_nothing_else)
{
    static const struct {
        const char *dest;
        bool is_page, passes;
    } rows[] = {{"document", true, true}, {"document", false, false}, {"iframe", true, false}, {"empty", true, false}};

    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++) {
        kvp_http_guard_t guard = {0};

        kvp_http_guard_header(&guard, "Host", "127.0.0.1:9003");
        kvp_http_guard_header(&guard, "Sec-Fetch-Site", "cross-site");
        kvp_http_guard_header(&guard, "Sec-Fetch-Dest", rows[i].dest);
        assert_int_equal(kvp_http_guard_check(&guard, true, rows[i].is_page) == NULL, rows[i].passes);
    }
}

TEST_MAIN()
