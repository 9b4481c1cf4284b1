/* SPDX-License-Identifier: Apache-2.0
 * The control thread's part of the SSD tier: mounting the tier, reporting its objects, and the master's orders about
 * it. The tier's own thread does the slow work (node/tier/). ADR 0029.
 *
 * Design notes.
 * - An order is answered when all its operations are done. An order of a closed connection is carried out without an
 *   answer.
 * - A device may be switched off, and the master informed of its lost objects, while other steps of an order that
 *   wrote there are under way. So written records are checked again when the order is answered.
 * - A load reads into a buffer first. This thread copies the buffer into the extent, between WRITING and SEALED,
 *   without interruption. So a RETIRE is obeyed before or after the copy, and no byte is stored to a retired extent. */
#include "node/priv.h"

#include "node/tier/tier.h"
#include "transport/local.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORDER_MAX 1024u /* the most records in one order */
#define REPORT_BATCH 4096u
#define SUFFIX "/ssd"
#define SLOW_LOAD_NS (100 * KVP_NS_PER_MS) /* loads that take longer are logged */
#define LOOK_NS (250 * KVP_NS_PER_MS) /* the time between two checks of the tier's size and devices */

typedef struct order order_t;

typedef struct {
    kvp_tier_op_t op;
    order_t *order;
    const void *word; /* DEMOTE: the word of the object's descriptor */
    uint64_t sealed; /* DEMOTE: the expected value of the word */
    kvp_wire_stage_t stage; /* STAGE: the extent to load the object into */
} step_t;

struct order {
    kvp_list_t link; /* link in tiering->orders, until the order is answered */
    uint64_t began_ns; /* when the order was made */
    uint64_t link_number;
    uint64_t request_id; /* the number of the master's request to answer; 0 = none, for reads and drops of a report */
    uint8_t opcode;
    uint8_t mem_uuid[16]; /* the uuid of the memory that the order is about */
    kvp_err_t err; /* DROP: the first error of a step */
    uint32_t n, left;
    uint8_t *flags; /* n bytes, the result of each step for the answer */
    step_t *steps; /* the n steps of the order, one for each record */
};

/* ---- the life of an order */
static void
order_free(order_t *o)
{
    kvp_list_del(&o->link);
    for (uint32_t i = 0; o->steps != NULL && o->opcode == KVP_OP_STAGE && i < o->n; i++)
        free(o->steps[i].op.dst);
    free(o->flags);
    free(o->steps);
    free(o);
}

static order_t *
order_make(kvp_node_t *node, uint8_t opcode, uint64_t request_id, uint32_t n)
{
    order_t *o = calloc(1, sizeof *o);

    if (o == NULL) return NULL;
    kvp_list_init(&o->link);
    o->began_ns = kvp_now_ns();
    o->link_number = node->link.number;
    o->request_id = request_id;
    o->opcode = opcode;
    if (node->mem != NULL) memcpy(o->mem_uuid, node->mem->uuid, sizeof o->mem_uuid);
    o->n = n;
    o->flags = calloc(n + 1, 1);
    o->steps = calloc(n + 1, sizeof *o->steps);
    kvp_list_add_tail(&node->tiering.orders, &o->link);
    if (o->flags != NULL && o->steps != NULL) return o;
    order_free(o);
    return NULL;
}

static void tell_whole(kvp_node_t *node, const order_t *o);

static void
take_back_lost(kvp_node_t *node, order_t *o)
{
    for (uint32_t i = 0; i < o->n; i++)
        if (o->flags[i] != 0 && !kvp_tier_is_kept(node->tiering.tier, &o->steps[i].op)) o->flags[i] = 0;
}

/* Logs slow loads, at a limited rate. The master counts the gets that waited for these loads. */
static void
log_slow_loads(kvp_node_t *node, const order_t *o, uint64_t took_ns)
{
    uint64_t bytes = 0;
    uint32_t missed;

    if (o->opcode != KVP_OP_STAGE || took_ns < SLOW_LOAD_NS) return;
    if (!kvp_log_limit_ok(&node->tiering.noise, &missed)) return;
    for (uint32_t i = 0; i < o->n; i++)
        bytes += o->steps[i].stage.len;
    kvp_log_info("node", "slow loads from the SSD objects=%u bytes=%llu ms=%llu missed=%u", o->n,
                 (unsigned long long)bytes, (unsigned long long)(took_ns / KVP_NS_PER_MS), missed);
}

