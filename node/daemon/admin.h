/* SPDX-License-Identifier: Apache-2.0
 * /health and /metrics of kvpool-node. Part of the daemon, not of the library.
 */
#ifndef KVP_NODE_DAEMON_ADMIN_H
#define KVP_NODE_DAEMON_ADMIN_H

#include "node/node.h"
#include "common/daemon/http.h"
#include "common/daemon/metrics.h"

typedef struct {
    kvp_node_t *node; /* borrowed until the server is stopped */
    kvp_metrics_t *metrics;
    kvp_node_info_t info; /* as of the request that is being answered; HTTP thread only */
    uint64_t figures[16]; /* of info, in the order of the table */
} kvp_node_admin_t;

/* kvp_node_admin_init adds the routes to http, which is not started yet. NOMEM. fini comes after the server's stop. */
kvp_err_t kvp_node_admin_init(kvp_node_admin_t *admin, kvp_http_t *http, kvp_node_t *node) KVP_MUST_USE;
void kvp_node_admin_fini(kvp_node_admin_t *admin);

#endif
