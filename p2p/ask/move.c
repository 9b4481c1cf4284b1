/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A transfer runs in windows of KVP_PEER_BATCH_MAX pieces, one after another: ask for the ranges, move, get the
 *   peer's confirmation.
 * - Within a host, the owner of memory writes it: the peer pulls a write. A read is copied by this side, and counts
 *   only if the peer confirms afterwards that the ranges are still registered. With a transport the peer's side, or
 *   its network adapter, checks keys. If the transport does not verify bytes (TCP), reads carry a checksum; for a
 *   write both this side, while sending, and the peer, in place, compute the checksum.
 * - With RDMA a completed write is in the peer's memory: the transport flushes it there. No thread of the peer takes
 *   part, so this side checks afterwards that the peer still lives. A network adapter serves memory as long as a
 *   process holds it, even a process that is being killed.
 * - If a range no longer matches the peer's earlier answer, the peer is asked once more: the range may have been
 *   registered again. The second error is final. */
#include "p2p/ask/move.h"

#include "p2p/ask/path.h"
#include "common/waits.h"
#include "transport/copy.h"
#include "transport/drive.h"
#include "common/log.h"

#include <string.h>
#include <unistd.h>

typedef struct {
    kvp_xfer_t xfer;
    kvp_iov_t iov;
} part_t;

typedef struct {
    kvp_p2p_lane_t *lane;
    bool is_write;
    uint64_t deadline_ns;
    uint32_t n;
    uint64_t bytes;
    uint64_t mapped_bytes; /* bytes of the pieces whose remote memory is mapped in this process */
    uint64_t look_bytes; /* bytes left to copy in mapped memory before the next check of deadline, peer and cell */
    kvp_xferq_t queue; /* queue of the parts' transfers */
    /* Arrays in the lane's working memory. `moved` is for reads between processes; `parts` and queue.xfers are for
     * the transport. */
    const kvpool_p2p_op_t **ops;
    kvp_peer_at_t *at;
    kvp_peer_piece_t *pieces;
    kvp_peer_moved_t *moved;
    part_t *parts;
} window_t;

/* ---- pieces in the peer's memory that this process has mapped */
/* Design notes. No request goes to the peer: the range's cell, a word in shared memory, shows after the copy whether
 * the range was registered during the copy. Unregistered local memory may be unmapped, and a copy from unmapped memory
 * would kill this process; the kernel copies such pieces (process_vm_readv). */

#define LOOK_BYTES (4u << 20) /* bytes copied between two checks of the deadline, the peer and the range's cell */

/* ---- mapping */
static kvp_err_t
take_map(kvp_p2p_lane_t *lane, kvp_p2p_seen_t *seen, const kvp_p2p_map_key_t *key, uint64_t cell)
{
    int fds[KVP_FRAMED_FDS];
    int n = kvp_framed_take_fds(&lane->io, fds, KVP_FRAMED_FDS);
    kvp_err_t err = KVP_PROTO;

    if (n == 2) err = kvp_p2p_maps_add(lane->conf->maps, key, fds, cell, &seen->map);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return err;
}

/* Asks the peer once for the mapping of a range. OK also if the peer gives none: the kernel then copies the pieces. */
static kvp_err_t
need_map(kvp_p2p_lane_t *lane, kvp_p2p_seen_t *seen, uint64_t deadline_ns)
{
    kvp_p2p_map_key_t key = {.pid = lane->proc.pid, .peer = lane->peer, .token = seen->token, .len = seen->len};
    const void *records = NULL;
    kvp_err_t err;

    if (seen->is_asked) return KVP_OK;
    seen->is_asked = true;
    seen->map = kvp_p2p_maps_find(lane->conf->maps, &key);
    if (seen->map != NULL) return KVP_OK;
    if (lane->io.fds_in_n > 0) return KVP_PROTO; /* the peer sent descriptors without a request */
    kvp_peer_map_encode(&lane->io.out, kvp_p2p_lane_id(lane), seen->token);
    err = kvp_p2p_lane_ask(lane, KVP_OP_PEER_MAP, 1, sizeof(uint64_t), deadline_ns, &records);
    if (err == KVP_OK) err = take_map(lane, seen, &key, *(const uint64_t *)records);
    if (err == KVP_LIMIT || err == KVP_SYS || err == KVP_NOMEM)
        kvp_log_debug("client", "memory of a peer is not mapped: %s", kvp_err_text(err));
    return err == KVP_NOTSUP || err == KVP_LIMIT || err == KVP_SYS || err == KVP_NOMEM ? KVP_OK : err;
}

