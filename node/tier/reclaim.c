/* SPDX-License-Identifier: Apache-2.0
 * Reclaims the oldest page: proposes its live records, reads the kept records and appends them again, and overwrites
 * the page's header once the copies are on the device. One page at a time. */
#include "node/tier/priv.h"

#include <stdlib.h>
#include <string.h>

/* the least distance in pages between the reclaimed page and the log's end, so that no byte of the page is still
 * being written */
#define PAGES_BEHIND 8u

bool
kvp_tier_core_is_short(const kvp_tier_core_t *core)
{
    const kvp_tier_geo_t *geo = &core->conf.geo;
    uint64_t low = geo->pages >= 1024 ? 8 : geo->pages >= 128 ? 4 : 2;
    uint64_t left = kvp_tier_free_pages(core) * geo->page_bytes + geo->page_bytes - core->pos;

    return core->head > core->tail + PAGES_BEHIND && left < low * geo->page_bytes + geo->page_bytes / 2;
}

/* Returns the index's entry if it is the record `told` in the page being reclaimed; else NULL. */
static kvp_tier_entry_t *
find_live(const kvp_tier_core_t *core, const kvp_tier_entry_t *told)
{
    kvp_tier_entry_t *entry = kvp_tier_index_find(&core->index, told->digest);
    bool is_it = entry != NULL && told->kind == KVP_TIER_RECORD && entry->version == told->version &&
                 entry->at == told->at && core->slots[entry->page].number == core->reclaim.number;

    return is_it ? entry : NULL;
}

/* ---- the page's records */
/* Collects the page's records from the index, because the page has no readable table. Returns false without memory. */
static bool
list_by_index(kvp_tier_core_t *core)
{
    const kvp_tier_entry_t *entry;
    uint64_t cursor = 0;

    core->reclaim.table.n = 0;
    while ((entry = kvp_tier_index_next(&core->index, &cursor)) != NULL)
        if (core->slots[entry->page].number == core->reclaim.number && !kvp_tier_table_add(&core->reclaim.table, entry))
            return false;
    return true;
}

static void
on_table(kvp_tier_io_t *io)
{
    kvp_tier_reclaim_t *r = kvp_container_of(io, kvp_tier_reclaim_t, io);
    kvp_tier_core_t *core = kvp_container_of(r, kvp_tier_core_t, reclaim);
    const kvp_tier_slot_t *slot = kvp_tier_slot(core, r->number);
    bool is_right = io->err == KVP_OK && kvp_tier_table_parse(core, io->buf + slot->table_off % KVP_TIER_BLOCK,
                                                              slot->table_bytes, r->number, &r->table);

    free(io->buf);
    r->state = is_right || list_by_index(core) ? KVP_TIER_RECLAIM_READY : KVP_TIER_RECLAIM_IDLE;
}

/* Begins to wait until the records that replaced or hid the page's records, and the copies of kept records, are on
 * the device. Only then the page's header may be overwritten. */
static void
begin_sync(kvp_tier_core_t *core)
{
    core->reclaim.serial = kvp_tier_last_serial(core);
    core->reclaim.state = KVP_TIER_RECLAIM_SYNCS;
}

static void
begin_page(kvp_tier_core_t *core, uint64_t budget_bytes)
{
    kvp_tier_reclaim_t *r = &core->reclaim;
    const kvp_tier_slot_t *slot = kvp_tier_slot(core, core->tail);
    uint64_t from, to;
    uint64_t room = kvp_tier_free_pages(core) > 0 ? core->conf.geo.page_bytes : core->conf.geo.page_bytes - core->pos;

    kvp_tier_table_blocks(slot, &from, &to);
    r->number = core->tail;
    r->next = r->asked_from = 0;
    r->keep_bytes = kvp_min_u64(room / 4 * 3, budget_bytes);
    if (slot->number != core->tail || slot->live_bytes == 0) {
        begin_sync(core);
        return;
    }
    r->io = (kvp_tier_io_t){.done = on_table, .off = from, .len = (uint32_t)(to - from)};
    r->io.buf = slot->table_bytes == 0 ? NULL : kvp_tier_alloc(to - from);
    if (r->io.buf == NULL) {
        r->state = list_by_index(core) ? KVP_TIER_RECLAIM_READY : KVP_TIER_RECLAIM_IDLE;
        return;
    }
    r->state = KVP_TIER_RECLAIM_READS;
    core->conf.ops->submit(core->conf.disk, &r->io);
}

