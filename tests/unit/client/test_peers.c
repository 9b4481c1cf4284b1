/* SPDX-License-Identifier: Apache-2.0
 * The nodes as a client sees them: attaching once, opening chunks, hurried callers, the breaker, what is owed to a node.
 */
#include "client/memory/peers.h"

#include "client/memory/attach.h"
#include "client/transport/all/registry.h"
#include "tests/unit/client/fakepool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define HURRY_NS (10 * KVP_NS_PER_MS)

typedef struct {
    fake_pool_t pool;
    kvp_conn_t *conn;
    kvp_peers_t *peers;
} fixture_t;

static void
setup_limited(fixture_t *f, const char *host_id, uint32_t max_idle_eps)
{
    kvp_peers_conf_t conf = {.transports_n = 1, .max_idle_eps = max_idle_eps};

    memset(f, 0, sizeof *f);
    fake_pool_start(&f->pool, NULL);
    conf.transports[0] = kvp_transport_find("shm");
    fake_pool_peers(&f->pool, host_id, conf, &f->conn, &f->peers);
}

static void
setup(fixture_t *f, const char *host_id)
{
    setup_limited(f, host_id, 0);
}

static void
teardown(fixture_t *f)
{
    kvp_peers_destroy(f->peers);
    kvp_conn_destroy(f->conn);
    fake_pool_end(&f->pool);
}

static kvp_err_t
take(fixture_t *f, uint64_t deadline_ns, kvp_path_t *path)
{
    return kvp_peers_take(f->peers, FAKE_MASTER_SEGMENT, 0, deadline_ns, path);
}

static kvp_err_t
open_chunk(fixture_t *f, const kvp_path_t *path, kvp_access_t access, uint64_t within_ns)
{
    kvp_chunk_mem_t mem = {.payload = NULL};
    kvp_err_t err = kvp_path_chunk(f->peers, path, 0, access, in(within_ns), &mem);

    assert_true(err != KVP_OK || (mem.payload != NULL && mem.meta != NULL));
    return err;
}

static void
test_a_node_is_attached_once(void **state)
{
    kvp_path_t first, second;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, 0, &first), KVP_EAGAIN); /* it would have to wait */
    assert_int_equal(take(&f, in(LONG_NS), &first), KVP_OK);
    assert_int_equal(take(&f, 0, &second), KVP_OK);
    assert_ptr_not_equal(first.ep, second.ep);
    kvp_path_rele(f.peers, &first, false);
    kvp_path_rele(f.peers, &second, false);
    assert_int_equal(f.pool.node.hellos, 1);
    assert_int_equal(f.pool.counters.attaches, 1);
    teardown(&f);
}

