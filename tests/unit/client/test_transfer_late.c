/* SPDX-License-Identifier: Apache-2.0
 * Moves to memory that the node does not serve yet by a transport, or cannot: by the next transport, or after a
 * while, and never at the cost of the node. */
#include "transport/all/registry.h"
#include "tests/unit/client/transfer_fixture.h"

#include <pthread.h>
#include <unistd.h>

#define LATE "late" /* the transport that does not serve it: shared memory by another name */
#define KEEPS_SAYING 5u

static kvp_transport_ops_t late_ops;

/* routes: 1 = by that transport alone, 2 = or by shared memory. */
static void
setup_late(size_t routes, kvp_err_t err)
{
    const kvp_transport_ops_t *ops[2] = {&late_ops, kvp_transport_find("shm")};

    late_ops = *ops[1];
    late_ops.name = LATE;
    setup_by(ops, routes);
    pool.node.open_err_by = LATE;
    pool.node.open_err = err;
}

static kvp_err_t
fill(uint32_t slot)
{
    kvp_iov_t iov = {value, VALUE};
    kvp_move_t mv = move_at(KVP_MOVE_FILL, slot);

    return run_one(&iov, 1, &mv);
}

/* The node serves it once it has said a few times that it does not. */
static void *
serve_it_soon(void *arg)
{
    (void)arg;
    while (pool.node.refused_opens < KEEPS_SAYING)
        usleep(100);
    pool.node.open_err = KVP_OK;
    return NULL;
}

TEST_WITH(test_what_is_not_served_yet_is_waited_for, setup, teardown)
{
    pthread_t thread;

    setup_late(1, KVP_EAGAIN);
    assert_int_equal(pthread_create(&thread, NULL, serve_it_soon, NULL), 0);
    assert_int_equal(fill(1), KVP_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_memory_equal(pool.node.payload + 65536, value, VALUE);
    assert_true(pool.node.refused_opens >= KEEPS_SAYING);
    assert_int_equal(pool.node.hellos, 1);
    assert_int_equal(pool.counters.peer_failures, 0);
}

/* A quarter of the time, as with a node that does not answer; then others are tried first, and it is none that failed.
 */
TEST_WITH(test_patience_with_a_late_node_ends, setup, teardown)
{
    uint64_t began_ns, now_ns;

    setup_late(1, KVP_EAGAIN);
    began_ns = kvp_now_ns();
    deadline_ns = began_ns + 4 * KVP_CTL_LEAST_NS;
    assert_int_equal(fill(1), KVP_NODE_LOST);
    now_ns = kvp_now_ns();
    assert_true(now_ns >= began_ns + KVP_CTL_LEAST_NS && now_ns < deadline_ns);
    assert_true(pool.node.refused_opens < 100); /* it is asked now and then, not all the time */
    assert_int_equal(kvp_peers_rank(pool.link->peers, FAKE_MASTER_SEGMENT), 3);
    assert_int_equal(pool.counters.peer_failures, 0);
    pool.node.open_err = KVP_OK;
    deadline_ns = now_ns + LONG_NS;
    assert_int_equal(fill(1), KVP_OK); /* at once: it was not given up */
    assert_int_equal(pool.node.hellos, 1);
}

/* A call that is shorter than that has its own deadline. */
TEST_WITH(test_a_short_call_waits_no_longer_than_it_may, setup, teardown)
{
    setup_late(1, KVP_EAGAIN);
    deadline_ns = kvp_now_ns() + 50 * KVP_NS_PER_MS;
    assert_int_equal(fill(1), KVP_DEADLINE);
    assert_true(kvp_now_ns() >= deadline_ns);
    assert_int_equal(pool.counters.peer_failures, 0);
}

TEST_WITH(test_the_next_transport_is_taken_meanwhile, setup, teardown)
{
    for (int how = 0; how < 2; how++) {
        setup_late(2, how == 0 ? KVP_EAGAIN : KVP_NOTSUP);
        assert_int_equal(fill(1), KVP_OK);
        assert_memory_equal(pool.node.payload + 65536, value, VALUE);
        assert_int_equal(pool.counters.paths[0].writes, 0);
        assert_int_equal(pool.counters.paths[1].writes, 1);
        assert_int_equal(pool.node.refused_opens, 1);
        pool.node.open_err = KVP_OK;
        assert_int_equal(fill(2), KVP_OK);
        /* By the first one again, over the attachment that is there; what it cannot serve is not asked for with each
         * call. */
        assert_int_equal(pool.counters.paths[0].writes, how == 0);
        assert_int_equal(pool.counters.paths[1].writes, how == 0 ? 1 : 2);
        assert_int_equal(pool.node.refused_opens, 1);
        assert_int_equal(pool.node.hellos, 2);
        assert_int_equal(pool.counters.peer_failures, 0);
        assert_int_equal(kvp_peers_rank(pool.link->peers, FAKE_MASTER_SEGMENT), 0);
    }
}

/* Whoever named the transport is told so, and soon. */
TEST_WITH(test_what_cannot_be_served_is_an_error_without_another_way, setup, teardown)
{
    uint64_t began_ns = kvp_now_ns();

    setup_late(1, KVP_NOTSUP);
    assert_int_equal(fill(1), KVP_NOTSUP);
    assert_int_equal(fill(1), KVP_NOTSUP);
    assert_true(kvp_now_ns() - began_ns < KVP_CTL_LEAST_NS);
    assert_int_equal(pool.node.refused_opens, 1);
    assert_int_equal(pool.counters.peer_failures, 0);
}

/* What is served goes at once, and what is to come behind a late move to the same memory stays behind it. */
TEST_WITH(test_the_rest_does_not_wait, setup, teardown)
{
    kvp_iov_t iov = {back, VALUE};
    kvp_iov_t from = {value, VALUE};
    kvp_span_t spans[3] = {{.iov = &iov, .iov_n = 1}, {.iov = &from, .iov_n = 1}, {.iov = &from, .iov_n = 1}};
    kvp_move_t moves[3];

    setup_late(1, KVP_OK);
    pool.node.payload[65536] = 0x77;
    moves[0] = move_at(KVP_MOVE_READ_PART, 1);
    assert_int_equal(run_one(&iov, 1, &moves[0]), KVP_OK); /* from now on it is open, for reading */
    back[0] = 0;
    pool.node.open_err = KVP_EAGAIN;
    deadline_ns = kvp_now_ns() + 100 * KVP_NS_PER_MS;
    moves[0] = move_at(KVP_MOVE_READ_PART, 1);
    moves[1] = move_at(KVP_MOVE_FILL, 2);
    moves[2] = move_at(KVP_MOVE_FILL_MORE, 2);
    for (uint32_t i = 0; i < 3; i++)
        moves[i].item = i;
    run(spans, moves, 3);
    assert_int_equal(moves[0].err, KVP_OK);
    assert_int_equal(back[0], 0x77);
    assert_int_equal(moves[1].err, KVP_DEADLINE);
    assert_int_equal(moves[2].err, KVP_DEADLINE);
    assert_true(moves[1].is_drained && moves[2].is_drained);

    setup_late(2, KVP_EAGAIN);
    moves[1] = move_at(KVP_MOVE_FILL, 2);
    moves[2] = move_at(KVP_MOVE_FILL_MORE, 2);
    moves[1].item = moves[2].item = 1;
    run(spans, moves + 1, 2);
    assert_int_equal(moves[1].err, KVP_OK);
    assert_int_equal(moves[2].err, KVP_OK);
    assert_int_equal(pool.node.refused_opens, 1); /* one question is enough */
}

TEST_MAIN()
