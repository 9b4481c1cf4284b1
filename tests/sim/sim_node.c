/* SPDX-License-Identifier: Apache-2.0
 * A node's shell: the link to the master, attachments of clients and their processes, and rounds of quiesce. Lanes,
 * which serve transfers by TCP, are in sim_lane.c. */
#include "tests/sim/sim_node.h"

#include "common/mutate.h"
#include "proto/pb.h"
#include "tests/sim/sim_copy.h"
#include "tests/sim/sim_oracle.h"

#include "proto/kvpool.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define RETRY_NS (50 * MS)
#define FREED_BATCH 64u
#define SWEEP_SLOTS 5u /* a slice, */
#define SWEEP_NS (2 * MS) /* and the most that passes before the next one */

static void on_dial(sim_t *s, void *arg, uint64_t unused);
static void on_sweep(sim_t *s, void *arg, uint64_t unused);

/* ---- descriptor words, as the core reaches them */
static uint64_t
word_load(void *arg, uint32_t chunk, uint32_t slot)
{
    node_t *n = arg;

    return mem_word(n->sim, n->mem, chunk, slot);
}

static bool
word_cas(void *arg, uint32_t chunk, uint32_t slot, uint64_t expect, uint64_t next)
{
    node_t *n = arg;

    if (!mem_cas(n->sim, n->mem, chunk, slot, expect, next)) return false;
    oracle_node_kills(n->sim, n->mem, chunk, slot, expect);
    return true;
}

static void
word_fence(void *arg)
{
    (void)arg; /* every step of the model is one */
}

static uint32_t
word_limit(void *arg, uint32_t chunk)
{
    node_t *n = arg;

    return n->mem->chunks[chunk].limit;
}

static bool
desc_read(void *arg, uint32_t chunk, uint32_t slot, kvp_desc_t *desc_out, uint8_t *key_out)
{
    node_t *n = arg;

    return mem_describes(n->mem, chunk, slot, desc_out, key_out);
}

static const kvp_node_words_ops_t word_ops = {word_load, word_cas, word_fence, word_limit, desc_read};

/* ---- frames to the master */
static void
send_frame(sim_t *s, node_t *n, uint8_t op, uint8_t flags, uint64_t id, const void *head, const void *tail, size_t len)
{
    size_t at;

    if (s->plan->has_keepers && kvp_node_core_take_changed(n->core)) { /* before the master can rely on it */
        kvp_buf_reset(&n->kept);
        kvp_node_core_save(n->core, &n->kept);
        n->kept_term = kvp_node_core_term(n->core);
    }
    kvp_buf_reset(&n->out);
    kvp_pb_frame_begin(&n->out, op, flags, id, head, &at);
    kvp_buf_append(&n->out, tail, len);
    kvp_frame_end(&n->out, at);
    conn_send(s, n->link, 0, n->out.data, n->out.len);
}

static void
answer(sim_t *s, node_t *n, const kvp_frame_t *f, kvp_err_t err, const uint8_t *flags, uint32_t count)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;

    msg.err = err;
    msg.n = count;
    send_frame(s, n, f->hdr.opcode, KVP_FRAME_REPLY, f->hdr.request_id, &msg.base, flags, count);
}

void
node_answer(sim_t *s, node_t *n, uint8_t op, uint64_t request, const uint8_t *flags, uint32_t count)
{
    const kvp_frame_t f = {.hdr = {.opcode = op, .request_id = request}};

    answer(s, n, &f, KVP_OK, flags, count);
}

uint64_t
node_ask(sim_t *s, node_t *n, uint8_t op, const void *head, const void *tail, size_t len)
{
    send_frame(s, n, op, 0, ++n->request, head, tail, len);
    return n->request;
}

/* ---- settling: rounds, attachments to close, processes to forget, extents that became free */
static void
run_rounds(sim_t *s, node_t *n)
{
    uint64_t number;

    (void)s;
    while (kvp_node_core_take_quiesce(n->core, &number)) {
        round_t *r = NULL;

        for (uint32_t i = 0; r == NULL; i++)
            if (n->rounds[i].number == 0) r = &n->rounds[i];
        r->number = number;
        r->left = lanes_await(n, r);
        if (r->left > 0) continue;
        r->number = 0;
        kvp_node_core_quiesced(n->core, number);
    }
}

