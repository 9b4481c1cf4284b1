/* SPDX-License-Identifier: Apache-2.0
 * See tier.h. The tier's thread and its queues.
 *
 * Design notes.
 * - Two locks, never held together: `lock` guards what the control thread hands over and takes back, for moments; `core_lock` guards devices, cores
 *   and figures, and is given back after each few steps. Nothing waits for a device under either. While records are looked for (not
 *   is_ready) the thread has the cores for itself.
 * - WRITE and DROP are begun in their order and answered in it, over all devices: `todo`, then `begun`, whose first is done when what it has
 *   appended is on its device.
 * - A device whose writes fail, or some reads one after another, is switched off: its core goes when nothing is under way. It is
 *   tried again, with a new epoch: so nothing that was dropped meanwhile is back.
 */
#include "client/node/tier/device.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define READS_MAX 48u
#define READS_BYTES (64ull << 20) /* under way; but one always is */
#define WRITE_DELAY_NS (20 * KVP_NS_PER_MS)
#define RETRY_NS (30 * KVP_NS_PER_S)
#define BAD_READS_MAX 3u
#define DAY_S 86400u
#define STEPS 4u /* under the lock of the cores in one go */

typedef struct {
    kvp_tier_read_t read;
    kvp_list_t link;
    kvp_tier_t *tier;
    kvp_tier_op_t *op; /* NULL: it is done already, and nobody's */
} reading_t;

struct kvp_tier {
    kvp_tier_engine_t engine;
    kvp_tier_device_file_t devices[KVP_TIER_DEVICES_MAX];
    uint32_t devices_n;
    uint64_t budget_bytes;
    int wake_fd; /* the caller's */
    int own_fd; /* wakes the thread */
    pthread_t thread;
    bool has_thread;
    _Atomic bool is_ready;

    pthread_mutex_t lock;
    pthread_cond_t quiesced;
    kvp_list_t submitted, done; /* guarded by lock, as all that follows */
    uint64_t write_bytes;
    uint64_t quiesces_asked, quiesces_done;
    bool is_stopping;
    bool has_pool, is_pool_new;
    uint8_t pool_id[16], uuid[16];

    pthread_mutex_t core_lock;
    kvp_tier_stats_t stats; /* guarded by core_lock, as the devices */
    uint32_t asked; /* the device whose proposal is under way */

    /* The thread's. */
    kvp_list_t reads, todo, begun, ended;
    kvp_list_t readings;
    uint32_t readings_n;
    uint64_t readings_bytes;
    double tokens; /* bytes that the budget allows now */
    uint64_t tokens_at_ns;
    bool was_proposed; /* the caller was woken for it */
};

/* ---- what is handed over */
static void
wake(int fd)
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
    if (is_taken) wake(tier->own_fd);
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

static void
end_op(kvp_tier_t *tier, kvp_tier_op_t *op, kvp_err_t err)
{
    op->err = err;
    kvp_list_del(&op->link);
    kvp_list_add_tail(&tier->ended, &op->link);
}

static void
hand_back(kvp_tier_t *tier)
{
    if (kvp_list_is_empty(&tier->ended)) return;
    pthread_mutex_lock(&tier->lock);
    kvp_list_splice(&tier->ended, &tier->done);
    pthread_mutex_unlock(&tier->lock);
    wake(tier->wake_fd);
}

/* ---- devices */
static kvp_tier_device_file_t *
device_of(kvp_tier_t *tier, kvp_digest_t digest)
{
    return &tier->devices[(digest.lo ^ digest.hi >> 7) % tier->devices_n];
}

static kvp_tier_core_t *
create_core(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_tier_core_conf_t conf = {.geo = dev->geo, .epoch = dev->super.epoch, .secret = kvp_random_u64()};

    conf.ops = &kvp_tier_device_ops;
    conf.disk = dev;
    conf.stats = &tier->stats;
    return kvp_tier_core_create(&conf);
}

static void
switch_off(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    uint32_t number = (uint32_t)(dev - tier->devices);

    kvp_log_error("tier", "reads or writes fail: the device is switched off, and what is there is given up dir=%s",
                  dev->dir);
    dev->is_failing = true;
    kvp_list_foreach (l, &tier->begun) {
        kvp_tier_op_t *op = kvp_list_entry(l, kvp_tier_op_t, link);

        if (op->device != number || op->is_over) continue;
        op->is_over = true;
        op->err = kvp_tier_core_is_durable(dev->core, op->serial) ? KVP_OK : KVP_SYS;
    }
}

