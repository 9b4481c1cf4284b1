/* SPDX-License-Identifier: Apache-2.0
 * How an id of librdmacm is left: at once, or once its port is active again. Any thread.
 */
#ifndef KVP_CLIENT_TRANSPORT_RDMA_VERBS_DISCONNECT_H
#define KVP_CLIENT_TRANSPORT_RDMA_VERBS_DISCONNECT_H

#include "client/transport/rdma/verbs/dev.h"
#include "client/transport/rdma/verbs/libs.h"

/* kvp_rdma_port_is_up says whether anything that an id on that device sends can arrive, and so whether its connection is made
 * or ended now: the port is active, and its network interface up; or its device was removed, so that it sends nothing. */
bool kvp_rdma_port_is_up(const kvp_rdma_libs_t *libs, const struct rdma_cm_id *id, const kvp_rdma_info_t *dev);

/* kvp_rdma_is_present says whether a device that is open is still among those of the machine. */
bool kvp_rdma_is_present(const struct ibv_context *ctx);

/* kvp_rdma_disconnect_later takes an id without a queue pair off its channel, to be ended by a later call of left_end; false: it
 * could not be taken. left_end has a thread of its own end those that may be left now. */
bool kvp_rdma_disconnect_later(const kvp_rdma_libs_t *libs, struct rdma_cm_id *id, const kvp_rdma_info_t *dev)
    KVP_MUST_USE;
void kvp_rdma_left_end(const kvp_rdma_libs_t *libs);

#endif
