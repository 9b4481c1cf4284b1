/* SPDX-License-Identifier: Apache-2.0
 * The internal types and functions that the files of the tier's core share: core.c (creation, figures), append.c (the
 * log's end), read.c, recover.c, reclaim.c. */
#ifndef KVP_NODE_TIER_PRIV_H
#define KVP_NODE_TIER_PRIV_H

#include "node/tier/core.h"

/* The state of a page, stored by its place in the ring. */
typedef struct {
    uint64_t number; /* the number of the page; 0 = empty */
    uint64_t live_bytes;
    uint64_t opened_ms;
    uint64_t table_off; /* the offset on the device of the page's own table */
    uint32_t table_bytes; /* the size of the table; 0 = no table */
    uint32_t run; /* the run of the page's header */
} kvp_tier_slot_t;

/* kvp_tier_table_blocks returns the range of whole blocks on the device that contain the page's table. */
static inline void
kvp_tier_table_blocks(const kvp_tier_slot_t *slot, uint64_t *from_out, uint64_t *to_out)
{
    *from_out = slot->table_off / KVP_TIER_BLOCK * KVP_TIER_BLOCK;
    *to_out = kvp_align_up(slot->table_off + slot->table_bytes, KVP_TIER_BLOCK);
}

typedef struct {
    kvp_tier_entry_t *entries;
    size_t n;
    size_t cap;
} kvp_tier_table_t;

/* A buffer at the log's end: records that are written together, up to a multiple of a block. */
typedef struct {
    kvp_list_t link;
    kvp_tier_io_t io;
    kvp_tier_core_t *core;
    uint64_t serial; /* the number of the buffer, rising by one */
    uint64_t headers; /* the number of header writes that must end before the buffer is written */
    uint64_t cap;
    uint64_t len;
    bool is_sent;
    bool is_done;
} kvp_tier_buf_t;

/* A write of a page's header, or of zeros over the header. */
typedef struct {
    kvp_list_t link;
    kvp_tier_io_t io;
    kvp_tier_core_t *core;
    uint64_t serial;
    bool is_erasure;
    bool is_done;
} kvp_tier_head_t;

typedef enum {
    KVP_TIER_RECLAIM_IDLE,
    KVP_TIER_RECLAIM_READS, /* the page's table is being read */
    KVP_TIER_RECLAIM_READY, /* the next records of the page can be proposed */
    KVP_TIER_RECLAIM_ASKED,
    KVP_TIER_RECLAIM_KEEPS, /* kept records are appended again */
    KVP_TIER_RECLAIM_SYNCS,
    KVP_TIER_RECLAIM_ERASES_OLD, /* zeros are being written over the header of the page's previous run */
    KVP_TIER_RECLAIM_ERASES, /* zeros are being written over the page's header */
} kvp_tier_reclaim_state_t;

typedef struct {
    kvp_tier_reclaim_state_t state;
    uint64_t number; /* the number of the page being reclaimed */
    kvp_tier_io_t io;
    kvp_tier_table_t table;
    size_t next; /* the index in the table of the first record that was not proposed */
    size_t asked_from; /* the index in the table where the current proposal began */
    uint32_t *asked; /* the indices in the table of the proposed records, later of the kept records */
    uint32_t asked_n;
    uint32_t kept_n; /* how many of the kept records were appended again or given up */
    uint64_t asked_bytes; /* the bytes of the proposed records that may be kept */
    uint64_t keep_bytes; /* the bytes that may be kept of records not proposed yet */
    uint64_t serial; /* the number of the buffer that must be durable before the page's header is overwritten */
    kvp_tier_read_t read;
    bool is_reading;
} kvp_tier_reclaim_t;

