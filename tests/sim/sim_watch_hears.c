/* SPDX-License-Identifier: Apache-2.0
 * The oracle at the master's door: what the core hears, and who still waits for an answer or holds a ticket. */
#include "tests/sim/sim_copy.h"
#include "tests/sim/sim_tier.h"
#include "tests/sim/sim_watch.h"

#include "proto/pb.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

uint32_t
tenant_of(const sim_t *s, const conn_t *conn)
{
    return client_tenant(s, conn->end[0].who->number - CLIENT_NUMBER);
}

/* ---- asks */
static ask_t *
ask_add(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    ask_t *a = sim_alloc(s, sizeof *a);

    *a = (ask_t){.conn = conn->id,
                 .request = f->hdr.request_id,
                 .op = f->hdr.opcode,
                 .frame = *f,
                 .heard_ns = s->now,
                 .next = s->oracle->asks};
    s->oracle->asks = a;
    return a;
}

ask_t *
asked_take(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    for (ask_t **at = &s->oracle->asks; *at != NULL; at = &(*at)->next) {
        ask_t *a = *at;

        if (a->conn != conn->id || a->request != f->hdr.request_id || a->op != f->hdr.opcode) continue;
        *at = a->next;
        return a;
    }
    return NULL;
}

/* ---- tickets */
static void
hold_end(sim_t *s, hold_t *h)
{
    for (uint32_t i = 0; i < h->grants_n; i++)
        h->grants[i]->holds--;
    uses_hold_ended(s, h);
}

#define ANY_TICKET UINT64_MAX

/* Ends those of the connection with that ticket; without a connection, those whose time is over. */
static void
end_holds(sim_t *s, const conn_t *conn, uint64_t ticket)
{
    uint64_t now = master_now(s);

    for (hold_t **at = &s->oracle->holds; *at != NULL;) {
        hold_t *h = *at;
        bool is_over =
            conn == NULL ? h->until_ns <= now : h->conn == conn->id && (ticket == ANY_TICKET || h->ticket == ticket);

        if (is_over) {
            hold_end(s, h);
            *at = h->next;
        } else {
            at = &h->next;
        }
    }
}

static void
forget_asks(oracle_t *o, uint64_t conn)
{
    for (ask_t **at = &o->asks; *at != NULL;) {
        if ((*at)->conn == conn)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
    for (attempt_t **at = &o->attempts; *at != NULL;) {
        if ((*at)->conn->id == conn)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
}

void
expire_holds(sim_t *s)
{
    end_holds(s, NULL, ANY_TICKET);
}

void
oracle_conn_over(sim_t *s, conn_t *conn)
{
    forget_asks(s->oracle, conn->id);
    copy_conn_over(s, conn);
    for (mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        if (mem->conn == conn->id) {
            mem->conn = 0;
            mem->away_ns = master_now(s);
        }
    end_holds(s, conn, ANY_TICKET);
    tier_conn_over(s, conn);
}

/* ---- hearing */
static void
hears_release(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    for (size_t i = 0; i + 8 <= f->tail_len; i += 8) {
        uint64_t ticket;

        memcpy(&ticket, f->tail + i, 8);
        end_holds(s, conn, ticket);
    }
}

/* Tickets protect nothing of these any more. */
static void
force(sim_t *s, kvp_digest_t digest)
{
    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest))
        k->is_forced = true;
}

/* The probes of keys in groups are their groups', which may begin anew with none. */
static bool
is_probed(sim_t *s, uint32_t tenant, kvp_digest_t digest)
{
    const known_t *newest = NULL;

    if (s->plan->has_journal)
        return false; /* answers wait for it, and what they say of a probe is older than they are */
    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest)) {
        if (k->grant->tenant != tenant || !k->grant->is_commit_asked) continue;
        if (newest == NULL || newest->grant->version < k->grant->version) newest = k;
    }
    if (newest == NULL || newest->grant->group != NULL || newest->grant->probed_ns == 0) return false;
    return grant_is_served_for_ever(newest->grant) && master_now(s) < newest->grant->probed_ns + LEASE_NS / 2;
}

