/* SPDX-License-Identifier: Apache-2.0
 * Protection from eviction, and the order of the other objects. */
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
    uint64_t seen; /* the time that was looked at last, in ticks */
    uint64_t first; /* nothing in the ring is from before */
    uint64_t n, bytes; /* parked objects, and the bytes that they hold */
    uint16_t lasts; /* ticks */
    uint16_t spare; /* of these, the last ones, in which a removal goes on: the lease time may be over */
    uint32_t ring_n;
    kvp_probe_slot_t *ring; /* parked, by the tick of the first probe, modulo ring_n */
    kvp_objlist_t older;
    uint32_t cursor; /* the next of them to examine */
} kvp_probes_t;

/* What keeps objects from going: tickets, leases, probes, pins and groups, and the lists of what may go. */
typedef struct kvp_protect {
    kvp_ctx_t *ctx; /* borrowed, */
    kvp_journal_t *log; /* and these */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;

    kvp_objlist_t pinned; /* what goes after all that is on the tenants' lists: pinned softly, in the order of uses */
    kvp_probes_t probes;

    kvp_list_t leases, leasing;
    kvp_list_t on_log[2]; /* answers that wait until their promises are written; until they are synced */
    kvp_heap_t deferred; /* by the time when they are answered come what may */

    /* gone.c */
    kvp_digestmap_t gone; /* keys -> removed versions (up to this one), while nodes may report some of them */
    uint32_t gone_read; /* of these, the ones from an earlier master's log */
    uint32_t gone_pruned; /* entries left after the last pruning */
    bool is_gone_full; /* no room for further removals: reports are not trusted any more */

    kvp_ptab_t tickets;
    uint64_t ticket_seq;
    kvp_list_t ending; /* tickets that are releasing their objects */
    kvp_heap_t expiries; /* reservations, by the time when they end */

    kvp_ptab_t groups;
    kvp_umap_t group_numbers; /* hash -> the first group with that hash */
    kvp_list_t doomed; /* memberships: their objects are still to be dropped */
    kvp_list_t leavers; /* memberships whose owner's session is over */
    kvp_list_t orphans; /* that were reported, and whose group is not whole */
    uint64_t doomed_bytes;
} kvp_protect_t;

#endif
