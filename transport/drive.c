/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/drive.h"

#include "common/waits.h"

void
kvp_xferq_begin(kvp_xferq_t *queue, kvp_ep_t *ep, uint64_t patience_ns, uint64_t now_ns)
{
    queue->ep = ep;
    queue->patience_ns = patience_ns;
    queue->moved_ns = now_ns;
    queue->seen_bytes = ep->sent_bytes + ep->received_bytes;
}

void
kvp_xferq_done(kvp_xfer_t *xfer)
{
    kvp_xferq_t *queue = xfer->arg;

    queue->done_n++;
}

static bool
is_running(const kvp_xferq_t *queue)
{
    return queue->err == KVP_OK && queue->done_n < queue->n;
}

static bool
is_sync(const kvp_xferq_t *queue)
{
    return (queue->ep->tp->ops->caps & KVP_TP_SYNC) != 0;
}

static bool
is_any_running(const kvp_drive_t *drive)
{
    for (uint32_t i = 0; i < drive->queues_n; i++)
        if (is_running(&drive->queues[i])) return true;
    return false;
}

/* Submits and polls the transfers of one queue once. Returns true if a transfer was submitted or completed. */
static bool
drive_queue(kvp_xferq_t *queue)
{
    kvp_ep_t *ep = queue->ep;
    const kvp_transport_ops_t *ops = ep->tp->ops;
    size_t submitted_before = queue->submitted_n, done_before = queue->done_n, n = 0;
    uint64_t bytes;

    if (queue->submitted_n < queue->n) {
        queue->err = ops->submit(ep, queue->xfers + queue->submitted_n, queue->n - queue->submitted_n, &n);
        queue->submitted_n += n;
    }
    if (queue->done_n < queue->submitted_n) (void)ops->ep_poll(ep);
    if (queue->err == KVP_OK && ops->ep_is_broken(ep)) queue->err = KVP_DISCONNECTED;
    bytes = ep->sent_bytes + ep->received_bytes;
    queue->has_moved = queue->done_n != done_before || bytes != queue->seen_bytes;
    queue->seen_bytes = bytes;
    return queue->done_n != done_before || queue->submitted_n != submitted_before;
}

/* Runs one round over all queues. Asynchronous transports come first, so that they work in the background while this
 * thread copies for the synchronous transports. */
static bool
drive_round(kvp_drive_t *drive)
{
    bool has_moved = false;

    for (int sync = 0; sync <= 1; sync++)
        for (uint32_t i = 0; i < drive->queues_n; i++)
            if (is_running(&drive->queues[i]) && is_sync(&drive->queues[i]) == (sync == 1))
                has_moved |= drive_queue(&drive->queues[i]);
    return has_moved;
}

/* Returns whether queues in which no byte moved for patience_ns may be cut now. */
static bool
may_cut_silent(const kvp_drive_t *drive)
{
    if (drive->may_leave) return true;
    for (uint32_t i = 0; i < drive->queues_n; i++) {
        const kvp_xferq_t *queue = &drive->queues[i];

        if (queue->n > 0 && queue->done_n == queue->n && queue->err == KVP_OK) return true;
    }
    return false;
}

/* Cuts, after a round, each queue in which no byte moved for its patience_ns. Returns when the next patience_ns ends.
 * The transfers of a cut queue complete when the caller closes the endpoint; the drive does not wait for them. */
static uint64_t
leave_silent(kvp_drive_t *drive)
{
    uint64_t until_ns = drive->deadline_ns;
    bool may = may_cut_silent(drive);

    for (uint32_t i = 0; i < drive->queues_n; i++) {
        kvp_xferq_t *queue = &drive->queues[i];

        if (!is_running(queue)) continue;
        if (queue->has_moved) queue->moved_ns = drive->now_ns;
        if (!may || queue->patience_ns == UINT64_MAX) continue;
        if (drive->now_ns - queue->moved_ns >= queue->patience_ns)
            queue->err = KVP_NODE_LOST;
        else
            until_ns = kvp_min_u64(until_ns, queue->moved_ns + queue->patience_ns);
    }
    return until_ns;
}

/* Returns true if a transfer was submitted or completed within the last spin_ns, so that the next completion is likely
 * to come before the thread could sleep and wake. */
static bool
is_worth_polling(const kvp_drive_t *drive)
{
    for (uint32_t i = 0; drive->may_spin && i < drive->queues_n; i++) {
        const kvp_xferq_t *queue = &drive->queues[i];

        if (is_running(queue) && drive->now_ns - drive->moved_ns < queue->ep->spin_ns) return true;
    }
    return false;
}

static void
sleep_on_queues(kvp_drive_t *drive, uint64_t until_ns)
{
    struct pollfd p[KVP_DRIVE_QUEUES_MAX + 1];
    nfds_t n = 0;

    for (uint32_t i = 0; i < drive->queues_n; i++) {
        const kvp_xferq_t *queue = &drive->queues[i];
        const kvp_transport_ops_t *ops;

        if (!is_running(queue)) continue;
        ops = queue->ep->tp->ops;
        queue->ep->costs.system_calls++; /* counts the poll(2) call below as a system call */
        p[n].events = ops->ep_arm(queue->ep);
        p[n++].fd = ops->ep_event_fd(queue->ep);
    }
    if (drive->stop_fd >= 0)
        p[n++] = (struct pollfd){.fd = drive->stop_fd, .events = POLLIN};
    else
        until_ns = kvp_min_u64(until_ns, drive->now_ns + KVP_POLL_SLICE_NS);
    kvp_poll_until(p, n, until_ns);
    const uint64_t began_ns = drive->now_ns;
    drive->now_ns = kvp_now_ns();
    drive->waited_ns += drive->now_ns - began_ns;
}

/* Cuts the queues that have not ended. All queues are drained until the same time, so the drive returns soon after
 * its deadline even if many endpoints are stuck. */
static void
cut_running(kvp_drive_t *drive)
{
    uint64_t end_ns = drive->now_ns + drive->drain_ns;

    for (uint32_t i = 0; i < drive->queues_n; i++) {
        kvp_xferq_t *queue = &drive->queues[i];

        if (!is_running(queue)) continue;
        queue->err = drive->now_ns >= drive->deadline_ns ? KVP_DEADLINE : KVP_CLOSED;
        if (drive->drain_ns > 0)
            kvp_ignore(queue->ep->tp->ops->drain(queue->ep, end_ns), "the endpoint is closed in any case");
    }
}

void
kvp_drive_run(kvp_drive_t *drive)
{
    while (is_any_running(drive)) {
        const uint64_t began_ns = drive->now_ns;
        bool has_moved = drive_round(drive);
        uint64_t until_ns;

        drive->now_ns = kvp_now_ns();
        if (!has_moved) drive->waited_ns += drive->now_ns - began_ns;
        if (drive->now_ns >= drive->deadline_ns || kvp_is_given_up(drive->is_given_up)) break;
        until_ns = leave_silent(drive);
        if (has_moved)
            drive->moved_ns = drive->now_ns;
        else if (is_any_running(drive) && !is_worth_polling(drive))
            sleep_on_queues(drive, until_ns);
    }
    cut_running(drive);
}
