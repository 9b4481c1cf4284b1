/* SPDX-License-Identifier: Apache-2.0
 * Transfers of a thread's batch, and the attachments that they need. By shared memory the thread itself loads and
 * stores, one piece after the other: it looks at the guarding word, and then stores, however much later that is; what
 * it stored may become visible later still, but before anything that its thread publishes or says after it. By TCP a
 * question goes to the node's lane and the thread waits. At the deadline whatever is not over is given up: what runs
 * by shared memory stops at its next look at the clock, connections are closed. */
#include "tests/sim/sim_client.h"

#include "common/mutate.h"

#include <string.h>

#define PIECE_UNITS 6u
#define ATTACH_NS SEC
#define BREAKER_NS (50 * MS)
#define FLIPPED_PER_MILLE 2u /* reads by TCP that arrive with a flipped bit */
#define LATE_PER_MILLE 100u /* stores that wait in the processor */

static void shm_step(sim_t *s, void *arg, uint64_t n);
static void shm_next(sim_t *s, thread_t *t);

/* ---- reads that only their sum vouches for */
static bool
is_sum_path(const xfer_t *x)
{
    return x->path != NULL && x->path->by == BY_TCP && x->thread->client->trusts_sums;
}

static bool
skips_desc(const xfer_t *x)
{
    return x->move->kind == KVP_MOVE_READ && (x->move->flags & KVP_READ_SUM_ALONE) != 0 && is_sum_path(x);
}

/* ---- the end of a transfer */
static bool
wants_write(const xfer_t *x)
{
    return x->move->kind != KVP_MOVE_READ;
}

static uint64_t
sum_of(const xfer_t *x)
{
    return kvp_sum(x->units, (x->move->len + UNIT - 1) / UNIT * sizeof *x->units);
}

static void
xfer_over(sim_t *s, xfer_t *x, kvp_err_t err, bool is_drained)
{
    thread_t *t = x->thread;
    kvp_move_t *mv = x->move;

    if (x->is_over) return;
    x->is_over = true;
    if (KVP_RULE(PUBLISH_ORDER)) late_flush(s, t); /* whatever came of it, nothing of it is on its way any more */
    mv->err = err;
    mv->is_drained = is_drained;
    mv->has_sum = false;
    mv->is_sum_path = is_sum_path(x);
    mv->has_desc = !skips_desc(x);
    if (err == KVP_OK && mv->kind != KVP_MOVE_SEAL) {
        mv->has_sum = wants_write(x) || (mv->flags & KVP_READ_SUM) != 0 || x->path->by == BY_TCP;
        if (mv->has_sum) mv->sum = sum_of(x);
    }
    if (--t->xfers_left == 0) thread_moved(s, t);
}

/* ---- paths */
static void
unlist(xfer_t *x)
{
    for (xfer_t **at = &x->path->waiting; *at != NULL; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            return;
        }
}

/* The connection is over: what was asked may have been done or not, and may still be done. */
static void
path_lost(sim_t *s, path_t *p, kvp_err_t err)
{
    bool was_up = p->state == PATH_UP;
    xfer_t *list = p->waiting;

    if (p->state == PATH_DOWN) return;
    conn_close(s, p->conn, 0);
    p->state = PATH_DOWN;
    p->write = WRITE_CLOSED;
    p->drained_ns = 0;
    p->conn = NULL;
    p->waiting = NULL;
    p->try_at_ns = s->now + BREAKER_NS;
    while (list != NULL) {
        xfer_t *x = list;

        list = x->next;
        xfer_over(s, x, err, !was_up || p->by == BY_SHM);
    }
}

static void
path_say(sim_t *s, path_t *p, say_t *say)
{
    client_t *c = p->link->client;

    say->by = p->by;
    say->client = c->index;
    say->life = c->party.life;
    say->seq = ++p->seq;
    conn_send(s, p->conn, 0, say, sizeof *say);
}

static void
send_transfer(sim_t *s, xfer_t *x)
{
    kvp_move_t *mv = x->move;
    say_t say = {.kind = SAY_MOVE, .move = {.kind = mv->kind, .grant = x->grant, .put = x->put}};

    if (mv->kind == KVP_MOVE_PUT) kvp_move_set_sum(mv, sum_of(x));
    say.move.desc = mv->desc;
    if (mv->kind == KVP_MOVE_SEAL || mv->kind == KVP_MOVE_PUT) {
        say.move.key_len = mv->key_len;
        memcpy(say.move.key, mv->key, kvp_min_u64(mv->key_len, KEY_BYTES));
    }
    path_say(s, x->path, &say);
    x->seq = say.seq;
}

