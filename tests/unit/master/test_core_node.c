/* SPDX-License-Identifier: Apache-2.0
 * Nodes that go, come back, come back empty, or say that they go: what is served meanwhile, what is told to them
 * again, and what is left of a segment in the end. */
#include "tests/unit/master/rig.h"

#include "master/core/base/slab.h"

static const rig_conf_t plain = {.size = 4 * MIB, .chunk = MIB};

static uint64_t
unmount(peer_t *n, uint32_t segment_id, uint32_t wait_ms)
{
    Kvp__Pb__Unmount head = KVP__PB__UNMOUNT__INIT;

    head.segment_id = segment_id;
    head.wait_ms = wait_ms;
    return peer_send(n, KVP_OP_UNMOUNT, 0, &head.base, NULL, 0);
}

/* ---- mounting */
RIG_TEST(test_mount_when_fields_are_out_of_range, plain)
{
    peer_t *d = peer_open(g->w);
    mem_t like = *g->a;
    static const struct {
        const char *name;
        uint64_t chunk, size;
    } cases[] = {
        {"n2", 32 * KIB, 4 * MIB}, {"n2", (64ull << 30) + 4096, 4 * MIB},
        {"n2", MIB + 1, 4 * MIB},  {"n2", 64 * KIB, 65537 * 64 * KIB},
        {"n2", 64 * KIB, 0},       {"n2", 64 * KIB, UINT64_MAX & ~4095ull},
        {"n2", 64 * KIB, MIB + 1}, {"", 64 * KIB, MIB},
    };

    assert_int_equal(peer_hello(d, KVP_ROLE_NODE, "n2", "host"), KVP_OK);
    d->mem = &like;
    like.is_fresh = true;
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        snprintf(like.name, sizeof like.name, "%s", cases[i].name);
        like.chunk_bytes = cases[i].chunk;
        like.size_bytes = cases[i].size;
        assert_int_equal(node_mount(d, NULL), KVP_INVALID);
    }
    assert_int_equal(world_stats(g->w).segments, 1);
    d->mem = NULL;
}

/* The most chunks that a segment may have: nothing is made for one before something lies in it. */
TEST(test_mount_of_many_chunks)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    uint8_t uuid[16] = {1};
    peer_t *n = peer_open(w);
    uint64_t id;

    w->check_every = 0;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, "n1", "host"), KVP_OK);
    msg.name = (char *)"n1";
    msg.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    msg.chunk_bytes = 64ull << 30;
    msg.size_bytes = 65536 * msg.chunk_bytes;
    msg.is_fresh = true;
    id = peer_send(n, KVP_OP_MOUNT, 0, &msg.base, NULL, 0);
    assert_int_equal(plain_result(peer_reply(n, id)), KVP_OK);
    assert_int_equal(world_stats(w).size_bytes, msg.size_bytes);
    assert_true(world_stats(w).memory_bytes < MIB);
    world_check(w);
    world_close(w);
}

/* Each chunk costs the master memory, whoever offers it. */
TEST(test_mount_when_there_are_too_many_chunks)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    char text[32];
    uint32_t i;

    w->check_every = 0;
    for (i = 0; i < 20; i++) {
        peer_t *n = peer_open(w);
        snprintf(text, sizeof text, "n%u", i);
        assert_int_equal(peer_hello(n, KVP_ROLE_NODE, text, text), KVP_OK);
        n->mem = mem_make(w, text, 65536ull * 64 * KIB, 64 * KIB);
        if (node_mount(n, NULL) != KVP_OK) break;
        snprintf(text, sizeof text, "n%u/2", i);
        n->mem = mem_make(w, text, 64 * KIB, 64 * KIB);
        assert_int_equal(node_mount(n, NULL), KVP_LIMIT);
    }
    assert_int_equal(i, 16);
    world_close(w);
}

