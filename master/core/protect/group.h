/* SPDX-License-Identifier: Apache-2.0
 * Groups: objects that are evicted together, and that also become visible together if the group has a number of
 * members. Only files of master/core include this.
 *
 * An object of a group has a membership from the beginning of its put (of an upsert: from its commit). The group's
 * record exists as long as it has memberships or reservations.
 *
 * Life of a group of n members: incomplete, its committed members hidden -> (the last one is committed) complete, all
 * of them visible -> doomed: evicted, or abandoned incomplete by every client that was putting members. A doomed
 * group is not in the table; its members are hidden, and are dropped in slices. A later put of a member begins a new
 * group. */
#ifndef KVP_MASTER_CORE_PROTECT_GROUP_H
#define KVP_MASTER_CORE_PROTECT_GROUP_H

#include "common/list.h"
#include "common/mutate.h"
#include "master/core/protect/protection.h"
#include "master/core/catalog/member.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/catalog/staged.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

#define KVP_GROUP_OPEN_MAX 65536u /* limit of a client's memberships whose objects are uncommitted or hidden */

static inline bool
kvp_group_is_doomed(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(cat, o);

    return mb != NULL && mb->group->is_doomed;
}
/* kvp_group_hides returns true if a committed object is invisible, because its group is incomplete or doomed. */
static inline bool
kvp_group_hides(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(cat, o);

    if (mb == NULL || mb->group->is_doomed) return mb != NULL;
    return mb->group->size > 0 && !mb->group->is_whole && KVP_RULE(GROUP_HIDDEN);
}
static inline bool
kvp_group_is_reserved(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(cat, o);

    return mb != NULL && mb->group->reserved_n > 0;
}
static inline bool
kvp_group_is_named(const kvp_wire_group_t *want)
{
    return want->group.lo != 0 || want->group.hi != 0;
}
kvp_err_t kvp_group_check_named(const kvp_wire_group_t *want); /* INVALID if the named group is malformed */
/* kvp_group_may_join checks whether a put may join the group; INVALID, LIMIT. over: the object that an upsert
 * replaces, whose membership the new version may take; KVP_OID_NONE = none. */
kvp_err_t kvp_group_may_join(kvp_protect_t *prot, const kvp_session_t *s, const kvp_wire_group_t *want, uint32_t over);
/* call kvp_group_may_join before */
void kvp_group_join(kvp_protect_t *prot, kvp_session_t *s, uint32_t oid, const kvp_wire_group_t *want);
/* kvp_group_enter gives an object that is about to be committed the membership that its put asked for, if it has none
 * or an invalid one. kvp_group_committed counts the member after the commit. */
kvp_err_t kvp_group_enter(kvp_protect_t *prot, kvp_session_t *s, const kvp_attempt_t *a);
void kvp_group_committed(kvp_protect_t *prot, uint32_t oid);
void kvp_group_leave(kvp_protect_t *prot, uint32_t oid); /* ends the membership of an object that is being removed */
/* kvp_group_claim returns the answer to client s, which puts a key whose committed object is hidden: ALREADY,
 * IN_PROGRESS, or OK if no client needs the hidden object any more, so that the put may replace it. */
kvp_err_t kvp_group_claim(kvp_protect_t *prot, kvp_session_t *s, uint32_t oid);
/* Members that nodes report. kvp_group_may_adopt returns true if a reported version of a key may have its place in
 * the group; over: the object that it replaces, or KVP_OID_NONE. kvp_group_displaced: of two members with the same
 * number the newer one is valid; returns the older one, if any, which must be dropped before kvp_group_adopt.
 * kvp_group_adopt adds the reported object, which must be committed. */
uint32_t kvp_group_displaced(kvp_protect_t *prot, const kvp_tenant_t *t, const kvp_wire_group_t *want);
bool kvp_group_may_adopt(kvp_protect_t *prot, const kvp_tenant_t *t, const kvp_wire_group_t *want, uint64_t version,
                         uint32_t over);
void kvp_group_adopt(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want);
/* kvp_groups_doom_broken, called when a log was read to its end, dooms groups that were complete and lost members. */
void kvp_groups_doom_broken(kvp_protect_t *prot);
/* kvp_group_evict evicts the object's whole group, if it has one; cause: EVICTED or EVICTED_FOR_DRAIN. */
void kvp_group_evict(kvp_protect_t *prot, uint32_t oid, kvp_cause_t cause);
/* kvp_group_hold: the object got its first ticket (is_held), or lost its last ticket */
void kvp_group_hold(kvp_protect_t *prot, uint32_t oid, bool is_held);
/* kvp_group_bytes: the extents of a committed member grew by so many bytes, which may be negative */
void kvp_group_bytes(kvp_protect_t *prot, const kvp_obj_t *o, int64_t bytes);
void kvp_group_reserve(kvp_protect_t *prot, kvp_group_t *g);
void kvp_group_unreserved(kvp_protect_t *prot, kvp_group_t *g); /* frees the group if unused */
/* kvp_group_seen returns the group, if all its members are committed and served; else NULL. */
kvp_group_t *kvp_group_seen(kvp_protect_t *prot, const kvp_tenant_t *t, kvp_digest_t digest);
void kvp_group_unpin(kvp_protect_t *prot, kvp_group_t *g); /* removes all soft pins of its members */
void kvp_groups_abandon(kvp_protect_t *prot, kvp_session_t *s); /* the client's session is over */
uint32_t kvp_group_next_doomed(const kvp_protect_t *prot, uint32_t after); /* KVP_OID_NONE at the end */
void kvp_groups_settle(kvp_protect_t *prot); /* handles group members whose owners' sessions have ended, in slices */
bool kvp_groups_have_work(const kvp_protect_t *prot);
void kvp_groups_init(kvp_protect_t *prot);
void kvp_groups_fini(kvp_protect_t *prot);
/* Returns the number of copies on connected nodes, as kvp_obj_up_n does; 0 also while the object's group hides it. */
static inline uint32_t
kvp_obj_served_n(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return kvp_group_hides(cat, o) ? 0 : kvp_obj_up_n(cat, o);
}
static inline bool
kvp_obj_is_served(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return kvp_obj_served_n(cat, o) > 0 || (kvp_obj_is_on_tier_up(cat, o) && !kvp_group_hides(cat, o));
}

#endif
