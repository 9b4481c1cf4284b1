/* SPDX-License-Identifier: Apache-2.0
 * Connections and sessions of the master's core: greeting, silence, who may ask what, and frames that break the rules.
 */
#include "tests/unit/master/rig.h"

static const rig_conf_t nobody = {.conf.session_ttl_ns = 10 * SEC, .has_no_client = true};

static kvp_err_t
hello_versions(peer_t *p, uint32_t version, uint32_t version_min)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;

    hello.version = version;
    hello.version_min = version_min;
    hello.role = KVP_ROLE_CLIENT;
    return plain_result(peer_reply(p, peer_send(p, KVP_OP_HELLO, 0, &hello.base, NULL, 0)));
}

/* ---- Hello */
RIG_TEST(test_hello_when_versions_do_not_meet, nobody)
{
    peer_t *p = peer_open(g->w);

    assert_int_equal(hello_versions(p, 0, 0), KVP_VERSION);
    assert_true(p->was_closed);
    p = peer_open(g->w);
    assert_int_equal(hello_versions(p, KVP_PROTO_VERSION + 2, KVP_PROTO_VERSION + 1), KVP_VERSION);
    assert_true(p->was_closed);
    p = peer_open(g->w);
    assert_int_equal(hello_versions(p, KVP_PROTO_VERSION + 5, KVP_PROTO_VERSION_MIN), KVP_OK);
    assert_false(p->was_closed);
    assert_int_equal(hello_versions(p, KVP_PROTO_VERSION, KVP_PROTO_VERSION), KVP_NOTSUP); /* a second one */
    assert_false(p->was_closed);
}

RIG_TEST(test_hello_when_fields_are_wrong, nobody)
{
    char text[200];
    peer_t *p;

    memset(text, 'x', sizeof text);
    text[129] = '\0';
    p = peer_open(g->w);
    assert_int_equal(peer_hello(p, KVP_ROLE_CLIENT, text, "h"), KVP_INVALID);
    assert_true(p->was_closed);
    p = peer_open(g->w);
    assert_int_equal(peer_hello(p, KVP_ROLE_CLIENT, "n", text), KVP_INVALID);
    p = peer_open(g->w);
    assert_int_equal(peer_hello(p, KVP_ROLE_NODE, "", "h"), KVP_INVALID);
    p = peer_open(g->w);
    assert_int_equal(peer_hello(p, 7, "n", "h"), KVP_INVALID);
    p = peer_open(g->w);
    assert_int_equal(peer_hello(p, KVP_ROLE_CLIENT, "", ""), KVP_OK);
}

RIG_TEST(test_hello_when_it_is_another_pool, nobody)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;
    uint8_t pool_id[16] = {1};
    peer_t *p = peer_open(g->w);

    hello.version = hello.version_min = KVP_PROTO_VERSION;
    hello.role = KVP_ROLE_CLIENT;
    hello.pool_id = (ProtobufCBinaryData){sizeof pool_id, pool_id};
    assert_int_equal(plain_result(peer_reply(p, peer_send(p, KVP_OP_HELLO, 0, &hello.base, NULL, 0))), KVP_INVALID);
    assert_true(p->was_closed);
    p = peer_open(g->w);
    hello.pool_id.data = g->w->conf.pool_id;
    assert_int_equal(plain_result(peer_reply(p, peer_send(p, KVP_OP_HELLO, 0, &hello.base, NULL, 0))), KVP_OK);
}

RIG_TEST(test_incarnations_are_new_and_rise, nobody)
{
    uint64_t last = 0;

    for (int i = 0; i < 50; i++) {
        peer_t *c = client_open(g->w);

        assert_true(c->incarnation > last);
        last = c->incarnation;
        if (i % 3 == 0) peer_forget(c);
    }
    assert_int_equal(last >> 40, g->w->conf.term);
}

TEST(test_connect_when_there_are_too_many)
{
    world_t *w = world_open(&(kvp_master_conf_t){.max_sessions = 3});
    peer_t *p[4];

    for (int i = 0; i < 4; i++)
        p[i] = peer_open(w);
    assert_false(p[2]->was_closed);
    assert_true(p[3]->was_closed);
    peer_forget(p[0]);
    assert_false(peer_open(w)->was_closed);
    world_close(w);
}

