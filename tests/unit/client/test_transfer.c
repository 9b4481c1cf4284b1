/* SPDX-License-Identifier: Apache-2.0
 * Moves carried out on a node of the test, over shared memory: bytes and words where they belong, and what is reported
 * of moves that fail, each on its own.
 */
#include "client/transport/all/registry.h"
#include "tests/unit/client/transfer_fixture.h"

/* Puts the value into a slot. */
static void
fill_and_seal(fixture_t *f, uint32_t slot)
{
    kvp_iov_t iov = {f->value, VALUE};
    kvp_move_t mv = move_at(f, KVP_MOVE_FILL, slot);

    assert_int_equal(run_one(f, &iov, 1, &mv), KVP_OK);
    mv = move_at(f, KVP_MOVE_SEAL, slot);
    assert_int_equal(run_one(f, &iov, 1, &mv), KVP_OK);
}

static void
test_fill_seal_read(void **state)
{
    fixture_t f;
    kvp_move_t mv;
    kvp_iov_t iov = {f.value, VALUE};
    kvp_desc_t desc;

    (void)state;
    setup(&f);
    mv = move_at(&f, KVP_MOVE_FILL, 3);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_OK);
    assert_true(mv.has_sum && mv.is_drained);
    assert_true(mv.sum == kvp_sum(f.value, VALUE));
    assert_true(*word_of(&f, 3) == kvp_word_make(mv.loc.generation, KVP_DESC_WRITING));
    assert_memory_equal(f.pool.node.payload + mv.loc.offset, f.value, VALUE);

    mv = move_at(&f, KVP_MOVE_SEAL, 3);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_OK);
    memcpy(&desc, word_of(&f, 3), sizeof desc);
    assert_memory_equal(&desc, &mv.desc, sizeof desc);
    assert_memory_equal(f.pool.node.meta + (size_t)mv.loc.key_off * 64, KEY, sizeof KEY);

    mv = move_at(&f, KVP_MOVE_READ, 3);
    iov = (kvp_iov_t){f.back, VALUE};
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_OK);
    assert_false(mv.has_sum); /* the word vouches */
    assert_memory_equal(f.back, f.value, VALUE);
    assert_memory_equal(&mv.desc, &desc, KVP_DESC_LINE_BYTES);
    assert_int_equal(f.pool.counters.paths[0].reads, 1);
    assert_int_equal(f.pool.counters.paths[0].read_bytes, VALUE);
    assert_int_equal(f.pool.counters.paths[0].writes, 1);
    teardown(&f);
}

/* A transport that copies has the sum before the descriptor's turn; for others, as which shared memory passes here, it is taken
 * first. */
static void
test_put_fills_and_seals_in_one_go(void **state)
{
    kvp_transport_ops_t ops = *kvp_transport_find("shm");
    fixture_t f;
    kvp_move_t mv;
    kvp_iov_t iov[3] = {{f.value, 100}, {f.value + 100, 0}, {f.value + 100, VALUE}};
    kvp_desc_t desc, want;

    (void)state;
    for (int how = 0; how < 4; how++) {
        bool is_scattered = how % 2 != 0;

        if (how == 2) ops.caps &= ~KVP_TP_SYNC;
        setup_over(&f, &ops);
        iov[0].len = is_scattered ? 100 : VALUE;
        mv = move_at(&f, KVP_MOVE_PUT, 3);
        mv.desc.sum = 0;
        assert_int_equal(run_one(&f, iov, is_scattered ? 3 : 1, &mv), KVP_OK);
        assert_true(mv.has_sum && mv.is_drained);
        assert_true(mv.sum == kvp_sum(f.value, VALUE));
        assert_memory_equal(f.pool.node.payload + mv.loc.offset, f.value, VALUE);
        assert_memory_equal(f.pool.node.meta + (size_t)mv.loc.key_off * 64, KEY, sizeof KEY);
        want = (kvp_desc_t){.word = kvp_word_make(mv.loc.generation, KVP_DESC_SEALED), .len = VALUE, .sum = mv.sum};
        kvp_desc_seal(&want);
        memcpy(&desc, word_of(&f, 3), sizeof desc);
        assert_memory_equal(&desc, &want, sizeof desc);
        assert_int_equal(f.pool.counters.paths[0].writes, 1);
        assert_int_equal(f.pool.counters.paths[0].write_bytes, VALUE);
        teardown(&f);
    }
}

