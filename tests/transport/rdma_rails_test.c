/* SPDX-License-Identifier: Apache-2.0
 * Rails and connections of rdma on the model NIC: how many doorbells, who is refused, who may meet whom. What must
 * hold in every order of things is rdma_rules_test.c's. */
#include "transport/all/registry.h"
#include "transport/rdma/table.h"
#include "transport/rdma/ask/rails.h"
#include "transport/rdma/base/wire.h"
#include "common/clock.h"
#include "tests/transport/model_nic.h"
#include "tests/transport/sanitizer.h"
#include "tests/transport/step_clock.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define BYTES ((size_t)1 << 20)
#define WIDE ((size_t)768 << 10)
#define WIDE_BYTES ((size_t)512 << 10) /* so much goes over more than one rail, */
#define SLICE ((size_t)128 << 10) /* in pieces of this */
#define BATCH_MAX 32u
#define SMALL ((size_t)4 << 10)
#define ROUNDS 100000u
#define SEEDS(n) (IS_SANITIZED ? (n) / 5 : (n)) /* a sanitizer looks at the same lines in every seed */
#define CLIENT 2u /* its incarnation */
#define POOL "pool of the test" /* 16 bytes */

/* An instance that serves its memory and reads that of another one. */
typedef struct {
    kvp_tp_t *tp;
    kvp_hostport_t at;
    uint8_t *mem;
    kvp_mr_t *mr;
    kvp_ep_t *ep; /* to the other one */
    kvp_rseg_t *rseg; /* of it */
    kvp_err_t verdict;
    uint8_t *local;
    kvp_xfer_t x;
    kvp_iov_t iov;
    uint32_t done_n;
} end_t;

static end_t client, server; /* of the test that runs; end_both clears them */

static void
serve(end_t *e, uint64_t incarnation, uint16_t port, uint8_t fill)
{
    kvp_tp_conf_t conf = {.incarnation = incarnation, .pool_id = POOL, .own = &kvp_verbs_model};

    assert_int_equal(kvp_tp_create(kvp_transport_find("rdma"), &conf, &e->tp), KVP_OK);
    assert_int_equal(e->tp->ops->listen(e->tp, &(kvp_hostport_t){.host = "10.99.1.1", .port = port}, &e->at), KVP_OK);
    e->mem = aligned_alloc(4096, BYTES);
    e->local = malloc(BYTES);
    assert_non_null(e->mem);
    assert_non_null(e->local);
    memset(e->mem, fill, BYTES);
    assert_int_equal(kvp_mr_create(e->tp, &(kvp_mem_t){.addr = e->mem, .len = BYTES, .fd = -1}, &e->mr), KVP_OK);
}

static void
end(end_t *e)
{
    kvp_ep_destroy(e->ep);
    kvp_rseg_destroy(e->rseg);
    kvp_mr_destroy(e->mr);
    if (e->tp != NULL) kvp_tp_destroy(e->tp);
    free(e->mem);
    free(e->local);
    memset(e, 0, sizeof *e);
}

static void
on_connect(void *arg, kvp_err_t err)
{
    ((end_t *)arg)->verdict = err;
}

static void
begin_connect(end_t *from, const end_t *to)
{
    kvp_token_t token;

    from->verdict = KVP_EAGAIN;
    assert_int_equal(to->mr->tp->ops->mr_export(to->mr, KVP_ACCESS_READ, 0, &token), KVP_OK);
    assert_int_equal(kvp_rseg_create(from->tp, &token, BYTES, KVP_ACCESS_READ, &from->rseg), KVP_OK);
    assert_int_equal(kvp_ep_create(from->tp, &to->at, on_connect, from, &from->ep), KVP_OK);
}

static void
turn(end_t *e)
{
    if (e->tp == NULL) return;
    assert_int_equal(e->tp->ops->serve(e->tp, 0, 0), KVP_OK);
    if (e->ep != NULL) (void)e->tp->ops->ep_poll(e->ep);
}

static void
on_done(kvp_xfer_t *x)
{
    ((end_t *)x->arg)->done_n++;
}

