/* SPDX-License-Identifier: Apache-2.0
 * Least recently used: the list is in the order of uses.
 */
#include "master/core/policy.h"

static void
used(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid)
{
    kvp_objlist_remove(ix, list, oid);
    kvp_obj_touch(ix, kvp_obj(ix, oid));
    kvp_objlist_push_young(ix, list, oid);
}

static uint32_t
victim(kvp_objindex_t *ix, const kvp_objlist_t *list, uint32_t after)
{
    return after == KVP_OID_NONE ? list->oldest : kvp_obj(ix, after)->next;
}

const kvp_policy_ops_t kvp_policy_lru = {
    .name = "lru",
    .used = used,
    .removed = kvp_objlist_remove,
    .victim = victim,
};