struct kvp_tier_core {
    kvp_tier_core_conf_t conf;
    kvp_tier_index_t index;
    kvp_tier_slot_t *slots;
    uint64_t head; /* the number of the page being written; 0 = no page was opened */
    uint64_t tail; /* the number of the oldest page with content; head + 1 = none */
    uint64_t pos; /* the offset in the page `head` of the next record, a multiple of KVP_TIER_UNIT */
    kvp_tier_page_t header; /* the header of the page `head` */
    bool is_run_due; /* the page `head` was opened by an earlier start, so appending must begin a new run */
    kvp_tier_table_t table; /* the table of the page `head` */
    kvp_tier_buf_t *buf; /* the buffer being filled, or NULL */
    kvp_list_t full; /* full buffers, waiting or being written: a list of kvp_tier_buf_t.link, in order */
    uint32_t full_n;
    kvp_tier_buf_t *spare;
    uint64_t serial; /* the number of the buffer that was made last */
    uint64_t durable; /* all buffers up to this number are on the device */
    kvp_list_t heads; /* header writes under way: a list of kvp_tier_head_t.link, in order */
    /* the numbers of header writes begun and ended; all writes up to heads_done have ended */
    uint64_t heads_begun, heads_done;
    uint64_t live_bytes;
    uint64_t appended;
    uint64_t now_ms; /* the present time in milliseconds since 1970 */
    uint32_t reads; /* the number of reads of records under way */
    uint32_t unread; /* the number of windows (recover.c) that recovery could not read */
    bool has_failed, has_damage;
    kvp_tier_reclaim_t reclaim;
};

static inline kvp_tier_slot_t *
kvp_tier_slot(const kvp_tier_core_t *core, uint64_t number)
{
    return &core->slots[number % core->conf.geo.pages];
}

static inline uint64_t
kvp_tier_entry_bytes(const kvp_tier_entry_t *entry)
{
    return entry->units * KVP_TIER_UNIT;
}

/* kvp_tier_last_serial returns the number of the last buffer that has bytes. */
static inline uint64_t
kvp_tier_last_serial(const kvp_tier_core_t *core)
{
    return core->buf != NULL && core->buf->len == 0 ? core->serial - 1 : core->serial;
}

/* Functions of core.c. kvp_tier_set puts a record's place into the index, and updates the counts: false = no memory.
 * kvp_tier_unset removes an entry from the index. */
bool kvp_tier_set(kvp_tier_core_t *core, const kvp_tier_entry_t *entry) KVP_MUST_USE;
void kvp_tier_unset(kvp_tier_core_t *core, kvp_tier_entry_t *entry);
bool kvp_tier_table_add(kvp_tier_table_t *table, const kvp_tier_entry_t *entry) KVP_MUST_USE;
uint8_t *kvp_tier_alloc(uint64_t bytes); /* returns memory aligned for the device; free() frees it */
void kvp_tier_free_buf(kvp_tier_core_t *core, kvp_tier_buf_t *buf); /* NULL is legal */

/* Functions of append.c. kvp_tier_reserve makes room at the log's end for one record; *at_out is where to write its
 * bytes. may_use_last: the record may use the last free page, reserved for tombstones and reclaim. kvp_tier_append then
 * accepts the record written there: it sets the place in rec and seals the record. Without the append the room is free
 * again. kvp_tier_free_pages returns the number of empty pages. kvp_tier_head_write writes a page header, or zeros if
 * page is NULL. */
kvp_err_t kvp_tier_reserve(kvp_tier_core_t *core, uint64_t bytes, bool may_use_last, uint8_t **at_out) KVP_MUST_USE;
kvp_err_t kvp_tier_append(kvp_tier_core_t *core, uint8_t *at, kvp_tier_rec_t *rec, bool is_synced) KVP_MUST_USE;
uint64_t kvp_tier_free_pages(const kvp_tier_core_t *core);
bool kvp_tier_head_write(kvp_tier_core_t *core, uint64_t off, const kvp_tier_page_t *page) KVP_MUST_USE;

/* kvp_tier_table_parse (recover.c) parses the bytes of a table: false = a wrong checksum, or another page's table. */
bool kvp_tier_table_parse(const kvp_tier_core_t *core, const uint8_t *bytes, uint64_t len, uint64_t number,
                          kvp_tier_table_t *table_out) KVP_MUST_USE;

/* kvp_tier_reclaim_erased (reclaim.c) continues the reclaim after zeros were written over a header. */
void kvp_tier_reclaim_erased(kvp_tier_core_t *core);

#endif
