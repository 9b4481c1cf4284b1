/* SPDX-License-Identifier: Apache-2.0
 * The table of the rdma transport, whose slots may be empty (kvp_transport_find returns the filled table). The `own`
 * options of rdma (kvp_tp_conf_t, lend) are a kvp_verbs_ops_t; NULL = the verbs stack of this machine. */
#ifndef KVP_TRANSPORT_RDMA_TABLE_H
#define KVP_TRANSPORT_RDMA_TABLE_H

#include "transport/rdma/verbs/dev.h"
#include "transport/transport.h"

#ifdef KVP_HAVE_RDMA
extern const kvp_transport_ops_t kvp_rdma_ops;
#endif

#endif
