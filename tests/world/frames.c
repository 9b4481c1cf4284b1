/* SPDX-License-Identifier: Apache-2.0
 * What is said between the master and its peers: packets and their delays, questions and their answers, and what
 * everything that the master says is held against when it says it. */
#include "tests/world/priv.h"

#include "master/core/base/slab.h"

/* ---- what the master says, at the moment that it says it */
static void
saw_grant(world_t *w, const kvp_wire_loc_t *loc, uint64_t len)
{
    mem_t *mem = mem_find(w, loc->segment_id);
    chunk_t *c;

    if (mem == NULL) return; /* dropped since */
    c = mem_chunk(mem, loc->chunk);
    assert_true(loc->slot < c->geo.slots_max);
    assert_true(loc->offset % kvp_extent_align_bytes(len) == 0);
    assert_true(loc->offset + len <= c->bytes);
    assert_true((uint64_t)loc->key_off * 64 < c->geo.meta_bytes);
    if (w->conf.has_journal && loc->generation > c->granted[loc->slot] && loc->generation == c->retired[loc->slot]) {
        c->granted[loc->slot] =
            loc->generation; /* said late, for the journal's sake: nobody may write there any more */
        return;
    }
    if (loc->generation <= c->granted[loc->slot] || loc->generation <= c->retired[loc->slot])
        fail_msg("generation %lx of slot %u is not new", (unsigned long)loc->generation, loc->slot);
    if (c->len[loc->slot] != 0) fail_msg("slot %u is granted twice", loc->slot);
    c->granted[loc->slot] = loc->generation;
    c->offset[loc->slot] = loc->offset;
    c->len[loc->slot] = kvp_extent_bytes(len);
    mem_mark(c, loc->slot, true);
}

static void
saw_place(world_t *w, const kvp_wire_loc_t *loc)
{
    mem_t *mem = mem_find(w, loc->segment_id);
    const chunk_t *c;

    if (mem == NULL && w->has_wild) return;
    assert_non_null(mem);
    c = mem_chunk(mem, loc->chunk);
    assert_int_equal(c->granted[loc->slot], loc->generation);
    if (c->retired[loc->slot] >= loc->generation) fail_msg("a reader is sent to slot %u, which is retired", loc->slot);
}

static void
got_ticket(peer_t *p, uint64_t ticket)
{
    if (ticket != 0) p->tickets[p->tickets_n++ % KVP_ARRAY_LEN(p->tickets)] = ticket;
}

static void
saw_places(world_t *w, peer_t *p, const kvp_frame_t *f)
{
    const kvp_wire_obj_t *objs;
    const kvp_wire_loc_t *locs;
    Kvp__Pb__Places *head;
    kvp_rd_t rd;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, f);
    assert_non_null(head);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    objs = kvp_rd_array(&rd, head->n, sizeof *objs);
    locs = kvp_rd_array(&rd, head->nloc, sizeof *locs);
    assert_false(rd.is_bad);
    for (uint32_t i = 0; i < head->n; i++) {
        /* Who asks only whether it is there is not told a place on a tier. */
        assert_true((objs[i].nloc > 0) == (objs[i].err == KVP_OK) || (w->has_tiers && f->hdr.opcode == KVP_OP_GET));
        assert_true(objs[i].nloc <= KVP_REPLICAS_MAX);
        for (uint32_t k = 0; k < objs[i].nloc; k++, locs++) {
            if (f->hdr.opcode == KVP_OP_PUT_BEGIN)
                saw_grant(w, locs, objs[i].len);
            else
                saw_place(w, locs);
        }
    }
    assert_ptr_equal(locs, (const kvp_wire_loc_t *)(objs + head->n) + head->nloc);
    got_ticket(p, head->ticket);
    kvp_pb_free(&pb, head);
}

