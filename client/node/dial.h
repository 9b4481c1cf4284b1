/* SPDX-License-Identifier: Apache-2.0
 * Finds a master that answers: connects, says Hello, changes to the Unix socket on its own host. Connecting blocks, so it
 * has a thread; what it finds is handed to the control thread.
 */
#ifndef KVP_CLIENT_NODE_DIAL_H
#define KVP_CLIENT_NODE_DIAL_H

#include "client/net/hello.h"
#include "client/net/names.h"
#include "common/log.h"
#include "common/parse.h"

#include <pthread.h>

#define KVP_NODE_MASTERS_MAX 16u

typedef struct {
    kvp_framed_t conn;
    kvp_hello_reply_t hello;
    char local_host[KVP_HOST_MAX]; /* our own address as this master's network sees it */
} kvp_node_dialed_t;

/* What the node was before it lost its master. */
typedef struct {
    uint64_t incarnation; /* of the session before, or 0 */
    kvp_known_pool_t known; /* the pool of its memory; term 0 = it has none */
} kvp_node_was_t;

typedef struct {
    kvp_hostport_t masters[KVP_NODE_MASTERS_MAX];
    size_t masters_n;
    char name[129]; /* told in Hello */
    char host_id[KVP_HOST_ID_MAX + 1];
    int wake_fd; /* of the control thread */
    kvp_log_limit_t noise;
    kvp_names_t *names; /* made by start */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_stopping; /* guarded by lock, as is what follows */
    bool is_wanted;
    bool is_good; /* the connection before served its purpose: begin at once */
    bool has_result;
    kvp_node_dialed_t result;
    kvp_err_t last_err; /* of the last attempt */
    uint64_t attempts;
    kvp_node_was_t was;
} kvp_node_dial_t;

/* The caller fills the settings; start makes the thread (SYS, NOMEM). stop ends it, within a second where a master's
 * host, or who knows its name, does not answer; legal on a zeroed value. */
kvp_err_t kvp_node_dial_start(kvp_node_dial_t *d) KVP_MUST_USE;
void kvp_node_dial_stop(kvp_node_dial_t *d);

/* kvp_node_dial_want asks for one connection. is_good: the one before was mounted, so there is no back-off at first.
 * was is copied. */
void kvp_node_dial_want(kvp_node_dial_t *d, bool is_good, const kvp_node_was_t *was);

/* kvp_node_dial_take moves the connection to the caller, if there is one. *err_out is how the last attempt ended, OK when
 * there was none since. */
bool kvp_node_dial_take(kvp_node_dial_t *d, kvp_node_dialed_t *dialed_out, kvp_err_t *err_out);

#endif
