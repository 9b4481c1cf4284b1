/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The moves of a batch are sorted into lanes, one for each node. First all lanes with an available path run
 *   together. Then the remaining lanes run in turn: they must attach to the node, open a chunk or wait for an
 *   endpoint. This thread holds no path while it waits, so threads cannot wait for one another in a circle.
 * - If lanes or copies wait for their turn after a silent node, the node is given up after its share of the time: a
 *   silent node may delay the bytes of other nodes, but must not cost them. The same holds for writes of copies once
 *   some node has answered, because one copy is enough. If all nodes are silent none is given up, because the fault
 *   may be here. A lane with moving bytes is never given up before the deadline.
 * - A node's transport may not serve a chunk yet, or not at all. Such a move is late: the rest of the lane goes
 *   first, then the late moves by the next transport that reaches the node. Without another transport the late moves
 *   wait, without a path, as long as the patience with the node lasts.
 * - Order on an endpoint: with a synchronous transport object by object, so that a deadline cuts between objects;
 *   else in windows, all payloads first and then their descriptors, so that AFTER_PRIOR waits once in a window. A
 *   deadline costs all objects of a window whose descriptors have not arrived. Where AFTER_PRIOR delays no READ (tcp),
 *   a large object therefore begins a window. Small objects share a window, which saves the node system calls.
 * - A read that was cut between its payload and its descriptor is reported as a read by sum, where a sum is enough.
 * - At the deadline: stop submitting, drain all endpoints together for 5 ms, close the endpoints that are not drained
 *   by then. Closing makes the caller's buffers safe, so a path with unfinished transfers is never used again. */
#include "client/data/transfer.h"

#include "client/data/plan.h"
#include "transport/drive.h"
#include "common/waits.h"
#include "common/log.h"

#include <string.h>

#define DRAIN_NS (5 * KVP_NS_PER_MS)
#define WINDOW 32u /* least moves in a window, on transports that work in the background */
#define WINDOW_MAX 128u /* most moves in a window if the moves are small */
#define WINDOW_BYTES (1u << 20) /* bytes of moves after which a window of WINDOW moves or more ends */
/* If reads complete in order, a window ends after READ_WINDOW_BYTES, or before an object of READ_ALONE_BYTES or more */
#define READ_WINDOW_BYTES (512u << 10)
#define READ_ALONE_BYTES (64u << 10)
#define PATIENCE_MAX_NS (1 * KVP_NS_PER_S) /* longest wait for a silent node while other lanes or copies wait */
#define LATE_FIRST_NS (1 * KVP_NS_PER_MS) /* first pause before late moves are tried again; doubles each time */
/* Late moves are those whose chunk the transport does not serve yet. This is their longest pause. */
#define LATE_MOST_NS (50 * KVP_NS_PER_MS)
#define LANES_MAX KVP_DRIVE_QUEUES_MAX

/* A lane: the moves to one node. */
typedef struct {
    uint32_t segment_id;
    size_t from; /* index of the first allowed transport */
    kvp_move_t **moves;
    uint32_t moves_n;
    /* Moves that the path does not serve; kvp_move_t.err is EAGAIN (not yet) or NOTSUP (never). The array has as many
     * entries as moves, once the lane was opened. */
    kvp_move_t **late;
    uint32_t late_n;

    kvp_path_t path; /* path.ep is NULL if the lane has no path */
    const kvp_transport_ops_t *ops; /* operations of the path's transport; also valid after the path was released */
    size_t transport;
    kvp_plan_t *plans; /* the plan of each move, in the order of moves */
    kvp_xferq_t *queue; /* the queue in run_t.queues with the plans' transfers */
    uint64_t heard_bytes; /* bytes that the endpoint had received when this lane began */
    kvp_ep_costs_t costs; /* the endpoint's cost counters when this lane began */
} lane_t;