static void
begin_read_as(end_t *e, size_t len, uint32_t flags)
{
    kvp_xfer_t *list[1] = {&e->x};
    size_t took;

    e->done_n = 0;
    e->iov = (kvp_iov_t){e->local, len};
    e->x = (kvp_xfer_t){
        .kind = KVP_XFER_READ, .rseg = e->rseg, .iov = &e->iov, .iov_n = 1, .len = len, .done = on_done, .arg = e};
    e->x.flags = flags;
    assert_int_equal(e->tp->ops->submit(e->ep, list, 1, &took), KVP_OK);
    assert_int_equal(took, 1);
}

static void
begin_read(end_t *e, size_t len)
{
    begin_read_as(e, len, 0);
}

static kvp_err_t
finish_read(end_t *e, end_t *other)
{
    for (uint32_t i = 0; i < ROUNDS && e->done_n == 0; i++) {
        turn(other);
        turn(e);
    }
    assert_int_equal(e->done_n, 1);
    return e->x.status;
}

static void
read_as(end_t *e, end_t *other, size_t len, uint32_t flags, kvp_err_t err)
{
    begin_read_as(e, len, flags);
    assert_int_equal(finish_read(e, other), err);
    if (err == KVP_OK) assert_memory_equal(e->local, other->mem, len);
}

static void
read_all(end_t *e, end_t *other, size_t len)
{
    read_as(e, other, len, 0, KVP_OK);
}

static void
end_both(void)
{
    end(&client);
    end(&server);
}

static int
teardown(void **state)
{
    (void)state;
    end_both();
    return 0;
}

static kvp_err_t
await_verdict(void)
{
    for (uint32_t i = 0; i < ROUNDS && client.verdict == KVP_EAGAIN; i++) {
        turn(&server);
        turn(&client);
    }
    return client.verdict;
}

/* Begins anew, with so many devices on each side. */
static void
serve_both(uint64_t seed, uint32_t devs_n)
{
    end_both();
    assert_int_equal(model_nic_reset(seed, &(model_nic_conf_t){.devs_n = devs_n}), 0);
    serve(&server, 1, 0, 's');
    serve(&client, CLIENT, 0, 'c');
}

static void
connect_by(uint64_t seed, uint32_t devs_n)
{
    serve_both(seed, devs_n);
    begin_connect(&client, &server);
    assert_int_equal(await_verdict(), KVP_OK);
}

static void
connect_both(uint64_t seed)
{
    connect_by(seed, 2);
}

/* All rails are there once much was carried and some time has passed. */
static void
connect_rails_of(uint64_t seed, uint32_t devs_n)
{
    connect_by(seed, devs_n);
    read_all(&client, &server, WIDE);
    for (uint32_t i = 0; i < 50; i++) {
        turn(&server);
        turn(&client);
        model_nic_settle();
    }
}

static void
connect_rails(uint64_t seed)
{
    connect_rails_of(seed, 2);
}

/* ---- what goes over how many */
static void
want_counts(size_t len, uint64_t doorbells)
{
    model_nic_counts_t before, after;

    model_nic_counts(&before);
    read_all(&client, &server, len);
    model_nic_counts(&after);
    assert_true(after.posts - before.posts == doorbells);
    assert_true(after.signaled - before.signaled == doorbells);
    assert_true(after.completions - before.completions == doorbells);
}

/* A batch of n transfers of a kind, each of len bytes, with memory that was lent: one doorbell and one completion for
 * each rail that it takes. Returns how many these are, and how many work requests went out. */
