/* SPDX-License-Identifier: Apache-2.0
 * A node: its memory, how it obeys orders, and how it mounts. */
#include "tests/world/priv.h"

#include "master/core/base/slab.h"
#include "tests/world/report.h"

#include <stdio.h>

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
chunk_make(chunk_t *c)
{
    c->words = calloc(c->geo.slots_max, 8);
    c->granted = calloc(c->geo.slots_max, 8);
    c->retired = calloc(c->geo.slots_max, 8);
    c->offset = calloc(c->geo.slots_max, 8);
    c->len = calloc(c->geo.slots_max, 8);
    c->taken = calloc(c->bytes / KVP_SLAB_UNIT / 64 + 1, 8);
    c->is_made = true;
}

chunk_t *
mem_chunk(const mem_t *mem, uint32_t i)
{
    chunk_t *c = &mem->chunks[i];

    assert_true(i < mem->chunk_n);
    if (!c->is_made) chunk_make(c);
    return c;
}

static void
chunk_size(chunk_t *c, uint64_t bytes)
{
    kvp_chunk_geo(bytes, &c->geo);
    c->bytes = bytes;
}

void
mem_empty(mem_t *mem)
{
    for (uint32_t i = 0; mem->chunks != NULL && i < mem->chunk_n; i++)
        chunk_fini(&mem->chunks[i]);
    free(mem->chunks);
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
        chunk_size(&mem->chunks[i], kvp_min_u64(mem->chunk_bytes, mem->size_bytes - i * mem->chunk_bytes));
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

mem_t *
mem_find(world_t *w, uint32_t segment_id)
{
    kvp_list_foreach (pos, &w->mems) {
        mem_t *mem = kvp_list_entry(pos, mem_t, link);

        if (mem->segment_id == segment_id) return mem->is_wild ? NULL : mem;
    }
    return NULL;
}

static void
mem_mark_word(chunk_t *c, uint64_t word, uint64_t mask, bool is_taken)
{
    if ((c->taken[word] & mask) != (is_taken ? 0 : mask))
        fail_msg("bytes at unit %lu have two writers", (unsigned long)(word * 64));
    c->taken[word] ^= mask;
}

void
mem_mark(chunk_t *c, uint32_t slot, bool is_taken)
{
    uint64_t u = c->offset[slot] / KVP_SLAB_UNIT, end = (c->offset[slot] + c->len[slot]) / KVP_SLAB_UNIT;

    for (uint64_t n; u < end; u += n) {
        n = kvp_min_u64(end - u, 64 - u % 64);
        mem_mark_word(c, u / 64, (n == 64 ? UINT64_MAX : (1ull << n) - 1) << u % 64, is_taken);
    }
}

void
slot_is_free(chunk_t *c, uint32_t slot)
{
    if (c->len[slot] != 0) mem_mark(c, slot, false);
    c->len[slot] = 0;
}

/* The node says that nothing touches the extent any more. */
static void
mem_freed(mem_t *mem, const kvp_wire_slot_t *slot)
{
    chunk_t *c = mem == NULL ? NULL : mem_chunk(mem, slot->chunk);

    if (c == NULL) return;
    if (c->granted[slot->slot] == slot->generation ||
        (slot->owner == KVP_OWNER_ANY && c->granted[slot->slot] < slot->generation)) /* whatever was granted there */
        slot_is_free(c, slot->slot);
}

/* ---- orders */
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
    r->free_at_ns = n->policy == NODE_DEAD_ONLY || n->policy == NODE_TOLD ? UINT64_MAX : n->world->now + n->free_ns;
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
    uint64_t *word = &mem_chunk(n->mem, slot->chunk)->words[slot->slot];

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

void
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

/* What was never written is told by its length. */
void
node_check(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_check_t *checks = (const kvp_wire_check_t *)f->tail;
    uint32_t count = (uint32_t)(f->tail_len / sizeof *checks);
    uint8_t *flags = calloc(count + 1, 1);

    n->checks_n += count;
    for (uint32_t i = 0; n->mem != NULL && i < count; i++)
        if (n->mem->hollow_part != 0 && checks[i].len % n->mem->hollow_part == 0) flags[i] = KVP_RETIRE_DEAD;
    if (n->policy != NODE_MUTE && n->policy != NODE_STOPPED && (n->mem == NULL || !n->mem->is_check_ignored))
        answer_back(n, f, KVP_OK, flags, count);
    free(flags);
}

void
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

void
node_owner(peer_t *n, const kvp_frame_t *f)
{
    Kvp__Pb__Owner *head;
    mem_t *mem = NULL;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__owner__descriptor, f);
    assert_non_null(head);
    kvp_list_foreach (pos, &n->world->mems)
        if (memcmp(kvp_list_entry(pos, mem_t, link)->uuid, head->uuid.data, sizeof mem->uuid) == 0)
            mem = kvp_list_entry(pos, mem_t, link);
    assert_true((f->hdr.flags & KVP_FRAME_ONEWAY) != 0);
    if (mem != NULL && head->chunk < mem->chunk_n) /* a stranger may have mounted more of it */
        snprintf(mem->chunks[head->chunk].owner, sizeof mem->chunks->owner, "%s", head->tenant);
    kvp_pb_free(&pb, head);
}

