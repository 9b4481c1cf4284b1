/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/world/world.h"

#include "common/slab.h"
#include "tests/world/report.h"
#include "tests/world/check/core_check.h"

#include <stdio.h>

#define BEAT_NS SEC
#define LEASE_BEAT_NS (300 * MS) /* of a client that keeps locations */
#define IDLE_TICKS_MAX 1000000u /* work that does not end by then never will */

/* ---- chance */
uint64_t
world_random(world_t *w)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return w->seed * 0x2545f4914f6cdd1dull >> 8;
}

uint64_t
world_below(world_t *w, uint64_t n)
{
    return world_random(w) % n;
}

const char *
key_name(const char *prefix, uint32_t i)
{
    static char names[4][40];
    static uint32_t at;

    at = (at + 1) % 4;
    snprintf(names[at], sizeof names[at], "%s%u", prefix, i);
    return names[at];
}

/* ---- memory */
static void
chunk_fini(chunk_t *c)
{
    free(c->words);
    free(c->granted);
    free(c->retired);
    free(c->offset);
    free(c->len);
    free(c->taken);
    for (uint32_t slot = 0; c->keys != NULL && slot < c->geo.slots_max; slot++)
        free(c->keys[slot]);
    free(c->descs);
    free(c->keys);
}

static void
chunk_init(chunk_t *c, uint64_t bytes)
{
    kvp_chunk_geo(bytes, &c->geo);
    c->bytes = bytes;
    c->words = calloc(c->geo.slots_max, 8);
    c->granted = calloc(c->geo.slots_max, 8);
    c->retired = calloc(c->geo.slots_max, 8);
    c->offset = calloc(c->geo.slots_max, 8);
    c->len = calloc(c->geo.slots_max, 8);
    c->taken = calloc(bytes / KVP_SLAB_UNIT, 1);
}

static void
mem_empty(mem_t *mem)
{
    for (uint32_t i = 0; mem->chunks != NULL && i < mem->chunk_n; i++)
        chunk_fini(&mem->chunks[i]);
    free(mem->chunks);
    kvp_digestmap_fini(&mem->tombs);
    mem->chunks = NULL;
}

void
mem_remake(world_t *w, mem_t *mem)
{
    mem_empty(mem);
    memset(mem->uuid, 0, sizeof mem->uuid);
    w->uuid_seq++;
    memcpy(mem->uuid, &w->uuid_seq, sizeof w->uuid_seq);
    mem->epoch = w->uuid_seq;
    mem->segment_id = 0;
    mem->mounted_term = 0;
    mem->is_fresh = true;
    mem->chunk_n = (uint32_t)((mem->size_bytes - 1) / mem->chunk_bytes + 1);
    mem->chunks = calloc(mem->chunk_n, sizeof *mem->chunks);
    for (uint32_t i = 0; i < mem->chunk_n; i++)
        chunk_init(&mem->chunks[i], kvp_min_u64(mem->chunk_bytes, mem->size_bytes - i * mem->chunk_bytes));
}

mem_t *
mem_make(world_t *w, const char *name, uint64_t size, uint64_t chunk)
{
    mem_t *mem = calloc(1, sizeof *mem);

    snprintf(mem->name, sizeof mem->name, "%s", name);
    mem->size_bytes = size;
    mem->chunk_bytes = chunk;
    kvp_list_add_tail(&w->mems, &mem->link);
    mem_remake(w, mem);
    return mem;
}

static mem_t *
mem_find(world_t *w, uint32_t segment_id)
{
    kvp_list_foreach (pos, &w->mems) {
        mem_t *mem = kvp_list_entry(pos, mem_t, link);

        if (mem->segment_id == segment_id) return mem;
    }
    return NULL;
}

static void
mem_mark(chunk_t *c, uint32_t slot, bool is_taken)
{
    for (uint64_t u = c->offset[slot] / KVP_SLAB_UNIT; u < (c->offset[slot] + c->len[slot]) / KVP_SLAB_UNIT; u++) {
        if (c->taken[u] == is_taken) fail_msg("bytes at unit %lu of slot %u have two writers", (unsigned long)u, slot);
        c->taken[u] = is_taken;
    }
}

/* The node says that nothing touches the extent any more. */
static void
mem_freed(mem_t *mem, const kvp_wire_slot_t *slot)
{
    chunk_t *c = &mem->chunks[slot->chunk];

    if (c->granted[slot->slot] != slot->generation || c->len[slot->slot] == 0) return;
    mem_mark(c, slot->slot, false);
    c->len[slot->slot] = 0;
}

/* ---- what the master says, at the moment that it says it */
static void
saw_grant(world_t *w, const kvp_wire_loc_t *loc, uint64_t len)
{
    mem_t *mem = mem_find(w, loc->segment_id);
    chunk_t *c;

    if (mem == NULL) return; /* dropped since */
    assert_true(loc->chunk < mem->chunk_n);
    c = &mem->chunks[loc->chunk];
    assert_true(loc->slot < c->geo.slots_max);
    assert_true(loc->offset % kvp_slab_align_bytes(len) == 0);
    assert_true(loc->offset + len <= c->bytes);
    assert_true((uint64_t)loc->key_off * 64 < c->geo.meta_bytes);
    if (loc->generation <= c->granted[loc->slot] || loc->generation <= c->retired[loc->slot])
        fail_msg("generation %lx of slot %u is not new", (unsigned long)loc->generation, loc->slot);
    if (c->len[loc->slot] != 0) fail_msg("slot %u is granted twice", loc->slot);
    c->granted[loc->slot] = loc->generation;
    c->offset[loc->slot] = loc->offset;
    c->len[loc->slot] = kvp_slab_extent_bytes(len);
    mem_mark(c, loc->slot, true);
}

static void
saw_place(world_t *w, const kvp_wire_loc_t *loc)
{
    mem_t *mem = mem_find(w, loc->segment_id);

    assert_non_null(mem);
    assert_int_equal(mem->chunks[loc->chunk].granted[loc->slot], loc->generation);
    if (mem->chunks[loc->chunk].retired[loc->slot] >= loc->generation)
        fail_msg("a reader is sent to slot %u, which is retired", loc->slot);
}