static uint64_t
rails_of_batch(kvp_xfer_kind_t kind, size_t n, size_t len, uint64_t *requests_out)
{
    static kvp_xfer_t x[BATCH_MAX];
    static kvp_iov_t iov[BATCH_MAX];
    kvp_xfer_t *list[BATCH_MAX];
    model_nic_counts_t before, after;
    kvp_rseg_t *rseg;
    kvp_token_t token;
    size_t took;

    assert_int_equal(server.mr->tp->ops->mr_grant(server.mr, CLIENT), KVP_OK);
    assert_int_equal(server.mr->tp->ops->mr_export(server.mr, KVP_ACCESS_WRITE, CLIENT, &token), KVP_OK);
    assert_int_equal(kvp_rseg_create(client.tp, &token, BYTES, KVP_ACCESS_WRITE, &rseg), KVP_OK);
    for (size_t i = 0; i < n; i++) {
        iov[i] = (kvp_iov_t){client.local + i * len, len};
        x[i] = (kvp_xfer_t){.kind = kind, .flags = KVP_XFER_LENT, .rseg = rseg, .roffset = i * len, .len = len};
        x[i].iov = &iov[i];
        x[i].iov_n = 1;
        x[i].done = on_done;
        x[i].arg = &client;
        list[i] = &x[i];
    }
    client.done_n = 0;
    model_nic_counts(&before);
    assert_int_equal(client.tp->ops->submit(client.ep, list, n, &took), KVP_OK);
    assert_int_equal(took, n);
    for (uint32_t i = 0; i < ROUNDS && client.done_n < n; i++) {
        turn(&server);
        turn(&client);
    }
    model_nic_counts(&after);
    assert_int_equal(client.done_n, n);
    assert_memory_equal(client.local, server.mem, n * len);
    assert_int_equal(after.signaled - before.signaled, after.posts - before.posts);
    assert_int_equal(after.completions - before.completions, after.posts - before.posts);
    kvp_rseg_destroy(rseg);
    *requests_out = after.requests - before.requests;
    return after.posts - before.posts;
}

TEST_WITH(test_doorbell_and_completion_for_each_rail_used, NULL, teardown)
{
    connect_rails(1);
    want_counts(SMALL, 1); /* little goes over one */
    want_counts(WIDE, 2);
    want_counts(SMALL, 1);
}

/* However many transfers. What is much may find one rail so slow, by the clock of this machine, that it goes over the
 * other alone; what is little always goes over one. What writes has one READ more on each. */
TEST_WITH(test_doorbell_and_completion_for_each_rail_of_a_batch, NULL, teardown)
{
    uint64_t wide_n = 0, rails, requests;
    kvp_loan_t *loan;

    for (uint64_t seed = 0; seed < SEEDS(20); seed++) {
        connect_rails(seed);
        assert_int_equal(client.tp->ops->lend(&kvp_verbs_model, client.local, BYTES, NULL, &loan), KVP_OK);
        for (kvp_xfer_kind_t kind = KVP_XFER_READ; kind <= KVP_XFER_WRITE; kind++) {
            bool is_write = kind == KVP_XFER_WRITE;

            memset(is_write ? client.local : server.mem, 'a' + is_write, BYTES);
            rails = rails_of_batch(kind, 6, SLICE, &requests);
            assert_int_equal(requests, 6 + (is_write ? rails : 0));
            wide_n += rails == 2;
            assert_int_equal(rails_of_batch(kind, 1, SLICE, &requests), 1);
            assert_int_equal(requests, 1 + is_write);
            assert_int_equal(rails_of_batch(kind, BATCH_MAX, SLICE / BATCH_MAX, &requests), 1);
            assert_int_equal(requests, BATCH_MAX + is_write);
            assert_int_equal(rails_of_batch(kind, 7, WIDE_BYTES / 7, &requests), 1);
        }
        client.tp->ops->unlend(loan);
    }
    assert_true(wide_n > SEEDS(20) / 2); /* of 40 */
}

/* As many adapters as a host has: each of ours meets its like, and much goes over more than the six that a refusal had
 * room for. */