/* An answer that does not come ends the attachment, as in client/memory/attach.c. */
static void
on_open_late(sim_t *s, void *arg, uint64_t conn)
{
    path_t *p = arg;

    if (p->write == WRITE_ASKED && p->conn->id == conn) path_lost(s, p, KVP_NODE_LOST);
}

/* What waited for the attachment can begin. Transfers by shared memory wait for their turn, not here. */
static void
path_pump(sim_t *s, path_t *p)
{
    say_t open = {.kind = SAY_OPEN_WRITE};
    xfer_t *list = p->waiting;

    if (p->by == BY_TCP) {
        for (xfer_t *x = p->waiting; x != NULL; x = x->next)
            if (x->seq == 0) send_transfer(s, x);
        return;
    }
    p->waiting = NULL;
    for (xfer_t *x = list, *next; x != NULL; x = next) {
        next = x->next;
        if (wants_write(x) && p->write != WRITE_OPEN) {
            x->next = p->waiting;
            p->waiting = x;
        } else {
            x->is_ready = true;
            shm_next(s, x->thread);
        }
    }
    if (p->waiting == NULL || p->write != WRITE_CLOSED) return;
    p->write = WRITE_ASKED;
    p->must_drain = true;
    path_say(s, p, &open);
    sim_at(s, &p->link->client->party, s->now + ATTACH_NS, on_open_late, p, p->conn->id);
}

static void
take_transfer(sim_t *s, path_t *p, const say_t *say)
{
    for (xfer_t *x = p->waiting; x != NULL; x = x->next) {
        if (x->seq != say->seq) continue;
        unlist(x);
        if (x->is_over) {
            sim_fail(s, "I4", "%s: bytes arrive for a call that has returned", x->thread->client->party.name);
            return;
        }
        if (say->units != NULL) {
            s->counts.loads += x->grant->units;
            memcpy(x->units, say->units, x->grant->units * sizeof *x->units);
            if (rng_chance(&x->thread->rng, FLIPPED_PER_MILLE)) x->units[0] ^= 1; /* no hardware is perfect */
            if (!skips_desc(x)) x->move->desc = say->line;
            x->loaded_ns = say->loaded_ns;
        }
        xfer_over(s, x, say->err, true);
        return;
    }
}

static void
take_drained(sim_t *s, path_t *p, uint64_t incarnation)
{
    (void)s;
    for (drain_notice_t **at = &p->link->client->drain_notices; *at != NULL; at = &(*at)->next)
        if ((*at)->node == p->node && (*at)->incarnation == incarnation) {
            *at = (*at)->next;
            return;
        }
}

static void
on_say(sim_t *s, void *arg, conn_t *conn, const uint8_t *bytes, size_t len)
{
    path_t *p = arg;
    say_t say;

    (void)len;
    if (p->conn != conn) return;
    memcpy(&say, bytes, sizeof say);
    switch (say.kind) {
    case SAY_ATTACH:
        if (say.err == KVP_OK) {
            p->state = PATH_UP;
            path_pump(s, p);
            break;
        }
        path_lost(s, p, KVP_NODE_LOST);
        if (say.err == KVP_FENCED) link_break(s, p->link, false); /* the node knows it before us */
        break;
    case SAY_OPEN_WRITE:
        if (say.err == KVP_OK) {
            p->write = WRITE_OPEN;
            path_pump(s, p);
        } else {
            path_lost(s, p, KVP_NODE_LOST);
        }
        break;
    case SAY_DRAINED:
        p->drained_ns = 0;
        if (say.err == KVP_OK) take_drained(s, p, say.incarnation);
        break;
    case SAY_MOVE:
        take_transfer(s, p, &say);
        break;
    }
}

static void
on_say_end(sim_t *s, void *arg, conn_t *conn)
{
    path_t *p = arg;

    if (p->conn == conn) path_lost(s, p, KVP_NODE_LOST);
}

static const conn_ops_t say_ops = {on_say, on_say_end};

static void
on_attach_late(sim_t *s, void *arg, uint64_t conn)
{
    path_t *p = arg;

    if (p->state == PATH_ATTACHING && p->conn->id == conn) path_lost(s, p, KVP_NODE_LOST);
}

