/* SPDX-License-Identifier: Apache-2.0
 * Design notes. `regs` counts the references to a range and waits for them; the sorted array beside it has tokens and
 * keys. A range is in regs for longer than in the array: a range that is found in the array may still refuse a
 * reference. RDMA's keys for writing are made when a range is registered, once for all peers, because this takes time
 * proportional to the memory, and a serving thread could not wait so long. */
#include "p2p/base/ranges.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/pages.h"

#include <stdlib.h>
#include <string.h>

void
kvp_p2p_ranges_init(kvp_p2p_ranges_t *ranges, kvp_tp_t *tp, kvp_tp_t *rdma, bool needs_rdma)
{
    const kvp_transport_ops_t *lent_to[2] = {tp->ops, rdma != NULL ? rdma->ops : NULL};

    memset(ranges, 0, sizeof *ranges);
    ranges->tp = tp;
    ranges->rdma = rdma;
    ranges->needs_rdma = needs_rdma;
    ranges->writers = kvp_random_u64();
    kvp_regs_init(&ranges->regs, lent_to, rdma != NULL ? 2 : 1);
    ranges->regs.bounces_devices = true;
    pthread_mutex_init(&ranges->lock, NULL);
}

/* Destroys the keys of a range, so that no peer reaches the range any more. */
static void
unexport_range(const kvp_p2p_range_t *range)
{
    if (range->is_device) return;
    kvp_mr_destroy(range->rdma_mr);
    kvp_mr_destroy(range->mr);
}

void
kvp_p2p_ranges_fini(kvp_p2p_ranges_t *ranges)
{
    for (size_t i = 0; i < ranges->n; i++)
        unexport_range(&ranges->sorted[i]);
    free(ranges->sorted);
    kvp_regs_fini(&ranges->regs);
    pthread_mutex_destroy(&ranges->lock);
    memset(ranges, 0, sizeof *ranges);
}

