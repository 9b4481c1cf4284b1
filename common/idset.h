/* SPDX-License-Identifier: Apache-2.0
 * A set of ids for ids that are assigned in rising order. It has all ids below a floor, and ranges above it. */
#ifndef KVP_COMMON_IDSET_H
#define KVP_COMMON_IDSET_H

#include "common/base.h"

/* A range of ids: all ids above `above`, up to and including `last`. */
typedef struct {
    uint64_t above, last;
} kvp_idrange_t;

static inline kvp_idrange_t
kvp_idrange_one(uint64_t id)
{
    return (kvp_idrange_t){.above = id - 1, .last = id};
}

/* A set of ids. Zeroed memory is an empty set. */
typedef struct {
    uint64_t floor; /* every id below the floor is in the set; the floor never falls */
    kvp_idrange_t *ranges; /* ranges in rising order, with gaps between them; each ends at or above the floor */
    size_t n;
    size_t cap;
} kvp_idset_t;

void kvp_idset_fini(kvp_idset_t *set); /* frees the memory of the set and leaves an empty set */
/* kvp_idset_add adds a range (no id if last <= above), and all ids below the floor. It cannot fail: if there is no
 * memory for another range, all ids up to the range's end are added. */
void kvp_idset_add(kvp_idset_t *set, kvp_idrange_t range, uint64_t floor);
bool kvp_idset_has(const kvp_idset_t *set, uint64_t id);

#endif
