/* SPDX-License-Identifier: Apache-2.0
 * Tenants are separate namespaces. A session belongs to one tenant, and a chunk belongs to the tenant of its first
 * object, so an object's tenant is its chunk's tenant. A tenant's record exists while it is in use. After a bump of
 * the namespace the record exists as long as a node may have objects of an older epoch that this master does not see:
 * recovery/forget.c looks for such objects. Records in use and bumped records have separate limits, so neither kind
 * displaces the other. */
#include "master/core/catalog/tenant.h"

#include "common/list.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_USE_MAX 4096u /* limit of tenants with references: bounds the memory that clients can use up */
#define BUMPED_MAX 4095u

kvp_tenant_t *
kvp_tenant_find(const kvp_catalog_t *cat, uint32_t id)
{
    uint32_t number;

    return kvp_umap_get(&cat->tenant_ids, (uint64_t)id + 1, &number) ? kvp_ptab_get(&cat->tenants, number) : NULL;
}

bool
kvp_tenant_may_open(const kvp_catalog_t *cat, uint32_t id)
{
    const kvp_tenant_t *t = kvp_tenant_find(cat, id);

    return cat->tenants_used < IN_USE_MAX || (t != NULL && t->refs > 0);
}

bool
kvp_tenant_is_other(const kvp_catalog_t *cat, const char *name)
{
    uint32_t id = kvp_tenant_id(name);
    const kvp_tenant_t *t = kvp_tenant_find(cat, id);

    return id != 0 && t != NULL && t->name[0] != '\0' && strcmp(t->name, name) != 0;
}

bool
kvp_tenant_be_named(kvp_tenant_t *t, const char *name)
{
    if (t->id == 0 || t->name[0] != '\0' || kvp_tenant_id(name) != t->id) return false;
    snprintf(t->name, sizeof t->name, "%s", name);
    return true;
}

bool
kvp_tenant_may_bump(const kvp_catalog_t *cat, const kvp_tenant_t *t)
{
    return t->min_version > 0 || cat->tenants_bumped < BUMPED_MAX;
}

void
kvp_tenant_bumped(kvp_catalog_t *cat, kvp_tenant_t *t, uint64_t version)
{
    cat->tenants_bumped += t->min_version == 0;
    t->min_version = kvp_max_u64(t->min_version, version);
}

void
kvp_tenant_forget_bumps(kvp_catalog_t *cat, kvp_tenant_t *t)
{
    cat->tenants_bumped--;
    t->min_version = 0;
    cat->epoch_min = (uint32_t)kvp_max_u64(cat->epoch_min, t->epoch);
    kvp_tenant_prune(cat, t);
}

kvp_tenant_t *
kvp_tenant_make(kvp_catalog_t *cat, uint32_t id)
{
    kvp_tenant_t *t = kvp_tenant_find(cat, id);

    if (t != NULL) return t;
    t = kvp_core_alloc(1, sizeof *t);
    t->id = id;
    t->epoch = cat->epoch_min;
    t->number = kvp_ptab_add(&cat->tenants, t);
    kvp_list_init(&t->leasing);
    kvp_list_init(&t->deferred);
    kvp_list_init(&t->owning);
    kvp_list_init(&t->take.link);
    kvp_objlist_init(&t->lru, KVP_OBJLIST_LRU);
    kvp_objlist_init(&t->cold, KVP_OBJLIST_COLD);
    t->ahead = KVP_OID_NONE;
    kvp_umap_set(&cat->tenant_ids, (uint64_t)id + 1, t->number);
    return t;
}

kvp_tenant_t *
kvp_tenant_open(kvp_catalog_t *cat, uint32_t id)
{
    kvp_tenant_t *t = kvp_tenant_make(cat, id);

    cat->tenants_used += t->refs++ == 0;
    return t;
}

static void
tenant_free(kvp_catalog_t *cat, kvp_tenant_t *t)
{
    kvp_umap_del(&cat->tenant_ids, (uint64_t)t->id + 1);
    kvp_ptab_del(&cat->tenants, t->number);
    kvp_list_del(&t->leasing);
    if (cat->placing == t) cat->placing = NULL;
    kvp_heap_fini(&t->leases);
    free(t->revoked);
    free(t->ratio);
    free(t);
}

/* Frees the record of an unused tenant. A tenant with objects in memory that was given up in this term is kept until
 * the term's end, because a later bump must cover these objects too. If there are too many such tenants, the record is
 * freed, and the master forgets no tenant's bumps in this term. */
void
kvp_tenant_prune(kvp_catalog_t *cat, kvp_tenant_t *t)
{
    bool has_given_up = t->given_up_term == cat->ctx->term;

    if (t->refs > 0 || t->min_version > 0 || !kvp_list_is_empty(&t->leasing)) return;
    if (has_given_up && cat->tenants.n - cat->tenants_used <= BUMPED_MAX) return;
    if (has_given_up) cat->given_up_term = cat->ctx->term;
    tenant_free(cat, t);
}

bool
kvp_tenant_is_forgettable(const kvp_catalog_t *cat, const kvp_tenant_t *t)
{
    return t->refs == 0 && kvp_list_is_empty(&t->leasing) && t->given_up_term != cat->ctx->term &&
           cat->given_up_term != cat->ctx->term;
}

void
kvp_tenant_rele(kvp_catalog_t *cat, kvp_tenant_t *t)
{
    cat->tenants_used -= --t->refs == 0;
    kvp_tenant_prune(cat, t);
}

void
kvp_tenants_fini(kvp_catalog_t *cat)
{
    for (uint32_t i = 0; i < cat->tenants.limit; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&cat->tenants, i);

        if (t != NULL) tenant_free(cat, t);
    }
    kvp_ptab_fini(&cat->tenants);
    kvp_umap_fini(&cat->tenant_ids);
}
