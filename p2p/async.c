/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p_submit and kvpool_p2p_poll: queues of transfers, and threads that run them as kvpool_p2p_transfer does.
 * The threads start when work arrives and end with the endpoint. A result stays until the caller reads it.
 *
 * Design notes. Each peer with jobs has a queue of its own, and at most A_PEER of its jobs run at a time. A peer that
 * stopped answering occupies A_PEER threads until the deadlines of its jobs. Transfers to other peers go on while
 * fewer than THREADS_MAX / A_PEER peers are stopped. Queues take turns. */
#include "p2p/endpoint.h"

#include "net/wake.h"
#include "common/waits.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 32u
#define A_PEER 2u
#define JOBS_MAX 4096u

/* A peer with waiting or running jobs. */
typedef struct {
    kvp_list_t link; /* entry in `peers` */
    kvp_list_t on_ready; /* the peer's entry in the list `ready`, while one of its jobs may begin */
    kvp_list_t waiting; /* waiting jobs, in the order of submission */
    uint32_t waiting_n, running_n;
    kvp_hostport_t where;
} peer_t;

typedef struct {
    kvp_list_t link; /* the job's entry in the list `jobs`, in the order of submission */
    kvp_list_t on_peer; /* entry in peer->waiting */
    peer_t *peer; /* the peer of the job; NULL = the job is finished */
    uint64_t id;
    kvp_err_t result;
    kvp_regs_held_t held; /* local memory, held since the submission: callers may free memory once it is unregistered */
    kvp_p2p_transfer_t transfer; /* the transfer of the pieces in ops */
    kvpool_p2p_op_t ops[];
} job_t;

struct kvp_p2p_async {
    kvpool_p2p_t *p2p;
    pthread_mutex_t lock; /* leaf lock: its holder takes no other lock; guards all fields below */
    pthread_cond_t work; /* wakes the threads */
    pthread_cond_t done; /* wakes callers of kvpool_p2p_poll */
    kvp_list_t jobs;
    uint32_t jobs_n;
    kvp_list_t peers;
    kvp_list_t ready; /* peers with a job that may begin, the longest waiting first */
    uint64_t last_id;
    bool is_stopping;
    pthread_t threads[THREADS_MAX];
    uint32_t threads_n;
    uint32_t idle_n; /* number of threads that wait for work */
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
    kvp_list_init(&async->peers);
    kvp_list_init(&async->ready);
    *async_out = async;
    return KVP_OK;
}

/* ---- peers. The callers of these functions hold the lock. */
static peer_t *
find_peer(kvp_p2p_async_t *async, const kvp_hostport_t *where)
{
    kvp_list_foreach (pos, &async->peers) {
        peer_t *peer = kvp_list_entry(pos, peer_t, link);

        if (peer->where.port == where->port && strcmp(peer->where.host, where->host) == 0) return peer;
    }
    return NULL;
}

static peer_t *
make_peer(kvp_p2p_async_t *async, const kvp_hostport_t *where)
{
    peer_t *peer = calloc(1, sizeof *peer);

    if (peer == NULL) return NULL;
    peer->where = *where;
    kvp_list_init(&peer->on_ready);
    kvp_list_init(&peer->waiting);
    kvp_list_add_tail(&async->peers, &peer->link);
    return peer;
}

/* rank_peer puts the peer into the list `ready`, takes it out, or frees it, as its waiting and running jobs require. */
static void
rank_peer(kvp_p2p_async_t *async, peer_t *peer)
{
    if (peer->waiting_n > 0 && peer->running_n < A_PEER) {
        if (kvp_list_is_empty(&peer->on_ready)) kvp_list_add_tail(&async->ready, &peer->on_ready);
        return;
    }
    kvp_list_del(&peer->on_ready);
    if (peer->running_n > 0 || peer->waiting_n > 0) return;
    kvp_list_del(&peer->link);
    free(peer);
}

/* ---- jobs */
static void
job_free(kvp_p2p_async_t *async, job_t *job)
{
    kvp_regs_rele_all(&async->p2p->ranges.regs, &job->held);
    free(job);
}

/* Frees a job. The caller holds the lock, or no other thread uses `async`. */
static void
drop_job(kvp_p2p_async_t *async, job_t *job)
{
    kvp_list_del(&job->link);
    async->jobs_n--;
    job_free(async, job);
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
        drop_job(async, kvp_list_first(&async->jobs, job_t, link));
    while (!kvp_list_is_empty(&async->peers)) {
        peer_t *peer = kvp_list_first(&async->peers, peer_t, link);

        kvp_list_del(&peer->link);
        free(peer);
    }
    pthread_cond_destroy(&async->done);
    pthread_cond_destroy(&async->work);
    pthread_mutex_destroy(&async->lock);
    free(async);
}

/* Returns the next job of the peer whose turn it is, or NULL. The caller holds the lock. */
static job_t *
begin_next(kvp_p2p_async_t *async)
{
    peer_t *peer;
    job_t *job;

    if (kvp_list_is_empty(&async->ready)) return NULL;
    peer = kvp_list_first(&async->ready, peer_t, on_ready);
    job = kvp_list_first(&peer->waiting, job_t, on_peer);
    kvp_list_del(&job->on_peer);
    peer->waiting_n--;
    kvp_list_del(&peer->on_ready); /* the peer's next turn comes after the turns of the other ready peers */
    peer->running_n++;
    rank_peer(async, peer);
    return job;
}