/* ---- silence */
RIG_TEST(test_session_when_silent, nobody)
{
    peer_t *c, *d, *n = node_open(g->w, mem_make(g->w, "n1", MIB, MIB));
    kvp_wire_loc_t loc;
    uint64_t attempt;

    c = client_open(g->w);
    d = client_open(g->w);
    assert_int_equal(put_place(c, "key", 100, &attempt, &loc), KVP_OK);
    c->is_silent = true;
    world_advance(g->w, 9900 * MS);
    assert_false(c->was_closed);
    world_advance(g->w, 200 * MS);
    assert_true(c->was_closed);
    assert_false(d->was_closed); /* it sends heartbeats */
    assert_int_equal(world_stats(g->w).sessions_expired, 1);
    assert_int_equal(world_stats(g->w).attempts, 0);
    assert_int_equal(n->last_fence.incarnation, c->incarnation);
    assert_int_equal(put(d, "key", 100), KVP_OK);
}

RIG_TEST(test_session_when_any_frame_is_a_sign_of_life, nobody)
{
    peer_t *c = client_open(g->w);

    c->is_silent = true;
    for (int i = 0; i < 20; i++) {
        world_advance(g->w, 6 * SEC);
        (void)exists(c, "key");
    }
    assert_false(c->was_closed);
}

RIG_TEST(test_session_when_the_master_stalled, nobody)
{
    peer_t *c = client_open(g->w), *n = node_open(g->w, mem_make(g->w, "n1", MIB, MIB));

    assert_int_equal(put(c, "key", 100), KVP_OK);
    c->is_silent = n->is_silent = true;
    world_advance(g->w, 4 * SEC);
    for (int i = 0; i < 3; i++) {
        world_jump(g->w, 30 * SEC); /* a stopped master expires nobody */
        kvp_master_on_tick(g->w->m, g->w->now);
        world_pump(g->w);
        assert_false(c->was_closed);
        assert_false(n->was_closed);
    }
    world_advance(g->w, 5900 * MS);
    assert_false(c->was_closed);
    world_advance(g->w, 200 * MS); /* but ten seconds of its own running do */
    assert_true(c->was_closed);
    assert_true(n->was_closed);
}

RIG_TEST(test_session_when_a_stranger_says_nothing, nobody)
{
    peer_t *p = peer_open(g->w);

    world_advance(g->w, 10 * SEC + 50 * MS);
    assert_true(p->was_closed);
}

RIG_TEST(test_heartbeat_of_another_incarnation, nobody)
{
    Kvp__Pb__Heartbeat head = KVP__PB__HEARTBEAT__INIT;
    Kvp__Pb__HeartbeatReply *reply;
    peer_t *c = client_open(g->w);
    kvp_buf_t out;
    kvp_frame_t f;
    kvp_pb_t pb;
    kvp_master_ready_t ready = {.conn = 0};
    size_t at, used;

    head.incarnation = c->incarnation + 1;
    kvp_buf_init(&out, 0);
    kvp_pb_frame_begin(&out, KVP_OP_HEARTBEAT, 0, 9, &head.base, &at);
    kvp_frame_end(&out, at);
    assert_int_equal(kvp_frame_parse(out.data, out.len, &f, &used), KVP_OK);
    kvp_master_on_frame(g->w->m, c->conn, &f, g->w->now);
    assert_true(kvp_master_ready(g->w->m, &ready));
    assert_int_equal(kvp_frame_parse(ready.frames.data, ready.frames.len, &f, &used), KVP_OK);
    reply = kvp_pb_unpack(&pb, &kvp__pb__heartbeat_reply__descriptor, &f);
    assert_int_equal(reply->err, KVP_FENCED);
    assert_int_equal(reply->term, g->w->conf.term);
    kvp_pb_free(&pb, reply);
    kvp_buf_fini(&ready.frames);
    kvp_buf_fini(&out);
}

