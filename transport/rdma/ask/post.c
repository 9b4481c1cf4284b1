/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The adapter accesses lent and registered memory in place. Other memory is copied through a rail's landing area, or
 *   is sent inline in the work request. Device memory that is not registered in full is refused, because the processor
 *   must not touch it.
 * - Bytes that the adapter reads in place are summed after the doorbell has rung, while the transfer is under way. */
#include "transport/rdma/ask/ep.h"

#include "transport/rdma/ask/rails.h"
#include "common/clock.h"
#include "common/mutate.h"

#include <string.h>

/* the most bytes of one work request through the landing area, and of one slice while several rails are used */
#define SLICE_BYTES (128u << 10)
#define RESERVED 4u /* work requests that a queue keeps free for READs that flush writes */

/* ---- local memory */
static void
advance_at(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, size_t n)
{
    at->off += n;
    if (at->off == xfer->iov[at->iov].len) *at = (kvp_rdma_at_t){.iov = at->iov + 1};
}

void
kvp_rdma_copy_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint64_t off, uint8_t *area, uint32_t len,
                     kvp_rdma_copying_t *sum)
{
    bool is_summed;

    if (off == 0 && (xfer->flags & KVP_XFER_SUM) != 0) {
        sum->xfer = xfer;
        sum->to = 0;
        kvp_copy_sum_begin(&sum->sum, xfer->len);
    }
    is_summed = sum->xfer == xfer && sum->to == off;
    if (is_summed) sum->to += len;
    while (len > 0) {
        const kvp_iov_t *piece = &xfer->iov[at->iov];
        uint32_t n = (uint32_t)kvp_min_u64(piece->len - at->off, len);
        uint8_t *ours = (uint8_t *)piece->addr + at->off;
        bool is_read = xfer->kind == KVP_XFER_READ;

        if (is_summed)
            kvp_copy_sum(&sum->sum, is_read ? ours : area, is_read ? area : ours, n, NULL);
        else
            kvp_copy_part(is_read ? ours : area, is_read ? area : ours, n, xfer->len);
        area += n;
        len -= n;
        advance_at(xfer, at, n);
    }
}

static void
skip_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint32_t len)
{
    while (len > 0) {
        uint32_t n = (uint32_t)kvp_min_u64(xfer->iov[at->iov].len - at->off, len);

        len -= n;
        advance_at(xfer, at, n);
    }
}

uint64_t
kvp_rdma_sum_pieces(kvp_sum_state_t *state, const kvp_xfer_t *xfer)
{
    if (xfer->iov_n == 1) return kvp_sum(xfer->iov[0].addr, xfer->len);
    kvp_sum_reset(state);
    for (uint32_t i = 0; i < xfer->iov_n; i++)
        kvp_sum_update(state, xfer->iov[i].addr, xfer->iov[i].len);
    return kvp_sum_digest(state);
}

/* ---- posting */

/* A slice: the part of a transfer that one work request moves. */
typedef struct {
    bool is_again; /* the slice is posted again because its first rail failed */
    kvp_xfer_t *xfer;
    kvp_rdma_at_t at;
    uint64_t off, seq;
    uint32_t len; /* the slice's length in bytes: before posting the maximum, after posting the posted bytes */
} slice_t;

/* Chooses the next slice to post: first works of failed rails, then the next bytes of the first transfer in todo.
 * Returns false if nothing is left to post. */
static bool
next_slice(kvp_rdma_ep_t *ep, slice_t *s)
{
    const kvp_rdma_work_t *lost = kvp_rdma_rails_orphan(ep);

    if (lost != NULL) {
        *s = (slice_t){
            .is_again = true, .xfer = lost->xfer, .at = lost->at, .off = lost->off, .seq = lost->seq, .len = lost->len};
        return true;
    }
    if (kvp_list_is_empty(&ep->todo)) return false;
    *s = (slice_t){.xfer = kvp_list_first(&ep->todo, kvp_xfer_t, link), .at = ep->at, .off = ep->off};
    s->len = (uint32_t)kvp_min_u64(s->xfer->len - s->off, ep->rails_n > 1 && ep->is_wide ? SLICE_BYTES : UINT32_MAX);
    return true;
}

/* Records that a slice was posted. s->at is the position after it in the transfer's pieces. */
static void
slice_is_posted(kvp_rdma_ep_t *ep, const slice_t *s)
{
    if (s->is_again) {
        kvp_rdma_rails_take_orphan(ep, &s->at, s->len);
        return;
    }
    ep->at = s->at;
    ep->off += s->len;
    if (ep->off < s->xfer->len) return;
    if (s->xfer->kind == KVP_XFER_WRITE && (s->xfer->flags & KVP_XFER_SUM) != 0) {
        bool is_copied = ep->leaving.xfer == s->xfer && ep->leaving.to == s->xfer->len;

        s->xfer->sum = is_copied ? kvp_copy_sum_end(&ep->leaving.sum) : 0;
        ep->unsummed_n += !is_copied;
        ep->leaving.xfer = NULL;
    }
    kvp_list_del(&s->xfer->link);
    kvp_list_add_tail(&ep->posted, &s->xfer->link);
    ep->todo_n--;
    ep->at = (kvp_rdma_at_t){0};
    ep->off = 0;
}

