/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The extent of a load has a retire record with an owner that no node knows, and no Retire is sent. So no put gets
 *   the extent, and after a failed load the extent retires like any other.
 * - A node carries out orders in their sequence, and answers in this sequence: a DROP that was sent before a DEMOTE
 *   is on the disk before the DEMOTE's records. */
#include "master/core/space/tier.h"

#include "common/mutate.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/catalog/record.h"
#include "master/core/protect/candidates.h"
#include "master/core/space/copy.h"
#include "master/core/space/drop.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "master/core/space/tiered.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#include <stdlib.h>

#define ORDERS_MAX 4u /* limit of the unanswered orders of one kind for one segment, except DEMOTE orders */
/* limit of a segment's unanswered DEMOTE orders (writes to SSD): enough to keep the SSD busy */
#define DEMOTES_MAX 16u
/* unfinished loads may have at most 1/2 of the segment's memory; a single larger load is allowed */
#define LOADS_SHARE 2u
#define PLACED_SHARE 8u /* loads with an extent may have at most 1/8 of the segment's memory */
#define STAGE_NS KVP_MS(1000) /* a load that got no extent for this time fails */

typedef struct {
    kvp_list_t link; /* segment->orders */
    uint64_t request_id;
    uint8_t opcode;
    uint32_t n;
    kvp_list_t records; /* kvp_moving_t, or kvp_tier_drop_t */
} kvp_order_t;

/* ---- moves between memory and tier */
void
kvp_tier_demote(kvp_space_t *sp, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_place_t at = kvp_obj_place(sp->cat, o);
    kvp_segment_t *g = kvp_obj_chunk(sp->cat, o)->segment;

    kvp_list_add_tail(&g->demotes, &kvp_moving_make(sp, o, g, &at)->link);
    kvp_victim_keep(sp->prot, oid);
    kvp_retire_want_sending(sp, g);
    sp->ctx->st.demotes++;
    kvp_ctx_spend(sp->ctx, 1);
}

/* Returns the memory segment into which a tier's objects are loaded; NULL = none is up. */
static kvp_segment_t *
memory_of(const kvp_segment_t *t)
{
    if (t->node == NULL) return NULL;
    kvp_list_foreach (pos, &t->node->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, of_node);

        if (g->tier == t && kvp_segment_loads(g)) return g;
    }
    return NULL;
}

static void
wait_for(kvp_moving_t *mv, kvp_stage_waiter_t *who)
{
    if (who == NULL) return;
    who->wait->left++;
    kvp_list_add_tail(&mv->waiters, &who->link);
}

static bool
may_queue(const kvp_segment_t *g, uint64_t len)
{
    return g->loading_bytes == 0 || g->loading_bytes + len <= g->size_bytes / LOADS_SHARE;
}

bool
kvp_tier_stage(kvp_space_t *sp, uint32_t oid, kvp_stage_waiter_t *who)
{
    kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    const kvp_segment_t *t = kvp_obj_tier(sp->cat, o);
    kvp_segment_t *g = t == NULL ? NULL : memory_of(t);
    kvp_moving_t *mv = kvp_moving_of(sp, o);

    if (mv == NULL) {
        if (g == NULL || !may_queue(g, kvp_obj_len(sp->cat, o))) return false;
        if (!kvp_obj_is_on_tier_alone(sp->cat, o))
            kvp_obj_leave_memory(sp, oid); /* the object's memory is lost, or disconnected */
        mv = kvp_moving_make(sp, o, g, NULL);
        mv->due_ns = sp->ctx->now_ns + STAGE_NS;
        kvp_list_add_tail(&g->stages, &mv->link);
        kvp_retire_want_sending(sp, g);
        sp->ctx->st.stages++;
        kvp_ctx_spend(sp->ctx, 1);
    }
    if (mv->kind == KVP_MOVING_THROUGH) mv->kind = KVP_MOVING_IN;
    wait_for(mv, who);
    return true;
}

bool
kvp_tier_may_place(const kvp_segment_t *g, uint64_t bytes)
{
    return g->placed_bytes == 0 || bytes <= g->size_bytes / PLACED_SHARE;
}

void
kvp_tier_place_stages(kvp_space_t *sp, kvp_segment_t *g)
{
    while (!kvp_list_is_empty(&g->stages) && sp->ctx->slice_left > 0) {
        kvp_moving_t *mv = kvp_list_first(&g->stages, kvp_moving_t, link);
        uint32_t oid;
        kvp_obj_t *o = kvp_moving_object(sp, mv, &oid);

        if (o == NULL) kvp_panic("a stage of an object that went");
        if (!kvp_tier_may_place(g, g->placed_bytes + mv->len)) return;
        if (kvp_place_alloc_stage(sp, g, oid, &mv->at) != KVP_OK) return;
        mv->is_placed = true;
        g->placed_bytes += mv->len;
        g->room_bytes -= kvp_min_u64(g->room_bytes, kvp_extent_bytes(mv->len));
        mv->retire = kvp_retire_stage(sp, &mv->at);
        mv->retire->digest = mv->digest;
        mv->retire->version = mv->version;
        kvp_list_del(&mv->link);
        kvp_list_add_tail(&g->placed, &mv->link);
        g->room_ns = sp->ctx->now_ns;
    }
}

