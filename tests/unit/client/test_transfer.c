/* SPDX-License-Identifier: Apache-2.0
 * Moves carried out on a node of the test, over shared memory: bytes and words where they belong, and what is
 * reported of moves that fail, each on its own. */
#include "transport/all/registry.h"
#include "tests/unit/client/transfer_fixture.h"

/* Puts the value into a slot. */
static void
fill_and_seal(uint32_t slot)
{
    kvp_iov_t iov = {value, VALUE};
    kvp_move_t mv = move_at(KVP_MOVE_FILL, slot);

    assert_int_equal(run_one(&iov, 1, &mv), KVP_OK);
    mv = move_at(KVP_MOVE_SEAL, slot);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_OK);
}

TEST_WITH(test_fill_seal_read, setup, teardown)
{
    kvp_move_t mv;
    kvp_iov_t iov = {value, VALUE};
    kvp_desc_t desc;

    mv = move_at(KVP_MOVE_FILL, 3);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_OK);
    assert_true(mv.has_sum && mv.is_drained);
    assert_true(mv.sum == kvp_sum(value, VALUE));
    assert_true(*word_of(3) == kvp_word_make(mv.loc.generation, KVP_DESC_WRITING));
    assert_memory_equal(pool.node.payload + mv.loc.offset, value, VALUE);

    mv = move_at(KVP_MOVE_SEAL, 3);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_OK);
    memcpy(&desc, word_of(3), sizeof desc);
    assert_memory_equal(&desc, &mv.desc, sizeof desc);
    assert_memory_equal(pool.node.meta + (size_t)mv.loc.key_off * 64, KEY, sizeof KEY);

    mv = move_at(KVP_MOVE_READ, 3);
    iov = (kvp_iov_t){back, VALUE};
    assert_int_equal(run_one(&iov, 1, &mv), KVP_OK);
    assert_false(mv.has_sum); /* the word vouches */
    assert_memory_equal(back, value, VALUE);
    assert_memory_equal(&mv.desc, &desc, KVP_DESC_LINE_BYTES);
    assert_int_equal(pool.counters.paths[0].reads, 1);
    assert_int_equal(pool.counters.paths[0].read_bytes, VALUE);
    assert_int_equal(pool.counters.paths[0].writes, 1);
}

/* A transport that copies has the sum before the descriptor's turn; for others, as which shared memory passes here, it
 * is taken first. */
TEST_WITH(test_put_fills_and_seals_in_one_go, setup, teardown)
{
    kvp_transport_ops_t ops = *kvp_transport_find("shm");
    kvp_move_t mv;
    kvp_iov_t iov[3] = {{value, 100}, {value + 100, 0}, {value + 100, VALUE}};
    kvp_desc_t desc, want;

    for (int how = 0; how < 4; how++) {
        bool is_scattered = how % 2 != 0;

        if (how == 2) ops.caps &= ~KVP_TP_SYNC;
        setup_over(&ops);
        iov[0].len = is_scattered ? 100 : VALUE;
        mv = move_at(KVP_MOVE_PUT, 3);
        mv.desc.sum = 0;
        assert_int_equal(run_one(iov, is_scattered ? 3 : 1, &mv), KVP_OK);
        assert_true(mv.has_sum && mv.is_drained);
        assert_true(mv.sum == kvp_sum(value, VALUE));
        assert_memory_equal(pool.node.payload + mv.loc.offset, value, VALUE);
        assert_memory_equal(pool.node.meta + (size_t)mv.loc.key_off * 64, KEY, sizeof KEY);
        want = (kvp_desc_t){.word = kvp_word_make(mv.loc.generation, KVP_DESC_SEALED), .len = VALUE, .sum = mv.sum};
        kvp_desc_seal(&want);
        memcpy(&desc, word_of(3), sizeof desc);
        assert_memory_equal(&desc, &want, sizeof desc);
        assert_int_equal(pool.counters.paths[0].writes, 1);
        assert_int_equal(pool.counters.paths[0].write_bytes, VALUE);
    }
}

