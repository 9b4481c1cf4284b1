/* SPDX-License-Identifier: Apache-2.0
 * The eviction reserve: what is freed before it is needed.
 */
#ifndef KVP_MASTER_CORE_EVICT_RESERVE_H
#define KVP_MASTER_CORE_EVICT_RESERVE_H

#include "master/core/evict/eviction.h"
#include "master/core/master.h"

void kvp_evict_reserve(kvp_evict_t *ev);

#endif
