/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/world/report.h"

#include "tests/world/priv.h"

#define PAGE 7u

static void
revoke_slot(chunk_t *c, uint32_t slot, uint32_t term)
{
    uint64_t generation = kvp_gen_make(term, 0);

    if (kvp_word_generation(c->words[slot]) >= generation || kvp_word_state(c->words[slot]) == KVP_DESC_SEALED) return;
    c->words[slot] = kvp_word_make(generation, KVP_DESC_DEAD);
    slot_is_free(c, slot);
}

void
mem_see_term(mem_t *mem, uint32_t term)
{
    if (term <= mem->term) return;
    mem->term = term;
    for (uint32_t i = 0; mem->mounted_term != 0 && i < mem->chunk_n; i++)
        for (uint32_t slot = 0; mem->chunks[i].is_made && slot < mem->chunks[i].geo.slots_max; slot++)
            revoke_slot(&mem->chunks[i], slot, term);
}

static int
by_offset(const void *a, const void *b)
{
    const extent_t *x = a, *y = b;

    if (x->rec.chunk != y->rec.chunk) return x->rec.chunk < y->rec.chunk ? -1 : 1;
    return x->desc.offset < y->desc.offset ? -1 : x->desc.offset > y->desc.offset;
}

extent_t *
mem_sealed(const mem_t *mem, uint32_t *n_out)
{
    extent_t *found = NULL;
    uint32_t n = 0;

    for (uint32_t i = 0; i < mem->chunk_n; i++) {
        const chunk_t *c = &mem->chunks[i];

        for (uint32_t slot = 0; c->descs != NULL && slot < c->geo.slots_max; slot++) {
            if (kvp_word_state(c->words[slot]) != KVP_DESC_SEALED) continue;
            found = realloc(found, (n + 1) * sizeof *found);
            found[n].rec = (kvp_wire_extent_t){.chunk = i, .slot = slot, .word = c->words[slot]};
            found[n].desc = c->descs[slot];
            strcpy(found[n++].key, c->keys[slot]);
        }
    }
    if (n > 0) qsort(found, n, sizeof *found, by_offset);
    *n_out = n;
    return found;
}

uint64_t
report_send(peer_t *n, const extent_t *extents, uint32_t count, bool is_last)
{
    Kvp__Pb__Report head = KVP__PB__REPORT__INIT;
    kvp_buf_t tail;
    uint64_t id;

    kvp_buf_init(&tail, 0);
    for (uint32_t i = 0; i < count; i++) {
        size_t len = extents[i].desc.key_len;

        kvp_buf_append(&tail, &extents[i].rec, sizeof extents[i].rec);
        if (n->mem->tells_words) continue;
        kvp_buf_append(&tail, &extents[i].desc, sizeof extents[i].desc);
        kvp_buf_append(&tail, extents[i].key, len);
        (void)kvp_buf_extend(&tail, (size_t)kvp_align_up(len, 8) - len);
    }
    head.uuid = (ProtobufCBinaryData){sizeof n->mem->uuid, n->mem->uuid};
    head.n = count;
    head.is_whole = !n->mem->tells_words;
    head.is_last = is_last;
    if (count > 0 && extents[0].rec.chunk < n->mem->chunk_n) head.tenant = n->mem->chunks[extents[0].rec.chunk].owner;
    if (is_last) n->mem->mounted_term = n->mem->term;
    id = peer_send(n, KVP_OP_REPORT, 0, &head.base, tail.data, tail.len);
    kvp_buf_fini(&tail);
    return id;
}

/* What is not wanted is DEAD, and nobody's. */
static void
refuse(mem_t *mem, const extent_t *e)
{
    chunk_t *c = mem_chunk(mem, e->rec.chunk);
    uint32_t slot = e->rec.slot;

    if (slot >= c->geo.slots_max) return; /* a test made it up */
    c->words[slot] = kvp_word_make(kvp_word_generation(e->rec.word), KVP_DESC_DEAD);
    slot_is_free(c, slot);
}

bool
report_take(peer_t *n, uint64_t id, const extent_t *extents, uint32_t count)
{
    reply_t *r = peer_wait(n, id, SEC);

    if (n->was_closed) return false;
    assert_non_null(r);
    assert_int_equal(r->frame.tail_len, count);
    for (uint32_t i = 0; i < count; i++)
        if ((r->frame.tail[i] & KVP_RETIRE_DEAD) != 0) refuse(n->mem, &extents[i]);
    assert_int_equal(plain_result(r), KVP_OK);
    return true;
}

bool
report_end(peer_t *n)
{
    return report_take(n, report_send(n, NULL, 0, true), NULL, 0);
}

void
node_report(peer_t *n)
{
    uint32_t count, at = 0;
    extent_t *all = mem_sealed(n->mem, &count);

    while (at < count) {
        uint32_t some = (uint32_t)kvp_min_u64(PAGE, count - at);

        assert_true(report_take(n, report_send(n, all + at, some, false), all + at, some));
        at += some;
    }
    assert_true(report_end(n));
    free(all);
}
