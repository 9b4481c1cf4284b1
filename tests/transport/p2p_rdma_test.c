/* SPDX-License-Identifier: Apache-2.0
 * Endpoints of peer-to-peer transfers against one another by rdma, through kvpool_p2p.h: the whole library, and below
 * it the model NIC, which is what this machine has then. Between processes, over a real kernel's verbs:
 * tests/e2e/test_rdma_p2p.py. */
#include "client/kvpool_p2p.h"

#include "net/hello.h"
#include "net/names.h"
#include "p2p/base/wire.h"
#include "transport/all/registry.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"
#include "common/parse.h"
#include "tests/transport/model_nic.h"
#include "tests/unit/p2p/p2pend.h"
#include "tests/cases.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvp_rule_t kvp_rule_off;

/* ---- steps */
static bool
is_all(const uint8_t *at, size_t n, uint8_t value)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != value) return false;
    return true;
}

static void
reset_nic(uint64_t seed, uint64_t memlock_bytes)
{
    model_nic_conf_t conf = {.is_loopback = true, .memlock_bytes = memlock_bytes};

    assert_in_range(model_nic_reset(seed, &conf), 0, 1); /* the process keeps its devices open */
}

static int
setup(void **state)
{
    (void)state;
    kvp_log_set_level(KVP_LOG_ERROR);
    reset_nic(7, 0);
    return 0;
}

/* Nothing of an endpoint is left at the adapter. */
static int
teardown(void **state)
{
    (void)state;
    model_nic_pause(false);
    return model_nic_regs() == 0 && model_nic_reset(7, NULL) <= 1 ? 0 : -1;
}

/* ---- tests */

/* More pieces than a window has, from memory that is registered and from memory that is not. */
TEST_WITH(test_many_pieces, setup, teardown)
{
    enum { N = 2500, LEN = 700 };
    kvpool_p2p_op_t *ops = calloc(N, sizeof *ops);
    uint8_t *plain = malloc((size_t)N * LEN);
    end_t a, b;

    assert_true(ops != NULL && plain != NULL);
    open_ends(&a, &b, END_BYTES, "rdma");
    fill(a.mem, END_BYTES, 1);
    fill(plain, (size_t)N * LEN, 2);
    for (size_t i = 0; i < N; i++)
        ops[i] = (kvpool_p2p_op_t){.local = (i % 2 == 0 ? a.mem : plain) + i * LEN,
                                   .remote = (uintptr_t)b.mem + (N - 1 - i) * LEN,
                                   .len = LEN,
                                   .token = b.token};
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, ops, N, 0), KVPOOL_OK);
    for (size_t i = 0; i < N; i++)
        assert_memory_equal(ops[i].local, b.mem + (N - 1 - i) * LEN, LEN);
    assert_int_equal(stat_of(&a).rdma_bytes, (uint64_t)N * LEN);
    close_ends(&a, &b);
    free(plain);
    free(ops);
}

TEST_WITH(test_what_is_not_registered, setup, teardown)
{
    kvpool_p2p_op_t op;
    end_t a, b;

    open_end(&a, "rdma", 0, 0);
    open_end(&b, "rdma", KVPOOL_P2P_TOKENS, 0);
    op = (kvpool_p2p_op_t){.local = a.mem, .remote = (uintptr_t)b.mem, .len = 100};
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_READ, &op, 1, 0), KVPOOL_NOT_REGISTERED);
    op.token = b.token + 1;
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_READ, &op, 1, 0), KVPOOL_NOT_REGISTERED);
    op.token = b.token;
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_READ, &op, 1, 0), KVPOOL_OK);
    op.len = END_BYTES + 1;
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_NOT_REGISTERED);
    op.len = 100;
    /* Keys that the asker knows are good for nothing once the range was unregistered, nor for its next registration. */
    memset(a.mem, 1, END_BYTES);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_NOT_REGISTERED);
    assert_true(is_all(b.mem, END_BYTES, 0));
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, END_BYTES, &op.token), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_OK);
    assert_true(is_all(b.mem, 100, 1) && is_all(b.mem + 100, END_BYTES - 100, 0));
    close_ends(&a, &b);
}

typedef struct {
    const end_t *from, *to;
    _Atomic bool is_stopping;
    uint32_t written_n;
} writer_t;