TEST(test_mount_when_a_node_has_too_many_segments)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *n = peer_open(w);
    uint32_t i;
    char text[32];

    w->check_every = 0;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, "n1", "host"), KVP_OK);
    for (i = 0; i < 100; i++) {
        snprintf(text, sizeof text, "n1/%u", i);
        n->mem = mem_make(w, text, 64 * KIB, 64 * KIB);
        if (node_mount(n, NULL) != KVP_OK) break;
    }
    assert_int_equal(i, 64);
    assert_int_equal(world_stats(w).segments, 64);
    world_check(w);
    world_close(w);
}

RIG_TEST(test_mount_when_the_name_is_taken, plain)
{
    peer_t *d = peer_open(g->w);

    assert_int_equal(peer_hello(d, KVP_ROLE_NODE, "n1", "host"), KVP_OK);
    d->mem = g->a;
    assert_int_equal(node_mount(d, NULL), KVP_SEGMENT_EXISTS);
    assert_int_equal(node_mount(g->na, NULL), KVP_OK); /* by its own node it may be repeated */
    assert_int_equal(world_stats(g->w).segments, 1);
    peer_forget(g->na);
    assert_int_equal(node_mount(d, NULL), KVP_OK);
}

TEST(test_mount_when_the_memory_is_not_known)
{
    mem_t *mem;
    peer_t *n, *c;
    world_t *w = world_open(&(kvp_master_conf_t){0});
    bool is_reset;

    mem = mem_make(w, "n1", MIB, MIB);
    mem->is_fresh = false; /* grants of another master may be out for it */
    n = peer_open(w);
    n->mem = mem;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, "n1", "host"), KVP_OK);
    assert_int_equal(node_mount(n, &is_reset), KVP_OK);
    assert_true(is_reset);
    assert_int_equal(world_stats(w).segments, 0);
    mem_remake(w, mem);
    assert_int_equal(node_mount(n, &is_reset), KVP_OK);
    assert_false(is_reset);
    c = client_open(w);
    fill(c, 0, 10, KIB);
    world_close(w);
}

RIG_TEST(test_mount_when_it_comes_back_empty, plain)
{
    uint32_t old_id = g->a->segment_id;
    kvp_wire_loc_t loc;
    uint64_t attempt;

    fill(g->c, 0, 100, 8 * KIB);
    assert_int_equal(put_place(g->c, "writing", 100, &attempt, &loc), KVP_OK);
    peer_forget(g->na);
    mem_remake(g->w, g->a);
    g->na = node_open(g->w, g->a);
    assert_int_not_equal(g->a->segment_id, old_id);
    assert_int_equal(count(g->c, 0, 100), 0);
    assert_int_equal(get(g->c, "key/1", NULL, NULL), KVP_NOT_FOUND);
    assert_int_equal(commit(g->c, attempt, 0), KVP_ABORTED);
    assert_int_equal(world_stats(g->w).segments, 1);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
    assert_int_equal(world_stats(g->w).purged, 100);
    fill(g->c, 0, 100, 8 * KIB);
    assert_int_equal(count(g->c, 0, 100), 100);
}