static void
saw_places(world_t *w, const kvp_frame_t *f)
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
        assert_true((objs[i].nloc > 0) == (objs[i].err == KVP_OK) && objs[i].nloc <= KVP_REPLICAS_MAX);
        for (uint32_t k = 0; k < objs[i].nloc; k++, locs++) {
            if (f->hdr.opcode == KVP_OP_PUT_BEGIN)
                saw_grant(w, locs, objs[i].len);
            else
                saw_place(w, locs);
        }
    }
    assert_ptr_equal(locs, (const kvp_wire_loc_t *)(objs + head->n) + head->nloc);
    kvp_pb_free(&pb, head);
}

static const kvp_wire_slot_t *
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
    assert_non_null(mem);
    for (uint32_t i = 0; i < head->n; i++) {
        chunk_t *c = &mem->chunks[slots[i].chunk];

        assert_true(slots[i].chunk < mem->chunk_n && slots[i].slot < c->geo.slots_max);
        assert_true(slots[i].generation >= c->granted[slots[i].slot]);
        c->retired[slots[i].slot] = slots[i].generation;
        if (w->on_retire != NULL) w->on_retire(w->hook_arg, mem, &slots[i]);
    }
    kvp_pb_free(&pb, head);
}

/* From now on places may be granted there, though the node does not know yet. */
static void
saw_mount(mem_t *mem, const kvp_frame_t *f)
{
    Kvp__Pb__MountReply *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, f);
    assert_non_null(head);
    if (head->err == KVP_OK && !head->is_reset) mem->segment_id = head->segment_id;
    kvp_pb_free(&pb, head);
}

static void
saw(world_t *w, const peer_t *p, const kvp_frame_t *f)
{
    bool is_reply = (f->hdr.flags & KVP_FRAME_REPLY) != 0;

    if (is_reply && f->hdr.opcode == KVP_OP_MOUNT && p != NULL && p->mem != NULL) saw_mount(p->mem, f);

    if (is_reply && (f->hdr.opcode == KVP_OP_PUT_BEGIN || f->hdr.opcode == KVP_OP_GET)) saw_places(w, f);
    if (!is_reply && f->hdr.opcode == KVP_OP_RETIRE) saw_retire(w, f);
}

/* ---- packets */
static packet_t *
packet_make(const void *bytes, size_t len)
{
    packet_t *k = calloc(1, sizeof *k + len);

    k->len = len;
    memcpy(k->bytes, bytes, len);
    return k;
}

static void
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

static void
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
    p->asks[p->asks_n++] = (ask_t){id, op};
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