static void
test_a_chunk_is_opened_once_for_each_access(void **state)
{
    kvp_chunk_mem_t mem;
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(f.pool.node.opens, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(f.pool.node.opens, 2);
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(f.pool.node.opens, 2);
    /* A chunk that the segment does not have is the master's mistake, and says nothing about the node. */
    assert_int_equal(kvp_path_chunk(f.peers, &path, 1, KVP_ACCESS_READ, in(LONG_NS), &mem), KVP_PROTO);
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

/* A deadline that ends while a chunk is being opened costs nothing but that call. */
static void
test_a_hurried_caller_leaves_the_answer_to_the_next(void **state)
{
    kvp_path_t path, again;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    f.pool.node.is_mute = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_WRITE, HURRY_NS), KVP_DEADLINE);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    assert_int_equal(take(&f, 0, &again), KVP_OK); /* the attachment is there as before */
    f.pool.node.is_mute = false;
    assert_int_equal(open_chunk(&f, &again, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(f.pool.node.opens, 1);
    assert_int_equal(f.pool.node.hellos, 1);
    kvp_path_rele(f.peers, &path, false);
    kvp_path_rele(f.peers, &again, false);
    teardown(&f);
}

static void
test_what_was_left_may_have_been_another_access(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    f.pool.node.is_mute = true;
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, HURRY_NS), KVP_DEADLINE);
    f.pool.node.is_mute = false;
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(f.pool.node.opens, 2);
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(f.pool.node.opens, 2);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

/* Deadlines long and short: what counts is how long the question has been asked. */
static void
test_a_node_that_never_answers_is_given_up(void **state)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path, again;
    kvp_err_t err;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    f.pool.node.is_mute = true;
    do
        err = open_chunk(&f, &path, KVP_ACCESS_READ, HURRY_NS);
    while (err == KVP_DEADLINE);
    assert_int_equal(err, KVP_NODE_LOST);
    assert_true(kvp_now_ns() - began_ns >= KVP_CTL_LEAST_NS);
    assert_int_equal(f.pool.counters.peer_failures, 1);
    assert_int_equal(take(&f, in(LONG_NS), &again), KVP_NODE_LOST); /* at once, and not after LONG_NS */
    f.pool.node.is_mute = false;
    while ((err = take(&f, in(LONG_NS), &again)) == KVP_NODE_LOST)
        continue;
    assert_int_equal(err, KVP_OK);
    assert_int_equal(open_chunk(&f, &again, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    kvp_path_rele(f.peers, &path, false);
    kvp_path_rele(f.peers, &again, false);
    teardown(&f);
}

typedef struct {
    fixture_t *f;
    const kvp_path_t *path;
    _Atomic bool is_asking;
    kvp_err_t err;
} patient_t;

static void *
be_patient(void *arg)
{
    patient_t *p = arg;

    p->is_asking = true;
    p->err = open_chunk(p->f, p->path, KVP_ACCESS_READ, LONG_NS);
    return NULL;
}

/* A busy machine makes a node answer late; who has the time waits, also where somebody in a hurry has asked. */
static void
test_who_has_time_has_patience(void **state)
{
    kvp_path_t path;
    uint64_t until_ns;
    pthread_t thread;
    fixture_t f;
    patient_t p = {.f = &f, .path = &path};

    (void)state;
    assert_int_equal(kvp_ctl_patience(5, 5 + 12 * KVP_NS_PER_S), 3 * KVP_NS_PER_S);
    assert_int_equal(kvp_ctl_patience(5, 5 + 600 * KVP_NS_PER_S), KVP_CTL_MOST_NS);
    assert_int_equal(kvp_ctl_patience(5, 5 + 2 * KVP_NS_PER_S), KVP_CTL_LEAST_NS);
    assert_int_equal(kvp_ctl_patience(5, 5), KVP_CTL_LEAST_NS);
    assert_int_equal(kvp_ctl_patience(5, 0), KVP_CTL_LEAST_NS);
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    f.pool.node.is_mute = true;
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, HURRY_NS), KVP_DEADLINE);
    assert_int_equal(pthread_create(&thread, NULL, be_patient, &p), 0);
    while (!p.is_asking)
        sched_yield();
    until_ns = in(KVP_CTL_LEAST_NS + 50 * KVP_NS_PER_MS);
    while (kvp_now_ns() < until_ns)
        usleep(1000);
    f.pool.node.is_mute = false;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(p.err, KVP_OK);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

/* Each of these callers is in too great a hurry to judge the node; all of them together are not. */
static void
test_hurried_callers_add_up(void **state)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path;
    kvp_err_t err;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    f.pool.node.is_mute = true;
    while ((err = take(&f, in(HURRY_NS), &path)) == KVP_DEADLINE)
        assert_true(kvp_now_ns() - began_ns < LONG_NS);
    assert_int_equal(err, KVP_NODE_LOST);
    assert_true(kvp_now_ns() - began_ns >= KVP_CTL_LEAST_NS);
    teardown(&f);
}

