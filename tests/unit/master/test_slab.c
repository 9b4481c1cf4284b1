/* SPDX-License-Identifier: Apache-2.0
 * The extent allocator against an oracle that marks every unit of the region, against pools that are full of equal
 * objects, and at its limits. */
#include "master/core/base/slab.h"
#include "tests/world/check/slab_check.h"

#include "proto/segfmt.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)

static uint64_t
next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static kvp_slab_t *
make_slab(uint64_t region_bytes, uint32_t max_slots)
{
    kvp_slab_t *slab = NULL;
    assert_int_equal(kvp_slab_create(region_bytes, max_slots, &slab), KVP_OK);
    assert_true(kvp_slab_check(slab));
    return slab;
}

static uint32_t
must_alloc(kvp_slab_t *slab, uint64_t len)
{
    uint32_t slot = KVP_SLAB_NONE;
    uint64_t offset;
    assert_int_equal(kvp_slab_alloc(slab, len, 7, &slot, &offset), KVP_OK);
    return slot;
}

/* fill allocates len until there is no space; returns the slots, which the caller frees. */
static uint32_t *
fill(kvp_slab_t *slab, uint64_t len, uint32_t *n_out)
{
    uint32_t *slots = malloc((kvp_slab_region_bytes(slab) / kvp_extent_bytes(len) + 1) * sizeof(*slots));
    assert_non_null(slots);
    uint32_t n = 0;
    uint64_t offset;
    while (kvp_slab_alloc(slab, len, n, &slots[n], &offset) == KVP_OK)
        n++;
    *n_out = n;
    return slots;
}

static void
shuffle(uint32_t *items, uint32_t n, uint64_t *seed)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(next_random(seed) % i);
        uint32_t tmp = items[i - 1];
        items[i - 1] = items[j];
        items[j] = tmp;
    }
}

TEST(test_extent_bytes_at_the_64_kib_border)
{
    assert_int_equal(kvp_extent_bytes(1), 64);
    assert_int_equal(kvp_extent_bytes(64), 64);
    assert_int_equal(kvp_extent_bytes(65), 128);
    assert_int_equal(kvp_extent_align_bytes(64 * KIB - 64), 64);
    assert_int_equal(kvp_extent_bytes(64 * KIB - 64), 64 * KIB - 64);
    assert_int_equal(kvp_extent_align_bytes(64 * KIB - 63), 4096);
    assert_int_equal(kvp_extent_align_bytes(64 * KIB), 4096);
    assert_int_equal(kvp_extent_bytes(64 * KIB), 64 * KIB);
    assert_int_equal(kvp_extent_bytes(64 * KIB + 1), 68 * KIB);
}

/* Holes of 4, 8 and 12 KiB: the answer is the hole that alloc would cut, and what it holds. */
TEST(test_best_fit_when_holes_differ)
{
    kvp_slab_t *slab = make_slab(12 * 4 * KIB, 100);
    uint32_t n, *slots = fill(slab, 4 * KIB, &n);
    const uint32_t holes[] = {1, 3, 4, 6, 7, 8};

    assert_int_equal(kvp_slab_best_fit(slab, 64), 0);
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(holes); i++)
        kvp_slab_free(slab, slots[holes[i]]);
    assert_int_equal(kvp_slab_best_fit(slab, 64), 4 * KIB);
    assert_int_equal(kvp_slab_best_fit(slab, 4 * KIB + 1), 8 * KIB);
    assert_int_equal(kvp_slab_best_fit(slab, 8 * KIB), 8 * KIB);
    assert_int_equal(kvp_slab_best_fit(slab, 12 * KIB), 12 * KIB);
    assert_int_equal(kvp_slab_best_fit(slab, 12 * KIB + 1), 0);
    assert_int_equal(kvp_slab_best_fit(slab, 0), 0);
    assert_int_equal(kvp_slab_best_fit(slab, UINT64_MAX), 0);
    free(slots);
    kvp_slab_destroy(slab);
}

TEST(test_create_when_arguments_are_bad)
{
    kvp_slab_t *slab = NULL;
    assert_int_equal(kvp_slab_create(63, 16, &slab), KVP_INVALID);
    assert_int_equal(kvp_slab_create(MIB, 1, &slab), KVP_INVALID);
    assert_int_equal(kvp_slab_create(1ull << 37, 16, &slab), KVP_INVALID);
    assert_null(slab);
}

