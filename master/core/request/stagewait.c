/* SPDX-License-Identifier: Apache-2.0
 * Requests that wait and are handled again afterwards. A GET of objects that are only on tiers waits for their loads.
 * After a take-over EXISTS, LOOKUP, LIST and GET without a hold wait for nodes that have not reconnected yet. */
#include "master/core/request/request.h"

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/space/moving.h"

#include <stdlib.h>
#include <string.h>

#define NODES_WAIT_NS KVP_MS(1000) /* after a take-over, requests wait at most this long for nodes */

struct kvp_stagewait {
    kvp_stage_wait_t wait;
    kvp_list_t link; /* link in session->stagewaits */
    kvp_list_t all; /* link in master->stagewaits */
    kvp_session_t *session;
    uint64_t due_ns;
    kvp_frame_hdr_t ask;
    size_t len;
    kvp_stage_waiter_t *waiters; /* n waiters, one for each key */
    uint32_t n;
    /* 0 = the request waits for loads; n > 0 = it waits until one of n disconnected nodes reconnects */
    uint32_t awaited_n;
    uint8_t *head;
    size_t tail_at;
};

kvp_stagewait_t *
kvp_stagewait_open(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, uint32_t n, uint64_t due_ns)
{
    kvp_stagewait_t *w = kvp_core_alloc(1, sizeof *w);

    kvp_list_init(&w->wait.ready);
    w->session = s;
    w->due_ns = due_ns;
    w->ask = f->hdr;
    w->n = n;
    w->waiters = kvp_core_alloc(n + 1, sizeof *w->waiters);
    for (uint32_t i = 0; i < n; i++)
        kvp_list_init(&w->waiters[i].link);
    w->tail_at = kvp_align_up(f->hdr.head_len, 8);
    w->len = f->tail_len;
    w->head = kvp_core_alloc(w->tail_at + w->len + 1, 1);
    memcpy(w->head, f->head, f->hdr.head_len);
    memcpy(w->head + w->tail_at, f->tail, f->tail_len);
    kvp_list_add_tail(&s->stagewaits, &w->link);
    kvp_list_add_tail(&m->stagewaits, &w->all);
    s->stagewaits_n++;
    return w;
}

kvp_stage_waiter_t *
kvp_stagewait_one(kvp_stagewait_t *w, uint32_t i)
{
    w->waiters[i].wait = &w->wait;
    return &w->waiters[i];
}

void
kvp_stagewait_drop(kvp_stagewait_t *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        kvp_list_del(&w->waiters[i].link);
    kvp_list_del(&w->wait.ready);
    kvp_list_del(&w->link);
    kvp_list_del(&w->all);
    w->session->stagewaits_n--;
    free(w->waiters);
    free(w->head);
    free(w);
}

static void
go_on(kvp_master_t *m, kvp_stagewait_t *w)
{
    kvp_frame_t f = {.hdr = w->ask, .head = w->head, .tail = w->head + w->tail_at, .tail_len = w->len};

    if (w->awaited_n == 0)
        kvp_get_again(m, w->session, &f, w->waiters);
    else if (f.hdr.opcode == KVP_OP_EXISTS)
        kvp_on_exists(m, w->session, &f);
    else if (f.hdr.opcode == KVP_OP_GET)
        kvp_on_get(m, w->session, &f);
    else if (f.hdr.opcode == KVP_OP_LOOKUP)
        kvp_on_lookup(m, w->session, &f);
    else
        kvp_on_list(m, w->session, &f);
    kvp_stagewait_drop(w);
}

/* Returns the number of nodes for which requests wait. A standby waits for none, because no node is connected to it. */
uint32_t
kvp_nodes_awaited(const kvp_master_t *m)
{
    uint32_t n = 0;

    if (m->log.is_resting || m->peers.took_over_ns == 0 || m->ctx.now_ns >= m->peers.took_over_ns + NODES_WAIT_NS)
        return 0;
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        n += g->life != KVP_SEGMENT_DROPPED && ((g->is_restored && g->node == NULL) || g->report != NULL);
    }
    return n;
}

bool
kvp_await_nodes(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const uint32_t n = kvp_nodes_awaited(m);

    if (n == 0 || s->stagewaits_n >= KVP_STAGEWAITS_MAX || (f->hdr.flags & KVP_FRAME_ONEWAY) != 0) return false;
    kvp_stagewait_open(m, s, f, 0, m->peers.took_over_ns + NODES_WAIT_NS)->awaited_n = n;
    return true;
}

void
kvp_stagewaits_go_on(kvp_master_t *m)
{
    while (!kvp_list_is_empty(&m->space.staged) && m->ctx.slice_left > 0)
        go_on(m, kvp_list_first(&m->space.staged, kvp_stagewait_t, wait.ready));
}

void
kvp_stagewaits_tick(kvp_master_t *m)
{
    const uint32_t awaited_n = kvp_nodes_awaited(m);

    kvp_list_foreach_safe (pos, tmp, &m->stagewaits) {
        kvp_stagewait_t *w = kvp_list_entry(pos, kvp_stagewait_t, all);
        bool has_news = w->awaited_n != 0 && w->awaited_n != awaited_n && m->ctx.slice_left > 0;

        kvp_ctx_spend(&m->ctx, has_news ? 16 : 1);
        if (has_news || w->due_ns <= m->ctx.now_ns) go_on(m, w);
    }
}

void
kvp_stagewaits_end(kvp_session_t *s)
{
    while (!kvp_list_is_empty(&s->stagewaits))
        kvp_stagewait_drop(kvp_list_first(&s->stagewaits, kvp_stagewait_t, link));
}