TEST_WITH(test_eight_rails_and_sixteen, NULL, teardown)
{
    model_nic_counts_t before, after;
    uint64_t most = 0;

    for (uint32_t devs_n = 8; devs_n <= 16; devs_n += 8) {
        for (uint64_t seed = 0; seed < SEEDS(10); seed++) {
            const kvp_rdma_ep_t *ep;

            connect_rails_of(seed, devs_n);
            ep = kvp_rdma_ep_of(client.ep);
            assert_int_equal(ep->peer_rails_n, devs_n);
            assert_int_equal(ep->rails_n, devs_n);
            for (uint32_t i = 0; i < devs_n; i++)
                assert_true(ep->rails[i].is_up && ep->rails[i].pair.ours == ep->rails[i].pair.theirs);
            model_nic_counts(&before);
            read_all(&client, &server, BYTES);
            model_nic_counts(&after);
            most = kvp_max_u64(most, after.posts - before.posts);
        }
    }
    assert_true(most > 6);
}

TEST_WITH(test_little_connects_one_rail, NULL, teardown)
{
    model_nic_counts_t counts;

    connect_both(1);
    model_nic_path(1, 1, false); /* were it tried, it would count as a failure */
    for (uint32_t i = 0; i < 20; i++)
        read_all(&client, &server, SMALL);
    model_nic_counts(&counts);
    assert_true(counts.posts == 20);
    assert_true(counts.failures == 0);
}

/* The other side does nothing. */
static void
read_alone(size_t len)
{
    begin_read(&client, len);
    for (uint32_t i = 0; i < ROUNDS && client.done_n == 0; i++)
        turn(&client);
    assert_int_equal(client.x.status, KVP_OK);
}

/* The only rail in use fails under little: another one is connected for it. */
TEST_WITH(test_first_rail_fails_under_little, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(50); seed++) {
        connect_both(seed);
        begin_read(&client, SMALL);
        model_nic_path(0, 0, false);
        assert_int_equal(finish_read(&client, &server), KVP_OK);
        assert_memory_equal(client.local, server.mem, SMALL);
        read_all(&client, &server, SMALL);
        read_all(&client, &server, WIDE);
    }
}

/* No completion and no event follows that would make anybody look again: what it had goes over the other one at once.
 */
TEST_WITH(test_rail_that_takes_no_request, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(20); seed++) {
        connect_rails(seed);
        model_nic_refuse_post();
        begin_read(&client, SMALL);
        assert_null(kvp_rdma_rails_orphan(kvp_rdma_ep_of(client.ep)));
        assert_int_equal(finish_read(&client, &server), KVP_OK);
        assert_memory_equal(client.local, server.mem, SMALL);
    }
}

/* Until a wide read rings two doorbells: a rail that failed is left alone for a moment. */
static void
read_over_both(void)
{
    uint64_t until_ns = kvp_now_ns() + 60 * KVP_NS_PER_S;
    model_nic_counts_t before, after;

    do {
        assert_true(kvp_now_ns() < until_ns);
        model_nic_counts(&before);
        read_all(&client, &server, WIDE);
        clock_ns += KVP_NS_PER_MS;
        model_nic_counts(&after);
    } while (after.posts - before.posts < 2);
}

/* Nobody answers to a connect that was begun for much, while bursts of little go over the other rail, each of them
 * shorter than a step of it may take: it is given up, and tried from the other adapter. */
TEST_WITH(test_connect_falls_silent_under_bursts, NULL, teardown)
{
    const kvp_rdma_rail_t *second;
    uint64_t begun_ns;

    connect_both(1);
    read_alone(WIDE);
    begun_ns = kvp_now_ns();
    second = &kvp_rdma_ep_of(client.ep)->rails[1];
    assert_int_equal(second->pair.ours, 1);
    while (second->pair.ours == 1) {
        assert_true(kvp_now_ns() - begun_ns < 60 * KVP_NS_PER_S);
        read_alone(SMALL);
        clock_ns += KVP_NS_PER_MS;
    }
    assert_true(kvp_now_ns() - begun_ns > KVP_NS_PER_S);
    assert_int_equal(second->pair.ours, 0);
    read_over_both();
}

