/* SPDX-License-Identifier: Apache-2.0 */
#include "common/idset.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

void
kvp_idset_fini(kvp_idset_t *set)
{
    free(set->ranges);
    *set = (kvp_idset_t){0};
}

/* Returns the number of ranges that end below the id. */
static size_t
ends_below(const kvp_idset_t *set, uint64_t id)
{
    size_t lo = 0, hi = set->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (set->ranges[mid].last < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Removes n ranges, from index `at` on. */
static void
take_out(kvp_idset_t *set, size_t at, size_t n)
{
    memmove(set->ranges + at, set->ranges + at + n, (set->n - at - n) * sizeof *set->ranges);
    set->n -= n;
}

static void
raise_floor(kvp_idset_t *set, uint64_t floor)
{
    size_t gone = ends_below(set, floor);

    if (floor <= set->floor) return;
    set->floor = floor;
    if (gone > 0) take_out(set, 0, gone);
}

void
kvp_idset_add(kvp_idset_t *set, kvp_idrange_t range, uint64_t floor)
{
    size_t at, n = 0;
    kvp_idrange_t *more;

    raise_floor(set, floor);
    if (range.last <= range.above || range.last < set->floor) return;
    at = ends_below(set, range.above); /* index of the first range that may overlap or touch the new range */
    for (; at + n < set->n && set->ranges[at + n].above <= range.last; n++) {
        range.above = kvp_min_u64(range.above, set->ranges[at + n].above);
        range.last = kvp_max_u64(range.last, set->ranges[at + n].last);
    }
    if (n == 0) {
        more = kvp_grow(set->ranges, set->n, &set->cap, 16, sizeof *more);
        if (more == NULL) {
            kvp_log_error("ids", "no memory for one more range: all up to %llx are taken as over",
                          (unsigned long long)range.last);
            raise_floor(set, range.last + 1);
            return;
        }
        set->ranges = more;
        memmove(set->ranges + at + 1, set->ranges + at, (set->n - at) * sizeof *set->ranges);
        set->n++;
    } else {
        take_out(set, at, n - 1);
    }
    set->ranges[at] = range;
}

bool
kvp_idset_has(const kvp_idset_t *set, uint64_t id)
{
    size_t at = ends_below(set, id);

    return id < set->floor || (at < set->n && set->ranges[at].above < id);
}