TEST(test_alloc_when_region_is_at_its_largest)
{
    const uint64_t LARGEST = (1ull << 37) - 4096;
    kvp_slab_t *slab = make_slab(LARGEST, UINT32_MAX);
    assert_int_equal(kvp_slab_largest_free(slab), LARGEST);
    uint32_t slot = must_alloc(slab, LARGEST);
    assert_true(kvp_slab_check(slab));
    assert_false(kvp_slab_can_fit(slab, 1));
    assert_int_equal(kvp_slab_largest_free(slab), 0);
    kvp_slab_free(slab, slot);
    assert_true(kvp_slab_check(slab));
    assert_false(kvp_slab_can_fit(slab, UINT64_MAX));
    kvp_slab_destroy(slab);
}

TEST(test_alloc_when_slots_are_used_up)
{
    kvp_slab_t *slab = make_slab(MIB, 3);
    uint32_t a = must_alloc(slab, 64);
    uint32_t b = must_alloc(slab, 64);
    uint32_t slot;
    uint64_t offset;
    assert_false(kvp_slab_can_fit(slab, 64));
    assert_int_equal(kvp_slab_alloc(slab, 64, 1, &slot, &offset), KVP_LIMIT);
    assert_true(kvp_slab_check(slab));
    /* A hole of exactly the size asked needs no new slot. */
    kvp_slab_free(slab, a);
    assert_true(kvp_slab_can_fit(slab, 64));
    assert_int_equal(must_alloc(slab, 64), a);
    kvp_slab_free(slab, b);
    assert_true(kvp_slab_check(slab));
    kvp_slab_destroy(slab);
}

/* Records cost 20 bytes an extent, and go with the extents. */
TEST(test_memory_when_extents_go)
{
    kvp_slab_t *slab = make_slab(8 * MIB, UINT32_MAX);
    uint64_t before = kvp_slab_memory_bytes(slab);
    uint32_t n;
    uint32_t *slots = fill(slab, 64, &n);
    assert_int_equal(n, 131072);
    assert_true(kvp_slab_memory_bytes(slab) - before <= 20ull * n + 1024);
    for (uint32_t i = 0; i < n; i++)
        kvp_slab_free(slab, slots[i]);
    assert_true(kvp_slab_check(slab));
    assert_true(kvp_slab_memory_bytes(slab) - before <= 2 * 4096 * 20 + 1024); /* the first block, and a spare one */
    free(slots);
    kvp_slab_destroy(slab);
}

/* The length alone would say that each of the holes fits. */
TEST(test_alloc_when_only_one_of_many_holes_is_aligned)
{
    kvp_slab_t *slab = make_slab(64 * MIB, 1u << 16);
    uint32_t holes[400];
    for (size_t i = 0; i < KVP_ARRAY_LEN(holes); i++) {
        must_alloc(slab, 64);
        holes[i] = must_alloc(slab, 64 * KIB - 64);
        must_alloc(slab, 64);
    }
    uint32_t good = must_alloc(slab, 64 * KIB);
    uint32_t n;
    free(fill(slab, 64 * KIB, &n));
    free(fill(slab, 64, &n));
    assert_int_equal(kvp_slab_used_bytes(slab), 64 * MIB);
    kvp_slab_free(slab, good);
    for (size_t i = 0; i < KVP_ARRAY_LEN(holes); i++)
        kvp_slab_free(slab, holes[i]);
    assert_true(kvp_slab_check(slab));
    assert_int_equal(must_alloc(slab, 64 * KIB), good);
    assert_false(kvp_slab_can_fit(slab, 64 * KIB));
    assert_true(kvp_slab_can_fit(slab, 64 * KIB - 64));
    kvp_slab_destroy(slab);
}