static void
answer_order(kvp_node_t *node, order_t *o)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    kvp_node_link_t *l = &node->link;

    const uint64_t took_ns = kvp_now_ns() - o->began_ns;
    log_slow_loads(node, o, took_ns);
    if (o->opcode == KVP_OP_DEMOTE) take_back_lost(node, o);
    if (o->opcode == KVP_OP_DEMOTE || o->opcode == KVP_OP_STAGE)
        kvp_histogram_add(&node->times.works[o->opcode == KVP_OP_DEMOTE ? KVP_NODE_WORK_demote : KVP_NODE_WORK_stage],
                          took_ns);
    if (o->request_id != 0 && l->state != KVP_LINK_DOWN && o->link_number == l->number) {
        msg.err = o->err;
        msg.n = o->opcode == KVP_OP_DROP ? 0 : o->n;
        kvp_pb_frame(&l->conn.out, o->opcode, KVP_FRAME_REPLY, o->request_id, &msg, o->flags, msg.n);
    }
    if (o->opcode == KVP_OP_TIER_REPORT) tell_whole(node, o);
    order_free(o);
}

/* Returns the set of devices on which an order writes or, once its operations are done, has written. A refused step
 * counts for no device, so that its answer does not wait. */
static uint32_t
devices_of(const kvp_node_t *node, const order_t *o)
{
    uint32_t devices = 0;

    for (uint32_t i = 0; i < o->n; i++)
        if (o->left > 0 || o->opcode == KVP_OP_DROP || o->flags[i] != 0)
            devices |= 1u << kvp_tier_device_of(node->tiering.tier, o->steps[i].op.meta.digest);
    return devices;
}

/* Answers the finished orders. Answers to DEMOTE and DROP keep the order of the orders, except that no answer waits
 * for a device that its order does not write to. Loads wait for no write. */
static void
answer_done(kvp_node_t *node)
{
    uint32_t waiting = 0;

    kvp_list_foreach_safe (pos, tmp, &node->tiering.orders) {
        order_t *o = kvp_list_entry(pos, order_t, link);
        bool is_write = o->opcode == KVP_OP_DEMOTE || o->opcode == KVP_OP_DROP;

        uint32_t devices = is_write ? devices_of(node, o) : 0;

        if (o->left > 0 || (waiting & devices) != 0)
            waiting |= devices;
        else
            answer_order(node, o);
    }
}

/* Submits the operation of a step. After OK the operation belongs to the tier, which may have set its error already. */
static kvp_err_t
submit_step(kvp_node_t *node, step_t *s, kvp_tier_op_kind_t kind)
{
    kvp_err_t err;

    kvp_list_init(&s->op.link);
    s->op.kind = kind;
    s->op.arg = s;
    err = kvp_tier_submit(node->tiering.tier, &s->op);
    if (err == KVP_OK)
        s->order->left++;
    else
        s->op.err = err;
    return err;
}

/* ---- DEMOTE */
static bool
is_still_sealed(kvp_tier_op_t *op)
{
    const step_t *s = op->arg;

    return kvp_word_is_still(s->word, s->sealed);
}

static void
demote_one(kvp_node_t *node, step_t *s, const kvp_wire_demote_t *rec)
{
    const kvp_wire_slot_t *at = &rec->at;
    kvp_node_chunk_t *c = at->chunk < node->mem->chunk_n ? &node->mem->chunks[at->chunk] : NULL;
    kvp_tier_meta_t *meta = &s->op.meta;
    kvp_desc_t desc;

    if (c == NULL || at->slot >= c->geo.slots_max) return;
    s->word = (const uint8_t *)c->meta.addr + kvp_desc_off(at->slot);
    s->sealed = kvp_word_make(at->generation, KVP_DESC_SEALED);
    if (kvp_word_load(s->word) != s->sealed ||
        !kvp_node_mem_words.read(&node->mem, at->chunk, at->slot, &desc, meta->key))
        return;
    meta->digest = desc.digest;
    meta->version = desc.version;
    meta->key_hash2 = desc.key_hash2;
    meta->len = desc.len;
    meta->sum = desc.sum;
    meta->tenant = desc.tenant;
    meta->ns_epoch = desc.ns_epoch;
    meta->lineage = rec->lineage;
    meta->flags = desc.flags;
    meta->key_len = desc.key_len;
    s->op.src = (const uint8_t *)c->payload.addr + desc.offset;
    s->op.still = is_still_sealed;
    kvp_ignore(submit_step(node, s, KVP_TIER_WRITE), "the answer says that it is not written");
}

