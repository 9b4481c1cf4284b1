/* SPDX-License-Identifier: Apache-2.0 */
#include "node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdlib.h>

#define READS_MAX 48u
#define READS_BYTES (64ull << 20) /* the most bytes of reads under way; a single larger read is allowed */
#define BAD_READS_MAX 3u
/* the time for the master to learn which objects are lost, before a failed device's core is destroyed */
#define TELL_NS (2 * KVP_NS_PER_S)
#define DAY_S 86400u
#define REFUSAL_TOLD_NS (3600 * KVP_NS_PER_S)

void
kvp_tier_end_op(kvp_tier_t *tier, kvp_tier_op_t *op, kvp_err_t err)
{
    op->err = err;
    kvp_list_del(&op->link);
    kvp_list_add_tail(&tier->ended, &op->link);
}

/* ---- devices */
kvp_tier_core_t *
kvp_tier_create_core(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_tier_core_conf_t conf = {.geo = dev->geo, .epoch = dev->super.epoch, .secret = kvp_random_u64()};

    conf.ops = &kvp_tier_device_ops;
    conf.disk = dev;
    conf.stats = &dev->stats;
    conf.room = &tier->room;
    return kvp_tier_core_create(&conf);
}

/* Logs the first fault of each kind of a device. */
static void
tell_faults(kvp_tier_device_file_t *dev)
{
    if (dev->engine.error != 0 && !dev->has_told_error) {
        dev->has_told_error = true;
        errno = dev->engine.error;
        kvp_log_error("tier", "a read or write fails: %m; further failures are only counted dir=%s", dev->dir);
    }
    if (dev->core != NULL && kvp_tier_core_has_damage(dev->core) && !dev->has_told_damage) {
        dev->has_told_damage = true;
        kvp_log_error("tier", "a damaged record was dropped; further ones are only counted dir=%s", dev->dir);
    }
}

void
kvp_tier_switch_off(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    (void)tier;
    atomic_fetch_add(&dev->losses, 1); /* losses rises before the device's objects may be proposed as lost */
    tell_faults(dev);
    kvp_log_error("tier", "reads or writes fail: the device is switched off, and its records are dropped dir=%s",
                  dev->dir);
    dev->state = KVP_TIER_DEVICE_FAILING;
    dev->failed_at_ns = kvp_now_ns();
    kvp_list_foreach (l, &dev->begun) {
        kvp_tier_op_t *op = kvp_list_entry(l, kvp_tier_op_t, link);

        if (op->is_over) continue;
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
    dev->state = KVP_TIER_DEVICE_USED;
    if (io->err == KVP_OK) dev->super_state = KVP_TIER_SUPER_FOUND;
    dev->retry_at_ns = io->err == KVP_OK ? 0 : kvp_now_ns() + KVP_TIER_RETRY_NS;
}

static void
retry_device(kvp_tier_device_file_t *dev)
{
    uint8_t *blocks = kvp_tier_alloc_blocks(2);

    dev->retry_at_ns = kvp_now_ns() + KVP_TIER_RETRY_NS;
    if (blocks == NULL) return;
    kvp_tier_device_blocks(dev, blocks);
    dev->retry = (kvp_tier_io_t){
        .done = on_retry, .buf = blocks, .len = 2 * KVP_TIER_BLOCK, .is_write = true, .is_synced = true};
    dev->state = KVP_TIER_DEVICE_RETRYING;
    dev->super_state = KVP_TIER_SUPER_NONE;
    kvp_tier_device_ops.submit(dev, &dev->retry);
}

void
kvp_tier_look_after(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns)
{
    tell_faults(dev);
    if (kvp_tier_is_working(dev) && (kvp_tier_core_has_failed(dev->core) || dev->bad_reads >= BAD_READS_MAX))
        kvp_tier_switch_off(tier, dev);
    if (dev->state == KVP_TIER_DEVICE_FAILING && kvp_tier_core_is_idle(dev->core) &&
        (!kvp_tier_is_to_be_told(dev) || now_ns > dev->failed_at_ns + TELL_NS)) {
        kvp_tier_core_destroy(dev->core);
        dev->core = NULL;
        dev->state = KVP_TIER_DEVICE_USED;
        dev->bad_reads = 0;
        dev->waits_since_ns = 0;
        dev->charged = 0;
        dev->retry_at_ns = now_ns + KVP_TIER_RETRY_NS;
    }
    if (dev->core != NULL || dev->state != KVP_TIER_DEVICE_USED) return;
    if (dev->retry_at_ns == 0 && dev->super_state != KVP_TIER_SUPER_NONE) {
        dev->core = kvp_tier_create_core(tier, dev);
        dev->engine.error = 0;
        dev->has_told_error = false;
        if (dev->core != NULL) kvp_log_info("tier", "the device works again, and is empty dir=%s", dev->dir);
    } else if (dev->retry_at_ns != 0 && now_ns >= dev->retry_at_ns) {
        retry_device(dev);
    }
}

/* ---- the budget */
void
kvp_tier_charge(kvp_tier_t *tier, uint64_t now_ns)
{
    kvp_tier_budget_t *b = &tier->budget;
    double a_ns = (double)b->bytes / DAY_S / (double)KVP_NS_PER_S;

    if (b->bytes == 0) return;
    b->tokens += a_ns * (double)(now_ns - b->tokens_at_ns);
    if (b->tokens > (double)b->bytes) b->tokens = (double)b->bytes;
    b->tokens_at_ns = now_ns;
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = tier->devices[i];

        if (dev->core == NULL) continue;
        b->tokens -= (double)(kvp_tier_core_appended(dev->core) - dev->charged);
        dev->charged = kvp_tier_core_appended(dev->core);
    }
}

