/* SPDX-License-Identifier: Apache-2.0
 * Groups: who belongs to which, when a group is whole, and how it goes as one. group.h has the life of a group.
 *
 * Design notes. A group stands on a list of victims by one of its committed members, its lead: a use of any member is a
 * use of that one, and nothing that eviction looks at grows with a group. What keeps one member keeps the group: a
 * ticket, a hard pin. A membership has an owner while its object could not be seen without somebody's doing more: when
 * the last owner goes, the group goes. What nodes report has no owner of this term: as long as nodes may come with the
 * rest of its group it is kept as if it had one, and whoever puts it again is its owner.
 */
#include "master/core/state.h"

#include "common/mutate.h"

#include <stdlib.h>

#define GROUP_OF(n) kvp_container_of(n, kvp_group_t, node)

/* ---- the table */
static uint64_t
hash_of(const kvp_master_t *m, const kvp_tenant_t *t, kvp_digest_t digest)
{
    return kvp_key_digest(m->groups_seed, t->id, &digest, sizeof digest).lo;
}

static void
take_out(kvp_master_t *m, kvp_group_t *g)
{
    kvp_htab_del(&m->groups, &g->node);
    kvp_tenant_rele(&m->cat, kvp_ptab_get(&m->cat.tenants, g->tenant));
    m->ctx.st.groups--;
}

/* Nobody finds the group any more, and its committed members are dropped with the next ticks. */
static void
doom(kvp_master_t *m, kvp_group_t *g, bool is_evicted)
{
    if (g->lead != KVP_OID_NONE) kvp_victim_removed(m, g->lead);
    g->lead = KVP_OID_NONE;
    g->is_doomed = true;
    g->is_evicted = is_evicted;
    take_out(m, g);
    m->doomed_bytes += g->bytes;
    kvp_list_splice(&g->committed, &m->doomed);
}

static kvp_group_t *
find(kvp_master_t *m, const kvp_tenant_t *t, kvp_digest_t digest)
{
    for (kvp_htabnode_t *n = kvp_htab_find(&m->groups, hash_of(m, t, digest)); n != NULL; n = kvp_htab_next(n)) {
        kvp_group_t *g = GROUP_OF(n);

        if (g->tenant != t->number || !kvp_digest_eq(g->digest, digest)) continue;
        if (g->epoch == t->epoch || !KVP_RULE(GROUP_OF_EPOCH)) return g;
        doom(m, g, false); /* what was put before a bump is no part of what is put now */
        return NULL;
    }
    return NULL;
}

static kvp_group_t *
make(kvp_master_t *m, kvp_tenant_t *t, const kvp_wire_group_t *want)
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
    kvp_htab_add(&m->groups, &g->node, hash_of(m, t, want->group));
    m->ctx.st.groups++;
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

/* After a change: a group of nobody's goes, and so does one that will never be whole. */
static void
settle(kvp_master_t *m, kvp_group_t *g)
{
    if (g->committed_n + g->begun_n + g->reserved_n == 0) {
        if (!g->is_doomed) take_out(m, g);
        free(g->taken);
        free(g);
    } else if (!g->is_doomed && g->size > 0 && !g->is_whole && g->owned_n == 0 && g->committed_n > 0) {
        if (KVP_RULE(GROUP_OF_NOBODY)) doom(m, g, false);
    }
}

/* ---- owners */
static bool
find_session(const kvp_master_t *m, uint64_t incarnation, kvp_session_t **session_out)
{
    uint32_t number;

    if (!kvp_umap_get(&m->peers.by_incarnation, incarnation, &number)) return false;
    *session_out = kvp_ptab_get(&m->peers.sessions, number);
    return true;
}

static void
own(kvp_member_t *mb, kvp_session_t *s)
{
    mb->owner = s->incarnation;
    mb->group->owned_n++;
    s->members_n++;
    kvp_list_add_tail(&s->members, &mb->of_owner);
}

static void
disown(const kvp_master_t *m, kvp_member_t *mb)
{
    kvp_session_t *s;

    if (mb->owner == 0) return;
    if (find_session(m, mb->owner, &s)) s->members_n--;
    mb->group->owned_n--;
    mb->owner = 0;
    kvp_list_del(&mb->of_owner);
}

