/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The moves of a batch fall into lanes, one a node. First all lanes whose path is at hand run together; then those
 *   that have to attach or to wait for an endpoint, one after the other, while we hold nothing: so threads cannot wait
 *   for one another in a circle, and a node that does not answer delays nobody else's bytes.
 * - Order on an endpoint: for a synchronous transport object by object, so that a deadline cuts between objects; else in
 *   windows, the payloads first and their descriptors behind them, so that AFTER_PRIOR waits once a window.
 * - At the deadline: stop submitting, drain for 5 ms, close the endpoints that are not drained by then. Closing is what
 *   makes the buffers safe, so a path that was cut is never used again.
 */
#include "client/mover.h"

#include "client/waits.h"
#include "common/log.h"

#include <string.h>

#define DRAIN_NS (5 * KVP_NS_PER_MS)
#define WINDOW 32u /* moves, on transports that work in the background */
#define XFERS_MAX 3u /* of one move */
#define STUCK_NS (1 * KVP_NS_PER_S) /* a node on which nothing has moved for so long is given up */
#define LANES_MAX 64u

/* What one move needs at its transport. */
typedef struct {
    kvp_xfer_t x[XFERS_MAX];
    kvp_iov_t pieces[2]; /* our own memory: descriptor, key */
} share_t;

/* The moves to one node. */
typedef struct {
    uint32_t segment_id;
    kvp_move_t **moves;
    uint32_t moves_n;

    kvp_path_t path; /* ep NULL = none */
    const kvp_transport_ops_t *ops; /* of the path, also after it was given back */
    size_t transport;
    share_t *shares; /* in the order of moves */
    kvp_xfer_t **order; /* in the order of submission */
    size_t order_n;
    size_t submitted_n;
    size_t done_n; /* counted by on_done */
    bool is_cut; /* ended by force: nothing more is submitted, and the endpoint is closed */
} lane_t;

typedef struct {
    const kvp_mover_t *mover;
    uint64_t began_ns;
    uint32_t lanes_n;
    lane_t lanes[LANES_MAX];
} run_t;

static void
on_done(kvp_xfer_t *xfer)
{
    lane_t *lane = xfer->arg;

    lane->done_n++;
}

/* ---- from moves to transfers */
static bool
is_sync(const lane_t *lane)
{
    return (lane->ops->caps & KVP_TP_SYNC) != 0;
}

static uint32_t
xfers_n(const kvp_move_t *mv)
{
    return mv->kind == KVP_MOVE_SEAL ? 3 : 2;
}

/* The first len bytes of the span; trimmed where it is longer. NULL: no memory, or shorter (which the core excludes). */
static const kvp_iov_t *
cut_span(const kvp_mover_t *m, const kvp_span_t *span, uint64_t len, uint32_t *n_out)
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
init_xfer(kvp_xfer_t *x, lane_t *lane, kvp_xfer_kind_t kind, kvp_rseg_t *rseg, uint64_t roffset, uint64_t deadline_ns)
{
    memset(x, 0, sizeof *x);
    x->kind = kind;
    x->rseg = rseg;
    x->roffset = roffset;
    x->deadline_ns = deadline_ns;
    x->done = on_done;
    x->arg = lane;
    x->status = KVP_CANCELLED; /* until it was submitted and is done */
}

static void
set_iov(kvp_xfer_t *x, const kvp_iov_t *iov, uint32_t n, uint64_t len)
{
    x->iov = iov;
    x->iov_n = n;
    x->len = len;
}

/* Writes land only while the extent is still ours. */
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
make_payload(const kvp_mover_t *m, const lane_t *lane, const kvp_move_t *mv, kvp_xfer_t *x)
{
    bool must_sum = (lane->ops->caps & KVP_TP_VERIFY_SUM) != 0;
    const kvp_iov_t *iov;
    uint32_t n;

    iov = cut_span(m, &m->spans[mv->item], mv->len, &n);
    if (iov == NULL) return KVP_NOMEM;
    set_iov(x, iov, n, mv->len);
    if (mv->kind == KVP_MOVE_FILL || mv->wants_sum || must_sum) x->flags |= KVP_XFER_SUM;
    return KVP_OK;
}

