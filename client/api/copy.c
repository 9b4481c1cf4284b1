/* SPDX-License-Identifier: Apache-2.0
 * kvpool_copy: copies bytes between pieces of this process's registered memory, in host memory or on a device. It
 * needs no session. */
#include "client/api/pool.h"

#include "transport/copy.h"

/* limit of the pieces that kvpool_copy has registered at one time; kvpool_unregister waits for at most one chunk */
#define CHUNK 64u

/* State of kvpool_copy: the chunk of pieces that is being copied. Copies to or from a device run in the background on
 * a queue. The queue stays open for the next pieces of the same device context. */
typedef struct {
    kvp_regs_t *regs;
    kvp_device_queue_t *queue; /* the open queue for device copies; NULL = no queue is open */
    kvp_reg_t *held[2 * CHUNK];
    uint32_t held_n;
    const kvp_devmem_t *mems[CHUNK]; /* device of the piece's device side; NULL = both sides are host memory */
    bool is_queued[CHUNK];
} copying_t;

static const kvp_devmem_t *
hold_span(copying_t *c, kvp_regs_cursor_t *cursor, const void *addr, size_t len)
{
    bool is_new;
    kvp_reg_t *reg = kvp_regs_hold(cursor, addr, len, &is_new);

    if (is_new) c->held[c->held_n++] = reg;
    return reg != NULL ? kvp_reg_mem(reg) : NULL;
}

static kvp_err_t
hold_piece(copying_t *c, kvp_regs_cursor_t *cursor, const kvpool_copy_t *piece, const kvp_devmem_t **mem_out)
{
    const kvp_devmem_t *dst, *src;

    *mem_out = NULL;
    if (piece->dst == NULL || piece->src == NULL || piece->len == 0) return KVP_INVALID;
    dst = hold_span(c, cursor, piece->dst, piece->len);
    src = hold_span(c, cursor, piece->src, piece->len);
    if (dst == NULL || src == NULL) return KVP_NOT_REGISTERED;
    if (dst->kind == KVP_MEM_DEVICE && src->kind == KVP_MEM_DEVICE) return KVP_NOTSUP;
    if (dst->kind == KVP_MEM_DEVICE) *mem_out = dst;
    if (src->kind == KVP_MEM_DEVICE) *mem_out = src;
    return KVP_OK;
}

/* Waits for the copies in the background. A queued piece without an error of its own gets the error of the wait. */
static void
wait_queued(copying_t *c, int *results, uint32_t n)
{
    kvp_err_t err = c->queue != NULL ? c->queue->ops->wait(c->queue) : KVP_OK;

    for (uint32_t i = 0; i < n; i++) {
        if (c->is_queued[i] && results[i] == KVP_OK) results[i] = err;
        c->is_queued[i] = false;
    }
}

static kvp_err_t
copy_device(copying_t *c, const kvpool_copy_t *piece, const kvp_devmem_t *mem, int *results, uint32_t i)
{
    kvp_err_t err;

    if (c->queue != NULL && c->queue->context != mem->context) {
        wait_queued(c, results, i);
        c->queue->ops->queue_close(c->queue);
        c->queue = NULL;
    }
    if (c->queue == NULL) {
        err = mem->ops->queue_open(mem, &c->queue);
        if (err != KVP_OK) return err;
    }
    c->is_queued[i] = true;
    return c->queue->ops->copy(c->queue, piece->dst, piece->src, piece->len);
}

static void
copy_chunk(copying_t *c, const kvpool_copy_t *pieces, uint32_t n, int *results)
{
    kvp_regs_cursor_t cursor;

    c->held_n = 0;
    kvp_regs_begin(c->regs, &cursor);
    for (uint32_t i = 0; i < n; i++) {
        results[i] = hold_piece(c, &cursor, &pieces[i], &c->mems[i]);
        c->is_queued[i] = false;
    }
    kvp_regs_end(c->regs);

    for (uint32_t i = 0; i < n; i++) {
        if (results[i] != KVP_OK) continue;
        if (c->mems[i] != NULL)
            results[i] = copy_device(c, &pieces[i], c->mems[i], results, i);
        else
            kvp_copy(pieces[i].dst, pieces[i].src, pieces[i].len);
    }
    wait_queued(c, results, n);
    for (uint32_t i = 0; i < c->held_n; i++)
        kvp_regs_rele(c->regs, c->held[i]);
}

int
kvpool_copy(kvpool_t *pool, const kvpool_copy_t *pieces, size_t n, int *results)
{
    kvp_apicall_t call;
    copying_t c = {.queue = NULL};
    kvp_err_t err = kvp_call_begin(pool, NULL, &call);

    if (err != KVP_OK) return err;
    if (n > 0 && (pieces == NULL || results == NULL)) return kvp_call_end(&call, KVP_INVALID);
    c.regs = &pool->regs;
    for (size_t at = 0; at < n; at += CHUNK) {
        if (kvp_calls_are_closed(&pool->calls)) {
            err = KVP_CLOSED;
            break;
        }
        copy_chunk(&c, pieces + at, (uint32_t)kvp_min_u64(CHUNK, n - at), results + at);
    }
    if (c.queue != NULL) c.queue->ops->queue_close(c.queue);
    return kvp_call_end(&call, err);
}
