/* SPDX-License-Identifier: Apache-2.0
 * One connection to a master: what is said without waiting for an answer arrives, or the connection ends.
 */
#include "client/net/conn.h"

#include "common/clock.h"
#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/unit/client/fakemaster.h"

#include "proto/kvpool.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define LONG_NS (20 * KVP_NS_PER_S)

typedef struct {
    fake_master_t master;
    kvp_conn_t *conn;
} fixture_t;

static void
setup(fixture_t *f)
{
    kvp_hostport_t at = {.host = "127.0.0.1"};
    kvp_hello_ask_t ask = {.name = "a test", .host_id = "a host", .pidfd = -1};
    char detail[160];

    memset(f, 0, sizeof *f);
    fake_master_start(&f->master);
    at.port = f->master.port;
    assert_int_equal(kvp_conn_open(NULL, &at, &ask, kvp_now_ns() + LONG_NS, detail, sizeof detail, &f->conn), KVP_OK);
}

static void
teardown(fixture_t *f)
{
    kvp_conn_destroy(f->conn);
    fake_master_end(&f->master);
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

static void
test_what_is_sent_arrives(void **state)
{
    kvp_buf_t frame = make_release(8);
    fixture_t f;

    (void)state;
    setup(&f);
    for (int i = 0; i < 3; i++)
        kvp_conn_send(f.conn, &frame);
    while (f.master.releases < 3)
        sched_yield();
    assert_false(kvp_conn_is_broken(f.conn));
    kvp_buf_fini(&frame);
    teardown(&f);
}

/* The master would keep what the message gives up for as long as it believes in the session. */
static void
test_a_message_that_cannot_be_queued_ends_the_connection(void **state)
{
    kvp_buf_t frame = make_release(KVP_FRAME_MAX - 64);
    int n = 0;
    fixture_t f;

    (void)state;
    setup(&f);
    f.master.is_deaf = true;
    while (!kvp_conn_is_broken(f.conn) && n < 32) {
        kvp_conn_send(f.conn, &frame);
        n++;
    }
    assert_in_range(n, 4, 31); /* a while it is queued; then there is an end to it */
    kvp_buf_fini(&frame);
    teardown(&f);
}

static void
test_a_message_without_memory_ends_the_connection(void **state)
{
    kvp_buf_t frame;
    fixture_t f;

    (void)state;
    setup(&f);
    kvp_buf_init(&frame, 0);
    frame.err = KVP_NOMEM; /* as the one who wrote it leaves it */
    kvp_conn_send(f.conn, &frame);
    assert_true(kvp_conn_is_broken(f.conn));
    kvp_buf_fini(&frame);
    teardown(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_sent_arrives),
        cmocka_unit_test(test_a_message_that_cannot_be_queued_ends_the_connection),
        cmocka_unit_test(test_a_message_without_memory_ends_the_connection),
    };

    return cmocka_run_group_tests_name("conn", tests, NULL, NULL);
}
