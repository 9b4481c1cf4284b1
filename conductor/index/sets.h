/* SPDX-License-Identifier: Apache-2.0
 * Sets of holders. Many blocks have the same holders, so a block stores the number of a set, and equal sets have one
 * number. By an equal number readers see that the next block of a prompt has the same holders. A set is immutable
 * once it has a number. One thread writes; readers are inside an epoch.
 *
 * A holder is the memory of one publisher on one medium. Its number is assigned by the caller. */
#ifndef KVP_CONDUCTOR_INDEX_SETS_H
#define KVP_CONDUCTOR_INDEX_SETS_H

#include "conductor/index/epoch.h"

#define KVP_SET_NONE 0u /* number of the empty set of holders */

typedef struct {
    uint32_t n;
    uint32_t holders[]; /* numbers of the holders, in ascending order */
} kvp_set_t;

typedef struct kvp_sets kvp_sets_t;

kvp_sets_t *kvp_sets_create(kvp_epoch_t *epoch); /* makes the table of sets; borrows epoch; NULL = no memory */
void kvp_sets_destroy(kvp_sets_t *sets);

/* kvp_sets_with returns the number of the set with the holder added, kvp_sets_without with the holder removed. Each
 * takes over the reference to `set`, and returns a reference to the new set. For the writer only. */
uint32_t kvp_sets_with(kvp_sets_t *sets, uint32_t set, uint32_t holder);
uint32_t kvp_sets_without(kvp_sets_t *sets, uint32_t set, uint32_t holder);
/* kvp_sets_purge returns the set without the holders for which is_dead[holder] is true. */
uint32_t kvp_sets_purge(kvp_sets_t *sets, uint32_t set, const bool *is_dead);

/* kvp_sets_get returns the set, borrowed until the epoch is left; NULL for KVP_SET_NONE. Readers may call it, too. */
const kvp_set_t *kvp_sets_get(const kvp_sets_t *sets, uint32_t set);
uint64_t kvp_sets_bytes(const kvp_sets_t *sets);

#endif
