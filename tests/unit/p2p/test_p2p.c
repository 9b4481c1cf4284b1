/* SPDX-License-Identifier: Apache-2.0
 * Endpoints of peer-to-peer transfers against one another, through kvpool_p2p.h alone: by copies between processes
 * and by TCP, with memory that comes and goes. Peers that are killed or stopped: tests/e2e/test_python_engine.py.
 * What is said on the wire: test_p2p_wire.c. */
#include "client/kvpool_p2p.h"

#include "common/clock.h"
#include "tests/unit/forked.h"
#include "tests/unit/loopback.h"
#include "tests/unit/p2p/p2pend.h"
#include "tests/cases.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes arrive */
static void
roundtrip(const char *transports)
{
    end_t a, b;
    uint8_t *want = malloc(END_BYTES);
    kvpool_p2p_stat_t stat;

    assert_non_null(want);
    open_ends(&a, &b, END_BYTES, transports);
    fill(a.mem, END_BYTES, 1);
    memcpy(want, a.mem, END_BYTES);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, END_BYTES), KVPOOL_OK);
    assert_memory_equal(b.mem, want, END_BYTES);
    /* An odd piece in the middle, and not a byte beside it. */
    fill(a.mem, END_BYTES, 2);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 777, 1001, 4099), KVPOOL_OK);
    memcpy(want + 1001, a.mem + 777, 4099);
    assert_memory_equal(b.mem, want, END_BYTES);
    memset(a.mem, 0, END_BYTES);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_READ, 5, 3, END_BYTES - 5), KVPOOL_OK);
    assert_memory_equal(a.mem + 5, want + 3, END_BYTES - 5);
    assert_int_equal(a.mem[4], 0);
    stat = stat_of(&a);
    assert_int_equal(stat.transfers, 3);
    assert_int_equal(stat.connects, 1);
    assert_int_equal(strcmp(transports, "tcp") == 0 ? stat.tcp_bytes : stat.cma_bytes, 2 * END_BYTES - 5 + 4099);
    assert_int_equal(strcmp(transports, "tcp") == 0 ? stat.cma_bytes : stat.tcp_bytes, 0);
    close_ends(&a, &b);
    free(want);
}

TEST(test_roundtrip)
{
    roundtrip("cma");
    roundtrip("tcp");
}

/* More pieces than a window has, in no order, some empty. */
static void
batch(const char *transports)
{
    enum { N = 2500, PIECE = 1000 };
    kvpool_p2p_op_t *ops = calloc(N, sizeof *ops);
    end_t a, b;

    assert_non_null(ops);
    open_ends(&a, &b, END_BYTES, transports);
    fill(a.mem, END_BYTES, 3);
    for (size_t i = 0; i < N; i++) {
        size_t to = (i * 7) % N;

        ops[i] = (kvpool_p2p_op_t){
            .local = a.mem + i * PIECE, .remote = (uintptr_t)b.mem + to * PIECE, .len = i % 50 == 0 ? 0 : PIECE};
    }
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, ops, N, 0), KVPOOL_OK);
    for (size_t i = 0; i < N; i++) {
        const uint8_t *there = b.mem + (i * 7) % N * PIECE;

        if (i % 50 != 0) assert_memory_equal(there, a.mem + i * PIECE, PIECE);
        if (i % 50 == 0) assert_true(there[0] == 0 && memcmp(there, there + 1, PIECE - 1) == 0);
    }
    memset(a.mem, 0, END_BYTES);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_READ, ops, N, 0), KVPOOL_OK);
    for (size_t i = 0; i < N; i++)
        if (i % 50 != 0) assert_memory_equal(b.mem + (i * 7) % N * PIECE, a.mem + i * PIECE, PIECE);
    close_ends(&a, &b);
    free(ops);
}

TEST(test_batches)
{
    batch("cma,tcp");
    batch("tcp");
}

