/* SPDX-License-Identifier: Apache-2.0
 * Which host this is, and where sockets of this user live. Any thread; both read and make files, so not for hot paths.
 */
#ifndef KVP_COMMON_HOSTID_H
#define KVP_COMMON_HOSTID_H

#include "common/base.h"

#define KVP_HOST_ID_MAX 128

/* kvp_host_id writes the machine's id: /etc/machine-id combined with the boot id (so that two clones of one image
 * differ), as 32 hex digits. Falls back to the boot id alone, then the host name. */
void kvp_host_id(char out[KVP_HOST_ID_MAX + 1]);

/* kvp_runtime_dir makes (mode 0700) and returns the directory for this user's sockets: $XDG_RUNTIME_DIR/kvpool,
 * /run/kvpool for root, else /tmp/kvpool-UID, which must then belong to this user. SYS when there is none. */
kvp_err_t kvp_runtime_dir(char *out, size_t cap) KVP_MUST_USE;

#endif