/* ---- who may ask what */
static const uint8_t client_ops[] = {KVP_OP_PUT_BEGIN,   KVP_OP_PUT_COMMIT, KVP_OP_PUT_ABORT, KVP_OP_GET,
                                     KVP_OP_EXISTS,      KVP_OP_LOOKUP,     KVP_OP_RELEASE,   KVP_OP_REMOVE,
                                     KVP_OP_REMOVE_MANY, KVP_OP_LIST};
static const uint8_t both_ops[] = {KVP_OP_HEARTBEAT, KVP_OP_SEGMENTS, KVP_OP_STATUS};
static const uint8_t node_ops[] = {KVP_OP_MOUNT, KVP_OP_UNMOUNT, KVP_OP_FREED};

RIG_TEST(test_frames_before_hello, nobody)
{
    for (uint32_t op = 0; op < 256; op++) {
        peer_t *p = peer_open(g->w);

        if (op == KVP_OP_HELLO) continue;
        (void)peer_send(p, (uint8_t)op, op % 2 == 0 ? KVP_FRAME_ONEWAY : 0, NULL, NULL, 0);
        assert_true(p->was_closed);
        peer_forget(p);
        p = peer_open(g->w);
        (void)peer_send(p, (uint8_t)op, KVP_FRAME_REPLY, NULL, NULL, 0);
        assert_true(p->was_closed);
        peer_forget(p);
    }
    assert_int_equal(world_stats(g->w).protocol_errors, 255 * 2);
}

RIG_TEST(test_operations_of_the_other_role, nobody)
{
    peer_t *c = client_open(g->w), *n = node_open(g->w, mem_make(g->w, "n1", MIB, MIB));

    for (size_t i = 0; i < sizeof client_ops; i++)
        assert_int_equal(plain_result(peer_reply(n, peer_send(n, client_ops[i], 0, NULL, NULL, 0))), KVP_NOTSUP);
    for (size_t i = 0; i < sizeof node_ops; i++)
        assert_int_equal(plain_result(peer_reply(c, peer_send(c, node_ops[i], 0, NULL, NULL, 0))), KVP_NOTSUP);
    assert_int_equal(plain_result(peer_reply(c, peer_send(c, 200, 0, NULL, NULL, 0))), KVP_NOTSUP);
    (void)peer_send(c, 201, KVP_FRAME_ONEWAY, NULL, NULL, 0); /* is not answered */
    assert_int_equal(plain_result(peer_reply(c, peer_send(c, KVP_OP_RETIRE, 0, NULL, NULL, 0))), KVP_NOTSUP);
    assert_false(c->was_closed);
    assert_false(n->was_closed);
    (void)peer_send(c, KVP_OP_RETIRE, KVP_FRAME_REPLY, NULL, NULL, 0);
    assert_true(c->was_closed);
    (void)peer_send(n, KVP_OP_RETIRE, KVP_FRAME_REPLY, NULL, NULL, 0); /* to no order */
    assert_true(n->was_closed);
}

RIG_TEST(test_questions_that_want_no_answer, nobody)
{
    static const uint8_t ops[] = {KVP_OP_LIST, KVP_OP_SEGMENTS, KVP_OP_STATUS};

    for (size_t i = 0; i < sizeof ops; i++) {
        peer_t *c = client_open(g->w);

        (void)peer_send(c, ops[i], KVP_FRAME_ONEWAY, NULL, NULL, 0);
        assert_true(c->was_closed);
        peer_forget(c);
    }
}

/* ---- frames that break the rules */
typedef struct {
    uint8_t op;
    bool is_node;
    kvp_frame_t frame;
    _Alignas(16) uint8_t bytes[256];
} bad_t;

static void
expect_closed(world_t *w, bad_t *bad)
{
    peer_t *p = peer_open(w);

    assert_int_equal(peer_hello(p, bad->is_node ? KVP_ROLE_NODE : KVP_ROLE_CLIENT, "name", "host"), KVP_OK);
    bad->frame.hdr.opcode = bad->op;
    bad->frame.hdr.request_id = 77;
    peer_send_raw(p, &bad->frame);
    if (!p->was_closed) fail_msg("operation %u is not refused", bad->op);
    peer_forget(p);
}

