/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - An endpoint with little traffic has one rail. The other rails are connected with the first large batch, or after
 *   the loss of the first rail.
 * - A batch below WIDE_BYTES uses one rail: a second doorbell and completion and waiting for both cost more than half
 *   of the transfer time of WIDE_BYTES. Slices of a larger batch go to the rail with the fewest bytes under way.
 * - A failed rail is not connected again for a while (back-off). After it is connected again, it carries small batches
 *   only if no better rail is connected, until it has carried some batches.
 * - Order between rails is kept by completions: a work ordered after earlier works waits until these works have
 *   completed on all other rails; on its own rail a fence orders the works.
 * - The works of a failed rail are posted again in the order of their first posting, before any new work: a descriptor
 *   must not overtake its payload, even if the next rail fails with the same works. A rail that worked before may be
 *   tried again after a moment, so an endpoint survives the loss of its only rail.
 * - Every wait for a queue pair has a time-out in this file, because some adapters fail without a completion. */
#include "transport/rdma/ask/rails.h"

#include "transport/rdma/verbs/dev.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <stdlib.h>
#include <string.h>

/* ---- failures of paths */
#define RETRY_FIRST_NS (50 * KVP_NS_PER_MS)
#define RETRY_SHIFT_MAX 7u /* the most doublings of the back-off: 6.4 s, plus a random time of up to 6.4 s */

void
kvp_rdma_paths_init(kvp_rdma_paths_t *paths)
{
    pthread_mutex_init(&paths->lock, NULL);
}

void
kvp_rdma_paths_fini(kvp_rdma_paths_t *paths)
{
    pthread_mutex_destroy(&paths->lock);
}

static bool
is_of(const kvp_rdma_path_entry_t *e, const kvp_rdma_path_t *path, const struct sockaddr_storage *theirs)
{
    return e->ours == path->ours && memcmp(&e->theirs, theirs, sizeof *theirs) == 0;
}

/* Finds the entry of a path, or creates it in place of the oldest. memcmp is enough, because addresses are zeroed
 * before they are set. */
static kvp_rdma_path_entry_t *
find_path(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path)
{
    struct sockaddr_storage theirs = path->theirs;
    kvp_rdma_path_entry_t *e = &paths->entries[path->slot];

    kvp_rdma_set_port(&theirs, 0);
    if (is_of(e, path, &theirs)) return e;
    for (path->slot = 0; path->slot < KVP_RDMA_PATHS; path->slot++) {
        e = &paths->entries[path->slot];
        if (is_of(e, path, &theirs)) return e;
    }
    path->slot = paths->next++ % KVP_RDMA_PATHS;
    e = &paths->entries[path->slot];
    *e = (kvp_rdma_path_entry_t){.theirs = theirs, .ours = path->ours};
    return e;
}

kvp_rdma_fails_t
kvp_rdma_paths_look(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path)
{
    kvp_rdma_fails_t fails;

    pthread_mutex_lock(&paths->lock);
    fails = find_path(paths, path)->fails;
    pthread_mutex_unlock(&paths->lock);
    return fails;
}

void
kvp_rdma_paths_reset(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path)
{
    pthread_mutex_lock(&paths->lock);
    find_path(paths, path)->fails = (kvp_rdma_fails_t){0};
    pthread_mutex_unlock(&paths->lock);
}

/* Counts a failure of a path, and sets retry_ns: after the first failure to a random time up to 50 ms from now. */
static void
count_failure(kvp_rdma_fails_t *fails, uint64_t now_ns, uint64_t dice)
{
    uint64_t wait_ns = RETRY_FIRST_NS << kvp_min_u64(fails->fails, RETRY_SHIFT_MAX);

    fails->retry_ns = now_ns + dice % wait_ns + (fails->fails == 0 ? 0 : wait_ns);
    fails->fails++;
}

kvp_rdma_fails_t
kvp_rdma_paths_failed(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path, uint64_t since_ns, uint64_t now_ns, uint64_t dice)
{
    kvp_rdma_path_entry_t *e;
    kvp_rdma_fails_t fails;

    pthread_mutex_lock(&paths->lock);
    e = find_path(paths, path);
    if (e->failed_ns == 0 || since_ns > e->failed_ns) {
        count_failure(&e->fails, now_ns, dice);
        e->failed_ns = now_ns;
    }
    fails = e->fails;
    pthread_mutex_unlock(&paths->lock);
    return fails;
}

