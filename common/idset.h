/* SPDX-License-Identifier: Apache-2.0
 * Ids that were given in rising order, and of which some are over: all below a floor, and ranges above it.
 */
#ifndef KVP_COMMON_IDSET_H
#define KVP_COMMON_IDSET_H

#include "common/base.h"

/* All ids above `above`, and up to and with `last`. */
typedef struct {
    uint64_t above, last;
} kvp_idrange_t;

static inline kvp_idrange_t
kvp_idrange_one(uint64_t id)
{
    return (kvp_idrange_t){.above = id - 1, .last = id};
}

/* The zero value is an empty set. */
typedef struct {
    uint64_t floor; /* every id below the floor is in the set; never falls */
    kvp_idrange_t *ranges; /* in rising order, separated by gaps, all at or above the floor */
    size_t n;
    size_t cap;
} kvp_idset_t;

void kvp_idset_fini(kvp_idset_t *set); /* and empty again */
/* kvp_idset_add adds the range (none where last is not above `above`), and all below the floor. It
 * cannot fail: where there is no memory for another range all up to its end are added. */
void kvp_idset_add(kvp_idset_t *set, kvp_idrange_t range, uint64_t floor);
bool kvp_idset_has(const kvp_idset_t *set, uint64_t id);

#endif
