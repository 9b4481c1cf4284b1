/* SPDX-License-Identifier: Apache-2.0
 * The tier's thread: what it is asked to do, and its rounds.
 */
#include "client/node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"

#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WRITE_DELAY_NS (20 * KVP_NS_PER_MS)

static void
hand_back(kvp_tier_t *tier)
{
    if (kvp_list_is_empty(&tier->ended)) return;
    pthread_mutex_lock(&tier->lock);
    kvp_list_splice(&tier->ended, &tier->done);
    pthread_mutex_unlock(&tier->lock);
    kvp_tier_wake(tier->wake_fd);
}

/* ---- asked of the thread */
static void
close_ops(kvp_tier_t *tier, kvp_list_t *ops, bool with_drops)
{
    kvp_list_foreach_safe (l, next, ops) {
        kvp_tier_op_t *op = kvp_list_entry(l, kvp_tier_op_t, link);

        if (op->kind != KVP_TIER_DROP || with_drops) {
            op->err = KVP_CLOSED;
            op->is_over = true;
            kvp_list_del(&op->link);
            kvp_list_add_tail(op->kind == KVP_TIER_READ ? &tier->ended : &tier->begun, &op->link);
        }
    }
}

/* Nothing that is not begun touches the callers' memory, and reads that are under way do not any more. */
static void
let_go(kvp_tier_t *tier, bool with_drops)
{
    close_ops(tier, &tier->reads, true);
    close_ops(tier, &tier->todo, with_drops);
    kvp_list_foreach (l, &tier->readings) {
        kvp_tier_reading_t *r = kvp_list_entry(l, kvp_tier_reading_t, link);

        if (r->op == NULL) continue;
        kvp_list_init(&r->op->link);
        kvp_tier_end_op(tier, r->op, KVP_CLOSED);
        r->op = NULL;
        r->read.is_cancelled = true;
    }
}

static void
finish_all(kvp_tier_t *tier)
{
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = &tier->devices[i];

        if (dev->core != NULL) kvp_tier_core_flush(dev->core);
        while (dev->is_retrying || (dev->core != NULL && !kvp_tier_core_is_idle(dev->core)))
            kvp_tier_engine_wait(&tier->engine);
        if (dev->core != NULL && !dev->is_failing && kvp_tier_core_has_failed(dev->core))
            kvp_tier_switch_off(tier, dev);
    }
    kvp_tier_end_ops(tier);
}

static void
begin_device(kvp_tier_t *tier, kvp_tier_device_file_t *dev, const uint8_t pool_id[16], const uint8_t uuid[16])
{
    bool is_known =
        dev->has_super && memcmp(dev->super.pool_id, pool_id, 16) == 0 && memcmp(dev->super.uuid, uuid, 16) == 0;
    kvp_tier_core_t *core = NULL;
    kvp_err_t err;

    if (dev->has_super && !is_known)
        kvp_log_warn("tier", "what was there is another pool's, or another tier's: it is given up dir=%s", dev->dir);
    err = is_known ? KVP_OK : kvp_tier_device_format(dev, pool_id, uuid);
    if (err == KVP_OK) core = kvp_tier_create_core(tier, dev);
    if (core != NULL && is_known) err = kvp_tier_core_recover(core);
    if (err == KVP_OK && core != NULL) {
        kvp_log_info("tier", "%lu records found dir=%s", (unsigned long)kvp_tier_core_index(core)->n, dev->dir);
    } else {
        kvp_log_error("tier", "the device cannot be read: it is switched off dir=%s", dev->dir);
        kvp_tier_core_destroy(core);
        core = NULL;
        dev->retry_at_ns = kvp_now_ns() + KVP_TIER_RETRY_NS;
    }
    dev->core = core;
    dev->charged = 0;
    dev->waits_since_ns = 0;
}

static uint64_t
wall_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / KVP_NS_PER_MS;
}

/* What an earlier start has written of it is not there again. */
static void
begin_budget(kvp_tier_t *tier)
{
    double each = (double)tier->budget_bytes / tier->devices_n, left = 0;

    for (uint32_t i = 0; i < tier->devices_n; i++) {
        if (tier->devices[i].core == NULL) continue;
        kvp_tier_core_set_now(tier->devices[i].core, wall_ms());
        left += kvp_tier_core_budget_left(tier->devices[i].core, each);
    }
    if (left < tier->tokens) tier->tokens = left;
}

/* The cores of another pool go, those of this one are looked for. */
static void
begin_pool(kvp_tier_t *tier, const uint8_t pool_id[16], const uint8_t uuid[16])
{
    pthread_mutex_lock(&tier->core_lock); /* those who look at the cores look at is_ready under it */
    atomic_store(&tier->is_ready, false);
    pthread_mutex_unlock(&tier->core_lock);
    finish_all(tier);
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_core_destroy(tier->devices[i].core);
        tier->devices[i].core = NULL;
        tier->devices[i].is_failing = false;
        begin_device(tier, &tier->devices[i], pool_id, uuid);
    }
    begin_budget(tier);
    pthread_mutex_lock(&tier->core_lock);
    atomic_store(&tier->is_ready, true);
    pthread_mutex_unlock(&tier->core_lock);
    kvp_tier_wake(tier->wake_fd);
}

