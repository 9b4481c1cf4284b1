/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim_oracle.h"

#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 128u
#define BUCKETS 64u
#define SEGMENTS_MAX 512u
#define REPLICAS KVP_REPLICAS_MAX

/* A question that the master has not answered. */
typedef struct ask {
    uint64_t conn, request;
    uint8_t op;
    kvp_frame_t frame; /* in a packet, which stays */
    struct ask *next;
} ask_t;

/* An attempt that got its places. */
typedef struct attempt {
    uint64_t conn, id;
    grant_t *grants[REPLICAS];
    uint32_t grants_n;
    struct attempt *next;
} attempt_t;

typedef struct hold {
    uint64_t conn, ticket;
    grant_t **grants;
    uint32_t grants_n;
    struct hold *next;
} hold_t;

typedef struct known {
    grant_t *grant;
    bool is_forced; /* tickets no longer protect it: removed with force, or put anew while its node was away */
    bool was_missed; /* the master said that its key does not exist */
    struct known *next;
} known_t;

struct oracle {
    put_t *keys[KEYS_MAX]; /* newest first */
    put_t **puts; /* by id */
    uint64_t puts_n, puts_cap;
    ask_t *asks;
    attempt_t *attempts;
    hold_t *holds;
    known_t *known[BUCKETS]; /* by digest */
    struct {
        uint32_t term, id;
        mem_t *mem;
    } segments[SEGMENTS_MAX];
    uint32_t segments_n;
    uint32_t terms[NODES_MAX]; /* highest that each node has obeyed */
};

void
oracle_init(sim_t *s)
{
    s->oracle = sim_alloc(s, sizeof *s->oracle);
}

void
oracle_fini(sim_t *s)
{
    free(s->oracle->puts);
}

/* ---- segments and grants */
mem_t *
oracle_mem_of(sim_t *s, uint32_t term, uint32_t segment_id)
{
    const oracle_t *o = s->oracle;

    for (uint32_t i = o->segments_n; i-- > 0;)
        if (o->segments[i].term == term && o->segments[i].id == segment_id) return o->segments[i].mem;
    return NULL;
}

static void
note_segment(sim_t *s, uint32_t id, mem_t *mem)
{
    oracle_t *o = s->oracle;

    if (oracle_mem_of(s, master_term(s), id) == mem) return;
    if (oracle_mem_of(s, master_term(s), id) != NULL) sim_fail(s, "I5", "segment id %u is used twice in a term", id);
    if (o->segments_n == SEGMENTS_MAX) abort();
    o->segments[o->segments_n].term = master_term(s);
    o->segments[o->segments_n].id = id;
    o->segments[o->segments_n++].mem = mem;
}

static known_t **
bucket_of(sim_t *s, kvp_digest_t digest)
{
    return &s->oracle->known[(digest.lo ^ digest.lo >> 32) % BUCKETS];
}

static void
know(sim_t *s, grant_t *g)
{
    known_t **bucket = bucket_of(s, g->digest);
    known_t *k = sim_alloc(s, sizeof *k);

    *k = (known_t){.grant = g, .next = *bucket};
    *bucket = k;
}

static bool
is_served_for_ever(const grant_t *g)
{
    return g->is_committed && !g->is_retired && !g->is_lost && !g->mem->is_gone;
}

void
oracle_freed(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation)
{
    grant_t *g = grant_find(mem, chunk, slot, generation);

    (void)s;
    if (g != NULL) g->is_freed = true;
}

void
oracle_mem_gone(sim_t *s, mem_t *mem)
{
    (void)s;
    mem->is_gone = true;
}

/* ---- asks */
static void
ask_add(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    ask_t *a = sim_alloc(s, sizeof *a);

    *a = (ask_t){conn->id, f->hdr.request_id, f->hdr.opcode, *f, s->oracle->asks};
    s->oracle->asks = a;
}

static ask_t *
ask_take(sim_t *s, conn_t *conn, const kvp_frame_t *f)
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
hold_end(hold_t *h)
{
    for (uint32_t i = 0; i < h->grants_n; i++)
        h->grants[i]->holds--;
}

