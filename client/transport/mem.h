/* SPDX-License-Identifier: Apache-2.0
 * The table of the mem transport, with slots that may be empty (kvp_transport_find gives the filled one).
 */
#ifndef KVP_CLIENT_TRANSPORT_MEM_H
#define KVP_CLIENT_TRANSPORT_MEM_H

#include "client/transport/transport.h"

extern const kvp_transport_ops_t kvp_mem_ops;

#endif
