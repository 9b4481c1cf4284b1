/* SPDX-License-Identifier: Apache-2.0
 * The devices of an SSD tier at its start: opened, matched by their identities, formatted or recovered, and the slots
 * mapped to the devices. */
#include "node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <string.h>

#define SWEEP_STEPS 64u /* the most records that one call of kvp_tier_sweep_moved examines */

static kvp_err_t
open_one(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_err_t err;

    kvp_log_divert(dev->job.why, sizeof dev->job.why);
    err = kvp_tier_device_open(dev, tier->name);
    kvp_log_divert(NULL, 0);
    return err;
}

/* Opens all devices. The first error is returned; its text goes to the thread that opens the tier, which logs it. */
kvp_err_t
kvp_tier_open_devices(kvp_tier_t *tier)
{
    kvp_err_t err = KVP_OK;

    kvp_tier_run_jobs(tier, open_one);
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        const kvp_tier_device_file_t *dev = tier->devices[i];
        const bool is_cause = err == KVP_OK && dev->state != KVP_TIER_DEVICE_LEFT_OUT && dev->job.err != KVP_OK;

        if (is_cause) {
            err = dev->job.err;
            snprintf(tier->why, sizeof tier->why, "%s", dev->job.why);
        } else if (atomic_load(&dev->job.is_over) && dev->job.why[0] != '\0') {
            kvp_log_warn("tier", "%s", dev->job.why);
        }
    }
    return err;
}

/* ---- known devices */
static bool
is_of(const kvp_tier_device_file_t *dev, const uint8_t pool_id[16], const uint8_t uuid[16])
{
    return dev->state != KVP_TIER_DEVICE_LEFT_OUT && dev->super_state != KVP_TIER_SUPER_NONE &&
           memcmp(dev->super.pool_id, pool_id, 16) == 0 && memcmp(dev->super.uuid, uuid, 16) == 0;
}

static bool
is_known(const kvp_tier_device_file_t *dev)
{
    return dev->super_state == KVP_TIER_SUPER_KNOWN || dev->super_state == KVP_TIER_SUPER_OLD;
}

/* Returns whether an earlier device has the same identity, because its file was copied. */
static bool
is_twice(const kvp_tier_t *tier, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++)
        if (is_known(tier->devices[j]) && tier->devices[j]->super.identity == tier->devices[i]->super.identity)
            return true;
    return false;
}

/* Finds the devices of the tier's last generation. A device of an earlier generation was absent while records were
 * dropped or replaced on the other devices, so its records are given up. */
static void
find_known(kvp_tier_t *tier, const uint8_t pool_id[16], const uint8_t uuid[16], uint64_t *generation_out)
{
    *generation_out = 0;
    for (uint32_t i = 0; i < tier->devices_n; i++)
        if (is_of(tier->devices[i], pool_id, uuid))
            *generation_out = kvp_max_u64(*generation_out, tier->devices[i]->super.generation);
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = tier->devices[i];
        const char *why = NULL;

        if (dev->super_state == KVP_TIER_SUPER_NONE) continue;
        dev->super_state = KVP_TIER_SUPER_FOUND;
        if (dev->state == KVP_TIER_DEVICE_LEFT_OUT) continue;
        if (!is_of(dev, pool_id, uuid))
            why = "it is another pool's, or another tier's";
        else if (dev->super.generation != *generation_out)
            why = "the tier was used without the device";
        else if (is_twice(tier, i))
            why = "it is a copy of another device";
        else
            dev->super_state = KVP_TIER_SUPER_KNOWN;
        if (why != NULL) kvp_log_warn("tier", "all records on the device are given up: %s dir=%s", why, dev->dir);
    }
}

/* Sets the tier's generation in all superblocks. Returns true if a device was added or removed, which begins a new
 * generation. */