static void *
write_on(void *arg)
{
    writer_t *w = arg;

    while (!atomic_load(&w->is_stopping)) {
        int err = move(w->from, w->to, KVPOOL_P2P_WRITE, 0, 0, 256 << 10);

        if (err == KVPOOL_OK)
            w->written_n++;
        else
            assert_int_equal(err, KVPOOL_NOT_REGISTERED);
    }
    return NULL;
}

/* Fails if a byte lands behind unregister: what the owner stores then is what stays. */
TEST_WITH(test_unregister_under_a_writer, setup, teardown)
{
    writer_t w = {.is_stopping = false};
    uint32_t rounds = 0;
    pthread_t thread;
    end_t a, b;

    open_ends(&a, &b, END_BYTES, "rdma");
    memset(a.mem, 1, END_BYTES);
    w.from = &a;
    w.to = &b;
    assert_int_equal(pthread_create(&thread, NULL, write_on, &w), 0);
    for (; rounds < 30; rounds++) {
        while (((volatile uint8_t *)b.mem)[0] != 1)
            continue;
        assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
        memset(b.mem, 0, 256 << 10);
        for (int i = 0; i < 3; i++) {
            model_nic_settle();
            assert_true(is_all(b.mem, 256 << 10, 0));
        }
        assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, END_BYTES, &b.token), KVPOOL_OK);
    }
    atomic_store(&w.is_stopping, true);
    pthread_join(thread, NULL);
    close_ends(&a, &b);
}

