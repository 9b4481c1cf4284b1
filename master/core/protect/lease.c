/* SPDX-License-Identifier: Apache-2.0
 * Location leases: under a lease a client reads again from cached locations, without a message to the master.
 * Removals during the lease are revoked: the client is told to drop these locations. PROTOCOL "HEARTBEAT".
 *
 * Design notes. Each tenant counts its revocations. It keeps the last of them in a ring while a client has a lease; a
 * client that is further behind drops all its cached locations. A lease is one record for each session: its end, and
 * the last revocation that the client has confirmed. An answer that waits for a revocation waits until the least
 * confirmed revocation of all leases (a heap) has reached it, and for clients whose connection ended without Bye. For
 * those there is a short list, in which each entry lasts longer than the entries before it and has applied more
 * revocations: an entry that neither lasts longer nor has applied fewer is redundant. */
#include "master/core/protect/lease.h"

#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/protection.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#define RING_FIRST 64u /* first size of a ring of revocations; it doubles up to KVP_REVOKED_MAX entries */
#define WAITERS_SLICE 256u /* limit of a tenant's waiting answers that one call sends */

/* ---- the ring of revocations revoked_from + 1 to revoke_seq */
static void
ring_grow(kvp_tenant_t *t)
{
    uint32_t cap = t->revoked_cap == 0 ? RING_FIRST : t->revoked_cap * 2;
    kvp_digest_t *ring = kvp_core_alloc(cap, sizeof *ring);

    for (uint64_t seq = t->revoked_from + 1; seq <= t->revoke_seq; seq++)
        ring[seq % cap] = t->revoked[seq % t->revoked_cap];
    free(t->revoked);
    t->revoked = ring;
    t->revoked_cap = cap;
}

void
kvp_revoke_all(kvp_tenant_t *t)
{
    t->revoked_from = ++t->revoke_seq;
}

void
kvp_revoke(kvp_tenant_t *t, kvp_digest_t digest)
{
    if (t->leases.n == 0) { /* no client has a lease */
        kvp_revoke_all(t);
        return;
    }
    if (t->revoke_seq - t->revoked_from == t->revoked_cap) {
        if (t->revoked_cap < KVP_REVOKED_MAX)
            ring_grow(t);
        else
            t->revoked_from++;
    }
    t->revoke_seq++;
    t->revoked[t->revoke_seq % t->revoked_cap] = digest;
}

/* ---- leases of clients whose connection ended without Bye */
static void
lost_add(kvp_protect_t *prot, kvp_tenant_t *t, uint64_t applied)
{
    kvp_lost_lease_t *last;

    while (t->lost_n > 0 && t->lost[t->lost_n - 1].applied >= applied)
        t->lost_n--;
    if (t->lost_n < KVP_LOST_LEASES_MAX) t->lost[t->lost_n++].applied = applied;
    last = &t->lost[t->lost_n - 1]; /* if `lost` is full, its last entry is shared by two leases */
    last->until_ns = prot->ctx->now_ns + prot->ctx->conf.location_grace_ns;
    if (kvp_list_is_empty(&t->leasing)) kvp_list_add_tail(&prot->leasing, &t->leasing);
}

static void
lost_expire(const kvp_protect_t *prot, kvp_tenant_t *t)
{
    uint32_t gone = 0;

    while (gone < t->lost_n && t->lost[gone].until_ns <= prot->ctx->now_ns)
        gone++;
    t->lost_n -= gone;
    memmove(t->lost, t->lost + gone, t->lost_n * sizeof *t->lost);
}

/* ---- answers that wait for leases */
bool
kvp_lease_is_over(const kvp_protect_t *prot, const kvp_tenant_t *t, uint64_t seq)
{
    const kvp_heapnode_t *least = kvp_heap_least(&t->leases);

    if (!KVP_RULE(WAIT_FOR_LEASES)) return true;
    if (prot->ctx->now_ns < prot->peers->old_leases_end_ns && KVP_RULE(OLD_TERM_LEASES)) return false;
    if (least != NULL && least->key < seq) return false;
    /* Check every lost lease that has not applied `seq`: an expired entry may be followed by valid entries. */
    for (uint32_t i = 0; i < t->lost_n && t->lost[i].applied < seq; i++)
        if (t->lost[i].until_ns > prot->ctx->now_ns) return false;
    return true;
}

void
kvp_lease_wait(kvp_protect_t *prot, kvp_deferred_t *w)
{
    kvp_tenant_t *t = w->session->tenant;

    kvp_list_add_tail(&t->deferred, &w->leases);
    if (kvp_list_is_empty(&t->leasing)) kvp_list_add_tail(&prot->leasing, &t->leasing);
}

