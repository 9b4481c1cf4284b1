/* SPDX-License-Identifier: Apache-2.0
 * Everything at once, from a seed: clients that put, read, hold, reserve, remove, stall and die; nodes that are slow, go,
 * come back with or without their memory, and unmount; soft pins, and groups that go as one; delays everywhere. The world
 * holds grants and places against each other; the model here holds what is found, held and removed against what the master
 * was asked. KVPOOL_TEST_TIER (quick, normal, long) says how many seeds, KVPOOL_SOAK_SEED names one.
 */
#include "tests/world/world.h"

#include "common/slab.h"

#include <stdio.h>

#define KEYS 400u
#define GROUPS 40u /* units of eviction, named as some keys are */
#define CLIENTS 5u
#define NODES 2u
#define OPS_MAX 8u /* messages under way of one client */
#define BATCH 8u
#define TICKETS 16u
#define GRACE_NS SEC

typedef enum {
    OP_NONE,
    OP_PUT,
    OP_COMMIT,
    OP_ABORT,
    OP_GET,
    OP_EXISTS,
    OP_LOOKUP,
    OP_REMOVE,
    OP_REMOVE_MANY,
    OP_OTHER
} op_kind_t;

typedef struct {
    op_kind_t kind;
    bool is_forced; /* a removal */
    uint64_t id;
    uint32_t n;
    uint32_t keys[BATCH];
    put_t puts[BATCH];
    kvp_wire_loc_t locs[BATCH]; /* PUT: granted; COMMIT: written */
    uint64_t attempts[BATCH];
} op_t;

/* A version of an object that was committed, as far as the master's words tell. */
typedef struct {
    bool is_there;
    bool is_doubted; /* the master did not find it; the reason must come to light */
    bool is_given_up; /* somebody asked for its removal by force, or put over it: holds do not protect it */
    uint32_t holds;
    kvp_wire_loc_t loc;
    mem_t *mem;
} version_t;

typedef struct {
    uint64_t id; /* 0 = none */
    uint32_t n;
    uint32_t keys[BATCH];
    uint64_t generations[BATCH]; /* of the versions held */
} ticket_t;

typedef struct {
    peer_t *p;
    op_t ops[OP_NONE + OPS_MAX];
    ticket_t tickets[TICKETS];
    /* Granted and not ended, left lying by intent. */
    uint64_t left[BATCH];
    uint32_t left_n;
} client_t;

typedef struct {
    mem_t *mem;
    peer_t *p; /* NULL = away */
    uint64_t back_ns;
    bool is_leaving; /* unmounting */
    uint64_t unmount_id;
} place_t;

typedef struct {
    world_t *w;
    client_t clients[CLIENTS];
    place_t nodes[NODES];
    version_t versions[KEYS];
    bool is_unsure[KEYS]; /* a commit of it was not answered, and never will be */
    char names[KEYS][16];
    kvp_digest_t digests[KEYS];
    uint64_t unproved[1024];
    uint32_t unproved_n;
    bool is_mixed; /* sizes */
    uint64_t commits, found, missed, doubts;
} soak_t;

/* ---- the model */
static place_t *
place_of(soak_t *s, const mem_t *mem)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (s->nodes[i].mem == mem) return &s->nodes[i];
    return NULL;
}

static place_t *
place_of_segment(soak_t *s, uint32_t segment_id)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (s->nodes[i].mem->segment_id == segment_id) return &s->nodes[i];
    return NULL;
}

static bool
is_up(soak_t *s, const version_t *v)
{
    const place_t *at = place_of(s, v->mem);

    return at->p != NULL && at->p->conn != 0 && !at->is_leaving;
}

static bool
is_same(const kvp_wire_loc_t *a, const kvp_wire_loc_t *b)
{
    return a->segment_id == b->segment_id && a->chunk == b->chunk && a->slot == b->slot &&
           a->generation == b->generation && a->offset == b->offset;
}

static void
forget_memory(soak_t *s, const mem_t *mem)
{
    for (uint32_t k = 0; k < KEYS; k++)
        if (s->versions[k].mem == mem) s->versions[k] = (version_t){0};
}

