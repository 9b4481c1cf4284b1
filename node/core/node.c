/* SPDX-License-Identifier: Apache-2.0
 * Terms, fences and the lifetime of the node core. */
#include "node/core/priv.h"

#include "common/mutate.h"

#include <stdlib.h>
#include <string.h>

#define SWEEP_SLOTS 65536u /* the number of slots that one call of the sweep examines, in less than a millisecond */

/* ---- a new term voids the grants of older terms, before its first order is carried out */
/* sweep_slot makes a slot of an older term DEAD with `generation`, so that no old grant can be begun or finished there.
 * A SEALED slot was complete before and stays SEALED, unless its generation is below the parameter `late`. */
static void
sweep_slot(kvp_node_core_t *core, uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t late)
{
    uint64_t dead = kvp_word_make(generation, KVP_DESC_DEAD), now;

    do {
        now = core->conf.words->load(core->conf.words_arg, chunk, slot);
        if (kvp_word_generation(now) >= generation) return;
        if (kvp_word_state(now) == KVP_DESC_SEALED && kvp_word_generation(now) >= late) return;
    } while (!core->conf.words->cas(core->conf.words_arg, chunk, slot, now, dead));
    core->stats.revoked += kvp_word_state(now) == KVP_DESC_WRITING;
}

/* sweep_some sweeps the next slice of slots. Returns false at the end of the sweep. Slots that were untouched when the
 * term rose were not swept then (from swept[chunk] on), and a writer of an older term may have stored there since: such
 * an object was never committed, so its slot becomes DEAD even if it is SEALED. */
static bool
sweep_some(kvp_node_core_t *core)
{
    bool has_late = (core->old_owners > 0 || core->is_late_due) && KVP_RULE(LATE_SWEEP);
    uint64_t late = has_late ? kvp_gen_make(core->term, 0) : 0;
    uint64_t generation = core->rising != 0 ? kvp_gen_make(core->rising, 0) : late;
    uint32_t left = core->conf.sweep_slots;

    for (; core->sweep_chunk < core->chunk_n; core->sweep_chunk++, core->sweep_slot = 0) {
        uint32_t chunk = core->sweep_chunk, swept = core->swept[chunk];
        uint32_t limit = core->conf.words->limit(core->conf.words_arg, chunk), slot = core->sweep_slot;

        limit = (uint32_t)kvp_min_u64(limit, kvp_node_slots_of(core, chunk));
        if (core->rising == 0) slot = (uint32_t)kvp_max_u64(slot, swept);
        for (; slot < limit; slot++) {
            core->sweep_slot = slot;
            if (left == 0) return true;
            left--;
            if (core->rising == 0 || KVP_RULE(TERM_SWEEP))
                sweep_slot(core, chunk, slot, generation, slot < swept ? 0 : late);
        }
        core->swept[chunk] = limit;
    }
    return false;
}

static void
begin_sweep(kvp_node_core_t *core)
{
    core->sweep_chunk = core->sweep_slot = 0;
    (void)kvp_node_core_sweep(core);
}

bool
kvp_node_core_is_sweeping(const kvp_node_core_t *core)
{
    return core->rising != 0 || core->is_late_due;
}

/* end_rise ends the sweep for a new term: from here on the node obeys the term. While writers of older terms live, the
 * sweep of their last stores (is_late_due) waits for their end. */
static void
end_rise(kvp_node_core_t *core)
{
    core->term = core->rising;
    core->rising = 0;
    core->is_changed = true;
    kvp_node_owners_are_old(core);
    if (core->old_owners > 0) core->is_late_due = false;
}

bool
kvp_node_core_sweep(kvp_node_core_t *core)
{
    if (!kvp_node_core_is_sweeping(core) || sweep_some(core)) return kvp_node_core_is_sweeping(core);
    core->sweep_chunk = core->sweep_slot = 0;
    core->conf.words->fence(core->conf.words_arg);
    if (core->rising != 0) {
        end_rise(core);
    } else {
        core->is_late_due = false;
        core->is_changed = true;
        kvp_node_extents_proved(core, &core->any);
    }
    return kvp_node_core_is_sweeping(core);
}

static void
begin_rise(kvp_node_core_t *core, uint32_t term)
{
    core->is_changed = true;
    if (core->segment == KVP_NODE_SEGMENT_NONE) { /* no memory, so no older grants: the new term is obeyed at once */
        core->term = term;
        return;
    }
    core->rising = term;
    kvp_idset_add(&core->fenced, (kvp_idrange_t){0}, (uint64_t)term << KVP_INCARNATION_SEQ_BITS);
    core->is_fence_due = true;
    kvp_node_writers_close(core, false);
    kvp_node_report_end(core);
    begin_sweep(core);
}

void
kvp_node_old_writers_gone(kvp_node_core_t *core)
{
    if (core->segment == KVP_NODE_SEGMENT_NONE) {
        kvp_node_extents_proved(core, &core->any);
        return;
    }
    core->is_late_due = true;
    if (core->rising == 0) begin_sweep(core);
}