/* ---- a lost node */
RIG_TEST(test_node_when_lost_and_back, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, ticket;

    fill(g->c, 0, 100, 8 * KIB);
    assert_int_equal(get(g->c, "key/1", &ticket, NULL), KVP_OK);
    assert_int_equal(put_place(g->c, "writing", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(write_place(g->w, &loc), KVP_OK);
    peer_forget(g->na);
    assert_int_equal(count(g->c, 0, 100), 0); /* not served */
    assert_int_equal(get(g->c, "key/1", NULL, NULL), KVP_NODE_LOST);
    assert_int_equal(world_stats(g->w).segments, 0);
    assert_int_equal(world_stats(g->w).size_bytes, 0);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
    assert_int_equal(put(g->c, "new", 100), KVP_RETRY_AFTER);
    assert_int_equal(commit(g->c, attempt, 0), KVP_OK); /* all its bytes were there before the node went */
    world_advance(g->w, 4 * SEC);
    g->na = node_open(g->w, g->a);
    assert_int_equal(count(g->c, 0, 100), 100);
    assert_true(exists(g->c, "writing"));
    assert_int_equal(world_stats(g->w).used_bytes, 100 * 8 * KIB + 128);
    release(g->c, ticket);
    assert_int_equal(put(g->c, "new", 100), KVP_OK);
}

RIG_TEST(test_put_when_the_old_copy_is_on_a_lost_node, plain)
{
    peer_t *n2;

    fill(g->c, 0, 1, 100);
    peer_forget(g->na);
    n2 = node_open(g->w, mem_make(g->w, "n2", MIB, MIB));
    assert_int_equal(put(g->c, "key/0", 200), KVP_OK);
    assert_true(exists(g->c, "key/0"));
    g->na = node_open(g->w, g->a);
    assert_int_equal(g->na->retires_n, 1); /* the old copy does not come back */
    assert_true(exists(g->c, "key/0"));
    assert_int_equal(world_stats(g->w).objects, 1);
    assert_int_equal(n2->retires_n, 0);
}

/* Orders that were not answered, and extents that were answered dead but not free, are asked about again: a node
 * forgets what it has not done for an earlier connection. */
RIG_TEST(test_retires_are_repeated_when_the_node_is_back, plain)
{
    fill(g->c, 0, 30, 8 * KIB);
    g->na->policy = NODE_DEAD_ONLY;
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(remove_key(g->c, key_name("key/", i), false), KVP_OK);
    assert_int_equal(g->na->retires_n, 10);
    g->na->policy = NODE_MUTE;
    for (uint32_t i = 10; i < 20; i++)
        assert_int_equal(remove_key(g->c, key_name("key/", i), false), KVP_OK); /* answered after 50 ms */
    assert_int_equal(world_stats(g->w).retiring_bytes, 20 * 8 * KIB);
    peer_forget(g->na);
    for (uint32_t i = 20; i < 30; i++)
        (void)remove_begun(g->c, key_name("key/", i), false);
    g->na = node_open(g->w, g->a);
    assert_int_equal(g->na->retires_n, 30);
    assert_int_equal(world_stats(g->w).retiring_bytes, 0);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
}

/* What waits for a node that does not answer stays here: its queue does not grow. */
RIG_TEST(test_retires_when_the_node_does_not_answer, plain)
{
    uint32_t sent;

    g->w->check_every = 0;
    fill(g->c, 0, 2000, KIB);
    g->na->policy = NODE_MUTE;
    for (uint32_t i = 0; i < 2000; i++) {
        Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
        kvp_digest_t digest;

        digest = digest_of(g->w, key_name("key/", i));
        head.n = 1;
        (void)peer_send(g->c, KVP_OP_REMOVE, KVP_FRAME_ONEWAY, &head.base, &digest, sizeof digest);
    }
    sent = g->na->retires_n;
    assert_true(sent <= 8 * 4096 && sent < 2000);
    world_check(g->w);
    peer_forget(g->na);
    g->na = node_open(g->w, g->a);
    assert_int_equal(g->na->retires_n, 2000);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
}

/* An answer that comes for an order of the segment before says nothing about the extents that have their numbers now.
 */
RIG_TEST(test_retire_answer_when_the_record_is_another, plain)
{
    Kvp__Pb__Reply head = KVP__PB__REPLY__INIT;
    uint8_t flags[10];
    kvp_buf_t buf;
    kvp_frame_t f;
    size_t at, used;

    fill(g->c, 0, 10, 8 * KIB);
    g->na->policy = NODE_MUTE;
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(remove_key(g->c, key_name("key/", i), false), KVP_OK);
    mem_remake(g->w, g->a); /* on the same connection */
    assert_int_equal(node_mount(g->na, NULL), KVP_OK);
    world_advance(g->w, 100 * MS); /* the old segment is purged, its records are gone */
    fill(g->c, 10, 20, 8 * KIB);
    for (uint32_t i = 10; i < 20; i++)
        assert_int_equal(remove_key(g->c, key_name("key/", i), false), KVP_OK);
    assert_int_equal(world_stats(g->w).retiring_bytes, 10 * 8 * KIB);
    /* Late answers to the orders of the old segment, whose ids were the first that this master used. */
    memset(flags, KVP_RETIRE_DEAD | KVP_RETIRE_FREE, sizeof flags);
    for (uint64_t id = 1; id <= 8 && g->na->conn != 0; id++) {
        kvp_buf_init(&buf, 0);
        kvp_pb_frame_begin(&buf, KVP_OP_RETIRE, KVP_FRAME_REPLY, id, &head.base, &at);
        kvp_buf_append(&buf, flags, 1);
        kvp_frame_end(&buf, at);
        assert_int_equal(kvp_frame_parse(buf.data, buf.len, &f, &used), KVP_OK);
        peer_send_raw(g->na, &f);
        kvp_buf_fini(&buf);
    }
    if (g->na->conn != 0) assert_int_equal(world_stats(g->w).retiring_bytes, 10 * 8 * KIB);
}

RIG_TEST(test_retire_answer_when_it_says_nothing, plain)
{
    Kvp__Pb__Reply head = KVP__PB__REPLY__INIT;
    uint8_t flags = 0;

    fill(g->c, 0, 1, 8 * KIB);
    g->na->policy = NODE_MUTE;
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK);
    /* Fence at the mount was 1, the Retire is 2. */
    g->na->request_seq = 1;
    (void)peer_send(g->na, KVP_OP_RETIRE, KVP_FRAME_REPLY, &head.base, &flags, 1);
    assert_true(g->na->was_closed); /* and asked again when it is back */
    g->na = node_open(g->w, g->a);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
}

RIG_TEST(test_grace_when_over, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, ticket;
    bool is_reset;

    fill(g->c, 0, 100, 8 * KIB);
    assert_int_equal(get(g->c, "key/1", &ticket, NULL), KVP_OK);
    assert_int_equal(put_place(g->c, "writing", 100, &attempt, &loc), KVP_OK);
    peer_forget(g->na);
    world_advance(g->w, 4900 * MS);
    assert_int_equal(get(g->c, "key/1", NULL, NULL), KVP_NODE_LOST);
    world_advance(g->w, 200 * MS);
    assert_int_equal(get(g->c, "key/1", NULL, NULL), KVP_NOT_FOUND);
    assert_int_equal(world_stats(g->w).objects, 0);
    assert_int_equal(world_stats(g->w).attempts, 0);
    assert_int_equal(world_stats(g->w).purged, 100);
    assert_int_equal(commit(g->c, attempt, 0), KVP_ABORTED);
    assert_int_equal(world_stats(g->w).held_bytes, 8 * KIB); /* the ticket is still the reader's */
    release(g->c, ticket);
    assert_int_equal(world_stats(g->w).held_bytes, 0);
    /* Back too late: its memory is nobody's now. */
    g->na = peer_open(g->w);
    g->na->mem = g->a;
    assert_int_equal(peer_hello(g->na, KVP_ROLE_NODE, "n1", "host"), KVP_OK);
    assert_int_equal(node_mount(g->na, &is_reset), KVP_OK);
    assert_true(is_reset);
}

/* Time in which the master itself stood still is no absence of a node's. */
RIG_TEST(test_grace_when_the_master_stalled, plain)
{
    fill(g->c, 0, 10, 8 * KIB);
    peer_forget(g->na);
    world_advance(g->w, SEC);
    world_jump(g->w, 60 * SEC);
    world_advance(g->w, SEC);
    g->na = node_open(g->w, g->a);
    assert_int_equal(count(g->c, 0, 10), 10);
    peer_forget(g->na);
    world_advance(g->w, 5 * SEC + 20 * MS);
    assert_int_equal(world_stats(g->w).objects, 0);
}

/* Two copies of the world: one node dies while a put waits for its extents. */
RIG_TEST_ON(test_put_when_the_node_dies_under_its_window, .size = 64 * KIB)
{
    put_t one = {.key = "new", .len = 8 * KIB};
    peer_t *n2;
    uint64_t id;

    g->na->policy = NODE_DEAD_ONLY;
    fill(g->c, 0, 8, 8 * KIB);
    id = put_begin(g->c, &one, 1, 10000);
    assert_true(peer_is_asking(g->c, id));
    n2 = node_open(g->w, mem_make(g->w, "n2", 64 * KIB, 64 * KIB));
    world_advance(g->w, 50 * MS);
    peer_forget(g->na);
    granted(g->c, id, KVP_OK); /* elsewhere */
    assert_int_equal(n2->retires_n, 0);
}

RIG_TEST_ON(test_put_when_the_only_node_dies_under_its_window, .size = 64 * KIB)
{
    put_t one = {.key = "new", .len = 8 * KIB};
    uint64_t id;

    g->na->policy = NODE_DEAD_ONLY;
    fill(g->c, 0, 8, 8 * KIB);
    id = put_begin(g->c, &one, 1, 10000);
    peer_forget(g->na);
    world_advance(g->w, SEC);
    assert_true(peer_is_asking(g->c, id));
    g->na = node_open(g->w, g->a); /* says free when it is asked again */
    granted(g->c, id, KVP_OK);
}

/* Granted, but the message waits for its other key when the memory goes: the writer is not sent there. */
RIG_TEST_ON(test_put_when_a_grant_is_lost_before_its_answer, .size = 64 * KIB)
{
    put_t puts[2] = {{.key = "a", .len = 64 * KIB}, {.key = "b", .len = 64 * KIB}};
    peer_t *n2 = node_open(g->w, mem_make(g->w, "n2", 64 * KIB, 64 * KIB)), *full, *empty;
    kvp_wire_loc_t loc;
    places_t places;
    uint64_t id;

    assert_int_equal(put(g->c, "old", 64 * KIB), KVP_OK);
    assert_int_equal(get(g->c, "old", NULL, &loc), KVP_OK);
    full = loc.segment_id == g->na->mem->segment_id ? g->na : n2;
    empty = full == g->na ? n2 : g->na;
    full->policy = NODE_DEAD_ONLY;
    id = put_begin(g->c, puts, 2, 10000); /* one place at once, one when "old" is free */
    assert_true(peer_is_asking(g->c, id));
    peer_forget(empty);
    world_advance(g->w, 6 * SEC);
    assert_int_equal(world_stats(g->w).attempts, 1); /* the placed one went with its segment */
    node_free_all(full);
    places_read(peer_reply(g->c, id), &places);
    assert_int_equal(places.objs[0].err, KVP_RETRY_AFTER);
    assert_int_equal(places.objs[1].err, KVP_OK);
    assert_int_equal(places.nloc, 1);
    assert_int_equal(places.locs[0].segment_id, full->mem->segment_id);
    places_free(&places);
}

/* ---- unmounting */
RIG_TEST(test_unmount_when_nothing_is_held, plain)
{
    uint64_t id;

    fill(g->c, 0, 50, 8 * KIB);
    id = unmount(g->na, g->a->segment_id, 10000);
    world_advance(g->w, 110 * MS);
    assert_int_equal(plain_result(peer_reply(g->na, id)), KVP_OK);
    assert_int_equal(count(g->c, 0, 50), 0);
    assert_int_equal(world_stats(g->w).segments, 0);
    assert_int_equal(world_stats(g->w).objects, 0);
    id = unmount(g->na, g->a->segment_id, 0);
    assert_int_equal(plain_result(peer_reply(g->na, id)), KVP_NO_SEGMENT);
}

RIG_TEST(test_unmount_waits_for_holds, plain)
{
    uint64_t id, again, ticket;

    fill(g->c, 0, 2, 8 * KIB);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_OK);
    id = unmount(g->na, g->a->segment_id, 10000);
    world_advance(g->w, SEC);
    assert_true(peer_is_asking(g->na, id));
    assert_true(exists(g->c, "key/1")); /* still served */
    assert_int_equal(put(g->c, "new", 100), KVP_NO_SPACE); /* takes no puts */
    again = unmount(g->na, g->a->segment_id, 0);
    assert_int_equal(plain_result(peer_reply(g->na, again)), KVP_IN_PROGRESS);
    release(g->c, ticket);
    world_advance(g->w, 110 * MS);
    assert_int_equal(plain_result(peer_reply(g->na, id)), KVP_OK);
}