/* ---- what is refused */
static void
refusals(const char *transports)
{
    end_t a, b;
    uint8_t *loose = calloc(1, 4096);
    kvpool_p2p_op_t ops[2] = {0};

    assert_non_null(loose);
    open_ends(&a, &b, END_BYTES, transports);
    fill(a.mem, END_BYTES, 4);
    for (int kind = KVPOOL_P2P_READ; kind <= KVPOOL_P2P_WRITE; kind++) {
        assert_int_equal(move(&a, &b, kind, 0, 1, END_BYTES), KVPOOL_NOT_REGISTERED);
        assert_int_equal(move(&a, &b, kind, 0, END_BYTES, 1), KVPOOL_NOT_REGISTERED);
        ops[0] = (kvpool_p2p_op_t){.local = a.mem, .remote = (uintptr_t)loose, .len = 16};
        assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, kind, ops, 1, 0), KVPOOL_NOT_REGISTERED);
        ops[0].remote = UINT64_MAX - 7;
        assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, kind, ops, 1, 0), KVPOOL_INVALID);
        ops[0] = (kvpool_p2p_op_t){.local = a.mem, .remote = (uintptr_t)b.mem, .len = 16, .token = b.token ^ 1};
        assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, kind, ops, 1, 0), KVPOOL_NOT_REGISTERED);
        ops[0].local = NULL;
        assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, kind, ops, 1, 0), KVPOOL_INVALID);
    }
    expect_all(loose, 4096, 0);
    expect_all(b.mem, END_BYTES, 0);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, END_BYTES), KVPOOL_OK);
    close_ends(&a, &b);
    free(loose);
}

TEST(test_out_of_range_is_refused)
{
    refusals("cma,tcp");
    refusals("tcp");
}

TEST(test_arguments)
{
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf};
    char detail[200];
    kvpool_p2p_t *none = NULL;
    kvpool_p2p_op_t op = {0};
    int result;
    end_t a;

    conf.detail = detail;
    conf.detail_cap = sizeof detail;
    conf.transports = "rdma";
    assert_int_equal(setenv("KVPOOL_RDMA_DEVICE", "of-no-machine", 1), 0);
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_NOTSUP);
    assert_int_equal(unsetenv("KVPOOL_RDMA_DEVICE"), 0);
    assert_non_null(strstr(detail, "rdma"));
    conf.transports = "shm";
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_INVALID);
    conf.transports = "cma,";
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_INVALID);
    conf.transports = NULL;
    conf.listen = "nowhere";
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_INVALID);
    conf.listen = NULL;
    conf.flags = 64;
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_INVALID);
    conf.flags = 0;
    assert_int_equal(setenv("KVPOOL_VERIFY", "all", 1), 0);
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_INVALID);
    assert_int_equal(unsetenv("KVPOOL_VERIFY"), 0);
    assert_non_null(strstr(detail, "KVPOOL_VERIFY"));
    conf.struct_size = 1;
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_INVALID);
    assert_null(none);

    open_end(&a, NULL, 0, 0);
    conf =
        (kvpool_p2p_conf_t){.struct_size = sizeof conf, .listen = a.at, .detail = detail, .detail_cap = sizeof detail};
    assert_int_equal(kvpool_p2p_open(&conf, &none), KVPOOL_SYS);
    assert_non_null(strstr(detail, "in use"));
    assert_int_equal(kvpool_p2p_register(a.p2p, a.mem + 100, 10, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_p2p_register(a.p2p, NULL, 10, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_p2p_unregister(a.p2p, a.mem + 100), KVPOOL_NOT_REGISTERED);
    for (size_t i = 0; i < 3; i++) {
        static const char *const bad[] = {"", "127.0.0.1", "127.0.0.1:0"};

        assert_int_equal(kvpool_p2p_transfer(a.p2p, bad[i], KVPOOL_P2P_READ, &op, 1, 0), KVPOOL_INVALID);
    }
    assert_int_equal(kvpool_p2p_transfer(a.p2p, a.at, 7, &op, 1, 0), KVPOOL_INVALID);
    assert_int_equal(kvpool_p2p_poll(a.p2p, 99, 0, &result), KVPOOL_NOT_FOUND);
    assert_int_equal(kvpool_p2p_close(a.p2p), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_close(a.p2p), KVPOOL_CLOSED);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, a.at, KVPOOL_P2P_READ, &op, 1, 0), KVPOOL_CLOSED);
    assert_int_equal(kvpool_p2p_unregister(a.p2p, a.mem), KVPOOL_CLOSED);
    close_end(&a);
}

