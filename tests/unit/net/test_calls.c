/* SPDX-License-Identifier: Apache-2.0
 * Close lets no call begin, and waits for those that have; and where what is refused is said. */
#include "net/calls.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/cases.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define CALLERS 4
#define WHILE_NS (20 * KVP_NS_PER_MS)

TEST(test_close_of_what_is_idle_waits_for_nobody)
{
    kvp_calls_t calls;

    kvp_calls_init(&calls);
    assert_int_equal(kvp_calls_enter(&calls), KVP_OK);
    kvp_calls_leave(&calls);
    assert_false(kvp_calls_are_closed(&calls));
    assert_int_equal(kvp_calls_close(&calls), KVP_OK);
    assert_true(kvp_calls_are_closed(&calls));
    kvp_calls_wait(&calls);
    assert_int_equal(kvp_calls_enter(&calls), KVP_CLOSED);
    assert_int_equal(kvp_calls_close(&calls), KVP_CLOSED);
    kvp_calls_wait(&calls);
    kvp_calls_fini(&calls);
}

typedef struct {
    kvp_calls_t calls;
    _Atomic bool has_ended; /* the call that close has to wait for is about to leave */
    _Atomic bool was_seen; /* by whoever waited */
} ending_t;

static void *
wait_main(void *arg)
{
    ending_t *e = arg;

    kvp_calls_wait(&e->calls);
    e->was_seen = e->has_ended;
    return NULL;
}

TEST(test_close_waits_for_the_last_call)
{
    ending_t e = {.has_ended = false};
    pthread_t thread;
    uint64_t until_ns;

    kvp_calls_init(&e.calls);
    assert_int_equal(kvp_calls_enter(&e.calls), KVP_OK);
    assert_int_equal(kvp_calls_enter(&e.calls), KVP_OK);
    assert_int_equal(kvp_calls_close(&e.calls), KVP_OK);
    assert_int_equal(pthread_create(&thread, NULL, wait_main, &e), 0);
    kvp_calls_leave(&e.calls);
    assert_int_equal(kvp_calls_enter(&e.calls), KVP_CLOSED); /* neither does this one end the wait */
    for (until_ns = kvp_now_ns() + WHILE_NS; kvp_now_ns() < until_ns;)
        sched_yield();
    e.has_ended = true;
    kvp_calls_leave(&e.calls);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(e.was_seen);
    kvp_calls_fini(&e.calls);
}

typedef struct {
    kvp_calls_t calls;
    _Atomic bool is_over; /* nothing may be under way any more */
    _Atomic uint32_t began, late;
} shared_t;

static void *
call_main(void *arg)
{
    shared_t *s = arg;

    while (kvp_calls_enter(&s->calls) == KVP_OK) {
        s->began++;
        sched_yield();
        if (s->is_over) s->late++;
        kvp_calls_leave(&s->calls);
    }
    return NULL;
}

TEST(test_no_call_outlives_close)
{
    pthread_t threads[CALLERS];

    for (int round = 0; round < 50; round++) {
        shared_t s = {.is_over = false};

        kvp_calls_init(&s.calls);
        for (size_t i = 0; i < CALLERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, call_main, &s), 0);
        while (s.began < CALLERS)
            sched_yield();
        assert_int_equal(kvp_calls_close(&s.calls), KVP_OK);
        kvp_calls_wait(&s.calls);
        s.is_over = true;
        for (size_t i = 0; i < CALLERS; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(s.late, 0);
        kvp_calls_fini(&s.calls);
    }
}

static char line[256];

static void
keep_line(void *arg, kvp_log_level_t level, const char *text)
{
    (void)arg, (void)level;
    strncpy(line, text, sizeof line - 1);
}

TEST(test_what_is_refused_is_said_once)
{
    char detail[16] = "";

    kvp_log_set_sink(keep_line, NULL);
    assert_int_equal(kvp_refuse(detail, sizeof detail, KVP_INVALID, "listen", "is far too long"), KVP_INVALID);
    assert_string_equal(detail, "listen: is far ");
    assert_string_equal(line, "");
    assert_int_equal(kvp_refuse(detail, 0, KVP_NOTSUP, "rdma", "not yet"), KVP_NOTSUP);
    assert_non_null(strstr(line, "rdma: not yet"));
    line[0] = '\0';
    assert_int_equal(kvp_refuse(NULL, 16, KVP_NOTSUP, "rdma", "not yet"), KVP_NOTSUP);
    assert_non_null(strstr(line, "rdma: not yet"));
    kvp_log_set_sink(NULL, NULL);
}

TEST_MAIN()
