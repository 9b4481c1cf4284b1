/* SPDX-License-Identifier: Apache-2.0
 * The engine without io_uring: a few threads for reads and a few for writes, each with one system call at a time. A
 * device that hangs for one kind of request leaves the threads of the other kind free. */
#include "node/tier/disk.h"

#include "common/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define THREADS 8u /* the number of threads for reads, and for writes */

typedef struct {
    pthread_t threads[THREADS];
    uint32_t threads_n;
    pthread_cond_t has_work;
    kvp_list_t todo; /* requests not begun; guarded by lock */
    struct workers *all;
} pool_t;

typedef struct workers {
    pool_t pools[2]; /* the threads of each kind of request: [0] for reads, [1] for writes */
    int event_fd;
    pthread_mutex_t lock;
    kvp_list_t ended; /* finished requests; guarded by lock */
    bool is_closing; /* true when the threads must end; guarded by lock */
} workers_t;

static int64_t
carry_out(const kvp_tier_io_t *io)
{
    struct iovec iov = {.iov_base = io->buf + io->moved, .iov_len = io->len - io->moved};
    off_t off = (off_t)(io->off + io->moved);
    ssize_t n =
        io->is_write ? pwritev2(io->fd, &iov, 1, off, io->is_synced ? RWF_DSYNC : 0) : preadv(io->fd, &iov, 1, off);

    return n < 0 ? -errno : n;
}

static void *
worker_main(void *arg)
{
    pool_t *pool = arg;
    workers_t *w = pool->all;
    uint64_t one = 1;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (kvp_list_is_empty(&pool->todo) && !w->is_closing)
            pthread_cond_wait(&pool->has_work, &w->lock);
        if (kvp_list_is_empty(&pool->todo)) break;
        kvp_tier_io_t *io = kvp_list_first(&pool->todo, kvp_tier_io_t, link);

        kvp_list_del(&io->link);
        pthread_mutex_unlock(&w->lock);
        io->result = carry_out(io);
        pthread_mutex_lock(&w->lock);
        kvp_list_add_tail(&w->ended, &io->link);
        /* the write fails only if the eventfd's counter is full, and then the eventfd is readable anyway */
        (void)!write(w->event_fd, &one, sizeof one);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void
workers_close(kvp_tier_engine_t *engine)
{
    workers_t *w = engine->own;

    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    for (uint32_t p = 0; p < 2; p++)
        pthread_cond_broadcast(&w->pools[p].has_work);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t p = 0; p < 2; p++) {
        for (uint32_t i = 0; i < w->pools[p].threads_n; i++)
            pthread_join(w->pools[p].threads[i], NULL);
        pthread_cond_destroy(&w->pools[p].has_work);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
    engine->own = NULL;
}

static kvp_err_t
workers_open(kvp_tier_engine_t *engine)
{
    workers_t *w = calloc(1, sizeof *w);
    kvp_err_t err = KVP_OK;

    if (w == NULL) return KVP_NOMEM;
    w->event_fd = engine->event_fd;
    pthread_mutex_init(&w->lock, NULL);
    kvp_list_init(&w->ended);
    for (uint32_t p = 0; p < 2; p++) {
        w->pools[p].all = w;
        pthread_cond_init(&w->pools[p].has_work, NULL);
        kvp_list_init(&w->pools[p].todo);
    }
    engine->own = w;
    for (uint32_t n = 0; n < 2 * THREADS && err == KVP_OK; n++) {
        pool_t *pool = &w->pools[n % 2];

        err = kvp_thread_start(&pool->threads[pool->threads_n], "kvp-tier-io", worker_main, pool);
        pool->threads_n += err == KVP_OK;
    }
    if (err != KVP_OK) workers_close(engine);
    return err;
}

static bool
workers_begin(kvp_tier_engine_t *engine, kvp_tier_io_t *io)
{
    workers_t *w = engine->own;
    pool_t *pool = &w->pools[io->is_write];

    pthread_mutex_lock(&w->lock);
    kvp_list_add_tail(&pool->todo, &io->link);
    pthread_cond_signal(&pool->has_work);
    pthread_mutex_unlock(&w->lock);
    return true;
}

static kvp_tier_io_t *
workers_end(kvp_tier_engine_t *engine, int64_t *result_out)
{
    workers_t *w = engine->own;
    kvp_tier_io_t *io = NULL;

    pthread_mutex_lock(&w->lock);
    if (!kvp_list_is_empty(&w->ended)) {
        io = kvp_list_first(&w->ended, kvp_tier_io_t, link);
        kvp_list_del(&io->link);
        *result_out = io->result;
    }
    pthread_mutex_unlock(&w->lock);
    return io;
}

const kvp_tier_engine_ops_t kvp_tier_engine_workers = {
    .name = "threads",
    .open = workers_open,
    .close = workers_close,
    .begin = workers_begin,
    .end = workers_end,
};
