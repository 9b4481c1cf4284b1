/* SPDX-License-Identifier: Apache-2.0
 * Options: every type, the four sources and their order, and what is said about mistakes. */
#include "common/daemon/conf.h"

#include "common/log.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name;
    bool is_fast;
    uint64_t count;
    uint64_t memory_bytes;
    uint64_t lease_ttl_ns;
    kvp_hostport_t listen;
    int policy;
    kvp_strings_t ssd;
} settings_t;

static const kvp_opt_t opts[] = {
    {KVP_OPT(STRING, "name", settings_t, name), .help = "Its name."},
    {KVP_OPT(BOOL, "fast", settings_t, is_fast), .help = "Whether it is."},
    {KVP_OPT(U64, "count", settings_t, count), .fallback = "3", .min = 1, .max = 10, .help = "How many."},
    {KVP_OPT(BYTES, "memory", settings_t, memory_bytes), .fallback = "4GiB", .min = 1024, .help = "How much."},
    {KVP_OPT(DURATION_NS, "lease-ttl", settings_t, lease_ttl_ns), .fallback = "10s", .min = 20000000,
     .max = 3600000000000, .help = "How long."},
    {KVP_OPT(HOSTPORT, "listen", settings_t, listen), .fallback = "127.0.0.1:50051", .help = "Where."},
    {KVP_OPT(ENUM, "policy", settings_t, policy), .fallback = "lru", .choices = "none|lru|tinylfu",
     .help = "What goes first."},
    {KVP_OPT(STRINGS, "ssd", settings_t, ssd), .metavar = "DIR:SIZE", .help = "A disk."},
};
static const kvp_conf_spec_t spec = {
    .program = "kvpool-test",
    .summary = "Tests options.",
    .opts = opts,
    .opt_count = KVP_ARRAY_LEN(opts),
};

typedef struct {
    kvp_conf_t conf;
    settings_t settings;
    char *said; /* what went to conf.out and conf.err */
    size_t said_len;
    FILE *to;
    char config_path[64];
} fixture_t;

static int
setup(void **state)
{
    static const char *const names[] = {"NAME",   "FAST",   "COUNT", "MEMORY",    "LEASE_TTL",
                                        "LISTEN", "POLICY", "SSD",   "LOG_LEVEL", "CONFIG"};
    for (size_t i = 0; i < KVP_ARRAY_LEN(names); i++) {
        char name[64];
        snprintf(name, sizeof(name), "KVPOOL_%s", names[i]);
        unsetenv(name);
    }
    fixture_t *fix = calloc(1, sizeof(*fix));
    assert_non_null(fix);
    kvp_conf_init(&fix->conf, &spec);
    fix->to = open_memstream(&fix->said, &fix->said_len);
    assert_non_null(fix->to);
    fix->conf.out = fix->to;
    fix->conf.err = fix->to;
    *state = fix;
    return 0;
}

static int
teardown(void **state)
{
    fixture_t *fix = *state;
    if (fix->config_path[0] != '\0') unlink(fix->config_path);
    kvp_conf_fini(&fix->conf);
    fclose(fix->to);
    free(fix->said);
    free(fix);
    return 0;
}

static int
parse(fixture_t *fix, const char **argv)
{
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    int rc = kvp_conf_parse(&fix->conf, argc, (char **)argv, &fix->settings);
    fflush(fix->to);
    return rc;
}

#define PARSE(fix, ...) parse(fix, (const char *[]){"kvpool-test", __VA_ARGS__ __VA_OPT__(, ) NULL})

static void
assert_said(const fixture_t *fix, const char *want)
{
    if (strstr(fix->said, want) == NULL) fail_msg("'%s' is not in: %s", want, fix->said);
}

static const char *
write_config(fixture_t *fix, const char *text, size_t len)
{
    strcpy(fix->config_path, "/tmp/kvpool-test-conf-XXXXXX");
    int fd = mkstemp(fix->config_path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), len);
    close(fd);
    return fix->config_path;
}