RIG_TEST(test_unmount_waits_no_longer_than_asked, plain)
{
    kvp_wire_loc_t loc;
    uint64_t id, ticket, attempt;

    fill(g->c, 0, 2, 8 * KIB);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(put_place(g->c, "writing", 100, &attempt, &loc), KVP_OK);
    id = unmount(g->na, g->a->segment_id, 300);
    world_advance(g->w, 280 * MS);
    assert_true(peer_is_asking(g->na, id));
    world_advance(g->w, 40 * MS);
    assert_int_equal(plain_result(peer_reply(g->na, id)), KVP_OK);
    assert_int_equal(commit(g->c, attempt, 0), KVP_ABORTED);
    release(g->c, ticket);
}

/* A commit that comes after the segment was given up and before its turn in the purge is no commit. */
RIG_TEST(test_commit_when_the_segment_is_being_purged, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt;

    fill(g->c, 0, 2000, KIB);
    assert_int_equal(put_place(g->c, "writing", 900 * KIB, &attempt, &loc), KVP_OK);
    g->w->is_idle_off = true;
    mem_remake(g->w, g->a);
    assert_int_equal(node_mount(g->na, NULL), KVP_OK); /* drops the old one */
    assert_true(world_has_work(g->w));
    assert_int_equal(commit(g->c, attempt, 0), KVP_ABORTED);
    assert_int_equal(put(g->c, "writing", 100), KVP_OK); /* the key is free */
    while (world_has_work(g->w)) {
        kvp_master_on_tick(g->w->m, g->w->now);
        world_check(g->w);
    }
    assert_int_equal(world_stats(g->w).objects, 1);
}

