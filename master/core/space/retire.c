/* SPDX-License-Identifier: Apache-2.0
 * RETIRE: the node makes an extent unreadable before the master lets other puts write to it. A retire record exists
 * from the moment an extent loses its object until the node has reported the extent free. An extent whose record has
 * an owner is quarantined: the node answers `free` only when it has proved that this writer cannot write any more. */
#include "master/core/space/retire.h"

#include "common/buf.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/log/journal.h"
#include "master/core/protect/deferred.h"
#include "master/core/session/session.h"
#include "master/core/space/check.h"
#include "master/core/space/claim.h"
#include "master/core/space/place.h"
#include "master/core/space/space.h"
#include "master/core/space/tiered.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdlib.h>

#define RETIRE_BATCH 1024u
#define ORDERS_A_RECORD 8u /* sending this many records costs as much of the budget as handling one record */
#define OWNER_STAGE (KVP_OWNER_ANY - 1) /* owner of an extent that is being loaded from a tier; no client has it */
#define LATE_NS KVP_MS(100) /* a node with a Retire unanswered for this time gets no puts while other nodes answer */

kvp_retire_t *
kvp_retire_of(const kvp_space_t *sp, const kvp_chunk_t *c, uint32_t slot)
{
    uint32_t owner = c->slab == NULL ? KVP_SLAB_NONE : kvp_slab_owner(c->slab, slot);

    if (owner == KVP_SLAB_NONE || (owner & KVP_RETIRING_BIT) == 0) return NULL;
    return kvp_ptab_get(&sp->retires, owner & ~KVP_RETIRING_BIT);
}

/* Returns the session of the client that may still write to the extent; NULL = none, or the session has ended. */
static kvp_session_t *
owner_of(const kvp_space_t *sp, const kvp_retire_t *r)
{
    uint32_t number;

    if (r->owner == 0 || !kvp_umap_get(&sp->peers->by_incarnation, r->owner, &number)) return NULL;
    return kvp_ptab_get(&sp->peers->sessions, number);
}

/* Adds the record's bytes to the quarantined bytes of its owner's session, which count as bytes of unfinished puts. */
static void
count_quarantine(kvp_space_t *sp, const kvp_retire_t *r, int64_t sign)
{
    kvp_session_t *s = owner_of(sp, r);

    if (s != NULL) s->quarantine_bytes += (uint64_t)sign * r->bytes;
}

/* Adds the record's bytes to the totals of its tenant, segment and pool. A lost segment is not in the pool's. */
static void
count_bytes(kvp_space_t *sp, const kvp_retire_t *r, int64_t sign)
{
    kvp_segment_t *g = r->chunk->segment;
    uint64_t retiring = (uint64_t)sign * r->bytes;
    uint64_t quarantined = r->owner == 0 ? 0 : retiring;

    r->chunk->tenant->going_bytes += retiring - quarantined;
    g->retiring_bytes += retiring;
    g->quarantine_bytes += quarantined;
    count_quarantine(sp, r, sign);
    if (g->state == KVP_SEG_UP) sp->cat->coming_bytes += retiring - quarantined;
    if (g->state == KVP_SEG_LOST) return;
    sp->ctx->st.retiring_bytes += retiring;
    sp->ctx->st.quarantine_bytes += quarantined;
}

/* Returns true if the extent was restored from a log whose missing end may have recorded its removal. Until the node
 * has reported the slot as SEALED, the space may belong to another object. */
static bool
is_in_doubt(const kvp_chunk_t *c, uint32_t slot)
{
    return c->segment->is_restored && !kvp_place_is_sealed(c, slot) && KVP_RULE(GAP_WRITERS);
}

kvp_retire_t *
kvp_retire_place(kvp_space_t *sp, const kvp_place_t *at, uint64_t owner, kvp_deferred_t *deferred)
{
    kvp_chunk_t *c = kvp_place_chunk(sp->cat, at);
    kvp_retire_t *r = kvp_core_alloc(1, sizeof *r);
    bool is_doubted = is_in_doubt(c, at->slot);

    if (is_doubted) owner = KVP_OWNER_ANY;
    r->chunk = c;
    r->slot = at->slot;
    r->long_key_slot = at->long_key_slot;
    r->generation = is_doubted ? kvp_gen_make(sp->ctx->term, ++sp->cat->gen_seq) : at->generation;
    r->owner = owner;
    r->bytes = kvp_slab_len(c->slab, at->slot);
    r->deferred = deferred;
    if (deferred != NULL) deferred->left++;
    r->number = kvp_ptab_add(&sp->retires, r);
    kvp_list_init(&r->claimed);
    kvp_list_init(&r->abandoned);
    kvp_list_add_tail(&c->segment->retires, &r->link);
    kvp_list_add_tail(&c->segment->unsent, &r->queue);
    kvp_slab_set_owner(c->slab, at->slot, KVP_RETIRING_BIT | r->number);
    c->segment->objects--;
    c->unclaimed += owner == KVP_OWNER_ANY;
    sp->unclaimed += owner == KVP_OWNER_ANY;
    sp->ctx->st.retires++;
    count_bytes(sp, r, 1);
    kvp_retire_want_sending(sp, c->segment);
    return r;
}

