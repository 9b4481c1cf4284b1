/* SPDX-License-Identifier: Apache-2.0
 * Location leases: clients read again from locations that they know.
 */
#ifndef KVP_MASTER_CORE_PROTECT_LEASE_H
#define KVP_MASTER_CORE_PROTECT_LEASE_H

#include "common/hash.h"
#include "master/core/protect/protection.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/deferred.h"
#include "master/core/session/session.h"

typedef struct kvp_lease {
    kvp_heapnode_t applied; /* tenant->leases */
    kvp_list_t link; /* protect->leases, by rising until_ns */
    kvp_session_t *session;
    uint64_t until_ns;
    uint64_t told_seq; /* the oldest revocation that it may not have applied, and the time since */
    uint64_t told_ns;
} kvp_lease_t;
/* kvp_revoke takes a key's location away from all who know it: called when an object is removed or superseded, and not
 * when it is evicted. kvp_revoke_all: all locations of the tenant. */
void kvp_revoke(kvp_tenant_t *t, kvp_digest_t digest);
void kvp_revoke_all(kvp_tenant_t *t);
/* kvp_lease_is_over: no client can read from a location that the revocation took away. */
bool kvp_lease_is_over(const kvp_protect_t *prot, const kvp_tenant_t *t, uint64_t seq);
void kvp_lease_wait(kvp_protect_t *prot,
                    kvp_deferred_t *w); /* for its revoke_seq, the greatest that anybody waits for */
/* kvp_lease_renew gives the session a lease from now on, or not (false): it has applied the revocations up to seq. */
bool kvp_lease_renew(kvp_protect_t *prot, kvp_session_t *s, uint64_t applied_seq);
/* kvp_lease_news finds the revocations after applied_seq. NULL = some of them are not in the ring
 * any more; news has room for KVP_REVOKED_MAX and is returned otherwise. */
const kvp_digest_t *kvp_lease_news(const kvp_tenant_t *t, uint64_t applied_seq, kvp_digest_t *news, uint32_t *n_out);
/* kvp_lease_end: the session has ended. is_given_up: by its own statement, so that it reads nothing
 * from now on. */
void kvp_lease_end(kvp_protect_t *prot, kvp_session_t *s, bool is_given_up);
void kvp_lease_tick(kvp_protect_t *prot);

#endif
