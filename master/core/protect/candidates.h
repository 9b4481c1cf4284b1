/* SPDX-License-Identifier: Apache-2.0
 * The candidates for eviction, and their order. */
#ifndef KVP_MASTER_CORE_PROTECT_CANDIDATES_H
#define KVP_MASTER_CORE_PROTECT_CANDIDATES_H

#include "master/core/protect/protection.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/group.h"

/* kvp_victim_unit returns the object that represents this object on a list of candidates: objects that are
 * evicted together (a group) are listed as one unit. */
static inline uint32_t
kvp_victim_unit(const kvp_catalog_t *cat, uint32_t oid)
{
    const kvp_member_t *mb = kvp_group_member(cat, kvp_obj(cat->index, oid));

    return mb == NULL || !mb->is_committed || mb->group->is_doomed ? oid : mb->group->lead;
}
uint64_t kvp_victim_bytes(const kvp_protect_t *prot, uint32_t unit); /* bytes that the unit's eviction frees */
static inline bool
kvp_victim_is_listed(const kvp_obj_t *o)
{
    return o->list != KVP_OBJLIST_NONE;
}
/* kvp_victim_is_hard returns true if the object, or its group, is hard-pinned. mb: its membership; NULL = in no group
 */
bool kvp_victim_is_hard(const kvp_obj_t *o, const kvp_member_t *mb);
bool kvp_victim_may_go(const kvp_protect_t *prot, uint32_t unit); /* true if the object or group can be evicted now */
void kvp_victim_removed(kvp_protect_t *prot, uint32_t oid); /* takes the object off its candidate list, if any */
void kvp_victim_used(kvp_protect_t *prot, uint32_t oid); /* makes the object the youngest candidate on its list */
/* kvp_victim_back puts an unlisted object back on its list of eviction candidates, at the place of its last use */
void kvp_victim_back(kvp_protect_t *prot, uint32_t oid);
/* kvp_victim_loaded puts an object that was just loaded from its tier on a list: the cold list, or the LRU list if
 * its last use was recent. The next use, which is the read that caused the load, leaves it on the cold list.
 * kvp_victim_loaded_to_move: no read caused the load, so the object becomes the oldest of its list.
 * kvp_victim_is_cold_over returns true if loaded objects have more than an eighth of the tenant's memory.
 * kvp_victim_cold returns the oldest loaded object, or the one after `after`; KVP_OID_NONE at the end and at an
 * object with a ticket. kvp_victim_age returns the age by which candidates are compared. */
void kvp_victim_loaded(kvp_protect_t *prot, uint32_t oid);
void kvp_victim_loaded_to_move(kvp_protect_t *prot, uint32_t oid);
bool kvp_victim_is_cold_over(const kvp_protect_t *prot, const kvp_tenant_t *t);
uint32_t kvp_victim_cold(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t after);
uint32_t kvp_victim_age(const kvp_protect_t *prot, uint32_t unit);
/* kvp_victim_keep: the object, or its unit, got a ticket. kvp_victim_let_go: a ticket of it has ended. */
void kvp_victim_keep(kvp_protect_t *prot, uint32_t oid);
void kvp_victim_let_go(kvp_protect_t *prot, uint32_t oid);
/* kvp_victim_behind returns the object after `after` on the list; it takes objects with a ticket, or with a write to a
 * tier in progress, off the list. kvp_victim_next returns the tenant's candidates, the oldest first. With `after` =
 * KVP_OID_NONE both begin at the oldest object; they return KVP_OID_NONE at the end, or at the end of the budget. */
uint32_t kvp_victim_behind(kvp_protect_t *prot, kvp_objlist_t *list, uint32_t after);
uint32_t kvp_victim_next(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t after);
bool kvp_victims_back(kvp_protect_t *prot, kvp_segment_t *g,
                      /* moves up to *left parked objects of g to their candidate lists; true when none is parked */
                      uint32_t *left);

/* A place in the order of uses. kvp_victim_mark stores the place of the object, or of its group's lead.
 * kvp_victim_restore puts the unit back there after a change of the object's copies, because such a change is not a
 * use. */
typedef struct {
    uint32_t unit, older, used;
    uint8_t list; /* kvp_objlist_kind_t */
    bool is_asking_counted, is_ahead, is_ahead_end;
} kvp_victim_mark_t;
kvp_victim_mark_t kvp_victim_mark(const kvp_protect_t *prot, uint32_t oid);
void kvp_victim_restore(kvp_protect_t *prot, const kvp_victim_mark_t *mark);

#endif
