/* SPDX-License-Identifier: Apache-2.0
 * Drains: the objects of one node are moved to another, in their order of use, and what is held waits. ADR 0050. */
#include "tests/unit/master/rig.h"
#include "tests/world/report.h"

#define LEN (64 * KIB)

static const kvp_master_conf_t plain = {.location_lease_ns = MS, .location_grace_ns = MS};
static const kvp_master_conf_t with_log = {.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS};

/* Asks to drain the node, or for what has become of that. */
static Kvp__Pb__DrainReply
drain(peer_t *who, const char *node, uint32_t what, bool no_evict)
{
    Kvp__Pb__Drain msg = KVP__PB__DRAIN__INIT;

    msg.node = (char *)node;
    msg.what = what;
    msg.no_evict = no_evict;
    return ask_drain(who, msg);
}

/* The node asks for a drain before its end. */
static Kvp__Pb__DrainReply
leave(peer_t *n)
{
    Kvp__Pb__Drain msg = KVP__PB__DRAIN__INIT;

    msg.node = (char *)"a";
    msg.what = KVP_DRAIN_BEGIN;
    msg.until_mount = true;
    return ask_drain(n, msg);
}

/* b comes now, and can copy: so what was put before lies in a. */
static void
begin_b(rig_t *g)
{
    g->w->check_every = 1;
    g->b->can_copy = true;
    g->nb = node_open_on(g->w, g->b, "b");
}

RIG_TEST_ON(test_a_drained_node_is_empty, .conf = plain, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    Kvp__Pb__DrainReply told;
    kvp_wire_loc_t loc;
    uint64_t attempt;

    fill(g->c, 0, 20, LEN);
    begin_b(g);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_BEGIN, false).state, KVP_DRAIN_RUNS);
    world_advance(g->w, 2 * SEC);
    told = drain(g->c, "a", KVP_DRAIN_ASK, false);
    assert_int_equal(told.state, KVP_DRAIN_DONE);
    assert_int_equal(told.moved_objects, 20);
    assert_int_equal(told.left_objects + told.left_bytes + told.evicted_objects, 0);
    assert_int_equal(g->nb->copies_n, 20);
    assert_int_equal(count(g->c, 0, 20), 20);
    for (uint32_t i = 0; i < 20; i++) { /* nothing new is placed there, and what comes after the end is */
        assert_int_equal(put_place(g->c, key_name("new/", i), LEN, &attempt, &loc), KVP_OK);
        assert_int_equal(loc.segment_id, g->b->segment_id);
    }
    assert_int_equal(drain(g->na, "a", KVP_DRAIN_END, false).state, KVP_DRAIN_NONE);
    fill(g->c, 40, 80, LEN);
    assert_true(drain(g->c, "a", KVP_DRAIN_BEGIN, false).left_objects > 0);
}

RIG_TEST_ON(test_a_held_object_leaves_later, .conf = plain, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;

    fill(g->c, 0, 4, LEN);
    assert_int_equal(get(g->c, "key/0", &ticket, &loc), KVP_OK);
    begin_b(g);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, 5 * SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).left_objects, 1);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).held, 1);
    {
        uint64_t later;

        assert_int_equal(get(g->c, "key/0", &later, &loc),
                         KVP_OK); /* is sent to the other copy, and holds nothing up */
        assert_int_equal(loc.segment_id, g->b->segment_id);
        release(g->c, ticket);
        world_advance(g->w, 100 * MS);
        assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_DONE);
        release(g->c, later);
    }
    assert_int_equal(count(g->c, 0, 4), 4);
}

