/* SPDX-License-Identifier: Apache-2.0
 * Tenants: who may see what. A session belongs to one tenant, a chunk to the one whose object came first, so an object's
 * tenant is its chunk's. A record lives as long as somebody uses it, and for good once its epoch was bumped: what nodes
 * hold of older epochs must not come back.
 */
#include "master/core/catalog/tenant.h"

#include "common/list.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/index.h"

#include <stdlib.h>

#define TENANTS_MAX 4096u /* a stranger can make the core remember no more */

kvp_tenant_t *
kvp_tenant_find(const kvp_catalog_t *cat, uint32_t id)
{
    uint32_t number;

    return kvp_umap_get(&cat->tenant_ids, (uint64_t)id + 1, &number) ? kvp_ptab_get(&cat->tenants, number) : NULL;
}

bool
kvp_tenant_may_open(const kvp_catalog_t *cat, uint32_t id)
{
    return cat->tenants.n < TENANTS_MAX || kvp_tenant_find(cat, id) != NULL;
}

kvp_tenant_t *
kvp_tenant_open(kvp_catalog_t *cat, uint32_t id)
{
    kvp_tenant_t *t = kvp_tenant_find(cat, id);

    if (t == NULL) {
        t = kvp_core_alloc(1, sizeof *t);
        t->id = id;
        t->number = kvp_ptab_add(&cat->tenants, t);
        kvp_list_init(&t->leasing);
        kvp_list_init(&t->deferred);
        kvp_list_init(&t->owning);
        kvp_list_init(&t->take.link);
        kvp_objlist_init(&t->lru, KVP_OBJLIST_LRU);
        kvp_umap_set(&cat->tenant_ids, (uint64_t)id + 1, t->number);
    }
    t->refs++;
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
    free(t);
}

void
kvp_tenant_prune(kvp_catalog_t *cat, kvp_tenant_t *t)
{
    if (t->refs == 0 && t->epoch == 0 && kvp_list_is_empty(&t->leasing)) tenant_free(cat, t);
}

void
kvp_tenant_rele(kvp_catalog_t *cat, kvp_tenant_t *t)
{
    t->refs--;
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