static void
full_pool(uint64_t region_bytes, uint64_t len)
{
    uint64_t seed = 0x1234567 ^ len;
    kvp_slab_t *slab = make_slab(region_bytes, UINT32_MAX);
    uint32_t n;
    uint32_t *slots = fill(slab, len, &n);
    assert_int_equal(n, region_bytes / kvp_extent_bytes(len));
    uint32_t high = kvp_slab_slots_high(slab);
    for (size_t round = 0; round < 5000; round++) {
        uint32_t i = (uint32_t)(next_random(&seed) % n);
        uint64_t hole = kvp_slab_offset(slab, slots[i]);
        assert_false(kvp_slab_can_fit(slab, len));
        kvp_slab_free(slab, slots[i]);
        assert_true(kvp_slab_can_fit(slab, len));
        slots[i] = must_alloc(slab, len);
        assert_int_equal(kvp_slab_offset(slab, slots[i]), hole);
    }
    /* And with several holes at once, which may touch. */
    for (size_t round = 0; round < 10; round++) {
        shuffle(slots, n, &seed);
        uint32_t k = n / 4;
        for (uint32_t i = 0; i < k; i++)
            kvp_slab_free(slab, slots[i]);
        for (uint32_t i = 0; i < k; i++)
            slots[i] = must_alloc(slab, len);
        assert_true(kvp_slab_check(slab));
    }
    assert_true(kvp_slab_slots_high(slab) <= high + 1);
    free(slots);
    kvp_slab_destroy(slab);
}

TEST(test_alloc_finds_the_exact_hole_when_pool_is_full)
{
    full_pool(16 * MIB, 64);
    full_pool(16 * MIB, 1000);
    full_pool(64 * MIB, 16 * KIB);
    full_pool(64 * MIB, 63 * KIB + 64);
    full_pool(64 * MIB, 64 * KIB);
    full_pool(64 * MIB, 100 * KIB + 1);
    full_pool(GIB, 976 * KIB);
    full_pool(GIB, 3198 * KIB);
    full_pool(GIB, 643 * KIB);
}

/* A list scanned for its first entries would not get past the many holes that are just too small. */
TEST(test_alloc_finds_the_one_hole_that_fits_among_many_of_its_class)
{
    kvp_slab_t *slab = make_slab(GIB, 1u << 16);
    uint32_t holes[300];
    for (size_t i = 0; i < KVP_ARRAY_LEN(holes); i++) {
        holes[i] = must_alloc(slab, (i == 150 ? 1032 : 1028) * KIB);
        must_alloc(slab, 64 * KIB);
    }
    uint32_t n;
    free(fill(slab, 64 * KIB, &n));
    for (size_t i = 0; i < KVP_ARRAY_LEN(holes); i++)
        kvp_slab_free(slab, holes[i]);
    assert_int_equal(must_alloc(slab, 1032 * KIB), holes[150]);
    assert_false(kvp_slab_can_fit(slab, 1032 * KIB));
    kvp_slab_destroy(slab);
}

typedef struct {
    kvp_slab_t *slab;
    uint8_t *taken; /* a byte a unit: 1 while some extent covers it */
    uint32_t *slots;
    uint32_t count;
    uint64_t used_bytes;
} oracle_t;

static void
oracle_mark(oracle_t *oracle, uint64_t offset, uint64_t len, uint8_t from, uint8_t to)
{
    for (uint64_t u = offset / KVP_SLAB_UNIT; u < (offset + len) / KVP_SLAB_UNIT; u++) {
        if (oracle->taken[u] != from) fail_msg("unit %llu is %s", (unsigned long long)u, from ? "free" : "taken");
        oracle->taken[u] = to;
    }
}

/* oracle_can_fit looks at every unit: the truth about NO_SPACE. */
static bool
oracle_can_fit(const oracle_t *oracle, uint64_t len)
{
    uint64_t units = kvp_extent_bytes(len) / KVP_SLAB_UNIT;
    uint64_t align = kvp_extent_align_bytes(len) / KVP_SLAB_UNIT;
    uint64_t total = kvp_slab_region_bytes(oracle->slab) / KVP_SLAB_UNIT;
    uint64_t run = 0;
    for (uint64_t u = 0; u < total; u++) {
        if (oracle->taken[u]) {
            run = 0;
        } else if (run > 0 || u % align == 0) {
            if (++run == units) return true;
        }
    }
    return false;
}