TEST(test_tokens_may_be_demanded)
{
    kvpool_p2p_op_t op;
    uint64_t addr;
    size_t len;
    end_t a, b;

    open_end(&a, "tcp", 0, 0);
    open_end(&b, "tcp", KVPOOL_P2P_TOKENS, 0);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 64), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_first_range(a.p2p, b.at, 0, &addr, &len), KVPOOL_NOT_REGISTERED);
    op = (kvpool_p2p_op_t){.local = a.mem, .remote = (uintptr_t)b.mem, .len = 64, .token = b.token};
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_OK);
    /* Registered anew it is another one, and the old token is worth nothing. */
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, END_BYTES, &b.token), KVPOOL_OK);
    assert_true(b.token != op.token);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_NOT_REGISTERED);
    op.token = b.token;
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_OK);
    close_ends(&a, &b);
}

/* ---- peers that come and go */
static void
restart(const char *transports)
{
    end_t a, b;
    uint16_t port;

    open_ends(&a, &b, END_BYTES, transports);
    port = kvpool_p2p_port(b.p2p);
    fill(a.mem, END_BYTES, 5);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 4096), KVPOOL_OK);
    close_end(&b);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 4096), KVPOOL_UNREACHABLE);
    open_end(&b, transports, 0, port);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 4096), KVPOOL_OK);
    assert_memory_equal(b.mem, a.mem, 4096);
    close_end(&b);
    /* This time nobody asks in between: the lane that is kept is the old endpoint's. */
    open_end(&b, transports, 0, port);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 100, 0, 4096), KVPOOL_OK);
    assert_memory_equal(b.mem, a.mem + 100, 4096);
    close_ends(&a, &b);
}

TEST(test_restart_on_the_same_port)
{
    restart("cma,tcp");
    restart("tcp");
}

typedef struct {
    const end_t *from, *to;
    _Atomic bool is_over;
    _Atomic int other; /* the last error that unregister does not cause */
    _Atomic uint32_t ok_n, refused_n, cut_n;
    _Atomic uint32_t threads_n; /* each writes a half of its own: what two write at once is nobody's */
} load_t;

static void *
load_main(void *arg)
{
    load_t *load = arg;
    size_t half = END_BYTES / 2, at = atomic_fetch_add(&load->threads_n, 1) * half;

    while (!atomic_load(&load->is_over)) {
        int err = move(load->from, load->to, KVPOOL_P2P_WRITE, at, at, half);

        if (err == KVPOOL_OK)
            atomic_fetch_add(&load->ok_n, 1);
        else if (err == KVPOOL_NOT_REGISTERED)
            atomic_fetch_add(&load->refused_n, 1);
        else if (err == KVPOOL_DISCONNECTED) /* one unregister cut this write, and another its second try */
            atomic_fetch_add(&load->cut_n, 1);
        else
            atomic_store(&load->other, err);
    }
    return NULL;
}

