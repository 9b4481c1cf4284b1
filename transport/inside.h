/* SPDX-License-Identifier: Apache-2.0
 * What transport.c offers to transports and to the registry alone.
 */
#ifndef KVP_TRANSPORT_INSIDE_H
#define KVP_TRANSPORT_INSIDE_H

#include "transport/transport.h"

/* kvp_transport_fill puts the defaults into the empty slots, and panics if a mandatory slot is
 * empty. */
void kvp_transport_fill(kvp_transport_ops_t *ops);

/* kvp_xfer_check makes the checks of every transport before it moves a byte: OK or INVALID (unknown
 * kind, empty, lengths that do not add up, out of the rseg's range, an unaligned word). */
kvp_err_t kvp_xfer_check(const kvp_xfer_t *xfer) KVP_MUST_USE;

#endif
