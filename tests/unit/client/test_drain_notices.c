/* SPDX-License-Identifier: Apache-2.0
 * What is owed to nodes after a session was lost: said as soon as nothing can be stored through it, whoever still looks at
 * its memory; kept over the end of the handle; and never at the cost of heartbeats.
 */
#include "client/control/drain_notices.h"

#include "tests/unit/client/fakepool.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINKS 4

typedef struct {
    fake_pool_t pool;
    kvp_session_t *session;
} fixture_t;

static void
close_session(fixture_t *f)
{
    kvp_session_stop(f->session);
    kvp_session_destroy(f->session);
}

static void
setup(fixture_t *f)
{
    memset(f, 0, sizeof *f);
    fake_pool_start(&f->pool, NULL);
    f->session = fake_pool_session(&f->pool, NULL, 0);
}

static kvp_link_t *
hold(fixture_t *f)
{
    kvp_link_t *link;

    assert_int_equal(kvp_session_hold(f->session, in(LONG_NS), &link), KVP_OK);
    return link;
}

/* The link, held, with memory of the node that it may store into. */
static kvp_link_t *
hold_to_store(fixture_t *f)
{
    kvp_link_t *link = hold(f);
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
lose_session(fixture_t *f)
{
    uint64_t hellos = f->pool.master.hellos;

    f->pool.master.is_cutting = true;
    while (f->pool.master.hellos == hellos)
        sched_yield();
    kvp_session_rele(f->session, hold(f));
}

/* The session is lost, and no master answers. */
static void
lose_master(fixture_t *f, const kvp_link_t *link)
{
    f->pool.master.is_mute = true;
    f->pool.master.is_cutting = true;
    while (!kvp_conn_is_broken(link->conn))
        sched_yield();
}

/* The background thread has had its turns since. */
static void
let_heartbeats_pass(fixture_t *f, uint64_t n)
{
    uint64_t before = f->pool.master.heartbeats;

    while (f->pool.master.heartbeats < before + n)
        sched_yield();
}

static size_t
owed(void)
{
    return kvp_drain_notices_count((const uint8_t *)"a pool for tests");
}

static void
test_a_view_does_not_keep_nodes_waiting(void **state)
{
    kvp_link_t *writer, *view;
    uint64_t incarnation;
    fixture_t f;

    (void)state;
    setup(&f);
    view = hold(&f);
    kvp_session_rest(view);
    writer = hold_to_store(&f);
    incarnation = incarnation_of(writer);
    lose_session(&f);
    let_heartbeats_pass(&f, 5);
    assert_int_equal(f.pool.node.drained, 0); /* it may still store */
    kvp_session_rele(f.session, writer);
    while (f.pool.node.drained < 1)
        sched_yield();
    assert_int_equal(f.pool.node.last_drained, incarnation);
    let_heartbeats_pass(&f, 5);
    assert_int_equal(f.pool.node.drained, 1); /* once is enough */
    kvp_session_rele_view(f.session, view);
    close_session(&f);
    assert_int_equal(f.pool.node.drained, 1); /* nothing was stored in the second session */
    fake_pool_end(&f.pool);
}

static void
test_a_handle_without_a_master_tells_its_nodes(void **state)
{
    kvp_link_t *link;
    fixture_t f;

    (void)state;
    setup(&f);
    link = hold_to_store(&f);
    lose_master(&f, link);
    kvp_session_rele(f.session, link);
    close_session(&f);
    assert_int_equal(f.pool.node.drained, 1);
    assert_int_equal(owed(), 0);
    fake_pool_end(&f.pool);
}

static void
test_what_is_owed_outlives_its_handle(void **state)
{
    uint64_t incarnation;
    kvp_link_t *link;
    fixture_t f;
    int status;
    pid_t child;

    (void)state;
    setup(&f);
    link = hold_to_store(&f);
    incarnation = incarnation_of(link);
    lose_master(&f, link);
    f.pool.node.is_cutting = true; /* as a node does that was told of the end of the session */
    while (f.pool.node.is_cutting)
        sched_yield();
    kvp_session_rele(f.session, link);
    close_session(&f);
    assert_int_equal(f.pool.node.drained, 0);
    assert_int_equal(owed(), 1);

    child = fork();
    if (child == 0) _exit((int)owed());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0); /* what a child says no node takes */

    f.pool.master.is_mute = false;
    f.session = fake_pool_session(&f.pool, NULL, 0);
    while (f.pool.node.drained < 1)
        sched_yield();
    assert_int_equal(f.pool.node.last_drained, incarnation);
    while (owed() > 0)
        sched_yield();
    close_session(&f);
    fake_pool_end(&f.pool);
}

/* The longest time between two heartbeats while nodes are told in vain. */
static uint64_t
longest_silence_ns(fixture_t *f)
{
    uint64_t end_ns = in(2 * KVP_NS_PER_S), beats = f->pool.master.heartbeats, last_ns = kvp_now_ns(), longest_ns = 0;

    for (uint64_t now; (now = kvp_now_ns()) < end_ns; sched_yield()) {
        longest_ns = kvp_max_u64(longest_ns, now - last_ns);
        if (f->pool.master.heartbeats == beats) continue;
        beats = f->pool.master.heartbeats;
        last_ns = now;
    }
    return longest_ns;
}

/* A master takes a writer that is silent for 1250 ms for stopped. */
static void
test_heartbeats_go_on_while_a_node_does_not_hear(void **state)
{
    uint64_t silence_ns = UINT64_MAX;
    kvp_link_t *links[LINKS];
    fixture_t f;

    (void)state;
    setup(&f);
    for (int tries = 0; tries < 3 && silence_ns >= 500 * KVP_NS_PER_MS; tries++) {
        for (int i = 0; i < LINKS; i++) {
            links[i] = hold_to_store(&f);
            lose_session(&f);
        }
        f.pool.node.is_mute = true;
        for (int i = 0; i < LINKS; i++)
            kvp_session_rele(f.session, links[i]);
        silence_ns = longest_silence_ns(&f);
        f.pool.node.is_mute = false;
        while (f.pool.node.drained < LINKS || owed() > 0)
            sched_yield();
    }
    assert_in_range(silence_ns, 0, 500 * KVP_NS_PER_MS);
    close_session(&f);
    fake_pool_end(&f.pool);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_view_does_not_keep_nodes_waiting),
        cmocka_unit_test(test_a_handle_without_a_master_tells_its_nodes),
        cmocka_unit_test(test_what_is_owed_outlives_its_handle),
        cmocka_unit_test(test_heartbeats_go_on_while_a_node_does_not_hear),
    };

    return cmocka_run_group_tests_name("notices", tests, NULL, NULL);
}