/* Nobody looked at an answer for so long that the peer may have given up what it accepted: it is asked anew. */
TEST_WITH(test_old_answer, NULL, teardown)
{
    kvp_rdma_rail_t *second;
    uint64_t nonce;

    connect_both(1);
    second = &kvp_rdma_ep_of(client.ep)->rails[1];
    for (uint32_t i = 0; i < 100 && (second->id == NULL || second->id->dev == NULL); i++)
        read_alone(WIDE);
    assert_non_null(second->id->dev);
    for (uint32_t i = 0; i < 100; i++)
        turn(&server);
    nonce = second->nonce;
    second->shown_ns -= 11 * KVP_NS_PER_S;
    turn(&client);
    assert_false(second->is_up);
    assert_int_not_equal(second->nonce, nonce);
    read_over_both();
}

/* Who has no time to wait until a silent rail is given up ends the endpoint: the next one trusts that path less, and no
 * other. */
TEST_WITH(test_silent_rail_is_blamed_by_who_cuts_it, NULL, teardown)
{
    kvp_rdma_rail_t *rails;
    kvp_rdma_tp_t *tp;

    connect_rails(1);
    rails = kvp_rdma_ep_of(client.ep)->rails;
    tp = kvp_rdma_tp_of(client.tp);
    model_nic_silence(1, 1);
    rails[0].id->give_up_ns = rails[1].id->give_up_ns = 600 * KVP_NS_PER_S;
    begin_read(&client, WIDE);
    for (uint32_t i = 0; i < 1000; i++)
        turn(&client);
    assert_true(rails[1].bytes > 0);
    rails[1].shown_ns -= 310 * KVP_NS_PER_S; /* it has shown nothing for longer than half of that */
    assert_int_equal(client.tp->ops->drain(client.ep, kvp_now_ns()), KVP_DEADLINE);
    assert_int_equal(client.done_n, 1);
    assert_int_equal(kvp_rdma_paths_look(&tp->paths, &rails[0].path).fails, 0);
    assert_int_equal(kvp_rdma_paths_look(&tp->paths, &rails[1].path).fails, 1);
}

/* The only connection between two adapters shows nothing more: a new one does what it was to do. */
TEST_WITH(test_only_rail_falls_silent, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(30); seed++) {
        connect_by(seed, 1);
        begin_read(&client, seed % 2 == 0 ? SMALL : WIDE);
        model_nic_silence(0, 0);
        assert_int_equal(finish_read(&client, &server), KVP_OK);
        assert_memory_equal(client.local, server.mem, client.x.len);
        read_all(&client, &server, WIDE);
    }
}

/* After a failure it is connected again, and carries its slices. */
TEST_WITH(test_failed_rail_carries_again, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(20); seed++) {
        connect_rails(seed);
        begin_read(&client, WIDE);
        model_nic_path(1, 1, false);
        assert_int_equal(finish_read(&client, &server), KVP_OK);
        model_nic_path(1, 1, true);
        read_over_both();
    }
}

TEST_WITH(test_all_rails_fail, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(50); seed++) {
        connect_rails(seed);
        begin_read(&client, WIDE);
        model_nic_path(0, 0, false);
        model_nic_path(1, 1, false);
        model_nic_path(0, 1, false);
        assert_int_equal(finish_read(&client, &server), KVP_DISCONNECTED);
        assert_true(client.tp->ops->ep_is_broken(client.ep));
    }
}

/* ---- connections */

/* A node that was restarted lets the second rail in: keys that the first one's peer gave out are not sent there. */
TEST_WITH(test_peer_restarts_between_two_rails, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(50); seed++) {
        uint16_t port;

        connect_both(seed);
        port = server.at.port;
        end(&server);
        serve(&server, 3, port, 'n');
        begin_read(&client, WIDE);
        assert_int_equal(finish_read(&client, &server), KVP_DISCONNECTED);
        assert_true(client.tp->ops->ep_is_broken(client.ep));
    }
}

static kvp_err_t
connect_again(void)
{
    kvp_ep_destroy(client.ep);
    kvp_rseg_destroy(client.rseg);
    client.ep = NULL;
    begin_connect(&client, &server);
    return await_verdict();
}