/* ---- copying */
static kvp_err_t
copy_piece(window_t *w, const kvpool_p2p_op_t *op, const kvp_p2p_map_t *map, uint64_t map_off)
{
    uint8_t *there = kvp_p2p_map_addr(map) + map_off, *here = op->local;

    for (uint64_t off = 0, n; off < op->len; off += n) {
        n = kvp_min_u64(w->look_bytes, op->len - off);
        if (w->is_write)
            kvp_copy_part(there + off, here + off, n, w->mapped_bytes);
        else
            kvp_copy_part(here + off, there + off, n, w->mapped_bytes);
        w->look_bytes -= n;
        if (w->look_bytes > 0) continue;
        kvp_err_t err = kvp_p2p_lane_look(w->lane, w->deadline_ns);
        if (err != KVP_OK) return err;
        /* a dead peer's cell never changes, so check also that the peer lives */
        if (!kvp_p2p_lane_is_alive(w->lane)) return KVP_DISCONNECTED;
        if (!kvp_p2p_map_is_live(map)) return KVP_NO_SEGMENT;
        w->look_bytes = LOOK_BYTES;
    }
    return KVP_OK;
}

/* Checks after the copy that every range was registered all the time and that its owner still lives. */
static kvp_err_t
verify_maps(const kvp_p2p_lane_t *lane, kvp_p2p_map_t *const *maps, uint32_t n)
{
    const kvp_p2p_map_t *last = NULL;

    kvp_copy_fence();
    for (uint32_t i = 0; i < n; i++) {
        if (maps[i] == NULL || maps[i] == last) continue;
        last = maps[i];
        if (!kvp_p2p_map_is_live(last)) return KVP_NO_SEGMENT;
    }
    return kvp_p2p_lane_is_alive(lane) ? KVP_OK : KVP_DISCONNECTED;
}

/* Chooses the pieces to copy in memory of the peer that is mapped here. maps_out[i] is NULL for the other pieces. */
static kvp_err_t
choose_maps(window_t *w, kvp_p2p_map_t **maps_out)
{
    bool is_ours[KVP_PEER_BATCH_MAX];

    w->mapped_bytes = 0;
    kvp_p2p_ranges_cover(w->lane->conf->ranges, w->ops, w->n, is_ours);
    for (uint32_t i = 0; i < w->n; i++) {
        kvp_p2p_seen_t *seen = kvp_p2p_lane_seen(w->lane, &w->at[i]);
        kvp_err_t err;

        maps_out[i] = NULL;
        if (seen == NULL) return KVP_NO_SEGMENT;
        if (!is_ours[i]) continue;
        err = need_map(w->lane, seen, w->deadline_ns);
        if (err != KVP_OK) return err;
        maps_out[i] = seen->map;
        if (seen->map != NULL) w->mapped_bytes += w->ops[i]->len;
    }
    return KVP_OK;
}

/* Moves the pieces in mapped memory, on a lane within the host that knows all ranges of the window. After OK the
 * window has only the remaining pieces. NO_SEGMENT: a range is not registered any more, and the window is unchanged.
 * DISCONNECTED, DEADLINE, CLOSED and PROTO end the lane. */
static kvp_err_t
copy_mapped(window_t *w)
{
    kvp_p2p_map_t *maps[KVP_PEER_BATCH_MAX];
    uint32_t n = w->n;
    kvp_err_t err = choose_maps(w, maps);

    if (err != KVP_OK || w->mapped_bytes == 0) return err;
    w->look_bytes = LOOK_BYTES;
    for (uint32_t i = 0; i < n && err == KVP_OK; i++)
        if (maps[i] != NULL)
            err = copy_piece(w, w->ops[i], maps[i], w->at[i].addr - kvp_p2p_lane_seen(w->lane, &w->at[i])->base);
    if (err == KVP_OK) err = verify_maps(w->lane, maps, n);
    if (err != KVP_OK) {
        kvp_copy_fence(); /* complete all stores of the copies before the error is returned */
        return err;
    }
    w->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (maps[i] != NULL) continue;
        w->ops[w->n] = w->ops[i];
        w->at[w->n++] = w->at[i];
    }
    return KVP_OK;
}

