/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A transfer runs in windows that fit a bounce buffer on each side; each window ends before the next begins. A
 *   write copies from our devices into our bounce buffer, moves between host memory like any transfer, and lets the
 *   peer copy from its bounce buffer into its devices. A read is the reverse. Pieces that are in host memory on both
 *   sides are part of the same window.
 * - Our bounce buffer is taken first. An endpoint with a peer's bounce buffer waits for nothing but this peer, so no
 *   two endpoints wait for one another.
 * - The peer's bounce buffer is given back when the transfer is complete. After an error some bytes may still be on
 *   their way: then the lane is closed, and the peer makes the bounce buffer unreachable before another transfer gets
 *   it. */
#include "p2p/ask/move.h"

#include "p2p/ask/path.h"
#include "common/waits.h"

#include <stdlib.h>
#include <string.h>

#define PARTS_MAX 512u /* most parts of a window */
/* first pause before a peer without a free bounce buffer is asked again; each pause is twice the previous one */
#define BUSY_BACK_OFF_NS (1 * KVP_NS_PER_MS)
/* longest pause before a peer without a free bounce buffer is asked again */
#define BUSY_BACK_OFF_MOST_NS (50 * KVP_NS_PER_MS)

/* A part: consecutive bytes of one piece of a transfer, which the current window of the transfer moves. */
typedef struct {
    const kvpool_p2p_op_t *op;
    size_t off; /* offset in the piece */
    size_t len;
    size_t at; /* offset in the bounce buffers */
    const kvp_devmem_t *mem; /* device that has the part's local memory; NULL = host memory */
    bool is_far; /* the peer's memory is device memory */
    uint64_t token; /* token of the peer's range */
} part_t;

typedef struct {
    kvp_p2p_lane_t *lane;
    const kvp_p2p_transfer_t *transfer;
    size_t next; /* index of the piece from which the next part is taken */
    size_t next_off; /* offset in this piece at which the next part begins */
    kvp_bounce_t *bounce; /* this side's bounce buffer; NULL = the transfer has not needed it yet */
    kvp_peer_at_t far; /* the peer's bounce buffer, valid if lane->has_bounce */
    kvp_p2p_moved_t *moved;
    uint32_t parts_n;
    part_t parts[PARTS_MAX];
    kvp_peer_at_t at[PARTS_MAX];
    kvpool_p2p_op_t hosts[PARTS_MAX]; /* the parts as pieces of a transfer between the host memory of both sides */
    kvp_peer_piece_t pieces[PARTS_MAX]; /* the peer's copies between its bounce buffer and its devices */
} run_t;

/* ---- windows */

/* Adds the next part to the window. Returns false if no part is left, or a bounce buffer has no room for the part. */
static bool
add_part(run_t *r, size_t *used)
{
    const kvpool_p2p_op_t *op;
    part_t *part = &r->parts[r->parts_n];
    size_t at, len;

    while (r->next < r->transfer->n && r->next_off == r->transfer->ops[r->next].len) {
        r->next++;
        r->next_off = 0;
    }
    if (r->next == r->transfer->n || r->parts_n == PARTS_MAX) return false;
    op = &r->transfer->ops[r->next];
    if (!kvp_bounce_place(op->len - r->next_off, used, &at, &len)) return false;
    *part = (part_t){.op = op, .off = r->next_off, .len = len, .at = at};
    part->mem = kvp_p2p_ranges_mem(r->lane->conf->ranges, op->local);
    r->at[r->parts_n++] = (kvp_peer_at_t){.addr = op->remote + part->off, .len = len, .token = op->token};
    r->next_off += len;
    return true;
}

static bool
next_window(run_t *r)
{
    size_t used = 0;

    r->parts_n = 0;
    while (add_part(r, &used))
        continue;
    return r->parts_n > 0;
}

/* Finds out for each part whether the peer's memory is device memory. */
static kvp_err_t
look_far(run_t *r)
{
    kvp_err_t err = kvp_p2p_path_reach(r->lane, r->at, r->parts_n, r->transfer->deadline_ns);

    for (uint32_t i = 0; err == KVP_OK && i < r->parts_n; i++) {
        const kvp_p2p_seen_t *seen = kvp_p2p_lane_seen(r->lane, &r->at[i]);

        if (seen == NULL) return KVP_NO_SEGMENT;
        r->parts[i].is_far = seen->rseg == NULL;
        r->parts[i].token = seen->token;
    }
    return err;
}

/* ---- bounce buffers */
static kvp_err_t
ask_for_stage(run_t *r)
{
    const void *records = NULL;
    kvp_err_t err;

    kvp_peer_stage_encode(&r->lane->io.out, kvp_p2p_lane_id(r->lane), false);
    err = kvp_p2p_lane_ask(r->lane, KVP_OP_PEER_STAGE, 1, sizeof r->far, r->transfer->deadline_ns, &records);
    if (err != KVP_OK) return err;
    memcpy(&r->far, records, sizeof r->far);
    r->lane->has_bounce = true;
    if (r->far.token == 0 || r->far.len < KVP_BOUNCE_PART_BYTES || r->far.len > UINT64_MAX - r->far.addr)
        return KVP_PROTO;
    return KVP_OK;
}

static kvp_err_t
take_far_stage(run_t *r)
{
    kvp_err_t err = r->lane->has_bounce ? KVP_OK : ask_for_stage(r);

    for (uint64_t back_off_ns = BUSY_BACK_OFF_NS; err == KVP_BUSY;
         back_off_ns = kvp_min_u64(2 * back_off_ns, BUSY_BACK_OFF_MOST_NS)) {
        struct timespec back_off = kvp_timespec(back_off_ns);

        nanosleep(&back_off, NULL);
        err = kvp_p2p_lane_look(r->lane, r->transfer->deadline_ns);
        if (err == KVP_OK) err = ask_for_stage(r);
    }
    return err;
}

