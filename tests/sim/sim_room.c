/* SPDX-License-Identifier: Apache-2.0
 * What a full pool has to yield: whether a put that the master refuses for good could have been given a place.
 */
#include "tests/sim/sim_oracle_priv.h"

/* What stands in a unit: nothing, something that may be evicted, or something that has to stay. */
typedef enum { ROOM_FREE, ROOM_EVICTABLE, ROOM_TAKEN } room_t;

static room_t
room_of(const grant_t *g)
{
    if (g == NULL || g->is_freed) return ROOM_FREE;
    return g->is_committed && !g->is_retired && g->holds == 0 ? ROOM_EVICTABLE : ROOM_TAKEN;
}

/* Longest run of units of the chunk that a put of this tenant can be given after evictions. Another tenant's chunk is
 * not given as long as anything is in it. */
static uint32_t
longest_run(const chunk_t *c, uint32_t tenant)
{
    uint32_t run = 0, longest = 0;
    bool is_others = false;

    for (uint32_t u = 0; u < CHUNK_UNITS; u++) {
        room_t room = room_of(c->owner[u]);

        is_others |= room != ROOM_FREE && c->owner[u]->tenant != tenant;
        run = room == ROOM_TAKEN ? 0 : run + 1;
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
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for (uint32_t i = 0; mem->conn != 0 && !mem->is_gone && i < mem->chunk_n; i++)
            if ((uint64_t)longest_run(&mem->chunks[i], tenant) * UNIT >= len && has_slots(&mem->chunks[i]))
                sim_fail(s, "I7", "a put of %lu bytes is refused for ever, and chunk %u of node%u has or can make room",
                         (unsigned long)len, i, mem->node);
}