/* The address by which all know a node is gone: once that was seen, it is reached by its other adapter; and back. */
TEST_WITH(test_known_address_does_not_answer, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(20); seed++) {
        connect_both(seed);
        model_nic_path(0, 0, false);
        assert_int_equal(connect_again(), KVP_UNREACHABLE);
        for (uint32_t tries = 0; connect_again() != KVP_OK; tries++)
            assert_true(tries < 2);
        read_all(&client, &server, SMALL);
        model_nic_path(0, 0, true);
        model_nic_path(1, 1, false);
        for (uint32_t tries = 0; connect_again() != KVP_OK; tries++)
            assert_true(tries < 2);
        read_all(&client, &server, SMALL);
    }
}

/* ---- devices that go and come back */
static void
tend(void)
{
    server.tp->ops->tend(server.tp);
    client.tp->ops->tend(client.tp);
    turn(&server);
    turn(&client);
}

/* Those who have it let it go: endpoints that carry something by themselves, idle ones when somebody looks at them. */
static void
let_go(uint32_t dev)
{
    for (uint32_t i = 0; i < ROUNDS && model_nic_uses(dev) > 0; i++) {
        tend();
        if (client.ep == NULL || !client.tp->ops->ep_is_stale(client.ep)) continue;
        kvp_ep_destroy(client.ep);
        client.ep = NULL;
    }
    assert_int_equal(model_nic_uses(dev), 0);
}

TEST_WITH(test_device_removed_under_idle_connections, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(40); seed++) {
        uint32_t dev = seed / 2 % 2;

        connect_rails(seed);
        model_nic_remove(dev, seed % 2 == 0);
        let_go(dev);
        for (uint32_t tries = 0; client.ep == NULL || client.verdict != KVP_OK; tries++) {
            assert_true(tries < 3); /* by the known address, which is gone, and by the other one */
            kvp_ignore(connect_again(), "it is tried again");
        }
        read_all(&client, &server, SMALL);
        read_all(&client, &server, WIDE);
    }
}

/* Back again, with other keys. A connection from before goes on without the device, and is found out to be stale; with
 * the keys from before nothing is reached by a new one, and with new keys both rails carry. */
TEST_WITH(test_device_comes_back, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(20); seed++) {
        kvp_rseg_t *old;

        connect_rails(seed);
        begin_read(&client, WIDE);
        model_nic_remove(1, seed % 2 == 0);
        client.tp->ops->tend(client.tp);
        assert_int_equal(finish_read(&client, &server), KVP_OK);
        let_go(1);
        assert_non_null(client.ep);
        model_nic_return(1);
        tend();
        for (uint32_t i = 0; i < ROUNDS && !client.tp->ops->ep_is_stale(client.ep); i++)
            read_all(&client, &server, WIDE);
        assert_true(client.tp->ops->ep_is_stale(client.ep));
        old = client.rseg;
        client.rseg = NULL;
        assert_int_equal(connect_again(), KVP_OK);
        kvp_rseg_destroy(client.rseg);
        client.rseg = old;
        begin_read(&client, SMALL);
        assert_int_equal(finish_read(&client, &server), KVP_NO_SEGMENT);
        assert_int_equal(connect_again(), KVP_OK);
        read_over_both();
    }
}

/* It does not take our memory again: what goes over it is copied, and a device's memory, which nobody copies, is
 * refused, also while the connection has no rail of that device yet. */
