/* SPDX-License-Identifier: Apache-2.0
 * A few threads for blocking work. Jobs run in order of arrival. A job is a part of an object of the caller, who
 * limits the number of jobs; queueing allocates nothing. */
#ifndef KVP_COMMON_DAEMON_JOBS_H
#define KVP_COMMON_DAEMON_JOBS_H

#include "common/list.h"

#include <pthread.h>

#define KVP_JOBS_THREADS_MAX 16

typedef struct kvp_job {
    kvp_list_t link;
    /* run does the work on one of the threads; the job may be reused as soon as run begins */
    void (*run)(struct kvp_job *job);
} kvp_job_t;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    kvp_list_t queue; /* jobs that wait for a thread; guarded by lock */
    bool is_ending; /* a flag: kvp_jobs_stop has begun; guarded by lock */
    pthread_t threads[KVP_JOBS_THREADS_MAX];
    size_t threads_n; /* number of threads that run jobs; 0 = not started */
} kvp_jobs_t;

/* kvp_jobs_start starts the threads, with the given name (at most 15 bytes) and with all signals blocked. After
 * SYS, which is logged, no thread is left. */
kvp_err_t kvp_jobs_start(kvp_jobs_t *jobs, size_t threads_n, const char *name) KVP_MUST_USE;

/* kvp_jobs_add queues a job; any thread may call it. Before the start, and once kvp_jobs_stop has begun, it
 * returns false, and the job stays with the caller. */
bool kvp_jobs_add(kvp_jobs_t *jobs, kvp_job_t *job);

/* kvp_jobs_stop runs all queued jobs, and returns when all threads have ended. Legal on a zeroed struct. */
void kvp_jobs_stop(kvp_jobs_t *jobs);

#endif
