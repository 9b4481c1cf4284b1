/* SPDX-License-Identifier: Apache-2.0
 * What is known of attempts that are over. */
#include "master/core/base/recent.h"
#include "tests/cases.h"

TEST(test_find_when_empty)
{
    kvp_recent_t recent = {0};

    assert_int_equal(kvp_recent_find(&recent, 1), KVP_RECENT_UNKNOWN);
    kvp_recent_fini(&recent);
}

TEST(test_find_when_ids_count_upwards)
{
    uint64_t first = 1ull << 40, last = first + 3 * KVP_RECENT_MAX;
    kvp_recent_t recent = {0};

    for (uint64_t id = first; id <= last; id++)
        kvp_recent_add(&recent, id, id % 2 == 0 ? KVP_RECENT_COMMITTED : KVP_RECENT_ABORTED, id / 3);
    assert_int_equal(recent.cap, KVP_RECENT_MAX);
    for (uint64_t id = last; id > last - KVP_RECENT_MAX; id--) {
        assert_int_equal(kvp_recent_find(&recent, id), id % 2 == 0 ? KVP_RECENT_COMMITTED : KVP_RECENT_ABORTED);
        assert_int_equal(kvp_recent_answer(&recent, id), id / 3);
    }
    assert_int_equal(kvp_recent_answer(&recent, last - KVP_RECENT_MAX), 0);
    assert_int_equal(kvp_recent_find(&recent, last - KVP_RECENT_MAX), KVP_RECENT_UNKNOWN);
    kvp_recent_fini(&recent);
}

TEST(test_memory_when_ids_lie_together)
{
    kvp_recent_t recent = {0};

    for (uint64_t i = 1; i <= 100; i++)
        kvp_recent_add(&recent, i * KVP_RECENT_MAX, KVP_RECENT_COMMITTED, 0);
    assert_int_equal(recent.cap, KVP_RECENT_MAX); /* and not more */
    assert_int_equal(kvp_recent_find(&recent, 100 * KVP_RECENT_MAX), KVP_RECENT_COMMITTED);
    assert_int_equal(kvp_recent_find(&recent, 99 * KVP_RECENT_MAX), KVP_RECENT_UNKNOWN);
    kvp_recent_fini(&recent);
}

TEST_MAIN()
