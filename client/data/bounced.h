/* SPDX-License-Identifier: Apache-2.0
 * Moves to and from device memory, by transports that reach only host memory: through a bounce
 * buffer, which is pinned host memory in two halves. While the bytes of one half are transferred,
 * the device copies the other. See docs/adr/0015. */
#ifndef KVP_CLIENT_DATA_BOUNCED_H
#define KVP_CLIENT_DATA_BOUNCED_H

#include "client/data/transfer.h"
#include "transport/regs.h"
#include "transport/bounce.h"

/* kvp_bounced_run is kvp_transfer_run for moves of one kind, READ or FILL, with device memory in
 * some span; `regs` knows which, and the caller holds those ranges. After the return no transfer
 * touches that memory. Also: SYS, NOMEM if the device cannot copy or no bounce buffer can be made;
 * DEADLINE if none was free by then. */
void kvp_bounced_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves,
                     uint32_t n);

/* kvp_device_run is kvp_bounced_run for moves of any kind of memory. After a READ reported as OK
 * the device sees the new bytes. Also: NOT_REGISTERED if memory that an adapter uses was
 * unregistered. */
void kvp_device_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves,
                    uint32_t n);

#endif