typedef struct {
    const kvp_transfer_t *transfer;
    kvp_drive_t drive; /* drives the queues of all lanes */
    uint32_t left_n; /* number of moves to nodes for which no lane was free yet */
    uint32_t lanes_n;
    lane_t lanes[LANES_MAX];
    kvp_xferq_t queues[LANES_MAX]; /* queues[i] belongs to lanes[i] */
} run_t;

/* ---- transfers of a lane */
static bool
is_sync(const lane_t *lane)
{
    return (lane->ops->caps & KVP_TP_SYNC) != 0;
}

/* Queues the transfers of the moves [from, to): first the first transfer of each move, then the second of each, and
 * so on. */
static void
order_window(lane_t *lane, uint32_t from, uint32_t to)
{
    for (uint32_t k = 0; k < KVP_PLAN_XFERS_MAX; k++)
        for (uint32_t i = from; i < to; i++)
            if (k < kvp_plan_xfers_n(lane->moves[i])) lane->queue->xfers[lane->queue->n++] = &lane->plans[i].x[k];
}

/* Returns the index after the last move of the window that begins at `from`. */
static uint32_t
window_end(const lane_t *lane, uint32_t from)
{
    bool is_in_order = (lane->ops->caps & KVP_TP_READS_IN_ORDER) != 0 && kvp_move_is_read(lane->moves[from]);
    uint32_t least = is_in_order ? 1 : WINDOW;
    uint64_t bytes_max = is_in_order ? READ_WINDOW_BYTES : WINDOW_BYTES;
    uint32_t i = from;
    uint64_t bytes = 0;

    if (is_sync(lane)) return from + 1;
    for (; i < lane->moves_n && i - from < WINDOW_MAX; i++) {
        bytes += lane->moves[i]->len;
        if (i - from < least) continue;
        if (bytes > bytes_max || (is_in_order && lane->moves[i]->len >= READ_ALONE_BYTES)) break;
    }
    return i;
}

static void
order_all(lane_t *lane)
{
    for (uint32_t i = 0, end; i < lane->moves_n; i = end) {
        end = window_end(lane, i);
        order_window(lane, i, end);
    }
}

/* Ends a move with err. No transfer of the move was sent, and none will be. */
static void
refuse_move(kvp_move_t *mv, kvp_err_t err)
{
    mv->err = err;
    mv->is_drained = true;
    mv->has_sum = false;
}

/* Converts the error of opening a path or a chunk: DEADLINE before the call's deadline means that the node did not
 * answer in its share of the time: NODE_LOST. */
static kvp_err_t
open_err(const kvp_transfer_t *m, kvp_err_t err)
{
    return err == KVP_DEADLINE && kvp_now_ns() < m->deadline_ns ? KVP_NODE_LOST : err;
}

/* Allocates a lane's arrays: plans, transfers and late moves. A lane that is opened again keeps its arrays, because it
 * has no more moves than before. */
static bool
make_room(const kvp_transfer_t *m, lane_t *lane)
{
    uint32_t n = lane->moves_n;
    kvp_xferq_t *queue = lane->queue;

    if (lane->plans == NULL) lane->plans = kvp_scratch_alloc(m->scratch, n, sizeof *lane->plans);
    if (queue->xfers == NULL)
        queue->xfers = kvp_scratch_alloc(m->scratch, n * KVP_PLAN_XFERS_MAX, sizeof(kvp_xfer_t *));
    if (lane->late == NULL) lane->late = kvp_scratch_alloc(m->scratch, n, sizeof(kvp_move_t *));
    return lane->plans != NULL && queue->xfers != NULL && lane->late != NULL;
}

/* Returns the error of a late move to the same chunk, or OK if there is none. A move after a late move to its chunk
 * is late as well, without another question to the node. */
static kvp_err_t
late_err(const lane_t *lane, const kvp_move_t *mv)
{
    for (uint32_t i = 0; i < lane->late_n; i++)
        if (lane->late[i]->loc.chunk == mv->loc.chunk) return lane->late[i]->err;
    return KVP_OK;
}

