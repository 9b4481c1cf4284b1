/* SPDX-License-Identifier: Apache-2.0
 * Puts and gets of the C API. Checks the arguments item by item, and passes valid items to client/api/batch.c in
 * windows. */
#include "client/api/batch.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 1024u
#define WINDOW_KEY_BYTES (8u << 20) /* most key bytes in one PUT_BEGIN; KVP_PLACES_MAX keys always have fewer bytes */
/* most payload bytes in one round of a put: begin, fill, seal, commit. Until the round ends, its first objects cannot
 * be evicted to make space for its last objects */
#define WINDOW_PUT_BYTES (64ull << 20)

_Static_assert(sizeof(kvpool_iov_t) == sizeof(kvp_iov_t) && offsetof(kvpool_iov_t, len) == offsetof(kvp_iov_t, len),
               "a caller's scatter list is used in place");

static kvp_err_t
hold_pieces(kvp_regs_t *regs, kvp_regs_cursor_t *cursor, kvp_regs_held_t *holds, const kvpool_item_t *item, bool is_put,
            kvp_span_t *span)
{
    span->is_gpu_direct = true;
    for (size_t i = 0; i < item->iov_n; i++) {
        bool is_new;
        kvp_reg_t *reg = kvp_regs_hold(cursor, item->iov[i].addr, item->iov[i].len, &is_new);

        if (reg == NULL) return KVP_NOT_REGISTERED;
        if (is_new && kvp_regs_keep(regs, holds, reg) != KVP_OK) return KVP_NOMEM;
        span->has_device |= kvp_reg_mem(reg)->kind == KVP_MEM_DEVICE;
        span->is_gpu_direct = span->is_gpu_direct && kvp_reg_is_gpu_direct(reg, !is_put);
    }
    return KVP_OK;
}

/* ---- arguments */
static kvp_err_t
check_item(const kvpool_item_t *item, kvp_span_t *span_out)
{
    uint64_t len = 0;

    if (!kvp_key_is_legal(item->key.data, item->key.len)) return KVP_BAD_KEY;
    if (item->iov == NULL || item->iov_n == 0 || item->iov_n > PIECES_MAX) return KVP_INVALID;
    for (size_t i = 0; i < item->iov_n; i++) {
        if (item->iov[i].addr == NULL || item->iov[i].len == 0) return KVP_INVALID;
        if (__builtin_add_overflow(len, item->iov[i].len, &len)) return KVP_INVALID;
    }
    *span_out =
        (kvp_span_t){.iov = (const kvp_iov_t *)item->iov, .iov_n = (uint32_t)item->iov_n, .len = len, .is_lent = true};
    return KVP_OK;
}

static kvp_err_t
check_group(const kvpool_group_t *group)
{
    if (group == NULL) return KVP_OK;
    if (!kvp_key_is_legal(group->id.data, group->id.len)) return KVP_BAD_KEY;
    if (group->members > KVP_GROUP_MEMBERS_MAX) return KVP_INVALID;
    if (group->members == 0) return group->member == 0 ? KVP_OK : KVP_INVALID;
    return group->member < group->members ? KVP_OK : KVP_INVALID;
}

/* Checks all items and holds their registered memory. Sets results[i] to KVP_OK if the item can be carried out, and
 * spans[i] to its memory. */
static kvp_err_t
check_items(kvpool_t *pool, kvpool_item_t *items, size_t n, bool is_put, kvp_span_t *spans, kvp_regs_held_t *holds,
            int *results)
{
    kvp_regs_cursor_t cursor;
    kvp_err_t err = KVP_OK;

    kvp_regs_begin(&pool->regs, &cursor);
    for (size_t i = 0; i < n && err == KVP_OK; i++) {
        results[i] = check_item(&items[i], &spans[i]);
        if (results[i] == KVP_OK && is_put) results[i] = check_group(items[i].group);
        if (results[i] == KVP_OK) results[i] = hold_pieces(&pool->regs, &cursor, holds, &items[i], is_put, &spans[i]);
        if (results[i] == KVP_NOMEM) err = KVP_NOMEM;
    }
    kvp_regs_end(&pool->regs);
    return err;
}

/* ---- windows. A window is the next valid items of the batch, as many as fit, that run together. */
typedef struct {
    kvp_apicall_t *call;
    kvpool_item_t *items;
    const kvp_span_t *spans;
    int *results;
    size_t n;
} batch_t;

/* Picks the next valid items from *at on whose keys, bytes and number fit in one window. Writes their indices to
 * picked, advances *at, and returns their number. */