/* A commit whose answer waits; NULL = there is none. */
static op_t *
commit_due(soak_t *s, uint32_t k, uint32_t *at_out)
{
    for (uint32_t i = 0; i < CLIENTS * OPS_MAX; i++) {
        op_t *op = &s->clients[i / OPS_MAX].ops[i % OPS_MAX];

        for (*at_out = 0; op->kind == OP_COMMIT && *at_out < op->n; ++*at_out)
            if (op->keys[*at_out] == k) return op;
    }
    return NULL;
}

/* It may be found already, or be gone again. */
static bool
is_open(soak_t *s, uint32_t k)
{
    uint32_t at;

    return s->is_unsure[k] || commit_due(s, k, &at) != NULL;
}

static void
on_retire(void *arg, mem_t *mem, const kvp_wire_slot_t *slot)
{
    soak_t *s = arg;
    uint32_t at;

    for (uint32_t k = 0; k < KEYS; k++) {
        op_t *op = commit_due(s, k, &at);

        if (op != NULL && op->locs[at].segment_id == mem->segment_id && op->locs[at].generation == slot->generation)
            op->locs[at].generation = 0;
    }
    for (uint32_t k = 0; k < KEYS; k++) {
        version_t *v = &s->versions[k];

        if (!v->is_there || v->mem != mem || v->loc.chunk != slot->chunk || v->loc.slot != slot->slot) continue;
        assert_int_equal(v->loc.generation, slot->generation);
        if (v->holds > 0 && !v->is_given_up) fail_msg("%s is retired under a hold", s->names[k]);
        s->versions[k] = (version_t){0};
    }
}

static void
saw_missing(soak_t *s, uint32_t k)
{
    version_t *v = &s->versions[k];

    s->missed++;
    if (!v->is_there || !is_up(s, v) || is_open(s, k)) return;
    if (v->holds > 0 && !v->is_given_up) fail_msg("%s is held and not found", s->names[k]);
    s->doubts += !v->is_doubted;
    v->is_doubted = true;
}

static void
saw_present(soak_t *s, uint32_t k, const kvp_wire_loc_t *loc)
{
    const version_t *v = &s->versions[k];

    s->found++;
    if (is_open(s, k)) return;
    if (!v->is_there) fail_msg("%s is found and was not committed", s->names[k]);
    if (v->is_doubted) fail_msg("%s is back", s->names[k]);
    if (loc != NULL) assert_true(is_same(loc, &v->loc));
}

/* ---- a client's messages: sent, and seen answered */
static client_t *
client_of(soak_t *s, const peer_t *p)
{
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (s->clients[i].p == p) return &s->clients[i];
    return NULL;
}

static op_t *
op_find(client_t *c, op_kind_t kind, uint64_t id)
{
    for (uint32_t i = 0; i < OPS_MAX; i++)
        if (c->ops[i].kind == kind && (kind == OP_NONE || c->ops[i].id == id)) return &c->ops[i];
    return NULL;
}

static uint32_t
pick_key(soak_t *s, bool is_there)
{
    uint32_t k = (uint32_t)world_below(s->w, KEYS);

    for (uint32_t tries = 0; tries < 10 && s->versions[k].is_there != is_there; tries++)
        k = (uint32_t)world_below(s->w, KEYS);
    return k;
}

static uint32_t
pick_keys(soak_t *s, uint32_t *keys)
{
    uint32_t n = 1 + (uint32_t)world_below(s->w, BATCH);

    for (uint32_t i = 0; i < n; i++) {
        bool is_again;

        do {
            keys[i] = pick_key(s, world_below(s->w, 3) != 0);
            is_again = false;
            for (uint32_t k = 0; k < i; k++)
                is_again = is_again || keys[k] == keys[i];
        } while (is_again);
    }
    return n;
}

static void
send_digests(soak_t *s, client_t *c, op_t *op, op_kind_t kind, uint8_t opcode, const void *head)
{
    kvp_digest_t digests[BATCH];

    for (uint32_t i = 0; i < op->n; i++)
        digests[i] = s->digests[op->keys[i]];
    op->kind = kind;
    op->id = c->p->request_seq + 1; /* the answer may be seen before the call returns */
    (void)peer_send(c->p, opcode, 0, head, digests, op->n * sizeof *digests);
}

