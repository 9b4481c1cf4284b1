/* SPDX-License-Identifier: Apache-2.0
 * The contents of the pool: the objects, their tenants, and the segments of memory in which replicas lie. */
#ifndef KVP_MASTER_CORE_CATALOG_CATALOG_H
#define KVP_MASTER_CORE_CATALOG_CATALOG_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/base/ages.h"
#include "master/core/base/ctx.h"
#include "master/core/base/departed.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/asks.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/log/journal.h"

typedef struct kvp_segment kvp_segment_t;
typedef struct kvp_tenant kvp_tenant_t;

#define KVP_ENDED_SEGMENTS 64u

/* The catalog: all objects, all tenants, and the segments of memory in which replicas lie. */
typedef struct kvp_catalog {
    kvp_ctx_t *ctx; /* borrowed */
    kvp_journal_t *log; /* borrowed */
    kvp_objindex_t *index;
    /* sequence number of the last granted extent's generation; a generation is also the object's version */
    uint64_t gen_seq;
    kvp_ages_t ages; /* the times of versions */
    kvp_departed_t departed; /* objects that left the index */
    kvp_departed_t refused; /* puts that were refused */
    kvp_asks_t asks; /* what clients ask for */
    kvp_ptab_t attempts; /* put attempts by number */
    kvp_list_t attempts_in_order; /* put attempts in the order in which they were begun */

    /* array of kvp_fresh_commit_t from byte fresh_commits_at on: commits whose log records a crash may lose */
    kvp_buf_t fresh_commits;
    size_t fresh_commits_at;

    kvp_ptab_t tenants;
    kvp_umap_t tenant_ids; /* map: tenant id + 1 -> number of the tenant in `tenants` */
    uint32_t tenants_used, tenants_bumped; /* number of tenants with references; number of tenants with a min_version */
    uint32_t tenants_at; /* number of the tenant at which the next search for tenants with forgettable bumps begins */
    /* last term in which a tenant's bumps were forgotten: memory last mounted before it is not trusted; 0 = none */
    uint32_t forgotten_term;
    uint32_t epoch_min; /* initial epoch of a new tenant record: the greatest epoch of a forgotten record */
    /* greatest given_up_term of the tenants whose records were freed because there were too many; 0 = none */
    uint32_t given_up_term;
    kvp_list_t owners; /* tenants that own chunks, in the order in which rebalancing examines them */
    uint32_t owners_n;
    uint64_t owned_bytes, owned_chunks; /* bytes and number of all chunks that belong to some tenant */
    kvp_tenant_t *placing; /* the tenant of the last placed object; NULL = none; borrowed */
    kvp_list_t taking; /* tenants that are taking a chunk from another tenant */

    kvp_list_t segments;
    uint32_t segment_seq, host_seq;
    /* ring of the ids and names of segments that ended last, for kvp_on_explain */
    struct {
        uint32_t id;
        char name[KVP_NAME_MAX + 1];
    } ended[KVP_ENDED_SEGMENTS];
    uint32_t ended_n;
    kvp_ptab_t chunks;
    uint32_t chunks_n; /* number of chunks of all segments, including chunks without a record yet */
    uint64_t known_bytes; /* bytes of all segments that are mounted or may be mounted again */
    uint32_t lost_n; /* number of memory segments whose node is disconnected */
    kvp_segment_t **up; /* array of the segments that accept puts */
    uint32_t up_n, up_cap;
    uint64_t coming_bytes; /* bytes that become free in these segments as soon as their nodes have answered */
    kvp_umap_t up_hosts; /* host number -> number of segments on this host that accept puts */
    kvp_heap_t up_chunks; /* heap of the segments that accept puts; the segment with the longest chunks is first */
    uint32_t slow_n; /* number of segments that accept puts and whose node does not answer in time */
} kvp_catalog_t;

/* Returns true if puts skip the segment because its node does not answer. While no segment's node answers,
 * no segment is skipped. */
static inline bool
kvp_segment_is_passed_over(const kvp_catalog_t *cat, const kvp_segment_t *g)
{
    return g->is_slow && cat->slow_n < cat->up_n;
}

#endif
