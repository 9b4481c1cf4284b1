/* SPDX-License-Identifier: Apache-2.0
 * Groups: their members, when a group is complete, and the common eviction of its members. group.h describes the life
 * of a group.
 *
 * Design notes. One committed member, the lead, represents the group on a list of victims: a use of any member is a
 * use of the lead, and no search of eviction grows with a group. A ticket or a hard pin on one member keeps the whole
 * group. A membership has an owner, a client, while its object can only become visible by further work of this
 * client: when the last owner ends, the group is dropped. Members that nodes reported have no owner in this term: as
 * long as nodes may mount the rest of their group, they are kept as if they had one, and a client that puts such a
 * member again becomes its owner. */
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"

#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/pin.h"
#include "master/core/protect/protection.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

#include <stdlib.h>

/* ---- the table: maps a hash to the first group with this hash; group->same links further groups with it */
static uint64_t
hash_of(const kvp_protect_t *prot, const kvp_tenant_t *t, kvp_digest_t digest)
{
    uint64_t hash = kvp_key_digest(prot->ctx->conf.secret, t->id, &digest, sizeof digest).lo;

    return hash == 0 ? 1 : hash;
}

static kvp_group_t *
first_with(const kvp_protect_t *prot, uint64_t hash)
{
    uint32_t number;

    return kvp_umap_get(&prot->group_numbers, hash, &number) ? kvp_ptab_get(&prot->groups, number) : NULL;
}

static void
put_first(kvp_protect_t *prot, uint64_t hash, const kvp_group_t *g)
{
    if (g == NULL)
        (void)kvp_umap_del(&prot->group_numbers, hash);
    else
        kvp_umap_set(&prot->group_numbers, hash, g->number);
}

static void
table_add(kvp_protect_t *prot, kvp_group_t *g, uint64_t hash)
{
    g->number = kvp_ptab_add(&prot->groups, g);
    g->same = first_with(prot, hash);
    put_first(prot, hash, g);
}

static void
table_del(kvp_protect_t *prot, kvp_group_t *g, uint64_t hash)
{
    kvp_group_t *before = first_with(prot, hash);

    if (before == g) put_first(prot, hash, g->same);
    while (before != g && before->same != g)
        before = before->same;
    if (before != g) before->same = g->same;
    kvp_ptab_del(&prot->groups, g->number);
}

static void
take_out(kvp_protect_t *prot, kvp_group_t *g)
{
    kvp_tenant_t *t = kvp_ptab_get(&prot->cat->tenants, g->tenant);

    table_del(prot, g, hash_of(prot, t, g->digest));
    kvp_tenant_rele(prot->cat, t);
    prot->ctx->st.groups--;
}

/* Removes the group from the table. Its committed members are dropped in the next ticks. */
static void
doom_group(kvp_protect_t *prot, kvp_group_t *g, kvp_cause_t cause)
{
    if (g->lead != KVP_OID_NONE) kvp_victim_removed(prot, g->lead);
    g->lead = KVP_OID_NONE;
    g->is_doomed = true;
    g->cause = cause;
    take_out(prot, g);
    prot->doomed_bytes += g->bytes;
    kvp_list_splice(&g->committed, &prot->doomed);
}

static kvp_group_t *
find_group(kvp_protect_t *prot, const kvp_tenant_t *t, kvp_digest_t digest)
{
    for (kvp_group_t *g = first_with(prot, hash_of(prot, t, digest)); g != NULL; g = g->same) {
        if (g->tenant != t->number || !kvp_digest_eq(g->digest, digest)) continue;
        if (g->epoch == t->epoch || !KVP_RULE(GROUP_OF_EPOCH)) return g;
        doom_group(prot, g, KVP_CAUSE_GROUP_ENDED); /* a group of an older epoch (before a BUMP) gets no new objects */
        return NULL;
    }
    return NULL;
}

static kvp_group_t *
make_group(kvp_protect_t *prot, kvp_tenant_t *t, const kvp_wire_group_t *want)
{
    kvp_group_t *g = kvp_core_alloc(1, sizeof *g);

    g->digest = want->group;
    g->tenant = t->number;
    g->epoch = t->epoch;
    g->size = want->members;
    g->lead = KVP_OID_NONE;
    if (g->size > 0) g->taken = kvp_core_alloc((g->size + 63) / 64, sizeof *g->taken);
    kvp_list_init(&g->committed);
    kvp_list_init(&g->begun);
    table_add(prot, g, hash_of(prot, t, want->group));
    prot->ctx->st.groups++;
    t->refs++;
    return g;
}

