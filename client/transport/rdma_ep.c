/* SPDX-License-Identifier: Apache-2.0
 * Transfers of rdma: cut into work requests, posted as there is room, told when they are over.
 *
 * Design notes.
 * - Memory that is not registered is copied through a rail's area.
 * - What fails breaks the endpoint. Its queue pairs are destroyed before any transfer is told so: from then on nothing touches
 *   local memory. What was written may still land at the peer's.
 */
#include "client/transport/rdma_ep.h"

#include "client/transport/builtin.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#define SLICE_BYTES (128u << 10) /* of the area, for one work request */
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

/* ---- the end of it */
static void
finish_rail(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, kvp_err_t status)
{
    kvp_rdma_work_t work;

    while (kvp_rdma_rail_take_work(rail, UINT64_MAX, &work))
        if (work.xfer != NULL && work.is_last) finish(ep, work.xfer, status);
}

void
kvp_rdma_ep_finish_all(kvp_rdma_ep_t *ep, kvp_err_t status)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        finish_rail(ep, &ep->rails[i], status);
    while (!kvp_list_is_empty(&ep->todo)) {
        kvp_xfer_t *xfer = kvp_list_first(&ep->todo, kvp_xfer_t, link);

        kvp_list_del(&xfer->link);
        finish(ep, xfer, status);
    }
    ep->todo_n = 0;
}

void
kvp_rdma_ep_lose(kvp_rdma_ep_t *ep)
{
    kvp_rdma_ep_hang_up(ep);
    kvp_rdma_ep_finish_all(ep, KVP_DISCONNECTED);
}

/* The work request with that number failed: its transfer is told why, if that says something of it, and all others that
 * the connection is over. */
static void
break_at(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, uint64_t number, kvp_rdma_wc_status_t why)
{
    kvp_xfer_t *guilty = why == KVP_RDMA_WC_NO_ACCESS ? rail->works[number % KVP_RDMA_SENDS].xfer : NULL;

    kvp_log_debug("rdma", "connection is broken status %d work %llu", (int)why, (unsigned long long)number);
    kvp_rdma_ep_hang_up(ep);
    for (uint64_t i = number; guilty != NULL && i < rail->works_head; i++) {
        kvp_rdma_work_t *work = &rail->works[i % KVP_RDMA_SENDS];

        if (work->xfer == guilty && work->is_last) {
            work->xfer = NULL;
            finish(ep, guilty, KVP_NO_SEGMENT);
            break;
        }
    }
    kvp_rdma_ep_finish_all(ep, KVP_DISCONNECTED);
}

/* ---- the area */

/* Moves len bytes between the transfer's pieces and the area, taking their sum where it is asked for. */
static void
copy_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint8_t *area, uint32_t len, kvp_copy_sum_t *sum)
{
    while (len > 0) {
        const kvp_iov_t *piece = &xfer->iov[at->iov];
        uint32_t n = (uint32_t)kvp_min_u64(piece->len - at->off, len);
        uint8_t *ours = (uint8_t *)piece->addr + at->off;
        bool is_read = xfer->kind == KVP_XFER_READ;

        if ((xfer->flags & KVP_XFER_SUM) != 0)
            kvp_copy_sum(sum, is_read ? ours : area, is_read ? area : ours, n, NULL);
        else
            kvp_copy_part(is_read ? ours : area, is_read ? area : ours, n, xfer->len);
        area += n;
        len -= n;
        at->off += n;
        if (at->off == piece->len) *at = (kvp_rdma_at_t){.iov = at->iov + 1};
    }
}

static void
skip_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint32_t len)
{
    while (len > 0) {
        uint32_t n = (uint32_t)kvp_min_u64(xfer->iov[at->iov].len - at->off, len);

        len -= n;
        at->off += n;
        if (at->off == xfer->iov[at->iov].len) *at = (kvp_rdma_at_t){.iov = at->iov + 1};
    }
}

/* ---- posting */
static void
fill_slot(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer, uint8_t *slot, uint32_t len)
{
    if (xfer->kind == KVP_XFER_PUBLISH)
        memcpy(slot, &xfer->word, sizeof xfer->word);
    else
        copy_pieces(xfer, &ep->at, slot, len, &ep->write_sum);
}

/* Posts the next slice of the first transfer; false: there is no room. */
static bool
post_slice(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, kvp_xfer_t *xfer)
{
    const kvp_rdma_rseg_t *rseg = kvp_container_of(xfer->rseg, const kvp_rdma_rseg_t, base);
    uint32_t len = (uint32_t)kvp_min_u64(xfer->len - ep->posted, SLICE_BYTES);
    uint64_t raddr = rseg->keys.addr + xfer->roffset + ep->posted;
    uint32_t flags = 0, slot;
    kvp_rdma_at_t at = ep->at;
    kvp_rdma_work_t *work;

    if (!kvp_rdma_rail_take_slot(rail, len, &slot)) return false;
    if (ep->posted == 0) {
        flags = kvp_rdma_rail_order(rail, xfer);
        if (xfer->kind == KVP_XFER_WRITE) kvp_copy_sum_begin(&ep->write_sum, xfer->len);
    }
    if (xfer->kind == KVP_XFER_READ)
        skip_pieces(xfer, &ep->at, len);
    else
        fill_slot(ep, xfer, rail->area + slot, len);
    work = kvp_rdma_rail_add(rail, xfer, flags, slot, len, raddr, rseg->keys.rkeys[rail->peer_rail]);
    work->at = at;
    work->is_first = ep->posted == 0;
    ep->posted += len;
    work->is_last = ep->posted == xfer->len;
    return true;
}