/* Returns the number of ranges that begin at or below addr. The caller holds the lock. */
static size_t
upper_bound(const kvp_p2p_ranges_t *ranges, uint64_t addr)
{
    size_t lo = 0, hi = ranges->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if ((uintptr_t)ranges->sorted[mid].base <= addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Returns the range that contains all the bytes and has the token (0 = any token), or NULL. The caller holds the
 * lock. */
static const kvp_p2p_range_t *
find_range(const kvp_p2p_ranges_t *ranges, uint64_t addr, uint64_t len, uint64_t token)
{
    size_t at = upper_bound(ranges, addr);
    const kvp_p2p_range_t *range = at > 0 ? &ranges->sorted[at - 1] : NULL;
    uint64_t off;

    if (range == NULL || (token != 0 && token != range->token)) return NULL;
    off = addr - (uintptr_t)range->base;
    return off < range->len && len <= range->len - off ? range : NULL;
}

static kvp_err_t
insert_range(kvp_p2p_ranges_t *ranges, const kvp_p2p_range_t *range)
{
    kvp_p2p_range_t *sorted = kvp_grow(ranges->sorted, ranges->n, &ranges->cap, 16, sizeof *sorted);
    size_t at;

    if (sorted == NULL) return KVP_NOMEM;
    ranges->sorted = sorted;
    at = upper_bound(ranges, (uintptr_t)range->base);
    memmove(ranges->sorted + at + 1, ranges->sorted + at, (ranges->n - at) * sizeof *ranges->sorted);
    ranges->sorted[at] = *range;
    ranges->n++;
    return KVP_OK;
}

static kvp_err_t
export_by_rdma(const kvp_p2p_ranges_t *ranges, const kvp_mem_t *mem, kvp_mr_t **mr_out)
{
    kvp_mr_t *mr;
    kvp_err_t err = kvp_mr_create(ranges->rdma, mem, &mr);

    if (err != KVP_OK) return err;
    err = ranges->rdma->ops->mr_grant(mr, ranges->writers);
    if (err != KVP_OK)
        kvp_mr_destroy(mr);
    else
        *mr_out = mr;
    return err;
}

static kvp_err_t
export_range(const kvp_p2p_ranges_t *ranges, const kvp_mem_t *mem, kvp_p2p_range_t *range)
{
    kvp_err_t err = kvp_mr_create(ranges->tp, mem, &range->mr);

    if (err != KVP_OK || ranges->rdma == NULL) return err;
    err = export_by_rdma(ranges, mem, &range->rdma_mr);
    if (err == KVP_OK) return err;
    kvp_log_warn("client", "peers do not reach memory by rdma: it cannot be registered (%s) addr=%p bytes=%zu",
                 kvp_err_text(err), mem->addr, mem->len);
    return ranges->needs_rdma ? err : KVP_OK;
}

kvp_err_t
kvp_p2p_ranges_add(kvp_p2p_ranges_t *ranges, void *addr, size_t len, uint64_t token, bool is_bounce)
{
    kvp_p2p_range_t range = {.base = addr, .len = len, .token = token, .is_bounce = is_bounce};
    kvp_mem_t mem = {.addr = addr, .len = len, .fd = -1};
    kvp_devmem_t device;
    kvp_err_t err;

    if (addr == NULL || len == 0) return KVP_INVALID;
    err = kvp_device_cuda.look(addr, len, &device);
    range.is_device = err == KVP_OK && device.kind == KVP_MEM_DEVICE;
    if (range.is_device) atomic_store(&ranges->has_had_devices, true);
    if (err == KVP_OK && !range.is_device && !kvp_is_mapped(addr, len)) err = KVP_INVALID;
    if (err == KVP_OK) err = kvp_regs_add(&ranges->regs, addr, len, range.is_device ? &device : NULL);
    if (err != KVP_OK) return err;
    if (!range.is_device) err = export_range(ranges, &mem, &range);
    if (err == KVP_OK) {
        pthread_mutex_lock(&ranges->lock);
        err = insert_range(ranges, &range);
        pthread_mutex_unlock(&ranges->lock);
        if (err == KVP_OK) return KVP_OK;
    }
    unexport_range(&range);
    kvp_ignore(kvp_regs_del(&ranges->regs, addr), "it was added a moment ago");
    return err;
}

kvp_err_t
kvp_p2p_ranges_del(kvp_p2p_ranges_t *ranges, void *addr)
{
    kvp_p2p_range_t range = {0};
    size_t at;

    pthread_mutex_lock(&ranges->lock);
    at = upper_bound(ranges, (uintptr_t)addr);
    if (at > 0 && ranges->sorted[at - 1].base == addr) {
        range = ranges->sorted[at - 1];
        ranges->n--;
        memmove(ranges->sorted + at - 1, ranges->sorted + at, (ranges->n - at + 1) * sizeof *ranges->sorted);
    }
    pthread_mutex_unlock(&ranges->lock);
    if (range.base == NULL) return KVP_NOT_REGISTERED;
    unexport_range(&range);
    return kvp_regs_del(&ranges->regs, addr);
}

void
kvp_p2p_ranges_del_all(kvp_p2p_ranges_t *ranges, const void *addr, size_t len)
{
    uintptr_t start = (uintptr_t)addr;
    uint8_t *base;

    do {
        size_t at;

        base = NULL;
        pthread_mutex_lock(&ranges->lock);
        /* ranges do not overlap, so the last range that begins before addr + len is also the last to end */
        at = upper_bound(ranges, start + len - 1);
        if (at > 0 && (uintptr_t)ranges->sorted[at - 1].base + ranges->sorted[at - 1].len > start)
            base = ranges->sorted[at - 1].base;
        pthread_mutex_unlock(&ranges->lock);
        if (base != NULL) kvp_ignore(kvp_p2p_ranges_del(ranges, base), "somebody else may be faster");
    } while (base != NULL);
}

/* Returns the range with the lowest address that is not a bounce buffer, or NULL. The caller holds the lock. */
static const kvp_p2p_range_t *
first_range(const kvp_p2p_ranges_t *ranges, bool may_be_device)
{
    for (size_t i = 0; i < ranges->n; i++)
        if (!ranges->sorted[i].is_bounce && (may_be_device || !ranges->sorted[i].is_device)) return &ranges->sorted[i];
    return NULL;
}

/* Returns the transport's key with which peers reach the range. The caller holds the lock. */
static kvp_err_t
export_key(const kvp_p2p_ranges_t *ranges, const kvp_p2p_range_t *range, const kvp_peer_find_t *find,
           uint64_t incarnation, kvp_token_t *key_out)
{
    if (range->is_device) {
        key_out->len = 0;
        return find->may_stage ? KVP_OK : KVP_NOTSUP;
    }
    if (!find->by_rdma) return ranges->tp->ops->mr_export(range->mr, KVP_ACCESS_WRITE, incarnation, key_out);
    if (range->rdma_mr == NULL) return KVP_NOTSUP;
    return ranges->rdma->ops->mr_export(range->rdma_mr, KVP_ACCESS_WRITE, ranges->writers, key_out);
}

kvp_err_t
kvp_p2p_ranges_find(kvp_p2p_ranges_t *ranges, const kvp_peer_find_t *asked, const kvp_peer_at_t *at,
                    uint64_t incarnation, kvp_peer_range_t *range_out)
{
    const kvp_p2p_range_t *range;
    kvp_token_t key;
    kvp_err_t err = KVP_NOT_REGISTERED;

    memset(range_out, 0, sizeof *range_out);
    pthread_mutex_lock(&ranges->lock);
    if (at->len > 0)
        range = find_range(ranges, at->addr, at->len, at->token);
    else
        range = at->token == 0 ? first_range(ranges, asked->may_stage) : NULL;
    if (range != NULL) err = export_key(ranges, range, asked, incarnation, &key);
    if (err == KVP_OK) {
        range_out->base = (uintptr_t)range->base;
        range_out->len = range->len;
        range_out->token = range->token;
        range_out->key_len = key.len;
        memcpy(range_out->key, key.bytes, key.len);
    }
    pthread_mutex_unlock(&ranges->lock);
    range_out->err = err;
    return err;
}

bool
kvp_p2p_ranges_device(kvp_p2p_ranges_t *ranges, kvp_devmem_t *mem_out)
{
    bool has = false;

    pthread_mutex_lock(&ranges->lock);
    for (size_t i = 0; i < ranges->n && !has; i++) {
        const kvp_devmem_t *mem =
            ranges->sorted[i].is_device ? kvp_regs_find_mem(&ranges->regs, ranges->sorted[i].base) : NULL;

        has = mem != NULL;
        if (has) *mem_out = *mem;
    }
    pthread_mutex_unlock(&ranges->lock);
    return has;
}

void
kvp_p2p_ranges_begin(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor)
{
    pthread_mutex_lock(&ranges->lock);
    kvp_regs_begin(&ranges->regs, cursor);
}

void
kvp_p2p_ranges_end(kvp_p2p_ranges_t *ranges)
{
    kvp_regs_end(&ranges->regs);
    pthread_mutex_unlock(&ranges->lock);
}

kvp_reg_t *
kvp_p2p_ranges_hold_next(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvp_peer_at_t *at, bool is_device,
                         bool *is_new_out)
{
    const kvp_p2p_range_t *range = find_range(ranges, at->addr, at->len, at->token);

    *is_new_out = false;
    if (range == NULL || range->is_device != is_device) return NULL;
    return kvp_regs_hold(cursor, (const void *)(uintptr_t)at->addr, (size_t)at->len, is_new_out);
}

kvp_reg_t *
kvp_p2p_ranges_hold(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at, bool is_device)
{
    kvp_regs_cursor_t cursor;
    kvp_reg_t *reg;
    bool is_new;

    kvp_p2p_ranges_begin(ranges, &cursor);
    reg = kvp_p2p_ranges_hold_next(ranges, &cursor, at, is_device, &is_new);
    kvp_p2p_ranges_end(ranges);
    return reg;
}

void
kvp_p2p_ranges_rele(kvp_p2p_ranges_t *ranges, kvp_reg_t *reg)
{
    if (reg != NULL) kvp_regs_rele(&ranges->regs, reg);
}

const kvp_devmem_t *
kvp_p2p_ranges_mem(kvp_p2p_ranges_t *ranges, const void *addr)
{
    return kvp_regs_have_devices(&ranges->regs) ? kvp_regs_find_mem(&ranges->regs, addr) : NULL;
}

/* Finds out whether the local memory of a piece is device memory. For memory in no range it asks the CUDA driver,
 * because a processor's access to device memory would kill the process. */
static kvp_err_t
look_at_local(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *op, bool *is_device_out)
{
    const kvp_p2p_range_t *range;
    kvp_devmem_t mem;
    bool is_found;

    pthread_mutex_lock(&ranges->lock);
    range = find_range(ranges, (uintptr_t)op->local, op->len, 0);
    is_found = range != NULL;
    *is_device_out = is_found && range->is_device;
    pthread_mutex_unlock(&ranges->lock);
    if (is_found) return KVP_OK;
    *is_device_out = kvp_p2p_ranges_mem(ranges, op->local) != NULL;
    if (*is_device_out) return KVP_OK;
    if (kvp_device_cuda.look(op->local, op->len, &mem) != KVP_OK) return KVP_INVALID;
    return mem.kind == KVP_MEM_DEVICE ? KVP_NOT_REGISTERED : KVP_OK;
}

kvp_err_t
kvp_p2p_ranges_have_device(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n, bool *has_out)
{
    *has_out = false;
    if (!atomic_load(&ranges->has_had_devices)) return KVP_OK;
    for (size_t i = 0; i < n; i++) {
        bool is_device = false;
        kvp_err_t err = ops[i].len > 0 ? look_at_local(ranges, &ops[i], &is_device) : KVP_OK;

        if (err != KVP_OK) return err;
        *has_out |= is_device;
    }
    return KVP_OK;
}

/* Holds each range that the piece touches, completely or partly. A piece that begins in a range must end in the same
 * range, or in ranges that follow without a gap, because a too long piece would overwrite the memory after them.
 * *is_within_out: the piece begins in a range. The caller holds the lock. */
static kvp_err_t
hold_piece(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvpool_p2p_op_t *op, kvp_regs_held_t *held,
           bool *is_within_out)
{
    uintptr_t start = (uintptr_t)op->local, end = start + op->len;
    size_t i = upper_bound(ranges, start);
    bool is_within = i > 0 && start - (uintptr_t)ranges->sorted[i - 1].base < ranges->sorted[i - 1].len;
    uintptr_t covered = start;

    *is_within_out = is_within;
    if (is_within) i--;
    for (; i < ranges->n && (uintptr_t)ranges->sorted[i].base < end; i++) {
        const kvp_p2p_range_t *range = &ranges->sorted[i];
        bool is_new;
        kvp_reg_t *reg;

        /* a piece with device memory must lie in one range: otherwise the processor would have to copy a part of it,
         * and it cannot access device memory */
        if (range->is_device && find_range(ranges, start, op->len, 0) != range) return KVP_NOT_REGISTERED;
        if (is_within && (uintptr_t)range->base > covered) return KVP_NOT_REGISTERED;
        covered = (uintptr_t)range->base + range->len;
        reg = kvp_regs_hold(cursor, range->base, 1, &is_new);
        if (reg == NULL || !is_new) continue;
        if (kvp_regs_keep(&ranges->regs, held, reg) != KVP_OK) return KVP_NOMEM;
    }
    return is_within && covered < end ? KVP_NOT_REGISTERED : KVP_OK;
}

kvp_err_t
kvp_p2p_ranges_hold_local(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n, kvp_regs_held_t *held_out)
{
    kvp_regs_held_t held = {0};
    kvp_regs_cursor_t cursor;
    kvp_err_t err = KVP_OK;
    size_t strange = n; /* index of the first piece outside of all ranges */

    kvp_p2p_ranges_begin(ranges, &cursor);
    for (size_t i = 0; i < n && err == KVP_OK; i++) {
        bool is_within = true;

        if (ops[i].len > 0) err = hold_piece(ranges, &cursor, &ops[i], &held, &is_within);
        if (!is_within && strange == n) strange = i;
    }
    kvp_p2p_ranges_end(ranges);
    /* A processor's access to unmapped memory would kill the process, so refuse unmapped pieces. */
    for (size_t i = strange; i < n && err == KVP_OK; i++)
        if (ops[i].len > 0 && !kvp_is_mapped(ops[i].local, ops[i].len)) err = KVP_INVALID;
    if (err != KVP_OK)
        kvp_regs_rele_all(&ranges->regs, &held);
    else
        *held_out = held;
    return err;
}

void
kvp_p2p_ranges_cover(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *const *ops, uint32_t n, bool *covered_out)
{
    pthread_mutex_lock(&ranges->lock);
    for (uint32_t i = 0; i < n; i++)
        covered_out[i] = find_range(ranges, (uintptr_t)ops[i]->local, ops[i]->len, 0) != NULL;
    pthread_mutex_unlock(&ranges->lock);
}