static void
set_taken(kvp_group_t *g, uint32_t number, bool is_taken)
{
    uint64_t bit = 1ull << number % 64;

    if (g->taken == NULL) return;
    if (is_taken)
        g->taken[number / 64] |= bit;
    else
        g->taken[number / 64] &= ~bit;
}

static bool
is_taken(const kvp_group_t *g, uint32_t number)
{
    return (g->taken[number / 64] >> number % 64 & 1) != 0;
}

/* Called after each change of the group: frees an empty group. Dooms an incomplete group whose members have no owner,
 * because it can never be complete. */
static void
settle_group(kvp_protect_t *prot, kvp_group_t *g)
{
    if (g->committed_n + g->begun_n + g->reserved_n == 0) {
        if (!g->is_doomed) take_out(prot, g);
        free(g->taken);
        free(g);
    } else if (!g->is_doomed && g->size > 0 && !g->is_whole && g->owned_n == 0 && g->committed_n > 0) {
        if (KVP_RULE(GROUP_WITHOUT_OWNER)) doom_group(prot, g, KVP_CAUSE_GROUP_ENDED);
    }
}

/* ---- owners */
static bool
find_session(const kvp_protect_t *prot, uint64_t incarnation, kvp_session_t **session_out)
{
    uint32_t number;

    if (!kvp_umap_get(&prot->peers->by_incarnation, incarnation, &number)) return false;
    *session_out = kvp_ptab_get(&prot->peers->sessions, number);
    return true;
}

static void
own_member(kvp_member_t *mb, kvp_session_t *s)
{
    mb->owner = s->incarnation;
    mb->group->owned_n++;
    s->members_n++;
    kvp_list_add_tail(&s->members, &mb->of_owner);
}

static void
disown_member(const kvp_protect_t *prot, kvp_member_t *mb)
{
    kvp_session_t *s;

    if (mb->owner == 0) return;
    if (find_session(prot, mb->owner, &s)) s->members_n--;
    mb->group->owned_n--;
    mb->owner = 0;
    kvp_list_del(&mb->of_owner);
}

/* Returns true if client s may become the owner of a reported member by putting it again, as its probable writer. */
static bool
may_own(const kvp_session_t *s, const kvp_member_t *mb)
{
    return mb->owner == KVP_OWNER_ANY && s->members_n < KVP_GROUP_OPEN_MAX;
}

static void
change_owner(const kvp_protect_t *prot, kvp_session_t *s, kvp_member_t *mb)
{
    disown_member(prot, mb);
    own_member(mb, s);
}

/* Removes the owners whose sessions have ended but were not handled yet, then checks the group. */
static void
expel_begun(kvp_protect_t *prot, kvp_group_t *g)
{
    kvp_session_t *s;

    kvp_list_foreach (pos, &g->committed) {
        kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        if (mb->owner != KVP_OWNER_ANY && !find_session(prot, mb->owner, &s)) disown_member(prot, mb);
    }
    kvp_list_foreach (pos, &g->begun) {
        kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        if (!find_session(prot, mb->owner, &s)) disown_member(prot, mb);
    }
    settle_group(prot, g);
}

void
kvp_groups_abandon(kvp_protect_t *prot, kvp_session_t *s)
{
    kvp_list_splice(&s->members, &prot->leavers);
    s->members_n = 0;
}

/* ---- joining and leaving */
kvp_err_t
kvp_group_check_named(const kvp_wire_group_t *want)
{
    if (!kvp_group_is_named(want)) return want->members == 0 && want->member == 0 ? KVP_OK : KVP_INVALID;
    if (want->members > KVP_GROUP_MEMBERS_MAX) return KVP_INVALID;
    return want->member < want->members || (want->members == 0 && want->member == 0) ? KVP_OK : KVP_INVALID;
}

