/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - Moves are cut into parts that fit in half of a bounce buffer, and parts are gathered into windows. A window uses
 *   one half and is one call of kvp_transfer_run. A move of host memory joins a window as a whole and needs no bounce
 *   memory.
 * - Copies of one object are neighbours in a batch. They share a part, so the device copies the bytes once.
 * - The checksum of an object in several parts is computed here, since the transport sees one part at a time.
 * - Device copies of only one window at a time are running: they are awaited before the next ones begin, and before
 *   the call returns, whatever its result.
 * - An object that failed in one window is left out of later windows. Its next parts may already have been copied
 *   from the device by then. */
#include "client/data/bounced.h"

#include "transport/copy.h"
#include "common/hash.h"
#include "common/mutate.h"

/* Design notes.
 * - The route to a node is known only after kvp_transfer_run has a path to it. So all moves go there first, and the
 *   refused moves (NOTSUP) go through bounce buffers afterwards. If no memory is fit for GPU direct, the first try is
 *   skipped.
 * - The flush follows the last completion, once for each device context whose memory was written: it covers all
 *   earlier writes of network adapters. */

static bool
is_devices(const kvp_transfer_t *transfer, const kvp_move_t *mv)
{
    return transfer->spans[mv->item].has_device;
}

static bool
is_any_gpu_direct(const kvp_transfer_t *transfer, const kvp_move_t *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (transfer->spans[moves[i].item].is_gpu_direct) return true;
    return false;
}

/* ---- moves by GPU direct */

/* Returns the next device memory of the span whose context is not `last`, or NULL. *piece is the index from which to
 * search. */
static const kvp_devmem_t *
next_context(kvp_regs_t *regs, const kvp_span_t *span, const void *last, uint32_t *piece)
{
    while (*piece < span->iov_n) {
        const kvp_devmem_t *mem = kvp_regs_find_mem(regs, span->iov[(*piece)++].addr);

        if (mem != NULL && mem->context != last) return mem;
    }
    return NULL;
}

static kvp_err_t
flush_span(kvp_regs_t *regs, const kvp_span_t *span, const void **flushed)
{
    const kvp_devmem_t *mem;
    kvp_err_t err = KVP_OK;
    uint32_t piece = 0;

    while (err == KVP_OK && (mem = next_context(regs, span, *flushed, &piece)) != NULL) {
        err = mem->ops->flush(mem);
        if (err == KVP_OK) *flushed = mem->context;
    }
    return err;
}

/* Flushes the writes of network adapters to the device memory of all successful moves. Neighbouring moves mostly have
 * the same device context and share a flush; if contexts alternate, some are flushed more often than necessary. */
static void
flush_all(const kvp_transfer_t *transfer, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n)
{
    const void *flushed = NULL;

    if (!KVP_RULE(DEVICE_FLUSH)) return;
    for (uint32_t i = 0; i < n; i++)
        if (moves[i].err == KVP_OK && is_devices(transfer, &moves[i]))
            moves[i].err = flush_span(regs, &transfer->spans[moves[i].item], &flushed);
}

/* Counts the objects in device memory whose move succeeded, and their bytes. */
static void
count_moved(const kvp_transfer_t *transfer, const kvp_move_t *moves, uint32_t n, _Atomic uint64_t *objects,
            _Atomic uint64_t *object_bytes)
{
    uint64_t done = 0, bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (moves[i].err != KVP_OK || !is_devices(transfer, &moves[i])) continue;
        done++;
        bytes += moves[i].len;
    }
    kvp_count(objects, done);
    kvp_count(object_bytes, bytes);
}

/* ---- moves through bounce buffers */
static bool
is_refused(const kvp_transfer_t *transfer, const kvp_move_t *mv)
{
    return mv->err == KVP_NOTSUP && is_devices(transfer, mv);
}

/* Carries out the refused moves of device memory through bounce buffers. Copies of one object stay neighbours. */
static void
bounce_refused(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n)
{
    kvp_move_t *rest;
    uint32_t rest_n = 0;

    for (uint32_t i = 0; i < n; i++)
        rest_n += is_refused(transfer, &moves[i]);
    if (rest_n == 0) return;
    rest = kvp_scratch_alloc(transfer->scratch, rest_n, sizeof *rest);
    for (uint32_t i = 0, at = 0; i < n; i++) {
        if (!is_refused(transfer, &moves[i])) continue;
        if (rest == NULL)
            moves[i].err = KVP_NOMEM;
        else
            rest[at++] = moves[i];
    }
    if (rest == NULL) return;
    kvp_bounced_run(transfer, bounces, regs, rest, rest_n);
    for (uint32_t i = 0, at = 0; i < n; i++)
        if (is_refused(transfer, &moves[i])) moves[i] = rest[at++];
}

