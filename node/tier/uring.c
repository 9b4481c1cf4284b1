/* SPDX-License-Identifier: Apache-2.0 */
#include "node/tier/disk.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/uio.h>

static kvp_err_t
uring_open(kvp_tier_engine_t *engine)
{
    struct io_uring *ring = calloc(1, sizeof *ring);
    int rc = ring == NULL ? -ENOMEM : io_uring_queue_init(KVP_TIER_DEPTH, ring, 0);

    if (rc == 0) {
        rc = io_uring_register_eventfd(ring, engine->event_fd);
        if (rc != 0) io_uring_queue_exit(ring);
    }
    if (rc != 0) {
        free(ring);
        return KVP_SYS;
    }
    engine->own = ring;
    return KVP_OK;
}

static void
uring_close(kvp_tier_engine_t *engine)
{
    io_uring_queue_exit(engine->own);
    free(engine->own);
    engine->own = NULL;
}

static bool
uring_begin(kvp_tier_engine_t *engine, kvp_tier_io_t *io)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(engine->own);

    if (sqe == NULL) return false;
    if (io->is_write) {
        io_uring_prep_write(sqe, io->fd, io->buf + io->moved, io->len - io->moved, io->off + io->moved);
        sqe->rw_flags = io->is_synced ? RWF_DSYNC : 0;
    } else {
        io_uring_prep_read(sqe, io->fd, io->buf + io->moved, io->len - io->moved, io->off + io->moved);
    }
    io_uring_sqe_set_data(sqe, io);
    (void)io_uring_submit(engine->own); /* a request that cannot be submitted now is submitted with the next */
    return true;
}

static kvp_tier_io_t *
uring_end(kvp_tier_engine_t *engine, int64_t *result_out)
{
    struct io_uring_cqe *cqe;
    kvp_tier_io_t *io;

    if (io_uring_sq_ready(engine->own) > 0) (void)io_uring_submit(engine->own);
    if (io_uring_peek_cqe(engine->own, &cqe) != 0) return NULL;
    io = io_uring_cqe_get_data(cqe);
    *result_out = cqe->res;
    io_uring_cqe_seen(engine->own, cqe);
    return io;
}

const kvp_tier_engine_ops_t kvp_tier_engine_uring = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .begin = uring_begin,
    .end = uring_end,
};