/* Returns the membership of the object `over`, if it has the wanted group and number; else NULL. */
static kvp_member_t *
same_place(const kvp_protect_t *prot, uint32_t over, const kvp_group_t *g, const kvp_wire_group_t *want)
{
    kvp_member_t *mb = over == KVP_OID_NONE ? NULL : kvp_group_member(prot->cat, kvp_obj(prot->cat->index, over));

    return mb != NULL && mb->group == g && mb->number == want->member ? mb : NULL;
}

kvp_err_t
kvp_group_may_join(kvp_protect_t *prot, const kvp_session_t *s, const kvp_wire_group_t *want, uint32_t over)
{
    const kvp_group_t *g = find_group(prot, s->tenant, want->group);

    if (g != NULL && g->size != want->members) return KVP_INVALID;
    if (g != NULL && same_place(prot, over, g, want) != NULL) return KVP_OK;
    if (want->members == 0)
        return g != NULL && g->committed_n + g->begun_n >= KVP_GROUP_MEMBERS_MAX ? KVP_LIMIT : KVP_OK;
    if (g != NULL && is_taken(g, want->member)) return KVP_INVALID;
    return s->members_n >= KVP_GROUP_OPEN_MAX ? KVP_LIMIT : KVP_OK;
}

static kvp_member_t *
join_group(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want)
{
    kvp_group_t *g = find_group(prot, t, want->group);
    kvp_member_t *mb = kvp_core_alloc(1, sizeof *mb);

    if (g == NULL) g = make_group(prot, t, want);
    mb->group = g;
    mb->oid = oid;
    mb->number = want->member;
    kvp_list_init(&mb->of_owner);
    kvp_list_add_tail(&g->begun, &mb->of_group);
    g->begun_n++;
    set_taken(g, mb->number, true);
    kvp_obj_ext_make(prot->cat->index, kvp_obj(prot->cat->index, oid))->member = mb;
    return mb;
}

void
kvp_group_join(kvp_protect_t *prot, kvp_session_t *s, uint32_t oid, const kvp_wire_group_t *want)
{
    kvp_member_t *mb = join_group(prot, s->tenant, oid, want);

    if (want->members > 0) own_member(mb, s);
}

/* Counts a membership as committed, and takes the group off its list of victims: the caller must call kvp_victim_used
 * afterwards. */
static void
count_member(kvp_protect_t *prot, kvp_member_t *mb)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, mb->oid);
    kvp_group_t *g = mb->group;

    if (g->lead != KVP_OID_NONE) kvp_victim_removed(prot, g->lead);
    kvp_list_del(&mb->of_group);
    kvp_list_add_tail(&g->committed, &mb->of_group);
    mb->is_committed = true;
    g->begun_n--;
    g->committed_n++;
    g->bytes += kvp_obj_bytes(prot->cat, o);
    g->pinned_n[o->pin]++;
    if (g->lead == KVP_OID_NONE) g->lead = mb->oid;
}

static void
set_lead(kvp_protect_t *prot, kvp_group_t *g, uint32_t oid)
{
    const kvp_obj_t *old = kvp_obj(prot->cat->index, g->lead);
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    o->has_probe = old->has_probe;
    o->probe_since = old->probe_since;
    o->probe_until = old->probe_until;
    o->is_asking_counted = old->is_asking_counted;
    o->is_beyond_share = old->is_beyond_share;
    g->lead = oid;
}

static void
uncount_member(kvp_protect_t *prot, kvp_member_t *mb)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, mb->oid);
    kvp_group_t *g = mb->group;
    uint64_t bytes = kvp_obj_bytes(prot->cat, o);

    if (g->lead != KVP_OID_NONE) kvp_victim_removed(prot, g->lead);
    kvp_list_del(&mb->of_group);
    mb->is_committed = false;
    g->committed_n--;
    g->bytes -= bytes;
    g->pinned_n[o->pin]--;
    g->held_n -= o->tickets > 0;
    if (g->is_doomed) {
        prot->doomed_bytes -= bytes;
    } else if (g->committed_n == 0) {
        g->lead = KVP_OID_NONE;
    } else {
        if (g->lead == mb->oid) set_lead(prot, g, kvp_list_first(&g->committed, kvp_member_t, of_group)->oid);
        kvp_victim_used(prot, g->lead);
    }
}

