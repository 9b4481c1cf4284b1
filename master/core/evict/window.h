/* SPDX-License-Identifier: Apache-2.0
 * Makes room: claims a window (neighbouring extents) for a waiting put, and evicts the window's objects. */
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
    /* objects only in memory that cannot be written to the tier at present. Other objects of the window are written
     * to the tier first; no object is evicted yet */
    KVP_SPARES_UNWRITABLE,
} kvp_spares_t;

/* The needs of a put or load for which a window is searched. */
typedef struct {
    const kvp_attempt_t *attempt; /* the put attempt; NULL = the request is for a load from a tier */
    kvp_tenant_t *tenant; /* the tenant in whose chunks the search looks */
    uint32_t over; /* the object that the attempt replaces; KVP_OID_NONE = none */
    uint64_t len;
    uint16_t key_len;
    kvp_spares_t spares;
    uint32_t free_age; /* objects of at least this age will be evicted in any case, so they cost nothing */
} kvp_evict_wish_t;

/* kvp_evict_in_segment evicts a window of the segment in which a load fits: the cheapest of a sample, and only objects
 * without ticket, probe and pin. With KVP_SPARES_UNWRITABLE it writes them to the tier instead. The search continues
 * from its last position, and examines at most *left extents, which count down. *bytes_out is the number of evicted
 * bytes. Returns false if no window was found. */
bool kvp_evict_in_segment(kvp_evict_t *ev, kvp_segment_t *g, const kvp_evict_wish_t *wish, uint32_t *left,
                          uint64_t *bytes_out);
/* kvp_evict_for claims a window for the key, or begins to evacuate one. NO_SPACE: nothing can be evicted for the key at
 * present. EAGAIN: not everything was searched, because the step's budget is used up or k->takes allows more now. */
kvp_err_t kvp_evict_for(kvp_evict_t *ev, kvp_put_key_t *k);
bool kvp_evict_is_early(const kvp_evict_t *ev); /* true after a take-over, while nothing may be evicted */
void kvp_evict_tick(kvp_evict_t *ev);
/* returns true if the object may be evicted for this key */
bool kvp_evict_may_go(const kvp_evict_t *ev, const kvp_put_key_t *k, uint32_t oid);

#endif