TEST_WITH(test_device_comes_back_without_our_memory, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(20); seed++) {
        uint32_t dev = seed / 2 % 2;
        kvp_loan_t *loan;

        connect_both(seed);
        assert_int_equal(client.tp->ops->lend(&kvp_verbs_model, client.local, WIDE, NULL, &loan), KVP_OK);
        read_as(&client, &server, WIDE, KVP_XFER_LENT, KVP_OK);
        assert_int_equal(client.ep->costs.copied_bytes, 0);
        model_nic_remove(dev, seed % 2 == 0);
        let_go(dev);
        model_nic_refuse_memory(client.local);
        model_nic_return(dev);
        tend();
        assert_int_equal(connect_again(), KVP_OK);
        read_as(&client, &server, WIDE, KVP_XFER_LENT | KVP_XFER_DEVICE, KVP_NOTSUP);
        memset(client.local, 0, WIDE);
        for (uint32_t i = 0; i < ROUNDS && client.ep->costs.copied_bytes == 0; i++)
            read_as(&client, &server, WIDE, KVP_XFER_LENT, KVP_OK);
        assert_in_range(client.ep->costs.copied_bytes, 1, WIDE); /* the other device may have a share, which is not */
        read_as(&client, &server, WIDE, KVP_XFER_LENT | KVP_XFER_DEVICE, KVP_NOTSUP);
        client.tp->ops->unlend(loan);
    }
}

TEST_WITH(test_both_sides_connect_at_once, NULL, teardown)
{
    for (uint64_t seed = 0; seed < SEEDS(50); seed++) {
        serve_both(seed, 2);
        begin_connect(&client, &server);
        begin_connect(&server, &client);
        for (uint32_t i = 0; i < ROUNDS && (client.verdict == KVP_EAGAIN || server.verdict == KVP_EAGAIN); i++) {
            turn(&client);
            turn(&server);
        }
        assert_int_equal(client.verdict, KVP_OK);
        assert_int_equal(server.verdict, KVP_OK);
        read_all(&client, &server, WIDE);
        read_all(&server, &client, WIDE);
    }
}

/* What somebody who asks with that MTU is told. */
static kvp_err_t
ask_with_mtu(uint32_t mtu_bytes)
{
    const kvp_verbs_ops_t *verbs = &kvp_verbs_model;
    struct sockaddr_storage to = {0};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(server.at.port)};
    kvp_rdma_ask_t ask = {.nonce = 5, .incarnation = 9, .pool_id = POOL, .mtu_bytes = mtu_bytes};
    uint8_t data[KVP_RDMA_ASK_MAX];
    kvp_rdma_answer_t answer;
    kvp_rdma_event_t ev;
    kvp_rdma_cm_t *cm;
    kvp_rdma_id_t *id;

    assert_int_equal(inet_pton(AF_INET, server.at.host, &v4.sin_addr), 1);
    memcpy(&to, &v4, sizeof v4);
    assert_int_equal(verbs->cm_open(&cm), KVP_OK);
    assert_int_equal(verbs->connect(cm, &to, NULL, &id), KVP_OK);
    for (uint32_t i = 0;; i++) {
        assert_true(i < ROUNDS);
        turn(&server);
        if (verbs->cm_next(cm, &ev) != KVP_OK) continue;
        if (ev.kind == KVP_RDMA_ON_ITS_WAY) continue;
        if (ev.kind != KVP_RDMA_RESOLVED) break;
        assert_int_equal(verbs->qp_make(id, &(kvp_rdma_caps_t){.sends = 1, .sge = 1}), KVP_OK);
        assert_int_equal(verbs->ask(id, data, kvp_rdma_ask_encode(&ask, data)), KVP_OK);
    }
    assert_int_equal(kvp_rdma_answer_decode(ev.data, ev.len, &answer), KVP_OK);
    assert_int_equal(ev.kind, answer.err == KVP_OK ? KVP_RDMA_ESTABLISHED : KVP_RDMA_REFUSED);
    assert_int_equal(answer.mtu_bytes, 4096);
    verbs->id_close(id);
    verbs->cm_close(cm);
    return answer.err;
}

/* Who answers another ask than the one that was made, or one of before it, has let in somebody else. Who ends before it
 * answers is not reached. */
