/* SPDX-License-Identifier: Apache-2.0
 * What the files of the tier's shell share: tier.c (what the control thread calls), thread.c (the rounds of the tier's thread), ops.c
 * (operations and devices, in that thread).
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
#ifndef KVP_CLIENT_NODE_TIER_SHELL_H
#define KVP_CLIENT_NODE_TIER_SHELL_H

#include "client/node/tier/device.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_TIER_STEPS 4u /* under the lock of the cores in one go */
#define KVP_TIER_RETRY_NS 30000000000ull

typedef struct {
    kvp_tier_read_t read;
    kvp_list_t link;
    kvp_tier_t *tier;
    kvp_tier_op_t *op; /* NULL: it is done already, and nobody's */
} kvp_tier_reading_t;

struct kvp_tier {
    kvp_tier_engine_t engine;
    kvp_tier_room_t room;
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
    uint32_t asked; /* the device whose proposal is under way, */
    bool was_lost_asked; /* because it was given up */

    /* The thread's. */
    kvp_list_t reads, todo, begun, ended;
    kvp_list_t readings;
    uint32_t readings_n;
    uint64_t readings_bytes;
    double tokens; /* bytes that the budget allows now */
    uint64_t tokens_at_ns;
    bool is_refusing; /* the last write was refused for the budget */
    uint64_t refusal_told_ns; /* 0 = never */
    bool was_proposed; /* the caller was woken for it */
};

/* tier.c: makes that eventfd readable. */
void kvp_tier_wake(int fd);

/* A device that is given up, and the master does not know yet what was on it. */
static inline bool
kvp_tier_is_to_be_told(const kvp_tier_device_file_t *dev)
{
    return dev->core != NULL && dev->is_failing && kvp_tier_core_index(dev->core)->n > 0;
}

/* ops.c. All are called by the thread, with core_lock held or while it is not is_ready. kvp_tier_end_op: the operation is done. _begin_reads, _begin_ops begin some of what
 * waits: true where there may be more that can be. _end_ops: those that are done by now. _close_ops: what is not begun is not. */
void kvp_tier_end_op(kvp_tier_t *tier, kvp_tier_op_t *op, kvp_err_t err);
bool kvp_tier_begin_reads(kvp_tier_t *tier);
bool kvp_tier_begin_ops(kvp_tier_t *tier);
void kvp_tier_end_ops(kvp_tier_t *tier);
void kvp_tier_charge(kvp_tier_t *tier, uint64_t now_ns); /* what was appended, to the budget */
kvp_tier_core_t *kvp_tier_create_core(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_switch_off(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_look_after(kvp_tier_t *tier, kvp_tier_device_file_t *dev,
                         uint64_t now_ns); /* switches off, and tries again */

void *kvp_tier_main(void *arg); /* thread.c */

#endif