const kvp_wire_slot_t *
retire_read(const kvp_frame_t *f, kvp_pb_t *pb, Kvp__Pb__Retire **head_out)
{
    const kvp_wire_slot_t *slots;
    kvp_rd_t rd;

    *head_out = kvp_pb_unpack(pb, &kvp__pb__retire__descriptor, f);
    assert_non_null(*head_out);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    slots = kvp_rd_array(&rd, (*head_out)->n, sizeof *slots);
    assert_non_null(slots);
    return slots;
}

static void
saw_retire(world_t *w, const kvp_frame_t *f)
{
    const kvp_wire_slot_t *slots;
    Kvp__Pb__Retire *head;
    kvp_pb_t pb;
    mem_t *mem;

    slots = retire_read(f, &pb, &head);
    mem = mem_find(w, head->segment_id);
    assert_true(mem != NULL || w->has_wild);
    for (uint32_t i = 0; mem != NULL && i < head->n; i++) {
        chunk_t *c = mem_chunk(mem, slots[i].chunk);

        assert_true(slots[i].slot < c->geo.slots_max);
        assert_true(slots[i].generation >= c->granted[slots[i].slot]);
        c->retired[slots[i].slot] = slots[i].generation;
        if (w->on_retire != NULL) w->on_retire(w->hook_arg, mem, &slots[i]);
    }
    kvp_pb_free(&pb, head);
}

static void
saw_stage(world_t *w, const kvp_frame_t *f)
{
    const kvp_wire_stage_t *recs = (const kvp_wire_stage_t *)f->tail;
    Kvp__Pb__Retire *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, f);
    assert_non_null(head);
    assert_int_equal(f->tail_len, head->n * sizeof *recs);
    for (uint32_t i = 0; i < head->n; i++) {
        kvp_wire_loc_t loc = {.segment_id = head->segment_id,
                              .chunk = recs[i].chunk,
                              .slot = recs[i].slot,
                              .key_off = recs[i].key_off,
                              .generation = recs[i].generation,
                              .offset = recs[i].offset};

        saw_grant(w, &loc, recs[i].len);
    }
    kvp_pb_free(&pb, head);
}

static void
saw_copy(world_t *w, const kvp_frame_t *f)
{
    const kvp_wire_copy_t *recs = (const kvp_wire_copy_t *)f->tail;
    Kvp__Pb__Retire *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, f);
    assert_non_null(head);
    assert_int_equal(f->tail_len, head->n * sizeof *recs);
    for (uint32_t i = 0; i < head->n; i++) {
        kvp_wire_loc_t loc = {.segment_id = head->segment_id,
                              .chunk = recs[i].to_chunk,
                              .slot = recs[i].to_slot,
                              .key_off = recs[i].to_key_off,
                              .generation = recs[i].to_generation,
                              .offset = recs[i].to_offset};

        saw_grant(w, &loc, recs[i].len);
    }
    kvp_pb_free(&pb, head);
}

static mem_t *
asked_mem(const peer_t *p, uint64_t id)
{
    for (uint32_t i = 0; i < p->asks_n; i++)
        if (p->asks[i].id == id) return p->asks[i].mem;
    return NULL;
}

/* From now on places may be granted there, though the node does not know yet, and may have asked for other memory
 * since. */
static void
saw_mount(const peer_t *p, const kvp_frame_t *f)
{
    mem_t *mem = asked_mem(p, f->hdr.request_id);
    Kvp__Pb__MountReply *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, f);
    assert_non_null(head);
    if (mem != NULL && head->err == KVP_OK && !head->is_reset && !p->is_mounting_tier)
        mem->segment_id = head->segment_id;
    kvp_pb_free(&pb, head);
}

static void
saw_hello(peer_t *p, const kvp_frame_t *f)
{
    Kvp__Pb__HelloReply *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, f);
    assert_non_null(head);
    if (head->err == KVP_OK) p->incarnation = head->incarnation;
    kvp_pb_free(&pb, head);
}