/* False: it is to end. */
static bool
take_asked(kvp_tier_t *tier)
{
    uint8_t pool_id[16], uuid[16];
    bool is_stopping, is_pool_new;
    uint64_t quiesces;

    pthread_mutex_lock(&tier->lock);
    while (!kvp_list_is_empty(&tier->submitted)) {
        kvp_tier_op_t *op = kvp_list_first(&tier->submitted, kvp_tier_op_t, link);

        kvp_list_del(&op->link);
        kvp_list_add_tail(op->kind == KVP_TIER_READ ? &tier->reads : &tier->todo, &op->link);
    }
    is_stopping = tier->is_stopping;
    is_pool_new = tier->is_pool_new;
    tier->is_pool_new = false;
    quiesces = tier->quiesces_asked;
    memcpy(pool_id, tier->pool_id, 16);
    memcpy(uuid, tier->uuid, 16);
    pthread_mutex_unlock(&tier->lock);

    if (quiesces != tier->quiesces_done || is_stopping) let_go(tier, is_stopping);
    if (quiesces != tier->quiesces_done) {
        pthread_mutex_lock(&tier->lock);
        tier->quiesces_done = quiesces;
        pthread_cond_broadcast(&tier->quiesced);
        pthread_mutex_unlock(&tier->lock);
    }
    if (is_pool_new && !is_stopping) begin_pool(tier, pool_id, uuid);
    return !is_stopping;
}

/* ---- the thread */
/* Until when the thread may sleep for this device. */
static uint64_t
step_device(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns)
{
    uint64_t budget = tier->budget_bytes == 0 ? UINT64_MAX : tier->tokens > 0 ? (uint64_t)tier->tokens : 0;

    kvp_tier_look_after(tier, dev, now_ns);
    if (dev->core == NULL || dev->is_failing)
        return dev->is_retrying || dev->retry_at_ns == 0 ? UINT64_MAX : dev->retry_at_ns;
    kvp_tier_core_set_now(dev->core, wall_ms());
    kvp_tier_core_step(dev->core, budget);
    if (!kvp_tier_core_is_waiting(dev->core)) {
        dev->waits_since_ns = 0;
        return UINT64_MAX;
    }
    if (dev->waits_since_ns == 0) dev->waits_since_ns = now_ns;
    if (now_ns < dev->waits_since_ns + WRITE_DELAY_NS) return dev->waits_since_ns + WRITE_DELAY_NS;
    kvp_tier_core_flush(dev->core);
    dev->waits_since_ns = 0;
    return UINT64_MAX;
}

static void
tell_proposal(kvp_tier_t *tier)
{
    bool is_there = false;

    for (uint32_t i = 0; i < tier->devices_n; i++)
        is_there |= kvp_tier_is_to_be_told(&tier->devices[i]) ||
                    (tier->devices[i].core != NULL && kvp_tier_core_has_proposal(tier->devices[i].core));
    if (is_there && !tier->was_proposed) kvp_tier_wake(tier->wake_fd);
    tier->was_proposed = is_there;
}

/* One round; until when it may sleep, 0 = it may not. */
static uint64_t
work(kvp_tier_t *tier)
{
    uint64_t until = UINT64_MAX, now_ns = kvp_now_ns();
    bool has_more;

    pthread_mutex_lock(&tier->core_lock);
    kvp_tier_charge(tier, now_ns);
    has_more = kvp_tier_engine_poll(&tier->engine, KVP_TIER_STEPS) > 0;
    has_more |= kvp_tier_begin_reads(tier);
    has_more |= kvp_tier_begin_ops(tier);
    for (uint32_t i = 0; i < tier->devices_n; i++)
        until = kvp_min_u64(until, step_device(tier, &tier->devices[i], now_ns));
    kvp_tier_end_ops(tier);
    tell_proposal(tier);
    pthread_mutex_unlock(&tier->core_lock);
    hand_back(tier);
    return has_more ? 0 : until;
}

static void
sleep_until(const kvp_tier_t *tier, uint64_t until_ns)
{
    struct pollfd fds[] = {{.fd = tier->own_fd, .events = POLLIN}, {.fd = tier->engine.event_fd, .events = POLLIN}};
    uint64_t now_ns = kvp_now_ns(), count;
    int timeout_ms = until_ns == UINT64_MAX ? -1
                     : until_ns <= now_ns   ? 0
                                            : (int)((until_ns - now_ns) / KVP_NS_PER_MS + 1);

    (void)poll(fds, KVP_ARRAY_LEN(fds), timeout_ms);
    (void)!read(tier->own_fd, &count, sizeof count); /* what it was woken for is looked at next */
}

void *
kvp_tier_main(void *arg)
{
    kvp_tier_t *tier = arg;

    while (take_asked(tier)) {
        uint64_t until = atomic_load(&tier->is_ready) ? work(tier) : UINT64_MAX;

        hand_back(tier);
        if (until != 0) sleep_until(tier, until);
    }
    finish_all(tier);
    hand_back(tier);
    return NULL;
}
