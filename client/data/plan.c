/* SPDX-License-Identifier: Apache-2.0
 * Makes the transfers of a move, with their order and guards.
 *
 * Design note. The descriptor of a PUT contains the payload's checksum. A synchronous transport computes the checksum
 * while it copies the payload, before the descriptor's turn. For other transports the checksum is computed before
 * anything is sent. */
#include "client/data/plan.h"

#include <string.h>

uint32_t
kvp_plan_xfers_n(const kvp_move_t *mv)
{
    static const uint32_t n[] = {
        [KVP_MOVE_READ] = 1,      [KVP_MOVE_FILL] = 2,      [KVP_MOVE_SEAL] = 3,      [KVP_MOVE_PUT] = 5,
        [KVP_MOVE_READ_PART] = 1, [KVP_MOVE_FILL_MORE] = 1, [KVP_MOVE_READ_WHOLE] = 4};

    return n[mv->kind] + (mv->kind == KVP_MOVE_READ && mv->has_desc);
}

/* Only the host can compute checksums, so device memory bounces if the transport or the caller needs a checksum. */
bool
kvp_plan_must_bounce(const kvp_transfer_t *m, const kvp_ep_t *ep, const kvp_move_t *mv)
{
    const kvp_span_t *span = &m->spans[mv->item];

    if (mv->kind == KVP_MOVE_SEAL || !span->has_device) return false;
    if (!span->is_gpu_direct || (ep->tp->ops->caps & KVP_TP_DEVICE_MEM) == 0) return true;
    return ep->needs_sums || (kvp_move_is_read(mv) && (mv->flags & KVP_READ_SUM) != 0);
}

/* Returns the first len bytes of the span, as an array of pieces with *n_out pieces. NULL if memory is short, or if
 * the span is shorter than len, which the state machines exclude. */
static const kvp_iov_t *
cut_span(const kvp_transfer_t *m, const kvp_span_t *span, uint64_t len, uint32_t *n_out)
{
    kvp_iov_t *cut;
    uint32_t n = 0;
    uint64_t sum = 0;

    while (n < span->iov_n && sum < len)
        sum += span->iov[n++].len;
    *n_out = n;
    if (sum == len) return span->iov;
    if (sum < len) return NULL;
    cut = kvp_scratch_alloc(m->scratch, n, sizeof *cut);
    if (cut == NULL) return NULL;
    memcpy(cut, span->iov, n * sizeof *cut);
    cut[n - 1].len -= (size_t)(sum - len);
    return cut;
}

static void
init_xfer(const kvp_plan_t *s, kvp_xfer_t *x, kvp_xfer_kind_t kind, kvp_rseg_t *rseg, uint64_t roffset)
{
    memset(x, 0, sizeof *x);
    x->kind = kind;
    x->rseg = rseg;
    x->roffset = roffset;
    x->deadline_ns = s->transfer->deadline_ns;
    if (kind != KVP_XFER_READ) x->granted_ns = s->move->granted_ns;
    x->done = kvp_xferq_done;
    x->arg = s->queue;
    x->status = KVP_CANCELLED; /* status of a transfer until it was submitted and completed */
}

static void
set_iov(kvp_xfer_t *x, const kvp_iov_t *iov, uint32_t n, uint64_t len)
{
    x->iov = iov;
    x->iov_n = n;
    x->len = len;
}

/* Guards a write: the write takes effect only while the descriptor's state word says that this client writes there. */
static void
set_guard(kvp_xfer_t *x, const kvp_chunk_mem_t *mem, const kvp_wire_loc_t *loc)
{
    x->flags |= KVP_XFER_GUARDED | KVP_XFER_AFTER_PRIOR;
    x->guard_rseg = mem->meta;
    x->guard_off = kvp_desc_off(loc->slot);
    x->guard_word = kvp_word_make(loc->generation, KVP_DESC_WRITING);
}

static void
set_word(kvp_xfer_t *x, const kvp_wire_loc_t *loc, kvp_desc_state_t state)
{
    x->len = sizeof x->word;
    x->word = kvp_word_make(loc->generation, state);
}