static void
on_retry(kvp_tier_io_t *io)
{
    kvp_tier_device_file_t *dev = kvp_container_of(io, kvp_tier_device_file_t, retry);

    free(io->buf);
    io->buf = NULL;
    dev->is_retrying = false;
    dev->has_super = io->err == KVP_OK;
    dev->retry_at_ns = io->err == KVP_OK ? 0 : kvp_now_ns() + RETRY_NS;
}

static void
retry(kvp_tier_device_file_t *dev)
{
    uint8_t *blocks = kvp_tier_alloc_blocks(2);

    dev->retry_at_ns = kvp_now_ns() + RETRY_NS;
    if (blocks == NULL) return;
    kvp_tier_device_blocks(dev, blocks);
    dev->retry = (kvp_tier_io_t){
        .done = on_retry, .buf = blocks, .len = 2 * KVP_TIER_BLOCK, .is_write = true, .is_synced = true};
    dev->is_retrying = true;
    dev->has_super = false;
    kvp_tier_device_ops.submit(dev, &dev->retry);
}

static void
look_after(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns)
{
    if (dev->core != NULL && !dev->is_failing &&
        (kvp_tier_core_has_failed(dev->core) || dev->bad_reads >= BAD_READS_MAX))
        switch_off(tier, dev);
    if (dev->is_failing && kvp_tier_core_is_idle(dev->core)) {
        kvp_tier_core_destroy(dev->core);
        dev->core = NULL;
        dev->is_failing = false;
        dev->bad_reads = 0;
        dev->waits_since_ns = 0;
        dev->charged = 0;
        dev->retry_at_ns = now_ns + RETRY_NS;
    }
    if (dev->core != NULL || dev->is_retrying) return;
    if (dev->retry_at_ns == 0 && dev->has_super) {
        dev->core = create_core(tier, dev);
        if (dev->core != NULL) kvp_log_info("tier", "the device works again, and is empty dir=%s", dev->dir);
    } else if (dev->retry_at_ns != 0 && now_ns >= dev->retry_at_ns) {
        retry(dev);
    }
}

/* ---- the budget */
static void
charge(kvp_tier_t *tier, uint64_t now_ns)
{
    double a_ns = (double)tier->budget_bytes / DAY_S / (double)KVP_NS_PER_S;

    if (tier->budget_bytes == 0) return;
    tier->tokens += a_ns * (double)(now_ns - tier->tokens_at_ns);
    if (tier->tokens > (double)tier->budget_bytes) tier->tokens = (double)tier->budget_bytes;
    tier->tokens_at_ns = now_ns;
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = &tier->devices[i];

        if (dev->core == NULL) continue;
        tier->tokens -= (double)(kvp_tier_core_appended(dev->core) - dev->charged);
        dev->charged = kvp_tier_core_appended(dev->core);
    }
}

static bool
has_budget(const kvp_tier_t *tier, const kvp_tier_op_t *op)
{
    return tier->budget_bytes == 0 || tier->tokens >= (double)kvp_tier_rec_end(op->meta.key_len, op->meta.len);
}

/* ---- WRITE and DROP */
static bool
ask_still(void *arg)
{
    kvp_tier_op_t *op = arg;

    return op->still == NULL || op->still(op);
}

static kvp_err_t
begin_write(kvp_tier_t *tier, kvp_tier_core_t *core, kvp_tier_op_t *op)
{
    kvp_err_t err;

    if (!has_budget(tier, op)) {
        op->serial = 0;
        tier->stats.refused_writes++;
        return KVP_LIMIT;
    }
    err = kvp_tier_core_write(core, &op->meta, op->src, ask_still, op, &op->serial);
    tier->stats.stale_writes += err == KVP_STALE;
    tier->stats.refused_writes += err == KVP_NO_SPACE;
    return err;
}