/* A time limit that a running drain gets ends the wait for what was held before. */
/* A log that lacks its end names a copy that is DEAD, and its node takes long to tell so: the other copy stays. */
RIG_TEST_ON(test_a_copy_leaves_when_the_other_node_has_reported, .conf = with_log, .size = 4 * MIB, .mems = 2)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    uint32_t at = 0;
    peer_t *a;

    like.replicas = 2;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(put_like(g->c, &(put_t){.key = key_name("key/", i), .len = LEN}, &like), KVP_OK);
    rig_restart(g);
    g->nb = node_open_on(g->w, g->b, "b");
    assert_int_equal(drain(g->c, "b", KVP_DRAIN_BEGIN, false).state, KVP_DRAIN_RUNS);
    while (kvp_word_state(g->a->chunks[0].words[at]) != KVP_DESC_SEALED)
        at++;
    g->a->chunks[0].words[at] = kvp_word_make(kvp_word_generation(g->a->chunks[0].words[at]), KVP_DESC_DEAD);
    a = peer_open(g->w);
    a->mem = g->a;
    assert_int_equal(peer_hello(a, KVP_ROLE_NODE, "a", "a"), KVP_OK);
    assert_int_equal(node_ask_mount(a).report, 1);
    world_advance(g->w, 30 * SEC);
    assert_int_equal(drain(g->c, "b", KVP_DRAIN_ASK, false).left_objects, 2);
    node_report(a);
    world_advance(g->w, 6 * SEC);
    assert_int_equal(count(g->c, 0, 2), 2);
    assert_int_equal(drain(g->c, "b", KVP_DRAIN_ASK, false).moved_objects, 1);
}

RIG_TEST_ON(test_a_later_time_limit_counts, .conf = plain, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    Kvp__Pb__Drain msg = KVP__PB__DRAIN__INIT;
    Kvp__Pb__DrainReply told;
    kvp_wire_loc_t loc;
    uint64_t ticket;

    fill(g->c, 0, 4, LEN);
    assert_int_equal(get(g->c, "key/0", &ticket, &loc), KVP_OK);
    begin_b(g);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, 5 * SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).held, 1);
    msg.node = (char *)"a";
    msg.what = KVP_DRAIN_BEGIN;
    msg.deadline_ms = 1000;
    (void)ask_drain(g->c, msg);
    msg.deadline_ms = 0; /* this leaves the limit as it is */
    (void)ask_drain(g->c, msg);
    world_advance(g->w, 900 * MS);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).left_objects, 1);
    world_advance(g->w, 500 * MS);
    told = drain(g->c, "a", KVP_DRAIN_ASK, false);
    assert_int_equal(told.state, KVP_DRAIN_DONE);
    assert_int_equal(told.held, 0);
    release(g->c, ticket);
}

/* While the node of the other copy is away, readers are sent to the one that is leaving: it waits for them, too. */
RIG_TEST_ON(test_a_reader_of_a_leaving_copy_holds_it, .conf = plain, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2,
            .nodes = 1)
{
    kvp_wire_loc_t loc;
    uint64_t first, second;

    fill(g->c, 0, 4, LEN);
    assert_int_equal(get(g->c, "key/0", &first, &loc), KVP_OK);
    begin_b(g);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, 5 * SEC);
    peer_lose(g->nb);
    world_advance(g->w, 10 * MS);
    assert_int_equal(get(g->c, "key/0", &second, &loc), KVP_OK);
    assert_int_equal(loc.segment_id, g->a->segment_id);
    g->nb = node_open_on(g->w, g->b, "b");
    release(g->c, first);
    world_advance(g->w, SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).left_objects, 1);
    release(g->c, second);
    world_advance(g->w, SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_DONE);
    assert_int_equal(count(g->c, 0, 4), 4);
}

/* What was put first goes first, though it was moved. */
RIG_TEST_ON(test_a_move_is_no_use, .conf = plain, .size = 2 * MIB, .size_b = 2 * MIB, .mems = 2, .nodes = 1)
{
    fill(g->c, 0, 10, LEN);
    begin_b(g);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, 2 * SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_DONE);
    fill(g->c, 10, 37, LEN); /* b has room for 32 */
    world_advance(g->w, SEC);
    assert_true(count(g->c, 0, 5) < 5);
    assert_int_equal(count(g->c, 10, 37), 27);
    assert_int_equal(count(g->c, 7, 10), 3);
}