static uint32_t
pick_window(const batch_t *b, size_t *at, uint64_t bytes_max, uint32_t *picked)
{
    uint64_t bytes = 0, key_bytes = 0;
    uint32_t n = 0;

    for (; *at < b->n && n < KVP_PLACES_MAX; (*at)++) {
        if (b->results[*at] != KVP_OK) continue;
        bytes += b->spans[*at].len;
        key_bytes += b->items[*at].key.len;
        if (n > 0 && (bytes > bytes_max || key_bytes > WINDOW_KEY_BYTES)) break;
        picked[n++] = (uint32_t)*at;
    }
    return n;
}

static kvp_err_t
get_window(const batch_t *b, const uint32_t *picked, uint32_t n)
{
    kvp_getop_item_t *ops = kvp_scratch_alloc(b->call->scratch, n, sizeof *ops);
    kvp_span_t *spans = kvp_scratch_alloc(b->call->scratch, n, sizeof *spans);

    if (ops == NULL || spans == NULL) return KVP_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const kvpool_item_t *item = &b->items[picked[i]];

        spans[i] = b->spans[picked[i]];
        ops[i].key = item->key.data;
        ops[i].key_len = (uint32_t)item->key.len;
        ops[i].cap = spans[i].len;
    }
    kvp_batch_get(b->call, ops, spans, n);
    for (uint32_t i = 0; i < n; i++) {
        b->results[picked[i]] = ops[i].err;
        b->items[picked[i]].len = ops[i].len;
    }
    return KVP_OK;
}

static void
join_group(kvp_putop_item_t *op, const kvpool_group_t *group)
{
    op->group = group == NULL ? NULL : group->id.data;
    op->group_len = group == NULL ? 0 : (uint32_t)group->id.len;
    op->group_members = group == NULL ? 0 : group->members;
    op->group_member = group == NULL ? 0 : group->member;
}

static kvp_wire_lineage_t
told_lineage(const kvpool_lineage_t *lineage)
{
    if (lineage == NULL) return (kvp_wire_lineage_t){.is_told = 0};
    return (kvp_wire_lineage_t){lineage->sequence, lineage->parent, lineage->depth, 1};
}

static kvp_err_t
put_window(const batch_t *b, const uint32_t *picked, uint32_t n)
{
    kvp_putop_item_t *ops = kvp_scratch_alloc(b->call->scratch, n, sizeof *ops);
    kvp_span_t *spans = kvp_scratch_alloc(b->call->scratch, n, sizeof *spans);

    if (ops == NULL || spans == NULL) return KVP_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const kvpool_item_t *item = &b->items[picked[i]];

        spans[i] = b->spans[picked[i]];
        ops[i].key = item->key.data;
        ops[i].key_len = (uint32_t)item->key.len;
        ops[i].len = spans[i].len;
        join_group(&ops[i], item->group);
        ops[i].lineage = told_lineage(item->lineage);
    }
    kvp_batch_put(b->call, ops, spans, n);
    for (uint32_t i = 0; i < n; i++)
        b->results[picked[i]] = ops[i].err;
    return KVP_OK;
}

static void
fail_rest(const batch_t *b, size_t from, kvp_err_t err)
{
    for (size_t i = from; i < b->n; i++)
        if (b->results[i] == KVP_OK) b->results[i] = err;
}

typedef kvp_err_t (*window_fn)(const batch_t *b, const uint32_t *picked, uint32_t n);

static void
run_windows(const batch_t *b, uint64_t bytes_max, window_fn run)
{
    for (size_t at = 0; at < b->n;) {
        size_t from = at;
        size_t most = b->n - at < KVP_PLACES_MAX ? b->n - at : KVP_PLACES_MAX;
        uint32_t *picked = kvp_scratch_alloc(b->call->scratch, most, sizeof *picked);
        uint32_t n = picked == NULL ? 0 : pick_window(b, &at, bytes_max, picked);

        if (picked == NULL || (n > 0 && run(b, picked, n) != KVP_OK)) {
            fail_rest(b, from, KVP_NOMEM);
            return;
        }
        kvp_scratch_reset(b->call->scratch);
    }
}

static int
run_batch(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts, int *results, uint64_t bytes_max,
          window_fn run)
{
    kvp_apicall_t call;
    kvp_regs_held_t holds = {.regs = NULL};
    kvp_span_t few[64], *spans = few;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    kvp_call_measure(&call, run == put_window ? KVP_CALL_batch_put : KVP_CALL_batch_get);
    if (n > UINT32_MAX || (n > 0 && (items == NULL || results == NULL))) return kvp_call_end(&call, KVP_INVALID);
    if (n > KVP_ARRAY_LEN(few)) spans = malloc(n * sizeof *spans);
    err = spans == NULL ? KVP_NOMEM : check_items(pool, items, n, run == put_window, spans, &holds, results);
    if (err == KVP_OK) {
        batch_t b = {.call = &call, .items = items, .spans = spans, .results = results, .n = n};
        run_windows(&b, bytes_max, run);
    }
    kvp_regs_rele_all(&pool->regs, &holds);
    if (spans != few) free(spans);
    return kvp_call_end(&call, err);
}

