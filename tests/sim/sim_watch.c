/* SPDX-License-Identifier: Apache-2.0
 * The oracle at the master's door: every question and every answer passes here, in the order in which the core heard
 * and said it. From that follows what was granted, is committed, held and retired, and with that what may be said
 * next: this file. What is heard is taken in sim_watch_hears.c, what is known of memory kept in sim_watch_mem.c. */
#include "tests/sim/sim_copy.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_tier.h"
#include "tests/sim/sim_watch.h"

#include "proto/pb.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

/* ---- saying */
typedef struct {
    Kvp__Pb__Places *head;
    kvp_pb_t pb;
    const kvp_wire_obj_t *objs;
    const kvp_wire_loc_t *locs;
} places_t;

static bool
places_read(sim_t *s, const kvp_frame_t *f, places_t *p)
{
    kvp_rd_t rd;

    p->head = kvp_pb_unpack(&p->pb, &kvp__pb__places__descriptor, f);
    if (p->head == NULL) return false;
    kvp_rd_init(&rd, f->tail, f->tail_len);
    p->objs = kvp_rd_array(&rd, p->head->n, sizeof *p->objs);
    p->locs = kvp_rd_array(&rd, p->head->nloc, sizeof *p->locs);
    if (rd.is_bad) sim_fail(s, "WIRE", "places that are cut");
    return !rd.is_bad;
}

/* What a PutBegin asks for, for all its keys. */
typedef struct {
    bool has_copies, is_pinned, is_upsert;
    const kvp_wire_group_t *groups; /* of each; NULL = of none */
    uint64_t heard_ns;
} wishes_t;

static wishes_t
wishes_of(const ask_t *ask)
{
    wishes_t wishes = {0};
    Kvp__Pb__PutBegin *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, &ask->frame);
    if (head != NULL) wishes = (wishes_t){head->replicas > 1, head->pin == KVP_PIN_HARD, head->is_upsert, NULL, 0};
    wishes.heard_ns = ask->heard_ns;
    if (head != NULL && head->has_groups)
        wishes.groups = (const kvp_wire_group_t *)((const kvp_wire_put_t *)ask->frame.tail + head->n);
    kvp_pb_free(&pb, head);
    return wishes;
}

static void
says_granted(sim_t *s, conn_t *conn, const wishes_t *wishes, uint32_t at, const kvp_wire_put_t *put,
             const kvp_wire_obj_t *obj, const kvp_wire_loc_t *locs)
{
    attempt_t *a = sim_alloc(s, sizeof *a);

    *a = (attempt_t){.conn = conn, .id = put->attempt, .digest = put->digest, .next = s->oracle->attempts};
    a->is_upsert = wishes->is_upsert;
    for (uint32_t i = 0; i < obj->nloc && i < KVP_REPLICAS_MAX; i++) {
        mem_t *mem = oracle_mem_of(s, master_term(s), locs[i].segment_id);
        grant_t *g;

        if (mem == NULL) {
            sim_fail(s, "I2", "a grant in segment %u, which does not exist", locs[i].segment_id);
            return;
        }
        g = (has_left_elder(s, mem) ? grant_note : grant_add)(s, mem, locs[i].chunk, locs[i].slot, locs[i].generation,
                                                              locs[i].offset, put->len);
        if (g == NULL) return;
        g->is_lost = g->may_go = master_is_elder(s);
        g->commit_ns = UINT64_MAX;
        g->digest = put->digest;
        g->tenant = tenant_of(s, conn);
        g->granted_ns = s->now;
        g->term = master_term(s);
        g->is_pinned = wishes->is_pinned;
        g->version = obj->version;
        copy_granted(s, g, wishes->heard_ns);
        if (wishes->groups != NULL) group_join(s, g, &wishes->groups[at]);
        uses_touch(s, put->digest);
        know(s, g);
        a->grants[a->grants_n++] = g;
        TRACE(s, "master grants node%u chunk %u slot %u generation %lx units %u+%u", mem->node, g->chunk, g->slot,
              (unsigned long)g->generation, g->unit, g->units);
    }
    s->oracle->attempts = a;
}

