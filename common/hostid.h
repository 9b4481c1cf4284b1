/* SPDX-License-Identifier: Apache-2.0
 * The host's id, the directories of this user's sockets, and the users that may own sockets there.
 * Any thread; the functions read and make files, so not for hot paths. */
#ifndef KVP_COMMON_HOSTID_H
#define KVP_COMMON_HOSTID_H

#include "common/base.h"

#include <sys/types.h>

#define KVP_HOST_ID_MAX 128

/* kvp_host_id writes the machine's id as 32 hex digits: /etc/machine-id combined with the boot id,
 * because two clones of one image share the machine-id. Falls back to the boot id alone, then to
 * the host name. */
void kvp_host_id(char out[KVP_HOST_ID_MAX + 1]);

/* kvp_runtime_dir creates (mode 0700) and returns the directory for this user's sockets:
 * $KVPOOL_RUNTIME_DIR if set, else $XDG_RUNTIME_DIR/kvpool, else /run/kvpool for root, else
 * /tmp/kvpool-UID. $KVPOOL_RUNTIME_DIR may have mode 0750 for a group. The directory must belong to
 * this user. SYS without a usable directory. */
kvp_err_t kvp_runtime_dir(char *out, size_t cap) KVP_MUST_USE;

typedef enum {
    KVP_SOCKET_MASTER, /* master-PORT.sock */
    KVP_SOCKET_NODE, /* node-PID-HEX.sock */
    KVP_SOCKET_PEER, /* of peer-to-peer: @kvpool-peer-HEX, in no directory */
} kvp_socket_t;

/* kvp_runtime_socket finds the socket that a peer named, in the directories above that belong to a
 * trusted user. The peer's own directory is ignored. INVALID: the name is not of this kind;
 * UNREACHABLE: no such socket. */
kvp_err_t kvp_runtime_socket(kvp_socket_t kind, const char *told, char *out, size_t cap) KVP_MUST_USE;

/* Descriptors go to and come from processes of this user, of root, and of the users in
 * $KVPOOL_TRUST_UID (numbers, separated by commas). kvp_peer_is_trusted looks who is at the other
 * end of a connected Unix socket. */
bool kvp_uid_is_trusted(uid_t uid);
bool kvp_peer_is_trusted(int unix_fd);

/* kvp_runtime_set overrides the two variables with a daemon's options (NULL = option not given).
 * INVALID (logged), NOMEM. Call before threads start. */
kvp_err_t kvp_runtime_set(const char *dir, const char *trusted) KVP_MUST_USE;

#endif
