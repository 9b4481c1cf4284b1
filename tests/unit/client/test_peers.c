/* SPDX-License-Identifier: Apache-2.0
 * The nodes as a client sees them: attaching once, opening chunks, hurried callers, the breaker, drain notices. */
#include "client/memory/peers.h"

#include "client/memory/attach.h"
#include "transport/all/registry.h"
#include "tests/unit/client/fakepool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <sys/stat.h>
#include <unistd.h>

#define HURRY_NS (10 * KVP_NS_PER_MS)

static void
setup_limited(const char *host_id, uint32_t max_idle_eps)
{
    kvp_peers_conf_t conf = {.transports_n = 1, .max_idle_eps = max_idle_eps};

    fake_pool_start(NULL);
    conf.transports[0] = kvp_transport_find("shm");
    fake_pool_peers(host_id, conf);
}

static int
setup(void **state)
{
    setup_limited(FAKE_MASTER_HOST, 0);
    return 0;
}

TEST_WITH(test_a_node_is_attached_once, setup, fake_pool_end)
{
    kvp_path_t first, second;

    assert_int_equal(take(0, &first), KVP_EAGAIN); /* it would have to wait */
    first = take_ok();
    assert_int_equal(take(0, &second), KVP_OK);
    assert_ptr_not_equal(first.ep, second.ep);
    rele(&first);
    rele(&second);
    assert_int_equal(pool.node.hellos, 1);
    assert_int_equal(pool.counters.attaches, 1);
}

