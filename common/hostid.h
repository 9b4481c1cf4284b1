/* SPDX-License-Identifier: Apache-2.0
 * The id of the host, the directories of this user's sockets, and the users that may own sockets there. Any
 * thread. The functions access files, so they are not for hot paths. */
#ifndef KVP_COMMON_HOSTID_H
#define KVP_COMMON_HOSTID_H

#include "common/base.h"

#include <sys/types.h>

#define KVP_HOST_ID_MAX 128

/* kvp_host_id writes the id of the host as 32 hex digits. It is made of /etc/machine-id and the boot id, because
 * two clones of one image share the machine id. Without a machine id only the boot id is used; without both, the
 * host name. */
void kvp_host_id(char out[KVP_HOST_ID_MAX + 1]);

/* kvp_runtime_dir creates the directory for this user's sockets (mode 0700) and returns its path: $KVPOOL_RUNTIME_DIR
 * if set, else $XDG_RUNTIME_DIR/kvpool, else /run/kvpool for root, else /tmp/kvpool-UID. $KVPOOL_RUNTIME_DIR may have
 * mode 0750 for a group. The directory must belong to this user. SYS if no directory is usable. */
kvp_err_t kvp_runtime_dir(char *out, size_t cap) KVP_MUST_USE;

typedef enum {
    KVP_SOCKET_MASTER, /* the socket of a master, named master-PORT.sock */
    KVP_SOCKET_NODE, /* the socket of a node, named node-PID-HEX.sock */
    /* the socket of a peer-to-peer process, with the abstract name @kvpool-peer-HEX, in no directory */
    KVP_SOCKET_PEER,
} kvp_socket_t;

/* kvp_runtime_socket finds the socket whose name a peer has sent. It searches the directories of kvp_runtime_dir that
 * belong to a trusted user; a directory in the peer's name is ignored. INVALID: the name is not of this kind of socket;
 * UNREACHABLE: no such socket. */
kvp_err_t kvp_runtime_socket(kvp_socket_t kind, const char *told, char *out, size_t cap) KVP_MUST_USE;

/* File descriptors are exchanged only with processes of this user, of root, and of the users in $KVPOOL_TRUST_UID
 * (numbers, separated by commas). kvp_uid_is_trusted checks a user, kvp_peer_is_trusted the user at the other end
 * of a connected Unix socket. */
bool kvp_uid_is_trusted(uid_t uid);
bool kvp_peer_is_trusted(int unix_fd);

/* kvp_runtime_set overrides KVPOOL_RUNTIME_DIR and KVPOOL_TRUST_UID with a daemon's options (NULL = option not
 * given). INVALID (logged), NOMEM. Call it before threads start. */
kvp_err_t kvp_runtime_set(const char *dir, const char *trusted) KVP_MUST_USE;

/* kvp_peer_text writes the address of the peer, for the log: "10.0.0.1:4711", or "pid 12 uid 0" on a Unix socket. */
#define KVP_PEER_TEXT_MAX 80u
void kvp_peer_text(int fd, char out[KVP_PEER_TEXT_MAX]);

/* kvp_addr_is_loopback returns true for an IP address that only this host reaches. */
struct sockaddr;
bool kvp_addr_is_loopback(const struct sockaddr *at);

#endif