/* False: not now. */
static bool
begin_op(kvp_tier_t *tier, kvp_tier_op_t *op)
{
    kvp_tier_device_file_t *dev = device_of(tier, op->meta.digest);
    kvp_err_t err = KVP_SYS;

    op->device = (uint32_t)(dev - tier->devices);
    if (dev->core != NULL && !dev->is_failing)
        err = op->kind == KVP_TIER_WRITE
                  ? begin_write(tier, dev->core, op)
                  : kvp_tier_core_drop(dev->core, op->meta.digest, op->meta.version, &op->serial);
    if (err == KVP_EAGAIN) return false;
    op->err = err == KVP_NO_SPACE && op->kind == KVP_TIER_DROP ? KVP_SYS : err;
    op->is_over = err != KVP_OK;
    kvp_list_del(&op->link);
    kvp_list_add_tail(&tier->begun, &op->link);
    charge(tier, kvp_now_ns());
    return true;
}

static bool
begin_ops(kvp_tier_t *tier)
{
    for (uint32_t n = 0; n < STEPS; n++) {
        if (kvp_list_is_empty(&tier->todo)) return false;
        if (!begin_op(tier, kvp_list_first(&tier->todo, kvp_tier_op_t, link))) return false;
    }
    return true;
}

static void
end_ops(kvp_tier_t *tier)
{
    while (!kvp_list_is_empty(&tier->begun)) {
        kvp_tier_op_t *op = kvp_list_first(&tier->begun, kvp_tier_op_t, link);

        if (!op->is_over && !kvp_tier_core_is_durable(tier->devices[op->device].core, op->serial)) return;
        end_op(tier, op, op->err);
    }
}

/* ---- READ */
static void
count_bytes(kvp_tier_t *tier)
{
    tier->readings_bytes = 0;
    kvp_list_foreach (l, &tier->readings)
        tier->readings_bytes += kvp_list_entry(l, reading_t, link)->read.io.len;
}

static void
on_read(kvp_tier_read_t *read)
{
    reading_t *r = kvp_container_of(read, reading_t, read);
    kvp_tier_t *tier = r->tier;
    kvp_tier_device_file_t *dev = device_of(tier, read->digest);

    dev->bad_reads = read->err == KVP_SYS ? dev->bad_reads + 1 : read->err == KVP_OK ? 0 : dev->bad_reads;
    if (r->op != NULL) end_op(tier, r->op, read->err);
    kvp_list_del(&r->link);
    tier->readings_n--;
    count_bytes(tier);
    free(r);
}

static void
begin_read(kvp_tier_t *tier, kvp_tier_op_t *op)
{
    kvp_tier_device_file_t *dev = device_of(tier, op->meta.digest);
    reading_t *r = dev->core == NULL || dev->is_failing ? NULL : calloc(1, sizeof *r);

    if (r == NULL) {
        end_op(tier, op, KVP_SYS);
        return;
    }
    kvp_list_del(&op->link);
    r->tier = tier;
    r->op = op;
    r->read.done = on_read;
    r->read.meta = &op->meta;
    r->read.dst = op->dst;
    r->read.cap = op->cap;
    r->read.digest = op->meta.digest;
    r->read.version = op->meta.version;
    kvp_list_add_tail(&tier->readings, &r->link);
    tier->readings_n++;
    kvp_tier_core_read(dev->core, &r->read); /* may free it */
}

static bool
begin_reads(kvp_tier_t *tier)
{
    for (uint32_t n = 0; n < STEPS; n++) {
        if (kvp_list_is_empty(&tier->reads) || tier->readings_n >= READS_MAX) return false;
        if (tier->readings_n > 0 && tier->readings_bytes >= READS_BYTES) return false;
        begin_read(tier, kvp_list_first(&tier->reads, kvp_tier_op_t, link));
        count_bytes(tier);
    }
    return true;
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
        reading_t *r = kvp_list_entry(l, reading_t, link);

        if (r->op == NULL) continue;
        kvp_list_init(&r->op->link);
        end_op(tier, r->op, KVP_CLOSED);
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
        if (dev->core != NULL && !dev->is_failing && kvp_tier_core_has_failed(dev->core)) switch_off(tier, dev);
    }
    end_ops(tier);
}