/* A batch of more than a window, of every kind: each move has its own end. */
static void
test_puts_of_many_windows(void **state)
{
    enum { MOVES = 150 };
    kvp_transport_ops_t ops = *kvp_transport_find("shm");
    fixture_t f;
    kvp_iov_t iov = {f.value, VALUE};
    kvp_span_t span = {.iov = &iov, .iov_n = 1};
    kvp_span_t spans[MOVES];
    kvp_move_t moves[MOVES];

    (void)state;
    ops.caps &= ~KVP_TP_SYNC;
    setup_over(&f, &ops);
    for (uint32_t i = 0; i < MOVES; i++) {
        spans[i] = span;
        moves[i] = move_at(&f, i % 3 == 0 ? KVP_MOVE_FILL : KVP_MOVE_PUT, 1 + i);
        moves[i].item = i;
        moves[i].len = moves[i].desc.len = 100;
        moves[i].loc.offset = 4096ull * i;
    }
    run(&f, spans, moves, MOVES);
    for (uint32_t i = 0; i < MOVES; i++) {
        kvp_desc_state_t state_of = i % 3 == 0 ? KVP_DESC_WRITING : KVP_DESC_SEALED;

        assert_int_equal(moves[i].err, KVP_OK);
        assert_true(moves[i].sum == kvp_sum(f.value, 100));
        assert_true(*word_of(&f, 1 + i) == kvp_word_make(moves[i].loc.generation, state_of));
        assert_memory_equal(f.pool.node.payload + moves[i].loc.offset, f.value, 100);
    }
    teardown(&f);
}

static void
test_a_read_takes_a_sum_where_it_is_wanted(void **state)
{
    fixture_t f;
    kvp_move_t mv;
    kvp_iov_t iov = {f.back, VALUE};

    (void)state;
    setup(&f);
    fill_and_seal(&f, 1);
    mv = move_at(&f, KVP_MOVE_READ, 1);
    mv.wants_sum = true;
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_OK);
    assert_true(mv.has_sum);
    assert_true(mv.sum == kvp_sum(f.value, VALUE));
    teardown(&f);
}

/* A transport that says so spares the descriptor, and takes the sum in its place. */
static void
test_a_read_skips_the_descriptor_where_the_sum_is_enough(void **state)
{
    kvp_transport_ops_t ops = *kvp_transport_find("shm");
    fixture_t f;
    kvp_move_t mv;
    kvp_iov_t iov = {f.back, VALUE};

    (void)state;
    for (int may = 0; may < 4; may++) {
        bool skips = may == 3;

        if (may >= 2) ops.caps |= KVP_TP_SUM_ALONE;
        setup_over(&f, &ops);
        fill_and_seal(&f, 1);
        mv = move_at(&f, KVP_MOVE_READ, 1);
        mv.may_skip_desc = may % 2 != 0;
        memset(&mv.desc, 0, sizeof mv.desc);
        assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_OK);
        assert_memory_equal(f.back, f.value, VALUE);
        assert_int_equal(mv.has_desc, !skips);
        assert_int_equal(mv.desc.word != 0, !skips);
        assert_int_equal(mv.has_sum, skips);
        assert_true(!skips || mv.sum == kvp_sum(f.value, VALUE));
        assert_int_equal(mv.is_sum_path, may >= 2);
        assert_int_equal(f.pool.counters.paths[0].reads, 1);
        teardown(&f);
    }
}

/* The pieces are used as far as the object reaches, the last of them in part, the rest not at all. */
static void
test_memory_may_be_scattered_and_longer(void **state)
{
    fixture_t f;
    kvp_move_t mv;
    kvp_iov_t iov[4] = {{f.back + 5000, 10}, {f.back, 4990}, {f.back + 5010, 5090}, {f.back + 4990, 10}};

    (void)state;
    setup(&f);
    fill_and_seal(&f, 2);
    memset(f.back, 0xAA, sizeof f.back);
    mv = move_at(&f, KVP_MOVE_READ, 2);
    assert_int_equal(run_one(&f, iov, 4, &mv), KVP_OK);
    assert_memory_equal(f.back + 5000, f.value, 10);
    assert_memory_equal(f.back, f.value + 10, 4990);
    assert_memory_equal(f.back + 5010, f.value + 5000, 5000);
    for (size_t i = 4990; i < 5000; i++)
        assert_int_equal(f.back[i], 0xAA);
    for (size_t i = 10010; i < sizeof f.back; i++)
        assert_int_equal(f.back[i], 0xAA);
    teardown(&f);
}

