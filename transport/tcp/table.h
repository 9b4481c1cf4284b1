/* SPDX-License-Identifier: Apache-2.0
 * The table of the tcp transport, whose slots may be empty (kvp_transport_find returns the filled table). */
#ifndef KVP_TRANSPORT_TCP_TABLE_H
#define KVP_TRANSPORT_TCP_TABLE_H

#include "transport/transport.h"

extern const kvp_transport_ops_t kvp_tcp_ops;

#endif