/* Computes the checksums of WRITEs that were posted in place: those with sum 0 near the end of `posted`. */
static void
sum_written(kvp_rdma_ep_t *ep)
{
    for (kvp_list_t *pos = ep->posted.prev; ep->unsummed_n > 0; pos = pos->prev) {
        kvp_xfer_t *xfer = kvp_list_entry(pos, kvp_xfer_t, link);

        if (xfer->kind != KVP_XFER_WRITE || (xfer->flags & KVP_XFER_SUM) == 0 || xfer->sum != 0) continue;
        xfer->sum = kvp_rdma_sum_pieces(ep->sum, xfer);
        ep->unsummed_n--;
    }
}

/* One work request, made for a slice by one of three functions. */
typedef struct {
    kvp_rdma_sge_t pieces[KVP_RDMA_SGE_MAX];
    uint32_t n; /* the number of pieces; 0 = the slice cannot be sent in this way now */
    bool is_inline, is_copied;
    uint32_t slot; /* the offset of the request's copied bytes in the landing area */
} request_t;

/* make_inline, make_direct and make_copied each try one way to make the work request of a slice. They set s->len to
 * the bytes of the request, and s->at to the position after these bytes. */
static void
make_inline(const kvp_rdma_rail_t *rail, const slice_t *s, request_t *q)
{
    const kvp_xfer_t *xfer = s->xfer;

    if (xfer->kind == KVP_XFER_READ || xfer->len > rail->id->inline_max || s->off > 0) return;
    if (xfer->kind != KVP_XFER_PUBLISH && xfer->iov_n > rail->sge_max) return;
    q->is_inline = true;
    if (xfer->kind == KVP_XFER_PUBLISH)
        q->pieces[q->n++] = (kvp_rdma_sge_t){.addr = (uint64_t)(uintptr_t)&xfer->word, .len = sizeof xfer->word};
    for (uint32_t i = 0; xfer->kind == KVP_XFER_WRITE && i < xfer->iov_n; i++) {
        const kvp_iov_t *piece = &xfer->iov[i];

        if (piece->len == 0) continue; /* an empty piece is left out: some adapters take a length of 0 as 2 GiB */
        q->pieces[q->n++] = (kvp_rdma_sge_t){.addr = (uint64_t)(uintptr_t)piece->addr, .len = (uint32_t)piece->len};
    }
}

/* Makes a request that accesses the caller's memory in place, up to the first byte that is not registered. */
static void
make_direct(const kvp_rdma_rail_t *rail, kvp_mrcursor_t *cursor, slice_t *s, request_t *q)
{
    uint64_t most = kvp_min_u64(s->len, rail->len_max);
    uint64_t len = 0;
    size_t got, want;

    if ((s->xfer->flags & KVP_XFER_LENT) == 0) return;
    while (q->n < rail->sge_max && len < most) {
        const kvp_iov_t *piece = &s->xfer->iov[s->at.iov];
        uint8_t *addr = (uint8_t *)piece->addr + s->at.off;
        uint32_t lkey = 0;

        want = kvp_min_u64(piece->len - s->at.off, most - len);
        got = kvp_mrcache_find(cursor, rail->cache_dev, addr, want, &lkey);
        if (got == 0 && want > 0) break;
        if (got > 0)
            q->pieces[q->n++] = (kvp_rdma_sge_t){.addr = (uint64_t)(uintptr_t)addr, .len = (uint32_t)got, .lkey = lkey};
        len += got;
        advance_at(s->xfer, &s->at, got);
    }
    if (q->n > 0) s->len = (uint32_t)len;
}

/* Makes a request through the landing area, for at most SLICE_BYTES bytes. */
static void
make_copied(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, slice_t *s, request_t *q)
{
    uint32_t len = (uint32_t)kvp_min_u64(s->len, SLICE_BYTES);
    uint8_t *slot;

    if (!kvp_rdma_rail_take_slot(rail, len, &q->slot)) return;
    slot = rail->area + q->slot;
    q->pieces[q->n++] = (kvp_rdma_sge_t){.addr = (uint64_t)(uintptr_t)slot, .len = len, .lkey = rail->area_reg->lkey};
    q->is_copied = true;
    s->len = len;
    rail->area_mark = rail->area_head;
    if ((s->xfer->flags & KVP_XFER_LENT) != 0) ep->base.costs.copied_bytes += len;
    if (s->xfer->kind == KVP_XFER_PUBLISH) {
        memcpy(slot, &s->xfer->word, sizeof s->xfer->word);
    } else if (s->xfer->kind == KVP_XFER_READ) {
        skip_pieces(s->xfer, &s->at, len);
    } else {
        kvp_rdma_copy_pieces(s->xfer, &s->at, s->off, slot, len, &ep->leaving);
    }
}