/* The extent belongs to a later attempt by now: not a byte of it changes. */
static void
test_a_write_that_comes_too_late_is_refused(void **state)
{
    uint64_t later = kvp_word_make(kvp_gen_make(1, 100000), KVP_DESC_WRITING);
    fixture_t f;
    kvp_iov_t iov = {f.value, VALUE};
    kvp_move_t mv;

    (void)state;
    setup(&f);
    *word_of(&f, 4) = later;
    mv = move_at(&f, KVP_MOVE_FILL, 4);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_STALE);
    assert_true(mv.is_drained);
    mv = move_at(&f, KVP_MOVE_SEAL, 4);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_STALE);
    assert_true(*word_of(&f, 4) == later);
    mv = move_at(&f, KVP_MOVE_PUT, 4);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_STALE);
    assert_true(*word_of(&f, 4) == later);
    for (size_t i = 0; i < VALUE; i++)
        assert_int_equal(f.pool.node.payload[65536 * 4 + i], 0);
    assert_int_equal(f.pool.node.meta[(size_t)mv.loc.key_off * 64], 0);
    assert_int_equal(f.pool.counters.paths[0].writes, 0);
    teardown(&f);
}

static void
test_a_place_that_is_not_there_is_the_masters_fault(void **state)
{
    fixture_t f;
    kvp_iov_t iov = {f.back, VALUE};
    kvp_move_t mv;

    (void)state;
    setup(&f);
    mv = move_at(&f, KVP_MOVE_READ, 1);
    mv.loc.offset = FAKE_NODE_BYTES - VALUE + 1;
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_PROTO);
    mv = move_at(&f, KVP_MOVE_READ, f.pool.node.geo.slots_max * 4);
    mv.loc.offset = 0;
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_PROTO);
    mv = move_at(&f, KVP_MOVE_READ, 1);
    mv.loc.chunk = 1;
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_PROTO);
    /* Nor is a descriptor written for a payload that has no place. */
    mv = move_at(&f, KVP_MOVE_PUT, 1);
    mv.loc.offset = FAKE_NODE_BYTES - VALUE + 1;
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_PROTO);
    assert_true(*word_of(&f, 1) == 0);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    teardown(&f);
}

static void
test_after_the_deadline_nothing_is_moved(void **state)
{
    fixture_t f;
    kvp_iov_t iov = {f.back, VALUE};
    kvp_move_t mv;

    (void)state;
    setup(&f);
    fill_and_seal(&f, 1);
    f.deadline_ns = kvp_now_ns();
    mv = move_at(&f, KVP_MOVE_READ, 1);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_DEADLINE);
    assert_true(mv.is_drained);
    assert_int_equal(f.back[1], 0);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    teardown(&f);
}

static kvp_err_t
refuse_token(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *rseg)
{
    (void)tp, (void)token, (void)len, (void)access, (void)rseg;
    return KVP_INVALID;
}

/* In the same call, for all moves of the lane: a transport with a port of its own that cannot use what the node gives. */
static void
test_memory_that_one_transport_cannot_use_is_reached_by_the_next(void **state)
{
    kvp_transport_ops_t rdma = *kvp_transport_find("shm");
    const kvp_transport_ops_t *ops[2] = {&rdma, kvp_transport_find("shm")};
    fixture_t f;
    kvp_iov_t iov[3];
    kvp_span_t spans[3];
    kvp_move_t moves[3];

    (void)state;
    rdma.name = "rdma";
    rdma.caps |= KVP_TP_OWN_PORT;
    rdma.rseg_open = refuse_token;
    setup_by(&f, ops, 2);
    for (uint32_t i = 0; i < 3; i++) {
        iov[i] = (kvp_iov_t){f.value, VALUE};
        spans[i] = (kvp_span_t){.iov = &iov[i], .iov_n = 1};
        moves[i] = move_at(&f, KVP_MOVE_PUT, i);
    }
    run(&f, spans, moves, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(moves[i].err, KVP_OK);
        assert_memory_equal(f.pool.node.payload + 65536 * i, f.value, VALUE);
    }
    assert_int_equal(f.pool.counters.bypasses, 1);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    assert_int_equal(f.pool.counters.paths[0].writes, 0);
    assert_int_equal(f.pool.counters.paths[1].writes, 3);
    teardown(&f);
}

