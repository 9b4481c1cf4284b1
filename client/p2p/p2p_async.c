/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p_submit and poll: a queue, and a few threads that run what kvpool_p2p_transfer would. They are started as there is work for
 * them and end with the endpoint. A result stays until it was asked for.
 */
#include "client/p2p/p2p.h"

#include "client/node/node_thread.h"
#include "client/waits.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 4u
#define JOBS_MAX 4096u

typedef struct {
    kvp_list_t link; /* on `jobs`, in the order of submission */
    uint64_t id;
    enum { JOB_WAITING, JOB_RUNNING, JOB_DONE } state;
    kvp_err_t result;
    kvp_hostport_t peer;
    int kind;
    uint64_t deadline_ns;
    kvp_reg_t **held; /* from the beginning: memory may be freed once it is unregistered */
    size_t n;
    kvpool_p2p_op_t ops[];
} job_t;

struct kvp_p2p_async {
    kvpool_p2p_t *p2p;
    pthread_mutex_t lock; /* a leaf; guards all below */
    pthread_cond_t work; /* for the threads */
    pthread_cond_t done; /* for who polls */
    kvp_list_t jobs;
    uint32_t jobs_n;
    uint32_t waiting_n;
    uint64_t last_id;
    bool is_stopping;
    pthread_t threads[THREADS_MAX];
    uint32_t threads_n;
    uint32_t idle_n; /* threads that wait for work */
};

kvp_err_t
kvp_p2p_async_create(kvpool_p2p_t *p2p, kvp_p2p_async_t **async_out)
{
    kvp_p2p_async_t *async = calloc(1, sizeof *async);

    if (async == NULL) return KVP_NOMEM;
    async->p2p = p2p;
    pthread_mutex_init(&async->lock, NULL);
    kvp_cond_init(&async->work);
    kvp_cond_init(&async->done);
    kvp_list_init(&async->jobs);
    *async_out = async;
    return KVP_OK;
}

static void
drop(kvp_p2p_async_t *async, job_t *job)
{
    kvp_list_del(&job->link);
    async->jobs_n--;
    kvp_p2p_rele(async->p2p, job->held, job->n);
    free(job);
}

void
kvp_p2p_async_destroy(kvp_p2p_async_t *async)
{
    pthread_mutex_lock(&async->lock);
    async->is_stopping = true;
    pthread_cond_broadcast(&async->work);
    pthread_mutex_unlock(&async->lock);
    for (uint32_t i = 0; i < async->threads_n; i++)
        pthread_join(async->threads[i], NULL);
    while (!kvp_list_is_empty(&async->jobs))
        drop(async, kvp_list_first(&async->jobs, job_t, link));
    pthread_cond_destroy(&async->done);
    pthread_cond_destroy(&async->work);
    pthread_mutex_destroy(&async->lock);
    free(async);
}

/* The job that has waited longest. Caller holds the lock. */
static job_t *
next_job(kvp_p2p_async_t *async)
{
    kvp_list_foreach (pos, &async->jobs) {
        job_t *job = kvp_list_entry(pos, job_t, link);

        if (job->state == JOB_WAITING) return job;
    }
    return NULL;
}

static void *
worker_main(void *arg)
{
    kvp_p2p_async_t *async = arg;

    pthread_mutex_lock(&async->lock);
    while (!async->is_stopping) {
        job_t *job = async->waiting_n > 0 ? next_job(async) : NULL;

        if (job == NULL) {
            async->idle_n++;
            pthread_cond_wait(&async->work, &async->lock);
            async->idle_n--;
            continue;
        }
        job->state = JOB_RUNNING;
        async->waiting_n--;
        pthread_mutex_unlock(&async->lock);
        job->result = kvp_p2p_run(async->p2p, &job->peer, job->kind, job->ops, job->n, job->deadline_ns);
        kvp_p2p_rele(async->p2p, job->held, job->n);
        job->held = NULL;
        pthread_mutex_lock(&async->lock);
        job->state = JOB_DONE;
        pthread_cond_broadcast(&async->done);
    }
    pthread_mutex_unlock(&async->lock);
    return NULL;
}