static void
path_open(sim_t *s, path_t *p, const mem_t *mem)
{
    client_t *c = p->link->client;
    say_t say = {.kind = SAY_ATTACH, .incarnation = p->link->incarnation};

    memcpy(p->uuid, mem->uuid, sizeof p->uuid);
    memcpy(say.uuid, mem->uuid, sizeof say.uuid);
    p->state = PATH_ATTACHING;
    p->conn = conn_open(s, &c->party, node_party(s, p->node), &say_ops, p);
    path_say(s, p, &say);
    sim_at(s, &c->party, s->now + ATTACH_NS, on_attach_late, p, p->conn->id);
}

static path_t *
path_of(sim_t *s, link_t *link, const mem_t *mem, uint32_t thread)
{
    client_t *c = link->client;
    by_t by = node_party(s, mem->node)->host == c->party.host && !c->is_tcp_only ? BY_SHM : BY_TCP;
    path_t *p;

    for (p = link->paths; p != NULL; p = p->next)
        if (p->node == mem->node && p->by == by && (by == BY_SHM || p->thread == thread) &&
            memcmp(p->uuid, mem->uuid, sizeof p->uuid) == 0)
            return p;
    p = sim_alloc(s, sizeof *p);
    *p = (path_t){.link = link, .node = mem->node, .thread = thread, .by = by, .next = link->paths};
    memcpy(p->uuid, mem->uuid, sizeof p->uuid);
    link->paths = p;
    return p;
}

void
paths_close(sim_t *s, link_t *link)
{
    for (path_t *p = link->paths; p != NULL; p = p->next)
        path_lost(s, p, KVP_NODE_LOST);
}

/* ---- stores that are late */
static void
land(sim_t *s, late_t *l)
{
    if (l->has_landed) return;
    l->has_landed = true;
    mem_store(s, l->grant, l->at, l->unit);
}

static void
on_land(sim_t *s, void *arg, uint64_t n)
{
    (void)n;
    land(s, arg);
}

void
late_flush(sim_t *s, thread_t *t)
{
    for (late_t *l = t->late; l != NULL; l = l->next)
        land(s, l);
    t->late = NULL;
}

static void
store(sim_t *s, thread_t *t, const grant_t *g, uint32_t at, uint64_t unit)
{
    late_t *l;

    if (!rng_chance(&t->rng, LATE_PER_MILLE)) {
        mem_store(s, g, at, unit);
        return;
    }
    l = sim_alloc(s, sizeof *l);
    *l = (late_t){.grant = g, .at = at, .unit = unit, .next = t->late};
    t->late = l;
    sim_at(s, NULL, s->now + rng_log(&t->rng, 50, 200 * US), on_land, l, at);
}

/* ---- shared memory */
/* The transfer whose turn it is. */
static xfer_t *
shm_current(const thread_t *t)
{
    for (uint32_t i = 0; i < t->xfers_n; i++) {
        xfer_t *x = &t->xfers[i];

        if (x->is_ready && !x->is_over) return x;
    }
    return NULL;
}

/* It has looked at the word, and stores the descriptor next, however much later that is. */
static bool
is_sealing(const thread_t *t)
{
    const xfer_t *x = shm_current(t);

    return x != NULL && x->is_looked && (x->is_filled || x->move->kind == KVP_MOVE_SEAL);
}

static void
shm_go_on(sim_t *s, thread_t *t)
{
    uint64_t ns = rng_between(&t->rng, 100, 2000);

    if (rng_chance(&t->rng, s->plan->off_cpu_per_mille)) ns += rng_log(&t->rng, 20 * US, 200 * MS);
    if (s->plan->sleeps_per_mille > 0 && is_sealing(t) && rng_chance(&t->rng, s->plan->sleeps_per_mille))
        ns += rng_between(&t->rng, 20 * MS, SEC);
    sim_at(s, &t->client->party, s->now + ns, shm_step, t, t->wait_seq);
}

/* The word published: everything stored before is visible before it. */
static bool
shm_publish(sim_t *s, xfer_t *x, kvp_desc_state_t state)
{
    if (KVP_RULE(PUBLISH_ORDER)) late_flush(s, x->thread);
    return mem_publish(s, x->grant->mem, x->grant->chunk, x->grant->slot, kvp_word_make(x->grant->generation, state));
}

static bool
shm_look(sim_t *s, xfer_t *x)
{
    const grant_t *g = x->grant;

    x->is_looked =
        mem_word(s, g->mem, g->chunk, g->slot) == kvp_word_make(g->generation, KVP_DESC_WRITING) || !KVP_RULE(GUARD);
    return x->is_looked;
}

