/* SPDX-License-Identifier: Apache-2.0
 * Moves to and from device memory, by transports that reach the host's memory only: through a bounce buffer, which is
 * pinned memory of the host in two halves. While the bytes of one half travel, the device copies the other. See docs/adr/0015.
 */
#ifndef KVP_CLIENT_DATA_BOUNCED_H
#define KVP_CLIENT_DATA_BOUNCED_H

#include "client/data/transfer.h"
#include "transport/regs.h"
#include "transport/bounce.h"

/* kvp_bounced_run is kvp_transfer_run for moves of one kind, READ or FILL, where some span has device memory; which, `regs` knows,
 * and the caller holds those ranges. When it returns, nothing touches that memory any more. Also: SYS, NOMEM where the device
 * cannot copy or no bounce buffer can be made; DEADLINE where there was none by then. */
void kvp_bounced_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves,
                     uint32_t n);

/* kvp_device_run is kvp_bounced_run for moves whose memory is of any kind. Where it reports a READ as OK the device sees what
 * was brought. Also: NOT_REGISTERED where memory that an adapter was told of is there no more. */
void kvp_device_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves,
                    uint32_t n);

#endif