static void
set_piece(kvp_xfer_t *x, kvp_iov_t *piece, const void *addr, size_t len)
{
    *piece = (kvp_iov_t){(void *)addr, len};
    set_iov(x, piece, 1, len);
}

static kvp_err_t
make_read(const kvp_mover_t *m, lane_t *lane, kvp_move_t *mv, const kvp_chunk_mem_t *mem, share_t *s)
{
    init_xfer(&s->x[0], lane, KVP_XFER_READ, mem->payload, mv->loc.offset, m->deadline_ns);
    init_xfer(&s->x[1], lane, KVP_XFER_READ, mem->meta, kvp_desc_off(mv->loc.slot), m->deadline_ns);
    s->x[1].flags = KVP_XFER_AFTER_PRIOR;
    set_piece(&s->x[1], &s->pieces[0], &mv->desc, KVP_DESC_LINE_BYTES);
    return make_payload(m, lane, mv, &s->x[0]);
}

static kvp_err_t
make_fill(const kvp_mover_t *m, lane_t *lane, kvp_move_t *mv, const kvp_chunk_mem_t *mem, share_t *s)
{
    init_xfer(&s->x[0], lane, KVP_XFER_PUBLISH, mem->meta, kvp_desc_off(mv->loc.slot), m->deadline_ns);
    set_word(&s->x[0], &mv->loc, KVP_DESC_WRITING);
    init_xfer(&s->x[1], lane, KVP_XFER_WRITE, mem->payload, mv->loc.offset, m->deadline_ns);
    set_guard(&s->x[1], mem, &mv->loc);
    return make_payload(m, lane, mv, &s->x[1]);
}

static kvp_err_t
make_seal(const kvp_mover_t *m, lane_t *lane, kvp_move_t *mv, const kvp_chunk_mem_t *mem, share_t *s)
{
    uint64_t desc_off = kvp_desc_off(mv->loc.slot);
    size_t word = sizeof mv->desc.word;

    init_xfer(&s->x[0], lane, KVP_XFER_WRITE, mem->meta, (uint64_t)mv->loc.key_off * 64, m->deadline_ns);
    set_guard(&s->x[0], mem, &mv->loc);
    set_piece(&s->x[0], &s->pieces[0], mv->key, mv->key_len);
    init_xfer(&s->x[1], lane, KVP_XFER_WRITE, mem->meta, desc_off + word, m->deadline_ns);
    set_guard(&s->x[1], mem, &mv->loc);
    set_piece(&s->x[1], &s->pieces[1], (const uint8_t *)&mv->desc + word, sizeof mv->desc - word);
    init_xfer(&s->x[2], lane, KVP_XFER_PUBLISH, mem->meta, desc_off, m->deadline_ns);
    s->x[2].flags = KVP_XFER_AFTER_PRIOR;
    set_word(&s->x[2], &mv->loc, KVP_DESC_SEALED);
    return KVP_OK;
}

static kvp_err_t
make_share(const kvp_mover_t *m, lane_t *lane, kvp_move_t *mv, share_t *s)
{
    kvp_access_t access = mv->kind == KVP_MOVE_READ ? KVP_ACCESS_READ : KVP_ACCESS_WRITE;
    kvp_chunk_mem_t mem;
    kvp_err_t err = kvp_path_chunk(m->peers, &lane->path, mv->loc.chunk, access, m->deadline_ns, &mem);

    if (err != KVP_OK) return err;
    if (mv->kind == KVP_MOVE_READ) return make_read(m, lane, mv, &mem, s);
    if (mv->kind == KVP_MOVE_FILL) return make_fill(m, lane, mv, &mem, s);
    return make_seal(m, lane, mv, &mem, s);
}

