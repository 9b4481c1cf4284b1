/* SPDX-License-Identifier: Apache-2.0
 * Hot copies: an object that other hosts read much gets further copies, on the hosts of its readers where that is
 * possible. The copies are dropped when the reads have ended. ADR 0055. */
#ifndef KVP_MASTER_CORE_EVICT_HOT_H
#define KVP_MASTER_CORE_EVICT_HOT_H

#include "master/core/evict/eviction.h"

/* kvp_hot_read counts `bytes` that the session read from the object. Nearly all calls only subtract; one read in so
 * many bytes is a sample, for which kvp_hot_sample updates the object's entry. kvp_hot_keep counts a read, and requests
 * a copy on the session's host, which the next tick begins. kvp_hot_tick ends the windows in which reads are counted,
 * and begins and drops copies. kvp_hot_make_room drops hot copies of at least so many bytes, or all, because a put
 * waits for space; the space is free a little later. kvp_hot_fini frees the table. */
void kvp_hot_sample(kvp_evict_t *ev, const kvp_session_t *s, uint32_t oid);
static inline void
kvp_hot_read(kvp_evict_t *ev, const kvp_session_t *s, uint32_t oid, uint64_t bytes)
{
    ev->hot_left -= (int64_t)bytes;
    if (ev->hot_left <= 0) kvp_hot_sample(ev, s, oid);
}
void kvp_hot_keep(kvp_evict_t *ev, const kvp_session_t *s, uint32_t oid);
void kvp_hot_tick(kvp_evict_t *ev);
void kvp_hot_make_room(kvp_evict_t *ev, uint64_t bytes);
void kvp_hot_fini(kvp_evict_t *ev);

#endif
