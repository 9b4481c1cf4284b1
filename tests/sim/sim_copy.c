/* SPDX-License-Identifier: Apache-2.0
 * Copies from node to node: what a node does about them, and what must hold of them. */
#include "tests/sim/sim_copy.h"

#include "common/mutate.h"
#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_watch.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

#define RECORDS_MAX 1024u /* of one order */
#define DEADLINE_NS (10 * SEC) /* of one transfer */
#define IN_VAIN_NS (45 * MS) /* a removal that waits for longer is answered in any case */
#define PIECE_UNITS 48u /* most that are read or stored at a time */

/* An order under way at its node. */
typedef struct {
    node_t *node;
    mem_t *mem;
    uint64_t link, request; /* the connection that brought it, and its number there */
    uint32_t n, at; /* records, and how many are done */
    const kvp_wire_copy_t *recs; /* in a packet, which stays */
    uint8_t *flags;
    /* the record under way */
    uint64_t begun_ns;
    uint32_t unit; /* units that were read or stored */
    uint64_t *units;
    kvp_desc_t desc;
    uint8_t key[KEY_BYTES];
} copying_t;

static void on_read(sim_t *s, void *arg, uint64_t unused);
static void on_store(sim_t *s, void *arg, uint64_t unused);

/* ---- the node */
static void
later(sim_t *s, copying_t *c, event_fn fn)
{
    rng_t *rng = &c->node->rng;

    sim_at(s, &c->node->party,
           s->now + rng_log(rng, US, rng_chance(rng, s->plan->has_tiers ? 300 : 80) ? 300 * MS : 200 * US), fn, c, 0);
}

static void
begin_record(sim_t *s, copying_t *c)
{
    c->begun_ns = s->now;
    c->unit = 0;
    if (c->at < c->n) {
        c->units = sim_alloc(s, (c->recs[c->at].len / UNIT + 1) * sizeof *c->units);
        later(s, c, on_read);
        return;
    }
    if (c->node->link == NULL || c->node->link->id != c->link) return;
    node_answer(s, c->node, KVP_OP_COPY, c->request, c->flags, c->n);
}

static void
end_record(sim_t *s, copying_t *c, uint8_t flag)
{
    TRACE(s, "%s has copied version %lx: %u", c->node->party.name, (unsigned long)c->recs[c->at].version, flag);
    c->flags[c->at++] = flag;
    begin_record(s, c);
}

/* The extent that the record names as the source, where it can be reached; NULL = it cannot. */
static const grant_t *
source_of(sim_t *s, const copying_t *c, const kvp_wire_copy_t *rec)
{
    mem_t *mem = oracle_mem_of(s, kvp_node_core_term(c->node->core), rec->segment_id);
    const node_t *from = mem == NULL ? NULL : s->nodes[mem->node];

    if (from == NULL || from->mem != mem || !party_runs(&from->party)) return NULL;
    if (s->cut_until[from->party.host][c->node->party.host] > s->now) return NULL;
    if (s->cut_until[c->node->party.host][from->party.host] > s->now) return NULL;
    return grant_find(mem, rec->chunk, rec->slot, rec->generation);
}

/* The payload's last byte was read: now descriptor and key. */
static bool
is_good(sim_t *s, copying_t *c, const grant_t *g)
{
    const kvp_wire_copy_t *rec = &c->recs[c->at];
    const chunk_t *chunk = &g->mem->chunks[g->chunk];

    s->counts.loads++;
    c->desc = chunk->desc[g->slot];
    c->desc.word = chunk->word[g->slot];
    memcpy(c->key, chunk->key[g->slot], KEY_BYTES);
    if (rec->key_len > KEY_BYTES) return false;
    return kvp_node_copy_is_good(rec, &c->desc, c->key, rec->sum);
}

static void
on_read(sim_t *s, void *arg, uint64_t unused)
{
    copying_t *c = arg;
    const kvp_wire_copy_t *rec = &c->recs[c->at];
    const grant_t *g = source_of(s, c, rec);
    uint32_t units = (uint32_t)((rec->len + UNIT - 1) / UNIT);

    (void)unused;
    if (s->now > c->begun_ns + DEADLINE_NS) {
        end_record(s, c, KVP_COPY_FAILED);
        return;
    }
    if (g == NULL) {
        end_record(s, c, KVP_COPY_AWAY);
        return;
    }
    if (c->unit < units) {
        uint32_t most = (uint32_t)rng_between(&c->node->rng, 1, PIECE_UNITS);

        for (; most > 0 && c->unit < units; most--, c->unit++)
            c->units[c->unit] = c->unit < g->units ? mem_load(s, g, c->unit) : 0;
        later(s, c, on_read);
        return;
    }
    if (!is_good(s, c, g)) {
        end_record(s, c, KVP_COPY_STALE);
        return;
    }
    c->unit = 0;
    later(s, c, on_store);
}