static void
saw_lookup(peer_t *p, const kvp_frame_t *f)
{
    Kvp__Pb__LookupReply *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, f);
    assert_non_null(head);
    assert_true(head->granted <= head->found);
    assert_true(head->err != KVP_OK || f->tail_len == head->n);
    got_ticket(p, head->ticket);
    kvp_pb_free(&pb, head);
}

static void
saw_presented(peer_t *p, const kvp_frame_t *f)
{
    const kvp_wire_presented_t *answers = (const kvp_wire_presented_t *)f->tail;
    Kvp__Pb__PresentReply *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__present_reply__descriptor, f);
    assert_non_null(head);
    assert_true(head->err != KVP_OK || f->tail_len == head->n * sizeof *answers);
    for (uint32_t i = 0; head->err == KVP_OK && i < head->n; i++) {
        assert_true((answers[i].err == KVP_OK) == (answers[i].ticket != 0));
        got_ticket(p, answers[i].ticket);
    }
    kvp_pb_free(&pb, head);
}

static void
saw_answer(world_t *w, peer_t *p, const kvp_frame_t *f)
{
    switch (f->hdr.opcode) {
    case KVP_OP_HELLO:
        saw_hello(p, f);
        break;
    case KVP_OP_MOUNT:
        if (!p->is_wild) saw_mount(p, f);
        break;
    case KVP_OP_PUT_BEGIN:
    case KVP_OP_GET:
        saw_places(w, p, f);
        break;
    case KVP_OP_LOOKUP:
        saw_lookup(p, f);
        break;
    case KVP_OP_PRESENT:
        saw_presented(p, f);
        break;
    default:
        break;
    }
    if (w->on_answer != NULL) w->on_answer(w->hook_arg, p, f);
}

/* ---- packets */
packet_t *
packet_make(const void *bytes, size_t len)
{
    packet_t *k = calloc(1, sizeof *k + len);

    k->len = len;
    memcpy(k->bytes, bytes, len);
    return k;
}

void
packet_queue(peer_t *p, kvp_list_t *queue, packet_t *k)
{
    k->at_ns = p->world->now + (p->delay_ns == 0 ? 0 : world_below(p->world, p->delay_ns + 1));
    if (!kvp_list_is_empty(queue)) /* a connection keeps the order */
        k->at_ns = kvp_max_u64(k->at_ns, kvp_list_entry(queue->prev, packet_t, link)->at_ns);
    kvp_list_add_tail(queue, &k->link);
}

static packet_t *
packet_due(kvp_list_t *queue, uint64_t now)
{
    packet_t *k = kvp_list_first(queue, packet_t, link);

    if (kvp_list_is_empty(queue) || k->at_ns > now) return NULL;
    kvp_list_del(&k->link);
    return k;
}

void
queue_drop(kvp_list_t *queue)
{
    while (!kvp_list_is_empty(queue)) {
        packet_t *k = kvp_list_first(queue, packet_t, link);

        kvp_list_del(&k->link);
        free(k);
    }
}

/* ---- asks and answers */
static void
ask_add(peer_t *p, uint64_t id, uint8_t op)
{
    if (p->asks_n == p->asks_cap) {
        p->asks_cap = p->asks_cap == 0 ? 16 : p->asks_cap * 2;
        p->asks = realloc(p->asks, p->asks_cap * sizeof *p->asks);
    }
    p->asks[p->asks_n++] = (ask_t){id, op, p->mem};
}

static void
ask_answered(peer_t *p, const kvp_frame_hdr_t *hdr)
{
    for (uint32_t i = 0; i < p->asks_n; i++) {
        if (p->asks[i].id != hdr->request_id) continue;
        assert_int_equal(p->asks[i].opcode, hdr->opcode);
        p->asks[i] = p->asks[--p->asks_n];
        return;
    }
    fail_msg("an answer to %u/%lu, which was not asked or is answered", hdr->opcode, (unsigned long)hdr->request_id);
}

bool
peer_is_asking(const peer_t *p, uint64_t id)
{
    for (uint32_t i = 0; i < p->asks_n; i++)
        if (p->asks[i].id == id) return true;
    return false;
}

