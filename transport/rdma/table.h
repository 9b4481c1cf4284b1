/* SPDX-License-Identifier: Apache-2.0
 * The table of the rdma transport, with slots that may be empty (kvp_transport_find gives the filled one), and what it
 * takes as own (kvp_tp_conf_t, lend): a kvp_verbs_ops_t; NULL = this machine's.
 */
#ifndef KVP_TRANSPORT_RDMA_TABLE_H
#define KVP_TRANSPORT_RDMA_TABLE_H

#include "transport/rdma/verbs/dev.h"
#include "transport/transport.h"

#ifdef KVP_HAVE_RDMA
extern const kvp_transport_ops_t kvp_rdma_ops;
#endif

#endif
