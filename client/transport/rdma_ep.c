/* SPDX-License-Identifier: Apache-2.0
 * Transfers of rdma: cut into work requests, posted as there is room, told when they are over.
 *
 * Design notes.
 * - Memory that was lent and is registered is given to the adapter as it lies; all other is copied through a rail's area, or
 *   goes in the work request.
 * - What is written as it lies is summed after the doorbell has rung, while it is under way.
 * - A caller polls for a while before it sleeps where batches are so short that waking up would take as long.
 * - What fails costs its rail, or the endpoint (rdma_rails.c). Queue pairs are destroyed before any transfer is told so, or
 *   posted again: from then on nothing of them touches local memory. What was written may still land at the peer's.
 */
#include "client/transport/rdma_rails.h"

#include "client/transport/builtin.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <poll.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define SLICE_BYTES (128u << 10) /* of the area, or on one of several rails, for one work request */
#define RESERVED 4u /* places that pushing READs may take */
#define SPIN_NS 50000u
#define POLLS_A_TURN 64u
#define TODO_MAX (8 * KVP_RDMA_SENDS) /* transfers that wait for a work request */

static void
finish(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer, kvp_err_t status)
{
    xfer->status = status;
    xfer->link = (kvp_list_t){0};
    ep->fired++;
    xfer->done(xfer);
}

static bool
is_idle(const kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (!kvp_rdma_rail_is_idle(&ep->rails[i])) return false;
    return kvp_list_is_empty(&ep->todo);
}

/* ---- the end of it */
static void
finish_list(kvp_rdma_ep_t *ep, kvp_list_t *list, kvp_err_t status)
{
    while (!kvp_list_is_empty(list)) {
        kvp_xfer_t *xfer = kvp_list_first(list, kvp_xfer_t, link);

        kvp_list_del(&xfer->link);
        finish(ep, xfer, status);
    }
}

/* While the transfers that they belong to are there. */
static void
forget_works(kvp_rdma_ep_t *ep)
{
    kvp_rdma_work_t work;

    for (uint32_t i = 0; i < ep->rails_n; i++)
        while (kvp_rdma_rail_take_work(&ep->rails[i], UINT64_MAX, &work))
            continue;
}

void
kvp_rdma_ep_finish_all(kvp_rdma_ep_t *ep, kvp_err_t status)
{
    forget_works(ep);
    finish_list(ep, &ep->posted, status);
    finish_list(ep, &ep->todo, status);
    ep->todo_n = 0;
    ep->unsummed_n = 0;
    ep->bytes = 0;
}

void
kvp_rdma_ep_lose(kvp_rdma_ep_t *ep)
{
    kvp_rdma_ep_hang_up(ep);
    kvp_rdma_ep_finish_all(ep, KVP_DISCONNECTED);
}

/* The work request with that number failed. Where that says something of its transfer, and nothing of the way there, the
 * transfer is told, and all others that the connection is over. */
static void
break_at(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, uint64_t number, kvp_rdma_wc_status_t why)
{
    kvp_xfer_t *guilty = rail->works[number % KVP_RDMA_SENDS].xfer;

    kvp_log_debug("rdma", "connection is broken status %d work %llu", (int)why, (unsigned long long)number);
    if (why != KVP_RDMA_WC_NO_ACCESS) {
        kvp_rdma_rails_failed(ep, rail);
        return;
    }
    kvp_rdma_ep_hang_up(ep);
    forget_works(ep);
    if (guilty != NULL) {
        kvp_list_del(&guilty->link);
        finish(ep, guilty, KVP_NO_SEGMENT);
    }
    kvp_rdma_ep_finish_all(ep, KVP_DISCONNECTED);
}

/* ---- local memory */
static void
advance(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, size_t n)
{
    at->off += n;
    if (at->off == xfer->iov[at->iov].len) *at = (kvp_rdma_at_t){.iov = at->iov + 1};
}

/* Moves len bytes between the transfer's pieces and the area, taking their sum unless that is NULL. */
static void
copy_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint8_t *area, uint32_t len, kvp_copy_sum_t *sum)
{
    while (len > 0) {
        const kvp_iov_t *piece = &xfer->iov[at->iov];
        uint32_t n = (uint32_t)kvp_min_u64(piece->len - at->off, len);
        uint8_t *ours = (uint8_t *)piece->addr + at->off;
        bool is_read = xfer->kind == KVP_XFER_READ;

        if (sum != NULL)
            kvp_copy_sum(sum, is_read ? ours : area, is_read ? area : ours, n, NULL);
        else
            kvp_copy_part(is_read ? ours : area, is_read ? area : ours, n, xfer->len);
        area += n;
        len -= n;
        advance(xfer, at, n);
    }
}