reply_t *
peer_reply(peer_t *p, uint64_t id)
{
    kvp_list_foreach (pos, &p->replies) {
        reply_t *r = kvp_list_entry(pos, reply_t, link);

        if (r->frame.hdr.request_id != id) continue;
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

static void
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

/* ---- a node's work */
static bool
is_proved(const world_t *w, uint64_t incarnation)
{
    for (uint32_t i = 0; i < w->proved_n; i++)
        if (w->proved[i] == incarnation) return true;
    return false;
}

static bool
is_quiet(const peer_t *n, const kvp_wire_slot_t *slot)
{
    return slot->owner == 0 || !n->needs_proof || is_proved(n->world, slot->owner);
}

static void
node_keep(peer_t *n, uint32_t segment_id, const kvp_wire_slot_t *slot)
{
    retiring_t *r = calloc(1, sizeof *r);

    r->slot = *slot;
    r->segment_id = segment_id;
    r->free_at_ns = n->policy == NODE_DEAD_ONLY ? UINT64_MAX : n->world->now + n->free_ns;
    kvp_list_add_tail(&n->retiring, &r->link);
}

/* An order that is repeated takes the place of the one before. */
static void
node_drop_kept(peer_t *n, const kvp_wire_slot_t *slot)
{
    kvp_list_foreach_safe (pos, tmp, &n->retiring) {
        retiring_t *r = kvp_list_entry(pos, retiring_t, link);

        if (r->slot.chunk != slot->chunk || r->slot.slot != slot->slot || r->slot.generation != slot->generation)
            continue;
        kvp_list_del(&r->link);
        free(r);
    }
}

/* Stores DEAD where nothing newer is; says what the answer may say. */
static uint8_t
node_retire_one(peer_t *n, uint32_t segment_id, const kvp_wire_slot_t *slot)
{
    uint64_t *word = &n->mem->chunks[slot->chunk].words[slot->slot];

    if (n->policy == NODE_STOPPED) return 0;
    if (kvp_word_generation(*word) > slot->generation) return KVP_RETIRE_DEAD | KVP_RETIRE_FREE;
    *word = kvp_word_make(slot->generation, KVP_DESC_DEAD);
    if (n->policy == NODE_MUTE) return 0;
    node_drop_kept(n, slot);
    if (n->policy == NODE_FREE_NOW && is_quiet(n, slot)) {
        mem_freed(n->mem, slot);
        return KVP_RETIRE_DEAD | KVP_RETIRE_FREE;
    }
    node_keep(n, segment_id, slot);
    return KVP_RETIRE_DEAD;
}

static void
node_retire(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_slot_t *slots;
    Kvp__Pb__Retire *head;
    uint8_t *flags;
    kvp_pb_t pb;

    slots = retire_read(f, &pb, &head);
    assert_int_equal(head->term, n->world->conf.term);
    n->retires_n += head->n;
    if (n->mem->segment_id != head->segment_id) { /* it was unmounted since */
        answer_back(n, f, KVP_NO_SEGMENT, NULL, 0);
    } else {
        flags = calloc(head->n, 1);
        for (uint32_t i = 0; i < head->n; i++)
            flags[i] = node_retire_one(n, head->segment_id, &slots[i]);
        if (n->policy != NODE_MUTE && n->policy != NODE_STOPPED) answer_back(n, f, KVP_OK, flags, head->n);
        free(flags);
    }
    kvp_pb_free(&pb, head);
}

static void
node_fence(peer_t *n, const kvp_frame_t *f)
{
    Kvp__Pb__Fence *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__fence__descriptor, f);
    assert_non_null(head);
    assert_true(head->live_min > head->incarnation || head->incarnation > head->live_min);
    n->fences_n++;
    n->last_fence = *head;
    kvp_pb_free(&pb, head);
    answer_back(n, f, KVP_OK, NULL, 0);
}

/* Version 0 takes a tombstone away. */
static void
node_tombs(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_tomb_t *tombs = (const kvp_wire_tomb_t *)f->tail;

    if (n->policy == NODE_STOPPED) return;
    for (uint32_t i = 0; i < f->tail_len / sizeof *tombs; i++) {
        if (tombs[i].version == 0) {
            (void)kvp_digestmap_del(&n->mem->tombs, tombs[i].digest);
            continue;
        }
        *kvp_digestmap_insert(&n->mem->tombs, tombs[i].digest) = tombs[i].version;
    }
    answer_back(n, f, KVP_OK, NULL, 0);
}

/* Says that one extent is free; its entry goes. */
static void
node_free_one(peer_t *n, retiring_t *r)
{
    Kvp__Pb__Freed head = KVP__PB__FREED__INIT;
    kvp_buf_t buf;
    size_t at;

    head.n = 1;
    head.segment_id = r->segment_id;
    if (n->mem->segment_id == r->segment_id) mem_freed(n->mem, &r->slot);
    kvp_buf_init(&buf, 0);
    kvp_pb_frame_begin(&buf, KVP_OP_FREED, KVP_FRAME_ONEWAY, 0, &head.base, &at);
    kvp_buf_append(&buf, &r->slot, sizeof r->slot);
    kvp_frame_end(&buf, at);
    packet_queue(n, &n->to_master, packet_make(buf.data, buf.len));
    kvp_buf_fini(&buf);
    kvp_list_del(&r->link);
    free(r);
}

static bool
node_free_due(peer_t *n)
{
    bool has_moved = false;

    kvp_list_foreach_safe (pos, tmp, &n->retiring) {
        retiring_t *r = kvp_list_entry(pos, retiring_t, link);

        if (r->free_at_ns > n->world->now || !is_quiet(n, &r->slot)) continue;
        node_free_one(n, r);
        has_moved = true;
    }
    return has_moved;
}

void
node_free_all(peer_t *n)
{
    kvp_list_foreach (pos, &n->retiring)
        kvp_list_entry(pos, retiring_t, link)->free_at_ns = 0;
    world_pump(n->world);
}

void
world_prove(world_t *w, uint64_t incarnation)
{
    if (w->proved_n == w->proved_cap) {
        w->proved_cap = w->proved_cap == 0 ? 16 : w->proved_cap * 2;
        w->proved = realloc(w->proved, w->proved_cap * sizeof *w->proved);
    }
    w->proved[w->proved_n++] = incarnation;
    world_pump(w);
}

/* ---- delivery */
static void
input_done(world_t *w)
{
    uint64_t work = world_stats(w).work;

    w->inputs++;
    w->work_most = kvp_max_u64(w->work_most, work - w->work);
    w->work = work;
    if (w->check_every != 0 && w->inputs % w->check_every == 0) world_check(w);
}

void
world_check(world_t *w)
{
    const char *why = kvp_master_check(w->m);

    if (why != NULL) fail_msg("after input %lu: %s", (unsigned long)w->inputs, why);
}

static peer_t *
find_peer(world_t *w, uint64_t conn)
{
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (p->conn == conn) return p;
    }
    return NULL;
}

static void
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
        saw(w, p, &f);
        if (w->on_answer != NULL && p != NULL && (f.hdr.flags & KVP_FRAME_REPLY) != 0) w->on_answer(w->hook_arg, p, &f);
        if (p != NULL)
            packet_queue(p, &p->from_master, k);
        else
            free(k);
        at += used;
    }
}

static void
retiring_drop(peer_t *p)
{
    while (!kvp_list_is_empty(&p->retiring)) {
        retiring_t *r = kvp_list_first(&p->retiring, retiring_t, link);

        kvp_list_del(&r->link);
        free(r);
    }
}

static void
end_connection(peer_t *p)
{
    uint64_t conn = p->conn;

    p->conn = 0;
    p->asks_n = 0;
    queue_drop(&p->to_master);
    retiring_drop(p);
    kvp_master_on_close(p->world->m, conn, p->world->now);
    input_done(p->world);
}

/* ---- the journal */
/* What masters before have written, in pieces of any length. */
static void
core_open(world_t *w)
{
    uint64_t end;

    assert_int_equal(kvp_master_create(&w->conf, w->now, &w->m), KVP_OK);
    if (!w->conf.has_journal) return;
    for (size_t at = 0, len; at < w->journal.len; at += len) {
        kvp_err_t err;

        len = kvp_min_u64(w->journal.len - at, 1 + world_below(w, 100));
        err = kvp_master_restore(w->m, w->journal.data + at, len);
        assert_true(err == KVP_OK || err == KVP_CORRUPT);
    }
    assert_int_equal(kvp_master_open_journal(w->m, &end), KVP_OK);
    assert_true(end <= w->journal.len);
    w->journal.len = end;
    w->journal_from = 0;
    w->durable = end;
}

static void
write_journal(world_t *w)
{
    kvp_buf_t bytes;
    uint64_t end;

    kvp_buf_init(&bytes, 0);
    while (kvp_master_take_journal(w->m, &bytes, &end)) {
        kvp_buf_append(&w->journal, bytes.data, bytes.len);
        assert_int_equal(w->journal_from + w->journal.len, end);
        kvp_buf_reset(&bytes);
    }
    kvp_buf_fini(&bytes);
}