void
node_round_passed(sim_t *s, node_t *n, round_t *r)
{
    uint64_t number = r->number;

    if (--r->left > 0) return;
    r->number = 0;
    kvp_node_core_quiesced(n->core, number);
    node_settle(s, n);
}

static void
tell_freed(sim_t *s, node_t *n)
{
    Kvp__Pb__Freed msg = KVP__PB__FREED__INIT;
    kvp_wire_slot_t slots[FREED_BATCH];

    while ((msg.n = kvp_node_core_take_freed(n->core, slots, FREED_BATCH)) > 0) {
        for (uint32_t i = 0; i < msg.n; i++)
            oracle_freed(s, n->mem, slots[i].chunk, slots[i].slot, slots[i].generation);
        msg.segment_id = n->segment_id;
        send_frame(s, n, KVP_OP_FREED, KVP_FRAME_ONEWAY, ++n->request, &msg.base, slots, msg.n * sizeof slots[0]);
    }
}

void
node_settle(sim_t *s, node_t *n)
{
    kvp_node_att_t *att;
    kvp_node_proc_t *proc;
    uint64_t live_min, writer;

    /* The transports end no more than what the core closes: a lane is a connection of its attachment. They guard what
     * lands, so there is nothing to cut. */
    (void)kvp_node_core_take_fence(n->core, &live_min);
    while (kvp_node_core_take_cut(n->core, &writer))
        continue;
    run_rounds(s, n);
    while ((att = kvp_node_core_take_close(n->core)) != NULL) {
        attached_t *a = kvp_container_of(att, attached_t, att);

        kvp_node_core_detach(n->core, att);
        conn_close(s, a->conn, 1);
        lane_end(a);
    }
    while ((proc = kvp_node_core_take_idle(n->core)) != NULL)
        kvp_container_of(proc, process_t, core)->is_known = false;
    if (n->state == LINK_UP) tell_freed(s, n);
    if (n->state == LINK_UP) tier_poll(s, n);
    if (n->state == LINK_UP) copy_poll(s, n);
    oracle_node_term(s, n->index, kvp_node_core_term(n->core));
    if (n->is_sweeping || !kvp_node_core_is_sweeping(n->core)) return;
    n->is_sweeping = true;
    sim_at(s, &n->party, s->now + rng_between(&n->rng, 1, SWEEP_NS), on_sweep, n, 0);
}

/* ---- memory */
static void
make_memory(sim_t *s, node_t *n)
{
    if (n->mem != NULL) {
        oracle_mem_gone(s, n->mem);
        kvp_node_core_drop_segment(n->core);
        node_settle(s, n);
        lanes_end_all(n);
        for (uint32_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
            if (n->rounds[i].number != 0) kvp_node_core_quiesced(n->core, n->rounds[i].number);
            n->rounds[i].number = 0;
        }
    }
    n->mem = mem_make(s, n->index, s->plan->chunk_n, ++n->mem_seq);
    n->kept_writers = NULL;
    n->is_fresh = true;
    if (kvp_node_core_set_segment(n->core, s->plan->chunk_n, SLOTS, SLOTS) != KVP_OK) abort();
}

/* ---- the link to the master */
static void
lose(sim_t *s, node_t *n)
{
    if (n->state == LINK_DOWN) return;
    TRACE(s, "%s loses its master", n->party.name);
    conn_close(s, n->link, 0);
    n->link = NULL;
    n->state = LINK_DOWN;
    kvp_node_core_link_lost(n->core);
    tier_link_lost(n);
    sim_at(s, &n->party, s->now + rng_between(&n->rng, RETRY_NS / 2, RETRY_NS), on_dial, n, 0);
}

/* What a stranger would say. Only an election raises the term where masters are elected, so Mount may lie there, too.
 */
static uint32_t
told_term(sim_t *s, const node_t *n, bool is_mount)
{
    uint32_t term = kvp_node_core_term(n->core);
    rng_t rng;

    if (s->plan->lies_per_mille == 0 || s->is_calm || (is_mount && !s->plan->has_standby)) return term;
    rng = rng_fork(s->plan->seed, 61, n->request << 8 | n->party.number);
    return rng_chance(&rng, s->plan->lies_per_mille) ? term + 1 + (uint32_t)rng_below(&rng, 14) : term;
}