static uint64_t
pick_len(soak_t *s)
{
    if (!s->is_mixed) return 8 * KIB;
    return 1 + world_below(s->w, 64ull << world_below(s->w, 13)); /* up to 256 KiB, small ones more often */
}

static void
send_put(soak_t *s, client_t *c, op_t *op)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    op->n = 1 + (uint32_t)world_below(s->w, BATCH);
    for (uint32_t i = 0; i < op->n; i++)
        op->keys[i] = pick_key(s, world_below(s->w, 8) == 0);
    for (uint32_t i = 0; i < op->n; i++) {
        uint64_t group = world_below(s->w, 3 * GROUPS);

        op->puts[i] = (put_t){.key = s->names[op->keys[i]], .len = pick_len(s)};
        if (group < GROUPS) op->puts[i].group = group_of(c->p, s->names[group], 0, 0);
    }
    head.pin = world_below(s->w, 4) == 0 ? KVP_PIN_SOFT : KVP_PIN_NONE;
    head.wait_ms = 1 + (uint32_t)world_below(s->w, 2000);
    op->kind = OP_PUT;
    op->id = c->p->request_seq + 1;
    (void)put_begin_with(c->p, op->puts, op->n, &head);
}

static void
send_get(soak_t *s, client_t *c, op_t *op)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;

    op->n = head.n = pick_keys(s, op->keys);
    head.no_hold = world_below(s->w, 3) == 0;
    send_digests(s, c, op, OP_GET, KVP_OP_GET, &head.base);
}

static void
send_exists(soak_t *s, client_t *c, op_t *op)
{
    Kvp__Pb__Exists head = KVP__PB__EXISTS__INIT;

    op->n = head.n = pick_keys(s, op->keys);
    send_digests(s, c, op, OP_EXISTS, KVP_OP_EXISTS, &head.base);
}

static void
send_lookup(soak_t *s, client_t *c, op_t *op)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;

    op->n = head.n = pick_keys(s, op->keys);
    head.is_prefix = world_below(s->w, 2) == 0;
    head.ttl_ms = (uint32_t)world_below(s->w, 300);
    send_digests(s, c, op, OP_LOOKUP, KVP_OP_LOOKUP, &head.base);
}

static void
give_up(soak_t *s, uint32_t k)
{
    s->versions[k].is_given_up = true;
}

static void
send_remove(soak_t *s, client_t *c, op_t *op)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;

    op->n = head.n = pick_keys(s, op->keys);
    head.force = op->is_forced = world_below(s->w, 2) == 0;
    for (uint32_t i = 0; head.force && i < op->n; i++)
        give_up(s, op->keys[i]);
    send_digests(s, c, op, OP_REMOVE, KVP_OP_REMOVE, &head.base);
}

static void
send_remove_many(soak_t *s, client_t *c, op_t *op)
{
    op->is_forced = world_below(s->w, 2) == 0;
    for (uint32_t k = 0; op->is_forced && k < KEYS; k++)
        give_up(s, k);
    op->kind = OP_REMOVE_MANY;
    op->id = c->p->request_seq + 1;
    (void)remove_many(c->p, world_below(s->w, 10) == 0 ? "" : "[37]$", op->is_forced);
}

static void
send_list(soak_t *s, client_t *c, op_t *op)
{
    Kvp__Pb__List head = KVP__PB__LIST__INIT;

    head.cursor = world_below(s->w, 2 * KEYS);
    op->kind = OP_OTHER;
    op->id = c->p->request_seq + 1;
    (void)peer_send(c->p, KVP_OP_LIST, 0, &head.base, NULL, 0);
}

static void
send_commit(client_t *c, op_t *op)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t recs[BATCH];

    head.n = op->n;
    for (uint32_t i = 0; i < op->n; i++)
        recs[i] = (kvp_wire_commit_t){.attempt = op->attempts[i], .sum = 1, .replicas = 1};
    op->kind = OP_COMMIT;
    op->id = c->p->request_seq + 1;
    (void)peer_send(c->p, KVP_OP_PUT_COMMIT, 0, &head.base, recs, op->n * sizeof *recs);
}