void
kvp_retire_gap(kvp_space_t *sp, kvp_chunk_t *c, uint32_t slot)
{
    const kvp_place_t at = {
        .chunk = c->number,
        .slot = slot,
        .generation = kvp_gen_make(sp->ctx->term, ++sp->cat->gen_seq),
        .long_key_slot = KVP_SLAB_NONE,
    };
    uint64_t bytes = kvp_slab_len(c->slab, slot);

    c->segment->objects++; /* kvp_retire_place will subtract an object, although the extent had none */
    c->tenant->used_bytes += bytes;
    c->segment->used_bytes += bytes;
    if (c->segment->state != KVP_SEG_LOST) sp->ctx->st.used_bytes += bytes;
    (void)kvp_retire_place(sp, &at, KVP_RULE(GAP_WRITERS) ? KVP_OWNER_ANY : 0, NULL);
}

void
kvp_retire_hold_back(kvp_space_t *sp, kvp_retire_t *r)
{
    r->after = sp->log->end;
    kvp_list_del(&r->queue);
    kvp_list_add_tail(&sp->held_back, &r->queue);
}

static void
go_on(kvp_space_t *sp, kvp_retire_t *r)
{
    r->after = 0;
    kvp_list_del(&r->queue);
    kvp_list_add_tail(&r->chunk->segment->unsent, &r->queue);
    kvp_retire_want_sending(sp, r->chunk->segment);
    kvp_ctx_spend(sp->ctx, 1);
}

bool
kvp_retire_release(kvp_space_t *sp, uint64_t to)
{
    while (!kvp_list_is_empty(&sp->held_back)) {
        kvp_retire_t *r = kvp_list_first(&sp->held_back, kvp_retire_t, queue);

        if (r->after > to) return true;
        if (sp->ctx->slice_left == 0) return false;
        go_on(sp, r);
    }
    return true;
}

/* ---- extents that may still be readable though their key was removed */
static uint32_t *
not_dead_of(const kvp_space_t *sp, uint64_t id)
{
    return &sp->not_dead[id % KVP_NOT_DEAD_KEYS];
}

void
kvp_retire_of_key(kvp_space_t *sp, kvp_retire_t *r, uint64_t id)
{
    r->not_dead = not_dead_of(sp, id);
    ++*r->not_dead;
}

bool
kvp_retire_is_readable(const kvp_space_t *sp, kvp_digest_t digest)
{
    return *not_dead_of(sp, kvp_objindex_id(sp->cat->index, digest)) > 0;
}

static void
end_not_dead(kvp_retire_t *r)
{
    if (r->not_dead == NULL) return;
    --*r->not_dead;
    r->not_dead = NULL;
}

static void
end_abandoned(const kvp_space_t *sp, kvp_retire_t *r)
{
    kvp_session_t *s = owner_of(sp, r);

    if (r->attempt == 0) return;
    r->attempt = 0;
    kvp_list_del(&r->abandoned);
    if (s != NULL) s->abandoned_n--;
}

/* Counts the extent as unreadable in its deferred reply, which may free the reply, so r->deferred is cleared before. */
static void
end_wait(kvp_space_t *sp, kvp_retire_t *r)
{
    kvp_deferred_t *w = r->deferred;

    if (w == NULL) return;
    r->deferred = NULL;
    kvp_deferred_dead(sp->prot, w);
}

/* Frees the retire record; the caller handles the extent. */
static void
discard_record(kvp_space_t *sp, kvp_retire_t *r)
{
    end_wait(sp, r);
    kvp_list_del(&r->link);
    kvp_list_del(&r->queue);
    kvp_list_del(&r->claimed);
    end_not_dead(r);
    end_abandoned(sp, r);
    count_bytes(sp, r, -1);
    r->chunk->unclaimed -= r->owner == KVP_OWNER_ANY;
    sp->unclaimed -= r->owner == KVP_OWNER_ANY;
    if (r->owner == KVP_OWNER_ANY && r->chunk->unclaimed == 0 && !r->chunk->segment->is_restored)
        kvp_place_forget_sealed(r->chunk);
    kvp_ptab_del(&sp->retires, r->number);
    free(r);
}

