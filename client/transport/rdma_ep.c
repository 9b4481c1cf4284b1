/* SPDX-License-Identifier: Apache-2.0
 * The asking side of rdma.
 *
 * Design notes.
 * - All that fits is posted with one ring of the doorbell, and only the last work request of it is signaled: its completion
 *   says that all before it are over. A batch with writes ends in a READ, whose completion says that they are in memory.
 * - A READ that must come after others carries the fence. A PUBLISH that must come after writes is posted behind a READ, and
 *   carries it too.
 * - Memory that is not registered is copied through the area, a ring: whoever is first in it is over first, since work
 *   requests of one queue pair are.
 * - What fails breaks the endpoint. Its queue pair is destroyed before any transfer is told so: from then on nothing touches
 *   local memory. What was written may still land at the peer's.
 */
#include "client/transport/rdma_ep.h"

#include "client/transport/builtin.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLICE_BYTES (128u << 10) /* of the area, for one work request */
#define LINE_BYTES 64u
#define INLINE_BYTES 256u
#define RESERVE 3u /* work requests kept for pushing READs, before a PUBLISH and at the end */
#define POLLS_A_TURN 64u
#define TODO_MAX (8 * KVP_RDMA_SENDS) /* transfers that wait for a work request */

static kvp_rdma_ep_t *
ep_of(kvp_ep_t *ep)
{
    return kvp_container_of(ep, kvp_rdma_ep_t, base);
}

static void
finish(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer, kvp_err_t status)
{
    xfer->status = status;
    xfer->link = (kvp_list_t){0};
    ep->fired++;
    xfer->done(xfer);
}

/* ---- the end of it */

/* After this nothing of the endpoint touches local memory. */
static void
hang_up(kvp_rdma_ep_t *ep)
{
    if (ep->id != NULL) ep->tp->verbs->id_close(ep->id);
    ep->id = NULL;
    ep->is_up = false;
    ep->stash_n = 0;
}

static void
finish_all(kvp_rdma_ep_t *ep, kvp_err_t status)
{
    for (; ep->works_tail < ep->works_head; ep->works_tail++) {
        const kvp_rdma_work_t *work = &ep->works[ep->works_tail % KVP_RDMA_SENDS];

        if (work->xfer != NULL && work->is_last) finish(ep, work->xfer, status);
    }
    while (!kvp_list_is_empty(&ep->todo)) {
        kvp_xfer_t *xfer = kvp_list_first(&ep->todo, kvp_xfer_t, link);

        kvp_list_del(&xfer->link);
        finish(ep, xfer, status);
    }
    ep->todo_n = 0;
}

static void
lose(kvp_rdma_ep_t *ep)
{
    hang_up(ep);
    finish_all(ep, KVP_DISCONNECTED);
}

/* The work request with that number failed: its transfer is told why, if that says something of it, and all others that
 * the connection is over. */
static void
break_at(kvp_rdma_ep_t *ep, uint64_t number, kvp_rdma_wc_status_t why)
{
    kvp_xfer_t *guilty = why == KVP_RDMA_WC_NO_ACCESS ? ep->works[number % KVP_RDMA_SENDS].xfer : NULL;

    kvp_log_debug("rdma", "connection is broken status %d work %llu", (int)why, (unsigned long long)number);
    hang_up(ep);
    for (uint64_t i = number; guilty != NULL && i < ep->works_head; i++) {
        kvp_rdma_work_t *work = &ep->works[i % KVP_RDMA_SENDS];

        if (work->xfer == guilty && work->is_last) {
            work->xfer = NULL;
            finish(ep, guilty, KVP_NO_SEGMENT);
            break;
        }
    }
    finish_all(ep, KVP_DISCONNECTED);
}

static void
tell_connected(kvp_rdma_ep_t *ep, kvp_err_t err)
{
    kvp_ep_done_fn fn = ep->on_connected;

    ep->on_connected = NULL;
    if (err != KVP_OK) hang_up(ep);
    if (fn != NULL) fn(ep->on_connected_arg, err);
}