TEST_WITH(test_defaults_when_nothing_is_given, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(PARSE(fix), KVP_CONF_RUN);
    const settings_t *got = &fix->settings;
    assert_null(got->name);
    assert_false(got->is_fast);
    assert_int_equal(got->count, 3);
    assert_int_equal(got->memory_bytes, 4ull << 30);
    assert_int_equal(got->lease_ttl_ns, 10000000000);
    assert_string_equal(got->listen.host, "127.0.0.1");
    assert_int_equal(got->listen.port, 50051);
    assert_int_equal(got->policy, 1);
    assert_int_equal(got->ssd.count, 0);
    assert_string_equal(fix->said, "");
}

TEST_WITH(test_flags_in_both_forms, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(PARSE(fix, "--name=n=1", "--fast", "--count", "7", "--memory", "16MB", "--lease-ttl=50ms",
                           "--listen", "[::1]:0", "--policy", "tinylfu", "--ssd", "/a:1GiB", "--ssd=/b:2GiB", "--ssd",
                           "/c:3GiB"),
                     KVP_CONF_RUN);
    const settings_t *got = &fix->settings;
    assert_string_equal(got->name, "n=1");
    assert_true(got->is_fast);
    assert_int_equal(got->count, 7);
    assert_int_equal(got->memory_bytes, 16000000);
    assert_int_equal(got->lease_ttl_ns, 50000000);
    assert_string_equal(got->listen.host, "::1");
    assert_int_equal(got->policy, 2);
    assert_int_equal(got->ssd.count, 3);
    assert_string_equal(got->ssd.items[0], "/a:1GiB");
    assert_string_equal(got->ssd.items[1], "/b:2GiB");
    assert_string_equal(got->ssd.items[2], "/c:3GiB");
}

TEST_WITH(test_flag_beats_environment_beats_file_beats_default, setup, teardown)
{
    fixture_t *fix = *state;
    static const char text[] = "count = 4\nname = file\nlease-ttl=4s\nssd = /f:1\nssd = /g:1\nmemory = 4096\n";
    setenv("KVPOOL_CONFIG", write_config(fix, text, strlen(text)), 1);
    setenv("KVPOOL_COUNT", "5", 1);
    setenv("KVPOOL_NAME", "env", 1);
    setenv("KVPOOL_SSD", "/x:1,/y:2", 1);
    setenv("KVPOOL_POLICY", "", 1);
    assert_int_equal(PARSE(fix, "--count", "6"), KVP_CONF_RUN);
    assert_int_equal(fix->settings.count, 6);
    assert_string_equal(fix->settings.name, "env");
    assert_int_equal(fix->settings.ssd.count, 2);
    assert_string_equal(fix->settings.ssd.items[1], "/y:2");
    assert_int_equal(fix->settings.lease_ttl_ns, 4000000000);
    assert_int_equal(fix->settings.memory_bytes, 4096);
    assert_int_equal(fix->settings.policy, 1);
}

TEST_WITH(test_file_with_comments_and_spaces, setup, teardown)
{
    fixture_t *fix = *state;
    static const char text[] = "# all\n\n  count\t=  4  # four\r\nname = a#b # c\nfast = on\nlisten = none\n"
                               "log-level = warn\npolicy=none";
    assert_int_equal(PARSE(fix, "--config", write_config(fix, text, strlen(text))), KVP_CONF_RUN);
    assert_int_equal(fix->settings.count, 4);
    assert_string_equal(fix->settings.name, "a#b");
    assert_true(fix->settings.is_fast);
    assert_string_equal(fix->settings.listen.host, "");
    assert_int_equal(fix->settings.policy, 0);
    assert_false(kvp_log_is_on(KVP_LOG_INFO));
    kvp_log_set_level(KVP_LOG_INFO);
}

