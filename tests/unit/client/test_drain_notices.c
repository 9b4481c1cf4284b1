/* SPDX-License-Identifier: Apache-2.0
 * Drain notices to nodes after a session was lost: sent as soon as nothing can be stored through it, whoever still
 * looks at its memory; kept over the end of the handle; and never at the cost of heartbeats. */
#include "client/control/drain_notices.h"

#include "tests/unit/client/fakepool.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINKS 4

static int
setup(void **state)
{
    fake_pool_start(NULL);
    fake_pool_session(NULL, 0);
    return 0;
}

/* The link, held, with memory of the node that it may store into. */
static kvp_link_t *
hold_to_store(void)
{
    kvp_link_t *link = fake_pool_hold();
    kvp_chunk_mem_t mem;
    kvp_path_t path;

    assert_int_equal(kvp_peers_take(link->peers, FAKE_MASTER_SEGMENT, 0, in(LONG_NS), &path), KVP_OK);
    assert_int_equal(kvp_path_chunk(link->peers, &path, 0, KVP_ACCESS_WRITE, in(LONG_NS), &mem), KVP_OK);
    kvp_path_rele(link->peers, &path, false);
    return link;
}

static uint64_t
incarnation_of(const kvp_link_t *link)
{
    return kvp_conn_hello(link->conn)->incarnation;
}

/* The session is lost, and there is another one. */
static void
lose_session(void)
{
    uint64_t hellos = pool.master.hellos;

    pool.master.server.is_cutting = true;
    while (pool.master.hellos == hellos)
        sched_yield();
    kvp_session_rele(pool.session, fake_pool_hold());
}

/* The session is lost, and no master answers. */
static void
lose_master(const kvp_link_t *link)
{
    pool.master.is_mute = true;
    pool.master.server.is_cutting = true;
    while (!kvp_conn_is_broken(link->conn))
        sched_yield();
}

/* The background thread has had its turns since. */
static void
let_heartbeats_pass(uint64_t n)
{
    uint64_t before = pool.master.heartbeats;

    while (pool.master.heartbeats < before + n)
        sched_yield();
}

static size_t
waiting_notices(void)
{
    return kvp_drain_notices_count((const uint8_t *)"a pool for tests");
}

TEST_WITH(test_a_view_does_not_keep_nodes_waiting, setup, fake_pool_end)
{
    kvp_link_t *writer, *view;
    uint64_t incarnation;

    view = fake_pool_hold();
    kvp_session_rest(view);
    writer = hold_to_store();
    incarnation = incarnation_of(writer);
    lose_session();
    let_heartbeats_pass(5);
    assert_int_equal(pool.node.drained, 0); /* it may still store */
    kvp_session_rele(pool.session, writer);
    while (pool.node.drained < 1)
        sched_yield();
    assert_int_equal(pool.node.last_drained, incarnation);
    let_heartbeats_pass(5);
    assert_int_equal(pool.node.drained, 1); /* once is enough */
    kvp_session_rele_view(pool.session, view);
    fake_pool_close_session();
    assert_int_equal(pool.node.drained, 1); /* nothing was stored in the second session */
}

TEST_WITH(test_a_handle_without_a_master_tells_its_nodes, setup, fake_pool_end)
{
    kvp_link_t *link;

    link = hold_to_store();
    lose_master(link);
    kvp_session_rele(pool.session, link);
    fake_pool_close_session();
    assert_int_equal(pool.node.drained, 1);
    assert_int_equal(waiting_notices(), 0);
}

TEST_WITH(test_a_drain_notice_outlives_its_handle, setup, fake_pool_end)
{
    uint64_t incarnation;
    kvp_link_t *link;
    int status;
    pid_t child;

    link = hold_to_store();
    incarnation = incarnation_of(link);
    lose_master(link);
    pool.node.server.is_cutting = true; /* as a node does that was told of the end of the session */
    while (pool.node.server.is_cutting)
        sched_yield();
    kvp_session_rele(pool.session, link);
    fake_pool_close_session();
    assert_int_equal(pool.node.drained, 0);
    assert_int_equal(waiting_notices(), 1);

    child = fork();
    if (child == 0) _exit((int)waiting_notices());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0); /* what a child says no node takes */

    pool.master.is_mute = false;
    fake_pool_session(NULL, 0);
    while (pool.node.drained < 1)
        sched_yield();
    assert_int_equal(pool.node.last_drained, incarnation);
    while (waiting_notices() > 0)
        sched_yield();
    fake_pool_close_session();
}

/* The longest time between two heartbeats while nodes are told in vain. */
static uint64_t
longest_silence_ns(void)
{
    uint64_t end_ns = in(2 * KVP_NS_PER_S), beats = pool.master.heartbeats, last_ns = kvp_now_ns(), longest_ns = 0;

    for (uint64_t now; (now = kvp_now_ns()) < end_ns; sched_yield()) {
        longest_ns = kvp_max_u64(longest_ns, now - last_ns);
        if (pool.master.heartbeats == beats) continue;
        beats = pool.master.heartbeats;
        last_ns = now;
    }
    return longest_ns;
}

/* A master takes a writer that is silent for 1250 ms for stopped. */
TEST_WITH(test_heartbeats_go_on_while_a_node_does_not_hear, setup, fake_pool_end)
{
    uint64_t silence_ns = UINT64_MAX;
    kvp_link_t *links[LINKS];

    for (int tries = 0; tries < 3 && silence_ns >= 500 * KVP_NS_PER_MS; tries++) {
        for (int i = 0; i < LINKS; i++) {
            links[i] = hold_to_store();
            lose_session();
        }
        pool.node.server.is_deaf = true;
        for (int i = 0; i < LINKS; i++)
            kvp_session_rele(pool.session, links[i]);
        silence_ns = longest_silence_ns();
        pool.node.server.is_deaf = false;
        while (pool.node.drained < LINKS || waiting_notices() > 0)
            sched_yield();
    }
    assert_in_range(silence_ns, 0, 500 * KVP_NS_PER_MS);
    fake_pool_close_session();
}

TEST_MAIN()