static void
send_abort(soak_t *s, client_t *c, op_t *op, const uint64_t *attempts, uint32_t n)
{
    Kvp__Pb__PutAbort head = KVP__PB__PUT_ABORT__INIT;

    head.n = n;
    head.is_drained = world_below(s->w, 2) == 0;
    op->kind = OP_ABORT;
    op->id = c->p->request_seq + 1;
    (void)peer_send(c->p, KVP_OP_PUT_ABORT, 0, &head.base, attempts, n * sizeof *attempts);
}

/* ---- what the master says. Called when it says it, before the client hears of it. */
static void
saw_get(soak_t *s, client_t *c, op_t *op, const kvp_frame_t *f)
{
    Kvp__Pb__Places *head;
    const kvp_wire_obj_t *objs = (const kvp_wire_obj_t *)f->tail;
    const kvp_wire_loc_t *locs = (const kvp_wire_loc_t *)(objs + op->n);
    ticket_t *t = NULL;
    kvp_pb_t pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, f);
    /* The hold of one that has said good-bye since, or will say nothing any more, ends when the master notices. */
    for (uint32_t i = 0; i < TICKETS && head->ticket != 0 && t == NULL && !c->p->is_silent; i++)
        if (c->tickets[i].id == 0) t = &c->tickets[i];
    if (t != NULL) *t = (ticket_t){.id = head->ticket};
    for (uint32_t i = 0; i < op->n; i++) {
        version_t *v = &s->versions[op->keys[i]];

        if (objs[i].err != KVP_OK) {
            assert_true(objs[i].err == KVP_NOT_FOUND || objs[i].err == KVP_NODE_LOST);
            saw_missing(s, op->keys[i]);
            continue;
        }
        saw_present(s, op->keys[i], locs);
        if (t != NULL) {
            t->keys[t->n] = op->keys[i];
            t->generations[t->n++] = locs->generation;
            v->holds++;
        }
        locs++;
    }
    kvp_pb_free(&pb, head);
}

static void
saw_exists(soak_t *s, const op_t *op, const uint8_t *flags)
{
    for (uint32_t i = 0; i < op->n; i++) {
        if (flags[i] != 0)
            saw_present(s, op->keys[i], NULL);
        else
            saw_missing(s, op->keys[i]);
    }
}

/* A removal by force is under way, and may or may not have come to this version. */
static bool
is_removal_due(const soak_t *s, uint32_t k)
{
    for (uint32_t i = 0; i < CLIENTS * OPS_MAX; i++) {
        const op_t *op = &s->clients[i / OPS_MAX].ops[i % OPS_MAX];

        if (!op->is_forced || op->kind < OP_REMOVE || op->kind > OP_REMOVE_MANY) continue;
        if (op->kind == OP_REMOVE_MANY) return true;
        for (uint32_t n = 0; n < op->n; n++)
            if (op->keys[n] == k) return true;
    }
    return false;
}

static void
saw_commit(soak_t *s, const op_t *op, const int32_t *errs)
{
    for (uint32_t i = 0; i < op->n; i++) {
        place_t *at = place_of_segment(s, op->locs[i].segment_id);

        assert_true(errs[i] == KVP_OK || errs[i] == KVP_ABORTED);
        if (errs[i] != KVP_OK) continue;
        s->commits++;
        if (op->locs[i].generation < s->versions[op->keys[i]].loc.generation) continue; /* answers come in no order */
        s->is_unsure[op->keys[i]] = false;
        /* To memory that its node has made anew since: nobody will find it. */
        s->versions[op->keys[i]] =
            (version_t){.is_there = at != NULL && op->locs[i].generation != 0, .loc = op->locs[i]};
        if (at != NULL) s->versions[op->keys[i]].mem = at->mem;
        if (at == NULL || at->p == NULL || is_removal_due(s, op->keys[i])) give_up(s, op->keys[i]);
    }
}

