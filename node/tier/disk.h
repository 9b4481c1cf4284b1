/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes of one file of the SSD tier: by io_uring, or else (also with KVPOOL_TIER_ENGINE=pread in the
 * environment) by threads that call preadv and pwritev2. One thread at a time submits and waits. Each device has an
 * engine of its own, so a hanging device takes neither threads nor turns from other devices. */
#ifndef KVP_NODE_TIER_DISK_H
#define KVP_NODE_TIER_DISK_H

#include "node/tier/io.h"

#define KVP_TIER_DEPTH 64u /* the most requests under way at once; further requests wait */
#define KVP_TIER_STALL_NS 2000000000ull /* a request under way for this long is a stall */

typedef struct kvp_tier_engine kvp_tier_engine_t;

typedef struct {
    const char *name;
    kvp_err_t (*open)(kvp_tier_engine_t *engine);
    void (*close)(kvp_tier_engine_t *engine);
    /* begins the rest of a request, after its `moved` bytes; false = cannot begin now */
    bool (*begin)(kvp_tier_engine_t *engine, kvp_tier_io_t *io);
    /* Returns the next finished request, and the result of its system call in *result_out; NULL = none. */
    kvp_tier_io_t *(*end)(kvp_tier_engine_t *engine, int64_t *result_out);
} kvp_tier_engine_ops_t;

extern const kvp_tier_engine_ops_t kvp_tier_engine_uring;
extern const kvp_tier_engine_ops_t kvp_tier_engine_workers;

struct kvp_tier_engine {
    const kvp_tier_engine_ops_t *ops;
    void *own; /* the private data of the engine in use */
    int event_fd; /* an eventfd that is readable when a request has ended */
    kvp_list_t waiting;
    kvp_list_t under_way; /* requests under way: a list of kvp_tier_io_t.age */
    uint32_t begun; /* the number of requests under way that are not written off */
    int error; /* the errno of the last failed request; 0 = none has failed */
    _Atomic uint64_t errors, stalls;
};

/* kvp_tier_engine_open sets up the engine with io_uring, or else with threads, and logs the choice: SYS.
 * kvp_tier_engine_submit queues a request whose fd is set; at most KVP_TIER_DEPTH are under way at once.
 * kvp_tier_engine_poll calls done for up to max finished requests and returns their number; if this is max, more may be
 * finished although event_fd is not readable. kvp_tier_engine_wait polls; if no request has finished, it waits until
 * one ends, at most timeout_ms (-1 = no limit). kvp_tier_engine_close: no request may be under way. */
kvp_err_t kvp_tier_engine_open(kvp_tier_engine_t *engine) KVP_MUST_USE;
void kvp_tier_engine_close(kvp_tier_engine_t *engine);
void kvp_tier_engine_submit(kvp_tier_engine_t *engine, kvp_tier_io_t *io);
uint32_t kvp_tier_engine_poll(kvp_tier_engine_t *engine, uint32_t max);
void kvp_tier_engine_wait(kvp_tier_engine_t *engine, int timeout_ms);

/* kvp_tier_engine_is_late counts the reads, or writes, that have become stalls, and returns whether a stalled request
 * of this kind is under way. kvp_tier_engine_begin_now begins a request even over the depth limit.
 * kvp_tier_engine_write_off is called when the device works again: requests begun before then_ns no longer count as
 * under way. */
bool kvp_tier_engine_is_late(kvp_tier_engine_t *engine, bool is_write, uint64_t now_ns);
/* whether any request stalls, including written-off requests */
bool kvp_tier_engine_hangs(const kvp_tier_engine_t *engine, uint64_t now_ns);
void kvp_tier_engine_begin_now(kvp_tier_engine_t *engine, kvp_tier_io_t *io);
void kvp_tier_engine_write_off(kvp_tier_engine_t *engine, bool is_write, uint64_t then_ns);

#endif
