/* SPDX-License-Identifier: Apache-2.0
 * Making room: a window of extents is claimed for a waiting put, and its objects are evicted. */
#ifndef KVP_MASTER_CORE_EVICT_WINDOW_H
#define KVP_MASTER_CORE_EVICT_WINDOW_H

#include "master/core/evict/eviction.h"
#include "master/core/catalog/index.h"
#include "master/core/protect/deferred.h"
#include "master/core/put/queue.h"

/* What a load from a tier does not take. */
typedef enum {
    KVP_SPARES_NONE,
    KVP_SPARES_UNWRITTEN, /* what is in memory alone and is wanted on the tier */
    /* of these, the ones that cannot be written: the others are written, and nothing is evicted yet */
    KVP_SPARES_UNWRITABLE,
} kvp_spares_t;

/* The request for a place. */
typedef struct {
    const kvp_attempt_t *attempt; /* NULL: of a load from a tier */
    kvp_tenant_t *tenant; /* whose chunks are looked at */
    uint32_t over; /* the object that the attempt replaces; KVP_OID_NONE = none */
    uint64_t len;
    uint16_t key_len;
    kvp_spares_t spares;
    uint32_t free_age; /* objects of this age or more are evicted in any case, and cost nothing */
} kvp_evict_wish_t;

/* kvp_evict_in_segment evicts a window of extents in the segment in which a load fits, the
 * oldest of a sample, and only objects without ticket, probe and pin. The search continues where
 * the last one ended, round the segment, and examines at most *left extents, which count down.
 * *bytes_out: the bytes that become free. False: no window. */
bool kvp_evict_in_segment(kvp_evict_t *ev, kvp_segment_t *g, const kvp_evict_wish_t *wish, uint32_t *left,
                          uint64_t *bytes_out);
/* kvp_evict_for claims a window for the key. NO_SPACE: nothing can be evicted for it now. EAGAIN: the step's work is
 * used up before everything was looked at. */
kvp_err_t kvp_evict_for(kvp_evict_t *ev, kvp_put_key_t *k);
bool kvp_evict_is_early(const kvp_evict_t *ev); /* nothing is evicted yet: after a take-over */
void kvp_evict_tick(kvp_evict_t *ev);
bool kvp_evict_may_go(const kvp_evict_t *ev, const kvp_put_key_t *k, uint32_t oid); /* for this key, at present */

#endif