/* After unregister has returned the memory is the owner's: what it writes there stays. */
static void
unregister_under_load(const char *transports)
{
    end_t a, b;
    load_t load = {.from = &a, .to = &b};
    pthread_t threads[2];

    open_ends(&a, &b, END_BYTES, transports);
    memset(a.mem, 0x5a, END_BYTES);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load_main, &load), 0);
    for (int round = 0; round < 5; round++) {
        wait_for(&load.ok_n, 3);
        assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
        memset(b.mem, 0, END_BYTES);
        wait_for(&load.refused_n, 4);
        expect_all(b.mem, END_BYTES, 0);
        assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, END_BYTES, NULL), KVPOOL_OK);
    }
    atomic_store(&load.is_over, true);
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(load.other, KVPOOL_OK);
    assert_true(load.cut_n <= 2 * (5 / 2)); /* a write is cut by two of the five unregisters, in each thread */
    close_ends(&a, &b);
}

TEST(test_unregister_under_load)
{
    unregister_under_load("cma");
    unregister_under_load("tcp");
}

/* Somebody listens and never says a word. Whoever waits for it is let go by close. */
typedef struct {
    const end_t *end;
    char peer[32];
    int err;
} waiter_t;

static void *
wait_main(void *arg)
{
    waiter_t *w = arg;
    kvpool_p2p_op_t op = {.local = w->end->mem, .remote = 4096, .len = 16};

    w->err = kvpool_p2p_transfer(w->end->p2p, w->peer, KVPOOL_P2P_WRITE, &op, 1, 60000);
    return NULL;
}

TEST(test_close_lets_go_who_waits)
{
    int fd, conn;
    kvpool_p2p_op_t op;
    uint64_t id, began_ns;
    pthread_t thread;
    waiter_t w = {.err = 1};
    end_t a;

    open_end(&a, NULL, 0, 0);
    w.end = &a;
    fd = listen_local(w.peer);
    assert_int_equal(pthread_create(&thread, NULL, wait_main, &w), 0);
    conn = accept(fd, NULL, NULL);
    assert_true(conn >= 0);
    op = (kvpool_p2p_op_t){.local = a.mem, .remote = 4096, .len = 16};
    assert_int_equal(kvpool_p2p_submit(a.p2p, w.peer, KVPOOL_P2P_WRITE, &op, 1, 60000, &id), KVPOOL_OK);
    began_ns = kvp_now_ns();
    assert_int_equal(kvpool_p2p_close(a.p2p), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns < 10 * KVP_NS_PER_S);
    pthread_join(thread, NULL);
    assert_int_equal(w.err, KVPOOL_CLOSED);
    close(conn);
    close(fd);
    close_end(&a);
}

/* Memory may be freed once it is unregistered: transfers that wait for a thread use it as much as those that have one.
 */
TEST(test_unregister_waits_for_what_is_queued)
{
    uint64_t ids[8], began_ns = kvp_now_ns();
    int result, fd;
    char peer[32];
    end_t a;

    open_end(&a, NULL, 0, 0);
    fd = listen_local(peer);
    for (size_t i = 0; i < 8; i++) {
        kvpool_p2p_op_t op = {.local = a.mem, .remote = 4096, .len = 16};

        assert_int_equal(kvpool_p2p_submit(a.p2p, peer, KVPOOL_P2P_WRITE, &op, 1, 2000, &ids[i]), KVPOOL_OK);
    }
    assert_int_equal(kvpool_p2p_unregister(a.p2p, a.mem), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns >= 2 * KVP_NS_PER_S);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(kvpool_p2p_poll(a.p2p, ids[i], 500, &result), KVPOOL_OK);
        assert_int_equal(result, KVPOOL_DEADLINE);
    }
    close(fd);
    close_end(&a);
}

