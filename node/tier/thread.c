/* SPDX-License-Identifier: Apache-2.0
 * The thread of the SSD tier: requests of the control thread, and the rounds over all devices. */
#include "node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"

#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WRITE_DELAY_NS (20 * KVP_NS_PER_MS)
#define FINISH_MS 250 /* the time between checks for a hanging device while its last requests are finished */

static void
hand_back(kvp_tier_t *tier)
{
    if (kvp_list_is_empty(&tier->ended)) return;
    pthread_mutex_lock(&tier->lock);
    kvp_list_splice(&tier->ended, &tier->done);
    pthread_mutex_unlock(&tier->lock);
    kvp_tier_wake(tier->wake_fd);
}

/* ---- requests to the thread */
static void
close_ops(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_list_t *ops, bool with_drops)
{
    kvp_list_foreach_safe (l, next, ops) {
        kvp_tier_op_t *op = kvp_list_entry(l, kvp_tier_op_t, link);

        if (op->kind != KVP_TIER_DROP || with_drops) {
            op->err = KVP_CLOSED;
            op->is_over = true;
            kvp_list_del(&op->link);
            kvp_list_add_tail(op->kind == KVP_TIER_READ ? &tier->ended : &dev->begun, &op->link);
        }
    }
}

/* Ends the operations that have not begun, and cancels reads under way: afterwards none of them touches the callers'
 * memory. */
static void
let_go(kvp_tier_t *tier, kvp_tier_device_file_t *dev, bool with_drops)
{
    close_ops(tier, dev, &dev->reads, true);
    close_ops(tier, dev, &dev->todo, with_drops);
    kvp_tier_cancel_readings(tier, dev, KVP_CLOSED);
}

static bool
is_busy(const kvp_tier_device_file_t *dev)
{
    return dev->state == KVP_TIER_DEVICE_RETRYING || dev->stalls[0].is_probing || dev->stalls[1].is_probing ||
           (dev->core != NULL && !kvp_tier_core_is_idle(dev->core));
}

/* Leaves out a device that does not answer, with all memory to which the kernel may still write. */
static void
leave_out(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_list_foreach (l, &dev->begun) {
        kvp_tier_op_t *op = kvp_list_entry(l, kvp_tier_op_t, link);

        if (op->is_over) continue;
        op->is_over = true;
        op->err = kvp_tier_core_is_durable(dev->core, op->serial) ? KVP_OK : KVP_SYS;
    }
    kvp_log_warn("tier", "a request of the device does not end, and is not waited for dir=%s", dev->dir);
    dev->core = NULL;
    dev->state = KVP_TIER_DEVICE_LEFT_OUT;
    tier->left_out_n++;
}

static void
finish_device(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    if (dev->state == KVP_TIER_DEVICE_LEFT_OUT) return;
    if (dev->core != NULL && !kvp_tier_is_stalled(dev)) kvp_tier_core_flush(dev->core);
    while (dev->state != KVP_TIER_DEVICE_LEFT_OUT && is_busy(dev)) {
        kvp_tier_engine_wait(&dev->engine, FINISH_MS);
        if (is_busy(dev) && kvp_tier_engine_hangs(&dev->engine, kvp_now_ns())) leave_out(tier, dev);
    }
    if (kvp_tier_is_working(dev) && kvp_tier_core_has_failed(dev->core)) kvp_tier_switch_off(tier, dev);
    kvp_tier_end_ops(tier, dev);
}

static void
finish_all(kvp_tier_t *tier)
{
    for (uint32_t i = 0; i < tier->devices_n; i++)
        finish_device(tier, tier->devices[i]);
}

static uint64_t
wall_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / KVP_NS_PER_MS;
}

/* Starts the write budget, minus the part that the node had used before this start. */
static void
begin_budget(kvp_tier_t *tier)
{
    double each = (double)tier->budget.bytes / tier->devices_n, left = 0;

    for (uint32_t i = 0; i < tier->devices_n; i++) {
        if (tier->devices[i]->core == NULL) continue;
        kvp_tier_core_set_now(tier->devices[i]->core, wall_ms());
        left += kvp_tier_core_budget_left(tier->devices[i]->core, each);
    }
    if (left < tier->budget.tokens) tier->budget.tokens = left;
}