static bool
make_durable(world_t *w)
{
    uint64_t end = w->journal_from + w->journal.len;

    if (w->durable == end) return false;
    w->durable = end;
    kvp_master_on_durable(w->m, end, w->now);
    return true;
}

void
world_sync(world_t *w)
{
    write_journal(w);
    if (make_durable(w)) input_done(w);
    world_pump(w);
}

static bool
collect(world_t *w)
{
    bool has_moved = false, is_last;
    kvp_buf_t bytes;
    uint64_t conn;

    if (w->conf.has_journal) write_journal(w);
    if (w->conf.has_journal && !w->is_disk_stuck) has_moved = make_durable(w);
    kvp_buf_init(&bytes, 0);
    while (kvp_master_take_output(w->m, &conn, &bytes, &is_last)) {
        peer_t *p = find_peer(w, conn);

        assert_int_equal(bytes.err, KVP_OK);
        take_bytes(w, p, &bytes);
        kvp_buf_reset(&bytes);
        has_moved = true;
        if (!is_last || p == NULL) continue;
        p->was_closed = true;
        end_connection(p);
    }
    kvp_buf_fini(&bytes);
    while (kvp_master_take_note(w->m) != NULL)
        continue;
    return has_moved;
}

static bool
deliver_to_master(peer_t *p)
{
    packet_t *k;
    bool has_moved = false;

    while (p->conn != 0 && (k = packet_due(&p->to_master, p->world->now)) != NULL) {
        kvp_frame_t f;
        size_t used;

        assert_int_equal(kvp_frame_parse(k->bytes, k->len, &f, &used), KVP_OK);
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
deliver_one(peer_t *p, packet_t *k)
{
    kvp_frame_t f;
    size_t used;
    reply_t *r;

    assert_int_equal(kvp_frame_parse(k->bytes, k->len, &f, &used), KVP_OK);
    if ((f.hdr.flags & KVP_FRAME_REPLY) == 0) {
        assert_int_equal(p->role, KVP_ROLE_NODE);
        if (f.hdr.opcode == KVP_OP_RETIRE)
            node_retire(p, &f);
        else if (f.hdr.opcode == KVP_OP_FENCE)
            node_fence(p, &f);
        else if (f.hdr.opcode == KVP_OP_TOMBS)
            node_tombs(p, &f);
        else
            fail_msg("the master asks %u", f.hdr.opcode);
        free(k);
        return;
    }
    if (p->conn != 0) ask_answered(p, &f.hdr);
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

static bool
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

static bool
move(world_t *w)
{
    bool has_moved = collect(w);

    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (deliver_to_master(p)) has_moved = true;
        if (deliver_from_master(p)) has_moved = true;
        if (p->conn != 0 && node_free_due(p)) has_moved = true;
    }
    return has_moved;
}

static void
tick(world_t *w)
{
    kvp_master_on_tick(w->m, w->now);
    input_done(w);
}

void
world_pump(world_t *w)
{
    uint32_t idle = 0;

    for (;;) {
        while (move(w))
            continue;
        if (w->is_idle_off || !kvp_master_has_work(w->m)) return;
        if (++idle > IDLE_TICKS_MAX) fail_msg("work does not end");
        tick(w);
    }
}

/* What a live peer does beside its work. Its answers are dropped. */
void
peer_beat(peer_t *p)
{
    Kvp__Pb__Heartbeat head = KVP__PB__HEARTBEAT__INIT;

    p->beat_ns = p->world->now + (p->wants_lease ? LEASE_BEAT_NS : BEAT_NS);
    head.incarnation = p->incarnation;
    head.wants_lease = p->wants_lease;
    head.revoke_seq = p->applied_seq;
    (void)peer_send(p, KVP_OP_HEARTBEAT, 0, &head.base, NULL, 0);
}

static void
beat(world_t *w)
{
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (p->conn == 0 || p->incarnation == 0 || p->is_silent || w->now < p->beat_ns) continue;
        peer_beat(p);
    }
}

static uint64_t
next_event(world_t *w, uint64_t end)
{
    end = kvp_min_u64(end, kvp_master_due(w->m));
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (!kvp_list_is_empty(&p->to_master))
            end = kvp_min_u64(end, kvp_list_first(&p->to_master, packet_t, link)->at_ns);
        if (!kvp_list_is_empty(&p->from_master))
            end = kvp_min_u64(end, kvp_list_first(&p->from_master, packet_t, link)->at_ns);
        kvp_list_foreach (at, &p->retiring) {
            const retiring_t *r = kvp_list_entry(at, retiring_t, link);

            if (r->free_at_ns > w->now) end = kvp_min_u64(end, r->free_at_ns);
        }
    }
    return kvp_max_u64(end, w->now);
}

void
world_advance(world_t *w, uint64_t ns)
{
    uint64_t end = w->now + ns;

    world_pump(w);
    while (w->now < end) {
        w->now = next_event(w, end);
        beat(w);
        if (w->now >= kvp_master_due(w->m)) tick(w);
        world_pump(w);
    }
}

void
world_jump(world_t *w, uint64_t ns)
{
    w->now += ns;
}

/* ---- life of a world */
world_t *
world_open(const kvp_master_conf_t *conf)
{
    world_t *w = calloc(1, sizeof *w);

    w->conf = *conf;
    w->seed = conf->seed != 0 ? conf->seed : 0x9e3779b97f4a7c15ull;
    if (w->conf.term == 0) w->conf.term = 3;
    if (w->conf.digest_seed == 0) w->conf.digest_seed = 77;
    if (w->conf.node_grace_ns == 0) w->conf.node_grace_ns = 5 * SEC;
    if (w->conf.host_id == NULL) w->conf.host_id = "master-host";
    memset(w->conf.pool_id, 0x5a, sizeof w->conf.pool_id);
    w->now = 1000 * SEC;
    w->check_every = 1;
    kvp_list_init(&w->peers);
    kvp_list_init(&w->mems);
    core_open(w);
    return w;
}

void
world_forget_peers(world_t *w)
{
    while (!kvp_list_is_empty(&w->peers))
        peer_forget(kvp_list_first(&w->peers, peer_t, link));
}