/* A second without a byte makes a lost node, over several calls; threads that wait together count once. */
static void
test_silence_adds_up_over_calls(void **state)
{
    uint64_t at_ns = kvp_now_ns(), step_ns = 300 * KVP_NS_PER_MS;
    kvp_path_t path, again;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    assert_int_equal(kvp_peers_rank(f.peers, FAKE_MASTER_SEGMENT), 0);
    for (int i = 0; i < 3; i++, at_ns += step_ns)
        for (int thread = 0; thread < 5; thread++)
            kvp_path_silent(f.peers, &path, at_ns, at_ns + step_ns);
    assert_int_equal(kvp_peers_rank(f.peers, FAKE_MASTER_SEGMENT), 3);
    kvp_path_ok(f.peers, &path);
    assert_int_equal(kvp_peers_rank(f.peers, FAKE_MASTER_SEGMENT), 0);
    for (int i = 0; i < 4; i++, at_ns += step_ns) {
        assert_int_equal(take(&f, 0, &again), KVP_OK);
        kvp_path_rele(f.peers, &again, false);
        kvp_path_silent(f.peers, &path, at_ns, at_ns + step_ns);
    }
    assert_int_equal(take(&f, in(LONG_NS), &again), KVP_NODE_LOST);
    assert_int_equal(f.pool.counters.peer_failures, 1);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

/* How long take gives NODE_LOST after a failure; it is attached again then. */
static uint64_t
left_alone_ns(fixture_t *f, kvp_path_t *path)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_err_t err;

    kvp_path_fail(f->peers, path, "the test says so");
    kvp_path_rele(f->peers, path, false);
    while ((err = take(f, in(LONG_NS), path)) == KVP_NODE_LOST)
        continue;
    assert_int_equal(err, KVP_OK);
    return kvp_now_ns() - began_ns;
}

/* The time doubles with each failure, and begins anew once something was moved. */
static void
test_a_node_that_moved_something_is_trusted_again(void **state)
{
    uint64_t again_ns = UINT64_MAX;
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    assert_true(left_alone_ns(&f, &path) >= 50 * KVP_NS_PER_MS);
    assert_true(left_alone_ns(&f, &path) >= 100 * KVP_NS_PER_MS);
    assert_true(left_alone_ns(&f, &path) >= 200 * KVP_NS_PER_MS);
    /* 50 to 75 ms, on a machine that is at rest; 400 and more were it not forgiven. */
    for (int tries = 0; tries < 5 && again_ns >= 400 * KVP_NS_PER_MS; tries++) {
        kvp_path_ok(f.peers, &path);
        again_ns = left_alone_ns(&f, &path);
    }
    assert_true(again_ns < 400 * KVP_NS_PER_MS);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

static void
test_a_refusal_drops_the_attachment(void **state)
{
    kvp_path_t path, again;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    f.pool.node.open_err = KVP_NO_SEGMENT;
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, LONG_NS), KVP_NODE_LOST);
    assert_int_equal(take(&f, in(LONG_NS), &again), KVP_NODE_LOST);
    assert_int_equal(f.pool.counters.peer_failures, 1);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

static void
test_a_segment_that_is_not_there_is_a_lost_node(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    f.pool.master.segment = NULL;
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_NODE_LOST);
    assert_int_equal(f.pool.node.hellos, 0);
    assert_int_equal(kvp_peers_take(f.peers, 1234, 0, 0, &path), KVP_EAGAIN);
    teardown(&f);
}

static void
test_shared_memory_of_another_host_is_out_of_reach(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, "not that host");
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_NOTSUP);
    assert_int_equal(take(&f, 0, &path), KVP_NOTSUP); /* and is known to be */
    assert_string_equal(kvp_peers_transport(f.peers, FAKE_MASTER_SEGMENT, FAKE_MASTER_HOST, "shm"), "none");
    assert_int_equal(f.pool.node.hellos, 0);
    teardown(&f);
}

static bool
is_avoided(fixture_t *f)
{
    uint32_t ids[KVP_AVOID_MAX], n = kvp_peers_avoid(f->peers, ids);

    assert_true(n == 0 || (n == 1 && ids[0] == FAKE_MASTER_SEGMENT));
    return n == 1;
}