static void
says_granted_all(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_wire_put_t *puts = (const kvp_wire_put_t *)ask->frame.tail;
    wishes_t wishes = wishes_of(ask);
    const kvp_wire_loc_t *loc;
    places_t p;

    if (!places_read(s, f, &p)) return;
    expire_holds(s);
    loc = p.locs;
    for (uint32_t i = 0; i < p.head->n; i++) {
        if (p.objs[i].err == KVP_OK) says_granted(s, conn, &wishes, i, &puts[i], &p.objs[i], loc);
        if (p.objs[i].err == KVP_NO_SPACE && !wishes.has_copies && !master_is_elder(s))
            oracle_no_space(s, tenant_of(s, conn), puts[i].len);
        time_put_said(s, ask, i, p.objs[i].err);
        loc += p.objs[i].nloc;
    }
    room_granted(s, conn);
    kvp_pb_free(&p.pb, p.head);
}

/* What is acknowledged must be there: whole, unless it is on its way out again or its memory is gone. */
static void
committed(sim_t *s, grant_t *g)
{
    uint64_t word = g->mem->chunks[g->chunk].word[g->slot];

    g->is_committed = true;
    if (g->put != 0) {
        s->oracle->puts[g->put]->is_committed = true;
        s->oracle->puts[g->put]->term = master_term(s);
    }
    if (!g->mem->is_gone && word == kvp_word_make(g->generation, KVP_DESC_WRITING))
        sim_fail(s, "I3", "slot %u generation %lx is committed and not sealed", g->slot, (unsigned long)g->generation);
}

static void
promised(sim_t *s, grant_t *g)
{
    committed(s, g);
    g->is_promised = true;
    if (s->plan->has_journal && !master_is_elder(s) && !disk_has_said(s, g->digest, g->version))
        sim_fail(s, "I3", "slot %u generation %lx is acknowledged, and its journal may forget it", g->slot,
                 (unsigned long)g->generation);
}

/* Who repeats a commit is promised no more than who was first. */
static void
check_first_is_answered(sim_t *s, const conn_t *conn, const ask_t *ask, uint64_t attempt)
{
    for (const ask_t *a = s->oracle->asks; a != NULL; a = a->next) {
        const kvp_wire_commit_t *recs = (const kvp_wire_commit_t *)a->frame.tail;

        if (a->conn != conn->id || a->op != KVP_OP_PUT_COMMIT || a->request > ask->request) continue;
        for (size_t i = 0; i < a->frame.tail_len / sizeof *recs; i++)
            if (recs[i].attempt == attempt) sim_fail(s, "I6", "a repeated commit is answered before the first");
    }
}

static void
says_committed(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_wire_commit_t *recs = (const kvp_wire_commit_t *)ask->frame.tail;
    const int32_t *errs = (const int32_t *)f->tail;

    for (size_t i = 0; i < f->tail_len / sizeof *errs; i++) {
        attempt_t *a = errs[i] == KVP_OK || errs[i] == KVP_ALREADY ? attempt_of(s, conn, recs[i].attempt) : NULL;

        for (uint32_t g = 0; a != NULL && g < a->grants_n; g++)
            if ((recs[i].replicas >> g & 1) != 0) promised(s, a->grants[g]);
        if (a != NULL) check_first_is_answered(s, conn, ask, recs[i].attempt);
        if (a != NULL && a->is_upsert && a->grants_n > 0 &&
            !master_is_elder(s)) /* of other puts that is not promised */
            kept_check_older(s, a->grants[0]);
    }
}

/* may_be_away: the answer says the same of a key whose node is away. */
static void
missed(sim_t *s, uint32_t tenant, kvp_digest_t digest, const ask_t *ask, bool may_be_away)
{
    tier_missed(s, tenant, digest, ask->heard_ns);
    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest)) {
        if (may_be_away && k->grant->mem->conn == 0) continue;
        if (k->grant->tenant != tenant || !grant_is_served_for_ever(k->grant)) continue;
        if (group_must_show(k->grant))
            k->was_missed = true;
        else
            group_missed(s, k->grant);
    }
}

/* It was evicted, which the log's end told, and that was lost: until its node has told its words its place is believed.
 * Who looks there finds it DEAD. */
static bool
is_of_torn_log(const sim_t *s, const grant_t *g)
{
    return g->mem->tells_words && g->mem->conn == 0 && disk_knows(s, g->tenant, g->digest, g->version);
}