#define WIDE_BYTES (512u << 10) /* the bytes under way at which several rails are used: 20 us at 200 Gb/s */
/* completions after which a rail clears its path's failures: a connection alone proves little */
#define PROVEN_BATCHES 4u
/* the time limit of each step of connecting; without it the connection manager would try for a minute */
#define CONNECT_NS (1500 * KVP_NS_PER_MS)

/* ---- the rails that exist */
static uint32_t
dev_index(const kvp_rdma_tp_t *tp, const kvp_rdma_dev_t *dev)
{
    uint32_t i = 0;

    while (i < tp->devs_n && tp->devs[i] != dev)
        i++;
    return i;
}

/* Assigns the rail to the path from our adapter `ours` to rail->at, and loads the path's failures. */
static void
use_path(kvp_rdma_tp_t *tp, kvp_rdma_rail_t *rail, uint32_t ours)
{
    rail->pair.ours = ours;
    rail->path.ours = ours;
    rail->path.theirs = rail->at;
    rail->fails = kvp_rdma_paths_look(&tp->paths, &rail->path);
}

void
kvp_rdma_rails_learn(kvp_rdma_ep_t *ep, const kvp_rdma_answer_t *answer)
{
    kvp_rdma_pair_t pairs[KVP_RDMA_RAILS_MAX] = {{dev_index(ep->tp, ep->rails[0].id->dev), answer->rail}};

    ep->peer_rails_n = answer->rails_n;
    memcpy(ep->peer_rails, answer->rails, sizeof answer->rails);
    ep->rails[0].pair = pairs[0];
    use_path(ep->tp, &ep->rails[0], pairs[0].ours);
    /* the host's route leads over an adapter that this instance does not use: keep one rail */
    if (pairs[0].ours >= ep->tp->devs_n) return;
    ep->rails_n = (uint32_t)kvp_rdma_pairs(ep->tp->devs, ep->tp->devs_n, ep->peer_rails, ep->peer_rails_n, pairs);
    for (uint32_t i = 1; i < ep->rails_n; i++) {
        ep->rails[i].pair = pairs[i];
        ep->rails[i].at = ep->peer_rails[pairs[i].theirs];
        use_path(ep->tp, &ep->rails[i], pairs[i].ours);
    }
}

static uint32_t
up_n(const kvp_rdma_ep_t *ep)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ep->rails_n; i++)
        n += ep->rails[i].is_up;
    return n;
}

static const char *
rail_name(const kvp_rdma_ep_t *ep, const kvp_rdma_rail_t *rail)
{
    return rail->pair.ours < ep->tp->devs_n ? ep->tp->devs[rail->pair.ours]->info.name : "?";
}

/* ---- the rail of each slice */
/* Returns whether the rail may carry the transfer: it is connected, and the space of a write (WRITE or PUBLISH) was
 * granted after the connection was made. A node ends our connections (peer_cut) before it gives away space that we may
 * still write to. So a connection older than the grant proves that the space is ours. A writer that slept meanwhile
 * finds its connection ended, and must not use a new connection, which would overwrite a later writer's bytes. */
static bool
may_carry(const kvp_rdma_rail_t *rail, const kvp_xfer_t *xfer)
{
    bool is_bound = xfer->kind != KVP_XFER_READ && xfer->granted_ns != 0 && KVP_RULE(RDMA_OLD_WRITES);

    return rail->is_up && !(is_bound && rail->stood_ns >= xfer->granted_ns);
}

/* Of the rails that may carry the transfer, returns the first without failures, else the first: for small batches. */
static const kvp_rdma_rail_t *
home_rail(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer)
{
    const kvp_rdma_rail_t *best = NULL;

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        const kvp_rdma_rail_t *rail = &ep->rails[i];

        if (!may_carry(rail, xfer)) continue;
        if (rail->fails.fails == 0) return rail;
        if (best == NULL) best = rail;
    }
    return best;
}

/* A result of true is final: a connection made later would be younger than the grant of the write's space too. */
bool
kvp_rdma_rails_are_young(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer)
{
    return xfer->kind != KVP_XFER_READ && xfer->granted_ns != 0 && home_rail(ep, xfer) == NULL &&
           KVP_RULE(RDMA_OLD_WRITES);
}