TEST_WITH(test_answer_to_another_ask, NULL, teardown)
{
    static const kvp_rdma_caps_t serves_only = {0};
    static const uint64_t off_by[] = {0, 1, UINT64_MAX, 0};
    const kvp_verbs_ops_t *verbs = &kvp_verbs_model;

    for (size_t i = 0; i < KVP_ARRAY_LEN(off_by); i++) {
        struct sockaddr_in at = {.sin_family = AF_INET};
        end_t other = {.at = {.host = "10.99.1.1"}};
        kvp_rdma_answer_t answer = {.epoch = 1, .mtu_bytes = 4096, .rails_n = 1};
        uint8_t data[KVP_RDMA_ANSWER_MAX];
        kvp_rdma_id_t *listener;
        kvp_rdma_event_t ev;
        kvp_rdma_cm_t *cm;
        kvp_rdma_ask_t ask;
        bool is_mute = i == 3;

        serve_both(i, 1);
        assert_int_equal(inet_pton(AF_INET, other.at.host, &at.sin_addr), 1);
        memcpy(&answer.rails[0], &at, sizeof at);
        assert_int_equal(verbs->cm_open(&cm), KVP_OK);
        assert_int_equal(verbs->listen(cm, &answer.rails[0], &listener, &other.at.port), KVP_OK);
        other.mr = client.mr;
        begin_connect(&client, &other);
        for (uint32_t n = 0; verbs->cm_next(cm, &ev) != KVP_OK; n++) {
            assert_true(n < ROUNDS);
            turn(&client);
        }
        assert_int_equal(ev.kind, KVP_RDMA_REQUEST);
        assert_int_equal(kvp_rdma_ask_decode(ev.data, ev.len, &ask), KVP_OK);
        answer.nonce = ask.nonce + off_by[i];
        if (is_mute) {
            verbs->id_close(ev.id);
        } else {
            assert_int_equal(verbs->qp_make(ev.id, &serves_only), KVP_OK);
            assert_int_equal(verbs->accept(ev.id, data, kvp_rdma_answer_encode(&answer, data)), KVP_OK);
        }
        for (uint32_t n = 0; n < ROUNDS && client.verdict == KVP_EAGAIN; n++)
            turn(&client);
        assert_int_equal(client.verdict, is_mute ? KVP_UNREACHABLE : off_by[i] == 0 ? KVP_OK : KVP_PROTO);
        if (!is_mute) verbs->id_close(ev.id);
        verbs->id_close(listener);
        verbs->cm_close(cm);
    }
}

TEST_WITH(test_larger_packets_than_the_port_takes, NULL, teardown)
{
    serve_both(1, 1);
    assert_int_equal(ask_with_mtu(8192), KVP_LIMIT);
    assert_int_equal(ask_with_mtu(4096), KVP_OK);
    assert_int_equal(ask_with_mtu(1024), KVP_OK);
    assert_int_equal(ask_with_mtu(0), KVP_OK); /* not told */
}

/* The port takes less than it did when the client asked: so ends differ that are one device here. Where a subnet's
 * manager sees to the path, there is nothing to lower. */
TEST_WITH(test_client_comes_again_with_smaller_packets, NULL, teardown)
{
    kvp_rdma_dev_t *devs[1];
    const char *why;
    size_t n;

    for (uint64_t seed = 0; seed < SEEDS(20); seed++) {
        serve_both(seed, 1);
        assert_int_equal(kvp_verbs_model.devs_open(NULL, devs, 1, &n, &why), KVP_OK);
        devs[0]->info.is_infiniband = seed % 2 == 1;
        begin_connect(&client, &server);
        for (uint32_t i = 0; i < 200; i++)
            turn(&client); /* it has asked, and the server has not looked */
        assert_int_equal(client.verdict, KVP_EAGAIN);
        devs[0]->info.mtu_bytes = 1024;
        for (uint32_t i = 0; i < ROUNDS && client.verdict == KVP_EAGAIN; i++) {
            turn(&server);
            devs[0]->info.mtu_bytes = 4096;
            turn(&client);
            devs[0]->info.mtu_bytes = 1024;
        }
        assert_int_equal(client.verdict, KVP_OK);
        assert_int_equal(kvp_rdma_ep_of(client.ep)->rails[0].mtu_bytes, devs[0]->info.is_infiniband ? 0 : 1024);
        kvp_verbs_model.devs_close();
        read_all(&client, &server, SMALL);
    }
}

TEST_MAIN()