static void
begin_device(kvp_tier_t *tier, kvp_tier_device_file_t *dev, const uint8_t pool_id[16], const uint8_t uuid[16])
{
    bool is_known =
        dev->has_super && memcmp(dev->super.pool_id, pool_id, 16) == 0 && memcmp(dev->super.uuid, uuid, 16) == 0;
    kvp_tier_core_t *core = NULL;
    kvp_err_t err = is_known ? KVP_OK : kvp_tier_device_format(dev, pool_id, uuid);

    if (err == KVP_OK) core = create_core(tier, dev);
    if (core != NULL && is_known) err = kvp_tier_core_recover(core);
    if (err == KVP_OK && core != NULL) {
        kvp_log_info("tier", "%lu records found dir=%s", (unsigned long)kvp_tier_core_index(core)->n, dev->dir);
    } else {
        kvp_log_error("tier", "the device cannot be read: it is switched off dir=%s", dev->dir);
        kvp_tier_core_destroy(core);
        core = NULL;
        dev->retry_at_ns = kvp_now_ns() + RETRY_NS;
    }
    dev->core = core;
    dev->charged = 0;
    dev->waits_since_ns = 0;
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
    pthread_mutex_lock(&tier->core_lock);
    atomic_store(&tier->is_ready, true);
    pthread_mutex_unlock(&tier->core_lock);
    wake(tier->wake_fd);
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
static uint64_t
wall_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / KVP_NS_PER_MS;
}

/* Until when the thread may sleep for this device. */
static uint64_t
step_device(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns)
{
    uint64_t budget = tier->budget_bytes == 0 ? UINT64_MAX : tier->tokens > 0 ? (uint64_t)tier->tokens : 0;

    look_after(tier, dev, now_ns);
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
        is_there |= tier->devices[i].core != NULL && kvp_tier_core_has_proposal(tier->devices[i].core);
    if (is_there && !tier->was_proposed) wake(tier->wake_fd);
    tier->was_proposed = is_there;
}

/* One round; until when it may sleep, 0 = it may not. */
static uint64_t
work(kvp_tier_t *tier)
{
    uint64_t until = UINT64_MAX, now_ns = kvp_now_ns();
    bool has_more;

    pthread_mutex_lock(&tier->core_lock);
    charge(tier, now_ns);
    has_more = kvp_tier_engine_poll(&tier->engine, STEPS) > 0;
    has_more |= begin_reads(tier);
    has_more |= begin_ops(tier);
    for (uint32_t i = 0; i < tier->devices_n; i++)
        until = kvp_min_u64(until, step_device(tier, &tier->devices[i], now_ns));
    end_ops(tier);
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

static void *
tier_main(void *arg)
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

/* ---- open and close */
static kvp_err_t
open_all(kvp_tier_t *tier, const kvp_tier_conf_t *conf)
{
    kvp_err_t err = tier->own_fd < 0 ? KVP_SYS : kvp_tier_engine_open(&tier->engine);

    for (uint32_t i = 0; i < conf->devices_n && err == KVP_OK; i++) {
        tier->devices[i].engine = &tier->engine;
        err = kvp_tier_device_open(&tier->devices[i], &conf->devices[i], conf->name, i, conf->devices_n);
    }
    if (err == KVP_OK) err = kvp_thread_start(&tier->thread, "kvp-tier", tier_main, tier);
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
    wake(tier->own_fd);
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
    wake(tier->own_fd);
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
    wake(tier->own_fd);
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

        is_there = tier->devices[i].core != NULL && !tier->devices[i].is_failing &&
                   kvp_tier_core_propose(tier->devices[i].core, proposal_out);
        if (is_there) tier->asked = i;
    }
    pthread_mutex_unlock(&tier->core_lock);
    return is_there;
}

void
kvp_tier_answer(kvp_tier_t *tier, const uint8_t *keep, uint32_t n)
{
    pthread_mutex_lock(&tier->core_lock);
    if (atomic_load(&tier->is_ready) && tier->devices[tier->asked].core != NULL)
        kvp_tier_core_answer(tier->devices[tier->asked].core, keep, n);
    pthread_mutex_unlock(&tier->core_lock);
    wake(tier->own_fd);
}

void
kvp_tier_stats(kvp_tier_t *tier, kvp_tier_stats_t *stats_out)
{
    pthread_mutex_lock(&tier->core_lock);
    *stats_out = tier->stats;
    stats_out->io_errors = tier->engine.errors;
    for (uint32_t i = 0; i < tier->devices_n && atomic_load(&tier->is_ready); i++) {
        if (tier->devices[i].core == NULL || tier->devices[i].is_failing)
            stats_out->devices_failed++;
        else
            kvp_tier_core_gauges(tier->devices[i].core, stats_out);
    }
    pthread_mutex_unlock(&tier->core_lock);
}
