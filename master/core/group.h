/* SPDX-License-Identifier: Apache-2.0
 * Groups: objects that are evicted together, and with a number of members also appear together. Only files of
 * master/core include this.
 *
 * An object of a group has a membership, from the moment when its put is begun (an upsert's: when it is committed). The
 * group's record lives as long as there are memberships or reservations of it.
 *
 * Life of a group of n members: incomplete, its committed members hidden -> (the last one is committed) whole, all of
 * them seen -> doomed: evicted, or left incomplete by everybody who was putting members. A doomed group is in the table
 * no more, its members are hidden, and are dropped a slice at a time; whoever puts one of them then begins a new group.
 */
#ifndef KVP_MASTER_CORE_GROUP_H
#define KVP_MASTER_CORE_GROUP_H

#include "common/list.h"
#include "master/core/htab.h"
#include "master/core/master.h"
#include "master/core/objindex.h"
#include "proto/wire.h"

#define KVP_GROUP_OPEN_MAX 65536u /* memberships of a client that are not committed, or hidden */

typedef struct {
    kvp_htabnode_t node; /* master->groups, unless it is doomed */
    kvp_digest_t digest;
    uint32_t tenant; /* number in master->tenants; holds a reference until it is doomed */
    uint32_t epoch; /* of the namespace */
    kvp_list_t committed; /* memberships; master->doomed, when it is doomed */
    kvp_list_t begun; /* those not committed */
    uint32_t size; /* how many make it whole; 0 = a unit of eviction only */
    uint32_t committed_n, begun_n;
    uint32_t owned_n; /* memberships with an owner */
    uint32_t held_n; /* members with a ticket */
    uint32_t reserved_n; /* tickets on the group itself */
    uint32_t pinned_n[KVP_PIN_HARD + 1]; /* committed members, by kvp_pin_t */
    uint32_t lead; /* the member that stands for all of it on a list of victims; KVP_OID_NONE = none is committed */
    uint64_t bytes; /* extents of committed members */
    uint64_t *taken; /* owned: a bit for each number that is in use; NULL without a size */
    bool is_whole;
    bool is_doomed;
    bool is_evicted; /* that is why */
} kvp_group_t;

typedef struct kvp_member {
    kvp_list_t of_group; /* group->committed or ->begun; master->doomed */
    kvp_list_t of_owner; /* session->members, master->orphans, or ->leavers */
    kvp_group_t *group;
    uint64_t owner; /* incarnation of who puts it, while it may be freed for want of owners; 0 = nobody; KVP_OWNER_ANY =
                     * a node reported it: it waits for the rest of its group as long as nodes may come */
    uint32_t oid;
    uint32_t number; /* in the group */
    bool is_committed;
} kvp_member_t;

#endif
