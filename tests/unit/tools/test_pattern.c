/* SPDX-License-Identifier: Apache-2.0
 * The contents of blocks that the tool verifies. */
#include "tools/base/pattern.h"
#include "tests/cases.h"

TEST(test_pattern_finds_every_wrong_byte)
{
    static const size_t sizes[] = {1, 7, 8, 63, 64, 65, 200, 4096, 4099};
    uint8_t block[4099 + 1];
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const size_t len = sizes[s];
        block[len] = 0x5a;
        kvp_pattern_fill(block, len, 3, 17);
        assert_int_equal(block[len], 0x5a);
        assert_int_equal(kvp_pattern_wrong(block, len, 3, 17), 0);
        for (size_t i = 0; i < len; i += 1 + i / 16) {
            block[i] ^= 0x40;
            assert_int_equal(kvp_pattern_wrong(block, len, 3, 17), 1);
            block[i] ^= 0x40;
        }
        if (len < 64) continue;
        assert_true(kvp_pattern_wrong(block, len, 3, 18) > len / 2);
        assert_true(kvp_pattern_wrong(block, len, 4, 17) > len / 2);
        kvp_pattern_poison(block, len);
        assert_int_equal(block[len], 0x5a);
        for (size_t line = 0; line + 64 <= len; line += 64)
            assert_memory_equal(block, block + line, 8);
        assert_true(kvp_pattern_wrong(block, len, 3, 17) > len / 64);
    }
}

/* Bytes of the right block from the wrong place are wrong bytes. */
TEST(test_pattern_depends_on_the_place)
{
    uint8_t block[8192];
    kvp_pattern_fill(block, sizeof(block), 0, 42);
    assert_true(kvp_pattern_wrong(block + 64, 4096, 0, 42) > 4000);
    assert_true(kvp_pattern_wrong(block + 4096, 4096, 0, 42) > 4000);
}

TEST_MAIN()
