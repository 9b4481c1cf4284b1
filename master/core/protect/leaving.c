/* SPDX-License-Identifier: Apache-2.0
 * Copies that are being dropped after a move: leaving.h describes them. Each is on one of three lists: until its record
 * is synced, then until the tickets have ended, then until the layer above drops it. */
#include "master/core/protect/leaving.h"

#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/session/takeover.h"

#include <stdlib.h>

#define HELD_LOOKED_AT 8u /* limit of the held copies whose time limit is checked in one step */

static kvp_leaving_t *
find_leaving(const kvp_protect_t *prot, uint64_t version)
{
    uint32_t number;

    return kvp_umap_get(&prot->leaving, version, &number) ? kvp_ptab_get(&prot->leavings, number) : NULL;
}

bool
kvp_leaving_begin(kvp_protect_t *prot, uint32_t oid, const kvp_place_t *at, uint64_t due_ns)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    kvp_leaving_t *l = find_leaving(prot, kvp_obj_version(o));

    if (l != NULL) {
        l->due_ns = kvp_min_u64(l->due_ns, due_ns);
        return false;
    }
    kvp_obj_ext_make(prot->cat->index, o)->leaving = at->generation;
    kvp_record_again(prot->cat, oid);
    l = kvp_core_alloc(1, sizeof *l);
    l->digest = kvp_obj_digest_of(prot->cat, o);
    l->version = kvp_obj_version(o);
    l->generation = at->generation;
    l->after = KVP_RULE(LEAVING_SYNCED) ? prot->log->end : 0;
    l->due_ns = due_ns;
    l->tickets = KVP_RULE(LEAVING_TICKETS) ? o->tickets : 0;
    l->last_ticket = prot->ticket_seq;
    l->number = kvp_ptab_add(&prot->leavings, l);
    kvp_umap_set(&prot->leaving, l->version, l->number);
    kvp_list_add_tail(&prot->leaving_synced, &l->link);
    return true;
}

void
kvp_leaving_ticket_taken(kvp_protect_t *prot, const kvp_obj_t *o)
{
    kvp_leaving_t *l = find_leaving(prot, kvp_obj_version(o));

    if (l == NULL || !kvp_obj_names_leaving(prot->cat, o) || !KVP_RULE(LEAVING_NAMED)) return;
    l->tickets = o->tickets;
    l->last_ticket = prot->ticket_seq;
    if (l->after > prot->log->synced) return;
    kvp_list_del(&l->link);
    kvp_list_add_tail(&prot->leaving_held, &l->link); /* it may have been ready */
}

void
kvp_leaving_ticket_over(kvp_protect_t *prot, const kvp_obj_t *o, uint64_t ticket)
{
    kvp_leaving_t *l = find_leaving(prot, kvp_obj_version(o));

    /* sequence numbers begin at a random number, and may wrap */
    if (l == NULL || l->tickets == 0 || (int64_t)(l->last_ticket - ticket) < 0) return;
    if (--l->tickets > 0 || l->after > prot->log->synced) return;
    kvp_list_del(&l->link);
    /* at the head of the list, so that the next step checks it first */
    kvp_list_add_head(&prot->leaving_held, &l->link);
}

void
kvp_leaving_ticket_back(kvp_protect_t *prot, const kvp_obj_t *o)
{
    kvp_leaving_t *l = find_leaving(prot, kvp_obj_version(o));

    /* else kvp_leaving_ticket_taken has counted this ticket */
    if (l != NULL && l->last_ticket != prot->ticket_seq) l->tickets++;
}

/* Returns true if, after a take-over, a node must still report whether it has one of the object's copies. A drain does
 * not wait for this report: it makes another copy. */
static bool
is_report_awaited(const kvp_protect_t *prot, const kvp_leaving_t *l)
{
    const uint32_t oid = kvp_objindex_find(prot->cat->index, l->digest);
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = oid == KVP_OID_NONE ? 0 : kvp_obj_places(prot->cat, kvp_obj(prot->cat->index, oid), places);
    bool is_awaited = false;

    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *g = kvp_place_chunk(prot->cat, &places[i])->segment;

        if (places[i].generation == l->generation && g->drain != NULL && !g->is_restored) return false;
        is_awaited |= g->is_restored;
    }
    return is_awaited;
}

/* Returns true if the copy may be dropped: its time limit has passed, or no ticket protects it. After a take-over
 * clients may still restore tickets, and nodes report what they have. */
static bool
is_free(const kvp_protect_t *prot, const kvp_leaving_t *l)
{
    if (prot->ctx->now_ns >= l->due_ns) return true;
    return l->tickets == 0 && !kvp_takeover_may_tickets_come(prot->peers) && !is_report_awaited(prot, l);
}

/* Moves copies to the list of copies that may be dropped, if their records are synced and is_free is true. */
static void
sort_out(kvp_protect_t *prot)
{
    while (!kvp_list_is_empty(&prot->leaving_synced) && prot->ctx->slice_left > 0) {
        kvp_leaving_t *l = kvp_list_first(&prot->leaving_synced, kvp_leaving_t, link);

        if (l->after > prot->log->synced) break;
        kvp_list_del(&l->link);
        kvp_list_add_tail(is_free(prot, l) ? &prot->leaving_ready : &prot->leaving_held, &l->link);
        kvp_ctx_spend(prot->ctx, 1);
    }
    for (uint32_t left = HELD_LOOKED_AT; left > 0 && !kvp_list_is_empty(&prot->leaving_held); left--) {
        kvp_leaving_t *l = kvp_list_first(&prot->leaving_held, kvp_leaving_t, link);

        kvp_list_del(&l->link);
        kvp_list_add_tail(is_free(prot, l) ? &prot->leaving_ready : &prot->leaving_held, &l->link);
    }
}

kvp_leaving_t *
kvp_leaving_next(kvp_protect_t *prot)
{
    if (kvp_list_is_empty(&prot->leaving_ready)) sort_out(prot);
    if (kvp_list_is_empty(&prot->leaving_ready) || prot->ctx->slice_left == 0) return NULL;
    return kvp_list_first(&prot->leaving_ready, kvp_leaving_t, link);
}

void
kvp_leaving_end(kvp_protect_t *prot, kvp_leaving_t *l)
{
    uint32_t oid = kvp_objindex_find(prot->cat->index, l->digest);
    kvp_objext_t *ext = oid == KVP_OID_NONE ? NULL : kvp_obj_ext(prot->cat->index, kvp_obj(prot->cat->index, oid));

    if (ext != NULL && ext->leaving == l->generation) ext->leaving = 0;
    kvp_list_del(&l->link);
    (void)kvp_umap_del(&prot->leaving, l->version);
    kvp_ptab_del(&prot->leavings, l->number);
    free(l);
    kvp_ctx_spend(prot->ctx, 1);
}

bool
kvp_leaving_wants_sync(const kvp_protect_t *prot)
{
    return !kvp_list_is_empty(&prot->leaving_synced) &&
           kvp_list_first(&prot->leaving_synced, kvp_leaving_t, link)->after > prot->log->synced;
}

void
kvp_leaving_fini(kvp_protect_t *prot)
{
    kvp_list_t *const lists[] = {&prot->leaving_synced, &prot->leaving_held, &prot->leaving_ready};

    for (size_t i = 0; i < KVP_ARRAY_LEN(lists); i++)
        while (!kvp_list_is_empty(lists[i]))
            kvp_leaving_end(prot, kvp_list_first(lists[i], kvp_leaving_t, link));
    kvp_umap_fini(&prot->leaving);
    kvp_ptab_fini(&prot->leavings);
}