static void
oracle_alloc(oracle_t *oracle, uint64_t len)
{
    uint32_t slot;
    uint64_t offset;
    bool can_fit = kvp_slab_can_fit(oracle->slab, len);
    kvp_err_t err = kvp_slab_alloc(oracle->slab, len, oracle->count, &slot, &offset);
    assert_int_equal(can_fit, err == KVP_OK);
    if (err != KVP_OK) {
        assert_int_equal(err, KVP_NO_SPACE);
        return;
    }
    uint64_t extent = kvp_extent_bytes(len);
    if (offset % kvp_extent_align_bytes(len) != 0) fail_msg("offset %llu", (unsigned long long)offset);
    assert_int_equal(kvp_slab_len(oracle->slab, slot), extent);
    assert_int_equal(kvp_slab_offset(oracle->slab, slot), offset);
    assert_int_equal(kvp_slab_owner(oracle->slab, slot), oracle->count);
    oracle_mark(oracle, offset, extent, 0, 1);
    oracle->used_bytes += extent;
    oracle->slots[oracle->count++] = slot;
}

static void
oracle_free(oracle_t *oracle, uint32_t i)
{
    uint32_t slot = oracle->slots[i];
    uint64_t len = kvp_slab_len(oracle->slab, slot);
    assert_int_equal(kvp_slab_owner(oracle->slab, slot), i);
    oracle_mark(oracle, kvp_slab_offset(oracle->slab, slot), len, 1, 0);
    kvp_slab_free(oracle->slab, slot);
    oracle->used_bytes -= len;
    oracle->slots[i] = oracle->slots[--oracle->count];
    if (i < oracle->count) kvp_slab_set_owner(oracle->slab, oracle->slots[i], i);
}

static uint64_t
random_len(uint64_t *seed)
{
    uint64_t r = next_random(seed);
    switch (r % 4) {
    case 0:
        return 1 + (r >> 8) % 512;
    case 1:
        return 1 + (r >> 8) % (16 * KIB);
    case 2:
        return 60 * KIB + (r >> 8) % (8 * KIB);
    default:
        return 1 + (r >> 8) % (256 * KIB);
    }
}

/* The full count, unless tests/run asks for a tier that is in a hurry. */
static uint32_t
step_count(void)
{
    const char *tier = getenv("KVPOOL_TEST_TIER");
    return tier == NULL || strcmp(tier, "long") == 0 ? 1000000 : 100000;
}

TEST(test_random_steps_agree_with_the_oracle)
{
    uint32_t steps = step_count();
    uint64_t region_bytes = 8 * MIB + 192;
    uint64_t seed = 42;
    oracle_t oracle = {.slab = make_slab(region_bytes, UINT32_MAX)};
    oracle.taken = calloc(region_bytes / KVP_SLAB_UNIT, 1);
    oracle.slots = calloc(region_bytes / KVP_SLAB_UNIT, sizeof(*oracle.slots));
    assert_non_null(oracle.taken);
    assert_non_null(oracle.slots);
    for (uint32_t step = 0; step < steps; step++) {
        /* The share of frees swings, so that the pool runs from nearly empty to full and back. */
        uint32_t free_share = step / 20000 % 2 == 0 ? 45 : 55;
        if (oracle.count > 0 && next_random(&seed) % 100 < free_share) {
            oracle_free(&oracle, (uint32_t)(next_random(&seed) % oracle.count));
        } else {
            oracle_alloc(&oracle, random_len(&seed));
        }
        if (step % 5000 != 0) continue;
        assert_true(kvp_slab_check(oracle.slab));
        assert_int_equal(kvp_slab_used_bytes(oracle.slab), oracle.used_bytes);
        uint64_t len = random_len(&seed);
        assert_int_equal(kvp_slab_can_fit(oracle.slab, len), oracle_can_fit(&oracle, len));
        uint64_t largest = kvp_slab_largest_free(oracle.slab);
        assert_true(largest == 0 || kvp_slab_can_fit(oracle.slab, largest));
        assert_false(kvp_slab_can_fit(oracle.slab, largest + 1));
    }
    while (oracle.count > 0)
        oracle_free(&oracle, 0);
    assert_true(kvp_slab_check(oracle.slab));
    assert_int_equal(kvp_slab_len(oracle.slab, kvp_slab_first(oracle.slab)), region_bytes);
    free(oracle.taken);
    free(oracle.slots);
    kvp_slab_destroy(oracle.slab);
}

