/* SPDX-License-Identifier: Apache-2.0
 * A node that is reached by another transport, because the one that is liked best has a port of its own and fails
 * there: when that is left, and when it is taken again. "rdma" here is shared memory whose connections do what the test
 * says. */
#include "transport/routes.h"

#include "client/memory/attach.h"
#include "transport/all/registry.h"
#include "tests/unit/client/fakepool.h"

#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define HURRY_NS (10 * KVP_NS_PER_MS)
#define RDMA 0u /* in the order of the fixture's transports */
#define SHM 1u

static _Atomic uint32_t lines_n; /* at info, that name the way */

/* What becomes of connections by "rdma": OK, an error, or EAGAIN: nothing is ever heard. */
static _Atomic int outcome;
static _Atomic uint32_t connects_n;
static _Atomic int init_outcome;
static fake_node_t *_Atomic hello_refuser; /* refuses attachments from the next connection on */

static void
ignore_outcome(void *arg, kvp_err_t err)
{
    (void)arg, (void)err;
}

static kvp_err_t
moody_connect(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *ep, kvp_ep_done_fn done, void *arg)
{
    kvp_err_t err = outcome;

    connects_n++;
    if (hello_refuser != NULL) hello_refuser->hello_err = KVP_NO_SEGMENT;
    if (err == KVP_OK) return kvp_transport_find("shm")->ep_connect(tp, to, ep, done, arg);
    assert_int_equal(kvp_transport_find("shm")->ep_connect(tp, to, ep, ignore_outcome, NULL), KVP_OK);
    if (err != KVP_EAGAIN) done(arg, err);
    return KVP_OK;
}

static kvp_err_t
moody_init(kvp_tp_t *tp, const kvp_tp_conf_t *conf)
{
    kvp_err_t err = init_outcome;

    return err == KVP_OK ? kvp_transport_find("shm")->init(tp, conf) : err;
}

static const kvp_transport_ops_t *
moody(void)
{
    static kvp_transport_ops_t ops;

    ops = *kvp_transport_find("shm");
    ops.name = "rdma";
    ops.caps |= KVP_TP_OWN_PORT;
    ops.init = moody_init;
    ops.ep_connect = moody_connect;
    return &ops;
}

static void
count_line(void *arg, kvp_log_level_t level, const char *line)
{
    (void)arg;
    if (level == KVP_LOG_INFO && strstr(line, "is not reached by rdma") != NULL) lines_n++;
}

static void
setup_by(size_t transports_n)
{
    kvp_peers_conf_t conf = {.transports_n = transports_n};

    outcome = init_outcome = KVP_OK;
    connects_n = lines_n = 0;
    hello_refuser = NULL;
    fake_pool_start("shm,rdma");
    conf.transports[RDMA] = moody();
    conf.transports[SHM] = kvp_transport_find("shm");
    kvp_log_set_level(KVP_LOG_INFO);
    kvp_log_set_sink(count_line, NULL);
    fake_pool_peers(FAKE_MASTER_HOST, conf);
}

static int
setup(void **state)
{
    setup_by(2);
    return 0;
}

static int
teardown(void **state)
{
    kvp_log_set_sink(NULL, NULL);
    return fake_pool_end(state);
}

/* Takes a path, tells which transport it is of, and gives it back. */
static size_t
way_taken(void)
{
    kvp_path_t path;
    size_t transport;

    path = take_ok();
    transport = path.transport;
    rele(&path);
    return transport;
}

static const char *
way_told(void)
{
    return kvp_peers_transport(pool.peers, FAKE_MASTER_SEGMENT, FAKE_MASTER_HOST, "shm,rdma", "");
}

/* ---- when a way is left */
/* Nobody there, memory that may not be locked, too many connections: whatever it is, another transport would not have
 * it. */
TEST_WITH(test_a_way_that_is_refused_is_left_within_the_call, setup, teardown)
{
    static const kvp_err_t errs[] = {KVP_UNREACHABLE, KVP_NOMEM, KVP_BUSY, KVP_PROTO, KVP_LIMIT, KVP_SYS};

    for (size_t i = 0; i < KVP_ARRAY_LEN(errs); i++) {
        setup_by(2);
        assert_string_equal(way_told(), "rdma");
        outcome = errs[i];
        assert_int_equal(way_taken(), SHM);
        assert_int_equal(way_taken(), SHM); /* which asks nobody again */
        assert_int_equal(connects_n, 1);
        assert_int_equal(pool.counters.bypasses, 1);
        assert_int_equal(pool.counters.peer_failures, 0);
        assert_int_equal(lines_n, 1);
        assert_string_equal(way_told(), "shm");
    }
}

