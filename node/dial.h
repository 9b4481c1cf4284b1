/* SPDX-License-Identifier: Apache-2.0
 * Finds the leading master: connects, sends Hello, and changes to the master's Unix socket on the same host.
 * Connecting blocks, so a thread does it, and gives the connection to the control thread. Afterwards the thread
 * watches whether another master leads. */
#ifndef KVP_NODE_DIAL_H
#define KVP_NODE_DIAL_H

#include "net/hello.h"
#include "net/masters.h"
#include "common/log.h"

#include <pthread.h>

typedef struct {
    kvp_framed_t conn;
    kvp_hello_reply_t hello;
    char local_host[KVP_HOST_MAX]; /* the node's own address on the network to this master */
} kvp_node_dialed_t;

#define KVP_NODE_REFUSAL_MAX 320u

typedef enum {
    KVP_DIAL_IDLE, /* no connection is wanted */
    KVP_DIAL_WANTED,
    KVP_DIAL_FOUND, /* a connection waits for the control thread to take it */
    /* no connection is wanted, but since the last search another master leads: the control thread connects again */
    KVP_DIAL_OUTDATED
} kvp_node_dial_state_t;

typedef struct {
    kvp_names_t *names; /* names and masters are made by kvp_node_dial_init */
    kvp_masters_t *masters;
    char name[129]; /* the node's name, sent in Hello */
    char host_id[KVP_HOST_ID_MAX + 1];
    bool is_loopback; /* the node listens only at a loopback address, so a master on another host is refused */
    int wake_fd; /* the eventfd that wakes the control thread */
    kvp_log_limit_t noise;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic bool is_stopping; /* the dial's thread must end; set under lock, which also guards the fields below */
    kvp_node_dial_state_t state;
    bool is_good; /* the previous connection was mounted, so the first attempt has no back-off */
    kvp_node_dialed_t result;
    kvp_err_t last_err; /* the result of the last attempt to find the master */
    /* the reason why every master of the list is refused, or refuses the node; empty = a master may accept it */
    char refusal[KVP_NODE_REFUSAL_MAX];
    uint64_t attempts;
    uint64_t incarnation; /* the incarnation of the node's previous session with a master; 0 = none */
    kvp_known_pool_t known; /* the pool of the node's memory; term 0 = the node has no memory */
} kvp_node_dial_t;

/* kvp_node_dial_init reads the list of masters (kvp_masters_create): INVALID, NOMEM, NOTSUP. Then the caller sets the
 * other settings, and kvp_node_dial_start starts the thread (SYS). kvp_node_dial_stop ends the thread within a moment
 * and frees what init made; legal on a zeroed value. */
kvp_err_t kvp_node_dial_init(kvp_node_dial_t *d, const char *masters, const char *cluster) KVP_MUST_USE;
kvp_err_t kvp_node_dial_start(kvp_node_dial_t *d) KVP_MUST_USE;
void kvp_node_dial_stop(kvp_node_dial_t *d);

/* kvp_node_dial_want requests a connection. is_good: the previous connection was mounted, so the first attempt has no
 * back-off. incarnation and known describe the previous session; known is copied. */
void kvp_node_dial_want(kvp_node_dial_t *d, bool is_good, uint64_t incarnation, const kvp_known_pool_t *known);

/* kvp_node_dial_refusal copies the reason why every master of the list is refused, or refuses the node; it is logged
 * too. Empty = a master may accept the node. */
void kvp_node_dial_refusal(kvp_node_dial_t *d, char why_out[KVP_NODE_REFUSAL_MAX]);

/* kvp_node_dial_take gives the found connection to the caller and returns true, if there is one. *err_out is the
 * result of the last attempt, OK if there was no attempt since the previous call. */
bool kvp_node_dial_take(kvp_node_dial_t *d, kvp_node_dialed_t *dialed_out, kvp_err_t *err_out);

/* kvp_node_dial_is_outdated returns true once if another master leads than the master of the connection taken last:
 * the caller should drop the connection. */
bool kvp_node_dial_is_outdated(kvp_node_dial_t *d);

#endif
