/* SPDX-License-Identifier: Apache-2.0
 * What is gone stays gone: when a client is told so, every extent that was served under that key is DEAD, or some node keeps
 * a tombstone of it, or a journal says so that the next master believes. Then a master that knows nothing can find out. The same
 * of what was not reported to this master yet. And what replaced something does not go before that is so.
 */
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_oracle_priv.h"

typedef struct kept {
    kvp_wire_tomb_t tomb;
    struct kept *next;
} kept_t;

bool
kept_names(const kvp_wire_tomb_t *tomb, const grant_t *g)
{
    if (g->version > tomb->version) return false;
    if (tomb->digest.hi == kvp_wire_tomb_tenant(0).hi) return g->tenant == tomb->digest.lo;
    return kvp_digest_eq(g->digest, tomb->digest);
}

void
oracle_node_keeps(sim_t *s, uint32_t node, const kvp_wire_tomb_t *tombs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kept_t **at = &s->oracle->kept[node];

        while (*at != NULL && !kvp_digest_eq((*at)->tomb.digest, tombs[i].digest))
            at = &(*at)->next;
        if (*at != NULL && tombs[i].version == 0) {
            *at = (*at)->next;
        } else if (*at != NULL) {
            (*at)->tomb.version = kvp_max_u64((*at)->tomb.version, tombs[i].version);
        } else if (tombs[i].version != 0) {
            *at = sim_alloc(s, sizeof **at);
            **at = (kept_t){.tomb = tombs[i]};
        }
    }
}

static bool
is_among(const kept_t *k, const grant_t *g)
{
    while (k != NULL && !kept_names(&k->tomb, g))
        k = k->next;
    return k != NULL;
}

static bool
is_kept(const sim_t *s, const grant_t *g)
{
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        if (is_among(s->oracle->kept[i], g) || is_among(s->oracle->kept_last[i], g)) return true;
    return false;
}

/* Its node was away for so long that the master may have given it up, and with it what is in it; or has not come since this
 * master began. */
static bool
may_be_given_up(const sim_t *s, const grant_t *g)
{
    uint64_t away_ns = g->is_lost ? master_age(s) : master_now(s) - g->mem->away_ns;

    return g->mem->conn == 0 && away_ns >= s->plan->node_grace_ns;
}

static bool
is_sealed(const grant_t *g)
{
    uint64_t word = g->mem->chunks[g->chunk].word[g->slot];

    return !g->mem->is_gone && word == kvp_word_make(g->generation, KVP_DESC_SEALED);
}

/* Whoever reads it would take it for the key's. */
static bool
is_readable(const grant_t *g)
{
    return g->is_committed && is_sealed(g);
}

/* A next master would find out that it is gone. Of what the present one was not told yet, a newer version tells as well:
 * the answer under way may be its own. */
static void
check(sim_t *s, const grant_t *g, bool is_replaced)
{
    if (!is_readable(g) || may_be_given_up(s, g)) return;
    if (disk_is_relied_on(s)) {
        if (is_replaced || s->plan->log_sync == KVP_LOG_SYNC_NONE || !disk_has_said(s, g->digest, g->version)) return;
        if (g->term < master_term(s) && !disk_knows(s, g->tenant, g->digest, g->version)) return; /* it is made anew */
        if (disk_has_synced_gone(s, g->tenant, g->digest, g->version)) return;
        sim_fail(s, "I6", "slot %u generation %lx of node%u is said to be gone, and the log may forget it", g->slot,
                 (unsigned long)g->generation, g->mem->node);
        return;
    }
    if ((g->is_lost && is_replaced) || is_kept(s, g)) return;
    sim_fail(s, "I6", "slot %u generation %lx of node%u is said to be gone, and nobody but the master knows of it",
             g->slot, (unsigned long)g->generation, g->mem->node);
}

void
kept_check(sim_t *s, const gone_t *gone)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for (uint32_t at = 0; !mem->is_gone && at < mem->chunk_n * SLOTS; at++) {
            const grant_t *g = mem->chunks[at / SLOTS].grant[at % SLOTS];

            if (g == NULL || g->tenant != gone->tenant) continue;
            if (gone->digest != NULL && !kvp_digest_eq(g->digest, *gone->digest)) continue;
            if (g->version < gone->below && g->commit_ns < gone->before_ns) check(s, g, gone->below != UINT64_MAX);
        }
}

/* ---- what tells of what it has replaced, until that is DEAD as well */
static bool
replaces(const grant_t *g, const grant_t *old)
{
    return old != g && old->version < g->version && old->tenant == g->tenant && kvp_digest_eq(old->digest, g->digest);
}

static bool
is_replaced_by_another(const sim_t *s, const grant_t *old, const grant_t *but)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for (uint32_t at = 0; at < mem->chunk_n * SLOTS; at++) {
            const grant_t *g = mem->chunks[at / SLOTS].grant[at % SLOTS];

            if (g != NULL && g != but && is_sealed(g) && replaces(g, old)) return true;
        }
    return false;
}

void
kept_check_dying(sim_t *s, const grant_t *g)
{
    if (disk_is_relied_on(s) || !g->is_promised || s->elder != NULL) return;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for (uint32_t at = 0; at < mem->chunk_n * SLOTS; at++) {
            const grant_t *old = mem->chunks[at / SLOTS].grant[at % SLOTS];

            if (old == NULL || !replaces(g, old) || !is_readable(old) || may_be_given_up(s, old)) continue;
            if (is_kept(s, old) || is_replaced_by_another(s, old, g)) continue;
            sim_fail(s, "I1", "slot %u generation %lx of node%u is replaced, and what tells so is made DEAD", old->slot,
                     (unsigned long)old->generation, old->mem->node);
        }
}