/* Sends waiting answers. They are in the order of their revocations, so the first one that must wait ends the loop. */
static void
answer_some(kvp_protect_t *prot, kvp_tenant_t *t)
{
    for (uint32_t n = 0; n < WAITERS_SLICE && !kvp_list_is_empty(&t->deferred); n++) {
        kvp_deferred_t *w = kvp_list_first(&t->deferred, kvp_deferred_t, leases);

        if (!kvp_lease_is_over(prot, t, w->revoke_seq)) return;
        kvp_deferred_revoked(prot, w);
    }
}

/* ---- leases */
static void
lease_free(kvp_protect_t *prot, kvp_lease_t *l)
{
    kvp_tenant_t *t = l->session->tenant;

    kvp_heap_del(&t->leases, &l->applied);
    kvp_list_del(&l->link);
    l->session->lease = NULL;
    free(l);
    prot->ctx->st.leases--;
    if (t->leases.n > 0) return;
    free(t->revoked);
    t->revoked = NULL;
    t->revoked_cap = 0;
    t->revoked_from = t->revoke_seq;
}

static kvp_lease_t *
lease_make(kvp_protect_t *prot, kvp_session_t *s)
{
    kvp_lease_t *l = kvp_core_alloc(1, sizeof *l);

    l->session = s;
    s->lease = l;
    kvp_list_init(&l->link);
    /* The client's cache holds nothing older than its session, so the lease counts all revocations up to the
     * session's birth as applied. */
    kvp_heap_add(&s->tenant->leases, &l->applied, s->born_seq);
    prot->ctx->st.leases++;
    return l;
}

/* Returns true if the lease may be renewed. A client that does not confirm the revocations it was sent gets renewals
 * only within one lease time, so that no answer waits for ever for a client that does not apply revocations. */
static bool
may_renew(const kvp_protect_t *prot, const kvp_lease_t *l)
{
    return l->applied.key >= l->told_seq || prot->ctx->now_ns - l->told_ns < prot->ctx->conf.location_lease_ns;
}

bool
kvp_lease_renew(kvp_protect_t *prot, kvp_session_t *s, uint64_t applied_seq)
{
    kvp_tenant_t *t = s->tenant;
    kvp_lease_t *l = s->lease == NULL ? lease_make(prot, s) : s->lease;

    if (applied_seq > l->applied.key && applied_seq <= t->revoke_seq) {
        kvp_heap_del(&t->leases, &l->applied);
        kvp_heap_add(&t->leases, &l->applied, applied_seq);
    }
    answer_some(prot, t);
    if (!may_renew(prot, l)) return false;
    if (l->applied.key >= l->told_seq) {
        l->told_seq = t->revoke_seq;
        l->told_ns = prot->ctx->now_ns;
    }
    l->until_ns = prot->ctx->now_ns + prot->ctx->conf.location_lease_ns;
    kvp_list_del(&l->link);
    kvp_list_add_tail(&prot->leases, &l->link);
    return true;
}

const kvp_digest_t *
kvp_lease_news(const kvp_tenant_t *t, uint64_t applied_seq, kvp_digest_t *news, uint32_t *n_out)
{
    *n_out = 0;
    if (applied_seq < t->revoked_from || applied_seq > t->revoke_seq) return NULL;
    while (applied_seq < t->revoke_seq)
        news[(*n_out)++] = t->revoked[++applied_seq % t->revoked_cap];
    return news;
}

void
kvp_lease_end(kvp_protect_t *prot, kvp_session_t *s, bool is_given_up)
{
    kvp_tenant_t *t = s->tenant;
    uint64_t applied;

    if (s->lease == NULL) return;
    applied = s->lease->applied.key;
    lease_free(prot, s->lease);
    if (!is_given_up && KVP_RULE(LEASE_OF_THE_LOST)) lost_add(prot, t, applied);
    answer_some(prot, t);
}

void
kvp_lease_tick(kvp_protect_t *prot)
{
    while (!kvp_list_is_empty(&prot->leases)) {
        kvp_lease_t *l = kvp_list_first(&prot->leases, kvp_lease_t, link);

        if (prot->ctx->now_ns < l->until_ns || prot->ctx->slice_left == 0) break;
        kvp_ctx_spend(prot->ctx, 1);
        lease_free(prot, l);
    }
    kvp_list_foreach_safe (pos, tmp, &prot->leasing) {
        kvp_tenant_t *t = kvp_list_entry(pos, kvp_tenant_t, leasing);

        lost_expire(prot, t);
        answer_some(prot, t);
        if (t->lost_n > 0 || !kvp_list_is_empty(&t->deferred)) continue;
        kvp_list_del(&t->leasing);
        kvp_tenant_prune(prot->cat, t);
    }
}
