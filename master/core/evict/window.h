/* SPDX-License-Identifier: Apache-2.0
 * Makes room: claims a window of extents for a waiting put, and evicts the window's objects. */
#ifndef KVP_MASTER_CORE_EVICT_WINDOW_H
#define KVP_MASTER_CORE_EVICT_WINDOW_H

#include "master/core/evict/eviction.h"
#include "master/core/catalog/index.h"
#include "master/core/protect/deferred.h"
#include "master/core/put/queue.h"

/* The objects that must not be evicted for a load from a tier. */
typedef enum {
    KVP_SPARES_NONE,
    KVP_SPARES_UNWRITTEN, /* objects that exist only in memory and are wanted on the tier */
    /* only those of them that cannot be written to the tier; the other objects of the window are written, and none is
     * evicted yet */
    KVP_SPARES_UNWRITABLE,
} kvp_spares_t;

/* A request for a place. */
typedef struct {
    const kvp_attempt_t *attempt; /* the put attempt; NULL = the request is for a load from a tier */
    kvp_tenant_t *tenant; /* the tenant in whose chunks the search looks */
    uint32_t over; /* the object that the attempt replaces; KVP_OID_NONE = none */
    uint64_t len;
    uint16_t key_len;
    kvp_spares_t spares;
    uint32_t free_age; /* objects of at least this age will be evicted in any case, so they cost nothing */
} kvp_evict_wish_t;

/* kvp_evict_in_segment evicts a window of extents in the segment in which a load fits: the oldest of a sample, and
 * only objects without ticket, probe and pin. The search continues round the segment from its last position, and
 * examines at most *left extents, which count down. *bytes_out is the number of bytes that become free. Returns false
 * if there is no window. */
bool kvp_evict_in_segment(kvp_evict_t *ev, kvp_segment_t *g, const kvp_evict_wish_t *wish, uint32_t *left,
                          uint64_t *bytes_out);
/* kvp_evict_for claims a window for the key. NO_SPACE: nothing can be evicted for it at present. EAGAIN: the step's
 * budget is used up before everything was searched. */
kvp_err_t kvp_evict_for(kvp_evict_t *ev, kvp_put_key_t *k);
bool kvp_evict_is_early(const kvp_evict_t *ev); /* after a take-over: nothing is evicted yet */
void kvp_evict_tick(kvp_evict_t *ev);
/* the object may be evicted for this key */
bool kvp_evict_may_go(const kvp_evict_t *ev, const kvp_put_key_t *k, uint32_t oid);

#endif