static void
on_beat(sim_t *s, void *arg, uint64_t link)
{
    Kvp__Pb__Heartbeat msg = KVP__PB__HEARTBEAT__INIT;
    node_t *n = arg;

    if (n->state == LINK_DOWN || n->link->id != link) return;
    if (s->now >= n->heard_ns + n->ttl_ns) {
        lose(s, n);
        return;
    }
    msg.incarnation = n->incarnation;
    msg.term = told_term(s, n, false);
    send_frame(s, n, KVP_OP_HEARTBEAT, 0, ++n->request, &msg.base, NULL, 0);
    sim_at(s, &n->party, s->now + n->beat_ns, on_beat, n, link);
}

static void
ask_mount(sim_t *s, node_t *n)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;

    msg.name = n->party.name;
    msg.uuid = (ProtobufCBinaryData){sizeof n->mem->uuid, n->mem->uuid};
    msg.epoch = n->mem->epoch;
    msg.size_bytes = (uint64_t)n->mem->chunk_n * CHUNK_BYTES;
    msg.chunk_bytes = CHUNK_BYTES;
    msg.addr = n->party.name;
    msg.unix_path = n->party.name;
    msg.transports = (char *)"shm,tcp";
    msg.is_fresh = n->is_fresh;
    msg.is_kept = s->plan->has_keepers;
    msg.can_copy = s->plan->has_moves;
    msg.term = told_term(s, n, true);
    msg.mounted_term = kvp_node_core_mounted_term(n->core);
    n->state = LINK_MOUNTING;
    send_frame(s, n, KVP_OP_MOUNT, 0, ++n->request, &msg.base, NULL, 0);
    if (KVP_RULE(FRESH_ONCE)) n->is_fresh = false; /* whatever becomes of the answer */
}

static void
on_sweep(sim_t *s, void *arg, uint64_t unused)
{
    node_t *n = arg;

    (void)unused;
    n->is_sweeping = false;
    if (!kvp_node_core_sweep(n->core) && n->state == LINK_SWEEPING) ask_mount(s, n);
    node_settle(s, n);
}

/* ---- telling a master that does not know the memory what is in it */
static kvp_err_t
report_next(sim_t *s, node_t *n)
{
    Kvp__Pb__Report msg = KVP__PB__REPORT__INIT;
    kvp_node_page_t page;
    kvp_err_t err;

    kvp_buf_reset(&n->page);
    err = kvp_node_core_report_page(n->core, &n->page, &page);
    if (err != KVP_OK) return err;
    msg.uuid = (ProtobufCBinaryData){sizeof n->mem->uuid, n->mem->uuid};
    msg.n = page.n;
    msg.is_whole = n->is_report_whole;
    msg.is_last = n->is_report_last = page.is_last;
    n->report_request = ++n->request;
    send_frame(s, n, KVP_OP_REPORT, 0, n->report_request, &msg.base, n->page.data, n->page.len);
    return KVP_OK;
}

static kvp_err_t
report_begin(sim_t *s, node_t *n, uint64_t since)
{
    kvp_err_t err = kvp_node_core_report_begin(n->core, since);

    if (err != KVP_OK) return err;
    n->state = LINK_REPORTING;
    n->is_report_whole = since == 0;
    oracle_reports(s, n->mem);
    return report_next(s, n);
}

static kvp_err_t
take_report_answer(sim_t *s, node_t *n, const kvp_frame_t *f, const Kvp__Pb__Reply *msg)
{
    kvp_err_t err = msg->err;

    if (n->state != LINK_REPORTING || f->hdr.request_id != n->report_request) return KVP_OK;
    if (err == KVP_OK) err = msg->n > f->tail_len ? KVP_PROTO : kvp_node_core_report_answer(n->core, f->tail, msg->n);
    if (err != KVP_OK) return err;
    if (!n->is_report_last) return report_next(s, n);
    n->state = LINK_UP;
    return KVP_OK;
}

static kvp_err_t
take_hello(sim_t *s, node_t *n, const Kvp__Pb__HelloReply *msg)
{
    kvp_err_t err = msg->err != KVP_OK ? msg->err : kvp_node_core_see_term(n->core, msg->term);

    if (err != KVP_OK && err != KVP_EAGAIN) return err;
    if (n->mem == NULL) make_memory(s, n);
    n->incarnation = msg->incarnation;
    n->beat_ns = msg->heartbeat_ms * MS;
    n->ttl_ns = msg->session_ttl_ms * MS;
    sim_at(s, &n->party, s->now + n->beat_ns, on_beat, n, n->link->id);
    if (err == KVP_OK)
        ask_mount(s, n);
    else
        n->state = LINK_SWEEPING;
    return KVP_OK;
}

