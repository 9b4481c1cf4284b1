/* SPDX-License-Identifier: Apache-2.0
 * Keys of writers by rdma, which take long to make: what else happens meanwhile, and that none is given out that is
 * made too late. On the model NIC, in whose registrations the test has a hand. */
#include "transport/all/registry.h"
#include "transport/rdma/table.h"
#include "transport/transport.h"
#include "tests/transport/model_nic.h"
#include "tests/cases.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITER 1000u
#define OTHER 1001u
#define BYTES ((size_t)1 << 16)
#define DEVS 2u

static kvp_tp_t *server;
static kvp_mr_t *mr;
static uint8_t *mem;

/* What happens when the n-th registration of a writer's key begins, in its thread. */
static struct {
    _Atomic uint32_t seen;
    uint32_t at; /* 0 = never */
    void (*fn)(void);
} meanwhile;

static void
on_reg(kvp_rdma_access_t access)
{
    if (access == KVP_RDMA_WRITABLE && ++meanwhile.seen == meanwhile.at) meanwhile.fn();
}

/* Writers' keys are not deregistered while it is shut. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_shut;
    uint32_t waiting;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void
on_dereg(kvp_rdma_access_t access)
{
    if (access != KVP_RDMA_WRITABLE) return;
    pthread_mutex_lock(&gate.lock);
    gate.waiting++;
    pthread_cond_broadcast(&gate.changed);
    while (gate.is_shut)
        pthread_cond_wait(&gate.changed, &gate.lock);
    gate.waiting--;
    pthread_mutex_unlock(&gate.lock);
}

static void
gate_set(bool is_shut)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_shut = is_shut;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Until somebody stands there. */
static void
gate_await(void)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.waiting == 0)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* What is not needed any more is deregistered by a thread. */
static void
await_regs(uint32_t n)
{
    while (model_nic_regs() != n)
        sched_yield();
}

static void
begin_on(const model_nic_conf_t *nic)
{
    kvp_tp_conf_t conf = {.pool_id = "pool of the test", .own = &kvp_verbs_model};

    alarm(100); /* a test that waits for what does not come ends */
    assert_int_equal(model_nic_reset(1, nic), 0);
    assert_int_equal(kvp_tp_create(kvp_transport_find("rdma"), &conf, &server), KVP_OK);
    mem = aligned_alloc(4096, BYTES);
    assert_non_null(mem);
    assert_int_equal(kvp_mr_create(server, &(kvp_mem_t){.addr = mem, .len = BYTES, .fd = -1}, &mr), KVP_OK);
    assert_int_equal(model_nic_regs(), DEVS);
}

static void
begin(uint32_t at, void (*fn)(void))
{
    meanwhile.seen = 0;
    meanwhile.at = at;
    meanwhile.fn = fn;
    begin_on(&(model_nic_conf_t){.devs_n = DEVS, .on_reg = on_reg, .on_dereg = on_dereg});
}

static void
end(void)
{
    kvp_mr_destroy(mr);
    mr = NULL;
    assert_int_equal(model_nic_regs(), 0);
    kvp_tp_destroy(server);
    free(mem);
}

static kvp_err_t
grant(uint64_t incarnation)
{
    return server->ops->mr_grant(mr, incarnation);
}

static kvp_err_t export(uint64_t incarnation)
{
    kvp_token_t token;

    return server->ops->mr_export(mr, KVP_ACCESS_WRITE, incarnation, &token);
}

static void
on_fenced(void *arg, uint64_t incarnation)
{
    (void)incarnation;
    *(bool *)arg = true;
}

static void
fence(uint64_t incarnation, uint64_t live_min)
{
    bool is_done = false;

    server->ops->peer_fence(server, kvp_idrange_one(incarnation), live_min, on_fenced, &is_done);
    assert_true(is_done);
}

