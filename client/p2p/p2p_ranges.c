/* SPDX-License-Identifier: Apache-2.0
 * Design notes. `regs` knows who uses a range and waits for them; the array beside it knows tokens and keys. A range is in
 * regs for longer than in the array, so whoever finds it in the array may still fail to hold it, and never the reverse.
 */
#include "client/p2p/p2p_ranges.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

void
kvp_p2p_ranges_init(kvp_p2p_ranges_t *ranges, kvp_tp_t *tp)
{
    const kvp_transport_ops_t *lent_to[1] = {tp->ops};

    memset(ranges, 0, sizeof *ranges);
    ranges->tp = tp;
    kvp_regs_init(&ranges->regs, lent_to, 1);
    pthread_mutex_init(&ranges->lock, NULL);
}

void
kvp_p2p_ranges_fini(kvp_p2p_ranges_t *ranges)
{
    for (size_t i = 0; i < ranges->n; i++)
        kvp_mr_destroy(ranges->sorted[i].mr);
    free(ranges->sorted);
    kvp_regs_fini(&ranges->regs);
    pthread_mutex_destroy(&ranges->lock);
    memset(ranges, 0, sizeof *ranges);
}

/* The number of ranges that begin at or below addr. Caller holds the lock. */
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

/* The range that holds all of it, under that token. Caller holds the lock. */
static const kvp_p2p_range_t *
find(const kvp_p2p_ranges_t *ranges, uint64_t addr, uint64_t len, uint64_t token)
{
    size_t at = upper_bound(ranges, addr);
    const kvp_p2p_range_t *range = at > 0 ? &ranges->sorted[at - 1] : NULL;
    uint64_t off;

    if (range == NULL || (token != 0 && token != range->token)) return NULL;
    off = addr - (uintptr_t)range->base;
    return off < range->len && len <= range->len - off ? range : NULL;
}

static kvp_err_t
insert(kvp_p2p_ranges_t *ranges, const kvp_p2p_range_t *range)
{
    size_t at;

    if (ranges->n == ranges->cap) {
        size_t cap = ranges->cap == 0 ? 16 : ranges->cap * 2;
        kvp_p2p_range_t *sorted = realloc(ranges->sorted, cap * sizeof *sorted);

        if (sorted == NULL) return KVP_NOMEM;
        ranges->sorted = sorted;
        ranges->cap = cap;
    }
    at = upper_bound(ranges, (uintptr_t)range->base);
    memmove(ranges->sorted + at + 1, ranges->sorted + at, (ranges->n - at) * sizeof *ranges->sorted);
    ranges->sorted[at] = *range;
    ranges->n++;
    return KVP_OK;
}

kvp_err_t
kvp_p2p_ranges_add(kvp_p2p_ranges_t *ranges, void *addr, size_t len, uint64_t *token_out)
{
    kvp_p2p_range_t range = {.base = addr, .len = len, .token = kvp_random_u64()};
    kvp_mem_t mem = {.addr = addr, .len = len, .fd = -1};
    kvp_devmem_t device;
    kvp_err_t err;

    if (addr == NULL || len == 0) return KVP_INVALID;
    err = kvp_device_cuda.look(addr, len, &device);
    if (err == KVP_OK && device.kind == KVP_MEM_DEVICE) {
        kvp_log_error("client", "memory of a GPU cannot be registered for peers yet: %p, %zu bytes", addr, len);
        err = KVP_NOTSUP;
    }
    if (err == KVP_OK) err = kvp_regs_add(&ranges->regs, addr, len, NULL);
    if (err != KVP_OK) return err;
    err = kvp_mr_create(ranges->tp, &mem, &range.mr);
    if (err == KVP_OK) {
        pthread_mutex_lock(&ranges->lock);
        err = insert(ranges, &range);
        pthread_mutex_unlock(&ranges->lock);
        if (err == KVP_OK) {
            *token_out = range.token;
            return KVP_OK;
        }
        kvp_mr_destroy(range.mr);
    }
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
    if (range.mr == NULL) return KVP_NOT_REGISTERED;
    kvp_mr_destroy(range.mr);
    return kvp_regs_del(&ranges->regs, addr);
}

