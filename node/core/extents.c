/* SPDX-License-Identifier: Apache-2.0
 * REPORT: the node's report to a master that does not know the memory's contents.
 *
 * Design notes. Clients write the descriptors (the records of objects), so only checked descriptors count. A broken
 * descriptor is made DEAD here, and so is the older of two overlapping extents, which correct clients never produce.
 * Slots that were untouched when the term rose are not reported: nothing that was stored there since was committed. */
#include "node/core/priv.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_WORDS 1024u
#define PAGE_WHOLE 256u

void
kvp_node_report_end(kvp_node_core_t *core)
{
    core->report.is_on = false;
}

void
kvp_node_report_fini(kvp_node_core_t *core)
{
    free(core->report.told);
}

static void
kill_told(kvp_node_core_t *core, uint32_t slot, uint64_t word)
{
    (void)kvp_node_kill(core, core->report.chunk, slot, kvp_word_generation(word));
}

static kvp_err_t
add_told(kvp_node_report_t *r, const kvp_node_told_t *told)
{
    if (r->told_n == r->told_cap) {
        uint32_t cap = r->told_cap == 0 ? 1024 : r->told_cap * 2;
        kvp_node_told_t *grown = realloc(r->told, cap * sizeof *grown);

        if (grown == NULL) return KVP_NOMEM;
        r->told = grown;
        r->told_cap = cap;
    }
    r->told[r->told_n++] = *told;
    return KVP_OK;
}

static int
by_offset(const void *a, const void *b)
{
    const kvp_node_told_t *x = a, *y = b;

    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->word < y->word ? -1 : x->word > y->word;
}

/* Keeps the extent with the newest generation of overlapping extents, and makes the others DEAD. */
static void
drop_overlaps(kvp_node_core_t *core)
{
    kvp_node_report_t *r = &core->report;
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->told_n; i++) {
        const kvp_node_told_t next = r->told[i];
        bool is_lost = false;

        while (n > 0 && !is_lost && r->told[n - 1].offset + r->told[n - 1].len > next.offset) {
            is_lost = r->told[n - 1].word > next.word;
            if (!is_lost) {
                n--;
                kill_told(core, r->told[n].slot, r->told[n].word);
            }
        }
        if (is_lost)
            kill_told(core, next.slot, next.word);
        else
            r->told[n++] = next;
    }
    r->told_n = n;
}

/* gather_chunk collects the SEALED extents of a chunk, sorted by offset. */
static kvp_err_t
gather_chunk(kvp_node_core_t *core, uint32_t chunk)
{
    kvp_node_report_t *r = &core->report;
    uint8_t key[KVP_KEY_MAX];
    kvp_desc_t desc;

    r->chunk = chunk;
    r->told_n = r->at = 0;
    for (uint32_t slot = 0; slot < core->swept[chunk]; slot++) {
        uint64_t word = core->conf.words->load(core->conf.words_arg, chunk, slot);
        kvp_err_t err;

        if (kvp_word_state(word) != KVP_DESC_SEALED) continue;
        if (kvp_word_generation(word) >= kvp_gen_make(core->term + 1, 0) ||
            !core->conf.words->read(core->conf.words_arg, chunk, slot, &desc, key)) {
            kill_told(core, slot, word);
            continue;
        }
        err = add_told(r, &(kvp_node_told_t){.offset = desc.offset, .len = desc.len, .word = word, .slot = slot});
        if (err != KVP_OK) return err;
    }
    if (r->told_n > 1) qsort(r->told, r->told_n, sizeof *r->told, by_offset);
    drop_overlaps(core);
    return KVP_OK;
}

kvp_err_t
kvp_node_core_report_begin(kvp_node_core_t *core, uint64_t since)
{
    kvp_node_report_t *r = &core->report;

    if (core->segment == KVP_NODE_SEGMENT_NONE) return KVP_NO_SEGMENT;
    /* Puts mounted_term back until the report's last page, because the master grants no space before that page. */
    core->mounted_term = core->mounted_before;
    core->is_changed = true;
    r->since = since;
    r->has_page = false;
    r->is_on = gather_chunk(core, 0) == KVP_OK;
    return r->is_on ? KVP_OK : KVP_NOMEM;
}

static bool
is_whole(const kvp_node_report_t *r, const kvp_node_told_t *told)
{
    return kvp_word_generation(told->word) >= r->since;
}

static void
append_record(kvp_node_core_t *core, const kvp_node_told_t *told, kvp_buf_t *tail)
{
    kvp_wire_extent_t rec = {.chunk = core->report.chunk, .slot = told->slot, .word = told->word};
    uint8_t key[KVP_KEY_MAX];
    kvp_desc_t desc;

    kvp_buf_append(tail, &rec, sizeof rec);
    if (!is_whole(&core->report, told)) return;
    /* Reads the descriptor again, which gather_chunk found valid. If a client has made it invalid since, the
     * report has zeros instead. The master checks all fields again, and refuses an invalid descriptor. */
    if (!core->conf.words->read(core->conf.words_arg, rec.chunk, rec.slot, &desc, key)) memset(&desc, 0, sizeof desc);
    desc.word = told->word;
    kvp_buf_append(tail, &desc, sizeof desc);
    kvp_buf_append(tail, key, desc.key_len);
    (void)kvp_buf_extend(tail, (size_t)(kvp_align_up(desc.key_len, 8) - desc.key_len));
}

kvp_err_t
kvp_node_core_report_page(kvp_node_core_t *core, kvp_buf_t *tail, kvp_node_page_t *page_out)
{
    kvp_node_report_t *r = &core->report;
    uint32_t wholes = 0;
    kvp_err_t err;

    if (!r->is_on || r->has_page) return KVP_INVALID;
    while (r->at == r->told_n && r->chunk + 1 < core->chunk_n) {
        err = gather_chunk(core, r->chunk + 1);
        if (err != KVP_OK) return err;
    }
    for (r->page_n = 0; r->at + r->page_n < r->told_n && r->page_n < PAGE_WORDS && wholes < PAGE_WHOLE; r->page_n++) {
        append_record(core, &r->told[r->at + r->page_n], tail);
        wholes += is_whole(r, &r->told[r->at + r->page_n]);
    }
    r->has_page = true;
    page_out->n = r->page_n;
    page_out->chunk = r->chunk;
    page_out->is_last = r->page_n == 0;
    if (page_out->is_last) core->mounted_term = core->term;
    core->is_changed |= page_out->is_last;
    core->stats.reported += r->page_n;
    return tail->err;
}

kvp_err_t
kvp_node_core_report_answer(kvp_node_core_t *core, const uint8_t *flags, uint32_t n)
{
    kvp_node_report_t *r = &core->report;

    if (!r->is_on || !r->has_page || n != r->page_n) return KVP_PROTO;
    for (uint32_t i = 0; i < n; i++)
        if ((flags[i] & KVP_RETIRE_DEAD) != 0) kill_told(core, r->told[r->at + i].slot, r->told[r->at + i].word);
    core->conf.words->fence(core->conf.words_arg);
    r->at += n;
    r->has_page = false;
    return KVP_OK;
}
