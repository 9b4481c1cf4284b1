/* SPDX-License-Identifier: Apache-2.0 */
#include "node/tier/disk.h"

#include "common/clock.h"
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
    kvp_list_init(&engine->under_way);
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

static bool
begin_io(kvp_tier_engine_t *engine, kvp_tier_io_t *io)
{
    io->begun_ns = kvp_now_ns();
    io->is_late = io->is_written_off = false;
    if (!engine->ops->begin(engine, io)) return false;
    kvp_list_add_tail(&engine->under_way, &io->age);
    engine->begun++;
    return true;
}

static void
begin_waiting(kvp_tier_engine_t *engine)
{
    while (engine->begun < KVP_TIER_DEPTH && !kvp_list_is_empty(&engine->waiting)) {
        kvp_tier_io_t *io = kvp_list_first(&engine->waiting, kvp_tier_io_t, link);

        kvp_list_del(&io->link);
        if (begin_io(engine, io)) continue;
        kvp_list_add_head(&engine->waiting, &io->link);
        return;
    }
}

void
kvp_tier_engine_submit(kvp_tier_engine_t *engine, kvp_tier_io_t *io)
{
    io->moved = 0;
    kvp_list_add_tail(&engine->waiting, &io->link);
    begin_waiting(engine);
}

void
kvp_tier_engine_begin_now(kvp_tier_engine_t *engine, kvp_tier_io_t *io)
{
    io->moved = 0;
    if (!begin_io(engine, io)) kvp_list_add_head(&engine->waiting, &io->link);
}

static void
note_late(kvp_tier_engine_t *engine, kvp_tier_io_t *io, uint64_t now_ns)
{
    if (io->is_late || now_ns < io->begun_ns + KVP_TIER_STALL_NS) return;
    io->is_late = true;
    engine->stalls++;
}

bool
kvp_tier_engine_is_late(kvp_tier_engine_t *engine, bool is_write, uint64_t now_ns)
{
    bool is_late = false;

    kvp_list_foreach (l, &engine->under_way) {
        kvp_tier_io_t *io = kvp_list_entry(l, kvp_tier_io_t, age);

        if (io->is_write != is_write || io->is_written_off) continue;
        note_late(engine, io, now_ns);
        is_late |= io->is_late;
    }
    return is_late;
}

bool
kvp_tier_engine_hangs(const kvp_tier_engine_t *engine, uint64_t now_ns)
{
    kvp_list_foreach (l, &engine->under_way)
        if (now_ns >= kvp_list_entry(l, kvp_tier_io_t, age)->begun_ns + KVP_TIER_STALL_NS) return true;
    return false;
}

void
kvp_tier_engine_write_off(kvp_tier_engine_t *engine, bool is_write, uint64_t then_ns)
{
    kvp_list_foreach (l, &engine->under_way) {
        kvp_tier_io_t *io = kvp_list_entry(l, kvp_tier_io_t, age);

        if (io->is_write != is_write || io->is_written_off || io->begun_ns >= then_ns) continue;
        io->is_written_off = true;
        engine->begun--;
    }
    begin_waiting(engine);
}

/* Accounts the result of a request. Returns false if the rest of the request must be repeated. Partial blocks do not
 * count, because direct I/O continues at a block. */
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
        engine->begun -= !io->is_written_off;
        kvp_list_del(&io->age);
        note_late(engine, io, kvp_now_ns());
        if (!is_over(io, result)) {
            kvp_list_add_head(&engine->waiting, &io->link);
            continue;
        }
        if (io->err != KVP_OK) {
            engine->errors++;
            engine->error = result < 0 ? (int)-result : EIO; /* a result of 0 means that the file was truncated */
        }
        n++;
        io->done(io);
    }
    begin_waiting(engine);
    return n;
}

void
kvp_tier_engine_wait(kvp_tier_engine_t *engine, int timeout_ms)
{
    struct pollfd p = {.fd = engine->event_fd, .events = POLLIN};

    if (kvp_tier_engine_poll(engine, KVP_TIER_DEPTH) > 0 || kvp_list_is_empty(&engine->under_way)) return;
    while (poll(&p, 1, timeout_ms) > 0 && kvp_tier_engine_poll(engine, KVP_TIER_DEPTH) == 0 &&
           !kvp_list_is_empty(&engine->under_way))
        continue;
}