/* ---- connecting */
static bool
watch(const kvp_rdma_ep_t *ep, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};

    return epoll_ctl(ep->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

static kvp_err_t
make_area(kvp_rdma_ep_t *ep)
{
    size_t bytes = KVP_RDMA_AREA_BYTES + LINE_BYTES;

    ep->area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ep->area == MAP_FAILED) {
        ep->area = NULL;
        return KVP_NOMEM;
    }
    return ep->tp->verbs->reg(ep->id->dev, ep->area, bytes, KVP_RDMA_LOCAL, -1, &ep->area_reg);
}

static kvp_err_t
on_resolved(kvp_rdma_ep_t *ep)
{
    const kvp_verbs_ops_t *verbs = ep->tp->verbs;
    kvp_rdma_caps_t caps = {.sge = 1, .inline_bytes = INLINE_BYTES};
    kvp_rdma_ask_t ask = {.nonce = ep->nonce, .incarnation = ep->tp->incarnation};
    uint8_t data[KVP_RDMA_ASK_MAX];
    kvp_err_t err = make_area(ep);

    memcpy(ask.pool_id, ep->tp->pool_id, sizeof ask.pool_id);
    caps.sends = ep->sends = (uint32_t)kvp_min_u64(KVP_RDMA_SENDS, ep->id->dev->info.max_wr);
    if (err == KVP_OK) err = verbs->qp_make(ep->id, &caps);
    if (err == KVP_OK && !watch(ep, ep->id->cq_fd)) err = KVP_SYS;
    return err == KVP_OK ? verbs->ask(ep->id, data, kvp_rdma_ask_encode(&ask, data)) : err;
}

static kvp_err_t
on_answer(kvp_rdma_ep_t *ep, const kvp_rdma_event_t *ev)
{
    kvp_rdma_answer_t answer;
    kvp_err_t err = kvp_rdma_answer_decode(ev->data, ev->len, &answer);

    if (err != KVP_OK) return err;
    if (answer.err == KVP_OK && ev->kind == KVP_RDMA_REFUSED) return KVP_PROTO;
    if (answer.err != KVP_OK) return answer.err;
    if (answer.nonce != ep->nonce) return KVP_PROTO;
    ep->epoch = answer.epoch;
    ep->rail = answer.rail;
    ep->is_up = true;
    return KVP_OK;
}

static void
on_event(kvp_rdma_ep_t *ep, const kvp_rdma_event_t *ev)
{
    kvp_err_t err = KVP_OK;

    switch (ev->kind) {
    case KVP_RDMA_RESOLVED:
        err = on_resolved(ep);
        if (err != KVP_OK) tell_connected(ep, err);
        return;
    case KVP_RDMA_ESTABLISHED:
    case KVP_RDMA_REFUSED:
        tell_connected(ep, on_answer(ep, ev));
        return;
    case KVP_RDMA_UNREACHABLE:
    case KVP_RDMA_GONE:
        if (ep->on_connected != NULL) {
            tell_connected(ep, KVP_UNREACHABLE);
        } else if (ep->id != NULL) {
            lose(ep);
        }
        return;
    case KVP_RDMA_REQUEST:
        ep->tp->verbs->id_close(ev->id); /* nobody listens on this channel */
        return;
    }
}

static void
take_events(kvp_rdma_ep_t *ep)
{
    kvp_rdma_event_t ev;

    ep->has_slept = false;
    while (ep->cm != NULL && ep->id != NULL && ep->tp->verbs->cm_next(ep->cm, &ev) == KVP_OK)
        on_event(ep, &ev);
}

kvp_err_t
kvp_rdma_ep_connect(kvp_tp_t *tp, const kvp_addr_t *to, kvp_ep_t *base, kvp_ep_done_fn done, void *arg)
{
    kvp_rdma_ep_t *ep = ep_of(base);
    struct sockaddr_storage addr;
    kvp_err_t err;

    ep->tp = kvp_rdma_tp_of(tp);
    kvp_list_init(&ep->todo);
    ep->nonce = kvp_random_u64();
    ep->kick_fd = -1;
    ep->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (ep->epoll_fd < 0) goto fail_sys;
    ep->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ep->kick_fd < 0 || !watch(ep, ep->kick_fd)) goto fail_sys;
    err = ep->tp->verbs->cm_open(&ep->cm);
    if (err == KVP_OK && !watch(ep, ep->cm->fd)) goto fail_sys;
    if (err == KVP_OK) err = kvp_rdma_addr(to, &addr);
    if (err == KVP_OK) err = ep->tp->verbs->connect(ep->cm, &addr, NULL, &ep->id);
    if (err != KVP_OK) goto fail;
    ep->on_connected = done;
    ep->on_connected_arg = arg;
    ep->has_slept = true;
    return KVP_OK;
