/* SPDX-License-Identifier: Apache-2.0
 * Moves where some memory is a device's: by GPU direct where adapters reach the memory and lead to the node, else
 * through a bounce buffer (client/data/bounced.h). See docs/adr/0015.
 */
#ifndef KVP_CLIENT_DATA_GPU_DIRECT_H
#define KVP_CLIENT_DATA_GPU_DIRECT_H

#include "client/data/bounced.h"

/* kvp_device_run is kvp_bounced_run for moves whose memory is of any kind. Where it reports a READ as OK the device sees what
 * was brought. Also: NOT_REGISTERED where memory that an adapter was told of is there no more. */
void kvp_device_run(const kvp_transfer_t *transfer, kvp_bounces_t *bounces, kvp_regs_t *regs, kvp_move_t *moves,
                    uint32_t n);

#endif
