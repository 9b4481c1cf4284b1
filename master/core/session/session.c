/* SPDX-License-Identifier: Apache-2.0
 * Sessions: Hello, heartbeats, expiry, and what becomes of a peer's things when it goes. One session a connection; a
 * session that was cut off is not resumed, the peer comes back with a new incarnation.
 */
#include "master/core/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t
incarnation_make(const kvp_master_t *m, uint64_t seq)
{
    return (uint64_t)m->term << KVP_INCARNATION_SEQ_BITS | seq;
}

kvp_session_t *
kvp_session_find(kvp_master_t *m, uint64_t conn)
{
    uint32_t number;

    return kvp_umap_get(&m->by_conn, conn, &number) ? kvp_ptab_get(&m->sessions, number) : NULL;
}

kvp_session_t *
kvp_session_open(kvp_master_t *m, uint64_t conn)
{
    kvp_session_t *s = kvp_core_alloc(1, sizeof *s);

    s->conn = conn;
    s->seen_ns = m->now_ns;
    s->stall_seen_ns = m->stall_ns;
    s->number = kvp_ptab_add(&m->sessions, s);
    kvp_umap_set(&m->by_conn, conn, s->number);
    kvp_list_add_tail(&m->seen, &s->link);
    kvp_list_init(&s->over);
    kvp_list_init(&s->born);
    kvp_list_init(&s->dirty);
    kvp_list_init(&s->attempts);
    kvp_list_init(&s->members);
    kvp_list_init(&s->tickets);
    kvp_list_init(&s->pends);
    kvp_list_init(&s->waiters);
    kvp_list_init(&s->jobs);
    kvp_list_init(&s->segments);
    kvp_list_init(&s->retire_reqs);
    kvp_list_init(&s->strays);
    kvp_list_init(&s->greeting);
    return s;
}

/* Tells the node that a client is dead to the pool: its connections are closed, and it is refused from now on. Clients
 * below the oldest that lives need not be named one by one. */
void
kvp_fence_tell(kvp_master_t *m, kvp_session_t *node, uint64_t incarnation)
{
    Kvp__Pb__Fence msg = KVP__PB__FENCE__INIT;
    size_t at;

    msg.term = m->term;
    msg.incarnation = incarnation;
    msg.live_min = kvp_list_is_empty(&m->born) ? incarnation_make(m, m->incarnation_seq + 1)
                                               : kvp_list_first(&m->born, kvp_session_t, born)->incarnation;
    kvp_pb_frame_begin(&node->out, KVP_OP_FENCE, 0, ++m->request_seq, &msg.base, &at);
    kvp_frame_end(&node->out, at);
    kvp_session_dirty(m, node);
}

static void
fence(kvp_master_t *m, const kvp_session_t *dead)
{
    kvp_list_foreach (pos, &m->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        /* A node may have several segments: it is told with its first. */
        if (g->node != NULL && g->node->segments.next == &g->of_node) kvp_fence_tell(m, g->node, dead->incarnation);
    }
    m->st.fences++;
}

static void
session_free(kvp_master_t *m, kvp_session_t *s)
{
    if (s->tenant != NULL) kvp_tenant_rele(m, s->tenant);
    kvp_ptab_del(&m->sessions, s->number);
    kvp_umap_fini(&s->attempt_ids);
    kvp_recent_fini(&s->recent);
    kvp_buf_fini(&s->out);
    free(s);
}

