/* SPDX-License-Identifier: Apache-2.0
 * Sessions: the connected peers, and the core's output to them. Each connection has one session. A session whose
 * connection was lost is not resumed: the peer connects again with a new incarnation. request/hello.c admits peers,
 * request/end.c ends sessions. */
#include "master/core/session/session.h"

#include "common/buf.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/tenant.h"
#include "master/core/session/peers.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdarg.h>
#include <stdio.h>

uint64_t
kvp_incarnation_make(const kvp_sessions_t *peers, uint64_t seq)
{
    return (uint64_t)peers->ctx->term << KVP_INCARNATION_SEQ_BITS | seq;
}

kvp_session_t *
kvp_session_find(kvp_sessions_t *peers, uint64_t conn)
{
    uint32_t number;

    return kvp_umap_get(&peers->by_conn, conn, &number) ? kvp_ptab_get(&peers->sessions, number) : NULL;
}

kvp_session_t *
kvp_session_open(kvp_sessions_t *peers, uint64_t conn)
{
    kvp_session_t *s = kvp_core_alloc(1, sizeof *s);

    s->conn = conn;
    s->rights = KVP_MAY_ADMIN;
    s->seen_ns = peers->ctx->now_ns;
    s->stall_seen_ns = peers->ctx->stall_ns;
    s->number = kvp_ptab_add(&peers->sessions, s);
    kvp_umap_init(&s->attempt_ids, peers->ctx->conf.secret);
    kvp_umap_set(&peers->by_conn, conn, s->number);
    kvp_list_add_tail(&peers->seen, &s->link);
    kvp_list_init(&s->over);
    kvp_list_init(&s->born);
    kvp_list_init(&s->dirty);
    kvp_list_init(&s->attempts);
    kvp_list_init(&s->members);
    kvp_list_init(&s->tickets);
    kvp_list_init(&s->reqs);
    kvp_list_init(&s->deferred);
    kvp_list_init(&s->jobs);
    kvp_list_init(&s->segments);
    kvp_list_init(&s->stagewaits);
    kvp_list_init(&s->retire_reqs);
    kvp_list_init(&s->abandoned);
    return s;
}

/* Tells the node that clients are dead: the node closes their connections, and refuses them from now on. The message
 * also contains the oldest live incarnation; the node takes all lower ones as dead. */
void
kvp_fence_tell(kvp_sessions_t *peers, kvp_session_t *node, uint64_t above, uint64_t incarnation)
{
    Kvp__Pb__Fence msg = KVP__PB__FENCE__INIT;

    msg.term = peers->ctx->term;
    msg.above = above;
    msg.incarnation = incarnation;
    msg.live_min = kvp_list_is_empty(&peers->born) ? kvp_incarnation_make(peers, peers->incarnation_seq + 1)
                                                   : kvp_list_first(&peers->born, kvp_session_t, born)->incarnation;
    kvp_pb_frame(&node->out, KVP_OP_FENCE, 0, ++peers->request_seq, &msg.base, NULL, 0);
    kvp_session_dirty(peers, node);
}

void
kvp_session_close(kvp_sessions_t *peers, kvp_session_t *s, const char *why)
{
    if (s->life != KVP_SESSION_OPEN) return;
    kvp_ctx_note(peers->ctx, "closing connection of %s: %s", s->name[0] == '\0' ? "a stranger" : s->name, why);
    peers->ctx->st.protocol_errors++;
    kvp_session_shut(s);
    kvp_session_dirty(peers, s);
}

void
kvp_session_audit(kvp_sessions_t *peers, const kvp_session_t *s, uint8_t opcode, kvp_err_t err, const char *why)
{
    if (s->who == NULL) return;
    peers->audit = (kvp_master_audit_t){.conn = s->conn, .opcode = opcode, .err = err};
    snprintf(peers->audit.tenant, sizeof peers->audit.tenant, "%s", s->tenant == NULL ? s->who->name : s->tenant->name);
    snprintf(peers->audit.why, sizeof peers->audit.why, "%s", why);
}

void
kvp_session_audit_object(kvp_sessions_t *peers, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(peers->audit.object, sizeof peers->audit.object, fmt, args);
    va_end(args);
}

void
kvp_session_dirty(kvp_sessions_t *peers, kvp_session_t *s)
{
    if (kvp_list_is_empty(&s->dirty)) kvp_list_add_tail(&peers->dirty, &s->dirty);
}

/* ---- answers to requests */
kvp_buf_t *
kvp_reply_begin(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *msg, size_t *at_out)
{
    kvp_buf_t *out = &s->out;

    if ((ask->flags & KVP_FRAME_ONEWAY) != 0) {
        out = &peers->unwanted;
        kvp_buf_reset(out);
    } else {
        kvp_session_dirty(peers, s);
    }
    kvp_pb_frame_begin(out, ask->opcode, KVP_FRAME_REPLY, ask->request_id, msg, at_out);
    return out;
}

void
kvp_reply_results(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *results, uint32_t n,
                  size_t each)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    kvp_buf_t *out;
    size_t at;

    msg.n = n;
    out = kvp_reply_begin(peers, s, ask, &msg.base, &at);
    kvp_buf_append(out, results, n * each);
    kvp_frame_end(out, at);
}

void
kvp_reply_plain(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, kvp_err_t err, const char *detail)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    kvp_buf_t *out;
    size_t at;

    msg.err = err;
    msg.detail = (char *)detail;
    out = kvp_reply_begin(peers, s, ask, &msg.base, &at);
    kvp_frame_end(out, at);
}

void
kvp_reply_stale(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask)
{
    Kvp__Pb__Places msg = KVP__PB__PLACES__INIT;
    kvp_buf_t *out;
    size_t at;

    msg.err = KVP_STALE;
    msg.detail = (char *)"the tenant has another epoch";
    msg.ns_epoch = s->tenant->epoch;
    out = kvp_reply_begin(peers, s, ask, &msg.base, &at);
    kvp_frame_end(out, at);
}

/* Returns true if the client was silent for so long that its unfinished puts may be aborted. A client with unfinished
 * puts sends several heartbeats in this time, whatever it is doing (PROTOCOL "Attempts"). */
bool
kvp_session_is_silent(const kvp_sessions_t *peers, const kvp_session_t *s)
{
    return peers->ctx->now_ns - s->seen_ns >= KVP_MS(KVP_WRITER_SILENT_MS) + (peers->ctx->stall_ns - s->stall_seen_ns);
}

void
kvp_peers_ident_changed(kvp_sessions_t *peers, kvp_mute_t until)
{
    peers->is_ident_news = true;
    if (peers->ctx->conf.saves_ident && peers->mute < until) peers->mute = until;
}

/* Makes the pool's identity final at the first grant of space. A master without the state of earlier masters, because
 * the pool is new or its disk is lost, makes a new id and seed. Nodes whose memory outlived the disk have the real
 * ones, and with another seed no digest of their objects would be found: so until the first grant, the first of these
 * nodes provides the pool's identity (ADR 0011). */
void
kvp_pool_granted(kvp_sessions_t *peers)
{
    peers->may_leap = false;
    if (peers->is_named) return;
    peers->is_named = true;
    peers->follows_until_ns = 0; /* new pool: no node has memory that could raise this master's term */
    kvp_peers_ident_changed(peers, KVP_MUTE_UNTIL_TRIED);
}
