/* SPDX-License-Identifier: Apache-2.0
 * Tenants: separate namespaces. tenant.c has the life of a record. */
#ifndef KVP_MASTER_CORE_CATALOG_TENANT_H
#define KVP_MASTER_CORE_CATALOG_TENANT_H

#include "common/hash.h"
#include "common/list.h"
#include "master/core/catalog/catalog.h"
#include "master/core/base/heap.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

typedef struct kvp_chunk kvp_chunk_t;
typedef struct kvp_walk kvp_walk_t;
typedef struct kvp_session kvp_session_t;

#define KVP_TENANTS_MAX 8192u /* unused ones kept while a log is read */
#define KVP_LOST_LEASES_MAX 16u /* of clients whose connection ended, kept apart in a tenant */

/* A chunk on its way from one tenant to another: rebalance.c. A tenant takes one at a time. */
typedef enum {
    KVP_TAKE_NONE,
    KVP_TAKE_LOOK, /* checks whether all its objects can be evicted, and whether that pays */
    KVP_TAKE_EVACUATE, /* its objects are evicted */
    KVP_TAKE_KEPT, /* it is empty, and waits for the taker's next put */
} kvp_take_state_t;

typedef struct kvp_take {
    kvp_list_t link; /* catalog->taking */
    kvp_take_state_t state;
    kvp_chunk_t *chunk;
    uint32_t age; /* of the taker's own first victim, when it began */
    uint32_t slot; /* where the walk goes on; KVP_SLAB_NONE = at the start */
    uint64_t recent_bytes; /* of the walked objects, those used since that victim */
    bool has_stayed; /* something that was walked could not go just then */
    uint64_t next_ns, end_ns; /* the next check of the obstacles, and the time of giving up */
} kvp_take_t;

typedef struct {
    uint64_t applied; /* the last revocation that it has applied */
    uint64_t until_ns;
} kvp_lost_lease_t;

typedef struct kvp_tenant {
    uint32_t id;
    uint32_t number; /* in catalog->tenants */
    char name[KVP_TENANT_NAME_MAX + 1]; /* empty: the default tenant, or unknown: only nodes reported its objects */
    uint32_t refs; /* sessions, chunks, jobs */
    uint32_t epoch; /* of the namespace; never falls in this master's life, even if the record is made again */
    uint32_t
        given_up_term; /* in which memory with something of it was given up last, which may be back in a later one */
    uint32_t chunks; /* its own chunks, */
    uint64_t chunk_bytes; /* and how long they are */
    uint64_t objects; /* committed, older epochs included */
    uint64_t used_bytes; /* extents in its chunks, */
    uint64_t going_bytes; /* and the part of them that nothing keeps from becoming free */
    uint64_t soft_pinned_bytes, hard_pinned_bytes; /* committed objects', all copies */
    kvp_walk_t *sweep; /* after a bump; NULL = none is running */
    uint64_t min_version; /* versions up to this one belong to an older epoch; 0 = never bumped, or forgotten */
    kvp_objlist_t lru; /* its candidates for eviction */
    uint32_t
        ahead; /* last entry of this list, from the oldest on, that evict/ahead.c has examined; KVP_OID_NONE = none, */
    uint64_t ahead_bytes; /* and the bytes of the examined ones that can be on a tier */
    uint64_t ahead_more; /* bytes written back beyond the usual share: recently put ones */
    kvp_objlist_t
        /* objects that were loaded from a tier and not used again since; evicted before those of
         * lru, see candidates.c */
        cold;
    uint64_t cold_bytes; /* their extents */
    kvp_list_t owning; /* in catalog->owners, while it has chunks */
    kvp_take_t take;
    uint64_t put_bytes; /* placed since its last look for a chunk of others */
    uint32_t foreign_evacuations; /* chunks of others that are evacuated for its puts */

    /* lease.c */
    uint64_t revoke_seq; /* the last revocation */
    uint64_t revoked_from; /* revocations up to this one are not in the ring */
    kvp_digest_t *revoked; /* the ring: revocation seq at seq % revoked_cap */
    uint32_t revoked_cap;
    uint32_t lost_n;
    kvp_lost_lease_t lost[KVP_LOST_LEASES_MAX];
    kvp_heap_t leases; /* of the sessions, by the revocation applied */
    kvp_list_t deferred; /* for leases, by rising revoke_seq */
    kvp_list_t leasing; /* protect->leasing, while there is anything in lost or deferred */
} kvp_tenant_t;

kvp_tenant_t *kvp_tenant_find(const kvp_catalog_t *cat, uint32_t id); /* NULL = unknown */
bool kvp_tenant_may_open(const kvp_catalog_t *cat, uint32_t id); /* not too many are in use */
/* the number belongs to a tenant of another name */
bool kvp_tenant_is_other(const kvp_catalog_t *cat, const char *name);
bool kvp_tenant_be_named(kvp_tenant_t *t, const char *name); /* the tenant has the name now, if it had none */
bool kvp_tenant_may_bump(const kvp_catalog_t *cat, const kvp_tenant_t *t); /* not too many were bumped */
/* objects up to this version are removed */
void kvp_tenant_bumped(kvp_catalog_t *cat, kvp_tenant_t *t, uint64_t version);
bool kvp_tenant_is_forgettable(const kvp_catalog_t *cat, const kvp_tenant_t *t); /* it owns no object known here */
void kvp_tenant_forget_bumps(kvp_catalog_t *cat, kvp_tenant_t *t); /* of a bumped one; frees it if unused */
kvp_tenant_t *kvp_tenant_make(kvp_catalog_t *cat, uint32_t id); /* without a new reference: prune it if unused */
kvp_tenant_t *kvp_tenant_open(kvp_catalog_t *cat, uint32_t id); /* one reference more */
void kvp_tenant_rele(kvp_catalog_t *cat, kvp_tenant_t *t);
void kvp_tenant_prune(kvp_catalog_t *cat, kvp_tenant_t *t); /* frees it if unused */
void kvp_tenants_fini(kvp_catalog_t *cat);

#endif