/* Puts the late moves, and after them the moves from index `from` on, behind the lane's first `kept` moves, because
 * another path may serve them. */
static void
put_back(lane_t *lane, uint32_t kept, uint32_t from)
{
    uint32_t left = lane->moves_n - from;

    memmove(lane->moves + kept + lane->late_n, lane->moves + from, left * sizeof(kvp_move_t *));
    if (lane->late_n > 0) memcpy(lane->moves + kept, lane->late, lane->late_n * sizeof(kvp_move_t *));
    lane->moves_n = kept + lane->late_n + left;
    lane->late_n = 0;
}

/* Makes a lane's transfers. Moves that fail leave the lane; moves of a chunk that the path does not serve, or not yet,
 * go to lane->late. Returns false if the path has to be taken again: because there is a better path, or because
 * until_ns is 0 (no wait) and a chunk must be opened first. */
static bool
prepare_lane(const kvp_transfer_t *m, lane_t *lane, uint64_t until_ns)
{
    uint32_t n = lane->moves_n;
    uint32_t kept = 0;
    bool has_room = make_room(m, lane);

    lane->ops = lane->path.ep->tp->ops;
    lane->transport = lane->path.transport;
    for (uint32_t i = 0; i < n; i++) {
        kvp_move_t *mv = lane->moves[i];
        kvp_err_t err = has_room ? late_err(lane, mv) : KVP_NOMEM;

        if (kvp_plan_must_bounce(m, lane->path.ep, mv)) {
            refuse_move(mv, KVP_NOTSUP);
            continue;
        }
        if (err == KVP_OK) err = kvp_plan_make(&lane->plans[kept], m, mv, &lane->path, lane->queue, until_ns);
        if (err == KVP_STALE || (err == KVP_EAGAIN && until_ns == 0)) {
            put_back(lane, kept, i);
            return false;
        }
        if (err == KVP_OK) {
            lane->moves[kept++] = mv;
        } else {
            refuse_move(mv, open_err(m, err));
            if (err == KVP_EAGAIN || err == KVP_NOTSUP) lane->late[lane->late_n++] = mv;
        }
    }
    lane->moves_n = kept;
    order_all(lane);
    return true;
}

/* ---- the results */
static kvp_err_t
status_err(const run_t *r, kvp_err_t status, bool is_late)
{
    switch (status) {
    case KVP_OK:
    case KVP_STALE:
    case KVP_DEADLINE:
    case KVP_NOMEM:
    case KVP_CORRUPT:
    case KVP_NOTSUP:
    case KVP_NOT_REGISTERED:
    case KVP_EAGAIN:
        return status;
    case KVP_INVALID:
        return KVP_PROTO; /* the master named a place that does not exist */
    case KVP_CANCELLED:
        if (kvp_session_is_stopping(r->transfer->session)) return KVP_CLOSED;
        return is_late ? KVP_DEADLINE : KVP_NODE_LOST;
    default:
        return KVP_NODE_LOST;
    }
}

/* Returns true if a write with this status may still reach the node's memory: its connection ended, and bytes may be
 * on the network already. NOT_REGISTERED is such a status: a fault of the local memory ended the connection, and the
 * node did not refuse the write. */
static bool
may_still_land(kvp_err_t status)
{
    return status == KVP_CANCELLED || status == KVP_DISCONNECTED || status == KVP_NOT_REGISTERED;
}

/* Returns true if the payload of a read arrived and its descriptor did not, and the checksum alone is enough. */
static bool
is_cut_after_payload(const kvp_move_t *mv, const kvp_xfer_t *x)
{
    return mv->kind == KVP_MOVE_READ && mv->has_desc && (mv->flags & KVP_READ_SUM_ALONE) != 0 &&
           (x[0].flags & KVP_XFER_SUM) != 0 && x[0].status == KVP_OK && x[1].status == KVP_CANCELLED;
}

