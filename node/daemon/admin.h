/* SPDX-License-Identifier: Apache-2.0
 * /health and /metrics of kvpool-node. Part of the daemon only, not of the library. */
#ifndef KVP_NODE_DAEMON_ADMIN_H
#define KVP_NODE_DAEMON_ADMIN_H

#include "node/node.h"
#include "common/daemon/http.h"
#include "common/metrics.h"

typedef struct {
    kvp_node_t *node; /* the node, borrowed until the HTTP server is stopped */
    kvp_metrics_t *metrics;
    kvp_node_info_t info; /* the node's figures at the time of the current request; used only by the HTTP thread */
    uint64_t figures[16]; /* copies of the fields of info, in the order of the table of figures */
} kvp_node_admin_t;

/* kvp_node_admin_init adds the routes to http, before http is started. NOMEM. kvp_node_admin_fini is called after the
 * HTTP server was stopped. */
kvp_err_t kvp_node_admin_init(kvp_node_admin_t *admin, kvp_http_t *http, kvp_node_t *node) KVP_MUST_USE;
void kvp_node_admin_fini(kvp_node_admin_t *admin);

#endif