TEST_WITH(test_a_chunk_is_opened_once_for_each_access, setup, fake_pool_end)
{
    kvp_chunk_mem_t mem;
    kvp_path_t path = take_ok();

    for (int i = 0; i < 3; i++)
        assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(pool.node.opens, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(open_chunk(&path, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(pool.node.opens, 2);
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(pool.node.opens, 2);
    /* A chunk that the segment does not have is the master's mistake, and says nothing about the node. */
    assert_int_equal(kvp_path_chunk(pool.peers, &path, 1, KVP_ACCESS_READ, in(LONG_NS), &mem), KVP_PROTO);
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    rele(&path);
}

static uint64_t
payload_bytes_there(void)
{
    struct stat st;

    assert_int_equal(fstat(pool.node.payload_fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

TEST_WITH(test_memory_is_touched_ahead_unless_its_node_touches_none, setup, fake_pool_end)
{
    kvp_path_t path = take_ok();

    pool.node.is_lazy = true;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    while (kvp_peers_tend(pool.peers))
        continue;
    assert_int_equal(payload_bytes_there(), 0);
    pool.node.is_lazy = false;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    while (kvp_peers_tend(pool.peers))
        continue;
    assert_int_equal(payload_bytes_there(), FAKE_NODE_BYTES);
    rele(&path);
}

/* A deadline that ends while a chunk is being opened costs nothing but that call. */
TEST_WITH(test_a_hurried_caller_leaves_the_answer_to_the_next, setup, fake_pool_end)
{
    kvp_path_t path = take_ok(), again;

    pool.node.server.is_deaf = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(open_chunk(&path, KVP_ACCESS_WRITE, HURRY_NS), KVP_DEADLINE);
    assert_int_equal(pool.counters.peer_failures, 0);
    assert_int_equal(take(0, &again), KVP_OK); /* the attachment is there as before */
    pool.node.server.is_deaf = false;
    assert_int_equal(open_chunk(&again, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(pool.node.opens, 1);
    assert_int_equal(pool.node.hellos, 1);
    rele(&path);
    rele(&again);
}

TEST_WITH(test_what_was_left_may_have_been_another_access, setup, fake_pool_end)
{
    kvp_path_t path = take_ok();

    pool.node.server.is_deaf = true;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, HURRY_NS), KVP_DEADLINE);
    pool.node.server.is_deaf = false;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(pool.node.opens, 2);
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(pool.node.opens, 2);
    rele(&path);
}

/* Deadlines long and short: what counts is how long the question has been asked. */
TEST_WITH(test_a_node_that_never_answers_is_given_up, setup, fake_pool_end)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path = take_ok(), again;
    kvp_err_t err;

    pool.node.server.is_deaf = true;
    do
        err = open_chunk(&path, KVP_ACCESS_READ, HURRY_NS);
    while (err == KVP_DEADLINE);
    assert_int_equal(err, KVP_NODE_LOST);
    assert_true(kvp_now_ns() - began_ns >= KVP_CTL_LEAST_NS);
    assert_int_equal(pool.counters.peer_failures, 1);
    assert_int_equal(take(LONG_NS, &again), KVP_NODE_LOST); /* at once, and not after LONG_NS */
    pool.node.server.is_deaf = false;
    assert_int_equal(take_again(&again), KVP_OK);
    assert_int_equal(open_chunk(&again, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    rele(&path);
    rele(&again);
}

typedef struct {
    const kvp_path_t *path;
    _Atomic bool is_asking;
    kvp_err_t err;
} patient_t;

static void *
be_patient(void *arg)
{
    patient_t *p = arg;

    p->is_asking = true;
    p->err = open_chunk(p->path, KVP_ACCESS_READ, LONG_NS);
    return NULL;
}

/* A busy machine makes a node answer late; who has the time waits, also where somebody in a hurry has asked. */
TEST_WITH(test_who_has_time_has_patience, setup, fake_pool_end)
{
    kvp_path_t path;
    uint64_t until_ns;
    pthread_t thread;
    patient_t p = {.path = &path};

    assert_int_equal(kvp_ctl_patience(5, 5 + 12 * KVP_NS_PER_S), 3 * KVP_NS_PER_S);
    assert_int_equal(kvp_ctl_patience(5, 5 + 600 * KVP_NS_PER_S), KVP_CTL_MOST_NS);
    assert_int_equal(kvp_ctl_patience(5, 5 + 2 * KVP_NS_PER_S), KVP_CTL_LEAST_NS);
    assert_int_equal(kvp_ctl_patience(5, 5), KVP_CTL_LEAST_NS);
    assert_int_equal(kvp_ctl_patience(5, 0), KVP_CTL_LEAST_NS);
    path = take_ok();
    pool.node.server.is_deaf = true;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, HURRY_NS), KVP_DEADLINE);
    assert_int_equal(pthread_create(&thread, NULL, be_patient, &p), 0);
    while (!p.is_asking)
        sched_yield();
    until_ns = in(KVP_CTL_LEAST_NS + 50 * KVP_NS_PER_MS);
    while (kvp_now_ns() < until_ns)
        usleep(1000);
    pool.node.server.is_deaf = false;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(p.err, KVP_OK);
    assert_int_equal(pool.counters.peer_failures, 0);
    rele(&path);
}

/* Each of these callers is in too great a hurry to judge the node; all of them together are not. */
TEST_WITH(test_hurried_callers_add_up, setup, fake_pool_end)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_path_t path;
    kvp_err_t err;

    pool.node.server.is_deaf = true;
    while ((err = take(HURRY_NS, &path)) == KVP_DEADLINE)
        assert_true(kvp_now_ns() - began_ns < LONG_NS);
    assert_int_equal(err, KVP_NODE_LOST);
    assert_true(kvp_now_ns() - began_ns >= KVP_CTL_LEAST_NS);
}

/* A second without a byte makes a lost node, over several calls; threads that wait together count once. */
TEST_WITH(test_silence_adds_up_over_calls, setup, fake_pool_end)
{
    uint64_t at_ns = kvp_now_ns(), step_ns = 300 * KVP_NS_PER_MS;
    kvp_path_t path = take_ok(), again;

    assert_int_equal(kvp_peers_rank(pool.peers, FAKE_MASTER_SEGMENT), 0);
    for (int i = 0; i < 3; i++, at_ns += step_ns)
        for (int thread = 0; thread < 5; thread++)
            kvp_path_silent(pool.peers, &path, at_ns, at_ns + step_ns);
    assert_int_equal(kvp_peers_rank(pool.peers, FAKE_MASTER_SEGMENT), 3);
    kvp_path_ok(pool.peers, &path);
    assert_int_equal(kvp_peers_rank(pool.peers, FAKE_MASTER_SEGMENT), 0);
    for (int i = 0; i < 4; i++, at_ns += step_ns) {
        assert_int_equal(take(0, &again), KVP_OK);
        rele(&again);
        kvp_path_silent(pool.peers, &path, at_ns, at_ns + step_ns);
    }
    assert_int_equal(take(LONG_NS, &again), KVP_NODE_LOST);
    assert_int_equal(pool.counters.peer_failures, 1);
    rele(&path);
}

/* How long take gives NODE_LOST after a failure; it is attached again then. */
static uint64_t
left_alone_ns(kvp_path_t *path)
{
    uint64_t began_ns = kvp_now_ns();

    kvp_path_fail(pool.peers, path, "the test says so");
    rele(path);
    assert_int_equal(take_again(path), KVP_OK);
    return kvp_now_ns() - began_ns;
}

/* The time doubles with each failure, and begins anew once something was moved. */
TEST_WITH(test_a_node_that_moved_something_is_trusted_again, setup, fake_pool_end)
{
    uint64_t again_ns = UINT64_MAX;
    kvp_path_t path = take_ok();

    assert_true(left_alone_ns(&path) >= 50 * KVP_NS_PER_MS);
    assert_true(left_alone_ns(&path) >= 100 * KVP_NS_PER_MS);
    assert_true(left_alone_ns(&path) >= 200 * KVP_NS_PER_MS);
    /* 50 to 75 ms, on a machine that is at rest; 400 and more were its failures not reset. */
    for (int tries = 0; tries < 5 && again_ns >= 400 * KVP_NS_PER_MS; tries++) {
        kvp_path_ok(pool.peers, &path);
        again_ns = left_alone_ns(&path);
    }
    assert_true(again_ns < 400 * KVP_NS_PER_MS);
    rele(&path);
}

TEST_WITH(test_a_refusal_drops_the_attachment, setup, fake_pool_end)
{
    kvp_path_t path = take_ok(), again;

    pool.node.open_err = KVP_NO_SEGMENT;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_NODE_LOST);
    assert_int_equal(take(LONG_NS, &again), KVP_NODE_LOST);
    assert_int_equal(pool.counters.peer_failures, 1);
    rele(&path);
}

TEST_WITH(test_a_segment_that_is_not_there_is_a_lost_node, setup, fake_pool_end)
{
    kvp_path_t path;

    pool.master.segment = NULL;
    assert_int_equal(take(LONG_NS, &path), KVP_NODE_LOST);
    assert_int_equal(pool.node.hellos, 0);
    assert_int_equal(kvp_peers_take(pool.peers, 1234, 0, 0, &path), KVP_EAGAIN);
}

static bool
is_avoided(void)
{
    uint32_t ids[KVP_AVOID_MAX], n = kvp_peers_avoid(pool.peers, ids);

    assert_true(n == 0 || (n == 1 && ids[0] == FAKE_MASTER_SEGMENT));
    return n == 1;
}

TEST_WITH(test_shared_memory_of_another_host_is_out_of_reach, setup, fake_pool_end)
{
    kvp_path_t path;

    setup_limited("not that host", 0);
    assert_int_equal(take(LONG_NS, &path), KVP_NOTSUP);
    assert_int_equal(take(0, &path), KVP_NOTSUP); /* and is known to be */
    assert_true(is_avoided());
    assert_int_equal(kvp_peers_rank(pool.peers, FAKE_MASTER_SEGMENT), 3);
    assert_string_equal(kvp_peers_transport(pool.peers, FAKE_MASTER_SEGMENT, FAKE_MASTER_HOST, "shm", ""), "none");
    assert_string_equal(kvp_peers_transport(pool.peers, 99, "not that host", "shm", ""), "shm");
    assert_string_equal(kvp_peers_transport(pool.peers, 99, "not that host", "shm", "/dev/null"), "shm");
    assert_string_equal(kvp_peers_transport(pool.peers, 99, "not that host", "shm", "/of/another/container"), "none");
    assert_int_equal(pool.node.hellos, 0);
}

/* What the master is asked to spare: a node that is left alone, or silent; and it is tried again when its time has
 * come. */
TEST_WITH(test_a_node_in_trouble_is_avoided, setup, fake_pool_end)
{
    bool was_avoided = false;
    kvp_path_t path;

    assert_false(is_avoided());
    path = take_ok();
    assert_false(is_avoided());
    kvp_path_silent(pool.peers, &path, kvp_now_ns() - KVP_NS_PER_MS, kvp_now_ns());
    assert_true(is_avoided());
    kvp_path_ok(pool.peers, &path);
    assert_false(is_avoided());
    /* 50 ms at first, and doubled with each failure: a busy machine may sleep over the first ones. */
    for (int tries = 0; tries < 6 && !was_avoided; tries++) {
        kvp_path_fail(pool.peers, &path, "the test says so");
        rele(&path);
        was_avoided = is_avoided();
        while (is_avoided())
            continue;
        path = take_ok();
    }
    assert_true(was_avoided);
    rele(&path);
}

TEST_WITH(test_a_node_that_hangs_up_is_noticed, setup, fake_pool_end)
{
    kvp_path_t path = take_ok();

    rele(&path);
    (void)kvp_peers_tend(pool.peers);
    assert_int_equal(pool.counters.peer_failures, 0);
    pool.node.server.is_cutting = true;
    while (pool.counters.peer_failures == 0)
        (void)kvp_peers_tend(pool.peers);
    assert_int_equal(take(0, &path), KVP_NODE_LOST);
}

/* ---- drain notices */
static size_t
notices_n(void)
{
    kvp_drain_notice_t *notices;
    size_t n;

    assert_int_equal(kvp_peers_drain_notices(pool.peers, &notices, &n), KVP_OK);
    free(notices);
    return n;
}

TEST_WITH(test_a_reader_sends_no_drain_notice_and_a_writer_one, setup, fake_pool_end)
{
    kvp_drain_notice_t *notices;
    kvp_path_t path = take_ok();
    size_t n;

    assert_int_equal(open_chunk(&path, KVP_ACCESS_READ, LONG_NS), KVP_OK);
    assert_int_equal(notices_n(), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(open_chunk(&path, KVP_ACCESS_WRITE, LONG_NS), KVP_OK);
    assert_int_equal(kvp_peers_drain_notices(pool.peers, &notices, &n), KVP_OK);
    assert_int_equal(n, 1);
    assert_int_equal(notices[0].incarnation, kvp_conn_hello(pool.conn)->incarnation);
    rele(&path);
    assert_int_equal(kvp_peers_send_drained(pool.peers, &notices[0], in(LONG_NS)), KVP_OK);
    assert_int_equal(pool.node.drained, 1);
    assert_int_equal(pool.node.last_drained, notices[0].incarnation);
    free(notices);
}

/* The node may have opened its memory for us although we do not know it. */
TEST_WITH(test_who_only_asked_to_write_sends_one_as_well, setup, fake_pool_end)
{
    kvp_drain_notice_t *notices;
    kvp_path_t path = take_ok();
    size_t n;

    pool.node.server.is_deaf = true;
    assert_int_equal(open_chunk(&path, KVP_ACCESS_WRITE, HURRY_NS), KVP_DEADLINE);
    assert_int_equal(kvp_peers_drain_notices(pool.peers, &notices, &n), KVP_OK);
    assert_int_equal(n, 1);
    /* To send it, the answer that is still due is waited for. */
    assert_int_equal(kvp_peers_send_drained(pool.peers, &notices[0], in(HURRY_NS)), KVP_DEADLINE);
    pool.node.server.is_deaf = false;
    assert_int_equal(kvp_peers_send_drained(pool.peers, &notices[0], in(LONG_NS)), KVP_OK);
    assert_int_equal(pool.node.opens, 1);
    assert_int_equal(pool.node.drained, 1);
    /* There is none for memory that is gone. */
    memset(notices[0].uuid, 0xEE, sizeof notices[0].uuid);
    assert_int_equal(kvp_peers_send_drained(pool.peers, &notices[0], in(LONG_NS)), KVP_NO_SEGMENT);
    free(notices);
    rele(&path);
}

/* ---- endpoints */
TEST_WITH(test_endpoints_are_waited_for, setup, fake_pool_end)
{
    kvp_path_t paths[KVP_SYNC_EPS], none;
    taker_t late;

    take_all(paths);
    assert_int_equal(take(0, &none), KVP_EAGAIN);
    assert_int_equal(take(HURRY_NS, &none), KVP_DEADLINE);
    start_taker(&late);
    assert_false(late.is_over);
    kvp_path_rele(pool.peers, &paths[0], true); /* closed: its place is free, too */
    pthread_join(late.thread, NULL);
    assert_int_equal(late.err, KVP_OK);
    rele(&late.path);
    for (size_t i = 1; i < KVP_SYNC_EPS; i++)
        rele(&paths[i]);
}

/* Only what is idle and was not used between two looks goes, one at a time, and no more than is too much. */
TEST_WITH(test_idle_endpoints_beyond_the_limit_are_closed, setup, fake_pool_end)
{
    kvp_path_t paths[3], used;
    kvp_peer_t *peer;
    kvp_ep_t *last;

    setup_limited(FAKE_MASTER_HOST, 2);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(take(LONG_NS, &paths[i]), KVP_OK);
    peer = paths[0].peer;
    last = paths[2].ep;
    for (uint32_t i = 0; i < 3; i++)
        rele(&paths[i]);
    kvp_peers_tend(pool.peers); /* the first look: all were used before it */
    assert_int_equal(peer->idle_n, 3);
    assert_int_equal(take(0, &used), KVP_OK);
    assert_ptr_equal(used.ep, last);
    rele(&used);
    kvp_peers_tend(pool.peers);
    assert_int_equal(peer->idle_n, 2);
    assert_int_equal(peer->eps_n, 2);
    assert_ptr_equal(peer->idle[1], last);
    for (uint32_t i = 0; i < 3; i++)
        kvp_peers_tend(pool.peers);
    assert_int_equal(peer->idle_n, 2);
}

TEST_WITH(test_who_waits_for_an_endpoint_of_a_lost_node_is_told, setup, fake_pool_end)
{
    kvp_path_t paths[KVP_SYNC_EPS];
    taker_t late;

    take_all(paths);
    start_taker(&late);
    kvp_path_fail(pool.peers, &paths[0], "the test says so");
    pthread_join(late.thread, NULL);
    assert_int_equal(late.err, KVP_NODE_LOST);
    for (size_t i = 0; i < KVP_SYNC_EPS; i++)
        rele(&paths[i]);
}

/* ---- data connections */
/* A node whose data connections are of tcp, served by a thread of the test. */
typedef struct {
    fake_node_t node; /* its control connection */
    kvp_tp_t *server, *client;
    kvp_hostport_t at;
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
    kvp_hostport_t any = {.host = "127.0.0.1"};
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
TEST_WITH(test_a_child_closes_no_descriptor_that_was_reused, setup, fake_pool_end)
{
    kvp_ep_t *ep;
    far_t far;
    int fd;

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

TEST_MAIN()
