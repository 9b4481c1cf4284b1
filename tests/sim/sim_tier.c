/* SPDX-License-Identifier: Apache-2.0
 * A node's tier: mounting, reports, orders. The steps of the real node (node/tiering.c) are taken one by one: a DEMOTE
 * copies and looks at the word when it begins, and is on the device when it is done; a STAGE reads and stores when it
 * is done; what is dropped is hidden at once, and gone for good when that is done. A process that dies in between
 * leaves either. */
#include "tests/sim/sim_tier.h"

#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_oracle.h"

#include "proto/kvpool.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define RECORDS_MAX 1024u /* of one order */
#define RECLAIMED_MAX 4u /* records of a proposal */
#define FULL_PER_MILLE 50u /* writes for which the device has no room, */
#define FAILED_PER_MILLE 30u /* reads that fail for now */
#define POWER_NS SEC /* what was written within it may be lost with the power */

struct tier_order {
    node_t *node;
    uint64_t link; /* the connection that brought it */
    uint64_t request; /* 0 = nobody asked */
    uint8_t opcode;
    uint32_t n;
    const void *recs; /* in a packet, which stays */
    mem_t *mem; /* NULL: it is there no more */
    tiered_t **made; /* DEMOTE: what is being written; NULL = its extent was another object's by then */
    bool is_done;
    struct tier_order *next;
};

/* ---- records */
static tiered_t *
find(const node_t *n, kvp_digest_t digest, uint64_t version)
{
    for (tiered_t *r = n->tier.records; r != NULL; r = r->older)
        if (r->is_there && r->desc.version == version && kvp_digest_eq(r->desc.digest, digest)) return r;
    return NULL;
}

static void
land(node_t *n, tiered_t *made)
{
    for (tiered_t *r = n->tier.records; r != NULL; r = r->older)
        if (r->is_there && kvp_digest_eq(r->desc.digest, made->desc.digest) && r->desc.version <= made->desc.version)
            r->is_there = false;
    made->is_there = true;
    made->written_ns = n->sim->now;
    made->older = n->tier.records;
    n->tier.records = made;
    TRACE(n->sim, "%s has version %lx on its tier", n->party.name, (unsigned long)made->desc.version);
}

/* ---- DEMOTE */
static tiered_t *
copy(sim_t *s, node_t *n, const kvp_wire_slot_t *at)
{
    tiered_t *r;
    grant_t *g = grant_find(n->mem, at->chunk, at->slot, at->generation);
    uint32_t units;

    if (g == NULL || mem_word(s, n->mem, at->chunk, at->slot) != kvp_word_make(at->generation, KVP_DESC_SEALED))
        return NULL;
    r = sim_alloc(s, sizeof *r);
    if (!mem_describes(n->mem, at->chunk, at->slot, &r->desc, (uint8_t *)r->key)) return NULL;
    units = (uint32_t)((r->desc.len + UNIT - 1) / UNIT);
    r->units = sim_alloc(s, units * sizeof *r->units);
    for (uint32_t i = 0; i < units; i++)
        r->units[i] = mem_load(s, g, i);
    r->from = g;
    r->put = g->put;
    r->commit_ns = g->commit_ns;
    r->heard_ns = UINT64_MAX;
    return r;
}

/* ---- STAGE */
static uint8_t
stage(sim_t *s, const tier_order_t *o, const kvp_wire_stage_t *rec)
{
    node_t *n = o->node;
    const tiered_t *r = find(n, rec->digest, rec->version);
    grant_t *g;
    kvp_desc_t desc;

    if (r == NULL) {
        tier_is_gone(s, n, rec->digest, rec->version);
        return KVP_STAGE_GONE;
    }
    if (o->mem == NULL || o->mem != n->mem || n->link == NULL || n->link->id != o->link) return KVP_STAGE_FAILED;
    if (rng_chance(&n->rng, FAILED_PER_MILLE)) return KVP_STAGE_FAILED;
    g = grant_find(o->mem, rec->chunk, rec->slot, rec->generation);
    if (g == NULL || !mem_publish(s, o->mem, rec->chunk, rec->slot, kvp_word_make(rec->generation, KVP_DESC_WRITING)))
        return KVP_STAGE_FAILED;
    for (uint32_t i = 0; i < g->units; i++)
        mem_store(s, g, i, r->units[i]);
    desc = r->desc;
    desc.offset = rec->offset;
    desc.key_off = rec->key_off;
    desc.attempt = 1;
    desc.term = kvp_node_core_term(n->core);
    kvp_desc_seal(&desc);
    mem_describe(s, g, &desc, r->key, desc.key_len);
    (void)mem_publish(s, o->mem, rec->chunk, rec->slot, kvp_word_make(rec->generation, KVP_DESC_SEALED));
    return KVP_STAGE_OK;
}

