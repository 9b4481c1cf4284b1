/* SPDX-License-Identifier: Apache-2.0
 * The end of a session: the connection was closed, the session expired, or the peer said Bye. The session's state is
 * freed, large parts in slices. */
#include "master/core/request/end.h"

#include "common/buf.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/recent.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/group.h"
#include "master/core/protect/lease.h"
#include "master/core/protect/ticket.h"
#include "master/core/put/attempt.h"
#include "master/core/put/queue.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/state.h"
#include "master/core/request/remove.h"
#include "master/core/request/request.h"
#include "master/core/session/session.h"
#include "master/core/space/retire.h"
#include "proto/wire.h"

#include <stdlib.h>

/* Tells the nodes that the client is dead. The message covers all dead incarnations between the session and the next
 * older live one, so a node keeps ranges, at most as many as there are live clients. */
static void
fence_nodes(kvp_master_t *m, const kvp_session_t *dead, kvp_session_t *older)
{
    /* without an older live client, live_min in the message covers all lower incarnations */
    uint64_t above = older == NULL ? dead->incarnation - 1 : older->incarnation;

    if (older != NULL) older->is_fence_edge = true;
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        /* A node may have several segments: the message is sent for the first one only. */
        if (g->node != NULL && g->node->segments.next == &g->of_node)
            kvp_fence_tell(&m->peers, g->node, above, dead->incarnation);
    }
}

static void
session_free(kvp_master_t *m, kvp_session_t *s)
{
    if (s->tenant != NULL) kvp_tenant_rele(&m->cat, s->tenant);
    kvp_ptab_del(&m->peers.sessions, s->number);
    kvp_umap_fini(&s->attempt_ids);
    kvp_recent_fini(&s->recent);
    kvp_buf_fini(&s->out);
    free(s->who);
    free(s);
}

/* Frees attempts, tickets and requests of an ended session, within the budget. Returns true when none is left. */
static bool
end_some_of(kvp_master_t *m, kvp_session_t *s)
{
    while (!kvp_list_is_empty(&s->attempts)) {
        if (m->ctx.slice_left == 0) return false;
        kvp_attempt_abort_over(&m->puts, kvp_list_first(&s->attempts, kvp_attempt_t, link));
    }
    while (!kvp_list_is_empty(&s->tickets)) {
        if (m->ctx.slice_left == 0) return false;
        kvp_ticket_drop(&m->prot, kvp_list_first(&s->tickets, kvp_ticket_t, link));
    }
    while (!kvp_list_is_empty(&s->reqs)) /* the ended session's few put requests whose attempts have all ended */
        kvp_put_req_end(kvp_list_first(&s->reqs, kvp_put_req_t, link));
    return true;
}

void
kvp_session_end_some(kvp_master_t *m)
{
    while (!kvp_list_is_empty(&m->over)) {
        kvp_session_t *s = kvp_list_first(&m->over, kvp_session_t, over);

        if (!end_some_of(m, s)) return;
        kvp_list_del(&s->over);
        if (s->conn == 0) session_free(m, s);
    }
}

/* Ends the session: frees its state, large parts in slices. */
static void
strip_session(kvp_master_t *m, kvp_session_t *s)
{
    bool is_unfinished = !kvp_list_is_empty(&s->attempts) && !s->is_drained;
    bool is_oldest = kvp_list_is_empty(&s->born) || s->born.prev == &m->peers.born;
    kvp_session_t *older = is_oldest ? NULL : kvp_list_entry(s->born.prev, kvp_session_t, born);

    if (s->incarnation != 0) {
        kvp_list_del(&s->born);
        kvp_umap_del(&m->peers.by_incarnation, s->incarnation);
        if (s->role == KVP_ROLE_CLIENT)
            m->ctx.st.clients--;
        else
            m->ctx.st.nodes--;
    }
    if (is_unfinished || s->is_fence_edge || (s->is_revoked && s->role == KVP_ROLE_CLIENT)) fence_nodes(m, s, older);
    m->ctx.st.fences += is_unfinished;
    kvp_stagewaits_end(s);
    kvp_groups_abandon(&m->prot, s);
    /* Unlinks the head of the list of abandoned extents, whose retire records stay linked to each other. The ended
     * client cannot report its writes as drained any more, so the node's proof frees the extents. */
    kvp_list_del(&s->abandoned);
    kvp_deferred_end_all(&m->prot, s); /* before the walks and leases end: no answer is sent */
    kvp_remove_end_all(m, s);
    kvp_lease_end(&m->prot, s, s->is_drained);
    kvp_segments_lost(m, s);
    kvp_retire_lost(s);
    s->role = 0;
    s->life = KVP_SESSION_OVER;
    kvp_list_add_tail(&m->over, &s->over);
    kvp_ctx_spend(&m->ctx, 1);
    kvp_session_end_some(m);
    kvp_ticket_end_some(&m->prot);
}

void
kvp_session_end(kvp_master_t *m, kvp_session_t *s)
{
    kvp_list_del(&s->dirty);
    kvp_list_del(&s->link);
    kvp_umap_del(&m->peers.by_conn, s->conn);
    s->conn = 0;
    if (s->life != KVP_SESSION_OVER)
        strip_session(m, s);
    else if (kvp_list_is_empty(&s->over))
        session_free(m, s);
}

void
kvp_session_tick(kvp_master_t *m)
{
    while (!kvp_list_is_empty(&m->peers.seen)) {
        kvp_session_t *s = kvp_list_first(&m->peers.seen, kvp_session_t, link);
        uint64_t stalled = m->ctx.stall_ns - s->stall_seen_ns;

        if (m->ctx.now_ns - s->seen_ns < m->ctx.conf.session_ttl_ns + stalled) return;
        if (m->ctx.slice_left == 0) return;
        /* The session moves to the list's end, so that a slowly closed connection hides no other expired session. */
        kvp_list_del(&s->link);
        kvp_list_add_tail(&m->peers.seen, &s->link);
        s->seen_ns = m->ctx.now_ns;
        s->stall_seen_ns = m->ctx.stall_ns;
        if (s->life != KVP_SESSION_OPEN) continue;
        kvp_ctx_note(&m->ctx, "session of %s is over: silent for too long", s->name);
        m->ctx.st.sessions_expired++;
        kvp_session_shut(s);
        strip_session(m, s);
        kvp_session_dirty(&m->peers, s);
    }
}