static kvp_err_t
make_payload(const kvp_plan_t *s, kvp_xfer_t *x)
{
    const kvp_transfer_t *m = s->transfer;
    const kvp_move_t *mv = s->move;
    bool is_told = (s->ops->caps & KVP_TP_VERIFY_SUM) != 0; /* the node can send the checksum of its bytes */
    bool is_read = kvp_move_is_read(mv);
    bool must_sum = is_told || s->needs_sums;
    const kvp_iov_t *iov;
    uint32_t n;

    iov = cut_span(m, &m->spans[mv->item], mv->len, &n);
    if (iov == NULL) return KVP_NOMEM;
    set_iov(x, iov, n, mv->len);
    if (m->spans[mv->item].is_lent) x->flags |= KVP_XFER_LENT;
    if (m->spans[mv->item].has_device) {
        x->flags |= KVP_XFER_DEVICE;
        return KVP_OK;
    }
    if (!is_read || (mv->flags & KVP_READ_SUM) != 0 || must_sum || (mv->kind == KVP_MOVE_READ && !mv->has_desc))
        x->flags |= KVP_XFER_SUM;
    if (is_read && is_told && (mv->flags & KVP_READ_NO_SUM) != 0) x->flags |= KVP_XFER_PEER_SUM;
    return KVP_OK;
}

static void
set_piece(kvp_xfer_t *x, kvp_iov_t *piece, const void *addr, size_t len)
{
    *piece = (kvp_iov_t){(void *)addr, len};
    set_iov(x, piece, 1, len);
}

static kvp_err_t
make_read(kvp_plan_t *s, const kvp_chunk_mem_t *mem)
{
    kvp_move_t *mv = s->move;

    init_xfer(s, &s->x[0], KVP_XFER_READ, mem->payload, mv->loc.offset);
    /* bytes that GPU direct moves have no checksum, so only the descriptor can verify them */
    mv->is_sum_path = (s->ops->caps & KVP_TP_SUM_ALONE) != 0 && !s->transfer->spans[mv->item].has_device;
    mv->has_desc = mv->kind == KVP_MOVE_READ && !((mv->flags & KVP_READ_SUM_ALONE) != 0 && mv->is_sum_path);
    if (!mv->has_desc) return make_payload(s, &s->x[0]);
    init_xfer(s, &s->x[1], KVP_XFER_READ, mem->meta, kvp_desc_off(mv->loc.slot));
    s->x[1].flags = KVP_XFER_AFTER_PRIOR;
    set_piece(&s->x[1], &s->pieces[0], &mv->desc, KVP_DESC_LINE_BYTES);
    return make_payload(s, &s->x[0]);
}

/* The descriptor's first line is read last, because it proves that the bytes read before it were valid. */
static kvp_err_t
make_read_whole(kvp_plan_t *s, const kvp_chunk_mem_t *mem)
{
    kvp_move_t *mv = s->move;
    const uint64_t desc_off = kvp_desc_off(mv->loc.slot);

    mv->has_desc = true;
    init_xfer(s, &s->x[0], KVP_XFER_READ, mem->payload, mv->loc.offset);
    init_xfer(s, &s->x[1], KVP_XFER_READ, mem->meta, desc_off + KVP_DESC_LINE_BYTES);
    set_piece(&s->x[1], &s->pieces[0], &mv->desc.ns_epoch, sizeof mv->desc - KVP_DESC_LINE_BYTES);
    init_xfer(s, &s->x[2], KVP_XFER_READ, mem->meta, (uint64_t)mv->loc.key_off * 64);
    set_piece(&s->x[2], &s->pieces[1], mv->key, mv->key_len);
    init_xfer(s, &s->x[3], KVP_XFER_READ, mem->meta, desc_off);
    s->x[3].flags = KVP_XFER_AFTER_PRIOR;
    set_piece(&s->x[3], &s->pieces[2], &mv->desc, KVP_DESC_LINE_BYTES);
    return make_payload(s, &s->x[0]);
}

static kvp_err_t
make_write(const kvp_plan_t *s, const kvp_chunk_mem_t *mem, kvp_xfer_t *x)
{
    init_xfer(s, x, KVP_XFER_WRITE, mem->payload, s->move->loc.offset);
    set_guard(x, mem, &s->move->loc);
    return make_payload(s, x);
}

static kvp_err_t
make_fill(kvp_plan_t *s, const kvp_chunk_mem_t *mem)
{
    init_xfer(s, &s->x[0], KVP_XFER_PUBLISH, mem->meta, kvp_desc_off(s->move->loc.slot));
    set_word(&s->x[0], &s->move->loc, KVP_DESC_WRITING);
    return make_write(s, mem, &s->x[1]);
}