static void
report_move(const run_t *r, const lane_t *lane, kvp_move_t *mv, const kvp_xfer_t *x, bool is_late)
{
    const kvp_xfer_t *payload = mv->kind == KVP_MOVE_FILL ? &x[1] : &x[0]; /* the sum of a PUT is in its descriptor */
    kvp_err_t status = KVP_OK;

    mv->is_drained = true;
    if (is_cut_after_payload(mv, x)) mv->has_desc = false; /* the descriptor's transfer does not count below */
    for (uint32_t k = 0; k < kvp_plan_xfers_n(mv); k++) {
        /* NOT_REGISTERED explains the status of the remaining transfers and replaces an earlier error */
        if (status == KVP_OK || x[k].status == KVP_NOT_REGISTERED) status = x[k].status;
        if (!is_sync(lane) && may_still_land(x[k].status)) mv->is_drained = false;
    }
    mv->err = status_err(r, status, is_late);
    mv->has_sum = mv->kind == KVP_MOVE_PUT || (mv->kind != KVP_MOVE_SEAL && (payload->flags & KVP_XFER_SUM) != 0);
    mv->sum = mv->kind == KVP_MOVE_PUT ? mv->desc.sum : payload->sum;
}

static kvp_path_counters_t *
counters_of(const run_t *r, const lane_t *lane)
{
    return &kvp_session_conf(r->transfer->session)->peers.counters->paths[lane->transport];
}

static void
report_lane(const run_t *r, const lane_t *lane, bool is_late)
{
    kvp_path_counters_t *c = counters_of(r, lane);
    uint64_t n[2] = {0, 0}, bytes[2] = {0, 0}; /* index 0: read, index 1: written */

    for (uint32_t i = 0; i < lane->moves_n; i++) {
        kvp_move_t *mv = lane->moves[i];

        report_move(r, lane, mv, lane->plans[i].x, is_late);
        if (mv->err != KVP_OK || mv->kind == KVP_MOVE_SEAL) continue;
        n[!kvp_move_is_read(mv)] += mv->kind != KVP_MOVE_READ_PART && mv->kind != KVP_MOVE_FILL_MORE;
        bytes[!kvp_move_is_read(mv)] += mv->len;
    }
    kvp_count(&c->reads, n[0]);
    kvp_count(&c->read_bytes, bytes[0]);
    kvp_count(&c->writes, n[1]);
    kvp_count(&c->write_bytes, bytes[1]);
}

static bool
has_status(const lane_t *lane, kvp_err_t status)
{
    for (size_t i = 0; i < lane->queue->n; i++)
        if (lane->queue->xfers[i]->status == status) return true;
    return false;
}

/* Records for the node whether its path worked, ended, failed or was silent. */
static void
judge_node(const run_t *r, const lane_t *lane, uint64_t now_ns)
{
    const kvp_transfer_t *m = r->transfer;
    const kvp_xferq_t *queue = lane->queue;
    bool is_stopping = kvp_session_is_stopping(m->session);
    bool is_cut = queue->err != KVP_OK, is_silent = queue->err == KVP_NODE_LOST;
    bool has_heard = queue->done_n > 0 || lane->path.ep->received_bytes != lane->heard_bytes;

    if (has_status(lane, KVP_NOT_REGISTERED)) return; /* the fault is on this side */
    /* a stale endpoint is no fault of the node: the node is attached again after the path is released */
    if (lane->ops->ep_is_stale(lane->path.ep)) return;
    if (has_status(lane, KVP_DISCONNECTED)) {
        kvp_path_ended(m->peers, &lane->path);
        return;
    }
    if (has_status(lane, KVP_NO_SEGMENT) || (is_cut && !is_silent && now_ns < m->deadline_ns && !is_stopping)) {
        kvp_path_fail(m->peers, &lane->path, "its data connection ended");
        return;
    }
    if (has_heard) kvp_path_ok(m->peers, &lane->path);
    if (is_cut && (is_silent || !has_heard) && !is_stopping)
        kvp_path_silent(m->peers, &lane->path, queue->moved_ns, now_ns);
}

