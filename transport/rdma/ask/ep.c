/* SPDX-License-Identifier: Apache-2.0
 * Transfers of rdma: this file accepts and completes them; post.c posts them when the send queues have room.
 *
 * Design notes.
 * - If batches are so short that waking up takes as long as a batch, spin_ns tells the caller to poll before it sleeps.
 * - A failure ends its rail or the whole endpoint (rails.c). Queue pairs are destroyed before a transfer completes with
 *   an error or is posted again: from then on no queue pair touches local memory. Written bytes may still land at the
 *   peer. */
#include "transport/rdma/ask/ep.h"

#include "transport/inside.h"
#include "transport/rdma/ask/rails.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define SPIN_NS 50000u
#define POLLS_A_TURN 64u
#define TODO_MAX (8 * KVP_RDMA_SENDS) /* the most accepted transfers that wait to be posted */

/* Returns the transfer of a work. A READ that only flushes writes has the key, and so the transfer, of the last write
 * before it. NULL = that write has completed. */
static kvp_xfer_t *
transfer_of(const kvp_rdma_rail_t *rail, uint64_t number)
{
    kvp_xfer_t *xfer = rail->queue->works[number % KVP_RDMA_SENDS].xfer;

    if (xfer != NULL) return xfer;
    while (number-- > rail->works_tail) {
        xfer = rail->queue->works[number % KVP_RDMA_SENDS].xfer;
        if (xfer != NULL && xfer->kind != KVP_XFER_READ) return xfer;
    }
    return NULL;
}

/* Handles a failed work request. If the cause is local or remote memory, and not the path, the request's transfer gets
 * the error, and all other transfers of the endpoint get DISCONNECTED. Otherwise only the rail fails. */
static void
break_at(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, uint64_t number, kvp_rdma_wc_status_t why)
{
    kvp_xfer_t *guilty = transfer_of(rail, number);

    kvp_log_debug("rdma", "connection is broken status=%d work=%llu", (int)why, (unsigned long long)number);
    if (why != KVP_RDMA_WC_NO_ACCESS && why != KVP_RDMA_WC_NO_MEMORY) {
        kvp_rdma_rails_failed(ep, rail);
        return;
    }
    kvp_rdma_ep_lose(ep, guilty, why == KVP_RDMA_WC_NO_ACCESS ? KVP_NO_SEGMENT : KVP_NOT_REGISTERED);
}

static bool
is_registered_with(kvp_mrcursor_t *cursor, size_t dev, const kvp_xfer_t *xfer)
{
    uint32_t lkey;

    for (uint32_t i = 0; i < xfer->iov_n; i++) {
        uint8_t *at = xfer->iov[i].addr;
        size_t left = xfer->iov[i].len;

        while (left > 0) {
            size_t n = kvp_mrcache_find(cursor, dev, at, left, &lkey);

            if (n == 0) return false;
            at += n;
            left -= n;
        }
    }
    return true;
}

/* Returns whether the transfer's device memory is registered with each adapter that may carry it, also by rails that
 * connect later. A loan covers all adapters, but an adapter that returned may have refused the memory since. */
static bool
is_registered(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer)
{
    const kvp_rdma_tp_t *tp = ep->tp;
    bool is_all;
    kvp_mrcursor_t cursor;

    kvp_mrcache_begin(tp->cache, &cursor);
    is_all = is_registered_with(&cursor, ep->rails[0].cache_dev, xfer);
    for (size_t i = 0; i < tp->devs_n && is_all; i++)
        if (!tp->devs[i]->is_gone) is_all = is_registered_with(&cursor, kvp_mrcache_dev(tp->cache, tp->devs[i]), xfer);
    kvp_mrcache_end(&cursor);
    return is_all;
}

/* Validates a transfer at submission. A refused transfer is never posted. */
static kvp_err_t
check_xfer(kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer)
{
    const kvp_rdma_rseg_t *rseg;
    kvp_err_t err = kvp_xfer_check(xfer);

    if (err != KVP_OK) return err;
    rseg = kvp_container_of(xfer->rseg, const kvp_rdma_rseg_t, base);
    if (xfer->kind != KVP_XFER_READ && !rseg->is_writable) return KVP_INVALID;
    /* After the peer's epoch has changed, a key of an earlier epoch may name other memory. */
    if (rseg->keys.epoch != ep->epoch && KVP_RULE(RDMA_EPOCH)) {
        ep->has_rekeyed = true;
        return KVP_NO_SEGMENT;
    }
    if (ep->peer_rails_n > rseg->keys.rails_n) return KVP_NO_SEGMENT;
    if (kvp_rdma_rails_are_young(ep, xfer)) return KVP_EAGAIN;
    return (xfer->flags & KVP_XFER_DEVICE) == 0 || is_registered(ep, xfer) ? KVP_OK : KVP_NOTSUP;
}