TEST_WITH(test_without_rdma_at_the_other_end, setup, teardown)
{
    end_t by_name, unasked, plain;

    open_end(&by_name, "cma,rdma", 0, 0);
    open_end(&unasked, "rdma,tcp", 0, 0);
    open_end(&plain, "tcp", 0, 0);
    assert_int_equal(move(&by_name, &plain, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_NOTSUP);
    assert_int_equal(stat_of(&by_name).tcp_bytes, 0);
    assert_int_equal(move(&unasked, &plain, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_OK);
    assert_int_equal(stat_of(&unasked).tcp_bytes, 1000);
    /* And who has none reaches one who has. */
    assert_int_equal(move(&plain, &unasked, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_OK);
    assert_int_equal(stat_of(&plain).tcp_bytes, 1000);
    close_ends(&by_name, &unasked);
    close_end(&plain);
}

/* The way between the adapters is down, where that of the sockets is not. */
TEST_WITH(test_path_down, setup, teardown)
{
    end_t by_name, unasked, to;
    kvpool_p2p_op_t op;
    uint64_t began_ns;

    open_end(&by_name, "rdma", 0, 0);
    open_end(&unasked, "cma,rdma,tcp", 0, 0);
    open_end(&to, "rdma,tcp", 0, 0);
    memset(unasked.mem, 3, END_BYTES);
    model_nic_path(0, 0, false);
    op = (kvpool_p2p_op_t){.local = by_name.mem, .remote = (uintptr_t)to.mem, .len = 1000};
    began_ns = kvp_now_ns();
    assert_int_not_equal(kvpool_p2p_transfer(by_name.p2p, to.at, KVPOOL_P2P_WRITE, &op, 1, 1000), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns < 30 * KVP_NS_PER_S);
    assert_int_equal(move(&unasked, &to, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_OK);
    assert_true(is_all(to.mem, 1000, 3));
    assert_int_equal(stat_of(&unasked).tcp_bytes, 1000);
    assert_int_equal(stat_of(&by_name).tcp_bytes, 0);
    model_nic_path(0, 0, true);
    assert_int_equal(move(&by_name, &to, KVPOOL_P2P_READ, 0, 0, 1000), KVPOOL_OK);
    assert_true(is_all(by_name.mem, 1000, 3));
    /* It is tried again. */
    for (uint64_t end_ns = kvp_now_ns() + 60 * KVP_NS_PER_S; stat_of(&unasked).rdma_bytes == 0;) {
        assert_int_equal(move(&unasked, &to, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_OK);
        assert_true(kvp_now_ns() < end_ns);
    }
    close_ends(&by_name, &unasked);
    close_end(&to);
}

TEST_WITH(test_device_goes_and_comes_back, setup, teardown)
{
    end_t a, b;
    kvpool_p2p_op_t op;
    int err = KVPOOL_INTERNAL;

    open_ends(&a, &b, END_BYTES, "rdma");
    memset(a.mem, 4, END_BYTES);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_OK);
    model_nic_remove(0, true);
    op = (kvpool_p2p_op_t){.local = a.mem, .remote = (uintptr_t)b.mem, .len = 1000};
    assert_int_not_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 1000), KVPOOL_OK);
    /* Also idle connections let go of it. */
    for (uint64_t end_ns = kvp_now_ns() + 60 * KVP_NS_PER_S; model_nic_uses(0) > 0;)
        assert_true(kvp_now_ns() < end_ns);
    model_nic_return(0);
    for (uint64_t end_ns = kvp_now_ns() + 60 * KVP_NS_PER_S; err != KVPOOL_OK;) {
        err = kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 1000);
        assert_true(kvp_now_ns() < end_ns);
    }
    assert_true(is_all(b.mem, 1000, 4));
    close_ends(&a, &b);
}

/* Memory that the adapters do not take: an error where they were asked for, else it goes by tcp. */
TEST_WITH(test_memory_that_is_refused, setup, teardown)
{
    uint8_t *mem = calloc(1, 8 * END_BYTES);
    end_t by_name, unasked, from;
    kvpool_p2p_op_t op;

    assert_non_null(mem);
    reset_nic(7, 20 * END_BYTES); /* ends take two or three times their bytes */
    open_end(&by_name, "rdma", 0, 0);
    open_end(&unasked, "rdma,tcp", 0, 0);
    assert_int_not_equal(kvpool_p2p_register(by_name.p2p, mem, 8 * END_BYTES, NULL), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_unregister(by_name.p2p, mem), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_register(unasked.p2p, mem, 8 * END_BYTES, NULL), KVPOOL_OK);
    assert_int_equal(try_open(&from, "rdma,tcp", 0, 0), KVPOOL_OK);
    from.mem = malloc(1000);
    assert_non_null(from.mem);
    memset(from.mem, 8, 1000);
    op = (kvpool_p2p_op_t){.local = from.mem, .remote = (uintptr_t)mem, .len = 1000};
    assert_int_equal(kvpool_p2p_transfer(by_name.p2p, unasked.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_NOTSUP);
    assert_true(is_all(mem, 1000, 0));
    assert_int_equal(kvpool_p2p_transfer(from.p2p, unasked.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_OK);
    assert_true(is_all(mem, 1000, 8));
    assert_int_equal(stat_of(&from).tcp_bytes, 1000);
    close_ends(&by_name, &unasked);
    close_end(&from);
    free(mem);
}

TEST_WITH(test_restart_on_the_same_port, setup, teardown)
{
    uint8_t *mem;
    end_t a, b;
    uint16_t port;

    open_ends(&a, &b, END_BYTES, "rdma");
    memset(a.mem, 5, END_BYTES);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_OK);
    port = kvpool_p2p_port(b.p2p);
    mem = b.mem;
    kvpool_p2p_free(b.p2p);
    memset(mem, 0, END_BYTES);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_UNREACHABLE);
    assert_int_equal(try_open(&b, "rdma", 0, port), KVPOOL_OK);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_NOT_REGISTERED);
    assert_true(is_all(mem, END_BYTES, 0));
    assert_int_equal(kvpool_p2p_register(b.p2p, mem, END_BYTES, &b.token), KVPOOL_OK);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 1000), KVPOOL_OK);
    assert_true(is_all(mem, 1000, 5));
    close_ends(&a, &b);
}

static void
on_verdict(void *arg, kvp_err_t err)
{
    *(kvp_err_t *)arg = err;
}

/* A connect by whoever knows the port, which says that it is 99. */
static kvp_err_t
connect_as_99(kvp_tp_t *tp, uint16_t port)
{
    kvp_hostport_t to = {.host = "127.0.0.1", .port = port};
    kvp_err_t verdict = KVP_EAGAIN;
    kvp_ep_t *ep;

    assert_int_equal(kvp_ep_create(tp, &to, on_verdict, &verdict, &ep), KVP_OK);
    while (verdict == KVP_EAGAIN)
        tp->ops->ep_poll(ep);
    kvp_ep_destroy(ep);
    return verdict;
}

