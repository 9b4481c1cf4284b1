/* SPDX-License-Identifier: Apache-2.0
 * Least recently used, over the list that the index keeps in its records.
 */
#include "master/core/policy.h"

static uint32_t
victim(kvp_objindex_t *ix, uint32_t after)
{
    return after == KVP_OID_NONE ? kvp_objindex_lru_oldest(ix) : kvp_obj(ix, after)->lru_next;
}

const kvp_policy_ops_t kvp_policy_lru = {
    .name = "lru",
    .used = kvp_objindex_lru_use,
    .removed = kvp_objindex_lru_remove,
    .victim = victim,
};