RIG_TEST(test_unmount_when_the_memory_is_made_anew_meanwhile, plain)
{
    uint64_t id, ticket;

    fill(g->c, 0, 1, KIB);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_OK);
    id = unmount(g->na, g->a->segment_id, 10000);
    mem_remake(g->w, g->a);
    assert_int_equal(node_mount(g->na, NULL), KVP_OK);
    assert_int_equal(plain_result(peer_reply(g->na, id)), KVP_OK); /* that segment is no more: so it is unmounted */
    release(g->c, ticket);
}

RIG_TEST_ON(test_put_when_its_segment_is_unmounted, .size = 64 * KIB)
{
    put_t one = {.key = "new", .len = 8 * KIB};
    peer_t *n2;
    kvp_wire_loc_t old;
    uint64_t id, ticket;
    places_t places;

    g->na->policy = NODE_DEAD_ONLY;
    fill(g->c, 0, 8, 8 * KIB);
    assert_int_equal(get(g->c, "key/7", &ticket, &old), KVP_OK);
    id = put_begin(g->c, &one, 1, 10000); /* waits for key/0's extent */
    assert_true(peer_is_asking(g->c, id));
    (void)unmount(g->na, g->a->segment_id, 10000);
    node_free_all(g->na); /* now it would be free, but the segment goes */
    assert_true(peer_is_asking(g->c, id));
    n2 = node_open(g->w, mem_make(g->w, "n2", 64 * KIB, 64 * KIB));
    places_read(peer_reply(g->c, id), &places);
    assert_int_equal(places.objs[0].err, KVP_OK);
    assert_int_equal(places.locs[0].segment_id, n2->mem->segment_id);
    places_free(&places);
}