static void
count_costs(const run_t *r, const lane_t *lane)
{
    const kvp_ep_costs_t *now = &lane->path.ep->costs, *before = &lane->costs;
    kvp_path_counters_t *c = counters_of(r, lane);

    kvp_count(&c->requests, now->requests - before->requests);
    kvp_count(&c->doorbells, now->doorbells - before->doorbells);
    kvp_count(&c->completions, now->completions - before->completions);
    kvp_count(&c->system_calls, now->system_calls - before->system_calls);
    kvp_count(&c->copied_bytes, now->copied_bytes - before->copied_bytes);
}

static void
finish_lane(run_t *r, lane_t *lane)
{
    uint64_t now = kvp_now_ns();

    if (lane->path.ep == NULL) return;
    judge_node(r, lane, now);
    count_costs(r, lane);
    /* Release the path first: closing a path completes its running transfers, and only then their statuses are
     * final. */
    kvp_path_rele(r->transfer->peers, &lane->path, lane->queue->err != KVP_OK);
    report_lane(r, lane, now >= r->transfer->deadline_ns);
}

static void
refuse_lane(const lane_t *lane, kvp_err_t err)
{
    for (uint32_t i = 0; i < lane->moves_n; i++)
        refuse_move(lane->moves[i], err);
}

/* ---- running the lanes */

/* Returns how long a node may be silent while lanes_behind other lanes wait. A node may use its share twice, for the
 * connection and for the transfers, and the waiting lanes still have their shares. */
static uint64_t
share_of_time(run_t *r, uint32_t lanes_behind)
{
    const kvp_transfer_t *m = r->transfer;
    uint64_t behind = (m->others + m->has_copies + 1ull) * (lanes_behind + 1ull) - 1;

    r->drive.may_leave = !m->has_copies || lanes_behind > 0;
    r->drive.now_ns = kvp_now_ns();
    if (behind == 0) return UINT64_MAX;
    if (r->drive.now_ns >= m->deadline_ns) return 0;
    return kvp_min_u64((m->deadline_ns - r->drive.now_ns) / (behind + 2), PATIENCE_MAX_NS);
}

/* Takes the lane's path and makes its transfers; until_ns as for kvp_peers_take. Returns true if until_ns is 0 and
 * the lane has to wait, so that it must be opened again with time. */
static bool
open_lane(run_t *r, lane_t *lane, uint64_t until_ns)
{
    const kvp_transfer_t *m = r->transfer;
    kvp_err_t err = r->drive.now_ns < m->deadline_ns ? KVP_OK : KVP_DEADLINE;
    bool is_whole = false;

    while (err == KVP_OK && !is_whole) {
        err = kvp_peers_take(m->peers, lane->segment_id, lane->from, until_ns, &lane->path);
        is_whole = err == KVP_OK && prepare_lane(m, lane, until_ns);
        if (err != KVP_OK || is_whole) continue;
        kvp_path_rele(m->peers, &lane->path, false);
        if (until_ns == 0) err = KVP_EAGAIN;
    }
    if (err == KVP_EAGAIN && until_ns == 0) return true;
    if (err != KVP_OK) refuse_lane(lane, open_err(m, err));
    return false;
}

static void
start_patience(lane_t *lane, uint64_t patience_ns, uint64_t now_ns)
{
    if (lane->path.ep == NULL) return;
    kvp_xferq_begin(lane->queue, lane->path.ep, is_sync(lane) ? UINT64_MAX : patience_ns, now_ns);
    lane->heard_bytes = lane->path.ep->received_bytes;
    lane->costs = lane->path.ep->costs;
}

/* Runs all lanes together whose paths are available without a wait. Marks the other lanes in is_slow and returns
 * their number. */