static kvp_err_t
take_stages(run_t *r)
{
    const kvp_devmem_t *mem = NULL;
    bool is_far = false;
    kvp_err_t err = KVP_OK;

    for (uint32_t i = 0; i < r->parts_n; i++) {
        if (mem == NULL) mem = r->parts[i].mem;
        is_far |= r->parts[i].is_far;
    }
    if (mem != NULL && r->bounce == NULL)
        err = kvp_bounce_take(r->lane->conf->bounces, mem, r->transfer->deadline_ns, &r->bounce);
    return err == KVP_OK && is_far ? take_far_stage(r) : err;
}

static void
give_far_stage_back(run_t *r)
{
    const void *records = NULL;

    if (!r->lane->has_bounce) return;
    kvp_peer_stage_encode(&r->lane->io.out, kvp_p2p_lane_id(r->lane), true);
    if (kvp_p2p_lane_ask(r->lane, KVP_OP_PEER_STAGE, 0, 0, r->transfer->deadline_ns, &records) == KVP_OK)
        r->lane->has_bounce = false;
}

/* ---- one window */

/* Copies the parts between our devices and our bounce buffer. */
static kvp_err_t
copy_here(run_t *r)
{
    bool is_write = r->transfer->is_write;
    kvp_err_t err = KVP_OK, waited;

    if (r->bounce == NULL) return KVP_OK;
    for (uint32_t i = 0; i < r->parts_n && err == KVP_OK; i++) {
        const part_t *part = &r->parts[i];
        uint8_t *bounced = kvp_bounce_part(r->bounce, 0) + part->at;
        uint8_t *local = (uint8_t *)part->op->local + part->off;

        if (part->mem == NULL) continue;
        err = kvp_bounce_copy(r->bounce, part->mem, is_write ? bounced : local, is_write ? local : bounced, part->len);
    }
    waited = kvp_bounce_wait(r->bounce);
    return err != KVP_OK ? err : waited;
}

/* Asks the peer to copy the parts between its devices and its bounce buffer. */
static kvp_err_t
copy_there(run_t *r)
{
    kvp_peer_moves_t moves = {.kind = r->transfer->is_write ? KVP_PEER_STORE : KVP_PEER_FETCH, .pieces = r->pieces};
    const kvp_peer_moved_t *moved;

    for (uint32_t i = 0; i < r->parts_n; i++) {
        const part_t *part = &r->parts[i];

        if (!part->is_far) continue;
        r->pieces[moves.n++] = (kvp_peer_piece_t){
            .token = part->token, .addr = part->op->remote + part->off, .len = part->len, .from = part->at};
    }
    return moves.n > 0 ? kvp_p2p_ask_moves(r->lane, &moves, r->transfer->deadline_ns, &moved) : KVP_OK;
}

static kvp_err_t
move_between_hosts(run_t *r)
{
    kvp_p2p_transfer_t hosts = *r->transfer;

    for (uint32_t i = 0; i < r->parts_n; i++) {
        const part_t *part = &r->parts[i];

        r->hosts[i] = (kvpool_p2p_op_t){.local = (uint8_t *)part->op->local + part->off,
                                        .remote = part->op->remote + part->off,
                                        .len = part->len,
                                        .token = part->op->token};
        if (part->mem != NULL) r->hosts[i].local = kvp_bounce_part(r->bounce, 0) + part->at;
        if (!part->is_far) continue;
        r->hosts[i].remote = r->far.addr + part->at;
        r->hosts[i].token = r->far.token;
    }
    hosts.ops = r->hosts;
    hosts.n = r->parts_n;
    return kvp_p2p_move(r->lane, &hosts, r->moved);
}

static kvp_err_t
move_once(run_t *r)
{
    kvp_err_t err = look_far(r);

    if (err == KVP_OK) err = take_stages(r);
    if (err == KVP_OK) err = r->transfer->is_write ? copy_here(r) : copy_there(r);
    if (err == KVP_OK) err = move_between_hosts(r);
    if (err == KVP_OK) err = r->transfer->is_write ? copy_there(r) : copy_here(r);
    return err;
}

/* Moves the parts of one window. NO_SEGMENT (a range no longer matches the peer's earlier answer): asks the peer for
 * the ranges again, and moves the parts once more. */
static kvp_err_t
move_window(run_t *r)
{
    kvp_err_t err = move_once(r);

    if (err != KVP_NO_SEGMENT) return err;
    kvp_p2p_lane_forget(r->lane);
    err = move_once(r);
    return err == KVP_NO_SEGMENT ? KVP_NOT_REGISTERED : err;
}

kvp_err_t
kvp_p2p_bounced_move(kvp_p2p_lane_t *lane, const kvp_p2p_transfer_t *transfer, kvp_p2p_moved_t *moved_out)
{
    run_t *r = malloc(sizeof *r);
    kvp_err_t err;

    if (r == NULL) return KVP_NOMEM;
    r->lane = lane;
    r->transfer = transfer;
    r->next = r->next_off = 0;
    r->bounce = NULL;
    r->moved = moved_out;
    err = kvp_p2p_path_cut_earlier(lane, transfer->deadline_ns);
    while (err == KVP_OK && next_window(r))
        err = move_window(r);
    if (err == KVP_OK) give_far_stage_back(r);
    if (r->bounce != NULL) kvp_bounce_rele(lane->conf->bounces, r->bounce);
    free(r);
    return err;
}