static void
hears_remove(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)f->tail;
    ask_t *ask = ask_add(s, conn, f);
    Kvp__Pb__Remove *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__remove__descriptor, f);
    if (head != NULL) TRACE(s, "removal of %u keys%s", head->n, head->force ? ", by force" : "");
    for (uint32_t i = 0; head != NULL && i < head->n; i++) {
        if (head->heeds_probes && !head->force && is_probed(s, tenant_of(s, conn), digests[i]))
            ask->must_hold |= 1ull << i;
        let_go(s, tenant_of(s, conn), &digests[i], UINT64_MAX);
        tier_let_go(s, tenant_of(s, conn), &digests[i]);
        group_may_leave(s, tenant_of(s, conn), &digests[i]);
        if (head->force) force(s, digests[i]);
        for (known_t *k = known_first(s, digests[i]); k != NULL; k = known_next(k, digests[i]))
            k->grant->is_removal_asked = true;
    }
    kvp_pb_free(&pb, head);
}

static void
force_all(sim_t *s, uint32_t tenant, const char *pattern)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = s->oracle->known[b]; k != NULL; k = k->next) {
            const put_t *put = k->grant->put == 0 ? NULL : s->oracle->puts[k->grant->put];

            if (k->grant->tenant != tenant) continue;
            k->grant->is_removal_asked = true;
            if (pattern == NULL || (put != NULL && oracle_key_matches(s, put->key, pattern))) k->is_forced = true;
        }
}

/* The removal of any of the tenant's keys was heard. */
static void
ask_all(sim_t *s, uint32_t tenant)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = s->oracle->known[b]; k != NULL; k = k->next)
            k->grant->is_removal_asked |= k->grant->tenant == tenant;
}

static void
hears_remove_many(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    Kvp__Pb__RemoveMany *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__remove_many__descriptor, f);
    let_go(s, tenant_of(s, conn), NULL, UINT64_MAX);
    tier_let_go(s, tenant_of(s, conn), NULL);
    group_may_leave(s, tenant_of(s, conn), NULL);
    if (head != NULL && head->force) force_all(s, tenant_of(s, conn), head->pattern);
    if (head != NULL && !head->force) ask_all(s, tenant_of(s, conn));
    kvp_pb_free(&pb, head);
}

/* A version that is superseded goes, whoever holds it; and so does one whose node is away when its key is put anew: a
 * new copy is better than waiting for the old one, and the holder reads nothing from a node that is away. */
static void
hears_put(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    const kvp_wire_put_t *puts = (const kvp_wire_put_t *)f->tail;
    Kvp__Pb__PutBegin *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, f);
    for (uint32_t i = 0; head != NULL && i < head->n; i++) {
        let_go(s, tenant_of(s, conn), &puts[i].digest, UINT64_MAX);
        tier_let_go(s, tenant_of(s, conn), &puts[i].digest);
        uses_touch(s, puts[i].digest);
        for (known_t *k = known_first(s, puts[i].digest); k != NULL; k = known_next(k, puts[i].digest)) {
            k->is_forced |= head->is_upsert || k->grant->mem->conn == 0;
            k->grant->may_leave |= k->is_forced || k->grant->shown_ns == 0;
        }
    }
    kvp_pb_free(&pb, head);
}

/* A newer version than the one that is served replaces it as an upsert does, whoever holds it: the report says only now
 * that there was one. An older version is worth no ticket. */
static void
hears_report(sim_t *s, const kvp_frame_t *f)
{
    uint32_t chunk = 0, slot = 0;
    Kvp__Pb__Report *head;
    kvp_pb_t pb;
    mem_t *mem;

    head = kvp_pb_unpack(&pb, &kvp__pb__report__descriptor, f);
    if (head == NULL) return;
    mem = mem_find(s, head->uuid.data);
    for (grant_t *g; (g = grant_next(mem, &chunk, &slot)) != NULL;)
        for (known_t *k = g->was_reported ? known_first(s, g->digest) : NULL; k != NULL; k = known_next(k, g->digest))
            k->is_forced |= k->grant->tenant == g->tenant && k->grant->version < g->version;
    let_go_older(s, f, head);
    kvp_pb_free(&pb, head);
}

