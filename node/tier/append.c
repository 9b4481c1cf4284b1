/* SPDX-License-Identifier: Apache-2.0
 * The end of a device's log of records: buffers, the page being written, and the order of writes.
 *
 * Design notes.
 * - Several buffers are written at once, but a record is durable only when its buffer and all earlier buffers are. A
 *   buffer is written only after the headers of all pages that it reaches into are on the device.
 * - A record lies whole in one buffer. A record longer than a buffer gets a buffer of its own length.
 * - A new page begins when a record ends after the page's end, or would cross the ring's end; the new page starts with
 *   the table of the previous page. */
#include "node/tier/priv.h"

#include <stdlib.h>
#include <string.h>

#define BUF_CAP (KVP_TIER_BUF_BYTES + (64u << 10)) /* a buffer fits a record of 1 MiB with its key and checksums */

/* ---- writes */
static void
send_full(kvp_tier_core_t *core)
{
    kvp_list_foreach (l, &core->full) {
        kvp_tier_buf_t *buf = kvp_list_entry(l, kvp_tier_buf_t, link);

        if (buf->is_sent) continue;
        if (buf->headers > core->heads_done) return;
        buf->is_sent = true;
        core->conf.stats->device_bytes += buf->io.len;
        core->conf.ops->submit(core->conf.disk, &buf->io);
    }
}

static void
give_buf_back(kvp_tier_core_t *core, kvp_tier_buf_t *buf)
{
    if (core->spare == NULL && buf->cap == BUF_CAP) {
        core->spare = buf;
        return;
    }
    kvp_tier_free_buf(core, buf);
}

static void
on_buf(kvp_tier_io_t *io)
{
    kvp_tier_buf_t *buf = kvp_container_of(io, kvp_tier_buf_t, io);
    kvp_tier_core_t *core = buf->core;

    buf->is_done = true;
    if (io->err != KVP_OK) core->has_failed = true;
    kvp_list_foreach_safe (l, next, &core->full) {
        kvp_tier_buf_t *first = kvp_list_entry(l, kvp_tier_buf_t, link);

        if (!first->is_done) return;
        if (!core->has_failed) core->durable = first->serial;
        kvp_list_del(&first->link);
        core->full_n--;
        give_buf_back(core, first);
    }
}

static void
on_head(kvp_tier_io_t *io)
{
    kvp_tier_head_t *head = kvp_container_of(io, kvp_tier_head_t, io);
    kvp_tier_core_t *core = head->core;

    head->is_done = true;
    if (io->err != KVP_OK)
        core->has_failed = true;
    else if (head->is_erasure)
        kvp_tier_reclaim_erased(core);
    kvp_list_foreach_safe (l, next, &core->heads) {
        kvp_tier_head_t *first = kvp_list_entry(l, kvp_tier_head_t, link);

        if (!first->is_done) break;
        core->heads_done = first->serial;
        kvp_list_del(&first->link);
        free(first->io.buf);
        free(first);
    }
    send_full(core);
}

bool
kvp_tier_head_write(kvp_tier_core_t *core, uint64_t off, const kvp_tier_page_t *page)
{
    kvp_tier_head_t *head = calloc(1, sizeof *head);
    uint8_t *bytes = kvp_tier_alloc(KVP_TIER_BLOCK);

    if (head == NULL || bytes == NULL) {
        free(head);
        free(bytes);
        return false;
    }
    memset(bytes, 0, KVP_TIER_BLOCK);
    if (page != NULL) memcpy(bytes, page, sizeof *page);
    head->core = core;
    head->is_erasure = page == NULL;
    head->serial = ++core->heads_begun;
    head->io = (kvp_tier_io_t){
        .done = on_head, .buf = bytes, .off = off, .len = KVP_TIER_BLOCK, .is_write = true, .is_synced = true};
    kvp_list_add_tail(&core->heads, &head->link);
    core->conf.stats->device_bytes += KVP_TIER_BLOCK;
    core->conf.ops->submit(core->conf.disk, &head->io);
    return true;
}

