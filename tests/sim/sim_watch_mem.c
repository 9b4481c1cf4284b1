/* SPDX-License-Identifier: Apache-2.0
 * The oracle at the master's door: what it knows of memory, of what was granted there, and of what nodes report. */
#include "tests/sim/sim_copy.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_tier.h"
#include "tests/sim/sim_watch.h"

#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

/* ---- segments and grants */
bool
has_left_elder(const sim_t *s, const mem_t *mem)
{
    return master_is_elder(s) && s->oracle->terms[mem->node] > master_term(s);
}

mem_t *
oracle_mem_of(sim_t *s, uint32_t term, uint32_t segment_id)
{
    const oracle_t *o = s->oracle;

    for (uint32_t i = o->segments_n; i-- > 0;)
        if (o->segments[i].term == term && o->segments[i].id == segment_id) return o->segments[i].mem;
    return NULL;
}

void
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

static known_t *
first_from(known_t *k, kvp_digest_t digest)
{
    while (k != NULL && !kvp_digest_eq(k->grant->digest, digest))
        k = k->next;
    return k;
}

known_t *
known_first(sim_t *s, kvp_digest_t digest)
{
    return first_from(*bucket_of(s, digest), digest);
}

known_t *
known_next(known_t *known, kvp_digest_t digest)
{
    return first_from(known->next, digest);
}

/* Nothing can be said about it any more. */
static bool
is_history(const grant_t *g)
{
    return (g->is_retired && g->is_freed) || g->is_lost || g->mem->is_gone;
}

void
know(sim_t *s, grant_t *g)
{
    known_t **bucket = bucket_of(s, g->digest);
    known_t *k = sim_alloc(s, sizeof *k);

    for (known_t **at = bucket; *at != NULL;) {
        if (is_history((*at)->grant))
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }

    *k = (known_t){.grant = g, .next = *bucket};
    *bucket = k;
}

grant_t *
grant_next(const mem_t *mem, uint32_t *chunk, uint32_t *slot)
{
    for (; *chunk < mem->chunk_n; ++*chunk, *slot = 0)
        while (*slot < SLOTS) {
            grant_t *g = mem->chunks[*chunk].grant[(*slot)++];

            if (g != NULL) return g;
        }
    return NULL;
}

static bool
is_sealed(const grant_t *g)
{
    return g->mem->chunks[g->chunk].word[g->slot] == kvp_word_make(g->generation, KVP_DESC_SEALED);
}

static void
set_freed(const sim_t *s, grant_t *g)
{
    if (!g->is_freed) g->freed_term = s->oracle->terms[g->mem->node];
    g->is_freed = true;
}

/* What lay between reported extents is free: no writer of a term before the one that retired it can store any more,
 * wherever it would. Its node may say so in a later term, and proves nothing of the writers between. */
static void
gap_freed(sim_t *s, mem_t *mem, uint32_t term)
{
    uint32_t chunk = 0, slot = 0;

    mem->proved_term = (uint32_t)kvp_max_u64(mem->proved_term, term);
    for (grant_t *g; (g = grant_next(mem, &chunk, &slot)) != NULL;) {
        if (is_sealed(g) && g->term < term && !g->was_reported && !g->is_refused)
            sim_fail(s, "I2",
                     "the space of slot %u generation %lx is free, of which no master was told, and it is SEALED",
                     g->slot, (unsigned long)g->generation);
        for (; g != NULL; g = g->older)
            if (g->term < term && !is_sealed(g)) set_freed(s, g);
    }
}

/* Of extents that nobody was told of, only those retired with every older writer as their owner. Others had been
 * granted, and whoever asked for them went before the answer: their end proves nothing. */
static bool
is_gap(const mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation)
{
    for (const gap_t *gap = mem->gaps; gap != NULL; gap = gap->next)
        if (gap->chunk == chunk && gap->slot == slot && gap->generation == generation) return true;
    return false;
}

void
note_gap(sim_t *s, mem_t *mem, const kvp_wire_slot_t *slot)
{
    gap_t *gap = sim_alloc(s, sizeof *gap);

    *gap = (gap_t){slot->chunk, slot->slot, slot->generation, mem->gaps};
    mem->gaps = gap;
}

void
oracle_freed(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation)
{
    grant_t *g = grant_find(mem, chunk, slot, generation);

    if (g != NULL)
        set_freed(s, g);
    else if (is_gap(mem, chunk, slot, generation))
        gap_freed(s, mem, (uint32_t)(generation >> KVP_GEN_SEQ_BITS));
}

/* ---- reports */
/* What went before the master died, from a place that its node had not made DEAD, may come back until some node has
 * told the next one better. */
static void
excuse(const sim_t *s, put_t *put)
{
    put->told_term = master_term(s);
    if (put->gone_term == master_term(s) || put->proof_term == master_term(s)) return;
    put->is_excused |= put->gone_ns != UINT64_MAX;
    put->gone_ns = put->revoked_ns = UINT64_MAX;
}

/* From here on the master knows better. An attempt that was refused says nothing of the one after it of the same put.
 */
static void
prove(const sim_t *s, const grant_t *g)
{
    put_t *put = g->put == 0 || !g->is_committed ? NULL : s->oracle->puts[g->put];

    if (put == NULL) return;
    put->proof_term = master_term(s);
    if (put->is_excused) put->gone_ns = s->now;
    put->is_excused = false;
}

