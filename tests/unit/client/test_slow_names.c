/* SPDX-License-Identifier: Apache-2.0
 * Hosts that are told by name, and a resolver that does not answer: calls end at their deadlines, and what it says in
 * the end is there for the next. */
#include "client/kvpool.h"

#include "client/kvpool_p2p.h"
#include "net/names.h"
#include "common/clock.h"
#include "tests/unit/net/fakemaster.h"
#include "tests/cases.h"

#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STUCK_MAX_NS (5 * KVP_NS_PER_S)
#define THREADS_MAX 8u

static _Atomic bool is_stuck, is_empty;
static _Atomic uint64_t asked, inside;

/* The linker puts these in the place of getaddrinfo. */
int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res);

/* What is written as an address no name server is asked for. One name has two of them. */
int
__wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
    bool has_two = strcmp(node, "two-addresses") == 0;
    uint64_t until_ns = kvp_now_ns() + STUCK_MAX_NS;
    int rc;

    if ((hints->ai_flags & AI_NUMERICHOST) != 0) return __real_getaddrinfo(node, service, hints, res);
    asked++;
    inside++;
    while (is_stuck && kvp_now_ns() < until_ns)
        usleep(1000);
    rc = is_empty ? EAI_NONAME : __real_getaddrinfo(has_two ? "127.0.0.2" : node, service, hints, res);
    if (rc == 0 && has_two) rc = __real_getaddrinfo("127.0.0.1", service, hints, &(*res)->ai_next);
    inside--;
    return rc;
}

static uint64_t
in_ms(uint64_t ms)
{
    return kvp_now_ns() + ms * KVP_NS_PER_MS;
}

static int
setup(void **state)
{
    fake_master_t *master = calloc(1, sizeof *master);

    fake_master_start(master);
    is_stuck = true;
    is_empty = false;
    asked = 0;
    *state = master;
    return 0;
}

static int
teardown(void **state)
{
    is_stuck = false;
    while (inside > 0)
        sched_yield();
    fake_master_end(*state);
    free(*state);
    return 0;
}

static kvp_err_t
dial(kvp_names_t *names, const char *host, uint16_t port, uint64_t deadline_ns)
{
    kvp_framed_t c;
    kvp_err_t err;

    kvp_framed_init(&c);
    err = kvp_names_connect(names, host, port, deadline_ns, &c);
    assert_int_equal(err == KVP_OK, c.fd >= 0);
    kvp_framed_fini(&c);
    return err;
}

TEST_WITH(test_who_waits_leaves_in_time_and_the_answer_stays, setup, teardown)
{
    const fake_master_t *master = *state;
    uint64_t began_ns = kvp_now_ns();
    kvp_names_t *names;

    assert_int_equal(kvp_names_create(&names), KVP_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(dial(names, "localhost", master->port, in_ms(20)), KVP_DEADLINE);
    assert_true(kvp_now_ns() - began_ns < STUCK_MAX_NS / 2);
    is_stuck = false;
    assert_int_equal(dial(names, "localhost", master->port, in_ms(20000)), KVP_OK);
    assert_int_equal(dial(names, "localhost", master->port, in_ms(20000)), KVP_OK);
    assert_int_equal(asked, 1);
    assert_int_equal(dial(names, "no such host", master->port, in_ms(20000)), KVP_UNREACHABLE);
    kvp_names_destroy(names);
}

/* A name that was known may be known again soon. One that never was is a mistake, which nobody waits for. */
TEST_WITH(test_name_that_was_never_known_is_told_at_once, setup, teardown)
{
    const fake_master_t *master = *state;
    char detail[256], at[64];
    kvpool_conf_t conf = {
        .struct_size = sizeof conf, .master = at, .deadline_ms = 20000, .detail = detail, .detail_cap = sizeof detail};
    uint64_t began_ns = kvp_now_ns();
    kvp_names_t *names;
    kvp_framed_t c;
    kvpool_t *pool;

    is_stuck = false;
    is_empty = true;
    for (int i = 0; i < 2; i++) { /* of one master, and of several */
        snprintf(at, sizeof at, i == 0 ? "nobody:1" : "nobody:1,nothing:2");
        assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_UNREACHABLE);
        assert_non_null(strstr(detail, "does not resolve"));
    }
    assert_true(kvp_now_ns() - began_ns < STUCK_MAX_NS);
    is_empty = false;
    assert_int_equal(kvp_names_create(&names), KVP_OK);
    assert_int_equal(dial(names, "localhost", master->port, in_ms(20000)), KVP_OK);
    is_empty = true;
    kvp_framed_init(&c);
    for (kvp_err_t err = KVP_OK; err == KVP_OK; kvp_framed_fini(&c)) /* until the answer is too old */
        err = kvp_names_connect(names, "localhost", master->port, in_ms(20000), &c);
    assert_false(c.is_unknown);
    assert_int_equal(kvp_names_connect(names, "nobody", master->port, in_ms(20000), &c), KVP_UNREACHABLE);
    assert_true(c.is_unknown);
    kvp_names_destroy(names);
}

