/* SPDX-License-Identifier: Apache-2.0
 * The set against a plain array, and how many ranges it keeps. */
#include "common/idset.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define IDS 200u

static void
check(const kvp_idset_t *set, const bool *is_in)
{
    size_t ranges = 0;

    for (uint32_t id = 0; id < IDS; id++) {
        assert_true(kvp_idset_has(set, id) == is_in[id]);
        ranges += is_in[id] && (id + 1 == IDS || !is_in[id + 1]);
    }
    assert_in_range(set->n, 0, ranges); /* what touches is one */
}

TEST(test_random_against_an_array)
{
    uint64_t seed = 5;

    for (uint32_t run = 0; run < 300; run++) {
        bool is_in[IDS] = {false};
        kvp_idset_t set = {0};
        uint32_t floor = 0;

        for (uint32_t step = 0; step < 60; step++) {
            uint32_t above, last;

            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            above = (uint32_t)(seed >> 33) % (IDS - 1);
            last = (uint32_t)kvp_min_u64(above + (seed >> 50) % 9, IDS - 1);
            if (seed >> 60 == 0) floor = (uint32_t)kvp_max_u64(floor, above / 2);
            for (uint32_t id = 0; id < IDS; id++)
                is_in[id] |= id < floor || (above < id && id <= last);
            kvp_idset_add(&set, (kvp_idrange_t){above, last}, floor);
            check(&set, is_in);
        }
        kvp_idset_fini(&set);
    }
}

TEST(test_one_and_none)
{
    kvp_idset_t set = {0};

    kvp_idset_add(&set, kvp_idrange_one(0), 0);
    assert_false(kvp_idset_has(&set, 0));
    assert_int_equal(set.n, 0);
    kvp_idset_add(&set, kvp_idrange_one(7), 0);
    assert_true(kvp_idset_has(&set, 7) && !kvp_idset_has(&set, 6) && !kvp_idset_has(&set, 8));
    kvp_idset_fini(&set);
}

TEST_MAIN()
