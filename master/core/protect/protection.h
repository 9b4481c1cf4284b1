/* SPDX-License-Identifier: Apache-2.0
 * The protection of objects from eviction, and the order of the unprotected objects. */
#ifndef KVP_MASTER_CORE_PROTECT_PROTECTION_H
#define KVP_MASTER_CORE_PROTECT_PROTECTION_H

#include "common/digestmap.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/umap.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/index.h"
#include "master/core/log/journal.h"
#include "master/core/session/peers.h"

#define KVP_PROBE_TICK_NS KVP_MS(100)

typedef struct {
    kvp_objlist_t list;
    uint64_t bytes;
} kvp_probe_slot_t;

typedef struct {
    uint64_t tick;
    uint64_t seen; /* the time of the last kvp_probe_advance, in ticks */
    uint64_t first; /* no object in the ring was first probed before this tick */
    uint64_t n, bytes; /* number of parked objects, and their bytes */
    uint16_t lasts; /* how long a probe protects, in ticks */
    uint16_t spare; /* a probe blocks no removal in its last `spare` ticks, because the lease time may be over */
    uint32_t ring_n;
    kvp_probe_slot_t *ring; /* parked objects by the tick of their first probe, modulo ring_n */
    kvp_objlist_t older;
    uint32_t cursor; /* the next object of `older` to release */
} kvp_probes_t;

/* The protection of objects: tickets, leases, probes, pins and groups, and the lists of candidates for eviction. */
typedef struct kvp_protect {
    kvp_ctx_t *ctx; /* borrowed */
    kvp_journal_t *log; /* borrowed */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;

    /* softly pinned objects in the order of uses; evicted after all objects on the tenants' lists */
    kvp_objlist_t pinned;
    kvp_probes_t probes;

    kvp_list_t leases, leasing;
    /* [0]: answers that wait until their promises are written to the log; [1]: until the log is synced */
    kvp_list_t on_log[2];
    kvp_heap_t deferred; /* deferred answers with a time limit, by this time */

    /* Fields of gone.c. */
    kvp_digestmap_t gone; /* key -> highest removed version, while nodes may report removed objects */
    uint32_t gone_read; /* number of entries of `gone` that come from an earlier master's log */
    uint32_t gone_pruned; /* number of entries of `gone` left after its last pruning */
    /* flag: a node may have a copy that an earlier master ordered, and the node has not reported it yet */
    bool are_copies_open;
    bool is_gone_full; /* flag: the map `gone` is full, so reports of nodes are not trusted any more */

    kvp_ptab_t tickets;
    uint64_t ticket_seq;
    kvp_list_t ending; /* ended tickets that are releasing their objects in slices */
    kvp_heap_t expiries; /* reservations by the time at which they end */

    /* Fields of leaving.c. */
    kvp_ptab_t leavings; /* kvp_leaving_t: copies that are being dropped after a move */
    kvp_umap_t leaving; /* version of the object -> number of the copy in `leavings` */
    /* copies that wait for the sync of a record; for the end of tickets; for the layer above, which drops them */
    kvp_list_t leaving_synced, leaving_held, leaving_ready;

    kvp_ptab_t groups;
    kvp_umap_t group_numbers; /* hash -> number of the first group with this hash */
    kvp_list_t doomed; /* memberships of doomed groups, whose objects must still be dropped */
    kvp_list_t leavers; /* memberships whose owner's session has ended */
    kvp_list_t orphans; /* reported memberships whose group is incomplete */
    uint64_t doomed_bytes;
} kvp_protect_t;

#endif
