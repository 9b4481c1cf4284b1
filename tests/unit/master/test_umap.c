/* SPDX-License-Identifier: Apache-2.0
 * The small map against a plain array. */
#include "master/core/base/umap.h"
#include "tests/cases.h"

#include <string.h>
#include <sys/resource.h>

#define KEYS 5000u
#define MOVED_MOST 16u /* slots of a resize that one change moves */

TEST(test_get_when_empty)
{
    kvp_umap_t map;
    uint32_t val;

    kvp_umap_init(&map, 0);
    assert_false(kvp_umap_get(&map, 1, &val));
    assert_false(kvp_umap_get(&map, 0, &val));
    assert_false(kvp_umap_del(&map, 1));
    kvp_umap_fini(&map);
}

/* Keys that are alike (small, shifted, negated), added and deleted at random: after every step the map and the array
 * agree on the key, and in the end on all. */
TEST(test_random_against_an_array)
{
    static uint32_t model[KEYS];
    kvp_umap_t map;
    uint64_t seed = 11;
    uint32_t val, n = 0, was_left = 0, resizes = 0;

    kvp_umap_init(&map, 0);
    memset(model, 0, sizeof model);
    for (uint32_t step = 1; step < 400000; step++) {
        uint32_t i;
        uint64_t key;

        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        i = (uint32_t)(seed >> 33) % KEYS;
        key = i % 3 == 0 ? i + 1 : i % 3 == 1 ? ((uint64_t)i + 1) << 40 : ~(uint64_t)i;
        if ((seed >> 20 & 7) < (step / 50000 % 2 == 0 ? 5u : 2u)) {
            n += model[i] == 0;
            kvp_umap_set(&map, key, step);
            model[i] = step;
        } else {
            assert_true(kvp_umap_del(&map, key) == (model[i] != 0));
            n -= model[i] != 0;
            model[i] = 0;
        }
        assert_int_equal(map.n, n);
        assert_true(kvp_umap_get(&map, key, &val) == (model[i] != 0));
        assert_true(was_left <= MOVED_MOST || map.old_left >= was_left - MOVED_MOST); /* no change moves many */
        was_left = map.old_left;
        resizes += was_left > 0 && was_left == map.old.cap;
    }
    assert_true(resizes > 5);
    for (uint32_t i = 0; i < KEYS; i++) {
        uint64_t key = i % 3 == 0 ? i + 1 : i % 3 == 1 ? ((uint64_t)i + 1) << 40 : ~(uint64_t)i;

        assert_true(kvp_umap_get(&map, key, &val) == (model[i] != 0));
        if (model[i] != 0) assert_int_equal(val, model[i]);
        (void)kvp_umap_del(&map, key);
    }
    assert_int_equal(map.n, 0);
    assert_true(map.now.cap <= 64); /* memory comes back */
    kvp_umap_fini(&map);
}

static long
faults(void)
{
    struct rusage usage;

    assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_minflt;
}

/* Keys lie all over a table. Were a new one not touched before it is used, those of a message would wait for a page or
 * two each. */
TEST(test_many_keys_touch_few_new_pages)
{
    enum { BATCH = 512, BATCHES = 800 };
    kvp_umap_t map;
    long most = 0;

    kvp_umap_init(&map, 0);
    for (uint32_t i = 0; i < BATCHES; i++) {
        long before = faults();

        for (uint32_t k = 0; k < BATCH; k++)
            kvp_umap_set(&map, i * BATCH + k + 1, k);
        most = faults() - before > most ? faults() - before : most;
    }
    assert_true(map.now.cap >= 1u << 19);
    assert_in_range(most, 0, BATCH / 4);
    kvp_umap_fini(&map);
}

/* 65,536 ids that a client chooses for its attempts: alike, or multiples of one number, among them what undoes a
 * product with the golden ratio. The furthest that one lies from its home is what chance makes of it. */
TEST(test_walks_are_short_when_keys_are_chosen)
{
    const uint64_t steps[] = {1, 1ull << 48, 1ull << 32, 0x9e3779b97f4a7c15ull, 0xf1de83e19937733dull};

    for (size_t k = 0; k < KVP_ARRAY_LEN(steps); k++) {
        kvp_umap_t map;
        uint32_t longest = 0;

        kvp_umap_init(&map, 0);
        for (uint64_t i = 1; i <= 65535; i++)
            kvp_umap_set(&map, i * steps[k], 1);
        assert_int_equal(map.old.cap, 0); /* no resize is under way */
        for (uint32_t i = 0; i < map.now.cap; i++) {
            uint32_t home = (uint32_t)(kvp_mix64(&map.mix, map.now.keys[i], 0) >> map.now.shift);

            if (map.now.keys[i] != 0) longest = (uint32_t)kvp_max_u64(longest, (i - home) & (map.now.cap - 1));
        }
        assert_in_range(longest, 0, 200);
        kvp_umap_fini(&map);
    }
}

TEST_MAIN()