/* ---- buffers */
static void
seal_buf(kvp_tier_core_t *core, uint64_t headers)
{
    kvp_tier_buf_t *buf = core->buf;

    if (buf == NULL) return;
    core->buf = NULL;
    if (buf->len == 0) { /* the buffer is unused: its record was not appended */
        core->serial--;
        give_buf_back(core, buf);
        return;
    }
    buf->io.len = (uint32_t)kvp_align_up(buf->len, KVP_TIER_BLOCK);
    memset(buf->io.buf + buf->len, 0, buf->io.len - buf->len);
    core->pos += buf->io.len - buf->len;
    buf->headers = headers;
    core->full_n++;
    kvp_list_add_tail(&core->full, &buf->link);
    send_full(core);
}

void
kvp_tier_core_flush(kvp_tier_core_t *core)
{
    if (!kvp_tier_core_is_waiting(core)) return;
    seal_buf(core, core->heads_begun);
}

/* begin_buf begins a buffer at the log's end; core->pos is a multiple of a block here. */
static bool
begin_buf(kvp_tier_core_t *core, uint64_t bytes)
{
    uint64_t cap = kvp_max_u64(kvp_align_up(bytes, KVP_TIER_BLOCK), BUF_CAP);
    kvp_tier_buf_t *buf = core->spare;
    uint8_t *room;

    if (buf != NULL && cap == BUF_CAP) {
        core->spare = NULL;
        room = buf->io.buf;
    } else {
        buf = calloc(1, sizeof *buf);
        room = kvp_tier_room_take(core->conf.room, cap);
    }
    if (buf == NULL || room == NULL) {
        free(buf);
        kvp_tier_room_give(core->conf.room, room);
        return false;
    }
    *buf = (kvp_tier_buf_t){.core = core, .serial = ++core->serial, .cap = cap};
    buf->io = (kvp_tier_io_t){.done = on_buf,
                              .buf = room,
                              .off = kvp_tier_page_off(&core->conf.geo, core->head) + core->pos,
                              .is_write = true};
    core->buf = buf;
    return true;
}

static bool
has_room(const kvp_tier_core_t *core, uint64_t bytes)
{
    return core->buf != NULL && core->buf->cap - core->buf->len >= bytes;
}

/* ---- pages */
static bool
may_turn(const kvp_tier_core_t *core, bool may_use_last)
{
    return kvp_tier_free_pages(core) >= (may_use_last ? 1u : 2u);
}

static void
take_record(kvp_tier_core_t *core, uint8_t *at, kvp_tier_rec_t *rec, uint64_t bytes)
{
    rec->epoch = core->conf.epoch;
    rec->page = core->head;
    rec->run = core->header.run;
    rec->at = (uint32_t)(core->pos / KVP_TIER_UNIT);
    kvp_tier_rec_seal(at, rec);
    core->buf->len += bytes;
    core->pos += bytes;
    core->appended += bytes;
}

/* Appends the table of the previous page to the beginning of the new page. Without a table (no memory), recovery
 * searches for the records of that page. */
static void
append_table(kvp_tier_core_t *core, kvp_tier_table_t *table)
{
    kvp_tier_rec_t rec = {
        .kind = KVP_TIER_TABLE, .digest = {.lo = core->head - 1}, .len = table->n * sizeof *table->entries};
    uint64_t bytes = kvp_tier_rec_end(0, rec.len);
    kvp_tier_slot_t *before = kvp_tier_slot(core, core->head - 1);

    if (table->n == 0 || bytes > core->conf.geo.page_bytes - kvp_align_up(core->pos, KVP_TIER_BLOCK)) return;
    if (!has_room(core, bytes)) {
        /* The buffer has the end of a record that continues into this page, so the buffer must wait for the page's
         * header. This is the next header write to begin: heads_begun + 1. */
        seal_buf(core, core->heads_begun + 1);
        if (!begin_buf(core, bytes)) return;
    }
    uint8_t *at = core->buf->io.buf + core->buf->len;

    kvp_tier_rec_build(at, &rec, NULL, table->entries);
    core->header.table_at = (uint32_t)core->pos;
    core->header.table_bytes = (uint32_t)bytes;
    before->table_off = kvp_tier_page_off(&core->conf.geo, core->head) + core->pos;
    before->table_bytes = (uint32_t)bytes;
    take_record(core, at, &rec, bytes);
}

