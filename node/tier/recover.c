/* SPDX-License-Identifier: Apache-2.0
 * Recovery of a device's records after a start. Reads all headers at once, then the pages from the oldest to the
 * newest: by a page's table, or record by record without an intact table. A later record replaces an earlier one, and a
 * tombstone hides the records before it.
 *
 * Design notes. Each record gives the place of the next record. If the chain breaks, it continues at the next block
 * with a record header, because each buffer begins with a record. In a page that two starts have written, the run
 * separates the later start's records from the earlier start's leftovers. Payloads are verified only where, by the last
 * header, writes may have been under way when the process ended: a torn (partly written) record may be reclaim's copy
 * of an intact record, which must then stay. Reads find other damage. */
#include "node/tier/priv.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES (512u << 10) /* the least bytes of a read; more than a record header, key and checksums have */
#define HEADERS_BYTES (1u << 20)
#define TABLES_AHEAD 16u
#define UNREAD_MAX 8u /* the most unreadable windows (reads of WINDOW_BYTES); with more, recovery fails */

typedef struct {
    kvp_tier_io_t io;
    bool is_over;
} wait_t;

static void
on_wait(kvp_tier_io_t *io)
{
    kvp_container_of(io, wait_t, io)->is_over = true;
}

static void
begin_read(kvp_tier_core_t *core, wait_t *w, uint8_t *buf, uint64_t off, uint64_t len)
{
    w->is_over = false;
    w->io = (kvp_tier_io_t){.done = on_wait, .buf = buf, .off = off, .len = (uint32_t)len};
    core->conf.ops->submit(core->conf.disk, &w->io);
}

static kvp_err_t
end_io(kvp_tier_core_t *core, wait_t *w)
{
    while (!w->is_over)
        core->conf.ops->wait(core->conf.disk);
    return w->io.err;
}

static kvp_err_t
read_now(kvp_tier_core_t *core, uint8_t *buf, uint64_t off, uint64_t len)
{
    wait_t w;

    begin_read(core, &w, buf, off, len);
    return end_io(core, &w);
}

/* ---- headers */
static void
take_header(kvp_tier_core_t *core, kvp_tier_page_t *headers, uint64_t place, const uint8_t *block)
{
    kvp_tier_page_t page, *best = &headers[place];

    if (!kvp_tier_page_read(block, core->conf.epoch, &core->conf.geo, &page) ||
        page.number % core->conf.geo.pages != place)
        return;
    if (page.number > best->number || (page.number == best->number && page.run > best->run)) *best = page;
}

static kvp_err_t
read_headers(kvp_tier_core_t *core, kvp_tier_page_t *headers)
{
    uint64_t end = core->conf.geo.pages_off;
    uint8_t *buf = kvp_tier_alloc(HEADERS_BYTES);
    kvp_err_t err = buf == NULL ? KVP_NOMEM : KVP_OK;

    for (uint64_t off = KVP_TIER_HEADERS_OFF; err == KVP_OK && off < end; off += HEADERS_BYTES) {
        uint64_t n = kvp_min_u64(end - off, HEADERS_BYTES);

        err = read_now(core, buf, off, n);
        for (uint64_t at = 0; err == KVP_OK && at < n; at += KVP_TIER_BLOCK)
            take_header(core, headers, (off + at - KVP_TIER_HEADERS_OFF) / (2 * KVP_TIER_BLOCK), buf + at);
    }
    free(buf);
    return err;
}

/* ---- record by record */
typedef struct {
    uint8_t *buf;
    uint64_t cap;
    uint64_t off; /* the offset on the device of the bytes in buf */
    uint64_t len;
} window_t;

/* Returns the bytes from off on, at least `want` of them unless the file ends before. */
static kvp_err_t
look_at_bytes(kvp_tier_core_t *core, window_t *win, uint64_t off, uint64_t want, const uint8_t **bytes_out,
              uint64_t *len_out)
{
    uint64_t from = off / KVP_TIER_BLOCK * KVP_TIER_BLOCK;
    uint64_t len = kvp_min_u64(kvp_max_u64(kvp_align_up(off + want, KVP_TIER_BLOCK) - from, WINDOW_BYTES),
                               core->conf.geo.size_bytes - from);

    if (win->cap < len) {
        free(win->buf);
        win->buf = kvp_tier_alloc(len);
        win->cap = win->buf == NULL ? 0 : len;
        win->len = 0;
        if (win->buf == NULL) return KVP_NOMEM;
    }
    if (off < win->off || kvp_min_u64(off + want, core->conf.geo.size_bytes) > win->off + win->len) {
        win->off = from;
        win->len = len;
        kvp_err_t err = read_now(core, win->buf, from, len);

        if (err != KVP_OK) {
            win->len = 0;
            return err;
        }
    }
    *bytes_out = win->buf + (off - win->off);
    *len_out = win->off + win->len - off;
    return KVP_OK;
}