static void
saw_put(soak_t *s, const op_t *op, const kvp_frame_t *f)
{
    const kvp_wire_obj_t *objs = (const kvp_wire_obj_t *)f->tail;

    for (uint32_t i = 0; i < op->n; i++) {
        version_t *v = &s->versions[op->keys[i]];

        /* ALREADY was so when the message came, and may be long ago. OK is a new attempt: what was there is gone, or on
         * a node that is away and will be retired there. */
        if (objs[i].err == KVP_OK) give_up(s, op->keys[i]);
        if (objs[i].err == KVP_OK && v->is_there) v->is_doubted = true;
    }
}

static void
on_answer(void *arg, peer_t *p, const kvp_frame_t *f)
{
    soak_t *s = arg;
    client_t *c = client_of(s, p);
    op_t *op;

    if (c == NULL || f->hdr.request_id == 0) return;
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        op = &c->ops[i];
        if (op->kind == OP_NONE || op->id != f->hdr.request_id) continue;
        if (op->kind == OP_GET) saw_get(s, c, op, f);
        if (op->kind == OP_EXISTS) saw_exists(s, op, f->tail);
        if (op->kind == OP_COMMIT) saw_commit(s, op, (const int32_t *)f->tail);
        if (op->kind == OP_PUT) saw_put(s, op, f);
    }
}

/* ---- what clients do with answers */
static void
ticket_drop(soak_t *s, ticket_t *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        version_t *v = &s->versions[t->keys[i]];

        if (v->is_there && v->loc.generation == t->generations[i] && v->holds > 0) v->holds--;
    }
    t->id = 0;
}

static void
release_some(soak_t *s, client_t *c)
{
    for (uint32_t i = 0; i < TICKETS; i++) {
        ticket_t *t = &c->tickets[i];
        uint64_t id = t->id;

        if (id == 0 || world_below(s->w, 4) != 0) continue;
        ticket_drop(s, t);
        release(c->p, id);
    }
}

/* What was granted is written and committed, aborted, or left lying. */
static void
use_grants(soak_t *s, client_t *c, op_t *op, reply_t *r)
{
    uint64_t lost[BATCH];
    uint32_t lost_n = 0, n = 0, at = 0;
    places_t places;

    places_read(r, &places);
    assert_int_equal(places.n, op->n);
    for (uint32_t i = 0; i < places.n; i++) {
        const kvp_wire_loc_t *loc = &places.locs[at];

        if (places.objs[i].err != KVP_OK) continue;
        at++;
        if (world_below(s->w, 20) == 0 && c->left_n < BATCH) {
            c->left[c->left_n++] = op->puts[i].attempt;
        } else if (world_below(s->w, 12) == 0 || write_place(s->w, loc) != KVP_OK) {
            lost[lost_n++] = op->puts[i].attempt;
        } else {
            op->attempts[n] = op->puts[i].attempt;
            op->keys[n] = op->keys[i];
            op->locs[n++] = *loc;
        }
    }
    places_free(&places);
    op->n = n;
    op->kind = OP_NONE;
    if (n > 0) send_commit(c, op);
    if (lost_n > 0 && (op = op_find(c, OP_NONE, 0)) != NULL)
        send_abort(s, c, op, lost, lost_n);
    else if (lost_n > 0) { /* no message to spare: they end with the session */
    }
}

static void
take_answers(soak_t *s, client_t *c)
{
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        op_t *op = &c->ops[i];
        reply_t *r = op->kind == OP_NONE ? NULL : peer_reply(c->p, op->id);

        if (r == NULL) continue;
        if (op->kind == OP_PUT) {
            use_grants(s, c, op, r);
            continue;
        }
        op->kind = OP_NONE;
        reply_free(r);
    }
}

static void
client_gone(soak_t *s, client_t *c)
{
    for (uint32_t i = 0; i < TICKETS; i++)
        if (c->tickets[i].id != 0) ticket_drop(s, &c->tickets[i]);
    for (uint32_t i = 0; i < OPS_MAX; i++)
        for (uint32_t k = 0; c->ops[i].kind == OP_COMMIT && k < c->ops[i].n; k++)
            s->is_unsure[c->ops[i].keys[k]] = true;
    if (s->unproved_n < KVP_ARRAY_LEN(s->unproved)) s->unproved[s->unproved_n++] = c->p->incarnation;
    peer_forget(c->p);
    *c = (client_t){0};
}

