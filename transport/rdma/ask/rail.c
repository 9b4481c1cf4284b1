/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - All works that fit are posted with one ring of the doorbell, and only the last is signaled: its completion shows
 *   that all works before it on the rail have completed. A batch with writes ends in a READ, whose completion shows
 *   that the writes are in the peer's memory. More works are signaled before the queue would run empty, where the
 *   processor has to copy or sum arrived bytes, and in long transfers, to show progress.
 * - The adapter limits the READs under way: it holds back READs above the number that both ends agreed on at
 *   connection.
 * - A READ ordered after other READs has the fence flag; one fence serves all later READs of that kind. A PUBLISH
 *   ordered after writes is posted after a READ, which flushes the writes, and has the fence flag too. One such READ
 *   serves all later PUBLISHes.
 * - The landing area is a ring: works of one queue pair complete in order, so the area is freed in order. */
#include "transport/rdma/ask/rail.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINE_BYTES 64u
#define INLINE_BYTES 256u
#define QUIET_BYTES (64u << 20) /* the most bytes that a rail posts without requesting a completion */
#define QUIET_WORK (KVP_RDMA_AREA_BYTES / 2)
#define LEN_MAX (1u << 30)
#define RESERVE 3u /* queue places a new work needs: one, and two for READs that flush writes (PUBLISH: at the end) */

static void
free_area(kvp_rdma_rail_t *rail)
{
    if (rail->area_reg != NULL) rail->tp->verbs->dereg(rail->area_reg);
    if (rail->area != NULL) munmap(rail->area, KVP_RDMA_AREA_BYTES + LINE_BYTES);
    rail->area_reg = NULL;
    rail->area = NULL;
}

static kvp_err_t
make_area(kvp_rdma_rail_t *rail)
{
    size_t bytes = KVP_RDMA_AREA_BYTES + LINE_BYTES;

    if (rail->area_reg != NULL && rail->area_reg->dev == rail->id->dev && !rail->area_reg->is_lost) return KVP_OK;
    free_area(rail); /* the old area belongs to another device, or its device no longer accepts it */
    rail->area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rail->area == MAP_FAILED) {
        rail->area = NULL;
        return KVP_NOMEM;
    }
    return rail->tp->verbs->reg(rail->id->dev, rail->area, bytes, KVP_RDMA_LOCAL, -1, &rail->area_reg);
}

kvp_err_t
kvp_rdma_rail_open(kvp_rdma_rail_t *rail, kvp_rdma_tp_t *tp, kvp_rdma_cm_t *cm, const struct sockaddr_storage *from,
                   kvp_ep_costs_t *costs)
{
    kvp_err_t err;

    rail->tp = tp;
    rail->costs = costs;
    rail->nonce = kvp_random_u64();
    rail->opened_ns = rail->shown_ns = kvp_now_ns();
    err = tp->verbs->connect(cm, &rail->at, from, &rail->id);
    if (err != KVP_OK) return err;
    rail->id->arg = rail;
    rail->id->mtu_bytes = rail->mtu_bytes;
    return KVP_OK;
}

kvp_err_t
kvp_rdma_rail_make(kvp_rdma_rail_t *rail)
{
    const kvp_rdma_info_t *info = &rail->id->dev->info;
    kvp_rdma_caps_t caps = {.inline_bytes = INLINE_BYTES};
    kvp_err_t err = make_area(rail);

    rail->reads = KVP_RDMA_READS_NONE;
    rail->stores = KVP_RDMA_STORES_NONE;
    caps.sends = rail->sends = (uint32_t)kvp_min_u64(KVP_RDMA_SENDS, info->max_wr);
    caps.sge = rail->sge_max = (uint32_t)kvp_min_u64(KVP_RDMA_SGE_MAX, info->max_sge);
    rail->len_max = kvp_min_u64(LEN_MAX, info->max_msg_bytes);
    rail->cache_dev = kvp_mrcache_dev(rail->tp->cache, rail->id->dev);
    if (err == KVP_OK && rail->queue == NULL) rail->queue = calloc(1, sizeof *rail->queue);
    if (err == KVP_OK && rail->queue == NULL) err = KVP_NOMEM;
    return err == KVP_OK ? rail->tp->verbs->qp_make(rail->id, &caps) : err;
}

void
kvp_rdma_rail_close(kvp_rdma_rail_t *rail)
{
    if (rail->id != NULL) rail->tp->verbs->id_close(rail->id);
    rail->id = NULL;
    rail->is_up = false;
    rail->stash_n = 0;
    rail->wrs_n = rail->sges_n = rail->quiet_n = 0;
    rail->quiet_bytes = rail->quiet_work = 0;
}

