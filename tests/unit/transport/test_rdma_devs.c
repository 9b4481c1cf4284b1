/* SPDX-License-Identifier: Apache-2.0
 * Devices that are removed and come back, and what is registered with them, over libraries that are made of tables:
 * what of it may take long, what fails, and who looks. */
#include "transport/all/registry.h"
#include "transport/rdma/verbs/ibv.h"
#include "transport/transport.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/transport/fakeverbs.h"
#include "tests/cases.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define V (&kvp_verbs_ibv)
#define REGS 50u
#define LEN 4096u

static _Atomic uint64_t ahead_ns;
static _Atomic uint32_t errors_n; /* lines of the log */
static uint8_t mem[REGS][LEN];

/* The linker puts it in the place of kvp_now_ns: nobody waits until it is time to look again. */
uint64_t __real_kvp_now_ns(void);
uint64_t __wrap_kvp_now_ns(void);

uint64_t
__wrap_kvp_now_ns(void)
{
    return __real_kvp_now_ns() + ahead_ns;
}

static void
count_errors(void *arg, kvp_log_level_t level, const char *line)
{
    (void)arg, (void)line;
    errors_n += level == KVP_LOG_ERROR;
}

static kvp_rdma_dev_t *devs[FAKE_DEVS_MAX];

static void
begin(uint32_t n)
{
    const char *why;
    size_t got;

    fake_verbs_begin(n);
    errors_n = 0;
    assert_int_equal(V->devs_open(NULL, devs, FAKE_DEVS_MAX, &got, &why), KVP_OK);
    assert_int_equal(got, n);
}

static void
end(void)
{
    V->devs_close();
    fake_verbs_end();
}

static void
look(void)
{
    ahead_ns += 20 * KVP_NS_PER_S;
    V->devs_look();
}

static void
look_until_gone(uint32_t dev)
{
    while (!devs[dev]->is_gone)
        look();
}

static void
look_until_let_go(uint32_t dev)
{
    while (fake_verbs_is_open(dev))
        look();
}

static void
look_until_back(uint32_t dev)
{
    while (devs[dev]->is_gone)
        look();
}

static kvp_rdma_reg_t *
reg_as(uint32_t dev, void *addr, kvp_rdma_access_t access)
{
    kvp_rdma_reg_t *reg = NULL;

    assert_int_equal(V->reg(devs[dev], addr, LEN, access, -1, &reg), KVP_OK);
    return reg;
}

static kvp_rdma_reg_t *
reg(uint32_t dev, void *addr)
{
    return reg_as(dev, addr, KVP_RDMA_LOCAL);
}

typedef struct {
    kvp_rdma_reg_t *reg;
    kvp_err_t err;
} made_t;

static void *
reg_in_thread(void *arg)
{
    made_t *made = arg;

    made->err = V->reg(devs[0], mem[0], LEN, KVP_RDMA_READABLE, -1, &made->reg);
    return NULL;
}

/* A test that waits for what does not come ends. */
static int
setup(void **state)
{
    (void)state;
    alarm(60);
    kvp_log_set_sink(count_errors, NULL);
    return 0;
}

/* The device goes while a thread registers with it, and more is registered after it. */
TEST_WITH(test_what_a_device_does_not_live_to_register_is_registered_when_it_is_back, setup, NULL)
{
    kvp_rdma_reg_t *later;
    made_t made = {0};
    pthread_t thread;

    begin(2);
    fake_verbs_shut(FAKE_REG);
    assert_int_equal(pthread_create(&thread, NULL, reg_in_thread, &made), 0);
    fake_verbs_await(FAKE_REG, 1);
    fake_verbs_remove(0);
    fake_verbs_open(FAKE_REG);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(made.err, KVP_OK);
    assert_true(devs[0]->is_gone); /* and nobody has looked */
    assert_int_equal(made.reg->rkey, 0);
    later = reg_as(0, mem[1], KVP_RDMA_READABLE);
    assert_int_equal(errors_n, 0); /* it is no fault of the memory */
    look_until_let_go(0);
    fake_verbs_add(0);
    look_until_back(0);
    assert_int_equal(devs[0]->life, 1);
    assert_int_not_equal(made.reg->rkey, 0);
    assert_int_not_equal(later->rkey, 0);
    assert_int_equal(fake_verbs_regs(0), 2);
    V->dereg(later);
    V->dereg(made.reg);
    end();
}