/* What a node reported is whose puts it again: its writer's, it may be, that goes on. */
static bool
may_inherit(const kvp_session_t *s, const kvp_member_t *mb)
{
    return mb->owner == KVP_OWNER_ANY && s->members_n < KVP_GROUP_OPEN_MAX;
}

static void
inherit(const kvp_master_t *m, kvp_session_t *s, kvp_member_t *mb)
{
    disown(m, mb);
    own(mb, s);
}

/* Owners whose session is over, though their turn has not come. */
static void
expel(kvp_master_t *m, kvp_group_t *g)
{
    kvp_session_t *s;

    kvp_list_foreach (pos, &g->committed) {
        kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        if (mb->owner != KVP_OWNER_ANY && !find_session(m, mb->owner, &s)) disown(m, mb);
    }
    kvp_list_foreach (pos, &g->begun) {
        kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        if (!find_session(m, mb->owner, &s)) disown(m, mb);
    }
    settle(m, g);
}

void
kvp_groups_abandon(kvp_master_t *m, kvp_session_t *s)
{
    kvp_list_splice(&s->members, &m->leavers);
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

/* The membership of `over`, where that is the one that is wanted. */
static kvp_member_t *
same_place(const kvp_master_t *m, uint32_t over, const kvp_group_t *g, const kvp_wire_group_t *want)
{
    kvp_member_t *mb = over == KVP_OID_NONE ? NULL : kvp_group_member(&m->cat, kvp_obj(m->cat.index, over));

    return mb != NULL && mb->group == g && mb->number == want->member ? mb : NULL;
}

kvp_err_t
kvp_group_may_join(kvp_master_t *m, const kvp_session_t *s, const kvp_wire_group_t *want, uint32_t over)
{
    const kvp_group_t *g = find(m, s->tenant, want->group);

    if (g != NULL && g->size != want->members) return KVP_INVALID;
    if (g != NULL && same_place(m, over, g, want) != NULL) return KVP_OK;
    if (want->members == 0)
        return g != NULL && g->committed_n + g->begun_n >= KVP_GROUP_MEMBERS_MAX ? KVP_LIMIT : KVP_OK;
    if (g != NULL && is_taken(g, want->member)) return KVP_INVALID;
    return s->members_n >= KVP_GROUP_OPEN_MAX ? KVP_LIMIT : KVP_OK;
}

static kvp_member_t *
join(kvp_master_t *m, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want)
{
    kvp_group_t *g = find(m, t, want->group);
    kvp_member_t *mb = kvp_core_alloc(1, sizeof *mb);

    if (g == NULL) g = make(m, t, want);
    mb->group = g;
    mb->oid = oid;
    mb->number = want->member;
    kvp_list_init(&mb->of_owner);
    kvp_list_add_tail(&g->begun, &mb->of_group);
    g->begun_n++;
    set_taken(g, mb->number, true);
    kvp_obj_ext_make(m->cat.index, kvp_obj(m->cat.index, oid))->member = mb;
    return mb;
}

void
kvp_group_join(kvp_master_t *m, kvp_session_t *s, uint32_t oid, const kvp_wire_group_t *want)
{
    kvp_member_t *mb = join(m, s->tenant, oid, want);

    if (want->members > 0) own(mb, s);
}

/* The group's list of victims is another matter after this: kvp_victim_used follows. */
static void
count(kvp_master_t *m, kvp_member_t *mb)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, mb->oid);
    kvp_group_t *g = mb->group;

    if (g->lead != KVP_OID_NONE) kvp_victim_removed(m, g->lead);
    kvp_list_del(&mb->of_group);
    kvp_list_add_tail(&g->committed, &mb->of_group);
    mb->is_committed = true;
    g->begun_n--;
    g->committed_n++;
    g->bytes += kvp_obj_bytes(&m->cat, o);
    g->pinned_n[o->pin]++;
    if (g->lead == KVP_OID_NONE) g->lead = mb->oid;
}