void
kvp_rdma_rail_fini(kvp_rdma_rail_t *rail)
{
    kvp_rdma_rail_close(rail);
    free_area(rail);
    free(rail->queue);
    rail->queue = NULL;
}

/* ---- posting */
bool
kvp_rdma_rail_has_place(const kvp_rdma_rail_t *rail)
{
    return rail->works_head - rail->works_tail + RESERVE <= rail->sends;
}

bool
kvp_rdma_rail_take_slot(kvp_rdma_rail_t *rail, uint32_t len, uint32_t *slot_out)
{
    uint64_t bytes = (len + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    uint64_t head = rail->area_head;
    uint64_t slot = head % KVP_RDMA_AREA_BYTES;

    if (slot + bytes > KVP_RDMA_AREA_BYTES) {
        head += KVP_RDMA_AREA_BYTES - slot;
        slot = 0;
    }
    if (head + bytes - rail->area_tail > KVP_RDMA_AREA_BYTES) return false;
    rail->area_head = head + bytes;
    *slot_out = (uint32_t)slot;
    return true;
}

static kvp_rdma_work_t *
add_work(kvp_rdma_rail_t *rail, uint32_t flags, uint32_t sge_n, uint32_t len, uint64_t raddr, uint32_t rkey)
{
    kvp_rdma_work_t *work = &rail->queue->works[rail->works_head % KVP_RDMA_SENDS];

    rail->queue->wrs[rail->wrs_n++] = (kvp_rdma_wr_t){.id = rail->works_head++,
                                                      .flags = flags,
                                                      .sge_n = sge_n,
                                                      .sge = &rail->queue->sges[rail->sges_n],
                                                      .raddr = raddr,
                                                      .rkey = rkey};
    rail->sges_n += sge_n;
    rail->quiet_n++;
    rail->quiet_bytes += len;
    *work = (kvp_rdma_work_t){.len = len, .area_end = rail->area_mark};
    return work;
}

void
kvp_rdma_rail_push(kvp_rdma_rail_t *rail)
{
    if (rail->stores == KVP_RDMA_STORES_NONE) return;
    *kvp_rdma_rail_sges(rail) = (kvp_rdma_sge_t){
        .addr = (uint64_t)(uintptr_t)(rail->area + KVP_RDMA_AREA_BYTES), .len = 8, .lkey = rail->area_reg->lkey};
    (void)add_work(rail, KVP_RDMA_WR_READ, 1, 8, rail->push_addr, rail->push_rkey);
    rail->stores = KVP_RDMA_STORES_NONE;
    rail->reads = KVP_RDMA_READS_PRIOR;
}

uint32_t
kvp_rdma_rail_order(kvp_rdma_rail_t *rail, const kvp_xfer_t *xfer)
{
    if ((xfer->flags & KVP_XFER_AFTER_PRIOR) == 0) return 0;
    if (xfer->kind == KVP_XFER_PUBLISH && rail->stores == KVP_RDMA_STORES_WRITES && KVP_RULE(RDMA_SEAL_PUSH))
        kvp_rdma_rail_push(rail);
    if (rail->reads < (xfer->kind == KVP_XFER_READ ? KVP_RDMA_READS_PRIOR : KVP_RDMA_READS_LAST)) return 0;
    if (xfer->kind == KVP_XFER_READ && !KVP_RULE(RDMA_READ_FENCE)) return 0;
    if (xfer->kind == KVP_XFER_PUBLISH && !KVP_RULE(RDMA_SEAL_FENCE)) return 0;
    rail->reads = KVP_RDMA_READS_NONE;
    return KVP_RDMA_WR_FENCE;
}

kvp_rdma_work_t *
kvp_rdma_rail_add(kvp_rdma_rail_t *rail, kvp_xfer_t *xfer, uint32_t flags, uint32_t sge_n, uint32_t len, uint64_t raddr,
                  uint32_t rkey)
{
    kvp_rdma_work_t *work;

    if (xfer->kind == KVP_XFER_READ) {
        flags |= KVP_RDMA_WR_READ;
        if ((xfer->flags & KVP_XFER_AFTER_PRIOR) == 0)
            rail->reads = KVP_RDMA_READS_PRIOR;
        else if (rail->reads == KVP_RDMA_READS_NONE)
            rail->reads = KVP_RDMA_READS_LAST;
        rail->reads_n++;
    } else {
        const kvp_rdma_rseg_t *rseg = kvp_container_of(xfer->rseg, const kvp_rdma_rseg_t, base);

        if (xfer->kind == KVP_XFER_WRITE)
            rail->stores = KVP_RDMA_STORES_WRITES;
        else if (rail->stores == KVP_RDMA_STORES_NONE)
            rail->stores = KVP_RDMA_STORES_WORDS;
        rail->push_addr = rseg->keys.addr;
        rail->push_rkey = rkey;
    }
    work = add_work(rail, flags, sge_n, len, raddr, rkey);
    work->xfer = xfer;
    rail->bytes += len;
    if (xfer->kind != KVP_XFER_WRITE || (xfer->flags & KVP_XFER_GUARDED) == 0) rail->ordered = rail->works_head;
    return work;
}

static void
signal_last(kvp_rdma_rail_t *rail)
{
    rail->queue->wrs[rail->wrs_n - 1].flags |= KVP_RDMA_WR_SIGNALED;
    rail->costs->completions++;
    rail->quiet_n = 0;
    rail->quiet_bytes = rail->quiet_work = 0;
}

/* In a batch with writes, the work that kvp_rdma_rail_settle signals is a READ that flushes them at the peer. */
void
kvp_rdma_rail_settle(kvp_rdma_rail_t *rail, bool is_long)
{
    if (rail->quiet_work < QUIET_WORK && rail->quiet_bytes < QUIET_BYTES &&
        !(is_long && rail->quiet_n >= rail->sends / 4))
        return;
    if (KVP_RULE(RDMA_PUSH)) kvp_rdma_rail_push(rail);
    signal_last(rail);
}

kvp_err_t
kvp_rdma_rail_ring(kvp_rdma_rail_t *rail)
{
    size_t n;
    kvp_err_t err;

    if (rail->wrs_n == 0) return KVP_OK;
    if (rail->quiet_n > 0) signal_last(rail);
    rail->costs->doorbells++;
    rail->costs->requests += rail->wrs_n;
    err = rail->tp->verbs->post(rail->id, rail->queue->wrs, rail->wrs_n, &n);
    rail->wrs_n = rail->sges_n = 0;
    if (err != KVP_OK) kvp_log_error("rdma", "work requests were not taken error=%s", kvp_err_text(err));
    return err;
}

/* ---- completions */
size_t
kvp_rdma_rail_poll(kvp_rdma_rail_t *rail, kvp_rdma_wc_t *wcs, size_t cap)
{
    size_t n = kvp_min_u64(rail->stash_n, cap);

    if (n == 0) return rail->tp->verbs->poll(rail->id, wcs, cap);
    memcpy(wcs, rail->stash, n * sizeof wcs[0]);
    rail->stash_n -= n;
    memmove(rail->stash, rail->stash + n, rail->stash_n * sizeof wcs[0]);
    return n;
}

bool
kvp_rdma_rail_take_work(kvp_rdma_rail_t *rail, uint64_t number, kvp_rdma_work_t *work_out)
{
    if (rail->works_tail > number || kvp_rdma_rail_is_idle(rail)) return false;
    *work_out = rail->queue->works[rail->works_tail++ % KVP_RDMA_SENDS];
    rail->area_tail = work_out->area_end;
    if (work_out->xfer == NULL) return true;
    rail->bytes -= work_out->len;
    if (work_out->xfer->kind == KVP_XFER_READ) rail->reads_n--;
    return true;
}

bool
kvp_rdma_rail_has_writes(const kvp_rdma_rail_t *rail)
{
    for (uint64_t i = rail->works_tail; i < rail->works_head; i++) {
        const kvp_xfer_t *xfer = rail->queue->works[i % KVP_RDMA_SENDS].xfer;

        if (xfer != NULL && xfer->kind != KVP_XFER_READ) return true;
    }
    return false;
}

/* Arms the completion queue and then polls once more, because a completion between the last poll and the arming
 * causes no event. */
bool
kvp_rdma_rail_arm(kvp_rdma_rail_t *rail)
{
    if (rail->stash_n > 0) return true;
    rail->costs->system_calls++;
    if (rail->tp->verbs->arm(rail->id) == KVP_OK)
        rail->stash_n = rail->tp->verbs->poll(rail->id, rail->stash, KVP_ARRAY_LEN(rail->stash));
    return rail->stash_n > 0;
}