static void
each_op(void (*one)(world_t *w, uint8_t op, bool is_node))
{
    world_t *w = world_open(&nobody.conf);
    peer_t *c = client_open(w);

    (void)node_open(w, mem_make(w, "n1", MIB, MIB));
    assert_int_equal(put(c, "key", 100), KVP_OK);
    for (size_t i = 0; i < sizeof client_ops; i++)
        one(w, client_ops[i], false);
    for (size_t i = 0; i < sizeof both_ops; i++)
        one(w, both_ops[i], i % 2 == 0);
    for (size_t i = 0; i < sizeof node_ops; i++)
        one(w, node_ops[i], true);
    assert_true(exists(c, "key"));
    world_close(w);
}

static void
one_malformed_head(world_t *w, uint8_t op, bool is_node)
{
    bad_t bad = {.op = op, .is_node = is_node};

    memset(bad.bytes, 0xff, sizeof bad.bytes);
    bad.frame.head = bad.bytes;
    bad.frame.hdr.head_len = 40;
    bad.frame.tail = bad.bytes + 40;
    expect_closed(w, &bad);
}

TEST(test_malformed_heads)
{
    each_op(one_malformed_head);
}

/* A head whose first field, the count, says n; the tail is tail_len bytes long. */
static void
expect_count_refused(world_t *w, uint8_t op, uint32_t n, size_t tail_len)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT; /* every head with a count has it in field 1 */
    bad_t bad = {.op = op, .is_node = op == KVP_OP_FREED};

    head.n = n;
    bad.frame.hdr.head_len = (uint16_t)protobuf_c_message_pack(&head.base, bad.bytes);
    bad.frame.head = bad.bytes;
    bad.frame.tail = bad.bytes + 64;
    bad.frame.tail_len = tail_len;
    expect_closed(w, &bad);
}

RIG_TEST(test_malformed_counts, nobody)
{
    const uint8_t counted[] = {KVP_OP_PUT_BEGIN, KVP_OP_PUT_COMMIT, KVP_OP_PUT_ABORT, KVP_OP_GET,  KVP_OP_EXISTS,
                               KVP_OP_LOOKUP,    KVP_OP_RELEASE,    KVP_OP_REMOVE,    KVP_OP_FREED};
    const uint8_t at_least_one[] = {KVP_OP_PUT_BEGIN, KVP_OP_GET, KVP_OP_EXISTS, KVP_OP_LOOKUP, KVP_OP_REMOVE};

    for (size_t i = 0; i < sizeof counted; i++) {
        expect_count_refused(g->w, counted[i], 1, 0);
        expect_count_refused(g->w, counted[i], 1, 7);
        expect_count_refused(g->w, counted[i], 30, 192);
        expect_count_refused(g->w, counted[i], KVP_BATCH_MAX + 1, 192);
        expect_count_refused(g->w, counted[i], UINT32_MAX, 192);
    }
    for (size_t i = 0; i < sizeof at_least_one; i++)
        expect_count_refused(g->w, at_least_one[i], 0, 192);
}

RIG_TEST(test_list_when_the_prefix_is_too_long, nobody)
{
    Kvp__Pb__List head = KVP__PB__LIST__INIT;
    uint8_t prefix[1025] = {0};
    peer_t *c = client_open(g->w);

    head.prefix = (ProtobufCBinaryData){sizeof prefix, prefix};
    (void)peer_send(c, KVP_OP_LIST, 0, &head.base, NULL, 0);
    assert_true(c->was_closed);
}

RIG_TEST(test_list_when_the_cursor_is_wild, nobody)
{
    Kvp__Pb__List head = KVP__PB__LIST__INIT;
    peer_t *c = client_open(g->w);
    const uint64_t cursors[] = {1, 4096, UINT32_MAX, 1ull << 32, UINT64_MAX};

    (void)node_open(g->w, mem_make(g->w, "n1", MIB, MIB));
    assert_int_equal(put(c, "key", 100), KVP_OK);
    for (size_t i = 0; i < KVP_ARRAY_LEN(cursors); i++) {
        head.cursor = cursors[i];
        assert_int_equal(plain_result(peer_reply(c, peer_send(c, KVP_OP_LIST, 0, &head.base, NULL, 0))), KVP_OK);
    }
}

TEST_MAIN()
