/* SPDX-License-Identifier: Apache-2.0
 * Hello and heartbeats: the identity of a peer, and whether it is alive. */
#include "master/core/request/request.h"

#include "common/buf.h"
#include "common/hash.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/lease.h"
#include "master/core/recovery/enter.h"
#include "master/core/recovery/state.h"
#include "master/core/recovery/term.h"
#include "master/core/session/session.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>

/* Returns the reason why the peer's identity does not permit this Hello, and the error; NULL = it does. */
static const char *
identity_refusal(const kvp_session_t *s, const Kvp__Pb__Hello *hello, kvp_err_t *err_out)
{
    const kvp_identity_t *who = s->who;
    const bool has_name = hello->tenant[0] != '\0';

    *err_out = KVP_DENIED;
    if (who->err != KVP_OK) {
        *err_out = who->err;
        return who->why;
    }
    if (hello->role == KVP_ROLE_NODE) {
        if (who->is_owner) return NULL;
        if (!kvp_authrole_is_daemon(who->role, KVP_IS_NODE))
            return "only the roles node and engine may lend memory to the pool";
        return kvp_identity_is_node(who, hello->name) ? NULL : "the identity is of a node with another name";
    }
    if (who->role == KVP_MAY_ADMIN || who->role == KVP_MAY_MONITOR) return NULL;
    if (who->role == KVP_IS_NODE) return has_name ? "a node reads the default tenant only: leave the tenant out" : NULL;
    if (!kvp_authrole_is_client(who->role)) return "this role is of a daemon, and opens no session";
    if (has_name && kvp_tenant_id(hello->tenant) != kvp_tenant_id(who->name))
        return "the identity is of another tenant";
    return NULL;
}

/* Sets the client's tenant to its identity's tenant, if the Hello names no tenant. An administrator acts for the tenant
 * in its Hello. */
static const char *
tenant_of(const kvp_session_t *s, const Kvp__Pb__Hello *hello)
{
    const bool is_bound = s->who != NULL && kvp_authrole_is_client(s->who->role);

    return is_bound && hello->tenant[0] == '\0' ? s->who->name : hello->tenant;
}

static const char *
hello_refusal(const kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Hello *hello, kvp_err_t *err_out)
{
    const char *tenant = tenant_of(s, hello), *why;

    *err_out = KVP_VERSION;
    if (hello->version < KVP_PROTO_VERSION_MIN) return "peer is too old for this master";
    if (hello->version_min > KVP_PROTO_VERSION) return "peer is too new for this master";
    *err_out = KVP_INVALID;
    if (hello->version < hello->version_min) return "version below version_min";
    if (hello->role != KVP_ROLE_CLIENT && hello->role != KVP_ROLE_NODE) return "unknown role";
    if (strlen(hello->name) > KVP_NAME_MAX || strlen(hello->host_id) > KVP_NAME_MAX) return "name is too long";
    if (strlen(tenant) > KVP_TENANT_NAME_MAX) return "the tenant's name is too long";
    if (hello->role == KVP_ROLE_NODE && hello->name[0] == '\0') return "a node needs a name";
    if (hello->pool_id.len != 0 && (hello->pool_id.len != sizeof m->ctx.conf.pool_id ||
                                    memcmp(hello->pool_id.data, m->ctx.conf.pool_id, sizeof m->ctx.conf.pool_id) != 0))
        return "another pool";
    why = s->who == NULL ? NULL : identity_refusal(s, hello, err_out);
    if (why != NULL) return why;
    *err_out = KVP_INVALID;
    if (hello->role == KVP_ROLE_CLIENT && kvp_tenant_is_other(&m->cat, tenant))
        return "the tenant's name and that of another one in this pool have the same hash: choose another name";
    *err_out = KVP_NOT_LEADER;
    if (m->log.is_resting && !hello->is_state_only) return m->leader[0] == '\0' ? "no master leads" : m->leader;
    *err_out = KVP_LIMIT;
    if (hello->role == KVP_ROLE_CLIENT && !kvp_tenant_may_open(&m->cat, kvp_tenant_id(tenant)))
        return "too many tenants";
    *err_out = KVP_OK;
    return "";
}

static void
admit_peer(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Hello *hello)
{
    s->role = hello->role;
    s->use = hello->is_state_only ? KVP_USE_STATE : hello->is_probe ? KVP_USE_PROBE : KVP_USE_ALL;
    s->incarnation = kvp_incarnation_make(&m->peers, ++m->peers.incarnation_seq);
    kvp_umap_set(&m->peers.by_incarnation, s->incarnation, s->number);
    snprintf(s->name, sizeof s->name, "%s", hello->name);
    snprintf(s->host_id, sizeof s->host_id, "%s", hello->host_id);
    if (s->role == KVP_ROLE_CLIENT) {
        const char *tenant = tenant_of(s, hello);

        if (s->who != NULL) s->rights = s->who->role;
        s->tenant = kvp_tenant_open(&m->cat, kvp_tenant_id(tenant));
        kvp_enter_name(m, s->tenant, tenant);
        s->born_seq = s->tenant->revoke_seq;
        kvp_list_add_tail(&m->peers.born, &s->born);
        m->ctx.st.clients++;
    } else {
        m->ctx.st.nodes++;
    }
}

/* Answers a Watch: this master leads. Of several masters, only the leader answers (master/ha). */
void
kvp_on_watch(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__WatchReply reply = KVP__PB__WATCH_REPLY__INIT;
    kvp_buf_t *out;
    size_t at;

    reply.term = m->ctx.term;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
}

