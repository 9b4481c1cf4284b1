/* SPDX-License-Identifier: Apache-2.0
 * Several masters, of which one leads: it is found soon, whatever the others do, and again when it leads no more. */
#include "client/kvpool.h"

#include "net/masters.h"
#include "common/clock.h"
#include "tests/unit/net/fakemaster.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MASTERS 3
#define SOON_MS 700u /* less than any timeout, on a machine that is busy */
#define LONG_MS 20000u
#define FILLERS 4

/* Of the test at hand. */
static fake_master_t masters[MASTERS];
static bool is_serving[MASTERS];
static char list[160];
static kvpool_t *pool;

static void
end(int i)
{
    if (is_serving[i]) fake_master_end(&masters[i]);
    is_serving[i] = false;
}

/* All are standbys at first, whose sessions would have a long life. */
static int
setup(void **state)
{
    for (int i = 0; i < MASTERS; i++) {
        fake_master_start(&masters[i]);
        masters[i].is_standby = true;
        masters[i].ttl_ms = LONG_MS;
        is_serving[i] = true;
    }
    snprintf(list, sizeof list, "127.0.0.1:%u,127.0.0.1:%u,127.0.0.1:%u", masters[0].port, masters[1].port,
             masters[2].port);
    return 0;
}

static int
teardown(void **state)
{
    kvpool_free(pool);
    pool = NULL;
    for (int i = 0; i < MASTERS; i++)
        end(i);
    return 0;
}

static void
lead(int i, uint32_t term)
{
    masters[i].term = term;
    masters[i].is_standby = false;
}

static uint64_t
ms_since(uint64_t began_ns)
{
    return (kvp_now_ns() - began_ns) / KVP_NS_PER_MS;
}

static void
pass_ms(uint64_t ms)
{
    usleep((useconds_t)(ms * 1000));
}

static int
open_at(const char *at, uint32_t deadline_ms)
{
    kvpool_conf_t conf = {.struct_size = sizeof conf, .master = at, .deadline_ms = deadline_ms};

    return kvpool_open(&conf, &pool);
}

static int
ask(uint32_t deadline_ms)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts, .deadline_ms = deadline_ms};
    int yes;

    return kvpool_exists(pool, "k", 1, &yes, &opts);
}

TEST_TIMED(test_the_leader_is_the_second_of_three, setup, teardown)
{
    uint64_t began = kvp_now_ns();

    lead(1, 1);
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    assert_int_equal(ask(LONG_MS), KVPOOL_OK);
    assert_timely(ms_since(began), 0, SOON_MS);
    assert_int_equal(masters[1].hellos, 1);
    assert_int_equal(masters[0].hellos + masters[2].hellos, 0);
}

/* It takes connections, for whoever is asked is the kernel. */
TEST_TIMED(test_a_master_that_is_stopped_costs_no_timeout, setup, teardown)
{
    uint64_t began = kvp_now_ns();

    lead(1, 1);
    masters[0].server.is_deaf = true;
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    assert_timely(ms_since(began), 0, SOON_MS);
}

/* Fills the queue of a listener, so that who connects next hears nothing. Returns how many sockets that took. */
static int
fill(const struct sockaddr_in *at, int fillers[FILLERS])
{
    for (int i = 0; i < FILLERS; i++) {
        struct pollfd p = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), .events = POLLOUT};

        fillers[i] = p.fd;
        if (connect(p.fd, (const struct sockaddr *)at, sizeof *at) == 0) continue;
        if (poll(&p, 1, 100) == 0) return i + 1;
    }
    return 0;
}

TEST_TIMED(test_a_host_that_is_dead_costs_no_timeout, setup, teardown)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int dead = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fillers[FILLERS], n;
    socklen_t len = sizeof at;
    uint64_t began;

    assert_int_equal(bind(dead, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(dead, 0), 0);
    assert_int_equal(getsockname(dead, (struct sockaddr *)&at, &len), 0);
    n = fill(&at, fillers);
    if (n == 0) {
        print_message("this kernel takes all connections\n");
        skip();
    }
    snprintf(list, sizeof list, "127.0.0.1:%u,127.0.0.1:%u", ntohs(at.sin_port), masters[1].port);
    lead(1, 1);
    began = kvp_now_ns();
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    assert_timely(ms_since(began), 0, SOON_MS);
    for (int i = 0; i < n; i++)
        close(fillers[i]);
    close(dead);
}

typedef struct {
    int i;
    uint64_t after_ms;
} leading_t;