static void
hold_release(sim_t *s, conn_t *conn, uint64_t ticket)
{
    for (hold_t **at = &s->oracle->holds; *at != NULL; at = &(*at)->next) {
        hold_t *h = *at;

        if (h->conn != conn->id || h->ticket != ticket) continue;
        hold_end(h);
        *at = h->next;
        return;
    }
}

void
oracle_conn_over(sim_t *s, conn_t *conn)
{
    for (mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        if (mem->conn == conn->id) mem->conn = 0;
    for (hold_t **at = &s->oracle->holds; *at != NULL;) {
        hold_t *h = *at;

        if (h->conn == conn->id) {
            hold_end(h);
            *at = h->next;
        } else {
            at = &h->next;
        }
    }
}

/* ---- hearing */
static void
hears_release(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    for (size_t i = 0; i + 8 <= f->tail_len; i += 8) {
        uint64_t ticket;

        memcpy(&ticket, f->tail + i, 8);
        hold_release(s, conn, ticket);
    }
}

static void
hears_remove(sim_t *s, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = (const kvp_digest_t *)f->tail;
    Kvp__Pb__Remove *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__remove__descriptor, f);
    if (head != NULL) TRACE(s, "removal of %u keys%s", head->n, head->force ? ", by force" : "");
    for (uint32_t i = 0; head != NULL && head->force && i < head->n; i++)
        for (known_t *k = *bucket_of(s, digests[i]); k != NULL; k = k->next)
            if (kvp_digest_eq(k->grant->digest, digests[i])) k->is_forced = true;
    kvp_pb_free(&pb, head);
}

/* A key whose node is away may be put anew: the old version goes, whoever holds it. */
static void
hears_put(sim_t *s, const kvp_frame_t *f)
{
    const kvp_wire_put_t *puts = (const kvp_wire_put_t *)f->tail;
    Kvp__Pb__PutBegin *head;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, f);
    for (uint32_t i = 0; head != NULL && i < head->n; i++)
        for (known_t *k = *bucket_of(s, puts[i].digest); k != NULL; k = k->next)
            if (kvp_digest_eq(k->grant->digest, puts[i].digest) && k->grant->mem->conn == 0) k->is_forced = true;
    kvp_pb_free(&pb, head);
}

void
oracle_master_hears(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    if ((f->hdr.flags & KVP_FRAME_REPLY) != 0) return;
    if (f->hdr.opcode == KVP_OP_PUT_BEGIN) hears_put(s, f);
    switch (f->hdr.opcode) {
    case KVP_OP_PUT_BEGIN:
    case KVP_OP_PUT_COMMIT:
    case KVP_OP_GET:
    case KVP_OP_MOUNT:
        ask_add(s, conn, f);
        break;
    case KVP_OP_RELEASE:
        hears_release(s, conn, f);
        break;
    case KVP_OP_REMOVE:
        hears_remove(s, f);
        break;
    default:
        break;
    }
}

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