/* Returns the run that wrote at the offset pos of the page; each start of the node that writes there begins a run. */
static uint32_t
run_at(const kvp_tier_page_t *header, uint64_t pos)
{
    uint32_t run = 1;

    while (run < header->run && header->runs_at[run] <= pos)
        run++;
    return run;
}

/* Reads the record that begins at pos. NOT_FOUND: there is no record. SYS, NOMEM: the bytes could not be read. */
static kvp_err_t
record_at(kvp_tier_core_t *core, window_t *win, const kvp_tier_page_t *header, uint64_t pos, kvp_tier_rec_t *rec_out)
{
    uint64_t off = kvp_tier_page_off(&core->conf.geo, header->number) + pos, len;
    const uint8_t *bytes;
    kvp_err_t err = look_at_bytes(core, win, off, KVP_TIER_REC_BYTES, &bytes, &len);

    if (err == KVP_OK) err = kvp_tier_rec_read(bytes, len, core->conf.epoch, rec_out);
    if (err == KVP_BUFFER_SMALL) {
        err = look_at_bytes(core, win, off, WINDOW_BYTES - KVP_TIER_BLOCK, &bytes, &len);
        if (err == KVP_OK) err = kvp_tier_rec_read(bytes, len, core->conf.epoch, rec_out);
    }
    if (err == KVP_SYS || err == KVP_NOMEM) return err;
    if (err != KVP_OK || rec_out->page != header->number || (uint64_t)rec_out->at * KVP_TIER_UNIT != pos)
        return KVP_NOT_FOUND;
    return rec_out->run == run_at(header, pos) ? KVP_OK : KVP_NOT_FOUND;
}

static kvp_err_t
scan_page(kvp_tier_core_t *core, window_t *win, const kvp_tier_page_t *header, kvp_tier_table_t *table,
          uint64_t *end_out)
{
    *end_out = header->first;
    for (uint64_t pos = header->first; pos < core->conf.geo.page_bytes;) {
        kvp_tier_rec_t rec;
        kvp_tier_entry_t entry;
        kvp_err_t err = record_at(core, win, header, pos, &rec);

        if (err == KVP_NOT_FOUND || (err == KVP_SYS && core->unread++ < UNREAD_MAX)) {
            pos = kvp_align_up(pos + 1, err == KVP_SYS ? WINDOW_BYTES : KVP_TIER_BLOCK);
            continue;
        }
        if (err != KVP_OK) return err;
        entry = kvp_tier_entry(&rec, 0);
        if (rec.kind != KVP_TIER_TABLE && !kvp_tier_table_add(table, &entry)) return KVP_NOMEM;
        pos += kvp_tier_entry_bytes(&entry);
        *end_out = pos;
    }
    return KVP_OK;
}

static bool
is_whole(kvp_tier_core_t *core, window_t *win, uint64_t number, const kvp_tier_entry_t *entry)
{
    uint64_t off = kvp_tier_page_off(&core->conf.geo, number) + (uint64_t)entry->at * KVP_TIER_UNIT, len;
    const uint8_t *bytes;
    kvp_tier_rec_t rec;

    if (look_at_bytes(core, win, off, kvp_tier_entry_bytes(entry), &bytes, &len) != KVP_OK ||
        len < kvp_tier_entry_bytes(entry))
        return false;
    if (kvp_tier_rec_read(bytes, len, core->conf.epoch, &rec) != KVP_OK || rec.page != number) return false;
    return kvp_tier_rec_end(rec.key_len, rec.len) == kvp_tier_entry_bytes(entry) &&
           kvp_tier_rec_copy(bytes, &rec, NULL);
}

/* Marks the page's header: the page has torn records. Otherwise a later start would find the page's table, or a
 * header of the next page, and trust the torn records. */
