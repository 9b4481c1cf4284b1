/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes of one file of the tier: by io_uring, or else (also with
 * KVPOOL_TIER_ENGINE=pread in the environment) by threads that call preadv and pwritev2. One thread
 * at a time submits and waits. Each device has an engine of its own, so a hanging device takes
 * neither threads nor turns from the others. */
#ifndef KVP_NODE_TIER_DISK_H
#define KVP_NODE_TIER_DISK_H

#include "node/tier/io.h"

#define KVP_TIER_DEPTH 64u /* requests under way at once; further ones wait */
#define KVP_TIER_STALL_NS 2000000000ull /* a request under way for this long is a stall */

typedef struct kvp_tier_engine kvp_tier_engine_t;

typedef struct {
    const char *name;
    kvp_err_t (*open)(kvp_tier_engine_t *engine);
    void (*close)(kvp_tier_engine_t *engine);
    bool (*begin)(kvp_tier_engine_t *engine, kvp_tier_io_t *io); /* of moved bytes on; false = not now */
    /* Returns the next finished request, with its result in the form of the system calls; NULL =
     * none. */
    kvp_tier_io_t *(*end)(kvp_tier_engine_t *engine, int64_t *result_out);
} kvp_tier_engine_ops_t;

extern const kvp_tier_engine_ops_t kvp_tier_engine_uring;
extern const kvp_tier_engine_ops_t kvp_tier_engine_workers;

struct kvp_tier_engine {
    const kvp_tier_engine_ops_t *ops;
    void *own; /* the engine's */
    int event_fd; /* readable when something has ended */
    kvp_list_t waiting;
    kvp_list_t under_way; /* kvp_tier_io_t.age */
    uint32_t begun; /* of them, those not written off */
    int error; /* the errno of the last request that failed; 0 = none did */
    _Atomic uint64_t errors, stalls;
};

/* kvp_tier_engine_open chooses and logs the engine: SYS. _submit takes an io, whose fd is set.
 * _poll calls done for up to max finished requests and returns their number; if it is max, more may
 * be finished without the descriptor showing it. _wait also waits for one, at most timeout_ms (-1 =
 * for ever), unless no request is under way. _close: no request may be under way. */
kvp_err_t kvp_tier_engine_open(kvp_tier_engine_t *engine) KVP_MUST_USE;
void kvp_tier_engine_close(kvp_tier_engine_t *engine);
void kvp_tier_engine_submit(kvp_tier_engine_t *engine, kvp_tier_io_t *io);
uint32_t kvp_tier_engine_poll(kvp_tier_engine_t *engine, uint32_t max);
void kvp_tier_engine_wait(kvp_tier_engine_t *engine, int timeout_ms);

/* kvp_tier_engine_is_late counts the reads, or writes, that have become stalls, and returns whether
 * a stalled one is under way. _begin_now begins a request over the depth limit. _write_off: the
 * device works again, and requests begun before then are no longer waited for. */
bool kvp_tier_engine_is_late(kvp_tier_engine_t *engine, bool is_write, uint64_t now_ns);
bool kvp_tier_engine_hangs(const kvp_tier_engine_t *engine, uint64_t now_ns); /* including written-off requests */
void kvp_tier_engine_begin_now(kvp_tier_engine_t *engine, kvp_tier_io_t *io);
void kvp_tier_engine_write_off(kvp_tier_engine_t *engine, bool is_write, uint64_t then_ns);

#endif