static void
restart(world_t *w)
{
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        p->conn = 0;
        p->asks_n = 0;
        queue_drop(&p->to_master);
        queue_drop(&p->from_master);
        retiring_drop(p);
    }
    kvp_list_foreach (pos, &w->mems)
        kvp_list_entry(pos, mem_t, link)->segment_id = 0;
    kvp_master_destroy(w->m);
    w->conf.term++;
    w->journal.len = w->durable - w->journal_from;
    w->work = 0;
    core_open(w);
    world_forget_peers(w);
}

void
world_restart(world_t *w)
{
    w->conf.had_master = true;
    restart(w);
}

void
world_restart_as_new(world_t *w)
{
    w->conf.had_master = false;
    restart(w);
}

kvp_master_stats_t
world_stats(const world_t *w)
{
    kvp_master_stats_t st;

    kvp_master_stats(w->m, &st);
    return st;
}

static void
expect_nothing_left(const world_t *w)
{
    kvp_master_stats_t st = world_stats(w);

    assert_int_equal(st.objects, 0);
    assert_int_equal(st.attempts, 0);
    assert_int_equal(st.clients, 0);
    assert_int_equal(st.nodes, 0);
    assert_int_equal(st.segments, 0);
    assert_int_equal(st.size_bytes, 0);
    assert_int_equal(st.used_bytes, 0);
    assert_int_equal(st.retiring_bytes, 0);
    assert_int_equal(st.quarantine_bytes, 0);
    assert_int_equal(st.held_bytes, 0);
    assert_int_equal(st.reserved_bytes, 0);
    assert_int_equal(st.pending_puts, 0);
    assert_int_equal(st.groups, 0);
    assert_int_equal(st.soft_pinned_bytes, 0);
    assert_int_equal(st.hard_pinned_bytes, 0);
}

void
world_close(world_t *w)
{
    w->is_idle_off = false;
    while (!kvp_list_is_empty(&w->peers))
        peer_forget(kvp_list_first(&w->peers, peer_t, link));
    world_advance(w, w->conf.node_grace_ns + SEC);
    world_check(w);
    expect_nothing_left(w);
    kvp_master_destroy(w->m);
    while (!kvp_list_is_empty(&w->mems)) {
        mem_t *mem = kvp_list_first(&w->mems, mem_t, link);

        mem_empty(mem);
        kvp_list_del(&mem->link);
        free(mem);
    }
    free(w->proved);
    kvp_buf_fini(&w->journal);
    free(w);
}

/* ---- connections */
peer_t *
peer_open(world_t *w)
{
    peer_t *p = calloc(1, sizeof *p);

    p->world = w;
    p->conn = ++w->conn_seq;
    kvp_list_init(&p->to_master);
    kvp_list_init(&p->from_master);
    kvp_list_init(&p->replies);
    kvp_list_init(&p->retiring);
    kvp_list_add_tail(&w->peers, &p->link);
    kvp_master_on_connect(w->m, p->conn, w->now);
    input_done(w);
    world_pump(w);
    return p;
}

void
peer_send_raw(peer_t *p, const kvp_frame_t *frame)
{
    if (p->conn == 0) return;
    kvp_master_on_frame(p->world->m, p->conn, frame, p->world->now);
    input_done(p->world);
    world_pump(p->world);
}

void
peer_lose(peer_t *p)
{
    if (p->conn != 0) end_connection(p);
    queue_drop(&p->from_master);
    world_pump(p->world);
}

void
peer_forget(peer_t *p)
{
    world_t *w = p->world;

    peer_lose(p);
    while (!kvp_list_is_empty(&p->replies))
        reply_free(kvp_list_first(&p->replies, reply_t, link));
    kvp_list_del(&p->link);
    free(p->asks);
    free(p->revoked);
    free(p);
    world_pump(w);
}

kvp_err_t
peer_hello(peer_t *p, uint32_t role, const char *name, const char *host)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;
    Kvp__Pb__HelloReply *head;
    uint64_t id, delay_ns = p->delay_ns;
    kvp_pb_t pb;
    reply_t *r;
    kvp_err_t err;

    hello.version = KVP_PROTO_VERSION;
    hello.version_min = KVP_PROTO_VERSION_MIN;
    hello.role = role;
    hello.name = (char *)name;
    hello.host_id = (char *)host;
    hello.tenant = p->tenant;
    p->role = role;
    p->delay_ns = 0;
    id = peer_send(p, KVP_OP_HELLO, 0, &hello.base, NULL, 0);
    p->delay_ns = delay_ns;
    r = peer_reply(p, id);
    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, &r->frame);
    assert_non_null(head);
    err = head->err;
    p->incarnation = head->incarnation;
    if (err == KVP_OK) assert_int_equal(head->digest_seed, p->world->conf.digest_seed);
    kvp_pb_free(&pb, head);
    reply_free(r);
    return err;
}

Kvp__Pb__MountReply
node_ask_mount(peer_t *n)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    mem_t *mem = n->mem;
    Kvp__Pb__MountReply *head, got;
    uint64_t id, delay_ns = n->delay_ns;
    kvp_pb_t pb;
    reply_t *r;

    msg.name = mem->name;
    msg.uuid = (ProtobufCBinaryData){sizeof mem->uuid, mem->uuid};
    msg.epoch = mem->epoch;
    msg.size_bytes = mem->size_bytes;
    msg.chunk_bytes = mem->chunk_bytes;
    msg.addr = (char *)"10.0.0.1:7000";
    msg.unix_path = (char *)"/run/node.sock";
    msg.transports = (char *)"shm,tcp";
    msg.is_fresh = mem->is_fresh;
    msg.term = mem->term;
    msg.mounted_term = mem->mounted_term;
    n->delay_ns = 0;
    id = peer_send(n, KVP_OP_MOUNT, 0, &msg.base, NULL, 0);
    r = peer_wait(n, id, SEC); /* what was sent before it may take its time */
    n->delay_ns = delay_ns;
    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, &r->frame);
    assert_non_null(head);
    got = *head;
    got.detail = NULL;
    kvp_pb_free(&pb, head);
    reply_free(r);
    if (got.err != KVP_OK) return got;
    mem_see_term(mem, got.term);
    if (got.is_reset) return got;
    mem->is_fresh = false;
    if (got.report == 0) mem->mounted_term = got.term;
    return got;
}

