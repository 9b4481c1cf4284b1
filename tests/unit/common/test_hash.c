/* SPDX-License-Identifier: Apache-2.0
 * Digests and sums: published XXH3 vectors (they are wire format), whole against streamed, and how fast. */
#include "common/hash.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PRIME64 0x9E3779B97F4A7C15ull

TEST(test_sum_of_known_texts)
{
    assert_true(kvp_sum("", 0) == 0x2D06800538D394C2ull);
    assert_true(kvp_sum("a", 1) == 0xE6C632B61E964E1Full);
    assert_true(kvp_sum("abc", 3) == 0x78AF5F94892F3950ull);
}

/* The rule of PROTOCOL "Digests", spelled with the portable functions. */
TEST(test_digest_follows_the_protocol)
{
    char key[KVP_KEY_MAX];
    for (size_t i = 0; i < sizeof(key); i++)
        key[i] = (char)(i * 37);
    for (size_t len = 1; len <= sizeof(key); len++) {
        uint64_t pool = 0x1122334455667788ull * len;
        uint32_t tenant = (uint32_t)len * 3;
        uint64_t seed = pool ^ (tenant * PRIME64);
        XXH128_hash_t want = XXH3_128bits_withSeed(key, len, seed);
        kvp_digest_t got = kvp_key_digest(pool, tenant, key, len);
        assert_true(got.lo == want.low64 && got.hi == want.high64);
        uint64_t seed2 = ~seed << 32 | ~seed >> 32;
        assert_true(kvp_key_hash2(pool, tenant, key, len) == XXH3_64bits_withSeed(key, len, seed2));
    }
}

TEST(test_number_of_a_tenant)
{
    assert_int_equal(kvp_tenant_id(""), 0);
    assert_int_equal(kvp_tenant_id("default"), 0);
    assert_int_equal(kvp_tenant_id("team-a"), 2906850499u);
    assert_int_not_equal(kvp_tenant_id("Default"), 0);
}

TEST(test_digest_differs_by_tenant_seed_and_key)
{
    kvp_digest_t a = kvp_key_digest(1, 1, "key", 3);
    assert_true(kvp_digest_eq(a, kvp_key_digest(1, 1, "key", 3)));
    assert_false(kvp_digest_eq(a, kvp_key_digest(1, 2, "key", 3)));
    assert_false(kvp_digest_eq(a, kvp_key_digest(2, 1, "key", 3)));
    assert_false(kvp_digest_eq(a, kvp_key_digest(1, 1, "kez", 3)));
    assert_true(kvp_key_hash2(1, 1, "key", 3) != kvp_key_hash2(1, 2, "key", 3));
    assert_true(kvp_key_hash2(1, 1, "key", 3) != a.lo);
}

TEST(test_sum_streamed_equals_whole)
{
    enum { SIZE = 300000 };
    uint8_t *data = malloc(SIZE);
    kvp_sum_state_t *sum = kvp_sum_create();
    assert_non_null(data);
    assert_non_null(sum);
    assert_int_equal((uintptr_t)sum % 64, 0);
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (uint8_t)(i * i >> 3);
    uint64_t x = 99;
    for (size_t len = 0; len < SIZE; len = len * 2 + 1) {
        kvp_sum_reset(sum);
        for (size_t at = 0; at < len;) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            size_t piece = (size_t)kvp_min_u64((x >> 33) % 5000, len - at);
            kvp_sum_update(sum, data + at, piece);
            at += piece;
        }
        assert_true(kvp_sum_digest(sum) == kvp_sum(data, len));
        assert_true(kvp_sum(data, len) == XXH3_64bits(data, len));
    }
    kvp_sum_destroy(sum);
    free(data);
}

/* No threshold: a loaded machine would fail it. The number is for the reader. */
TEST(test_sum_speed_is_shown)
{
    enum { SIZE = 1 << 20, ROUNDS = 2000 };
    uint8_t *data = malloc(SIZE);
    assert_non_null(data);
    memset(data, 7, SIZE);
    uint64_t all = 0, start = kvp_now_ns();
    for (int i = 0; i < ROUNDS; i++)
        all |= kvp_sum(data, SIZE);
    double ns = (double)(kvp_now_ns() - start);
    assert_true(all != 0);
    print_message("XXH3-64 of a cached MiB: %.1f GB/s\n", (double)SIZE * ROUNDS / ns);
    free(data);
}

TEST_MAIN()