static void
set_lead(kvp_master_t *m, kvp_group_t *g, uint32_t oid)
{
    const kvp_obj_t *old = kvp_obj(m->cat.index, g->lead);
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    o->has_probe = old->has_probe;
    o->probe_since = old->probe_since;
    o->probe_until = old->probe_until;
    g->lead = oid;
}

static void
uncount(kvp_master_t *m, kvp_member_t *mb)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, mb->oid);
    kvp_group_t *g = mb->group;
    uint64_t bytes = kvp_obj_bytes(&m->cat, o);

    if (g->lead != KVP_OID_NONE) kvp_victim_removed(m, g->lead);
    kvp_list_del(&mb->of_group);
    mb->is_committed = false;
    g->committed_n--;
    g->bytes -= bytes;
    g->pinned_n[o->pin]--;
    g->held_n -= o->tickets > 0;
    if (g->is_doomed) {
        m->doomed_bytes -= bytes;
    } else if (g->committed_n == 0) {
        g->lead = KVP_OID_NONE;
    } else {
        if (g->lead == mb->oid) set_lead(m, g, kvp_list_first(&g->committed, kvp_member_t, of_group)->oid);
        kvp_victim_used(m, g->lead);
    }
}

void
kvp_group_leave(kvp_master_t *m, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_member_t *mb = kvp_group_member(&m->cat, o);
    kvp_group_t *g;

    if (mb == NULL) return;
    g = mb->group;
    disown(m, mb);
    if (mb->is_committed) {
        uncount(m, mb);
    } else {
        kvp_list_del(&mb->of_group);
        g->begun_n--;
    }
    set_taken(g, mb->number, false);
    if (g->committed_n == 0) g->is_whole = false; /* it begins anew */
    kvp_obj_ext(m->cat.index, o)->member = NULL;
    free(mb);
    settle(m, g);
}

/* ---- commits */
/* A new version takes the place of the old one, so that the group is never without it. */
static void
pass_on(kvp_master_t *m, kvp_member_t *mb, uint32_t oid)
{
    uncount(m, mb);
    kvp_list_add_tail(&mb->group->begun, &mb->of_group);
    mb->group->begun_n++;
    kvp_obj_ext(m->cat.index, kvp_obj(m->cat.index, mb->oid))->member = NULL;
    kvp_obj_ext_make(m->cat.index, kvp_obj(m->cat.index, oid))->member = mb;
    mb->oid = oid;
}

kvp_err_t
kvp_group_enter(kvp_master_t *m, kvp_session_t *s, const kvp_attempt_t *a)
{
    kvp_member_t *mb = kvp_group_member(&m->cat, kvp_obj(m->cat.index, a->oid)), *old;
    kvp_err_t err;

    if (!kvp_group_is_named(&a->group) || (mb != NULL && !mb->group->is_doomed)) return KVP_OK;
    kvp_group_leave(m, a->oid);
    err = kvp_group_may_join(m, s, &a->group, a->over);
    if (err != KVP_OK) return err;
    old = same_place(m, a->over, find(m, s->tenant, a->group.group), &a->group);
    if (old != NULL && may_inherit(s, old)) inherit(m, s, old);
    if (old != NULL)
        pass_on(m, old, a->oid);
    else
        kvp_group_join(m, s, a->oid, &a->group);
    return KVP_OK;
}

void
kvp_group_committed(kvp_master_t *m, uint32_t oid)
{
    kvp_member_t *mb = kvp_group_member(&m->cat, kvp_obj(m->cat.index, oid));
    kvp_group_t *g;

    if (mb == NULL) return;
    g = mb->group;
    count(m, mb);
    if (g->is_whole) disown(m, mb);
    if (g->is_whole || g->size == 0 || g->committed_n < g->size) return;
    g->is_whole = true;
    kvp_list_foreach (pos, &g->committed)
        disown(m, kvp_list_entry(pos, kvp_member_t, of_group));
}