uint64_t
kvp_tier_load_waits_ns(const kvp_space_t *sp, kvp_segment_t *g)
{
    if (g->room_ns == 0) g->room_ns = sp->ctx->now_ns;
    return sp->ctx->now_ns - g->room_ns;
}

void
kvp_tier_tick(kvp_space_t *sp)
{
    kvp_list_foreach_safe (pos, tmp, &sp->sending) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, sending);

        while (!kvp_list_is_empty(&g->stages)) {
            kvp_moving_t *mv = kvp_list_first(&g->stages, kvp_moving_t, link);

            if (mv->due_ns > sp->ctx->now_ns) break;
            mv->result = KVP_NO_SPACE;
            kvp_moving_fail(sp, mv);
        }
    }
}

/* ---- orders to the nodes */
static kvp_order_t *
order_make(kvp_space_t *sp, kvp_segment_t *g, uint8_t opcode, kvp_list_t *from)
{
    kvp_order_t *order = kvp_core_alloc(1, sizeof *order);

    order->request_id = ++sp->peers->request_seq;
    order->opcode = opcode;
    kvp_list_init(&order->records);
    while (order->n < KVP_TIER_BATCH && !kvp_list_is_empty(from)) {
        kvp_list_t *link = from->next;

        if (opcode == KVP_OP_COPY)
            kvp_list_entry(link, kvp_copy_t, link)->is_sent = true;
        else if (opcode != KVP_OP_DROP)
            kvp_list_entry(link, kvp_moving_t, link)->is_sent = true;
        kvp_list_del(link);
        kvp_list_add_tail(&order->records, link);
        order->n++;
    }
    kvp_list_add_tail(&g->orders, &order->link);
    kvp_session_dirty(sp->peers, g->node);
    kvp_ctx_spend(sp->ctx, 1);
    return order;
}

static void
append_drop(const kvp_space_t *sp, const kvp_list_t *record, kvp_buf_t *out)
{
    const kvp_tier_drop_t *d = kvp_list_entry(record, kvp_tier_drop_t, link);
    kvp_wire_tiered_t rec = {d->digest, d->version};

    (void)sp;
    kvp_buf_append(out, &rec, sizeof rec);
}

static void
append_demote(const kvp_space_t *sp, const kvp_list_t *record, kvp_buf_t *out)
{
    const kvp_moving_t *mv = kvp_list_entry(record, kvp_moving_t, link);
    const kvp_chunk_t *c = kvp_place_chunk(sp->cat, &mv->at);
    kvp_wire_demote_t rec = {
        .at = {.chunk = c == NULL ? UINT32_MAX : c->index, .slot = mv->at.slot, .generation = mv->at.generation}};
    uint32_t oid;
    const kvp_obj_t *o = kvp_moving_object(sp, mv, &oid);

    if (o != NULL) rec.lineage = kvp_obj_lineage(sp->cat->index, o);
    kvp_buf_append(out, &rec, sizeof rec);
}

static void
append_stage(const kvp_space_t *sp, const kvp_list_t *record, kvp_buf_t *out)
{
    const kvp_moving_t *mv = kvp_list_entry(record, kvp_moving_t, link);
    kvp_wire_stage_t rec = {.digest = mv->digest, .version = mv->version, .len = mv->len};
    kvp_wire_loc_t loc;

    kvp_place_wire(sp->cat, &mv->at, &loc);
    rec.generation = loc.generation;
    rec.offset = loc.offset;
    rec.chunk = loc.chunk;
    rec.slot = loc.slot;
    rec.key_off = loc.key_off;
    kvp_buf_append(out, &rec, sizeof rec);
}

static bool
may_send(const kvp_segment_t *g, uint8_t opcode)
{
    uint32_t n = 0;

    kvp_list_foreach (pos, &g->orders)
        n += kvp_list_entry(pos, kvp_order_t, link)->opcode == opcode;
    return n < (opcode == KVP_OP_DEMOTE ? DEMOTES_MAX : ORDERS_MAX);
}