static void
skip_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint32_t len)
{
    while (len > 0) {
        uint32_t n = (uint32_t)kvp_min_u64(xfer->iov[at->iov].len - at->off, len);

        len -= n;
        advance(xfer, at, n);
    }
}

/* The sum of all of it, as it lies there now. */
static uint64_t
sum_pieces(kvp_sum_state_t *state, const kvp_xfer_t *xfer)
{
    if (xfer->iov_n == 1) return kvp_sum(xfer->iov[0].addr, xfer->len);
    kvp_sum_reset(state);
    for (uint32_t i = 0; i < xfer->iov_n; i++)
        kvp_sum_update(state, xfer->iov[i].addr, xfer->iov[i].len);
    return kvp_sum_digest(state);
}

/* ---- posting */

/* A piece of a transfer, for one work request. */
typedef struct {
    kvp_rdma_rail_t *from; /* a rail that failed; NULL = it is posted for the first time */
    kvp_xfer_t *xfer; /* NULL = a failed rail's READ that only pushed */
    kvp_rdma_at_t at;
    uint64_t off;
    uint32_t len; /* at most; once it is posted, of what was */
} slice_t;

/* What is to be posted next: again what a failed rail had, else more of the first transfer that waits. */
static bool
next_slice(kvp_rdma_ep_t *ep, slice_t *s)
{
    kvp_rdma_rail_t *failed = kvp_rdma_rails_orphaned(ep);

    if (failed != NULL) {
        const kvp_rdma_work_t *work = kvp_rdma_rail_first(failed);

        *s = (slice_t){failed, work->xfer, work->at, work->off, work->len};
        return true;
    }
    if (kvp_list_is_empty(&ep->todo)) return false;
    *s = (slice_t){.xfer = kvp_list_first(&ep->todo, kvp_xfer_t, link), .at = ep->at, .off = ep->off};
    s->len = (uint32_t)kvp_min_u64(s->xfer->len - s->off, ep->rails_n > 1 && ep->is_wide ? SLICE_BYTES : UINT32_MAX);
    return true;
}

/* What a failed rail had is posted again; where another one takes less at once, the rest of it waits there. */
static void
take_orphan(kvp_rdma_rail_t *from, const slice_t *s)
{
    kvp_rdma_work_t *first = &from->works[from->works_tail % KVP_RDMA_SENDS], work;

    if (s->len == first->len) {
        (void)kvp_rdma_rail_take_work(from, from->works_tail, &work);
        return;
    }
    first->at = s->at;
    first->off += s->len;
    first->len -= s->len;
    from->bytes -= s->len;
}

/* The slice is posted: s->at is behind it. */
static void
slice_is_posted(kvp_rdma_ep_t *ep, const slice_t *s)
{
    if (s->from != NULL) {
        take_orphan(s->from, s);
        return;
    }
    ep->at = s->at;
    ep->off += s->len;
    if (ep->off < s->xfer->len) return;
    if (s->xfer->kind == KVP_XFER_WRITE && (s->xfer->flags & KVP_XFER_SUM) != 0) {
        s->xfer->sum = ep->is_copied ? kvp_copy_sum_end(&ep->write_sum) : 0;
        ep->unsummed_n += !ep->is_copied;
    }
    kvp_list_del(&s->xfer->link);
    kvp_list_add_tail(&ep->posted, &s->xfer->link);
    ep->todo_n--;
    ep->at = (kvp_rdma_at_t){0};
    ep->off = 0;
}

/* Those that wait for their sum have none, and are at the end of the list. */
static void
sum_written(kvp_rdma_ep_t *ep)
{
    for (kvp_list_t *pos = ep->posted.prev; ep->unsummed_n > 0; pos = pos->prev) {
        kvp_xfer_t *xfer = kvp_list_entry(pos, kvp_xfer_t, link);

        if (xfer->kind != KVP_XFER_WRITE || (xfer->flags & KVP_XFER_SUM) == 0 || xfer->sum != 0) continue;
        xfer->sum = sum_pieces(ep->sum, xfer);
        ep->unsummed_n--;
    }
}