static void
says_granted(sim_t *s, conn_t *conn, const kvp_wire_put_t *put, const kvp_wire_obj_t *obj, const kvp_wire_loc_t *locs)
{
    attempt_t *a = sim_alloc(s, sizeof *a);

    *a = (attempt_t){.conn = conn->id, .id = put->attempt, .next = s->oracle->attempts};
    for (uint32_t i = 0; i < obj->nloc && i < REPLICAS; i++) {
        mem_t *mem = oracle_mem_of(s, master_term(s), locs[i].segment_id);
        grant_t *g;

        if (mem == NULL) {
            sim_fail(s, "I2", "a grant in segment %u, which does not exist", locs[i].segment_id);
            return;
        }
        g = grant_add(s, mem, locs[i].chunk, locs[i].slot, locs[i].generation, locs[i].offset, put->len);
        if (g == NULL) return;
        g->digest = put->digest;
        g->version = obj->version;
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
    const kvp_wire_loc_t *loc;
    places_t p;

    if (!places_read(s, f, &p)) return;
    loc = p.locs;
    for (uint32_t i = 0; i < p.head->n; i++) {
        if (p.objs[i].err == KVP_OK) says_granted(s, conn, &puts[i], &p.objs[i], loc);
        loc += p.objs[i].nloc;
    }
    kvp_pb_free(&p.pb, p.head);
}

/* What is acknowledged must be there: whole, unless it is on its way out again or its memory is gone. */
static void
committed(sim_t *s, grant_t *g)
{
    uint64_t word = g->mem->chunks[g->chunk].word[g->slot];

    g->is_committed = true;
    if (!g->mem->is_gone && word == kvp_word_make(g->generation, KVP_DESC_WRITING))
        sim_fail(s, "I3", "slot %u generation %lx is committed and not sealed", g->slot, (unsigned long)g->generation);
}

static void
says_committed(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_wire_commit_t *recs = (const kvp_wire_commit_t *)ask->frame.tail;
    const int32_t *errs = (const int32_t *)f->tail;

    for (size_t i = 0; i < f->tail_len / sizeof *errs; i++) {
        if (errs[i] != KVP_OK && errs[i] != KVP_ALREADY) continue;
        for (attempt_t *a = s->oracle->attempts; a != NULL; a = a->next) {
            if (a->conn != conn->id || a->id != recs[i].attempt) continue;
            for (uint32_t g = 0; g < a->grants_n; g++)
                if ((recs[i].replicas >> g & 1) != 0) committed(s, a->grants[g]);
        }
    }
}

static void
missed(sim_t *s, kvp_digest_t digest)
{
    for (known_t *k = *bucket_of(s, digest); k != NULL; k = k->next)
        if (kvp_digest_eq(k->grant->digest, digest) && is_served_for_ever(k->grant)) k->was_missed = true;
}

static grant_t *
says_place(sim_t *s, const kvp_wire_loc_t *loc)
{
    mem_t *mem = oracle_mem_of(s, master_term(s), loc->segment_id);
    grant_t *g = mem == NULL ? NULL : grant_find(mem, loc->chunk, loc->slot, loc->generation);

    if (g == NULL)
        sim_fail(s, "I1", "a reader is sent to slot %u generation %lx, which was never granted", loc->slot,
                 (unsigned long)loc->generation);
    else if (!g->is_committed)
        sim_fail(s, "I1", "a reader is sent to slot %u generation %lx, which is not committed", loc->slot,
                 (unsigned long)loc->generation);
    else if (g->is_retired)
        sim_fail(s, "I1", "a reader is sent to slot %u generation %lx, which is retired", loc->slot,
                 (unsigned long)loc->generation);
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
    *h = (hold_t){.conn = conn->id, .ticket = p.head->ticket};
    h->grants = sim_alloc(s, (p.head->nloc + 1) * sizeof(*h->grants));
    for (uint32_t i = 0; i < p.head->n; i++) {
        if (p.objs[i].err == KVP_NOT_FOUND) missed(s, digests[i]);
        for (uint32_t k = 0; k < p.objs[i].nloc; k++, loc++) {
            grant_t *g = says_place(s, loc);

            if (g != NULL && h->ticket != 0) h->grants[h->grants_n++] = g;
            if (g != NULL && h->ticket != 0) g->holds++;
        }
    }
    h->next = s->oracle->holds;
    s->oracle->holds = h;
    kvp_pb_free(&p.pb, p.head);
}

static bool
is_forced(sim_t *s, const grant_t *g)
{
    for (known_t *k = *bucket_of(s, g->digest); k != NULL; k = k->next)
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
    mem = oracle_mem_of(s, master_term(s), head->segment_id);
    for (uint32_t i = 0; mem != NULL && i < head->n; i++) {
        grant_t *g = grant_find(mem, slots[i].chunk, slots[i].slot, slots[i].generation);

        TRACE(s, "master retires node%u chunk %u slot %u generation %lx owner %lx", mem->node, slots[i].chunk,
              slots[i].slot, (unsigned long)slots[i].generation, (unsigned long)slots[i].owner);
        if (g == NULL) continue;
        if (!g->is_retired && g->holds > 0 && !is_forced(s, g))
            sim_fail(s, "I8", "slot %u generation %lx is retired under a hold", g->slot, (unsigned long)g->generation);
        g->is_retired = true;
    }
    kvp_pb_free(&pb, head);
}

/* Reservations take a quarter of the pool at most; what they had before the pool shrank they keep. */
static void
says_reserved(sim_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__LookupReply *head;
    kvp_master_stats_t st;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, f);
    master_stats(s, &st);
    if (head != NULL && head->granted > 0 && st.reserved_bytes > st.size_bytes / 4)
        sim_fail(s, "I8", "%lu bytes of %lu are reserved", (unsigned long)st.reserved_bytes,
                 (unsigned long)st.size_bytes);
    kvp_pb_free(&pb, head);
}

