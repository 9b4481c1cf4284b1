/* SPDX-License-Identifier: Apache-2.0
 * What the files of the tier's core share: core.c (create, the log's end), append.c, read.c, recover.c, reclaim.c.
 */
#ifndef KVP_NODE_TIER_PRIV_H
#define KVP_NODE_TIER_PRIV_H

#include "node/tier/core.h"

/* A page of the ring, by its place. */
typedef struct {
    uint64_t number; /* 0 = empty */
    uint64_t live_bytes;
    uint64_t opened_ms;
    uint64_t table_off; /* on the device, of its own table; */
    uint32_t table_bytes; /* 0 = no table */
    uint32_t run; /* of its header */
} kvp_tier_slot_t;

/* The blocks of the device in which that table lies. */
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

/* Some of the log's end: records up to a multiple of a block. */
typedef struct {
    kvp_list_t link;
    kvp_tier_io_t io;
    kvp_tier_core_t *core;
    uint64_t serial; /* rises by one each buffer */
    uint64_t headers; /* header writes that precede the buffer */
    uint64_t cap;
    uint64_t len;
    bool is_sent;
    bool is_done;
} kvp_tier_buf_t;

/* A write of a page's header, or of zeros over it. */
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
    KVP_TIER_RECLAIM_READS, /* the page's table */
    KVP_TIER_RECLAIM_READY, /* to be proposed */
    KVP_TIER_RECLAIM_ASKED,
    KVP_TIER_RECLAIM_KEEPS, /* appends kept records again */
    KVP_TIER_RECLAIM_SYNCS,
    KVP_TIER_RECLAIM_ERASES_OLD, /* the header of the run before, */
    KVP_TIER_RECLAIM_ERASES, /* then the header */
} kvp_tier_reclaim_state_t;

typedef struct {
    kvp_tier_reclaim_state_t state;
    uint64_t number; /* of the page */
    kvp_tier_io_t io;
    kvp_tier_table_t table;
    size_t next; /* of the table: the first that was not proposed */
    size_t asked_from; /* of the table: where the proposal began */
    uint32_t *asked; /* entries of the table: the proposed ones, later the kept ones */
    uint32_t asked_n;
    uint32_t kept_n; /* of asked: appended again, or given up */
    uint64_t asked_bytes; /* their bytes that may be kept */
    uint64_t keep_bytes; /* bytes that may be kept of the records not proposed yet */
    uint64_t serial; /* what has to be durable before the page goes */
    kvp_tier_read_t read;
    bool is_reading;
} kvp_tier_reclaim_t;

struct kvp_tier_core {
    kvp_tier_core_conf_t conf;
    kvp_tier_index_t index;
    kvp_tier_slot_t *slots;
    uint64_t head; /* the page that is written; 0 = none was opened */
    uint64_t tail; /* the oldest in which something is; head + 1 = none */
    uint64_t pos; /* in the page head: where the next record goes, a multiple of KVP_TIER_UNIT */
    kvp_tier_page_t header; /* of the page head */
    bool is_run_due; /* it has a header of an earlier start */
    kvp_tier_table_t table; /* of the page head */
    kvp_tier_buf_t *buf; /* being filled, or NULL */
    kvp_list_t full; /* kvp_tier_buf_t.link, in their order: waiting and under way */
    uint32_t full_n;
    kvp_tier_buf_t *spare;
    uint64_t serial; /* of the buffer last made */
    uint64_t durable; /* all buffers up to this serial are written */
    kvp_list_t heads; /* kvp_tier_head_t.link, in their order: under way */
    uint64_t heads_begun, heads_done; /* done: all up to this number are written */
    uint64_t live_bytes;
    uint64_t appended;
    uint64_t now_ms; /* since 1970 */
    uint32_t reads; /* under way */
    uint32_t unread; /* pieces that recovery could not read */
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

/* Of the last buffer in which something is. */
static inline uint64_t
kvp_tier_last_serial(const kvp_tier_core_t *core)
{
    return core->buf != NULL && core->buf->len == 0 ? core->serial - 1 : core->serial;
}

/* core.c. kvp_tier_set puts a record's place into the index, and counts: false = no memory.
 * kvp_tier_unset takes one out. */
bool kvp_tier_set(kvp_tier_core_t *core, const kvp_tier_entry_t *entry) KVP_MUST_USE;
void kvp_tier_unset(kvp_tier_core_t *core, kvp_tier_entry_t *entry);
bool kvp_tier_table_add(kvp_tier_table_t *table, const kvp_tier_entry_t *entry) KVP_MUST_USE;
uint8_t *kvp_tier_alloc(uint64_t bytes); /* aligned for the device; free() frees it */
void kvp_tier_free_buf(kvp_tier_core_t *core, kvp_tier_buf_t *buf); /* NULL is legal */

/* append.c. kvp_tier_reserve makes room at the log's end for one record: *at_out is the place of
 * its bytes. may_use_last: also in the page that reclaim needs. kvp_tier_append then accepts the
 * record written there: rec gets its place and is sealed. Without the append the room is free
 * again. kvp_tier_free_pages: the number of empty pages. kvp_tier_head_write writes a header, or
 * zeros if page is NULL. */
kvp_err_t kvp_tier_reserve(kvp_tier_core_t *core, uint64_t bytes, bool may_use_last, uint8_t **at_out) KVP_MUST_USE;
kvp_err_t kvp_tier_append(kvp_tier_core_t *core, uint8_t *at, kvp_tier_rec_t *rec, bool is_synced) KVP_MUST_USE;
uint64_t kvp_tier_free_pages(const kvp_tier_core_t *core);
bool kvp_tier_head_write(kvp_tier_core_t *core, uint64_t off, const kvp_tier_page_t *page) KVP_MUST_USE;

/* recover.c: parses a table as read: false = another page's table, or damaged. */
bool kvp_tier_table_parse(const kvp_tier_core_t *core, const uint8_t *bytes, uint64_t len, uint64_t number,
                          kvp_tier_table_t *table_out) KVP_MUST_USE;

/* reclaim.c */
void kvp_tier_reclaim_erased(kvp_tier_core_t *core);

#endif
