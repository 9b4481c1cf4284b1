/* SPDX-License-Identifier: Apache-2.0
 * The memory of removed versions, while nodes may report memory that still has these objects. Removals are compared
 * with the reports, also the removals read from a log whose end is missing. Without a log the next master does not know
 * the removals, and trusts the nodes' reports. */
#include "master/core/protect/gone.h"

#include "common/digestmap.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/tenant.h"

/* limit of removed keys; the map is made for this number at once, so that no insertion copies the map */
#define HELD_MAX (1u << 18)
#define PRUNE_MIN (1u << 16) /* the map of removed keys is pruned only above this number of keys */
#define HOLD_RECORDS 8u /* inserting a removed key costs as much of the budget as handling this many records */

bool
kvp_gone_is_rebuilding(const kvp_protect_t *prot)
{
    const kvp_sessions_t *peers = prot->peers;

    return !prot->is_gone_full && (prot->ctx->now_ns < peers->rebuild_until_ns || peers->rebuilds > 0);
}

uint64_t
kvp_gone_version(const kvp_protect_t *prot, uint32_t tenant, kvp_digest_t digest)
{
    const kvp_tenant_t *t = kvp_tenant_find(prot->cat, tenant);
    const uint64_t *of_key = kvp_digestmap_at(&prot->gone, digest);

    return kvp_max_u64(of_key == NULL ? 0 : *of_key, t == NULL ? 0 : t->min_version);
}

static void
raise_to(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version)
{
    bool has_memory = prot->gone.cap > 0 || kvp_digestmap_reserve(&prot->gone, HELD_MAX);
    uint64_t *at = has_memory ? kvp_digestmap_insert(&prot->gone, digest) : NULL;

    if (at == NULL) kvp_panic("out of memory: what is gone");
    *at = kvp_max_u64(*at, version);
}

/* Returns true if memory that no node has reported yet may have this version, or an older version of the key. */
static bool
may_come_back(const kvp_protect_t *prot, uint64_t version)
{
    bool is_copied = prot->are_copies_open && KVP_RULE(COPY_GONE);

    return version > 0 && (is_copied || kvp_gone_is_rebuilding(prot));
}

void
kvp_gone_hold(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version)
{
    if (!may_come_back(prot, version)) return;
    kvp_ctx_spend(prot->ctx, HOLD_RECORDS);
    if (prot->gone.n >= prot->gone_read + HELD_MAX && kvp_digestmap_at(&prot->gone, digest) == NULL) {
        prot->is_gone_full = true;
        kvp_ctx_note(prot->ctx, "too much was removed before all nodes were back: what others hold is given up");
        return;
    }
    raise_to(prot, digest, version);
}

void
kvp_gone_say(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version, kvp_gone_t why)
{
    if (kvp_gone_is_rebuilding(prot) && KVP_RULE(GONE_WHILE_REPORTING))
        kvp_record_gone(prot->cat, NULL, digest, version, why, KVP_CAUSE_NOT_KNOWN);
    kvp_gone_hold(prot, digest, version);
}

void
kvp_gone_note(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version)
{
    if (!KVP_RULE(LOG_SAYS_GONE)) return;
    raise_to(prot, digest, version);
    prot->gone_read = prot->gone.n;
}

/* Forgets the removals of versions below `oldest`. The cost is proportional to the number of removals noted since the
 * last call. */
void
kvp_gone_prune(kvp_protect_t *prot, uint64_t oldest)
{
    kvp_digestmap_t old = prot->gone;
    const kvp_digestmap_at_t *at;
    uint32_t from = 0;

    if (old.n < PRUNE_MIN || old.n < 2 * prot->gone_pruned) return;
    kvp_digestmap_init(&prot->gone, old.seed);
    while ((at = kvp_digestmap_next(&old, &from)) != NULL)
        if (at->val >= oldest) raise_to(prot, at->digest, at->val);
    prot->gone_read = prot->gone_pruned = prot->gone.n;
    kvp_digestmap_fini(&old);
}

void
kvp_gone_forget(kvp_protect_t *prot)
{
    kvp_digestmap_fini(&prot->gone);
    prot->gone_read = prot->gone_pruned = 0;
    prot->are_copies_open = false;
}