/* ---- orders */
static void
drop(node_t *n, const kvp_wire_tiered_t *rec)
{
    for (tiered_t *r = n->tier.records; r != NULL; r = r->older)
        if (kvp_digest_eq(r->desc.digest, rec->digest) && r->desc.version <= rec->version) r->is_there = false;
}

/* What one record of an order does to the device. */
static void
apply(tier_order_t *o, uint32_t i)
{
    tiered_t *made = o->opcode == KVP_OP_DEMOTE ? o->made[i] : NULL;

    if (o->opcode == KVP_OP_DROP) drop(o->node, (const kvp_wire_tiered_t *)o->recs + i);
    if (made != NULL && find(o->node, made->desc.digest, made->desc.version) == NULL) land(o->node, made);
}

static void
answer(sim_t *s, tier_order_t *o)
{
    const kvp_wire_stage_t *stages = o->recs;
    uint8_t flags[RECORDS_MAX] = {0};

    for (uint32_t i = 0; i < o->n; i++) {
        apply(o, i);
        if (o->opcode == KVP_OP_STAGE) flags[i] = stage(s, o, &stages[i]);
        if (o->opcode == KVP_OP_DEMOTE) flags[i] = o->made[i] != NULL;
    }
    if (o->request == 0 || o->node->link == NULL || o->node->link->id != o->link) return;
    node_answer(s, o->node, o->opcode, o->request, flags, o->opcode == KVP_OP_DROP ? 0 : o->n);
    if (o->opcode == KVP_OP_DEMOTE) tier_expects(s, o->node->link, o->opcode, o->request, o->made, o->n);
}

static void
on_done(sim_t *s, void *arg, uint64_t unused)
{
    tier_order_t *o = arg;
    tier_t *t = &o->node->tier;

    (void)unused;
    o->is_done = true;
    if (o->opcode == KVP_OP_STAGE) answer(s, o); /* it waits for no write */
    while (t->orders != NULL && t->orders->is_done) {
        tier_order_t *first = t->orders;

        t->orders = first->next;
        if (t->orders == NULL) t->orders_end = &t->orders;
        answer(s, first);
    }
    node_settle(s, o->node);
}

static void
add_order(sim_t *s, node_t *n, uint8_t opcode, uint64_t request, const void *recs, uint32_t count)
{
    tier_order_t *o = sim_alloc(s, sizeof *o);
    tier_t *t = &n->tier;

    *o = (tier_order_t){
        .node = n, .link = n->link->id, .request = request, .opcode = opcode, .n = count, .recs = recs, .mem = n->mem};
    if (t->orders == NULL) t->orders_end = &t->orders;
    if (opcode != KVP_OP_STAGE) *t->orders_end = o;
    if (opcode != KVP_OP_STAGE) t->orders_end = &o->next;
    o->made = sim_alloc(s, (count + 1) * sizeof(*o->made));
    for (uint32_t i = 0; i < count && opcode == KVP_OP_DEMOTE; i++)
        o->made[i] = n->mem == NULL || rng_chance(&n->rng, FULL_PER_MILLE)
                         ? NULL
                         : copy(s, n, &((const kvp_wire_demote_t *)recs)[i].at);
    sim_at(s, &n->party, s->now + rng_log(&n->rng, 20 * US, rng_chance(&n->rng, 100) ? 300 * MS : 5 * MS), on_done, o,
           0);
}

