/* SPDX-License-Identifier: Apache-2.0
 * Plays a workload against a pool as an inference engine's connector does: look up the longest prefix, load it,
 * store the rest. Every byte that is read is compared with the stored one. There are no pauses: the next request
 * begins when the last one has ended. Each client has a thread and a handle. */
#ifndef KVP_TOOLS_REPLAY_PLAY_H
#define KVP_TOOLS_REPLAY_PLAY_H

#include "tools/base/json_out.h"
#include "tools/replay/trace.h"
#include "client/kvpool.h"

#include "common/hist.h"

#define KVP_REPLAY_CLIENTS_MAX 64u
#define KVP_REPLAY_PATHS_MAX 4u

typedef struct {
    const kvp_workload_t *workload; /* the requests to play; borrowed */
    const kvpool_conf_t *pool; /* configuration with which each client opens the pool; borrowed */
    uint64_t block_bytes;
    uint64_t salt; /* part of keys and contents, so that the blocks of two runs in one pool differ */
    uint32_t clients;
    uint64_t rate; /* limit of blocks per second, of all clients together; 0 = no limit */
    /* Called on kvp_replay_run's thread a few times a second, and once at the end. Returning false ends the run. */
    bool (*progress)(void *arg, size_t requests_done);
    void *arg;
} kvp_replay_conf_t;

typedef struct {
    uint64_t requests, blocks;
    uint64_t hits; /* number of blocks that a look-up reserved and that were read correctly */
    uint64_t found_not_granted; /* number of blocks that a look-up found but did not reserve */
    uint64_t gets_failed; /* number of blocks whose get failed although a look-up had reserved them */
    uint64_t wrong_blocks, wrong_bytes;
    uint64_t puts_done; /* number of puts after which the block is in the pool: stored now or before */
    uint64_t puts_new; /* number of puts that stored a new block */
    uint64_t puts_in_progress; /* number of puts of a block that another client was storing */
    uint64_t puts_refused; /* number of puts that were refused for lack of space */
    uint64_t puts_failed; /* number of puts that failed for another reason */
    uint64_t get_bytes, put_bytes; /* bytes read from the pool; bytes written to the pool */
    uint64_t get_ns, put_ns, lookup_ns; /* total time in gets, puts and look-ups, of all clients */
    uint64_t elapsed_ns;
    kvp_json_path_t paths[KVP_REPLAY_PATHS_MAX];
    size_t paths_n;
    int first_get_error, first_put_error;
    kvp_hist_t lookup, get, put; /* latency histograms of look-ups, gets and puts, in nanoseconds */
} kvp_replay_result_t;

/* kvp_replay_run plays the whole workload. Failed gets and refused puts are only counted. An error means that the
 * run could not continue (opening failed, a look-up failed, no memory); CANCELLED: progress returned false.
 * *result_out is set in any case. */
int kvp_replay_run(const kvp_replay_conf_t *conf, kvp_replay_result_t *result_out);

#endif
