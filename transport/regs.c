/* SPDX-License-Identifier: Apache-2.0
 * Registered ranges in an array sorted by address, under a read-write lock that is taken once for a whole batch. Most
 * pieces of a batch lie in the same range as the piece before, so the cursor remembers the last range. A range is
 * lent to the transports before a call can hold the range, and the loans end after the last hold. */
#include "transport/regs.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct kvp_reg {
    uintptr_t start;
    uintptr_t end;
    kvp_devmem_t mem;
    bool is_reached; /* the range is device memory that at least one transport can access in place */
    bool is_leaving; /* kvp_regs_del was called: the range gets no new holds; its holds stay valid; guarded by lock */
    _Atomic uint32_t users;
    kvp_loan_t *loans[]; /* the loan of each transport; NULL = no loan */
};

void
kvp_regs_init(kvp_regs_t *regs, const kvp_transport_ops_t *const *transports, size_t transports_n)
{
    memset(regs, 0, sizeof(*regs));
    for (size_t i = 0; i < transports_n; i++)
        regs->transports[regs->transports_n++] = transports[i];
    pthread_rwlock_init(&regs->lock, NULL);
    pthread_mutex_init(&regs->idle_lock, NULL);
    pthread_cond_init(&regs->idle, NULL);
}

static void
reg_destroy(const kvp_regs_t *regs, kvp_reg_t *reg)
{
    for (size_t i = 0; i < regs->transports_n; i++)
        if (reg->loans[i] != NULL) regs->transports[i]->unlend(reg->loans[i]);
    free(reg);
}

/* Makes a registered range and lends its memory to the transports. A transport that refused the loan copies host
 * memory, and moves device memory through bounce buffers. Managed memory is never lent, because it migrates. */
static kvp_reg_t *
reg_create(const kvp_regs_t *regs, void *addr, size_t len, const kvp_devmem_t *mem)
{
    kvp_reg_t *reg = calloc(1, sizeof *reg + regs->transports_n * sizeof reg->loans[0]);
    const kvp_devmem_t *device = mem != NULL && mem->kind == KVP_MEM_DEVICE ? mem : NULL;

    if (reg == NULL) return NULL;
    reg->start = (uintptr_t)addr;
    reg->end = reg->start + len;
    if (mem != NULL) reg->mem = *mem;
    if (reg->mem.kind == KVP_MEM_MANAGED) return reg;
    for (size_t i = 0; i < regs->transports_n; i++) {
        const kvp_transport_ops_t *ops = regs->transports[i];

        if (device != NULL && (regs->bounces_devices || (ops->caps & KVP_TP_DEVICE_MEM) == 0)) continue;
        if (ops->lend(NULL, addr, len, device, &reg->loans[i]) != KVP_OK) reg->loans[i] = NULL;
        reg->is_reached |= device != NULL && reg->loans[i] != NULL;
    }
    return reg;
}

void
kvp_regs_fini(kvp_regs_t *regs)
{
    for (size_t i = 0; i < regs->n; i++)
        reg_destroy(regs, regs->sorted[i]);
    free(regs->sorted);
    pthread_cond_destroy(&regs->idle);
    pthread_mutex_destroy(&regs->idle_lock);
    pthread_rwlock_destroy(&regs->lock);
}

