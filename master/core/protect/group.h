/* SPDX-License-Identifier: Apache-2.0
 * Groups: objects that are evicted together, and with a number of members also appear together.
 * Only files of master/core include this.
 *
 * An object of a group has a membership from the beginning of its put (of an upsert: from its
 * commit). The group's record lives as long as it has memberships or reservations.
 *
 * Life of a group of n members: incomplete, its committed members hidden -> (the last one is
 * committed) complete, all of them visible -> doomed: evicted, or abandoned incomplete by every
 * client that was putting members. A doomed group is not in the table, its members are hidden, and
 * are dropped a slice at a time; a later put of a member begins a new group. */
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

#define KVP_GROUP_OPEN_MAX 65536u /* memberships of a client that are not committed, or hidden */

static inline bool
kvp_group_is_doomed(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(cat, o);

    return mb != NULL && mb->group->is_doomed;
}
/* kvp_group_hides: committed, and yet not to be seen. */
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
kvp_err_t kvp_group_check_named(const kvp_wire_group_t *want); /* INVALID in itself */
/* kvp_group_may_join: INVALID, LIMIT. over: the object that an upsert replaces, whose place it may
 * take; KVP_OID_NONE = none. */
kvp_err_t kvp_group_may_join(kvp_protect_t *prot, const kvp_session_t *s, const kvp_wire_group_t *want, uint32_t over);
void kvp_group_join(kvp_protect_t *prot, kvp_session_t *s, uint32_t oid, const kvp_wire_group_t *want); /* it may */
/* kvp_group_enter gives an object that is about to be committed its wanted membership, if it has
 * none or an invalid one. kvp_group_committed: now it is committed. */
kvp_err_t kvp_group_enter(kvp_protect_t *prot, kvp_session_t *s, const kvp_attempt_t *a);
void kvp_group_committed(kvp_protect_t *prot, uint32_t oid);
void kvp_group_leave(kvp_protect_t *prot, uint32_t oid); /* the object is on its way out */
/* kvp_group_claim returns the answer to a put by s of a key that is committed and hidden: ALREADY,
 * IN_PROGRESS, or OK: the object is of no use to any client. */
kvp_err_t kvp_group_claim(kvp_protect_t *prot, kvp_session_t *s, uint32_t oid);
/* Reports of nodes. kvp_group_may_adopt: a version of a key may have the place; over: the object
 * that it replaces, or KVP_OID_NONE. kvp_group_displaced: of two members with one place the newer
 * is right; returns the older one, if any, to be dropped before kvp_group_adopt. Its object is
 * committed by then. */
uint32_t kvp_group_displaced(kvp_protect_t *prot, const kvp_tenant_t *t, const kvp_wire_group_t *want);
bool kvp_group_may_adopt(kvp_protect_t *prot, const kvp_tenant_t *t, const kvp_wire_group_t *want, uint64_t version,
                         uint32_t over);
void kvp_group_adopt(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want);
/* kvp_groups_doom_broken: a log was read to its end. Groups that were whole and are not are on their way out. */
void kvp_groups_doom_broken(kvp_protect_t *prot);
void kvp_group_evict(kvp_protect_t *prot, uint32_t oid); /* evicts the whole group of the object, if it has one */
void kvp_group_hold(kvp_protect_t *prot, uint32_t oid, bool is_held); /* it has its first ticket, or lost the last */
void kvp_group_bytes(kvp_protect_t *prot, const kvp_obj_t *o, int64_t bytes); /* a committed member's extents changed */
void kvp_group_reserve(kvp_protect_t *prot, kvp_group_t *g);
void kvp_group_unreserved(kvp_protect_t *prot, kvp_group_t *g); /* frees it if unused */
/* kvp_group_seen finds a group all of whose members are there and served; NULL. */
kvp_group_t *kvp_group_seen(kvp_protect_t *prot, const kvp_tenant_t *t, kvp_digest_t digest);
void kvp_group_unpin(kvp_protect_t *prot, kvp_group_t *g); /* removes all soft pins in it */
void kvp_groups_abandon(kvp_protect_t *prot, kvp_session_t *s); /* its session is over */
uint32_t kvp_group_next_doomed(const kvp_protect_t *prot, uint32_t after); /* KVP_OID_NONE at the end */
void kvp_groups_settle(kvp_protect_t *prot); /* members whose owners have ended; a slice of them */
bool kvp_groups_have_work(const kvp_protect_t *prot);
void kvp_groups_init(kvp_protect_t *prot);
void kvp_groups_fini(kvp_protect_t *prot);
/* Copies whose nodes answer, as by kvp_obj_up_n; 0 also while its group hides it. */
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
