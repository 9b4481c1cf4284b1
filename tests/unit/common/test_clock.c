/* SPDX-License-Identifier: Apache-2.0
 * Clocks run forward; random numbers differ. */
#include "common/clock.h"
#include "tests/cases.h"

#include <string.h>

TEST(test_clocks_never_run_backwards)
{
    uint64_t now = kvp_now_ns(), boot = kvp_boot_ns();
    for (int i = 0; i < 10000; i++) {
        uint64_t next_now = kvp_now_ns(), next_boot = kvp_boot_ns();
        assert_true(next_now >= now && next_boot >= boot);
        now = next_now;
        boot = next_boot;
    }
    assert_true(kvp_boot_ns() + KVP_NS_PER_S >= now); /* boot time is monotonic time plus what was slept */
}

TEST(test_random_bytes_fill_all_and_differ)
{
    uint8_t a[256] = {0}, b[256] = {0}, seen[256] = {0};
    for (int round = 0; round < 16; round++) {
        kvp_random_bytes(a, sizeof(a));
        for (size_t i = 0; i < sizeof(a); i++)
            seen[i] |= a[i];
    }
    for (size_t i = 0; i < sizeof(a); i++)
        assert_int_not_equal(seen[i], 0);
    kvp_random_bytes(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_true(kvp_random_u64() != kvp_random_u64());
}

TEST_MAIN()
