/* SPDX-License-Identifier: Apache-2.0
 * Objects over HTTP, for tools that have nothing else: /api/put, /api/get/KEY, /api/exist/KEY,
 * /api/remove/KEY and /api/remove_all, with the bodies of Mooncake's store service. A client of the
 * pool as any other, in the node's process; the node itself knows nothing of it.
 * /api/unmount_local_disk is about the node's own SSD tier. All but init, stop and fini runs on the
 * server's threads for slow handlers. */
#ifndef KVP_NODE_DAEMON_REST_H
#define KVP_NODE_DAEMON_REST_H

#include "client/kvpool.h"
#include "node/daemon/opts.h"
#include "node/node.h"
#include "common/daemon/http.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_REST_VALUE_MAX (100u << 20) /* bytes of a value, and of a request's body */

typedef struct {
    kvp_node_t *node; /* borrowed */
    const char *masters, *cluster, *host_id, *transports; /* the options', borrowed */
    pthread_mutex_t lock;
    kvpool_t *pool; /* from the first request on; NULL = not opened. Guarded by lock; stays once open */
    int open_err; /* of the last try to open it, at tried_ns. Guarded by lock */
    uint64_t tried_ns;
    _Atomic bool is_stopping;
    bool has_lock;
} kvp_node_rest_t;

/* kvp_node_rest_init adds the routes to http, which is not started yet. It connects to no master:
 * the first request does. NOMEM. */
kvp_err_t kvp_node_rest_init(kvp_node_rest_t *rest, kvp_http_t *http, const kvp_node_opts_t *opts, kvp_node_t *node)
    KVP_MUST_USE;

/* kvp_node_rest_stop ends what handlers wait for; later requests are 503. Before the server's stop,
 * which waits for them. */
void kvp_node_rest_stop(kvp_node_rest_t *rest);

/* kvp_node_rest_fini comes after the server's stop. Both are legal on zeroes. */
void kvp_node_rest_fini(kvp_node_rest_t *rest);

#endif
