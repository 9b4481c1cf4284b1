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

    /* takeover.c */
    uint64_t took_over_ns; /* when it did from the master before */
    uint64_t presents_due_ns; /* until then sessions may come for what they held before; 0 = they have */
    uint64_t old_leases_end_ns; /* until then clients may read under leases of the master before */
    uint64_t rebuild_until_ns; /* until then nodes may come whose memory is of an older term */
} kvp_peers_t;

#endif