kvp_err_t
node_mount(peer_t *n, bool *is_reset_out)
{
    Kvp__Pb__MountReply got = node_ask_mount(n);

    if (is_reset_out != NULL) *is_reset_out = got.is_reset;
    if (got.err == KVP_OK && got.report != 0) node_report(n);
    return got.err;
}

peer_t *
node_open(world_t *w, mem_t *mem)
{
    return node_open_on(w, mem, "node-host");
}

peer_t *
node_open_on(world_t *w, mem_t *mem, const char *host)
{
    peer_t *n = peer_open(w);
    bool is_reset;

    n->mem = mem;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, mem->name, host), KVP_OK);
    assert_int_equal(node_mount(n, &is_reset), KVP_OK);
    assert_false(is_reset);
    return n;
}

peer_t *
client_open_of(world_t *w, uint32_t tenant)
{
    peer_t *c = peer_open(w);

    c->tenant = tenant;
    assert_int_equal(peer_hello(c, KVP_ROLE_CLIENT, "client", "client-host"), KVP_OK);
    return c;
}

peer_t *
client_open(world_t *w)
{
    return client_open_of(w, 0);
}

/* ---- a client's work */
static kvp_digest_t
own_digest(const peer_t *c, const char *key)
{
    return kvp_key_digest(c->world->conf.digest_seed, c->tenant, key, strlen(key));
}

kvp_digest_t
digest_of(const world_t *w, const char *key)
{
    return kvp_key_digest(w->conf.digest_seed, 0, key, strlen(key));
}

uint64_t
found(peer_t *c, const char *key, uint32_t *copies_out)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = kvp_key_digest(c->world->conf.digest_seed, c->tenant, key, strlen(key));
    uint64_t version = 0;
    places_t p;

    head.n = 1;
    head.no_hold = true;
    places_read(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest)), &p);
    assert_int_equal(p.err, KVP_OK);
    if (p.objs[0].err == KVP_OK) version = p.objs[0].version;
    if (copies_out != NULL) *copies_out = p.objs[0].nloc;
    places_free(&p);
    return version;
}

uint64_t
put_begin(peer_t *c, put_t *puts, uint32_t n, uint32_t wait_ms)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    head.wait_ms = wait_ms;
    return put_begin_with(c, puts, n, &head);
}

uint64_t
put_begin_with(peer_t *c, put_t *puts, uint32_t n, const Kvp__Pb__PutBegin *like)
{
    Kvp__Pb__PutBegin head = *like;
    kvp_wire_put_t *recs;
    uint32_t at = 0;
    kvp_buf_t tail;
    uint64_t id;

    kvp_buf_init(&tail, 0);
    recs = (kvp_wire_put_t *)kvp_buf_extend(&tail, n * sizeof *recs);
    for (uint32_t i = 0; i < n; i++) {
        head.has_groups |= puts[i].group.group.lo != 0 || puts[i].group.members != 0;
        if (puts[i].key_len == 0) puts[i].key_len = (uint32_t)strlen(puts[i].key);
        puts[i].attempt = ++c->attempt_seq;
        recs[i] = (kvp_wire_put_t){
            .digest = kvp_key_digest(c->world->conf.digest_seed, c->tenant, puts[i].key, puts[i].key_len),
            .len = puts[i].len,
            .attempt = puts[i].attempt,
            .key_at = at,
            .key_len = puts[i].key_len,
        };
        at += puts[i].key_len;
    }
    for (uint32_t i = 0; head.has_groups && i < n; i++)
        kvp_buf_append(&tail, &puts[i].group, sizeof puts[i].group);
    for (uint32_t i = 0; i < n; i++)
        kvp_buf_append(&tail, puts[i].key, puts[i].key_len);
    head.n = n;
    id = peer_send(c, KVP_OP_PUT_BEGIN, 0, &head.base, tail.data, tail.len);
    kvp_buf_fini(&tail);
    return id;
}

void
places_read(reply_t *r, places_t *out)
{
    Kvp__Pb__Places *head;
    kvp_rd_t rd;
    kvp_pb_t pb;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &r->frame);
    assert_non_null(head);
    *out = (places_t){
        .err = head->err,
        .n = head->n,
        .nloc = head->nloc,
        .retry_ms = head->retry_ms,
        .ticket = head->ticket,
        .reply = r,
    };
    kvp_pb_free(&pb, head);
    kvp_rd_init(&rd, r->frame.tail, r->frame.tail_len);
    out->objs = kvp_rd_array(&rd, out->n, sizeof *out->objs);
    out->locs = kvp_rd_array(&rd, out->nloc, sizeof *out->locs);
    assert_false(rd.is_bad);
}

void
places_free(places_t *p)
{
    reply_free(p->reply);
}

kvp_err_t
plain_result(reply_t *r)
{
    Kvp__Pb__Reply *head;
    kvp_err_t err;
    kvp_pb_t pb;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &r->frame);
    assert_non_null(head);
    err = head->err;
    kvp_pb_free(&pb, head);
    reply_free(r);
    return err;
}

/* The first of the i32 behind a Reply. */
static kvp_err_t
first_result(reply_t *r)
{
    int32_t result;

    assert_non_null(r);
    assert_true(r->frame.tail_len >= sizeof result);
    memcpy(&result, r->frame.tail, sizeof result);
    assert_int_equal(plain_result(r), KVP_OK);
    return result;
}

kvp_err_t
commit(peer_t *c, uint64_t attempt, uint64_t sum)
{
    return commit_copies(c, attempt, sum, 1);
}

