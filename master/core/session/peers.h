/* SPDX-License-Identifier: Apache-2.0
 * Who is connected to the core, and who it is itself.
 */
#ifndef KVP_MASTER_CORE_SESSION_PEERS_H
#define KVP_MASTER_CORE_SESSION_PEERS_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/catalog.h"

#define KVP_TERM_RISES_MAX 8u /* that peers may cause in an hour */

/* Who is connected, what they are to be told, and who this master is. */
typedef struct kvp_peers {
    kvp_ctx_t *ctx; /* borrowed, */
    kvp_catalog_t *cat; /* and this as well */
    kvp_ptab_t sessions;
    kvp_umap_t by_conn, by_incarnation; /* -> numbers in sessions */
    kvp_list_t seen, born, dirty;
    kvp_buf_t unwanted; /* answers to one-way questions go here */
    uint64_t incarnation_seq, request_seq;

    /* which pool this is: kvp_pool_granted */
    bool is_named; /* the pool is what conf says: a master before, a node or a grant has made that a fact */
    bool is_ident_news; /* the term or the name changed, and the shell was not told yet */
    bool is_mute; /* nothing is said before the shell has tried to save that, */
    bool is_term_unsaved; /* and before it has saved it where the term rose */

    /* recovery/term.c */
    uint64_t follows_until_ns; /* peers may raise the term until then */
    uint64_t term_rises_ns[KVP_TERM_RISES_MAX]; /* when peers raised the term; a ring */
    uint32_t term_rises;
    bool may_leap; /* nothing was kept of the masters before, and nothing was granted yet */
    bool is_term_refused; /* since the last rise, and the log has it */

    /* takeover.c */
    uint64_t took_over_ns; /* when it did from the master before */
    uint64_t presents_due_ns; /* until then sessions may come for what they held before; 0 = they have */
    uint64_t old_leases_end_ns; /* until then clients may read under leases of the master before */
    uint64_t rebuild_until_ns; /* until then nodes may come whose memory is of an older term and not known here, */
    uint32_t rebuilds; /* reports under way of such memory */
    uint64_t orphans_until_ns; /* and writers that complete the groups that they had begun */
} kvp_peers_t;

#endif