void
node_is_free(peer_t *n, uint32_t segment_id, const kvp_wire_slot_t *slots, uint32_t count)
{
    Kvp__Pb__Freed head = KVP__PB__FREED__INIT;
    kvp_buf_t buf;
    size_t at;

    head.n = count;
    head.segment_id = segment_id;
    for (uint32_t i = 0; i < count; i++)
        mem_freed(mem_find(n->world, segment_id), &slots[i]);
    kvp_buf_init(&buf, 0);
    kvp_pb_frame_begin(&buf, KVP_OP_FREED, KVP_FRAME_ONEWAY, 0, &head.base, &at);
    kvp_buf_append(&buf, slots, count * sizeof *slots);
    kvp_frame_end(&buf, at);
    packet_queue(n, &n->to_master, packet_make(buf.data, buf.len));
    kvp_buf_fini(&buf);
}

void
node_answer(peer_t *n, reply_t *order, const uint8_t *flags)
{
    const kvp_wire_slot_t *slots;
    Kvp__Pb__Retire *head;
    kvp_pb_t pb;

    slots = retire_read(&order->frame, &pb, &head);
    for (uint32_t i = 0; i < head->n; i++) {
        if ((flags[i] & KVP_RETIRE_FREE) != 0)
            mem_freed(mem_find(n->world, head->segment_id), &slots[i]);
        else if (flags[i] == KVP_RETIRE_DEAD)
            node_keep(n, head->segment_id, &slots[i]);
    }
    answer_back(n, &order->frame, KVP_OK, flags, head->n);
    kvp_pb_free(&pb, head);
    reply_free(order);
    world_pump(n->world);
}

/* Says that one extent is free; its entry goes. */
static void
node_free_one(peer_t *n, retiring_t *r)
{
    node_is_free(n, r->segment_id, &r->slot, 1);
    kvp_list_del(&r->link);
    free(r);
}

bool
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
retiring_drop(peer_t *p)
{
    while (!kvp_list_is_empty(&p->retiring)) {
        retiring_t *r = kvp_list_first(&p->retiring, retiring_t, link);

        kvp_list_del(&r->link);
        free(r);
    }
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

/* ---- mounting */
uint64_t
node_mount_begin(peer_t *n)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    mem_t *mem = n->mem;

    msg.name = mem->name;
    msg.uuid = (ProtobufCBinaryData){sizeof mem->uuid, mem->uuid};
    msg.epoch = mem->epoch;
    msg.size_bytes = mem->size_bytes;
    msg.chunk_bytes = mem->chunk_bytes;
    msg.addr = (char *)"10.0.0.1:7000";
    msg.unix_path = (char *)"/run/node.sock";
    msg.transports = (char *)"shm,tcp";
    msg.is_fresh = mem->is_fresh;
    msg.can_copy = mem->can_copy;
    msg.term = mem->term;
    msg.mounted_term = mem->mounted_term;
    return peer_send(n, KVP_OP_MOUNT, 0, &msg.base, NULL, 0);
}

Kvp__Pb__MountReply
node_ask_mount(peer_t *n)
{
    mem_t *mem = n->mem;
    Kvp__Pb__MountReply *head, got;
    uint64_t delay_ns = n->delay_ns;
    kvp_pb_t pb;
    reply_t *r;

    n->delay_ns = 0;
    r = peer_wait(n, node_mount_begin(n), SEC); /* what was sent before it may take its time */
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
    mem->tells_words = got.report == 1;
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