/* Returns whether all works that the transfer must come after have completed on the other rails. On the transfer's own
 * rail a fence orders the transfer after such works. */
static bool
is_over_elsewhere(const kvp_rdma_ep_t *ep, const kvp_rdma_rail_t *rail, const kvp_xfer_t *xfer)
{
    bool lies_apart = xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_GUARDED) != 0;

    if ((xfer->flags & KVP_XFER_AFTER_PRIOR) == 0) return true;
    if (xfer->kind == KVP_XFER_READ && !KVP_RULE(RDMA_READ_RAILS)) return true;
    if (xfer->kind == KVP_XFER_PUBLISH && !KVP_RULE(RDMA_SEAL_RAILS)) return true;
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        const kvp_rdma_rail_t *other = &ep->rails[i];

        if (other == rail) continue;
        if (other->works_tail < (lies_apart ? other->ordered : other->works_head)) return false;
    }
    return true;
}

/* Returns whether a WRITE with AFTER_PRIOR must wait for READs under way: its source may be their destination. */
static bool
awaits_reads(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer, uint64_t off)
{
    if (xfer->kind != KVP_XFER_WRITE || (xfer->flags & KVP_XFER_AFTER_PRIOR) == 0 || off > 0) return false;
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].reads_n > 0) return KVP_RULE(RDMA_WRITE_WAITS);
    return false;
}

kvp_rdma_rail_t *
kvp_rdma_rails_pick(kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer, uint64_t off)
{
    bool is_narrow = ep->rails_n == 1 || !ep->is_wide || xfer->kind == KVP_XFER_PUBLISH;
    const kvp_rdma_rail_t *only = is_narrow ? home_rail(ep, xfer) : NULL;
    kvp_rdma_rail_t *best = NULL;
    uint64_t least = UINT64_MAX;

    if (awaits_reads(ep, xfer, off)) return NULL;
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        if (!may_carry(rail, xfer) || (only != NULL && rail != only)) continue;
        if (!kvp_rdma_rail_has_place(rail) || !is_over_elsewhere(ep, rail, xfer)) continue;
        if (rail->bytes >= least) continue;
        least = rail->bytes;
        best = rail;
    }
    return best;
}

/* is_wide stays true until no byte is under way, so that the rest of a batch is not sent on one rail. */
void
kvp_rdma_rails_widen(kvp_rdma_ep_t *ep)
{
    ep->is_wide = ep->bytes >= WIDE_BYTES || (ep->is_wide && ep->bytes > 0);
}

/* ---- connecting further rails, and giving up */
/* Assigns a rail that could not connect to another adapter of ours, from which the address may be reachable. */
static void
try_another_of_ours(const kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    uint32_t n = (uint32_t)ep->tp->devs_n;

    for (uint32_t i = 1; i < n; i++) {
        uint32_t ours = (rail->pair.ours + i) % n;

        if (ep->tp->devs[ours]->is_gone) continue;
        use_path(ep->tp, rail, ours);
        rail->is_routed = false;
        return;
    }
}

static kvp_err_t
open_rail(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    bool is_bound = !rail->is_routed && rail->pair.ours < ep->tp->devs_n;
    struct sockaddr_storage from;

    if (is_bound) {
        from = ep->tp->devs[rail->pair.ours]->info.addr;
        kvp_rdma_set_port(&from, 0);
    }
    return kvp_rdma_rail_open(rail, ep->tp, ep->cm, is_bound ? &from : NULL, &ep->base.costs);
}

static void
path_failed(const kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    rail->fails = kvp_rdma_paths_failed(&ep->tp->paths, &rail->path, rail->opened_ns, kvp_now_ns(), kvp_random_u64());
}

static kvp_err_t
begin_rail(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    kvp_err_t err = open_rail(ep, rail);

    if (err == KVP_OK) return KVP_OK;
    path_failed(ep, rail);
    try_another_of_ours(ep, rail);
    return err;
}

kvp_err_t
kvp_rdma_rails_open_again(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    kvp_rdma_rail_close(rail);
    return begin_rail(ep, rail);
}