bool
tier_on_order(sim_t *s, node_t *n, const kvp_frame_t *f, kvp_err_t *err_out)
{
    Kvp__Pb__Retire *msg;
    kvp_pb_t pb;

    *err_out = KVP_OK;
    if (f->hdr.opcode != KVP_OP_DEMOTE && f->hdr.opcode != KVP_OP_STAGE && f->hdr.opcode != KVP_OP_DROP) return false;
    msg = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, f);
    if (msg == NULL || msg->n > RECORDS_MAX) {
        sim_fail(s, "WIRE", "a malformed order about a tier: op %u", f->hdr.opcode);
        kvp_pb_free(&pb, msg);
        return true;
    }
    *err_out = kvp_node_core_see_term(n->core, msg->term);
    if (*err_out == KVP_OK && msg->segment_id != (f->hdr.opcode == KVP_OP_DROP ? n->tier.segment_id : n->segment_id))
        *err_out = KVP_NO_SEGMENT;
    if (*err_out == KVP_OK) add_order(s, n, f->hdr.opcode, f->hdr.request_id, f->tail, msg->n);
    kvp_pb_free(&pb, msg);
    return true;
}

/* ---- mounting and reports */
static void
ask_mount(sim_t *s, node_t *n)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    uint8_t uuid[16] = {0xaa, (uint8_t)n->index};
    char name[24];

    snprintf(name, sizeof name, "%s/ssd", n->party.name);
    msg.name = name;
    msg.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    msg.size_bytes = 1 << 20;
    msg.addr = n->party.name;
    msg.is_fresh = msg.is_tier = true;
    msg.term = kvp_node_core_term(n->core);
    n->tier.state = TIER_MOUNTING;
    n->tier.request = node_ask(s, n, KVP_OP_MOUNT, &msg.base, NULL, 0);
}

static void
append_whole(const tiered_t *r, kvp_buf_t *out)
{
    const kvp_desc_t *d = &r->desc;
    kvp_wire_whole_t rec = {d->digest, d->version, d->key_hash2, d->len, d->sum, {0}, d->tenant, d->flags, d->key_len};
    uint8_t key[KEY_BYTES] = {0};

    memcpy(key, r->key, d->key_len);
    kvp_buf_append(out, &rec, sizeof rec);
    kvp_buf_append(out, key, kvp_align_up(d->key_len, 8));
}

static void
report_page(sim_t *s, node_t *n)
{
    Kvp__Pb__TierReport msg = KVP__PB__TIER_REPORT__INIT;
    tier_t *t = &n->tier;

    kvp_buf_reset(&n->page);
    for (t->told_n = 0; t->next != NULL && t->told_n < 3; t->next = t->next->older) {
        kvp_wire_tiered_t rec = {t->next->desc.digest, t->next->desc.version};

        if (!t->next->is_there) continue;
        t->told[t->told_n++] = t->next;
        if (t->is_whole)
            append_whole(t->next, &n->page);
        else
            kvp_buf_append(&n->page, &rec, sizeof rec);
    }
    msg.segment_id = t->segment_id;
    msg.n = t->told_n;
    msg.is_last = t->told_n == 0;
    t->request = node_ask(s, n, KVP_OP_TIER_REPORT, &msg.base, n->page.data, n->page.len);
    tier_expects(s, n->link, KVP_OP_TIER_REPORT, t->request, t->told, t->told_n);
}

static void
take_mount(sim_t *s, node_t *n, const Kvp__Pb__MountReply *msg)
{
    tier_t *t = &n->tier;

    t->state = TIER_DOWN;
    if (msg->err != KVP_OK) return;
    t->segment_id = msg->segment_id;
    t->state = msg->report == 0 ? TIER_UP : TIER_REPORTING;
    if (msg->report == 0) return;
    t->is_whole = msg->report == 2;
    t->next = t->records;
    report_page(s, n);
}

/* What the master does not want. */
static void
drop_told(sim_t *s, node_t *n, const uint8_t *flags)
{
    kvp_wire_tiered_t *recs = sim_alloc(s, (n->tier.told_n + 1) * sizeof *recs);
    uint32_t count = 0;

    for (uint32_t i = 0; i < n->tier.told_n; i++)
        if (flags[i] != 0)
            recs[count++] = (kvp_wire_tiered_t){n->tier.told[i]->desc.digest, n->tier.told[i]->desc.version};
    if (count > 0) add_order(s, n, KVP_OP_DROP, 0, recs, count);
}

static void
give_up(node_t *n, const uint8_t *keep)
{
    for (uint32_t i = 0; i < n->tier.told_n; i++)
        if (keep[i] == 0) n->tier.told[i]->is_there = false;
}