static bool
set_generation(kvp_tier_t *tier, uint64_t last, const uint8_t pool_id[16], const uint8_t uuid[16])
{
    uint32_t used_n = tier->devices_n - tier->left_out_n, known_n = 0, had_n = 0;
    bool is_changed;

    for (uint32_t i = 0; i < tier->devices_n; i++) {
        if (!is_known(tier->devices[i])) continue;
        known_n++;
        had_n = tier->devices[i]->super.devices;
    }
    is_changed = known_n != used_n || had_n != used_n;
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = tier->devices[i];

        if (dev->state == KVP_TIER_DEVICE_LEFT_OUT) continue;
        if (is_known(dev) && is_changed) dev->super_state = KVP_TIER_SUPER_OLD;
        dev->super.generation = is_changed ? last + 1 : last;
        dev->super.devices = used_n;
        memcpy(dev->super.pool_id, pool_id, 16);
        memcpy(dev->super.uuid, uuid, 16);
    }
    return is_changed;
}

static kvp_err_t
begin_one(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_tier_core_t *core = NULL;
    kvp_err_t err = KVP_OK;

    if (!is_known(dev))
        err = kvp_tier_device_format(dev);
    else if (dev->super_state == KVP_TIER_SUPER_OLD)
        err = kvp_tier_device_write_super(dev);
    if (err == KVP_OK) core = kvp_tier_create_core(tier, dev);
    if (core != NULL && is_known(dev)) err = kvp_tier_core_recover(core);
    if (err == KVP_OK && core == NULL) err = KVP_NOMEM;
    if (err == KVP_OK) {
        dev->job.core = core;
        return KVP_OK;
    }
    kvp_tier_core_destroy(core);
    return err;
}

/* Maps each slot (a share of the digests) to the device with the highest hash of identity and slot, so that adding or
 * removing a device moves only the slots of this device. */
static void
map_slots(kvp_tier_t *tier)
{
    for (uint32_t s = 0; s < KVP_TIER_SLOTS; s++) {
        uint64_t best = 0;

        tier->owners[s] = KVP_TIER_DEVICES_MAX;
        for (uint32_t i = 0; i < tier->devices_n; i++) {
            uint64_t words[2] = {tier->devices[i]->super.identity, s}, hash = kvp_sum(words, sizeof words);

            if (tier->devices[i]->state == KVP_TIER_DEVICE_LEFT_OUT ||
                (tier->owners[s] != KVP_TIER_DEVICES_MAX && hash <= best))
                continue;
            best = hash;
            tier->owners[s] = (uint8_t)i;
        }
    }
}

bool
kvp_tier_sweep_moved(const kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    const kvp_tier_entry_t *entry;
    uint64_t serial;

    for (uint32_t n = 0; n < SWEEP_STEPS && dev->sweep != UINT64_MAX; n++) {
        uint64_t before = dev->sweep;

        entry = kvp_tier_index_next(kvp_tier_core_index(dev->core), &dev->sweep);
        if (entry == NULL) {
            dev->sweep = UINT64_MAX;
        } else if (tier->devices[kvp_tier_device_of(tier, entry->digest)] != dev) {
            kvp_err_t err = kvp_tier_core_drop(dev->core, entry->digest, entry->version, &serial);

            /* the sweep stays at this position, because a removal moves other entries to it */
            if (err == KVP_OK || err == KVP_EAGAIN) dev->sweep = before;
            if (err == KVP_EAGAIN) return false;
        }
    }
    return dev->sweep != UINT64_MAX;
}

void
kvp_tier_begin_devices(kvp_tier_t *tier, const uint8_t pool_id[16], const uint8_t uuid[16])
{
    bool is_changed;
    uint64_t last;

    find_known(tier, pool_id, uuid, &last);
    is_changed = set_generation(tier, last, pool_id, uuid);
    kvp_tier_run_jobs(tier, begin_one);
    map_slots(tier);
    for (uint32_t i = 0; i < tier->devices_n; i++) {
        kvp_tier_device_file_t *dev = tier->devices[i];

        dev->charged = 0;
        dev->waits_since_ns = 0;
        if (dev->state == KVP_TIER_DEVICE_LEFT_OUT) continue;
        dev->sweep = is_known(dev) && is_changed ? 0 : UINT64_MAX;
        if (dev->core != NULL) {
            kvp_log_info("tier", "%lu records found dir=%s", (unsigned long)kvp_tier_core_index(dev->core)->n,
                         dev->dir);
            continue;
        }
        kvp_log_error("tier", "the device cannot be read: it is switched off dir=%s", dev->dir);
        dev->retry_at_ns = kvp_now_ns() + KVP_TIER_RETRY_NS;
    }
}