static bool
may_store(const copying_t *c)
{
    return c->node->mem == c->mem && c->node->link != NULL && c->node->link->id == c->link;
}

static void
on_store(sim_t *s, void *arg, uint64_t unused)
{
    copying_t *c = arg;
    const kvp_wire_copy_t *rec = &c->recs[c->at];
    grant_t *g = c->mem == NULL ? NULL : grant_find(c->mem, rec->to_chunk, rec->to_slot, rec->to_generation);
    const uint64_t writing = kvp_word_make(rec->to_generation, KVP_DESC_WRITING);
    uint32_t most = (uint32_t)rng_between(&c->node->rng, 1, PIECE_UNITS);
    kvp_desc_t desc;

    (void)unused;
    if (g == NULL || !may_store(c) ||
        (c->unit == 0 ? !mem_publish(s, c->mem, g->chunk, g->slot, writing)
                      : mem_word(s, c->mem, g->chunk, g->slot) != writing)) {
        end_record(s, c, KVP_COPY_FAILED);
        return;
    }
    for (; most > 0 && c->unit < g->units; most--, c->unit++)
        mem_store(s, g, c->unit, c->units[c->unit]);
    if (c->unit < g->units) {
        later(s, c, on_store);
        return;
    }
    desc = kvp_node_copy_desc(c->node->core, rec, &c->desc);
    mem_describe(s, g, &desc, c->key, desc.key_len);
    (void)mem_publish(s, c->mem, g->chunk, g->slot, kvp_word_make(rec->to_generation, KVP_DESC_SEALED));
    end_record(s, c, KVP_COPY_OK);
}

bool
copy_on_order(sim_t *s, node_t *n, const kvp_frame_t *f, kvp_err_t *err_out)
{
    Kvp__Pb__Retire *msg;
    copying_t *c;
    kvp_pb_t pb;

    *err_out = KVP_OK;
    if (f->hdr.opcode != KVP_OP_COPY) return false;
    msg = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, f);
    if (msg == NULL || msg->n > RECORDS_MAX || f->tail_len != msg->n * sizeof(kvp_wire_copy_t)) {
        sim_fail(s, "WIRE", "a malformed order to copy");
        kvp_pb_free(&pb, msg);
        return true;
    }
    *err_out = kvp_node_core_see_term(n->core, msg->term);
    if (*err_out == KVP_OK && msg->segment_id != n->segment_id) *err_out = KVP_NO_SEGMENT;
    if (*err_out == KVP_OK) {
        c = sim_alloc(s, sizeof *c);
        *c = (copying_t){.node = n, .mem = n->mem, .link = n->link->id, .request = f->hdr.request_id, .n = msg->n};
        c->recs = (const kvp_wire_copy_t *)f->tail;
        c->flags = sim_alloc(s, msg->n + 1);
        begin_record(s, c);
    }
    kvp_pb_free(&pb, msg);
    return true;
}

static void
ask_drain(sim_t *s, node_t *n, uint32_t what)
{
    Kvp__Pb__Drain msg = KVP__PB__DRAIN__INIT;

    msg.node = n->party.name;
    msg.what = what;
    msg.no_evict = s->plan->has_room;
    msg.with_ssd = s->plan->seed % 2 == 0; /* of plans with SSDs half of the drains move what these have */
    (void)node_ask(s, n, KVP_OP_DRAIN, &msg.base, NULL, 0);
}

void
node_drain(sim_t *s, uint32_t index, bool is_begin)
{
    node_t *n = s->nodes[index];

    if (n->state != LINK_UP || !party_runs(&n->party)) return;
    TRACE(s, "%s asks to be drained: %d", n->party.name, is_begin);
    ask_drain(s, n, is_begin ? KVP_DRAIN_BEGIN : KVP_DRAIN_END);
}

