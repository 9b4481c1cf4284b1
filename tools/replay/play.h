/* SPDX-License-Identifier: Apache-2.0
 * Plays a workload against a pool like an inference engine's connector: look up the longest prefix,
 * load it, store the rest. Every returned byte is compared with the stored one. No think times: the
 * next request begins at the end of the last. One thread and one handle a client. */
#ifndef KVP_TOOLS_REPLAY_PLAY_H
#define KVP_TOOLS_REPLAY_PLAY_H

#include "tools/base/json_out.h"
#include "tools/replay/trace.h"
#include "client/kvpool.h"

#include "common/hist.h"

#define KVP_REPLAY_CLIENTS_MAX 64u
#define KVP_REPLAY_PATHS_MAX 4u

typedef struct {
    const kvp_workload_t *workload; /* borrowed */
    const kvpool_conf_t *pool; /* borrowed; how each client opens the pool */
    uint64_t block_bytes;
    uint64_t salt; /* part of keys and contents: sets this run's blocks apart from another's in the same pool */
    uint32_t clients;
    uint64_t rate; /* blocks a second of all clients together, at most; 0 = no bound */
    /* progress is called by the calling thread a few times a second, and once at the end. False ends the run. */
    bool (*progress)(void *arg, size_t requests_done);
    void *arg;
} kvp_replay_conf_t;

typedef struct {
    uint64_t requests, blocks;
    uint64_t hits; /* blocks of granted prefixes that came back right */
    uint64_t found_not_granted; /* blocks that lookups found but did not reserve */
    uint64_t gets_failed; /* after a lookup had granted them */
    uint64_t wrong_blocks, wrong_bytes;
    uint64_t puts_done; /* the block is there: stored now, or before */
    uint64_t puts_new; /* of these, stored now */
    uint64_t puts_in_progress; /* another client was storing it */
    uint64_t puts_refused; /* for space */
    uint64_t puts_failed; /* otherwise */
    uint64_t get_bytes, put_bytes; /* moved to and from the pool */
    uint64_t get_ns, put_ns, lookup_ns; /* in the calls, all clients together */
    uint64_t elapsed_ns;
    kvp_json_path_t paths[KVP_REPLAY_PATHS_MAX];
    size_t paths_n;
    int first_get_error, first_put_error;
    kvp_hist_t lookup, get, put; /* nanoseconds a call */
} kvp_replay_result_t;

/* kvp_replay_run plays the whole workload. An error means that it could not go on (opening failed,
 * a lookup failed, no memory), CANCELLED that progress ended it; failed gets and refused puts are
 * counted instead. *result_out is set in both cases. */
int kvp_replay_run(const kvp_replay_conf_t *conf, kvp_replay_result_t *result_out);

#endif