static grant_t *
says_place(sim_t *s, const kvp_wire_loc_t *loc)
{
    mem_t *mem = oracle_mem_of(s, master_term(s), loc->segment_id);
    grant_t *g = mem == NULL ? NULL : grant_find(mem, loc->chunk, loc->slot, loc->generation);

    if (g == NULL)
        sim_fail(s, "I1", "a reader is sent to slot %u generation %lx, which was never granted", loc->slot,
                 (unsigned long)loc->generation);
    else if (!g->is_committed && !g->is_commit_asked && !g->was_reported)
        sim_fail(s, "I1", "a reader is sent to slot %u generation %lx, which is not committed", loc->slot,
                 (unsigned long)loc->generation);
    else if (g->is_retired && !is_of_torn_log(s, g))
        sim_fail(s, "I1", "a reader is sent to slot %u generation %lx, which is retired", loc->slot,
                 (unsigned long)loc->generation);
    else if (g->is_refused)
        sim_fail(s, "I6", "a reader is sent to slot %u generation %lx, which the journal does not know", loc->slot,
                 (unsigned long)loc->generation);
    else if (!g->is_committed)
        committed(s, g); /* its answer is still to come */
    return g;
}

static void
says_places(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)ask->frame.tail;
    const kvp_wire_loc_t *loc;
    hold_t *h = sim_alloc(s, sizeof *h);
    places_t p;

    if (!places_read(s, f, &p)) return;
    loc = p.locs;
    *h = (hold_t){.conn = conn->id, .ticket = p.head->ticket, .until_ns = UINT64_MAX};
    h->grants = sim_alloc(s, (p.head->nloc + 1) * sizeof(*h->grants));
    for (uint32_t i = 0; i < p.head->n; i++) {
        uses_touch(s, digests[i]);
        if (p.objs[i].err == KVP_NOT_FOUND) missed(s, tenant_of(s, conn), digests[i], ask, false);
        for (uint32_t k = 0; k < p.objs[i].nloc; k++, loc++) {
            grant_t *g = says_place(s, loc);

            if (g != NULL) group_shown(s, g);
            if (g != NULL && h->ticket != 0) h->grants[h->grants_n++] = g;
            if (g != NULL && h->ticket != 0) g->holds++;
        }
    }
    h->next = s->oracle->holds;
    s->oracle->holds = h;
    kvp_pb_free(&p.pb, p.head);
}

bool
is_forced(sim_t *s, const grant_t *g)
{
    if (g->may_go) return true; /* perhaps by an upsert that was heard before the report */
    for (known_t *k = known_first(s, g->digest); k != NULL; k = known_next(k, g->digest))
        if (k->grant == g) return k->is_forced;
    return false;
}

static void
says_retire(sim_t *s, const kvp_frame_t *f)
{
    const kvp_wire_slot_t *slots = (const kvp_wire_slot_t *)f->tail;
    Kvp__Pb__Retire *head;
    kvp_pb_t pb;
    mem_t *mem;

    head = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, f);
    if (head == NULL) return;
    expire_holds(s);
    mem = oracle_mem_of(s, master_term(s), head->segment_id);
    if (mem != NULL && has_left_elder(s, mem)) mem = NULL; /* it does not obey */
    for (uint32_t i = 0; mem != NULL && i < head->n; i++) {
        bool is_moved;
        grant_t *g = grant_find(mem, slots[i].chunk, slots[i].slot, slots[i].generation);

        TRACE(s, "master retires node%u chunk %u slot %u generation %lx owner %lx", mem->node, slots[i].chunk,
              slots[i].slot, (unsigned long)slots[i].generation, (unsigned long)slots[i].owner);
        if (g == NULL && slots[i].owner == KVP_OWNER_ANY) note_gap(s, mem, &slots[i]);
        if (g == NULL) continue;
        is_moved = copy_retires(s, g);
        if (!g->is_retired && g->holds > 0 && (!is_moved || copy_is_held(s, g)) && !g->mem->is_gone && !is_forced(s, g))
            sim_fail(s, "I8", "slot %u generation %lx is retired under a hold", g->slot, (unsigned long)g->generation);
        if (!g->is_retired && is_carried(s, g) && !g->mem->is_gone && !is_forced(s, g))
            sim_fail(s, "I8", "slot %u generation %lx is retired before who held it could present it", g->slot,
                     (unsigned long)g->generation);
        if (!g->is_retired) uses_evicted(s, g);
        if (!g->is_retired) g->retired_ns = s->now;
        g->is_retired = true;
        g->is_quarantined = slots[i].owner != 0;
        promise_retired(s, g);
        group_retired(g);
        if (!is_moved) let_go(s, g->tenant, &g->digest, UINT64_MAX); /* an object is evicted with all its copies */
    }
    kvp_pb_free(&pb, head);
}

