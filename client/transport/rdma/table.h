/* SPDX-License-Identifier: Apache-2.0
 * The table of the rdma transport, with slots that may be empty (kvp_transport_find gives the filled one), and the options that
 * it takes beside those of all transports.
 */
#ifndef KVP_CLIENT_TRANSPORT_RDMA_TABLE_H
#define KVP_CLIENT_TRANSPORT_RDMA_TABLE_H

#include "client/transport/rdma/verbs/dev.h"
#include "client/transport/transport.h"

#ifdef KVP_HAVE_RDMA
extern const kvp_transport_ops_t kvp_rdma_ops;
#endif

/* What kvp_tp_conf_t.own and the own of lend point to. */
typedef struct {
    const kvp_verbs_ops_t *verbs; /* NULL = this machine's */
} kvp_rdma_own_t;

#endif