RIG_TEST_ON(test_without_room_nothing_goes, .conf = plain, .size = 2 * MIB, .size_b = MIB, .mems = 2, .nodes = 1)
{
    Kvp__Pb__Drain again = KVP__PB__DRAIN__INIT;
    Kvp__Pb__DrainReply told;

    fill(g->c, 0, 24, LEN);
    begin_b(g);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, true);
    world_advance(g->w, 2 * SEC);
    told = drain(g->c, "a", KVP_DRAIN_ASK, true);
    assert_int_equal(told.state, KVP_DRAIN_RUNS);
    assert_int_equal(told.moved_objects, 16);
    assert_int_equal(told.no_room, 8);
    assert_int_equal(told.no_room_bytes, 8 * LEN);
    assert_int_equal(count(g->c, 0, 24), 24);
    again.node = (char *)"a";
    again.what = KVP_DRAIN_BEGIN;
    again.bytes_per_s = 8 << 20;
    assert_int_equal(ask_drain(g->c, again).bytes_per_s, 8 << 20);
    world_advance(g->w, 2 * SEC); /* options that were not named stay */
    assert_int_equal(count(g->c, 0, 24), 24);
    again.bytes_per_s = 0;
    again.evict = true;
    assert_int_equal(ask_drain(g->c, again).bytes_per_s, 8 << 20);
    world_advance(g->w, 2 * SEC); /* now the oldest of all go, on either node, and all of them are counted */
    told = drain(g->c, "a", KVP_DRAIN_ASK, false);
    assert_int_equal(told.state, KVP_DRAIN_DONE);
    assert_int_equal(told.no_room, 0);
    assert_int_equal(told.evicted_objects, 24 - count(g->c, 0, 24));
    assert_int_equal(told.evicted_bytes, told.evicted_objects * LEN);
    assert_true(count(g->c, 0, 24) >= 15);
    assert_int_equal(count(g->c, 20, 24), 4);
}

/* Fails if the drain of a full pool evicts one object a tick, which takes 2 s here. */
RIG_TEST_ON(test_the_drain_of_a_full_pool_is_fast, .conf = plain, .size = 2 * MIB, .size_b = 2 * MIB, .mems = 2,
            .nodes = 1)
{
    Kvp__Pb__DrainReply told;

    fill(g->c, 0, 200, 8 * KIB);
    begin_b(g);
    fill(g->c, 200, 700, 8 * KIB);
    assert_true(count(g->c, 0, 200) < 20);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, 500 * MS);
    told = drain(g->c, "a", KVP_DRAIN_ASK, false);
    assert_int_equal(told.state, KVP_DRAIN_DONE);
    assert_in_range(told.evicted_objects, 200, 300); /* a has 256 */
    assert_int_equal(count(g->c, 460, 700), 240);
}

/* Softly pinned objects go for hard-pinned ones, and for no others. */
RIG_TEST_ON(test_soft_pins_yield_to_hard_pins_alone, .conf = plain, .size = MIB, .size_b = MIB, .mems = 2, .nodes = 1)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;

    like.pin = KVP_PIN_HARD;
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(put_like(g->c, &(put_t){.key = key_name("key/", i), .len = LEN}, &like), KVP_OK);
    begin_b(g);
    like.pin = KVP_PIN_SOFT;
    for (uint32_t i = 16; i < 24; i++)
        assert_int_equal(put_like(g->c, &(put_t){.key = key_name("key/", i), .len = LEN}, &like), KVP_OK);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, true);
    world_advance(g->w, 2 * SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, true).no_room, 8);
    (void)drain(g->c, "a", KVP_DRAIN_END, false);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, 2 * SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_DONE);
    assert_int_equal(count(g->c, 0, 16), 16);
    assert_int_equal(count(g->c, 16, 24), 0);
    (void)drain(g->c, "a", KVP_DRAIN_END, false); /* now a has room */
    for (uint32_t i = 16; i < 24; i++)
        assert_int_equal(put_like(g->c, &(put_t){.key = key_name("key/", i), .len = LEN}, &like), KVP_OK);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, 2 * SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).no_room, 8);
    assert_int_equal(count(g->c, 0, 24), 24);
}

