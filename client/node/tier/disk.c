/* SPDX-License-Identifier: Apache-2.0 */
#include "client/node/tier/disk.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STALL_NS (2 * KVP_NS_PER_S)

kvp_err_t
kvp_tier_engine_open(kvp_tier_engine_t *engine)
{
    const char *forced = getenv("KVPOOL_TIER_ENGINE");
    bool has_uring = forced == NULL || strcmp(forced, "pread") != 0;

    *engine = (kvp_tier_engine_t){.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    kvp_list_init(&engine->waiting);
    if (engine->event_fd < 0) {
        kvp_log_error("tier", "no event descriptor: %m");
        return KVP_SYS;
    }
    engine->ops = &kvp_tier_engine_uring;
    if (has_uring && engine->ops->open(engine) == KVP_OK) {
        kvp_log_info("tier", "reads and writes by io_uring");
        return KVP_OK;
    }
    engine->ops = &kvp_tier_engine_workers;
    kvp_log_info("tier", "reads and writes by threads: %s",
                 has_uring ? "io_uring is not to be had" : "KVPOOL_TIER_ENGINE says so");
    return engine->ops->open(engine);
}

void
kvp_tier_engine_close(kvp_tier_engine_t *engine)
{
    if (engine->own != NULL) engine->ops->close(engine);
    if (engine->event_fd >= 0) close(engine->event_fd);
    engine->event_fd = -1;
}

static void
begin_waiting(kvp_tier_engine_t *engine)
{
    while (engine->begun < KVP_TIER_DEPTH && !kvp_list_is_empty(&engine->waiting)) {
        kvp_tier_io_t *io = kvp_list_first(&engine->waiting, kvp_tier_io_t, link);

        kvp_list_del(&io->link);
        io->begun_ns = kvp_now_ns();
        if (!engine->ops->begin(engine, io)) {
            kvp_list_add_head(&engine->waiting, &io->link);
            return;
        }
        engine->begun++;
    }
}

void
kvp_tier_engine_submit(kvp_tier_engine_t *engine, kvp_tier_io_t *io)
{
    io->moved = 0;
    kvp_list_add_tail(&engine->waiting, &io->link);
    begin_waiting(engine);
}

static void
note_faults(kvp_tier_engine_t *engine, const kvp_tier_io_t *io, int64_t result)
{
    uint64_t took_ns = kvp_now_ns() - io->begun_ns;

    if (took_ns >= STALL_NS) {
        engine->stalls++;
        io->fault->stalled_ms = (uint32_t)kvp_min_u64(took_ns / KVP_NS_PER_MS, UINT32_MAX);
    }
    if (io->err == KVP_OK) return;
    engine->errors++;
    io->fault->error = result < 0 ? (int)-result : EIO; /* 0: the file has been cut */
}

/* False: the rest, or all, is to be done again. What is less than a block is: direct I/O goes on at a block. */
static bool
is_over(kvp_tier_io_t *io, int64_t result)
{
    uint32_t moved = result > 0 ? (uint32_t)result / KVP_TIER_BLOCK * KVP_TIER_BLOCK : 0;

    io->moved += moved;
    io->err = io->moved == io->len ? KVP_OK : KVP_SYS;
    return io->err == KVP_OK || (moved == 0 && result != -EINTR && result != -EAGAIN);
}

uint32_t
kvp_tier_engine_poll(kvp_tier_engine_t *engine, uint32_t max)
{
    uint64_t count;
    kvp_tier_io_t *io;
    uint32_t n = 0;
    int64_t result;

    if (read(engine->event_fd, &count, sizeof count) < 0 && errno != EAGAIN) return 0;
    while (n < max && (io = engine->ops->end(engine, &result)) != NULL) {
        engine->begun--;
        if (!is_over(io, result)) {
            kvp_list_add_head(&engine->waiting, &io->link);
            continue;
        }
        note_faults(engine, io, result);
        n++;
        io->done(io);
    }
    begin_waiting(engine);
    return n;
}

void
kvp_tier_engine_wait(kvp_tier_engine_t *engine)
{
    struct pollfd p = {.fd = engine->event_fd, .events = POLLIN};

    while (kvp_tier_engine_poll(engine, KVP_TIER_DEPTH) == 0 && engine->begun > 0)
        (void)poll(&p, 1, -1);
}
