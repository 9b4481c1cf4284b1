/* SPDX-License-Identifier: Apache-2.0
 * Least recently used: the list is in the order of uses.
 */
#include "master/core/catalog/index.h"
#include "master/core/protect/policy.h"

#define BACK_STEPS 8u /* objects that a returning one is compared with */

static void
lru_used(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid)
{
    kvp_objlist_remove(ix, list, oid);
    kvp_obj_touch(ix, kvp_obj(ix, oid));
    kvp_objlist_push_young(ix, list, oid);
}

/* The object was parked as one of the oldest, so older ones on the list came back as well, a short
 * while ago. */
static void
lru_back(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid)
{
    uint32_t age = kvp_obj_age(ix, kvp_obj(ix, oid)), older = KVP_OID_NONE, next = list->oldest;

    for (uint32_t n = 0; n < BACK_STEPS && next != KVP_OID_NONE && kvp_obj_age(ix, kvp_obj(ix, next)) > age; n++) {
        older = next;
        next = kvp_obj(ix, next)->next;
    }
    kvp_objlist_push_behind(ix, list, older, oid);
}

static uint32_t
lru_victim(kvp_objindex_t *ix, const kvp_objlist_t *list, uint32_t after)
{
    return after == KVP_OID_NONE ? list->oldest : kvp_obj(ix, after)->next;
}

const kvp_policy_ops_t kvp_policy_lru = {
    .name = "lru",
    .used = lru_used,
    .removed = kvp_objlist_remove,
    .back = lru_back,
    .victim = lru_victim,
};