/* Objects of three models share a pool, which evicts at random until a put fits: how much of it holds objects? */
TEST(test_utilisation_stays_high_when_sizes_mix)
{
    static const uint64_t sizes[] = {61 * 16 * KIB, 3198 * KIB, 643 * KIB};
    enum { PUTS = 200000 };
    uint64_t seed = 7;
    kvp_slab_t *slab = make_slab(4 * GIB, UINT32_MAX);
    uint32_t *slots = malloc(4 * GIB / (64 * KIB) * sizeof(*slots));
    assert_non_null(slots);
    uint32_t count = 0;
    uint64_t samples = 0, evictions = 0;
    double used = 0, worst = 1;
    uint64_t start_ns = kvp_now_ns();
    for (uint32_t put = 0; put < PUTS; put++) {
        uint64_t len = sizes[next_random(&seed) % KVP_ARRAY_LEN(sizes)];
        uint64_t offset;
        while (kvp_slab_alloc(slab, len, put, &slots[count], &offset) != KVP_OK) {
            uint32_t i = (uint32_t)(next_random(&seed) % count);
            kvp_slab_free(slab, slots[i]);
            slots[i] = slots[--count];
            evictions++;
        }
        count++;
        if (put < PUTS / 10) continue;
        double share = (double)kvp_slab_used_bytes(slab) / (double)kvp_slab_region_bytes(slab);
        used += share;
        samples++;
        if (share < worst) worst = share;
    }
    double ns = (double)(kvp_now_ns() - start_ns) / (double)(PUTS + evictions);
    assert_true(kvp_slab_check(slab));
    print_message("mix: used %.1f %% on average, %.1f %% at worst, %.2f evictions a put, %.0f ns a call, %u slots, "
                  "%llu KiB of records\n",
                  100 * used / (double)samples, 100 * worst, (double)evictions / PUTS, ns, kvp_slab_slots_high(slab),
                  (unsigned long long)kvp_slab_memory_bytes(slab) / 1024);
    assert_true(used / (double)samples > 0.85);
    free(slots);
    kvp_slab_destroy(slab);
}

/* A pool that has seen some use is divided anew, from the list of its extents, under the same slots. */
TEST(test_adopting_what_another_allocator_divided)
{
    uint64_t seed = 11;
    for (uint32_t round = 0; round < 50; round++) {
        kvp_slab_t *old = make_slab(8 * MIB + 64, 4096), *slab = make_slab(8 * MIB + 64, 4096);
        uint32_t slots[600], n = 0;
        for (uint32_t i = 0; i < 600; i++) {
            uint64_t len = 1 + next_random(&seed) % (i % 7 == 0 ? 200 * KIB : 4 * KIB), offset;
            if (kvp_slab_alloc(old, len, i, &slots[n], &offset) == KVP_OK) n++;
        }
        shuffle(slots, n, &seed);
        for (uint32_t i = 0; i < n / 2; i++)
            kvp_slab_free(old, slots[i]);
        for (uint32_t s = kvp_slab_first(old), prev = KVP_SLAB_NONE; s != KVP_SLAB_NONE; s = kvp_slab_next(old, s)) {
            assert_int_equal(kvp_slab_prev(old, s), prev);
            prev = s;
            if (!kvp_slab_is_allocated(old, s)) continue;
            uint64_t offset = kvp_slab_offset(old, s), len = kvp_slab_len(old, s);
            uint32_t slot;
            assert_int_equal(kvp_slab_adopt(slab, s, offset, len, kvp_slab_owner(old, s), &slot), KVP_OK);
            assert_int_equal(slot, s);
            assert_int_equal(kvp_slab_tail(slab), offset + len);
            assert_true(kvp_slab_check(slab));
        }
        assert_int_equal(kvp_slab_used_bytes(slab), kvp_slab_used_bytes(old));
        assert_int_equal(kvp_slab_largest_free(slab), kvp_slab_largest_free(old));
        for (uint32_t i = n / 2; i < n; i++) {
            assert_int_equal(kvp_slab_offset(slab, slots[i]), kvp_slab_offset(old, slots[i]));
            assert_int_equal(kvp_slab_owner(slab, slots[i]), kvp_slab_owner(old, slots[i]));
            kvp_slab_free(slab, slots[i]);
        }
        assert_int_equal(kvp_slab_largest_free(slab), 8 * MIB);
        assert_true(kvp_slab_check(slab));
        kvp_slab_destroy(old);
        kvp_slab_destroy(slab);
    }
}