/* A batch of more than a window, of every kind: each move has its own end. */
TEST_WITH(test_puts_of_many_windows, setup, teardown)
{
    enum { MOVES = 150 };
    kvp_transport_ops_t ops = *kvp_transport_find("shm");
    kvp_iov_t iov = {value, VALUE};
    kvp_span_t span = {.iov = &iov, .iov_n = 1};
    kvp_span_t spans[MOVES];
    kvp_move_t moves[MOVES];

    ops.caps &= ~KVP_TP_SYNC;
    setup_over(&ops);
    for (uint32_t i = 0; i < MOVES; i++) {
        spans[i] = span;
        moves[i] = move_at(i % 3 == 0 ? KVP_MOVE_FILL : KVP_MOVE_PUT, 1 + i);
        moves[i].item = i;
        moves[i].len = moves[i].desc.len = 100;
        moves[i].loc.offset = 4096ull * i;
    }
    run(spans, moves, MOVES);
    for (uint32_t i = 0; i < MOVES; i++) {
        kvp_desc_state_t state_of = i % 3 == 0 ? KVP_DESC_WRITING : KVP_DESC_SEALED;

        assert_int_equal(moves[i].err, KVP_OK);
        assert_true(moves[i].sum == kvp_sum(value, 100));
        assert_true(*word_of(1 + i) == kvp_word_make(moves[i].loc.generation, state_of));
        assert_memory_equal(pool.node.payload + moves[i].loc.offset, value, 100);
    }
}

/* The submit of a transport that is stuck after so many transfers. */
static size_t stuck_after;

static kvp_err_t
submit_some(kvp_ep_t *ep, kvp_xfer_t *const *xfers, size_t n, size_t *n_out)
{
    kvp_err_t err = kvp_transport_find("shm")->submit(ep, xfers, n < stuck_after ? n : stuck_after, n_out);

    stuck_after -= *n_out;
    return err;
}

/* Reads 150 objects by a transport of which only 100 transfers are done by the deadline. Returns how many succeed. */
static uint32_t
read_and_be_cut(uint32_t caps, uint32_t flags)
{
    enum { MOVES = 150 };
    kvp_transport_ops_t ops = *kvp_transport_find("shm");
    kvp_iov_t iov = {back, VALUE};
    kvp_span_t span = {.iov = &iov, .iov_n = 1};
    kvp_move_t moves[MOVES];
    uint32_t ok_n = 0;

    ops.caps = (ops.caps & ~KVP_TP_SYNC) | caps;
    ops.submit = submit_some;
    stuck_after = SIZE_MAX;
    setup_over(&ops);
    fill_and_seal(1);
    for (uint32_t i = 0; i < MOVES; i++) {
        moves[i] = move_at(KVP_MOVE_READ, 1);
        moves[i].flags = flags;
    }
    stuck_after = 100;
    deadline_ns = in(30 * KVP_NS_PER_MS);
    run(&span, moves, MOVES);
    for (uint32_t i = 0; i < MOVES; i++) {
        bool is_ok = moves[i].err == KVP_OK;

        assert_true(is_ok ? ok_n == i : moves[i].err == KVP_DEADLINE);
        assert_true(!is_ok || moves[i].has_desc || (moves[i].has_sum && moves[i].sum == kvp_sum(value, VALUE)));
        ok_n += is_ok;
    }
    return ok_n;
}

/* A deadline costs the objects whose descriptors have not arrived: a window of 1 MiB, or of 512 KiB where reads are
 * answered in order. Where the sum is enough, it costs those whose payload has not. */
TEST_WITH(test_reads_cut_at_the_deadline_keep_what_arrived, setup, teardown)
{
    assert_int_equal(read_and_be_cut(0, 0), 0);
    assert_int_equal(read_and_be_cut(0, KVP_READ_SUM | KVP_READ_SUM_ALONE), 100);
    assert_int_equal(read_and_be_cut(KVP_TP_READS_IN_ORDER, 0), 48);
    assert_int_equal(read_and_be_cut(KVP_TP_READS_IN_ORDER, KVP_READ_SUM | KVP_READ_SUM_ALONE), 52);
}

/* A transport that says so spares the descriptor, and takes the sum in its place. A sum is taken as well where it is
 * wanted. */
TEST_WITH(test_a_read_skips_the_descriptor_where_the_sum_is_enough, setup, teardown)
{
    kvp_transport_ops_t ops = *kvp_transport_find("shm");
    kvp_move_t mv;
    kvp_iov_t iov = {back, VALUE};

    for (int may = 0; may < 5; may++) {
        bool skips = may == 3, has_sum = may >= 3;

        if (may >= 2) ops.caps |= KVP_TP_SUM_ALONE;
        setup_over(&ops);
        fill_and_seal(1);
        mv = move_at(KVP_MOVE_READ, 1);
        mv.flags = (may % 2 != 0 ? KVP_READ_SUM_ALONE : 0) | (may == 4 ? KVP_READ_SUM : 0);
        memset(&mv.desc, 0, sizeof mv.desc);
        assert_int_equal(run_one(&iov, 1, &mv), KVP_OK);
        assert_memory_equal(back, value, VALUE);
        assert_int_equal(mv.has_desc, !skips);
        assert_int_equal(mv.desc.word != 0, !skips);
        assert_int_equal(mv.has_sum, has_sum);
        assert_true(!has_sum || mv.sum == kvp_sum(value, VALUE));
        assert_int_equal(mv.is_sum_path, may >= 2);
        assert_int_equal(pool.counters.paths[0].reads, 1);
    }
}