static bool
has_budget(const kvp_tier_budget_t *b, const kvp_tier_op_t *op)
{
    return b->bytes == 0 || b->tokens >= (double)kvp_tier_rec_end(op->meta.key_len, op->meta.len);
}

/* Logs that the budget is used up, at most once an hour: the budget refills slowly, so writes are refused and
 * accepted in turns. */
static void
tell_refusal(kvp_tier_budget_t *b)
{
    uint64_t now_ns = kvp_now_ns();

    if (!b->is_refusing && (b->refusal_told_ns == 0 || now_ns - b->refusal_told_ns >= REFUSAL_TOLD_NS)) {
        kvp_log_warn("tier", "the write budget of the day is used up; further objects are only counted");
        b->refusal_told_ns = now_ns;
    }
    b->is_refusing = true;
}

/* ---- WRITE and DROP */
static bool
ask_still(void *arg)
{
    kvp_tier_op_t *op = arg;

    return op->still == NULL || op->still(op);
}

static kvp_err_t
begin_write(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_tier_op_t *op)
{
    kvp_err_t err;

    if (!has_budget(&tier->budget, op)) {
        op->serial = 0;
        dev->stats.refused_writes++;
        tell_refusal(&tier->budget);
        return KVP_LIMIT;
    }
    err = kvp_tier_core_write(dev->core, &op->meta, op->src, ask_still, op, &op->serial);
    if (err == KVP_OK) tier->budget.is_refusing = false;
    dev->stats.stale_writes += err == KVP_STALE;
    dev->stats.refused_writes += err == KVP_NO_SPACE;
    return err;
}

/* Returns whether WRITEs and DROPs may begin on the device. While the device does not answer, DROPs
 * wait and WRITEs fail at once. */
static bool
may_write(const kvp_tier_device_file_t *dev)
{
    return kvp_tier_is_working(dev) && !kvp_tier_is_stalled(dev);
}

/* Begins a WRITE or DROP. Returns false if it cannot begin now. */
static bool
begin_op(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_tier_op_t *op)
{
    kvp_err_t err = KVP_SYS;

    op->losses = atomic_load(&dev->losses);
    if (op->kind == KVP_TIER_WRITE && !may_write(dev)) { /* a WRITE fails at once, though earlier DROPs still wait */
        kvp_tier_end_op(tier, op, KVP_SYS);
        return true;
    }
    if (may_write(dev))
        err = op->kind == KVP_TIER_WRITE
                  ? begin_write(tier, dev, op)
                  : kvp_tier_core_drop(dev->core, op->meta.digest, op->meta.version, &op->serial);
    else if (op->kind == KVP_TIER_DROP && kvp_tier_is_working(dev))
        err = KVP_EAGAIN;
    if (err == KVP_EAGAIN) return false;
    op->err = err == KVP_NO_SPACE && op->kind == KVP_TIER_DROP ? KVP_SYS : err;
    op->is_over = err != KVP_OK;
    kvp_list_del(&op->link);
    kvp_list_add_tail(&dev->begun, &op->link);
    kvp_tier_charge(tier, kvp_now_ns());
    return true;
}

