/* SPDX-License-Identifier: Apache-2.0
 * See disk.h. */
#include "conductor/base/disk.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "common/waits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STALL_MS 2000u

static const char *const contents[KVP_DISK_FILES] = {"registrations", "places of the pool's blocks"};

struct kvp_disk {
    pthread_t thread;
    char dir[4096];
    pthread_mutex_t lock; /* guards all fields below the lock */
    pthread_cond_t changed;
    kvp_list_t queue, finished;
    uint64_t since_ns; /* start time of the current job; 0 = no job runs */
    int errors[KVP_DISK_FILES]; /* result of the last job of each file: 0 or an errno */
    bool is_stalled; /* a flag: it has been logged that a job runs for longer than STALL_MS */
    bool is_ending;
    void (*notify)(void *arg);
    void *arg;
};

static void
note_result(kvp_disk_t *d, kvp_disk_file_t file, int error)
{
    errno = error;
    if (error != 0 && d->errors[file] == 0)
        kvp_log_error("conductor", "cannot keep the %s: %m dir=%s", contents[file], d->dir);
    else if (error == 0 && d->errors[file] != 0)
        kvp_log_info("conductor", "the %s are kept again dir=%s", contents[file], d->dir);
    if (d->is_stalled) kvp_log_info("conductor", "the data directory answers again dir=%s", d->dir);
    d->is_stalled = false;
    d->errors[file] = error;
}

static void *
run_jobs(void *arg)
{
    kvp_disk_t *d = arg;

    pthread_mutex_lock(&d->lock);
    while (true) {
        while (kvp_list_is_empty(&d->queue) && !d->is_ending)
            pthread_cond_wait(&d->changed, &d->lock);
        if (kvp_list_is_empty(&d->queue)) break;
        kvp_disk_job_t *job = kvp_list_first(&d->queue, kvp_disk_job_t, link);
        kvp_list_del(&job->link);
        d->since_ns = kvp_now_ns();
        pthread_mutex_unlock(&d->lock);
        job->error = job->run(job);
        pthread_mutex_lock(&d->lock);
        d->since_ns = 0;
        note_result(d, job->file, job->error);
        kvp_list_add_tail(&d->finished, &job->link);
        pthread_cond_broadcast(&d->changed);
        if (d->notify != NULL) d->notify(d->arg);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void
kvp_disk_submit(kvp_disk_t *d, kvp_disk_job_t *job)
{
    kvp_list_init(&job->link);
    pthread_mutex_lock(&d->lock);
    kvp_list_add_tail(&d->queue, &job->link);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static uint32_t
busy_ms(const kvp_disk_t *d)
{
    return d->since_ns == 0 ? 0 : 1 + (uint32_t)((kvp_now_ns() - d->since_ns) / KVP_NS_PER_MS);
}

void
kvp_disk_reap(kvp_disk_t *d)
{
    kvp_list_t finished;

    kvp_list_init(&finished);
    pthread_mutex_lock(&d->lock);
    kvp_list_splice(&d->finished, &finished);
    if (!d->is_stalled && busy_ms(d) >= STALL_MS) {
        d->is_stalled = true;
        kvp_log_error("conductor", "the data directory does not answer dir=%s", d->dir);
    }
    pthread_mutex_unlock(&d->lock);
    while (!kvp_list_is_empty(&finished)) {
        kvp_disk_job_t *job = kvp_list_first(&finished, kvp_disk_job_t, link);

        kvp_list_del(&job->link);
        job->done(job, job->error);
    }
}

/* Waits until a job has ended. Returns false if no job has ended after timeout_ms, or if there is no job. */
static bool
wait_for_job(kvp_disk_t *d, uint32_t timeout_ms)
{
    const struct timespec until = kvp_timespec(kvp_now_ns() + timeout_ms * KVP_NS_PER_MS);
    int rc = 0;

    pthread_mutex_lock(&d->lock);
    const bool has_any = d->since_ns != 0 || !kvp_list_is_empty(&d->queue) || !kvp_list_is_empty(&d->finished);
    while (has_any && rc == 0 && kvp_list_is_empty(&d->finished))
        rc = pthread_cond_timedwait(&d->changed, &d->lock, &until);
    pthread_mutex_unlock(&d->lock);
    return has_any && rc == 0;
}

bool
kvp_disk_finish(kvp_disk_t *d, uint32_t timeout_ms)
{
    bool is_idle;

    while (wait_for_job(d, timeout_ms))
        kvp_disk_reap(d);
    pthread_mutex_lock(&d->lock);
    is_idle = d->since_ns == 0 && kvp_list_is_empty(&d->queue) && kvp_list_is_empty(&d->finished);
    pthread_mutex_unlock(&d->lock);
    return is_idle;
}

uint32_t
kvp_disk_busy_ms(kvp_disk_t *d)
{
    pthread_mutex_lock(&d->lock);
    const uint32_t ms = busy_ms(d);
    pthread_mutex_unlock(&d->lock);
    return ms;
}

bool
kvp_disk_trouble(kvp_disk_t *d, char *text, size_t cap)
{
    int failed = 0;

    pthread_mutex_lock(&d->lock);
    const uint32_t ms = busy_ms(d);
    while (failed < KVP_DISK_FILES && d->errors[failed] == 0)
        failed++;
    if (failed < KVP_DISK_FILES) errno = d->errors[failed];
    pthread_mutex_unlock(&d->lock);
    if (ms >= STALL_MS)
        snprintf(text, cap, "the data directory %s has not answered for %u s", d->dir, ms / 1000);
    else if (failed < KVP_DISK_FILES)
        snprintf(text, cap, "the %s cannot be kept in the data directory %s: %m", contents[failed], d->dir);
    return ms >= STALL_MS || failed < KVP_DISK_FILES;
}

void
kvp_disk_notify(kvp_disk_t *d, void (*notify)(void *arg), void *arg)
{
    pthread_mutex_lock(&d->lock);
    d->notify = notify;
    d->arg = arg;
    pthread_mutex_unlock(&d->lock);
}

kvp_disk_t *
kvp_disk_create(const char *dir)
{
    kvp_disk_t *d = calloc(1, sizeof *d);

    if (d == NULL) return NULL;
    snprintf(d->dir, sizeof d->dir, "%s", dir);
    kvp_list_init(&d->queue);
    kvp_list_init(&d->finished);
    pthread_mutex_init(&d->lock, NULL);
    kvp_cond_init(&d->changed);
    if (kvp_thread_start(&d->thread, "disk", run_jobs, d) == KVP_OK) return d;
    free(d);
    return NULL;
}

void
kvp_disk_destroy(kvp_disk_t *d)
{
    if (d == NULL) return;
    pthread_mutex_lock(&d->lock);
    const bool is_busy = d->since_ns != 0 || !kvp_list_is_empty(&d->queue);
    d->is_ending = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    if (is_busy) return;
    pthread_join(d->thread, NULL);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    free(d);
}
