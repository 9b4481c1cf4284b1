/* SPDX-License-Identifier: Apache-2.0
 * What transport.c and the transports share: the tables of the built-in ones, with slots that may be NULL (callers use
 * the filled tables that kvp_transport_find returns), and the checks that all of them make.
 */
#ifndef KVP_CLIENT_TRANSPORT_BUILTIN_H
#define KVP_CLIENT_TRANSPORT_BUILTIN_H

#include "client/transport/transport.h"

extern const kvp_transport_ops_t kvp_mem_ops;
extern const kvp_transport_ops_t kvp_shm_ops;
extern const kvp_transport_ops_t kvp_tcp_ops;
#ifdef KVP_HAVE_RDMA
extern const kvp_transport_ops_t kvp_rdma_ops;
#endif

/* kvp_xfer_check tells what every transport refuses before it moves a byte: OK or INVALID (unknown kind, empty, lengths
 * that do not add up, out of the rseg's range, a word that is not aligned). */
kvp_err_t kvp_xfer_check(const kvp_xfer_t *xfer) KVP_MUST_USE;

#endif
