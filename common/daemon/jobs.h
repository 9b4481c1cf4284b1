/* SPDX-License-Identifier: Apache-2.0
 * A few threads for blocking work, in order of arrival. A job is embedded in an object of the
 * caller, who bounds the number of jobs; queueing allocates nothing. */
#ifndef KVP_COMMON_DAEMON_JOBS_H
#define KVP_COMMON_DAEMON_JOBS_H

#include "common/list.h"

#include <pthread.h>

#define KVP_JOBS_THREADS_MAX 16

typedef struct kvp_job {
    kvp_list_t link;
    /* runs on one of the threads; the owner may reuse the job as soon as run begins */
    void (*run)(struct kvp_job *job);
} kvp_job_t;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    kvp_list_t queue; /* guarded by lock */
    bool is_ending; /* guarded by lock */
    pthread_t threads[KVP_JOBS_THREADS_MAX];
    size_t threads_n; /* 0 = not started */
} kvp_jobs_t;

/* kvp_jobs_start starts the threads, with all signals blocked, named name (at most 15 bytes). SYS,
 * logged; nothing is left then. */
kvp_err_t kvp_jobs_start(kvp_jobs_t *jobs, size_t threads_n, const char *name) KVP_MUST_USE;

/* kvp_jobs_add hands a job over; false once kvp_jobs_stop has begun, or before start: it is still
 * the caller's then. Any thread. */
bool kvp_jobs_add(kvp_jobs_t *jobs, kvp_job_t *job);

/* kvp_jobs_stop runs what is queued, and returns when all threads have ended. Legal on zeroes. */
void kvp_jobs_stop(kvp_jobs_t *jobs);

#endif