/* Returns the offset on the device of the oldest byte that is not durable. */
static uint64_t
first_not_durable(const kvp_tier_core_t *core)
{
    const kvp_tier_buf_t *buf =
        kvp_list_is_empty(&core->full) ? core->buf : kvp_list_first(&core->full, kvp_tier_buf_t, link);

    return buf == NULL ? kvp_tier_page_off(&core->conf.geo, core->head) + core->pos : buf->io.off;
}

static void
write_header(kvp_tier_core_t *core)
{
    const kvp_tier_geo_t *geo = &core->conf.geo;
    uint64_t off = first_not_durable(core) - geo->pages_off, place = off / geo->page_bytes;

    /* durable_page: the newest page up to `head` that lies in ring slot `place`; if `head` is full, `place` may be the
     * slot after it */
    core->header.durable_page = core->head - (core->head % geo->pages + geo->pages - place) % geo->pages;
    core->header.durable_at = (uint32_t)(off % geo->page_bytes);
    kvp_tier_slot(core, core->head)->run = core->header.run;
    kvp_tier_page_seal(&core->header);
    if (!kvp_tier_head_write(core, kvp_tier_header_off(geo, core->head, core->header.run), &core->header))
        core->has_failed = true;
}

/* Begins a new page. A record that continues into the new page ends there at the offset first; its bytes are in the
 * buffer. 0 = no such record. */
static void
turn_page(kvp_tier_core_t *core, uint32_t first)
{
    kvp_tier_table_t table = core->table;
    kvp_tier_slot_t *slot = kvp_tier_slot(core, ++core->head);

    core->table = (kvp_tier_table_t){0};
    core->pos = first;
    core->header = (kvp_tier_page_t){
        .epoch = core->conf.epoch, .number = core->head, .run = 1, .first = first, .opened_ms = core->now_ms};
    *slot = (kvp_tier_slot_t){.number = core->head, .opened_ms = core->now_ms};
    append_table(core, &table);
    free(table.entries);
    write_header(core);
}

/* Begins a new run in a page that an earlier start opened. The run separates records appended now from leftovers
 * after the old end. */
static void
begin_run(kvp_tier_core_t *core)
{
    core->is_run_due = false;
    core->header.runs_at[core->header.run++] = (uint32_t)core->pos;
    write_header(core);
}

/* ---- records */
kvp_err_t
kvp_tier_reserve(kvp_tier_core_t *core, uint64_t bytes, bool may_use_last, uint8_t **at_out)
{
    const kvp_tier_geo_t *geo = &core->conf.geo;

    /* in a new page a table precedes the record: 1/16 of the page is left for the table */
    if (bytes > geo->page_bytes - geo->page_bytes / 16) return KVP_NO_SPACE;
    if (!may_use_last && core->head != 0 && kvp_tier_free_pages(core) == 0)
        return KVP_NO_SPACE; /* the last free page is for tombstones and reclaim's copies */
    if (!has_room(core, bytes) && core->full_n >= KVP_TIER_BUFS_MAX) return KVP_EAGAIN;
    if (core->is_run_due) begin_run(core);
    for (uint32_t tries = 0; tries < 3; tries++) {
        bool is_last = core->head % geo->pages == geo->pages - 1;

        if (core->head == 0 || core->pos == geo->page_bytes || (is_last && core->pos + bytes > geo->page_bytes)) {
            if (core->head != 0 && !may_turn(core, may_use_last)) return KVP_NO_SPACE;
            seal_buf(core, core->heads_begun);
            turn_page(core, 0);
        } else if (!has_room(core, bytes) && core->buf != NULL) {
            seal_buf(core, core->heads_begun); /* writing the buffer moves the log's end to a block's border */
        } else {
            if (core->pos + bytes > geo->page_bytes && !may_turn(core, may_use_last)) return KVP_NO_SPACE;
            if (core->buf == NULL && !begin_buf(core, bytes)) return KVP_NO_SPACE;
            *at_out = core->buf->io.buf + core->buf->len;
            return KVP_OK;
        }
    }
    return KVP_NO_SPACE; /* even an empty page has no room for the record after the table */
}

