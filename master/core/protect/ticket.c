/* SPDX-License-Identifier: Apache-2.0
 * Tickets: holds (a get in progress) and reservations (a lookup). An object with a ticket is no candidate for
 * eviction. Reservations expire. Limits: a quarter of the pool for all reservations, a twentieth for one client.
 *
 * Design notes. The end of a hold is a use of its object. The end of a reservation alone is not a use: otherwise a
 * client that only looks up would keep objects that are never read. A reservation counts as a use of all its objects
 * if the last of them was read meanwhile, because then the earlier blocks of the chain were read as well or were in
 * the reader's own memory; or if the first absent key was put meanwhile. Objects that were used since the reservation
 * began are not counted again. Reads and puts of any client count, because the process that looks up is often another
 * one than the engine's workers. */
#include "master/core/protect/ticket.h"

#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/leaving.h"
#include "master/core/protect/protection.h"
#include "master/core/session/session.h"

#include <stdlib.h>

#define RESERVE_POOL_SHARE 4u
#define RESERVE_CLIENT_SHARE 20u
#define HOLDER_LOOKED_AT 65536u /* limit of the tickets and their objects that one search for a holder examines */

/* ---- tickets */
static uint64_t
reserve_budget(const kvp_protect_t *prot, const kvp_session_t *s)
{
    uint64_t pool = prot->ctx->st.size_bytes / RESERVE_POOL_SHARE;
    uint64_t client = prot->ctx->st.size_bytes / RESERVE_CLIENT_SHARE;
    uint64_t pool_left = pool > prot->ctx->st.reserved_bytes ? pool - prot->ctx->st.reserved_bytes : 0;
    uint64_t client_left = client > s->reserved_bytes ? client - s->reserved_bytes : 0;

    if (!KVP_RULE(RESERVATION_BOUND)) return UINT64_MAX;
    return KVP_RULE(RESERVATION_SHARE) ? kvp_min_u64(pool_left, client_left) : pool_left;
}

static void
object_take(kvp_protect_t *prot, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    if (o->tickets++ == 0) {
        kvp_victim_keep(prot, oid);
        kvp_group_hold(prot, oid, true);
    }
    kvp_obj_count_held(prot->cat, o, 1);
    if (prot->leavings.n > 0) kvp_leaving_ticket_taken(prot, o);
}

/* Ends a reservation of one unit (an object or a group), which counts as a use of the unit if t->is_use. */
static void
unreserve_unit(kvp_protect_t *prot, const kvp_ticket_t *t, uint32_t unit)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, unit);

    if (!t->is_use || kvp_obj_is_used_since(prot->cat->index, o, t->mark)) {
        kvp_victim_let_go(prot, unit);
        return;
    }
    kvp_victim_used(prot, unit);
    o->is_asking_counted = 1;
}

static void
object_release(kvp_protect_t *prot, const kvp_ticket_t *t, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    kvp_ctx_spend(prot->ctx, 1);
    o->tickets--;
    kvp_obj_count_held(prot->cat, o, -1);
    if (prot->leavings.n > 0) kvp_leaving_ticket_over(prot, o, t->sequence);
    if (o->state == KVP_OBJ_GONE) {
        if (o->tickets == 0) kvp_objindex_free(prot->cat->index, oid);
        return;
    }
    if (o->tickets == 0) kvp_group_hold(prot, oid, false);
    if (t->kind == KVP_TICKET_HOLD)
        kvp_victim_used(prot, oid);
    else
        unreserve_unit(prot, t, kvp_victim_unit(prot->cat, oid));
    if (o->tickets == 0) kvp_ctx_space_news(prot->ctx);
}

static void
group_release(kvp_protect_t *prot, const kvp_ticket_t *t, kvp_group_t *g)
{
    kvp_ctx_spend(prot->ctx, 1);
    g->reserved_n--;
    if (g->lead != KVP_OID_NONE) {
        unreserve_unit(prot, t, g->lead);
        kvp_ctx_space_news(prot->ctx);
    }
    kvp_group_unreserved(prot, g);
}

static uint64_t
object_bytes(const kvp_protect_t *prot, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    /* A ticket protects all copies. For an object that is only on a tier it protects the copy that is being loaded. */
    return kvp_obj_is_on_tier_alone(prot->cat, o) ? kvp_extent_bytes(kvp_obj_len(prot->cat, o))
                                                  : kvp_obj_bytes(prot->cat, o);
}

bool
kvp_ticket_may_take(const kvp_protect_t *prot, const kvp_session_t *s, const uint32_t *oids, uint32_t n)
{
    if (s->tickets_n >= KVP_TICKETS_MAX || n > KVP_TICKET_OBJECTS_MAX - s->ticket_objects) return false;
    /* All n entries may be the same object, which then gets n tickets. */
    for (uint32_t i = 0; i < n; i++)
        if (kvp_obj(prot->cat->index, oids[i])->tickets > KVP_OBJ_TICKETS_MAX - n) return false;
    return true;
}

