/* SPDX-License-Identifier: Apache-2.0
 * The options of kvpool-node: their table, and the struct of their values. */
#ifndef KVP_NODE_DAEMON_OPTS_H
#define KVP_NODE_DAEMON_OPTS_H

#include "common/daemon/conf.h"
#include "common/trust/creds.h"

typedef struct {
    const char *masters, *cluster;
    const char *name;
    uint64_t memory_bytes;
    kvp_strings_t ssd;
    uint64_t ssd_writes;
    uint64_t chunk_bytes;
    const char *listen;
    const char *transports;
    const char *rdma_device;
    const char *rdma_gid_index;
    kvp_hostport_t http;
    bool has_rest, has_metrics_token;
    const char *http_token_file, *audit;
    const char *host_id;
    const char *runtime_dir;
    const char *trust_uid;
    kvp_creds_t creds;
    uint64_t lanes;
    int keeper; /* a kvp_keep_mode_t, as the index of the chosen word */
    uint64_t keeper_hold_ns;
    uint64_t drain_ns; /* the time limit of a stopping node's drain; 0 = no drain */
    bool has_populate;
} kvp_node_opts_t;

extern const kvp_conf_spec_t kvp_node_spec;

#endif
