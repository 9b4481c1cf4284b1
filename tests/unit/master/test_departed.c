/* SPDX-License-Identifier: Apache-2.0
 * The table of departures against a plain array of the last departures, and the ages of versions. */
#include "master/core/base/ages.h"
#include "master/core/base/departed.h"
#include "tests/cases.h"

#include <stdlib.h>

#define KEYS 5000u
#define SECOND_NS 1000000000ull

static uint64_t
id_of(uint32_t i)
{
    return (i + 1) * 0x9e3779b97f4a7c15ull;
}

/* A table that is far too small: each answer is the last departure, or none with a `since` that does not lie. */
TEST(test_answers_are_right_or_none)
{
    kvp_departure_t last[KEYS] = {0};
    kvp_departed_t table;
    uint32_t since, known = 0;
    uint64_t now_ns = 1000 * SECOND_NS, random = 7;

    kvp_departed_init(&table, 16 << 10, now_ns);
    assert_non_null(table.entries);
    for (uint32_t step = 0; step < 20 * KEYS; step++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        const uint32_t i = (uint32_t)(random >> 33) % KEYS;

        now_ns += SECOND_NS / 7;
        last[i] = (kvp_departure_t){.id = id_of(i),
                                    .at = kvp_departed_time(now_ns),
                                    .segment = (uint16_t)step,
                                    .cause = (1 + step % (KVP_CAUSES_N - 1)) & 31u,
                                    .detail = (uint8_t)step};
        kvp_departed_note(&table, &last[i]);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        const kvp_departure_t *found = kvp_departed_find(&table, id_of(i), &since);

        if (found == NULL) {
            assert_true(last[i].at <= since);
            continue;
        }
        assert_memory_equal(found, &last[i], sizeof last[i]);
        known++;
    }
    assert_true(known > 900 && known <= 1024 + KVP_DEPARTED_NEW);
    kvp_departed_fini(&table);
}

TEST(test_table_without_memory_knows_nothing)
{
    const kvp_departure_t one = {.id = 5, .cause = KVP_CAUSE_REMOVED, .at = 1};
    kvp_departed_t table;
    uint32_t since;

    kvp_departed_init(&table, 0, SECOND_NS);
    kvp_departed_note(&table, &one);
    assert_null(kvp_departed_find(&table, 5, &since));
    assert_int_equal(since, UINT32_MAX);
    kvp_departed_fini(&table);
}

TEST(test_ages_as_codes)
{
    assert_int_equal(kvp_age_code(0), 0);
    assert_int_equal(kvp_age_of(0), 0);
    for (uint64_t age = 1ull << 24; age < 1ull << 53; age += age / 3) {
        const uint64_t back = kvp_age_of(kvp_age_code(age));

        assert_true(back <= age && age - back <= age / 4);
    }
    assert_int_equal(kvp_age_code(UINT64_MAX), 127);
}

/* A version a second for forty days: ages are right to a hundredth, or to a second. */
TEST(test_ages_of_versions)
{
    kvp_ages_t *ages = calloc(1, sizeof *ages);
    const uint64_t start_ns = 77 * SECOND_NS, end = 40 * 86400;

    assert_int_equal(kvp_ages_age(ages, 1, start_ns), 0);
    for (uint64_t s = 0; s <= end; s++)
        kvp_ages_note(ages, 1000 + s, start_ns + s * SECOND_NS);
    for (uint64_t age = 1; age < end - 20000; age += 1 + age / 5) {
        const uint64_t got = kvp_ages_age(ages, 1000 + end - age, start_ns + end * SECOND_NS) / SECOND_NS;

        assert_true(got <= age + 1 && age <= got + 1 + age / 50);
    }
    assert_int_equal(kvp_ages_age(ages, 1000, start_ns + end * SECOND_NS),
                     0); /* older than the first sample: unknown */
    assert_true(kvp_ages_age(ages, 1000 + end + 1, start_ns + end * SECOND_NS) <= SECOND_NS);
    free(ages);
}

TEST_MAIN()