/* As many extents as there are slots: the last one has that of the rest of the region, which need not lie on pages. */
TEST(test_adopt_when_all_slots_are_used)
{
    for (uint32_t is_named = 0; is_named < 2; is_named++) {
        const uint64_t region = is_named ? 256 : MIB;
        kvp_slab_t *slab = make_slab(region, 4);
        uint32_t slot;
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(kvp_slab_adopt(slab, 3 - i, 64 * i, 64, i, &slot), KVP_OK);
        assert_int_equal(kvp_slab_adopt(slab, is_named ? 0 : KVP_SLAB_NONE, 192, region - 192, 3, &slot), KVP_OK);
        assert_int_equal(slot, 0);
        assert_int_equal(kvp_slab_owner(slab, 0), 3);
        assert_int_equal(kvp_slab_used_bytes(slab), region);
        assert_true(kvp_slab_check(slab));
        for (uint32_t i = 0; i < 4; i++)
            kvp_slab_free(slab, i);
        assert_int_equal(kvp_slab_largest_free(slab), region);
        kvp_slab_destroy(slab);
    }
}

TEST(test_adopt_when_it_cannot_be)
{
    kvp_slab_t *slab = make_slab(MIB, 4);
    uint32_t moved;
    assert_int_equal(kvp_slab_adopt(slab, 4, 0, 64, 1, &moved), KVP_LIMIT);
    assert_int_equal(kvp_slab_adopt(slab, 0, 32, 64, 1, &moved), KVP_INVALID);
    assert_int_equal(kvp_slab_adopt(slab, 0, 0, 0, 1, &moved), KVP_INVALID);
    assert_int_equal(kvp_slab_adopt(slab, 0, 64, 64 * KIB, 1, &moved), KVP_INVALID);
    assert_int_equal(kvp_slab_adopt(slab, 0, MIB, 64, 1, &moved), KVP_INVALID);
    assert_int_equal(kvp_slab_adopt(slab, 0, 64, MIB, 1, &moved), KVP_INVALID);
    assert_int_equal(kvp_slab_adopt(slab, 0, 128, 64, 1, &moved), KVP_OK); /* slot 0 was that of the whole region */
    assert_int_equal(kvp_slab_adopt(slab, 0, 192, 64, 2, &moved), KVP_LIMIT);
    assert_int_equal(kvp_slab_adopt(slab, 3, 64, 64, 2, &moved), KVP_INVALID);
    assert_int_equal(kvp_slab_move(slab, 0, &moved), KVP_OK);
    assert_int_equal(kvp_slab_offset(slab, moved), 128);
    assert_int_equal(kvp_slab_owner(slab, moved), 1);
    assert_false(kvp_slab_is_allocated(slab, 0));
    assert_true(kvp_slab_check(slab));
    assert_int_equal(kvp_slab_adopt(slab, 0, 256, 64, 2, &moved), KVP_LIMIT); /* one for it, and one for the gap */
    assert_true(kvp_slab_check(slab));
    assert_int_equal(kvp_slab_adopt(slab, 0, 192, MIB - 192 - 32, 2, &moved), KVP_INVALID);
    assert_int_equal(kvp_slab_adopt(slab, 0, 192, 64, 2, &moved), KVP_OK);
    assert_true(kvp_slab_check(slab));
    kvp_slab_destroy(slab);
}