/* Makes a ticket's id from its number and a count in the upper bits, because numbers are reused. */
static uint64_t
make_id(kvp_protect_t *prot, uint32_t number)
{
    return (++prot->ticket_seq % UINT32_MAX + 1) << 32 | number;
}

static kvp_ticket_t *
ticket_open(kvp_protect_t *prot, kvp_session_t *s, kvp_ticket_kind_t kind, uint32_t n)
{
    kvp_ticket_t *t = kvp_core_alloc(1, sizeof *t);

    t->session = s;
    t->kind = kind;
    t->n = n;
    t->number = kvp_ptab_add(&prot->tickets, t);
    t->id = make_id(prot, t->number);
    t->sequence = prot->ticket_seq;
    t->mark = kvp_objindex_mark(prot->cat->index);
    kvp_list_add_tail(&s->tickets, &t->link);
    s->tickets_n++;
    s->ticket_objects += n;
    return t;
}

static void
count_reserved(kvp_protect_t *prot, kvp_ticket_t *t, uint64_t ttl_ns)
{
    kvp_heap_add(&prot->expiries, &t->expiry, prot->ctx->now_ns + ttl_ns);
    t->session->reserved_bytes += t->bytes;
    prot->ctx->st.reserved_bytes += t->bytes;
}

uint64_t
kvp_ticket_take(kvp_protect_t *prot, kvp_session_t *s, kvp_ticket_kind_t kind, const uint32_t *oids, uint32_t n,
                uint64_t ttl_ns)
{
    kvp_ticket_t *t;

    if (n == 0) return 0;
    t = ticket_open(prot, s, kind, n);
    t->oids = kvp_core_alloc(n, sizeof *t->oids);
    for (uint32_t i = 0; i < n; i++) {
        t->oids[i] = oids[i];
        t->bytes += object_bytes(prot, oids[i]);
        object_take(prot, oids[i]);
    }
    if (kind == KVP_TICKET_RESERVE)
        count_reserved(prot, t, ttl_ns);
    else
        prot->ctx->st.held_bytes += t->bytes;
    return t->id;
}

uint64_t
kvp_ticket_take_groups(kvp_protect_t *prot, kvp_session_t *s, kvp_group_t *const *groups, uint32_t n, uint64_t ttl_ns)
{
    kvp_ticket_t *t;

    if (n == 0) return 0;
    t = ticket_open(prot, s, KVP_TICKET_RESERVE, n);
    t->groups = kvp_core_alloc(n, sizeof *t->groups);
    for (uint32_t i = 0; i < n; i++) {
        t->groups[i] = groups[i];
        t->bytes += groups[i]->bytes;
        kvp_group_reserve(prot, groups[i]);
    }
    count_reserved(prot, t, ttl_ns);
    return t->id;
}

void
kvp_ticket_restored(kvp_protect_t *prot, uint64_t id)
{
    kvp_ticket_t *t = id == 0 ? NULL : kvp_ptab_get(&prot->tickets, (uint32_t)id);

    if (t == NULL || t->oids == NULL) return;
    t->sequence = prot->ctx->conf.seed; /* older than every other ticket */
    for (uint32_t i = 0; i < t->n && prot->leavings.n > 0; i++)
        kvp_leaving_ticket_back(prot, kvp_obj(prot->cat->index, t->oids[i]));
}

void
kvp_ticket_note_hole(kvp_protect_t *prot, uint64_t id, kvp_digest_t hole)
{
    kvp_ticket_t *t = id == 0 ? NULL : kvp_ptab_get(&prot->tickets, (uint32_t)id);

    if (t == NULL) return;
    t->has_hole = true;
    t->hole = hole;
    t->tenant = t->session->tenant->id;
    t->version = kvp_gen_make(prot->ctx->term, prot->cat->gen_seq);
}

const kvp_session_t *
kvp_ticket_holder(const kvp_protect_t *prot, uint32_t oid)
{
    uint32_t left = HOLDER_LOOKED_AT;

    for (uint32_t i = 0; i < prot->tickets.limit && left > 0; i++, left--) {
        const kvp_ticket_t *t = kvp_ptab_get(&prot->tickets, i);

        if (t == NULL || t->session == NULL || t->oids == NULL) continue;
        for (uint32_t k = 0; k < t->n && left > 0; k++, left--)
            if (t->oids[k] == oid) return t->session;
    }
    return NULL;
}

uint32_t
kvp_ticket_grantable(const kvp_protect_t *prot, const kvp_session_t *s, const uint32_t *oids, uint32_t n)
{
    uint64_t left = reserve_budget(prot, s);
    uint32_t i;

    if (!kvp_ticket_may_take(prot, s, oids, n)) return 0;
    for (i = 0; i < n; i++) {
        uint64_t bytes = object_bytes(prot, oids[i]);

        if (bytes > left) break;
        left -= bytes;
    }
    return i;
}

