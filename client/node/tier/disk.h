/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes of the tier's files: by io_uring, or where that is not to be had (or KVPOOL_TIER_ENGINE=pread is in the environment) by
 * threads that call preadv and pwritev2. One thread submits and waits.
 */
#ifndef KVP_CLIENT_NODE_TIER_DISK_H
#define KVP_CLIENT_NODE_TIER_DISK_H

#include "client/node/tier/io.h"

#define KVP_TIER_DEPTH 64u /* under way at once: the others wait */

typedef struct kvp_tier_engine kvp_tier_engine_t;

typedef struct {
    const char *name;
    kvp_err_t (*open)(kvp_tier_engine_t *engine);
    void (*close)(kvp_tier_engine_t *engine);
    bool (*begin)(kvp_tier_engine_t *engine, kvp_tier_io_t *io); /* of moved bytes on; false = not now */
    /* The next that has ended, with its result as the system calls have it; NULL = none has. */
    kvp_tier_io_t *(*end)(kvp_tier_engine_t *engine, int64_t *result_out);
} kvp_tier_engine_ops_t;

extern const kvp_tier_engine_ops_t kvp_tier_engine_uring;
extern const kvp_tier_engine_ops_t kvp_tier_engine_workers;

struct kvp_tier_engine {
    const kvp_tier_engine_ops_t *ops;
    void *own; /* the engine's */
    int event_fd; /* readable when something has ended */
    kvp_list_t waiting;
    uint32_t begun;
    uint64_t errors, stalls;
};

/* kvp_tier_engine_open chooses, and says which. _submit takes an io, whose fd and fault are set. _poll calls done for what has ended, max of them: how many; where it is max there
 * may be more, and the descriptor does not say so. _wait also waits for
 * one, unless nothing is under way. _close: nothing is under way. */
kvp_err_t kvp_tier_engine_open(kvp_tier_engine_t *engine) KVP_MUST_USE;
void kvp_tier_engine_close(kvp_tier_engine_t *engine);
void kvp_tier_engine_submit(kvp_tier_engine_t *engine, kvp_tier_io_t *io);
uint32_t kvp_tier_engine_poll(kvp_tier_engine_t *engine, uint32_t max);
void kvp_tier_engine_wait(kvp_tier_engine_t *engine);

#endif
