/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of the tier's shell: tier.c (calls of the control thread), thread.c (the
 * rounds of the tier's thread), ops.c (operations and devices, in the tier's thread).
 *
 * Design notes.
 * - Two locks, never held together. `lock` guards the exchange with the control thread, for
 *   moments. `core_lock` guards devices, cores and figures, and is released after every few steps.
 *   No thread waits for a device under either. During recovery (not is_ready) the tier's thread has
 *   the cores for itself.
 * - WRITE and DROP of a device begin in their order and are answered in it: `todo`, then `begun`,
 *   whose first operation is done when its appended bytes are on the device. All records of a
 *   digest are on one device.
 * - The thread has a descriptor table of its own, with the devices' files. A hanging request keeps
 *   its thread and the thread's open files in the kernel, even after kill -9: the node's sockets
 *   are not among them.
 * - A device whose reads, or writes, have been under way for KVP_TIER_STALL_NS gets only one probe
 *   at a time, of a block reserved for probes. Meanwhile reads end with EAGAIN, writes with SYS,
 *   and drops wait. After a successful probe the earlier requests are written off. Records of
 *   written-off writes that reached the device anyway are dropped (orphans), because their answer
 *   was a failure.
 * - Work that may hang, while a device is opened and recovered, runs in one thread a device
 *   (jobs.c).
 * - A device whose writes fail, or several of whose reads in a row, is switched off: its core is
 *   destroyed when no request is under way. The device is tried again with a new epoch, so dropped
 *   records do not come back. */
#ifndef KVP_NODE_TIER_SHELL_H
#define KVP_NODE_TIER_SHELL_H

#include "node/tier/device.h"
#include "node/tier/tier.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_TIER_STEPS 4u /* under the lock of the cores in one go */
#define KVP_TIER_RETRY_NS 30000000000ull

typedef struct {
    kvp_tier_read_t read;
    kvp_list_t link;
    kvp_tier_t *tier;
    kvp_tier_device_file_t *dev;
    kvp_tier_op_t *op; /* NULL: answered already */
} kvp_tier_reading_t;

typedef enum { KVP_TIER_STOPPED, KVP_TIER_RUNNING, KVP_TIER_STOPPING } kvp_tier_run_t;

typedef enum {
    KVP_TIER_POOL_NONE,
    KVP_TIER_POOL_NEW, /* the thread does not use it yet */
    KVP_TIER_POOL_TAKEN
} kvp_tier_pool_t;

/* The bytes that may be written in a day. */
typedef struct {
    uint64_t bytes; /* 0 = any number */
    double tokens; /* bytes that it allows now */
    uint64_t tokens_at_ns;
    bool is_refusing; /* the last write was refused */
    uint64_t refusal_told_ns; /* 0 = never */
} kvp_tier_budget_t;

struct kvp_tier {
    kvp_tier_room_t room;
    kvp_tier_device_file_t *devices[KVP_TIER_DEVICES_MAX];
    uint32_t devices_n;
    uint8_t owners[KVP_TIER_SLOTS]; /* of each slot: the number of its device */
    char name[KVP_NAME_MAX + 8]; /* of the node */
    int wake_fd; /* the caller's */
    int own_fd; /* wakes the thread */
    bool is_apart; /* the thread has a table of descriptors of its own */
    pthread_t thread;
    kvp_tier_run_t run; /* of the thread; changed under lock while the thread runs */
    uint32_t left_out_n; /* devices: the kernel may still write to their memory, so nothing is freed */
    _Atomic bool is_ready;

    pthread_mutex_t lock;
    pthread_cond_t quiesced; /* and opened */
    kvp_list_t submitted, done; /* guarded by lock, as the fields below */
    uint64_t write_bytes;
    uint64_t quiesces_asked, quiesces_done;
    kvp_err_t opened; /* EAGAIN: not yet */
    char why[KVP_TIER_WHY_MAX]; /* the reason of a failure */
    kvp_tier_pool_t pool;
    uint8_t pool_id[16], uuid[16];

    pthread_mutex_t core_lock;
    uint32_t asked; /* guarded by core_lock, as the devices: the device whose proposal is under way, */
    bool was_lost_asked; /* the device was given up */

    /* The thread's. */
    kvp_list_t ended;
    kvp_tier_budget_t budget;
    bool was_proposed; /* the caller was woken for the proposal */
};

/* tier.c: makes the eventfd readable. */
void kvp_tier_wake(int fd);

/* The device is not switched off, nor about to be. */
static inline bool
kvp_tier_is_working(const kvp_tier_device_file_t *dev)
{
    return dev->core != NULL && dev->state != KVP_TIER_DEVICE_FAILING;
}

static inline bool
kvp_tier_is_stalled(const kvp_tier_device_file_t *dev)
{
    return dev->state == KVP_TIER_DEVICE_LEFT_OUT || dev->stalls[0].is_stalled || dev->stalls[1].is_stalled;
}

/* The device is given up, and the master does not know its objects yet. */
static inline bool
kvp_tier_is_to_be_told(const kvp_tier_device_file_t *dev)
{
    return dev->core != NULL && dev->state == KVP_TIER_DEVICE_FAILING && kvp_tier_core_index(dev->core)->n > 0;
}

/* ops.c. All are called by the thread, with core_lock held or while it is not is_ready.
 * kvp_tier_end_op: the operation is done. _begin_reads, _begin_ops begin some of what waits: true
 * where there may be more that can be. _end_ops: those that are done by now. _cancel_readings: the
 * readers that wait for the device are answered with err, and the bytes that still come are
 * dropped. */
void kvp_tier_end_op(kvp_tier_t *tier, kvp_tier_op_t *op, kvp_err_t err);
bool kvp_tier_begin_reads(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
bool kvp_tier_begin_ops(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_end_ops(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_cancel_readings(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_err_t err);
void kvp_tier_charge(kvp_tier_t *tier, uint64_t now_ns); /* charges appended bytes to the budget */
kvp_tier_core_t *kvp_tier_create_core(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_switch_off(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_look_after(kvp_tier_t *tier, kvp_tier_device_file_t *dev,
                         uint64_t now_ns); /* switches off, and tries again */

/* jobs.c. kvp_tier_run_jobs runs fn for each device that is not left out, in threads, and waits for
 * them; a device for which nothing goes on is left out from then on. kvp_tier_unshare gives the
 * calling thread a table of descriptors of its own, with these and the standard ones. */
void kvp_tier_run_jobs(kvp_tier_t *tier, kvp_err_t (*fn)(kvp_tier_t *tier, kvp_tier_device_file_t *dev));
void kvp_tier_unshare(const int *kept, size_t n);

/* stall.c, called as ops.c is. kvp_tier_watch looks whether the device answers, and probes one that
 * does not; until when the thread may sleep for it. */
uint64_t kvp_tier_watch(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns);

/* open.c. kvp_tier_open_devices opens; then kvp_tier_begin_devices formats or recovers.
 * kvp_tier_sweep_moved drops some records in slots that moved to a device added since: true if more
 * may remain. */
kvp_err_t kvp_tier_open_devices(kvp_tier_t *tier) KVP_MUST_USE;
void kvp_tier_begin_devices(kvp_tier_t *tier, const uint8_t pool_id[16], const uint8_t uuid[16]);
bool kvp_tier_sweep_moved(const kvp_tier_t *tier, kvp_tier_device_file_t *dev);

void *kvp_tier_main(void *arg); /* thread.c */

#endif