static kvp_err_t
take_mount(sim_t *s, node_t *n, const Kvp__Pb__MountReply *msg)
{
    kvp_err_t err = msg->err != KVP_OK ? msg->err : kvp_node_core_see_term(n->core, msg->term);

    if (err != KVP_OK) return err;
    if (msg->is_reset) {
        make_memory(s, n);
        ask_mount(s, n);
        return KVP_OK;
    }
    TRACE(s, "%s is mounted as segment %u in term %u, report %u", n->party.name, msg->segment_id, msg->term,
          msg->report);
    n->segment_id = msg->segment_id;
    n->is_fresh = false;
    kvp_node_core_set_id(n->core, msg->segment_id);
    node_settle(s, n);
    if (msg->report != 0) return report_begin(s, n, msg->report == 2 ? 0 : msg->since > 0 ? msg->since : UINT64_MAX);
    n->state = LINK_UP;
    return KVP_OK;
}

static kvp_err_t
on_answer(sim_t *s, node_t *n, const kvp_frame_t *f)
{
    kvp_err_t err = KVP_PROTO;
    kvp_pb_t pb;
    void *msg;

    switch (f->hdr.opcode) {
    case KVP_OP_HELLO:
        msg = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, f);
        if (msg != NULL) err = take_hello(s, n, msg);
        break;
    case KVP_OP_MOUNT:
        msg = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, f);
        if (msg != NULL) err = take_mount(s, n, msg);
        break;
    case KVP_OP_REPORT:
        msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, f);
        if (msg != NULL) err = take_report_answer(s, n, f, msg);
        break;
    case KVP_OP_HEARTBEAT:
        msg = kvp_pb_unpack(&pb, &kvp__pb__heartbeat_reply__descriptor, f);
        if (msg != NULL) err = ((Kvp__Pb__HeartbeatReply *)msg)->err;
        if (err == KVP_OK) err = kvp_node_core_see_term(n->core, ((Kvp__Pb__HeartbeatReply *)msg)->term);
        if (err == KVP_EAGAIN && n->state == LINK_SWEEPING) err = KVP_OK;
        break;
    default:
        return KVP_OK;
    }
    kvp_pb_free(&pb, msg);
    return err;
}

/* ---- orders */
/* RETIRE or CHECK, with records of so many bytes; NULL = it was malformed. */
static Kvp__Pb__Retire *
unpack_extents(sim_t *s, const kvp_frame_t *f, size_t each, kvp_pb_t *pb)
{
    Kvp__Pb__Retire *msg = kvp_pb_unpack(pb, &kvp__pb__retire__descriptor, f);

    if (msg != NULL && f->tail_len == msg->n * each) return msg;
    sim_fail(s, "WIRE", "a malformed order about extents: op %u", f->hdr.opcode);
    return NULL;
}

static void
on_retire(sim_t *s, node_t *n, const kvp_frame_t *f)
{
    const kvp_wire_slot_t *slots = (const kvp_wire_slot_t *)f->tail;
    uint8_t flags[KVP_BATCH_MAX];
    Kvp__Pb__Retire *msg;
    uint32_t count;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = unpack_extents(s, f, sizeof *slots, &pb);
    if (msg == NULL) return;
    count = msg->n;
    err = kvp_node_core_retire(n->core, msg->term, msg->segment_id, slots, count);
    if (err == KVP_OK) oracle_node_obeys(s, n->index, msg->term);
    kvp_pb_free(&pb, msg);
    if (err != KVP_OK) {
        answer(s, n, f, err, NULL, 0);
        return;
    }
    node_settle(s, n);
    kvp_node_core_retire_answer(n->core, flags, count);
    for (uint32_t i = 0; i < count; i++)
        if ((flags[i] & KVP_RETIRE_FREE) != 0)
            oracle_freed(s, n->mem, slots[i].chunk, slots[i].slot, slots[i].generation);
    answer(s, n, f, KVP_OK, flags, count);
}