void
kvp_group_leave(kvp_protect_t *prot, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    kvp_member_t *mb = kvp_group_member(prot->cat, o);
    kvp_group_t *g;

    if (mb == NULL) return;
    g = mb->group;
    disown_member(prot, mb);
    if (mb->is_committed) {
        uncount_member(prot, mb);
    } else {
        kvp_list_del(&mb->of_group);
        g->begun_n--;
    }
    set_taken(g, mb->number, false);
    if (g->committed_n == 0) g->is_whole = false; /* a new put begins the group again */
    kvp_obj_ext(prot->cat->index, o)->member = NULL;
    free(mb);
    settle_group(prot, g);
}

/* ---- commits */
/* Gives the membership of the old version to the new version's object, so that the group always has this member. */
static void
pass_on(kvp_protect_t *prot, kvp_member_t *mb, uint32_t oid)
{
    uncount_member(prot, mb);
    kvp_list_add_tail(&mb->group->begun, &mb->of_group);
    mb->group->begun_n++;
    kvp_obj_ext(prot->cat->index, kvp_obj(prot->cat->index, mb->oid))->member = NULL;
    kvp_obj_ext_make(prot->cat->index, kvp_obj(prot->cat->index, oid))->member = mb;
    mb->oid = oid;
}

kvp_err_t
kvp_group_enter(kvp_protect_t *prot, kvp_session_t *s, const kvp_attempt_t *a)
{
    kvp_member_t *mb = kvp_group_member(prot->cat, kvp_obj(prot->cat->index, a->oid)), *old;
    kvp_err_t err;

    if (!kvp_group_is_named(&a->group) || (mb != NULL && !mb->group->is_doomed)) return KVP_OK;
    kvp_group_leave(prot, a->oid);
    err = kvp_group_may_join(prot, s, &a->group, a->over);
    if (err != KVP_OK) return err;
    old = same_place(prot, a->over, find_group(prot, s->tenant, a->group.group), &a->group);
    if (old != NULL && may_own(s, old)) change_owner(prot, s, old);
    if (old != NULL)
        pass_on(prot, old, a->oid);
    else
        kvp_group_join(prot, s, a->oid, &a->group);
    return KVP_OK;
}

void
kvp_group_committed(kvp_protect_t *prot, uint32_t oid)
{
    kvp_member_t *mb = kvp_group_member(prot->cat, kvp_obj(prot->cat->index, oid));
    kvp_group_t *g;

    if (mb == NULL) return;
    g = mb->group;
    count_member(prot, mb);
    if (g->is_whole) disown_member(prot, mb);
    if (g->is_whole || g->size == 0 || g->committed_n < g->size) return;
    g->is_whole = true;
    kvp_list_foreach (pos, &g->committed)
        disown_member(prot, kvp_list_entry(pos, kvp_member_t, of_group));
}

kvp_err_t
kvp_group_claim(kvp_protect_t *prot, kvp_session_t *s, uint32_t oid)
{
    kvp_member_t *mb = kvp_group_member(prot->cat, kvp_obj(prot->cat->index, oid));
    kvp_session_t *owner;

    if (mb->owner == s->incarnation) return KVP_ALREADY;
    if (mb->group->is_doomed) return KVP_OK;
    if (may_own(s, mb)) {
        change_owner(prot, s, mb);
        return KVP_ALREADY;
    }
    /* the hidden object is not this client's: other writers, or reports of nodes, may still complete its group */
    if (mb->owner == 0 || mb->owner == KVP_OWNER_ANY) return KVP_IN_PROGRESS;
    if (find_session(prot, mb->owner, &owner))
        return kvp_session_is_silent(prot->peers, owner) ? KVP_OK : KVP_IN_PROGRESS;
    expel_begun(prot, mb->group);
    return mb->group->is_doomed ? KVP_OK : KVP_IN_PROGRESS;
}

/* ---- reports of nodes */
/* Returns true if the member's version is below the reported one. An uncommitted member is of this term, thus newer. */
static bool
is_older(const kvp_protect_t *prot, const kvp_member_t *mb, uint64_t version)
{
    return mb->is_committed && kvp_obj_version(kvp_obj(prot->cat->index, mb->oid)) < version;
}

/* Returns the member of the list with this member number; NULL = none. */
static kvp_member_t *
find_number(kvp_protect_t *prot, const kvp_list_t *members, uint32_t number)
{
    kvp_list_foreach (pos, members) {
        kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        kvp_ctx_spend(prot->ctx, 1);
        if (mb->number == number) return mb;
    }
    return NULL;
}