void
kvp_on_hello(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__HelloReply reply = KVP__PB__HELLO_REPLY__INIT;
    Kvp__Pb__Hello *hello;
    char why[KVP_TERM_WHY_MAX], rights[KVP_IDENTITY_NAME_MAX + KVP_IDENTITY_ID_MAX + 32];
    kvp_pb_t pb;
    kvp_err_t err, named = KVP_NOT_FOUND;
    kvp_buf_t *out;
    size_t at;

    hello = kvp_pb_unpack(&pb, &kvp__pb__hello__descriptor, f);
    if (hello == NULL) {
        kvp_session_close(&m->peers, s, "malformed Hello");
        return;
    }
    reply.detail = (char *)hello_refusal(m, s, hello, &err);
    if (err == KVP_OK && hello->role == KVP_ROLE_NODE) named = kvp_term_pool_named_by(m, hello->known, why);
    if (named == KVP_OK) {
        kvp_pb_free(&pb, hello);
        return;
    }
    if (named == KVP_LIMIT) {
        err = named;
        reply.detail = why;
    }
    reply.err = err;
    reply.version = KVP_PROTO_VERSION < hello->version ? KVP_PROTO_VERSION : hello->version;
    reply.software = (char *)("kvpool " KVP_RELEASE);
    if (err == KVP_OK) {
        admit_peer(m, s, hello);
        reply.term = m->ctx.term;
        reply.incarnation = s->incarnation;
        if (kvp_authrole_covers(s->rights, KVP_MAY_READ)) /* the id opens the memory of nodes */
            reply.pool_id = (ProtobufCBinaryData){sizeof m->ctx.conf.pool_id, m->ctx.conf.pool_id};
        reply.digest_seed = m->ctx.conf.digest_seed;
        if (s->who != NULL) {
            snprintf(rights, sizeof rights, "%s %s", kvp_authrole_name(s->who->role), s->who->id);
            reply.rights = rights;
            reply.tenant = s->tenant == NULL ? s->who->name : s->tenant->name;
        }
        reply.heartbeat_ms = KVP_HEARTBEAT_MS;
        reply.session_ttl_ms = (uint32_t)(m->ctx.conf.session_ttl_ns / KVP_MS(1));
        reply.lease_ttl_ms = (uint32_t)(m->ctx.conf.lease_ns / KVP_MS(1));
    }
    /* with the socket's path, a process of this host can prove its user on the Unix socket */
    if (err == KVP_OK || err == KVP_DENIED) {
        reply.host_id = m->host_id;
        reply.unix_path = m->unix_path;
    }
    if (err == KVP_DENIED || err == KVP_EXPIRED) {
        kvp_session_audit(&m->peers, s, KVP_OP_HELLO, err, reply.detail);
        kvp_session_audit_object(&m->peers, "%s", hello->name);
        m->peers.audit.goes_on =
            err == KVP_DENIED && s->who->proof == KVP_BY_NOTHING && strcmp(hello->host_id, m->host_id) == 0;
    }
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    if (named == KVP_LIMIT)
        kvp_session_shut(s); /* kvp_term_refuse has logged the reason */
    else if (err == KVP_NOT_LEADER || err == KVP_DENIED || err == KVP_EXPIRED)
        /* NOT_LEADER is not logged, because clients may ask all masters; the audit has the other errors */
        kvp_session_shut(s);
    else if (err != KVP_OK)
        kvp_session_close(&m->peers, s, reply.detail);
    kvp_pb_free(&pb, hello);
}

/* Renews the client's location lease and returns the revocations that it has not applied. The client counts the lease
 * from the time when it sent the request, so the lease ends at the client before it ends here. */
static const kvp_digest_t *
give_lease(kvp_master_t *m, kvp_session_t *s, uint64_t applied_seq, Kvp__Pb__HeartbeatReply *reply, kvp_digest_t *room)
{
    const kvp_digest_t *news;

    reply->grace_ms = (uint32_t)(m->ctx.conf.location_grace_ns / KVP_MS(1));
    if (kvp_lease_renew(&m->prot, s, applied_seq))
        reply->lease_ms = (uint32_t)(m->ctx.conf.location_lease_ns / KVP_MS(1));
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
    char why[KVP_TERM_WHY_MAX];
    Kvp__Pb__Heartbeat *hb;
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    hb = kvp_pb_unpack(&pb, &kvp__pb__heartbeat__descriptor, f);
    if (hb == NULL) {
        kvp_session_close(&m->peers, s, "malformed Heartbeat");
        return;
    }
    reply.err = hb->incarnation == s->incarnation ? KVP_OK : KVP_FENCED;
    if (s->role == KVP_ROLE_NODE && hb->term > m->ctx.term) {
        reply.err = kvp_term_refuse(m, hb->term, why);
        reply.detail = why;
        /* the node obeys only its higher term; after it reconnects, its Mount may prove this term */
        kvp_session_shut(s);
        kvp_session_dirty(&m->peers, s);
    }
    reply.term = m->ctx.term;
    if (reply.err == KVP_OK && hb->wants_lease && s->role == KVP_ROLE_CLIENT)
        news = give_lease(m, s, hb->revoke_seq, &reply, room);
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_buf_append(out, news, reply.n * sizeof *news);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, hb);
}
