/* SPDX-License-Identifier: Apache-2.0
 * Samples of the newest version, in rings of growing distances. */
#include "master/core/base/ages.h"

#define SECOND_NS 1000000000ull

static const kvp_ages_sample_t *
sample_at(const kvp_ages_t *ages, uint32_t level, uint32_t i)
{
    return &ages->levels[level].samples[i % KVP_AGES_N];
}

void
kvp_ages_note(kvp_ages_t *ages, uint64_t version, uint64_t now_ns)
{
    for (uint32_t level = 0; level < KVP_AGES_LEVELS; level++) {
        const uint32_t n = ages->levels[level].n;

        if (n > 0 && now_ns - sample_at(ages, level, n - 1)->at_ns < SECOND_NS << (2 * level)) return;
        ages->levels[level].samples[n % KVP_AGES_N] = (kvp_ages_sample_t){version, now_ns};
        ages->levels[level].n++;
    }
}

/* Returns the number of the level's first sample whose version is not below the given one; n = none. */
static uint32_t
find_sample(const kvp_ages_t *ages, uint32_t level, uint64_t version)
{
    uint32_t n = ages->levels[level].n, from = n > KVP_AGES_N ? n - KVP_AGES_N : 0, to = n;

    while (from < to) {
        const uint32_t middle = from + (to - from) / 2;

        if (sample_at(ages, level, middle)->version < version)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

uint64_t
kvp_ages_age(const kvp_ages_t *ages, uint64_t version, uint64_t now_ns)
{
    for (uint32_t level = 0; level < KVP_AGES_LEVELS; level++) {
        const uint32_t n = ages->levels[level].n, i = find_sample(ages, level, version);
        const uint32_t first = n > KVP_AGES_N ? n - KVP_AGES_N : 0;

        if (n == 0) return 0;
        if (i == first) continue; /* older than all samples of this level */
        return kvp_max_u64(1, now_ns - (i < n ? sample_at(ages, level, i)->at_ns : now_ns));
    }
    return 0;
}