/* ---- proposals and answers */
/* Returns how many payload bytes n records may have so that the records take at most `bytes` of a page. The limit
 * keep_bytes of a proposal counts payload. */
static uint64_t
payload_in(uint64_t bytes, uint32_t n)
{
    uint64_t heads = (uint64_t)n * (KVP_TIER_REC_BYTES + KVP_KEY_MAX + KVP_TIER_BLOCK / 64);

    return bytes <= heads ? 0 : (bytes - heads) / 512 * 511;
}

bool
kvp_tier_core_has_proposal(const kvp_tier_core_t *core)
{
    return core->reclaim.state == KVP_TIER_RECLAIM_READY;
}

bool
kvp_tier_core_propose(kvp_tier_core_t *core, kvp_tier_proposal_t *proposal_out)
{
    kvp_tier_reclaim_t *r = &core->reclaim;
    const kvp_tier_slot_t *slot = kvp_tier_slot(core, r->number);
    uint64_t bytes = 0, live_bytes = slot->live_bytes;

    if (r->state != KVP_TIER_RECLAIM_READY) return false;
    r->asked_n = 0;
    r->asked_from = r->next;
    for (; r->next < r->table.n && r->asked_n < KVP_TIER_PROPOSED_MAX; r->next++) {
        const kvp_tier_entry_t *told = &r->table.entries[r->next];

        if (find_live(core, told) == NULL) continue;
        proposal_out->recs[r->asked_n] = (kvp_wire_tiered_t){.digest = told->digest, .version = told->version};
        r->asked[r->asked_n++] = (uint32_t)r->next;
        bytes += kvp_tier_entry_bytes(told);
    }
    if (r->asked_n == 0) return false; /* no live record is left, so kvp_tier_core_step continues with the page */
    r->asked_bytes =
        bytes >= live_bytes ? r->keep_bytes : (uint64_t)((double)r->keep_bytes * (double)bytes / (double)live_bytes);
    proposal_out->n = r->asked_n;
    proposal_out->keep_bytes = payload_in(r->asked_bytes, r->asked_n);
    r->state = KVP_TIER_RECLAIM_ASKED;
    return true;
}

void
kvp_tier_core_answer(kvp_tier_core_t *core, const uint8_t *keep, uint32_t n)
{
    kvp_tier_reclaim_t *r = &core->reclaim;
    uint32_t kept = 0;

    if (r->state != KVP_TIER_RECLAIM_ASKED) return;
    if (keep == NULL || n != r->asked_n) {
        r->next = r->asked_from;
        r->state = KVP_TIER_RECLAIM_READY;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        kvp_tier_entry_t *entry = find_live(core, &r->table.entries[r->asked[i]]);
        uint64_t bytes = entry == NULL ? 0 : kvp_tier_entry_bytes(entry);

        if (entry == NULL) continue;
        if (keep[i] != 0 && bytes <= r->asked_bytes) {
            r->asked_bytes -= bytes;
            r->keep_bytes -= bytes;
            r->asked[kept++] = r->asked[i];
        } else {
            kvp_tier_unset(core, entry);
        }
    }
    r->asked_n = kept;
    r->kept_n = 0;
    r->state = KVP_TIER_RECLAIM_KEEPS;
}

/* ---- kept records */
static void
give_up(kvp_tier_core_t *core, const kvp_tier_entry_t *told)
{
    kvp_tier_entry_t *entry = find_live(core, told);

    if (entry != NULL) kvp_tier_unset(core, entry);
}