/* What one work request of a slice is made of. */
typedef struct {
    kvp_rdma_sge_t pieces[KVP_RDMA_SGE_MAX];
    uint32_t n; /* 0 = it cannot be made this way, or not now */
    bool is_inline, is_copied;
    uint32_t slot; /* of what is copied */
} request_t;

/* Each way to make one sets the slice to what the request moves, with s->at behind it. */
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

        if (piece->len == 0) continue; /* to some adapters 0 means 2 GiB */
        q->pieces[q->n++] = (kvp_rdma_sge_t){.addr = (uint64_t)(uintptr_t)piece->addr, .len = (uint32_t)piece->len};
    }
}

/* As far as it is registered. */
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
        advance(s->xfer, &s->at, got);
    }
    if (q->n > 0) s->len = (uint32_t)len;
}

/* Through the area, as far as one slot goes. */
static void
make_copied(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, slice_t *s, request_t *q)
{
    bool has_sum = (s->xfer->flags & KVP_XFER_SUM) != 0 && s->from == NULL && ep->is_copied;
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
        if (s->off == 0) kvp_copy_sum_begin(&ep->write_sum, s->xfer->len);
        copy_pieces(s->xfer, &s->at, slot, len, has_sum ? &ep->write_sum : NULL);
    }
}

/* Bytes that the processor has to do with once they are there, or whose room is wanted. */
static uint64_t
late_work(const slice_t *s, const request_t *q)
{
    bool is_summed = s->xfer->kind == KVP_XFER_READ && (s->xfer->flags & KVP_XFER_SUM) != 0;

    return q->is_copied || is_summed ? s->len : 0;
}

/* False: there is no room. */
static bool
post_slice(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, kvp_mrcursor_t *cursor, slice_t *s)
{
    const kvp_rdma_rseg_t *rseg = kvp_container_of(s->xfer->rseg, const kvp_rdma_rseg_t, base);
    uint64_t raddr = rseg->keys.addr + s->xfer->roffset + s->off;
    kvp_rdma_at_t at = s->at;
    request_t q = {.n = 0};
    kvp_rdma_work_t *work;
    uint32_t flags;

    if (s->from == NULL && s->off == 0) ep->is_copied = true;
    make_inline(rail, s, &q);
    if (q.n == 0) make_direct(rail, cursor, s, &q);
    if (q.n == 0) make_copied(ep, rail, s, &q);
    if (q.n == 0) return false;
    if (s->from == NULL) ep->is_copied &= q.is_copied;
    if (kvp_rdma_rail_is_idle(rail)) kvp_rdma_rails_moved(ep, rail, 0);
    flags = s->off == 0 ? kvp_rdma_rail_order(rail, s->xfer) : 0;
    if (q.is_inline) flags |= KVP_RDMA_WR_INLINE;
    memcpy(kvp_rdma_rail_sges(rail), q.pieces, q.n * sizeof q.pieces[0]);
    work = kvp_rdma_rail_add(rail, s->xfer, flags, q.n, s->len, raddr, rseg->keys.rkeys[rail->pair.theirs]);
    work->at = at;
    work->off = s->off;
    work->seq = ep->seq++;
    work->is_copied = q.is_copied;
    work->slot = q.slot;
    rail->quiet_work += late_work(s, &q);
    return true;
}

static void
ring(kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        if (!rail->is_up) continue;
        if (KVP_RULE(RDMA_PUSH) && (i == 0 || KVP_RULE(RDMA_PUSH_RAILS))) kvp_rdma_rail_push(rail);
        if (kvp_rdma_rail_ring(rail) != KVP_OK) kvp_rdma_rails_failed(ep, rail);
    }
}

/* Whether what waits is more than a queue takes. */
static bool
is_long(const kvp_rdma_ep_t *ep)
{
    const kvp_rdma_rail_t *first = &ep->rails[0];

    return ep->rails_n > 1 || ep->todo_n + RESERVED > first->sends - (first->works_head - first->works_tail);
}

static void
post_all(kvp_rdma_ep_t *ep, kvp_mrcursor_t *cursor)
{
    bool must_settle = is_long(ep);
    slice_t s;

    while (next_slice(ep, &s)) {
        if (s.xfer != NULL) {
            kvp_rdma_rail_t *rail = kvp_rdma_rails_pick(ep, s.xfer, s.off, s.len);

            if (rail == NULL || !post_slice(ep, rail, cursor, &s)) break;
            kvp_rdma_rail_settle(rail, must_settle);
        }
        slice_is_posted(ep, &s);
    }
}