/* Who comes by rdma has told so on a control connection, and its connections end with that. */
TEST_WITH(test_stranger_is_not_let_in, setup, teardown)
{
    kvp_peer_hello_t hello = {.version = KVP_PROTO_VERSION, .version_min = KVP_PROTO_VERSION_MIN, .incarnation = 7};
    kvp_tp_conf_t conf = {.incarnation = 99, .pool_id = "kvpool peers 1"};
    kvp_peer_hello_reply_t reply;
    kvp_hostport_t at;
    kvp_framed_t ctl;
    kvp_frame_t frame;
    kvp_tp_t *tp;
    end_t b;

    open_end(&b, "rdma", 0, 0);
    assert_int_equal(kvp_parse_hostport(b.at, &at), KVP_OK);
    kvp_framed_init(&ctl);
    assert_int_equal(kvp_names_connect(NULL, at.host, at.port, UINT64_MAX, &ctl), KVP_OK);
    kvp_peer_hello_encode(&ctl.out, 1, &hello);
    assert_int_equal(kvp_exchange(&ctl, 1, UINT64_MAX, &frame), KVP_OK);
    assert_int_equal(kvp_peer_hello_reply_decode(&frame, &reply), KVP_OK);
    assert_int_equal(kvp_tp_create(kvp_transport_find("rdma"), &conf, &tp), KVP_OK);

    assert_int_equal(connect_as_99(tp, reply.rdma_port), KVP_DISCONNECTED);
    kvp_peer_rdma_encode(&ctl.out, 2, 99);
    assert_int_equal(kvp_exchange(&ctl, 2, UINT64_MAX, &frame), KVP_OK);
    assert_int_equal(connect_as_99(tp, reply.rdma_port), KVP_OK);
    kvp_framed_fini(&ctl);
    while (connect_as_99(tp, reply.rdma_port) == KVP_OK)
        sched_yield(); /* until the endpoint has seen the end of the control connection */
    assert_int_equal(connect_as_99(tp, reply.rdma_port), KVP_DISCONNECTED);
    kvp_tp_destroy(tp);
    close_end(&b);
}

/* Memory of an endpoint's own, which it takes from under peers by other pages: adapters follow. */
TEST_WITH(test_own_memory, setup, teardown)
{
    end_t a, b;
    void *own;

    open_ends(&a, &b, END_BYTES, "cma,rdma");
    assert_int_equal(kvpool_p2p_alloc(b.p2p, END_BYTES, &own, NULL), KVPOOL_OK);
    kvpool_p2p_op_t op = {.local = a.mem, .remote = (uintptr_t)own, .len = 5000};
    end_t far;
    open_end(&far, "rdma", 0, 0);
    memset(a.mem, 6, END_BYTES);
    memset(far.mem, 7, END_BYTES);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_OK); /* it is mapped there */
    assert_int_equal(stat_of(&a).mapped_bytes, 5000);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, own), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_register(b.p2p, own, END_BYTES, NULL), KVPOOL_OK);
    op.local = far.mem;
    op.len = 3000;
    assert_int_equal(kvpool_p2p_transfer(far.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_OK);
    assert_true(is_all(own, 3000, 7) && is_all((uint8_t *)own + 3000, 2000, 6));
    assert_int_equal(stat_of(&far).rdma_bytes, 3000);
    assert_int_equal(kvpool_p2p_dealloc(b.p2p, own), KVPOOL_OK);
    close_ends(&far, &a);
    close_end(&b);
}

/* Soft RoCE ends READs well that brought nothing. What is OK is so. */
TEST_WITH(test_soft_adapters_are_not_believed, setup, teardown)
{
    model_nic_conf_t conf = {.is_loopback = true, .is_soft = true, .forgets_per_mille = 30};
    uint32_t good = 0;
    end_t a, b;

    assert_in_range(model_nic_reset(7, &conf), 0, 1);
    open_ends(&a, &b, END_BYTES, "rdma");
    for (uint32_t i = 0; i < 300; i++) {
        int kind = i % 2 == 0 ? KVPOOL_P2P_READ : KVPOOL_P2P_WRITE;

        fill(a.mem, END_BYTES, 2 * i);
        fill(b.mem, END_BYTES, 2 * i + 1);
        if (move(&a, &b, kind, 0, 0, 100000) != KVPOOL_OK) continue;
        assert_memory_equal(a.mem, b.mem, 100000);
        good++;
    }
    assert_true(good > 250);
    close_ends(&a, &b);
}

TEST_MAIN()