/* Returns the slice's bytes if after their arrival the processor must sum or copy them, or if they occupy the landing
 * area until then; else 0. */
static uint64_t
late_work(const slice_t *s, const request_t *q)
{
    bool is_summed = s->xfer->kind == KVP_XFER_READ && (s->xfer->flags & KVP_XFER_SUM) != 0;

    return q->is_copied || is_summed ? s->len : 0;
}

/* Posts one slice as one work request. Returns false if it cannot be posted now. */
static bool
post_slice(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, kvp_mrcursor_t *cursor, slice_t *s)
{
    const kvp_rdma_rseg_t *rseg = kvp_container_of(s->xfer->rseg, const kvp_rdma_rseg_t, base);
    uint64_t raddr = rseg->keys.addr + s->xfer->roffset + s->off;
    bool is_devices = (s->xfer->flags & KVP_XFER_DEVICE) != 0;
    kvp_rdma_at_t at = s->at;
    request_t q = {.n = 0};
    kvp_rdma_work_t *work;
    uint32_t flags;

    if (!is_devices) make_inline(rail, s, &q);
    if (q.n == 0) make_direct(rail, cursor, s, &q);
    if (q.n == 0 && !is_devices) make_copied(ep, rail, s, &q);
    /* The adapter was removed and has returned: its registration of this device memory is lost, so no WRITE can be made
     * of it. The connection is closed; over the next one the bytes go through a bounce buffer. */
    if (q.n == 0 && is_devices) kvp_rdma_ep_lose(ep, NULL, KVP_DISCONNECTED);
    if (q.n == 0) return false;
    if (kvp_rdma_rail_is_idle(rail)) kvp_rdma_rails_moved(rail, 0);
    flags = s->off == 0 ? kvp_rdma_rail_order(rail, s->xfer) : 0;
    if (q.is_inline) flags |= KVP_RDMA_WR_INLINE;
    memcpy(kvp_rdma_rail_sges(rail), q.pieces, q.n * sizeof q.pieces[0]);
    work = kvp_rdma_rail_add(rail, s->xfer, flags, q.n, s->len, raddr, rseg->keys.rkeys[rail->pair.theirs]);
    work->at = at;
    work->off = s->off;
    work->seq = s->is_again && KVP_RULE(RDMA_LOST_ORDER) ? s->seq : ep->seq++;
    work->is_copied = q.is_copied;
    work->slot = q.slot;
    rail->quiet_work += late_work(s, &q);
    return true;
}

/* Rings the doorbells of all rails. Returns false if a rail failed, whose works may now go to other rails. */
static bool
ring_doorbells(kvp_rdma_ep_t *ep)
{
    bool is_well = true;

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        if (!rail->is_up) continue;
        if (KVP_RULE(RDMA_PUSH) && (i == 0 || KVP_RULE(RDMA_PUSH_RAILS))) kvp_rdma_rail_push(rail);
        if (kvp_rdma_rail_ring(rail) == KVP_OK) continue;
        is_well = false;
        kvp_rdma_rails_failed(ep, rail);
    }
    return is_well;
}

/* Returns whether more transfers wait than a send queue has room for, or transfers are split over several rails. */
static bool
is_long(const kvp_rdma_ep_t *ep)
{
    if (ep->rails_n > 1 && ep->is_wide) return true;
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        const kvp_rdma_rail_t *rail = &ep->rails[i];

        if (rail->is_up && ep->todo_n + RESERVED > rail->sends - (rail->works_head - rail->works_tail)) return true;
    }
    return false;
}

static void
post_all(kvp_rdma_ep_t *ep, kvp_mrcursor_t *cursor)
{
    bool must_settle = is_long(ep);
    slice_t s;

    while (next_slice(ep, &s)) {
        kvp_rdma_rail_t *rail = kvp_rdma_rails_pick(ep, s.xfer, s.off);

        if (rail == NULL || !post_slice(ep, rail, cursor, &s)) break;
        kvp_rdma_rail_settle(rail, must_settle);
        slice_is_posted(ep, &s);
    }
}

void
kvp_rdma_post(kvp_rdma_ep_t *ep)
{
    kvp_mrcursor_t cursor;

    do {
        kvp_mrcache_begin(ep->tp->cache, &cursor);
        post_all(ep, &cursor);
        kvp_mrcache_end(&cursor);
    } while (!ring_doorbells(ep) && kvp_rdma_ep_is_up(ep)); /* each failure closes a rail, so the loop ends */
    if (ep->busy_ns == 0 && !kvp_rdma_ep_is_idle(ep)) ep->busy_ns = kvp_now_ns();
    sum_written(ep);
}