kvp_err_t
kvp_p2p_ranges_find(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at, uint64_t incarnation,
                    kvp_peer_range_t *range_out)
{
    const kvp_p2p_range_t *range;
    kvp_token_t token;
    kvp_err_t err = KVP_NOT_REGISTERED;

    memset(range_out, 0, sizeof *range_out);
    pthread_mutex_lock(&ranges->lock);
    if (at->len > 0)
        range = find(ranges, at->addr, at->len, at->token);
    else
        range = ranges->n > 0 && at->token == 0 ? &ranges->sorted[0] : NULL;
    if (range != NULL) err = ranges->tp->ops->mr_export(range->mr, KVP_ACCESS_WRITE, incarnation, &token);
    if (err == KVP_OK) {
        range_out->base = (uintptr_t)range->base;
        range_out->len = range->len;
        range_out->token = range->token;
        range_out->key_len = token.len;
        memcpy(range_out->key, token.bytes, token.len);
    }
    pthread_mutex_unlock(&ranges->lock);
    range_out->err = err;
    return err;
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
kvp_p2p_ranges_hold_next(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvp_peer_at_t *at, bool *is_new_out)
{
    *is_new_out = false;
    if (find(ranges, at->addr, at->len, at->token) == NULL) return NULL;
    return kvp_regs_hold(cursor, (const void *)(uintptr_t)at->addr, (size_t)at->len, is_new_out);
}

kvp_reg_t *
kvp_p2p_ranges_hold(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at)
{
    kvp_regs_cursor_t cursor;
    kvp_reg_t *reg;
    bool is_new;

    kvp_p2p_ranges_begin(ranges, &cursor);
    reg = kvp_p2p_ranges_hold_next(ranges, &cursor, at, &is_new);
    kvp_p2p_ranges_end(ranges);
    return reg;
}

void
kvp_p2p_ranges_rele(kvp_p2p_ranges_t *ranges, kvp_reg_t *reg)
{
    if (reg != NULL) kvp_regs_rele(&ranges->regs, reg);
}

static kvp_err_t
note_held(kvp_p2p_held_t *held, kvp_reg_t *reg)
{
    if (held->n == held->cap) {
        size_t cap = held->cap == 0 ? 8 : held->cap * 2;
        kvp_reg_t **regs = realloc(held->regs, cap * sizeof *regs);

        if (regs == NULL) return KVP_NOMEM;
        held->regs = regs;
        held->cap = cap;
    }
    held->regs[held->n++] = reg;
    return KVP_OK;
}

/* Each range that the piece touches, whole or in part. Caller holds the lock. */
static kvp_err_t
hold_piece(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvpool_p2p_op_t *op, kvp_p2p_held_t *held)
{
    uintptr_t start = (uintptr_t)op->local, end = start + op->len;
    size_t i = upper_bound(ranges, start);

    if (i > 0 && start - (uintptr_t)ranges->sorted[i - 1].base < ranges->sorted[i - 1].len) i--;
    for (; i < ranges->n && (uintptr_t)ranges->sorted[i].base < end; i++) {
        bool is_new;
        kvp_reg_t *reg = kvp_regs_hold(cursor, ranges->sorted[i].base, 1, &is_new);

        if (reg == NULL || !is_new) continue;
        if (note_held(held, reg) == KVP_OK) continue;
        kvp_regs_rele(&ranges->regs, reg);
        return KVP_NOMEM;
    }
    return KVP_OK;
}

kvp_err_t
kvp_p2p_ranges_hold_local(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n, kvp_p2p_held_t *held_out)
{
    kvp_p2p_held_t held = {0};
    kvp_regs_cursor_t cursor;
    kvp_err_t err = KVP_OK;

    kvp_p2p_ranges_begin(ranges, &cursor);
    for (size_t i = 0; i < n && err == KVP_OK; i++)
        if (ops[i].len > 0) err = hold_piece(ranges, &cursor, &ops[i], &held);
    kvp_p2p_ranges_end(ranges);
    if (err != KVP_OK)
        kvp_p2p_ranges_rele_all(ranges, &held);
    else
        *held_out = held;
    return err;
}

void
kvp_p2p_ranges_rele_all(kvp_p2p_ranges_t *ranges, kvp_p2p_held_t *held)
{
    for (size_t i = 0; i < held->n; i++)
        kvp_regs_rele(&ranges->regs, held->regs[i]);
    free(held->regs);
    *held = (kvp_p2p_held_t){0};
}

void
kvp_p2p_ranges_cover(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *const *ops, uint32_t n, bool *covered_out)
{
    pthread_mutex_lock(&ranges->lock);
    for (uint32_t i = 0; i < n; i++)
        covered_out[i] = find(ranges, (uintptr_t)ops[i]->local, ops[i]->len, 0) != NULL;
    pthread_mutex_unlock(&ranges->lock);
}
