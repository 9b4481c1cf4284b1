/* SPDX-License-Identifier: Apache-2.0
 * Packets between a node and its keeper, and the address of the keeper's socket. Every call has a time-out. */
#ifndef KVP_NODE_KEEPER_PACKET_H
#define KVP_NODE_KEEPER_PACKET_H

#include "node/keeper/wire.h"

#include <sys/un.h>

/* kvp_keeper_at returns the address of the socket of the keeper for the node name, in this user's directory of sockets.
 * Error: SYS, logged. */
kvp_err_t kvp_keeper_at(const char *name, struct sockaddr_un *at_out) KVP_MUST_USE;

/* kvp_keeper_is_peer returns whether the process at the other end belongs to this user or to root. Other users get no
 * memory from a keeper, even if they are trusted clients. */
bool kvp_keeper_is_peer(int fd);

/* kvp_keeper_send sends a message with msg->fds_n file descriptors from fds, which the caller still owns. Errors:
 * DEADLINE, DISCONNECTED. */
kvp_err_t kvp_keeper_send(int fd, const kvp_keeper_msg_t *msg, const int *fds, int timeout_ms) KVP_MUST_USE;

/* kvp_keeper_recv receives the next message and its msg->fds_n file descriptors, at most KVP_KEEPER_FDS_MAX, which the
 * caller then owns. Errors: DEADLINE, DISCONNECTED, LIMIT (this process has no room for them), and the errors of
 * kvp_keeper_msg_check. */
kvp_err_t kvp_keeper_recv(int fd, kvp_keeper_msg_t *msg_out, int *fds_out, int timeout_ms) KVP_MUST_USE;

#endif