/* More segments than are driven at a time, and one of them all that there is: only its moves succeed. */
static void
test_lost_nodes_hold_up_nobody(void **state)
{
    enum { MOVES = 150 };
    fixture_t f;
    kvp_iov_t iov[MOVES];
    kvp_span_t spans[MOVES];
    kvp_move_t moves[MOVES];
    uint8_t first[MOVES] = {0};

    (void)state;
    setup(&f);
    fill_and_seal(&f, 1);
    for (uint32_t i = 0; i < MOVES; i++) {
        moves[i] = move_at(&f, KVP_MOVE_READ, 1);
        moves[i].item = i;
        moves[i].len = 1;
        iov[i] = (kvp_iov_t){&first[i], 1};
        spans[i] = (kvp_span_t){.iov = &iov[i], .iov_n = 1};
        if (i % 2 == 0) moves[i].loc.segment_id = 1000 + i;
    }
    f.pool.node.payload[65536] = 0x77;
    run(&f, spans, moves, MOVES);
    for (uint32_t i = 0; i < MOVES; i++) {
        assert_int_equal(moves[i].err, i % 2 == 0 ? KVP_NODE_LOST : KVP_OK);
        assert_true(moves[i].is_drained);
        assert_int_equal(first[i], i % 2 == 0 ? 0 : 0x77);
    }
    teardown(&f);
}

/* A chunk that is not open yet when the deadline ends: this call fails, and the next has it. */
static void
test_a_short_deadline_does_not_cost_the_node(void **state)
{
    fixture_t f;
    kvp_iov_t iov = {f.value, VALUE};
    kvp_path_t path;
    kvp_move_t mv;

    (void)state;
    setup(&f);
    assert_int_equal(kvp_peers_take(f.link->peers, FAKE_MASTER_SEGMENT, 0, f.deadline_ns, &path), KVP_OK);
    kvp_path_rele(f.link->peers, &path, false);
    f.pool.node.is_mute = true;
    f.deadline_ns = kvp_now_ns() + 10 * KVP_NS_PER_MS;
    mv = move_at(&f, KVP_MOVE_FILL, 1);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_DEADLINE);
    assert_true(mv.is_drained);
    f.pool.node.is_mute = false;
    f.deadline_ns = kvp_now_ns() + LONG_NS;
    mv = move_at(&f, KVP_MOVE_FILL, 1);
    assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_OK);
    assert_int_equal(f.pool.node.opens, 1);
    teardown(&f);
}

/* A node that does not answer, and another copy to be read, or written: time is left for that one. */
static void
test_a_silent_node_costs_a_share_of_the_time(void **state)
{
    fixture_t f;
    kvp_iov_t iov = {f.back, VALUE};
    kvp_path_t path;
    kvp_move_t mv;

    (void)state;
    for (int how = 0; how < 4; how++) {
        bool is_put = how / 2 != 0;

        setup(&f);
        if (how % 2 != 0) {
            assert_int_equal(kvp_peers_take(f.link->peers, FAKE_MASTER_SEGMENT, 0, f.deadline_ns, &path), KVP_OK);
            kvp_path_rele(f.link->peers, &path, false);
        }
        f.pool.node.is_mute = true;
        f.others = !is_put;
        f.has_copies = is_put;
        f.deadline_ns = kvp_now_ns() + 900 * KVP_NS_PER_MS;
        mv = move_at(&f, is_put ? KVP_MOVE_FILL : KVP_MOVE_READ, 1);
        assert_int_equal(run_one(&f, &iov, 1, &mv), KVP_NODE_LOST);
        assert_true(kvp_now_ns() < f.deadline_ns);
        teardown(&f);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill_seal_read),
        cmocka_unit_test(test_put_fills_and_seals_in_one_go),
        cmocka_unit_test(test_puts_of_many_windows),
        cmocka_unit_test(test_a_read_takes_a_sum_where_it_is_wanted),
        cmocka_unit_test(test_a_read_skips_the_descriptor_where_the_sum_is_enough),
        cmocka_unit_test(test_memory_may_be_scattered_and_longer),
        cmocka_unit_test(test_a_write_that_comes_too_late_is_refused),
        cmocka_unit_test(test_a_place_that_is_not_there_is_the_masters_fault),
        cmocka_unit_test(test_after_the_deadline_nothing_is_moved),
        cmocka_unit_test(test_memory_that_one_transport_cannot_use_is_reached_by_the_next),
        cmocka_unit_test(test_lost_nodes_hold_up_nobody),
        cmocka_unit_test(test_a_short_deadline_does_not_cost_the_node),
        cmocka_unit_test(test_a_silent_node_costs_a_share_of_the_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