/* The pieces are used as far as the object reaches, the last of them in part, the rest not at all. */
TEST_WITH(test_memory_may_be_scattered_and_longer, setup, teardown)
{
    kvp_move_t mv;
    kvp_iov_t iov[4] = {{back + 5000, 10}, {back, 4990}, {back + 5010, 5090}, {back + 4990, 10}};

    fill_and_seal(2);
    memset(back, 0xAA, sizeof back);
    mv = move_at(KVP_MOVE_READ, 2);
    assert_int_equal(run_one(iov, 4, &mv), KVP_OK);
    assert_memory_equal(back + 5000, value, 10);
    assert_memory_equal(back, value + 10, 4990);
    assert_memory_equal(back + 5010, value + 5000, 5000);
    for (size_t i = 4990; i < 5000; i++)
        assert_int_equal(back[i], 0xAA);
    for (size_t i = 10010; i < sizeof back; i++)
        assert_int_equal(back[i], 0xAA);
}

/* The extent belongs to a later attempt by now: not a byte of it changes. */
TEST_WITH(test_a_write_that_comes_too_late_is_refused, setup, teardown)
{
    uint64_t later = kvp_word_make(kvp_gen_make(1, 100000), KVP_DESC_WRITING);
    kvp_iov_t iov = {value, VALUE};
    kvp_move_t mv;

    *word_of(4) = later;
    mv = move_at(KVP_MOVE_FILL, 4);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_STALE);
    assert_true(mv.is_drained);
    mv = move_at(KVP_MOVE_SEAL, 4);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_STALE);
    assert_true(*word_of(4) == later);
    mv = move_at(KVP_MOVE_PUT, 4);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_STALE);
    assert_true(*word_of(4) == later);
    for (size_t i = 0; i < VALUE; i++)
        assert_int_equal(pool.node.payload[65536 * 4 + i], 0);
    assert_int_equal(pool.node.meta[(size_t)mv.loc.key_off * 64], 0);
    assert_int_equal(pool.counters.paths[0].writes, 0);
}

TEST_WITH(test_a_place_that_is_not_there_is_the_masters_fault, setup, teardown)
{
    kvp_iov_t iov = {back, VALUE};
    kvp_move_t mv;

    mv = move_at(KVP_MOVE_READ, 1);
    mv.loc.offset = FAKE_NODE_BYTES - VALUE + 1;
    assert_int_equal(run_one(&iov, 1, &mv), KVP_PROTO);
    mv = move_at(KVP_MOVE_READ, pool.node.geo.slots_max * 4);
    mv.loc.offset = 0;
    assert_int_equal(run_one(&iov, 1, &mv), KVP_PROTO);
    mv = move_at(KVP_MOVE_READ, 1);
    mv.loc.chunk = 1;
    assert_int_equal(run_one(&iov, 1, &mv), KVP_PROTO);
    /* Nor is a descriptor written for a payload that has no place. */
    mv = move_at(KVP_MOVE_PUT, 1);
    mv.loc.offset = FAKE_NODE_BYTES - VALUE + 1;
    assert_int_equal(run_one(&iov, 1, &mv), KVP_PROTO);
    assert_true(*word_of(1) == 0);
    assert_int_equal(pool.counters.peer_failures, 0);
}

TEST_WITH(test_after_the_deadline_nothing_is_moved, setup, teardown)
{
    kvp_iov_t iov = {back, VALUE};
    kvp_move_t mv;

    fill_and_seal(1);
    deadline_ns = kvp_now_ns();
    mv = move_at(KVP_MOVE_READ, 1);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_DEADLINE);
    assert_true(mv.is_drained);
    assert_int_equal(back[1], 0);
    assert_int_equal(pool.counters.peer_failures, 0);
}

static kvp_err_t
refuse_token(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *rseg)
{
    (void)tp, (void)token, (void)len, (void)access, (void)rseg;
    return KVP_INVALID;
}

/* In the same call, for all moves of the lane: a transport with a port of its own that cannot use what the node gives.
 */