/* ---- STAGE */
static void
stage_one(kvp_node_t *node, step_t *s, const kvp_wire_stage_t *rec)
{
    s->order->flags[s - s->order->steps] = KVP_STAGE_FAILED;
    s->stage = *rec;
    s->op.meta.digest = rec->digest;
    s->op.meta.version = rec->version;
    s->op.cap = rec->len;
    s->op.err = KVP_NOMEM;
    if (rec->len == 0 || rec->len > node->conf.chunk_bytes) return;
    s->op.dst = malloc(rec->len);
    if (s->op.dst != NULL) kvp_ignore(submit_step(node, s, KVP_TIER_READ), "the answer says that it failed");
}

/* Stores the loaded bytes in the extent that the master named, and seals its descriptor. Returns false if the place
 * is invalid, or no longer free for this object. */
static bool
seal_extent(kvp_node_t *node, const step_t *s)
{
    const kvp_wire_stage_t *at = &s->stage;
    const kvp_tier_meta_t *meta = &s->op.meta;
    kvp_desc_t desc = {
        .version = meta->version,
        .digest = meta->digest,
        .key_hash2 = meta->key_hash2,
        .offset = at->offset,
        .len = meta->len,
        .sum = meta->sum,
        .ns_epoch = meta->ns_epoch,
        .tenant = meta->tenant,
        .key_off = at->key_off,
        .key_len = meta->key_len,
        .flags = meta->flags,
        .attempt = 1, /* attempt 1 belongs to no client */
        .term = kvp_node_core_term(node->core),
    };

    kvp_desc_seal(&desc);
    return kvp_node_extent_begin(node, at, meta->key_len) && kvp_node_extent_store(node, at, 0, s->op.dst, meta->len) &&
           kvp_node_extent_seal(node, at, &desc, meta->key);
}

static uint8_t
finish_load(kvp_node_t *node, const step_t *s)
{
    const order_t *o = s->order;
    bool is_lost =
        s->op.err == KVP_NOT_FOUND || s->op.err == KVP_CORRUPT || s->op.err == KVP_SYS || s->op.err == KVP_BUFFER_SMALL;

    if (is_lost || (s->op.err == KVP_OK && s->op.meta.len != s->stage.len)) return KVP_STAGE_GONE;
    if (s->op.err != KVP_OK || node->mem == NULL || memcmp(o->mem_uuid, node->mem->uuid, sizeof o->mem_uuid) != 0)
        return KVP_STAGE_FAILED;
    /* an order of an earlier connection fails: the master has retired its extent since */
    return o->link_number == node->link.number && seal_extent(node, s) ? KVP_STAGE_OK : KVP_STAGE_FAILED;
}

/* ---- DROP */
static void
drop_one(kvp_node_t *node, step_t *s, const kvp_wire_tiered_t *rec)
{
    kvp_err_t err;

    s->op.meta.digest = rec->digest;
    s->op.meta.version = rec->version;
    err = submit_step(node, s, KVP_TIER_DROP);
    if (s->order->err == KVP_OK) s->order->err = err;
}

/* ---- the master's orders */
static size_t
record_bytes(uint8_t opcode)
{
    return opcode == KVP_OP_DEMOTE  ? sizeof(kvp_wire_demote_t)
           : opcode == KVP_OP_STAGE ? sizeof(kvp_wire_stage_t)
                                    : sizeof(kvp_wire_tiered_t);
}

static void
begin_order(kvp_node_t *node, order_t *o, const void *recs)
{
    for (uint32_t i = 0; i < o->n; i++) {
        step_t *s = &o->steps[i];

        s->order = o;
        if (o->opcode == KVP_OP_DEMOTE)
            demote_one(node, s, (const kvp_wire_demote_t *)recs + i);
        else if (o->opcode == KVP_OP_STAGE)
            stage_one(node, s, (const kvp_wire_stage_t *)recs + i);
        else
            drop_one(node, s, (const kvp_wire_tiered_t *)recs + i);
    }
}