static void
fence_writer(void)
{
    fence(WRITER, 0);
    assert_int_equal(export(WRITER), KVP_FENCED);
    assert_int_equal(grant(WRITER), KVP_FENCED);
}

static void
fence_all_older(void)
{
    fence(0, OTHER);
}

static void
cut_writer(void)
{
    server->ops->peer_cut(server, WRITER);
}

static void
ask_meanwhile(void)
{
    assert_int_equal(export(WRITER), KVP_EAGAIN);
    assert_int_equal(grant(WRITER), KVP_EAGAIN);
    assert_int_equal(grant(OTHER), KVP_OK); /* nobody else waits */
    assert_int_equal(export(OTHER), KVP_OK);
}

TEST(test_keys_are_made_once_and_then_told)
{
    begin(1, ask_meanwhile);
    assert_int_equal(export(WRITER), KVP_EAGAIN);
    assert_int_equal(model_nic_regs(), DEVS); /* to ask makes none */
    assert_int_equal(grant(WRITER), KVP_OK);
    assert_int_equal(export(WRITER), KVP_OK);
    assert_int_equal(model_nic_regs(), 3 * DEVS); /* readers', and two writers' */
    assert_int_equal(grant(WRITER), KVP_OK);
    assert_int_equal(model_nic_regs(), 3 * DEVS);
    end();
}

/* By its number or by a later term's, before the first of its registrations or between two: nobody gets them, and none
 * stays. */
TEST(test_keys_that_are_made_as_the_fence_comes_are_nobodys)
{
    for (uint32_t at = 1; at <= DEVS; at++) {
        for (uint32_t by_term = 0; by_term < 2; by_term++) {
            begin(at, by_term ? fence_all_older : fence_writer);
            assert_int_equal(grant(WRITER), KVP_FENCED);
            assert_int_equal(export(WRITER), KVP_FENCED);
            assert_int_equal(model_nic_regs(), DEVS);
            assert_int_equal(grant(OTHER), KVP_OK);
            assert_int_equal(export(OTHER), KVP_OK);
            end();
        }
    }
}

/* Before, and after: the same. */
TEST(test_keys_go_with_the_fence)
{
    begin(0, NULL);
    assert_int_equal(grant(WRITER), KVP_OK);
    assert_int_equal(model_nic_regs(), 2 * DEVS);
    fence_writer();
    await_regs(DEVS);
    assert_int_equal(meanwhile.seen, DEVS); /* to try again registers nothing */
    end();
}

static void
leave(uint64_t incarnation)
{
    server->ops->peer_left(server, incarnation);
}

static void
writer_leaves(void)
{
    leave(WRITER);
    assert_int_equal(export(WRITER), KVP_EAGAIN);
}

/* Whoever comes and goes leaves no key behind, and gets new ones when he comes again. */
TEST(test_keys_go_with_the_last_attachment)
{
    begin(0, NULL);
    assert_int_equal(grant(OTHER), KVP_OK);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(grant(WRITER), KVP_OK);
        assert_int_equal(export(WRITER), KVP_OK);
        writer_leaves();
    }
    assert_int_equal(export(OTHER), KVP_OK);
    await_regs(2 * DEVS);
    leave(WRITER); /* of whom there is nothing */
    end();
}

TEST(test_keys_that_are_made_as_their_client_leaves_are_nobodys)
{
    for (uint32_t at = 1; at <= DEVS; at++) {
        begin(at, writer_leaves);
        assert_int_equal(grant(WRITER), KVP_FENCED);
        assert_int_equal(export(WRITER), KVP_EAGAIN);
        assert_int_equal(model_nic_regs(), DEVS);
        assert_int_equal(grant(WRITER), KVP_OK); /* it has come again */
        assert_int_equal(export(WRITER), KVP_OK);
        end();
    }
}

static void *
destroy_in_thread(void *arg)
{
    kvp_mr_destroy(mr);
    *(_Atomic bool *)arg = true;
    return NULL;
}