static bool
asks_plainly(const ask_t *ask)
{
    Kvp__Pb__Exists *head;
    bool is_plain;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__exists__descriptor, &ask->frame);
    is_plain = head == NULL || head->is_plain;
    kvp_pb_free(&pb, head);
    return is_plain;
}

/* A probe is its object's: the newest version's. */
static void
says_probed(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)ask->frame.tail;

    for (size_t i = 0; i < f->tail_len && (i + 1) * sizeof *digests <= ask->frame.tail_len; i++) {
        known_t *newest = NULL;

        for (known_t *k = known_first(s, digests[i]); k != NULL; k = known_next(k, digests[i])) {
            if (k->grant->tenant != tenant_of(s, conn) || !grant_is_served_for_ever(k->grant)) continue;
            if (newest == NULL || newest->grant->version < k->grant->version) newest = k;
        }
        if (f->tail[i] != 0 && newest != NULL) newest->grant->probed_ns = master_now(s);
    }
}

static void
says_removed(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)ask->frame.tail;
    const int32_t *errs = (const int32_t *)f->tail;

    for (size_t i = 0; i < f->tail_len / sizeof *errs; i++)
        if (errs[i] == KVP_OK || errs[i] == KVP_NOT_FOUND)
            kept_check(s, &(gone_t){tenant_of(s, conn), &digests[i], ask->heard_ns});
    for (size_t i = 0; i < f->tail_len / sizeof *errs; i++)
        if (errs[i] == KVP_OK) copy_removed(s, digests[i], ask->heard_ns);
    for (size_t i = 0; i < 64 && (i + 1) * sizeof(int32_t) <= f->tail_len; i++)
        if ((ask->must_hold >> i & 1) != 0 && ((const int32_t *)f->tail)[i] == KVP_OK)
            sim_fail(s, "I8", "a removal that heeds probes took what somebody had just asked for");
}

static void
says_bumped(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    Kvp__Pb__BumpReply *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__bump_reply__descriptor, f);
    if (head != NULL && head->err == KVP_OK) kept_check(s, &(gone_t){tenant_of(s, conn), NULL, ask->heard_ns});
    kvp_pb_free(&pb, head);
}

/* Who is told that a key is there, or not. */
static void
says_present(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)ask->frame.tail;

    for (size_t i = 0; i < f->tail_len && (i + 1) * sizeof *digests <= ask->frame.tail_len; i++) {
        if (f->tail[i] == 0)
            missed(s, tenant_of(s, conn), digests[i], ask, true);
        else
            group_key_shown(s, tenant_of(s, conn), digests[i]);
    }
}

static void
says_groups(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)ask->frame.tail;

    for (size_t i = 0; i < f->tail_len && (i + 1) * sizeof *digests <= ask->frame.tail_len; i++)
        group_looked_up(s, tenant_of(s, conn), digests[i], f->tail[i] != 0);
}

static bool
asks_groups(const ask_t *ask)
{
    Kvp__Pb__Lookup *head;
    bool is_groups;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__lookup__descriptor, &ask->frame);
    is_groups = head != NULL && head->is_groups;
    kvp_pb_free(&pb, head);
    return is_groups;
}

static bool
may_be_found(const grant_t *g, uint32_t tenant)
{
    return g->tenant == tenant && grant_is_served_for_ever(g);
}

/* Its commit was heard and is not answered yet: whether the master has it by now only the master knows. */
static bool
is_in_doubt(const grant_t *g, uint32_t tenant)
{
    return g->tenant == tenant && g->is_commit_asked && !g->is_committed && !g->is_retired && !g->is_lost;
}

/* What a look-up's ticket protects: of each key found, the copies of the newest version. An older one that is not
 * retired yet is on its way out: its node is away, or has not taken the order. */
void
hold_found(sim_t *s, uint32_t tenant, hold_t *h, kvp_digest_t digest)
{
    uint64_t version = 0;

    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest))
        if (may_be_found(k->grant, tenant)) version = kvp_max_u64(version, k->grant->version);
    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest))
        if (is_in_doubt(k->grant, tenant) && k->grant->version > version) return;
    if (tier_has(s, digest, version)) return; /* its extent may be on its way out, and the tier alone be meant */
    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest)) {
        if (!may_be_found(k->grant, tenant) || k->grant->version != version) continue;
        h->grants[h->grants_n++] = k->grant;
        k->grant->holds++;
    }
}