/* Returns whether all missing rails should be connected: no rail is connected, or several are in use. If the peer's
 * keys have changed, no further rails are connected, because this endpoint cannot use the new keys. */
static bool
wants_all(const kvp_rdma_ep_t *ep)
{
    return up_n(ep) == 0 || (ep->is_wide && !ep->has_rekeyed);
}

static void
connect_more(kvp_rdma_ep_t *ep, uint64_t now_ns)
{
    if (!wants_all(ep)) return;
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].id == NULL && now_ns >= ep->rails[i].fails.retry_ns)
            kvp_ignore(begin_rail(ep, &ep->rails[i]), "it is tried again");
}

bool
kvp_rdma_rails_are_connecting(const kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].id != NULL && !ep->rails[i].is_up) return true;
    return false;
}

/* Returns the time when a rail with works and without progress counts as dead: after 1.5 times the adapter's own
 * time-out, which some adapters never report, plus a time for the bytes under way. This time is their transfer time at
 * about 10 MB/s if the adapter's time-out is a second, and in proportion otherwise. */
static uint64_t
stalled_at_ns(const kvp_rdma_rail_t *rail)
{
    uint64_t give_up_ns = rail->id->give_up_ns;

    return rail->shown_ns + give_up_ns + give_up_ns / 2 + (rail->bytes * (give_up_ns / 10) >> 20);
}

/* Returns the time when a rail without progress is given up; UINT64_MAX = the rail waits for nothing. */
static uint64_t
patience_ns(const kvp_rdma_rail_t *rail)
{
    if (rail->id == NULL) return UINT64_MAX;
    /* shown_ns is set when an idle rail gets work, and after a pause pending events are read first. So each step of
     * connecting and each batch has its full time. */
    if (!rail->is_up) return rail->shown_ns + CONNECT_NS;
    if (kvp_rdma_rail_is_idle(rail)) return UINT64_MAX;
    return stalled_at_ns(rail);
}

void
kvp_rdma_rails_tend(kvp_rdma_ep_t *ep)
{
    uint64_t now_ns;

    if (!kvp_rdma_ep_is_up(ep) || ep->bytes == 0) return;
    now_ns = kvp_now_ns();
    connect_more(ep, now_ns);
    for (uint32_t i = 0; i < ep->rails_n && kvp_rdma_ep_is_up(ep); i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        if (kvp_rdma_rail_is_on_gone(rail) && KVP_RULE(RDMA_DEVICE_GONE)) {
            kvp_rdma_rails_failed(ep, rail);
            continue;
        }
        if (now_ns < patience_ns(rail) || !KVP_RULE(RDMA_SILENCE)) continue;
        kvp_log_warn("rdma", "a connection is silent, and is given up device=%s bytes=%llu", rail_name(ep, rail),
                     (unsigned long long)rail->bytes);
        kvp_rdma_rails_failed(ep, rail);
    }
}

void
kvp_rdma_rails_blame(kvp_rdma_ep_t *ep)
{
    uint64_t now_ns = kvp_now_ns();

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        if (rail->id == NULL || (rail->is_up && kvp_rdma_rail_is_idle(rail))) continue;
        if (now_ns - rail->shown_ns >= (rail->is_up ? rail->id->give_up_ns : CONNECT_NS) / 2) path_failed(ep, rail);
    }
}

uint64_t
kvp_rdma_rails_next_ns(const kvp_rdma_ep_t *ep)
{
    uint64_t next_ns = UINT64_MAX;
    bool is_all;

    if (!kvp_rdma_ep_is_up(ep) || ep->bytes == 0) return next_ns;
    is_all = wants_all(ep);
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        const kvp_rdma_rail_t *rail = &ep->rails[i];

        next_ns = kvp_min_u64(next_ns, patience_ns(rail));
        if (is_all && rail->id == NULL) next_ns = kvp_min_u64(next_ns, rail->fails.retry_ns);
    }
    return next_ns;
}

/* ---- a rail's end */

/* Orders works by their first posting. If a rail took only a part of a work before it failed, both parts stay adjacent,
 * in order. */
static int
by_first_posted(const void *a, const void *b)
{
    const kvp_rdma_work_t *x = a, *y = b;

    if (x->seq != y->seq) return x->seq < y->seq ? -1 : 1;
    return x->off < y->off ? -1 : x->off > y->off;
}