static void
give_back(kvp_space_t *sp, kvp_retire_t *r)
{
    kvp_chunk_t *c = r->chunk;

    kvp_ctx_spend(sp->ctx, 1);
    kvp_slab_free(c->slab, r->slot);
    if (r->long_key_slot != KVP_SLAB_NONE) kvp_slab_free(c->long_keys, r->long_key_slot);
    c->tenant->used_bytes -= r->bytes;
    c->segment->used_bytes -= r->bytes;
    if (c->segment->state != KVP_SEG_LOST) sp->ctx->st.used_bytes -= r->bytes;
    kvp_place_room_changed(c);
    kvp_place_memory_changed(sp, c);
    if (c->evacuating != NULL) sp->has_evacuation_news = true;
    if (c->taker != NULL) sp->has_take_news = true;
    kvp_ctx_space_news(sp->ctx);
    discard_record(sp, r);
    if (kvp_slab_used_bytes(c->slab) == 0) kvp_place_chunk_leave(sp, c);
}

void
kvp_retire_void(kvp_space_t *sp, kvp_retire_t *r)
{
    give_back(sp, r);
}

void
kvp_retire_forget(kvp_space_t *sp, kvp_retire_t *r)
{
    discard_record(sp, r);
}

/* ---- extents of a writer whose put was aborted because it was silent */
void
kvp_retire_abandoned(kvp_retire_t *r, kvp_session_t *s, uint64_t attempt)
{
    /* over the limit, the silent client's extent is not listed: it is quarantined until the session has ended */
    if (s->abandoned_n == KVP_ABANDONED_MAX) return;
    s->abandoned_n++;
    r->attempt = attempt;
    kvp_list_add_tail(&s->abandoned, &r->abandoned);
}

/* Sends the order for this extent to the node again, now without an owner. */
static void
disown_extent(kvp_space_t *sp, kvp_retire_t *r)
{
    end_abandoned(sp, r);
    count_bytes(sp, r, -1);
    r->owner = 0;
    count_bytes(sp, r, 1);
    kvp_list_del(&r->queue);
    kvp_list_add_tail(&r->chunk->segment->unsent, &r->queue);
    kvp_retire_want_sending(sp, r->chunk->segment);
}

kvp_retire_t *
kvp_retire_stage(kvp_space_t *sp, const kvp_place_t *at)
{
    kvp_retire_t *r = kvp_retire_place(sp, at, OWNER_STAGE, NULL);

    kvp_list_del(&r->queue);
    return r;
}

void
kvp_retire_stage_failed(kvp_space_t *sp, kvp_retire_t *r, kvp_deferred_t *deferred)
{
    r->deferred = deferred;
    if (deferred != NULL) deferred->left++;
    disown_extent(sp, r);
}

void
kvp_retire_stage_done(kvp_space_t *sp, kvp_retire_t *r)
{
    discard_record(sp, r);
}

void
kvp_retire_drained(kvp_space_t *sp, kvp_session_t *s, uint64_t attempt)
{
    kvp_list_foreach_safe (pos, tmp, &s->abandoned) {
        kvp_retire_t *r = kvp_list_entry(pos, kvp_retire_t, abandoned);

        if (r->attempt == attempt) disown_extent(sp, r);
    }
}

void
kvp_retire_set_dead(kvp_space_t *sp, kvp_retire_t *r)
{
    r->state = KVP_RT_DEAD;
    end_not_dead(r);
    end_wait(sp, r);
}

void
kvp_retire_set_free(kvp_space_t *sp, kvp_retire_t *r)
{
    kvp_claim_t *claim = r->claim;

    kvp_retire_set_dead(sp, r);
    if (claim == NULL) {
        give_back(sp, r);
        return;
    }
    /* The extent stays reserved until the whole window is free, so that no other put takes a part of it. */
    r->state = KVP_RT_HELD;
    kvp_list_del(&r->queue);
    if (--claim->left == 0) kvp_list_add_tail(&sp->claims_ready, &claim->ready);
}

void
kvp_retire_unclaim(kvp_space_t *sp, kvp_claim_t *claim)
{
    kvp_list_foreach_safe (pos, tmp, &claim->records) {
        kvp_retire_t *r = kvp_list_entry(pos, kvp_retire_t, claimed);

        kvp_list_del(&r->claimed);
        r->claim = NULL;
        if (r->state == KVP_RT_HELD) give_back(sp, r);
    }
    kvp_list_del(&claim->of_segment);
    kvp_list_del(&claim->ready);
    claim->left = 0;
}

