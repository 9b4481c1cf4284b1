/* SPDX-License-Identifier: Apache-2.0
 * Functions of transport.c that only transports and the registry call. */
#ifndef KVP_TRANSPORT_INSIDE_H
#define KVP_TRANSPORT_INSIDE_H

#include "transport/transport.h"

/* kvp_transport_fill puts the default functions into the empty slots of a transport's table, and panics if a
 * mandatory slot is empty. */
void kvp_transport_fill(kvp_transport_ops_t *ops);

/* kvp_xfer_check validates a transfer before any transport moves a byte. INVALID: unknown kind, no bytes, lengths that
 * do not add up, a range outside of the remote memory, an unaligned word, or SUM of device memory. */
kvp_err_t kvp_xfer_check(const kvp_xfer_t *xfer) KVP_MUST_USE;

#endif
