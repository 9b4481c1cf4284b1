/* SPDX-License-Identifier: Apache-2.0
 * Memory of a node: descriptor words, descriptors, keys, and payload in units of 64 bytes. A unit holds no bytes but
 * a mark that names the put it came from and its place in it, so what a reader gets tells exactly whose bytes it saw.
 * Every extent that a master ever granted is known here (grant_t), with what became of it: a store that lands where
 * its grant is over breaks I2. */
#ifndef KVP_TESTS_SIM_MEM_H
#define KVP_TESTS_SIM_MEM_H

#include "proto/segfmt.h"
#include "tests/sim/sim.h"

#define UNIT 64u
#define CHUNK_BYTES (64u << 10)
#define CHUNK_UNITS (CHUNK_BYTES / UNIT)
#define SLOTS 256u
#define KEY_BYTES 16u

typedef struct group group_t; /* the oracle's */

typedef struct grant {
    mem_t *mem;
    uint32_t chunk, slot;
    uint64_t generation;
    uint64_t offset, len; /* payload bytes */
    uint32_t unit, units;
    uint64_t put; /* whose: set when its writer takes it up; 0 = never */
    uint64_t version;
    kvp_digest_t digest;
    uint32_t tenant;
    uint64_t granted_ns;
    uint32_t term; /* of the master that granted it */
    bool is_staged; /* its node stores what its tier has */
    bool is_just_loaded; /* and did, and it is to be cold */
    bool is_copy; /* its node stores what another has */
    bool is_moved; /* the master dropped it, for another copy is served */
    bool is_dropped; /* it did, before the other copy's node was away, and has not said so */
    bool is_removal_asked; /* the removal of its key was heard */
    bool is_pinned; /* hard: only a removal takes it away */
    bool is_commit_asked; /* its writer said that it is whole */
    uint64_t commit_ns; /* when; UINT64_MAX = not yet */
    bool is_committed; /* the master said so */
    bool is_promised; /* in an answer to its writer */
    bool is_sure; /* when the master died it was there, and nothing was under way that may have ended that */
    bool is_retired; /* the master ordered it, */
    uint64_t retired_ns; /* then, */
    bool is_quarantined; /* and its writer may still store there */
    uint64_t replacement; /* version that replaces it, in the step under way; 0 = none does */
    bool is_lost; /* with its memory, or with a master that keeps nothing */
    bool was_reported; /* to a master that did not know it */
    bool must_return; /* and that has to serve it */
    bool is_refused; /* or must not: its journal does not know it */
    bool may_go; /* before it was reported, its removal or a new put of its key was heard */
    bool is_freed; /* its node said that nothing touches it any more */
    uint32_t freed_term; /* in which the node said so */
    uint64_t probed_ns; /* when a reader was told that it is there, and may rely on that for a lease; 0 = never */
    uint32_t holds; /* tickets that protect it */
    uint64_t used_ns, let_go_ns; /* when it may last have been used, and a ticket on it ended; 0 = not yet */
    uint64_t carried_until_ns; /* of a master that is gone: protected it until then, by that one's clock; 0 = did not */
    group_t *group; /* that it was put into; NULL = none */
    uint32_t member; /* its number there */
    uint64_t shown_ns; /* when the master last said that it is there; 0 = never */
    bool may_leave; /* its removal, or what may replace it, was heard */
    bool must_go; /* another member was evicted */
    bool is_outdated; /* its namespace was bumped: it is no part of what is put now */
    struct grant *group_next;
    struct grant *older; /* in the slot */
} grant_t;

typedef struct {
    _Alignas(64) uint64_t word[SLOTS];
    kvp_desc_t desc[SLOTS]; /* but the word */
    char key[SLOTS][KEY_BYTES];
    uint64_t unit[CHUNK_UNITS];
    grant_t *owner[CHUNK_UNITS]; /* the last one granted there */
    grant_t *grant[SLOTS]; /* the newest in each slot */
    uint32_t limit; /* no slot from this one on was ever written */
} chunk_t;

/* Space between what was reported: retired by a master that does not know who may write there. */
typedef struct gap {
    uint32_t chunk, slot;
    uint64_t generation;
    struct gap *next;
} gap_t;

struct mem {
    uint32_t node;
    uint8_t uuid[16];
    uint64_t epoch;
    uint32_t chunk_n;
    bool is_gone;
    uint64_t since; /* and the rest of what has that generation or a higher one; 0 = of nothing */
    bool tells_words; /* a master asked for no more than these when it was mounted last */
    uint32_t asked_term,
        heard_term; /* of the last master that asked for a report of it, and that heard its end; 0 = none */
    uint64_t conn; /* of its node to the master; 0 = away, as the master sees it */
    uint32_t drains_term; /* of the master that said that it is being drained; 0 = it is not */
    bool was_drained; /* it may be so, though no master said so */
    bool moves_ssd; /* a drain loads what the SSD has, which is no use of it */
    uint64_t drains_ns; /* when it said so first */
    bool drains_for_ever; /* and that the next one knows */
    uint64_t mounted_ns; /* when its node began to serve it */
    uint64_t away_ns; /* since when, by the master's clock */
    chunk_t *chunks;
    gap_t *gaps; /* of all terms */
    uint32_t proved_term; /* writers of older terms than this can store nowhere any more: its node freed a gap of it */
    mem_t *older; /* in sim->mems */
};

static inline uint64_t
unit_make(uint64_t put, uint32_t at)
{
    return put << 16 | at;
}

mem_t *mem_make(sim_t *s, uint32_t node, uint32_t chunk_n, uint64_t number);
mem_t *mem_find(sim_t *s, const uint8_t uuid[16]); /* also one that is gone; NULL = never was */

/* grant_add notes what a master grants. Fails I2 where somebody may still write there, I5 for an old generation. */
grant_t *grant_add(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t offset,
                   uint64_t len);
/* grant_note notes one that a master of an older term gives where a newer one rules. Its writer may store there only
 * where that space was free in the older term too, which is a gap to the newer master, and until the gap is freed. */
grant_t *grant_note(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t offset,
                    uint64_t len);
grant_t *grant_find(const mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation); /* NULL = never granted */

/* What writers and readers do. mem_store lands one unit of grant; mem_publish is a compare-and-swap by the rule of
 * kvp_word_may_become. No word may fall to an older generation, whoever stores it (I5). */
void mem_store(sim_t *s, const grant_t *grant, uint32_t at, uint64_t unit);
uint64_t mem_load(sim_t *s, const grant_t *grant, uint32_t at);
uint64_t mem_word(sim_t *s, const mem_t *mem, uint32_t chunk, uint32_t slot);
bool mem_publish(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t word);
bool mem_cas(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t expect, uint64_t next);
void mem_describe(sim_t *s, const grant_t *grant, const kvp_desc_t *desc, const void *key, uint32_t key_len);
/* mem_line is the first line of the descriptor, its words loaded together as kvp_words_load does. */
void mem_line(sim_t *s, const grant_t *grant, kvp_desc_t *desc_out);

/* mem_describes copies descriptor and key, as a rebuild reads them; false where the descriptor is broken. */
bool mem_describes(const mem_t *mem, uint32_t chunk, uint32_t slot, kvp_desc_t *desc_out, uint8_t *key_out);

#endif
