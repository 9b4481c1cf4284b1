/* SPDX-License-Identifier: Apache-2.0
 * Devices that hang, for reads, writes or both: detected while requests are under way, probed, and used again. */
#include "node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"

#define LOOK_NS (250 * KVP_NS_PER_MS)
#define PROBE_AGAIN_NS KVP_NS_PER_S /* the time between a failed probe and the next */

/* Answers all READs of a stalled device with EAGAIN. Bytes that the device still delivers are dropped. */
static void
end_reads(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_tier_cancel_readings(tier, dev, KVP_EAGAIN);
    while (!kvp_list_is_empty(&dev->reads))
        kvp_tier_end_op(tier, kvp_list_first(&dev->reads, kvp_tier_op_t, link), KVP_EAGAIN);
}

/* Answers the WRITEs that are not durable with SYS. Their records are dropped when the device answers again. */
static void
end_writes(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_list_foreach_safe (l, next, &dev->begun) {
        kvp_tier_op_t *op = kvp_list_entry(l, kvp_tier_op_t, link);
        kvp_wire_tiered_t *more;

        if (op->kind != KVP_TIER_WRITE || op->is_over || kvp_tier_core_is_durable(dev->core, op->serial)) continue;
        more = kvp_grow(dev->orphans, dev->orphans_n, &dev->orphans_cap, 64, sizeof *more);
        if (more == NULL) continue; /* no memory: the operation stays, and is tried again in the next round */
        dev->orphans = more;
        dev->orphans[dev->orphans_n++] = (kvp_wire_tiered_t){op->meta.digest, op->meta.version};
        kvp_tier_end_op(tier, op, KVP_SYS);
    }
    kvp_list_foreach_safe (l, next, &dev->todo)
        if (kvp_list_entry(l, kvp_tier_op_t, link)->kind == KVP_TIER_WRITE)
            kvp_tier_end_op(tier, kvp_list_entry(l, kvp_tier_op_t, link), KVP_SYS);
}

static void
drop_orphans(kvp_tier_device_file_t *dev)
{
    uint64_t serial;

    while (dev->orphans_n > 0 && kvp_tier_is_working(dev)) {
        const kvp_wire_tiered_t *o = &dev->orphans[dev->orphans_n - 1];

        if (kvp_tier_core_drop(dev->core, o->digest, o->version, &serial) == KVP_EAGAIN) return;
        dev->orphans_n--;
    }
    if (!kvp_tier_is_working(dev)) dev->orphans_n = 0; /* the device is given up, and its records with it */
}

static void
on_probe(kvp_tier_device_file_t *dev, bool is_write)
{
    kvp_tier_stall_t *s = &dev->stalls[is_write];

    s->is_probing = false;
    s->probe_at_ns = kvp_now_ns() + PROBE_AGAIN_NS;
    if (s->probe.err != KVP_OK) return;
    s->is_stalled = false;
    kvp_tier_engine_write_off(&dev->engine, is_write, s->probe.begun_ns);
    kvp_log_info("tier", "the device answers %s again dir=%s", is_write ? "writes" : "reads", dev->dir);
}

static void
on_read_probe(kvp_tier_io_t *io)
{
    on_probe(kvp_container_of(io, kvp_tier_device_file_t, stalls[0].probe), false);
}

static void
on_write_probe(kvp_tier_io_t *io)
{
    on_probe(kvp_container_of(io, kvp_tier_device_file_t, stalls[1].probe), true);
}

static void
begin_probe(kvp_tier_device_file_t *dev, bool is_write)
{
    kvp_tier_stall_t *s = &dev->stalls[is_write];

    s->is_probing = true;
    s->probe = (kvp_tier_io_t){.done = is_write ? on_write_probe : on_read_probe,
                               .buf = dev->probe_blocks + (is_write ? KVP_TIER_BLOCK : 0),
                               .off = KVP_TIER_TEST_OFF,
                               .len = KVP_TIER_BLOCK,
                               .fd = dev->fd,
                               .is_write = is_write,
                               .is_synced = is_write};
    kvp_tier_engine_begin_now(&dev->engine, &s->probe);
}

static void
watch_kind(kvp_tier_t *tier, kvp_tier_device_file_t *dev, bool is_write, uint64_t now_ns)
{
    kvp_tier_stall_t *s = &dev->stalls[is_write];

    if (kvp_tier_engine_is_late(&dev->engine, is_write, now_ns) && !s->is_stalled) {
        kvp_log_warn("tier", "the device stalls: a %s has been under way for 2 s; %s dir=%s",
                     is_write ? "write" : "read",
                     is_write ? "nothing is written there until it answers" : "its objects are misses until it answers",
                     dev->dir);
        s->is_stalled = true;
        s->probe_at_ns = now_ns;
    }
    if (!s->is_stalled) return;
    if (is_write && kvp_tier_is_working(dev))
        end_writes(tier, dev);
    else if (!is_write)
        end_reads(tier, dev);
    if (!s->is_probing && now_ns >= s->probe_at_ns) begin_probe(dev, is_write);
}

uint64_t
kvp_tier_watch(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns)
{
    if (dev->state == KVP_TIER_DEVICE_LEFT_OUT) return UINT64_MAX;
    watch_kind(tier, dev, false, now_ns);
    watch_kind(tier, dev, true, now_ns);
    if (!kvp_tier_is_stalled(dev)) drop_orphans(dev);
    return kvp_list_is_empty(&dev->engine.under_way) && !kvp_tier_is_stalled(dev) ? UINT64_MAX : now_ns + LOOK_NS;
}
