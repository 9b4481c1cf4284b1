/* SPDX-License-Identifier: Apache-2.0
 * The state words of slots: the number of slots of a chunk, and the store of DEAD into a word. */
#include "node/core/priv.h"

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
