/* SPDX-License-Identifier: Apache-2.0
 * Log lines: form, level, length, what peers may smuggle in, and the rate limiter with several threads. */
#include "common/log.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char last_line[8192];
static int line_count;

static void
take_line(void *arg, kvp_log_level_t level, const char *line)
{
    assert_ptr_equal(arg, last_line);
    (void)level;
    line_count++;
    snprintf(last_line, sizeof(last_line), "%s", line);
}

static int
setup(void **state)
{
    (void)state;
    line_count = 0;
    last_line[0] = '\0';
    kvp_log_set_level(KVP_LOG_INFO);
    kvp_log_set_format(KVP_LOG_TEXT);
    kvp_log_set_sink(take_line, last_line);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    kvp_log_set_sink(NULL, NULL);
    return 0;
}

TEST_WITH(test_divert_keeps_the_last_sentence_of_this_thread, setup, teardown)
{
    char text[12] = "";

    kvp_log_divert(text, sizeof text);
    kvp_log_warn("client", "first");
    kvp_log_error("client", "the\nsecond is long");
    kvp_log_info("client", "nothing is wrong");
    kvp_log_warn("client", "no cause"); /* a warning after an error does not hide it */
    kvp_log_divert(NULL, 0);
    assert_string_equal(text, "the?second ");
    assert_int_equal(line_count, 1);
    kvp_log_error("client", "third");
    assert_int_equal(line_count, 2);
    assert_string_equal(text, "the?second ");
}

TEST_WITH(test_line_has_time_level_component_and_text, setup, teardown)
{
    kvp_log_warn("master", "segment lost node=%s", "n1");
    int year, ms;
    assert_int_equal(sscanf(last_line, "time=%4d-%*2d-%*2dT%*2d:%*2d:%*2d.%3dZ", &year, &ms), 2);
    assert_true(year >= 2024);
    assert_string_equal(last_line + strlen("time=2024-01-01T00:00:00.000Z"),
                        " level=warn part=master msg=\"segment lost\" node=n1");
}

TEST_WITH(test_level_holds_back_and_lets_through, setup, teardown)
{
    kvp_log_debug("x", "no");
    assert_int_equal(line_count, 0);
    kvp_log_set_level(KVP_LOG_DEBUG);
    kvp_log_debug("x", "yes");
    assert_int_equal(line_count, 1);
    kvp_log_set_level(KVP_LOG_ERROR);
    kvp_log_warn("x", "no");
    assert_int_equal(line_count, 1);
    kvp_log_error("x", "yes");
    assert_int_equal(line_count, 2);
}

/* Returns the last line after its time. */
static const char *
after_time(void)
{
    const char *level = strstr(last_line, last_line[0] == '{' ? "\"level\"" : "level=");
    assert_non_null(level);
    return level;
}

TEST_WITH(test_values_are_quoted_where_needed, setup, teardown)
{
    static const struct {
        const char *value, *written;
    } cases[] = {{"plain-1.2:3/[x]", "plain-1.2:3/[x]"},
                 {"", "\"\""},
                 {"two words", "\"two words\""},
                 {"a=b", "\"a=b\""},
                 {"say \"no\" \\", "\"say \\\"no\\\" \\\\\""},
                 {"a\nb\tc\rd\x1b[31m\x7f", "\"a\\nb\\tc\\u000dd\\u001b[31m\\u007f\""},
                 {"\xc3\xa4\xe2\x82\xac", "\"\xc3\xa4\xe2\x82\xac\""},
                 {"\xc2\x9b"
                  "31m",
                  "\"\\u009b31m\""},
                 {"a\xff\xc3(\xe2\x82", "\"a\\ufffd\\ufffd(\\ufffd\\ufffd\""},
                 {"x evil=1 level=error", "\"x evil=1 level=error\""}};
    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        char expected[256];
        kvp_log_info("room", "found key=%s n=%u", cases[i].value, 7u);
        snprintf(expected, sizeof expected, "level=info part=room msg=found key=%s n=7", cases[i].written);
        assert_string_equal(after_time(), expected);
        kvp_log_info("room", "of %s", cases[i].value);
        assert_null(strstr(last_line, " evil=1\""));
    }
}

TEST_WITH(test_pairs_are_those_of_the_format, setup, teardown)
{
    kvp_log_info("room", "a b=c %s=d --e=%d x-y=1", "k", 5); /* only b is a key after a blank */
    assert_string_equal(after_time(), "level=info part=room msg=a b=\"c k=d --e=5 x-y=1\"");
    errno = ENOSPC;
    kvp_log_info("room", "%s: %m dir=%s/log why=%m", "no", "/a b");
    assert_string_equal(after_time(), "level=info part=room msg=\"no: No space left on device\" dir=\"/a b/log\" "
                                      "why=\"No space left on device\"");
}

TEST_WITH(test_long_values_are_cut, setup, teardown)
{
    static char text[20000];
    memset(text, 'a', sizeof text - 1);
    kvp_log_info("room", "%s key=%d", text, 1); /* the text is cut before the pair */
    assert_int_equal(strlen(after_time()), strlen("level=info part=room msg=...") + 1024);
    assert_string_equal(last_line + strlen(last_line) - 4, "a...");
    kvp_log_info("room", "long key=%s n=%d", text, 1);
    assert_int_equal(strlen(after_time()), strlen("level=info part=room msg=long key=...") + 512);
    kvp_log_info("room", "long key=%.600s n=%d", text, 1);
    assert_string_equal(last_line + strlen(last_line) - strlen("a... n=1"), "a... n=1");
    memset(text, 1, sizeof text - 1); /* each byte takes six when it is escaped; the line stays valid */
    kvp_log_info("room", "%.700s key=%s", text, text);
    assert_true(strlen(last_line) < 4096);
    assert_string_equal(last_line + strlen(last_line) - 1, "\"");
}

