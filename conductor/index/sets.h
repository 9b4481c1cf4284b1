/* SPDX-License-Identifier: Apache-2.0
 * Sets of holders. Many blocks have the same holders, so a block has the number of a set, and equal
 * sets have one number: by the number readers see that the next block of a prompt has the same
 * holders. A set is immutable once it has a number. One thread writes; readers are inside an epoch.
 *
 * A holder is one publisher's memory of one medium: a number that the caller assigns. */
#ifndef KVP_CONDUCTOR_INDEX_SETS_H
#define KVP_CONDUCTOR_INDEX_SETS_H

#include "conductor/index/epoch.h"

#define KVP_SET_NONE 0u /* nobody */

typedef struct {
    uint32_t n;
    uint32_t holders[]; /* rising */
} kvp_set_t;

typedef struct kvp_sets kvp_sets_t;

kvp_sets_t *kvp_sets_create(kvp_epoch_t *epoch); /* epoch borrowed; NULL = no memory */
void kvp_sets_destroy(kvp_sets_t *sets);

/* The writer's. Each returns the number of the set that a block has from now on, in place of `set`,
 * whose reference it takes. */
uint32_t kvp_sets_with(kvp_sets_t *sets, uint32_t set, uint32_t holder);
uint32_t kvp_sets_without(kvp_sets_t *sets, uint32_t set, uint32_t holder);
/* kvp_sets_purge leaves out holders with is_dead[holder]. */
uint32_t kvp_sets_purge(kvp_sets_t *sets, uint32_t set, const bool *is_dead);

/* kvp_sets_get, of readers, too: borrowed until the epoch is left. NULL for KVP_SET_NONE. */
const kvp_set_t *kvp_sets_get(const kvp_sets_t *sets, uint32_t set);
uint64_t kvp_sets_bytes(const kvp_sets_t *sets);

#endif