kvp_err_t
commit_copies(peer_t *c, uint64_t attempt, uint64_t sum, uint32_t sealed)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t rec = {.attempt = attempt, .sum = sum, .replicas = sealed};

    head.n = 1;
    return first_result(peer_wait(c, peer_send(c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec), 100 * MS));
}

kvp_err_t
abort_put(peer_t *c, uint64_t attempt, bool is_drained)
{
    Kvp__Pb__PutAbort head = KVP__PB__PUT_ABORT__INIT;

    head.n = 1;
    head.is_drained = is_drained;
    return first_result(peer_reply(c, peer_send(c, KVP_OP_PUT_ABORT, 0, &head.base, &attempt, sizeof attempt)));
}

kvp_err_t
write_place(world_t *w, const kvp_wire_loc_t *loc)
{
    mem_t *mem = mem_find(w, loc->segment_id);
    uint64_t writing = kvp_word_make(loc->generation, KVP_DESC_WRITING);
    uint64_t *word;

    if (mem == NULL) return KVP_NODE_LOST;
    word = &mem->chunks[loc->chunk].words[loc->slot];
    if (!kvp_word_may_become(*word, writing)) return KVP_STALE;
    *word = writing;
    *word = kvp_word_make(loc->generation, KVP_DESC_SEALED);
    return KVP_OK;
}

kvp_err_t
write_object(peer_t *c, const kvp_wire_loc_t *loc, const kvp_wire_obj_t *obj, const char *key)
{
    return write_object_as(c, loc, obj, &(put_t){.key = key}, KVP_PIN_NONE);
}

kvp_err_t
write_object_as(peer_t *c, const kvp_wire_loc_t *loc, const kvp_wire_obj_t *obj, const put_t *what, uint32_t pin)
{
    const char *key = what->key;
    uint64_t seed = c->world->conf.digest_seed;
    mem_t *mem = mem_find(c->world, loc->segment_id);
    kvp_err_t err = write_place(c->world, loc);
    chunk_t *k;

    if (err != KVP_OK) return err;
    k = &mem->chunks[loc->chunk];
    if (k->descs == NULL) {
        k->descs = calloc(k->geo.slots_max, sizeof *k->descs);
        k->keys = calloc(k->geo.slots_max, sizeof *k->keys);
    }
    k->descs[loc->slot] = (kvp_desc_t){
        .word = kvp_word_make(loc->generation, KVP_DESC_SEALED),
        .version = obj->version,
        .digest = own_digest(c, key),
        .key_hash2 = kvp_key_hash2(seed, c->tenant, key, strlen(key)),
        .offset = loc->offset,
        .len = obj->len,
        .sum = obj->len * 3,
        .tenant = c->tenant,
        .group = what->group.group,
        .group_n = what->group.members,
        .group_member = what->group.member,
        .key_off = loc->key_off,
        .key_len = (uint16_t)strlen(key),
        .flags = pin & KVP_DESC_PIN,
    };
    kvp_desc_seal(&k->descs[loc->slot]);
    free(k->keys[loc->slot]);
    k->keys[loc->slot] = strdup(key);
    return KVP_OK;
}

static kvp_err_t
put_begin_wait(peer_t *c, const char *key, uint64_t len, uint32_t wait_ms, uint64_t *attempt_out,
               kvp_wire_loc_t *loc_out)
{
    put_t one = {.key = key, .len = len};
    uint64_t id = put_begin(c, &one, 1, wait_ms);
    places_t places;
    kvp_err_t err;

    places_read(peer_wait(c, id, (wait_ms + 100) * MS), &places);
    err = places.err == KVP_OK ? places.objs[0].err : places.err;
    if (err == KVP_OK) {
        assert_int_equal(places.objs[0].len, len);
        *attempt_out = one.attempt;
        *loc_out = places.locs[0];
    }
    places_free(&places);
    return err;
}

kvp_err_t
put_place(peer_t *c, const char *key, uint64_t len, uint64_t *attempt_out, kvp_wire_loc_t *loc_out)
{
    return put_begin_wait(c, key, len, 1000, attempt_out, loc_out);
}

kvp_err_t
put_wait(peer_t *c, const char *key, uint64_t len, uint32_t wait_ms)
{
    kvp_wire_loc_t loc = {0};
    uint64_t attempt = 0;
    kvp_err_t err = put_begin_wait(c, key, len, wait_ms, &attempt, &loc);

    if (err != KVP_OK) return err;
    assert_int_equal(write_place(c->world, &loc), KVP_OK);
    return commit(c, attempt, len * 3);
}

kvp_err_t
put(peer_t *c, const char *key, uint64_t len)
{
    return put_wait(c, key, len, 1000);
}

void
put_fast(peer_t *c, const char *prefix, int digits, uint32_t n)
{
    put_fast_of(c, prefix, digits, n, 64);
}

void
put_fast_of(peer_t *c, const char *prefix, int digits, uint32_t n, uint64_t len)
{
    enum { BATCH = 512 };
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t *recs = calloc(BATCH, sizeof *recs);
    char(*text)[128] = calloc(BATCH, sizeof *text);
    put_t *puts = calloc(BATCH, sizeof *puts);

    for (uint32_t i = 0; i < n; i += BATCH) {
        reply_t *r;
        uint64_t id;

        head.n = (uint32_t)kvp_min_u64(BATCH, n - i);
        for (uint32_t k = 0; k < head.n; k++) {
            snprintf(text[k], sizeof text[k], "%s%0*u", prefix, digits, i + k);
            puts[k] = (put_t){.key = text[k], .len = len};
        }
        id = put_begin(c, puts, head.n, 0);
        r = peer_reply(c, id);
        assert_non_null(r);
        reply_free(r);
        for (uint32_t k = 0; k < head.n; k++)
            recs[k] = (kvp_wire_commit_t){.attempt = puts[k].attempt, .sum = 1, .replicas = 1};
        r = peer_reply(c, peer_send(c, KVP_OP_PUT_COMMIT, 0, &head.base, recs, head.n * sizeof *recs));
        assert_int_equal(plain_result(r), KVP_OK);
    }
    free(puts);
    free(text);
    free(recs);
}

