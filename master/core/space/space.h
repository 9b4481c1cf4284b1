/* SPDX-License-Identifier: Apache-2.0
 * The memory of the pool: extents that are given out, and those on their way back.
 */
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

/* Extents: where they are given out, and on their way back. */
typedef struct kvp_space {
    kvp_ctx_t *ctx; /* borrowed, */
    kvp_journal_t *log; /* and these */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;
    kvp_protect_t *prot;

    kvp_ptab_t retires;
    kvp_list_t held_back; /* orders about superseded extents, until the new commit is written */
    kvp_list_t sending; /* segments to which orders might have to go out */
    bool has_orders; /* that may go out, and did not for want of budget */
    uint32_t *not_dead; /* KVP_NOT_DEAD_KEYS: number of readable extents of removed keys */
    uint64_t unclaimed; /* extents that a writer of an older term might still store to */
    uint64_t unclaimed_due_ns; /* until then puts wait for them instead of evicting; 0 = no wait */
    uint64_t slab_bytes; /* memory of all allocators of chunks */
    kvp_list_t deferred_frees;

    /* tier.c */
    uint32_t tiers_n;
    uint64_t writing_bytes; /* of all that is to be written and not answered for */
    kvp_ptab_t moves; /* what is on its way between memory and a tier, */
    kvp_umap_t moving; /* version -> its number in the table */
    kvp_ptab_t tier_drops; /* kvp_tier_drop_t: what tiers are to drop, and did not */
    kvp_umap_t tier_chunks; /* tier and tenant -> number in catalog->chunks */

    bool has_parked; /* parked victims are on their way back */

    /* Events, for the layers above. */
    kvp_list_t staged; /* kvp_stage_wait_t: nothing is waited for any more */
    kvp_list_t claims_ready; /* free windows: kvp_put_windows_free */
    bool has_evacuation_news; /* a window that is evacuated may be free, or its walk goes on: kvp_evacuate_tick */
    bool has_take_news; /* a chunk that is taken may be empty, or its walk goes on: kvp_rebalance_tick */
} kvp_space_t;

#endif
