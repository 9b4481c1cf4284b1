/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim_mem.h"

#include "common/mutate.h"

#include <string.h>

mem_t *
mem_make(sim_t *s, uint32_t node, uint32_t chunk_n, uint64_t number)
{
    mem_t *mem = sim_alloc(s, sizeof *mem);

    mem->node = node;
    mem->chunk_n = chunk_n;
    mem->epoch = number;
    memcpy(mem->uuid, &number, sizeof number);
    mem->uuid[15] = (uint8_t)(node + 1);
    mem->chunks = sim_alloc(s, chunk_n * sizeof *mem->chunks);
    mem->older = s->mems;
    s->mems = mem;
    return mem;
}

mem_t *
mem_find(sim_t *s, const uint8_t uuid[16])
{
    for (mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        if (memcmp(mem->uuid, uuid, sizeof mem->uuid) == 0) return mem;
    return NULL;
}

/* ---- grants */
static void
claim_units(sim_t *s, chunk_t *c, grant_t *g)
{
    for (uint32_t u = g->unit; u < g->unit + g->units; u++) {
        grant_t *before = c->owner[u];

        if (before != NULL && !before->is_freed)
            sim_fail(s, "I2", "slot %u generation %lx is granted over slot %u generation %lx, which is not free",
                     g->slot, (unsigned long)g->generation, before->slot, (unsigned long)before->generation);
        c->owner[u] = g;
    }
}

static grant_t *
make_grant(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t len)
{
    grant_t *g;

    if (chunk >= mem->chunk_n || slot >= SLOTS || offset % UNIT != 0 || len == 0 || offset + len > CHUNK_BYTES) {
        sim_fail(s, "I2", "a grant outside of the memory: chunk %u slot %u offset %lu", chunk, slot,
                 (unsigned long)offset);
        return NULL;
    }
    g = sim_alloc(s, sizeof *g);
    *g = (grant_t){.mem = mem, .chunk = chunk, .slot = slot, .generation = generation, .offset = offset, .len = len};
    g->unit = (uint32_t)(offset / UNIT);
    g->units = (uint32_t)((len + UNIT - 1) / UNIT);
    return g;
}

static void
insert(grant_t **at, grant_t *g)
{
    g->older = *at;
    *at = g;
}

grant_t *
grant_add(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t len)
{
    grant_t *g = make_grant(s, mem, chunk, slot, generation, offset, len);
    chunk_t *c;

    if (g == NULL) return NULL;
    c = &mem->chunks[chunk];
    if (c->grant[slot] != NULL && c->grant[slot]->generation >= generation)
        sim_fail(s, "I5", "slot %u: generation %lx after %lx", slot, (unsigned long)generation,
                 (unsigned long)c->grant[slot]->generation);
    insert(&c->grant[slot], g);
    claim_units(s, c, g);
    return g;
}

grant_t *
grant_note(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t len)
{
    grant_t *g = make_grant(s, mem, chunk, slot, generation, offset, len), **at;
    uint32_t term = (uint32_t)(generation >> KVP_GEN_SEQ_BITS);
    chunk_t *c;

    if (g == NULL) return NULL;
    c = &mem->chunks[chunk];
    at = &c->grant[slot];
    while (*at != NULL && (*at)->generation > generation)
        at = &(*at)->older;
    insert(at, g);
    g->is_freed = term < mem->proved_term;
    for (uint32_t u = g->unit; u < g->unit + g->units; u++) {
        const grant_t *before = c->owner[u];

        if (before == NULL || (before->is_freed && before->freed_term <= term)) c->owner[u] = g;
    }
    return g;
}

grant_t *
grant_find(const mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation)
{
    grant_t *g;

    if (chunk >= mem->chunk_n || slot >= SLOTS) return NULL;
    for (g = mem->chunks[chunk].grant[slot]; g != NULL; g = g->older)
        if (g->generation == generation) return g;
    return NULL;
}

/* ---- loads and stores */
void
mem_store(sim_t *s, const grant_t *g, uint32_t at, uint64_t unit)
{
    chunk_t *c = &g->mem->chunks[g->chunk];

    s->counts.stores++;
    if (c->owner[g->unit + at] != g || g->is_freed)
        sim_fail(s, "I2", "put %lu lands in unit %u of slot %u after its place was free again", (unsigned long)g->put,
                 g->unit + at, g->slot);
    c->unit[g->unit + at] = unit;
}

uint64_t
mem_load(sim_t *s, const grant_t *g, uint32_t at)
{
    s->counts.loads++;
    return g->mem->chunks[g->chunk].unit[g->unit + at];
}

uint64_t
mem_word(sim_t *s, const mem_t *mem, uint32_t chunk, uint32_t slot)
{
    s->counts.loads++;
    return mem->chunks[chunk].word[slot];
}

bool
mem_cas(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t expect, uint64_t next)
{
    uint64_t *word = &mem->chunks[chunk].word[slot];

    if (*word != expect) return false;
    if (kvp_word_generation(next) < kvp_word_generation(expect))
        sim_fail(s, "I5", "the word of slot %u falls from generation %lx to %lx", slot,
                 (unsigned long)kvp_word_generation(expect), (unsigned long)kvp_word_generation(next));
    s->counts.stores++;
    *word = next;
    if (slot >= mem->chunks[chunk].limit) mem->chunks[chunk].limit = slot + 1;
    return true;
}

bool
mem_publish(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t word)
{
    uint64_t now = mem_word(s, mem, chunk, slot);

    return (kvp_word_may_become(now, word) || !KVP_RULE(WORD_RULE)) && mem_cas(s, mem, chunk, slot, now, word);
}

void
mem_describe(sim_t *s, const grant_t *g, const kvp_desc_t *desc, const void *key, uint32_t key_len)
{
    chunk_t *c = &g->mem->chunks[g->chunk];

    if (c->grant[g->slot] != g)
        sim_fail(s, "I2", "a writer of generation %lx describes slot %u, which is another's",
                 (unsigned long)g->generation, g->slot);
    s->counts.stores += 2;
    c->desc[g->slot] = *desc;
    memcpy(c->key[g->slot], key, kvp_min_u64(key_len, KEY_BYTES));
}

void
mem_line(sim_t *s, const grant_t *g, kvp_desc_t *desc_out)
{
    const chunk_t *c = &g->mem->chunks[g->chunk];

    s->counts.loads++;
    memcpy(desc_out, &c->desc[g->slot], KVP_DESC_LINE_BYTES);
    desc_out->word = c->word[g->slot];
}

bool
mem_describes(const mem_t *mem, uint32_t chunk, uint32_t slot, kvp_desc_t *desc_out, uint8_t *key_out)
{
    const chunk_t *c = &mem->chunks[chunk];
    kvp_chunk_geo_t geo;
    kvp_desc_t desc = c->desc[slot];

    desc.word = c->word[slot];
    kvp_chunk_geo(CHUNK_BYTES, &geo);
    if (kvp_desc_verify(&desc, sizeof desc, &geo, CHUNK_BYTES, desc_out) != KVP_OK) return false;
    if (desc.key_len > KEY_BYTES) return false;
    memcpy(key_out, c->key[slot], desc.key_len);
    return true;
}
