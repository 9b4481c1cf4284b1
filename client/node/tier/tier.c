/* SPDX-License-Identifier: Apache-2.0
 * See tier.h: what the control thread calls.
 */
#include "client/node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- what is handed over */
void
kvp_tier_wake(int fd)
{
    uint64_t one = 1;

    (void)!write(fd, &one, sizeof one); /* full: it is readable anyway */
}

kvp_err_t
kvp_tier_submit(kvp_tier_t *tier, kvp_tier_op_t *op)
{
    bool is_taken;

    op->is_over = false;
    op->err = KVP_OK;
    pthread_mutex_lock(&tier->lock);
    is_taken = op->kind != KVP_TIER_WRITE || tier->write_bytes == 0 ||
               tier->write_bytes + op->meta.len <= KVP_TIER_WRITES_BYTES;
    if (is_taken && op->kind == KVP_TIER_WRITE) tier->write_bytes += op->meta.len;
    if (is_taken) kvp_list_add_tail(&tier->submitted, &op->link);
    pthread_mutex_unlock(&tier->lock);
    if (is_taken) kvp_tier_wake(tier->own_fd);
    return is_taken ? KVP_OK : KVP_EAGAIN;
}

kvp_tier_op_t *
kvp_tier_take(kvp_tier_t *tier)
{
    kvp_tier_op_t *op = NULL;

    pthread_mutex_lock(&tier->lock);
    if (!kvp_list_is_empty(&tier->done)) {
        op = kvp_list_first(&tier->done, kvp_tier_op_t, link);
        kvp_list_del(&op->link);
        if (op->kind == KVP_TIER_WRITE) tier->write_bytes -= kvp_min_u64(tier->write_bytes, op->meta.len);
    }
    pthread_mutex_unlock(&tier->lock);
    return op;
}

bool
kvp_tier_is_kept(kvp_tier_t *tier, const kvp_tier_op_t *op)
{
    return op->losses == atomic_load(&tier->devices[op->device].losses);
}

/* ---- open and close */
static bool
is_in_place(const kvp_tier_t *tier, uint32_t i)
{
    return tier->devices[i].has_super && tier->devices[i].super.device == i;
}

/* Digests are mapped to devices by number, so each is taken where its superblock says, in whatever order they were named. Those that are new
 * have the places that are left. */
static void
place_devices(kvp_tier_t *tier)
{
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = &tier->devices[i];

        while (dev->has_super && !is_in_place(tier, dev->super.device)) {
            kvp_tier_device_file_t *place = &tier->devices[dev->super.device], other = *place;

            *place = *dev;
            *dev = other;
        }
    }
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = &tier->devices[i];

        if (dev->has_super && !is_in_place(tier, i)) {
            kvp_log_warn("tier", "another device has the number %u of this one: what was there is given up dir=%s",
                         dev->super.device, dev->dir);
            dev->has_super = false;
        }
        dev->super.device = i;
    }
}

static kvp_err_t
open_all(kvp_tier_t *tier, const kvp_tier_conf_t *conf)
{
    kvp_err_t err = tier->own_fd < 0 ? KVP_SYS : kvp_tier_engine_open(&tier->engine);

    for (uint32_t i = 0; i < conf->devices_n && err == KVP_OK; i++) {
        tier->devices[i].engine = &tier->engine;
        err = kvp_tier_device_open(&tier->devices[i], &conf->devices[i], conf->name, conf->devices_n);
    }
    if (err == KVP_OK) place_devices(tier);
    if (err == KVP_OK) err = kvp_thread_start(&tier->thread, "kvp-tier", kvp_tier_main, tier);
    tier->has_thread = err == KVP_OK;
    return err;
}

kvp_err_t
kvp_tier_open(const kvp_tier_conf_t *conf, kvp_tier_t **tier_out)
{
    kvp_tier_t *tier = calloc(1, sizeof *tier);
    kvp_err_t err;

    if (tier == NULL) return KVP_NOMEM;
    tier->devices_n = conf->devices_n;
    tier->budget_bytes = conf->write_budget_bytes;
    tier->tokens = (double)conf->write_budget_bytes;
    tier->tokens_at_ns = kvp_now_ns();
    tier->wake_fd = conf->wake_fd;
    tier->own_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    tier->engine.event_fd = -1;
    kvp_tier_room_init(&tier->room);
    for (uint32_t i = 0; i < KVP_TIER_DEVICES_MAX; i++)
        tier->devices[i].fd = -1;
    pthread_mutex_init(&tier->lock, NULL);
    pthread_mutex_init(&tier->core_lock, NULL);
    pthread_cond_init(&tier->quiesced, NULL);
    kvp_list_t *lists[] = {&tier->submitted, &tier->done,  &tier->reads,   &tier->todo,
                           &tier->begun,     &tier->ended, &tier->readings};
    for (size_t i = 0; i < KVP_ARRAY_LEN(lists); i++)
        kvp_list_init(lists[i]);
    err = conf->devices_n == 0 || conf->devices_n > KVP_TIER_DEVICES_MAX ? KVP_INVALID : open_all(tier, conf);
    if (err != KVP_OK) {
        kvp_tier_close(tier);
        return err;
    }
    *tier_out = tier;
    return KVP_OK;
}

