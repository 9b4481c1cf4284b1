/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - Which route leads to a node is known once kvp_transfer_run has a path there. So all moves go to it first, and those that it
 *   refuses (NOTSUP) go through bounce buffers afterwards. Where no memory is for GPU direct, that is not tried.
 * - The flush comes behind the last completion, once for each context into whose memory something was read: it covers all
 *   that adapters wrote before it.
 */
#include "client/data/gpu_direct.h"

#include "common/mutate.h"

static bool
is_devices(const kvp_transfer_t *transfer, const kvp_move_t *mv)
{
    return transfer->spans[mv->item].has_device;
}

static bool
is_any_gpu_direct(const kvp_transfer_t *transfer, const kvp_move_t *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (transfer->spans[moves[i].item].is_gpu_direct) return true;
    return false;
}

/* ---- what went by GPU direct */

/* Some of a span's memory that has another context than *last. */
static const kvp_devmem_t *
next_context(kvp_regs_t *regs, const kvp_span_t *span, const void *last, uint32_t *piece)
{
    while (*piece < span->iov_n) {
        const kvp_devmem_t *mem = kvp_regs_find_mem(regs, span->iov[(*piece)++].addr);

        if (mem != NULL && mem->context != last) return mem;
    }
    return NULL;
}

static kvp_err_t
flush_span(kvp_regs_t *regs, const kvp_span_t *span, const void **flushed)
{
    const kvp_devmem_t *mem;
    kvp_err_t err = KVP_OK;
    uint32_t piece = 0;

    while (err == KVP_OK && (mem = next_context(regs, span, *flushed, &piece)) != NULL) {
        err = mem->ops->flush(mem);
        if (err == KVP_OK) *flushed = mem->context;
    }
    return err;
}

/* Neighbours mostly have the same context; where contexts take turns, some are flushed more often than they need to be. */
static void
flush_all(const kvp_transfer_t *transfer, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n)
{
    const void *flushed = NULL;

    if (!KVP_RULE(DEVICE_FLUSH)) return;
    for (uint32_t i = 0; i < n; i++)
        if (moves[i].err == KVP_OK && is_devices(transfer, &moves[i]))
            moves[i].err = flush_span(regs, &transfer->spans[moves[i].item], &flushed);
}

static void
count_gpu_direct(const kvp_transfer_t *transfer, const kvp_move_t *moves, uint32_t n)
{
    kvp_counters_t *c = kvp_session_conf(transfer->session)->peers.counters;
    uint64_t done = 0, bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (moves[i].err != KVP_OK || !is_devices(transfer, &moves[i])) continue;
        done++;
        bytes += moves[i].len;
    }
    kvp_count(&c->device_direct, done);
    kvp_count(&c->device_direct_bytes, bytes);
}

/* ---- what did not */
static bool
is_refused(const kvp_transfer_t *transfer, const kvp_move_t *mv)
{
    return mv->err == KVP_NOTSUP && is_devices(transfer, mv);
}

/* Copies of one object stay neighbours. */
static void
bounce_refused(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n)
{
    kvp_move_t *rest;
    uint32_t rest_n = 0;

    for (uint32_t i = 0; i < n; i++)
        rest_n += is_refused(transfer, &moves[i]);
    if (rest_n == 0) return;
    rest = kvp_scratch_alloc(transfer->scratch, rest_n, sizeof *rest);
    for (uint32_t i = 0, at = 0; i < n; i++) {
        if (!is_refused(transfer, &moves[i])) continue;
        if (rest == NULL)
            moves[i].err = KVP_NOMEM;
        else
            rest[at++] = moves[i];
    }
    if (rest == NULL) return;
    kvp_bounced_run(transfer, bounces, regs, rest, rest_n);
    for (uint32_t i = 0, at = 0; i < n; i++)
        if (is_refused(transfer, &moves[i])) moves[i] = rest[at++];
}

void
kvp_device_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n)
{
    if (!is_any_gpu_direct(transfer, moves, n)) {
        kvp_bounced_run(transfer, bounces, regs, moves, n);
        return;
    }
    kvp_transfer_run(transfer, moves, n);
    if (moves[0].kind == KVP_MOVE_READ) flush_all(transfer, regs, moves, n);
    count_gpu_direct(transfer, moves, n);
    bounce_refused(transfer, bounces, regs, moves, n);
}
