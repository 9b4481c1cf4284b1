/* SPDX-License-Identifier: Apache-2.0
 * The SSD tiers of nodes, and their objects: tiered.h describes them. */
#include "master/core/space/tiered.h"

#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/deferred.h"
#include "master/core/space/retire.h"

#include <stdlib.h>
#include <string.h>

/* limit of the drops kept for a disconnected node; beyond it, the tier must report its contents instead */
#define DROPS_MAX 65536u

static bool
is_tier_of(const kvp_segment_t *t, const kvp_segment_t *g)
{
    size_t len = strlen(g->name);

    return t->is_tier && t->life != KVP_SEGMENT_DROPPED && strncmp(t->name, g->name, len) == 0 &&
           strcmp(t->name + len, KVP_TIER_SUFFIX) == 0;
}

bool
kvp_tier_is_name(const char *name)
{
    size_t len = strlen(name), suffix = strlen(KVP_TIER_SUFFIX);

    return len > suffix && strcmp(name + len - suffix, KVP_TIER_SUFFIX) == 0;
}

static void
link_memory(kvp_space_t *sp, kvp_segment_t *g)
{
    kvp_list_foreach (pos, &sp->cat->segments) {
        kvp_segment_t *t = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->tier == NULL && is_tier_of(t, g)) g->tier = t;
    }
}

void
kvp_tier_link(kvp_space_t *sp, kvp_segment_t *g)
{
    if (!g->is_tier) {
        link_memory(sp, g);
        return;
    }
    sp->tiers_n++;
    kvp_list_foreach (pos, &sp->cat->segments) {
        kvp_segment_t *h = kvp_list_entry(pos, kvp_segment_t, link);

        if (!h->is_tier && h->tier == NULL && is_tier_of(g, h)) h->tier = g;
    }
}

static uint64_t
chunk_key(const kvp_segment_t *t, const kvp_tenant_t *tenant)
{
    return (uint64_t)t->id << 32 | (tenant->number + 1u);
}

static kvp_chunk_t *
chunk_for(kvp_space_t *sp, kvp_segment_t *t, kvp_tenant_t *tenant)
{
    uint32_t number;
    kvp_chunk_t *c;

    if (kvp_umap_get(&sp->tier_chunks, chunk_key(t, tenant), &number)) return kvp_ptab_get(&sp->cat->chunks, number);
    c = kvp_core_alloc(1, sizeof *c);
    c->segment = t;
    c->tenant = tenant;
    kvp_list_add_tail(&t->ssd.tenants, &c->of_tier);
    tenant->refs++;
    c->number = kvp_ptab_add(&sp->cat->chunks, c);
    kvp_umap_set(&sp->tier_chunks, chunk_key(t, tenant), c->number);
    return c;
}

static void
chunk_free(kvp_space_t *sp, kvp_chunk_t *c)
{
    (void)kvp_umap_del(&sp->tier_chunks, chunk_key(c->segment, c->tenant));
    kvp_list_del(&c->of_tier);
    kvp_ptab_del(&sp->cat->chunks, c->number);
    kvp_tenant_rele(sp->cat, c->tenant);
    free(c);
}

void
kvp_obj_enter_tier(kvp_space_t *sp, uint32_t oid, kvp_segment_t *t, kvp_tenant_t *tenant, uint64_t len)
{
    kvp_chunk_t *c = chunk_for(sp, t, tenant);

    kvp_obj_set_on_tier_alone(sp->cat, oid, c, len);
    c->bytes += len;
    c->objects++;
    t->objects++;
    t->used_bytes += len;
    sp->ctx->st.tier_objects++;
    sp->ctx->st.tier_bytes += len;
}

/* Removes an object from its tier's chunk. An empty chunk is removed, too. */
void
kvp_tier_leave_chunk(kvp_space_t *sp, kvp_obj_t *o)
{
    uint64_t len = kvp_obj_len(sp->cat, o);
    kvp_chunk_t *c = kvp_obj_chunk(sp->cat, o);

    o->chunk = KVP_OBJ_CHUNK_NONE;
    c->bytes -= len;
    c->segment->objects--;
    c->segment->used_bytes -= len;
    sp->ctx->st.tier_objects--;
    sp->ctx->st.tier_bytes -= len;
    if (--c->objects == 0) chunk_free(sp, c);
}

void
kvp_tier_forget(kvp_space_t *sp, kvp_obj_t *o)
{
    if (kvp_obj_is_on_tier_alone(sp->cat, o)) kvp_tier_leave_chunk(sp, o);
    o->is_on_tier = 0;
}

/* ---- drops */
void
kvp_tier_drop_end(kvp_space_t *sp, kvp_segment_t *t, kvp_tier_drop_t *d)
{
    if (d->deferred != NULL) kvp_deferred_dead(sp->prot, d->deferred);
    kvp_list_del(&d->link);
    kvp_ptab_del(&sp->tier_drops, d->number);
    t->ssd.drops_n--;
    free(d);
}

static void
drops_end(kvp_space_t *sp, kvp_segment_t *t)
{
    while (!kvp_list_is_empty(&t->ssd.drops))
        kvp_tier_drop_end(sp, t, kvp_list_first(&t->ssd.drops, kvp_tier_drop_t, link));
}

void
kvp_tier_drop(kvp_space_t *sp, kvp_segment_t *t, kvp_digest_t digest, uint64_t version, kvp_deferred_t *deferred)
{
    kvp_tier_drop_t *d;

    if (t->node == NULL && (t->ssd.has_lost_drops || t->ssd.drops_n >= DROPS_MAX)) {
        t->ssd.has_lost_drops = true; /* a drop was lost: the node must report the tier when it connects */
        drops_end(sp, t);
        return;
    }
    d = kvp_core_alloc(1, sizeof *d);
    d->digest = digest;
    d->version = version;
    d->deferred = deferred;
    d->number = kvp_ptab_add(&sp->tier_drops, d);
    if (deferred != NULL) deferred->left++;
    kvp_list_add_tail(&t->ssd.drops, &d->link);
    t->ssd.drops_n++;
    sp->ctx->st.tier_drops++;
    kvp_retire_want_sending(sp, t);
}

void
kvp_tier_free(kvp_space_t *sp, kvp_segment_t *t)
{
    drops_end(sp, t);
    sp->tiers_n--;
    while (!kvp_list_is_empty(&t->ssd.tenants)) /* has chunks only if the whole core is destroyed */
        chunk_free(sp, kvp_list_first(&t->ssd.tenants, kvp_chunk_t, of_tier));
    kvp_list_foreach (pos, &sp->cat->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->tier != t) continue;
        g->tier = NULL;
        link_memory(sp, g);
    }
}