/* What the master is asked to spare: a node that is left alone, or silent; and it is tried again when its time has come. */
static void
test_a_node_in_trouble_is_avoided(void **state)
{
    bool was_avoided = false;
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_false(is_avoided(&f));
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    assert_false(is_avoided(&f));
    kvp_path_silent(f.peers, &path, kvp_now_ns() - KVP_NS_PER_MS, kvp_now_ns());
    assert_true(is_avoided(&f));
    kvp_path_ok(f.peers, &path);
    assert_false(is_avoided(&f));
    /* 50 ms at first, and doubled with each failure: a busy machine may sleep over the first ones. */
    for (int tries = 0; tries < 6 && !was_avoided; tries++) {
        kvp_path_fail(f.peers, &path, "the test says so");
        kvp_path_rele(f.peers, &path, false);
        was_avoided = is_avoided(&f);
        while (is_avoided(&f))
            continue;
        assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    }
    assert_true(was_avoided);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);

    setup(&f, "not that host");
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_NOTSUP);
    assert_true(is_avoided(&f));
    teardown(&f);
}

static void
test_a_node_that_hangs_up_is_noticed(void **state)
{
    kvp_path_t path;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    kvp_path_rele(f.peers, &path, false);
    (void)kvp_peers_tend(f.peers);
    assert_int_equal(f.pool.counters.peer_failures, 0);
    f.pool.node.is_cutting = true;
    while (f.pool.counters.peer_failures == 0)
        (void)kvp_peers_tend(f.peers);
    assert_int_equal(take(&f, 0, &path), KVP_NODE_LOST);
    teardown(&f);
}

/* ---- what is owed */
static size_t
notices_n(fixture_t *f)
{
    kvp_drain_notice_t *notices;
    size_t n;

    assert_int_equal(kvp_peers_drain_notices(f->peers, &notices, &n), KVP_OK);
    free(notices);
    return n;
}