static void
on_check(sim_t *s, node_t *n, const kvp_frame_t *f)
{
    const kvp_wire_check_t *checks = (const kvp_wire_check_t *)f->tail;
    uint8_t flags[KVP_BATCH_MAX];
    Kvp__Pb__Retire *msg;
    uint32_t count;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = unpack_extents(s, f, sizeof *checks, &pb);
    if (msg == NULL) return;
    count = msg->n;
    err = kvp_node_core_check(n->core, msg->term, msg->segment_id, checks, count, flags);
    if (err == KVP_OK) oracle_node_obeys(s, n->index, msg->term);
    kvp_pb_free(&pb, msg);
    answer(s, n, f, err, flags, err == KVP_OK ? count : 0);
}

static void
on_fence(sim_t *s, node_t *n, const kvp_frame_t *f)
{
    Kvp__Pb__Fence *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__fence__descriptor, f);
    if (msg == NULL) {
        sim_fail(s, "WIRE", "a malformed Fence");
        return;
    }
    err = kvp_node_core_fence(n->core, msg->term, (kvp_idrange_t){msg->above, msg->incarnation}, msg->live_min);
    if (err == KVP_OK) oracle_node_obeys(s, n->index, msg->term);
    kvp_pb_free(&pb, msg);
    node_settle(s, n);
    answer(s, n, f, err, NULL, 0);
}

static void
on_link_bytes(sim_t *s, void *arg, conn_t *conn, const uint8_t *bytes, size_t len)
{
    node_t *n = arg;
    kvp_frame_t f;
    kvp_err_t err;
    size_t used;

    if (conn != n->link) return;
    n->heard_ns = s->now;
    if (kvp_frame_parse(bytes, len, &f, &used) != KVP_OK || used != len) {
        sim_fail(s, "WIRE", "a node is sent %zu bytes that are no frame", len);
        return;
    }
    if ((f.hdr.flags & KVP_FRAME_REPLY) != 0) {
        if (!tier_on_answer(s, n, &f) && on_answer(s, n, &f) != KVP_OK) lose(s, n);
    } else if (f.hdr.opcode == KVP_OP_RETIRE) {
        on_retire(s, n, &f);
    } else if (f.hdr.opcode == KVP_OP_CHECK) {
        on_check(s, n, &f);
    } else if (f.hdr.opcode == KVP_OP_FENCE) {
        on_fence(s, n, &f);
    } else if (copy_on_order(s, n, &f, &err) || tier_on_order(s, n, &f, &err)) {
        if (err != KVP_OK) lose(s, n);
    } else if (f.hdr.opcode != KVP_OP_OWNER) {
        answer(s, n, &f, KVP_NOTSUP, NULL, 0);
    }
    node_settle(s, n);
}

static void
on_link_end(sim_t *s, void *arg, conn_t *conn)
{
    node_t *n = arg;

    if (conn == n->link) lose(s, n);
}

static const conn_ops_t link_ops = {on_link_bytes, on_link_end};

/* A connection that leads nowhere is given up in time. */
static void
on_dial_late(sim_t *s, void *arg, uint64_t link)
{
    node_t *n = arg;

    if (n->state == LINK_GREETING && n->link->id == link) lose(s, n);
}

static void
dial(sim_t *s, node_t *n)
{
    Kvp__Pb__Hello msg = KVP__PB__HELLO__INIT;
    char host[2] = {(char)('0' + n->party.host), '\0'};

    n->link = conn_open(s, &n->party, master_to_dial(s, &n->rng), &link_ops, n);
    n->state = LINK_GREETING;
    n->heard_ns = s->now;
    msg.version = KVP_PROTO_VERSION;
    msg.version_min = KVP_PROTO_VERSION_MIN;
    msg.role = KVP_ROLE_NODE;
    msg.name = n->party.name;
    msg.host_id = host;
    msg.incarnation = n->incarnation;
    send_frame(s, n, KVP_OP_HELLO, 0, ++n->request, &msg.base, NULL, 0);
    sim_at(s, &n->party, s->now + SEC, on_dial_late, n, n->link->id);
}

static void
on_dial(sim_t *s, void *arg, uint64_t unused)
{
    node_t *n = arg;

    (void)unused;
    if (n->state == LINK_DOWN) dial(s, n);
}

/* ---- clients */
static void
on_proc_dead(sim_t *s, void *arg, uint64_t unused)
{
    process_t *p = arg;

    (void)unused;
    if (!p->is_known || p->core.is_dead) return;
    TRACE(s, "%s sees that client%u is dead", p->node->party.name, p->client);
    kvp_node_core_process_dead(p->node->core, &p->core);
    node_settle(s, p->node);
}