bool
kvp_node_core_take_fence(kvp_node_core_t *core, uint64_t *live_min_out)
{
    if (!core->is_fence_due) return false;
    core->is_fence_due = false;
    *live_min_out = core->fenced.floor;
    return true;
}

kvp_node_core_t *
kvp_node_core_create(const kvp_node_core_conf_t *conf)
{
    kvp_node_core_t *core = calloc(1, sizeof *core);

    if (core == NULL) return NULL;
    core->conf = *conf;
    if (core->conf.sweep_slots == 0) core->conf.sweep_slots = SWEEP_SLOTS;
    core->mix = kvp_mix_make(conf->secret);
    kvp_list_init(&core->attachments);
    kvp_list_init(&core->closing);
    kvp_list_init(&core->idle);
    for (size_t i = 0; i < KVP_NODE_OWNER_BUCKETS; i++)
        kvp_list_init(&core->owners[i]);
    for (size_t i = 0; i < KVP_NODE_OWNER_BUCKETS; i++)
        kvp_list_init(&core->present[i]);
    kvp_list_init(&core->any.waiting);
    kvp_list_init(&core->quiescing);
    kvp_list_init(&core->quarantined);
    kvp_list_init(&core->freed);
    kvp_list_init(&core->unused);
    return core;
}

void
kvp_node_core_destroy(kvp_node_core_t *core)
{
    if (core == NULL) return;
    kvp_node_extents_fini(core);
    kvp_node_report_fini(core);
    free(core->swept);
    kvp_idset_fini(&core->fenced);
    free(core);
}

kvp_err_t
kvp_node_core_set_segment(kvp_node_core_t *core, uint32_t chunk_n, uint32_t slots, uint32_t last_slots)
{
    uint32_t *swept = calloc(chunk_n, sizeof *swept);

    if (swept == NULL) return KVP_NOMEM;
    free(core->swept);
    core->swept = swept;
    core->segment = KVP_NODE_SEGMENT_UNMOUNTED;
    core->chunk_n = chunk_n;
    core->slots = slots;
    core->last_slots = last_slots;
    return KVP_OK;
}

void
kvp_node_core_set_id(kvp_node_core_t *core, uint32_t segment_id)
{
    core->segment_id = segment_id;
    core->segment = KVP_NODE_SEGMENT_MOUNTED;
    if (core->mounted_term != core->term) core->mounted_before = core->mounted_term;
    core->mounted_term = core->term;
    core->is_changed = true;
}

void
kvp_node_core_drop_segment(kvp_node_core_t *core)
{
    core->segment = KVP_NODE_SEGMENT_NONE;
    core->term = kvp_node_core_term(core);
    core->rising = 0;
    core->is_late_due = false;
    core->mounted_term = core->mounted_before = 0;
    kvp_node_report_end(core);
    kvp_node_extents_drop(core);
    kvp_node_writers_forget_memory(core);
    kvp_node_writers_close(core, true);
}

void
kvp_node_core_forget_pool(kvp_node_core_t *core)
{
    kvp_node_core_drop_segment(core);
    core->term = 0;
    core->is_fence_due = false;
    kvp_idset_fini(&core->fenced);
}

kvp_err_t
kvp_node_core_see_term(kvp_node_core_t *core, uint32_t term)
{
    if (term == 0 || term > KVP_TERM_MAX) return KVP_INVALID;
    if (term < kvp_node_core_term(core) && KVP_RULE(TERM_CHECK)) return KVP_STALE_TERM;
    if (term > kvp_node_core_term(core)) begin_rise(core, term);
    return core->rising == 0 || !KVP_RULE(SWEEP_FIRST) ? KVP_OK : KVP_EAGAIN;
}

uint32_t
kvp_node_core_term(const kvp_node_core_t *core)
{
    return core->rising != 0 ? core->rising : core->term;
}

uint32_t
kvp_node_core_mounted_term(const kvp_node_core_t *core)
{
    return core->mounted_term;
}

void
kvp_node_core_link_lost(kvp_node_core_t *core)
{
    if (core->segment == KVP_NODE_SEGMENT_MOUNTED) core->segment = KVP_NODE_SEGMENT_UNMOUNTED;
    kvp_node_report_end(core);
}

bool
kvp_node_core_is_fenced(const kvp_node_core_t *core, uint64_t incarnation)
{
    return kvp_idset_has(&core->fenced, incarnation);
}

kvp_err_t
kvp_node_core_fence(kvp_node_core_t *core, uint32_t term, kvp_idrange_t dead, uint64_t live_min)
{
    kvp_err_t err = kvp_node_core_see_term(core, term);

    if (err != KVP_OK) return err;
    kvp_idset_add(&core->fenced, dead, live_min);
    core->stats.fences++;
    core->is_changed = true;
    kvp_node_writers_close(core, false);
    return KVP_OK;
}

const kvp_idset_t *
kvp_node_core_fenced(const kvp_node_core_t *core)
{
    return &core->fenced;
}

void
kvp_node_core_stats(const kvp_node_core_t *core, kvp_node_core_stats_t *stats_out)
{
    *stats_out = core->stats;
}