/* ---- telling clients */
TEST(test_segments_in_pages)
{
    enum { N = 150 };
    Kvp__Pb__Segments head = KVP__PB__SEGMENTS__INIT;
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *c = client_open(w);
    uint32_t seen = 0, pages = 0, last = 0, one[2];
    char text[32];

    w->check_every = 0;
    for (uint32_t i = 0; i < N; i++) {
        snprintf(text, sizeof text, "node%u", i);
        (void)node_open(w, mem_make(w, text, 64 * KIB, 64 * KIB));
    }
    do {
        reply_t *r = peer_reply(c, peer_send(c, KVP_OP_SEGMENTS, 0, &head.base, NULL, 0));
        Kvp__Pb__SegmentsReply *reply;
        kvp_pb_t pb;

        assert_non_null(r);
        reply = kvp_pb_unpack(&pb, &kvp__pb__segments_reply__descriptor, &r->frame);
        assert_non_null(reply);
        for (size_t i = 0; i < reply->n_segments; i++) {
            assert_true(reply->segments[i]->segment_id > last);
            assert_int_equal(reply->segments[i]->state, KVP_SEG_UP);
            assert_string_equal(reply->segments[i]->addr, "10.0.0.1:7000");
            assert_int_equal(reply->segments[i]->chunk_n, 1);
            last = reply->segments[i]->segment_id;
            seen++;
        }
        head.from_id = reply->next_id;
        pages++;
        kvp_pb_free(&pb, reply);
        reply_free(r);
    } while (head.from_id != 0);
    assert_int_equal(seen, N);
    assert_int_equal(pages, 3);

    one[0] = last;
    one[1] = last + 1; /* there is none */
    head.ids = one;
    head.n_ids = 2;
    {
        reply_t *r = peer_reply(c, peer_send(c, KVP_OP_SEGMENTS, 0, &head.base, NULL, 0));
        Kvp__Pb__SegmentsReply *reply;
        kvp_pb_t pb;

        reply = kvp_pb_unpack(&pb, &kvp__pb__segments_reply__descriptor, &r->frame);
        assert_int_equal(reply->n_segments, 1);
        kvp_pb_free(&pb, reply);
        reply_free(r);
    }
    world_close(w);
}