/* As far as the step's budget reaches. True where nothing is left. */
static bool
end_some_of(kvp_master_t *m, kvp_session_t *s)
{
    while (!kvp_list_is_empty(&s->attempts)) {
        if (m->slice_left == 0) return false;
        kvp_attempt_abort_over(m, kvp_list_first(&s->attempts, kvp_attempt_t, link));
    }
    while (!kvp_list_is_empty(&s->tickets)) {
        if (m->slice_left == 0) return false;
        kvp_ticket_drop(m, kvp_list_first(&s->tickets, kvp_ticket_t, link));
    }
    while (!kvp_list_is_empty(&s->pends)) /* whose last attempt ended in another way; they are few */
        kvp_pend_end(kvp_list_first(&s->pends, kvp_pend_t, link));
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

/* Everything that the session owns goes: what may be much, in slices. */
static void
strip(kvp_master_t *m, kvp_session_t *s)
{
    bool is_unfinished = !kvp_list_is_empty(&s->attempts) && !s->is_drained;

    if (s->incarnation != 0) {
        kvp_list_del(&s->born);
        kvp_umap_del(&m->by_incarnation, s->incarnation);
        if (s->role == KVP_ROLE_CLIENT)
            m->st.clients--;
        else
            m->st.nodes--;
    }
    if (is_unfinished) fence(m, s);
    kvp_groups_abandon(m, s);
    kvp_list_del(&s->greeting);
    kvp_list_del(&s->strays); /* they stay in a ring of their own: nobody's word frees them now */
    kvp_waiter_end_all(m, s); /* before what they wait for: nobody is answered any more */
    kvp_remove_end_all(m, s);
    kvp_lease_end(m, s, s->is_drained);
    kvp_segments_lost(m, s);
    kvp_retire_lost(s);
    s->role = 0;
    s->is_over = true;
    kvp_list_add_tail(&m->over, &s->over);
    kvp_master_spend(m, 1);
    kvp_session_end_some(m);
    kvp_ticket_end_some(m);
}

void
kvp_session_end(kvp_master_t *m, kvp_session_t *s)
{
    kvp_list_del(&s->dirty);
    kvp_list_del(&s->link);
    kvp_umap_del(&m->by_conn, s->conn);
    s->conn = 0;
    if (!s->is_over)
        strip(m, s);
    else if (kvp_list_is_empty(&s->over))
        session_free(m, s);
}

void
kvp_session_close(kvp_master_t *m, kvp_session_t *s, const char *why)
{
    if (s->is_closing) return;
    kvp_master_note(m, "closing connection of %s: %s", s->name[0] == '\0' ? "a stranger" : s->name, why);
    m->st.protocol_errors++;
    s->is_closing = true;
    kvp_session_dirty(m, s);
}

void
kvp_session_dirty(kvp_master_t *m, kvp_session_t *s)
{
    if (kvp_list_is_empty(&s->dirty)) kvp_list_add_tail(&m->dirty, &s->dirty);
}

void
kvp_session_tick(kvp_master_t *m)
{
    while (!kvp_list_is_empty(&m->seen)) {
        kvp_session_t *s = kvp_list_first(&m->seen, kvp_session_t, link);
        uint64_t stalled = m->stall_ns - s->stall_seen_ns;

        if (m->now_ns - s->seen_ns < m->conf.session_ttl_ns + stalled) return;
        if (m->slice_left == 0) return;
        /* To the end of the list, so that a connection that the shell is slow to close does not hide the others. */
        kvp_list_del(&s->link);
        kvp_list_add_tail(&m->seen, &s->link);
        s->seen_ns = m->now_ns;
        s->stall_seen_ns = m->stall_ns;
        if (s->is_closing) continue;
        kvp_master_note(m, "session of %s is over: silent for too long", s->name);
        m->st.sessions_expired++;
        s->is_closing = true;
        strip(m, s);
        kvp_session_dirty(m, s);
    }
}

/* ---- answers */
kvp_buf_t *
kvp_reply_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *msg, size_t *at_out)
{
    kvp_buf_t *out = &s->out;

    if ((ask->flags & KVP_FRAME_ONEWAY) != 0) {
        out = &m->unwanted;
        kvp_buf_reset(out);
    } else {
        kvp_session_dirty(m, s);
    }
    kvp_pb_frame_begin(out, ask->opcode, KVP_FRAME_REPLY, ask->request_id, msg, at_out);
    return out;
}

void
kvp_reply_results(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *results, uint32_t n,
                  size_t each)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    kvp_buf_t *out;
    size_t at;

    msg.n = n;
    out = kvp_reply_begin(m, s, ask, &msg.base, &at);
    kvp_buf_append(out, results, n * each);
    kvp_frame_end(out, at);
}

void
kvp_reply_plain(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, kvp_err_t err, const char *detail)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    kvp_buf_t *out;
    size_t at;

    msg.err = err;
    msg.detail = (char *)detail;
    out = kvp_reply_begin(m, s, ask, &msg.base, &at);
    kvp_frame_end(out, at);
}

/* ---- Hello */
static const char *
hello_refusal(const kvp_master_t *m, const Kvp__Pb__Hello *hello, kvp_err_t *err_out)
{
    *err_out = KVP_VERSION;
    if (hello->version < KVP_PROTO_VERSION_MIN) return "peer is too old for this master";
    if (hello->version_min > KVP_PROTO_VERSION) return "peer is too new for this master";
    *err_out = KVP_INVALID;
    if (hello->version < hello->version_min) return "version below version_min";
    if (hello->role != KVP_ROLE_CLIENT && hello->role != KVP_ROLE_NODE) return "unknown role";
    if (strlen(hello->name) > KVP_NAME_MAX || strlen(hello->host_id) > KVP_NAME_MAX) return "name is too long";
    if (hello->role == KVP_ROLE_NODE && hello->name[0] == '\0') return "a node needs a name";
    if (hello->pool_id.len != 0 && (hello->pool_id.len != sizeof m->conf.pool_id ||
                                    memcmp(hello->pool_id.data, m->conf.pool_id, sizeof m->conf.pool_id) != 0))
        return "another pool";
    *err_out = KVP_LIMIT;
    if (hello->role == KVP_ROLE_CLIENT && !kvp_tenant_may_open(m, hello->tenant)) return "too many tenants";
    *err_out = KVP_OK;
    return "";
}