static kvp_member_t *
holder_of(kvp_protect_t *prot, const kvp_group_t *g, uint32_t number)
{
    kvp_member_t *mb;

    if (g == NULL || g->taken == NULL || !is_taken(g, number)) return NULL;
    mb = find_number(prot, &g->committed, number);
    return mb != NULL ? mb : find_number(prot, &g->begun, number);
}

bool
kvp_group_may_adopt(kvp_protect_t *prot, const kvp_tenant_t *t, const kvp_wire_group_t *want, uint64_t version,
                    uint32_t over)
{
    const kvp_group_t *g = find_group(prot, t, want->group);
    const kvp_member_t *mb;

    if (g == NULL) return true;
    /* If two groups have one name, all members of the one are older than all members of the other, so it is enough to
     * compare one member. */
    if (g->size != want->members)
        return g->begun_n == 0 &&
               (g->committed_n == 0 || is_older(prot, kvp_list_first(&g->committed, kvp_member_t, of_group), version));
    if (g->size == 0) return g->committed_n + g->begun_n < KVP_GROUP_MEMBERS_MAX;
    mb = holder_of(prot, g, want->member);
    return mb == NULL || mb->oid == over || is_older(prot, mb, version);
}

uint32_t
kvp_group_displaced(kvp_protect_t *prot, const kvp_tenant_t *t, const kvp_wire_group_t *want)
{
    kvp_group_t *g = find_group(prot, t, want->group);
    const kvp_member_t *mb;

    if (g != NULL && g->size != want->members) {
        doom_group(prot, g, KVP_CAUSE_GROUP_ENDED);
        g = NULL;
    }
    mb = holder_of(prot, g, want->member);
    return mb == NULL ? KVP_OID_NONE : mb->oid;
}

void
kvp_group_adopt(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want)
{
    kvp_member_t *mb = join_group(prot, t, oid, want);

    if (want->members > 0) {
        mb->owner = KVP_OWNER_ANY;
        mb->group->owned_n++;
        kvp_list_add_tail(&prot->orphans, &mb->of_owner);
    }
    kvp_group_committed(prot, oid);
}

/* Dooms complete groups that have lost a member. */
void
kvp_groups_doom_broken(kvp_protect_t *prot)
{
    for (uint32_t i = 0; i < prot->groups.limit; i++) {
        kvp_group_t *g = kvp_ptab_get(&prot->groups, i);

        if (g != NULL && g->is_whole && g->committed_n < g->size) doom_group(prot, g, KVP_CAUSE_EVICTED);
    }
}

/* ---- eviction, tickets, pins */
void
kvp_group_evict(kvp_protect_t *prot, uint32_t oid, kvp_cause_t cause)
{
    const kvp_member_t *mb = kvp_group_member(prot->cat, kvp_obj(prot->cat->index, oid));

    if (mb == NULL || mb->group->is_doomed || !KVP_RULE(GROUP_AS_ONE)) return;
    doom_group(prot, mb->group, cause);
    prot->ctx->st.group_evictions++;
}

void
kvp_group_hold(kvp_protect_t *prot, uint32_t oid, bool is_held)
{
    const kvp_member_t *mb = kvp_group_member(prot->cat, kvp_obj(prot->cat->index, oid));

    if (mb != NULL) mb->group->held_n += is_held ? 1 : UINT32_MAX;
}

void
kvp_group_bytes(kvp_protect_t *prot, const kvp_obj_t *o, int64_t bytes)
{
    const kvp_member_t *mb = kvp_group_member(prot->cat, o);
    kvp_group_t *g;
    bool was_listed;

    if (mb == NULL || !mb->is_committed) return;
    g = mb->group;
    if (g->is_doomed) prot->doomed_bytes += (uint64_t)bytes;
    was_listed = g->lead != KVP_OID_NONE && kvp_victim_is_listed(kvp_obj(prot->cat->index, g->lead));
    if (was_listed) kvp_victim_removed(prot, g->lead);
    g->bytes += (uint64_t)bytes;
    if (was_listed) kvp_victim_used(prot, g->lead);
}