static void
make_seal(kvp_plan_t *s, const kvp_chunk_mem_t *mem, kvp_xfer_t *x)
{
    const kvp_move_t *mv = s->move;
    uint64_t desc_off = kvp_desc_off(mv->loc.slot);
    size_t word = sizeof mv->desc.word;

    init_xfer(s, &x[0], KVP_XFER_WRITE, mem->meta, (uint64_t)mv->loc.key_off * 64);
    set_guard(&x[0], mem, &mv->loc);
    set_piece(&x[0], &s->pieces[0], mv->key, mv->key_len);
    init_xfer(s, &x[1], KVP_XFER_WRITE, mem->meta, desc_off + word);
    set_guard(&x[1], mem, &mv->loc);
    set_piece(&x[1], &s->pieces[1], (const uint8_t *)&mv->desc + word, sizeof mv->desc - word);
    init_xfer(s, &x[2], KVP_XFER_PUBLISH, mem->meta, desc_off);
    x[2].flags = KVP_XFER_AFTER_PRIOR;
    set_word(&x[2], &mv->loc, KVP_DESC_SEALED);
}

/* Computes the checksum of the payload as it is in memory now. If the application changes the payload meanwhile, the
 * stored bytes fail every check. */
static kvp_err_t
sum_payload(const kvp_transfer_t *m, const kvp_xfer_t *x, uint64_t *sum_out)
{
    kvp_sum_state_t *state;

    if (x->iov_n == 1) {
        *sum_out = kvp_sum(x->iov[0].addr, x->len);
        return KVP_OK;
    }
    state = kvp_scratch_sum(m->scratch);
    if (state == NULL) return KVP_NOMEM;
    for (uint32_t i = 0; i < x->iov_n; i++)
        kvp_sum_update(state, x->iov[i].addr, x->iov[i].len);
    *sum_out = kvp_sum_digest(state);
    return KVP_OK;
}

/* Completes the payload of a PUT by a synchronous transport: writes the checksum into the descriptor. */
static void
on_payload_done(kvp_xfer_t *xfer)
{
    kvp_plan_t *s = kvp_container_of(xfer, kvp_plan_t, x[1]);

    if (xfer->status == KVP_OK) kvp_move_set_sum(s->move, xfer->sum);
    kvp_xferq_done(xfer);
}

static kvp_err_t
make_put(kvp_plan_t *s, const kvp_chunk_mem_t *mem)
{
    kvp_err_t err = make_fill(s, mem);
    uint64_t sum;

    if (err != KVP_OK) return err;
    /* A refused transfer does not stop later transfers, so a payload outside the chunk would be sealed. Refuse it
     * here. */
    if (!kvp_rseg_has(mem->payload, s->move->loc.offset, s->move->len)) return KVP_PROTO;
    make_seal(s, mem, &s->x[2]);
    if ((s->ops->caps & KVP_TP_SYNC) != 0) {
        s->x[1].done = on_payload_done;
        return KVP_OK;
    }
    s->x[1].flags &= ~KVP_XFER_SUM;
    err = sum_payload(s->transfer, &s->x[1], &sum);
    if (err == KVP_OK) kvp_move_set_sum(s->move, sum);
    return err;
}

kvp_err_t
kvp_plan_make(kvp_plan_t *s, const kvp_transfer_t *transfer, kvp_move_t *mv, const kvp_path_t *path, kvp_xferq_t *queue,
              uint64_t until_ns)
{
    kvp_access_t access = kvp_move_is_read(mv) ? KVP_ACCESS_READ : KVP_ACCESS_WRITE;
    kvp_chunk_mem_t mem;
    kvp_err_t err = kvp_path_chunk(transfer->peers, path, mv->loc.chunk, access, until_ns, &mem);

    if (err != KVP_OK) return err;
    s->transfer = transfer;
    s->move = mv;
    s->queue = queue;
    s->ops = path->ep->tp->ops;
    s->needs_sums = path->ep->needs_sums;
    if (mv->kind == KVP_MOVE_READ_WHOLE) return make_read_whole(s, &mem);
    if (kvp_move_is_read(mv)) return make_read(s, &mem);
    if (mv->kind == KVP_MOVE_FILL) return make_fill(s, &mem);
    if (mv->kind == KVP_MOVE_FILL_MORE) return make_write(s, &mem, &s->x[0]);
    if (mv->kind == KVP_MOVE_PUT) return make_put(s, &mem);
    make_seal(s, &mem, s->x);
    return KVP_OK;
}
