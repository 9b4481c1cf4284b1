/* SPDX-License-Identifier: Apache-2.0
 * A node that is reached by another transport, because the one that is liked best has a port of its own and fails there: when
 * that is left, and when it is taken again. "rdma" here is shared memory whose connections do what the test says.
 */
#include "client/memory/routes.h"

#include "client/memory/attach.h"
#include "client/transport/all/registry.h"
#include "tests/unit/client/fakepool.h"

#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define HURRY_NS (10 * KVP_NS_PER_MS)
#define RDMA 0u /* in the order of the fixture's transports */
#define SHM 1u

typedef struct {
    fake_pool_t pool;
    kvp_conn_t *conn;
    kvp_peers_t *peers;
    _Atomic uint32_t lines_n; /* at info, that name the way */
} fixture_t;

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
moody_connect(kvp_tp_t *tp, const kvp_addr_t *to, kvp_ep_t *ep, kvp_ep_done_fn done, void *arg)
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
    fixture_t *f = arg;

    if (level == KVP_LOG_INFO && strstr(line, "is not reached by rdma") != NULL) f->lines_n++;
}

static void
setup(fixture_t *f, size_t transports_n)
{
    kvp_peers_conf_t conf = {.transports_n = transports_n};

    memset(f, 0, sizeof *f);
    outcome = init_outcome = KVP_OK;
    connects_n = 0;
    hello_refuser = NULL;
    fake_pool_start(&f->pool, "shm,rdma");
    conf.transports[RDMA] = moody();
    conf.transports[SHM] = kvp_transport_find("shm");
    kvp_log_set_level(KVP_LOG_INFO);
    kvp_log_set_sink(count_line, f);
    fake_pool_peers(&f->pool, FAKE_MASTER_HOST, conf, &f->conn, &f->peers);
}

static void
teardown(fixture_t *f)
{
    kvp_peers_destroy(f->peers);
    kvp_conn_destroy(f->conn);
    fake_pool_end(&f->pool);
    kvp_log_set_sink(NULL, NULL);
}

static kvp_err_t
take(fixture_t *f, uint64_t within_ns, kvp_path_t *path)
{
    return kvp_peers_take(f->peers, FAKE_MASTER_SEGMENT, 0, in(within_ns), path);
}

/* Takes a path, tells which transport it is of, and gives it back. */
static size_t
way_taken(fixture_t *f)
{
    kvp_path_t path;
    size_t transport;

    assert_int_equal(take(f, LONG_NS, &path), KVP_OK);
    transport = path.transport;
    kvp_path_rele(f->peers, &path, false);
    return transport;
}

static const char *
way_told(fixture_t *f)
{
    return kvp_peers_transport(f->peers, FAKE_MASTER_SEGMENT, FAKE_MASTER_HOST, "shm,rdma");
}

/* ---- when a way is left */
static void
test_a_way_that_is_refused_is_left_within_the_call(void **state)
{
    fixture_t f;

    (void)state;
    setup(&f, 2);
    assert_string_equal(way_told(&f), "rdma");
    outcome = KVP_UNREACHABLE;
    assert_int_equal(way_taken(&f), SHM);
    assert_int_equal(way_taken(&f), SHM); /* which asks nobody again */
    assert_int_equal(connects_n, 1);
    assert_int_equal(f.pool.counters.bypasses, 1);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    assert_int_equal(f.lines_n, 1);
    assert_string_equal(way_told(&f), "shm");
    teardown(&f);
}

/* Memory that may not be locked, too many connections: whatever it is, another transport would not have it. */
static void
test_whatever_keeps_it_from_connecting_counts(void **state)
{
    static const kvp_err_t errs[] = {KVP_NOMEM, KVP_BUSY, KVP_PROTO, KVP_LIMIT, KVP_SYS};
    fixture_t f;

    (void)state;
    for (size_t i = 0; i < KVP_ARRAY_LEN(errs); i++) {
        setup(&f, 2);
        outcome = errs[i];
        assert_int_equal(way_taken(&f), SHM);
        assert_int_equal(f.pool.counters.bypasses, 1);
        teardown(&f);
    }
}

static void
test_a_way_that_answers_nothing_is_left_in_time(void **state)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    outcome = KVP_EAGAIN;
    assert_int_equal(take(&f, 4 * KVP_NS_PER_S, &path), KVP_OK);
    assert_int_equal(path.transport, SHM);
    assert_true(kvp_now_ns() - began_ns >= KVP_CTL_LEAST_NS);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

/* None of these callers waits for long enough to blame anybody; all of them together do. */
static void
test_hurried_callers_add_up(void **state)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path;
    kvp_err_t err;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    outcome = KVP_EAGAIN;
    while ((err = take(&f, HURRY_NS, &path)) == KVP_DEADLINE)
        assert_true(kvp_now_ns() - began_ns < LONG_NS);
    assert_int_equal(err, KVP_OK);
    assert_int_equal(path.transport, SHM);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

