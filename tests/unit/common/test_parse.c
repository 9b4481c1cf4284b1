/* SPDX-License-Identifier: Apache-2.0
 * Sizes, durations and addresses: what is taken, and that everything else is refused. */
#include "common/parse.h"
#include "tests/cases.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *text;
    uint64_t value;
} good_t;

typedef kvp_err_t (*parse_fn)(const char *text, uint64_t *value_out);

static void
check(parse_fn parse, const good_t *good, size_t good_count, const char *const *bad, size_t bad_count)
{
    for (size_t i = 0; i < good_count; i++) {
        uint64_t value = 0;
        if (parse(good[i].text, &value) != KVP_OK) fail_msg("'%s' was refused", good[i].text);
        if (value != good[i].value) fail_msg("'%s' gave %llu", good[i].text, (unsigned long long)value);
    }
    for (size_t i = 0; i < bad_count; i++) {
        uint64_t value = 77;
        if (parse(bad[i], &value) != KVP_INVALID) fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(value, 77);
    }
}

TEST(test_u64)
{
    static const good_t good[] = {{"0", 0}, {"007", 7}, {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {"", " 1", "1 ", "+1", "-1", "0x10", "1.5", "18446744073709551616"};
    check(kvp_parse_u64, good, KVP_ARRAY_LEN(good), bad, KVP_ARRAY_LEN(bad));
}

TEST(test_bytes)
{
    static const good_t good[] = {
        {"0", 0},
        {"4096", 4096},
        {"16MB", 16000000},
        {"512KiB", 512ull << 10},
        {"1b", 1},
        {"4GiB", 4ull << 30},
        {"4gib", 4ull << 30},
        {"2TiB", 2ull << 40},
        {"3KB", 3000},
        {"5TB", 5000000000000},
        {"16777215TiB", 16777215ull << 40},
    };
    static const char *const bad[] = {"", "GiB", "4 GiB", "4GiB ", "4G", "4Gi", "1.5GiB", "-1", "16777216TiB"};
    check(kvp_parse_bytes, good, KVP_ARRAY_LEN(good), bad, KVP_ARRAY_LEN(bad));
}

TEST(test_durations)
{
    static const good_t good[] = {
        {"0", 0},
        {"10s", 10000000000},
        {"50ms", 50000000},
        {"2m", 120000000000},
        {"1h", 3600000000000},
        {"7ns", 7},
        {"3us", 3000},
        {"1d", 86400000000000},
        {"18446744073s", 18446744073000000000ull},
    };
    static const char *const bad[] = {"", "10", "s", "10 s", "-1s", "1.5s", "1w", "18446744074s"};
    check(kvp_parse_duration_ns, good, KVP_ARRAY_LEN(good), bad, KVP_ARRAY_LEN(bad));
}

TEST(test_hostport_when_good)
{
    static const struct {
        const char *text;
        const char *host;
        uint16_t port;
    } good[] = {
        {"127.0.0.1:0", "127.0.0.1", 0},
        {"node-1.rack_2.example:65535", "node-1.rack_2.example", 65535},
        {"[::1]:80", "::1", 80},
        {"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++) {
        kvp_hostport_t at;
        char text[KVP_HOSTPORT_TEXT_MAX];
        assert_int_equal(kvp_parse_hostport(good[i].text, &at), KVP_OK);
        assert_string_equal(at.host, good[i].host);
        assert_int_equal(at.port, good[i].port);
        assert_string_equal(kvp_format_hostport(&at, text), good[i].text);
    }
}

TEST(test_http_address)
{
    kvp_hostport_t at;
    char text[KVP_HTTP_TEXT_MAX];
    bool has_tls;

    assert_int_equal(kvp_parse_http("https://[::1]:80", &at, &has_tls), KVP_OK);
    assert_true(has_tls);
    assert_string_equal(at.host, "::1");
    assert_string_equal(kvp_format_http(&at, true, text), "https://[::1]:80");
    assert_int_equal(kvp_parse_http("h:1", &at, &has_tls), KVP_OK);
    assert_false(has_tls);
    assert_string_equal(kvp_format_http(&at, false, text), "h:1");
    assert_int_equal(kvp_parse_http("https://", &at, &has_tls), KVP_INVALID);
    assert_int_equal(kvp_parse_http("http://h:1", &at, &has_tls), KVP_INVALID);
}

TEST(test_hostport_when_bad)
{
    static const char *const bad[] = {
        "",      ":",      "host",  "host:",   ":80",     "host:65536", "host:080000", "host:8a", "host:-1", "::1:80",
        "[]:80", "[x]:80", "[::1]", "[::1:80", "ho st:1", "h/x:1",      "h:1 ",        " h:1",    "h\n:1",   "[::1]x:1",
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        kvp_hostport_t at;
        if (kvp_parse_hostport(bad[i], &at) != KVP_INVALID) fail_msg("'%s' was taken", bad[i]);
    }
    char text[KVP_HOST_MAX + 3];
    kvp_hostport_t at;
    memset(text, 'h', KVP_HOST_MAX);
    memcpy(text + KVP_HOST_MAX, ":1", 3);
    assert_int_equal(kvp_parse_hostport(text, &at), KVP_INVALID);
    assert_int_equal(kvp_parse_hostport(text + 1, &at), KVP_OK);
}

TEST(test_hostports_are_separated_by_commas)
{
    kvp_hostport_t at[3];
    size_t n;
    assert_int_equal(kvp_parse_hostports("a:1,[::1]:2,c:3", at, 3, &n), KVP_OK);
    assert_int_equal(n, 3);
    assert_string_equal(at[1].host, "::1");
    assert_int_equal(at[2].port, 3);
    assert_int_equal(kvp_parse_hostports("a:1,b:2,c:3,d:4", at, 3, &n), KVP_LIMIT);
    assert_int_equal(kvp_parse_hostports("a:1,", at, 3, &n), KVP_INVALID);
    assert_int_equal(kvp_parse_hostports("", at, 3, &n), KVP_INVALID);
    assert_int_equal(kvp_parse_hostports("a:1,,b:2", at, 3, &n), KVP_INVALID);
}

TEST(test_who_is_reached_from_this_host_alone)
{
    static const char *const inside[] = {"127.0.0.1", "127.8.0.1", "::1", "localhost"};
    static const char *const outside[] = {"0.0.0.0", "::", "10.0.0.1", "1270.example", "localhost.example", ""};
    kvp_hostport_t at = {.port = 1};
    for (size_t i = 0; i < KVP_ARRAY_LEN(inside); i++) {
        snprintf(at.host, sizeof(at.host), "%s", inside[i]);
        assert_true(kvp_hostport_is_loopback(&at));
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(outside); i++) {
        snprintf(at.host, sizeof(at.host), "%s", outside[i]);
        assert_false(kvp_hostport_is_loopback(&at));
    }
}

TEST(test_what_helps_who_cannot_listen)
{
    assert_non_null(strstr(kvp_listen_fix(EADDRINUSE), "another port with --listen"));
    assert_non_null(strstr(kvp_listen_fix(EADDRNOTAVAIL), "ip address"));
    assert_non_null(strstr(kvp_listen_fix(EACCES), "1024"));
    assert_string_equal(kvp_listen_fix(ENOMEM), "");
}

TEST(test_a_name_is_listed_whole)
{
    assert_true(kvp_is_listed("rdma", "rdma"));
    assert_true(kvp_is_listed("shm,rdma,tcp", "shm"));
    assert_true(kvp_is_listed("shm,rdma,tcp", "rdma"));
    assert_true(kvp_is_listed("shm,rdma,tcp", "tcp"));
    assert_false(kvp_is_listed("", "tcp"));
    assert_false(kvp_is_listed(",,", "tcp"));
    assert_false(kvp_is_listed("shm,tcpx,xtcp,tc", "tcp"));
}

TEST_MAIN()
