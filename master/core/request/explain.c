/* SPDX-License-Identifier: Apache-2.0
 * Where an object is, or why it is not there: the answer to EXPLAIN, and the causes by which misses are counted. */
#include "master/core/request/request.h"

#include "master/core/api/master.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/space/moving.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

/* ---- causes */
/* Returns the state of an object of the index. */
static kvp_cause_t
state_of(const kvp_master_t *m, const kvp_tenant_t *tenant, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);
    const kvp_moving_t *mv;

    if (o->state != KVP_OBJ_COMMITTED) return KVP_CAUSE_BEING_PUT;
    if (kvp_obj_version(o) <= tenant->min_version) return KVP_CAUSE_BUMPED;
    if (mb != NULL && mb->group->is_doomed) return mb->group->cause;
    if (kvp_group_hides(&m->cat, o)) return KVP_CAUSE_GROUP_INCOMPLETE;
    if (kvp_obj_up_n(&m->cat, o) > 0) return KVP_CAUSE_PRESENT;
    if (!kvp_obj_is_on_tier_up(&m->cat, o)) return KVP_CAUSE_NODE_AWAY;
    mv = o->is_moving != 0 ? kvp_moving_of(&m->space, o) : NULL;
    return mv != NULL && kvp_moving_is_load(mv) ? KVP_CAUSE_LOADING : KVP_CAUSE_PRESENT;
}

/* Returns what is known of a key that has no object: its last departure, or its last refused put if that came later.
 * NULL = nothing; *since_out is then the time since which a trace would be known. */
static const kvp_departure_t *
find_trace(const kvp_master_t *m, kvp_digest_t digest, uint32_t *since_out)
{
    const uint64_t id = kvp_objindex_id(m->cat.index, digest);
    uint32_t refused_since;
    const kvp_departure_t *left = kvp_departed_find(&m->cat.departed, id, since_out);
    const kvp_departure_t *refused = kvp_departed_find(&m->cat.refused, id, &refused_since);

    if (left == NULL || (refused != NULL && refused->at > left->at)) left = refused;
    return left;
}

/* Returns the tenant's object; NULL = the index has none for this digest. */
static const kvp_obj_t *
find_object(const kvp_master_t *m, const kvp_tenant_t *tenant, uint32_t oid)
{
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    return o != NULL && kvp_obj_owner(&m->cat, o) == tenant ? o : NULL;
}

kvp_cause_t
kvp_explain_missing(const kvp_master_t *m, const kvp_tenant_t *tenant, kvp_digest_t digest, uint32_t oid)
{
    const kvp_obj_t *o = find_object(m, tenant, oid);
    const kvp_departure_t *trace;
    uint32_t since;

    if (o != NULL) return state_of(m, tenant, o);
    trace = find_trace(m, digest, &since);
    if (trace != NULL) return trace->cause;
    return kvp_nodes_awaited(m) > 0 && kvp_gone_is_rebuilding(&m->prot) ? KVP_CAUSE_NODE_AWAY : KVP_CAUSE_NOT_KNOWN;
}

/* ---- the answer */
/* One tenant's part of the answer. */
typedef struct {
    Kvp__Pb__Explained msg;
    Kvp__Pb__ObjectCopy copies[KVP_REPLICAS_MAX + 1], *copies_list[KVP_REPLICAS_MAX + 1];
} part_t;

typedef struct {
    part_t parts[KVP_EXPLAINED_MAX];
    Kvp__Pb__Explained *list[KVP_EXPLAINED_MAX];
    uint32_t n;
    /* keys of the members of one group: that of the object in parts[0] */
    uint8_t keys[KVP_EXPLAINED_KEYS_MAX][KVP_KEY_MAX];
    ProtobufCBinaryData keys_list[KVP_EXPLAINED_KEYS_MAX];
} explained_t;

static void
add_copy(part_t *part, const kvp_segment_t *g)
{
    Kvp__Pb__ObjectCopy *copy = &part->copies[part->msg.n_copies];

    kvp__pb__object_copy__init(copy);
    copy->segment_id = g->id;
    copy->node = (char *)g->name;
    copy->host_id = (char *)g->host_id;
    copy->transports = g->transports == NULL ? (char *)"" : g->transports;
    copy->state = g->state;
    copy->is_tier = g->is_tier;
    part->copies_list[part->msg.n_copies++] = copy;
}