void
copy_poll(sim_t *s, node_t *n)
{
    if (!s->plan->has_moves || !s->is_calm || n->undrained == n->link->id) return;
    n->undrained = n->link->id;
    ask_drain(s, n, KVP_DRAIN_END);
}

/* ---- the oracle */
/* An order that the master has not heard the answer to. */
typedef struct copy_pending {
    uint64_t conn, request;
    uint32_t n;
    grant_t **grants, **sources;
    struct copy_pending *next;
} copy_pending_t;

void
copy_says_order(sim_t *s, conn_t *conn, const kvp_frame_t *f)
{
    const kvp_wire_copy_t *recs = (const kvp_wire_copy_t *)f->tail;
    uint32_t n = (uint32_t)(f->tail_len / sizeof *recs);
    const node_t *node = conn->end[0].who->owner;
    copy_pending_t *p = sim_alloc(s, sizeof *p);

    *p = (copy_pending_t){.conn = conn->id, .request = f->hdr.request_id, .n = n, .next = s->oracle->copies};
    p->grants = sim_alloc(s, (n + 1) * sizeof(*p->grants));
    p->sources = sim_alloc(s, (n + 1) * sizeof(*p->sources));
    s->oracle->copies = p;
    for (uint32_t i = 0; i < n; i++) {
        const kvp_wire_copy_t *rec = &recs[i];
        mem_t *from = oracle_mem_of(s, master_term(s), rec->segment_id);
        grant_t *g, *source;

        if (node->mem == NULL) return;
        g = (has_left_elder(s, node->mem) ? grant_note : grant_add)(s, node->mem, rec->to_chunk, rec->to_slot,
                                                                    rec->to_generation, rec->to_offset, rec->len);
        source = from == NULL ? NULL : grant_find(from, rec->chunk, rec->slot, rec->generation);
        if (g == NULL) return;
        TRACE(s, "master has version %lx copied to %s slot %u generation %lx", (unsigned long)rec->version,
              node->party.name, g->slot, (unsigned long)g->generation);
        g->is_copy = true;
        g->is_lost = g->may_go = master_is_elder(s);
        g->digest = rec->digest;
        g->version = rec->version;
        g->granted_ns = s->now;
        g->term = master_term(s);
        g->commit_ns = UINT64_MAX;
        p->grants[i] = g;
        p->sources[i] = source;
        if (source == NULL) continue;
        g->tenant = source->tenant;
        g->put = source->put;
        g->commit_ns = source->commit_ns;
        g->is_pinned = source->is_pinned;
    }
}

/* The memory that the master has of that connection's node, where another process may have it by now. */
static mem_t *
mounted_by(sim_t *s, const conn_t *conn)
{
    mem_t *mem = s->mems;

    while (mem != NULL && mem->conn != conn->id)
        mem = mem->older;
    return mem;
}

static void
hears_drain(sim_t *s, const conn_t *conn, const kvp_frame_t *f)
{
    mem_t *mem = mounted_by(s, conn);
    Kvp__Pb__Drain *msg;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__drain__descriptor, f);
    if (mem != NULL) mem->was_drained = true;
    if (msg != NULL && msg->what == KVP_DRAIN_END && mem != NULL) {
        mem->drains_term = 0;
        mem->drains_for_ever = false;
    }
    kvp_pb_free(&pb, msg);
}

void
copy_says_drain(sim_t *s, const conn_t *conn, const kvp_frame_t *f)
{
    mem_t *mem = mounted_by(s, conn);
    Kvp__Pb__DrainReply *msg;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__drain_reply__descriptor, f);
    if (msg != NULL && msg->err == KVP_OK && msg->state != KVP_DRAIN_NONE && mem != NULL) {
        if (mem->drains_term != master_term(s) && !mem->drains_for_ever) mem->drains_ns = s->now;
        mem->moves_ssd |= msg->with_ssd;
        mem->drains_term = master_term(s);
        mem->drains_for_ever = msg->is_durable && s->plan->has_journal;
    }
    kvp_pb_free(&pb, msg);
}

void
copy_granted(sim_t *s, const grant_t *g, uint64_t heard_ns)
{
    if (master_is_elder(s) || heard_ns <= g->mem->drains_ns) return; /* it may have got its place before */
    if (g->mem->drains_term == master_term(s) || g->mem->drains_for_ever)
        sim_fail(s, "MOVE", "a put gets slot %u of node%u, which is being drained", g->slot, g->mem->node);
}