/* Posts what there is room for. */
static void
pump(kvp_rdma_ep_t *ep)
{
    kvp_mrcursor_t cursor;

    kvp_mrcache_begin(ep->tp->cache, &cursor);
    post_all(ep, &cursor);
    kvp_mrcache_end(&cursor);
    ring(ep);
    if (ep->busy_ns == 0 && !is_idle(ep)) ep->busy_ns = kvp_now_ns();
    sum_written(ep);
}

/* What is refused here goes nowhere. */
static kvp_err_t
check(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer)
{
    const kvp_rdma_rseg_t *rseg;
    kvp_err_t err = kvp_xfer_check(xfer);

    if (err != KVP_OK) return err;
    rseg = kvp_container_of(xfer->rseg, const kvp_rdma_rseg_t, base);
    if (xfer->kind != KVP_XFER_READ && !rseg->is_writable) return KVP_INVALID;
    /* A number that a peer's earlier life gave out may by now mean other memory. */
    if (rseg->keys.epoch != ep->epoch && KVP_RULE(RDMA_EPOCH)) return KVP_NO_SEGMENT;
    return ep->peer_rails_n <= rseg->keys.rails_n ? KVP_OK : KVP_NO_SEGMENT;
}

kvp_err_t
kvp_rdma_submit(kvp_ep_t *base, kvp_xfer_t *const *xfers, size_t n, size_t *n_out)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);
    kvp_err_t err;

    *n_out = 0;
    if (!ep->is_up) return KVP_DISCONNECTED;
    for (; *n_out < n && ep->todo_n < TODO_MAX; ++*n_out) {
        kvp_xfer_t *xfer = xfers[*n_out];

        err = check(ep, xfer);
        if (err != KVP_OK) {
            finish(ep, xfer, err);
            continue;
        }
        kvp_list_add_tail(&ep->todo, &xfer->link);
        ep->todo_n++;
        xfer->left = xfer->len;
        ep->bytes += xfer->len;
    }
    kvp_rdma_rails_widen(ep);
    pump(ep);
    return ep->is_up ? KVP_OK : KVP_DISCONNECTED;
}

/* ---- completions */

/* Copies what arrived, with the sum where it comes in order: on one rail, that is. */
static void
take_in(kvp_rdma_rail_t *rail, const kvp_rdma_work_t *work)
{
    kvp_rdma_arriving_t *a = &rail->arriving;
    kvp_rdma_at_t at = work->at;

    if (work->off == 0 && (work->xfer->flags & KVP_XFER_SUM) != 0) {
        a->xfer = work->xfer;
        a->to = 0;
        kvp_copy_sum_begin(&a->sum, work->xfer->len);
    }
    if (a->xfer != work->xfer || a->to != work->off) {
        copy_pieces(work->xfer, &at, rail->area + work->slot, work->len, NULL);
        return;
    }
    copy_pieces(work->xfer, &at, rail->area + work->slot, work->len, &a->sum);
    a->to += work->len;
}

static void
end_sum(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer)
{
    bool has_sum = false;

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_arriving_t *a = &ep->rails[i].arriving;

        if (a->xfer != xfer) continue;
        if (a->to == xfer->len) xfer->sum = kvp_copy_sum_end(&a->sum);
        has_sum |= a->to == xfer->len;
        a->xfer = NULL;
    }
    if (!has_sum) xfer->sum = sum_pieces(ep->sum, xfer);
}

static void
retire(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, const kvp_rdma_work_t *work)
{
    kvp_xfer_t *xfer = work->xfer;

    if (xfer == NULL) return;
    if (xfer->kind == KVP_XFER_READ) {
        if (work->is_copied) take_in(rail, work);
        ep->base.received_bytes += work->len;
    } else {
        ep->base.sent_bytes += work->len;
    }
    ep->bytes -= work->len;
    xfer->left -= work->len;
    if (xfer->left > 0) return;
    if (xfer->kind == KVP_XFER_READ && (xfer->flags & KVP_XFER_SUM) != 0) end_sum(ep, xfer);
    kvp_list_del(&xfer->link);
    finish(ep, xfer, KVP_OK);
}

