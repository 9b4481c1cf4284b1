/* SPDX-License-Identifier: Apache-2.0
 * The calls that a node's control thread makes to its SSD tier; see tier.h. */
#include "node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- exchange with the tier's thread */
void
kvp_tier_wake(int fd)
{
    uint64_t one = 1;

    (void)!write(fd, &one, sizeof one); /* fails only if the eventfd's counter is full: it is readable then, too */
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
    return op->losses == atomic_load(&tier->devices[op->device]->losses);
}

uint32_t
kvp_tier_device_of(const kvp_tier_t *tier, kvp_digest_t digest)
{
    uint32_t number = tier->owners[kvp_tier_slot_of(digest)];

    return number == KVP_TIER_DEVICES_MAX ? 0 : number; /* if all devices are left out, any device number will do */
}

/* ---- open and close */
static kvp_err_t
open_all(kvp_tier_t *tier, const kvp_tier_conf_t *conf)
{
    kvp_err_t err = tier->own_fd < 0 ? KVP_SYS : KVP_OK;

    for (; tier->devices_n < conf->devices_n; tier->devices_n++) {
        tier->devices[tier->devices_n] = kvp_tier_device_make(&conf->devices[tier->devices_n], conf->is_apart);
        if (tier->devices[tier->devices_n] == NULL) return KVP_NOMEM;
    }
    if (err != KVP_OK) return err;
    tier->run = KVP_TIER_RUNNING;
    err = kvp_thread_start(&tier->thread, "kvp-tier", kvp_tier_main, tier);
    if (err != KVP_OK) {
        tier->run = KVP_TIER_STOPPED;
        return err;
    }
    pthread_mutex_lock(&tier->lock);
    while (tier->opened == KVP_EAGAIN)
        pthread_cond_wait(&tier->quiesced, &tier->lock);
    err = tier->opened;
    pthread_mutex_unlock(&tier->lock);
    if (err != KVP_OK && tier->why[0] != '\0') kvp_log_error("tier", "%s", tier->why);
    return err;
}

