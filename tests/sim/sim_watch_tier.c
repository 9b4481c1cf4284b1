/* SPDX-License-Identifier: Apache-2.0
 * The oracle over tiers: what the master believes to be there is there, what is there it knows, and what it stages is
 * of the version that it says. */
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_tier.h"
#include "tests/sim/sim_watch.h"

#include "proto/pb.h"
#include "tests/world/check/core_check.h"

#include <string.h>

/* Questions and answers that were not answered, or not heard: what was written, reported or proposed; to STAGE what is
 * read, and where to. */
typedef struct pending {
    uint64_t conn, request;
    uint8_t op;
    uint32_t n;
    tiered_t **made;
    grant_t **grants;
    struct pending *next;
} tier_pending_t;

static node_t *
node_of(const conn_t *conn)
{
    return conn->end[0].who->owner;
}

static tier_pending_t *
expect(sim_t *s, const conn_t *conn, uint64_t request, uint8_t op, uint32_t n)
{
    tier_pending_t *p = sim_alloc(s, sizeof *p);

    *p = (tier_pending_t){.conn = conn->id, .request = request, .op = op, .n = n, .next = s->oracle->tier_pending};
    s->oracle->tier_pending = p;
    return p;
}

static tier_pending_t **
find(sim_t *s, const conn_t *conn, const kvp_frame_t *f)
{
    tier_pending_t **at = &s->oracle->tier_pending;

    while (*at != NULL &&
           ((*at)->conn != conn->id || (*at)->request != f->hdr.request_id || (*at)->op != f->hdr.opcode))
        at = &(*at)->next;
    return at;
}

static tier_pending_t *
take(sim_t *s, const conn_t *conn, const kvp_frame_t *f)
{
    tier_pending_t **at = find(s, conn, f), *p = *at;

    if (p != NULL) *at = p->next;
    return p;
}

/* Also one that is not there any more; the newest of that version. */
static tiered_t *
any_of(const node_t *n, kvp_digest_t digest, uint64_t version)
{
    for (tiered_t *r = n->tier.records; r != NULL; r = r->older)
        if (r->desc.version == version && kvp_digest_eq(r->desc.digest, digest)) return r;
    return NULL;
}

/* ---- what the node does */
void
tier_expects(sim_t *s, const conn_t *conn, uint8_t op, uint64_t request, tiered_t **records, uint32_t n)
{
    tier_pending_t *p = expect(s, conn, request, op, n);

    p->made = sim_alloc(s, (n + 1) * sizeof(*p->made));
    memcpy(p->made, records, n * sizeof(*p->made));
}

/* What a master let go, perhaps after it wanted it, is no loss; nor is what went with the power. */
void
tier_is_gone(sim_t *s, const node_t *n, kvp_digest_t digest, uint64_t version)
{
    const tiered_t *r = any_of(n, digest, version);

    if (r != NULL && (r->was_lost || r->over_term != 0)) return;
    sim_fail(s, "TIER", "node%u is to read version %lx, which %s", n->index, (unsigned long)version,
             r == NULL ? "it never wrote" : "it does not have any more");
}

/* ---- what the master says */
void
tier_says_stage(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    const kvp_wire_stage_t *recs = (const kvp_wire_stage_t *)f->tail;
    uint32_t n = (uint32_t)(f->tail_len / sizeof *recs);
    tier_pending_t *p = expect(s, conn, f->hdr.request_id, KVP_OP_STAGE, n);
    Kvp__Pb__Retire *head;
    kvp_pb_t pb;
    mem_t *mem;

    head = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, f);
    mem = head == NULL ? NULL : oracle_mem_of(s, master_term(s), head->segment_id);
    kvp_pb_free(&pb, head);
    p->grants = sim_alloc(s, (n + 1) * sizeof(*p->grants));
    p->made = sim_alloc(s, (n + 1) * sizeof(*p->made));
    for (uint32_t i = 0; i < n && mem != NULL; i++) {
        tiered_t *r = any_of(node_of(conn), recs[i].digest, recs[i].version);
        grant_t *g = grant_add(s, mem, recs[i].chunk, recs[i].slot, recs[i].generation, recs[i].offset, recs[i].len);

        if (g == NULL) return;
        if (r != NULL && r->over_term == master_term(s))
            sim_fail(s, "TIER", "version %lx is to be read, which its node was told to give up",
                     (unsigned long)r->desc.version);
        TRACE(s, "master has version %lx staged in slot %u generation %lx", (unsigned long)recs[i].version, g->slot,
              (unsigned long)g->generation);
        g->is_staged = true;
        g->digest = recs[i].digest;
        g->version = recs[i].version;
        g->granted_ns = s->now;
        g->term = master_term(s);
        g->commit_ns = UINT64_MAX;
        if (r != NULL) {
            g->tenant = r->desc.tenant;
            g->put = r->put;
            g->commit_ns = r->commit_ns;
        }
        p->grants[i] = g;
        p->made[i] = r;
    }
}

void
tier_says_mount(sim_t *s, const conn_t *conn, bool is_whole)
{
    (void)s;
    node_of(conn)->tier.heard_conn = is_whole ? conn->id : 0;
}

static void
let_go_one(sim_t *s, tiered_t *r)
{
    TRACE(s, "version %lx may leave its tier", (unsigned long)r->desc.version);
    r->may_go = true;
    r->over_term = master_term(s);
}

void
tier_says_drop(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    const kvp_wire_tiered_t *recs = (const kvp_wire_tiered_t *)f->tail;

    for (size_t i = 0; i < f->tail_len / sizeof *recs; i++)
        for (tiered_t *r = node_of(conn)->tier.records; r != NULL; r = r->older)
            if (kvp_digest_eq(r->desc.digest, recs[i].digest) && r->desc.version <= recs[i].version) let_go_one(s, r);
}