/* Returns the number of ranges that begin at or below addr. */
static size_t
upper_bound(const kvp_regs_t *regs, uintptr_t addr)
{
    size_t lo = 0, hi = regs->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (regs->sorted[mid]->start <= addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool
is_device(const kvp_reg_t *reg)
{
    return reg->mem.kind == KVP_MEM_DEVICE;
}

static kvp_err_t
insert_reg(kvp_regs_t *regs, kvp_reg_t *reg)
{
    size_t at = upper_bound(regs, reg->start);
    kvp_reg_t **sorted;

    if (at > 0 && regs->sorted[at - 1]->end > reg->start) return KVP_INVALID;
    if (at < regs->n && regs->sorted[at]->start < reg->end) return KVP_INVALID;
    sorted = kvp_grow(regs->sorted, regs->n, &regs->cap, 16, sizeof *sorted);
    if (sorted == NULL) return KVP_NOMEM;
    regs->sorted = sorted;
    memmove(regs->sorted + at + 1, regs->sorted + at, (regs->n - at) * sizeof *regs->sorted);
    regs->sorted[at] = reg;
    regs->n++;
    return KVP_OK;
}

kvp_err_t
kvp_regs_add(kvp_regs_t *regs, void *addr, size_t len, const kvp_devmem_t *mem)
{
    uintptr_t start = (uintptr_t)addr, end;
    kvp_reg_t *reg;
    kvp_err_t err;

    if (addr == NULL || len == 0 || __builtin_add_overflow(start, len, &end)) return KVP_INVALID;
    reg = reg_create(regs, addr, len, mem);
    if (reg == NULL) return KVP_NOMEM;
    pthread_rwlock_wrlock(&regs->lock);
    err = insert_reg(regs, reg);
    if (err == KVP_OK && is_device(reg)) regs->devices_n++;
    pthread_rwlock_unlock(&regs->lock);
    if (err != KVP_OK) reg_destroy(regs, reg);
    return err;
}

/* Marks the range that begins at start as leaving, and returns it. A leaving range gets no new holds. NULL: there is no
 * such range, or another thread is removing it. */
static kvp_reg_t *
begin_leave(kvp_regs_t *regs, uintptr_t start)
{
    kvp_reg_t *reg;
    size_t at;

    pthread_rwlock_wrlock(&regs->lock);
    at = upper_bound(regs, start);
    reg = at > 0 ? regs->sorted[at - 1] : NULL;
    if (reg != NULL && (reg->start != start || reg->is_leaving)) reg = NULL;
    if (reg != NULL) reg->is_leaving = true;
    pthread_rwlock_unlock(&regs->lock);
    return reg;
}

static void
extract_reg(kvp_regs_t *regs, const kvp_reg_t *reg)
{
    size_t at;

    pthread_rwlock_wrlock(&regs->lock);
    at = upper_bound(regs, reg->start) - 1;
    regs->n--;
    if (is_device(reg)) regs->devices_n--;
    memmove(regs->sorted + at, regs->sorted + at + 1, (regs->n - at) * sizeof *regs->sorted);
    pthread_rwlock_unlock(&regs->lock);
}

kvp_err_t
kvp_regs_del(kvp_regs_t *regs, void *addr)
{
    kvp_reg_t *reg = begin_leave(regs, (uintptr_t)addr);

    if (reg == NULL) return KVP_NOT_REGISTERED;

    pthread_mutex_lock(&regs->idle_lock);
    while (reg->users > 0)
        pthread_cond_wait(&regs->idle, &regs->idle_lock);
    pthread_mutex_unlock(&regs->idle_lock);
    extract_reg(regs, reg);
    reg_destroy(regs, reg);
    return KVP_OK;
}

void
kvp_regs_begin(kvp_regs_t *regs, kvp_regs_cursor_t *cursor)
{
    pthread_rwlock_rdlock(&regs->lock);
    *cursor = (kvp_regs_cursor_t){.regs = regs};
}

static bool
is_inside(const kvp_reg_t *reg, uintptr_t start, size_t len)
{
    return start >= reg->start && start < reg->end && len <= reg->end - start;
}

kvp_reg_t *
kvp_regs_hold(kvp_regs_cursor_t *cursor, const void *addr, size_t len, bool *is_new_out)
{
    uintptr_t start = (uintptr_t)addr;
    kvp_reg_t *reg = cursor->last;
    size_t at;

    *is_new_out = false;
    if (reg != NULL && is_inside(reg, start, len)) return reg;
    at = upper_bound(cursor->regs, start);
    if (at == 0) return NULL;
    reg = cursor->regs->sorted[at - 1];
    if (!is_inside(reg, start, len) || reg->is_leaving) return NULL;
    atomic_fetch_add_explicit(&reg->users, 1, memory_order_relaxed);
    cursor->last = reg;
    *is_new_out = true;
    return reg;
}

void
kvp_regs_end(kvp_regs_t *regs)
{
    pthread_rwlock_unlock(&regs->lock);
}

void
kvp_regs_rele(kvp_regs_t *regs, kvp_reg_t *reg)
{
    uint32_t users = reg->users;

    /* Only the last release takes the lock: right after it the thread that waits in kvp_regs_del may free the range. */
    while (users > 1)
        if (atomic_compare_exchange_weak(&reg->users, &users, users - 1)) return;
    pthread_mutex_lock(&regs->idle_lock);
    reg->users--;
    pthread_cond_broadcast(&regs->idle);
    pthread_mutex_unlock(&regs->idle_lock);
}

kvp_err_t
kvp_regs_keep(kvp_regs_t *regs, kvp_regs_held_t *held, kvp_reg_t *reg)
{
    kvp_reg_t **more = kvp_grow(held->regs, held->n, &held->cap, 16, sizeof *more);

    if (more == NULL) {
        kvp_regs_rele(regs, reg);
        return KVP_NOMEM;
    }
    held->regs = more;
    held->regs[held->n++] = reg;
    return KVP_OK;
}

void
kvp_regs_rele_all(kvp_regs_t *regs, kvp_regs_held_t *held)
{
    for (size_t i = 0; i < held->n; i++)
        kvp_regs_rele(regs, held->regs[i]);
    free(held->regs);
    *held = (kvp_regs_held_t){0};
}

const kvp_devmem_t *
kvp_reg_mem(const kvp_reg_t *reg)
{
    return &reg->mem;
}

bool
kvp_reg_is_gpu_direct(const kvp_reg_t *reg, bool is_get)
{
    return reg->is_reached && !(is_get && reg->mem.flush == KVP_DEVICE_FLUSH_IMPOSSIBLE);
}

const kvp_devmem_t *
kvp_regs_find_mem(kvp_regs_t *regs, const void *addr)
{
    const kvp_devmem_t *mem = NULL;
    size_t at;

    pthread_rwlock_rdlock(&regs->lock);
    at = upper_bound(regs, (uintptr_t)addr);
    if (at > 0 && is_inside(regs->sorted[at - 1], (uintptr_t)addr, 1) && is_device(regs->sorted[at - 1]))
        mem = &regs->sorted[at - 1]->mem;
    pthread_rwlock_unlock(&regs->lock);
    return mem;
}

bool
kvp_regs_have_devices(const kvp_regs_t *regs)
{
    return regs->devices_n > 0;
}