/* Returns whether the order is about the memory or the tier that this node has mounted. */
static bool
is_ours(const kvp_node_t *node, uint8_t opcode, uint32_t segment_id)
{
    if (opcode == KVP_OP_DROP) return segment_id == node->tiering.segment_id;
    return node->mem != NULL && segment_id == node->link.segment_id;
}

static bool
on_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t *err_out)
{
    const void *recs = NULL;
    Kvp__Pb__Retire *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;

    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    msg = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, frame);
    if (msg != NULL && msg->n <= ORDER_MAX) recs = kvp_rd_array(&rd, msg->n, record_bytes(frame->hdr.opcode));
    if (recs != NULL) *err_out = kvp_node_core_see_term(node->core, msg->term);
    if (recs != NULL && *err_out == KVP_OK && !is_ours(node, frame->hdr.opcode, msg->segment_id))
        *err_out = KVP_NO_SEGMENT;
    if (recs != NULL && *err_out == KVP_OK) {
        order_t *o = order_make(node, frame->hdr.opcode, frame->hdr.request_id, msg->n);

        if (o == NULL)
            *err_out = KVP_NOMEM;
        else
            begin_order(node, o, recs);
    }
    kvp_pb_free(&pb, msg);
    return recs != NULL;
}

bool
kvp_node_tiering_on_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t *err_out)
{
    bool is_ok;

    *err_out = KVP_NOTSUP;
    if (node->tiering.tier == NULL) return true;
    *err_out = KVP_OK;
    is_ok = on_order(node, frame, err_out);
    answer_done(node);
    return is_ok;
}

/* ---- mounting */
static uint64_t
ask_master(kvp_node_t *node, uint8_t opcode, const void *msg, const void *tail, size_t len)
{
    uint64_t id = ++node->link.next_request;

    kvp_pb_frame(&node->link.conn.out, opcode, 0, id, msg, tail, len);
    return id;
}

static void
ask_mount(kvp_node_t *node)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    char name[KVP_NAME_MAX + sizeof SUFFIX];
    kvp_tier_stats_t st;

    kvp_tier_stats(node->tiering.tier, &st);
    snprintf(name, sizeof name, "%s" SUFFIX, node->conf.name);
    msg.name = name;
    msg.uuid = (ProtobufCBinaryData){sizeof node->tiering.uuid, node->tiering.uuid};
    msg.epoch = node->epoch;
    node->tiering.told_bytes = st.size_bytes;
    node->tiering.told_stalled = st.devices_stalled;
    memcpy(node->tiering.told_away, st.away, sizeof st.away);
    for (size_t i = 0; i < sizeof st.away; i++)
        if (st.away[i] != 0) msg.away = (ProtobufCBinaryData){sizeof st.away, node->tiering.told_away};
    msg.stalled_devices = (uint32_t)st.devices_stalled;
    msg.size_bytes = kvp_max_u64(st.size_bytes, 1);
    msg.addr = node->shared.info.addr;
    msg.is_fresh = true;
    msg.is_tier = true;
    msg.term = kvp_node_core_term(node->core);
    node->tiering.state = KVP_TIERING_MOUNTING;
    node->tiering.request = ask_master(node, KVP_OP_MOUNT, &msg, NULL, 0);
}

/* Begins a page of the report in the output buffer; the caller ends it with kvp_frame_end. */
static size_t
begin_page(kvp_node_t *node)
{
    Kvp__Pb__TierReport msg = KVP__PB__TIER_REPORT__INIT;
    kvp_node_tiering_t *t = &node->tiering;
    size_t at;

    msg.segment_id = t->segment_id;
    msg.n = t->told_n;
    msg.is_last = t->is_told_last;
    t->request = ++node->link.next_request;
    kvp_pb_frame_begin(&node->link.conn.out, KVP_OP_TIER_REPORT, 0, t->request, &msg, &at);
    return at;
}

/* Reads the records of a page from the device, because a master without a log needs all metadata of each record. */
static void
read_page(kvp_node_t *node)
{
    const kvp_node_tiering_t *t = &node->tiering;
    order_t *o = order_make(node, KVP_OP_TIER_REPORT, 0, t->told_n);

    if (o == NULL) node->link.conn.out.err = KVP_NOMEM; /* the error ends the master's connection, and the report too */
    for (uint32_t i = 0; o != NULL && i < o->n; i++) {
        step_t *s = &o->steps[i];

        s->order = o;
        s->op.meta.digest = t->told[i].digest;
        s->op.meta.version = t->told[i].version;
        kvp_ignore(submit_step(node, s, KVP_TIER_READ), "what cannot be read is not told");
    }
}

