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
    kvp_list_t link; /* element of the list registry->publishers or registry->ending */
    kvp_registry_t *registry;
    kvp_registration_t reg;
    kvp_subscription_t *sub; /* the ZMQ sockets of the publisher; NULL after its end */
    kvp_reach_t *reach, *replay_reach; /* checkers of the two endpoints; NULL = the endpoint is bound or missing */
    uint64_t lost_ns; /* time since which the endpoint for events has been unreachable; 0 = reachable */
    uint64_t replays_lost; /* value of feed.stats.failed_replays at the last answer to a replay */
    kvp_view_t *view;
    kvp_applier_t applier;
    kvp_feed_t feed;
    uint64_t since_ns, event_ns; /* time of the registration; time of the last message, 0 = no message */
    kvp_pool_source_t source; /* state of a pool's publisher; used if reg.is_shared */
    /* time of the last request for digests; number of messages applied at its answer */
    uint64_t digests_ns, digests_at;
    bool wants_again; /* a flag: a replay from the first message is due */
    uint64_t repairs; /* number of times that the view was rebuilt because of a contradiction (is_damaged) */
    /* pause between two replays that drifts cause (digests that differ); earliest time of the next such replay */
    uint64_t drift_wait_ns, drift_next_ns;
    bool is_early; /* a flag: registered during the start, so /ready waits for the replay */
    bool is_unseen; /* a flag: no reader can see the publisher any more */
} kvp_publisher_t;

struct kvp_registry {
    uint64_t hash_seed;
    const char *data_dir; /* path of the data directory; NULL = registrations are not saved */
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
    uv_idle_t more; /* idle handle that is active while a ZMQ socket has unread messages */
    kvp_disk_t *disk; /* thread for the data directory; NULL = registrations are not saved */
    uv_async_t reap; /* wakes the loop when a job of the disk has ended */
    struct { /* the file of registrations; each change of the list has a number */
        kvp_disk_job_t job;
        kvp_buf_t text; /* content of the file; the disk's thread reads it while a job is in progress */
        uint64_t writing; /* number of the newest change in text; 0 = no job is in progress */
        uint64_t retry_ns;
        pthread_mutex_t lock; /* guards the fields below; other threads than the loop's write only waiting_n */
        pthread_cond_t changed;
        uint32_t waiting_n; /* number of threads that wait in kvp_registry_is_kept */
        /* numbers of the newest change, of the last change that was attempted, and of the last change that was saved */
        uint64_t changes, tried, kept;
    } file;
    int lock_fd; /* file descriptor that locks the data directory; -1 = not locked */
    uint64_t room_ns; /* time at which make_room last searched for space; 0 = never */
    bool is_starting; /* a flag: registrations come from the file and are not saved again */
    _Atomic bool is_ready;
};

/* Functions in registry_file.c. kvp_registry_open_dir returns SYS or CORRUPT, and logs the error.
 * kvp_registry_close_dir waits for the disk; it returns false if the disk does not answer, and then the registry
 * must not be freed. kvp_registry_save queues a write of the file. */
void kvp_registry_init_file(kvp_registry_t *r);
kvp_err_t kvp_registry_open_dir(kvp_registry_t *r) KVP_MUST_USE;
bool kvp_registry_close_dir(kvp_registry_t *r) KVP_MUST_USE;
void kvp_registry_save(kvp_registry_t *r);
void kvp_registry_tick_file(kvp_registry_t *r, uint64_t now_ns);

#endif