kvp_err_t
kvp_rdma_submit(kvp_ep_t *base, kvp_xfer_t *const *xfers, size_t n, size_t *n_out)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);
    kvp_err_t err;

    *n_out = 0;
    if (!kvp_rdma_ep_is_up(ep)) return KVP_DISCONNECTED;
    for (; *n_out < n && ep->todo_n < TODO_MAX; ++*n_out) {
        kvp_xfer_t *xfer = xfers[*n_out];

        err = check_xfer(ep, xfer);
        if (err != KVP_OK) {
            kvp_rdma_ep_finish(ep, xfer, err);
            continue;
        }
        kvp_list_add_tail(&ep->todo, &xfer->link);
        ep->todo_n++;
        xfer->left = xfer->len;
        ep->bytes += xfer->len;
    }
    kvp_rdma_rails_widen(ep);
    kvp_rdma_post(ep);
    return kvp_rdma_ep_is_up(ep) ? KVP_OK : KVP_DISCONNECTED;
}

/* ---- completions */

/* Copies arrived bytes from the landing area to the caller's memory, and sums them if they arrive in order. */
static void
take_in(kvp_rdma_rail_t *rail, const kvp_rdma_work_t *work)
{
    kvp_rdma_at_t at = work->at;

    kvp_rdma_copy_pieces(work->xfer, &at, work->off, rail->area + work->slot, work->len, &rail->arriving);
}

static void
end_sum(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer)
{
    bool has_sum = false;

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_copying_t *a = &ep->rails[i].arriving;

        if (a->xfer != xfer) continue;
        if (a->to == xfer->len) xfer->sum = kvp_copy_sum_end(&a->sum);
        has_sum |= a->to == xfer->len;
        a->xfer = NULL;
    }
    if (!has_sum) xfer->sum = kvp_rdma_sum_pieces(ep->sum, xfer);
}

static void
retire_work(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, const kvp_rdma_work_t *work)
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
    kvp_rdma_ep_finish(ep, xfer, KVP_OK);
}

/* Ends a batch, and decides from the usual duration of batches whether the caller should poll for the next. */
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

    /* a completion of a later work request has already covered this work */
    if (wc->id < rail->works_tail || wc->id >= rail->works_head) return;
    if (wc->status != KVP_RDMA_WC_OK) {
        break_at(ep, rail, wc->id, wc->status);
        return;
    }
    while (kvp_rdma_rail_take_work(rail, wc->id, &work))
        retire_work(ep, rail, &work);
    kvp_rdma_rails_moved(rail, before - rail->bytes);
    if (kvp_rdma_ep_is_idle(ep)) note_batch(ep);
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
clear_kick(kvp_rdma_ep_t *ep)
{
    bool has_rung = ep->has_slept && ep->timed_ns != 0 && kvp_now_ns() >= ep->timed_ns;
    uint64_t value;

    ep->base.costs.system_calls += has_rung + ep->is_kicked;
    if (has_rung && read(ep->timer_fd, &value, sizeof value) == sizeof value) ep->timed_ns = 0;
    if (ep->is_kicked && read(ep->kick_fd, &value, sizeof value) == sizeof value) ep->is_kicked = false;
}

size_t
kvp_rdma_ep_poll(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);

    ep->fired = 0;
    clear_kick(ep);
    if (ep->has_slept || ep->on_connected != NULL || kvp_rdma_rails_are_connecting(ep)) kvp_rdma_ep_take_events(ep);
    for (uint32_t i = 0; i < ep->rails_n; i++)
        take_completions(ep, &ep->rails[i]);
    kvp_rdma_rails_tend(ep);
    if (kvp_rdma_ep_is_up(ep)) kvp_rdma_post(ep);
    kvp_rdma_rails_widen(ep);
    return ep->fired;
}

/* Sets the timer for the next call of kvp_rdma_rails_tend, because stalled rails and rails to retry cause no event. A
 * timer set for an earlier time stays: setting it again for each sleep would cost a system call for each batch. */
static void
set_timer(kvp_rdma_ep_t *ep)
{
    uint64_t at_ns = kvp_max_u64(kvp_rdma_rails_next_ns(ep), 1); /* 0 would stop the timer */
    struct itimerspec at = {.it_value = {(time_t)(at_ns / KVP_NS_PER_S), (long)(at_ns % KVP_NS_PER_S)}};

    if (at_ns == UINT64_MAX || (ep->timed_ns != 0 && ep->timed_ns <= at_ns)) return;
    ep->base.costs.system_calls++;
    if (timerfd_settime(ep->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) == 0) ep->timed_ns = at_ns;
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

/* Waits until the endpoint is idle. At the deadline it destroys the queue pairs, because nothing less stops an adapter
 * from writing into local memory, and completes all transfers with CANCELLED. */
kvp_err_t
kvp_rdma_drain(kvp_ep_t *base, uint64_t deadline_ns)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);

    for (;;) {
        struct pollfd p = {.fd = ep->epoll_fd};
        uint64_t now = kvp_now_ns();

        kvp_rdma_ep_poll(base);
        if (kvp_rdma_ep_is_idle(ep)) return KVP_OK;
        if (now >= deadline_ns) break;
        p.events = kvp_rdma_ep_arm(base);
        poll(&p, 1, (int)kvp_min_u64((deadline_ns - now) / KVP_NS_PER_MS + 1, 1000));
    }
    if (KVP_RULE(RDMA_DRAIN)) {
        kvp_rdma_rails_blame(ep);
        kvp_rdma_ep_hang_up(ep);
        kvp_rdma_ep_finish_all(ep, KVP_CANCELLED);
    }
    return KVP_DEADLINE;
}
