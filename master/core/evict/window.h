/* SPDX-License-Identifier: Apache-2.0
 * Making room: a window of extents is claimed for a put that waits, and what lies in it is evicted.
 */
#ifndef KVP_MASTER_CORE_EVICT_WINDOW_H
#define KVP_MASTER_CORE_EVICT_WINDOW_H

#include "master/core/evict/eviction.h"
#include "master/core/catalog/index.h"
#include "master/core/protect/deferred.h"
#include "master/core/put/queue.h"

/* kvp_evict_for claims a window for the key. NO_SPACE: nothing can be evicted for it now. EAGAIN: the step's work is
 * used up before everything was looked at. */
kvp_err_t kvp_evict_for(kvp_evict_t *ev, kvp_put_key_t *k);
bool kvp_evict_is_early(const kvp_evict_t *ev); /* nothing is evicted yet: after a take-over */
void kvp_evict_tick(kvp_evict_t *ev);
bool kvp_evict_may_go(const kvp_evict_t *ev, const kvp_put_key_t *k, uint32_t oid); /* for this key, as things are */

#endif