static void
add_group(const kvp_master_t *m, explained_t *e, part_t *part, const kvp_group_t *group)
{
    part->msg.group_members = group->size;
    part->msg.group_committed = group->committed_n;
    if (e->n > 0) return;
    part->msg.group_keys = e->keys_list;
    kvp_list_foreach (pos, &group->committed) {
        const kvp_member_t *mb = kvp_list_entry(pos, kvp_member_t, of_group);
        const size_t i = part->msg.n_group_keys;

        if (i == KVP_EXPLAINED_KEYS_MAX) break;
        e->keys_list[i].data = e->keys[i];
        e->keys_list[i].len = kvp_obj_key_copy(m->cat.index, kvp_obj(m->cat.index, mb->oid), e->keys[i]);
        part->msg.n_group_keys++;
    }
}

static void
describe_object(const kvp_master_t *m, explained_t *e, part_t *part, const kvp_obj_t *o)
{
    const kvp_wire_lineage_t lineage = kvp_obj_lineage(m->cat.index, o);
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);
    const kvp_segment_t *tier = kvp_obj_tier(&m->cat, o);
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = kvp_obj_places(&m->cat, o, places);
    /* a group is used as one */
    const uint32_t lead = mb == NULL ? KVP_OID_NONE : mb->group->lead;
    const kvp_obj_t *used = lead == KVP_OID_NONE ? o : kvp_obj(m->cat.index, lead);

    part->msg.len = kvp_obj_len(&m->cat, o);
    part->msg.version = kvp_obj_version(o);
    part->msg.age_ms = (kvp_ages_age(&m->cat.ages, kvp_obj_version(o), m->ctx.now_ns) + KVP_MS(1) - 1) / KVP_MS(1);
    part->msg.used_ms = kvp_obj_idle_ms(m->cat.index, used, m->ctx.now_ns);
    /* The two times are rounded differently, and an object is never used before its put. */
    if (part->msg.age_ms > 0) part->msg.used_ms = kvp_min_u64(part->msg.used_ms, part->msg.age_ms);
    part->msg.was_read = used->is_used_since != 0;
    /* Whether no client has read the object is known only without a write to an SSD, which resets the flag, and if this
     * master was the leader since the put. */
    part->msg.is_unread = !part->msg.was_read && tier == NULL && kvp_obj_version(o) >> KVP_GEN_SEQ_BITS == m->ctx.term;
    part->msg.pin = o->pin;
    part->msg.tickets = o->tickets;
    part->msg.has_lineage = lineage.is_told != 0;
    part->msg.sequence = lineage.sequence;
    part->msg.parent = lineage.parent;
    part->msg.depth = lineage.depth;
    if (mb != NULL) add_group(m, e, part, mb->group);
    part->msg.copies = part->copies_list;
    for (uint32_t i = 0; i < n; i++)
        add_copy(part, kvp_place_chunk(&m->cat, &places[i])->segment);
    if (tier != NULL) add_copy(part, tier);
}

/* Writes the name of the node from whose segment the object left, if one segment alone can be meant: the number of a
 * departure is cut to 16 bits. */
static void
name_node(const kvp_master_t *m, part_t *part, const kvp_departure_t *trace)
{
    uint32_t found = 0;

    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if ((uint16_t)g->id != trace->segment || m->cat.segment_seq > UINT16_MAX) continue;
        part->msg.node = (char *)g->name;
        found++;
    }
    for (uint32_t i = 0; i < KVP_ENDED_SEGMENTS && m->cat.segment_seq <= UINT16_MAX; i++) {
        if (m->cat.ended[i].id != trace->segment || trace->segment == 0) continue;
        part->msg.node = (char *)m->cat.ended[i].name;
        found++;
    }
    if (found != 1) part->msg.node = (char *)"";
}

static void
describe_trace(const kvp_master_t *m, part_t *part, const kvp_departure_t *trace)
{
    part->msg.ago_ms = kvp_departed_ago(trace->at, m->ctx.now_ns);
    part->msg.is_before = trace->at <= m->cat.departed.since;
    if (trace->cause == KVP_CAUSE_REFUSED) {
        part->msg.refused = -(int32_t)trace->detail;
        return;
    }
    part->msg.age_ms = kvp_age_of(trace->detail & (uint8_t)~KVP_DEPARTED_READ) / KVP_MS(1);
    part->msg.was_read = (trace->detail & KVP_DEPARTED_READ) != 0;
    part->msg.elsewhere = trace->elsewhere;
    name_node(m, part, trace);
}

