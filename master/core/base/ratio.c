/* SPDX-License-Identifier: Apache-2.0
 * Counts of asked and found keys, in rings by time. */
#include "master/core/base/ratio.h"

#include <string.h>

#define TEN_NS 10000000000ull
#define TENS 7u
#define MINUTES 61u

/* Returns how many of the n entries of a ring are out of date when its time moves from `from` to `to`. */
static uint64_t
count_passed(uint64_t from, uint64_t to, uint64_t n)
{
    return to <= from ? 0 : kvp_min_u64(to - from, n);
}

void
kvp_ratio_note(kvp_ratio_t *r, uint64_t asked, uint64_t found, uint64_t now_ns)
{
    const uint64_t ten = now_ns / TEN_NS;

    for (uint64_t i = count_passed(r->ten, ten, TENS); i > 0; i--)
        r->tens[(ten - i + 1) % TENS] = (kvp_askcount_t){0};
    for (uint64_t i = count_passed(r->ten / 6, ten / 6, MINUTES); i > 0; i--)
        r->minutes[(ten / 6 - i + 1) % MINUTES] = (kvp_askcount_t){0};
    r->ten = kvp_max_u64(r->ten, ten);
    r->tens[r->ten % TENS].asked += asked;
    r->tens[r->ten % TENS].found += found;
    r->minutes[r->ten / 6 % MINUTES].asked += asked;
    r->minutes[r->ten / 6 % MINUTES].found += found;
}

/* Sums the ring's entries that are not older than its length, seen from `to`. */
static kvp_askcount_t
sum_ring(const kvp_askcount_t *ring, uint64_t n, uint64_t from, uint64_t to)
{
    kvp_askcount_t sum = {0};

    for (uint64_t i = count_passed(from, to, n); i < n; i++) {
        sum.asked += ring[(to - i) % n].asked;
        sum.found += ring[(to - i) % n].found;
    }
    return sum;
}

kvp_askcount_t
kvp_ratio_minute(const kvp_ratio_t *r, uint64_t now_ns)
{
    return sum_ring(r->tens, TENS, r->ten, now_ns / TEN_NS);
}

kvp_askcount_t
kvp_ratio_hour(const kvp_ratio_t *r, uint64_t now_ns)
{
    return sum_ring(r->minutes, MINUTES, r->ten / 6, now_ns / TEN_NS / 6);
}
