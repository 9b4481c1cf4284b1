/* SPDX-License-Identifier: Apache-2.0
 * The node's side of its keeper: finds or starts it, and exchanges messages. A call waits for a
 * stopped keeper only as long as its time-out. */
#ifndef KVP_NODE_KEEPER_LINK_H
#define KVP_NODE_KEEPER_LINK_H

#include "node/keeper/packet.h"

#define KVP_KEEPER_SEND_MS 200 /* for a keeper to take a message */

typedef struct {
    char name[KVP_NAME_MAX + 1];
    char program[512]; /* path of kvpool-keeper, beside this program */
    struct sockaddr_un at;
    uint64_t hold_ms;
    int fd; /* -1 = none */
    int starting; /* the process that goes into the background as the keeper; 0 = none */
    uint64_t started_ns;
    bool has_complained; /* the failure to start was logged */
} kvp_keeper_link_t;

/* kvp_keeper_link_init: SYS, logged. close leaves it as init did. */
kvp_err_t kvp_keeper_link_init(kvp_keeper_link_t *l, const char *name, uint64_t hold_ms) KVP_MUST_USE;
void kvp_keeper_link_close(kvp_keeper_link_t *l);

/* kvp_keeper_link_call connects and sends Hello; the keeper answers with WELCOME. is_new: as in
 * HELLO. EAGAIN: no keeper runs and one is starting, or the keeper is busy; call again in a moment.
 * SYS (logged once): no keeper can be started. Does not wait. */
kvp_err_t kvp_keeper_link_call(kvp_keeper_link_t *l, bool is_new) KVP_MUST_USE;

/* kvp_keeper_link_reap reaps the started process if it has exited; false: it runs. Does not wait. */
bool kvp_keeper_link_reap(kvp_keeper_link_t *l);

/* kvp_keeper_link_meet calls until a WELCOME arrives, for at most answer_ns; while another process
 * uses the keeper, for at most busy_ns: BUSY then, with the process's number in welcome_out->pid;
 * DEADLINE, VERSION, SYS, ... */
kvp_err_t kvp_keeper_link_meet(kvp_keeper_link_t *l, uint64_t answer_ns, uint64_t busy_ns,
                               kvp_keeper_msg_t *welcome_out) KVP_MUST_USE;

#endif