/* ---- questions about the pieces */
static kvp_err_t
fill_pieces(window_t *w, bool has_from)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const kvp_p2p_seen_t *seen = kvp_p2p_lane_seen(w->lane, &w->at[i]);

        /* the cache has lost the piece's range: the peer has reported an overlapping range since */
        if (seen == NULL) return KVP_NO_SEGMENT;
        w->pieces[i] = (kvp_peer_piece_t){.token = seen->token,
                                          .addr = w->at[i].addr,
                                          .len = w->at[i].len,
                                          .from = has_from ? (uintptr_t)w->ops[i]->local : 0};
    }
    return KVP_OK;
}

kvp_err_t
kvp_p2p_ask_moves(kvp_p2p_lane_t *lane, const kvp_peer_moves_t *moves, uint64_t deadline_ns,
                  const kvp_peer_moved_t **moved_out)
{
    const void *records = NULL;
    kvp_err_t err;

    kvp_peer_moves_encode(&lane->io.out, kvp_p2p_lane_id(lane), moves);
    err = kvp_p2p_lane_ask(lane, KVP_OP_PEER_MOVE, moves->n, sizeof **moved_out, deadline_ns, &records);
    if (err != KVP_OK) return err;
    *moved_out = records;
    for (uint32_t i = 0; i < moves->n; i++) {
        err = (*moved_out)[i].err;
        if (err == KVP_NOT_REGISTERED) return KVP_NO_SEGMENT;
        if (err != KVP_OK) return err > 0 || err == KVP_EAGAIN ? KVP_PROTO : err;
    }
    return KVP_OK;
}

static kvp_err_t
ask_moves(window_t *w, kvp_peer_move_t kind, const kvp_peer_moved_t **moved_out)
{
    kvp_peer_moves_t moves = {.kind = kind, .pieces = w->pieces, .n = w->n};
    kvp_err_t err = fill_pieces(w, kind == KVP_PEER_PULL);

    if (kind == KVP_PEER_PULL) moves.deadline_ns = w->deadline_ns;
    return err == KVP_OK ? kvp_p2p_ask_moves(w->lane, &moves, w->deadline_ns, moved_out) : err;
}

/* ---- copies between processes by the kernel */
/* Reads the pieces from the peer's process, with this thread and other threads. Returns the first error among the
 * pieces, or DEADLINE or CLOSED if the transfer was cut short. */
static kvp_err_t
read_all(window_t *w)
{
    kvp_p2p_pullers_t *pullers = w->lane->conf->pullers;
    kvp_p2p_pull_t pull = {.proc = &w->lane->proc,
                           .wake_fd = -1,
                           .pieces = w->pieces,
                           .moved = w->moved,
                           .deadline_ns = w->deadline_ns,
                           .n = w->n};
    kvp_p2p_pull_state_t state = KVP_P2P_PULL_MORE;
    kvp_err_t err = KVP_OK;

    memset(w->moved, 0, w->n * sizeof *w->moved);
    for (uint32_t i = 0; i < w->n; i++)
        w->pieces[i] =
            (kvp_peer_piece_t){.addr = (uintptr_t)w->ops[i]->local, .len = w->ops[i]->len, .from = w->ops[i]->remote};
    kvp_p2p_pull_begin(pullers, &pull);
    while (err == KVP_OK && state == KVP_P2P_PULL_MORE) {
        err = kvp_p2p_lane_look(w->lane, w->deadline_ns);
        if (err == KVP_OK) state = kvp_p2p_pull_work(pullers, &pull);
    }
    if (!kvp_p2p_pull_drop(pullers, &pull)) kvp_p2p_pull_wait(pullers, &pull);
    for (uint32_t i = 0; err == KVP_OK && i < w->n; i++)
        err = w->moved[i].err;
    return err;
}

static kvp_err_t
move_by_cma(window_t *w)
{
    const kvp_peer_moved_t *moved;
    kvp_err_t err, checked;

    if (w->is_write) return ask_moves(w, KVP_PEER_PULL, &moved);
    err = read_all(w);
    if (err != KVP_OK && err != KVP_INVALID) return err;
    /* If bytes could not be read, they may have been unregistered and unmapped meanwhile. Then the peer's answer has
     * the error to return. */
    checked = ask_moves(w, KVP_PEER_CHECK, &moved);
    return checked != KVP_OK ? checked : err;
}

/* Moves the pieces of a window within the host: first those in mapped memory; the kernel copies the rest. */
static kvp_err_t
move_near(window_t *w, kvp_p2p_moved_t *moved_out)
{
    kvp_err_t err = copy_mapped(w);

    if (err == KVP_OK) moved_out->mapped_bytes += w->mapped_bytes;
    return err == KVP_OK && w->n > 0 ? move_by_cma(w) : err;
}