void
node_process_died(sim_t *s, uint32_t client, uint32_t life, uint64_t at_ns)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        for (process_t *p = s->nodes[i]->processes; p != NULL; p = p->next)
            if (p->is_known && p->client == client && p->life == life)
                sim_at(s, &s->nodes[i]->party, at_ns, on_proc_dead, p, 0);
}

/* The process behind an attachment; one that is dead already is seen dead at once. */
static process_t *
process_of(sim_t *s, node_t *n, uint32_t client, uint32_t life)
{
    process_t *p;

    for (p = n->processes; p != NULL; p = p->next)
        if (p->is_known && p->client == client && p->life == life) return p;
    p = sim_alloc(s, sizeof *p);
    *p = (process_t){.node = n, .client = client, .life = life, .is_known = true, .next = n->processes};
    kvp_node_proc_init(&p->core);
    n->processes = p;
    if (client_party(s, client)->life != life)
        sim_at(s, &n->party, client_proof_ns(s, client, life), on_proc_dead, p, 0);
    return p;
}

static kvp_err_t
attach(sim_t *s, attached_t *a, const say_t *say)
{
    process_t *p = say->by == BY_SHM ? process_of(s, a->node, say->client, say->life) : NULL;
    kvp_err_t err = KVP_NO_SEGMENT;

    if (a->node->mem != NULL && memcmp(say->uuid, a->node->mem->uuid, sizeof say->uuid) == 0)
        err = kvp_node_core_attach(a->node->core, &a->att, say->incarnation, p == NULL ? NULL : &p->core);
    if (err != KVP_OK && p != NULL && kvp_list_is_empty(&p->core.records)) p->is_known = false;
    a->mem = a->node->mem;
    return err;
}

/* The keeper has a writer's process before that has the memory. */
static void
keep_writer(sim_t *s, node_t *n, const attached_t *a)
{
    kept_writer_t *w = sim_alloc(s, sizeof *w);

    *w = (kept_writer_t){a->client, a->life, a->att.incarnation, n->kept_writers};
    n->kept_writers = w;
}

/* It has given its word, and the keeper is told. */
static void
drop_writer(node_t *n, const attached_t *a, uint64_t incarnation)
{
    for (kept_writer_t **at = &n->kept_writers; *at != NULL;)
        if ((*at)->client == a->client && (*at)->life == a->life && (*at)->incarnation == incarnation)
            *at = (*at)->next;
        else
            at = &(*at)->next;
}

static void
on_say(sim_t *s, void *arg, conn_t *conn, const uint8_t *bytes, size_t len)
{
    attached_t *a = arg;
    say_t say;

    (void)len;
    memcpy(&say, bytes, sizeof say);
    switch (say.kind) {
    case SAY_ATTACH:
        say.err = attach(s, a, &say);
        a->client = say.client;
        a->life = say.life;
        break;
    case SAY_OPEN_WRITE:
        say.err = kvp_node_core_open_write(a->node->core, &a->att);
        if (say.err == KVP_OK) keep_writer(s, a->node, a);
        break;
    case SAY_DRAINED:
        say.err = kvp_node_core_drained(a->node->core, &a->att, say.incarnation);
        if (say.err == KVP_OK) drop_writer(a->node, a, say.incarnation);
        break;
    case SAY_MOVE:
        lane_add(s, a, &say);
        return;
    }
    conn_send(s, conn, 1, &say, sizeof say);
    if (say.kind == SAY_ATTACH && say.err != KVP_OK) conn_close(s, conn, 1);
    node_settle(s, a->node);
}

static void
on_say_end(sim_t *s, void *arg, conn_t *conn)
{
    attached_t *a = arg;

    conn_close(s, conn, 1);
    lane_end(a);
    kvp_node_core_detach(a->node->core, &a->att);
    node_settle(s, a->node);
}

static const conn_ops_t say_ops = {on_say, on_say_end};

static void
on_accept(sim_t *s, party_t *who, conn_t *conn)
{
    node_t *n = who->owner;
    attached_t *a = sim_alloc(s, sizeof *a);

    *a = (attached_t){.node = n, .conn = conn, .next = n->attached};
    kvp_node_att_init(&a->att);
    n->attached = a;
    conn_take(conn, &say_ops, a);
}

