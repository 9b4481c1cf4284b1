/* SPDX-License-Identifier: Apache-2.0
 * The lease of known locations where an answer that renews it meets the end of its session.
 */
#include "client/cache/locations.h"

#include "common/clock.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 50

static kvp_locations_news_t
news_now(void)
{
    return (kvp_locations_news_t){.asked_ns = kvp_now_ns(), .lease_ms = 1000, .grace_ms = 10000};
}

typedef struct {
    kvp_locations_t *locs;
    _Atomic bool has_begun, must_end;
} renewer_t;

static void *
renew_often(void *arg)
{
    renewer_t *r = arg;

    while (!r->must_end) {
        kvp_locations_news_t news = news_now();

        kvp_locations_apply(r->locs, &news);
        r->has_begun = true;
    }
    return NULL;
}

static void
test_an_answer_renews_until_the_end(void **state)
{
    kvp_locations_news_t news = news_now();
    kvp_locations_t *locs;

    (void)state;
    assert_int_equal(kvp_locations_create(0, &locs), KVP_OK);
    assert_int_equal(kvp_locations_until(locs), 0);
    kvp_locations_apply(locs, &news);
    assert_int_equal(kvp_locations_until(locs), news.asked_ns + 1000 * KVP_NS_PER_MS);
    kvp_locations_orphan(locs, news.asked_ns + 1);
    assert_int_equal(kvp_locations_until(locs), news.asked_ns + 10000 * KVP_NS_PER_MS);
    kvp_locations_end(locs);
    assert_int_equal(kvp_locations_until(locs), 0);
    kvp_locations_apply(locs, &news);
    assert_int_equal(kvp_locations_until(locs), 0);
    kvp_locations_destroy(locs);
}

/* What a master counts on once it has ended a session: no answer that is still being applied brings the lease back. */
static void
test_an_end_outlasts_an_answer_that_meets_it(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        renewer_t r = {.has_begun = false};
        pthread_t thread;

        assert_int_equal(kvp_locations_create(0, &r.locs), KVP_OK);
        assert_int_equal(pthread_create(&thread, NULL, renew_often, &r), 0);
        while (!r.has_begun)
            sched_yield();
        kvp_locations_end(r.locs);
        assert_int_equal(kvp_locations_until(r.locs), 0);
        r.must_end = true;
        pthread_join(thread, NULL);
        assert_int_equal(kvp_locations_until(r.locs), 0);
        kvp_locations_destroy(r.locs);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_renews_until_the_end),
        cmocka_unit_test(test_an_end_outlasts_an_answer_that_meets_it),
    };

    return cmocka_run_group_tests_name("locs", tests, NULL, NULL);
}
