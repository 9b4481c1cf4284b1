/* SPDX-License-Identifier: Apache-2.0
 * Reads of records. The bytes from the device are compared with the index, because a page may have been reclaimed and
 * written again meanwhile. */
#include "node/tier/priv.h"

#include <stdlib.h>
#include <string.h>

static void begin_read(kvp_tier_read_t *read);

static void
finish_read(kvp_tier_read_t *read, kvp_err_t err)
{
    kvp_tier_core_t *core = read->core;
    uint8_t *room = read->io.buf;

    read->err = err;
    read->io.buf = NULL;
    read->done(read); /* done may free the read */
    kvp_tier_room_give(core->conf.room, room);
}

static void
tell_meta(const kvp_tier_read_t *read)
{
    kvp_tier_meta_t *meta = read->meta;
    const kvp_tier_rec_t *rec = &read->rec;

    meta->key_hash2 = rec->key_hash2;
    meta->len = rec->len;
    meta->sum = rec->sum;
    meta->tenant = rec->tenant;
    meta->ns_epoch = rec->ns_epoch;
    meta->lineage = rec->lineage;
    meta->flags = rec->flags;
    meta->key_len = rec->key_len;
    memcpy(meta->key, read->bytes + KVP_TIER_REC_BYTES, rec->key_len);
}

/* Returns whether the read wants only the metadata of the object. */
static bool
is_meta_alone(const kvp_tier_read_t *read)
{
    return read->meta != NULL && read->dst == NULL;
}

/* Returns the number of bytes of the record to read. If only metadata is wanted: the bytes before the payload, for
 * the longest possible key. */
static uint64_t
wanted_bytes(const kvp_tier_read_t *read)
{
    uint64_t all = kvp_tier_entry_bytes(&read->entry);

    return is_meta_alone(read) ? kvp_min_u64(all, kvp_tier_rec_payload(KVP_KEY_MAX, all)) : all;
}

/* Returns whether the bytes are the wanted record: checks its header, key and checksums. */
static bool
is_the_one(kvp_tier_read_t *read)
{
    const kvp_tier_rec_t *rec = &read->rec;
    uint64_t bytes = kvp_tier_entry_bytes(&read->entry);

    if (kvp_tier_rec_read(read->bytes, wanted_bytes(read), read->core->conf.epoch, &read->rec) != KVP_OK) return false;
    return rec->kind == KVP_TIER_RECORD && kvp_digest_eq(rec->digest, read->digest) && rec->version == read->version &&
           rec->page == read->number && rec->at == read->entry.at && kvp_tier_rec_end(rec->key_len, rec->len) == bytes;
}

static bool
has_moved(const kvp_tier_read_t *read)
{
    const kvp_tier_entry_t *entry = kvp_tier_index_find(&read->core->index, read->digest);

    return entry == NULL || memcmp(entry, &read->entry, sizeof *entry) != 0 ||
           read->core->slots[entry->page].number != read->number;
}

/* Drops a record that cannot be read, so that later reads miss instead of failing again, and finishes the read. */
static void
give_up(kvp_tier_read_t *read, kvp_err_t err)
{
    uint64_t serial;

    kvp_ignore(kvp_tier_core_drop(read->core, read->digest, read->version, &serial),
               "where there is no room the next read finds it again");
    finish_read(read, err);
}

static void
on_bytes(kvp_tier_read_t *read)
{
    kvp_tier_core_t *core = read->core;
    bool is_right = is_the_one(read);

    if (is_right && read->dst != NULL && read->rec.len > read->cap) {
        finish_read(read, KVP_BUFFER_SMALL);
        return;
    }
    if (is_right && (is_meta_alone(read) || kvp_tier_rec_copy(read->bytes, &read->rec, read->dst))) {
        if (read->meta != NULL) tell_meta(read);
        core->conf.stats->reads += read->dst != NULL;
        core->conf.stats->read_bytes += read->dst != NULL ? read->rec.len : 0;
        finish_read(read, KVP_OK);
        return;
    }
    if (has_moved(read)) {
        kvp_tier_room_give(core->conf.room, read->io.buf);
        begin_read(read);
        return;
    }
    core->conf.stats->corrupt++;
    core->has_damage = true;
    give_up(read, KVP_CORRUPT);
}

static void
on_io(kvp_tier_io_t *io)
{
    kvp_tier_read_t *read = kvp_container_of(io, kvp_tier_read_t, io);

    read->core->reads--;
    if (read->is_cancelled)
        finish_read(read, KVP_CLOSED);
    else if (io->err != KVP_OK && has_moved(read))
        finish_read(read, KVP_NOT_FOUND);
    else if (io->err != KVP_OK)
        give_up(read, KVP_SYS);
    else
        on_bytes(read);
}

/* Returns the record's bytes in a buffer that is not on the device yet, or NULL. */
static const uint8_t *
find_buffered(const kvp_tier_core_t *core, uint64_t off)
{
    const kvp_tier_buf_t *buf = core->buf;

    if (buf != NULL && off >= buf->io.off && off - buf->io.off < buf->len) return buf->io.buf + (off - buf->io.off);
    kvp_list_foreach (l, &core->full) {
        buf = kvp_list_entry(l, kvp_tier_buf_t, link);
        if (off >= buf->io.off && off - buf->io.off < buf->len) return buf->io.buf + (off - buf->io.off);
    }
    return NULL;
}

static void
begin_read(kvp_tier_read_t *read)
{
    kvp_tier_core_t *core = read->core;
    const kvp_tier_entry_t *entry = kvp_tier_index_find(&core->index, read->digest);
    uint64_t off, from, to;

    read->io.buf = NULL;
    if (entry == NULL || entry->version != read->version) {
        finish_read(read, KVP_NOT_FOUND);
        return;
    }
    read->entry = *entry;
    read->number = core->slots[entry->page].number;
    off = kvp_tier_page_off(&core->conf.geo, read->number) + (uint64_t)entry->at * KVP_TIER_UNIT;
    from = off / KVP_TIER_BLOCK * KVP_TIER_BLOCK;
    to = kvp_align_up(off + wanted_bytes(read), KVP_TIER_BLOCK);
    read->bytes = find_buffered(core, off);
    if (read->bytes != NULL) {
        on_bytes(read);
        return;
    }
    read->io = (kvp_tier_io_t){.done = on_io, .off = from, .len = (uint32_t)(to - from)};
    read->io.buf = kvp_tier_room_take(core->conf.room, to - from);
    if (read->io.buf == NULL) {
        finish_read(read, KVP_NOMEM);
        return;
    }
    read->bytes = read->io.buf + (off - from);
    core->reads++;
    core->conf.ops->submit(core->conf.disk, &read->io);
}

void
kvp_tier_core_read(kvp_tier_core_t *core, kvp_tier_read_t *read)
{
    read->core = core;
    read->is_cancelled = false;
    begin_read(read);
}