/* ---- life */
static void
make_core(node_t *n)
{
    kvp_node_core_conf_t conf = {
        .words = &word_ops, .words_arg = n, .max_attachments = 256, .sweep_slots = SWEEP_SLOTS};

    n->core = kvp_node_core_create(&conf);
    if (n->core == NULL) abort();
}

static void
free_core(node_t *n)
{
    kvp_node_proc_t *proc;

    for (attached_t *a = n->attached; a != NULL; a = a->next)
        kvp_node_core_detach(n->core, &a->att);
    for (process_t *p = n->processes; p != NULL; p = p->next)
        if (p->is_known) kvp_node_core_process_dead(n->core, &p->core);
    while ((proc = kvp_node_core_take_idle(n->core)) != NULL)
        kvp_container_of(proc, process_t, core)->is_known = false;
    kvp_node_core_destroy(n->core);
    n->core = NULL;
    n->attached = NULL;
    n->processes = NULL;
}

void
node_start(sim_t *s, uint32_t index)
{
    node_t *n = sim_alloc(s, sizeof *n);

    s->nodes[index] = n;
    n->sim = s;
    n->index = index;
    n->rng = rng_fork(s->plan->seed, 3, index);
    party_init(&n->party, "node", 10 + index, index % HOSTS, n);
    n->party.on_accept = on_accept;
    make_core(n);
    dial(s, n);
}

void
node_stop(sim_t *s, uint32_t index)
{
    if (s->nodes[index]->core != NULL) free_core(s->nodes[index]);
    kvp_buf_fini(&s->nodes[index]->out);
    kvp_buf_fini(&s->nodes[index]->kept);
    kvp_buf_fini(&s->nodes[index]->page);
}

/* The next process has the memory of the one before, and what the keeper knows of it. */
static void
adopt(sim_t *s, node_t *n)
{
    uint64_t sealed, broken;

    if (kvp_node_core_set_segment(n->core, s->plan->chunk_n, SLOTS, SLOTS) != KVP_OK) abort();
    if (kvp_node_core_restore(n->core, n->kept.data, n->kept.len) != KVP_OK)
        sim_fail(s, "KEEPER", "the book of %s is none", n->party.name);
    for (const kept_writer_t *w = n->kept_writers; w != NULL; w = w->next) {
        process_t *p = process_of(s, n, w->client, w->life);

        if (!p->core.is_dead && kvp_node_core_restore_writer(n->core, &p->core, w->incarnation) != KVP_OK) abort();
    }
    kvp_node_core_restored(n->core);
    kvp_node_core_audit(n->core, &sealed, &broken);
    TRACE(s, "%s has the memory again: %lu objects", n->party.name, (unsigned long)(sealed - broken));
}

static void
on_restart(sim_t *s, void *arg, uint64_t unused)
{
    node_t *n = arg;

    (void)unused;
    party_rise(&n->party);
    make_core(n);
    if (n->mem != NULL) adopt(s, n);
    dial(s, n);
}

void
node_crash(sim_t *s, uint32_t index, uint64_t down_ns)
{
    node_t *n = s->nodes[index];
    bool is_kept;

    if (n->party.is_dead) return;
    is_kept = s->plan->has_keepers && n->mem != NULL && n->kept.len > 0 && !n->is_fresh && rng_chance(&n->rng, 800);
    party_die(s, &n->party);
    tier_crash(s, n, &n->rng, is_kept);
    lanes_end_all(n);
    free_core(n);
    memset(n->rounds, 0, sizeof n->rounds);
    if (!is_kept && n->mem != NULL) oracle_mem_gone(s, n->mem);
    if (is_kept)
        oracle_node_kept(s, index, n->kept_term); /* what it did since, nobody was told */
    else
        oracle_node_lost(s, index);
    if (!is_kept) n->mem = NULL;
    if (n->mem == NULL) kvp_buf_reset(&n->kept);
    n->link = NULL;
    n->state = LINK_DOWN;
    n->incarnation = 0;
    n->is_sweeping = false;
    sim_at(s, NULL, s->now + down_ns, on_restart, n, 0);
}

party_t *
node_party(sim_t *s, uint32_t index)
{
    return &s->nodes[index]->party;
}

mem_t *
node_mem(sim_t *s, uint32_t index)
{
    return s->nodes[index]->mem;
}

uint64_t
node_unfree(sim_t *s, uint32_t index)
{
    kvp_node_core_stats_t st;

    kvp_node_core_stats(s->nodes[index]->core, &st);
    return st.quiescing + st.quarantined;
}
