/* SPDX-License-Identifier: Apache-2.0
 * Counts what clients ask for, for the pool and by tenant. */
#include "master/core/catalog/asks.h"

#include "master/core/base/ctx.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/tenant.h"

#include <stdlib.h>

#define LOOKS_UP_NS KVP_MS(3600000)
/* a tenant takes over the curve of another tenant if it asked for twice as many keys, and this many more */
#define TAKE_OVER 100000u

/* Returns the tenant's own curve; NULL = it has none. */
static kvp_curve_t *
own_curve(const kvp_asks_t *asks, const kvp_tenant_t *t)
{
    for (uint32_t i = 0; i < asks->tenants_n; i++)
        if (asks->tenants[i].tenant == t->id) return asks->tenants[i].curve;
    return NULL;
}

/* Gives the tenant a curve of its own if few tenants have one, or if it asks much more than one of these. */
static kvp_curve_t *
take_curve(kvp_catalog_t *cat, const kvp_tenant_t *t)
{
    kvp_asks_t *asks = &cat->asks;
    uint32_t at = asks->tenants_n;
    uint64_t least = UINT64_MAX;

    if (at == KVP_CURVES_MAX) {
        for (uint32_t i = 0; i < KVP_CURVES_MAX; i++) {
            const kvp_tenant_t *other = kvp_tenant_find(cat, asks->tenants[i].tenant);
            const uint64_t asked = other == NULL ? 0 : other->asked;

            if (asked >= least) continue;
            least = asked;
            at = i;
        }
        if (t->asked < 2 * least + TAKE_OVER) return NULL;
        kvp_curve_destroy(asks->tenants[at].curve);
    } else {
        asks->tenants_n++;
    }
    asks->tenants[at].tenant = t->id;
    asks->tenants[at].curve = kvp_curve_create(cat->ctx->conf.curve_uses);
    return asks->tenants[at].curve;
}

/* Returns the curve to feed beside the pool's; NULL = none. Makes the pool's curve with the first question. */
static kvp_curve_t *
curve_of(kvp_catalog_t *cat, const kvp_tenant_t *t)
{
    kvp_asks_t *asks = &cat->asks;
    kvp_curve_t *own;

    if (asks->curve == NULL) asks->curve = kvp_curve_create(cat->ctx->conf.curve_uses);
    if (!asks->has_first) {
        asks->has_first = true;
        asks->first = t->id;
    }
    if (asks->tenants_n == 0 && asks->first == t->id) return NULL;
    own = own_curve(asks, t);
    return own == NULL ? take_curve(cat, t) : own;
}

static void
count_keys(kvp_catalog_t *cat, kvp_tenant_t *t, uint64_t n, uint64_t found)
{
    kvp_ratio_note(&cat->asks.ratio, n, found, cat->ctx->now_ns);
    if (t->ratio == NULL) t->ratio = kvp_core_alloc(1, sizeof *t->ratio);
    kvp_ratio_note(t->ratio, n, found, cat->ctx->now_ns);
    t->asked += n;
}

static void
count_asked(kvp_catalog_t *cat, kvp_tenant_t *t, const kvp_digest_t *digests, uint32_t n, bool is_prefix)
{
    kvp_curve_t *own;

    if (cat->ctx->conf.curve_uses == 0) return;
    own = curve_of(cat, t);
    kvp_curve_ask(cat->asks.curve, digests, n, is_prefix);
    if (own != NULL) kvp_curve_ask(own, digests, n, is_prefix);
}

void
kvp_asks_note(kvp_catalog_t *cat, kvp_tenant_t *t, const kvp_digest_t *digests, uint32_t n, uint32_t found,
              bool is_prefix)
{
    t->looked_up_ns = cat->ctx->now_ns;
    count_keys(cat, t, n, found);
    count_asked(cat, t, digests, n, is_prefix);
}

static bool
looks_up(const kvp_catalog_t *cat, const kvp_tenant_t *t)
{
    return t->looked_up_ns > 0 && cat->ctx->now_ns - t->looked_up_ns < LOOKS_UP_NS;
}

void
kvp_asks_got(kvp_catalog_t *cat, kvp_tenant_t *t, const kvp_digest_t *digests, uint32_t n, uint32_t found)
{
    if (looks_up(cat, t)) { /* a look-up has counted the found keys already */
        if (n > found) count_keys(cat, t, n - found, 0);
        return;
    }
    count_keys(cat, t, n, found);
    count_asked(cat, t, digests, n, false);
}

void
kvp_asks_read(kvp_catalog_t *cat, kvp_tenant_t *t, kvp_digest_t digest, uint32_t reads)
{
    if (looks_up(cat, t)) return;
    count_keys(cat, t, reads, reads);
    count_asked(cat, t, &digest, 1, false);
    if (cat->asks.curve != NULL) kvp_curve_read(cat->asks.curve, reads - 1);
    if (own_curve(&cat->asks, t) != NULL) kvp_curve_read(own_curve(&cat->asks, t), reads - 1);
}

void
kvp_asks_put(kvp_catalog_t *cat, kvp_tenant_t *t, kvp_digest_t digest, uint64_t bytes)
{
    kvp_curve_t *own;

    if (cat->asks.curve == NULL) return;
    kvp_curve_put(cat->asks.curve, digest, bytes);
    own = cat->asks.tenants_n == 0 ? NULL : own_curve(&cat->asks, t);
    if (own != NULL) kvp_curve_put(own, digest, bytes);
}

void
kvp_asks_tick(kvp_catalog_t *cat)
{
    if (cat->asks.curve != NULL) kvp_curve_tick(cat->asks.curve, cat->ctx->now_ns);
    for (uint32_t i = 0; i < cat->asks.tenants_n; i++)
        kvp_curve_tick(cat->asks.tenants[i].curve, cat->ctx->now_ns);
}

void
kvp_asks_fini(kvp_asks_t *asks)
{
    kvp_curve_destroy(asks->curve);
    for (uint32_t i = 0; i < asks->tenants_n; i++)
        kvp_curve_destroy(asks->tenants[i].curve);
}

const kvp_curve_t *
kvp_asks_curve(const kvp_catalog_t *cat, const kvp_tenant_t *t)
{
    const kvp_asks_t *asks = &cat->asks;

    return asks->tenants_n == 0 && asks->has_first && asks->first == t->id ? asks->curve : own_curve(asks, t);
}
