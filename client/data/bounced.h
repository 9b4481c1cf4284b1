/* SPDX-License-Identifier: Apache-2.0
 * Moves to and from device memory with transports that reach only host memory. The bytes go through a bounce buffer:
 * pinned host memory in two halves. While one half is transferred, the device copies the other half. See
 * docs/adr/0015. */
#ifndef KVP_CLIENT_DATA_BOUNCED_H
#define KVP_CLIENT_DATA_BOUNCED_H

#include "client/data/transfer.h"
#include "transport/regs.h"
#include "transport/bounce.h"

/* kvp_bounced_run is kvp_transfer_run for READs, or for FILLs and PUTs, with device memory in spans of READs and FILLs.
 * `regs` knows the device memory, and the caller holds its registrations. After the return no transfer touches device
 * memory. Further errors: SYS or NOMEM if the device cannot copy or no bounce buffer can be allocated; DEADLINE if
 * no bounce buffer was free by the deadline. */
void kvp_bounced_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves,
                     uint32_t n);

/* kvp_device_run is kvp_transfer_run for moves with any kind of memory: it uses GPU direct if it can, and bounce
 * buffers else. After a READ with OK the device sees the new bytes. Further error: NOT_REGISTERED if memory that a
 * network adapter uses was unregistered. */
void kvp_device_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves,
                    uint32_t n);

#endif
