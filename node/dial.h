/* SPDX-License-Identifier: Apache-2.0
 * Finds the leading master: connects, sends Hello, changes to the Unix socket on its own host.
 * Connecting blocks, so it has a thread, which gives the connection to the control thread.
 * Afterwards the thread watches for another leader. */
#ifndef KVP_NODE_DIAL_H
#define KVP_NODE_DIAL_H

#include "net/hello.h"
#include "net/masters.h"
#include "common/log.h"

#include <pthread.h>

typedef struct {
    kvp_framed_t conn;
    kvp_hello_reply_t hello;
    char local_host[KVP_HOST_MAX]; /* our own address as seen by this master's network */
} kvp_node_dialed_t;

#define KVP_NODE_REFUSAL_MAX 320u

typedef enum {
    KVP_DIAL_IDLE, /* no connection is wanted */
    KVP_DIAL_WANTED,
    KVP_DIAL_FOUND, /* result waits for the control thread */
    KVP_DIAL_OUTDATED /* idle, and another master leads than the last found one */
} kvp_node_dial_state_t;

typedef struct {
    kvp_names_t *names; /* both made by init */
    kvp_masters_t *masters;
    char name[129]; /* told in Hello */
    char host_id[KVP_HOST_ID_MAX + 1];
    bool is_loopback; /* the node listens where only this host reaches it: a master of another host is refused */
    int wake_fd; /* of the control thread */
    kvp_log_limit_t noise;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic bool is_stopping; /* set under lock, which guards the fields below */
    kvp_node_dial_state_t state;
    bool is_good; /* the connection before served its purpose: begin at once */
    kvp_node_dialed_t result;
    kvp_err_t last_err; /* of the last attempt */
    char refusal[KVP_NODE_REFUSAL_MAX]; /* why no master of the list is acceptable; empty = one may be */
    uint64_t attempts;
    uint64_t incarnation; /* of the session before, or 0 */
    kvp_known_pool_t known; /* the pool of the node's memory; term 0 = it has none */
} kvp_node_dial_t;

/* init reads the list of masters (kvp_masters_create): INVALID, NOMEM, NOTSUP. The caller fills the
 * other settings; start makes the thread (SYS). stop ends it, within a moment, and what init made;
 * legal on a zeroed value. */
kvp_err_t kvp_node_dial_init(kvp_node_dial_t *d, const char *masters, const char *cluster) KVP_MUST_USE;
kvp_err_t kvp_node_dial_start(kvp_node_dial_t *d) KVP_MUST_USE;
void kvp_node_dial_stop(kvp_node_dial_t *d);

/* kvp_node_dial_want requests one connection. is_good: the previous connection was mounted, so the
 * first attempt has no back-off. incarnation and known are of the session before; known is copied. */
void kvp_node_dial_want(kvp_node_dial_t *d, bool is_good, uint64_t incarnation, const kvp_known_pool_t *known);

/* kvp_node_dial_refusal copies why no master of the list will do, which is logged by then; empty = one may. */
void kvp_node_dial_refusal(kvp_node_dial_t *d, char why_out[KVP_NODE_REFUSAL_MAX]);

/* kvp_node_dial_take moves the connection to the caller, if there is one. *err_out is how the last
 * attempt ended, OK when there was none since. */
bool kvp_node_dial_take(kvp_node_dial_t *d, kvp_node_dialed_t *dialed_out, kvp_err_t *err_out);

/* kvp_node_dial_is_outdated returns true once if another master leads than the one of the
 * connection taken last: the connection should be dropped. */
bool kvp_node_dial_is_outdated(kvp_node_dial_t *d);

#endif
