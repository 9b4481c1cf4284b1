/* SPDX-License-Identifier: Apache-2.0
 * One connection to a master: what is said without waiting for an answer arrives, or the connection ends. */
#include "net/conn.h"

#include "net/names.h"

#include "common/clock.h"
#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/unit/net/fakemaster.h"

#include "proto/kvpool.pb-c.h"
#include "tests/cases.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define LONG_NS (20 * KVP_NS_PER_S)

/* Of the test at hand. */
static fake_master_t master;
static kvp_conn_t *conn;

static int
setup(void **state)
{
    kvp_framed_t framed;
    kvp_hello_ask_t ask = {.name = "a test", .host_id = "a host", .pidfd = -1};
    char detail[160];

    fake_master_start(&master);
    kvp_framed_init(&framed);
    assert_int_equal(kvp_names_connect(NULL, "127.0.0.1", master.port, kvp_now_ns() + LONG_NS, &framed), KVP_OK);
    assert_int_equal(kvp_conn_open(&framed, &ask, kvp_now_ns() + LONG_NS, detail, sizeof detail, &conn), KVP_OK);
    return 0;
}

static int
teardown(void **state)
{
    kvp_conn_destroy(conn);
    fake_master_end(&master);
    return 0;
}

/* A one-way message of that many bytes behind its head; owned by the caller. */
static kvp_buf_t
make_release(size_t tail_bytes)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;
    kvp_buf_t frame;
    size_t at;

    kvp_buf_init(&frame, 0);
    kvp_pb_frame_begin(&frame, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, 0, &head.base, &at);
    assert_non_null(kvp_buf_extend(&frame, tail_bytes));
    kvp_frame_end(&frame, at);
    assert_int_equal(frame.err, KVP_OK);
    return frame;
}

TEST_WITH(test_what_is_sent_arrives, setup, teardown)
{
    kvp_buf_t frame = make_release(8);

    for (int i = 0; i < 3; i++)
        kvp_conn_send(conn, &frame);
    while (master.releases < 3)
        sched_yield();
    assert_false(kvp_conn_is_broken(conn));
    kvp_buf_fini(&frame);
}

/* The master would keep what the message gives up for as long as it believes in the session. */
TEST_WITH(test_a_message_that_cannot_be_queued_ends_the_connection, setup, teardown)
{
    kvp_buf_t frame = make_release(KVP_FRAME_MAX - 64);
    int n = 0;

    master.server.is_deaf = true;
    while (!kvp_conn_is_broken(conn) && n < 128) {
        kvp_conn_send(conn, &frame);
        n++;
    }
    assert_in_range(n, 64, 127); /* a while it is queued; then there is an end to it */
    kvp_buf_fini(&frame);
}

TEST_WITH(test_a_message_without_memory_ends_the_connection, setup, teardown)
{
    kvp_buf_t frame;

    kvp_buf_init(&frame, 0);
    frame.err = KVP_NOMEM; /* as the one who wrote it leaves it */
    kvp_conn_send(conn, &frame);
    assert_true(kvp_conn_is_broken(conn));
    kvp_buf_fini(&frame);
}

TEST_MAIN()
