/* SPDX-License-Identifier: Apache-2.0 */
#include "node/tier/priv.h"

#include <stdlib.h>

#define DAY_MS 86400000.0

kvp_tier_core_t *
kvp_tier_core_create(const kvp_tier_core_conf_t *conf)
{
    kvp_tier_core_t *core = calloc(1, sizeof *core);

    if (core == NULL) return NULL;
    core->conf = *conf;
    core->tail = 1;
    kvp_list_init(&core->full);
    kvp_list_init(&core->heads);
    kvp_tier_index_init(&core->index, conf->secret);
    core->slots = calloc(conf->geo.pages, sizeof *core->slots);
    core->reclaim.asked = calloc(KVP_TIER_PROPOSED_MAX, sizeof *core->reclaim.asked);
    if (core->slots != NULL && core->reclaim.asked != NULL) return core;
    kvp_tier_core_destroy(core);
    return NULL;
}

void
kvp_tier_core_set_now(kvp_tier_core_t *core, uint64_t now_ms)
{
    core->now_ms = now_ms;
}

void
kvp_tier_free_buf(kvp_tier_core_t *core, kvp_tier_buf_t *buf)
{
    if (buf == NULL) return;
    kvp_tier_room_give(core->conf.room, buf->io.buf);
    free(buf);
}

void
kvp_tier_core_destroy(kvp_tier_core_t *core)
{
    if (core == NULL) return;
    kvp_list_foreach_safe (l, next, &core->full)
        kvp_tier_free_buf(core, kvp_list_entry(l, kvp_tier_buf_t, link));
    kvp_list_foreach_safe (l, next, &core->heads) {
        free(kvp_list_entry(l, kvp_tier_head_t, link)->io.buf);
        free(kvp_list_entry(l, kvp_tier_head_t, link));
    }
    kvp_tier_free_buf(core, core->buf);
    kvp_tier_free_buf(core, core->spare);
    kvp_tier_index_fini(&core->index);
    free(core->slots);
    free(core->table.entries);
    free(core->reclaim.table.entries);
    free(core->reclaim.asked);
    free(core);
}

uint8_t *
kvp_tier_alloc(uint64_t bytes)
{
    return aligned_alloc(KVP_TIER_BLOCK, kvp_align_up(bytes, KVP_TIER_BLOCK));
}

/* ---- live records */
bool
kvp_tier_set(kvp_tier_core_t *core, const kvp_tier_entry_t *entry)
{
    kvp_tier_entry_t *old = kvp_tier_index_find(&core->index, entry->digest);

    if (old != NULL) {
        core->slots[old->page].live_bytes -= kvp_tier_entry_bytes(old);
        core->live_bytes -= kvp_tier_entry_bytes(old);
        *old = *entry;
    } else if (!kvp_tier_index_put(&core->index, entry)) {
        return false;
    }
    core->slots[entry->page].live_bytes += kvp_tier_entry_bytes(entry);
    core->live_bytes += kvp_tier_entry_bytes(entry);
    return true;
}

void
kvp_tier_unset(kvp_tier_core_t *core, kvp_tier_entry_t *entry)
{
    core->slots[entry->page].live_bytes -= kvp_tier_entry_bytes(entry);
    core->live_bytes -= kvp_tier_entry_bytes(entry);
    kvp_tier_index_remove(&core->index, entry);
}

bool
kvp_tier_table_add(kvp_tier_table_t *table, const kvp_tier_entry_t *entry)
{
    kvp_tier_entry_t *entries = kvp_grow(table->entries, table->n, &table->cap, 64, sizeof *entries);

    if (entries == NULL) return false;
    table->entries = entries;
    table->entries[table->n++] = *entry;
    return true;
}

/* ---- queries */
bool
kvp_tier_core_is_waiting(const kvp_tier_core_t *core)
{
    return core->buf != NULL && core->buf->len > 0;
}

bool
kvp_tier_core_is_durable(const kvp_tier_core_t *core, uint64_t serial)
{
    return serial <= core->durable;
}

bool
kvp_tier_core_is_idle(const kvp_tier_core_t *core)
{
    bool has_reclaim = core->reclaim.state == KVP_TIER_RECLAIM_READS || core->reclaim.is_reading;

    return core->reads == 0 && kvp_list_is_empty(&core->full) && kvp_list_is_empty(&core->heads) && !has_reclaim;
}

bool
kvp_tier_core_has_failed(const kvp_tier_core_t *core)
{
    return core->has_failed;
}

bool
kvp_tier_core_has_damage(const kvp_tier_core_t *core)
{
    return core->has_damage;
}

const kvp_tier_index_t *
kvp_tier_core_index(const kvp_tier_core_t *core)
{
    return &core->index;
}

void
kvp_tier_core_lost(const kvp_tier_core_t *core, kvp_tier_proposal_t *proposal_out)
{
    const kvp_tier_entry_t *entry;
    uint64_t cursor = 0;

    proposal_out->n = 0;
    proposal_out->keep_bytes = 0;
    while (proposal_out->n < KVP_TIER_PROPOSED_MAX && (entry = kvp_tier_index_next(&core->index, &cursor)) != NULL)
        proposal_out->recs[proposal_out->n++] = (kvp_wire_tiered_t){.digest = entry->digest, .version = entry->version};
}

void
kvp_tier_core_forget(kvp_tier_core_t *core, uint32_t n)
{
    kvp_tier_proposal_t *p = malloc(sizeof *p);

    if (p == NULL) return; /* the same objects are proposed again later */
    kvp_tier_core_lost(core, p);
    for (uint32_t i = 0; i < n && i < p->n; i++)
        kvp_tier_unset(core, kvp_tier_index_find(&core->index, p->recs[i].digest));
    free(p);
}

uint64_t
kvp_tier_core_appended(const kvp_tier_core_t *core)
{
    return core->appended;
}

uint64_t
kvp_tier_free_pages(const kvp_tier_core_t *core)
{
    return core->conf.geo.pages - (core->head + 1 - core->tail);
}

double
kvp_tier_core_budget_left(const kvp_tier_core_t *core, double day_bytes)
{
    double left = day_bytes;
    uint64_t at_ms = 0;

    for (uint64_t n = core->tail; n <= core->head; n++) {
        bool is_last = n == core->head;
        uint64_t then_ms = is_last ? core->now_ms : kvp_tier_slot(core, n)->opened_ms;

        if (kvp_tier_slot(core, n)->number != n) continue;
        if (then_ms > at_ms) left += day_bytes * (double)(then_ms - at_ms) / DAY_MS;
        left = left < day_bytes ? left : day_bytes;
        left -= (double)(is_last ? core->pos : core->conf.geo.page_bytes);
        left = left > 0 ? left : 0;
        at_ms = then_ms;
    }
    return left;
}

void
kvp_tier_core_gauges(const kvp_tier_core_t *core, kvp_tier_stats_t *stats)
{
    stats->records += core->index.n;
    stats->live_bytes += core->live_bytes;
    stats->size_bytes += core->conf.geo.pages * core->conf.geo.page_bytes;
    stats->free_pages += kvp_tier_free_pages(core);
    stats->index_bytes += core->index.bytes + core->conf.geo.pages * sizeof *core->slots;
}