void
hold_group(sim_t *s, uint32_t tenant, hold_t *h, kvp_digest_t digest)
{
    uint32_t n = group_hold(s, tenant, digest, h->grants + h->grants_n, HELD_A_DIGEST);

    for (; n > 0; n--)
        h->grants[h->grants_n++]->holds++;
}

static void
says_held(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f, const Kvp__Pb__LookupReply *head)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)ask->frame.tail;
    size_t n = ask->frame.tail_len / sizeof *digests;
    hold_t *h = sim_alloc(s, sizeof *h);
    uint32_t granted = head->granted;
    bool is_groups = asks_groups(ask);

    *h = (hold_t){.conn = conn->id, .ticket = head->ticket, .until_ns = master_now(s) + head->ttl_ms * MS};
    h->begun_ns = s->now;
    h->asked = digests;
    h->asked_n = (uint32_t)n;
    h->grants = sim_alloc(s, n * HELD_A_DIGEST * sizeof(*h->grants));
    h->next = s->oracle->holds;
    s->oracle->holds = h;
    for (size_t i = 0; i < n && granted > 0; i++) {
        if (i < f->tail_len && f->tail[i] == 0) continue; /* a prefix has no such bytes: all of it is found */
        if (is_groups)
            hold_group(s, tenant_of(s, conn), h, digests[i]);
        else
            hold_found(s, tenant_of(s, conn), h, digests[i]);
        granted--;
    }
}

/* How many copies a master counts that has learned of them from reports is not known here, nor what it knew when it
 * gave the answer, where that waited for a journal; nor which of two extents it means of what was staged while its
 * memory was away; nor which copies it has dropped whose node is away. */
static bool
is_share_known(const sim_t *s)
{
    return s->plan->replicas_max == 1 && master_term(s) == 1 && !s->plan->has_journal && !s->plan->has_tiers &&
           !s->plan->has_moves;
}

static uint64_t
reserved_by(sim_t *s, const conn_t *conn)
{
    uint64_t bytes = 0;

    expire_holds(s);
    for (const hold_t *h = s->oracle->holds; h != NULL; h = h->next)
        for (uint32_t i = 0; h->conn == conn->id && h->until_ns != UINT64_MAX && i < h->grants_n; i++)
            bytes += h->grants[i]->len;
    return bytes;
}

/* Reservations take a quarter of the pool at most, and a client's a twentieth; what they had before the pool shrank
 * they keep. */
static void
says_reserved(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    Kvp__Pb__LookupReply *head;
    kvp_master_stats_t st;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, f);
    if (head == NULL) return;
    master_stats(s, &st);
    if (head->granted > 0 && st.reserved_bytes > st.size_bytes / 4)
        sim_fail(s, "I8", "%lu bytes of %lu are reserved", (unsigned long)st.reserved_bytes,
                 (unsigned long)st.size_bytes);
    if (head->ticket != 0) says_held(s, conn, ask, f, head);
    if (head->granted > 0 && is_share_known(s) && reserved_by(s, conn) > st.size_bytes / 20)
        sim_fail(s, "I8", "a client has %lu bytes of %lu reserved", (unsigned long)reserved_by(s, conn),
                 (unsigned long)st.size_bytes);
    kvp_pb_free(&pb, head);
}

/* As long as reports are believed, one that was cut is to be told again: nothing of what it would tell is lost. */
static void
says_reset(sim_t *s, const mem_t *mem)
{
    if (mem->asked_term != master_term(s) || mem->heard_term == master_term(s) || master_is_elder(s)) return;
    if (master_age(s) < s->plan->node_grace_ns)
        sim_fail(s, "I3", "node%u is to make its memory anew, of which it was telling", mem->node);
}