int
kvpool_batch_put(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts, int *results)
{
    return run_batch(pool, items, n, opts, results, WINDOW_PUT_BYTES, put_window);
}

int
kvpool_batch_get(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts, int *results)
{
    return run_batch(pool, items, n, opts, results, UINT64_MAX, get_window);
}

/* ---- one object */

/* Holds the registration of the memory, if any. A single put or get accepts unregistered host memory. Device memory
 * that is not registered gives NOT_REGISTERED. */
static kvp_err_t
hold_if_registered(kvp_regs_t *regs, kvp_span_t *span, bool is_put, kvp_reg_t **reg_out)
{
    const kvp_iov_t *piece = &span->iov[0];
    kvp_regs_cursor_t cursor;
    bool is_new;

    kvp_regs_begin(regs, &cursor);
    *reg_out = kvp_regs_hold(&cursor, piece->addr, piece->len, &is_new);
    kvp_regs_end(regs);
    span->has_device = *reg_out != NULL && kvp_reg_mem(*reg_out)->kind == KVP_MEM_DEVICE;
    span->is_gpu_direct = *reg_out != NULL && kvp_reg_is_gpu_direct(*reg_out, !is_put);
    span->is_lent = *reg_out != NULL;
    if (*reg_out != NULL || !kvp_regs_have_devices(regs)) return KVP_OK;
    return kvp_regs_find_mem(regs, piece->addr) == NULL ? KVP_OK : KVP_NOT_REGISTERED;
}

int
kvpool_put(kvpool_t *pool, const void *key, size_t key_len, const void *value, size_t len, const kvpool_opts_t *opts)
{
    kvp_apicall_t call;
    kvp_iov_t iov = {(void *)value, len};
    kvp_span_t span = {.iov = &iov, .iov_n = 1, .len = len};
    kvp_putop_item_t op = {.key = key, .key_len = (uint32_t)key_len, .len = len};
    kvp_err_t err = kvp_call_begin(pool, opts, &call);
    kvp_reg_t *reg;

    if (err != KVP_OK) return err;
    kvp_call_measure(&call, KVP_CALL_put);
    if (!kvp_key_is_legal(key, key_len)) return kvp_call_end(&call, KVP_BAD_KEY);
    if (value == NULL || len == 0) return kvp_call_end(&call, KVP_INVALID);
    op.lineage = told_lineage(call.lineage);
    err = hold_if_registered(&pool->regs, &span, true, &reg);
    if (err != KVP_OK) return kvp_call_end(&call, err);
    kvp_batch_put(&call, &op, &span, 1);
    if (reg != NULL) kvp_regs_rele(&pool->regs, reg);
    return kvp_call_end(&call, op.err);
}

int
kvpool_upsert(kvpool_t *pool, const void *key, size_t key_len, const void *value, size_t len, const kvpool_opts_t *opts)
{
    kvpool_opts_t more = {.struct_size = sizeof more};

    if (opts != NULL && opts->struct_size > sizeof more) return KVP_INVALID;
    if (opts != NULL) memcpy(&more, opts, opts->struct_size);
    more.flags |= KVPOOL_UPSERT;
    return kvpool_put(pool, key, key_len, value, len, &more);
}

int
kvpool_get(kvpool_t *pool, const void *key, size_t key_len, void *buf, size_t cap, size_t *len_out,
           const kvpool_opts_t *opts)
{
    kvp_apicall_t call;
    kvp_iov_t iov = {buf, cap};
    kvp_span_t span = {.iov = &iov, .iov_n = 1, .len = cap};
    kvp_getop_item_t op = {.key = key, .key_len = (uint32_t)key_len, .cap = cap};
    kvp_err_t err = kvp_call_begin(pool, opts, &call);
    kvp_reg_t *reg;

    if (err != KVP_OK) return err;
    kvp_call_measure(&call, KVP_CALL_get);
    if (!kvp_key_is_legal(key, key_len)) return kvp_call_end(&call, KVP_BAD_KEY);
    if ((buf == NULL && cap > 0) || len_out == NULL) return kvp_call_end(&call, KVP_INVALID);
    err = hold_if_registered(&pool->regs, &span, false, &reg);
    if (err != KVP_OK) return kvp_call_end(&call, err);
    kvp_batch_get(&call, &op, &span, 1);
    if (reg != NULL) kvp_regs_rele(&pool->regs, reg);
    if (op.err == KVP_OK || op.err == KVP_BUFFER_SMALL) *len_out = op.len;
    return kvp_call_end(&call, op.err);
}