uint32_t
kvp_ticket_grantable_groups(const kvp_protect_t *prot, const kvp_session_t *s, kvp_group_t *const *groups, uint32_t n)
{
    uint64_t left = reserve_budget(prot, s);
    uint32_t i;

    if (!kvp_ticket_may_take(prot, s, NULL, 0) || n > KVP_TICKET_OBJECTS_MAX - s->ticket_objects) return 0;
    for (i = 0; i < n && groups[i]->bytes <= left; i++)
        left -= groups[i]->bytes;
    return i;
}

/* ---- the end of a ticket */
/* Returns true if the last object of the reservation was read since it began. Uses by probes, look-ups or loads are no
 * reads. */
static bool
was_last_read(kvp_protect_t *prot, const kvp_ticket_t *t)
{
    uint32_t unit = t->groups == NULL ? kvp_victim_unit(prot->cat, t->oids[t->n - 1]) : t->groups[t->n - 1]->lead;
    const kvp_obj_t *o = unit == KVP_OID_NONE ? NULL : kvp_obj(prot->cat->index, unit);

    return o != NULL && o->is_asking_counted == 0 && kvp_obj_is_used_since(prot->cat->index, o, t->mark);
}

static bool
was_hole_put(kvp_protect_t *prot, const kvp_ticket_t *t)
{
    const kvp_tenant_t *tenant = t->has_hole ? kvp_tenant_find(prot->cat, t->tenant) : NULL;
    uint32_t oid;

    if (tenant == NULL) return false;
    if (t->groups != NULL) return kvp_group_seen(prot, tenant, t->hole) != NULL;
    oid = kvp_objindex_find(prot->cat->index, t->hole);
    return oid != KVP_OID_NONE && kvp_obj_version(kvp_obj(prot->cat->index, oid)) > t->version;
}

static void
judge_ticket(kvp_protect_t *prot, kvp_ticket_t *t)
{
    if (t->is_judged || t->kind == KVP_TICKET_HOLD) return;
    t->is_judged = true;
    t->is_use = was_last_read(prot, t) || was_hole_put(prot, t) || !KVP_RULE(LOOKUP_IS_NO_USE);
    kvp_ctx_spend(prot->ctx, 1);
}

void
kvp_ticket_drop(kvp_protect_t *prot, kvp_ticket_t *t)
{
    if (t->kind == KVP_TICKET_RESERVE) {
        kvp_heap_del(&prot->expiries, &t->expiry);
        t->session->reserved_bytes -= t->bytes;
    }
    t->session->tickets_n--;
    t->session->ticket_objects -= t->n;
    t->session = NULL;
    kvp_list_del(&t->link);
    kvp_list_add_tail(&prot->ending, &t->link);
    kvp_ctx_spend(prot->ctx, 1);
}

static void
ticket_free(kvp_protect_t *prot, kvp_ticket_t *t)
{
    if (t->kind == KVP_TICKET_RESERVE)
        prot->ctx->st.reserved_bytes -= t->bytes;
    else
        prot->ctx->st.held_bytes -= t->bytes;
    kvp_list_del(&t->link);
    kvp_ptab_del(&prot->tickets, t->number);
    free(t->oids);
    free(t->groups);
    free(t);
}

void
kvp_ticket_end_some(kvp_protect_t *prot)
{
    while (!kvp_list_is_empty(&prot->ending)) {
        kvp_ticket_t *t = kvp_list_first(&prot->ending, kvp_ticket_t, link);

        if (prot->ctx->slice_left == 0) return;
        judge_ticket(prot, t);
        for (; t->n > 0; t->n--) {
            if (prot->ctx->slice_left == 0) return;
            if (t->oids != NULL)
                object_release(prot, t, t->oids[t->n - 1]);
            else
                group_release(prot, t, t->groups[t->n - 1]);
        }
        ticket_free(prot, t);
    }
}

void
kvp_ticket_release(kvp_protect_t *prot, kvp_session_t *s, uint64_t id)
{
    kvp_ticket_t *t = kvp_ptab_get(&prot->tickets, (uint32_t)id);

    if (t == NULL || t->id != id || t->session != s) return;
    kvp_ticket_drop(prot, t);
    kvp_ticket_end_some(prot);
}

void
kvp_ticket_tick(kvp_protect_t *prot)
{
    const kvp_heapnode_t *first;

    if (!KVP_RULE(RESERVATION_TIME)) return;
    while ((first = kvp_heap_least(&prot->expiries)) != NULL && first->key <= prot->ctx->now_ns &&
           prot->ctx->slice_left > 0)
        kvp_ticket_drop(prot, kvp_heap_entry(first, kvp_ticket_t, expiry));
}
