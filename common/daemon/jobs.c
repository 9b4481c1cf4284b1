/* SPDX-License-Identifier: Apache-2.0 */
#include "common/daemon/jobs.h"

#include "common/thread.h"

#include <string.h>

static void *
run_jobs(void *arg)
{
    kvp_jobs_t *jobs = arg;
    kvp_job_t *job;

    pthread_mutex_lock(&jobs->lock);
    for (;;) {
        while (kvp_list_is_empty(&jobs->queue) && !jobs->is_ending)
            pthread_cond_wait(&jobs->wake, &jobs->lock);
        if (kvp_list_is_empty(&jobs->queue)) break;
        job = kvp_list_first(&jobs->queue, kvp_job_t, link);
        kvp_list_del(&job->link);
        pthread_mutex_unlock(&jobs->lock);
        job->run(job);
        pthread_mutex_lock(&jobs->lock);
    }
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

kvp_err_t
kvp_jobs_start(kvp_jobs_t *jobs, size_t threads_n, const char *name)
{
    if (threads_n == 0 || threads_n > KVP_JOBS_THREADS_MAX) kvp_panic("jobs: %zu threads", threads_n);
    memset(jobs, 0, sizeof *jobs);
    kvp_list_init(&jobs->queue);
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->wake, NULL);
    while (jobs->threads_n < threads_n) {
        kvp_err_t err = kvp_thread_start(&jobs->threads[jobs->threads_n], name, run_jobs, jobs);

        if (err != KVP_OK) {
            kvp_jobs_stop(jobs);
            return err;
        }
        jobs->threads_n++;
    }
    return KVP_OK;
}

bool
kvp_jobs_add(kvp_jobs_t *jobs, kvp_job_t *job)
{
    bool is_taken;

    if (jobs->threads_n == 0) return false;
    pthread_mutex_lock(&jobs->lock);
    is_taken = !jobs->is_ending;
    if (is_taken) {
        kvp_list_add_tail(&jobs->queue, &job->link);
        pthread_cond_signal(&jobs->wake);
    }
    pthread_mutex_unlock(&jobs->lock);
    return is_taken;
}

void
kvp_jobs_stop(kvp_jobs_t *jobs)
{
    if (jobs->threads_n == 0 || jobs->is_ending) return;
    pthread_mutex_lock(&jobs->lock);
    jobs->is_ending = true;
    pthread_cond_broadcast(&jobs->wake);
    pthread_mutex_unlock(&jobs->lock);
    for (size_t i = 0; i < jobs->threads_n; i++)
        pthread_join(jobs->threads[i], NULL);
}