uint64_t
peer_send(peer_t *p, uint8_t op, uint8_t flags, const void *head, const void *tail, size_t tail_len)
{
    uint64_t id = ++p->request_seq;
    kvp_buf_t buf;
    size_t at;

    kvp_buf_init(&buf, 0);
    kvp_pb_frame_begin(&buf, op, flags, id, head, &at);
    kvp_buf_append(&buf, tail, tail_len);
    kvp_frame_end(&buf, at);
    assert_int_equal(buf.err, KVP_OK);
    if ((flags & (KVP_FRAME_ONEWAY | KVP_FRAME_REPLY)) == 0 && p->conn != 0) ask_add(p, id, op);
    if (p->conn != 0) packet_queue(p, &p->to_master, packet_make(buf.data, buf.len));
    kvp_buf_fini(&buf);
    if (p->delay_ns == 0) world_pump(p->world);
    return id;
}

void
peer_send_raw(peer_t *p, const kvp_frame_t *frame)
{
    if (p->conn == 0) return;
    if ((frame->hdr.flags & (KVP_FRAME_ONEWAY | KVP_FRAME_REPLY)) == 0)
        ask_add(p, frame->hdr.request_id, frame->hdr.opcode);
    input_begins(p->world);
    kvp_master_on_frame(p->world->m, p->conn, frame, p->world->now);
    input_done(p->world);
    world_pump(p->world);
}

reply_t *
peer_reply(peer_t *p, uint64_t id)
{
    kvp_list_foreach (pos, &p->replies) {
        reply_t *r = kvp_list_entry(pos, reply_t, link);

        if (r->frame.hdr.request_id != id || (r->frame.hdr.flags & KVP_FRAME_REPLY) == 0) continue;
        kvp_list_del(&r->link);
        return r;
    }
    return NULL;
}

reply_t *
peer_wait(peer_t *p, uint64_t id, uint64_t max_ns)
{
    uint64_t end = p->world->now + max_ns;

    while (p->world->now < end && peer_is_asking(p, id))
        world_advance(p->world, kvp_min_u64(MS, end - p->world->now));
    return peer_reply(p, id);
}

void
reply_free(reply_t *r)
{
    kvp_list_del(&r->link);
    free(r->packet);
    free(r);
}

void
answer_back(peer_t *p, const kvp_frame_t *f, kvp_err_t err, const void *tail, size_t tail_len)
{
    Kvp__Pb__Reply head = KVP__PB__REPLY__INIT;
    kvp_buf_t buf;
    size_t at;

    head.err = err;
    kvp_buf_init(&buf, 0);
    kvp_pb_frame_begin(&buf, f->hdr.opcode, KVP_FRAME_REPLY, f->hdr.request_id, &head.base, &at);
    kvp_buf_append(&buf, tail, tail_len);
    kvp_frame_end(&buf, at);
    if (p->conn != 0) packet_queue(p, &p->to_master, packet_make(buf.data, buf.len));
    kvp_buf_fini(&buf);
}

/* ---- delivery */
void
take_bytes(world_t *w, peer_t *p, const kvp_buf_t *bytes)
{
    for (size_t at = 0; at < bytes->len;) {
        kvp_frame_t f;
        size_t used;
        packet_t *k;

        assert_int_equal(kvp_frame_parse(bytes->data + at, bytes->len - at, &f, &used), KVP_OK);
        assert_true(used > 0); /* whole frames only */
        k = packet_make(bytes->data + at, used);
        assert_int_equal(kvp_frame_parse(k->bytes, used, &f, &used), KVP_OK);
        if ((f.hdr.flags & KVP_FRAME_REPLY) != 0)
            saw_answer(w, p, &f);
        else if (f.hdr.opcode == KVP_OP_RETIRE && !p->is_wild)
            saw_retire(w, &f);
        else if (f.hdr.opcode == KVP_OP_STAGE && !p->is_wild)
            saw_stage(w, &f);
        else if (f.hdr.opcode == KVP_OP_COPY && !p->is_wild)
            saw_copy(w, &f);
        packet_queue(p, &p->from_master, k);
        at += used;
    }
}