TEST_WITH(test_bad_lines_name_file_and_line, setup, teardown)
{
    fixture_t *fix = *state;
    static const struct {
        const char *text;
        size_t len; /* 0 = up to the NUL */
        const char *said;
    } cases[] = {
        {"\nnonsense\n", 0, "test.conf:2: expected `name = value`"},
        {"lease-tl = 3s\n", 0, "test.conf:1: unknown option 'lease-tl'"},
        {"config = x\n", 0, "test.conf:1: unknown option 'config'"},
        {"= 3\n", 0, "test.conf:1: unknown option ''"},
        {"count = x\n", 0, "test.conf:1: 'x' is no value for count: expected a whole number"},
        {"count =\n", 0, "test.conf:1: '' is no value for count"},
        {"count = 11\n", 0, "test.conf:1: 11 is out of bounds for count: from 1 to 10"},
        {"memory = 5B\n", 0, "5B is out of bounds for memory: at least 1KiB"},
        {"lease-ttl = 5ms\n", 0, "5ms is out of bounds for lease-ttl: from 20ms to 1h"},
        {"lease-ttl = 2h\n", 0, "2h is out of bounds for lease-ttl: from 20ms to 1h"},
        {"policy = fifo\n", 0, "expected none|lru|tinylfu"},
        {"policy = lru|tinylfu\n", 0, "expected none|lru|tinylfu"},
        {"policy =\n", 0, "expected none|lru|tinylfu"},
        {"listen = here\n", 0, "expected HOST:PORT"},
        {"count = 2\ncount = 2\n", 0, "test.conf:2: count is given twice"},
        {"name = a\0b\n", 11, "test.conf:1: line has a NUL byte"},
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        kvp_conf_fini(&fix->conf);
        fix->conf.err = fix->to;
        size_t len = cases[i].len != 0 ? cases[i].len : strlen(cases[i].text);
        assert_int_equal(kvp_conf_parse_text(&fix->conf, cases[i].text, len, "test.conf", &fix->settings), KVP_INVALID);
        fflush(fix->to);
        assert_said(fix, cases[i].said);
    }
}

TEST_WITH(test_line_of_the_longest_length_and_one_more, setup, teardown)
{
    fixture_t *fix = *state;
    char text[KVP_CONF_LINE_MAX + 1];
    memset(text, 'n', sizeof(text));
    memcpy(text, "name = ", 7);
    assert_int_equal(kvp_conf_parse_text(&fix->conf, text, KVP_CONF_LINE_MAX, "t", &fix->settings), KVP_OK);
    assert_int_equal(strlen(fix->settings.name), KVP_CONF_LINE_MAX - 7);
    assert_int_equal(kvp_conf_parse_text(&fix->conf, text, sizeof(text), "t", &fix->settings), KVP_INVALID);
    fflush(fix->to);
    assert_said(fix, "t:1: line is longer than 4096");
}

TEST_WITH(test_wrong_line_is_found_though_a_flag_overrides_it, setup, teardown)
{
    fixture_t *fix = *state;
    const char *path = write_config(fix, "count = x\n", 10);
    assert_int_equal(PARSE(fix, "--config", path, "--count", "2"), 2);
    assert_said(fix, ":1: 'x' is no value for count");
}

TEST_WITH(test_a_flag_that_may_do_without_a_value_takes_one, setup, teardown)
{
    fixture_t *fix = *state;
    static const struct {
        const char *value;
        bool is_fast;
    } forms[] = {{"no", false}, {"false", false}, {"yes", true}, {"1", true}};
    for (size_t i = 0; i < KVP_ARRAY_LEN(forms); i++) {
        fix->settings.is_fast = !forms[i].is_fast;
        assert_int_equal(PARSE(fix, "--fast", forms[i].value, "--count", "7"), KVP_CONF_RUN);
        assert_int_equal(fix->settings.is_fast, forms[i].is_fast);
        assert_int_equal(fix->settings.count, 7);
    }
    assert_int_equal(PARSE(fix, "--count", "7", "--fast"), KVP_CONF_RUN);
    assert_int_equal(PARSE(fix, "--fast", "perhaps"), 2);
    assert_said(fix, "perhaps: unexpected argument");
}