void
kvp_device_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n)
{
    kvp_counters_t *c = kvp_session_conf(transfer->session)->peers.counters;

    if (!is_any_gpu_direct(transfer, moves, n)) {
        kvp_bounced_run(transfer, bounces, regs, moves, n);
        return;
    }
    kvp_transfer_run(transfer, moves, n);
    if (moves[0].kind == KVP_MOVE_READ) flush_all(transfer, regs, moves, n);
    count_moved(transfer, moves, n, &c->device_direct, &c->device_direct_bytes);
    bounce_refused(transfer, bounces, regs, moves, n);
}

#define PARTS_MAX 512u /* most parts of a window */

/* A part: a range of an object's bytes and its place in the window's half of the bounce buffer. The moves
 * [move, move + n) are copies of the object. */
typedef struct {
    uint32_t move;
    uint32_t n;
    uint64_t off;
    uint64_t len;
    uint8_t *at; /* address in the bounce buffer's half; NULL = the object is in host memory and is not bounced */
    kvp_err_t err; /* error of the copy between device and bounce buffer */
} part_t;

typedef struct {
    part_t parts[PARTS_MAX];
    uint32_t parts_n;
    uint8_t *half;
    size_t used;
} window_t;

typedef struct {
    const kvp_transfer_t *transfer;
    kvp_regs_t *regs;
    kvp_bounce_t *bounce;
    kvp_sum_state_t *sum; /* state of the checksum over an object's parts; belongs to the bounce buffer */
    kvp_move_t *moves;
    uint32_t n;
    uint32_t next; /* index of the move from which the next part is taken */
    uint64_t next_off; /* offset of the next part in the move's object */
    window_t *windows; /* array of two windows */
} run_t;

/* ---- copying between device and bounce buffer */

/* Copies one piece between the caller's memory and the bounce buffer. A copy of device memory runs in the
 * background. */
static kvp_err_t
copy_piece(run_t *r, void *piece, uint8_t *at, size_t len, bool is_read)
{
    const kvp_devmem_t *mem = kvp_regs_find_mem(r->regs, piece);
    void *dst = is_read ? piece : at;
    const void *src = is_read ? at : piece;

    if (mem != NULL) return kvp_bounce_copy(r->bounce, mem, dst, src, len);
    kvp_copy(dst, src, len);
    return KVP_OK;
}

static kvp_err_t
copy_part(run_t *r, const part_t *part)
{
    const kvp_move_t *mv = &r->moves[part->move];
    const kvp_span_t *span = &r->transfer->spans[mv->item];
    uint64_t skip = part->off, left = part->len;
    uint8_t *at = part->at;

    for (uint32_t i = 0; i < span->iov_n && left > 0; i++) {
        const kvp_iov_t *piece = &span->iov[i];
        size_t len;
        kvp_err_t err;

        if (skip >= piece->len) {
            skip -= piece->len;
            continue;
        }
        len = (size_t)kvp_min_u64(piece->len - skip, left);
        err = copy_piece(r, (uint8_t *)piece->addr + skip, at, len, mv->kind == KVP_MOVE_READ);
        if (err != KVP_OK) return err;
        at += len;
        left -= len;
        skip = 0;
    }
    return KVP_OK;
}

/* Returns true if some move of the part has no error yet. */
static bool
is_alive(const run_t *r, const part_t *part)
{
    for (uint32_t i = 0; i < part->n; i++)
        if (r->moves[part->move + i].err == KVP_OK) return true;
    return false;
}

static void
fail_part(run_t *r, const part_t *part, kvp_err_t err)
{
    for (uint32_t i = 0; i < part->n; i++)
        if (r->moves[part->move + i].err == KVP_OK) r->moves[part->move + i].err = err;
}

/* Begins the copies between device and bounce buffer for all parts of a window. */
static void
begin_copies(run_t *r, window_t *w)
{
    for (uint32_t i = 0; i < w->parts_n; i++) {
        part_t *part = &w->parts[i];

        if (part->at != NULL && is_alive(r, part)) part->err = copy_part(r, part);
    }
}