static void
client_act(soak_t *s, client_t *c)
{
    op_t *op = op_find(c, OP_NONE, 0);

    take_answers(s, c);
    if (c->p->was_closed) { /* it was silent for too long */
        client_gone(s, c);
        return;
    }
    release_some(s, c);
    if (op == NULL || op->kind != OP_NONE || c->p->is_silent) return;
    op->is_forced = false;
    switch (world_below(s->w, 24)) {
    case 0 ... 8:
        send_put(s, c, op);
        break;
    case 9 ... 14:
        send_get(s, c, op);
        break;
    case 15 ... 17:
        send_exists(s, c, op);
        break;
    case 18 ... 19:
        send_lookup(s, c, op);
        break;
    case 20:
        if (world_below(s->w, 2) == 0) send_remove(s, c, op);
        break;
    case 21:
        if (world_below(s->w, 2) == 0)
            send_list(s, c, op);
        else if (world_below(s->w, 30) == 0)
            send_remove_many(s, c, op);
        break;
    case 22:
        if (c->left_n > 0) {
            send_abort(s, c, op, c->left, c->left_n);
            c->left_n = 0;
        }
        break;
    default:
        break;
    }
}

static void
client_fate(soak_t *s, client_t *c)
{
    switch (world_below(s->w, 400)) {
    case 0: /* killed */
        client_gone(s, c);
        break;
    case 1: /* says good-bye */
        for (uint32_t i = 0; i < TICKETS; i++)
            if (c->tickets[i].id != 0) ticket_drop(s, &c->tickets[i]);
        (void)peer_send(c->p, KVP_OP_BYE, KVP_FRAME_ONEWAY, NULL, NULL, 0);
        c->p->is_silent = true;
        break;
    case 2: /* stopped; the master ends its session */
        if (world_below(s->w, 4) != 0) break;
        for (uint32_t i = 0; i < TICKETS; i++)
            if (c->tickets[i].id != 0) ticket_drop(s, &c->tickets[i]);
        c->p->is_silent = true;
        break;
    default:
        break;
    }
}

/* ---- nodes */
static void
node_start(soak_t *s, place_t *at)
{
    peer_t *n = peer_open(s->w);
    bool is_reset;

    n->mem = at->mem;
    n->delay_ns = world_below(s->w, 3) * MS;
    n->needs_proof = true;
    n->policy = world_below(s->w, 2) == 0 ? NODE_FREE_NOW : NODE_FREE_LATER;
    n->free_ns = world_below(s->w, 20 * MS);
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, at->mem->name, "host"), KVP_OK);
    at->p = n;
    at->is_leaving = false;
    assert_int_equal(node_mount(n, &is_reset), KVP_OK);
    if (!is_reset) return;
    forget_memory(s, at->mem);
    mem_remake(s->w, at->mem);
    assert_int_equal(node_mount(n, &is_reset), KVP_OK);
    assert_false(is_reset);
}

static void
node_away(soak_t *s, place_t *at, uint64_t ns)
{
    /* While it is away a put goes over what lies there, held or not. */
    for (uint32_t k = 0; k < KEYS; k++)
        if (s->versions[k].mem == at->mem) give_up(s, k);
    peer_forget(at->p);
    at->p = NULL;
    at->back_ns = s->w->now + ns;
}

static void
node_unmounted(soak_t *s, place_t *at)
{
    reply_t *r = at->unmount_id == 0 ? NULL : peer_reply(at->p, at->unmount_id);

    if (r == NULL) return;
    assert_int_equal(plain_result(r), KVP_OK);
    at->unmount_id = 0;
    forget_memory(s, at->mem);
    mem_remake(s->w, at->mem);
    if (world_below(s->w, 2) == 0) {
        node_away(s, at, world_below(s->w, 100 * MS));
        return;
    }
    at->is_leaving = false;
    assert_int_equal(node_mount(at->p, NULL), KVP_OK); /* again, on the same connection */
}