/* Without a journal, a put that was acknowledged has to be served again; one that was not may be. */
static void
may_return(const sim_t *s, grant_t *g, put_t *put)
{
    /* the log may have the record of a bump that no client has heard the answer of */
    bool is_gone = disk_says_gone(s, g->digest, g->version) || disk_has_bumped(s, g->tenant, g->version);

    g->was_reported = !is_gone;
    g->is_refused = is_gone;
    g->must_return = put->is_committed && put->gone_ns == UINT64_MAX && !put->is_excused && !g->is_retired && !is_gone;
    put->is_commit_sent = true;
    excuse(s, put);
}

/* With one, what it says was committed has to be served again, and nothing else may. What readers saw of a commit that
 * was not durable was none: its put, if it still goes on, may be told of the version before. */
static void
is_judged(const sim_t *s, grant_t *g, put_t *put)
{
    g->was_reported = g->must_return = disk_knows(s, g->tenant, g->digest, g->version);
    g->is_refused = !g->was_reported;
    if (g->is_refused) put->is_committed = false;
}

static bool
is_wanted(const put_t *put)
{
    return put->is_committed && put->gone_ns == UINT64_MAX && !put->is_excused;
}

void
oracle_reports(sim_t *s, mem_t *mem)
{
    uint32_t chunk = 0, slot = 0;

    for (grant_t *g; (g = grant_next(mem, &chunk, &slot)) != NULL;) {
        put_t *put = g->put == 0 ? NULL : s->oracle->puts[g->put];
        bool is_last_copy;

        if (!is_sealed(g) || put == NULL || g->term == master_term(s)) continue;
        g->is_refused = false;
        is_last_copy = g->is_copy && copy_must_return(s, g);
        if ((g->is_staged || g->is_copy) && disk_judges(s)) { /* its log may say so, or not */
            g->was_reported = true;
            g->must_return = false;
        } else if (disk_judges(s)) {
            is_judged(s, g, put);
        } else {
            may_return(s, g, put);
            g->must_return &= !g->is_staged && !g->is_copy;
        }
        if (is_last_copy)
            g->must_return = disk_judges(s) ? disk_knows(s, g->tenant, g->digest, g->version) : is_wanted(put);
        /* It may be on its tier alone, also where its node was not told yet that it left memory. */
        if (s->plan->has_tiers) g->must_return &= !g->is_retired && !tier_has(s, g->digest, g->version);
        g->is_retired = false;
    }
}

void
let_go(sim_t *s, uint32_t tenant, const kvp_digest_t *digest, uint64_t version)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (grant_t *g; !mem->is_gone && (g = grant_next(mem, &chunk, &slot)) != NULL;)
            g->may_go |= (g->is_lost || mem->conn == 0) && g->version <= version &&
                         (digest == NULL ? g->tenant == tenant : kvp_digest_eq(g->digest, *digest));
    }
}

/* A node tells of a newer version. */
static void
prove_older(sim_t *s, kvp_digest_t digest, uint64_t version)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (const grant_t *g; !mem->is_gone && (g = grant_next(mem, &chunk, &slot)) != NULL;)
            if (g->version < version && kvp_digest_eq(g->digest, digest)) prove(s, g);
    }
}

/* What is served is no more, whoever holds it, when a newer version of its key is told of. */
static void
supersede_older(sim_t *s, const kvp_desc_t *desc)
{
    prove_older(s, desc->digest, desc->version);
    for (known_t *k = known_first(s, desc->digest); k != NULL; k = known_next(k, desc->digest))
        k->is_forced |= k->grant->tenant == desc->tenant && k->grant->version < desc->version;
}

void
watch_told_by_tier(sim_t *s, put_t *put, const kvp_desc_t *desc)
{
    put->is_commit_sent = true;
    excuse(s, put);
    let_go(s, desc->tenant, &desc->digest, desc->version - 1);
    supersede_older(s, desc);
}

void
let_go_older(sim_t *s, const kvp_frame_t *f, const Kvp__Pb__Report *head)
{
    const uint64_t since = mem_find(s, head->uuid.data)->since;
    kvp_rd_t rd;

    kvp_rd_init(&rd, f->tail, f->tail_len);
    for (uint32_t i = 0; i < head->n; i++) {
        const kvp_wire_extent_t *told = kvp_rd_array(&rd, 1, sizeof *told);
        kvp_desc_t desc;

        if (!head->is_whole && (since == 0 || kvp_word_generation(told->word) < since)) continue;
        memcpy(&desc, kvp_rd_array(&rd, 1, sizeof desc), sizeof desc);
        (void)kvp_rd_array(&rd, kvp_align_up(desc.key_len, 8), 1);
        if (desc.version == 0) continue;
        let_go(s, desc.tenant, &desc.digest, desc.version - 1);
        supersede_older(s, &desc);
    }
}

void
reported(sim_t *s, mem_t *mem)
{
    uint32_t chunk = 0, slot = 0;

    for (grant_t *g; (g = grant_next(mem, &chunk, &slot)) != NULL;) {
        if ((g->is_copy || (g->is_staged && !g->must_return)) && g->was_reported && !g->is_retired &&
            master_has_place(s, g->digest, g->generation)) {
            g->is_lost = false;
            copy_known(s, g);
            continue;
        }
        if (!g->must_return || g->may_go || !g->is_lost || g->is_retired || copy_was_dropped(s, g)) continue;
        know(s, g);
        g->is_lost = false;
    }
}

void
oracle_mem_gone(sim_t *s, mem_t *mem)
{
    (void)s;
    mem->is_gone = true;
}