static void
report_page(kvp_node_t *node)
{
    kvp_node_tiering_t *t = &node->tiering;
    kvp_buf_t *out = &node->link.conn.out;
    size_t at;

    t->told_n = kvp_tier_list(t->tier, &t->cursor, t->told, t->is_whole ? KVP_WHOLE_MAX : REPORT_BATCH);
    t->is_told_last = t->told_n == 0;
    if (t->is_whole && t->told_n > 0) {
        read_page(node);
        return;
    }
    at = begin_page(node);
    kvp_buf_append(out, t->told, t->told_n * sizeof *t->told);
    kvp_frame_end(out, at);
}

static void
append_whole(const kvp_tier_meta_t *meta, kvp_buf_t *out)
{
    static const uint8_t zeros[8];
    kvp_wire_whole_t rec = {
        .digest = meta->digest,
        .version = meta->version,
        .key_hash2 = meta->key_hash2,
        .len = meta->len,
        .sum = meta->sum,
        .lineage = meta->lineage,
        .tenant = meta->tenant,
        .flags = meta->flags,
        .key_len = meta->key_len,
    };

    kvp_buf_append(out, &rec, sizeof rec);
    kvp_buf_append(out, meta->key, meta->key_len);
    kvp_buf_append(out, zeros, kvp_align_up(meta->key_len, 8) - meta->key_len);
}

/* Sends a page of a whole report, after its records were read. */
static void
tell_whole(kvp_node_t *node, const order_t *o)
{
    kvp_node_tiering_t *t = &node->tiering;
    kvp_buf_t *out = &node->link.conn.out;
    size_t at;

    if (t->state != KVP_TIERING_REPORTING || o->link_number != node->link.number) return;
    t->told_n = 0;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].op.err == KVP_OK)
            t->told[t->told_n++] = (kvp_wire_tiered_t){o->steps[i].op.meta.digest, o->steps[i].op.meta.version};
    at = begin_page(node);
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].op.err == KVP_OK) append_whole(&o->steps[i].op.meta, out);
    kvp_frame_end(out, at);
}

static void
ask_unmount(kvp_node_t *node)
{
    Kvp__Pb__Unmount msg = KVP__PB__UNMOUNT__INIT;

    msg.segment_id = node->tiering.segment_id;
    msg.is_kept = true;
    node->tiering.state = KVP_TIERING_LEAVING;
    node->tiering.request = ask_master(node, KVP_OP_UNMOUNT, &msg, NULL, 0);
}

bool
kvp_node_tiering_on_unmounted(kvp_node_t *node, const kvp_frame_t *frame)
{
    kvp_node_tiering_t *t = &node->tiering;

    if (t->state != KVP_TIERING_LEAVING || frame->hdr.request_id != t->request) return false;
    t->state = KVP_TIERING_DOWN;
    t->request = 0;
    kvp_log_info("node", "the tier is unmounted name=%s" SUFFIX, node->conf.name);
    return true;
}

static void
be_up(kvp_node_t *node)
{
    free(node->tiering.told);
    node->tiering.told = NULL;
    node->tiering.state = KVP_TIERING_UP;
    kvp_log_info("node", "the tier is mounted name=%s" SUFFIX " segment=%u", node->conf.name, node->tiering.segment_id);
}

bool
kvp_node_tiering_on_mounted(kvp_node_t *node, const kvp_frame_t *frame, const Kvp__Pb__MountReply *msg)
{
    kvp_node_tiering_t *t = &node->tiering;

    if (t->state != KVP_TIERING_MOUNTING || frame->hdr.request_id != t->request) return false;
    t->state = KVP_TIERING_DOWN;
    t->request = 0;
    if (msg->err != KVP_OK) {
        kvp_log_warn("node", "the tier is not mounted: %s %s", kvp_err_text(msg->err), msg->detail);
        t->again_ns = kvp_now_ns() + KVP_NS_PER_S;
        return true;
    }
    t->segment_id = msg->segment_id;
    if (msg->report == 0) {
        be_up(node);
        return true;
    }
    t->told = calloc(REPORT_BATCH, sizeof *t->told);
    if (t->told == NULL) {
        node->link.conn.out.err = KVP_NOMEM;
        return true;
    }
    t->state = KVP_TIERING_REPORTING;
    t->cursor = 0;
    t->is_whole = msg->report == 2;
    report_page(node);
    return true;
}