/* ---- pieces that the transport moves */
/* Returns true if the sender sends a checksum of the bytes, because no layer below verifies them. */
static bool
is_sum_told(const window_t *w)
{
    return (w->lane->tp->ops->caps & KVP_TP_VERIFY_SUM) != 0;
}

static kvp_err_t
fill_parts(window_t *w)
{
    bool is_told = is_sum_told(w);
    bool is_lent[KVP_PEER_BATCH_MAX];

    kvp_p2p_ranges_cover(w->lane->conf->ranges, w->ops, w->n, is_lent);
    for (uint32_t i = 0; i < w->n; i++) {
        const kvp_p2p_seen_t *seen = kvp_p2p_lane_seen(w->lane, &w->at[i]);
        part_t *part = &w->parts[i];

        if (seen == NULL) return KVP_NO_SEGMENT;
        *part = (part_t){.iov = {.addr = w->ops[i]->local, .len = w->ops[i]->len}};
        part->xfer = (kvp_xfer_t){.kind = w->is_write ? KVP_XFER_WRITE : KVP_XFER_READ,
                                  .rseg = seen->rseg,
                                  .roffset = w->at[i].addr - seen->base,
                                  .iov = &part->iov,
                                  .iov_n = 1,
                                  .len = w->at[i].len,
                                  .deadline_ns = w->deadline_ns,
                                  .done = kvp_xferq_done,
                                  .arg = &w->queue};
        if (is_lent[i]) part->xfer.flags = KVP_XFER_LENT;
        if (is_told || w->lane->ep->needs_sums) part->xfer.flags |= KVP_XFER_SUM;
        if (is_told && !w->is_write) part->xfer.flags |= KVP_XFER_PEER_SUM;
        w->queue.xfers[i] = &part->xfer;
    }
    return KVP_OK;
}

/* Runs all transfers of a window until they are complete, the path is broken, or the deadline has passed. */
static kvp_err_t
drive_parts(window_t *w)
{
    const kvp_p2p_lane_t *lane = w->lane;
    kvp_xferq_t *queue = &w->queue;
    kvp_drive_t drive = {.queues = queue,
                         .queues_n = 1,
                         .deadline_ns = w->deadline_ns,
                         .is_given_up = lane->conf->is_given_up,
                         .stop_fd = -1};
    kvp_err_t err = kvp_p2p_lane_look(lane, w->deadline_ns);

    if (err != KVP_OK) return err;
    *queue = (kvp_xferq_t){.ep = lane->ep, .xfers = queue->xfers, .n = w->n, .patience_ns = UINT64_MAX};
    kvp_drive_run(&drive);
    return queue->done_n == queue->n ? KVP_OK : queue->err;
}

/* Runs the transfers of a window. After a failure the path is closed while the window's memory still exists, which
 * cancels running transfers. A broken path has ended all its transfers. Bytes that were already sent may still reach
 * the peer. */
static kvp_err_t
drive_window(window_t *w)
{
    kvp_err_t err = drive_parts(w);
    kvp_p2p_lane_t *lane = w->lane;
    bool is_over = err != KVP_OK || lane->ep->tp->ops->ep_is_broken(lane->ep);

    for (uint32_t i = 0; err == KVP_OK && i < w->n; i++)
        err = w->parts[i].xfer.status;
    if (is_over || (err != KVP_OK && kvp_p2p_lane_is_by_rdma(lane))) kvp_p2p_path_disconnect(lane, w->is_write);
    if (err == KVP_OK && kvp_p2p_lane_is_by_rdma(lane) && !kvp_p2p_lane_is_alive(lane)) err = KVP_DISCONNECTED;
    return err;
}

/* Checks that the bytes at the destination have the checksum of the source. */
static kvp_err_t
compare_sums(window_t *w)
{
    const kvp_peer_moved_t *moved;
    kvp_err_t err = ask_moves(w, KVP_PEER_SUM, &moved);

    for (uint32_t i = 0; err == KVP_OK && i < w->n; i++)
        if (moved[i].sum != w->parts[i].xfer.sum) err = KVP_CORRUPT;
    return err;
}