RIG_TEST(test_freed_when_it_is_wrong, plain)
{
    Kvp__Pb__Freed head = KVP__PB__FREED__INIT;
    kvp_wire_slot_t slots[5];
    kvp_wire_loc_t loc;

    fill(g->c, 0, 2, 8 * KIB);
    assert_int_equal(get(g->c, "key/0", NULL, &loc), KVP_OK);
    g->na->policy = NODE_DEAD_ONLY;
    assert_int_equal(remove_key(g->c, "key/1", false), KVP_OK);
    slots[0] = (kvp_wire_slot_t){loc.chunk, loc.slot, loc.generation, 0}; /* lives */
    slots[1] = (kvp_wire_slot_t){UINT32_MAX, 0, 1, 0};
    slots[2] = (kvp_wire_slot_t){0, UINT32_MAX, 1, 0};
    slots[3] = (kvp_wire_slot_t){loc.chunk, loc.slot + 1, loc.generation + 7, 0};
    slots[4] = (kvp_wire_slot_t){3, 0, 1, 0}; /* a chunk in which nothing ever was */
    head.n = 5;
    head.segment_id = g->a->segment_id;
    (void)peer_send(g->na, KVP_OP_FREED, KVP_FRAME_ONEWAY, &head.base, slots, sizeof slots);
    head.segment_id = 99;
    (void)peer_send(g->na, KVP_OP_FREED, KVP_FRAME_ONEWAY, &head.base, slots, sizeof slots);
    assert_true(g->na->conn != 0);
    assert_true(exists(g->c, "key/0"));
    assert_int_equal(world_stats(g->w).used_bytes, 16 * KIB);
}

/* Fails if objects whose node is away are evicted for puts that find no room in them. */
RIG_TEST_ON(test_what_is_away_is_not_evicted, .size = MIB, .mems = 2)
{
    uint32_t there;

    fill(g->c, 0, 24, 64 * KIB); /* 32 fit */
    peer_lose(g->nb);
    there = count(g->c, 0, 24);
    assert_true(there > 0 && there < 24);
    fill(g->c, 100, 200, 64 * KIB); /* all that is at a goes, several times */
    g->nb = node_open_on(g->w, g->b, "b");
    world_advance(g->w, SEC);
    assert_int_equal(count(g->c, 0, 24), 24 - there);
}

TEST_MAIN()
