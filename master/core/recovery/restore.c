/* SPDX-License-Identifier: Apache-2.0
 * Ticket restore: clients send the objects that tickets of lost sessions protected. PROTOCOL "PRESENT", ADR 0010.
 *
 * Design notes.
 * - A ticket's contents are not trusted: an object is protected for the asking client, as by a GET or a LOOKUP,
 *   within the same limits. The difference is that the object need not be served: its node may be disconnected, or
 *   still reporting.
 * - The limits are shares of the pool, which is incomplete before all nodes are connected. Until then the client asks
 *   again for objects over the limits. */
#include "master/core/protect/gone.h"
#include "master/core/recovery/restore.h"

#include "common/buf.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/protect/group.h"
#include "master/core/protect/ticket.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <string.h>

#define RETRY_MS 100u

/* ---- one object or group */
static bool
is_more_expected(const kvp_master_t *m)
{
    return kvp_gone_is_rebuilding(&m->prot);
}

/* Returns the error for a key that the index lacks, or has only in an older version: RETRY_AFTER if a node may still
 * report it, else NOT_FOUND. */
static kvp_err_t
missing_err(const kvp_master_t *m, const kvp_session_t *s, const kvp_wire_present_t *rec)
{
    uint64_t gone = kvp_gone_version(&m->prot, s->tenant->id, rec->digest);

    if (!is_more_expected(m) || (rec->version != 0 && rec->version <= gone)) return KVP_NOT_FOUND;
    return KVP_RETRY_AFTER;
}

/* Returns true if memory of the object is mounted, or may be mounted again. */
static bool
has_memory(const kvp_master_t *m, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places);

    for (uint32_t i = 0; i < n; i++)
        if (kvp_place_chunk(&m->cat, &places[i])->segment->life != KVP_SEGMENT_DROPPED) return true;
    return false;
}

static kvp_err_t
find_object(const kvp_master_t *m, const kvp_session_t *s, const kvp_wire_present_t *rec, uint32_t *oid_out)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, rec->digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    if (o == NULL || o->state != KVP_OBJ_COMMITTED || !has_memory(m, o)) return missing_err(m, s, rec);
    if (kvp_obj_tenant(&m->cat, o) != s->tenant || kvp_obj_version(o) <= s->tenant->min_version) return KVP_NOT_FOUND;
    if (rec->version != 0 && kvp_obj_version(o) != rec->version)
        return kvp_obj_version(o) < rec->version ? missing_err(m, s, rec) : KVP_NOT_FOUND;
    if (kvp_group_hides(&m->cat, o)) return is_more_expected(m) ? KVP_RETRY_AFTER : KVP_NOT_FOUND;
    *oid_out = oid;
    return KVP_OK;
}

static kvp_err_t
find_group(kvp_master_t *m, const kvp_session_t *s, const kvp_wire_present_t *rec, kvp_group_t **group_out)
{
    kvp_group_t *g = kvp_group_seen(&m->prot, s->tenant, rec->digest);

    if (g == NULL) return is_more_expected(m) || m->cat.lost_n > 0 ? KVP_RETRY_AFTER : KVP_NOT_FOUND;
    *group_out = g;
    return KVP_OK;
}

/* ---- the objects of one ticket */
typedef struct {
    uint32_t at[KVP_PLACES_MAX]; /* for each object or group found in the index: position of its key in the message */
    uint32_t oids[KVP_PLACES_MAX]; /* for each object found in the index: its oid */
    kvp_group_t *groups[KVP_PLACES_MAX];
    uint32_t n;
} found_t;

static bool
is_same_set(const kvp_wire_present_t *a, const kvp_wire_present_t *b)
{
    return a->set == b->set && a->kind == b->kind && a->ttl_ms == b->ttl_ms;
}

static void
find_all(kvp_master_t *m, const kvp_session_t *s, const kvp_wire_present_t *recs, uint32_t from, uint32_t to,
         kvp_wire_presented_t *answers, found_t *found)
{
    found->n = 0;
    for (uint32_t i = from; i < to; i++) {
        if (recs[i].kind == KVP_PRESENT_GROUP)
            answers[i].err = find_group(m, s, &recs[i], &found->groups[found->n]);
        else
            answers[i].err = find_object(m, s, &recs[i], &found->oids[found->n]);
        if (answers[i].err == KVP_OK) found->at[found->n++] = i;
    }
}