TEST_WITH(test_a_way_that_answers_nothing_is_left_in_time, setup, teardown)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path;

    outcome = KVP_EAGAIN;
    assert_int_equal(take(4 * KVP_NS_PER_S, &path), KVP_OK);
    assert_int_equal(path.transport, SHM);
    assert_true(kvp_now_ns() - began_ns >= KVP_CTL_LEAST_NS);
    rele(&path);
}

/* None of these callers waits for long enough to blame anybody; all of them together do. */
TEST_WITH(test_hurried_callers_add_up, setup, teardown)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path;
    kvp_err_t err;

    outcome = KVP_EAGAIN;
    while ((err = take(HURRY_NS, &path)) == KVP_DEADLINE)
        assert_true(kvp_now_ns() - began_ns < LONG_NS);
    assert_int_equal(err, KVP_OK);
    assert_int_equal(path.transport, SHM);
    assert_int_equal(pool.counters.peer_failures, 0);
    rele(&path);
}

TEST_WITH(test_memory_that_is_not_opened_is_asked_for_by_the_next, setup, teardown)
{
    kvp_path_t path = take_ok();

    pool.node.open_err = KVP_LIMIT;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_STALE);
    rele(&path);
    assert_int_equal(pool.counters.bypasses, 1);
    pool.node.open_err = KVP_OK;
    path = take_ok();
    assert_int_equal(path.transport, SHM);
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    rele(&path);
}

/* A segment that is gone is so by every transport. */
TEST_WITH(test_what_the_node_lacks_is_no_ways_fault, setup, teardown)
{
    kvp_path_t path = take_ok();

    pool.node.open_err = KVP_NO_SEGMENT;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_NODE_LOST);
    rele(&path);
    assert_int_equal(pool.counters.bypasses, 0);
}

TEST_WITH(test_a_transport_that_cannot_be_used_here_is_left, setup, teardown)
{
    init_outcome = KVP_NOTSUP;
    assert_int_equal(way_taken(), SHM);
    assert_int_equal(pool.counters.bypasses, 1);
    assert_int_equal(lines_n, 1);
}

/* The call that it ended under reads by the other way at once: it does not wait until the node may be tried again. */
TEST_WITH(test_a_way_whose_connection_ends_is_left_within_the_call, setup, teardown)
{
    kvp_path_t path = take_ok();

    assert_int_equal(path.transport, RDMA);
    kvp_path_ended(pool.peers, &path);
    kvp_path_ended(pool.peers, &path); /* as another thread finds */
    rele(&path);
    assert_int_equal(way_taken(), SHM);
    assert_int_equal(pool.counters.peer_failures, 0);
    assert_int_equal(pool.counters.bypasses, 1);
}

TEST_WITH(test_a_connection_that_ends_where_no_other_leads_is_the_nodes_end, setup, teardown)
{
    kvp_path_t path;

    setup_by(1);
    path = take_ok();
    kvp_path_ended(pool.peers, &path);
    rele(&path);
    assert_int_equal(take(LONG_NS, &path), KVP_NODE_LOST);
    assert_int_equal(pool.counters.peer_failures, 1);
    assert_int_equal(pool.counters.bypasses, 0);
}

/* A connection that stands and carries nothing, twice in a row. */
TEST_WITH(test_a_way_on_which_nothing_moves_is_left, setup, teardown)
{
    kvp_path_t path;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(take_again(&path), KVP_OK);
        assert_int_equal(path.transport, RDMA);
        kvp_path_fail(pool.peers, &path, "the test says so");
        rele(&path);
    }
    assert_int_equal(take_again(&path), KVP_OK);
    assert_int_equal(path.transport, SHM);
    rele(&path);
    assert_int_equal(pool.counters.peer_failures, 2);
    assert_int_equal(pool.counters.bypasses, 1);
}

TEST_WITH(test_who_named_one_transport_gets_that_or_an_error, setup, teardown)
{
    kvp_path_t path;

    setup_by(1);
    outcome = KVP_UNREACHABLE;
    assert_int_equal(take(LONG_NS, &path), KVP_NODE_LOST);
    outcome = KVP_NOMEM;
    assert_int_equal(take_again(&path), KVP_NOMEM);
    assert_int_equal(take(LONG_NS, &path), KVP_NOMEM);
    assert_int_equal(pool.counters.bypasses, 0);
    outcome = KVP_OK;
    assert_int_equal(way_taken(), RDMA);
}

/* Where the next transport leads nowhere either, it is the node that is lost, and the first one is tried first when it
 * is back. */
TEST_WITH(test_a_node_that_is_gone_blames_no_way, setup, teardown)
{
    kvp_path_t path;

    outcome = KVP_UNREACHABLE;
    hello_refuser = &pool.node;
    assert_int_equal(take(LONG_NS, &path), KVP_NODE_LOST);
    hello_refuser = NULL;
    outcome = pool.node.hello_err = KVP_OK;
    assert_int_equal(take_again(&path), KVP_OK);
    assert_int_equal(path.transport, RDMA);
    rele(&path);
}