kvp_err_t
kvp_group_claim(kvp_master_t *m, kvp_session_t *s, uint32_t oid)
{
    kvp_member_t *mb = kvp_group_member(&m->cat, kvp_obj(m->cat.index, oid));
    kvp_session_t *owner;

    if (mb->owner == s->incarnation) return KVP_ALREADY;
    if (mb->group->is_doomed) return KVP_OK;
    if (may_inherit(s, mb)) {
        inherit(m, s, mb);
        return KVP_ALREADY;
    }
    if (mb->owner == 0 || mb->owner == KVP_OWNER_ANY) return KVP_IN_PROGRESS; /* others go on putting its group */
    if (find_session(m, mb->owner, &owner)) return kvp_session_is_silent(&m->peers, owner) ? KVP_OK : KVP_IN_PROGRESS;
    expel(m, mb->group);
    return mb->group->is_doomed ? KVP_OK : KVP_IN_PROGRESS;
}

/* ---- what nodes report */
/* What this term has granted is newer than whatever is reported. */
static bool
is_older(const kvp_master_t *m, const kvp_member_t *mb, uint64_t version)
{
    return mb->is_committed && kvp_obj_version(kvp_obj(m->cat.index, mb->oid)) < version;
}

/* Who has the number, in one of the lists; NULL. */
static kvp_member_t *
numbered(kvp_master_t *m, const kvp_list_t *members, uint32_t number)
{
    kvp_list_foreach (pos, members) {
        kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);

        kvp_ctx_spend(&m->ctx, 1);
        if (mb->number == number) return mb;
    }
    return NULL;
}

static kvp_member_t *
holder_of(kvp_master_t *m, const kvp_group_t *g, uint32_t number)
{
    kvp_member_t *mb;

    if (g == NULL || g->taken == NULL || !is_taken(g, number)) return NULL;
    mb = numbered(m, &g->committed, number);
    return mb != NULL ? mb : numbered(m, &g->begun, number);
}

bool
kvp_group_may_adopt(kvp_master_t *m, const kvp_tenant_t *t, const kvp_wire_group_t *want, uint64_t version,
                    uint32_t over)
{
    const kvp_group_t *g = find(m, t, want->group);
    const kvp_member_t *mb;

    if (g == NULL) return true;
    if (g->size != want->members) /* all of one group are older than all of another that has its name */
        return g->begun_n == 0 &&
               (g->committed_n == 0 || is_older(m, kvp_list_first(&g->committed, kvp_member_t, of_group), version));
    if (g->size == 0) return g->committed_n + g->begun_n < KVP_GROUP_MEMBERS_MAX;
    mb = holder_of(m, g, want->member);
    return mb == NULL || mb->oid == over || is_older(m, mb, version);
}

uint32_t
kvp_group_displaced(kvp_master_t *m, const kvp_tenant_t *t, const kvp_wire_group_t *want)
{
    kvp_group_t *g = find(m, t, want->group);
    const kvp_member_t *mb;

    if (g != NULL && g->size != want->members) {
        doom(m, g, false);
        g = NULL;
    }
    mb = holder_of(m, g, want->member);
    return mb == NULL ? KVP_OID_NONE : mb->oid;
}

void
kvp_group_adopt(kvp_master_t *m, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want)
{
    kvp_member_t *mb = join(m, t, oid, want);

    if (want->members > 0) {
        mb->owner = KVP_OWNER_ANY;
        mb->group->owned_n++;
        kvp_list_add_tail(&m->orphans, &mb->of_owner);
    }
    kvp_group_committed(m, oid);
}

/* ---- eviction, tickets, pins */
void
kvp_group_evict(kvp_master_t *m, uint32_t oid)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, kvp_obj(m->cat.index, oid));

    if (mb == NULL || mb->group->is_doomed || !KVP_RULE(GROUP_AS_ONE)) return;
    doom(m, mb->group, true);
    m->ctx.st.group_evictions++;
}

void
kvp_group_hold(kvp_master_t *m, uint32_t oid, bool is_held)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, kvp_obj(m->cat.index, oid));

    if (mb != NULL) mb->group->held_n += is_held ? 1 : UINT32_MAX;
}

void
kvp_group_bytes(kvp_master_t *m, const kvp_obj_t *o, int64_t bytes)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);
    kvp_group_t *g;
    bool was_listed;

    if (mb == NULL || !mb->is_committed) return;
    g = mb->group;
    if (g->is_doomed) m->doomed_bytes += (uint64_t)bytes;
    was_listed = g->lead != KVP_OID_NONE && kvp_victim_is_listed(kvp_obj(m->cat.index, g->lead));
    if (was_listed) kvp_victim_removed(m, g->lead);
    g->bytes += (uint64_t)bytes;
    if (was_listed) kvp_victim_used(m, g->lead);
}