static void
node_act(soak_t *s, place_t *at)
{
    Kvp__Pb__Unmount head = KVP__PB__UNMOUNT__INIT;

    if (at->p == NULL) {
        if (s->w->now >= at->back_ns) node_start(s, at);
        return;
    }
    node_unmounted(s, at);
    if (at->p == NULL || at->is_leaving) return;
    switch (world_below(s->w, 3000)) {
    case 0 ... 5:
        node_away(s, at, world_below(s->w, 200 * MS));
        break;
    case 6:
        if (world_below(s->w, 2) == 0) node_away(s, at, GRACE_NS + 100 * MS);
        break;
    case 7: /* comes back empty */
        forget_memory(s, at->mem);
        mem_remake(s->w, at->mem);
        node_away(s, at, world_below(s->w, 200 * MS));
        break;
    case 8 ... 9:
        at->is_leaving = true;
        head.segment_id = at->mem->segment_id;
        head.wait_ms = (uint32_t)world_below(s->w, 300);
        at->unmount_id = at->p->request_seq + 1;
        (void)peer_send(at->p, KVP_OP_UNMOUNT, 0, &head.base, NULL, 0);
        break;
    case 10:
        at->p->policy = NODE_DEAD_ONLY;
        break;
    case 11 ... 22:
        at->p->policy = NODE_FREE_NOW;
        break;
    case 23 ... 32:
        at->p->policy = NODE_FREE_LATER;
        break;
    default:
        break;
    }
    if (at->p == NULL) return;
    if (at->p->policy != NODE_DEAD_ONLY || world_below(s->w, 50) == 0)
        kvp_list_foreach (pos, &at->p->retiring) {
            retiring_t *r = kvp_list_entry(pos, retiring_t, link);

            r->free_at_ns = kvp_min_u64(r->free_at_ns, s->w->now + world_below(s->w, 10 * MS));
        }
}

static void
prove_some(soak_t *s)
{
    if (s->unproved_n == 0 || world_below(s->w, 10) != 0) return;
    world_prove(s->w, s->unproved[0]);
    memmove(s->unproved, s->unproved + 1, --s->unproved_n * sizeof *s->unproved);
}

/* ---- a run */
static void
step(soak_t *s)
{
    client_t *c = &s->clients[world_below(s->w, CLIENTS)];

    if (c->p == NULL) {
        c->p = client_open(s->w);
        c->p->delay_ns = world_below(s->w, 4) * MS;
    }
    client_act(s, c);
    if (c->p != NULL && !c->p->is_silent) client_fate(s, c);
    for (uint32_t i = 0; i < NODES; i++)
        node_act(s, &s->nodes[i]);
    prove_some(s);
    if (world_below(s->w, 3) == 0) world_advance(s->w, world_below(s->w, 3 * MS));
    if (world_below(s->w, 200) == 0) world_advance(s->w, world_below(s->w, 400 * MS));
}

static void
expect_answered(const peer_t *p)
{
    for (uint32_t i = 0; i < p->asks_n; i++)
        assert_int_equal(p->asks[i].opcode, KVP_OP_HEARTBEAT); /* just sent */
}

/* Whether a commit whose client went before the answer came to be: the master says. */
static void
settle_unsure(soak_t *s)
{
    peer_t *c = client_open(s->w);

    for (uint32_t k = 0; k < KEYS; k++) {
        kvp_wire_loc_t loc;
        uint64_t ticket;

        if (!s->is_unsure[k]) continue;
        s->versions[k] = (version_t){0};
        if (get(c, s->names[k], &ticket, &loc) != KVP_OK) continue;
        s->versions[k] = (version_t){.is_there = true, .loc = loc, .mem = place_of_segment(s, loc.segment_id)->mem};
        release(c, ticket);
    }
    peer_forget(c);
}

