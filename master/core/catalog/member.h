/* SPDX-License-Identifier: Apache-2.0
 * The group of an object. protect/group.c has the life of a group. */
#ifndef KVP_MASTER_CORE_CATALOG_MEMBER_H
#define KVP_MASTER_CORE_CATALOG_MEMBER_H

#include "common/hash.h"
#include "common/list.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/index.h"
#include "proto/wire.h"

typedef struct kvp_group {
    uint32_t number; /* in protect->groups, unless doomed */
    struct kvp_group *same; /* the next group with its hash */
    kvp_digest_t digest;
    uint32_t tenant; /* number in catalog->tenants; holds a reference until it is doomed */
    uint32_t epoch; /* of the namespace */
    kvp_list_t committed; /* memberships; of a doomed group in protect->doomed */
    kvp_list_t begun; /* those not committed */
    uint32_t size; /* how many make it whole; 0 = a unit of eviction only */
    uint32_t committed_n, begun_n;
    uint32_t owned_n; /* memberships with an owner */
    uint32_t held_n; /* members with a ticket */
    uint32_t reserved_n; /* tickets on the group itself */
    uint32_t pinned_n[KVP_PIN_HARD + 1]; /* committed members, by kvp_pin_t */
    uint32_t lead; /* the member that stands for the group on a list of victims; KVP_OID_NONE = none is committed */
    uint64_t bytes; /* extents of committed members */
    uint64_t *taken; /* owned: a bit for each number that is in use; NULL without a size */
    bool is_whole;
    bool is_doomed;
    bool is_evicted; /* that is why */
} kvp_group_t;

typedef struct kvp_member {
    kvp_list_t of_group; /* group->committed or ->begun; protect->doomed */
    kvp_list_t of_owner; /* session->members, protect->orphans, or ->leavers */
    kvp_group_t *group;
    /* incarnation of the putting client, while the member may be freed without owners; 0 = none;
     * KVP_OWNER_ANY = reported by a node: it waits for the rest of its group as long as nodes may
     * come */
    uint64_t owner;
    uint32_t oid;
    uint32_t number; /* in the group */
    bool is_committed;
} kvp_member_t;

static inline kvp_member_t *
kvp_group_member(const kvp_catalog_t *cat, const kvp_obj_t *o) /* its membership; NULL = of no group */
{
    return o->has_ext == 0 ? NULL : kvp_obj_ext(cat->index, o)->member;
}

#endif