void
copy_hears(sim_t *s, const conn_t *conn, const kvp_frame_t *f)
{
    copy_pending_t **at = &s->oracle->copies;

    if ((f->hdr.flags & KVP_FRAME_REPLY) == 0) {
        if (f->hdr.opcode == KVP_OP_DRAIN) hears_drain(s, conn, f);
        return;
    }
    while (*at != NULL && ((*at)->conn != conn->id || (*at)->request != f->hdr.request_id))
        at = &(*at)->next;
    s->oracle->copied = *at;
    if (*at != NULL) *at = (*at)->next;
}

static bool
is_other_copy(const grant_t *g, const grant_t *other)
{
    return other != g && other->version == g->version && kvp_digest_eq(other->digest, g->digest);
}

/* The master serves it, though the answer to its commit may still wait, and has not heard yet whether its memory is
 * gone. */
static bool
is_seen(sim_t *s, const grant_t *g)
{
    const bool is_taken = g->is_committed || (g->is_commit_asked && master_has_place(s, g->digest, g->generation));

    return g->mem->conn != 0 && is_taken && !g->is_retired && !g->is_lost;
}

void
copy_known(sim_t *s, grant_t *g)
{
    bool is_one_forced = false;

    for (known_t *k = known_first(s, g->digest); k != NULL; k = known_next(k, g->digest)) {
        if (k->grant == g) return;
        if (!is_other_copy(g, k->grant)) continue;
        is_one_forced |= k->is_forced;
        g->is_removal_asked |= k->grant->is_removal_asked;
    }
    g->is_commit_asked = g->is_committed = true;
    know(s, g);
    known_first(s, g->digest)->is_forced = is_one_forced;
}

/* What the master has taken as a place is served from there. */
void
copy_heard(sim_t *s)
{
    copy_pending_t *p = s->oracle->copied;

    s->oracle->copied = NULL;
    for (uint32_t i = 0; p != NULL && i < p->n; i++) {
        grant_t *g = p->grants[i];

        if (g == NULL || !master_has_place(s, g->digest, g->generation)) continue;
        if (mem_word(s, g->mem, g->chunk, g->slot) != kvp_word_make(g->generation, KVP_DESC_SEALED) && !g->mem->is_gone)
            sim_fail(s, "I1", "slot %u generation %lx is a copy, and not sealed", g->slot,
                     (unsigned long)g->generation);
        g->may_go |= p->sources[i] != NULL && p->sources[i]->may_go;
        if (!g->is_lost) copy_known(s, g);
    }
}

/* What the master dropped before it heard that the node is away was dropped while the node's copy was reached, though
 * the order is still to come. */
static void
note_dropped(sim_t *s, const mem_t *mem)
{
    uint32_t chunk = 0, slot = 0;

    if (!s->plan->has_moves || master_is_elder(s)) return;
    for (const grant_t *g; (g = grant_next(mem, &chunk, &slot)) != NULL;)
        for (known_t *k = known_first(s, g->digest); k != NULL; k = known_next(k, g->digest))
            if (is_other_copy(g, k->grant) && is_seen(s, g) && grant_is_served_for_ever(k->grant))
                k->grant->is_dropped |= !master_has_place(s, g->digest, k->grant->generation);
}

/* The orders fail with the connection: nobody waits for what was being copied, and nobody knows where it is. */
void
copy_conn_over(sim_t *s, const conn_t *conn)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        if (mem->conn == conn->id) note_dropped(s, mem);
    for (copy_pending_t **at = &s->oracle->copies; *at != NULL;)
        if ((*at)->conn == conn->id)
            *at = (*at)->next;
        else
            at = &(*at)->next;
}

/* The master before this one had dropped it, for another copy was served, and its order had not come. */
bool
copy_was_dropped(sim_t *s, grant_t *g)
{
    bool was_copied = false;

    if (!g->mem->was_drained || master_has_place(s, g->digest, g->generation)) return false;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (const grant_t *o; (o = grant_next(mem, &chunk, &slot)) != NULL;)
            was_copied |= is_other_copy(g, o) && o->is_committed;
    }
    g->is_moved |= was_copied;
    return was_copied;
}