/* Everybody who lives gets all answers; everything that was not found has its reason; what is left is what is there. */
static void
finish(soak_t *s)
{
    uint64_t bytes = 0, there = 0;

    for (uint32_t i = 0; i < NODES; i++) {
        if (s->nodes[i].p != NULL && s->nodes[i].is_leaving) world_advance(s->w, 500 * MS);
        if (s->nodes[i].p != NULL) node_unmounted(s, &s->nodes[i]);
        if (s->nodes[i].p != NULL && !s->nodes[i].is_leaving) node_away(s, &s->nodes[i], 0);
        if (s->nodes[i].p == NULL) node_start(s, &s->nodes[i]);
        s->nodes[i].p->policy = NODE_FREE_NOW;
    }
    for (uint32_t t = 0; t < 130; t++) {
        world_advance(s->w, 100 * MS);
        for (uint32_t i = 0; i < CLIENTS; i++) {
            client_t *c = &s->clients[i];

            if (c->p == NULL) continue;
            take_answers(s, c);
            if (c->p->was_closed) client_gone(s, c);
        }
    }
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (s->clients[i].p != NULL) expect_answered(s->clients[i].p);
    for (uint32_t i = 0; i < NODES; i++)
        expect_answered(s->nodes[i].p);
    while (s->unproved_n > 0)
        world_prove(s->w, s->unproved[--s->unproved_n]);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (s->clients[i].p == NULL) continue;
        world_prove(s->w, s->clients[i].p->incarnation);
        client_gone(s, &s->clients[i]);
    }
    world_advance(s->w, SEC);
    settle_unsure(s);
    for (uint32_t k = 0; k < KEYS; k++) {
        version_t *v = &s->versions[k];

        if (v->is_there && v->is_doubted) fail_msg("%s vanished without a reason", s->names[k]);
        there += v->is_there;
        if (v->is_there) bytes += v->mem->chunks[v->loc.chunk].len[v->loc.slot];
    }
    assert_int_equal(world_stats(s->w).objects, there);
    assert_int_equal(world_stats(s->w).used_bytes, bytes);
    assert_int_equal(world_stats(s->w).retiring_bytes, 0);
    assert_int_equal(world_stats(s->w).quarantine_bytes, 0);
}

static void
run(uint64_t seed, uint32_t steps)
{
    soak_t *s = calloc(1, sizeof *s);

    s->w = world_open(
        &(kvp_master_conf_t){.seed = seed, .session_ttl_ns = 3 * SEC, .lease_ns = SEC, .node_grace_ns = GRACE_NS});
    s->w->check_every = 23;
    s->w->on_retire = on_retire;
    s->w->on_answer = on_answer;
    s->w->hook_arg = s;
    s->is_mixed = seed % 2 == 0;
    for (uint32_t k = 0; k < KEYS; k++) {
        snprintf(s->names[k], sizeof s->names[k], "key%u", k);
        s->digests[k] = digest_of(s->w, s->names[k]);
    }
    s->nodes[0].mem = mem_make(s->w, "n1", 512 * KIB, 512 * KIB);
    s->nodes[1].mem = mem_make(s->w, "n2", MIB, 256 * KIB);
    for (uint32_t i = 0; i < steps; i++)
        step(s);
    finish(s);
    assert_true(world_stats(s->w).group_evictions > 0 && world_stats(s->w).pins_lost > 0);
    print_message("seed %lu: %lu inputs, %lu commits, %lu found, %lu missed, %lu evictions, %lu purged, %lu fences\n",
                  (unsigned long)seed, (unsigned long)s->w->inputs, (unsigned long)s->commits, (unsigned long)s->found,
                  (unsigned long)s->missed, (unsigned long)world_stats(s->w).evictions,
                  (unsigned long)world_stats(s->w).purged, (unsigned long)world_stats(s->w).fences);
    s->w->on_retire = NULL;
    s->w->on_answer = NULL;
    world_close(s->w);
    free(s);
}

static void
test_soak(void **state)
{
    const char *tier = getenv("KVPOOL_TEST_TIER"), *one = getenv("KVPOOL_SOAK_SEED");
    bool is_quick = tier != NULL && strcmp(tier, "quick") == 0, is_long = tier != NULL && strcmp(tier, "long") == 0;
    uint32_t seeds = is_quick ? 2 : is_long ? 300 : 8, steps = is_quick ? 3000 : is_long ? 30000 : 6000;

    (void)state;
    if (one != NULL) {
        run(strtoull(one, NULL, 10), steps);
        return;
    }
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        print_message("seed %lu\n", (unsigned long)seed); /* of the failure, if there is one */
        run(seed, steps);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_soak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