static void *
worker_main(void *arg)
{
    kvp_p2p_async_t *async = arg;

    pthread_mutex_lock(&async->lock);
    while (!async->is_stopping) {
        job_t *job = begin_next(async);

        if (job == NULL) {
            async->idle_n++;
            pthread_cond_wait(&async->work, &async->lock);
            async->idle_n--;
            continue;
        }
        pthread_mutex_unlock(&async->lock);
        job->result = kvp_p2p_run(async->p2p, &job->peer->where, &job->transfer);
        kvp_regs_rele_all(&async->p2p->ranges.regs, &job->held);
        kvp_p2p_count(async->p2p, job->result);
        pthread_mutex_lock(&async->lock);
        job->peer->running_n--;
        rank_peer(async, job->peer);
        job->peer = NULL;
        pthread_cond_broadcast(&async->done);
    }
    pthread_mutex_unlock(&async->lock);
    return NULL;
}

/* Returns the number of jobs that could begin at once with enough threads. The caller holds the lock. */
static uint32_t
count_ready(const kvp_p2p_async_t *async)
{
    uint32_t n = 0;

    kvp_list_foreach (pos, &async->ready) {
        const peer_t *peer = kvp_list_entry(pos, peer_t, on_ready);

        n += (uint32_t)kvp_min_u64(peer->waiting_n, A_PEER - peer->running_n);
    }
    return n;
}

/* Starts another thread if too few are idle. The caller holds the lock. Returns an error only if there is no thread
 * at all. */
static kvp_err_t
need_thread(kvp_p2p_async_t *async)
{
    kvp_err_t err;

    if (async->threads_n == THREADS_MAX || async->idle_n >= count_ready(async)) return KVP_OK;
    err = kvp_thread_start(&async->threads[async->threads_n], "kvpool-peers-a", worker_main, async);
    if (err == KVP_OK) async->threads_n++;
    return async->threads_n > 0 ? KVP_OK : err;
}

/* Adds a job to its peer's queue and makes sure that a thread exists. The caller holds the lock. */
static kvp_err_t
enqueue_locked(kvp_p2p_async_t *async, const kvp_hostport_t *where, job_t *job)
{
    peer_t *peer = find_peer(async, where);
    kvp_err_t err;

    if (async->jobs_n == JOBS_MAX) return KVP_LIMIT;
    if (peer == NULL) peer = make_peer(async, where);
    if (peer == NULL) return KVP_NOMEM;
    job->peer = peer;
    job->id = ++async->last_id;
    kvp_list_add_tail(&peer->waiting, &job->on_peer);
    peer->waiting_n++;
    rank_peer(async, peer);
    err = need_thread(async);
    if (err != KVP_OK) {
        kvp_list_del(&job->on_peer);
        peer->waiting_n--;
        rank_peer(async, peer);
        return err;
    }
    kvp_list_add_tail(&async->jobs, &job->link);
    async->jobs_n++;
    pthread_cond_signal(&async->work);
    return KVP_OK;
}

static kvp_err_t
submit_job(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n, uint32_t deadline_ms,
           uint64_t *id_out)
{
    kvp_p2p_async_t *async = p2p->async;
    kvp_hostport_t where;
    job_t *job;
    kvp_err_t err = kvp_p2p_check(peer, kind, ops, n, &where);

    if (err != KVP_OK || id_out == NULL || n > SIZE_MAX / sizeof *ops - 64) return KVP_INVALID;
    job = malloc(sizeof *job + n * sizeof *ops);
    if (job == NULL) return KVP_NOMEM;
    *job = (job_t){.transfer = {.is_write = kind == KVPOOL_P2P_WRITE,
                                .ops = job->ops,
                                .n = n,
                                .deadline_ns = kvp_p2p_deadline(p2p, deadline_ms)}};
    if (n > 0) memcpy(job->ops, ops, n * sizeof *ops);
    err = kvp_p2p_ranges_hold_local(&p2p->ranges, job->ops, n, &job->held);
    if (err == KVP_OK) {
        pthread_mutex_lock(&async->lock);
        err = enqueue_locked(async, &where, job);
        if (err == KVP_OK) *id_out = job->id;
        pthread_mutex_unlock(&async->lock);
    }
    if (err != KVP_OK) job_free(async, job);
    return err;
}

int
kvpool_p2p_submit(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n,
                  uint32_t deadline_ms, uint64_t *id_out)
{
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    err = submit_job(p2p, peer, kind, ops, n, deadline_ms, id_out);
    if (err != KVP_OK) kvp_p2p_count(p2p, err); /* after OK the thread that runs the job counts the result */
    return kvp_p2p_leave(p2p, err);
}

/* Returns the job with the id, or NULL. The caller holds the lock. */
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
        if (job->peer == NULL) break;
        err = kvp_is_given_up(&async->p2p->is_given_up) ? KVP_CLOSED : KVP_EAGAIN;
        if (now_ns >= until_ns || err == KVP_CLOSED) break;
        kvp_cond_wait_until(&async->done, &async->lock, kvp_min_u64(until_ns, now_ns + KVP_POLL_SLICE_NS));
        err = KVP_NOT_FOUND; /* for the case that another thread takes the job's result during this wait */
    }
    if (err == KVP_OK) {
        *result_out = job->result;
        drop_job(async, job);
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