/* Waits for the copies of a window. The moves of a part that could not be copied fail. */
static void
end_copies(run_t *r, const window_t *w)
{
    kvp_err_t err = kvp_bounce_wait(r->bounce);

    for (uint32_t i = 0; i < w->parts_n; i++) {
        const part_t *part = &w->parts[i];

        if (part->at == NULL) continue;
        if (part->err != KVP_OK || err != KVP_OK) fail_part(r, part, part->err != KVP_OK ? part->err : err);
    }
}

/* ---- windows */

/* Returns the number of moves, from this move on, that are copies of the same object. */
static uint32_t
copies_n(const run_t *r, uint32_t move)
{
    uint32_t n = 1;

    if (r->moves[move].kind == KVP_MOVE_READ) return 1;
    while (move + n < r->n && r->moves[move + n].item == r->moves[move].item)
        n++;
    return n;
}

/* Adds the next part to the window. Returns false if the window has no room, or no part is left. */
static bool
add_part(run_t *r, window_t *w)
{
    const kvp_move_t *mv = &r->moves[r->next];
    bool is_bounced = r->next < r->n && r->transfer->spans[mv->item].has_device;
    size_t at = 0, len;
    part_t *part;

    if (r->next == r->n || w->parts_n == PARTS_MAX) return false;
    len = mv->len - r->next_off;
    if (is_bounced && !kvp_bounce_place(len, &w->used, &at, &len)) return false;
    part = &w->parts[w->parts_n++];
    *part = (part_t){.move = r->next, .n = copies_n(r, r->next), .off = r->next_off, .len = len};
    if (is_bounced) part->at = w->half + at;
    r->next_off += part->len;
    if (r->next_off == mv->len) {
        r->next += part->n;
        r->next_off = 0;
    }
    return true;
}

static window_t *
next_window(run_t *r, uint32_t number)
{
    window_t *w = &r->windows[number % 2];

    w->parts_n = 0;
    w->used = 0;
    w->half = kvp_bounce_part(r->bounce, number % 2);
    while (add_part(r, w))
        ;
    return w;
}

/* ---- moving */
static bool
is_whole(const run_t *r, const part_t *part)
{
    return part->len == r->moves[part->move].len;
}

static kvp_move_kind_t
kind_of(const kvp_move_t *mv, const part_t *part)
{
    if (mv->kind == KVP_MOVE_PUT) return KVP_MOVE_PUT; /* a PUT moves host memory, as one whole part */
    if (mv->kind == KVP_MOVE_READ) return part->off + part->len == mv->len ? KVP_MOVE_READ : KVP_MOVE_READ_PART;
    return part->off == 0 ? KVP_MOVE_FILL : KVP_MOVE_FILL_MORE;
}

/* Copies the result of a part's transfer into the result of its move. */
static void
take_report(kvp_move_t *mv, const kvp_move_t *done, bool is_whole)
{
    mv->err = done->err;
    mv->is_drained = mv->is_drained && done->is_drained;
    mv->desc = done->desc;
    mv->has_desc = done->has_desc;
    mv->is_sum_path = done->is_sum_path;
    if (is_whole) {
        mv->has_sum = done->has_sum;
        mv->sum = done->sum;
    }
}

static void
sum_part(run_t *r, const part_t *part)
{
    uint64_t sum;

    if (part->at == NULL || is_whole(r, part) || !is_alive(r, part)) return;
    if (part->off == 0) kvp_sum_reset(r->sum);
    kvp_sum_update(r->sum, part->at, (size_t)part->len);
    if (part->off + part->len < r->moves[part->move].len) return;
    sum = kvp_sum_digest(r->sum);
    for (uint32_t i = 0; i < part->n; i++) {
        r->moves[part->move + i].has_sum = true;
        r->moves[part->move + i].sum = sum;
    }
}

/* Makes the moves for a window's parts. The memory of a bounced part is its place in the bounce buffer. Returns the
 * number of moves. */
static uint32_t
make_moves(const run_t *r, const window_t *w, kvp_move_t *moves, kvp_span_t *spans, kvp_iov_t *iov)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->parts_n; i++) {
        const part_t *part = &w->parts[i];

        iov[i] = (kvp_iov_t){part->at, (size_t)part->len};
        spans[i] = part->at != NULL ? (kvp_span_t){.iov = &iov[i], .iov_n = 1, .len = part->len}
                                    : r->transfer->spans[r->moves[part->move].item];
        for (uint32_t k = 0; k < part->n; k++) {
            const kvp_move_t *mv = &r->moves[part->move + k];

            if (mv->err != KVP_OK) continue;
            moves[n] = *mv;
            moves[n].kind = kind_of(mv, part);
            moves[n].item = i;
            moves[n].has_desc = moves[n].is_sum_path =
                false; /* kvp_transfer_run does not set these two fields for writes and refused moves */
            if (!is_whole(r, part)) moves[n].flags &= ~KVP_READ_SUM_ALONE;
            moves[n].loc.offset += part->off;
            moves[n++].len = part->len;
        }
    }
    return n;
}

