/* SPDX-License-Identifier: Apache-2.0
 * A rail's share falls when it fails or is slow, and comes back by what it carries.
 */
#include "client/transport/rdma/health.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define MIB (1ull << 20)
#define MS KVP_NS_PER_MS
#define FULL KVP_RDMA_HEALTH_FULL

static void
test_new_one_is_trusted(void **state)
{
    kvp_rdma_health_t h;

    (void)state;
    kvp_rdma_health_init(&h);
    assert_true(h.retry_ns == 0);
    kvp_rdma_health_connected(&h);
    assert_int_equal(kvp_rdma_health_weight(&h, 0), FULL);
}

static void
test_failure_costs_all_and_waits_longer_each_time(void **state)
{
    kvp_rdma_health_t h;
    uint64_t now = 1000 * MS, wait = 0;

    (void)state;
    kvp_rdma_health_init(&h);
    for (uint32_t i = 0; i < 20; i++) {
        uint64_t before = wait;

        kvp_rdma_health_failed(&h, now, 0);
        wait = h.retry_ns - now;
        assert_true(i == 0 ? wait == 0 : i < 8 ? wait > before : wait == before); /* it was trusted at first */
        assert_true(kvp_rdma_health_is_doubtful(&h) == (i > 0));
        now = h.retry_ns;
    }
    assert_true(wait < 10000 * MS);
    assert_int_equal(kvp_rdma_health_weight(&h, 0), 1);
}

static void
test_dice_spread_the_retries(void **state)
{
    kvp_rdma_health_t a, b;

    (void)state;
    kvp_rdma_health_init(&a);
    kvp_rdma_health_init(&b);
    kvp_rdma_health_failed(&a, 0, 3);
    kvp_rdma_health_failed(&b, 0, UINT64_MAX);
    assert_true(a.retry_ns != b.retry_ns);
    assert_true(b.retry_ns < 50 * MS);
    kvp_rdma_health_failed(&a, 0, 3);
    kvp_rdma_health_failed(&b, 0, UINT64_MAX);
    assert_true(a.retry_ns != b.retry_ns);
    assert_true(a.retry_ns >= 100 * MS && b.retry_ns < 2 * 100 * MS);
}

static void
test_recovery_is_by_what_is_carried(void **state)
{
    kvp_rdma_health_t h;
    uint32_t before, batches = 0;

    (void)state;
    kvp_rdma_health_init(&h);
    kvp_rdma_health_failed(&h, 0, 0);
    kvp_rdma_health_connected(&h);
    before = kvp_rdma_health_weight(&h, 0);
    assert_true(before < FULL / 8);
    for (; kvp_rdma_health_weight(&h, 0) < FULL; batches++) {
        assert_int_equal(h.fails, 1);
        kvp_rdma_health_moved(&h, MIB, MS);
        assert_true(kvp_rdma_health_weight(&h, 0) > before);
        before = kvp_rdma_health_weight(&h, 0);
    }
    assert_int_equal(batches, 4);
    assert_int_equal(h.fails, 0);
}

/* One that connects and fails at once, over and over, is left alone for longer and longer all the same. */
static void
test_failures_count_until_it_is_trusted(void **state)
{
    kvp_rdma_health_t h;

    (void)state;
    kvp_rdma_health_init(&h);
    for (uint32_t i = 0; i < 3; i++) {
        kvp_rdma_health_failed(&h, 0, 0);
        kvp_rdma_health_connected(&h);
        kvp_rdma_health_moved(&h, MIB, MS);
    }
    assert_int_equal(h.fails, 3);
}

static void
test_slow_one_gets_less_and_recovers(void **state)
{
    kvp_rdma_health_t h;

    (void)state;
    kvp_rdma_health_init(&h);
    kvp_rdma_health_moved(&h, MIB, 4 * MS);
    assert_int_equal(kvp_rdma_health_weight(&h, MS), FULL / 4);
    for (uint32_t i = 0; i < 40; i++)
        kvp_rdma_health_moved(&h, MIB, 1000 * MS);
    assert_int_equal(kvp_rdma_health_weight(&h, MS), 16); /* enough to see that it recovers */
    for (uint32_t i = 0; i < 40; i++)
        kvp_rdma_health_moved(&h, MIB, MS);
    assert_true(kvp_rdma_health_weight(&h, MS) >= FULL - 4); /* what is smoothed comes near */
}

static void
test_small_batches_measure_nothing(void **state)
{
    kvp_rdma_health_t h;

    (void)state;
    kvp_rdma_health_init(&h);
    kvp_rdma_health_moved(&h, 64, MS);
    assert_int_equal(h.ns_per_mib, 0);
    assert_int_equal(kvp_rdma_health_weight(&h, 1), FULL);
}

static void
test_stall_grows_with_what_is_under_way(void **state)
{
    kvp_rdma_health_t h;

    (void)state;
    kvp_rdma_health_init(&h);
    assert_true(kvp_rdma_health_stalled_at(&h, 1000 * MS, 5 * MS, 0) == 1505 * MS);
    assert_true(kvp_rdma_health_stalled_at(&h, 1000 * MS, 0, 32 * MIB) == (1500 + 3200) * MS);
    kvp_rdma_health_moved(&h, MIB, 20 * MS); /* four times what it takes, */
    assert_true(kvp_rdma_health_stalled_at(&h, 1000 * MS, 0, 32 * MIB) == (1500 + 32 * 80) * MS);
    h.ns_per_mib = MS / 10; /* no less than what a slow adapter takes, */
    assert_true(kvp_rdma_health_stalled_at(&h, 1000 * MS, 0, 32 * MIB) == (1500 + 32 * 10) * MS);
    h.ns_per_mib = 1000 * MS; /* and no more than where nothing is known */
    assert_true(kvp_rdma_health_stalled_at(&h, 1000 * MS, 0, 32 * MIB) == (1500 + 3200) * MS);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_one_is_trusted),
        cmocka_unit_test(test_failure_costs_all_and_waits_longer_each_time),
        cmocka_unit_test(test_dice_spread_the_retries),
        cmocka_unit_test(test_recovery_is_by_what_is_carried),
        cmocka_unit_test(test_failures_count_until_it_is_trusted),
        cmocka_unit_test(test_slow_one_gets_less_and_recovers),
        cmocka_unit_test(test_small_batches_measure_nothing),
        cmocka_unit_test(test_stall_grows_with_what_is_under_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