bool
deliver_to_master(peer_t *p)
{
    packet_t *k;
    bool has_moved = false;

    while (p->conn != 0 && (k = packet_due(&p->to_master, p->world->now)) != NULL) {
        kvp_frame_t f;
        size_t used;

        assert_int_equal(kvp_frame_parse(k->bytes, k->len, &f, &used), KVP_OK);
        input_begins(p->world);
        kvp_master_on_frame(p->world->m, p->conn, &f, p->world->now);
        free(k);
        input_done(p->world);
        collect(p->world);
        has_moved = true;
    }
    return has_moved;
}

/* What the lease says; a client forgets what it is told to, at once. */
static void
beat_answered(peer_t *p, const kvp_frame_t *f)
{
    Kvp__Pb__HeartbeatReply *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__heartbeat_reply__descriptor, f);
    assert_non_null(head);
    assert_int_equal(f->tail_len, head->n * sizeof *p->revoked);
    assert_true(head->n <= KVP_REVOKED_MAX);
    p->lease_ms = head->lease_ms;
    p->grace_ms = head->grace_ms;
    p->has_dropped_all = head->drop_all;
    p->revoked_n = head->n;
    free(p->revoked);
    p->revoked = calloc(head->n + 1, sizeof *p->revoked);
    memcpy(p->revoked, f->tail, f->tail_len);
    if (!p->is_deaf) p->applied_seq = head->revoke_seq;
    kvp_pb_free(&pb, head);
}

static void
deliver_order(peer_t *p, const kvp_frame_t *f)
{
    if (p->is_wild) return;
    assert_int_equal(p->role, KVP_ROLE_NODE);
    if (f->hdr.opcode == KVP_OP_RETIRE)
        node_retire(p, f);
    else if (f->hdr.opcode == KVP_OP_CHECK)
        node_check(p, f);
    else if (f->hdr.opcode == KVP_OP_FENCE)
        node_fence(p, f);
    else if (f->hdr.opcode == KVP_OP_OWNER)
        node_owner(p, f);
    else if (f->hdr.opcode == KVP_OP_DEMOTE)
        node_demote(p, f);
    else if (f->hdr.opcode == KVP_OP_STAGE)
        node_stage(p, f);
    else if (f->hdr.opcode == KVP_OP_COPY)
        node_copy(p, f);
    else if (f->hdr.opcode == KVP_OP_DROP)
        node_drop(p, f);
    else
        fail_msg("the master asks %u", f->hdr.opcode);
}

static void
deliver_one(peer_t *p, packet_t *k)
{
    kvp_frame_t f;
    size_t used;
    reply_t *r;

    assert_int_equal(kvp_frame_parse(k->bytes, k->len, &f, &used), KVP_OK);
    if ((f.hdr.flags & KVP_FRAME_REPLY) == 0 && (f.hdr.opcode != KVP_OP_RETIRE || p->policy != NODE_TOLD)) {
        deliver_order(p, &f);
        free(k);
        return;
    }
    if (p->conn != 0 && (f.hdr.flags & KVP_FRAME_REPLY) != 0) ask_answered(p, &f.hdr);
    if (f.hdr.opcode == KVP_OP_HEARTBEAT) {
        beat_answered(p, &f);
        free(k);
        return;
    }
    r = calloc(1, sizeof *r);
    r->packet = k;
    r->frame = f;
    kvp_list_add_tail(&p->replies, &r->link);
}

bool
deliver_from_master(peer_t *p)
{
    packet_t *k;
    bool has_moved = false;

    while ((k = packet_due(&p->from_master, p->world->now)) != NULL) {
        deliver_one(p, k);
        has_moved = true;
    }
    return has_moved;
}