static void
take_reports(run_t *r, const window_t *w, const kvp_move_t *done)
{
    for (uint32_t i = 0; i < w->parts_n; i++) {
        const part_t *part = &w->parts[i];

        for (uint32_t k = 0; k < part->n; k++)
            if (r->moves[part->move + k].err == KVP_OK)
                take_report(&r->moves[part->move + k], done++, is_whole(r, part));
        sum_part(r, part);
    }
}

/* Carries out the moves of a window. */
static void
move_window(run_t *r, const window_t *w)
{
    kvp_scratch_t *scratch = r->transfer->scratch;
    kvp_transfer_t transfer = *r->transfer;
    uint32_t most = 0, n;
    kvp_move_t *moves;
    kvp_span_t *spans = kvp_scratch_alloc(scratch, w->parts_n, sizeof *spans);
    kvp_iov_t *iov = kvp_scratch_alloc(scratch, w->parts_n, sizeof *iov);

    for (uint32_t i = 0; i < w->parts_n; i++)
        most += w->parts[i].n;
    moves = kvp_scratch_alloc(scratch, most, sizeof *moves);
    if (spans == NULL || iov == NULL || moves == NULL) {
        for (uint32_t i = 0; i < w->parts_n; i++)
            fail_part(r, &w->parts[i], KVP_NOMEM);
        return;
    }
    n = make_moves(r, w, moves, spans, iov);
    transfer.spans = spans;
    if (n > 0) kvp_transfer_run(&transfer, moves, n);
    take_reports(r, w, moves);
}

/* Moves objects from the device to nodes: a window is copied from the device while the previous one is sent. */
static void
run_fills(run_t *r)
{
    uint32_t number = 0;
    window_t *w = next_window(r, number++), *ahead;

    begin_copies(r, w);
    while (w->parts_n > 0) {
        end_copies(r, w);
        ahead = next_window(r, number++);
        begin_copies(r, ahead);
        move_window(r, w);
        w = ahead;
    }
}

/* Moves objects from nodes to the device: a window is received while the previous one is copied to the device. */
static void
run_reads(run_t *r)
{
    uint32_t number = 0;
    window_t *w = next_window(r, number++), *behind = NULL;

    while (w->parts_n > 0) {
        move_window(r, w);
        if (behind != NULL) end_copies(r, behind);
        begin_copies(r, w);
        behind = w;
        w = next_window(r, number++);
    }
    if (behind != NULL) end_copies(r, behind);
}

/* ---- the whole run */
static const kvp_devmem_t *
first_device(const run_t *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const kvp_span_t *span = &r->transfer->spans[r->moves[i].item];

        for (uint32_t k = 0; span->has_device && k < span->iov_n; k++) {
            const kvp_devmem_t *mem = kvp_regs_find_mem(r->regs, span->iov[k].addr);

            if (mem != NULL) return mem;
        }
    }
    return NULL;
}

static kvp_err_t
prepare_run(run_t *r, kvp_bounces_t *bounces)
{
    const kvp_devmem_t *mem = first_device(r);
    kvp_err_t err;

    if (mem == NULL) return KVP_NOT_REGISTERED;
    r->windows = kvp_scratch_alloc(r->transfer->scratch, 2, sizeof *r->windows);
    if (r->windows == NULL) return KVP_NOMEM;
    err = kvp_bounce_take(bounces, mem, r->transfer->deadline_ns, &r->bounce);
    if (err == KVP_OK) r->sum = kvp_bounce_sum(r->bounce);
    return err;
}

void
kvp_bounced_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n)
{
    kvp_counters_t *c = kvp_session_conf(transfer->session)->peers.counters;
    run_t r = {.transfer = transfer, .regs = regs, .moves = moves, .n = n};
    kvp_err_t err = prepare_run(&r, bounces);

    for (uint32_t i = 0; i < n; i++) {
        moves[i].err = err;
        moves[i].is_drained = true;
        moves[i].has_sum = false;
    }
    if (err != KVP_OK) return;
    if (moves[0].kind == KVP_MOVE_READ)
        run_reads(&r);
    else
        run_fills(&r);
    kvp_bounce_rele(bounces, r.bounce);
    count_moved(transfer, moves, n, &c->device_staged, &c->device_staged_bytes);
}