static void
test_memory_that_is_not_opened_is_asked_for_by_the_next(void **state)
{
    kvp_chunk_mem_t mem;
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    assert_int_equal(take(&f, LONG_NS, &path), KVP_OK);
    f.pool.node.open_err = KVP_LIMIT;
    assert_int_equal(kvp_path_chunk(f.peers, &path, 0, KVP_ACCESS_READ, in(LONG_NS), &mem), KVP_STALE);
    kvp_path_rele(f.peers, &path, false);
    assert_int_equal(f.pool.counters.bypasses, 1);
    f.pool.node.open_err = KVP_OK;
    assert_int_equal(take(&f, LONG_NS, &path), KVP_OK);
    assert_int_equal(path.transport, SHM);
    assert_int_equal(kvp_path_chunk(f.peers, &path, 0, KVP_ACCESS_READ, in(LONG_NS), &mem), KVP_OK);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

/* A segment that is gone is so by every transport. */
static void
test_what_the_node_lacks_is_no_ways_fault(void **state)
{
    kvp_chunk_mem_t mem;
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    assert_int_equal(take(&f, LONG_NS, &path), KVP_OK);
    f.pool.node.open_err = KVP_NO_SEGMENT;
    assert_int_equal(kvp_path_chunk(f.peers, &path, 0, KVP_ACCESS_READ, in(LONG_NS), &mem), KVP_NODE_LOST);
    kvp_path_rele(f.peers, &path, false);
    assert_int_equal(f.pool.counters.bypasses, 0);
    teardown(&f);
}

static void
test_a_transport_that_cannot_be_used_here_is_left(void **state)
{
    fixture_t f;

    (void)state;
    setup(&f, 2);
    init_outcome = KVP_NOTSUP;
    assert_int_equal(way_taken(&f), SHM);
    assert_int_equal(f.pool.counters.bypasses, 1);
    assert_int_equal(f.lines_n, 1);
    teardown(&f);
}

/* The call that it ended under reads by the other way at once: it does not wait until the node may be tried again. */
static void
test_a_way_whose_connection_ends_is_left_within_the_call(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    assert_int_equal(take(&f, LONG_NS, &path), KVP_OK);
    assert_int_equal(path.transport, RDMA);
    kvp_path_ended(f.peers, &path);
    kvp_path_ended(f.peers, &path); /* as another thread finds */
    kvp_path_rele(f.peers, &path, false);
    assert_int_equal(way_taken(&f), SHM);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    assert_int_equal(f.pool.counters.bypasses, 1);
    teardown(&f);
}

static void
test_a_connection_that_ends_where_no_other_leads_is_the_nodes_end(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 1);
    assert_int_equal(take(&f, LONG_NS, &path), KVP_OK);
    kvp_path_ended(f.peers, &path);
    kvp_path_rele(f.peers, &path, false);
    assert_int_equal(take(&f, LONG_NS, &path), KVP_NODE_LOST);
    assert_int_equal(f.pool.counters.peer_failures, 1);
    assert_int_equal(f.pool.counters.bypasses, 0);
    teardown(&f);
}

/* A connection that stands and carries nothing, twice in a row. */
static void
test_a_way_on_which_nothing_moves_is_left(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    for (int i = 0; i < 2; i++) {
        while (take(&f, LONG_NS, &path) == KVP_NODE_LOST)
            continue;
        assert_int_equal(path.transport, RDMA);
        kvp_path_fail(f.peers, &path, "the test says so");
        kvp_path_rele(f.peers, &path, false);
    }
    while (take(&f, LONG_NS, &path) == KVP_NODE_LOST)
        continue;
    assert_int_equal(path.transport, SHM);
    kvp_path_rele(f.peers, &path, false);
    assert_int_equal(f.pool.counters.peer_failures, 2);
    assert_int_equal(f.pool.counters.bypasses, 1);
    teardown(&f);
}

static void
test_who_named_one_transport_gets_that_or_an_error(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 1);
    outcome = KVP_UNREACHABLE;
    assert_int_equal(take(&f, LONG_NS, &path), KVP_NODE_LOST);
    outcome = KVP_NOMEM;
    while (take(&f, LONG_NS, &path) == KVP_NODE_LOST)
        continue;
    assert_int_equal(take(&f, LONG_NS, &path), KVP_NOMEM);
    assert_int_equal(f.pool.counters.bypasses, 0);
    outcome = KVP_OK;
    assert_int_equal(way_taken(&f), RDMA);
    teardown(&f);
}

/* Where the next transport leads nowhere either, it is the node that is lost, and the first one is tried first when it is
 * back. */