void
tier_says_answer(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    tier_pending_t *p = take(s, conn, f);
    bool is_report = f->hdr.opcode == KVP_OP_TIER_REPORT;

    if (p == NULL) return;
    for (uint32_t i = 0; i < p->n && i < f->tail_len; i++) {
        if ((f->tail[i] != 0) == is_report)
            let_go_one(s, p->made[i]);
        else if (is_report)
            p->made[i]->heard_ns = s->now;
        p->made[i]->was_reclaimed |= !is_report && f->tail[i] == 0;
    }
    if (is_report && p->n == 0) node_of(conn)->tier.heard_conn = conn->id;
}

/* ---- what it hears */
static void
hears_report(sim_t *s, const conn_t *conn, const kvp_frame_t *f)
{
    const tier_pending_t *p = *find(s, conn, f);
    bool is_whole = p != NULL && f->tail_len > p->n * sizeof(kvp_wire_tiered_t);

    for (uint32_t i = 0; is_whole && i < p->n; i++)
        if (p->made[i]->put != 0) watch_told_by_tier(s, s->oracle->puts[p->made[i]->put], &p->made[i]->desc);
}

/* The node says that it has the version: it may have had it all the time, for it did not hear that it may let it go. */
static void
note_kept(const conn_t *conn, const tiered_t *made)
{
    tiered_t *r = any_of(node_of(conn), made->desc.digest, made->desc.version);

    if (r != NULL && r->was_reclaimed) r->over_term = 0;
}

void
tier_hears(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    tier_pending_t *p;

    if ((f->hdr.flags & KVP_FRAME_REPLY) == 0) {
        hears_report(s, conn, f);
        return;
    }
    p = take(s, conn, f);
    for (uint32_t i = 0; p != NULL && i < p->n && i < f->tail_len; i++) {
        if (p->grants == NULL && f->tail[i] != 0) p->made[i]->may_go |= is_forced(s, p->made[i]->from);
        if (p->grants == NULL && f->tail[i] != 0 && !p->made[i]->from->is_retired) p->made[i]->heard_ns = s->now;
        if (p->grants == NULL && f->tail[i] != 0) note_kept(conn, p->made[i]);
        if (p->grants == NULL || p->grants[i] == NULL || f->tail[i] != KVP_STAGE_OK) continue;
        p->grants[i]->is_commit_asked = p->grants[i]->is_committed = true;
        know(s, p->grants[i]);
        known_first(s, p->grants[i]->digest)->is_forced = p->made[i] == NULL || p->made[i]->may_go;
        p->grants[i]->is_just_loaded = !master_has_warm(s, p->grants[i]->digest) && !p->grants[i]->mem->moves_ssd;
        s->oracle->loaded = p;
    }
}

void
tier_heard(sim_t *s)
{
    tier_pending_t *p = s->oracle->loaded;

    s->oracle->loaded = NULL;
    for (uint32_t i = 0; p != NULL && i < p->n; i++)
        if (p->grants[i] != NULL && p->grants[i]->is_just_loaded &&
            !master_keeps_cold(s, p->grants[i]->digest, p->grants[i]->version))
            sim_fail(s, "USE", "what was loaded into slot %u counts as used more than once", p->grants[i]->slot);
}

void
tier_conn_over(sim_t *s, const conn_t *conn)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        if (s->nodes[i] != NULL && s->nodes[i]->tier.heard_conn == conn->id) s->nodes[i]->tier.heard_conn = 0;
}

void
tier_master_died(sim_t *s)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++) {
        s->nodes[i]->tier.heard_conn = 0;
        for (tiered_t *r = s->nodes[i]->tier.records; r != NULL; r = r->older)
            r->heard_ns = UINT64_MAX;
    }
    s->oracle->tier_pending = NULL;
}

void
tier_let_go(sim_t *s, uint32_t tenant, const kvp_digest_t *digest)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        for (tiered_t *r = s->nodes[i]->tier.records; r != NULL; r = r->older)
            r->may_go |= r->desc.tenant == tenant && (digest == NULL || kvp_digest_eq(r->desc.digest, *digest));
}

void
tier_missed(sim_t *s, uint32_t tenant, kvp_digest_t digest, uint64_t asked_ns)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        for (const tiered_t *r = s->nodes[i]->tier.records; r != NULL; r = r->older)
            if (r->is_there && !r->may_go && r->heard_ns < asked_ns && s->nodes[i]->tier.heard_conn != 0 &&
                r->desc.tenant == tenant && kvp_digest_eq(r->desc.digest, digest))
                sim_fail(s, "I3", "put %lu, version %lx, is on the tier of node%u, and was not found",
                         (unsigned long)r->put, (unsigned long)r->desc.version, i);
}

bool
tier_has(sim_t *s, kvp_digest_t digest, uint64_t version)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        for (const tiered_t *r = s->nodes[i]->tier.records; r != NULL; r = r->older)
            if (r->is_there && r->desc.version >= version && kvp_digest_eq(r->desc.digest, digest)) return true;
    return false;
}

void
tier_end(sim_t *s)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        for (const tiered_t *r = s->nodes[i]->tier.records; r != NULL; r = r->older)
            if (r->is_there && !r->was_reclaimed && r->heard_ns != UINT64_MAX &&
                !master_knows_tiered(s, s->nodes[i]->tier.segment_id, r))
                sim_fail(s, "I9", "version %lx is on the tier of node%u, and no object's",
                         (unsigned long)r->desc.version, i);
}