static kvp_err_t
move_by_transport(window_t *w)
{
    bool needs_sums = w->lane->ep->needs_sums;
    kvp_err_t err = fill_parts(w);

    if (err == KVP_OK) err = drive_window(w);
    if (err == KVP_OK && (needs_sums || (w->is_write && is_sum_told(w)))) err = compare_sums(w);
    for (uint32_t i = 0; err == KVP_CORRUPT && !w->is_write && i < w->n; i++)
        if (w->parts[i].xfer.status == KVP_CORRUPT)
            kvp_log_warn("client", "a read of %llu bytes from a peer has another sum",
                         (unsigned long long)w->at[i].len);
    return err;
}

/* ---- the whole transfer */
static bool
meets_device(const window_t *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const kvp_p2p_seen_t *seen = kvp_p2p_lane_seen(w->lane, &w->at[i]);

        if (seen != NULL && seen->rseg == NULL) return true;
    }
    return false;
}

static kvp_err_t
move_once(window_t *w, kvp_p2p_moved_t *moved_out)
{
    kvp_p2p_lane_t *lane = w->lane;
    bool is_cma = lane->proc.fd >= 0;
    kvp_err_t err = kvp_p2p_path_reach(lane, w->at, w->n, w->deadline_ns);

    if (err != KVP_OK) return err;
    moved_out->met_device = lane->has_devices && meets_device(w);
    if (moved_out->met_device) return KVP_NOTSUP;
    err = is_cma ? move_near(w, moved_out) : move_by_transport(w);
    if (err != KVP_OK) return err;
    if (is_cma)
        moved_out->cma_bytes += w->bytes;
    else
        *(kvp_p2p_lane_is_by_rdma(lane) ? &moved_out->rdma_bytes : &moved_out->tcp_bytes) += w->bytes;
    return KVP_OK;
}

static kvp_err_t
move_window(window_t *w, kvp_p2p_moved_t *moved_out)
{
    kvp_err_t err = move_once(w, moved_out);

    if (err != KVP_NO_SEGMENT) return err;
    kvp_p2p_lane_forget(w->lane);
    err = kvp_p2p_path_cut_earlier(w->lane, w->deadline_ns); /* an invalid RDMA key broke the path: end its writes */
    if (err == KVP_OK) err = move_once(w, moved_out);
    return err == KVP_NO_SEGMENT ? KVP_NOT_REGISTERED : err;
}

/* Allocates memory for the longest window of this transfer. */
static kvp_err_t
window_init(window_t *w, kvp_p2p_lane_t *lane, size_t pieces_n)
{
    size_t n = (size_t)kvp_max_u64(1, kvp_min_u64(pieces_n, KVP_PEER_BATCH_MAX));
    size_t copied = n * (sizeof *w->at + sizeof *w->pieces + sizeof *w->moved + sizeof(void *));
    size_t sent = lane->proc.fd >= 0 ? 0 : n * (sizeof *w->parts + sizeof(void *));
    uint8_t *mem = kvp_p2p_lane_work(lane, copied + sent);

    if (mem == NULL) return KVP_NOMEM;
    w->at = (kvp_peer_at_t *)mem;
    w->pieces = (kvp_peer_piece_t *)(w->at + n);
    w->moved = (kvp_peer_moved_t *)(w->pieces + n);
    w->ops = (const kvpool_p2p_op_t **)(w->moved + n);
    if (sent == 0) return KVP_OK;
    w->parts = (part_t *)(w->ops + n);
    w->queue.xfers = (kvp_xfer_t **)(w->parts + n);
    return KVP_OK;
}

kvp_err_t
kvp_p2p_move(kvp_p2p_lane_t *lane, const kvp_p2p_transfer_t *transfer, kvp_p2p_moved_t *moved_out)
{
    window_t w = {.lane = lane, .is_write = transfer->is_write, .deadline_ns = transfer->deadline_ns};
    kvp_err_t err = window_init(&w, lane, transfer->n);

    if (err == KVP_OK) err = kvp_p2p_path_cut_earlier(lane, transfer->deadline_ns);
    for (size_t i = 0; err == KVP_OK && i < transfer->n;) {
        w.n = 0;
        w.bytes = 0;
        for (; i < transfer->n && w.n < KVP_PEER_BATCH_MAX; i++) {
            const kvpool_p2p_op_t *op = &transfer->ops[i];

            if (op->len == 0) continue;
            w.ops[w.n] = op;
            w.at[w.n++] = (kvp_peer_at_t){.addr = op->remote, .len = op->len, .token = op->token};
            w.bytes += op->len;
        }
        if (w.n > 0) err = move_window(&w, moved_out);
    }
    return err;
}