TEST_WITH(test_what_a_device_refuses_that_is_there_is_refused, setup, NULL)
{
    kvp_rdma_reg_t *none;

    begin(1);
    fake_verbs_refuse(mem[0], EINVAL);
    assert_int_equal(V->reg(devs[0], mem[0], LEN, KVP_RDMA_LOCAL, -1, &none), KVP_INVALID);
    assert_false(devs[0]->is_gone);
    assert_int_equal(errors_n, 1);
    end();
}

/* Each deregistration of the removed device waits at the gate: others, who close and open what is on it and on others,
 * do not. */
TEST_WITH(test_nobody_waits_while_a_removed_device_is_let_go, setup, NULL)
{
    kvp_rdma_reg_t *regs[REGS], *other;

    begin(2);
    for (uint32_t i = 0; i < REGS; i++)
        regs[i] = reg(0, mem[i]);
    fake_verbs_shut(FAKE_DEREG);
    fake_verbs_remove(0);
    look_until_gone(0);
    fake_verbs_await(FAKE_DEREG, 1);
    look();
    other = reg(1, mem[0]);
    V->dereg(reg(0, mem[1])); /* of a device that is gone there is nothing to wait for, either */
    for (uint32_t n = 1; n < REGS; n++) { /* one at a time, and the lock is free between any two */
        fake_verbs_let(FAKE_DEREG, 1);
        fake_verbs_await(FAKE_DEREG, n + 1);
        assert_int_equal(fake_verbs_regs(0), REGS - n);
        look();
    }
    assert_true(fake_verbs_is_open(0));
    fake_verbs_open(FAKE_DEREG);
    look_until_let_go(0);
    assert_int_equal(fake_verbs_regs(0), 0);
    for (uint32_t i = 0; i < REGS; i++)
        V->dereg(regs[i]);
    V->dereg(other);
    end();
}

static void *
dereg_in_thread(void *arg)
{
    V->dereg(arg);
    return NULL;
}

/* Its owner deregisters what is being let go, or beats the thread to it: once, and the device goes after both. */
TEST_WITH(test_memory_that_its_owner_deregisters_meanwhile_is_so_once, setup, NULL)
{
    kvp_rdma_reg_t *first, *second;
    pthread_t threads[2];

    begin(2);
    first = reg(0, mem[0]);
    second = reg(0, mem[1]);
    fake_verbs_shut(FAKE_DEREG);
    assert_int_equal(pthread_create(&threads[1], NULL, dereg_in_thread, second), 0);
    fake_verbs_await(FAKE_DEREG, 1);
    fake_verbs_remove(0);
    look_until_gone(0);
    assert_int_equal(pthread_create(&threads[0], NULL, dereg_in_thread, first), 0);
    fake_verbs_open(FAKE_DEREG);
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    look_until_let_go(0);
    end();
}

/* Its driver says so while it is in the list of devices, and once more while its memory is registered anew: nothing of
 * that is lost, and none of it is a fault of the memory. */
TEST_WITH(test_a_device_that_fails_is_as_one_that_is_removed, setup, NULL)
{
    kvp_rdma_reg_t *r, *later;

    begin(2);
    r = reg(0, mem[0]);
    fake_verbs_fail(0);
    later = reg(0, mem[1]); /* it is found out by who wants something of it */
    assert_true(devs[0]->is_gone);
    look_until_let_go(0);
    fake_verbs_shut(FAKE_REG);
    fake_verbs_add(0);
    while (fake_verbs_begun(FAKE_REG) < 3)
        look();
    fake_verbs_fail(0);
    fake_verbs_open(FAKE_REG);
    look_until_let_go(0);
    assert_false(r->is_lost);
    assert_false(later->is_lost);
    fake_verbs_add(0);
    look_until_back(0);
    assert_int_equal(errors_n, 0);
    assert_int_not_equal(r->lkey, 0);
    assert_int_not_equal(later->lkey, 0);
    assert_false(devs[1]->is_gone);
    V->dereg(later);
    V->dereg(r);
    end();
}

static void *
close_in_thread(void *arg)
{
    (void)arg;
    V->devs_close();
    return NULL;
}

TEST_WITH(test_closing_waits_for_what_is_being_let_go, setup, NULL)
{
    kvp_rdma_reg_t *r;
    pthread_t threads[2];

    begin(2);
    r = reg(0, mem[0]);
    fake_verbs_shut(FAKE_DEREG);
    fake_verbs_remove(0);
    look_until_gone(0);
    fake_verbs_await(FAKE_DEREG, 1);
    assert_int_equal(pthread_create(&threads[0], NULL, dereg_in_thread, r), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, close_in_thread, NULL), 0);
    fake_verbs_open(FAKE_DEREG);
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    fake_verbs_end(); /* nothing is left on any context */
}