static uint32_t
run_ready_lanes(run_t *r, bool *is_slow)
{
    uint32_t slow_n = 0;
    uint64_t patience_ns;

    for (uint32_t i = 0; i < r->lanes_n; i++) {
        is_slow[i] = open_lane(r, &r->lanes[i], 0);
        slow_n += is_slow[i];
    }
    patience_ns = share_of_time(r, slow_n + (r->left_n > 0));
    for (uint32_t i = 0; i < r->lanes_n; i++)
        start_patience(&r->lanes[i], patience_ns, r->drive.now_ns);
    kvp_drive_run(&r->drive);
    for (uint32_t i = 0; i < r->lanes_n; i++)
        finish_lane(r, &r->lanes[i]);
    return slow_n;
}

static void
run_lane(run_t *r, lane_t *lane, uint64_t share_ns, uint64_t until_ns)
{
    const uint64_t began_ns = kvp_now_ns();
    (void)open_lane(r, lane, until_ns);
    r->drive.now_ns = kvp_now_ns();
    r->drive.waited_ns += r->drive.now_ns - began_ns;
    start_patience(lane, share_ns, r->drive.now_ns);
    kvp_drive_run(&r->drive);
    finish_lane(r, lane);
}

/* Turns the late moves of a lane into its moves. The next path uses a transport with index `from` or higher. */
static void
begin_late(lane_t *lane, size_t from)
{
    *lane = (lane_t){.segment_id = lane->segment_id,
                     .from = from,
                     .moves = lane->late,
                     .moves_n = lane->late_n,
                     .late = lane->moves,
                     .transport = lane->transport,
                     .plans = lane->plans,
                     .queue = lane->queue};
    *lane->queue = (kvp_xferq_t){.xfers = lane->queue->xfers};
}

/* Keeps only the late moves that the node may still serve (EAGAIN). The other late moves have their final error. */
static void
keep_waiting(lane_t *lane)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < lane->late_n; i++)
        if (lane->late[i]->err == KVP_EAGAIN) lane->late[n++] = lane->late[i];
    lane->late_n = n;
}

/* Sleeps before the late moves are tried again. Returns false if they are not to be tried again, because the session
 * is stopping or last_ns has passed. */
static bool
back_off(run_t *r, uint64_t back_off_ns, uint64_t last_ns)
{
    struct pollfd p = {.fd = kvp_session_stop_fd(r->transfer->session), .events = POLLIN};

    kvp_poll_until(&p, 1, kvp_min_u64(kvp_now_ns() + back_off_ns, last_ns));
    r->drive.now_ns = kvp_now_ns();
    return r->drive.now_ns < last_ns && !kvp_session_is_stopping(r->transfer->session);
}

static bool
leads_there(const run_t *r, const lane_t *lane, size_t from, uint64_t until_ns)
{
    kvp_path_t path;

    if (kvp_peers_take(r->transfer->peers, lane->segment_id, from, until_ns, &path) != KVP_OK) return false;
    kvp_path_rele(r->transfer->peers, &path, false);
    return true;
}

static void
run_late(run_t *r, lane_t *lane, uint64_t share_ns, uint64_t until_ns)
{
    const kvp_transfer_t *m = r->transfer;
    uint64_t last_ns = kvp_min_u64(until_ns, r->drive.now_ns + kvp_ctl_patience(r->drive.now_ns, until_ns));
    uint64_t back_off_ns = LATE_FIRST_NS;

    while (lane->late_n > 0) {
        size_t from = lane->transport + 1;

        if (!leads_there(r, lane, from, last_ns)) {
            from = 0;
            keep_waiting(lane);
            if (lane->late_n == 0 || !back_off(r, back_off_ns, last_ns)) break;
            back_off_ns = kvp_min_u64(2 * back_off_ns, LATE_MOST_NS);
        }
        begin_late(lane, from);
        run_lane(r, lane, share_ns, until_ns);
    }
    if (lane->late_n == 0) return;
    kvp_peers_late(m->peers, lane->segment_id);
    for (uint32_t i = 0; i < lane->late_n; i++)
        refuse_move(lane->late[i], kvp_session_is_stopping(m->session) ? KVP_CLOSED : open_err(m, KVP_DEADLINE));
}