static void
test_a_node_that_is_gone_blames_no_way(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    outcome = KVP_UNREACHABLE;
    hello_refuser = &f.pool.node;
    assert_int_equal(take(&f, LONG_NS, &path), KVP_NODE_LOST);
    hello_refuser = NULL;
    outcome = f.pool.node.hello_err = KVP_OK;
    while (take(&f, LONG_NS, &path) == KVP_NODE_LOST)
        continue;
    assert_int_equal(path.transport, RDMA);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

typedef struct {
    fixture_t *f;
    kvp_path_t path;
    kvp_err_t err;
} taker_t;

static void *
take_late(void *arg)
{
    taker_t *t = arg;

    t->err = take(t->f, LONG_NS, &t->path);
    return NULL;
}

/* Who waits for an endpoint of the way that is left gets one of the other. */
static void
test_who_waits_goes_the_other_way(void **state)
{
    kvp_path_t paths[KVP_SYNC_EPS], path;
    pthread_t threads[3];
    taker_t takers[3];
    fixture_t f;

    (void)state;
    setup(&f, 2);
    for (size_t i = 0; i < KVP_SYNC_EPS; i++)
        assert_int_equal(take(&f, LONG_NS, &paths[i]), KVP_OK);
    for (size_t i = 0; i < KVP_ARRAY_LEN(threads); i++) {
        takers[i] = (taker_t){.f = &f};
        assert_int_equal(pthread_create(&threads[i], NULL, take_late, &takers[i]), 0);
    }
    outcome = KVP_UNREACHABLE;
    kvp_path_rele(f.peers, &paths[0], true);
    for (size_t i = 0; i < KVP_ARRAY_LEN(threads); i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(takers[i].err, KVP_OK);
        assert_int_equal(takers[i].path.transport, SHM);
        kvp_path_rele(f.peers, &takers[i].path, false);
    }
    assert_int_equal(f.pool.counters.bypasses, 1);
    assert_int_equal(take(&f, LONG_NS, &path), KVP_OK);
    assert_int_equal(path.transport, SHM);
    kvp_path_rele(f.peers, &path, false);
    for (size_t i = 1; i < KVP_SYNC_EPS; i++) /* those who were at it go on */
        kvp_path_rele(f.peers, &paths[i], false);
    teardown(&f);
}

/* ---- when it is taken again */
static void
test_a_way_is_left_for_longer_each_time(void **state)
{
    kvp_route_t way = {.fails = 0};
    uint64_t now = LONG_NS;

    (void)state;
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
tend_until_tried(fixture_t *f, uint32_t n)
{
    uint64_t until_ns = in(LONG_NS);

    while (connects_n < n || kvp_peers_tend(f->peers)) {
        assert_true(kvp_now_ns() < until_ns);
        if (!kvp_peers_tend(f->peers)) usleep(1000);
    }
}

static void
test_a_way_is_tried_in_the_background_before_it_is_taken(void **state)
{
    uint64_t left_ns;
    kvp_path_t held;
    fixture_t f;

    (void)state;
    setup(&f, 2);
    outcome = KVP_UNREACHABLE;
    assert_int_equal(take(&f, LONG_NS, &held), KVP_OK);
    left_ns = kvp_now_ns();
    tend_until_tried(&f, 2);
    assert_true(kvp_now_ns() - left_ns >= 900 * KVP_NS_PER_MS);
    assert_int_equal(way_taken(&f), SHM); /* that trial failed, and cost nobody anything */
    assert_int_equal(connects_n, 2);
    outcome = KVP_OK;
    tend_until_tried(&f, 3);
    assert_int_equal(way_taken(&f), RDMA);
    assert_int_equal(f.lines_n, 1);
    assert_int_equal(f.pool.counters.bypasses, 1);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    kvp_path_rele(f.peers, &held, false); /* who was at it finishes */
    teardown(&f);
}

/* A trial of which nothing is heard is closed with the peers. */
static void
test_a_trial_ends_with_the_peers(void **state)
{
    uint64_t until_ns = in(LONG_NS);
    fixture_t f;

    (void)state;
    setup(&f, 2);
    outcome = KVP_UNREACHABLE;
    assert_int_equal(way_taken(&f), SHM);
    outcome = KVP_EAGAIN;
    while (!kvp_peers_tend(f.peers)) {
        assert_true(kvp_now_ns() < until_ns);
        usleep(1000);
    }
    assert_int_equal(connects_n, 2);
    teardown(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_way_that_is_refused_is_left_within_the_call),
        cmocka_unit_test(test_whatever_keeps_it_from_connecting_counts),
        cmocka_unit_test(test_a_way_that_answers_nothing_is_left_in_time),
        cmocka_unit_test(test_hurried_callers_add_up),
        cmocka_unit_test(test_memory_that_is_not_opened_is_asked_for_by_the_next),
        cmocka_unit_test(test_what_the_node_lacks_is_no_ways_fault),
        cmocka_unit_test(test_a_transport_that_cannot_be_used_here_is_left),
        cmocka_unit_test(test_a_way_whose_connection_ends_is_left_within_the_call),
        cmocka_unit_test(test_a_connection_that_ends_where_no_other_leads_is_the_nodes_end),
        cmocka_unit_test(test_a_way_on_which_nothing_moves_is_left),
        cmocka_unit_test(test_who_named_one_transport_gets_that_or_an_error),
        cmocka_unit_test(test_a_node_that_is_gone_blames_no_way),
        cmocka_unit_test(test_who_waits_goes_the_other_way),
        cmocka_unit_test(test_a_way_is_left_for_longer_each_time),
        cmocka_unit_test(test_a_way_is_tried_in_the_background_before_it_is_taken),
        cmocka_unit_test(test_a_trial_ends_with_the_peers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
