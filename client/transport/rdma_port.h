/* SPDX-License-Identifier: Apache-2.0
 * What a port of an adapter is good for: its address among those that it has, its limits, where it is in the machine.
 */
#ifndef KVP_CLIENT_RDMA_PORT_H
#define KVP_CLIENT_RDMA_PORT_H

#include "client/transport/rdma_dev.h"
#include "client/transport/rdma_libs.h"

/* kvp_rdma_port_info fills in what is known of an active port; false where it is not active, or has no address by which a
 * peer could reach it. */
bool kvp_rdma_port_info(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, kvp_rdma_info_t *info_out);

#endif