/* Sends orders with the moves or drops in the list, as many orders as the node may have unanswered. */
static void
send_orders(kvp_space_t *sp, kvp_segment_t *g, uint8_t opcode, kvp_list_t *from,
            void (*append)(const kvp_space_t *sp, const kvp_list_t *record, kvp_buf_t *out))
{
    while (may_send(g, opcode) && !kvp_list_is_empty(from)) {
        Kvp__Pb__Retire msg = KVP__PB__RETIRE__INIT;
        kvp_order_t *order = order_make(sp, g, opcode, from);
        kvp_buf_t *out = &g->node->out;
        size_t at;

        msg.n = order->n;
        msg.term = sp->ctx->term;
        msg.segment_id = g->id;
        kvp_pb_frame_begin(out, opcode, 0, order->request_id, &msg.base, &at);
        kvp_list_foreach (pos, &order->records)
            append(sp, pos, out);
        kvp_frame_end(out, at);
    }
}

/* Sends the orders of a segment by urgency: drops first, because removals wait for them; then loads, because readers
 * wait for them; then copies; writes to the SSD last. */
static void
send_all(kvp_space_t *sp, kvp_segment_t *g)
{
    kvp_tier_place_stages(sp, g);
    send_orders(sp, g, KVP_OP_DROP, &g->ssd.drops, append_drop);
    send_orders(sp, g, KVP_OP_STAGE, &g->placed, append_stage);
    send_orders(sp, g, KVP_OP_COPY, &g->copies, kvp_copy_append);
    send_orders(sp, g, KVP_OP_DEMOTE, &g->demotes, append_demote);
}

void
kvp_tier_flush(kvp_space_t *sp)
{
    kvp_list_foreach (pos, &sp->sending)
        send_all(sp, kvp_list_entry(pos, kvp_segment_t, sending));
}

static void
fail_all(kvp_space_t *sp, kvp_list_t *moves)
{
    while (!kvp_list_is_empty(moves)) {
        kvp_moving_t *mv = kvp_list_first(moves, kvp_moving_t, link);

        mv->result = KVP_NODE_LOST;
        kvp_moving_fail(sp, mv);
    }
}

/* ---- reports of a tier's contents */
void
kvp_tier_report_begin(kvp_space_t *sp, kvp_segment_t *t)
{
    t->ssd.is_reporting = true;
    t->ssd.has_lost_drops = false;
    sp->peers->rebuilds += t->ssd.is_unknown;
}

void
kvp_tier_report_over(kvp_space_t *sp, kvp_segment_t *t)
{
    sp->peers->rebuilds -= t->ssd.is_reporting && t->ssd.is_unknown;
    t->ssd.is_reporting = false;
}

/* kvp_tier_lost handles the loss of the node: unanswered drops are queued again, the oldest first; loads and writes
 * fail. An incomplete report is discarded. */
void
kvp_tier_lost(kvp_space_t *sp, kvp_segment_t *g)
{
    g->ssd.has_lost_drops |= g->ssd.is_reporting;
    kvp_tier_report_over(sp, g);
    while (!kvp_list_is_empty(&g->orders)) {
        kvp_order_t *order = kvp_list_entry(g->orders.prev, kvp_order_t, link);

        if (order->opcode == KVP_OP_COPY)
            kvp_copies_fail(sp, &order->records);
        else if (order->opcode != KVP_OP_DROP)
            fail_all(sp, &order->records);
        while (!kvp_list_is_empty(&order->records)) {
            kvp_list_t *last = order->records.prev;

            kvp_list_del(last);
            kvp_list_add_head(&g->ssd.drops, last);
            if (!KVP_RULE(TIER_DROPS_AGAIN)) kvp_tier_drop_end(sp, g, kvp_list_entry(last, kvp_tier_drop_t, link));
        }
        kvp_list_del(&order->link);
        free(order);
    }
    fail_all(sp, &g->placed);
    fail_all(sp, &g->demotes);
    fail_all(sp, &g->stages);
    kvp_copies_fail(sp, &g->copies);
}

/* ---- answers of the nodes */
static void
end_demote(kvp_space_t *sp, kvp_moving_t *mv, bool is_written)
{
    uint32_t oid;
    kvp_obj_t *o = kvp_moving_object(sp, mv, &oid);
    kvp_segment_t *t = mv->segment->tier;

    if (o != NULL) kvp_moving_arrived(sp, o, oid);
    if (is_written && o != NULL && t != NULL && t->life != KVP_SEGMENT_DROPPED &&
        kvp_obj_chunk(sp->cat, o)->segment == mv->segment) {
        o->is_on_tier = 1;
        o->is_used_since = 0;
        sp->ctx->st.demoted++;
        sp->ctx->st.demoted_bytes += mv->len;
        kvp_record_again(sp->cat, oid);
    } else {
        sp->ctx->st.demotes_refused++;
        if (is_written && t != NULL) kvp_tier_drop(sp, t, mv->digest, mv->version, NULL);
    }
    kvp_moving_end(sp, mv);
}

