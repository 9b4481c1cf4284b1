/* SPDX-License-Identifier: Apache-2.0
 * What can be evicted, and in which order.
 */
#ifndef KVP_MASTER_CORE_PROTECT_CANDIDATES_H
#define KVP_MASTER_CORE_PROTECT_CANDIDATES_H

#include "master/core/protect/protection.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/group.h"

/* Objects that are evicted together are on the lists as one: kvp_victim_unit is the object that
 * stands for this one. */
static inline uint32_t
kvp_victim_unit(const kvp_catalog_t *cat, uint32_t oid)
{
    const kvp_member_t *mb = kvp_group_member(cat, kvp_obj(cat->index, oid));

    return mb == NULL || !mb->is_committed || mb->group->is_doomed ? oid : mb->group->lead;
}
uint64_t kvp_victim_bytes(const kvp_protect_t *prot, uint32_t unit); /* extents that its eviction frees */
static inline bool
kvp_victim_is_listed(const kvp_obj_t *o)
{
    return o->list != KVP_OBJLIST_NONE;
}
bool kvp_victim_may_go(const kvp_protect_t *prot, uint32_t unit); /* listed, and without a ticket */
void kvp_victim_removed(kvp_protect_t *prot, uint32_t oid); /* no candidate any more; legal for a non-candidate */
void kvp_victim_used(kvp_protect_t *prot, uint32_t oid); /* listed, if it ever is, as the youngest */
void kvp_victim_back(kvp_protect_t *prot, uint32_t oid); /* returns a parked one to the place of its last use */
/* kvp_victim_loaded: the object was loaded from its tier, and is on no list. It goes to the cold
 * end; its first use, the read that caused the load, leaves it there. kvp_victim_is_cold_over:
 * loaded objects hold more than an eighth of the tenant's memory. kvp_victim_cold: the oldest
 * loaded object, or the next one; KVP_OID_NONE at the end and at an object with a ticket.
 * kvp_victim_age: the age by which candidates are compared. */
void kvp_victim_loaded(kvp_protect_t *prot, uint32_t oid);
bool kvp_victim_is_cold_over(const kvp_protect_t *prot, const kvp_tenant_t *t);
uint32_t kvp_victim_cold(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t after);
uint32_t kvp_victim_age(const kvp_protect_t *prot, uint32_t unit);
/* kvp_victim_keep: a ticket begins to keep it, or its unit. kvp_victim_let_go: a ticket is over, perhaps the last. */
void kvp_victim_keep(kvp_protect_t *prot, uint32_t oid);
void kvp_victim_let_go(kvp_protect_t *prot, uint32_t oid);
/* kvp_victim_behind: the object that follows `after` on a list; objects that a ticket keeps are
 * parked on the way. kvp_victim_next: candidates of a tenant, the oldest first. Both begin after
 * KVP_OID_NONE; KVP_OID_NONE at the end, or where the step's work is used up. */
uint32_t kvp_victim_behind(kvp_protect_t *prot, kvp_objlist_t *list, uint32_t after);
uint32_t kvp_victim_next(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t after);
bool kvp_victims_back(kvp_protect_t *prot, kvp_segment_t *g,
                      uint32_t *left); /* unparks objects; true when none is left */

#endif
