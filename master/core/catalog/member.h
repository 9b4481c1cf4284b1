/* SPDX-License-Identifier: Apache-2.0
 * The group of an object. protect/group.c has the life of a group. */
#ifndef KVP_MASTER_CORE_CATALOG_MEMBER_H
#define KVP_MASTER_CORE_CATALOG_MEMBER_H

#include "common/hash.h"
#include "common/list.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/index.h"
#include "proto/cause.h"
#include "proto/wire.h"

typedef struct kvp_group {
    uint32_t number; /* number of the group in protect->groups; invalid if the group is doomed */
    struct kvp_group *same; /* the next group whose digest has the same hash */
    kvp_digest_t digest;
    uint32_t tenant; /* number in catalog->tenants; the group holds a reference until it is doomed */
    uint32_t epoch; /* epoch of the namespace */
    kvp_list_t committed; /* memberships of committed objects; a doomed group's are in protect->doomed */
    kvp_list_t begun; /* memberships whose put is not committed */
    uint32_t size; /* number of members of a complete group; 0 = unknown: the group is only a unit of eviction */
    uint32_t committed_n, begun_n;
    uint32_t owned_n; /* number of memberships with an owner */
    uint32_t held_n; /* number of members with a ticket */
    uint32_t reserved_n; /* number of tickets on the group itself */
    uint32_t pinned_n[KVP_PIN_HARD + 1]; /* number of committed members, for each kvp_pin_t */
    /* the member that represents the group on a list of eviction candidates; KVP_OID_NONE = no member is committed */
    uint32_t lead;
    uint64_t bytes; /* bytes of the committed members' extents */
    uint64_t *taken; /* a bit for each member number in use, owned; NULL if size is 0 */
    bool is_whole; /* flag: all `size` members were committed at one time; reset when none is left */
    bool is_doomed; /* flag: all members of the group are to be removed, which happens in steps */
    /* why the group is doomed: GROUP_ENDED, or the cause of an eviction: EVICTED or EVICTED_FOR_DRAIN */
    kvp_cause_t cause;
} kvp_group_t;

typedef struct kvp_member {
    kvp_list_t of_group; /* link in group->committed, group->begun or protect->doomed */
    kvp_list_t of_owner; /* link in session->members, protect->orphans or protect->leavers */
    kvp_group_t *group;
    /* Incarnation (number of one life) of the client that put the member, until the group is whole or the client has
     * ended; 0 = no owner. An incomplete group without owners is dropped. KVP_OWNER_ANY = a node reported the member,
     * which waits for the rest of its group as long as nodes may mount memory. */
    uint64_t owner;
    uint32_t oid;
    uint32_t number; /* number of the member in its group */
    bool is_committed;
} kvp_member_t;

static inline kvp_member_t *
kvp_group_member(const kvp_catalog_t *cat, const kvp_obj_t *o) /* returns the object's membership; NULL = no group */
{
    return o->has_ext == 0 ? NULL : kvp_obj_ext(cat->index, o)->member;
}

#endif