fail_sys:
    kvp_log_error("rdma", "an endpoint cannot be made: %m");
    err = KVP_SYS;
fail:
    kvp_rdma_ep_close(base);
    return err;
}

void
kvp_rdma_ep_close(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = ep_of(base);

    hang_up(ep);
    tell_connected(ep, KVP_CANCELLED);
    finish_all(ep, KVP_CANCELLED);
    if (ep->cm != NULL) ep->tp->verbs->cm_close(ep->cm);
    if (ep->area_reg != NULL) ep->tp->verbs->dereg(ep->area_reg);
    if (ep->area != NULL) munmap(ep->area, KVP_RDMA_AREA_BYTES + LINE_BYTES);
    if (ep->kick_fd >= 0) close(ep->kick_fd);
    if (ep->epoll_fd >= 0) close(ep->epoll_fd);
    ep->cm = NULL;
    ep->area_reg = NULL;
    ep->area = NULL;
    ep->kick_fd = ep->epoll_fd = -1;
}

/* ---- the area */

/* Room for len bytes in one piece, with a line's alignment; false: later. */
static bool
take_room(kvp_rdma_ep_t *ep, uint32_t len, uint32_t *slot_out)
{
    uint64_t bytes = (len + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    uint64_t head = ep->area_head;
    uint64_t slot = head % KVP_RDMA_AREA_BYTES;

    if (slot + bytes > KVP_RDMA_AREA_BYTES) {
        head += KVP_RDMA_AREA_BYTES - slot;
        slot = 0;
    }
    if (head + bytes - ep->area_tail > KVP_RDMA_AREA_BYTES) return false;
    ep->area_head = head + bytes;
    *slot_out = (uint32_t)slot;
    return true;
}

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
static kvp_rdma_work_t *
add_work(kvp_rdma_ep_t *ep, uint32_t flags, uint32_t slot, uint32_t len, uint64_t raddr, uint32_t rkey)
{
    kvp_rdma_work_t *work = &ep->works[ep->works_head % KVP_RDMA_SENDS];
    kvp_rdma_sge_t *sge = &ep->sges[ep->wrs_n];

    *sge = (kvp_rdma_sge_t){.addr = (uint64_t)(uintptr_t)(ep->area + slot), .len = len, .lkey = ep->area_reg->lkey};
    ep->wrs[ep->wrs_n++] =
        (kvp_rdma_wr_t){.id = ep->works_head++, .flags = flags, .sge_n = 1, .sge = sge, .raddr = raddr, .rkey = rkey};
    *work = (kvp_rdma_work_t){.slot = slot, .len = len, .area_end = ep->area_head};
    return work;
}

static void
push_writes(kvp_rdma_ep_t *ep)
{
    if (!ep->has_writes) return;
    (void)add_work(ep, KVP_RDMA_WR_READ, KVP_RDMA_AREA_BYTES, 8, ep->push_addr, ep->push_rkey);
    ep->has_writes = false;
    ep->has_reads = true;
}

/* What has to go before the first work request of a transfer, and the fence where it needs one. */
static uint32_t
order(kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer)
{
    if ((xfer->flags & KVP_XFER_AFTER_PRIOR) == 0) return 0;
    if (xfer->kind == KVP_XFER_PUBLISH && KVP_RULE(RDMA_SEAL_PUSH)) push_writes(ep);
    if (!ep->has_reads) return 0;
    if (xfer->kind == KVP_XFER_READ && !KVP_RULE(RDMA_READ_FENCE)) return 0;
    if (xfer->kind == KVP_XFER_PUBLISH && !KVP_RULE(RDMA_SEAL_FENCE)) return 0;
    ep->has_reads = false;
    return KVP_RDMA_WR_FENCE;
}

static uint32_t
fill_slot(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer, uint32_t slot, uint32_t len)
{
    if (xfer->kind == KVP_XFER_PUBLISH)
        memcpy(ep->area + slot, &xfer->word, sizeof xfer->word);
    else
        copy_pieces(xfer, &ep->at, ep->area + slot, len, &ep->write_sum);
    return len <= ep->id->inline_max ? KVP_RDMA_WR_INLINE : 0;
}

/* Posts the next slice of the first transfer; false: there is no room. */
static bool
post_slice(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer)
{
    const kvp_rdma_rseg_t *rseg = kvp_container_of(xfer->rseg, const kvp_rdma_rseg_t, base);
    uint32_t len = (uint32_t)kvp_min_u64(xfer->len - ep->posted, SLICE_BYTES);
    uint64_t raddr = rseg->keys.addr + xfer->roffset + ep->posted;
    uint32_t flags = 0, slot, rkey = rseg->keys.rkeys[ep->rail];
    kvp_rdma_at_t at = ep->at;
    kvp_rdma_work_t *work;

    if (!take_room(ep, len, &slot)) return false;
    if (ep->posted == 0) {
        flags = order(ep, xfer);
        if (xfer->kind == KVP_XFER_WRITE) kvp_copy_sum_begin(&ep->write_sum, xfer->len);
    }
    if (xfer->kind == KVP_XFER_READ) {
        flags |= KVP_RDMA_WR_READ;
        ep->has_reads = true;
        ep->reads_n++;
        skip_pieces(xfer, &ep->at, len);
    } else {
        flags |= fill_slot(ep, xfer, slot, len);
        ep->has_writes = true;
        ep->push_addr = rseg->keys.addr;
        ep->push_rkey = rkey;
    }
    work = add_work(ep, flags, slot, len, raddr, rkey);
    work->xfer = xfer;
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

static kvp_err_t
ring(kvp_rdma_ep_t *ep)
{
    size_t n;
    kvp_err_t err;

    if (KVP_RULE(RDMA_PUSH)) push_writes(ep);
    if (ep->wrs_n == 0) return KVP_OK;
    ep->wrs[ep->wrs_n - 1].flags |= KVP_RDMA_WR_SIGNALED;
    err = ep->tp->verbs->post(ep->id, ep->wrs, ep->wrs_n, &n);
    ep->wrs_n = 0;
    if (err != KVP_OK) kvp_log_error("rdma", "work requests were not taken error %s", kvp_err_text(err));
    return err;
}

/* What it is to send may be what a READ before it brings. */
static bool
must_wait(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer)
{
    return KVP_RULE(RDMA_WRITE_WAITS) && xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_AFTER_PRIOR) != 0 &&
           ep->posted == 0 && ep->reads_n > 0;
}

/* Posts what there is room for. */
static kvp_err_t
pump(kvp_rdma_ep_t *ep)
{
    while (!kvp_list_is_empty(&ep->todo)) {
        kvp_xfer_t *xfer = kvp_list_first(&ep->todo, kvp_xfer_t, link);

        if (must_wait(ep, xfer) || ep->works_head - ep->works_tail + RESERVE > ep->sends) break;
        if (!post_slice(ep, xfer)) break;
        if (ep->posted == xfer->len) next_xfer(ep);
    }
    return ring(ep);
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
    return ep->rail < rseg->keys.rails_n ? KVP_OK : KVP_NO_SEGMENT;
}

kvp_err_t
kvp_rdma_submit(kvp_ep_t *base, kvp_xfer_t *const *xfers, size_t n, size_t *n_out)
{
    kvp_rdma_ep_t *ep = ep_of(base);
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
    lose(ep);
    return KVP_DISCONNECTED;
}

/* ---- completions */
static void
retire(kvp_rdma_ep_t *ep, const kvp_rdma_work_t *work)
{
    kvp_xfer_t *xfer = work->xfer;
    kvp_rdma_at_t at = work->at;

    ep->area_tail = work->area_end;
    if (xfer == NULL) return;
    if (xfer->kind == KVP_XFER_READ) {
        if (work->is_first) kvp_copy_sum_begin(&ep->read_sum, xfer->len);
        copy_pieces(xfer, &at, ep->area + work->slot, work->len, &ep->read_sum);
        ep->reads_n--;
        ep->base.received_bytes += work->len;
        if (work->is_last && (xfer->flags & KVP_XFER_SUM) != 0) xfer->sum = kvp_copy_sum_end(&ep->read_sum);
    } else {
        ep->base.sent_bytes += work->len;
    }
    if (work->is_last) finish(ep, xfer, KVP_OK);
}

static void
on_completion(kvp_rdma_ep_t *ep, const kvp_rdma_wc_t *wc)
{
    if (wc->id < ep->works_tail || wc->id >= ep->works_head) return; /* of what was over before */
    if (wc->status != KVP_RDMA_WC_OK) {
        break_at(ep, wc->id, wc->status);
        return;
    }
    while (ep->works_tail <= wc->id) {
        kvp_rdma_work_t work = ep->works[ep->works_tail % KVP_RDMA_SENDS];

        ep->works_tail++;
        retire(ep, &work);
    }
}

static void
take_stash(kvp_rdma_ep_t *ep)
{
    kvp_rdma_wc_t wcs[KVP_ARRAY_LEN(ep->stash)];
    size_t n = ep->stash_n;
    uint64_t value;

    if (ep->is_kicked && read(ep->kick_fd, &value, sizeof value) == sizeof value) ep->is_kicked = false;
    memcpy(wcs, ep->stash, n * sizeof wcs[0]);
    ep->stash_n = 0;
    for (size_t i = 0; i < n && ep->is_up; i++)
        on_completion(ep, &wcs[i]);
}

static void
take_completions(kvp_rdma_ep_t *ep)
{
    kvp_rdma_wc_t wcs[16];
    size_t n = KVP_ARRAY_LEN(wcs);

    for (uint32_t turn = 0; turn < POLLS_A_TURN && ep->is_up && n == KVP_ARRAY_LEN(wcs); turn++) {
        n = ep->tp->verbs->poll(ep->id, wcs, KVP_ARRAY_LEN(wcs));
        for (size_t i = 0; i < n && ep->is_up; i++)
            on_completion(ep, &wcs[i]);
    }
}

size_t
kvp_rdma_ep_poll(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = ep_of(base);

    ep->fired = 0;
    if (ep->has_slept || ep->on_connected != NULL) take_events(ep);
    if (ep->stash_n > 0 || ep->is_kicked) take_stash(ep);
    if (ep->is_up) take_completions(ep);
    if (ep->is_up && !kvp_list_is_empty(&ep->todo) && pump(ep) != KVP_OK) lose(ep);
    return ep->fired;
}

int
kvp_rdma_ep_event_fd(kvp_ep_t *base)
{
    return ep_of(base)->epoll_fd;
}

/* What completed between the last poll and the arming makes no event: it is looked for once more. */
short
kvp_rdma_ep_arm(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = ep_of(base);
    uint64_t one = 1;

    ep->has_slept = true;
    if (!ep->is_up || ep->stash_n > 0) return POLLIN;
    if (ep->tp->verbs->arm(ep->id) == KVP_OK)
        ep->stash_n = ep->tp->verbs->poll(ep->id, ep->stash, KVP_ARRAY_LEN(ep->stash));
    if (ep->stash_n > 0 && write(ep->kick_fd, &one, sizeof one) == sizeof one) ep->is_kicked = true;
    return POLLIN;
}

kvp_err_t
kvp_rdma_drain(kvp_ep_t *base, uint64_t deadline_ns)
{
    kvp_rdma_ep_t *ep = ep_of(base);

    for (;;) {
        struct pollfd p = {.fd = ep->epoll_fd};
        uint64_t now = kvp_now_ns();

        kvp_rdma_ep_poll(base);
        if (ep->works_tail == ep->works_head && kvp_list_is_empty(&ep->todo)) return KVP_OK;
        if (now >= deadline_ns) return KVP_DEADLINE;
        p.events = kvp_rdma_ep_arm(base);
        poll(&p, 1, (int)kvp_min_u64((deadline_ns - now) / KVP_NS_PER_MS + 1, 1000));
    }
}

bool
kvp_rdma_ep_is_broken(const kvp_ep_t *base)
{
    return kvp_container_of(base, const kvp_rdma_ep_t, base)->id == NULL;
}