/* However many names are asked for; and nobody waits for the threads. */
TEST_WITH(test_threads_are_few, setup, teardown)
{
    const fake_master_t *master = *state;
    uint64_t began_ns = kvp_now_ns();
    kvp_names_t *names;
    char host[32];

    assert_int_equal(kvp_names_create(&names), KVP_OK);
    for (int i = 0; i < 20; i++) {
        snprintf(host, sizeof host, "host %d", i);
        assert_int_equal(dial(names, host, master->port, in_ms(5)), KVP_DEADLINE);
    }
    assert_true(asked <= THREADS_MAX);
    kvp_names_destroy(names);
    assert_true(kvp_now_ns() - began_ns < STUCK_MAX_NS / 2);
}

TEST_WITH(test_an_address_is_not_asked_for, setup, teardown)
{
    const fake_master_t *master = *state;

    assert_int_equal(dial(NULL, "127.0.0.1", master->port, in_ms(20000)), KVP_OK);
    assert_int_equal(dial(NULL, "localhost", master->port, in_ms(20000)), KVP_UNREACHABLE);
    assert_int_equal(asked, 0);
}

TEST_WITH(test_every_address_is_tried, setup, teardown)
{
    const fake_master_t *master = *state;
    kvp_names_t *names;

    is_stuck = false;
    assert_int_equal(kvp_names_create(&names), KVP_OK);
    assert_int_equal(dial(names, "two-addresses", master->port, in_ms(20000)), KVP_OK);
    kvp_names_destroy(names);
}

/* Neither do calls wait for it longer than they may, nor does the end of the handle. */
TEST_WITH(test_a_handle_does_not_wait_for_a_name, setup, teardown)
{
    const fake_master_t *master = *state;
    char at[64];
    kvpool_conf_t conf = {.struct_size = sizeof conf, .master = at, .deadline_ms = 50};
    uint64_t began_ns = kvp_now_ns();
    kvpool_t *pool;
    int yes;

    snprintf(at, sizeof at, "localhost:%u", master->port);
    assert_int_not_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns < STUCK_MAX_NS / 2);
    is_stuck = false;
    conf.deadline_ms = 20000;
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, NULL), KVPOOL_OK);
    kvpool_free(pool);
}

/* The name of one master hides no other. */
TEST_WITH(test_a_leader_is_found_beside_a_name, setup, teardown)
{
    const fake_master_t *master = *state;
    char at[64];
    kvpool_conf_t conf = {.struct_size = sizeof conf, .master = at, .deadline_ms = 20000};
    uint64_t began_ns = kvp_now_ns();
    kvpool_t *pool;

    snprintf(at, sizeof at, "localhost:1,127.0.0.1:%u", master->port);
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns < STUCK_MAX_NS / 2);
    kvpool_free(pool);
    is_stuck = false;
    snprintf(at, sizeof at, "127.0.0.1:1,two-addresses:%u", master->port);
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
    kvpool_free(pool);
}

typedef struct {
    kvpool_p2p_t *p2p;
    int err;
} waiter_t;

static void *
transfer_main(void *arg)
{
    waiter_t *w = arg;
    char byte = 0;
    kvpool_p2p_op_t op = {.local = &byte, .remote = 4096, .len = 1};

    w->err = kvpool_p2p_transfer(w->p2p, "localhost:1", KVPOOL_P2P_READ, &op, 1, 60000);
    return NULL;
}

/* Who waits for a name is let go by close, as everybody else. */
TEST_WITH(test_an_endpoint_that_closes_does_not_wait_for_a_name, setup, teardown)
{
    waiter_t w = {.err = 1};
    uint64_t began_ns;
    pthread_t thread;

    assert_int_equal(kvpool_p2p_open(NULL, &w.p2p), KVPOOL_OK);
    assert_int_equal(pthread_create(&thread, NULL, transfer_main, &w), 0);
    while (asked == 0)
        sched_yield();
    began_ns = kvp_now_ns();
    assert_int_equal(kvpool_p2p_close(w.p2p), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns < STUCK_MAX_NS / 2);
    pthread_join(thread, NULL);
    assert_int_equal(w.err, KVPOOL_CLOSED);
    kvpool_p2p_free(w.p2p);
}

TEST_MAIN()