/* Moves the works of a failed rail to ep->lost, to be posted again, and sorts this list: a rail that had reposted works
 * of another rail has these older works after its own. Returns false if there is no memory. */
static bool
keep_lost(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    uint32_t kept = ep->lost_n - ep->lost_at, n = 0;
    kvp_rdma_work_t *all = calloc(kept + KVP_RDMA_SENDS, sizeof *all), work;

    if (all == NULL) return false;
    while (ep->lost_at < ep->lost_n)
        all[n++] = ep->lost[ep->lost_at++];
    while (kvp_rdma_rail_take_work(rail, UINT64_MAX, &work))
        if (work.xfer != NULL) all[n++] = work; /* a work without a transfer only flushed writes: not posted again */
    qsort(all, n, sizeof *all, by_first_posted);
    free(ep->lost);
    ep->lost = all;
    ep->lost_at = 0;
    ep->lost_n = n;
    return true;
}

/* Returns whether a rail is connected or connecting, or may connect soon because its path has failed once at most. */
static bool
has_hope(const kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].id != NULL || ep->rails[i].fails.fails <= 1) return true;
    return false;
}

/* Returns whether a write waits in todo that no rail may ever carry (kvp_rdma_rails_are_young). */
static bool
are_writes_stranded(const kvp_rdma_ep_t *ep)
{
    kvp_list_foreach (pos, &ep->todo)
        if (kvp_rdma_rails_are_young(ep, kvp_list_entry(pos, kvp_xfer_t, link))) return true;
    return false;
}

void
kvp_rdma_rails_failed(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    bool was_up = rail->is_up;
    bool is_final = (kvp_rdma_rail_has_writes(rail) && KVP_RULE(RDMA_WRITES_ONCE)) || !KVP_RULE(RDMA_READS_AGAIN);

    kvp_rdma_rail_close(rail);
    is_final |= are_writes_stranded(ep);
    path_failed(ep, rail);
    if (was_up)
        kvp_log_info("rdma", "a rail failed device=%s rails=%u left=%u", rail_name(ep, rail), ep->rails_n, up_n(ep));
    else
        try_another_of_ours(ep, rail);
    if (is_final || !keep_lost(ep, rail)) {
        kvp_rdma_ep_lose(ep, NULL, KVP_DISCONNECTED);
        return;
    }
    if (up_n(ep) == 0) connect_more(ep, kvp_now_ns());
    /* An idle endpoint with no connected rail is lost: no thread tends it, so it would refuse all writes. */
    if (!has_hope(ep) || (was_up && ep->bytes == 0 && up_n(ep) == 0)) kvp_rdma_ep_lose(ep, NULL, KVP_DISCONNECTED);
}

kvp_rdma_work_t *
kvp_rdma_rails_orphan(kvp_rdma_ep_t *ep)
{
    return ep->lost_at < ep->lost_n ? &ep->lost[ep->lost_at] : NULL;
}

/* The rail may have posted only a part of the lost work; then the rest of the work is posted next. */
void
kvp_rdma_rails_take_orphan(kvp_rdma_ep_t *ep, const kvp_rdma_at_t *behind, uint32_t len)
{
    kvp_rdma_work_t *work = &ep->lost[ep->lost_at];

    ep->lost_at += len == work->len;
    work->at = *behind;
    work->off += len;
    work->len -= len;
}

/* ---- the success record of each path */
void
kvp_rdma_rails_connected(kvp_rdma_rail_t *rail)
{
    uint32_t ours = dev_index(rail->tp, rail->id->dev);

    /* the host's route now leads over another adapter of ours than before */
    if (ours != rail->pair.ours) use_path(rail->tp, rail, ours);
    rail->is_up = true;
    rail->stood_ns = kvp_now_ns();
    rail->batches = 0;
}

void
kvp_rdma_rails_moved(kvp_rdma_rail_t *rail, uint64_t bytes)
{
    rail->shown_ns = kvp_now_ns();
    if (bytes == 0 || rail->fails.fails == 0 || ++rail->batches < PROVEN_BATCHES) return;
    rail->fails = (kvp_rdma_fails_t){0};
    kvp_rdma_paths_reset(&rail->tp->paths, &rail->path);
}
