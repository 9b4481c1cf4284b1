/* SPDX-License-Identifier: Apache-2.0
 * The peers that are connected to the core, and the core's own identity. */
#ifndef KVP_MASTER_CORE_SESSION_PEERS_H
#define KVP_MASTER_CORE_SESSION_PEERS_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/catalog.h"

#define KVP_TERM_RISES_MAX 8u /* peers may raise this master's term at most so many times in an hour */

/* How long all output to peers is held back while the shell saves the pool's identity. */
typedef enum {
    KVP_MUTE_NOT, /* output is not held back */
    KVP_MUTE_UNTIL_TRIED, /* output is held back until the shell has tried to save the identity */
    KVP_MUTE_UNTIL_SAVED, /* output is held back until the shell has saved a raised term */
} kvp_mute_t;

/* The connected peers, the output for them, and this master's identity. */
typedef struct kvp_sessions {
    kvp_ctx_t *ctx; /* borrowed */
    kvp_catalog_t *cat; /* borrowed */
    kvp_ptab_t sessions;
    kvp_umap_t by_conn, by_incarnation; /* connection or incarnation -> number in `sessions` */
    kvp_list_t seen, born, dirty;
    kvp_master_audit_t audit; /* the latest refusal or destructive request, for the shell; conn 0 = none */
    kvp_buf_t unwanted; /* the replies to one-way requests of peers are built here, and never sent */
    uint64_t incarnation_seq, request_seq;

    /* The pool's identity: kvp_pool_granted. */
    /* flag: the pool's identity in conf is final, because an earlier master, a node or a grant relies on it */
    bool is_named;
    bool is_ident_news; /* flag: the term or the pool's identity changed, and the shell has not read it yet */
    bool is_ident_given; /* flag: the shell is saving an identity */
    kvp_mute_t mute;

    /* Fields of recovery/term.c. */
    uint64_t follows_until_ns; /* until this time peers may raise this master's term */
    uint64_t term_rises_ns[KVP_TERM_RISES_MAX]; /* ring of the times at which peers raised the term */
    uint32_t term_rises;
    /* flag: no state of earlier masters was kept and nothing was granted yet: one rise may be longer (LEAP_MAX) */
    bool may_leap;
    uint32_t refused_in; /* our own term when the refusal of a peer's higher term was logged last; 0 = never */

    /* Fields of takeover.c. */
    uint64_t took_over_ns; /* time of the take-over from the previous master */
    /* until this time clients may restore tickets of the previous master; 0 = the time is over */
    uint64_t presents_due_ns;
    uint64_t old_leases_end_ns; /* until this time clients may use location leases of the previous master */
    /* until this time nodes may report memory of an older term that this master does not know */
    uint64_t rebuild_until_ns;
    uint32_t rebuilds; /* number of running reports of memory that this master does not know */
    uint64_t orphans_until_ns; /* until this time incomplete groups of the previous master may be completed */
} kvp_sessions_t;

#endif