/* Drops objects that the master does not want. Hiding their records is enough, so the caller does not wait for the
 * disk. */
static kvp_err_t
drop_unwanted(kvp_node_t *node, const uint8_t *unwanted)
{
    kvp_node_tiering_t *t = &node->tiering;
    uint32_t n = 0;
    order_t *o;

    for (uint32_t i = 0; i < t->told_n; i++)
        if (unwanted[i] != 0) t->told[n++] = t->told[i];
    if (n == 0) return KVP_OK;
    o = order_make(node, KVP_OP_DROP, 0, n);
    if (o == NULL) return KVP_NOMEM;
    begin_order(node, o, t->told);
    return KVP_OK;
}

kvp_err_t
kvp_node_tiering_on_answer(kvp_node_t *node, const kvp_frame_t *frame)
{
    kvp_node_tiering_t *t = &node->tiering;
    const uint8_t *flags = NULL;
    Kvp__Pb__Reply *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;
    kvp_err_t err = KVP_PROTO;

    if (t->tier == NULL || frame->hdr.request_id != t->request) return KVP_OK;
    msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, frame);
    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    if (msg != NULL) {
        err = msg->err;
        flags = kvp_rd_array(&rd, msg->n, 1);
    }
    if (err == KVP_OK && (flags == NULL || msg->n != t->told_n)) err = KVP_PROTO;
    kvp_pb_free(&pb, msg);
    if (err != KVP_OK) return err;
    t->request = 0;
    if (frame->hdr.opcode == KVP_OP_RECLAIM) {
        kvp_tier_answer(t->tier, flags, t->told_n);
        return KVP_OK;
    }
    err = drop_unwanted(node, flags);
    if (err != KVP_OK) return err;
    if (t->is_told_last)
        be_up(node);
    else
        report_page(node);
    return KVP_OK;
}

/* ---- called by the loop */
static void
take_done(kvp_node_t *node)
{
    kvp_tier_op_t *op;

    while ((op = kvp_tier_take(node->tiering.tier)) != NULL) {
        step_t *s = op->arg;
        order_t *o = s->order;
        uint32_t i = (uint32_t)(s - o->steps);

        o->left--;
        if (o->opcode == KVP_OP_DEMOTE) o->flags[i] = op->err == KVP_OK;
        if (o->opcode == KVP_OP_STAGE) o->flags[i] = finish_load(node, s);
        if (o->opcode == KVP_OP_DROP && o->err == KVP_OK) o->err = op->err;
        free(op->dst);
        op->dst = NULL;
    }
    answer_done(node);
}

static void
propose_page(kvp_node_t *node)
{
    kvp_node_tiering_t *t = &node->tiering;
    Kvp__Pb__Reclaim msg = KVP__PB__RECLAIM__INIT;
    kvp_tier_proposal_t *p;

    if (t->state != KVP_TIERING_UP || t->request != 0) return;
    p = malloc(sizeof *p);
    if (p != NULL && kvp_tier_propose(t->tier, p)) {
        msg.segment_id = t->segment_id;
        msg.n = t->told_n = p->n;
        msg.keep_bytes = p->keep_bytes;
        t->request = ask_master(node, KVP_OP_RECLAIM, &msg, p->recs, p->n * sizeof p->recs[0]);
    }
    free(p);
}

/* Mounts the tier again with new figures if its size or its set of slots without a device changed: a device that fails
 * or works again changes the size, a device that hangs or answers again changes the set. */
static void
look_at_size(kvp_node_t *node, uint64_t now_ns)
{
    kvp_node_tiering_t *t = &node->tiering;
    kvp_tier_stats_t st;

    if (t->state != KVP_TIERING_UP || t->request != 0 || now_ns < t->again_ns) return;
    t->again_ns = now_ns + LOOK_NS;
    kvp_tier_stats(t->tier, &st);
    if (st.size_bytes != t->told_bytes || st.devices_stalled != t->told_stalled ||
        memcmp(st.away, t->told_away, sizeof st.away) != 0)
        ask_mount(node);
}

