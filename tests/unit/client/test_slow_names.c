/* SPDX-License-Identifier: Apache-2.0
 * A master that is told by name, and a resolver that does not answer: calls end at their deadlines.
 */
#include "client/kvpool.h"

#include "common/clock.h"
#include "tests/unit/client/fakemaster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <netdb.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define STUCK_MAX_NS (5 * KVP_NS_PER_S)
#define NO_BEAT_MS 60000u

static _Atomic bool is_stuck;
static _Atomic uint64_t waited;

/* The linker puts these in the place of getaddrinfo. */
int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res);

int
__wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
    uint64_t until_ns = kvp_now_ns() + STUCK_MAX_NS;

    waited += is_stuck;
    while (is_stuck && kvp_now_ns() < until_ns)
        usleep(1000);
    return __real_getaddrinfo(node, service, hints, res);
}

static int
ask(kvpool_t *pool, uint32_t deadline_ms)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts, .deadline_ms = deadline_ms};
    int yes;

    return kvpool_exists(pool, "k", 1, &yes, &opts);
}

static void
test_calls_do_not_wait_for_a_name(void **state)
{
    fake_master_t master;
    char at[64];
    kvpool_conf_t conf = {.struct_size = sizeof conf, .master = at, .deadline_ms = 20000};
    kvpool_t *pool;
    uint64_t began_ns;

    (void)state;
    fake_master_start(&master);
    master.heartbeat_ms = NO_BEAT_MS; /* it is the call that finds the connection lost */
    snprintf(at, sizeof at, "localhost:%u", master.port);
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
    assert_int_equal(ask(pool, 20000), KVPOOL_OK);

    is_stuck = true;
    master.is_cutting = true;
    while (master.is_cutting)
        sched_yield();
    began_ns = kvp_now_ns();
    assert_int_not_equal(ask(pool, 50), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns < STUCK_MAX_NS / 2);
    while (waited == 0) /* in the background it was asked for */
        sched_yield();
    is_stuck = false;
    assert_int_equal(ask(pool, 20000), KVPOOL_OK);
    kvpool_free(pool);
    fake_master_end(&master);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_do_not_wait_for_a_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
