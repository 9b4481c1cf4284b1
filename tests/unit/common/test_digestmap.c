/* SPDX-License-Identifier: Apache-2.0
 * A walk through the map while others take entries out of it, and digests that were chosen to meet. What comes and
 * goes by key is tested by those who use it. */
#include "common/digestmap.h"
#include "tests/cases.h"

#include <stdlib.h>

#define N 400u

static uint32_t
home_of(const kvp_digestmap_t *map, kvp_digest_t digest)
{
    return (uint32_t)(kvp_mix64(&map->mix, digest.lo, digest.hi) >> 32) & (map->cap - 1);
}

/* The furthest that an entry lies from its home. */
static uint32_t
longest_walk(const kvp_digestmap_t *map)
{
    uint32_t longest = 0;

    for (uint32_t i = 0; i < map->cap; i++)
        if (map->slots[i].val != 0)
            longest = (uint32_t)kvp_max_u64(longest, (i - home_of(map, map->slots[i].digest)) & (map->cap - 1));
    return longest;
}

static kvp_digest_t
chosen(uint32_t kind, uint64_t i)
{
    switch (kind) {
    case 0:
        return (kvp_digest_t){.lo = 7, .hi = i}; /* one half alone differs, */
    case 1:
        return (kvp_digest_t){.lo = i, .hi = 7};
    case 2:
        return (kvp_digest_t){.lo = i << 40, .hi = 0}; /* in its upper bits alone, */
    case 3:
        return (kvp_digest_t){.lo = i << 24, .hi = ~(i << 24)}; /* or both in the same bits */
    default:
        return (kvp_digest_t){.lo = i << 32, .hi = i << 32};
    }
}

TEST(test_walks_are_short_when_digests_are_chosen)
{
    for (uint32_t kind = 0; kind < 5; kind++) {
        kvp_digestmap_t map;

        kvp_digestmap_init(&map, 0x1234567 + kind);
        for (uint64_t i = 0; i < 98304; i++)
            *kvp_digestmap_insert(&map, chosen(kind, i)) = 1;
        assert_in_range(longest_walk(&map), 0, 80);
        kvp_digestmap_fini(&map);
    }
}

/* Two processes do not agree on what lies together. */
TEST(test_seed_moves_digests)
{
    kvp_digestmap_t a = {.seed = 1}, b = {.seed = 2};
    uint32_t same = 0;

    assert_true(kvp_digestmap_reserve(&a, 512) && kvp_digestmap_reserve(&b, 512));
    for (uint32_t i = 0; i < 1000; i++)
        same += home_of(&a, chosen(1, i)) == home_of(&b, chosen(1, i));
    assert_in_range(same, 0, 10);
    kvp_digestmap_fini(&a);
    kvp_digestmap_fini(&b);
}

TEST_MAIN()