/* The k-th transfers of the moves [from, to), for each k in turn. */
static void
order_window(lane_t *lane, uint32_t from, uint32_t to)
{
    for (uint32_t k = 0; k < XFERS_MAX; k++)
        for (uint32_t i = from; i < to; i++)
            if (k < xfers_n(lane->moves[i])) lane->order[lane->order_n++] = &lane->shares[i].x[k];
}

static void
order_all(lane_t *lane)
{
    uint32_t window = is_sync(lane) ? 1 : WINDOW;

    for (uint32_t i = 0; i < lane->moves_n; i += window)
        order_window(lane, i, i + window < lane->moves_n ? i + window : lane->moves_n);
}

/* Nothing of this move was sent, and nothing will be. */
static void
refuse(kvp_move_t *mv, kvp_err_t err)
{
    mv->err = err;
    mv->is_drained = true;
    mv->has_sum = false;
}

/* Makes a lane's transfers; moves that cannot be made leave the lane. */
static void
prepare(const kvp_mover_t *m, lane_t *lane)
{
    size_t n = lane->moves_n;
    uint32_t kept = 0;

    lane->ops = lane->path.ep->tp->ops;
    lane->transport = lane->path.transport;
    lane->shares = kvp_scratch_alloc(m->scratch, n, sizeof *lane->shares);
    lane->order = kvp_scratch_alloc(m->scratch, n * XFERS_MAX, sizeof(kvp_xfer_t *));
    for (size_t i = 0; i < n; i++) {
        kvp_move_t *mv = lane->moves[i];
        bool has_room = lane->shares != NULL && lane->order != NULL;
        kvp_err_t err = has_room ? make_share(m, lane, mv, &lane->shares[kept]) : KVP_NOMEM;

        if (err == KVP_OK)
            lane->moves[kept++] = mv;
        else
            refuse(mv, err);
    }
    lane->moves_n = kept;
    order_all(lane);
}

/* ---- running */
static bool
is_running(const lane_t *lane)
{
    if (lane->path.ep == NULL || lane->is_cut) return false;
    return lane->done_n < lane->order_n;
}

/* One round on one lane: true when something happened. */
static bool
drive(lane_t *lane)
{
    size_t before = lane->done_n + lane->submitted_n;
    size_t n = 0;

    if (lane->submitted_n < lane->order_n) {
        kvp_xfer_t **next = lane->order + lane->submitted_n;

        if (lane->ops->submit(lane->path.ep, next, lane->order_n - lane->submitted_n, &n) != KVP_OK)
            lane->is_cut = true;
        lane->submitted_n += n;
    }
    if (lane->done_n < lane->submitted_n) (void)lane->ops->ep_poll(lane->path.ep);
    if (lane->ops->ep_is_broken(lane->path.ep)) lane->is_cut = true;
    return lane->done_n + lane->submitted_n != before;
}

/* Those that work in the background first: they go on while this thread copies for the others. */
static void
drive_round(run_t *r, bool *has_moved_out)
{
    *has_moved_out = false;
    for (int sync = 0; sync <= 1; sync++)
        for (uint32_t i = 0; i < r->lanes_n; i++)
            if (is_running(&r->lanes[i]) && is_sync(&r->lanes[i]) == (sync == 1)) *has_moved_out |= drive(&r->lanes[i]);
}

static bool
is_any_running(const run_t *r)
{
    for (uint32_t i = 0; i < r->lanes_n; i++)
        if (is_running(&r->lanes[i])) return true;
    return false;
}

static void
sleep_on_lanes(run_t *r)
{
    struct pollfd p[LANES_MAX + 1];
    nfds_t n = 0;

    for (uint32_t i = 0; i < r->lanes_n; i++) {
        const lane_t *lane = &r->lanes[i];

        if (!is_running(lane)) continue;
        p[n].events = lane->ops->ep_arm(lane->path.ep);
        p[n++].fd = lane->ops->ep_event_fd(lane->path.ep);
    }
    p[n++] = (struct pollfd){.fd = kvp_session_stop_fd(r->mover->session), .events = POLLIN};
    kvp_poll_until(p, n, r->mover->deadline_ns);
}