RIG_TEST_ON(test_copies_that_fail, .conf = plain, .size = 2 * MIB, .size_b = 2 * MIB, .mems = 2, .nodes = 1)
{
    Kvp__Pb__DrainReply told;

    fill(g->c, 0, 4, LEN);
    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    world_advance(g->w, SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).no_node, 4);
    g->b->copy_answer = KVP_COPY_AWAY;
    begin_b(g);
    world_advance(g->w, 10 * SEC);
    told = drain(g->c, "a", KVP_DRAIN_ASK, false);
    assert_in_range(told.failed, 4, 100); /* in vain more and more seldom */
    assert_int_equal(told.last_error, KVP_COPY_AWAY);
    assert_int_equal(told.left_objects, 4);
    g->b->copy_answer = KVP_COPY_OK;
    world_advance(g->w, 10 * SEC);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_DONE);
    assert_int_equal(count(g->c, 0, 4), 4);
}

/* A node that drains itself before its end is drained no longer when it comes back, unless a client has begun it. */
RIG_TEST_ON(test_a_drain_of_the_node_ends_with_its_next_mount, .conf = plain, .size = 2 * MIB, .mems = 1, .nodes = 1)
{
    fill(g->c, 0, 4, LEN);
    assert_int_equal(leave(g->na).state, KVP_DRAIN_RUNS);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).left_objects, 4);
    peer_lose(g->na);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_RUNS);
    g->na = node_open(g->w, g->a);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_NONE);
    assert_int_equal(count(g->c, 0, 4), 4);
    fill(g->c, 4, 8, LEN);

    (void)drain(g->c, "a", KVP_DRAIN_BEGIN, false);
    (void)leave(g->na);
    peer_lose(g->na);
    g->na = node_open(g->w, g->a);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_ASK, false).state, KVP_DRAIN_RUNS);
}

RIG_TEST_ON(test_bad_drains, .conf = plain, .size = 2 * MIB, .size_b = 2 * MIB, .mems = 2)
{
    assert_int_equal(drain(g->c, "x", KVP_DRAIN_BEGIN, false).err, KVP_NO_SEGMENT);
    assert_int_equal(drain(g->c, "", KVP_DRAIN_ASK, false).err, KVP_NO_SEGMENT);
    assert_int_equal(drain(g->c, "a", 3, false).err, KVP_INVALID);
    assert_int_equal(drain(g->nb, "a", KVP_DRAIN_BEGIN, false).err, KVP_INVALID);
    assert_int_equal(drain(g->c, "a", KVP_DRAIN_END, false).state, KVP_DRAIN_NONE);
}

/* ---- tasks */
static Kvp__Pb__TaskReply
ask_task(peer_t *who, Kvp__Pb__Task msg)
{
    Kvp__Pb__TaskReply got;

    ask_head(who, KVP_OP_TASK, &msg.base, &kvp__pb__task_reply__descriptor, &got);
    got.detail = NULL;
    return got;
}

/* Begins a task for the key. */
static Kvp__Pb__TaskReply
begin_task(peer_t *who, const char *key, uint32_t from, uint32_t *to, size_t n)
{
    Kvp__Pb__Task msg = KVP__PB__TASK__INIT;

    msg.key = (ProtobufCBinaryData){strlen(key), (uint8_t *)key};
    msg.from = from;
    msg.to = to;
    msg.n_to = n;
    return ask_task(who, msg);
}

static Kvp__Pb__TaskReply
task_state(peer_t *who, uint64_t id)
{
    Kvp__Pb__Task msg = KVP__PB__TASK__INIT;

    msg.task = id;
    return ask_task(who, msg);
}