kvp_err_t
kvp_tier_open(const kvp_tier_conf_t *conf, kvp_tier_t **tier_out)
{
    kvp_tier_t *tier = calloc(1, sizeof *tier);
    kvp_err_t err;

    if (tier == NULL) return KVP_NOMEM;
    snprintf(tier->name, sizeof tier->name, "%s", conf->name);
    tier->budget = (kvp_tier_budget_t){
        .bytes = conf->write_budget_bytes, .tokens = (double)conf->write_budget_bytes, .tokens_at_ns = kvp_now_ns()};
    tier->opened = KVP_EAGAIN;
    tier->wake_fd = conf->wake_fd;
    tier->is_apart = conf->is_apart;
    tier->own_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    kvp_tier_room_init(&tier->room);
    pthread_mutex_init(&tier->lock, NULL);
    pthread_mutex_init(&tier->core_lock, NULL);
    pthread_cond_init(&tier->quiesced, NULL);
    kvp_list_t *lists[] = {&tier->submitted, &tier->done, &tier->ended};
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
    if (tier->pool == KVP_TIER_POOL_NONE || memcmp(tier->pool_id, pool_id, 16) != 0) {
        uint64_t newest = 0;

        kvp_random_bytes(tier->uuid, sizeof tier->uuid);
        for (uint32_t i = 0; i < tier->devices_n && tier->pool == KVP_TIER_POOL_NONE; i++) {
            const kvp_tier_device_file_t *dev = tier->devices[i];

            if (dev->state == KVP_TIER_DEVICE_LEFT_OUT || dev->super_state == KVP_TIER_SUPER_NONE ||
                memcmp(dev->super.pool_id, pool_id, 16) != 0)
                continue;
            if (dev->super.generation < newest) continue;
            newest = dev->super.generation;
            memcpy(tier->uuid, dev->super.uuid, 16);
        }
        memcpy(tier->pool_id, pool_id, 16);
        tier->pool = KVP_TIER_POOL_NEW;
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
    if (tier->run != KVP_TIER_RUNNING) return;
    pthread_mutex_lock(&tier->lock);
    tier->run = KVP_TIER_STOPPING;
    pthread_mutex_unlock(&tier->lock);
    kvp_tier_wake(tier->own_fd);
    pthread_join(tier->thread, NULL);
    tier->run = KVP_TIER_STOPPED;
}

void
kvp_tier_close(kvp_tier_t *tier)
{
    if (tier == NULL) return;
    kvp_tier_stop(tier);
    if (tier->own_fd >= 0) close(tier->own_fd);
    if (tier->left_out_n > 0) return; /* nothing is freed: the kernel may still write to memory of hanging devices */
    for (uint32_t i = 0; tier->opened == KVP_EAGAIN && i < tier->devices_n; i++)
        kvp_tier_device_close(tier->devices[i]); /* no thread of the tier ran, which would have closed the devices */
    kvp_tier_room_fini(&tier->room);
    pthread_mutex_destroy(&tier->lock);
    pthread_mutex_destroy(&tier->core_lock);
    pthread_cond_destroy(&tier->quiesced);
    free(tier);
}

void
kvp_tier_quiesce(kvp_tier_t *tier)
{
    uint64_t mine;

    if (tier->run != KVP_TIER_RUNNING) return;
    pthread_mutex_lock(&tier->lock);
    mine = ++tier->quiesces_asked;
    kvp_tier_wake(tier->own_fd);
    while (tier->quiesces_done < mine)
        pthread_cond_wait(&tier->quiesced, &tier->lock);
    pthread_mutex_unlock(&tier->lock);
}

/* ---- queries */
#define CURSOR_SHIFT 56

uint32_t
kvp_tier_list(kvp_tier_t *tier, uint64_t *cursor, kvp_wire_tiered_t *recs, uint32_t max)
{
    uint64_t at = *cursor & ((1ull << CURSOR_SHIFT) - 1), i = *cursor >> CURSOR_SHIFT;
    uint32_t n = 0;

    pthread_mutex_lock(&tier->core_lock);
    for (; i < tier->devices_n && n < max && atomic_load(&tier->is_ready); i++, at = 0) {
        const kvp_tier_core_t *core = tier->devices[i]->core;
        const kvp_tier_entry_t *entry = NULL;

        while (core != NULL && n < max && (entry = kvp_tier_index_next(kvp_tier_core_index(core), &at)) != NULL)
            if (kvp_tier_device_of(tier, entry->digest) == i)
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

        is_there = kvp_tier_is_to_be_told(tier->devices[i]);
        if (is_there)
            kvp_tier_core_lost(tier->devices[i]->core, proposal_out);
        else
            is_there =
                kvp_tier_is_working(tier->devices[i]) && kvp_tier_core_propose(tier->devices[i]->core, proposal_out);
        if (is_there) tier->asked = i;
        if (is_there) tier->was_lost_asked = tier->devices[i]->state == KVP_TIER_DEVICE_FAILING;
    }
    pthread_mutex_unlock(&tier->core_lock);
    return is_there;
}

void
kvp_tier_answer(kvp_tier_t *tier, const uint8_t *keep, uint32_t n)
{
    pthread_mutex_lock(&tier->core_lock);
    if (atomic_load(&tier->is_ready) && tier->was_lost_asked && keep != NULL &&
        kvp_tier_is_to_be_told(tier->devices[tier->asked]))
        kvp_tier_core_forget(tier->devices[tier->asked]->core, n);
    else if (atomic_load(&tier->is_ready) && !tier->was_lost_asked && tier->devices[tier->asked]->core != NULL)
        kvp_tier_core_answer(tier->devices[tier->asked]->core, keep, n);
    pthread_mutex_unlock(&tier->core_lock);
    kvp_tier_wake(tier->own_fd);
}

static void
add_stats(kvp_tier_stats_t *sum, const kvp_tier_stats_t *stats)
{
#define ADD(field, help) sum->field += stats->field;
    KVP_TIER_STATS(ADD)
#undef ADD
}

void
kvp_tier_stats(kvp_tier_t *tier, kvp_tier_stats_t *stats_out)
{
    bool is_ready;

    memset(stats_out, 0, sizeof *stats_out);
    pthread_mutex_lock(&tier->core_lock);
    is_ready = atomic_load(&tier->is_ready); /* during recovery only the tier's thread uses the devices */
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        const kvp_tier_device_file_t *dev = tier->devices[i];

        if (is_ready) add_stats(stats_out, &dev->stats);
        stats_out->io_errors += dev->engine.errors;
        stats_out->stalls += dev->engine.stalls;
        if (is_ready && kvp_tier_is_working(dev))
            kvp_tier_core_gauges(dev->core, stats_out);
        else if (is_ready && dev->state != KVP_TIER_DEVICE_LEFT_OUT && stats_out->devices_failed++ == 0)
            memcpy(stats_out->failed_dir, dev->dir, sizeof dev->dir);
        if (is_ready && kvp_tier_is_stalled(dev) && stats_out->devices_stalled++ == 0)
            memcpy(stats_out->stalled_dir, dev->dir, sizeof dev->dir);
    }
    for (uint32_t s = 0; s < KVP_TIER_SLOTS && is_ready; s++)
        if (tier->owners[s] < KVP_TIER_DEVICES_MAX && tier->devices[tier->owners[s]]->stalls[0].is_stalled)
            stats_out->away[s / 8] |= (uint8_t)(1u << s % 8);
    pthread_mutex_unlock(&tier->core_lock);
}
