/* SPDX-License-Identifier: Apache-2.0
 * The state of the core that outlives the node's process if a keeper holds the memory. Terms, fences and the progress
 * of the sweep are saved in the book, a file of shared memory; writers are restored from the keeper. Extents on their
 * way to free are not saved: the master asks for them again. */
#include "node/core/priv.h"

#include "common/mutate.h"

#include <string.h>

/* The head of the saved state of the node's core (PROTOCOL "Keeper"). The array `swept` (32 bits
 * for each chunk) and the fenced ranges (16 bytes each) follow the head. */
typedef struct {
    uint32_t term;
    uint32_t seen; /* the highest term seen; above `term` while the memory is swept for the new term */
    uint32_t mounted_term;
    uint32_t mounted_before;
    uint32_t chunk_n;
    uint32_t reserved; /* a reserved field, always 0 */
    uint64_t floor;
    uint64_t ranges_n;
} state_t;

_Static_assert(sizeof(state_t) == 40, "what a book holds is wire format");

bool
kvp_node_core_take_changed(kvp_node_core_t *core)
{
    bool was = core->is_changed;

    core->is_changed = false;
    return was;
}

void
kvp_node_core_save(const kvp_node_core_t *core, kvp_buf_t *out)
{
    state_t s = {
        .term = core->term,
        .seen = kvp_node_core_term(core),
        .mounted_term = core->mounted_term,
        .mounted_before = core->mounted_before,
        .chunk_n = core->chunk_n,
        .floor = core->fenced.floor,
        .ranges_n = core->fenced.n,
    };

    kvp_buf_append(out, &s, sizeof s);
    kvp_buf_append(out, core->swept, core->chunk_n * sizeof *core->swept);
    kvp_buf_append(out, core->fenced.ranges, core->fenced.n * sizeof *core->fenced.ranges);
}

static bool
is_sound(const kvp_node_core_t *core, const state_t *s, size_t len)
{
    return s->term > 0 && s->term <= s->seen && s->seen <= KVP_TERM_MAX && s->mounted_term <= s->term &&
           s->mounted_before <= s->mounted_term && s->chunk_n == core->chunk_n && s->ranges_n <= len &&
           len == sizeof *s + (uint64_t)s->chunk_n * sizeof *core->swept + s->ranges_n * sizeof(kvp_idrange_t);
}

kvp_err_t
kvp_node_core_restore(kvp_node_core_t *core, const uint8_t *bytes, size_t len)
{
    kvp_idrange_t range;
    state_t s;

    if (len < sizeof s) return KVP_PROTO;
    memcpy(&s, bytes, sizeof s);
    if (!is_sound(core, &s, len)) return KVP_PROTO;
    bytes += sizeof s;
    for (uint32_t i = 0; i < s.chunk_n; i++, bytes += sizeof *core->swept) {
        memcpy(&core->swept[i], bytes, sizeof core->swept[i]);
        if (core->swept[i] > kvp_node_slots_of(core, i)) return KVP_PROTO;
    }
    for (uint64_t i = 0; i < s.ranges_n; i++, bytes += sizeof range) {
        memcpy(&range, bytes, sizeof range);
        kvp_idset_add(&core->fenced, range, s.floor);
    }
    kvp_idset_add(&core->fenced, (kvp_idrange_t){0}, s.floor);
    core->term = KVP_RULE(KEPT_TERM) || s.term == 1 ? s.term : s.term - 1;
    core->mounted_term = s.mounted_term;
    core->mounted_before = s.mounted_before;
    core->restored_seen = s.seen;
    return KVP_OK;
}

void
kvp_node_core_restored(kvp_node_core_t *core)
{
    /* If no writer of an older term lives, begins the sweep for the last stores of writers that have ended. */
    if (core->old_owners == 0) kvp_node_old_writers_gone(core);
    if (core->restored_seen > core->term)
        kvp_ignore(kvp_node_core_see_term(core, core->restored_seen), "it is obeyed at the end of its sweep");
}

void
kvp_node_core_audit(kvp_node_core_t *core, uint64_t *sealed_out, uint64_t *broken_out)
{
    uint64_t above = kvp_gen_make(kvp_node_core_term(core) + 1, 0);
    uint8_t key[KVP_KEY_MAX];
    kvp_desc_t desc;

    *sealed_out = *broken_out = 0;
    for (uint32_t chunk = 0; chunk < core->chunk_n; chunk++) {
        uint32_t limit = core->conf.words->limit(core->conf.words_arg, chunk);

        limit = (uint32_t)kvp_min_u64(limit, kvp_node_slots_of(core, chunk));
        for (uint32_t slot = 0; slot < limit; slot++) {
            uint64_t word = core->conf.words->load(core->conf.words_arg, chunk, slot);

            if (kvp_word_state(word) != KVP_DESC_SEALED) continue;
            ++*sealed_out;
            if (kvp_word_generation(word) < above &&
                core->conf.words->read(core->conf.words_arg, chunk, slot, &desc, key))
                continue;
            (void)kvp_node_kill(core, chunk, slot, kvp_word_generation(word));
            ++*broken_out;
        }
    }
    core->conf.words->fence(core->conf.words_arg);
}
