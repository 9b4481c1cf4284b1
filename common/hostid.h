/* SPDX-License-Identifier: Apache-2.0
 * Which host this is, where sockets of this user live, and who is trusted there. Any thread; both read and make files, so not for hot paths.
 */
#ifndef KVP_COMMON_HOSTID_H
#define KVP_COMMON_HOSTID_H

#include "common/base.h"

#include <sys/types.h>

#define KVP_HOST_ID_MAX 128

/* kvp_host_id writes the machine's id: /etc/machine-id combined with the boot id (so that two clones of one image
 * differ), as 32 hex digits. Falls back to the boot id alone, then the host name. */
void kvp_host_id(char out[KVP_HOST_ID_MAX + 1]);

/* kvp_runtime_dir makes (mode 0700) and returns the directory for this user's sockets: $KVPOOL_RUNTIME_DIR, which may have
 * mode 0750 and a group that comes in as well; where that is not set $XDG_RUNTIME_DIR/kvpool, /run/kvpool for root, else
 * /tmp/kvpool-UID. It must belong to this user. SYS when there is none. */
kvp_err_t kvp_runtime_dir(char *out, size_t cap) KVP_MUST_USE;

typedef enum {
    KVP_SOCKET_MASTER, /* master-PORT.sock */
    KVP_SOCKET_NODE, /* node-PID-HEX.sock */
    KVP_SOCKET_PEER, /* of peer-to-peer: @kvpool-peer-HEX, in no directory */
} kvp_socket_t;

/* kvp_runtime_socket finds the socket that a peer tells, in the directories above that a trusted user owns, wherever the peer says
 * that it lies. INVALID: not a name of that kind; UNREACHABLE: there is no such socket. */
kvp_err_t kvp_runtime_socket(kvp_socket_t kind, const char *told, char *out, size_t cap) KVP_MUST_USE;

/* Descriptors go to and come from processes of this user, of root, and of the users in $KVPOOL_TRUST_UID (numbers, separated by
 * commas). kvp_peer_is_trusted looks who is at the other end of a connected Unix socket. */
bool kvp_uid_is_trusted(uid_t uid);
bool kvp_peer_is_trusted(int unix_fd);

/* kvp_runtime_set puts a daemon's options (NULL = not given) in the place of the two variables. INVALID, which is logged, and NOMEM.
 * Before there are threads. */
kvp_err_t kvp_runtime_set(const char *dir, const char *trusted) KVP_MUST_USE;

#endif
