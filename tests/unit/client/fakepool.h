/* SPDX-License-Identifier: Apache-2.0
 * A fake master and the one fake node that it tells of, and how a client comes to them: by a session, or by the connection and
 * the peers that a session is made of. Header only.
 */
#ifndef KVP_TEST_FAKEPOOL_H
#define KVP_TEST_FAKEPOOL_H

#include "client/control/session.h"
#include "client/transport/all/registry.h"

#include "tests/unit/client/fakemaster.h"
#include "tests/unit/client/fakenode.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define LONG_NS (20 * KVP_NS_PER_S)

typedef struct {
    fake_master_t master;
    fake_node_t node;
    fake_segment_t segment;
    kvp_counters_t counters; /* the client's */
} fake_pool_t;

/* The time that is so far away. */
static inline uint64_t
in(uint64_t ns)
{
    return kvp_now_ns() + ns;
}

/* transports: names of those that the node offers, valid until the end; NULL = shm. */
static inline void
fake_pool_start(fake_pool_t *pool, const char *transports)
{
    memset(pool, 0, sizeof *pool);
    fake_master_start(&pool->master);
    fake_node_start(&pool->node);
    pool->segment = (fake_segment_t){
        .unix_path = pool->node.path, .uuid = pool->node.uuid, .bytes = FAKE_NODE_BYTES, .transports = transports};
    pool->master.segment = &pool->segment;
}

static inline void
fake_pool_end(fake_pool_t *pool)
{
    fake_node_end(&pool->node);
    fake_master_end(&pool->master);
}

/* A session by these transports, the best first; n = 0: by shared memory. */
static inline kvp_session_t *
fake_pool_session(fake_pool_t *pool, const kvp_transport_ops_t *const *ops, size_t n)
{
    kvp_session_conf_t conf = {.peers = {.name = "a test", .host_id = FAKE_MASTER_HOST, .transports_n = n > 0 ? n : 1}};
    kvp_session_t *session;
    char masters[32];

    snprintf(masters, sizeof masters, "127.0.0.1:%u", pool->master.port);
    conf.masters = masters;
    conf.peers.transports[0] = kvp_transport_find("shm");
    for (size_t i = 0; i < n; i++)
        conf.peers.transports[i] = ops[i];
    conf.peers.counters = &pool->counters;
    assert_int_equal(kvp_session_start(&conf, in(LONG_NS), &session), KVP_OK);
    return session;
}

/* A connection and the peers over it, as conf says and for a client of that host. */
static inline void
fake_pool_peers(fake_pool_t *pool, const char *host_id, kvp_peers_conf_t conf, kvp_conn_t **conn_out,
                kvp_peers_t **peers_out)
{
    kvp_hostport_t at = {.host = "127.0.0.1", .port = pool->master.port};
    kvp_hello_ask_t ask = {.name = "a test", .host_id = host_id, .pidfd = -1};
    char detail[160];

    conf.name = ask.name;
    conf.host_id = host_id;
    conf.counters = &pool->counters;
    assert_int_equal(kvp_conn_open(NULL, &at, &ask, in(LONG_NS), detail, sizeof detail, conn_out), KVP_OK);
    assert_int_equal(kvp_peers_create(&conf, *conn_out, peers_out), KVP_OK);
}

#endif
