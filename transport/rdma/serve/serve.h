/* SPDX-License-Identifier: Apache-2.0
 * The serving side of rdma: listeners, and the admission and end of peers. */
#ifndef KVP_TRANSPORT_RDMA_SERVE_SERVE_H
#define KVP_TRANSPORT_RDMA_SERVE_SERVE_H

#include "transport/rdma/base/tp.h"

/* The slots of the transport table for the serving side. */
void kvp_rdma_serving_init(kvp_rdma_serving_t *s);
void kvp_rdma_serving_fini(kvp_rdma_tp_t *tp);
/* kvp_rdma_serving_tend closes connections on removed devices, and listens again at devices that returned. */
void kvp_rdma_serving_tend(kvp_rdma_tp_t *tp);
kvp_err_t kvp_rdma_listen(kvp_tp_t *tp, const kvp_hostport_t *at, kvp_hostport_t *bound_out);
kvp_err_t kvp_rdma_serve(kvp_tp_t *tp, uint32_t lane, int timeout_ms);
void kvp_rdma_wake(kvp_tp_t *tp);
void kvp_rdma_peer_fence(kvp_tp_t *tp, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg);
void kvp_rdma_peer_cut(kvp_tp_t *tp, uint64_t incarnation);
void kvp_rdma_peer_came(kvp_tp_t *tp, uint64_t incarnation);
void kvp_rdma_peer_left(kvp_tp_t *tp, uint64_t incarnation);

#endif