/* Adds the tenant's part to the answer. A tenant that the question does not name gets a part only if something is
 * known. */
static void
add_tenant(const kvp_master_t *m, explained_t *e, const kvp_tenant_t *tenant, const ProtobufCBinaryData *key,
           bool is_own)
{
    const kvp_digest_t digest = kvp_key_digest(m->ctx.conf.digest_seed, tenant->id, key->data, key->len);
    const uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    const kvp_obj_t *o = find_object(m, tenant, oid);
    const kvp_cause_t cause = kvp_explain_missing(m, tenant, digest, oid);
    part_t *part = &e->parts[e->n];
    const kvp_departure_t *trace;
    uint32_t since;

    if (o != NULL && !kvp_obj_has_key(m->cat.index, o, key->data, key->len)) return;
    if (e->n == KVP_EXPLAINED_MAX || (cause == KVP_CAUSE_NOT_KNOWN && !is_own)) return;
    kvp__pb__explained__init(&part->msg);
    part->msg.tenant = tenant->id == 0 ? (char *)"default" : (char *)tenant->name;
    part->msg.cause = cause;
    trace = o == NULL ? find_trace(m, digest, &since) : NULL;
    if (o != NULL && o->state == KVP_OBJ_COMMITTED)
        describe_object(m, e, part, o);
    else if (trace != NULL)
        describe_trace(m, part, trace);
    else if (o == NULL && since != UINT32_MAX)
        part->msg.ago_ms = kvp_departed_ago(since, m->ctx.now_ns);
    e->list[e->n++] = &part->msg;
}

/* Fills in the answer: the part of the tenant `own`, which may be NULL, then the parts of other tenants if they are
 * wanted. */
static void
explain_key(const kvp_master_t *m, const kvp_tenant_t *own, const ProtobufCBinaryData *key, bool all_tenants,
            explained_t *e, Kvp__Pb__ExplainReply *reply)
{
    e->n = 0;
    if (own != NULL) add_tenant(m, e, own, key, true);
    for (uint32_t i = 0; all_tenants && i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL && t != own) add_tenant(m, e, t, key, false);
    }
    reply->found = e->list;
    reply->n_found = e->n;
}

void
kvp_on_explain(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__ExplainReply reply = KVP__PB__EXPLAIN_REPLY__INIT;
    Kvp__Pb__Explain *msg;
    explained_t e;
    kvp_buf_t *out;
    kvp_pb_t pb;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__explain__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Explain");
        return;
    }
    if (msg->key.len == 0 || msg->key.len > KVP_KEY_MAX) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_BAD_KEY, "");
        kvp_pb_free(&pb, msg);
        return;
    }
    explain_key(m, s->tenant, &msg->key, msg->all_tenants && kvp_session_sees_all(s), &e, &reply);
    if (!kvp_session_sees_all(s) && e.n > 0) e.parts[0].msg.elsewhere = 0; /* tenants do not see one another */
    kvp_ctx_spend(&m->ctx, 1 + (msg->all_tenants ? m->cat.tenants.n : 0));
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}

bool
kvp_master_explain(const kvp_master_t *m, const kvp_master_question_t *q, kvp_buf_t *out)
{
    const ProtobufCBinaryData key = {q->key_len, (uint8_t *)q->key};
    const kvp_tenant_t *own = kvp_tenant_find(&m->cat, kvp_tenant_id(q->tenant));
    Kvp__Pb__ExplainReply reply = KVP__PB__EXPLAIN_REPLY__INIT;
    explained_t e;
    uint8_t *at;
    size_t len;

    if (kvp_tenant_is_other(&m->cat, q->tenant)) own = NULL;
    if (own == NULL && !q->all_tenants) return false;
    explain_key(m, own, &key, q->all_tenants, &e, &reply);
    len = kvp__pb__explain_reply__get_packed_size(&reply);
    at = kvp_buf_reserve(out, len);
    if (at != NULL) out->len += kvp__pb__explain_reply__pack(&reply, at);
    return true;
}
