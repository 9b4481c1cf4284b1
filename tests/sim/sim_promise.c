/* SPDX-License-Identifier: Apache-2.0
 * What a journal must not leave out: when a master dies while all nodes are there and nothing is on its way out, all
 * that it had acknowledged and not given up since is in what the next one reads. (At other times something may be
 * gone that nobody was told of: an eviction whose order waits, a removal under way.) And what a new version replaces
 * is retired only when the journal can no more forget the new one. */
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_oracle_priv.h"

/* Calls fn for the newest grant of every slot. */
static void
for_each(sim_t *s, const mem_t *mem, void (*fn)(sim_t *s, grant_t *g, bool arg), bool arg)
{
    for (uint32_t c = 0; c < mem->chunk_n; c++)
        for (uint32_t slot = 0; slot < mem->chunks[c].limit; slot++)
            if (mem->chunks[c].grant[slot] != NULL) fn(s, mem->chunks[c].grant[slot], arg);
}

static void
note(sim_t *s, grant_t *g, bool is_still)
{
    (void)s;
    g->is_sure = is_still && g->is_promised && !g->is_lost && !g->is_retired && !g->may_go;
}

void
oracle_master_dies(sim_t *s)
{
    kvp_master_stats_t st;
    bool is_still;

    if (!s->plan->has_journal) return;
    master_stats(s, &st);
    is_still = st.retiring_bytes == 0;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        is_still &= mem->is_gone || mem->conn != 0;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for_each(s, mem, note, is_still && !mem->is_gone);
}

static void
look_up(sim_t *s, grant_t *g, bool arg)
{
    (void)arg;
    if (!g->is_sure || disk_knows(s, g->tenant, g->digest, g->version) || disk_has_bumped(s, g->tenant, g->version))
        return;
    sim_fail(s, "I3", "slot %u generation %lx is acknowledged, and the journal does not say so", g->slot,
             (unsigned long)g->generation);
}

void
oracle_master_reads(sim_t *s)
{
    if (!disk_judges(s)) return;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for_each(s, mem, look_up, false);
}

/* ---- what a new version replaces */
typedef struct replaced {
    grant_t *grant;
    struct replaced *next;
} replaced_t;

/* Only while nothing is on its way out, and no put waits for room: then what is retired in this step is so for the sake
 * of the version that is committed in it. */
void
promise_commit_heard(sim_t *s, const grant_t *grant)
{
    kvp_master_stats_t st;

    if (!s->plan->has_journal) return;
    master_stats(s, &st);
    if (st.retiring_bytes > 0 || st.pending_puts > 0) return;
    for (known_t *k = known_first(s, grant->digest); k != NULL; k = known_next(k, grant->digest)) {
        replaced_t *r;

        if (!grant_is_served_for_ever(k->grant) || k->grant->version >= grant->version) continue;
        if (k->grant->tenant != grant->tenant) continue;
        k->grant->replacement = grant->version;
        r = sim_alloc(s, sizeof *r);
        *r = (replaced_t){k->grant, s->oracle->replaced};
        s->oracle->replaced = r;
    }
}

void
promise_retired(sim_t *s, const grant_t *grant)
{
    if (grant->replacement == 0 || disk_has_said(s, grant->digest, grant->replacement)) return;
    sim_fail(s, "I3", "slot %u generation %lx is retired, and the journal may forget the version that replaces it",
             grant->slot, (unsigned long)grant->generation);
}

void
promise_step_ends(sim_t *s)
{
    for (const replaced_t *r = s->oracle->replaced; r != NULL; r = r->next)
        r->grant->replacement = 0;
    s->oracle->replaced = NULL;
}
