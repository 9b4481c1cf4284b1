/* SPDX-License-Identifier: Apache-2.0
 * Puts that wait are tried again.
 */
#ifndef KVP_MASTER_CORE_EVICT_RETRY_H
#define KVP_MASTER_CORE_EVICT_RETRY_H

#include "master/core/evict/eviction.h"
#include "master/core/catalog/chunk.h"
#include "master/core/master.h"

void kvp_evict_retry_waiting(kvp_evict_t *ev);
/* kvp_evict_leave_segment gives up the windows in it, as far as the step reaches; false while there are more. */
bool kvp_evict_leave_segment(kvp_evict_t *ev, kvp_segment_t *g);

#endif
