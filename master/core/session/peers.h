/* SPDX-License-Identifier: Apache-2.0
 * The peers connected to the core, and the core's own identity. */
#ifndef KVP_MASTER_CORE_SESSION_PEERS_H
#define KVP_MASTER_CORE_SESSION_PEERS_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/catalog.h"

#define KVP_TERM_RISES_MAX 8u /* rises of the term that peers may cause in an hour */

/* The output while the shell saves the identity. */
typedef enum {
    KVP_MUTE_NOT,
    KVP_MUTE_UNTIL_TRIED, /* no output before the shell has tried to save the identity */
    KVP_MUTE_UNTIL_SAVED, /* no output before the shell has saved a risen term */
} kvp_mute_t;

/* The connected peers, the output for them, and this master's identity. */
typedef struct kvp_sessions {
    kvp_ctx_t *ctx; /* borrowed, */
    kvp_catalog_t *cat; /* and this as well */
    kvp_ptab_t sessions;
    kvp_umap_t by_conn, by_incarnation; /* -> numbers in sessions */
    kvp_list_t seen, born, dirty;
    kvp_buf_t unwanted; /* answers to one-way questions are written here and dropped */
    uint64_t incarnation_seq, request_seq;

    /* the pool's identity: kvp_pool_granted */
    bool is_named; /* conf's identity is final: an earlier master, a node or a grant relies on it */
    bool is_ident_news; /* the term or the name changed, and the shell does not know yet */
    bool is_ident_given; /* the shell is saving an identity */
    kvp_mute_t mute;

    /* recovery/term.c */
    uint64_t follows_until_ns; /* peers may raise the term until then */
    uint64_t term_rises_ns[KVP_TERM_RISES_MAX]; /* when peers raised the term; a ring */
    uint32_t term_rises;
    bool may_leap; /* nothing was kept of the masters before, and nothing was granted yet */
    uint32_t refused_in; /* the term in which a refusal was logged last; 0 = none was */

    /* takeover.c */
    uint64_t took_over_ns; /* time of the take-over from the previous master */
    uint64_t presents_due_ns; /* until then sessions may come for what they held before; 0 = they have */
    uint64_t old_leases_end_ns; /* until then clients may read under leases of the master before */
    uint64_t rebuild_until_ns; /* until then nodes may come whose memory is of an older term and not known here, */
    uint32_t rebuilds; /* reports of such memory under way */
    uint64_t orphans_until_ns; /* and for writers that complete their begun groups */
} kvp_sessions_t;

#endif