static void
on_kept(kvp_tier_read_t *read)
{
    kvp_tier_core_t *core = read->core;
    kvp_tier_reclaim_t *r = &core->reclaim;
    const kvp_tier_entry_t *told = &r->table.entries[r->asked[r->kept_n]];
    kvp_err_t err = read->err;
    uint8_t *at;

    r->is_reading = false;
    if (err == KVP_OK && find_live(core, told) != NULL) {
        err = kvp_tier_reserve(core, kvp_tier_entry_bytes(told), true, &at);
        if (err == KVP_EAGAIN) return; /* no room at the log's end now: the record will be read and appended again */
        if (err == KVP_OK) {
            memcpy(at, read->bytes, kvp_tier_entry_bytes(told));
            err = kvp_tier_append(core, at, &read->rec, true);
        }
        core->conf.stats->relocated += err == KVP_OK;
    }
    if (err != KVP_OK) give_up(core, told);
    r->kept_n++;
}

static void
keep_next(kvp_tier_core_t *core)
{
    kvp_tier_reclaim_t *r = &core->reclaim;

    while (!r->is_reading && r->kept_n < r->asked_n && core->full_n < KVP_TIER_BUFS_MAX && !core->has_failed) {
        const kvp_tier_entry_t *told = &r->table.entries[r->asked[r->kept_n]];

        r->is_reading = true;
        r->read = (kvp_tier_read_t){.done = on_kept, .digest = told->digest, .version = told->version};
        kvp_tier_core_read(core, &r->read);
    }
    if (r->kept_n == r->asked_n) r->state = KVP_TIER_RECLAIM_READY;
}

/* ---- the end */
static void
forget_page(kvp_tier_core_t *core)
{
    kvp_tier_reclaim_t *r = &core->reclaim;

    if (kvp_tier_slot(core, r->number)->number != r->number || kvp_tier_slot(core, r->number)->live_bytes == 0) return;
    if (!list_by_index(core)) return;
    for (size_t i = 0; i < r->table.n; i++)
        give_up(core, &r->table.entries[i]);
}

/* Writes zeros over a header. The older header is erased first: alone it would bring back an old state of the page. */
static bool
erase_header(kvp_tier_core_t *core, uint32_t run)
{
    return kvp_tier_head_write(core, kvp_tier_header_off(&core->conf.geo, core->reclaim.number, run), NULL);
}

void
kvp_tier_reclaim_erased(kvp_tier_core_t *core)
{
    kvp_tier_reclaim_t *r = &core->reclaim;
    kvp_tier_slot_t *slot = kvp_tier_slot(core, r->number);

    if (r->state == KVP_TIER_RECLAIM_ERASES_OLD) {
        r->state = KVP_TIER_RECLAIM_ERASES;
        if (!erase_header(core, slot->run)) core->has_failed = true;
        return;
    }
    *slot = (kvp_tier_slot_t){0};
    core->tail = r->number + 1;
    core->conf.stats->pages_reclaimed++;
    r->state = KVP_TIER_RECLAIM_IDLE;
}

static void
end_page(kvp_tier_core_t *core)
{
    kvp_tier_reclaim_t *r = &core->reclaim;

    if (core->buf != NULL && core->buf->serial <= r->serial) kvp_tier_core_flush(core);
    if (!kvp_tier_core_is_durable(core, r->serial)) return;
    forget_page(core);
    if (erase_header(core, kvp_tier_slot(core, r->number)->run + 1)) r->state = KVP_TIER_RECLAIM_ERASES_OLD;
}

void
kvp_tier_core_step(kvp_tier_core_t *core, uint64_t budget_bytes)
{
    kvp_tier_reclaim_t *r = &core->reclaim;

    if (core->has_failed) return;
    if (r->state == KVP_TIER_RECLAIM_IDLE && kvp_tier_core_is_short(core)) begin_page(core, budget_bytes);
    if (r->state == KVP_TIER_RECLAIM_KEEPS) keep_next(core);
    if (r->state == KVP_TIER_RECLAIM_READY &&
        (r->next >= r->table.n || kvp_tier_slot(core, r->number)->live_bytes == 0))
        begin_sync(core);
    if (r->state == KVP_TIER_RECLAIM_SYNCS) end_page(core);
}