/* Destroys the cores of the previous pool, and recovers the cores of this pool. */
static void
begin_pool(kvp_tier_t *tier, const uint8_t pool_id[16], const uint8_t uuid[16])
{
    pthread_mutex_lock(&tier->core_lock); /* other threads read is_ready under this lock before they use the cores */
    atomic_store(&tier->is_ready, false);
    pthread_mutex_unlock(&tier->core_lock);
    finish_all(tier);
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = tier->devices[i];

        if (dev->state == KVP_TIER_DEVICE_LEFT_OUT) continue;
        kvp_tier_core_destroy(dev->core);
        dev->core = NULL;
        dev->state = KVP_TIER_DEVICE_USED;
        dev->orphans_n = 0;
    }
    kvp_tier_begin_devices(tier, pool_id, uuid);
    begin_budget(tier);
    pthread_mutex_lock(&tier->core_lock);
    atomic_store(&tier->is_ready, true);
    pthread_mutex_unlock(&tier->core_lock);
    kvp_tier_wake(tier->wake_fd);
}

/* Takes the requests of the control thread. Returns false if the tier's thread should end. */
static bool
take_asked(kvp_tier_t *tier)
{
    uint8_t pool_id[16], uuid[16];
    bool is_stopping, is_pool_new;
    uint64_t quiesces;

    pthread_mutex_lock(&tier->lock);
    is_stopping = tier->run == KVP_TIER_STOPPING;
    kvp_list_foreach_safe (l, next, &tier->submitted) {
        kvp_tier_op_t *op = kvp_list_entry(l, kvp_tier_op_t, link);

        /* Before recovery the device of an operation is not known, and the operation waits. A stop, or for READ and
         * WRITE a quiesce, ends it below, at any device. */
        if (!atomic_load(&tier->is_ready) && !is_stopping && op->kind == KVP_TIER_DROP) continue;
        if (!atomic_load(&tier->is_ready) && !is_stopping && tier->quiesces_asked == tier->quiesces_done) continue;
        kvp_list_del(&op->link);
        op->device = kvp_tier_device_of(tier, op->meta.digest);
        kvp_list_add_tail(op->kind == KVP_TIER_READ ? &tier->devices[op->device]->reads
                                                    : &tier->devices[op->device]->todo,
                          &op->link);
    }
    is_pool_new = tier->pool == KVP_TIER_POOL_NEW;
    if (is_pool_new) tier->pool = KVP_TIER_POOL_TAKEN;
    quiesces = tier->quiesces_asked;
    memcpy(pool_id, tier->pool_id, 16);
    memcpy(uuid, tier->uuid, 16);
    pthread_mutex_unlock(&tier->lock);

    for (uint32_t i = 0; i < tier->devices_n && (quiesces != tier->quiesces_done || is_stopping); i++)
        let_go(tier, tier->devices[i], is_stopping);
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
/* Does the due work of one device. Returns the time until which the thread may sleep for the device. */
static uint64_t
step_device(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns)
{
    uint64_t budget = tier->budget.bytes == 0   ? UINT64_MAX
                      : tier->budget.tokens > 0 ? (uint64_t)tier->budget.tokens
                                                : 0;
    uint64_t until = kvp_tier_watch(tier, dev, now_ns);

    kvp_tier_look_after(tier, dev, now_ns);
    if (!kvp_tier_is_working(dev))
        return kvp_min_u64(until, dev->state == KVP_TIER_DEVICE_RETRYING || dev->retry_at_ns == 0 ? UINT64_MAX
                                                                                                  : dev->retry_at_ns);
    if (kvp_tier_is_stalled(dev)) return until;
    kvp_tier_core_set_now(dev->core, wall_ms());
    kvp_tier_core_step(dev->core, budget);
    if (dev->sweep != UINT64_MAX && kvp_tier_sweep_moved(tier, dev)) until = 0;
    if (!kvp_tier_core_is_waiting(dev->core)) {
        dev->waits_since_ns = 0;
        return until;
    }
    if (dev->waits_since_ns == 0) dev->waits_since_ns = now_ns;
    if (now_ns < dev->waits_since_ns + WRITE_DELAY_NS) return kvp_min_u64(until, dev->waits_since_ns + WRITE_DELAY_NS);
    kvp_tier_core_flush(dev->core);
    dev->waits_since_ns = 0;
    return kvp_min_u64(until, now_ns + WRITE_DELAY_NS);
}

static void
tell_proposal(kvp_tier_t *tier)
{
    bool is_there = false;

    for (uint32_t i = 0; i < tier->devices_n; i++)
        is_there |= kvp_tier_is_to_be_told(tier->devices[i]) ||
                    (tier->devices[i]->core != NULL && kvp_tier_core_has_proposal(tier->devices[i]->core));
    if (is_there && !tier->was_proposed) kvp_tier_wake(tier->wake_fd);
    tier->was_proposed = is_there;
}

/* Runs one round over all devices. Returns the time until which the thread may sleep, 0 = do not sleep. */
static uint64_t
run_round(kvp_tier_t *tier)
{
    uint64_t until = UINT64_MAX, now_ns = kvp_now_ns();
    bool has_more = false;

    pthread_mutex_lock(&tier->core_lock);
    kvp_tier_charge(tier, now_ns);
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = tier->devices[i];

        if (dev->state != KVP_TIER_DEVICE_LEFT_OUT) has_more |= kvp_tier_engine_poll(&dev->engine, KVP_TIER_STEPS) > 0;
        has_more |= kvp_tier_begin_reads(tier, dev);
        has_more |= kvp_tier_begin_ops(tier, dev);
        until = kvp_min_u64(until, step_device(tier, dev, now_ns));
        kvp_tier_end_ops(tier, dev);
    }
    tell_proposal(tier);
    pthread_mutex_unlock(&tier->core_lock);
    hand_back(tier);
    return has_more ? 0 : until;
}

