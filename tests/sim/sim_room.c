/* SPDX-License-Identifier: Apache-2.0
 * What a full pool has to yield: whether a put that the master refuses for good could have been given a place. */
#include "tests/sim/sim_oracle_priv.h"

/* What the same step gave to another was not to be had. */
static bool
is_taken(const sim_t *s, const grant_t *g)
{
    return g->is_pinned || g->granted_ns == s->now;
}

static bool
is_free(const grant_t *g)
{
    return g == NULL || g->is_freed;
}

/* Longest run of units of the chunk that a put of this tenant can be given: what is in them is free, or may be evicted,
 * or will be one of the two before long, all but what is pinned. Another tenant's chunk is not given as long as
 * anything is in it. */
static uint32_t
longest_run(const sim_t *s, const chunk_t *c, uint32_t tenant)
{
    uint32_t run = 0, longest = 0;
    bool is_others = false;

    for (uint32_t u = 0; u < CHUNK_UNITS; u++) {
        const grant_t *g = c->owner[u];

        is_others |= !is_free(g) && g->tenant != tenant;
        run = !is_free(g) && is_taken(s, g) ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return is_others ? 0 : longest;
}

static bool
has_slots(const chunk_t *c)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < SLOTS; i++)
        used += c->grant[i] != NULL && !c->grant[i]->is_freed;
    return used < SLOTS / 2;
}

void
oracle_no_space(sim_t *s, uint32_t tenant, uint64_t len)
{
    refusal_t *r = sim_alloc(s, sizeof *r);

    *r = (refusal_t){tenant, len, s->oracle->refusals};
    s->oracle->refusals = r;
}

static void
check_refusal(sim_t *s, uint32_t tenant, uint64_t len)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for (uint32_t i = 0; mem->conn != 0 && !mem->is_gone && !mem->was_drained && i < mem->chunk_n; i++)
            if ((uint64_t)longest_run(s, &mem->chunks[i], tenant) * UNIT >= len && has_slots(&mem->chunks[i]))
                sim_fail(s, "I7", "a put of %lu bytes is refused for ever, and chunk %u of node%u has room, or will",
                         (unsigned long)len, i, mem->node);
}

/* Their budget is a quarter of the pool; while a node comes back its memory counts twice, and what is held keeps its
 * pin. So does what a later master learns of, until its report is over and it is on a list. */
static void
check_pins(sim_t *s)
{
    oracle_t *o = s->oracle;
    uint64_t pool = (uint64_t)s->plan->nodes * s->plan->chunk_n * CHUNK_BYTES;
    kvp_master_stats_t st;

    if (!s->plan->has_pins || master_term(s) > 1) return;
    master_stats(s, &st);
    if (st.soft_pinned_bytes <= pool / 2 + st.held_bytes + st.reserved_bytes)
        o->pins_over_ns = 0;
    else if (o->pins_over_ns == 0)
        o->pins_over_ns = s->now;
    else if (s->now - o->pins_over_ns > MS)
        sim_fail(s, "I7", "%lu bytes are pinned softly", (unsigned long)st.soft_pinned_bytes);
}

/* What was probed is a quarter of the pool, as it was then, and what did not find enough to give way. */
static void
check_probes(sim_t *s)
{
    kvp_master_stats_t st;

    master_stats(s, &st);
    s->oracle->pool_largest = kvp_max_u64(s->oracle->pool_largest, st.size_bytes);
    if (s->plan->group_keys == 0 && st.probed_bytes > s->oracle->pool_largest / 4 + s->plan->len_max)
        sim_fail(s, "I8", "%lu bytes of %lu are protected by probes", (unsigned long)st.probed_bytes,
                 (unsigned long)s->oracle->pool_largest);
}

/* What the client has not ended, and where it may still store. Of what lies on a node that is away it is not known
 * which order waits. */
static bool
is_unfinished(const attempt_t *a, const grant_t *g)
{
    if (g->is_freed || g->is_commit_asked || g->mem->is_gone || g->mem->conn == 0) return false;
    return g->is_retired ? g->is_quarantined : !a->is_drained;
}

void
room_granted(sim_t *s, const conn_t *conn)
{
    uint64_t bytes = 0;

    if (s->plan->attempt_bytes == 0) return;
    for (const attempt_t *a = s->oracle->attempts; a != NULL; a = a->next)
        for (uint32_t i = 0; a->conn == conn && i < a->grants_n; i++)
            bytes += is_unfinished(a, a->grants[i]) ? a->grants[i]->len : 0;
    if (bytes > s->plan->attempt_bytes)
        sim_fail(s, "I9", "%s has %lu bytes unfinished", conn->end[0].who->name, (unsigned long)bytes);
}

void
oracle_master_has_said(sim_t *s)
{
    promise_step_ends(s);
    uses_step_ends(s);
    check_pins(s);
    check_probes(s);
    for (const refusal_t *r = s->oracle->refusals; r != NULL; r = r->next)
        check_refusal(s, r->tenant, r->len);
    s->oracle->refusals = NULL;
}
