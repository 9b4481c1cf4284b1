/* SPDX-License-Identifier: Apache-2.0
 * Moves where some memory is a device's: straight by adapters where these reach it and the way to the node is theirs, else
 * through a stage (client/data/bounced.h). See docs/adr/0015.
 */
#ifndef KVP_CLIENT_DATA_GPU_DIRECT_H
#define KVP_CLIENT_DATA_GPU_DIRECT_H

#include "client/data/bounced.h"

/* kvp_device_run is kvp_staged_run for moves whose memory is of any kind. Where it reports a READ as OK the device sees what
 * was brought. Also: NOT_REGISTERED where memory that an adapter was told of is there no more. */
void kvp_device_run(const kvp_mover_t *mover, kvp_stages_t *stages, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n);

#endif