static void
says_mount(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    Kvp__Pb__MountReply *head;
    Kvp__Pb__Mount *asked;
    kvp_pb_t pb, asked_pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, f);
    asked = kvp_pb_unpack(&asked_pb, &kvp__pb__mount__descriptor, &ask->frame);
    if (head != NULL && asked != NULL && asked->is_tier)
        tier_says_mount(s, conn, head->err == KVP_OK && head->report == 0);
    else if (head != NULL && asked != NULL && head->err == KVP_OK && head->is_reset)
        says_reset(s, mem_find(s, asked->uuid.data));
    if (head != NULL && asked != NULL && !asked->is_tier && head->err == KVP_OK && !head->is_reset) {
        mem_t *mem = mem_find(s, asked->uuid.data);

        if (head->report != 0) mem->asked_term = master_term(s);
        mem->tells_words = head->report == 1;
        mem->since = head->since;
        mem->mounted_ns = s->now;
        note_segment(s, head->segment_id, mem);
        if (!master_is_elder(s))
            mem->conn = head->report == 0 ? conn->id : 0; /* it serves nothing before it is heard */
    }
    kvp_pb_free(&pb, head);
    kvp_pb_free(&asked_pb, asked);
}

static void
says_heard(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    Kvp__Pb__Report *asked;
    Kvp__Pb__Reply *head;
    kvp_pb_t pb, asked_pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, f);
    asked = kvp_pb_unpack(&asked_pb, &kvp__pb__report__descriptor, &ask->frame);
    if (head != NULL && asked != NULL && head->err == KVP_OK && asked->is_last) {
        mem_t *mem = mem_find(s, asked->uuid.data);

        mem->conn = conn->id;
        mem->heard_term = master_term(s);
        mem->mounted_ns = s->now;
        reported(s, mem);
    }
    kvp_pb_free(&pb, head);
    kvp_pb_free(&asked_pb, asked);
}

/* Of the elder only that matters which a writer may do under it. */
static void
elder_says(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    if (f->hdr.opcode == KVP_OP_PUT_BEGIN) says_granted_all(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_PUT_COMMIT) says_committed(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_MOUNT) says_mount(s, conn, ask, f);
}

void
oracle_master_says(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    ask_t *ask;

    if ((f->hdr.flags & KVP_FRAME_REPLY) == 0) {
        if (f->hdr.opcode == KVP_OP_RETIRE) says_retire(s, f);
        if (f->hdr.opcode == KVP_OP_STAGE) tier_says_stage(s, conn, f);
        if (f->hdr.opcode == KVP_OP_COPY) copy_says_order(s, conn, f);
        if (f->hdr.opcode == KVP_OP_DROP) tier_says_drop(s, conn, f);
        return;
    }
    if (f->hdr.opcode == KVP_OP_TIER_REPORT || f->hdr.opcode == KVP_OP_RECLAIM) tier_says_answer(s, conn, f);
    if (f->hdr.opcode == KVP_OP_DRAIN && !master_is_elder(s)) copy_says_drain(s, conn, f);
    ask = asked_take(s, conn, f);
    if (ask == NULL) return;
    if (master_is_elder(s)) {
        elder_says(s, conn, ask, f);
        return;
    }
    time_said(s, ask);
    if (f->hdr.opcode == KVP_OP_PUT_BEGIN) says_granted_all(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_PUT_COMMIT) says_committed(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_GET) says_places(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_EXISTS) says_present(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_EXISTS && !asks_plainly(ask)) says_probed(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_REMOVE) says_removed(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_BUMP) says_bumped(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_LOOKUP) (asks_groups(ask) ? says_groups : says_present)(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_LOOKUP) says_reserved(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_PRESENT) says_presented(s, conn, tenant_of(s, conn), ask, f);
    if (f->hdr.opcode == KVP_OP_MOUNT) says_mount(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_TASK) task_said(s, tenant_of(s, conn), ask, f);
    if (f->hdr.opcode == KVP_OP_REPORT) says_heard(s, conn, ask, f);
}

/* What it knew is gone with it, but for what nodes report and, where it has one, its journal says. */
void
oracle_master_died(sim_t *s)
{
    s->oracle->asks = NULL;
    s->oracle->attempts = NULL;
    oracle_master_succeeded(s);
}

/* It still answers what it was asked, and what it granted may be committed. */
void
oracle_master_succeeded(sim_t *s)
{
    oracle_t *o = s->oracle;

    holds_carry(s, s->elder == NULL);
    tier_master_died(s);
    copy_master_died(s);
    o->holds = NULL;
    for (mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        mem->conn = 0;
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = o->known[b]; k != NULL; k = k->next) {
            k->grant->is_lost = true;
            k->grant->holds = 0;
            k->grant->probed_ns = 0;
        }
}
