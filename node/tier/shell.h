/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of the tier's shell: tier.c (calls of the control thread), thread.c (the rounds of the tier's
 * thread), ops.c (operations and devices, in the tier's thread), open.c, jobs.c, stall.c.
 *
 * Design notes.
 * - Two locks, never held together. `lock` guards the exchange with the control thread, and is held for moments.
 *   `core_lock` guards devices, cores and figures, and is released after every few steps. No thread waits for a device
 *   under either lock. During recovery (not is_ready) only the tier's thread uses the cores.
 * - WRITE and DROP of a device begin and are answered in the order of submission: `todo`, then `begun`, whose first
 *   operation is done when its appended bytes are on the device. All records of a digest are on one device.
 * - The thread has a descriptor table of its own, with the devices' files. A hanging request keeps its thread and the
 *   thread's open files in the kernel, even after kill -9, but not the node's sockets.
 * - A device whose reads, or writes, have been under way for KVP_TIER_STALL_NS gets only one probe at a time, of a
 *   block reserved for probes. Meanwhile reads end with EAGAIN, writes with SYS, and drops wait. After a successful
 *   probe the earlier requests are written off. Records of written-off writes that reached the device anyway are
 *   dropped (orphans), because their answer was a failure.
 * - Work that may hang, while a device is opened and recovered, runs in one thread for each device (jobs.c).
 * - A device is switched off if its writes fail, or several of its reads in a row: its core is destroyed once no
 *   request is under way. The device is tried again with a new epoch, so dropped records do not come back. */
#ifndef KVP_NODE_TIER_SHELL_H
#define KVP_NODE_TIER_SHELL_H

#include "node/tier/device.h"
#include "node/tier/tier.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_TIER_STEPS 4u /* the most steps of one kind on a device before the tier's thread releases core_lock */
#define KVP_TIER_RETRY_NS 30000000000ull

typedef struct {
    kvp_tier_read_t read;
    kvp_list_t link;
    kvp_tier_t *tier;
    kvp_tier_device_file_t *dev;
    kvp_tier_op_t *op; /* the operation that waits for the read; NULL: it was answered already */
} kvp_tier_reading_t;

typedef enum { KVP_TIER_STOPPED, KVP_TIER_RUNNING, KVP_TIER_STOPPING } kvp_tier_run_t;

typedef enum {
    KVP_TIER_POOL_NONE,
    KVP_TIER_POOL_NEW, /* the tier's thread does not use the pool yet */
    KVP_TIER_POOL_TAKEN
} kvp_tier_pool_t;

/* The budget of bytes that may be written in a day. */
typedef struct {
    uint64_t bytes; /* the bytes for each day; 0 = no limit */
    double tokens; /* how many bytes may be written now */
    uint64_t tokens_at_ns;
    bool is_refusing; /* the last write was refused */
    uint64_t refusal_told_ns; /* the time of the last log line about a refusal; 0 = never */
} kvp_tier_budget_t;

struct kvp_tier {
    kvp_tier_room_t room;
    kvp_tier_device_file_t *devices[KVP_TIER_DEVICES_MAX];
    uint32_t devices_n;
    uint8_t owners[KVP_TIER_SLOTS]; /* the number of the device of each slot */
    char name[KVP_NAME_MAX + 8]; /* the name of the node that owns the tier */
    int wake_fd; /* the caller's eventfd (kvp_tier_conf_t.wake_fd); borrowed */
    int own_fd; /* the eventfd that wakes the tier's thread */
    bool is_apart; /* the tier's thread has a table of file descriptors of its own */
    pthread_t thread;
    kvp_tier_run_t run; /* the state of the tier's thread; changed under lock while the thread runs */
    /* the number of left-out devices: the kernel may still write to their memory, so nothing is freed */
    uint32_t left_out_n;
    _Atomic bool is_ready;

    pthread_mutex_t lock;
    pthread_cond_t quiesced; /* signalled when a quiesce is done, or the devices were opened */
    kvp_list_t submitted, done; /* guarded by lock, as are the fields below */
    uint64_t write_bytes;
    uint64_t quiesces_asked, quiesces_done;
    kvp_err_t opened; /* the result of opening the devices; EAGAIN: not known yet */
    char why[KVP_TIER_WHY_MAX]; /* the error text of opening the devices */
    kvp_tier_pool_t pool;
    uint8_t pool_id[16], uuid[16];

    pthread_mutex_t core_lock;
    /* the number of the device of the last proposal, answered or not; guarded by core_lock, as are the devices */
    uint32_t asked;
    bool was_lost_asked; /* the unanswered proposal has the lost objects of a device that was given up */

    /* The tier's fields from here on belong to the tier's thread. */
    kvp_list_t ended;
    kvp_tier_budget_t budget;
    bool was_proposed; /* the caller was woken for the present proposal */
};

/* kvp_tier_wake (tier.c) makes the eventfd readable. */
void kvp_tier_wake(int fd);

/* kvp_tier_is_working returns whether the device has a core and is not being switched off. */
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

/* kvp_tier_is_to_be_told returns whether the device is given up but the master does not know yet that its objects are
 * lost. */
static inline bool
kvp_tier_is_to_be_told(const kvp_tier_device_file_t *dev)
{
    return dev->core != NULL && dev->state == KVP_TIER_DEVICE_FAILING && kvp_tier_core_index(dev->core)->n > 0;
}

/* Functions of ops.c. The tier's thread calls them with core_lock held, or while the tier is not is_ready.
 * kvp_tier_end_op moves an operation to the finished ones. kvp_tier_begin_reads and kvp_tier_begin_ops begin some
 * waiting operations; true = more may be begun at once. kvp_tier_end_ops finishes the operations that are done by now.
 * kvp_tier_cancel_readings answers the READs that wait for the device with err; bytes that still arrive are dropped. */
void kvp_tier_end_op(kvp_tier_t *tier, kvp_tier_op_t *op, kvp_err_t err);
bool kvp_tier_begin_reads(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
bool kvp_tier_begin_ops(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_end_ops(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_cancel_readings(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_err_t err);
void kvp_tier_charge(kvp_tier_t *tier, uint64_t now_ns); /* charges appended bytes to the write budget */
kvp_tier_core_t *kvp_tier_create_core(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
void kvp_tier_switch_off(kvp_tier_t *tier, kvp_tier_device_file_t *dev);
/* switches a failed device off, and tries it again later */
void kvp_tier_look_after(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns);

/* Functions of jobs.c. kvp_tier_run_jobs runs fn for each device that is not left out, in threads, and waits for the
 * threads; a device that makes no progress is left out from then on. kvp_tier_unshare gives the calling thread a
 * descriptor table of its own, which has the `kept` and the standard descriptors. */
void kvp_tier_run_jobs(kvp_tier_t *tier, kvp_err_t (*fn)(kvp_tier_t *tier, kvp_tier_device_file_t *dev));
void kvp_tier_unshare(const int *kept, size_t n);

/* kvp_tier_watch (stall.c) checks whether the device answers, and probes a device that does not. It is called as the
 * functions of ops.c are. Returns the time until which the thread may sleep for this device. */
uint64_t kvp_tier_watch(kvp_tier_t *tier, kvp_tier_device_file_t *dev, uint64_t now_ns);

/* Functions of open.c. kvp_tier_open_devices opens all devices; kvp_tier_begin_devices then formats or recovers them.
 * kvp_tier_sweep_moved drops some records in slots that moved to a device added since; true = more may remain. */
kvp_err_t kvp_tier_open_devices(kvp_tier_t *tier) KVP_MUST_USE;
void kvp_tier_begin_devices(kvp_tier_t *tier, const uint8_t pool_id[16], const uint8_t uuid[16]);
bool kvp_tier_sweep_moved(const kvp_tier_t *tier, kvp_tier_device_file_t *dev);

void *kvp_tier_main(void *arg); /* the main function of the tier's thread, in thread.c */

#endif