static void
test_a_reader_owes_nothing_and_a_writer_once(void **state)
{
    kvp_drain_notice_t *notices;
    kvp_path_t path;
    fixture_t f;
    size_t n;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(notices_n(&f), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(kvp_peers_drain_notices(f.peers, &notices, &n), KVP_OK);
    assert_int_equal(n, 1);
    assert_int_equal(notices[0].incarnation, kvp_conn_hello(f.conn)->incarnation);
    kvp_path_rele(f.peers, &path, false);
    assert_int_equal(kvp_peers_send_drained(f.peers, &notices[0], in(LONG_NS)), KVP_OK);
    assert_int_equal(f.pool.node.drained, 1);
    assert_int_equal(f.pool.node.last_drained, notices[0].incarnation);
    free(notices);
    teardown(&f);
}

/* The node may have opened its memory for us although we do not know it. */
static void
test_who_only_asked_to_write_owes_as_well(void **state)
{
    kvp_drain_notice_t *notices;
    kvp_path_t path;
    fixture_t f;
    size_t n;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    assert_int_equal(take(&f, in(LONG_NS), &path), KVP_OK);
    f.pool.node.is_mute = true;
    assert_int_equal(open_chunk(&f, &path, KVP_ACCESS_WRITE, HURRY_NS), KVP_DEADLINE);
    assert_int_equal(kvp_peers_drain_notices(f.peers, &notices, &n), KVP_OK);
    assert_int_equal(n, 1);
    /* To pay it, the answer that is still due is waited for. */
    assert_int_equal(kvp_peers_send_drained(f.peers, &notices[0], in(HURRY_NS)), KVP_DEADLINE);
    f.pool.node.is_mute = false;
    assert_int_equal(kvp_peers_send_drained(f.peers, &notices[0], in(LONG_NS)), KVP_OK);
    assert_int_equal(f.pool.node.opens, 1);
    assert_int_equal(f.pool.node.drained, 1);
    /* Memory that is gone is owed nothing. */
    memset(notices[0].uuid, 0xEE, sizeof notices[0].uuid);
    assert_int_equal(kvp_peers_send_drained(f.peers, &notices[0], in(LONG_NS)), KVP_NO_SEGMENT);
    free(notices);
    kvp_path_rele(f.peers, &path, false);
    teardown(&f);
}

/* ---- endpoints */
typedef struct {
    fixture_t *f;
    kvp_path_t path;
    kvp_err_t err;
    _Atomic bool is_over;
} taker_t;

static void *
take_late(void *arg)
{
    taker_t *t = arg;

    t->err = take(t->f, in(LONG_NS), &t->path);
    t->is_over = true;
    return NULL;
}

static void
test_endpoints_are_waited_for(void **state)
{
    kvp_path_t paths[KVP_SYNC_EPS], none;
    pthread_t thread;
    taker_t late;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    for (size_t i = 0; i < KVP_SYNC_EPS; i++)
        assert_int_equal(take(&f, in(LONG_NS), &paths[i]), KVP_OK);
    assert_int_equal(take(&f, 0, &none), KVP_EAGAIN);
    assert_int_equal(take(&f, in(HURRY_NS), &none), KVP_DEADLINE);
    late = (taker_t){.f = &f};
    assert_int_equal(pthread_create(&thread, NULL, take_late, &late), 0);
    assert_false(late.is_over);
    kvp_path_rele(f.peers, &paths[0], true); /* closed: its place is free, too */
    pthread_join(thread, NULL);
    assert_int_equal(late.err, KVP_OK);
    kvp_path_rele(f.peers, &late.path, false);
    for (size_t i = 1; i < KVP_SYNC_EPS; i++)
        kvp_path_rele(f.peers, &paths[i], false);
    teardown(&f);
}

/* Only what is idle and was not used between two looks goes, one at a time, and no more than is too much. */
static void
test_idle_endpoints_beyond_the_limit_are_closed(void **state)
{
    kvp_path_t paths[3], used;
    kvp_peer_t *peer;
    kvp_ep_t *last;
    fixture_t f;

    (void)state;
    setup_limited(&f, FAKE_MASTER_HOST, 2);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(take(&f, in(LONG_NS), &paths[i]), KVP_OK);
    peer = paths[0].peer;
    last = paths[2].ep;
    for (uint32_t i = 0; i < 3; i++)
        kvp_path_rele(f.peers, &paths[i], false);
    kvp_peers_tend(f.peers); /* the first look: all were used before it */
    assert_int_equal(peer->idle_n, 3);
    assert_int_equal(take(&f, 0, &used), KVP_OK);
    assert_ptr_equal(used.ep, last);
    kvp_path_rele(f.peers, &used, false);
    kvp_peers_tend(f.peers);
    assert_int_equal(peer->idle_n, 2);
    assert_int_equal(peer->eps_n, 2);
    assert_ptr_equal(peer->idle[1], last);
    for (uint32_t i = 0; i < 3; i++)
        kvp_peers_tend(f.peers);
    assert_int_equal(peer->idle_n, 2);
    teardown(&f);
}

static void
test_who_waits_for_an_endpoint_of_a_lost_node_is_told(void **state)
{
    kvp_path_t paths[KVP_SYNC_EPS];
    pthread_t thread;
    taker_t late;
    fixture_t f;

    (void)state;
    setup(&f, FAKE_MASTER_HOST);
    for (size_t i = 0; i < KVP_SYNC_EPS; i++)
        assert_int_equal(take(&f, in(LONG_NS), &paths[i]), KVP_OK);
    late = (taker_t){.f = &f};
    assert_int_equal(pthread_create(&thread, NULL, take_late, &late), 0);
    kvp_path_fail(f.peers, &paths[0], "the test says so");
    pthread_join(thread, NULL);
    assert_int_equal(late.err, KVP_NODE_LOST);
    for (size_t i = 0; i < KVP_SYNC_EPS; i++)
        kvp_path_rele(f.peers, &paths[i], false);
    teardown(&f);
}

/* ---- data connections */
/* A node whose data connections are of tcp, served by a thread of the test. */
typedef struct {
    fake_node_t node; /* its control connection */
    kvp_tp_t *server, *client;
    kvp_addr_t at;
    kvp_peer_t *peer;
    pthread_t lane;
    _Atomic bool is_ending;
} far_t;

static void *
serve_lane(void *arg)
{
    far_t *far = arg;

    while (!far->is_ending)
        assert_int_equal(far->server->ops->serve(far->server, 0, 10), KVP_OK);
    return NULL;
}

static void
setup_far(far_t *far)
{
    const kvp_transport_ops_t *tcp = kvp_transport_find("tcp");
    kvp_tp_conf_t serving = {.lanes = 1}, asking = {.incarnation = 5};
    kvp_addr_t any = {.host = "127.0.0.1"};
    kvp_attach_t how = {.chunks_n = 1, .hello = {.name = "a test", .host_id = "another host", .incarnation = 5}};
    char addr[KVP_HOSTPORT_TEXT_MAX], detail[160];

    memset(far, 0, sizeof *far);
    fake_node_start(&far->node);
    assert_int_equal(kvp_tp_create(tcp, &serving, &far->server), KVP_OK);
    assert_int_equal(tcp->listen(far->server, &any, &far->at), KVP_OK);
    assert_int_equal(kvp_tp_create(tcp, &asking, &far->client), KVP_OK);
    assert_int_equal(pthread_create(&far->lane, NULL, serve_lane, far), 0);
    snprintf(addr, sizeof addr, "127.0.0.1:%u", far->at.port);
    how.uuid = far->node.uuid;
    how.addr = addr;
    how.unix_path = far->node.path;
    how.tp = far->client;
    how.hello.pool_id = far->node.uuid;
    assert_int_equal(kvp_peer_open(&how, in(LONG_NS), detail, sizeof detail, &far->peer), KVP_OK);
}

static void
end_server(far_t *far)
{
    far->is_ending = true;
    far->server->ops->wake(far->server);
    pthread_join(far->lane, NULL);
    kvp_tp_destroy(far->server);
}

static void
teardown_far(far_t *far)
{
    kvp_peer_destroy(far->peer);
    kvp_tp_destroy(far->client);
    fake_node_end(&far->node);
}

/* Whether a child of fork finds the descriptor open. */
static bool
is_open_in_child(int fd)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) _exit(fcntl(fd, F_GETFD) < 0 ? 1 : 0);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
}

