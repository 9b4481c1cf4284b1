/* SPDX-License-Identifier: Apache-2.0
 * The registry's own structures: registry.c changes them, report.c writes reports from them. All
 * fields belong to the loop's thread, except atomic ones. */
#ifndef KVP_CONDUCTOR_EVENTS_REGISTRY_PRIV_H
#define KVP_CONDUCTOR_EVENTS_REGISTRY_PRIV_H

#include "conductor/base/disk.h"
#include "conductor/events/reach.h"
#include "conductor/events/registry.h"
#include "conductor/events/subscription.h"

#include "common/list.h"

#include <pthread.h>

typedef struct {
    kvp_list_t link; /* registry->publishers, or ->ending */
    kvp_registry_t *registry;
    kvp_registration_t reg;
    kvp_subscription_t *sub; /* NULL once the publisher has ended */
    kvp_reach_t *reach, *replay_reach; /* NULL = the endpoint is bound, or there is none */
    uint64_t lost_ns; /* since when the endpoint of events has been unreachable; 0 = it is reached */
    uint64_t replays_lost; /* value of failed_replays when a replay was answered last */
    kvp_view_t *view;
    kvp_applier_t applier;
    kvp_feed_t feed;
    uint64_t since_ns, event_ns; /* time of the registration; time of the last message, 0 = none */
    kvp_pool_source_t source; /* used if reg.is_shared */
    uint64_t digests_ns, digests_at; /* time of the last question for digests; messages applied at its answer */
    bool wants_again; /* a replay from the beginning is due */
    uint64_t repairs; /* how often the view was damaged */
    uint64_t drift_wait_ns, drift_next_ns; /* no replay because of a drift before drift_next_ns */
    bool is_early; /* registered at the start: /ready waits for its replay */
    bool is_unseen; /* no reader can see the publisher any more */
} kvp_publisher_t;

struct kvp_registry {
    uint64_t hash_seed;
    const char *data_dir; /* NULL = registrations are not kept */
    uv_loop_t *uv;
    void *zmq;
    kvp_epoch_t epoch;
    kvp_index_t *ix;
    kvp_spaces_t *spaces;
    kvp_pools_t *pools;
    kvp_list_t publishers, ending;
    uint32_t n;
    _Atomic(kvp_roster_t *) roster;
    uv_timer_t tick;
    uv_idle_t more; /* active while a socket has more messages */
    kvp_disk_t *disk; /* NULL = registrations are not kept */
    uv_async_t reap; /* a job of the disk has ended */
    struct { /* the file of registrations; each change has a number */
        kvp_disk_job_t job;
        kvp_buf_t text; /* while `writing`: the disk's thread reads it */
        uint64_t writing; /* the newest change in text; 0 = no job is under way */
        uint64_t retry_ns;
        pthread_mutex_t lock; /* guards writes of these fields by the loop's thread, and reads by others: */
        pthread_cond_t changed;
        uint32_t waiting_n; /* threads in kvp_registry_is_kept */
        uint64_t changes, tried, kept; /* numbers of the newest change, of the last attempt and of the last success */
    } file;
    int lock_fd; /* lock of the data directory; -1 = none */
    uint64_t room_ns; /* time of the last make_room; 0 = never */
    bool is_starting; /* registrations come from the file and are not saved again */
    _Atomic bool is_ready;
};

/* In registry_file.c. kvp_registry_open_dir: SYS, CORRUPT; logged. kvp_registry_close_dir waits for
 * the disk; false: the disk does not answer, so the registry must not be freed. kvp_registry_save
 * queues the file of registrations. */
void kvp_registry_init_file(kvp_registry_t *r);
kvp_err_t kvp_registry_open_dir(kvp_registry_t *r) KVP_MUST_USE;
bool kvp_registry_close_dir(kvp_registry_t *r) KVP_MUST_USE;
void kvp_registry_save(kvp_registry_t *r);
void kvp_registry_tick_file(kvp_registry_t *r, uint64_t now_ns);

#endif