static bool
take_answer(sim_t *s, node_t *n, const kvp_frame_t *f, const Kvp__Pb__Reply *msg)
{
    tier_t *t = &n->tier;
    bool is_last = t->told_n == 0;

    if (msg->err != KVP_OK || msg->n != t->told_n || f->tail_len != msg->n) {
        sim_fail(s, "WIRE", "an answer to %u records of a tier tells of %u", t->told_n, msg->n);
        return true;
    }
    t->request = 0;
    if (f->hdr.opcode == KVP_OP_RECLAIM) {
        give_up(n, f->tail);
        return true;
    }
    drop_told(s, n, f->tail);
    if (is_last)
        t->state = TIER_UP;
    else
        report_page(s, n);
    return true;
}

bool
tier_on_answer(sim_t *s, node_t *n, const kvp_frame_t *f)
{
    bool is_mount = f->hdr.opcode == KVP_OP_MOUNT;
    kvp_pb_t pb;
    void *msg;

    if (n->tier.request == 0 || f->hdr.request_id != n->tier.request) return false;
    msg = kvp_pb_unpack(&pb, is_mount ? &kvp__pb__mount_reply__descriptor : &kvp__pb__reply__descriptor, f);
    if (msg != NULL && is_mount) n->tier.request = 0;
    if (msg != NULL && is_mount)
        take_mount(s, n, msg);
    else if (msg != NULL)
        (void)take_answer(s, n, f, msg);
    kvp_pb_free(&pb, msg);
    return true;
}

/* The oldest of what is there, of which the master says what is worth keeping. */
static void
propose(sim_t *s, node_t *n)
{
    Kvp__Pb__Reclaim msg = KVP__PB__RECLAIM__INIT;
    kvp_wire_tiered_t recs[RECLAIMED_MAX];
    tier_t *t = &n->tier;

    t->told_n = 0;
    for (tiered_t *r = t->records; r != NULL; r = r->older) {
        if (!r->is_there) continue;
        if (t->told_n == RECLAIMED_MAX) memmove(t->told, t->told + 1, (RECLAIMED_MAX - 1) * sizeof(*t->told));
        t->told_n -= t->told_n == RECLAIMED_MAX;
        t->told[t->told_n++] = r;
    }
    if (t->told_n == 0) return;
    for (uint32_t i = 0; i < t->told_n; i++)
        recs[i] = (kvp_wire_tiered_t){t->told[i]->desc.digest, t->told[i]->desc.version};
    msg.segment_id = t->segment_id;
    msg.n = t->told_n;
    msg.keep_bytes = rng_chance(&n->rng, 300) ? 0 : CHUNK_BYTES;
    t->request = node_ask(s, n, KVP_OP_RECLAIM, &msg.base, recs, msg.n * sizeof recs[0]);
    tier_expects(s, n->link, KVP_OP_RECLAIM, t->request, t->told, t->told_n);
}

void
tier_poll(sim_t *s, node_t *n)
{
    if (!s->plan->has_tiers) return;
    if (n->tier.state == TIER_DOWN) ask_mount(s, n);
    if (n->tier.state == TIER_UP && n->tier.request == 0 && !s->is_calm && rng_chance(&n->rng, 20)) propose(s, n);
}

/* ---- what ends */
void
tier_link_lost(node_t *n)
{
    n->tier.state = TIER_DOWN;
    n->tier.request = 0;
    n->tier.told_n = 0;
}

/* Of what was under way, in its order, some is on the device. */
void
tier_crash(sim_t *s, node_t *n, rng_t *rng, bool is_process)
{
    bool is_power = !is_process && rng_chance(rng, 300);

    for (tier_order_t *o = n->tier.orders; o != NULL && !rng_chance(rng, 300); o = o->next)
        for (uint32_t i = 0; i < o->n && !rng_chance(rng, 100); i++)
            apply(o, i);
    for (tiered_t *r = n->tier.records; r != NULL; r = r->older) {
        if (!is_power || !r->is_there || r->written_ns + POWER_NS < s->now || !rng_chance(rng, 500)) continue;
        r->is_there = false;
        r->was_lost = true;
    }
    n->tier.orders = NULL;
    tier_link_lost(n);
}