/* Drives all lanes that have a path until they are done, or the deadline, or the end of the session. */
static void
drive_all(run_t *r)
{
    const kvp_mover_t *m = r->mover;

    while (is_any_running(r)) {
        bool has_moved;

        drive_round(r, &has_moved);
        if (has_moved) continue;
        if (kvp_now_ns() >= m->deadline_ns || kvp_session_is_stopping(m->session)) break;
        sleep_on_lanes(r);
    }
    for (uint32_t i = 0; i < r->lanes_n; i++) {
        lane_t *lane = &r->lanes[i];

        if (!is_running(lane)) continue;
        lane->is_cut = true;
        kvp_ignore(lane->ops->drain(lane->path.ep, kvp_now_ns() + DRAIN_NS), "the path is closed in any case");
    }
}

/* ---- the outcome */
static kvp_err_t
status_err(const run_t *r, kvp_err_t status, bool is_late)
{
    switch (status) {
    case KVP_OK:
    case KVP_STALE:
    case KVP_DEADLINE:
    case KVP_NOMEM:
        return status;
    case KVP_INVALID:
        return KVP_PROTO; /* the master told of a place that is not there */
    case KVP_CANCELLED:
        if (kvp_session_is_stopping(r->mover->session)) return KVP_CLOSED;
        return is_late ? KVP_DEADLINE : KVP_NODE_LOST;
    default:
        return KVP_NODE_LOST;
    }
}

static void
report_move(const run_t *r, const lane_t *lane, kvp_move_t *mv, const kvp_xfer_t *x, bool is_late)
{
    const kvp_xfer_t *payload = mv->kind == KVP_MOVE_FILL ? &x[1] : &x[0];
    kvp_err_t status = KVP_OK;

    mv->is_drained = true;
    for (uint32_t k = 0; k < xfers_n(mv); k++) {
        if (status == KVP_OK) status = x[k].status;
        /* A connection that ended may have carried bytes to where we cannot see them any more. */
        if (!is_sync(lane) && (x[k].status == KVP_CANCELLED || x[k].status == KVP_DISCONNECTED)) mv->is_drained = false;
    }
    mv->err = status_err(r, status, is_late);
    mv->has_sum = mv->kind != KVP_MOVE_SEAL && (payload->flags & KVP_XFER_SUM) != 0;
    mv->sum = payload->sum;
}

static void
report_lane(const run_t *r, const lane_t *lane, bool is_late)
{
    kvp_path_counters_t *c = &kvp_session_conf(r->mover->session)->peers.counters->paths[lane->transport];
    uint64_t n[2] = {0, 0}, bytes[2] = {0, 0}; /* read, written */

    for (uint32_t i = 0; i < lane->moves_n; i++) {
        kvp_move_t *mv = lane->moves[i];

        report_move(r, lane, mv, lane->shares[i].x, is_late);
        if (mv->err != KVP_OK || mv->kind == KVP_MOVE_SEAL) continue;
        n[mv->kind == KVP_MOVE_FILL]++;
        bytes[mv->kind == KVP_MOVE_FILL] += mv->len;
    }
    kvp_count(&c->reads, n[0]);
    kvp_count(&c->read_bytes, bytes[0]);
    kvp_count(&c->writes, n[1]);
    kvp_count(&c->write_bytes, bytes[1]);
}

static bool
has_lost_node(const lane_t *lane)
{
    for (size_t i = 0; i < lane->order_n; i++)
        if (lane->order[i]->status == KVP_DISCONNECTED || lane->order[i]->status == KVP_NO_SEGMENT) return true;
    return false;
}