TEST_WITH(test_json_is_one_object_with_numbers, setup, teardown)
{
    kvp_log_format_t format;
    assert_false(kvp_log_format_parse("xml", &format));
    assert_true(kvp_log_format_parse(NULL, &format) && format == KVP_LOG_TEXT);
    assert_true(kvp_log_format_parse("json", &format));
    kvp_log_set_format(format);
    kvp_log_warn("tier", "2 \"records\" bytes=%llu dir=%s part_of=%u/%u", 5ull, "/nvme", 1u, 2u);
    assert_string_equal(after_time(), "\"level\":\"warn\",\"part\":\"tier\",\"msg\":\"2 \\\"records\\\"\",\"bytes\":5,"
                                      "\"dir\":\"/nvme\",\"part_of\":\"1/2\"}");
    assert_memory_equal(last_line, "{\"time\":\"20", 11);
}

TEST_WITH(test_errno_is_shown_and_kept, setup, teardown)
{
    errno = ENOSPC;
    kvp_log_error("room", "write: %m");
    assert_int_equal(errno, ENOSPC);
    assert_non_null(strstr(last_line, strerror(ENOSPC)));
}

/* Logs one line to standard error, which is a pipe, and returns what arrives. */
static const char *
log_to_pipe(bool is_journal, kvp_log_format_t format, char got[256])
{
    char stream[64] = "";
    struct stat st;
    int fds[2], saved = dup(STDERR_FILENO);

    kvp_log_set_sink(NULL, NULL);
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino + (is_journal ? 0 : 1));
    setenv("JOURNAL_STREAM", stream, 1);
    kvp_log_set_format(format);
    kvp_log_warn("room", "hello");
    dup2(saved, STDERR_FILENO);
    unsetenv("JOURNAL_STREAM");
    kvp_log_set_format(KVP_LOG_TEXT);
    close(saved);
    close(fds[1]);
    ssize_t n = read(fds[0], got, 255);
    assert_true(n > 0);
    got[n] = '\0';
    close(fds[0]);
    return got;
}

TEST_WITH(test_standard_error_gets_one_whole_line, setup, teardown)
{
    char got[256];
    log_to_pipe(false, KVP_LOG_TEXT, got); /* the environment names another stream than standard error */
    assert_string_equal(strchr(got, ' '), " level=warn part=room msg=hello\n");
}

TEST_WITH(test_journald_gets_the_priority_and_no_time, setup, teardown)
{
    char got[256];
    assert_string_equal(log_to_pipe(true, KVP_LOG_TEXT, got), "<4>level=warn part=room msg=hello\n");
    assert_string_equal(log_to_pipe(true, KVP_LOG_JSON, got),
                        "<4>{\"level\":\"warn\",\"part\":\"room\",\"msg\":\"hello\"}\n");
}

TEST(test_limit_lets_a_burst_through_and_counts_the_rest)
{
    /* An interval that the test does not outlast and that has passed once since the machine started. */
    uint64_t up_ms = kvp_now_ns() / KVP_NS_PER_MS;
    uint32_t interval_ms = (uint32_t)kvp_min_u64(up_ms / 2, 3600000);
    kvp_log_limit_t limit = {.burst = 3, .interval_ms = interval_ms, .window_start_ns = kvp_now_ns()};
    uint32_t missed = 99;
    for (int i = 0; i < 3; i++) {
        assert_true(kvp_log_limit_ok(&limit, &missed));
        assert_int_equal(missed, 0);
    }
    for (int i = 0; i < 5; i++)
        assert_false(kvp_log_limit_ok(&limit, &missed));
    /* As if the interval had passed. */
    atomic_fetch_sub(&limit.window_start_ns, interval_ms * KVP_NS_PER_MS);
    assert_true(kvp_log_limit_ok(&limit, &missed));
    assert_int_equal(missed, 5);
    assert_false(kvp_log_limit_ok(&limit, &missed));
    /* And a long quiet time. */
    atomic_store(&limit.window_start_ns, 0);
    limit.interval_ms = 1;
    assert_true(kvp_log_limit_ok(&limit, &missed));
    limit.interval_ms = interval_ms;
    assert_true(kvp_log_limit_ok(&limit, &missed));
    assert_true(kvp_log_limit_ok(&limit, &missed));
    assert_false(kvp_log_limit_ok(&limit, &missed));
}

enum { THREADS = 4, TRIES = 20000 };
static kvp_log_limit_t shared_limit = {.burst = 10, .interval_ms = 3600000};

static void *
try_lines(void *arg)
{
    uint32_t *passed = arg, missed;
    for (int i = 0; i < TRIES; i++)
        *passed += kvp_log_limit_ok(&shared_limit, &missed);
    return NULL;
}

TEST(test_limit_holds_over_threads)
{
    pthread_t threads[THREADS];
    uint32_t passed[THREADS] = {0}, total = 0;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, try_lines, &passed[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += passed[i];
    }
    assert_true(total >= 1 && total <= shared_limit.burst + THREADS);
    assert_int_equal(total + shared_limit.missed, THREADS * TRIES);
}

TEST_MAIN()