static void *
lead_later(void *arg)
{
    const leading_t *l = arg;

    pass_ms(l->after_ms);
    lead(l->i, 2);
    if (!is_serving[l->i]) fake_master_serve(&masters[l->i]);
    is_serving[l->i] = true;
    return NULL;
}

static pthread_t
start_leading(const leading_t *l)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, lead_later, (void *)l), 0);
    return thread;
}

/* A standby that is there, or a port where nobody listens before. */
TEST_TIMED(test_a_leader_that_appears_is_found_soon, setup, teardown)
{
    const leading_t leading = {.i = 2, .after_ms = 1000};

    for (int is_there = 0; is_there < 2; is_there++) {
        uint64_t began;
        pthread_t thread;

        if (!is_there) {
            end(2);
            fake_master_bind(&masters[2]);
            snprintf(list, sizeof list, "127.0.0.1:%u,127.0.0.1:%u,127.0.0.1:%u", masters[0].port, masters[1].port,
                     masters[2].port);
        }
        masters[2].is_standby = true;
        began = kvp_now_ns();
        thread = start_leading(&leading);
        assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
        assert_timely(ms_since(began), 950, 1000 + SOON_MS);
        pthread_join(thread, NULL);
        kvpool_free(pool);
        pool = NULL;
    }
}

TEST_TIMED(test_nobody_leads, setup, teardown)
{
    uint64_t began = kvp_now_ns();

    assert_int_equal(open_at(list, 500), KVPOOL_UNREACHABLE);
    assert_timely(ms_since(began), 500, 500 + SOON_MS);
    for (int i = 0; i < MASTERS; i++) {
        assert_int_equal(masters[i].watches, 1); /* who is a standby is left alone */
        assert_int_equal(masters[i].hellos, 0);
    }
}

TEST_TIMED(test_calls_wait_for_the_next_leader, setup, teardown)
{
    const leading_t leading = {.i = 2, .after_ms = 500};
    uint64_t began;
    pthread_t thread;

    lead(0, 1);
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    while (masters[2].watches == 0)
        sched_yield();
    end(0);
    began = kvp_now_ns();
    thread = start_leading(&leading);
    assert_int_equal(ask(LONG_MS), KVPOOL_OK);
    assert_timely(ms_since(began), 0, 500 + SOON_MS);
    pthread_join(thread, NULL);
    assert_int_equal(masters[2].watches, 1); /* it was asked before */
    assert_int_equal(masters[2].hellos, 1);
}

/* With a call that waits for it, and with heartbeats alone. */
TEST_TIMED(test_a_silent_leader_is_left_for_the_next, setup, teardown)
{
    lead(0, 1);
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    for (int i = 1; i < MASTERS; i++) {
        uint64_t began = kvp_now_ns();

        while (masters[i].watches == 0)
            sched_yield();
        masters[i - 1].is_mute = true;
        pass_ms(100); /* a heartbeat waits by now */
        lead(i, (uint32_t)i + 1);
        if (i == 1) assert_int_equal(ask(LONG_MS), KVPOOL_OK);
        while (masters[i].hellos == 0 && ms_since(began) < LONG_MS)
            sched_yield();
        assert_timely(ms_since(began), 0, 100 + SOON_MS);
    }
}

TEST_WITH(test_a_call_that_is_refused_finds_the_next_leader, setup, teardown)
{
    char text[4096];
    size_t len;

    lead(0, 1);
    masters[0].heartbeat_ms = LONG_MS; /* so that the call is the first to hear it */
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    masters[0].is_standby = true;
    assert_int_equal(ask(300), KVPOOL_UNREACHABLE);
    lead(1, 2);
    assert_int_equal(ask(LONG_MS), KVPOOL_OK);
    assert_int_equal(masters[1].hellos, 1);
    assert_int_equal(kvpool_stat(pool, text, sizeof text, &len, NULL), KVPOOL_NOTSUP); /* of this fake */
}

/* It answers WATCH with the higher term, and Hello not. */
TEST_WITH(test_one_that_leads_no_more_when_it_is_greeted, setup, teardown)
{
    lead(0, 5);
    lead(1, 4);
    masters[0].hello_err = KVP_NOT_LEADER;
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    pass_ms(500); /* that one still claims it */
    assert_int_equal(ask(LONG_MS), KVPOOL_OK);
    assert_in_range(masters[1].hellos, 1, 2); /* two where it was the first to answer */
}