static void
says_mount(sim_t *s, conn_t *conn, const ask_t *ask, const kvp_frame_t *f)
{
    Kvp__Pb__MountReply *head;
    Kvp__Pb__Mount *asked;
    kvp_pb_t pb, asked_pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, f);
    asked = kvp_pb_unpack(&asked_pb, &kvp__pb__mount__descriptor, &ask->frame);
    if (head != NULL && asked != NULL && head->err == KVP_OK && !head->is_reset) {
        mem_t *mem = mem_find(s, asked->uuid.data);

        note_segment(s, head->segment_id, mem);
        mem->conn = conn->id;
    }
    kvp_pb_free(&pb, head);
    kvp_pb_free(&asked_pb, asked);
}

void
oracle_master_says(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    ask_t *ask;

    if ((f->hdr.flags & KVP_FRAME_REPLY) == 0) {
        if (f->hdr.opcode == KVP_OP_RETIRE) says_retire(s, f);
        return;
    }
    if (f->hdr.opcode == KVP_OP_LOOKUP) says_reserved(s, f);
    ask = ask_take(s, conn, f);
    if (ask == NULL) return;
    if (f->hdr.opcode == KVP_OP_PUT_BEGIN) says_granted_all(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_PUT_COMMIT) says_committed(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_GET) says_places(s, conn, ask, f);
    if (f->hdr.opcode == KVP_OP_MOUNT) says_mount(s, conn, ask, f);
}

/* This version keeps no journal: what it knew is gone with it, and nodes make their memory anew. */
void
oracle_master_died(sim_t *s)
{
    oracle_t *o = s->oracle;

    o->asks = NULL;
    o->attempts = NULL;
    o->holds = NULL;
    for (mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        mem->conn = 0;
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = o->known[b]; k != NULL; k = k->next) {
            k->grant->is_lost = true;
            k->grant->holds = 0;
        }
}

/* ---- what clients are told */
put_t *
oracle_put_begins(sim_t *s, uint32_t key, uint64_t len)
{
    oracle_t *o = s->oracle;
    put_t *put = sim_alloc(s, sizeof *put);

    if (o->puts_n + 1 >= o->puts_cap) {
        o->puts_cap = o->puts_cap == 0 ? 256 : o->puts_cap * 2;
        o->puts = realloc(o->puts, o->puts_cap * sizeof(*o->puts));
        if (o->puts == NULL) abort();
    }
    *put = (put_t){++o->puts_n, key, len, s->now, UINT64_MAX, UINT64_MAX, false, o->keys[key]};
    o->puts[put->id] = put;
    o->keys[key] = put;
    return put;
}

static bool
is_committed(sim_t *s, const put_t *put)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = s->oracle->known[b]; k != NULL; k = k->next)
            if (k->grant->put == put->id && k->grant->is_committed) return true;
    return false;
}

static bool
was_committed(sim_t *s, uint32_t key)
{
    for (const put_t *put = s->oracle->keys[key]; put != NULL; put = put->older)
        if (is_committed(s, put)) return true;
    return false;
}

