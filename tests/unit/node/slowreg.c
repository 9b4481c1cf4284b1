/* SPDX-License-Identifier: Apache-2.0
 * The gate. */
#include "tests/unit/node/slowreg.h"
#include "transport/all/registry.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define BEGUN_MAX 1024u
#define FAILS_MAX 4u
#define GRANTS_MAX 1024u

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_open;
    uint32_t permits;
    uint32_t begun_n;
    const void *begun[BEGUN_MAX];
    uint32_t fails_n;
    const void *bad[FAILS_MAX];
    kvp_err_t errs[FAILS_MAX];
    _Atomic uint32_t exports_n, export_ms;
    struct {
        const kvp_mr_t *mr;
        uint64_t incarnation;
    } granted[GRANTS_MAX];
    uint32_t granted_n;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static kvp_transport_ops_t ops;
static kvp_err_t (*quick_reg)(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t *mr);
static kvp_err_t (*quick_export)(const kvp_mr_t *mr, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out);

/* Under the lock. */
static kvp_err_t
pass(const void *addr)
{
    kvp_err_t err = KVP_OK;

    if (gate.begun_n == BEGUN_MAX) abort();
    gate.begun[gate.begun_n++] = addr;
    pthread_cond_broadcast(&gate.changed);
    while (!gate.is_open && gate.permits == 0)
        pthread_cond_wait(&gate.changed, &gate.lock);
    if (!gate.is_open) gate.permits--;
    for (uint32_t i = 0; i < gate.fails_n; i++)
        if (gate.bad[i] == addr) err = gate.errs[i];
    return err;
}

static kvp_err_t
slow_reg(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t *mr)
{
    kvp_err_t err;

    pthread_mutex_lock(&gate.lock);
    err = pass(mem->addr);
    pthread_mutex_unlock(&gate.lock);
    return err == KVP_OK ? quick_reg(tp, mem, mr) : err;
}

/* Under the lock. */
static bool
is_granted(const kvp_mr_t *mr, uint64_t incarnation)
{
    for (uint32_t i = 0; i < gate.granted_n; i++)
        if (gate.granted[i].mr == mr && gate.granted[i].incarnation == incarnation) return true;
    return false;
}

static kvp_err_t
slow_grant(kvp_mr_t *mr, uint64_t incarnation)
{
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&gate.lock);
    if (!is_granted(mr, incarnation)) {
        err = pass(mr->addr);
        if (gate.granted_n == GRANTS_MAX) abort();
        gate.granted[gate.granted_n].mr = mr;
        gate.granted[gate.granted_n].incarnation = incarnation;
        gate.granted_n += err == KVP_OK;
    }
    pthread_mutex_unlock(&gate.lock);
    return err;
}

static void
slow_left(kvp_tp_t *tp, uint64_t incarnation)
{
    uint32_t n = 0;

    (void)tp;
    pthread_mutex_lock(&gate.lock);
    for (uint32_t i = 0; i < gate.granted_n; i++)
        if (gate.granted[i].incarnation != incarnation) gate.granted[n++] = gate.granted[i];
    gate.granted_n = n;
    pthread_mutex_unlock(&gate.lock);
}

static kvp_err_t
slow_export(const kvp_mr_t *mr, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out)
{
    bool is_early;

    gate.exports_n++;
    usleep(gate.export_ms * 1000);
    pthread_mutex_lock(&gate.lock);
    is_early = access == KVP_ACCESS_WRITE && !is_granted(mr, incarnation);
    pthread_mutex_unlock(&gate.lock);
    return is_early ? KVP_EAGAIN : quick_export(mr, access, incarnation, token_out);
}

uint32_t
slow_reg_granted(void)
{
    uint32_t n;

    pthread_mutex_lock(&gate.lock);
    n = gate.granted_n;
    pthread_mutex_unlock(&gate.lock);
    return n;
}

const kvp_transport_ops_t *
slow_reg_reset(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_open = false;
    gate.permits = gate.begun_n = gate.fails_n = gate.granted_n = 0;
    gate.exports_n = gate.export_ms = 0;
    pthread_mutex_unlock(&gate.lock);
    ops = *kvp_transport_find("tcp");
    ops.name = "slow";
    quick_reg = ops.mr_reg;
    ops.mr_reg = slow_reg;
    ops.mr_grant = slow_grant;
    ops.peer_left = slow_left;
    quick_export = ops.mr_export;
    ops.mr_export = slow_export;
    ops.caps |= KVP_TP_SLOW_REG;
    return &ops;
}

void
slow_reg_let(uint32_t n)
{
    pthread_mutex_lock(&gate.lock);
    gate.permits += n;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

void
slow_reg_shut(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_open = false;
    gate.permits = 0;
    pthread_mutex_unlock(&gate.lock);
}

void
slow_reg_open(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_open = true;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

void
slow_reg_fail(const void *addr, kvp_err_t err)
{
    pthread_mutex_lock(&gate.lock);
    if (gate.fails_n == FAILS_MAX) abort();
    gate.bad[gate.fails_n] = addr;
    gate.errs[gate.fails_n++] = err;
    pthread_mutex_unlock(&gate.lock);
}

uint32_t
slow_reg_exports(uint32_t each_ms)
{
    gate.export_ms = each_ms;
    return gate.exports_n;
}

void
slow_reg_await(uint32_t n)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.begun_n < n)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

uint32_t
slow_reg_begun(void)
{
    uint32_t n;

    pthread_mutex_lock(&gate.lock);
    n = gate.begun_n;
    pthread_mutex_unlock(&gate.lock);
    return n;
}

const void *
slow_reg_at(uint32_t i)
{
    const void *addr;

    pthread_mutex_lock(&gate.lock);
    if (i >= gate.begun_n) abort();
    addr = gate.begun[i];
    pthread_mutex_unlock(&gate.lock);
    return addr;
}