/* Who waits for an endpoint of the way that is left gets one of the other. */
TEST_WITH(test_who_waits_goes_the_other_way, setup, teardown)
{
    kvp_path_t paths[KVP_SYNC_EPS], path;
    taker_t takers[3];

    take_all(paths);
    for (size_t i = 0; i < KVP_ARRAY_LEN(takers); i++)
        start_taker(&takers[i]);
    outcome = KVP_UNREACHABLE;
    kvp_path_rele(pool.peers, &paths[0], true);
    for (size_t i = 0; i < KVP_ARRAY_LEN(takers); i++) {
        pthread_join(takers[i].thread, NULL);
        assert_int_equal(takers[i].err, KVP_OK);
        assert_int_equal(takers[i].path.transport, SHM);
        rele(&takers[i].path);
    }
    assert_int_equal(pool.counters.bypasses, 1);
    path = take_ok();
    assert_int_equal(path.transport, SHM);
    rele(&path);
    for (size_t i = 1; i < KVP_SYNC_EPS; i++) /* those who were at it go on */
        rele(&paths[i]);
}

/* ---- when it is taken again */
TEST_WITH(test_a_way_is_left_for_longer_each_time, setup, teardown)
{
    kvp_route_t way = {.fails = 0};
    uint64_t now = LONG_NS;

    assert_false(kvp_route_is_out(&way, now));
    assert_false(kvp_route_is_due(&way, now));
    for (uint64_t i = 0, s = 1; i < 9; i++, s = s < 64 ? 2 * s : s) {
        assert_int_equal(kvp_route_fail(&way, now, i % 2 == 0 ? 0 : UINT64_MAX), i == 0);
        assert_true(kvp_route_is_out(&way, now + s * KVP_NS_PER_S - 1));
        assert_false(kvp_route_is_due(&way, now + s * KVP_NS_PER_S - 1));
        assert_false(kvp_route_is_out(&way, now + s * KVP_NS_PER_S * 3 / 2));
        assert_true(kvp_route_is_due(&way, now + s * KVP_NS_PER_S * 3 / 2));
        now += s * KVP_NS_PER_S * 3 / 2;
    }
    kvp_route_reset(&way, now);
    assert_false(kvp_route_is_due(&way, now));
    assert_false(kvp_route_fail(&way, now + 30 * KVP_NS_PER_S, 0)); /* that was no lasting cure */
    now += 100 * KVP_NS_PER_S;
    kvp_route_reset(&way, now);
    now += 60 * KVP_NS_PER_S;
    assert_true(kvp_route_fail(&way, now, 0));
    assert_false(kvp_route_is_out(&way, now + KVP_NS_PER_S));
}

/* Tends as the background thread does, until so many connections were tried. */
static void
tend_until_tried(uint32_t n)
{
    uint64_t until_ns = in(LONG_NS);

    while (connects_n < n || kvp_peers_tend(pool.peers)) {
        assert_true(kvp_now_ns() < until_ns);
        if (!kvp_peers_tend(pool.peers)) usleep(1000);
    }
}

TEST_WITH(test_a_way_is_tried_in_the_background_before_it_is_taken, setup, teardown)
{
    uint64_t left_ns;
    kvp_path_t held;

    outcome = KVP_UNREACHABLE;
    held = take_ok();
    left_ns = kvp_now_ns();
    tend_until_tried(2);
    assert_true(kvp_now_ns() - left_ns >= 900 * KVP_NS_PER_MS);
    assert_int_equal(way_taken(), SHM); /* that trial failed, and cost nobody anything */
    assert_int_equal(connects_n, 2);
    outcome = KVP_OK;
    tend_until_tried(3);
    assert_int_equal(way_taken(), RDMA);
    assert_int_equal(lines_n, 1);
    assert_int_equal(pool.counters.bypasses, 1);
    assert_int_equal(pool.counters.peer_failures, 0);
    rele(&held); /* who was at it finishes */
}

/* A trial of which nothing is heard is closed with the peers. */
TEST_WITH(test_a_trial_ends_with_the_peers, setup, teardown)
{
    uint64_t until_ns = in(LONG_NS);

    outcome = KVP_UNREACHABLE;
    assert_int_equal(way_taken(), SHM);
    outcome = KVP_EAGAIN;
    while (!kvp_peers_tend(pool.peers)) {
        assert_true(kvp_now_ns() < until_ns);
        usleep(1000);
    }
    assert_int_equal(connects_n, 2);
}

TEST_MAIN()