void
oracle_put_ends(sim_t *s, put_t *put, kvp_err_t err)
{
    /* OK is also what the call says of a key that another put had committed. */
    if (err != KVP_OK) return;
    if (put->is_commit_sent && is_committed(s, put))
        put->acked_ns = s->now;
    else if (!was_committed(s, put->key))
        sim_fail(s, "I3", "a put of key %u is answered OK, and none was ever committed", put->key);
}

void
oracle_remove_ends(sim_t *s, uint32_t key, uint64_t begun_ns, kvp_err_t err)
{
    if (err != KVP_OK && err != KVP_NOT_FOUND) return;
    for (put_t *p = s->oracle->keys[key]; p != NULL; p = p->older)
        if (p->acked_ns <= begun_ns) p->gone_ns = kvp_min_u64(p->gone_ns, s->now);
}

void
oracle_got(sim_t *s, uint32_t key, uint64_t begun_ns, const uint64_t *units, uint64_t len)
{
    uint64_t id = units[0] >> 16;
    const put_t *put;

    if (id == 0 || id > s->oracle->puts_n) {
        sim_fail(s, "I1", "key %u: a get gave bytes that nobody wrote", key);
        return;
    }
    put = s->oracle->puts[id];
    for (uint32_t i = 0; i < (len + UNIT - 1) / UNIT; i++)
        if (units[i] != unit_make(id, i)) {
            sim_fail(s, "I1", "key %u: a get gave put %lu and, in unit %u, put %lu unit %lu", key, (unsigned long)id, i,
                     (unsigned long)(units[i] >> 16), (unsigned long)(units[i] & 0xffff));
            return;
        }
    if (put->key != key) sim_fail(s, "I1", "a get of key %u gave put %lu of key %u", key, (unsigned long)id, put->key);
    if (put->len != len)
        sim_fail(s, "I1", "key %u: a get gave %lu bytes of put %lu, which has %lu", key, (unsigned long)len,
                 (unsigned long)id, (unsigned long)put->len);
    if (!put->is_commit_sent) sim_fail(s, "I1", "key %u: a get gave put %lu, never committed", key, (unsigned long)id);
    if (put->gone_ns < begun_ns)
        sim_fail(s, "I6", "key %u: a get gave put %lu, gone since %.3f us", key, (unsigned long)id,
                 (double)put->gone_ns / 1e3);
}

/* ---- always, and at the end */
void
oracle_step(sim_t *s)
{
    (void)s;
}

static void
check_found(sim_t *s)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = s->oracle->known[b]; k != NULL; k = k->next)
            if (k->was_missed && is_served_for_ever(k->grant))
                sim_fail(s, "I3", "slot %u generation %lx of put %lu is committed, not retired, and was not found",
                         k->grant->slot, (unsigned long)k->grant->generation, (unsigned long)k->grant->put);
}

void
oracle_end(sim_t *s)
{
    kvp_master_stats_t st;
    const char *broken = master_check(s);

    if (broken != NULL) sim_fail(s, "CHECK", "master: %s", broken);
    master_stats(s, &st);
    if (st.quarantine_bytes != 0)
        sim_fail(s, "I9", "%lu bytes in quarantine without clients", (unsigned long)st.quarantine_bytes);
    if (st.retiring_bytes != 0)
        sim_fail(s, "I9", "%lu bytes retiring without clients", (unsigned long)st.retiring_bytes);
    if (st.attempts != 0 || st.clients != 0 || st.pending_puts != 0 || st.held_bytes != 0 || st.reserved_bytes != 0)
        sim_fail(s, "I9", "left without clients: attempts %lu clients %lu pending %lu held %lu reserved %lu",
                 (unsigned long)st.attempts, (unsigned long)st.clients, (unsigned long)st.pending_puts,
                 (unsigned long)st.held_bytes, (unsigned long)st.reserved_bytes);
    if (st.nodes != s->plan->nodes)
        sim_fail(s, "LIVENESS", "%lu of %u nodes are mounted", (unsigned long)st.nodes, s->plan->nodes);
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        if (node_unfree(s, i) != 0)
            sim_fail(s, "I9", "node %u: %lu extents are not free without clients", i, (unsigned long)node_unfree(s, i));
    check_found(s);
}
