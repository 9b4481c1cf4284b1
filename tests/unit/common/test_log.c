/* SPDX-License-Identifier: Apache-2.0
 * Log lines: form, level, length, what peers may smuggle in, and the rate limiter with several threads. */
#include "common/log.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char last_line[2048];
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
    assert_int_equal(sscanf(last_line, "%4d-%*2d-%*2dT%*2d:%*2d:%*2d.%3dZ", &year, &ms), 2);
    assert_true(year >= 2024);
    assert_string_equal(last_line + strlen("2024-01-01T00:00:00.000Z"), " warn  master: segment lost node=n1");
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

TEST_WITH(test_long_line_is_cut, setup, teardown)
{
    char text[3000];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    kvp_log_info("room", "%s", text);
    assert_int_equal(strlen(last_line), 1023);
    assert_int_equal(last_line[1022], 'a');
}

TEST_WITH(test_control_characters_are_replaced, setup, teardown)
{
    kvp_log_info("room", "key=%s", "a\nb\x1b[31mc\x7f\xc3\xa9");
    assert_non_null(strstr(last_line, "key=a?b?[31mc?\xc3\xa9"));
}

TEST_WITH(test_errno_is_shown_and_kept, setup, teardown)
{
    errno = ENOSPC;
    kvp_log_error("room", "write: %m");
    assert_int_equal(errno, ENOSPC);
    assert_non_null(strstr(last_line, strerror(ENOSPC)));
}

TEST_WITH(test_standard_error_gets_one_whole_line, setup, teardown)
{
    kvp_log_set_sink(NULL, NULL);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    int saved = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    kvp_log_info("room", "hello");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fds[1]);
    char got[256] = {0};
    assert_true(read(fds[0], got, sizeof(got) - 1) > 0);
    close(fds[0]);
    assert_string_equal(strchr(got, ' '), " info  room: hello\n");
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
