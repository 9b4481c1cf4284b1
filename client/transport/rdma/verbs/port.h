/* SPDX-License-Identifier: Apache-2.0
 * What a port of an adapter is good for: its address among those that it has, its limits, where it is in the machine.
 */
#ifndef KVP_CLIENT_TRANSPORT_RDMA_VERBS_PORT_H
#define KVP_CLIENT_TRANSPORT_RDMA_VERBS_PORT_H

#include "client/transport/rdma/verbs/dev.h"
#include "client/transport/rdma/verbs/libs.h"
#include "client/transport/rdma/verbs/select.h"

/* kvp_rdma_port_info fills in what is known of an active port, at its best address or that of one GID. False where it is
 * not active or has no address by which a peer could reach it: why, and what helps, is put in words. */
bool kvp_rdma_port_info(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gid_index,
                        kvp_rdma_info_t *info_out, char *why, size_t cap);

#endif
