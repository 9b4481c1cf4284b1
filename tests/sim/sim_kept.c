/* SPDX-License-Identifier: Apache-2.0
 * What is gone stays gone: when a client is told so, every extent that was served under that key is DEAD, or, where
 * there is a log that is synced, that says so. */
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_oracle_priv.h"
#include "tests/sim/sim_watch.h"

/* Its node was away for so long that the master may have given it up, and with it what is in it; or has not come since
 * this master began. */
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

/* A next master would find out that it is gone, whatever it lacks of the log, and believes of nodes instead. A newer
 * version tells of those before it. */
static void
check(sim_t *s, const grant_t *g)
{
    if (!is_readable(g) || may_be_given_up(s, g) || disk_has_synced_gone(s, g->tenant, g->digest, g->version)) return;
    if (s->plan->has_standby && disk_has_synced_newer(s, g->digest, g->version)) return;
    if (s->plan->has_standby && g->version < disk_synced_oldest(s) && !disk_knows(s, g->tenant, g->digest, g->version))
        return; /* nobody believes nodes of it any more */
    if (disk_is_relied_on(s)) {
        if (!disk_has_said(s, g->digest, g->version)) return;
        if (g->term < master_term(s) && !disk_knows(s, g->tenant, g->digest, g->version)) return; /* it is made anew */
    }
    sim_fail(s, "I6", "slot %u generation %lx of node%u is said to be gone, and the log may forget it", g->slot,
             (unsigned long)g->generation, g->mem->node);
}

static bool
is_synced(const sim_t *s)
{
    return s->plan->has_journal && s->plan->log_sync != KVP_LOG_SYNC_NONE;
}

void
kept_check(sim_t *s, const gone_t *gone)
{
    if (!is_synced(s)) return;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (const grant_t *g; !mem->is_gone && (g = grant_next(mem, &chunk, &slot)) != NULL;) {
            if (g->tenant != gone->tenant || g->commit_ns >= gone->before_ns) continue;
            if (gone->digest == NULL || kvp_digest_eq(g->digest, *gone->digest)) check(s, g);
        }
    }
}

void
kept_check_older(sim_t *s, const grant_t *newer)
{
    if (!is_synced(s)) return;
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (const grant_t *g; !mem->is_gone && (g = grant_next(mem, &chunk, &slot)) != NULL;) {
            if (g->tenant != newer->tenant || g->version >= newer->version) continue;
            if (!kvp_digest_eq(g->digest, newer->digest)) continue;
            check(s, g);
        }
    }
}
