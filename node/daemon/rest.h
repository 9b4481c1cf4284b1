/* SPDX-License-Identifier: Apache-2.0
 * Objects over HTTP, for tools without a client library: /api/put, /api/get/KEY, /api/exist/KEY, /api/remove/KEY and
 * /api/remove_all, with the bodies of Mooncake's store service. The handlers use an ordinary client of the pool in
 * the node's process; the node does not depend on them. /api/unmount_local_disk removes the node's own SSD tier. All
 * functions but init, stop and fini run on the HTTP server's threads for slow handlers. */
#ifndef KVP_NODE_DAEMON_REST_H
#define KVP_NODE_DAEMON_REST_H

#include "client/kvpool.h"
#include "node/daemon/opts.h"
#include "node/node.h"
#include "common/daemon/http.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_REST_VALUE_MAX (100u << 20) /* the largest value, and the largest body of a request */

typedef struct {
    kvp_node_t *node; /* the node, borrowed */
    /* the options of the client handle, borrowed from the program's options */
    const char *masters, *cluster, *host_id, *transports;
    pthread_mutex_t lock;
    kvpool_t *pool; /* the client handle, opened by the first request; NULL = not opened. Guarded by lock; stays open */
    int open_err; /* the result of the last attempt to open the handle, made at tried_ns. Guarded by lock */
    uint64_t tried_ns;
    _Atomic bool is_stopping;
    bool has_lock;
} kvp_node_rest_t;

/* kvp_node_rest_init adds the routes to http, before http is started. It connects to no master; the first request
 * does. NOMEM. */
kvp_err_t kvp_node_rest_init(kvp_node_rest_t *rest, kvp_http_t *http, const kvp_node_opts_t *opts, kvp_node_t *node)
    KVP_MUST_USE;

/* kvp_node_rest_stop ends the calls of waiting handlers; later requests get 503. Call it before the HTTP server's stop,
 * which waits for the handlers. */
void kvp_node_rest_stop(kvp_node_rest_t *rest);

/* kvp_node_rest_fini frees the state after the HTTP server's stop. kvp_node_rest_stop and _fini are legal on zeroes. */
void kvp_node_rest_fini(kvp_node_rest_t *rest);

#endif