void
kvp_group_reserve(kvp_master_t *m, kvp_group_t *g)
{
    kvp_victim_keep(m, g->lead);
    g->reserved_n++;
}

void
kvp_group_unreserved(kvp_master_t *m, kvp_group_t *g)
{
    settle(m, g);
}

void
kvp_group_unpin(kvp_master_t *m, kvp_group_t *g)
{
    kvp_ctx_spend(&m->ctx, g->committed_n);
    kvp_list_foreach (pos, &g->committed) {
        kvp_obj_t *o = kvp_obj(m->cat.index, kvp_list_entry(pos, kvp_member_t, of_group)->oid);

        if (o->pin != KVP_PIN_SOFT) continue;
        g->pinned_n[o->pin]--;
        kvp_pin_lose(m, o);
        g->pinned_n[o->pin]++;
    }
}

/* ---- look-ups */
/* Walks the members where some node is away, within the step's work: what it does not come to is not found. */
static bool
is_served(kvp_master_t *m, const kvp_group_t *g)
{
    if (m->cat.lost_n == 0) return true;
    kvp_list_foreach (pos, &g->committed) {
        if (m->ctx.work_left == 0) return false;
        m->ctx.work_left--;
        if (!kvp_obj_is_served(&m->cat, kvp_obj(m->cat.index, kvp_list_entry(pos, kvp_member_t, of_group)->oid)))
            return false;
    }
    return true;
}

kvp_group_t *
kvp_group_seen(kvp_master_t *m, const kvp_tenant_t *t, kvp_digest_t digest)
{
    kvp_group_t *g = find(m, t, digest);

    if (g == NULL || g->committed_n == 0) return NULL;
    if (g->size > 0 && g->committed_n < g->size && KVP_RULE(GROUP_SEEN)) return NULL;
    return is_served(m, g) ? g : NULL;
}

/* ---- background */
void
kvp_groups_settle(kvp_master_t *m)
{
    if (!kvp_owed_is_rebuilding(&m->log))
        kvp_list_splice(&m->orphans, &m->leavers); /* nobody brings the rest of their groups */
    while (m->ctx.slice_left > 0 && !kvp_list_is_empty(&m->leavers)) {
        kvp_member_t *mb = kvp_list_first(&m->leavers, kvp_member_t, of_owner);

        disown(m, mb);
        settle(m, mb->group);
        kvp_ctx_spend(&m->ctx, 1);
    }
}

uint32_t
kvp_group_next_doomed(const kvp_master_t *m, uint32_t after)
{
    const kvp_list_t *pos = &m->doomed;

    if (after != KVP_OID_NONE) pos = &kvp_group_member(&m->cat, kvp_obj(m->cat.index, after))->of_group;
    return pos->next == &m->doomed ? KVP_OID_NONE : kvp_list_entry(pos->next, kvp_member_t, of_group)->oid;
}

bool
kvp_groups_have_work(const kvp_master_t *m)
{
    return !kvp_list_is_empty(&m->leavers) || !kvp_list_is_empty(&m->doomed);
}

void
kvp_groups_init(kvp_master_t *m)
{
    kvp_list_init(&m->doomed);
    kvp_list_init(&m->leavers);
    kvp_list_init(&m->orphans);
    m->groups_seed = kvp_ctx_random(&m->ctx);
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

/* The sessions are over, and so are attempts and tickets: what is left is committed. */
void
kvp_groups_fini(kvp_master_t *m)
{
    kvp_htabnode_t *next;

    free_all(&m->doomed);
    for (kvp_htabnode_t *n = kvp_htab_first(&m->groups); n != NULL; n = next) {
        next = kvp_htab_after(&m->groups, n);
        free_all(&GROUP_OF(n)->committed);
        free(GROUP_OF(n)->taken);
        free(GROUP_OF(n));
    }
    kvp_htab_fini(&m->groups);
}