attempt_t *
attempt_of(sim_t *s, const conn_t *conn, uint64_t id)
{
    attempt_t *a = s->oracle->attempts;

    while (a != NULL && (a->conn != conn || a->id != id))
        a = a->next;
    return a;
}

/* From here on the master may serve it, even if its answer waits, or never arrives. */
static void
hears_commit(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    for (size_t at = 0; at + sizeof(kvp_wire_commit_t) <= f->tail_len; at += sizeof(kvp_wire_commit_t)) {
        const kvp_wire_commit_t *rec = (const kvp_wire_commit_t *)(f->tail + at);
        attempt_t *a = attempt_of(s, conn, rec->attempt);

        if (a != NULL) a->is_over = true;
        if (a != NULL && a->grants_n > 0) promise_commit_heard(s, a->grants[0]);
        if (a != NULL) uses_touch(s, a->digest);
        for (uint32_t g = 0; a != NULL && g < a->grants_n; g++) {
            if ((rec->replicas >> g & 1) == 0) continue;
            a->grants[g]->is_commit_asked = true;
            a->grants[g]->commit_ns = kvp_min_u64(a->grants[g]->commit_ns, s->now);
        }
        if (a != NULL && a->grants_n > 0) group_commit_heard(a->grants[0]);
    }
}

static void
hears_abort(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    Kvp__Pb__PutAbort *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__put_abort__descriptor, f);
    for (uint32_t i = 0; head != NULL && i < head->n; i++) {
        attempt_t *a;
        uint64_t id;

        memcpy(&id, f->tail + i * sizeof id, sizeof id);
        a = attempt_of(s, conn, id);
        if (a == NULL) continue;
        a->is_over = true;
        a->is_drained |= head->is_drained;
    }
    kvp_pb_free(&pb, head);
}

void
oracle_master_hears(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    if (f->hdr.opcode == KVP_OP_TIER_REPORT || f->hdr.opcode == KVP_OP_DEMOTE || f->hdr.opcode == KVP_OP_STAGE)
        tier_hears(s, conn, f);
    if (f->hdr.opcode == KVP_OP_COPY || f->hdr.opcode == KVP_OP_DRAIN) copy_hears(s, conn, f);
    if ((f->hdr.flags & KVP_FRAME_REPLY) != 0) return;
    if (master_is_elder(s)) {
        if (f->hdr.opcode == KVP_OP_PUT_COMMIT) hears_commit(s, conn, f);
        ask_add(s, conn, f);
        return;
    }
    switch (f->hdr.opcode) {
    case KVP_OP_PUT_BEGIN:
        hears_put(s, conn, f);
        break;
    case KVP_OP_PUT_COMMIT:
        hears_commit(s, conn, f);
        break;
    case KVP_OP_PUT_ABORT:
        hears_abort(s, conn, f);
        return;
    case KVP_OP_RELEASE:
        hears_release(s, conn, f);
        return;
    case KVP_OP_REMOVE:
        hears_remove(s, conn, f);
        return;
    case KVP_OP_REMOVE_MANY:
        hears_remove_many(s, conn, f);
        return;
    case KVP_OP_BUMP:
        let_go(s, tenant_of(s, conn), NULL, UINT64_MAX);
        tier_let_go(s, tenant_of(s, conn), NULL);
        force_all(s, tenant_of(s, conn), NULL);
        group_bumped(s, tenant_of(s, conn));
        break;
    case KVP_OP_REPORT:
        hears_report(s, f);
        break;
    case KVP_OP_TASK:
        task_heard(s, f);
        break;
    case KVP_OP_GET:
    case KVP_OP_EXISTS:
    case KVP_OP_LOOKUP:
    case KVP_OP_PRESENT:
    case KVP_OP_MOUNT:
        break;
    default:
        return;
    }
    time_heard(s, conn, ask_add(s, conn, f));
}
