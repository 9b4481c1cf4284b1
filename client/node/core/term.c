/* SPDX-License-Identifier: Apache-2.0
 * A new term: what older ones granted is void, from before its first order is carried out.
 */
#include "client/node/core/priv.h"

#include "common/mutate.h"

uint32_t
kvp_node_slots_of(const kvp_node_core_t *core, uint32_t chunk)
{
    return chunk + 1 == core->chunk_n ? core->last_slots : core->slots;
}

bool
kvp_node_kill(const kvp_node_core_t *core, uint32_t chunk, uint32_t slot, uint64_t generation)
{
    uint64_t dead = kvp_word_make(generation, KVP_DESC_DEAD);

    if (!KVP_RULE(RETIRE_DEAD)) return true;
    for (;;) {
        uint64_t now = core->conf.words->load(core->conf.words_arg, chunk, slot);

        if (kvp_word_generation(now) > generation && KVP_RULE(RETIRE_GENERATION)) return false;
        if (now == dead || core->conf.words->cas(core->conf.words_arg, chunk, slot, now, dead)) return true;
    }
}

/* Slots from `from` on: what is of an older term than that becomes DEAD in it, so that no grant of theirs can be begun or
 * finished there. What is SEALED was whole before; it stays where spares_sealed. */
static void
sweep(kvp_node_core_t *core, uint32_t chunk, uint32_t from, uint32_t term, bool spares_sealed)
{
    uint64_t generation = kvp_gen_make(term, 0), dead = kvp_word_make(generation, KVP_DESC_DEAD);
    uint32_t limit = core->conf.words->limit(core->conf.words_arg, chunk);

    limit = (uint32_t)kvp_min_u64(limit, kvp_node_slots_of(core, chunk));
    for (uint32_t slot = from; slot < limit; slot++) {
        uint64_t now;

        do {
            now = core->conf.words->load(core->conf.words_arg, chunk, slot);
            if (kvp_word_generation(now) >= generation) break;
            if (spares_sealed && kvp_word_state(now) == KVP_DESC_SEALED) break;
            if (core->conf.words->cas(core->conf.words_arg, chunk, slot, now, dead)) {
                core->stats.revoked += kvp_word_state(now) == KVP_DESC_WRITING;
                break;
            }
        } while (true);
    }
    core->swept[chunk] = limit;
}

/* Slots that had never been touched when the term rose were not gone over, and a grant in one may have been begun since. */
static void
sweep_late(kvp_node_core_t *core, uint32_t term)
{
    for (uint32_t chunk = 0; chunk < core->chunk_n && KVP_RULE(LATE_SWEEP); chunk++)
        sweep(core, chunk, core->swept[chunk], term, false);
}

void
kvp_node_term_rose(kvp_node_core_t *core, uint32_t old_term)
{
    if (!core->has_segment) return; /* nothing was granted */
    kvp_node_live_min_raise(core, (uint64_t)core->term << KVP_INCARNATION_SEQ_BITS);
    core->is_fence_due = true;
    kvp_node_writers_close(core, false);
    kvp_node_report_end(core);
    if (core->old_owners > 0) sweep_late(core, old_term);
    for (uint32_t chunk = 0; chunk < core->chunk_n && KVP_RULE(TERM_SWEEP); chunk++)
        sweep(core, chunk, 0, core->term, true);
    core->conf.words->fence(core->conf.words_arg);
    kvp_node_owners_are_old(core);
}

void
kvp_node_old_writers_gone(kvp_node_core_t *core)
{
    if (core->has_segment) {
        sweep_late(core, core->term);
        core->conf.words->fence(core->conf.words_arg);
    }
    kvp_node_extents_proved(core, &core->any);
}

bool
kvp_node_core_take_fence(kvp_node_core_t *core, uint64_t *live_min_out)
{
    if (!core->is_fence_due) return false;
    core->is_fence_due = false;
    *live_min_out = core->live_min;
    return true;
}