void
kvp_node_tiering_poll(kvp_node_t *node, uint64_t now_ns)
{
    kvp_node_tiering_t *t = &node->tiering;
    bool is_linked = node->link.state == KVP_LINK_UP;

    if (t->tier == NULL) return;
    take_done(node);
    if (!is_linked) return;
    if (!t->is_used || memcmp(t->pool_id, node->mem->conf.pool_id, sizeof t->pool_id) != 0) {
        memcpy(t->pool_id, node->mem->conf.pool_id, sizeof t->pool_id);
        kvp_tier_use(t->tier, t->pool_id, t->uuid);
        t->is_used = true;
    }
    if (atomic_load(&t->is_over)) {
        if (t->state == KVP_TIERING_UP && t->request == 0) ask_unmount(node);
        return;
    }
    if (t->state == KVP_TIERING_DOWN && now_ns >= t->again_ns && kvp_tier_is_ready(t->tier)) ask_mount(node);
    propose_page(node);
    look_at_size(node, now_ns);
}

void
kvp_node_tiering_link_lost(kvp_node_t *node)
{
    kvp_node_tiering_t *t = &node->tiering;

    if (t->tier == NULL) return;
    if (t->state == KVP_TIERING_UP && t->request != 0) kvp_tier_answer(t->tier, NULL, 0);
    t->state = KVP_TIERING_DOWN;
    t->request = 0;
    free(t->told);
    t->told = NULL;
}

void
kvp_node_tiering_leave_memory(kvp_node_t *node)
{
    if (node->tiering.tier != NULL) kvp_tier_quiesce(node->tiering.tier);
}

/* ---- lifecycle */
/* Parses a device option "DIR:SIZE"; the directory may contain colons. */
static kvp_err_t
read_device(const char *text, char dir[KVP_NODE_SSD_DIR_MAX], kvp_tier_device_t *device_out)
{
    const char *colon = strrchr(text, ':');

    if (colon == NULL || colon == text || (size_t)(colon - text) >= KVP_NODE_SSD_DIR_MAX ||
        kvp_parse_bytes(colon + 1, &device_out->size_bytes) != KVP_OK) {
        kvp_log_error("node", "--ssd %s: DIR:SIZE is expected", text);
        return KVP_INVALID;
    }
    snprintf(dir, KVP_NODE_SSD_DIR_MAX, "%.*s", (int)(colon - text), text);
    device_out->dir = dir;
    return KVP_OK;
}

kvp_err_t
kvp_node_tiering_open(kvp_node_t *node, const kvp_node_conf_t *from)
{
    kvp_tier_conf_t conf = {.name = node->conf.name,
                            .wake_fd = node->events.epoll.wake_fd,
                            .write_budget_bytes = from->ssd_writes,
                            .is_apart = from->is_alone};
    char dirs[KVP_TIER_DEVICES_MAX][KVP_NODE_SSD_DIR_MAX];

    if (from->ssd_n == 0 && from->ssd_writes > 0) kvp_log_warn("node", "--ssd-writes has no meaning without --ssd");
    if (from->ssd_n == 0) return KVP_OK;
    if (from->ssd_n > KVP_TIER_DEVICES_MAX || strlen(node->conf.name) + strlen(SUFFIX) > KVP_NAME_MAX) {
        kvp_log_error("node", "an SSD tier has at most %u devices, and its node's name at most %u bytes",
                      KVP_TIER_DEVICES_MAX, KVP_NAME_MAX - (uint32_t)strlen(SUFFIX));
        return KVP_INVALID;
    }
    for (size_t i = 0; i < from->ssd_n; i++) {
        kvp_err_t err = read_device(from->ssd[i], dirs[i], &conf.devices[i]);

        if (err != KVP_OK) return err;
    }
    conf.devices_n = (uint32_t)from->ssd_n;
    return kvp_tier_open(&conf, &node->tiering.tier);
}

void
kvp_node_tiering_close(kvp_node_t *node)
{
    kvp_node_tiering_t *t = &node->tiering;

    if (t->tier == NULL) return;
    kvp_tier_stop(t->tier);
    while (kvp_tier_take(t->tier) != NULL)
        continue;
    while (!kvp_list_is_empty(&t->orders))
        order_free(kvp_list_first(&t->orders, order_t, link));
    kvp_tier_close(t->tier);
    free(t->told);
    t->tier = NULL;
}