void
kvp_tier_use(kvp_tier_t *tier, const uint8_t pool_id[16], uint8_t uuid_out[16])
{
    pthread_mutex_lock(&tier->lock);
    if (!tier->has_pool || memcmp(tier->pool_id, pool_id, 16) != 0) {
        bool is_known = false;

        kvp_random_bytes(tier->uuid, sizeof tier->uuid);
        for (uint32_t i = 0; i < tier->devices_n && !is_known && !tier->has_pool; i++) {
            is_known = tier->devices[i].has_super && memcmp(tier->devices[i].super.pool_id, pool_id, 16) == 0;
            if (is_known) memcpy(tier->uuid, tier->devices[i].super.uuid, 16);
        }
        memcpy(tier->pool_id, pool_id, 16);
        tier->has_pool = tier->is_pool_new = true;
    }
    memcpy(uuid_out, tier->uuid, 16);
    pthread_mutex_unlock(&tier->lock);
    kvp_tier_wake(tier->own_fd);
}

bool
kvp_tier_is_ready(kvp_tier_t *tier)
{
    return atomic_load(&tier->is_ready);
}

void
kvp_tier_stop(kvp_tier_t *tier)
{
    if (!tier->has_thread) return;
    pthread_mutex_lock(&tier->lock);
    tier->is_stopping = true;
    pthread_mutex_unlock(&tier->lock);
    kvp_tier_wake(tier->own_fd);
    pthread_join(tier->thread, NULL);
    tier->has_thread = false;
}

void
kvp_tier_close(kvp_tier_t *tier)
{
    if (tier == NULL) return;
    kvp_tier_stop(tier);
    for (uint32_t i = 0; i < tier->devices_n && i < KVP_TIER_DEVICES_MAX; i++)
        kvp_tier_device_close(&tier->devices[i]);
    kvp_tier_engine_close(&tier->engine);
    kvp_tier_room_fini(&tier->room);
    if (tier->own_fd >= 0) close(tier->own_fd);
    pthread_mutex_destroy(&tier->lock);
    pthread_mutex_destroy(&tier->core_lock);
    pthread_cond_destroy(&tier->quiesced);
    free(tier);
}

void
kvp_tier_quiesce(kvp_tier_t *tier)
{
    uint64_t mine;

    if (!tier->has_thread) return;
    pthread_mutex_lock(&tier->lock);
    mine = ++tier->quiesces_asked;
    kvp_tier_wake(tier->own_fd);
    while (tier->quiesces_done < mine)
        pthread_cond_wait(&tier->quiesced, &tier->lock);
    pthread_mutex_unlock(&tier->lock);
}

/* ---- questions */
#define CURSOR_SHIFT 56

uint32_t
kvp_tier_list(kvp_tier_t *tier, uint64_t *cursor, kvp_wire_tiered_t *recs, uint32_t max)
{
    uint64_t at = *cursor & ((1ull << CURSOR_SHIFT) - 1), i = *cursor >> CURSOR_SHIFT;
    uint32_t n = 0;

    pthread_mutex_lock(&tier->core_lock);
    for (; i < tier->devices_n && n < max && atomic_load(&tier->is_ready); i++, at = 0) {
        const kvp_tier_core_t *core = tier->devices[i].core;
        const kvp_tier_entry_t *entry = NULL;

        while (core != NULL && n < max && (entry = kvp_tier_index_next(kvp_tier_core_index(core), &at)) != NULL)
            recs[n++] = (kvp_wire_tiered_t){.digest = entry->digest, .version = entry->version};
        if (n == max) break;
    }
    pthread_mutex_unlock(&tier->core_lock);
    *cursor = i << CURSOR_SHIFT | at;
    return n;
}

bool
kvp_tier_propose(kvp_tier_t *tier, kvp_tier_proposal_t *proposal_out)
{
    bool is_there = false;

    pthread_mutex_lock(&tier->core_lock);
    for (uint32_t n = 0; n < tier->devices_n && !is_there && atomic_load(&tier->is_ready); n++) {
        uint32_t i = (tier->asked + 1 + n) % tier->devices_n;

        is_there = kvp_tier_is_to_be_told(&tier->devices[i]);
        if (is_there)
            kvp_tier_core_lost(tier->devices[i].core, proposal_out);
        else
            is_there = tier->devices[i].core != NULL && !tier->devices[i].is_failing &&
                       kvp_tier_core_propose(tier->devices[i].core, proposal_out);
        if (is_there) tier->asked = i;
        if (is_there) tier->was_lost_asked = tier->devices[i].is_failing;
    }
    pthread_mutex_unlock(&tier->core_lock);
    return is_there;
}

void
kvp_tier_answer(kvp_tier_t *tier, const uint8_t *keep, uint32_t n)
{
    pthread_mutex_lock(&tier->core_lock);
    if (atomic_load(&tier->is_ready) && tier->was_lost_asked && keep != NULL &&
        kvp_tier_is_to_be_told(&tier->devices[tier->asked]))
        kvp_tier_core_forget(tier->devices[tier->asked].core, n);
    else if (atomic_load(&tier->is_ready) && !tier->was_lost_asked && tier->devices[tier->asked].core != NULL)
        kvp_tier_core_answer(tier->devices[tier->asked].core, keep, n);
    pthread_mutex_unlock(&tier->core_lock);
    kvp_tier_wake(tier->own_fd);
}

void
kvp_tier_stats(kvp_tier_t *tier, kvp_tier_stats_t *stats_out)
{
    pthread_mutex_lock(&tier->core_lock);
    *stats_out = tier->stats;
    stats_out->io_errors = tier->engine.errors;
    stats_out->stalls = tier->engine.stalls;
    for (uint32_t i = 0; i < tier->devices_n && atomic_load(&tier->is_ready); i++) {
        const kvp_tier_device_file_t *dev = &tier->devices[i];

        if (dev->core != NULL && !dev->is_failing)
            kvp_tier_core_gauges(dev->core, stats_out);
        else if (stats_out->devices_failed++ == 0)
            memcpy(stats_out->failed_dir, dev->dir, sizeof dev->dir);
    }
    pthread_mutex_unlock(&tier->core_lock);
}