RIG_TEST_ON(test_tasks_copy_and_move, .conf = plain, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    uint32_t a, b;
    Kvp__Pb__TaskReply copied, moved, again;

    fill(g->c, 0, 4, LEN);
    begin_b(g);
    a = g->a->segment_id;
    b = g->b->segment_id;
    copied = begin_task(g->c, "key/0", 0, &b, 1);
    assert_int_equal(copied.err, KVP_OK);
    assert_int_equal(copied.state, KVP_TASK_WAITS);
    moved = begin_task(g->c, "key/1", a, &b, 1);
    assert_int_equal(moved.err, KVP_OK);
    world_advance(g->w, SEC);
    assert_int_equal(task_state(g->c, copied.task).state, KVP_TASK_DONE);
    assert_int_equal(task_state(g->c, moved.task).state, KVP_TASK_DONE);
    assert_true(task_state(g->c, moved.task).is_move);
    assert_int_equal(home_of(g->c, "key/1"), b);
    assert_int_equal(home_of(g->c, "key/2"), a);
    assert_int_equal(g->nb->copies_n, 2);
    again = begin_task(g->c, "key/0", 0, &b, 1); /* what is there needs no copy */
    world_advance(g->w, SEC);
    assert_int_equal(task_state(g->c, again.task).state, KVP_TASK_DONE);
    assert_int_equal(g->nb->copies_n, 2);
    (void)begin_task(g->c, "key/3", 0, &b, 1); /* a move that a fail-over cut leaves both copies: again, it ends */
    world_advance(g->w, SEC);
    again = begin_task(g->c, "key/3", a, &b, 1);
    world_advance(g->w, SEC);
    assert_int_equal(task_state(g->c, again.task).state, KVP_TASK_DONE);
    assert_int_equal(home_of(g->c, "key/3"), b);
    assert_int_equal(g->nb->copies_n, 3);

    peer_lose(g->na); /* the copy and the moved object are read from b; the others are away */
    world_advance(g->w, SEC);
    assert_int_equal(home_of(g->c, "key/0"), b);
    assert_int_equal(home_of(g->c, "key/1"), b);
}

/* Returns the number of sealed extents in the memory. */
static uint32_t
sealed_in(const mem_t *mem)
{
    const chunk_t *c = &mem->chunks[0];
    uint32_t n = 0;

    for (uint32_t i = 0; c->is_made && i < c->geo.slots_max; i++)
        n += kvp_word_state(c->words[i]) == KVP_DESC_SEALED;
    return n;
}

/* The master ends at any time during a move: after the next one's start the object is in one node. */
RIG_TEST_ON(test_a_move_is_whole_or_not_there, .conf = with_log, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2,
            .nodes = 1)
{
    uint32_t moved = 0;

    g->a->can_copy = true;
    for (uint32_t i = 0; i < 40; i++) {
        const char *key = key_name("key/", i);
        uint32_t from, to;

        if (i == 0) begin_b(g);
        assert_int_equal(put_told(g->c, key, LEN), KVP_OK);
        from = home_of(g->c, key);
        to = from == g->a->segment_id ? g->b->segment_id : g->a->segment_id;
        (void)begin_task(g->c, key, from, &to, 1);
        world_advance(g->w, (80 + i) * MS); /* the copy is made after about 100 ms */
        assert_int_equal(put_told(g->c, key_name("other/", i), LEN), KVP_OK); /* syncs the log */
        rig_restart_told(g);
        world_advance(g->w, 5 * SEC);
        moved += home_of(g->c, key) == to;
        assert_int_equal(sealed_in(g->a) + sealed_in(g->b), 2 * (i + 1));
    }
    assert_in_range(moved, 1, 39);
}

/* The source is dropped when the other node has told what it has. A copy that was only asked for stays. */
RIG_TEST_ON(test_a_move_outlives_its_master, .conf = with_log, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2,
            .nodes = 1)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;
    uint32_t a, b;

    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(put_told(g->c, key_name("key/", i), LEN), KVP_OK);
    begin_b(g);
    a = g->a->segment_id;
    b = g->b->segment_id;
    assert_int_equal(get(g->c, "key/0", &ticket, &loc), KVP_OK); /* keeps the copy in a until the master ends */
    (void)begin_task(g->c, "key/0", a, &b, 1);
    (void)begin_task(g->c, "key/1", 0, &b, 1);
    world_advance(g->w, SEC);

    rig_restart(g);
    g->na = node_open_on(g->w, g->a, "a");
    world_advance(g->w, 3 * SEC);
    assert_int_equal(home_of(g->c, "key/0"), a);
    g->nb = node_open_on(g->w, g->b, "b");
    world_advance(g->w, 5 * SEC);
    assert_int_equal(home_of(g->c, "key/0"), b);
    peer_lose(g->nb);
    world_advance(g->w, SEC);
    assert_int_equal(count(g->c, 0, 1), 0);
    assert_int_equal(count(g->c, 1, 2), 1);
}