/* What the run says about the node itself. */
static void
judge_node(const run_t *r, const lane_t *lane, uint64_t now_ns)
{
    const kvp_mover_t *m = r->mover;
    bool is_late = now_ns >= m->deadline_ns;

    if (has_lost_node(lane) || (lane->is_cut && !is_late && !kvp_session_is_stopping(m->session)))
        kvp_path_fail(m->peers, &lane->path, "its data connection ended");
    else if (lane->is_cut && is_late && lane->done_n == 0 && now_ns - r->began_ns >= STUCK_NS)
        kvp_path_fail(m->peers, &lane->path, "nothing moved until the deadline");
    else if (lane->done_n > 0)
        kvp_path_ok(m->peers, &lane->path);
}

static void
finish_lane(run_t *r, lane_t *lane)
{
    uint64_t now = kvp_now_ns();

    if (lane->path.ep == NULL) return;
    judge_node(r, lane, now);
    /* Closing completes what is still under way: only then the statuses are final. */
    kvp_path_rele(r->mover->peers, &lane->path, lane->is_cut);
    report_lane(r, lane, now >= r->mover->deadline_ns);
}

static void
refuse_lane(const lane_t *lane, kvp_err_t err)
{
    for (uint32_t i = 0; i < lane->moves_n; i++)
        refuse(lane->moves[i], err);
}

/* ---- lanes */

/* Takes the lane's path; deadline_ns as for kvp_peers_take. True where it has to be tried again with a deadline. */
static bool
open_lane(run_t *r, lane_t *lane, uint64_t deadline_ns)
{
    kvp_err_t err = kvp_peers_take(r->mover->peers, lane->segment_id, deadline_ns, &lane->path);

    if (err == KVP_EAGAIN && deadline_ns == 0) return true;
    if (err == KVP_OK)
        prepare(r->mover, lane);
    else
        refuse_lane(lane, err);
    return false;
}

static void
run_lanes(run_t *r)
{
    bool is_slow[LANES_MAX];

    for (uint32_t i = 0; i < r->lanes_n; i++)
        is_slow[i] = open_lane(r, &r->lanes[i], 0);
    drive_all(r);
    for (uint32_t i = 0; i < r->lanes_n; i++)
        finish_lane(r, &r->lanes[i]);
    for (uint32_t i = 0; i < r->lanes_n; i++) {
        if (!is_slow[i]) continue;
        (void)open_lane(r, &r->lanes[i], r->mover->deadline_ns);
        drive_all(r);
        finish_lane(r, &r->lanes[i]);
    }
}

/* The lane of a segment, LANES_MAX where there is no room for another. */
static uint32_t
find_lane(run_t *r, uint32_t segment_id, uint32_t guess)
{
    if (guess < r->lanes_n && r->lanes[guess].segment_id == segment_id) return guess;
    for (uint32_t i = 0; i < r->lanes_n; i++)
        if (r->lanes[i].segment_id == segment_id) return i;
    if (r->lanes_n == LANES_MAX) return LANES_MAX;
    memset(&r->lanes[r->lanes_n], 0, sizeof r->lanes[0]);
    r->lanes[r->lanes_n].segment_id = segment_id;
    return r->lanes_n++;
}

/* Sorts moves into lanes, as far as there are lanes for them; returns how many were left, moved to the front of todo. */
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
    return left;
}

void
kvp_mover_run(const kvp_mover_t *mover, kvp_move_t *moves, uint32_t n)
{
    kvp_move_t **todo = kvp_scratch_alloc(mover->scratch, 2 * (size_t)n, sizeof(kvp_move_t *));
    run_t *r = kvp_scratch_alloc(mover->scratch, 1, sizeof *r);

    if (todo == NULL || r == NULL) {
        for (uint32_t i = 0; i < n; i++)
            refuse(&moves[i], KVP_NOMEM);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        todo[i] = &moves[i];
    r->mover = mover;
    r->began_ns = kvp_now_ns();
    for (uint32_t left = n; left > 0;) {
        left = deal_moves(r, todo, left, todo + n);
        run_lanes(r);
    }
}