static void
next_xfer(kvp_rdma_ep_t *ep)
{
    kvp_xfer_t *xfer = kvp_list_first(&ep->todo, kvp_xfer_t, link);

    if (xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_SUM) != 0) xfer->sum = kvp_copy_sum_end(&ep->write_sum);
    kvp_list_del(&xfer->link);
    ep->todo_n--;
    ep->at = (kvp_rdma_at_t){0};
    ep->posted = 0;
}

/* What it is to send may be what a READ before it brings. */
static bool
must_wait(const kvp_rdma_ep_t *ep, const kvp_rdma_rail_t *rail, const kvp_xfer_t *xfer)
{
    return KVP_RULE(RDMA_WRITE_WAITS) && xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_AFTER_PRIOR) != 0 &&
           ep->posted == 0 && rail->reads_n > 0;
}

/* Posts what there is room for. */
static kvp_err_t
pump(kvp_rdma_ep_t *ep)
{
    kvp_rdma_rail_t *rail = &ep->rails[0];

    while (!kvp_list_is_empty(&ep->todo)) {
        kvp_xfer_t *xfer = kvp_list_first(&ep->todo, kvp_xfer_t, link);

        if (must_wait(ep, rail, xfer) || !kvp_rdma_rail_has_place(rail)) break;
        if (!post_slice(ep, rail, xfer)) break;
        if (ep->posted == xfer->len) next_xfer(ep);
    }
    return kvp_rdma_rail_ring(rail);
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
    return ep->rails[0].peer_rail < rseg->keys.rails_n ? KVP_OK : KVP_NO_SEGMENT;
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
    }
    err = pump(ep);
    if (err == KVP_OK) return KVP_OK;
    kvp_rdma_ep_lose(ep);
    return KVP_DISCONNECTED;
}

/* ---- completions */
static void
retire(kvp_rdma_ep_t *ep, const kvp_rdma_rail_t *rail, const kvp_rdma_work_t *work)
{
    kvp_xfer_t *xfer = work->xfer;
    kvp_rdma_at_t at = work->at;

    if (xfer == NULL) return;
    if (xfer->kind == KVP_XFER_READ) {
        if (work->is_first) kvp_copy_sum_begin(&ep->read_sum, xfer->len);
        copy_pieces(xfer, &at, rail->area + work->slot, work->len, &ep->read_sum);
        ep->base.received_bytes += work->len;
        if (work->is_last && (xfer->flags & KVP_XFER_SUM) != 0) xfer->sum = kvp_copy_sum_end(&ep->read_sum);
    } else {
        ep->base.sent_bytes += work->len;
    }
    if (work->is_last) finish(ep, xfer, KVP_OK);
}

static void
on_completion(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, const kvp_rdma_wc_t *wc)
{
    kvp_rdma_work_t work;

    if (wc->id < rail->works_tail || wc->id >= rail->works_head) return; /* of what was over before */
    if (wc->status != KVP_RDMA_WC_OK) {
        break_at(ep, rail, wc->id, wc->status);
        return;
    }
    while (kvp_rdma_rail_take_work(rail, wc->id, &work))
        retire(ep, rail, &work);
}

static void
take_completions(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    kvp_rdma_wc_t wcs[16];
    size_t n = KVP_ARRAY_LEN(wcs);

    for (uint32_t turn = 0; turn < POLLS_A_TURN && ep->is_up && n > 0; turn++) {
        n = kvp_rdma_rail_poll(rail, wcs, KVP_ARRAY_LEN(wcs));
        for (size_t i = 0; i < n && ep->is_up; i++)
            on_completion(ep, rail, &wcs[i]);
    }
}

static void
unkick(kvp_rdma_ep_t *ep)
{
    uint64_t value;

    if (ep->is_kicked && read(ep->kick_fd, &value, sizeof value) == sizeof value) ep->is_kicked = false;
}

size_t
kvp_rdma_ep_poll(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);

    ep->fired = 0;
    if (ep->has_slept || ep->on_connected != NULL) kvp_rdma_ep_take_events(ep);
    unkick(ep);
    for (uint32_t i = 0; i < ep->rails_n && ep->is_up; i++)
        take_completions(ep, &ep->rails[i]);
    if (ep->is_up && !kvp_list_is_empty(&ep->todo) && pump(ep) != KVP_OK) kvp_rdma_ep_lose(ep);
    return ep->fired;
}

short
kvp_rdma_ep_arm(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);
    bool has_stash = false;
    uint64_t one = 1;

    ep->has_slept = true;
    for (uint32_t i = 0; i < ep->rails_n && ep->is_up; i++)
        has_stash |= kvp_rdma_rail_arm(&ep->rails[i]);
    if (has_stash && !ep->is_kicked && write(ep->kick_fd, &one, sizeof one) == sizeof one) ep->is_kicked = true;
    return POLLIN;
}

static bool
is_idle(const kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (!kvp_rdma_rail_is_idle(&ep->rails[i])) return false;
    return kvp_list_is_empty(&ep->todo);
}

kvp_err_t
kvp_rdma_drain(kvp_ep_t *base, uint64_t deadline_ns)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);

    for (;;) {
        struct pollfd p = {.fd = ep->epoll_fd};
        uint64_t now = kvp_now_ns();

        kvp_rdma_ep_poll(base);
        if (is_idle(ep)) return KVP_OK;
        if (now >= deadline_ns) return KVP_DEADLINE;
        p.events = kvp_rdma_ep_arm(base);
        poll(&p, 1, (int)kvp_min_u64((deadline_ns - now) / KVP_NS_PER_MS + 1, 1000));
    }
}