/* A node's heartbeats are of the thread that fences: it does not wait, nor does anybody else but the memory's owner. */
TEST(test_nobody_waits_while_keys_are_deregistered)
{
    _Atomic bool is_gone = false;
    pthread_t thread;

    begin(0, NULL);
    assert_int_equal(grant(WRITER), KVP_OK);
    assert_int_equal(grant(OTHER), KVP_OK);
    gate_set(true);
    fence_writer();
    gate_await();
    leave(OTHER);
    assert_int_equal(grant(OTHER + 1), KVP_OK);
    assert_int_equal(export(OTHER + 1), KVP_OK);
    assert_int_equal(model_nic_regs(), 4 * DEVS);
    assert_int_equal(pthread_create(&thread, NULL, destroy_in_thread, &is_gone), 0);
    usleep(20000);
    assert_false(is_gone);
    gate_set(false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    mr = NULL;
    assert_int_equal(model_nic_regs(), 0);
    kvp_tp_destroy(server);
    free(mem);
}

/* A retired extent costs its writer the connections alone: these are the proof, keys are not (ADR 0013). */
TEST(test_keys_outlive_a_cut_while_they_are_made)
{
    begin(DEVS, cut_writer);
    assert_int_equal(grant(WRITER), KVP_OK);
    assert_int_equal(export(WRITER), KVP_OK);
    end();
}

/* One device of two takes no more memory. */
TEST(test_keys_that_cannot_be_made_leave_nothing)
{
    begin_on(&(model_nic_conf_t){.devs_n = DEVS, .memlock_bytes = BYTES});
    assert_int_equal(grant(WRITER), KVP_NOMEM);
    assert_int_equal(export(WRITER), KVP_EAGAIN);
    assert_int_equal(model_nic_regs(), DEVS);
    end();
}

static _Atomic bool is_held;

static void
wait_a_while(void)
{
    is_held = true;
    usleep(50000);
    is_held = false;
}

static void *
grant_in_thread(void *arg)
{
    *(kvp_err_t *)arg = grant(WRITER);
    return NULL;
}

/* Memory goes while a key to it is made: not before it is. */
TEST(test_memory_stays_until_its_keys_are_made)
{
    pthread_t thread;
    kvp_err_t err = KVP_EAGAIN;

    for (uint32_t is_fenced = 0; is_fenced < 2; is_fenced++) {
        begin(1, wait_a_while);
        assert_int_equal(pthread_create(&thread, NULL, grant_in_thread, &err), 0);
        while (!is_held)
            sched_yield();
        if (is_fenced) fence_writer();
        kvp_mr_destroy(mr);
        assert_false(is_held);
        assert_int_equal(model_nic_regs(), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(err, is_fenced ? KVP_FENCED : KVP_OK);
        kvp_tp_destroy(server);
        free(mem);
    }
}

/* Threads that make keys of many clients while all of these are fenced, one by one: what was fenced is not told again.
 */
#define CLIENTS 200u
static _Atomic uint64_t fenced_to; /* all before it are */

static void *
grant_all(void *arg)
{
    (void)arg;
    for (uint64_t i = 1; i <= CLIENTS; i++) {
        uint64_t before = fenced_to;
        kvp_err_t made = grant(i), told = export(i);

        if (i < before && (made != KVP_FENCED || told != KVP_FENCED)) abort();
        if (made == KVP_FENCED && told != KVP_FENCED) abort();
        if (made == KVP_OK && told != KVP_OK && told != KVP_FENCED) abort();
    }
    return NULL;
}

TEST(test_keys_and_fences_at_once)
{
    pthread_t threads[3];

    begin(0, NULL);
    fenced_to = 1;
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, grant_all, NULL), 0);
    for (uint64_t i = 1; i <= CLIENTS; i++) {
        fence(i, 0);
        fenced_to = i + 1;
        sched_yield();
    }
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    await_regs(DEVS);
    end();
}

TEST_MAIN()