kvp_err_t
get(peer_t *c, const char *key, uint64_t *ticket_out, kvp_wire_loc_t *loc_out)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = own_digest(c, key);
    places_t places;
    kvp_err_t err;

    head.n = 1;
    head.no_hold = ticket_out == NULL;
    places_read(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest)), &places);
    err = places.err == KVP_OK ? places.objs[0].err : places.err;
    if (err == KVP_OK && loc_out != NULL) *loc_out = places.locs[0];
    if (ticket_out != NULL) {
        *ticket_out = places.ticket;
        assert_true((places.ticket != 0) == (err == KVP_OK));
    }
    places_free(&places);
    return err;
}

static bool
ask_exists(peer_t *c, const char *key, bool is_plain)
{
    Kvp__Pb__Exists head = KVP__PB__EXISTS__INIT;
    kvp_digest_t digest = own_digest(c, key);
    reply_t *r;
    bool is_there;

    head.n = 1;
    head.is_plain = is_plain;
    r = peer_reply(c, peer_send(c, KVP_OP_EXISTS, 0, &head.base, &digest, sizeof digest));
    assert_non_null(r);
    assert_int_equal(r->frame.tail_len, 1);
    is_there = r->frame.tail[0] != 0;
    assert_int_equal(plain_result(r), KVP_OK);
    return is_there;
}

bool
exists(peer_t *c, const char *key)
{
    return ask_exists(c, key, true);
}

bool
probe(peer_t *c, const char *key)
{
    return ask_exists(c, key, false);
}

void
release(peer_t *c, uint64_t ticket)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;

    head.n = 1;
    (void)peer_send(c, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &head.base, &ticket, sizeof ticket);
}

static uint64_t
remove_send(peer_t *c, kvp_digest_t digest, bool is_forced)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;

    head.n = 1;
    head.force = is_forced;
    return peer_send(c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
}

kvp_err_t
remove_key(peer_t *c, const char *key, bool is_forced)
{
    return first_result(peer_wait(c, remove_send(c, own_digest(c, key), is_forced), 100 * MS));
}

uint64_t
remove_begun(peer_t *c, const char *key, bool is_forced)
{
    return remove_send(c, digest_of(c->world, key), is_forced);
}

uint64_t
remove_many(peer_t *c, const char *pattern, bool is_forced)
{
    Kvp__Pb__RemoveMany head = KVP__PB__REMOVE_MANY__INIT;

    head.pattern = (char *)pattern;
    head.force = is_forced;
    return peer_send(c, KVP_OP_REMOVE_MANY, 0, &head.base, NULL, 0);
}

kvp_err_t
remove_many_result(reply_t *r, uint64_t *removed_out, uint64_t *held_out)
{
    Kvp__Pb__RemoveManyReply *head;
    kvp_err_t err;
    kvp_pb_t pb;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__remove_many_reply__descriptor, &r->frame);
    assert_non_null(head);
    err = head->err;
    if (removed_out != NULL) *removed_out = head->removed;
    if (held_out != NULL) *held_out = head->held;
    kvp_pb_free(&pb, head);
    reply_free(r);
    return err;
}

static uint64_t
look_up(peer_t *c, const char *const *keys, uint32_t n, bool is_prefix, bool is_groups, uint32_t ttl_ms,
        Kvp__Pb__LookupReply *reply_out, uint8_t *found_out)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__LookupReply *reply;
    kvp_digest_t *digests = calloc(n, sizeof *digests);
    kvp_pb_t pb;
    reply_t *r;

    for (uint32_t i = 0; i < n; i++)
        digests[i] = own_digest(c, keys[i]);
    head.n = n;
    head.is_prefix = is_prefix;
    head.is_groups = is_groups;
    head.ttl_ms = ttl_ms;
    r = peer_reply(c, peer_send(c, KVP_OP_LOOKUP, 0, &head.base, digests, n * sizeof *digests));
    free(digests);
    assert_non_null(r);
    reply = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, &r->frame);
    assert_non_null(reply);
    assert_int_equal(reply->err, KVP_OK);
    *reply_out = *reply;
    reply_out->detail = NULL;
    assert_int_equal(reply->n, is_prefix ? 0 : n);
    assert_int_equal(r->frame.tail_len, reply->n);
    if (found_out != NULL) memcpy(found_out, r->frame.tail, reply->n);
    kvp_pb_free(&pb, reply);
    reply_free(r);
    return reply_out->ticket;
}

uint64_t
lookup(peer_t *c, const char *const *keys, uint32_t n, bool is_prefix, uint32_t ttl_ms, Kvp__Pb__LookupReply *reply_out,
       uint8_t *found_out)
{
    return look_up(c, keys, n, is_prefix, false, ttl_ms, reply_out, found_out);
}

uint64_t
lookup_groups(peer_t *c, const char *const *names, uint32_t n, bool is_prefix, uint32_t ttl_ms,
              Kvp__Pb__LookupReply *reply_out, uint8_t *found_out)
{
    return look_up(c, names, n, is_prefix, true, ttl_ms, reply_out, found_out);
}

kvp_wire_group_t
group_of(const peer_t *c, const char *name, uint32_t members, uint32_t member)
{
    return (kvp_wire_group_t){own_digest(c, name), members, member};
}

kvp_err_t
put_like(peer_t *c, const put_t *what, const Kvp__Pb__PutBegin *like)
{
    put_t one = *what;
    places_t places;
    kvp_err_t err;
    uint32_t n;

    places_read(peer_wait(c, put_begin_with(c, &one, 1, like), 2 * SEC), &places);
    err = places.objs[0].err;
    n = places.nloc;
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(write_object_as(c, &places.locs[i], &places.objs[0], what, like->pin), KVP_OK);
    places_free(&places);
    return err == KVP_OK ? commit_copies(c, one.attempt, what->len * 3, (1u << n) - 1) : err;
}