static void
greet(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Hello *hello)
{
    s->role = hello->role;
    s->incarnation = incarnation_make(m, ++m->incarnation_seq);
    kvp_umap_set(&m->by_incarnation, s->incarnation, s->number);
    snprintf(s->name, sizeof s->name, "%s", hello->name);
    snprintf(s->host_id, sizeof s->host_id, "%s", hello->host_id);
    if (s->role == KVP_ROLE_CLIENT) {
        s->tenant = kvp_tenant_open(m, hello->tenant);
        s->born_seq = s->tenant->revoke_seq;
        kvp_list_add_tail(&m->born, &s->born);
        m->st.clients++;
    } else {
        m->st.nodes++;
    }
}

void
kvp_on_hello(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__HelloReply reply = KVP__PB__HELLO_REPLY__INIT;
    Kvp__Pb__Hello *hello;
    kvp_pb_t pb;
    kvp_err_t err;
    kvp_buf_t *out;
    size_t at;

    hello = kvp_pb_unpack(&pb, &kvp__pb__hello__descriptor, f);
    if (hello == NULL) {
        kvp_session_close(m, s, "malformed Hello");
        return;
    }
    reply.detail = (char *)hello_refusal(m, hello, &err);
    if (err == KVP_OK && hello->role == KVP_ROLE_NODE && kvp_pool_named_by(m, hello->known)) {
        kvp_pb_free(&pb, hello);
        return;
    }
    reply.err = err;
    reply.version = KVP_PROTO_VERSION < hello->version ? KVP_PROTO_VERSION : hello->version;
    reply.software = (char *)("kvpool " KVP_RELEASE);
    if (err == KVP_OK) {
        greet(m, s, hello);
        reply.term = m->term;
        reply.incarnation = s->incarnation;
        reply.pool_id = (ProtobufCBinaryData){sizeof m->conf.pool_id, m->conf.pool_id};
        reply.digest_seed = m->conf.digest_seed;
        reply.host_id = m->host_id;
        reply.unix_path = m->unix_path;
        reply.heartbeat_ms = KVP_HEARTBEAT_MS;
        reply.session_ttl_ms = (uint32_t)(m->conf.session_ttl_ns / KVP_MS(1));
        reply.lease_ttl_ms = (uint32_t)(m->conf.lease_ns / KVP_MS(1));
    }
    out = kvp_reply_begin(m, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    if (err != KVP_OK) kvp_session_close(m, s, reply.detail);
    kvp_pb_free(&pb, hello);
}

/* The lease counts at the client from when it sent the question, so it is over there before it is over here. */
static const kvp_digest_t *
give_lease(kvp_master_t *m, kvp_session_t *s, uint64_t applied_seq, Kvp__Pb__HeartbeatReply *reply, kvp_digest_t *room)
{
    const kvp_digest_t *news;

    reply->grace_ms = (uint32_t)(m->conf.location_grace_ns / KVP_MS(1));
    if (kvp_lease_renew(m, s, applied_seq)) reply->lease_ms = (uint32_t)(m->conf.location_lease_ns / KVP_MS(1));
    news = kvp_lease_news(s->tenant, applied_seq, room, &reply->n);
    reply->revoke_seq = s->tenant->revoke_seq;
    reply->drop_all = news == NULL;
    return news;
}

void
kvp_on_heartbeat(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__HeartbeatReply reply = KVP__PB__HEARTBEAT_REPLY__INIT;
    kvp_digest_t room[KVP_REVOKED_MAX];
    const kvp_digest_t *news = NULL;
    Kvp__Pb__Heartbeat *hb;
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    hb = kvp_pb_unpack(&pb, &kvp__pb__heartbeat__descriptor, f);
    if (hb == NULL) {
        kvp_session_close(m, s, "malformed Heartbeat");
        return;
    }
    if (s->role == KVP_ROLE_NODE && hb->term > m->term && kvp_master_outdated(m, hb->term)) {
        kvp_pb_free(&pb, hb);
        return;
    }
    reply.err = hb->incarnation == s->incarnation ? KVP_OK : KVP_FENCED;
    reply.term = m->term;
    if (reply.err == KVP_OK && hb->wants_lease && s->role == KVP_ROLE_CLIENT)
        news = give_lease(m, s, hb->revoke_seq, &reply, room);
    out = kvp_reply_begin(m, s, &f->hdr, &reply.base, &at);
    kvp_buf_append(out, news, reply.n * sizeof *news);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, hb);
}