/* A batch is over: whether it is worth polling for the next one. */
static void
note_batch(kvp_rdma_ep_t *ep)
{
    uint64_t took = kvp_now_ns() - ep->busy_ns;

    ep->busy_ns = 0;
    ep->usual_ns = (3 * ep->usual_ns + took) / 4;
    ep->base.spin_ns = ep->usual_ns <= SPIN_NS ? 2 * SPIN_NS : 0;
}

static void
on_completion(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, const kvp_rdma_wc_t *wc)
{
    uint64_t before = rail->bytes;
    kvp_rdma_work_t work;

    if (wc->id < rail->works_tail || wc->id >= rail->works_head) return; /* of what was over before */
    if (wc->status != KVP_RDMA_WC_OK) {
        break_at(ep, rail, wc->id, wc->status);
        return;
    }
    while (kvp_rdma_rail_take_work(rail, wc->id, &work))
        retire(ep, rail, &work);
    kvp_rdma_rails_moved(ep, rail, before - rail->bytes);
    if (is_idle(ep)) note_batch(ep);
}

static void
take_completions(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    kvp_rdma_wc_t wcs[16];
    size_t n = KVP_ARRAY_LEN(wcs);

    for (uint32_t turn = 0; turn < POLLS_A_TURN && rail->is_up && n > 0; turn++) {
        n = kvp_rdma_rail_poll(rail, wcs, KVP_ARRAY_LEN(wcs));
        for (size_t i = 0; i < n && rail->is_up; i++)
            on_completion(ep, rail, &wcs[i]);
    }
}

static void
unkick(kvp_rdma_ep_t *ep)
{
    uint64_t value;

    ep->base.costs.system_calls += (ep->has_slept && ep->is_timed) + ep->is_kicked;
    if (ep->has_slept && ep->is_timed && read(ep->timer_fd, &value, sizeof value) == sizeof value) ep->is_timed = false;
    if (ep->is_kicked && read(ep->kick_fd, &value, sizeof value) == sizeof value) ep->is_kicked = false;
}

size_t
kvp_rdma_ep_poll(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);

    ep->fired = 0;
    unkick(ep);
    if (ep->has_slept || ep->on_connected != NULL || kvp_rdma_rails_are_connecting(ep)) kvp_rdma_ep_take_events(ep);
    for (uint32_t i = 0; i < ep->rails_n; i++)
        take_completions(ep, &ep->rails[i]);
    kvp_rdma_rails_tend(ep);
    if (ep->is_up) pump(ep);
    kvp_rdma_rails_widen(ep);
    return ep->fired;
}

/* Rails that have stalled, or may be tried again, make no event. */
static void
set_timer(kvp_rdma_ep_t *ep)
{
    uint64_t at_ns = kvp_rdma_rails_next_ns(ep);
    struct itimerspec at = {.it_value = {(time_t)(at_ns / KVP_NS_PER_S), (long)(at_ns % KVP_NS_PER_S)}};

    if (at_ns == UINT64_MAX) return;
    ep->base.costs.system_calls++;
    ep->is_timed = timerfd_settime(ep->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) == 0;
}

short
kvp_rdma_ep_arm(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);
    bool has_stash = false;
    uint64_t one = 1;

    ep->has_slept = true;
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].is_up) has_stash |= kvp_rdma_rail_arm(&ep->rails[i]);
    set_timer(ep);
    if (!has_stash || ep->is_kicked) return POLLIN;
    ep->base.costs.system_calls++;
    if (write(ep->kick_fd, &one, sizeof one) == sizeof one) ep->is_kicked = true;
    return POLLIN;
}

/* At the deadline queue pairs are destroyed: nothing less keeps an adapter from memory that it was told to fill. */
kvp_err_t
kvp_rdma_drain(kvp_ep_t *base, uint64_t deadline_ns)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);

    for (;;) {
        struct pollfd p = {.fd = ep->epoll_fd};
        uint64_t now = kvp_now_ns();

        kvp_rdma_ep_poll(base);
        if (is_idle(ep)) return KVP_OK;
        if (now >= deadline_ns) break;
        p.events = kvp_rdma_ep_arm(base);
        poll(&p, 1, (int)kvp_min_u64((deadline_ns - now) / KVP_NS_PER_MS + 1, 1000));
    }
    if (KVP_RULE(RDMA_DRAIN)) {
        kvp_rdma_ep_hang_up(ep);
        kvp_rdma_ep_finish_all(ep, KVP_CANCELLED);
    }
    return KVP_DEADLINE;
}