static uint32_t
count_grantable(const kvp_master_t *m, const kvp_session_t *s, uint32_t kind, const found_t *found)
{
    if (kind == KVP_PRESENT_GROUP) return kvp_ticket_grantable_groups(&m->prot, s, found->groups, found->n);
    if (kind == KVP_PRESENT_RESERVE) return kvp_ticket_grantable(&m->prot, s, found->oids, found->n);
    return kvp_ticket_may_take(&m->prot, s, found->oids, found->n) ? found->n : 0;
}

static uint64_t
take_ticket(kvp_master_t *m, kvp_session_t *s, const kvp_wire_present_t *like, const found_t *found, uint32_t n)
{
    uint64_t ttl_ns = kvp_min_u64(KVP_MS(like->ttl_ms), m->ctx.conf.lease_ns), id;

    if (!KVP_RULE(TICKET_RESTORE)) return 1;
    if (like->kind == KVP_PRESENT_GROUP) return kvp_ticket_take_groups(&m->prot, s, found->groups, n, ttl_ns);
    id = kvp_ticket_take(&m->prot, s, like->kind == KVP_PRESENT_HOLD ? KVP_TICKET_HOLD : KVP_TICKET_RESERVE,
                         found->oids, n, ttl_ns);
    kvp_ticket_restored(&m->prot, id);
    return id;
}

static kvp_err_t
check_set(const kvp_wire_present_t *like)
{
    if (like->kind < KVP_PRESENT_HOLD || like->kind > KVP_PRESENT_GROUP) return KVP_INVALID;
    /* the reservation has expired */
    return like->kind != KVP_PRESENT_HOLD && like->ttl_ms == 0 ? KVP_NOT_FOUND : KVP_OK;
}

static void
take_set(kvp_master_t *m, kvp_session_t *s, const kvp_wire_present_t *recs, uint32_t from, uint32_t to,
         kvp_wire_presented_t *answers)
{
    const kvp_wire_present_t *like = &recs[from];
    /* the share of a client grows when the nodes that are away come back */
    kvp_err_t beyond = is_more_expected(m) || m->cat.lost_n > 0 ? KVP_RETRY_AFTER : KVP_LIMIT, err = check_set(like);
    uint32_t granted;
    uint64_t ticket;
    found_t found;

    for (uint32_t i = from; i < to && err != KVP_OK; i++)
        answers[i].err = err;
    if (err != KVP_OK) return;
    find_all(m, s, recs, from, to, answers, &found);
    granted = count_grantable(m, s, like->kind, &found);
    ticket = granted == 0 ? 0 : take_ticket(m, s, like, &found, granted);
    for (uint32_t i = 0; i < found.n; i++) {
        answers[found.at[i]].ticket = i < granted ? ticket : 0;
        if (i >= granted) answers[found.at[i]].err = beyond;
    }
    m->ctx.st.presented += granted;
}

void
kvp_on_present(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__PresentReply reply = KVP__PB__PRESENT_REPLY__INIT;
    kvp_wire_presented_t answers[KVP_PLACES_MAX];
    const kvp_wire_present_t *recs = NULL;
    Kvp__Pb__Present *msg;
    kvp_buf_t *out;
    kvp_rd_t rd;
    kvp_pb_t pb;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__present__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n > 0 && msg->n <= KVP_PLACES_MAX) recs = kvp_rd_array(&rd, msg->n, sizeof *recs);
    if (recs == NULL) {
        kvp_session_close(&m->peers, s, "malformed Present");
        kvp_pb_free(&pb, msg);
        return;
    }
    memset(answers, 0, sizeof answers);
    for (uint32_t from = 0, to; from < msg->n; from = to) {
        for (to = from + 1; to < msg->n && is_same_set(&recs[from], &recs[to]);)
            to++;
        take_set(m, s, recs, from, to, answers);
    }
    kvp_ctx_spend(&m->ctx, msg->n);
    reply.n = msg->n;
    for (uint32_t i = 0; i < msg->n; i++)
        if (answers[i].err == KVP_RETRY_AFTER) reply.retry_ms = RETRY_MS;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_buf_append(out, answers, msg->n * sizeof *answers);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}
