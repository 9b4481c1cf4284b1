/* SPDX-License-Identifier: Apache-2.0
 * A fake master and the one fake node that it tells of, and how a client comes to them: by a session, or by the
 * connection and the peers that a session is made of. Header only. */
#ifndef KVP_TEST_FAKEPOOL_H
#define KVP_TEST_FAKEPOOL_H

#include "client/control/session.h"
#include "client/memory/attach.h"
#include "transport/all/registry.h"

#include "tests/unit/net/fakemaster.h"
#include "tests/unit/client/fakenode.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <stdio.h>
#include <string.h>

#define LONG_NS (20 * KVP_NS_PER_S)

typedef struct {
    fake_master_t master;
    fake_node_t node;
    fake_segment_t segment;
    kvp_counters_t counters; /* the client's */
    bool is_running;
    /* What the client is made of: a connection and the peers over it, or a session and its link. NULL = there is none.
     */
    kvp_conn_t *conn;
    kvp_peers_t *peers;
    kvp_mastersession_t *session;
    kvp_link_t *link;
} fake_pool_t;

static fake_pool_t pool; /* of the test at hand */

/* The time that is so far away. */
static inline uint64_t
in(uint64_t ns)
{
    return kvp_now_ns() + ns;
}

static inline void
fake_pool_close_session(void)
{
    kvp_session_stop(pool.session);
    kvp_session_destroy(pool.session);
    pool.session = NULL;
}

/* For cmocka. */
static inline int
fake_pool_end(void **state)
{
    if (!pool.is_running) return 0;
    kvp_peers_destroy(pool.peers);
    kvp_conn_destroy(pool.conn);
    if (pool.link != NULL) kvp_session_rele(pool.session, pool.link);
    if (pool.session != NULL) fake_pool_close_session();
    fake_node_end(&pool.node);
    fake_master_end(&pool.master);
    pool.is_running = false;
    return 0;
}

/* In the place of the one that there is. transports: names of those that the node offers, valid until the end; NULL =
 * shm. */
static inline void
fake_pool_start(const char *transports)
{
    (void)fake_pool_end(NULL);
    memset(&pool, 0, sizeof pool);
    pool.is_running = true;
    fake_master_start(&pool.master);
    fake_node_start(&pool.node);
    pool.segment = (fake_segment_t){
        .unix_path = pool.node.path, .uuid = pool.node.uuid, .bytes = FAKE_NODE_BYTES, .transports = transports};
    pool.master.segment = &pool.segment;
}

/* A session by these transports, the best first; n = 0: by shared memory. */
static inline void
fake_pool_session(const kvp_transport_ops_t *const *ops, size_t n)
{
    kvp_session_conf_t conf = {.peers = {.name = "a test", .host_id = FAKE_MASTER_HOST, .transports_n = n > 0 ? n : 1}};
    char masters[32];

    snprintf(masters, sizeof masters, "127.0.0.1:%u", pool.master.port);
    conf.masters = masters;
    conf.peers.transports[0] = kvp_transport_find("shm");
    for (size_t i = 0; i < n; i++)
        conf.peers.transports[i] = ops[i];
    conf.peers.counters = &pool.counters;
    assert_int_equal(kvp_session_start(&conf, in(LONG_NS), &pool.session), KVP_OK);
}

static inline kvp_link_t *
fake_pool_hold(void)
{
    kvp_link_t *link;

    assert_int_equal(kvp_session_hold(pool.session, in(LONG_NS), &link), KVP_OK);
    return link;
}

/* A connection and the peers over it, as conf says and for a client of that host. */
static inline void
fake_pool_peers(const char *host_id, kvp_peers_conf_t conf)
{
    kvp_framed_t framed;
    kvp_hello_ask_t ask = {.name = "a test", .host_id = host_id, .pidfd = -1};
    char detail[160];

    conf.name = ask.name;
    conf.host_id = host_id;
    conf.counters = &pool.counters;
    kvp_framed_init(&framed);
    assert_int_equal(kvp_names_connect(NULL, "127.0.0.1", pool.master.port, in(LONG_NS), &framed), KVP_OK);
    assert_int_equal(kvp_conn_open(&framed, &ask, in(LONG_NS), detail, sizeof detail, &pool.conn), KVP_OK);
    assert_int_equal(kvp_peers_create(&conf, pool.conn, &pool.peers), KVP_OK);
}

/* ---- paths to the node */
static inline kvp_err_t
take(uint64_t within_ns, kvp_path_t *path)
{
    return kvp_peers_take(pool.peers, FAKE_MASTER_SEGMENT, 0, within_ns == 0 ? 0 : in(within_ns), path);
}

/* Takes one that there is, sooner or later. */
static inline kvp_path_t
take_ok(void)
{
    kvp_path_t path;

    assert_int_equal(take(LONG_NS, &path), KVP_OK);
    return path;
}

/* As many as there may be. */
static inline void
take_all(kvp_path_t paths[KVP_SYNC_EPS])
{
    for (size_t i = 0; i < KVP_SYNC_EPS; i++)
        paths[i] = take_ok();
}

/* Tries until the node is not left alone any more. */
static inline kvp_err_t
take_again(kvp_path_t *path)
{
    kvp_err_t err;

    while ((err = take(LONG_NS, path)) == KVP_NODE_LOST)
        continue;
    return err;
}

static inline void
rele(kvp_path_t *path)
{
    kvp_path_rele(pool.peers, path, false);
}

static inline kvp_err_t
open_chunk(const kvp_path_t *path, kvp_access_t access, uint64_t within_ns)
{
    kvp_chunk_mem_t mem = {.payload = NULL};
    kvp_err_t err = kvp_path_chunk(pool.peers, path, 0, access, in(within_ns), &mem);

    assert_true(err != KVP_OK || (mem.payload != NULL && mem.meta != NULL));
    return err;
}

/* A thread that takes a path. */
typedef struct {
    pthread_t thread;
    kvp_path_t path;
    kvp_err_t err;
    _Atomic bool is_over;
} taker_t;

static inline void *
take_main(void *arg)
{
    taker_t *t = arg;

    t->err = take(LONG_NS, &t->path);
    t->is_over = true;
    return NULL;
}

static inline void
start_taker(taker_t *t)
{
    *t = (taker_t){.err = KVP_INTERNAL};
    assert_int_equal(pthread_create(&t->thread, NULL, take_main, t), 0);
}

#endif