/* The number of a data connection that broke is somebody else's as soon as it is free. */
static void
test_a_child_closes_no_descriptor_that_was_reused(void **state)
{
    kvp_ep_t *ep;
    far_t far;
    int fd;

    (void)state;
    setup_far(&far);
    assert_int_equal(kvp_peer_take_ep(far.peer, in(LONG_NS), &ep), KVP_OK);
    fd = ep->tp->ops->ep_event_fd(ep);
    assert_true(fd >= 0);
    assert_false(is_open_in_child(fd)); /* while it is ours, a child loses it */
    end_server(&far);
    while (!ep->tp->ops->ep_is_broken(ep))
        (void)ep->tp->ops->ep_poll(ep);
    kvp_peer_give_ep(far.peer, ep, false);
    assert_int_equal(dup2(STDERR_FILENO, fd), fd); /* the application's now */
    assert_true(is_open_in_child(fd));
    close(fd);
    teardown_far(&far);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_node_is_attached_once),
        cmocka_unit_test(test_a_chunk_is_opened_once_for_each_access),
        cmocka_unit_test(test_a_hurried_caller_leaves_the_answer_to_the_next),
        cmocka_unit_test(test_what_was_left_may_have_been_another_access),
        cmocka_unit_test(test_a_node_that_never_answers_is_given_up),
        cmocka_unit_test(test_who_has_time_has_patience),
        cmocka_unit_test(test_hurried_callers_add_up),
        cmocka_unit_test(test_silence_adds_up_over_calls),
        cmocka_unit_test(test_a_node_that_moved_something_is_trusted_again),
        cmocka_unit_test(test_a_refusal_drops_the_attachment),
        cmocka_unit_test(test_a_segment_that_is_not_there_is_a_lost_node),
        cmocka_unit_test(test_shared_memory_of_another_host_is_out_of_reach),
        cmocka_unit_test(test_a_node_in_trouble_is_avoided),
        cmocka_unit_test(test_a_node_that_hangs_up_is_noticed),
        cmocka_unit_test(test_a_reader_owes_nothing_and_a_writer_once),
        cmocka_unit_test(test_who_only_asked_to_write_owes_as_well),
        cmocka_unit_test(test_endpoints_are_waited_for),
        cmocka_unit_test(test_idle_endpoints_beyond_the_limit_are_closed),
        cmocka_unit_test(test_who_waits_for_an_endpoint_of_a_lost_node_is_told),
        cmocka_unit_test(test_a_child_closes_no_descriptor_that_was_reused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