static kvp_err_t
mark_torn(kvp_tier_core_t *core, kvp_tier_page_t *header)
{
    uint8_t *block = kvp_tier_alloc(KVP_TIER_BLOCK);
    wait_t w = {0};
    kvp_err_t err;

    if (block == NULL) return KVP_NOMEM;
    header->has_torn = 1;
    if (header->run < KVP_TIER_RUNS_MAX)
        header->runs_at[header->run++] =
            (uint32_t)(header->number == core->head ? core->pos : core->conf.geo.page_bytes);
    kvp_tier_slot(core, header->number)->run = header->run;
    kvp_tier_page_seal(header);
    memset(block, 0, KVP_TIER_BLOCK);
    memcpy(block, header, sizeof *header);
    w.io = (kvp_tier_io_t){
        .done = on_wait, .buf = block, .off = kvp_tier_header_off(&core->conf.geo, header->number, header->run)};
    w.io.len = KVP_TIER_BLOCK;
    w.io.is_write = w.io.is_synced = true;
    core->conf.ops->submit(core->conf.disk, &w.io);
    err = end_io(core, &w);
    free(block);
    if (header->number == core->head) core->header = *header;
    return err;
}

/* Removes torn (partly written) records from the table: of the records whose writes may have been under way when the
 * process ended, only whole records stay. */
static kvp_err_t
leave_torn(kvp_tier_core_t *core, window_t *win, kvp_tier_page_t *header, kvp_tier_table_t *table)
{
    uint64_t from = header->number < core->header.durable_page    ? UINT64_MAX
                    : header->number == core->header.durable_page ? core->header.durable_at
                                                                  : 0;
    size_t n = 0, was = table->n;

    if (header->has_torn != 0) from = 0;
    for (size_t i = 0; i < table->n; i++)
        if ((uint64_t)table->entries[i].at * KVP_TIER_UNIT < from ||
            is_whole(core, win, header->number, &table->entries[i]))
            table->entries[n++] = table->entries[i];
    table->n = n;
    return n < was && header->has_torn == 0 ? mark_torn(core, header) : KVP_OK;
}

/* ---- by tables */
bool
kvp_tier_table_parse(const kvp_tier_core_t *core, const uint8_t *bytes, uint64_t len, uint64_t number,
                     kvp_tier_table_t *table_out)
{
    kvp_tier_rec_t rec;
    const uint8_t *payload;

    table_out->n = 0;
    if (kvp_tier_rec_read(bytes, len, core->conf.epoch, &rec) != KVP_OK || rec.kind != KVP_TIER_TABLE) return false;
    if (rec.digest.lo != number || rec.len % sizeof(kvp_tier_entry_t) != 0 ||
        kvp_tier_rec_end(rec.key_len, rec.len) > len)
        return false;
    if (!kvp_tier_rec_copy(bytes, &rec, NULL)) return false;
    payload = bytes + kvp_tier_rec_payload(rec.key_len, rec.len);
    for (uint64_t at = 0; at < rec.len; at += sizeof(kvp_tier_entry_t)) {
        kvp_tier_entry_t entry;

        memcpy(&entry, payload + at, sizeof entry);
        if (!kvp_tier_entry_is_sane(&entry, &core->conf.geo) || !kvp_tier_table_add(table_out, &entry)) return false;
    }
    return true;
}

static bool
replay_table(kvp_tier_core_t *core, uint64_t number, const kvp_tier_table_t *table)
{
    for (size_t i = 0; i < table->n; i++) {
        kvp_tier_entry_t entry = table->entries[i], *old = kvp_tier_index_find(&core->index, entry.digest);

        if (old != NULL && old->version > entry.version) continue;
        entry.page = (number % core->conf.geo.pages) & KVP_TIER_PLACE_MASK;
        if (entry.kind == KVP_TIER_RECORD) {
            if (!kvp_tier_set(core, &entry)) return false;
        } else if (old != NULL) {
            kvp_tier_unset(core, old);
        }
    }
    return true;
}

/* A table that is read in advance. */
typedef struct {
    wait_t w;
    uint8_t *buf;
    uint64_t skip; /* the bytes in the first block before the table */
    uint64_t number; /* the number of the page whose table this is */
} ahead_t;

