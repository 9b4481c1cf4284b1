/* SPDX-License-Identifier: Apache-2.0
 * What clients ask for: the hit ratios and the miss-ratio curves of the pool and of its tenants. Engines ask by
 * look-ups and exists, and get only what is there. So a tenant that has looked up within the last hour is measured by
 * its look-ups alone; any other tenant by its gets. */
#ifndef KVP_MASTER_CORE_CATALOG_ASKS_H
#define KVP_MASTER_CORE_CATALOG_ASKS_H

#include "common/hash.h"
#include "master/core/base/curve.h"
#include "master/core/base/ratio.h"

typedef struct kvp_catalog kvp_catalog_t;
typedef struct kvp_tenant kvp_tenant_t;

#define KVP_CURVES_MAX 8u /* most tenants with a curve of their own: the tenants that ask for the most keys */

typedef struct {
    kvp_ratio_t ratio; /* of the pool */
    kvp_curve_t *curve; /* curve of the pool; NULL = no client has asked yet, or curves are switched off */
    struct {
        uint32_t tenant; /* id of the tenant */
        kvp_curve_t *curve;
    } tenants[KVP_CURVES_MAX];
    uint32_t tenants_n;
    uint32_t first; /* id of the tenant that asked first: while it is the only one, its curve is the pool's */
    bool has_first;
} kvp_asks_t;

/* kvp_asks_note counts the n keys of a look-up, of which the pool had `found`; is_prefix: the look-up ends at the first
 * missing key. A client that looks keys up before it gets them is counted at the look-up. So kvp_asks_got (a get)
 * counts only the missing keys for a tenant with look-ups, and kvp_asks_read (reads from cached locations) counts
 * nothing; for other tenants both count all keys. kvp_asks_put sets the size of an object. kvp_asks_tick keeps the
 * limits of the curves. */
void kvp_asks_note(kvp_catalog_t *cat, kvp_tenant_t *t, const kvp_digest_t *digests, uint32_t n, uint32_t found,
                   bool is_prefix);
void kvp_asks_got(kvp_catalog_t *cat, kvp_tenant_t *t, const kvp_digest_t *digests, uint32_t n, uint32_t found);
void kvp_asks_read(kvp_catalog_t *cat, kvp_tenant_t *t, kvp_digest_t digest, uint32_t reads);
void kvp_asks_put(kvp_catalog_t *cat, kvp_tenant_t *t, kvp_digest_t digest, uint64_t bytes);
void kvp_asks_tick(kvp_catalog_t *cat);
void kvp_asks_fini(kvp_asks_t *asks);

/* kvp_asks_curve returns the tenant's curve: its own, or the pool's while it is the only one that asks. NULL = none. */
const kvp_curve_t *kvp_asks_curve(const kvp_catalog_t *cat, const kvp_tenant_t *t);

#endif