/* The deadline is by the client's clock. */
static uint64_t
deadline_at(const sim_t *s, const thread_t *t)
{
    uint64_t now = s->now + t->client->party.ahead_ns;

    return s->now + (t->deadline_ns > now ? t->deadline_ns - now : 0);
}

static bool
is_late(const sim_t *s, const thread_t *t)
{
    return deadline_at(s, t) == s->now;
}

/* Each returns EAGAIN while there is more to do. */
static kvp_err_t
shm_fill(sim_t *s, xfer_t *x)
{
    if (!x->is_looked && x->at == 0 && !shm_publish(s, x, KVP_DESC_WRITING)) return KVP_STALE;
    if (x->is_looked)
        for (uint32_t i = 0; i < PIECE_UNITS && x->at < x->grant->units; i++, x->at++)
            store(s, x->thread, x->grant, x->at, x->units[x->at]);
    if (x->at == x->grant->units) return KVP_OK;
    if (is_late(s, x->thread)) return KVP_DEADLINE;
    return shm_look(s, x) ? KVP_EAGAIN : KVP_STALE;
}

/* However late it is: nothing is looked at between the word and what is stored after it. */
static kvp_err_t
shm_seal(sim_t *s, xfer_t *x)
{
    if (!x->is_looked && is_late(s, x->thread)) return KVP_DEADLINE;
    if (!x->is_looked) return shm_look(s, x) ? KVP_EAGAIN : KVP_STALE;
    mem_describe(s, x->grant, &x->move->desc, x->move->key, x->move->key_len);
    return shm_publish(s, x, KVP_DESC_SEALED) ? KVP_OK : KVP_STALE;
}

static kvp_err_t
shm_put(sim_t *s, xfer_t *x)
{
    kvp_err_t err;

    if (x->is_filled) return shm_seal(s, x);
    err = shm_fill(s, x);
    if (err != KVP_OK) return err;
    kvp_move_set_sum(x->move, sum_of(x));
    x->is_filled = true;
    x->is_looked = false;
    return KVP_EAGAIN;
}

static kvp_err_t
shm_read(sim_t *s, xfer_t *x)
{
    if (is_late(s, x->thread)) return KVP_DEADLINE;
    if (x->at == 0 && !KVP_RULE(AFTER_PRIOR)) mem_line(s, x->grant, &x->move->desc);
    for (uint32_t i = 0; i < PIECE_UNITS && x->at < x->grant->units; i++, x->at++)
        x->units[x->at] = mem_load(s, x->grant, x->at);
    if (x->at < x->grant->units) return KVP_EAGAIN;
    if (KVP_RULE(AFTER_PRIOR)) mem_line(s, x->grant, &x->move->desc);
    x->loaded_ns = s->now;
    return KVP_OK;
}

static void
shm_next(sim_t *s, thread_t *t)
{
    if (t->shm_at != 0 || shm_current(t) == NULL) return;
    t->shm_at = 1;
    shm_go_on(s, t);
}

static void
shm_step(sim_t *s, void *arg, uint64_t seq)
{
    thread_t *t = arg;
    xfer_t *x;
    kvp_err_t err;

    if (t->wait != WAIT_MOVES || t->wait_seq != seq) return;
    x = shm_current(t);
    t->shm_at = 0;
    if (x == NULL) return;
    err = x->move->kind == KVP_MOVE_FILL   ? shm_fill(s, x)
          : x->move->kind == KVP_MOVE_SEAL ? shm_seal(s, x)
          : x->move->kind == KVP_MOVE_PUT  ? shm_put(s, x)
                                           : shm_read(s, x);
    if (err == KVP_EAGAIN) {
        t->shm_at = 1;
        shm_go_on(s, t);
        return;
    }
    if (t->xfers_left > 1) {
        xfer_over(s, x, err, true);
        shm_next(s, t);
    } else {
        xfer_over(s, x, err, true);
    }
}

static bool
has_payload(const xfer_t *x)
{
    return x->move->kind == KVP_MOVE_FILL || x->move->kind == KVP_MOVE_PUT;
}

/* What a look had allowed when the process was killed: some of it lands, until its death is proved. */
void
paths_die(sim_t *s, thread_t *t, uint64_t proof_ns)
{
    const xfer_t *x = t->wait == WAIT_MOVES ? shm_current(t) : NULL;

    for (late_t *l = t->late; l != NULL; l = l->next)
        sim_at(s, NULL, rng_between(&t->rng, s->now, proof_ns - 1), on_land, l, l->at);
    if (x != NULL && x->is_looked && has_payload(x))
        for (uint32_t i = x->at; i < x->at + PIECE_UNITS && i < x->grant->units; i++) {
            late_t *l = sim_alloc(s, sizeof *l);

            if (rng_chance(&t->rng, 400)) continue;
            *l = (late_t){.grant = x->grant, .at = i, .unit = x->units[i]};
            sim_at(s, NULL, rng_between(&t->rng, s->now, proof_ns - 1), on_land, l, i);
        }
    t->late = NULL;
}