void
kvp_group_reserve(kvp_protect_t *prot, kvp_group_t *g)
{
    kvp_victim_keep(prot, g->lead);
    g->reserved_n++;
}

void
kvp_group_unreserved(kvp_protect_t *prot, kvp_group_t *g)
{
    settle_group(prot, g);
}

void
kvp_group_unpin(kvp_protect_t *prot, kvp_group_t *g)
{
    kvp_ctx_spend(prot->ctx, g->committed_n);
    kvp_list_foreach (pos, &g->committed) {
        kvp_obj_t *o = kvp_obj(prot->cat->index, kvp_list_entry(pos, kvp_member_t, of_group)->oid);

        if (o->pin != KVP_PIN_SOFT) continue;
        g->pinned_n[o->pin]--;
        kvp_pin_lose(prot, o);
        g->pinned_n[o->pin]++;
    }
}

/* ---- look-ups */
/* Returns true if all members of the group can be read from connected nodes. While a node is disconnected, the members
 * are checked one by one; the result is false, too, if the step's budget is used up. */
static bool
is_served(kvp_protect_t *prot, const kvp_group_t *g)
{
    if (prot->cat->lost_n == 0) return true;
    kvp_list_foreach (pos, &g->committed) {
        if (prot->ctx->work_left == 0) return false;
        prot->ctx->work_left--;
        if (!kvp_obj_is_served(prot->cat, kvp_obj(prot->cat->index, kvp_list_entry(pos, kvp_member_t, of_group)->oid)))
            return false;
    }
    return true;
}

kvp_group_t *
kvp_group_seen(kvp_protect_t *prot, const kvp_tenant_t *t, kvp_digest_t digest)
{
    kvp_group_t *g = find_group(prot, t, digest);

    if (g == NULL || g->committed_n == 0) return NULL;
    if (g->size > 0 && g->committed_n < g->size && KVP_RULE(GROUP_SEEN)) return NULL;
    return is_served(prot, g) ? g : NULL;
}

/* ---- background */
void
kvp_groups_settle(kvp_protect_t *prot)
{
    if (!kvp_gone_is_rebuilding(prot) && prot->ctx->now_ns >= prot->peers->orphans_until_ns)
        kvp_list_splice(&prot->orphans, &prot->leavers); /* no node will report the missing members of these groups */
    while (prot->ctx->slice_left > 0 && !kvp_list_is_empty(&prot->leavers)) {
        kvp_member_t *mb = kvp_list_first(&prot->leavers, kvp_member_t, of_owner);

        disown_member(prot, mb);
        settle_group(prot, mb->group);
        kvp_ctx_spend(prot->ctx, 1);
    }
}

uint32_t
kvp_group_next_doomed(const kvp_protect_t *prot, uint32_t after)
{
    const kvp_list_t *pos = &prot->doomed;

    if (after != KVP_OID_NONE) pos = &kvp_group_member(prot->cat, kvp_obj(prot->cat->index, after))->of_group;
    return pos->next == &prot->doomed ? KVP_OID_NONE : kvp_list_entry(pos->next, kvp_member_t, of_group)->oid;
}

bool
kvp_groups_have_work(const kvp_protect_t *prot)
{
    return !kvp_list_is_empty(&prot->leavers) || !kvp_list_is_empty(&prot->doomed);
}

void
kvp_groups_init(kvp_protect_t *prot)
{
    kvp_list_init(&prot->doomed);
    kvp_list_init(&prot->leavers);
    kvp_list_init(&prot->orphans);
}

static void
free_all(kvp_list_t *members)
{
    kvp_list_foreach_safe (pos, tmp, members) {
        kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        if (mb->group->is_doomed && --mb->group->committed_n == 0) {
            free(mb->group->taken);
            free(mb->group);
        }
        free(mb);
    }
}

/* Frees all groups. All sessions, attempts and tickets have ended, so all remaining members are committed. */
void
kvp_groups_fini(kvp_protect_t *prot)
{
    free_all(&prot->doomed);
    for (uint32_t i = 0; i < prot->groups.limit; i++) {
        kvp_group_t *g = kvp_ptab_get(&prot->groups, i);

        if (g == NULL) continue;
        free_all(&g->committed);
        free(g->taken);
        free(g);
    }
    kvp_ptab_fini(&prot->groups);
    kvp_umap_fini(&prot->group_numbers);
}