/* ---- the rest */
TEST(test_submit_and_poll)
{
    kvpool_p2p_op_t op;
    uint64_t ids[8], id;
    end_t a, b;
    int result = 1;

    open_ends(&a, &b, END_BYTES, NULL);
    fill(a.mem, END_BYTES, 6);
    for (size_t i = 0; i < 8; i++) {
        op = (kvpool_p2p_op_t){.local = a.mem + i * 1000, .remote = (uintptr_t)b.mem + i * 1000, .len = 1000};
        assert_int_equal(kvpool_p2p_submit(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0, &ids[i]), KVPOOL_OK);
        assert_true(ids[i] != 0);
    }
    op.remote = 64;
    assert_int_equal(kvpool_p2p_submit(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0, &id), KVPOOL_OK);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(kvpool_p2p_poll(a.p2p, ids[i], 10000, &result), KVPOOL_OK);
        assert_int_equal(result, KVPOOL_OK);
        assert_int_equal(kvpool_p2p_poll(a.p2p, ids[i], 0, &result), KVPOOL_NOT_FOUND);
    }
    assert_memory_equal(a.mem, b.mem, 8000);
    assert_int_equal(kvpool_p2p_poll(a.p2p, id, 10000, &result), KVPOOL_OK);
    assert_int_equal(result, KVPOOL_NOT_REGISTERED);
    assert_int_equal(stat_of(&a).transfers, 8);
    assert_int_equal(stat_of(&a).failed, 1);

    /* What is refused at once has failed as well, and the same of both calls. */
    assert_int_equal(kvpool_p2p_submit(a.p2p, "nowhere", KVPOOL_P2P_WRITE, &op, 1, 0, &id), KVPOOL_INVALID);
    assert_int_equal(stat_of(&a).failed, 2);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, "nowhere", KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_INVALID);
    assert_int_equal(stat_of(&a).failed, 3);
    assert_int_equal(stat_of(&a).transfers, 8);
    close_ends(&a, &b);
}

TEST(test_first_range_and_notes)
{
    char *name, *message, *long_name = calloc(1, 300);
    uint64_t addr;
    size_t len;
    end_t a, b;

    open_ends(&a, &b, END_BYTES, NULL);
    assert_int_equal(kvpool_p2p_first_range(a.p2p, b.at, 0, &addr, &len), KVPOOL_OK);
    assert_true(addr == (uintptr_t)b.mem && len == END_BYTES);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_first_range(a.p2p, b.at, 0, &addr, &len), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_take_notify(b.p2p, &name, &message), KVPOOL_NOT_FOUND);
    assert_int_equal(kvpool_p2p_notify(a.p2p, b.at, "one", "first", 0), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_notify(a.p2p, b.at, "two", "", 0), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_take_notify(b.p2p, &name, &message), KVPOOL_OK);
    assert_string_equal(name, "one");
    assert_string_equal(message, "first");
    free(name);
    assert_int_equal(kvpool_p2p_take_notify(b.p2p, &name, &message), KVPOOL_OK);
    assert_string_equal(name, "two");
    assert_string_equal(message, "");
    free(name);
    memset(long_name, 'x', 299);
    assert_int_equal(kvpool_p2p_notify(a.p2p, b.at, long_name, "", 0), KVPOOL_INVALID);
    /* Nobody takes them: they do not pile up. */
    for (int i = 0; i < 1024; i++)
        assert_int_equal(kvpool_p2p_notify(a.p2p, b.at, "n", "m", 0), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_notify(a.p2p, b.at, "n", "m", 0), KVPOOL_LIMIT);
    assert_int_equal(stat_of(&a).connects, 1);
    free(long_name);
    close_ends(&a, &b);
}

typedef struct {
    const end_t *a, *b;
} pair_t;

static int
use_in_child(void *arg)
{
    const pair_t *pair = arg;
    bool is_told = move(pair->a, pair->b, KVPOOL_P2P_WRITE, 0, 0, 64) == KVPOOL_FORKED &&
                   kvpool_p2p_close(pair->a->p2p) == KVPOOL_FORKED;

    kvpool_p2p_free(pair->a->p2p);
    return is_told ? 0 : 1;
}

TEST(test_a_forked_child_is_told)
{
    end_t a, b;

    open_ends(&a, &b, END_BYTES, NULL);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 64), KVPOOL_OK);
    expect_in_child(use_in_child, &(pair_t){&a, &b});
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 64), KVPOOL_OK);
    close_ends(&a, &b);
}

TEST_MAIN()