static void
sleep_until(const kvp_tier_t *tier, uint64_t until_ns)
{
    struct pollfd fds[1 + KVP_TIER_DEVICES_MAX] = {{.fd = tier->own_fd, .events = POLLIN}};
    uint64_t now_ns = kvp_now_ns(), count;
    int timeout_ms = until_ns == UINT64_MAX ? -1
                     : until_ns <= now_ns   ? 0
                                            : (int)((until_ns - now_ns) / KVP_NS_PER_MS + 1);

    for (uint32_t i = 0; i < tier->devices_n; i++)
        fds[1 + i] = (struct pollfd){
            .fd = tier->devices[i]->state == KVP_TIER_DEVICE_LEFT_OUT ? -1 : tier->devices[i]->engine.event_fd,
            .events = POLLIN};
    (void)poll(fds, 1 + tier->devices_n, timeout_ms);
    (void)!read(tier->own_fd, &count, sizeof count); /* the cause of the wake is handled in the next round */
}

static void
tell_opened(kvp_tier_t *tier, kvp_err_t err)
{
    pthread_mutex_lock(&tier->lock);
    tier->opened = err;
    pthread_cond_broadcast(&tier->quiesced);
    pthread_mutex_unlock(&tier->lock);
}

void *
kvp_tier_main(void *arg)
{
    kvp_tier_t *tier = arg;
    kvp_err_t err;

    if (tier->is_apart) kvp_tier_unshare((const int[]){tier->own_fd, tier->wake_fd}, 2);
    err = kvp_tier_open_devices(tier);
    tell_opened(tier, err);
    while (err == KVP_OK && take_asked(tier)) {
        uint64_t until = atomic_load(&tier->is_ready) ? run_round(tier) : UINT64_MAX;

        hand_back(tier);
        if (until != 0) sleep_until(tier, until);
    }
    finish_all(tier);
    hand_back(tier);
    for (uint32_t i = 0; i < tier->devices_n; i++)
        if (tier->devices[i]->state != KVP_TIER_DEVICE_LEFT_OUT) kvp_tier_device_close(tier->devices[i]);
    return NULL;
}
