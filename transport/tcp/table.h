/* SPDX-License-Identifier: Apache-2.0
 * The table of the tcp transport, with slots that may be empty (kvp_transport_find gives the filled one).
 */
#ifndef KVP_TRANSPORT_TCP_TABLE_H
#define KVP_TRANSPORT_TCP_TABLE_H

#include "transport/transport.h"

extern const kvp_transport_ops_t kvp_tcp_ops;

#endif