/* Another thread where none is idle. Caller holds the lock. SYS only where there is none at all. */
static kvp_err_t
need_thread(kvp_p2p_async_t *async)
{
    kvp_err_t err;

    if (async->idle_n > async->waiting_n || async->threads_n == THREADS_MAX) return KVP_OK;
    err = kvp_thread_start(&async->threads[async->threads_n], "kvpool-peers-a", worker_main, async);
    if (err == KVP_OK) async->threads_n++;
    return async->threads_n > 0 ? KVP_OK : err;
}

static kvp_err_t
enqueue(kvp_p2p_async_t *async, job_t *job, uint64_t *id_out)
{
    kvp_err_t err = KVP_LIMIT;

    pthread_mutex_lock(&async->lock);
    if (async->jobs_n < JOBS_MAX) err = need_thread(async);
    if (err == KVP_OK) {
        job->id = *id_out = ++async->last_id;
        kvp_list_add_tail(&async->jobs, &job->link);
        async->jobs_n++;
        async->waiting_n++;
        pthread_cond_signal(&async->work);
    }
    pthread_mutex_unlock(&async->lock);
    return err;
}

static kvp_err_t
submit(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n, uint32_t deadline_ms,
       uint64_t *id_out)
{
    kvp_hostport_t where;
    job_t *job;
    kvp_err_t err = kvp_p2p_check(peer, kind, ops, n, &where);

    if (err != KVP_OK || id_out == NULL || n > SIZE_MAX / sizeof *ops - 64) return KVP_INVALID;
    job = malloc(sizeof *job + n * sizeof *ops);
    if (job == NULL) return KVP_NOMEM;
    *job = (job_t){.peer = where, .kind = kind, .deadline_ns = kvp_p2p_deadline(p2p, deadline_ms), .n = n};
    if (n > 0) memcpy(job->ops, ops, n * sizeof *ops);
    job->held = kvp_p2p_hold(p2p, job->ops, n);
    err = job->held == NULL ? KVP_NOMEM : enqueue(p2p->async, job, id_out);
    if (err == KVP_OK) return KVP_OK;
    kvp_p2p_rele(p2p, job->held, n);
    free(job);
    return err;
}

int
kvpool_p2p_submit(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n,
                  uint32_t deadline_ms, uint64_t *id_out)
{
    kvp_err_t err = kvp_p2p_enter(p2p);

    return err != KVP_OK ? err : kvp_p2p_leave(p2p, submit(p2p, peer, kind, ops, n, deadline_ms, id_out));
}

/* Caller holds the lock. */
static job_t *
find_job(kvp_p2p_async_t *async, uint64_t id)
{
    kvp_list_foreach (pos, &async->jobs) {
        job_t *job = kvp_list_entry(pos, job_t, link);

        if (job->id == id) return job;
    }
    return NULL;
}

static kvp_err_t
poll_job(kvp_p2p_async_t *async, uint64_t id, uint64_t until_ns, int *result_out)
{
    kvp_err_t err = KVP_NOT_FOUND;
    job_t *job;

    pthread_mutex_lock(&async->lock);
    while ((job = find_job(async, id)) != NULL) {
        uint64_t now_ns = kvp_now_ns();

        err = KVP_OK;
        if (job->state == JOB_DONE) break;
        err = kvp_is_given_up(&async->p2p->is_given_up) ? KVP_CLOSED : KVP_EAGAIN;
        if (now_ns >= until_ns || err == KVP_CLOSED) break;
        kvp_cond_wait_until(&async->done, &async->lock, kvp_min_u64(until_ns, now_ns + KVP_GLANCE_NS));
        err = KVP_NOT_FOUND; /* somebody else may have asked meanwhile */
    }
    if (err == KVP_OK) {
        *result_out = job->result;
        drop(async, job);
    }
    pthread_mutex_unlock(&async->lock);
    return err;
}

int
kvpool_p2p_poll(kvpool_p2p_t *p2p, uint64_t id, uint32_t timeout_ms, int *result_out)
{
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    if (result_out == NULL) return kvp_p2p_leave(p2p, KVP_INVALID);
    return kvp_p2p_leave(p2p, poll_job(p2p->async, id, kvp_now_ns() + timeout_ms * KVP_NS_PER_MS, result_out));
}
