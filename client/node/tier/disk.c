/* SPDX-License-Identifier: Apache-2.0 */
#include "client/node/tier/disk.h"

#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

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
        if (result > 0) io->moved += (uint32_t)result;
        if (result == -EINTR || result == -EAGAIN || (result > 0 && io->moved < io->len)) {
            kvp_list_add_head(&engine->waiting, &io->link);
            continue;
        }
        io->err = io->moved == io->len ? KVP_OK : KVP_SYS; /* 0: the file has been cut */
        engine->errors += io->err != KVP_OK;
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
