/* SPDX-License-Identifier: Apache-2.0
 * Lanes: the node's serving of transfers by TCP, one at a time and in order for a connection. A write looks at the
 * guarding word before each piece, and between that look and the store time passes. */
#include "common/mutate.h"
#include "tests/sim/sim_node.h"

#define PIECE_UNITS 6u

static void step(sim_t *s, void *arg, uint64_t n);

static void
go_on(sim_t *s, attached_t *a)
{
    sim_at(s, &a->node->party, s->now + rng_between(&a->node->rng, 1, 4) * US, step, a, 0);
}

void
lane_add(sim_t *s, attached_t *a, const say_t *say)
{
    job_t *job = sim_alloc(s, sizeof *job);
    bool was_idle = a->jobs == NULL;

    if (a->is_ended) return;
    job->say = *say;
    if (was_idle) a->jobs_end = &a->jobs;
    *a->jobs_end = job;
    a->jobs_end = &job->next;
    if (was_idle) go_on(s, a);
}

void
lane_end(attached_t *a)
{
    a->is_ended = true;
}

void
lanes_end_all(node_t *n)
{
    for (attached_t *a = n->attached; a != NULL; a = a->next) {
        a->is_ended = true;
        a->is_busy = false;
        a->jobs = NULL;
        a->rounds = 0;
    }
}

uint32_t
lanes_await(node_t *n, round_t *r)
{
    uint32_t busy = 0;

    for (attached_t *a = n->attached; a != NULL && KVP_RULE(QUIESCE); a = a->next) {
        if (!a->is_busy) continue;
        a->rounds |= 1u << (r - n->rounds);
        busy++;
    }
    return busy;
}

static void
pass_rounds(sim_t *s, attached_t *a)
{
    uint32_t rounds = a->rounds;

    a->rounds = 0;
    for (uint32_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++)
        if ((rounds >> i & 1) != 0) node_round_passed(s, a->node, &a->node->rounds[i]);
}

static void
finish(sim_t *s, attached_t *a, kvp_err_t err)
{
    say_t say = a->jobs->say;

    say.err = err;
    conn_send(s, a->conn, 1, &say, sizeof say);
    a->jobs = a->jobs->next;
    a->at = 0;
    if (a->jobs != NULL && !a->is_ended) go_on(s, a);
}

static bool
is_writing(sim_t *s, const grant_t *g)
{
    return mem_word(s, g->mem, g->chunk, g->slot) == kvp_word_make(g->generation, KVP_DESC_WRITING) || !KVP_RULE(GUARD);
}

/* The look before a piece; false where the transfer ended with it. */
static bool
look(sim_t *s, attached_t *a, const grant_t *g)
{
    if (is_writing(s, g)) return true;
    finish(s, a, KVP_STALE);
    return false;
}

static void
step_fill(sim_t *s, attached_t *a)
{
    transfer_t *t = &a->jobs->say.move;
    grant_t *g = t->grant;

    if (!a->is_busy && a->at == 0 &&
        !mem_publish(s, g->mem, g->chunk, g->slot, kvp_word_make(g->generation, KVP_DESC_WRITING))) {
        finish(s, a, KVP_STALE);
        return;
    }
    if (a->is_busy) {
        a->is_busy = false;
        for (uint32_t i = 0; i < PIECE_UNITS && a->at < g->units; i++, a->at++)
            mem_store(s, g, a->at, unit_make(t->put, a->at));
    }
    if (a->at == g->units && t->kind == KVP_MOVE_PUT) {
        go_on(s, a); /* to seal it */
    } else if (a->at == g->units) {
        finish(s, a, KVP_OK);
    } else if (look(s, a, g) && !a->is_ended) {
        a->is_busy = true;
        go_on(s, a);
    }
}

static void
step_seal(sim_t *s, attached_t *a)
{
    transfer_t *t = &a->jobs->say.move;
    grant_t *g = t->grant;
    uint64_t sealed = kvp_word_make(g->generation, KVP_DESC_SEALED);

    if (!a->is_busy) {
        if (!look(s, a, g)) return;
        a->is_busy = true;
        go_on(s, a);
        return;
    }
    a->is_busy = false;
    mem_describe(s, g, &t->desc, t->key, t->key_len);
    finish(s, a, mem_publish(s, g->mem, g->chunk, g->slot, sealed) ? KVP_OK : KVP_STALE);
}

static void
step_read(sim_t *s, attached_t *a)
{
    say_t *say = &a->jobs->say;
    grant_t *g = say->move.grant;

    if (a->at == 0 && !KVP_RULE(AFTER_PRIOR)) mem_line(s, g, &say->line);
    if (say->units == NULL) say->units = sim_alloc(s, g->units * sizeof *say->units);
    for (uint32_t i = 0; i < PIECE_UNITS && a->at < g->units; i++, a->at++)
        say->units[a->at] = mem_load(s, g, a->at);
    if (a->at < g->units) {
        go_on(s, a);
        return;
    }
    if (KVP_RULE(AFTER_PRIOR)) mem_line(s, g, &say->line);
    say->loaded_ns = s->now;
    finish(s, a, KVP_OK);
}

static void
step(sim_t *s, void *arg, uint64_t n)
{
    attached_t *a = arg;

    (void)n;
    if (a->jobs == NULL || (a->is_ended && !a->is_busy)) return;
    switch (a->jobs->say.move.kind) {
    case KVP_MOVE_FILL:
        step_fill(s, a);
        break;
    case KVP_MOVE_SEAL:
        step_seal(s, a);
        break;
    case KVP_MOVE_PUT:
        if (a->at < a->jobs->say.move.grant->units)
            step_fill(s, a);
        else
            step_seal(s, a);
        break;
    case KVP_MOVE_READ:
        step_read(s, a);
        break;
    case KVP_MOVE_READ_PART:
    case KVP_MOVE_FILL_MORE:
    case KVP_MOVE_READ_WHOLE:
        break; /* no core asks for these */
    }
    pass_rounds(s, a);
}
