/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVP_TESTS_WORLD_CHECK_SLAB_CHECK_H
#define KVP_TESTS_WORLD_CHECK_SLAB_CHECK_H

#include "master/core/base/slab.h"

/* kvp_slab_check examines all records of the allocator, and returns false if an invariant is broken. O(n). */
bool kvp_slab_check(const kvp_slab_t *slab);

#endif
