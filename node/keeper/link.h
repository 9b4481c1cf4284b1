/* SPDX-License-Identifier: Apache-2.0
 * The node's side of the connection to its keeper: finds or starts the keeper, and exchanges messages. A call waits
 * for a stopped keeper only as long as its time-out. */
#ifndef KVP_NODE_KEEPER_LINK_H
#define KVP_NODE_KEEPER_LINK_H

#include "node/keeper/packet.h"

#define KVP_KEEPER_SEND_MS 200 /* how long a node waits for room in the keeper's queue */

typedef struct {
    char name[KVP_NAME_MAX + 1];
    char program[512]; /* the path of kvpool-keeper, in the directory of this program */
    struct sockaddr_un at;
    uint64_t hold_ms;
    int fd; /* the connected socket to the keeper; -1 = none */
    int starting; /* the started process, which ends once the keeper runs in the background; 0 = none */
    uint64_t started_ns;
    bool has_complained; /* the failure to start a keeper was logged */
} kvp_keeper_link_t;

/* kvp_keeper_link_init prepares a link without a connection: SYS, logged. kvp_keeper_link_close closes the
 * connection. */
kvp_err_t kvp_keeper_link_init(kvp_keeper_link_t *l, const char *name, uint64_t hold_ms) KVP_MUST_USE;
void kvp_keeper_link_close(kvp_keeper_link_t *l);

/* kvp_keeper_link_call connects and sends HELLO, which the keeper answers with WELCOME; is_new is the field of HELLO.
 * EAGAIN: no keeper runs yet but one is starting, or the keeper is busy; call again in a moment. SYS, logged: no
 * socket, another user's listener, or no keeper can be started (logged once). Does not wait. */
kvp_err_t kvp_keeper_link_call(kvp_keeper_link_t *l, bool is_new) KVP_MUST_USE;

/* kvp_keeper_link_reap reaps the started process if it has exited. False: it still runs. Does not wait. */
bool kvp_keeper_link_reap(kvp_keeper_link_t *l);

/* kvp_keeper_link_meet calls the keeper until a WELCOME arrives, for at most answer_ns. While another process uses the
 * keeper, it retries for at most busy_ns, then returns BUSY with the other process's pid in welcome_out->pid. Other
 * errors: DEADLINE, VERSION, SYS, ... */
kvp_err_t kvp_keeper_link_meet(kvp_keeper_link_t *l, uint64_t answer_ns, uint64_t busy_ns,
                               kvp_keeper_msg_t *welcome_out) KVP_MUST_USE;

#endif