TEST_WITH(test_memory_that_one_transport_cannot_use_is_reached_by_the_next, setup, teardown)
{
    kvp_transport_ops_t rdma = *kvp_transport_find("shm");
    const kvp_transport_ops_t *ops[2] = {&rdma, kvp_transport_find("shm")};
    kvp_iov_t iov[3];
    kvp_span_t spans[3];
    kvp_move_t moves[3];

    rdma.name = "rdma";
    rdma.caps |= KVP_TP_OWN_PORT;
    rdma.rseg_open = refuse_token;
    setup_by(ops, 2);
    for (uint32_t i = 0; i < 3; i++) {
        iov[i] = (kvp_iov_t){value, VALUE};
        spans[i] = (kvp_span_t){.iov = &iov[i], .iov_n = 1};
        moves[i] = move_at(KVP_MOVE_PUT, i);
    }
    run(spans, moves, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(moves[i].err, KVP_OK);
        assert_memory_equal(pool.node.payload + 65536 * i, value, VALUE);
    }
    assert_int_equal(pool.counters.bypasses, 1);
    assert_int_equal(pool.counters.peer_failures, 0);
    assert_int_equal(pool.counters.paths[0].writes, 0);
    assert_int_equal(pool.counters.paths[1].writes, 3);
}

/* More segments than are driven at a time, and one of them all that there is: only its moves succeed. */
TEST_WITH(test_lost_nodes_hold_up_nobody, setup, teardown)
{
    enum { MOVES = 150 };
    kvp_iov_t iov[MOVES];
    kvp_span_t spans[MOVES];
    kvp_move_t moves[MOVES];
    uint8_t first[MOVES] = {0};

    fill_and_seal(1);
    for (uint32_t i = 0; i < MOVES; i++) {
        moves[i] = move_at(KVP_MOVE_READ, 1);
        moves[i].item = i;
        moves[i].len = 1;
        iov[i] = (kvp_iov_t){&first[i], 1};
        spans[i] = (kvp_span_t){.iov = &iov[i], .iov_n = 1};
        if (i % 2 == 0) moves[i].loc.segment_id = 1000 + i;
    }
    pool.node.payload[65536] = 0x77;
    run(spans, moves, MOVES);
    for (uint32_t i = 0; i < MOVES; i++) {
        assert_int_equal(moves[i].err, i % 2 == 0 ? KVP_NODE_LOST : KVP_OK);
        assert_true(moves[i].is_drained);
        assert_int_equal(first[i], i % 2 == 0 ? 0 : 0x77);
    }
}

/* A chunk that is not open yet when the deadline ends: this call fails, and the next has it. */
TEST_WITH(test_a_short_deadline_does_not_cost_the_node, setup, teardown)
{
    kvp_iov_t iov = {value, VALUE};
    kvp_path_t path;
    kvp_move_t mv;

    assert_int_equal(kvp_peers_take(pool.link->peers, FAKE_MASTER_SEGMENT, 0, deadline_ns, &path), KVP_OK);
    kvp_path_rele(pool.link->peers, &path, false);
    pool.node.server.is_deaf = true;
    deadline_ns = kvp_now_ns() + 10 * KVP_NS_PER_MS;
    mv = move_at(KVP_MOVE_FILL, 1);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_DEADLINE);
    assert_true(mv.is_drained);
    pool.node.server.is_deaf = false;
    deadline_ns = kvp_now_ns() + LONG_NS;
    mv = move_at(KVP_MOVE_FILL, 1);
    assert_int_equal(run_one(&iov, 1, &mv), KVP_OK);
    assert_int_equal(pool.node.opens, 1);
}

/* A node that does not answer, and another copy to be read, or written: time is left for that one. */
TEST_WITH(test_a_silent_node_costs_a_share_of_the_time, setup, teardown)
{
    kvp_iov_t iov = {back, VALUE};
    kvp_path_t path;
    kvp_move_t mv;

    for (int how = 0; how < 4; how++) {
        bool is_put = how / 2 != 0;

        setup_over(kvp_transport_find("shm"));
        if (how % 2 != 0) {
            assert_int_equal(kvp_peers_take(pool.link->peers, FAKE_MASTER_SEGMENT, 0, deadline_ns, &path), KVP_OK);
            kvp_path_rele(pool.link->peers, &path, false);
        }
        pool.node.server.is_deaf = true;
        others = !is_put;
        has_copies = is_put;
        deadline_ns = kvp_now_ns() + 900 * KVP_NS_PER_MS;
        mv = move_at(is_put ? KVP_MOVE_FILL : KVP_MOVE_READ, 1);
        assert_int_equal(run_one(&iov, 1, &mv), KVP_NODE_LOST);
        assert_true(kvp_now_ns() < deadline_ns);
    }
}

TEST_MAIN()