/* ---- orders to the nodes, and their answers */
static void
send_batch(kvp_space_t *sp, kvp_segment_t *g)
{
    Kvp__Pb__Retire msg = KVP__PB__RETIRE__INIT;
    kvp_session_t *node = g->node;
    kvp_retire_req_t *req = kvp_core_alloc(1, sizeof *req);
    uint32_t n = 0;
    size_t at;

    kvp_list_foreach (pos, &g->unsent)
        if (++n == RETIRE_BATCH) break;
    req->request_id = ++sp->peers->request_seq;
    req->sent_ns = sp->ctx->now_ns;
    req->sent_stall_ns = sp->ctx->stall_ns;
    req->n = n;
    req->numbers = kvp_core_alloc(n, sizeof *req->numbers);
    kvp_list_add_tail(&node->retire_reqs, &req->link);
    node->retire_reqs_n++;

    msg.n = n;
    msg.term = sp->ctx->term;
    msg.segment_id = g->id;
    kvp_pb_frame_begin(&node->out, KVP_OP_RETIRE, 0, req->request_id, &msg.base, &at);
    for (uint32_t i = 0; i < n; i++) {
        kvp_retire_t *r = kvp_list_first(&g->unsent, kvp_retire_t, queue);
        kvp_wire_slot_t rec = {r->chunk->index, r->slot, r->generation, r->owner};

        kvp_buf_append(&node->out, &rec, sizeof rec);
        kvp_list_del(&r->queue);
        kvp_list_add_tail(&g->sent, &r->queue);
        if (r->state == KVP_RT_QUEUED) r->state = KVP_RT_SENT;
        r->sent_in = req->request_id;
        req->numbers[i] = r->number;
        if (!KVP_RULE(RETIRE_BEFORE_REUSE)) kvp_retire_set_free(sp, r);
    }
    kvp_frame_end(&node->out, at);
    kvp_session_dirty(sp->peers, node);
    kvp_ctx_spend(sp->ctx, 1 + n / ORDERS_A_RECORD);
}

/* Returns true if a Retire order is to be sent for this segment, and may be. While the log's end may be missing and the
 * node has not finished its report, no order may be sent: it could destroy a slot's newer object. */
static bool
may_send(const kvp_space_t *sp, const kvp_segment_t *g)
{
    if (g->is_restored && sp->log->is_lacking && KVP_RULE(LACK_RETIRES)) return false;
    return !kvp_list_is_empty(&g->unsent) && g->node->retire_reqs_n < KVP_RETIRE_REQS_MAX;
}

/* kvp_retire_flush sends the waiting orders. A node that answers slowly gets at most KVP_RETIRE_REQS_MAX orders; the
 * other records wait here. The first order is sent in any case, further orders only within the step's budget. */
void
kvp_retire_flush(kvp_space_t *sp)
{
    bool was_sent = false;

    sp->has_orders = false;
    kvp_list_foreach_safe (pos, tmp, &sp->sending) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, sending);

        kvp_check_send(sp, g);
        for (; may_send(sp, g) && (!was_sent || sp->ctx->slice_left > 0); was_sent = true)
            send_batch(sp, g);
        sp->has_orders |= may_send(sp, g);
        if (kvp_list_is_empty(&g->unsent) && !kvp_check_is_due(g) && !kvp_tier_is_due(g)) kvp_list_del(&g->sending);
    }
}

/* Queues all orders of the segment again. The node's new connection does not know the unanswered orders of an earlier
 * connection. */
void
kvp_retire_resend(kvp_space_t *sp, kvp_segment_t *g)
{
    if (KVP_RULE(RETIRE_AGAIN)) { /* the sent records come first again */
        kvp_list_splice(&g->unsent, &g->sent);
        kvp_list_splice(&g->sent, &g->unsent);
    }
    g->check_request = 0;
    if (!kvp_list_is_empty(&g->unsent) || kvp_check_is_due(g)) kvp_retire_want_sending(sp, g);
}

void
kvp_retire_req_free(kvp_session_t *node, kvp_retire_req_t *req)
{
    kvp_list_del(&req->link);
    node->retire_reqs_n--;
    free(req->numbers);
    free(req);
}

void
kvp_retire_lost(kvp_session_t *node)
{
    while (!kvp_list_is_empty(&node->retire_reqs))
        kvp_retire_req_free(node, kvp_list_first(&node->retire_reqs, kvp_retire_req_t, link));
}

/* Returns true if the node's answer to the oldest order is overdue. Answers come nearly in the order of the orders,
 * so the oldest order is sufficient. */
bool
kvp_retire_is_late(const kvp_space_t *sp, const kvp_session_t *node)
{
    const kvp_retire_req_t *req;

    if (kvp_list_is_empty(&node->retire_reqs)) return false;
    req = kvp_list_first(&node->retire_reqs, kvp_retire_req_t, link);
    return sp->ctx->now_ns - req->sent_ns >= LATE_NS + (sp->ctx->stall_ns - req->sent_stall_ns);
}

kvp_retire_req_t *
kvp_retire_req_find(kvp_session_t *node, uint64_t request_id)
{
    kvp_list_foreach (pos, &node->retire_reqs) {
        kvp_retire_req_t *req = kvp_list_entry(pos, kvp_retire_req_t, link);

        if (req->request_id == request_id) return req;
    }
    return NULL;
}
