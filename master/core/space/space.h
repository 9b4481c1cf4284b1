/* SPDX-License-Identifier: Apache-2.0
 * The memory of the pool: allocated extents, and extents that are being retired. */
#ifndef KVP_MASTER_CORE_SPACE_SPACE_H
#define KVP_MASTER_CORE_SPACE_SPACE_H

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/catalog.h"
#include "master/core/log/journal.h"
#include "master/core/protect/protection.h"
#include "master/core/session/peers.h"

/* The memory of the pool: allocated extents, and extents that are being retired. */
typedef struct kvp_space {
    kvp_ctx_t *ctx; /* borrowed */
    kvp_journal_t *log; /* borrowed */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;
    kvp_protect_t *prot;

    kvp_ptab_t retires;
    /* retire records of superseded extents, whose orders wait until the new commit is written to the log */
    kvp_list_t held_back;
    kvp_list_t sending; /* segments with orders that may have to be sent */
    bool has_orders; /* flag: Retire orders are left to send, because the step's budget was used up */
    uint32_t *not_dead; /* KVP_NOT_DEAD_KEYS counters of extents that may be readable though their key was removed */
    uint64_t unclaimed; /* number of extents to which a writer of an earlier term might still write */
    uint64_t unclaimed_due_ns; /* until this time nothing is evicted while `unclaimed` > 0; 0 = no wait */
    uint64_t slab_bytes; /* memory of the allocators of all chunks */
    kvp_list_t deferred_frees;

    /* Fields of tier.c. */
    uint32_t tiers_n;
    uint64_t writing_bytes; /* bytes of all unfinished writes to tiers */
    kvp_ptab_t moves; /* kvp_moving_t: objects that are being moved between memory and a tier */
    kvp_umap_t moving; /* version of a moving object -> its number in `moves` */
    kvp_ptab_t tier_drops; /* kvp_tier_drop_t: records that tiers must drop and have not dropped yet */
    kvp_umap_t tier_chunks; /* tier and tenant -> number of the chunk in catalog->chunks */

    /* Fields of copy.c and evict/drain.c. */
    kvp_ptab_t copies; /* kvp_copy_t: objects that nodes are copying to other memory */
    kvp_umap_t copying; /* version of an object that is being copied -> its number in `copies` */
    uint32_t drains_n; /* number of segments that are being drained */
    uint64_t drain_end; /* log position after the last record of a drain */

    bool has_parked; /* flag: candidates on a segment's `parked` list can return to their lists */

    /* Events for the layers above. */
    kvp_list_t staged; /* kvp_stage_wait_t: requests whose loads have all ended */
    kvp_list_t claims_ready; /* claims whose windows are free, for kvp_put_windows_free */
    bool has_evacuation_news; /* flag: an evacuated window may be free, or its walk continues: kvp_evacuate_tick */
    bool has_take_news; /* flag: a chunk that a tenant takes may be empty, or its walk continues: kvp_rebalance_tick */
} kvp_space_t;

#endif