TEST_WITH(test_bad_flags_and_variables_exit_with_2, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(PARSE(fix, "--nonsense"), 2);
    assert_said(fix, "kvpool-test: --nonsense: unknown option");
    assert_int_equal(PARSE(fix, "--count"), 2);
    assert_said(fix, "--count: needs a value: a whole number");
    assert_int_equal(PARSE(fix, "--coun=3"), 2);
    assert_said(fix, "--coun=3: unknown option");
    assert_int_equal(PARSE(fix, "-x"), 2);
    assert_said(fix, "-x: unknown option");
    assert_int_equal(PARSE(fix, "--fast=perhaps"), 2);
    assert_said(fix, "--fast: 'perhaps' is no value for fast: expected true or false");
    assert_int_equal(PARSE(fix, "--log-level", "loud"), 2);
    assert_said(fix, "expected error|warn|info|debug");
    assert_int_equal(PARSE(fix, "stray"), 2);
    assert_said(fix, "stray: unexpected argument");
    assert_int_equal(PARSE(fix, "--config", "/nonexistent/x.conf"), 2);
    assert_said(fix, "/nonexistent/x.conf: cannot open: No such file");
    assert_int_equal(PARSE(fix, "--config", "/"), 2);
    assert_said(fix, "/: cannot");
    kvp_conf_fini(&fix->conf);
    fix->conf.err = fix->to;
    setenv("KVPOOL_LEASE_TTL", "10", 1);
    assert_int_equal(PARSE(fix), 2);
    assert_said(fix, "KVPOOL_LEASE_TTL: '10' is no value for lease-ttl");
}

TEST_WITH(test_required_option_when_missing, setup, teardown)
{
    fixture_t *fix = *state;
    static const kvp_opt_t required[] = {{KVP_OPT(STRING, "name", settings_t, name), .is_required = true, .help = "-"}};
    static const kvp_conf_spec_t with_required = {
        .program = "p", .summary = "s", .operands = "KEY [FILE]", .opts = required, .opt_count = 1};
    fix->conf.spec = &with_required;
    assert_int_equal(PARSE(fix, "key"), 2);
    assert_said(fix, "--name (or KVPOOL_NAME) is required");
    kvp_conf_fini(&fix->conf);
    fix->conf.err = fix->to;
    assert_int_equal(PARSE(fix, "key", "--name", "n", "-", "--", "--name"), KVP_CONF_RUN);
    assert_int_equal(fix->conf.argc, 3);
    assert_string_equal(fix->conf.argv[0], "key");
    assert_string_equal(fix->conf.argv[1], "-");
    assert_string_equal(fix->conf.argv[2], "--name");
}

TEST_WITH(test_help_version_and_config_text, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(PARSE(fix, "--help"), 0);
    assert_said(fix, "usage: kvpool-test [options]\nTests options.\n");
    assert_said(fix, "  --lease-ttl TIME\n        How long.\n        (default 10s; KVPOOL_LEASE_TTL)\n");
    assert_said(fix, "  --ssd DIR:SIZE\n        A disk.\n        (may be repeated; KVPOOL_SSD)\n");
    assert_said(fix, "--log-level");
    assert_said(fix, "--config FILE");
    assert_int_equal(PARSE(fix, "--version"), 0);
    assert_said(fix, "kvpool-test ");
    assert_int_equal(PARSE(fix, "--print-config"), 0);
    assert_said(fix, "\n# What goes first. One of none|lru|tinylfu.\n#policy = lru\n");
}

/* What --print-config writes is a legal file, also with every line put to use. */
TEST_WITH(test_printed_config_can_be_read, setup, teardown)
{
    fixture_t *fix = *state;
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    assert_non_null(to);
    kvp_conf_print(&spec, to);
    fclose(to);
    assert_int_equal(kvp_conf_parse_text(&fix->conf, text, len, "t", &fix->settings), KVP_OK);
    for (char *at = strstr(text, "\n#"); at != NULL; at = strstr(at + 1, "\n#")) {
        if (at[2] != ' ' && strncmp(at + 2, "fast", 4) != 0) at[1] = ' ';
    }
    kvp_err_t err = kvp_conf_parse_text(&fix->conf, text, len, "t", &fix->settings);
    free(text);
    assert_int_equal(err, KVP_OK);
    assert_int_equal(fix->settings.count, 3);
}

TEST_MAIN()
