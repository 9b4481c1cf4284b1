/* SPDX-License-Identifier: Apache-2.0
 * The engine without io_uring: a few threads, each with one call at a time.
 */
#include "client/node/tier/disk.h"

#include "common/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define THREADS 8u

typedef struct {
    kvp_tier_io_t *io;
    int64_t result;
} ended_t;

typedef struct {
    pthread_t threads[THREADS];
    uint32_t threads_n;
    int event_fd;
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    kvp_list_t todo; /* guarded by lock, as all that follows */
    ended_t ended[KVP_TIER_DEPTH];
    uint32_t ended_n;
    bool is_closing;
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
    workers_t *w = arg;
    uint64_t one = 1;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (kvp_list_is_empty(&w->todo) && !w->is_closing)
            pthread_cond_wait(&w->has_work, &w->lock);
        if (kvp_list_is_empty(&w->todo)) break;
        kvp_tier_io_t *io = kvp_list_first(&w->todo, kvp_tier_io_t, link);

        kvp_list_del(&io->link);
        pthread_mutex_unlock(&w->lock);
        int64_t result = carry_out(io);

        pthread_mutex_lock(&w->lock);
        w->ended[w->ended_n++] = (ended_t){.io = io, .result = result};
        (void)!write(w->event_fd, &one, sizeof one); /* full: it is readable anyway */
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
    pthread_cond_broadcast(&w->has_work);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->threads_n; i++)
        pthread_join(w->threads[i], NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->has_work);
    free(w);
    engine->own = NULL;
}

static kvp_err_t
workers_open(kvp_tier_engine_t *engine)
{
    workers_t *w = calloc(1, sizeof *w);

    if (w == NULL) return KVP_NOMEM;
    w->event_fd = engine->event_fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->has_work, NULL);
    kvp_list_init(&w->todo);
    engine->own = w;
    while (w->threads_n < THREADS) {
        kvp_err_t err = kvp_thread_start(&w->threads[w->threads_n], "kvp-tier-io", worker_main, w);

        if (err != KVP_OK) {
            workers_close(engine);
            return err;
        }
        w->threads_n++;
    }
    return KVP_OK;
}

static bool
workers_begin(kvp_tier_engine_t *engine, kvp_tier_io_t *io)
{
    workers_t *w = engine->own;

    pthread_mutex_lock(&w->lock);
    kvp_list_add_tail(&w->todo, &io->link);
    pthread_cond_signal(&w->has_work);
    pthread_mutex_unlock(&w->lock);
    return true;
}

static kvp_tier_io_t *
workers_end(kvp_tier_engine_t *engine, int64_t *result_out)
{
    workers_t *w = engine->own;
    kvp_tier_io_t *io = NULL;

    pthread_mutex_lock(&w->lock);
    if (w->ended_n > 0) {
        ended_t ended = w->ended[--w->ended_n];

        io = ended.io;
        *result_out = ended.result;
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
