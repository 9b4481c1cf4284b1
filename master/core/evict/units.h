/* SPDX-License-Identifier: Apache-2.0
 * What is evicted: an object, and with it its group.
 */
#ifndef KVP_MASTER_CORE_EVICT_UNITS_H
#define KVP_MASTER_CORE_EVICT_UNITS_H

#include "master/core/evict/eviction.h"
#include "master/core/master.h"

void kvp_evict_one(kvp_evict_t *ev, uint32_t oid); /* and no other member of its group */
void kvp_evict_unit(kvp_evict_t *ev, uint32_t oid); /* and with it all of its group */
void kvp_groups_tick(kvp_evict_t *ev); /* owners that are gone, and members of groups that are doomed */

#endif