static void
begin_table(kvp_tier_core_t *core, ahead_t *a, uint64_t number)
{
    const kvp_tier_slot_t *slot = kvp_tier_slot(core, number);
    uint64_t from, to;

    kvp_tier_table_blocks(slot, &from, &to);
    a->buf = NULL;
    a->number = number;
    a->skip = slot->table_off - from;
    if (slot->number != number || slot->table_bytes == 0 || number == core->head) return;
    a->buf = kvp_tier_alloc(to - from);
    if (a->buf != NULL) begin_read(core, &a->w, a->buf, from, to - from);
}

static kvp_err_t
end_page(kvp_tier_core_t *core, kvp_tier_page_t *headers, ahead_t *a, window_t *win, kvp_tier_table_t *table)
{
    const kvp_tier_slot_t *slot = kvp_tier_slot(core, a->number);
    kvp_tier_page_t *header = &headers[a->number % core->conf.geo.pages];
    bool is_read = a->buf != NULL && end_io(core, &a->w) == KVP_OK &&
                   kvp_tier_table_parse(core, a->buf + a->skip, slot->table_bytes, a->number, table);
    kvp_err_t err = KVP_OK;
    uint64_t end = 0;

    free(a->buf);
    a->buf = NULL;
    if (!is_read) table->n = 0;
    if (slot->number != a->number) return KVP_OK;
    if (!is_read) err = scan_page(core, win, header, table, &end);
    if (err != KVP_OK) return err;
    if (a->number == core->head) core->pos = kvp_align_up(kvp_min_u64(end, core->conf.geo.page_bytes), KVP_TIER_BLOCK);
    err = leave_torn(core, win, header, table);
    if (err != KVP_OK) return err;
    return replay_table(core, a->number, table) ? KVP_OK : KVP_NOMEM;
}

static kvp_err_t
read_pages(kvp_tier_core_t *core, kvp_tier_page_t *headers)
{
    ahead_t ahead[TABLES_AHEAD] = {0};
    uint64_t begun = core->tail;
    kvp_tier_table_t table = {0};
    window_t win = {0};
    kvp_err_t err = KVP_OK;

    for (uint64_t number = core->tail; number <= core->head && err == KVP_OK; number++) {
        for (; begun <= core->head && begun < number + TABLES_AHEAD; begun++)
            begin_table(core, &ahead[begun % TABLES_AHEAD], begun);
        err = end_page(core, headers, &ahead[number % TABLES_AHEAD], &win, &table);
    }
    for (uint32_t i = 0; i < TABLES_AHEAD; i++) {
        if (ahead[i].buf != NULL) kvp_ignore(end_io(core, &ahead[i].w), "it is an error already");
        free(ahead[i].buf);
    }
    free(win.buf);
    core->table = table; /* the table of the last page, to which records will be added */
    return err;
}

static void
take_pages(kvp_tier_core_t *core, const kvp_tier_page_t *headers)
{
    const kvp_tier_geo_t *geo = &core->conf.geo;

    for (uint32_t i = 0; i < geo->pages; i++)
        if (headers[i].number > core->head) core->head = headers[i].number;
    core->tail = core->head + 1;
    for (uint32_t i = 0; i < geo->pages; i++) {
        const kvp_tier_page_t *page = &headers[i];

        if (page->number == 0 || page->number + geo->pages <= core->head) continue;
        core->slots[i].number = page->number;
        core->slots[i].run = page->run;
        core->slots[i].opened_ms = page->opened_ms;
        core->tail = kvp_min_u64(core->tail, page->number);
        if (page->number == 1) continue;
        kvp_tier_slot(core, page->number - 1)->table_off = kvp_tier_page_off(geo, page->number) + page->table_at;
        kvp_tier_slot(core, page->number - 1)->table_bytes = page->table_bytes;
    }
    if (core->head != 0) core->header = headers[core->head % geo->pages];
}

kvp_err_t
kvp_tier_core_recover(kvp_tier_core_t *core)
{
    kvp_tier_page_t *headers = calloc(core->conf.geo.pages, sizeof *headers);
    kvp_err_t err = headers == NULL ? KVP_NOMEM : read_headers(core, headers);

    if (err == KVP_OK) take_pages(core, headers);
    if (err == KVP_OK && core->head != 0) err = read_pages(core, headers);
    free(headers);
    if (err != KVP_OK || core->head == 0) return err;
    core->is_run_due = core->header.run < KVP_TIER_RUNS_MAX;
    if (!core->is_run_due) core->pos = core->conf.geo.page_bytes;
    return KVP_OK;
}
