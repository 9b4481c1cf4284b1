/* SPDX-License-Identifier: Apache-2.0
 * Tenants: separate namespaces. tenant.c has the life of a record. */
#ifndef KVP_MASTER_CORE_CATALOG_TENANT_H
#define KVP_MASTER_CORE_CATALOG_TENANT_H

#include "common/hash.h"
#include "common/list.h"
#include "master/core/catalog/catalog.h"
#include "master/core/base/heap.h"
#include "master/core/base/ratio.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

typedef struct kvp_chunk kvp_chunk_t;
typedef struct kvp_walk kvp_walk_t;
typedef struct kvp_session kvp_session_t;

#define KVP_TENANTS_MAX 8192u /* limit of tenant records without references that are kept while a log is read */
#define KVP_LOST_LEASES_MAX 16u /* limit of the leases of disconnected clients that a tenant keeps separately */

/* The progress of moving a chunk from one tenant to another: evict/rebalance.c. A tenant takes one chunk at a time. */
typedef enum {
    KVP_TAKE_NONE,
    KVP_TAKE_LOOK, /* checking whether all objects of the chunk can be evicted, and whether that pays */
    KVP_TAKE_EVACUATE, /* evicting the objects of the chunk */
    KVP_TAKE_KEPT, /* keeping the empty chunk for the next put of the tenant that takes it */
} kvp_take_state_t;

typedef struct kvp_take {
    kvp_list_t link; /* catalog->taking */
    kvp_take_state_t state;
    kvp_chunk_t *chunk;
    uint32_t age; /* age of the taking tenant's first eviction candidate when the check began */
    uint32_t slot; /* slot at which the walk through the chunk continues; KVP_SLAB_NONE = at the start */
    uint64_t recent_bytes; /* bytes of the walked objects that were used more recently than `age` */
    bool has_stayed; /* flag: the walk passed an object that could not be evicted at that time */
    /* time of the next attempt to evict the chunk's remaining objects; time limit of the taking */
    uint64_t next_ns, end_ns;
} kvp_take_t;

typedef struct {
    uint64_t applied; /* number of the last revocation that the lost client has applied */
    uint64_t until_ns;
} kvp_lost_lease_t;

typedef struct kvp_tenant {
    uint32_t id;
    uint32_t number; /* number in catalog->tenants */
    /* the tenant's name; empty: the default tenant, or unknown, as only nodes reported the tenant's objects */
    char name[KVP_TENANT_NAME_MAX + 1];
    uint32_t refs; /* number of references by sessions, chunks and jobs */
    /* epoch of the namespace; never decreases in this master's life, even if the record is made again */
    uint32_t epoch;
    /* Last term in which memory with objects of this tenant was given up; it may be mounted again in a later term. */
    uint32_t given_up_term;
    uint32_t chunks; /* number of chunks that belong to the tenant */
    uint64_t chunk_bytes; /* bytes of the chunks that belong to the tenant */
    uint64_t objects; /* number of committed objects, older epochs included */
    uint64_t used_bytes; /* bytes of all extents in the tenant's chunks */
    kvp_ratio_t *ratio; /* the hit ratio; NULL = no client has asked for a key yet */
    uint64_t asked; /* number of keys that were asked for */
    uint64_t looked_up_ns; /* time of the last look-up or exists; 0 = never */
    uint64_t going_bytes; /* part of used_bytes in extents that are being retired and are not quarantined */
    uint64_t soft_pinned_bytes, hard_pinned_bytes; /* bytes of pinned committed objects, all copies */
    kvp_walk_t *sweep; /* the running removal of objects of older epochs after a bump; NULL = not running */
    /* objects with versions up to this one belong to an older epoch; 0 = never bumped, or the bumps were forgotten */
    uint64_t min_version;
    kvp_objlist_t lru; /* the tenant's eviction candidates */
    /* The last entry of `lru`, from the oldest on, that evict/ahead.c has examined; KVP_OID_NONE = none. */
    uint32_t ahead;
    uint64_t ahead_bytes; /* bytes of the examined entries of `lru` that may be written to a tier */
    uint64_t ahead_more; /* recently put bytes: the write-back goes on for as many bytes beyond its usual share */
    /* Objects that were loaded from a tier and not used since; evicted before those of `lru` if over their share. */
    kvp_objlist_t cold;
    uint64_t cold_bytes; /* bytes of the extents of the objects in `cold` */
    kvp_list_t owning; /* link in catalog->owners, while the tenant has chunks */
    kvp_take_t take;
    uint64_t put_bytes; /* bytes placed since the tenant last looked for a chunk of another tenant */
    uint32_t foreign_evacuations; /* number of other tenants' chunks that are evacuated for this tenant's puts */

    /* Fields of protect/lease.c. */
    uint64_t revoke_seq; /* number of the last revocation */
    uint64_t revoked_from; /* revocations up to this number are no longer in `revoked` */
    kvp_digest_t *revoked; /* ring buffer of revoked digests: revocation number n is at n % revoked_cap */
    uint32_t revoked_cap;
    uint32_t lost_n;
    kvp_lost_lease_t lost[KVP_LOST_LEASES_MAX];
    kvp_heap_t leases; /* heap of the sessions' leases, by the last revocation that each has applied */
    kvp_list_t deferred; /* deferred replies that wait for leases, by rising revoke_seq */
    kvp_list_t leasing; /* link in protect->leasing, while `lost` or `deferred` has entries */
} kvp_tenant_t;

kvp_tenant_t *kvp_tenant_find(const kvp_catalog_t *cat, uint32_t id); /* NULL = unknown */
bool kvp_tenant_may_open(const kvp_catalog_t *cat, uint32_t id); /* returns false if too many tenants are in use */
/* Returns true if the id that is computed from the name belongs to a tenant with another name. */
bool kvp_tenant_is_other(const kvp_catalog_t *cat, const char *name);
bool kvp_tenant_be_named(kvp_tenant_t *t, const char *name); /* sets the name of a nameless tenant; false = not set */
/* returns false if too many tenants were bumped */
bool kvp_tenant_may_bump(const kvp_catalog_t *cat, const kvp_tenant_t *t);
/* kvp_tenant_bumped records a bump: objects up to this version count as removed. */
void kvp_tenant_bumped(kvp_catalog_t *cat, kvp_tenant_t *t, uint64_t version);
bool kvp_tenant_is_forgettable(const kvp_catalog_t *cat, const kvp_tenant_t *t); /* true: it has no object known here */
/* forgets a tenant's bumps, of which there must be one; frees the tenant's record if it has no references */
void kvp_tenant_forget_bumps(kvp_catalog_t *cat, kvp_tenant_t *t);
kvp_tenant_t *kvp_tenant_make(kvp_catalog_t *cat, uint32_t id); /* no reference: caller prunes an unused record */
kvp_tenant_t *kvp_tenant_open(kvp_catalog_t *cat, uint32_t id); /* takes a reference */
void kvp_tenant_rele(kvp_catalog_t *cat, kvp_tenant_t *t);
void kvp_tenant_prune(kvp_catalog_t *cat, kvp_tenant_t *t); /* frees the record if unused */
void kvp_tenants_fini(kvp_catalog_t *cat);

#endif
