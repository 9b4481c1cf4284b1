/* SPDX-License-Identifier: Apache-2.0
 * What kvp_master_check asks of groups: everything that they keep twice is counted from their members. */
#include "tests/world/check/core_check.h"

#include "common/list.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/protection.h"

#include <string.h>

static bool
is_number_taken(const kvp_group_t *g, uint32_t number)
{
    return (g->taken[number / 64] >> number % 64 & 1) != 0;
}

typedef struct {
    uint64_t members, bytes, reserved;
} sums_t;

static const char *
check_group(const kvp_protect_t *prot, const kvp_group_t *g, sums_t *sums)
{
    kvp_group_t seen = {.lead = g->lead};
    bool has_lead = g->committed_n == 0;

    kvp_list_foreach (pos, &g->committed) {
        const kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);
        const kvp_obj_t *o = kvp_obj(prot->cat->index, mb->oid);

        if (mb->group != g || !mb->is_committed || o->state != KVP_OBJ_COMMITTED) return "a member is not committed";
        if (kvp_group_member(prot->cat, o) != mb) return "a member is another object's";
        if (g->size > 0 && !is_number_taken(g, mb->number)) return "the number of a member is not taken";
        if (g->is_whole && mb->owner != 0) return "a member of a whole group has an owner";
        has_lead |= mb->oid == g->lead;
        seen.committed_n++;
        seen.bytes += kvp_obj_bytes(prot->cat, o);
        seen.pinned_n[o->pin]++;
        seen.held_n += o->tickets > 0;
        seen.owned_n += mb->owner != 0;
    }
    kvp_list_foreach (pos, &g->begun) {
        const kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        if (mb->group != g || mb->is_committed) return "a member is committed already";
        seen.begun_n++;
        seen.owned_n += mb->owner != 0;
    }
    if (seen.committed_n != g->committed_n || seen.begun_n != g->begun_n) return "a group is miscounted";
    if (seen.bytes != g->bytes || seen.held_n != g->held_n) return "the bytes or tickets of a group are wrong";
    if (memcmp(seen.pinned_n, g->pinned_n, sizeof seen.pinned_n) != 0) return "the pins of a group are miscounted";
    if (seen.owned_n != g->owned_n) return "the owners of a group are miscounted";
    if (g->size > 0 && !g->is_whole && g->committed_n > 0 && g->owned_n == 0) return "a group is left by everybody";
    if (g->size > 0 && g->committed_n == g->size && !g->is_whole) return "a whole group is hidden";
    if (!has_lead || (g->lead == KVP_OID_NONE) != (g->committed_n == 0)) return "a group has no lead";
    sums->members += g->committed_n + g->begun_n;
    sums->reserved += g->reserved_n;
    return NULL;
}

static const char *
check_members(const kvp_protect_t *prot, sums_t *sums)
{
    uint64_t members = 0;
    uint32_t cursor = 0, left = UINT32_MAX, oid;

    while ((oid = kvp_objindex_walk(prot->cat->index, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE) {
        const kvp_member_t *mb = kvp_group_member(prot->cat, kvp_obj(prot->cat->index, oid));

        if (mb == NULL) continue;
        if (mb->oid != oid) return "a membership is another object's";
        members++;
        /* Nothing but the object leads to one that was begun in a doomed group. */
        sums->members += mb->group->is_doomed && !mb->is_committed;
    }
    return members == sums->members ? NULL : "a membership is lost";
}

const char *
kvp_groups_check(const kvp_protect_t *prot, uint64_t reserved)
{
    sums_t sums = {0};
    const char *why;

    for (uint32_t i = 0; i < prot->groups.limit; i++) {
        const kvp_group_t *g = kvp_ptab_get(&prot->groups, i);

        why = g == NULL ? NULL : check_group(prot, g, &sums);
        if (why != NULL) return why;
    }
    kvp_list_foreach (pos, &prot->doomed) {
        const kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        if (!mb->group->is_doomed || !mb->is_committed) return "a member is doomed and its group is not";
        sums.members++;
        sums.bytes += kvp_obj_bytes(prot->cat, kvp_obj(prot->cat->index, mb->oid));
    }
    if (sums.bytes != prot->doomed_bytes) return "doomed bytes are wrong";
    if (sums.reserved > reserved) return "a group is reserved by nobody";
    return check_members(prot, &sums);
}