TEST_WITH(test_the_highest_term_goes_first, setup, teardown)
{
    const kvp_hostport_t *at;
    kvp_masters_t *m;
    kvp_framed_t c;

    for (int i = 0; i < MASTERS; i++)
        lead(i, i == 1 ? 9 : 3);
    assert_int_equal(kvp_masters_create(list, NULL, NULL, &m), KVP_OK);
    for (int i = 0; i < 100; i++) { /* by then all have answered */
        (void)kvp_masters_tend(m, 2);
        pass_ms(5);
    }
    assert_true(kvp_masters_tend(m, 2));
    assert_int_equal(kvp_masters_find(m, NULL, kvp_now_ns() + LONG_MS * KVP_NS_PER_MS, &c, &at), KVP_OK);
    assert_int_equal(at->port, masters[1].port);
    kvp_framed_fini(&c);
    assert_false(kvp_masters_tend(m, 2)); /* the others are no news */
    for (int i = 0; i < MASTERS; i++)
        masters[i].is_standby = true;
    assert_int_equal(kvp_masters_find(m, NULL, kvp_now_ns() + 300 * KVP_NS_PER_MS, &c, &at), KVP_DEADLINE);
    assert_non_null(strstr(kvp_masters_why(m), "no master leads; 127.0.0.1:"));
    for (int i = 0; i < MASTERS; i++)
        end(i);
    assert_int_equal(kvp_masters_find(m, NULL, kvp_now_ns() + 300 * KVP_NS_PER_MS, &c, &at), KVP_UNREACHABLE);
    assert_null(strstr(kvp_masters_why(m), "no master leads"));
    assert_non_null(strstr(kvp_masters_why(m), "Connection refused"));
    kvp_masters_destroy(m);
}

/* Its side of the connection is gone, and this one was not told. */
TEST_TIMED(test_a_connection_that_is_no_use_hides_no_leader, setup, teardown)
{
    uint64_t began;

    masters[1].is_losing_watches = true;
    lead(0, 1);
    assert_int_equal(open_at(list, LONG_MS), KVPOOL_OK);
    while (masters[1].watches == 0)
        sched_yield();
    pass_ms(2100);
    masters[1].is_losing_watches = false;
    lead(1, 2);
    end(0);
    began = kvp_now_ns();
    assert_int_equal(ask(LONG_MS), KVPOOL_OK);
    assert_timely(ms_since(began), 0, 300 + SOON_MS);
}

TEST_WITH(test_one_master_is_asked_nothing, setup, teardown)
{
    char at[32];

    snprintf(at, sizeof at, "127.0.0.1:%u", masters[0].port);
    assert_int_equal(open_at(at, 300), KVPOOL_UNREACHABLE);
    assert_true(masters[0].hellos > 1);
    lead(0, 1);
    assert_int_equal(open_at(at, LONG_MS), KVPOOL_OK);
    assert_int_equal(ask(LONG_MS), KVPOOL_OK);
    masters[0].is_standby = true;
    assert_int_equal(ask(300), KVPOOL_UNREACHABLE);
    assert_int_equal(masters[0].watches, 0);
}

static int
take_none(void *arg, const void *key, size_t key_len, uint64_t len)
{
    return 0;
}

TEST_TIMED(test_a_standby_tells_its_state, setup, teardown)
{
    char at[32], text[4096];
    kvpool_conf_t conf = {.struct_size = sizeof conf, .master = at, .deadline_ms = 5000, .state_only = true};
    uint64_t cursor = 0, hellos, began = kvp_now_ns();
    size_t len;

    snprintf(at, sizeof at, "127.0.0.1:%u", masters[0].port);
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
    hellos = masters[0].hellos;
    pass_ms(100);
    assert_int_equal(kvpool_list(pool, "", 0, 1, &cursor, take_none, NULL, NULL), KVPOOL_NOTSUP); /* of this fake */
    assert_int_equal(kvpool_stat(pool, text, sizeof text, &len, NULL), KVPOOL_NOTSUP);
    assert_int_equal(ask(0), KVPOOL_NOT_LEADER);
    assert_int_equal(kvpool_put(pool, "k", 1, "v", 1, NULL), KVPOOL_NOT_LEADER);
    assert_int_equal(kvpool_get(pool, "k", 1, text, sizeof text, &len, NULL), KVPOOL_NOT_LEADER);
    assert_int_equal(masters[0].hellos, hellos); /* heartbeats are refused as well, and the session lasts */
    assert_timely(ms_since(began), 0, 100 + SOON_MS);
    kvpool_free(pool);
    pool = NULL;
    conf.memory_bytes = 1 << 20;
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_INVALID);
}

TEST_MAIN()