/* As a log tells it: in any order, and some of it gone again. What is left over is taken as it lies. */
TEST(test_restoring_in_any_order)
{
    uint64_t seed = 12;
    for (uint32_t round = 0; round < 50; round++) {
        kvp_slab_t *old = make_slab(8 * MIB + 64, 4096), *slab;
        uint32_t slots[600], n = 0, slot;
        assert_int_equal(kvp_slab_create_open(8 * MIB + 64, 4096, &slab), KVP_OK);
        for (uint32_t i = 0; i < 600; i++) {
            uint64_t len = 1 + next_random(&seed) % (i % 7 == 0 ? 200 * KIB : 4 * KIB), offset;
            if (kvp_slab_alloc(old, len, i, &slots[n], &offset) == KVP_OK) n++;
        }
        shuffle(slots, n, &seed);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t offset = kvp_slab_offset(old, slots[i]), len = kvp_slab_len(old, slots[i]);
            assert_int_equal(kvp_slab_restore(slab, slots[i], offset, len, i, &slot), KVP_OK);
            assert_int_equal(kvp_slab_restore(slab, slots[i], offset, len, i, &slot), KVP_LIMIT);
            assert_int_equal(kvp_slab_offset(slab, slots[i]), offset);
            assert_int_equal(kvp_slab_len(slab, slots[i]), len);
            assert_int_equal(kvp_slab_owner(slab, slots[i]), i);
        }
        for (uint32_t i = 0; i < n / 2; i++) {
            kvp_slab_free(old, slots[i]);
            kvp_slab_unrestore(slab, slots[i]);
            assert_int_equal(kvp_slab_owner(slab, slots[i]), KVP_SLAB_NONE);
        }
        assert_int_equal(kvp_slab_close(slab), KVP_OK);
        assert_true(kvp_slab_check(slab));
        assert_int_equal(kvp_slab_used_bytes(slab), kvp_slab_used_bytes(old));
        assert_int_equal(kvp_slab_largest_free(slab), kvp_slab_largest_free(old));
        while (kvp_slab_take_free(slab, 7, &slot))
            assert_int_equal(kvp_slab_owner(slab, slot), 7);
        assert_int_equal(kvp_slab_used_bytes(slab), kvp_slab_region_bytes(slab));
        assert_true(kvp_slab_check(slab));
        for (uint32_t s = 0; s < 4096; s++)
            if (kvp_slab_is_allocated(slab, s)) kvp_slab_free(slab, s);
        assert_int_equal(kvp_slab_largest_free(slab), 8 * MIB);
        assert_true(kvp_slab_check(slab));
        kvp_slab_destroy(old);
        kvp_slab_destroy(slab);
    }
}

TEST(test_restoring_what_cannot_be)
{
    kvp_slab_t *slab;
    uint32_t slot;
    assert_int_equal(kvp_slab_create_open(MIB, 4, &slab), KVP_OK);
    assert_int_equal(kvp_slab_restore(slab, 4, 0, 64, 1, &slot), KVP_LIMIT);
    assert_int_equal(kvp_slab_restore(slab, 0, 32, 64, 1, &slot), KVP_INVALID);
    assert_int_equal(kvp_slab_restore(slab, 0, 64, 64 * KIB, 1, &slot), KVP_INVALID);
    assert_int_equal(kvp_slab_restore(slab, 0, MIB, 64, 1, &slot), KVP_INVALID);
    assert_int_equal(kvp_slab_restore(slab, 3, 128, 128, 1, &slot), KVP_OK);
    assert_int_equal(kvp_slab_restore(slab, KVP_SLAB_NONE, 192, 64, 2, &slot), KVP_OK);
    assert_int_equal(kvp_slab_close(slab), KVP_CORRUPT);
    kvp_slab_unrestore(slab, slot);
    assert_int_equal(kvp_slab_restore(slab, KVP_SLAB_NONE, 512, 64, 2, &slot), KVP_OK);
    assert_int_equal(kvp_slab_restore(slab, KVP_SLAB_NONE, 1024, 64, 2, &slot), KVP_OK);
    assert_int_equal(kvp_slab_close(slab), KVP_LIMIT); /* no slots for what is free */
    kvp_slab_unrestore(slab, slot);
    assert_int_equal(kvp_slab_restore(slab, slot, 0, 128, 2, &slot), KVP_OK);
    assert_int_equal(kvp_slab_close(slab), KVP_LIMIT);
    kvp_slab_unrestore(slab, 3);
    assert_int_equal(kvp_slab_close(slab), KVP_OK);
    assert_true(kvp_slab_check(slab));
    kvp_slab_destroy(slab);
}

TEST_MAIN()
