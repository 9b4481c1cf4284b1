/* SPDX-License-Identifier: Apache-2.0
 * What is in the pool: the objects, their tenants, and the segments in which replicas lie.
 */
#ifndef KVP_MASTER_CORE_CATALOG_CATALOG_H
#define KVP_MASTER_CORE_CATALOG_CATALOG_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/log/journal.h"

typedef struct kvp_segment kvp_segment_t;
typedef struct kvp_tenant kvp_tenant_t;

/* Objects, tenants, and the memory in which replicas lie. */
typedef struct kvp_catalog {
    kvp_ctx_t *ctx; /* borrowed, */
    kvp_journal_t *log; /* and this */
    kvp_objindex_t *index;
    uint64_t gen_seq; /* of every extent that is granted: a generation is also the object's version */
    kvp_ptab_t attempts; /* of objects that are being written, */
    kvp_list_t attempts_in_order; /* and in the order in which they were begun */

    kvp_buf_t fresh_commits; /* kvp_fresh_commit_t: commits that may be lost, from fresh_commits_at on */
    size_t fresh_commits_at;

    kvp_ptab_t tenants;
    kvp_umap_t tenant_ids; /* id + 1 -> number in tenants */
    uint32_t tenants_used, tenants_bumped; /* number of them with references; with a min_version */
    uint32_t tenants_at; /* where the next look for tenants to forget begins */
    uint32_t
        forgotten_term; /* memory that was mounted last before it is not believed: bumps were forgotten; 0 = none */
    uint32_t epoch_min; /* initial epoch of a new record: the greatest forgotten one */
    uint32_t given_up_term; /* as tenant->given_up_term, for tenants whose records were dropped over the limit */
    kvp_list_t owners; /* tenants with chunks, in the order of rebalancing looks */
    uint32_t owners_n;
    uint64_t owned_bytes, owned_chunks; /* of theirs */
    kvp_tenant_t *placing; /* borrowed: the tenant of the last placed object; NULL = none */
    kvp_list_t taking; /* tenants that take a chunk */

    kvp_list_t segments;
    uint32_t segment_seq, host_seq;
    kvp_ptab_t chunks;
    uint32_t chunks_n; /* of all segments, made or not */
    uint64_t known_bytes; /* of all segments that are mounted, or may come back */
    uint32_t lost_n; /* segments whose node is away */
    kvp_segment_t **up; /* segments that take puts */
    uint32_t up_n, up_cap;
    kvp_umap_t up_hosts; /* host number -> number of these segments on the host */
    kvp_heap_t up_chunks; /* these segments, longest chunks first */
    uint32_t slow_n; /* segments that take puts, with a node that does not answer */
} kvp_catalog_t;

/* A segment whose node does not answer is passed over for puts as long as there are others. */
static inline bool
kvp_segment_is_passed_over(const kvp_catalog_t *cat, const kvp_segment_t *g)
{
    return g->is_slow && cat->slow_n < cat->up_n;
}

#endif