kvp_err_t
kvp_tier_append(kvp_tier_core_t *core, uint8_t *at, kvp_tier_rec_t *rec, bool is_synced)
{
    uint64_t bytes = kvp_tier_rec_end(rec->key_len, rec->len), end = core->pos + bytes;
    kvp_tier_entry_t entry;

    rec->at = (uint32_t)(core->pos / KVP_TIER_UNIT);
    entry = kvp_tier_entry(rec, 0);
    if (!kvp_tier_table_add(&core->table, &entry)) return KVP_NO_SPACE;
    entry = kvp_tier_entry(rec, core->head % core->conf.geo.pages);
    if (rec->kind == KVP_TIER_RECORD && !kvp_tier_set(core, &entry)) {
        core->table.n--;
        return KVP_NO_SPACE;
    }
    take_record(core, at, rec, bytes);
    core->buf->io.is_synced |= is_synced;
    if (end > core->conf.geo.page_bytes) turn_page(core, (uint32_t)(end - core->conf.geo.page_bytes));
    if (core->buf != NULL && core->buf->len >= KVP_TIER_BUF_BYTES) seal_buf(core, core->heads_begun);
    return KVP_OK;
}

kvp_err_t
kvp_tier_core_write(kvp_tier_core_t *core, const kvp_tier_meta_t *meta, const void *src, bool (*still)(void *arg),
                    void *arg, uint64_t *serial_out)
{
    const kvp_tier_entry_t *old = kvp_tier_index_find(&core->index, meta->digest);
    kvp_tier_rec_t rec = {.kind = KVP_TIER_RECORD,
                          .flags = meta->flags,
                          .digest = meta->digest,
                          .version = meta->version,
                          .len = meta->len,
                          .sum = meta->sum,
                          .key_hash2 = meta->key_hash2,
                          .lineage = meta->lineage,
                          .tenant = meta->tenant,
                          .ns_epoch = meta->ns_epoch,
                          .key_len = meta->key_len};
    kvp_err_t err;
    uint8_t *at;

    *serial_out = kvp_tier_last_serial(core);
    if (meta->version >> KVP_TIER_VERSION_BITS != 0 || meta->key_len > KVP_KEY_MAX) return KVP_INVALID;
    if (meta->len > core->conf.geo.page_bytes) return KVP_NO_SPACE;
    if (old != NULL && old->version >= meta->version) return old->version == meta->version ? KVP_OK : KVP_STALE;
    err = kvp_tier_reserve(core, kvp_tier_rec_end(meta->key_len, meta->len), false, &at);
    if (err != KVP_OK) return err;
    kvp_tier_rec_build(at, &rec, meta->key, src);
    if (still != NULL && !still(arg)) return KVP_STALE;
    *serial_out = core->buf->serial;
    err = kvp_tier_append(core, at, &rec, false);
    if (err != KVP_OK) return err;
    core->conf.stats->writes++;
    core->conf.stats->write_bytes += meta->len;
    return KVP_OK;
}

/* Hides a digest's records. While a page is reclaimed, its records that were given up have left the index, but a
 * recovery would find them on the device. So a tombstone is appended even without an index entry. */
kvp_err_t
kvp_tier_core_drop(kvp_tier_core_t *core, kvp_digest_t digest, uint64_t version, uint64_t *serial_out)
{
    kvp_tier_entry_t *entry = kvp_tier_index_find(&core->index, digest);
    kvp_tier_rec_t rec = {.kind = KVP_TIER_TOMBSTONE, .digest = digest, .version = version};
    kvp_err_t err;
    uint8_t *at;

    *serial_out = kvp_tier_last_serial(core);
    if (version >> KVP_TIER_VERSION_BITS != 0) return KVP_INVALID;
    if (entry == NULL && core->reclaim.state == KVP_TIER_RECLAIM_IDLE) return KVP_OK;
    if (entry != NULL && entry->version > version) return KVP_OK;
    err = kvp_tier_reserve(core, KVP_TIER_REC_BYTES, true, &at);
    if (err != KVP_OK) return err;
    kvp_tier_rec_build(at, &rec, NULL, NULL);
    *serial_out = core->buf->serial;
    err = kvp_tier_append(core, at, &rec, true);
    if (err != KVP_OK || entry == NULL) return err;
    kvp_tier_unset(core, entry);
    core->conf.stats->drops++;
    return KVP_OK;
}