static void
enter_memory(kvp_space_t *sp, kvp_moving_t *mv, kvp_obj_t *o, uint32_t oid)
{
    kvp_chunk_t *c = kvp_place_chunk(sp->cat, &mv->at);

    kvp_retire_stage_done(sp, mv->retire);
    mv->retire = NULL;
    kvp_tier_leave_chunk(sp, o);
    kvp_slab_set_owner(c->slab, mv->at.slot, oid);
    c->segment->objects++;
    kvp_obj_add_place(sp->cat, oid, &mv->at, kvp_slab_len(c->slab, mv->at.slot) - mv->len);
    o->is_moving = 0;
    if (mv->kind == KVP_MOVING_THROUGH)
        kvp_victim_loaded_to_move(sp->prot, oid);
    else
        kvp_victim_loaded(sp->prot, oid);
    sp->ctx->st.staged++;
    sp->ctx->st.staged_bytes += mv->len;
    kvp_record_again(sp->cat, oid);
}

static bool
end_stage(kvp_space_t *sp, kvp_moving_t *mv, uint8_t flag, uint32_t *oid_out)
{
    kvp_obj_t *o = kvp_moving_object(sp, mv, oid_out);
    bool is_lost = o != NULL && flag == KVP_STAGE_GONE;

    if (o != NULL && (flag == KVP_STAGE_OK || !KVP_RULE(STAGE_ANSWERED))) enter_memory(sp, mv, o, *oid_out);
    if (o != NULL) kvp_moving_arrived(sp, o, *oid_out);
    if (flag != KVP_STAGE_OK) {
        mv->result = KVP_NODE_LOST;
        sp->ctx->st.stages_failed++;
        if (mv->kind == KVP_MOVING_THROUGH && mv->segment->drain != NULL) {
            mv->segment->drain->failed++;
            mv->segment->drain->last_error = KVP_DRAIN_UNREAD;
        }
        if (o != NULL) kvp_ctx_count_fault(sp->ctx, &sp->ctx->failed_loads, mv->segment->id);
    }
    sp->ctx->st.tier_lost += is_lost;
    if (is_lost) kvp_ctx_count_fault(sp->ctx, &sp->ctx->damaged, mv->segment->id);
    kvp_moving_end(sp, mv);
    return is_lost;
}

static kvp_order_t *
find_order(kvp_session_t *s, const kvp_frame_t *f, kvp_segment_t **segment_out)
{
    kvp_list_foreach (pos, &s->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, of_node);

        kvp_list_foreach (at, &g->orders) {
            kvp_order_t *order = kvp_list_entry(at, kvp_order_t, link);

            if (order->request_id != f->hdr.request_id || order->opcode != f->hdr.opcode) continue;
            *segment_out = g;
            return order;
        }
    }
    return NULL;
}

static bool
is_ok(const kvp_frame_t *f)
{
    kvp_pb_t pb;
    Kvp__Pb__Reply *msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, f);
    bool is_good = msg != NULL && msg->err == KVP_OK;

    kvp_pb_free(&pb, msg);
    return is_good;
}

uint32_t
kvp_tier_answered(kvp_space_t *sp, kvp_session_t *s, const kvp_frame_t *f, uint32_t *lost_out)
{
    kvp_segment_t *g;
    kvp_order_t *order = find_order(s, f, &g);
    uint32_t lost = 0;

    if (order == NULL || (order->opcode != KVP_OP_DROP && f->tail_len != order->n)) return UINT32_MAX;
    if (order->opcode == KVP_OP_DROP && !is_ok(f))
        g->ssd.has_lost_drops = true; /* the node answered the DROP with an error: records that it should have dropped
                                         may reappear, so the tier must report again */
    for (uint32_t i = 0; i < order->n; i++) {
        kvp_list_t *first = order->records.next;

        if (order->opcode == KVP_OP_DROP)
            kvp_tier_drop_end(sp, g, kvp_list_entry(first, kvp_tier_drop_t, link));
        else if (order->opcode == KVP_OP_COPY)
            kvp_copy_answered(sp, kvp_list_entry(first, kvp_copy_t, link), f->tail[i]);
        else if (order->opcode == KVP_OP_DEMOTE)
            end_demote(sp, kvp_list_entry(first, kvp_moving_t, link), f->tail[i] == 1 || !KVP_RULE(DEMOTE_ANSWERED));
        else if (end_stage(sp, kvp_list_entry(first, kvp_moving_t, link), f->tail[i], &lost_out[lost]))
            lost++;
    }
    kvp_list_del(&order->link);
    free(order);
    kvp_ctx_spend(sp->ctx, 1);
    if (kvp_tier_is_due(g)) kvp_retire_want_sending(sp, g);
    return lost;
}