bool
kvp_tier_begin_ops(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    for (uint32_t n = 0; n < KVP_TIER_STEPS; n++) {
        if (kvp_list_is_empty(&dev->todo)) return false;
        if (!begin_op(tier, dev, kvp_list_first(&dev->todo, kvp_tier_op_t, link))) return false;
    }
    return true;
}

void
kvp_tier_end_ops(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    while (!kvp_list_is_empty(&dev->begun)) {
        kvp_tier_op_t *op = kvp_list_first(&dev->begun, kvp_tier_op_t, link);

        if (!op->is_over && !kvp_tier_core_is_durable(dev->core, op->serial)) return;
        kvp_tier_end_op(tier, op, op->err);
    }
}

/* ---- READ */
void
kvp_tier_cancel_readings(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_err_t err)
{
    kvp_list_foreach (l, &dev->readings) {
        kvp_tier_reading_t *r = kvp_list_entry(l, kvp_tier_reading_t, link);

        if (r->op == NULL) continue;
        kvp_list_init(&r->op->link);
        kvp_tier_end_op(tier, r->op, err);
        r->op = NULL;
        r->read.is_cancelled = true;
    }
}

static void
count_bytes(kvp_tier_device_file_t *dev)
{
    dev->readings_bytes = 0;
    kvp_list_foreach (l, &dev->readings)
        dev->readings_bytes += kvp_list_entry(l, kvp_tier_reading_t, link)->read.io.len;
}

static void
on_read(kvp_tier_read_t *read)
{
    kvp_tier_reading_t *r = kvp_container_of(read, kvp_tier_reading_t, read);
    kvp_tier_device_file_t *dev = r->dev;

    dev->bad_reads = read->err == KVP_SYS ? dev->bad_reads + 1 : read->err == KVP_OK ? 0 : dev->bad_reads;
    if (r->op != NULL) kvp_tier_end_op(r->tier, r->op, read->err);
    kvp_list_del(&r->link);
    dev->readings_n--;
    count_bytes(dev);
    free(r);
}

static void
begin_read(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_tier_op_t *op)
{
    bool is_off = !kvp_tier_is_working(dev);
    bool is_stalled = dev->state == KVP_TIER_DEVICE_LEFT_OUT || dev->stalls[0].is_stalled;
    kvp_tier_reading_t *r = is_off || is_stalled ? NULL : calloc(1, sizeof *r);

    if (r == NULL) {
        kvp_tier_end_op(tier, op, is_stalled ? KVP_EAGAIN : is_off ? KVP_SYS : KVP_NOMEM);
        return;
    }
    kvp_list_del(&op->link);
    r->tier = tier;
    r->dev = dev;
    r->op = op;
    r->read.done = on_read;
    r->read.meta = &op->meta;
    r->read.dst = op->dst;
    r->read.cap = op->cap;
    r->read.digest = op->meta.digest;
    r->read.version = op->meta.version;
    kvp_list_add_tail(&dev->readings, &r->link);
    dev->readings_n++;
    kvp_tier_core_read(dev->core, &r->read); /* the read may end at once, which frees r */
}

bool
kvp_tier_begin_reads(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    for (uint32_t n = 0; n < KVP_TIER_STEPS; n++) {
        if (kvp_list_is_empty(&dev->reads) || dev->readings_n >= READS_MAX) return false;
        if (dev->readings_n > 0 && dev->readings_bytes >= READS_BYTES) return false;
        begin_read(tier, dev, kvp_list_first(&dev->reads, kvp_tier_op_t, link));
        count_bytes(dev);
    }
    return true;
}