/* Our own memory that is refused when the device is back is lost, alone, and stays so. */
TEST_WITH(test_memory_of_ours_that_is_refused_then_is_lost_alone, setup, NULL)
{
    kvp_rdma_reg_t *bad, *good;

    begin(2);
    bad = reg(0, mem[0]);
    good = reg(0, mem[1]);
    fake_verbs_remove(0);
    look_until_gone(0);
    look_until_let_go(0);
    fake_verbs_refuse(mem[0], EFAULT);
    fake_verbs_add(0);
    look_until_back(0);
    assert_true(bad->is_lost);
    assert_int_equal(bad->lkey, 0);
    assert_false(good->is_lost);
    assert_int_not_equal(good->lkey, 0);
    fake_verbs_refuse(mem[0], 0);
    fake_verbs_remove(0);
    look_until_gone(0);
    look_until_let_go(0);
    fake_verbs_add(0);
    look_until_back(0);
    assert_true(bad->is_lost);
    assert_int_equal(fake_verbs_regs(0), 1);
    V->dereg(bad);
    V->dereg(good);
    end();
}

/* Of what is served peers would get no key: the device is not used, and tried again. */
TEST_WITH(test_a_device_that_does_not_take_what_is_served_stays_away_until_it_does, setup, NULL)
{
    kvp_rdma_reg_t *served;

    begin(2);
    served = reg_as(0, mem[0], KVP_RDMA_READABLE);
    fake_verbs_remove(0);
    look_until_gone(0);
    look_until_let_go(0);
    fake_verbs_refuse(mem[0], EINVAL);
    fake_verbs_add(0);
    while (errors_n == 0)
        look();
    look();
    assert_true(devs[0]->is_gone);
    assert_false(served->is_lost);
    fake_verbs_refuse(mem[0], 0);
    look_until_back(0);
    assert_int_not_equal(served->rkey, 0);
    V->dereg(served);
    end();
}

/* Two are removed between two looks. */
TEST_WITH(test_one_look_finds_all_that_are_gone, setup, NULL)
{
    begin(3);
    fake_verbs_remove(0);
    fake_verbs_remove(2);
    look();
    assert_true(devs[0]->is_gone);
    assert_true(devs[2]->is_gone);
    look_until_let_go(0);
    look_until_let_go(2);
    assert_false(devs[1]->is_gone);
    end();
}

/* Each waits at the gate: whoever looks, and whoever leaves another one, does not. */
TEST_WITH(test_nobody_waits_while_ids_are_ended, setup, NULL)
{
    static const kvp_rdma_info_t nowhere;
    const char *why;

    begin(1);
    fake_verbs_shut(FAKE_LEAVE);
    assert_true(kvp_rdma_disconnect_later(kvp_rdma_libs(&why), fake_verbs_id(), &nowhere));
    look();
    fake_verbs_await(FAKE_LEAVE, 1);
    assert_true(kvp_rdma_disconnect_later(kvp_rdma_libs(&why), fake_verbs_id(), &nowhere));
    look();
    fake_verbs_open(FAKE_LEAVE);
    while (fake_verbs_begun(FAKE_LEAVE) < 2) /* the second by a thread of a look after that */
        look();
    end();
}

/* Nobody has an instance of the transport, nor any memory: the devices that the probe opened are looked at all the
 * same. It keeps them for the process, so this comes last. */
TEST_WITH(test_a_process_that_only_probed_looks, setup, NULL)
{
    const char *why;
    size_t n;

    fake_verbs_begin(2);
    assert_int_equal(kvp_transport_find("rdma")->probe(&why), KVP_OK);
    assert_int_equal(V->devs_open(NULL, devs, FAKE_DEVS_MAX, &n, &why), KVP_OK);
    V->devs_close(); /* devs names them still */
    fake_verbs_remove(1);
    while (fake_verbs_is_open(1)) {
        ahead_ns += 20 * KVP_NS_PER_S;
        kvp_transports_tend();
    }
    assert_true(devs[1]->is_gone);
    fake_verbs_add(1);
    while (devs[1]->is_gone) {
        ahead_ns += 20 * KVP_NS_PER_S;
        kvp_transports_tend();
    }
    assert_int_equal(devs[1]->life, 1);
    fake_verbs_leave();
}

TEST_MAIN()