/* ---- a batch */
static void
on_deadline(sim_t *s, void *arg, uint64_t seq)
{
    thread_t *t = arg;

    for (uint32_t i = 0; i < t->xfers_n && t->wait == WAIT_MOVES && t->wait_seq == seq; i++) {
        xfer_t *x = &t->xfers[i];

        if (x->is_over || x->path == NULL) continue;
        if (x->path->by == BY_TCP && KVP_RULE(DEADLINE_DRAIN)) {
            path_lost(s, x->path, KVP_DEADLINE);
        } else if (x->path->by == BY_TCP) {
            xfer_over(s, x, KVP_DEADLINE, false);
        } else if (!x->is_ready) {
            unlist(x);
            xfer_over(s, x, KVP_DEADLINE, true);
        }
    }
}

static void
xfer_begin(sim_t *s, xfer_t *x)
{
    link_t *link = x->thread->link;
    mem_t *mem = oracle_mem_of(s, link->term, x->move->loc.segment_id);
    path_t *p;

    if (mem != NULL) x->grant = grant_find(mem, x->move->loc.chunk, x->move->loc.slot, x->move->loc.generation);
    if (x->grant == NULL) {
        sim_fail(s, "WIRE", "a client is told of a place that was never granted");
        return;
    }
    if (has_payload(x)) x->grant->put = x->put;
    p = path_of(s, link, mem, x->thread->number);
    x->path = p;
    p->segment_id = x->move->loc.segment_id;
    if (p->state == PATH_DOWN && s->now < p->try_at_ns) {
        xfer_over(s, x, KVP_NODE_LOST, true);
        return;
    }
    if (p->by == BY_SHM && p->state == PATH_UP && (!wants_write(x) || p->write == WRITE_OPEN)) {
        x->is_ready = true;
        shm_next(s, x->thread);
        return;
    }
    x->next = p->waiting;
    p->waiting = x;
    if (p->state == PATH_DOWN) path_open(s, p, mem);
    if (p->state == PATH_UP) path_pump(s, p);
}

uint32_t
paths_avoid(const link_t *link, uint32_t ids[KVP_AVOID_MAX])
{
    const sim_t *s = link->known.sim;
    uint32_t n = 0;

    for (const path_t *p = link->paths; p != NULL && n < KVP_AVOID_MAX; p = p->next)
        if (p->state == PATH_DOWN && p->segment_id != 0 && s->now < p->try_at_ns) ids[n++] = p->segment_id;
    return n;
}

void
paths_run(sim_t *s, thread_t *t, kvp_move_t *moves, uint32_t n)
{
    uint64_t seq = t->wait_seq;

    t->xfers = sim_alloc(s, n * sizeof *t->xfers);
    t->xfers_n = n;
    t->xfers_left = n;
    t->shm_at = 0;
    for (uint32_t i = 0; i < n; i++)
        t->xfers[i] = (xfer_t){
            .thread = t,
            .move = &moves[i],
            .put = t->call == CALL_PUT ? t->puts[moves[i].item]->id : 0,
            .units = t->units[moves[i].item],
        };
    sim_at(s, &t->client->party, deadline_at(s, t), on_deadline, t, seq);
    for (uint32_t i = 0; i < n && t->wait_seq == seq && s->failure[0] == '\0'; i++)
        xfer_begin(s, &t->xfers[i]);
}

/* ---- drain notices */
void
path_send_drained(sim_t *s, client_t *c, drain_notice_t *notice)
{
    say_t say = {.kind = SAY_DRAINED, .incarnation = notice->incarnation};
    mem_t *mem = node_mem(s, notice->node);
    path_t *p = path_of(s, c->link, mem, 0);

    /* An answer that does not come ends the attachment here as well. */
    if (p->drained_ns != 0 && s->now - p->drained_ns > ATTACH_NS) path_lost(s, p, KVP_NODE_LOST);
    if (p->state == PATH_DOWN && s->now >= p->try_at_ns) path_open(s, p, mem);
    if (p->state != PATH_UP) return;
    path_say(s, p, &say);
    if (p->drained_ns == 0) p->drained_ns = s->now;
}