/* Another version replaced this one before that time: the put of the other one has waited for the copy. */
static bool
was_replaced(sim_t *s, const grant_t *g, uint64_t before_ns)
{
    if (g->is_retired && g->retired_ns < before_ns) return true;
    for (known_t *k = known_first(s, g->digest); k != NULL; k = known_next(k, g->digest))
        if (k->grant->tenant == g->tenant && k->grant->version > g->version && k->grant->commit_ns < before_ns)
            return true;
    return false;
}

/* What is removed is DEAD where it is being copied to, too: unless the master waited in vain. */
void
copy_removed(sim_t *s, kvp_digest_t digest, uint64_t heard_ns)
{
    for (const copy_pending_t *p = s->oracle->copies; p != NULL && s->now < heard_ns + IN_VAIN_NS; p = p->next)
        for (uint32_t i = 0; i < p->n; i++) {
            const grant_t *g = p->grants[i];
            uint64_t word = g == NULL || g->mem->is_gone ? 0 : g->mem->chunks[g->chunk].word[g->slot];

            if (g == NULL || g->mem->conn == 0 || g->commit_ns >= heard_ns || !kvp_digest_eq(g->digest, digest))
                continue;
            if (was_replaced(s, g, heard_ns)) continue; /* its order to retire may wait for its node */
            if (word == kvp_word_make(g->generation, KVP_DESC_SEALED) ||
                word == kvp_word_make(g->generation, KVP_DESC_WRITING))
                sim_fail(s, "I6", "a copy of what is removed is under way in slot %u of node%u", g->slot, g->mem->node);
        }
}

/* Whether another copy is served that is let go of here: when its node told of it, a removal or a put of its key had
 * been heard, which the master may have answered without an effect on it. */
static bool
is_kept_elsewhere(sim_t *s, const grant_t *g)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (const grant_t *o; mem->conn != 0 && (o = grant_next(mem, &chunk, &slot)) != NULL;)
            if (is_other_copy(g, o) && o->may_go && o->was_reported && !o->is_retired &&
                mem->chunks[o->chunk].word[o->slot] == kvp_word_make(o->generation, KVP_DESC_SEALED) &&
                master_has_place(s, o->digest, o->generation))
                return true;
    }
    return false;
}

bool
copy_retires(sim_t *s, grant_t *g)
{
    bool is_reachable = g->is_dropped;
    kvp_master_stats_t st;

    if (!s->plan->has_moves || g->is_retired || !grant_is_served_for_ever(g)) return false;
    for (known_t *k = known_first(s, g->digest); k != NULL; k = known_next(k, g->digest)) {
        if (!is_other_copy(g, k->grant)) continue;
        g->is_moved |= grant_is_served_for_ever(k->grant) || is_seen(s, k->grant);
        is_reachable |= is_seen(s, k->grant);
    }
    g->is_moved |= g->is_dropped;
    if (!g->is_moved) g->is_moved = is_reachable = is_kept_elsewhere(s, g);
    master_stats(s, &st);
    if (!s->plan->has_room || st.evictions > 0 || is_forced(s, g) || g->is_removal_asked || is_reachable)
        return g->is_moved;
    for (known_t *k = known_first(s, g->digest); k != NULL; k = known_next(k, g->digest))
        if (k->grant->version > g->version) return g->is_moved; /* a newer one */
    sim_fail(s, "I3", "slot %u generation %lx of node%u is dropped, and no other copy is reached", g->slot,
             (unsigned long)g->generation, g->mem->node);
    return g->is_moved;
}

bool
copy_is_held(sim_t *s, const grant_t *g)
{
    for (const hold_t *h = s->oracle->holds; h != NULL; h = h->next)
        for (uint32_t i = 0; h->until_ns == UINT64_MAX && i < h->grants_n; i++)
            if (h->grants[i] == g) return true;
    return false;
}

bool
copy_must_return(sim_t *s, const grant_t *g)
{
    bool was_moved = false;

    if (!g->is_committed || g->is_retired || g->may_go) return false;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (const grant_t *o; (o = grant_next(mem, &chunk, &slot)) != NULL;)
            for (; o != NULL; o = o->older) {
                if (!is_other_copy(g, o)) continue;
                was_moved |= o->is_moved;
                if (!mem->is_gone &&
                    mem->chunks[o->chunk].word[o->slot] == kvp_word_make(o->generation, KVP_DESC_SEALED))
                    return false;
            }
    }
    return was_moved;
}

void
copy_master_died(sim_t *s)
{
    s->oracle->copies = s->oracle->copied = NULL;
}