/* A view keeps the copy that is to be left, and a removal ends the task. */
RIG_TEST_ON(test_tasks_wait_and_fail, .conf = plain, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    uint32_t a, b, none = 77;
    Kvp__Pb__TaskReply moved, failed;
    kvp_wire_loc_t loc;
    uint64_t ticket;

    fill(g->c, 0, 4, LEN);
    assert_int_equal(get(g->c, "key/0", &ticket, &loc), KVP_OK);
    g->b->copy_answer = KVP_COPY_AWAY;
    begin_b(g);
    a = g->a->segment_id;
    b = g->b->segment_id;
    failed = begin_task(g->c, "key/1", 0, &b, 1);
    world_advance(g->w, 10 * SEC);
    failed = task_state(g->c, failed.task);
    assert_int_equal(failed.state, KVP_TASK_FAILED);
    assert_int_equal(failed.failure, KVP_NODE_LOST);
    g->b->copy_answer = KVP_COPY_OK;

    moved = begin_task(g->c, "key/0", a, &b, 1);
    world_advance(g->w, 2 * SEC);
    assert_int_equal(task_state(g->c, moved.task).state, KVP_TASK_RUNS);
    release(g->c, ticket);
    world_advance(g->w, 100 * MS);
    assert_int_equal(task_state(g->c, moved.task).state, KVP_TASK_DONE);

    failed = begin_task(g->c, "key/2", 0, &b, 1);
    assert_int_equal(remove_key(g->c, "key/2", false), KVP_OK);
    world_advance(g->w, SEC);
    assert_int_equal(task_state(g->c, failed.task).state, KVP_TASK_FAILED);
    assert_int_equal(task_state(g->c, failed.task).failure, KVP_NOT_FOUND);

    assert_int_equal(begin_task(g->c, "none", 0, &b, 1).err, KVP_NOT_FOUND);
    assert_int_equal(begin_task(g->c, "", 0, &b, 1).err, KVP_BAD_KEY);
    assert_int_equal(begin_task(g->c, "key/1", 0, &b, 0).err, KVP_INVALID);
    assert_int_equal(begin_task(g->c, "key/1", b, &b, 1).err, KVP_INVALID);
    assert_int_equal(begin_task(g->c, "key/1", 0, &none, 1).err, KVP_NO_SEGMENT);
    assert_int_equal(begin_task(g->c, "key/1", none, &b, 1).err, KVP_NO_SEGMENT);
    assert_int_equal(task_state(g->c, 77).err, KVP_NOT_FOUND);
    (void)drain(g->c, "b", KVP_DRAIN_BEGIN, false);
    assert_int_equal(begin_task(g->c, "key/1", 0, &b, 1).err, KVP_NO_SEGMENT);
}

/* The number of tasks is bounded, and the oldest finished ones are forgotten. */
RIG_TEST_ON(test_tasks_are_bounded, .conf = plain, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    Kvp__Pb__TaskReply first, told = {0};
    uint32_t b, n = 1;

    fill(g->c, 0, 1, LEN);
    begin_b(g);
    b = g->b->segment_id;
    peer_lose(g->na); /* no copy can be made */
    first = begin_task(g->c, "key/0", 0, &b, 1);
    assert_int_equal(first.err, KVP_OK);
    while (n <= 10000 && (told = begin_task(g->c, "key/0", 0, &b, 1)).err == KVP_OK)
        n++;
    assert_int_equal(told.err, KVP_LIMIT);
    assert_int_equal(n, 10000);
}

TEST_MAIN()