static void
run_slow_lane(run_t *r, lane_t *lane, uint32_t lanes_behind)
{
    uint64_t share_ns = share_of_time(r, lanes_behind);
    uint64_t until_ns = share_ns == UINT64_MAX ? r->transfer->deadline_ns : r->drive.now_ns + share_ns;

    run_lane(r, lane, share_ns, until_ns);
    if (lane->late_n > 0) run_late(r, lane, share_ns, until_ns);
}

static void
run_lanes(run_t *r)
{
    bool is_slow[LANES_MAX];
    uint32_t slow_n = run_ready_lanes(r, is_slow);

    for (uint32_t i = 0; i < r->lanes_n; i++)
        if (is_slow[i]) run_slow_lane(r, &r->lanes[i], --slow_n + (r->left_n > 0));
}

/* Returns the index of a segment's lane, or LANES_MAX if there is no room for another lane. */
static uint32_t
find_lane(run_t *r, uint32_t segment_id, uint32_t guess)
{
    if (guess < r->lanes_n && r->lanes[guess].segment_id == segment_id) return guess;
    for (uint32_t i = 0; i < r->lanes_n; i++)
        if (r->lanes[i].segment_id == segment_id) return i;
    if (r->lanes_n == LANES_MAX) return LANES_MAX;
    r->queues[r->lanes_n] = (kvp_xferq_t){.n = 0};
    r->lanes[r->lanes_n] = (lane_t){.segment_id = segment_id, .queue = &r->queues[r->lanes_n]};
    return r->lanes_n++;
}

/* Sorts moves into lanes while there are free lanes. Moves the remaining moves to the front of todo and returns their
 * number. */
static uint32_t
deal_moves(run_t *r, kvp_move_t **todo, uint32_t n, kvp_move_t **dealt)
{
    uint32_t at = 0, left = 0, guess = 0;

    r->lanes_n = 0;
    for (uint32_t i = 0; i < n; i++) {
        guess = find_lane(r, todo[i]->loc.segment_id, guess);
        if (guess < LANES_MAX) r->lanes[guess].moves_n++;
    }
    for (uint32_t i = 0; i < r->lanes_n; i++) {
        r->lanes[i].moves = dealt + at;
        at += r->lanes[i].moves_n;
        r->lanes[i].moves_n = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        guess = find_lane(r, todo[i]->loc.segment_id, guess);
        if (guess < LANES_MAX)
            r->lanes[guess].moves[r->lanes[guess].moves_n++] = todo[i];
        else
            todo[left++] = todo[i];
    }
    r->drive.queues_n = r->lanes_n;
    return left;
}

void
kvp_transfer_run(const kvp_transfer_t *transfer, kvp_move_t *moves, uint32_t n)
{
    kvp_move_t **todo = kvp_scratch_alloc(transfer->scratch, 2 * (size_t)n, sizeof(kvp_move_t *));
    run_t *r = kvp_scratch_alloc(transfer->scratch, 1, sizeof *r);

    if (todo == NULL || r == NULL) {
        for (uint32_t i = 0; i < n; i++)
            refuse_move(&moves[i], KVP_NOMEM);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        todo[i] = &moves[i];
    r->transfer = transfer;
    r->drive = (kvp_drive_t){.queues = r->queues,
                             .deadline_ns = transfer->deadline_ns,
                             .is_given_up = kvp_session_conf(transfer->session)->peers.is_given_up,
                             .stop_fd = kvp_session_stop_fd(transfer->session),
                             .drain_ns = DRAIN_NS,
                             .may_spin = true,
                             .now_ns = kvp_now_ns()};
    r->left_n = n;
    while (r->left_n > 0) {
        r->left_n = deal_moves(r, todo, r->left_n, todo + n);
        run_lanes(r);
    }
    if (transfer->waited_ns != NULL) *transfer->waited_ns += r->drive.waited_ns;
}
