/* SPDX-License-Identifier: Apache-2.0
 * Location leases: clients read again from cached locations without asking the master. */
#ifndef KVP_MASTER_CORE_PROTECT_LEASE_H
#define KVP_MASTER_CORE_PROTECT_LEASE_H

#include "common/hash.h"
#include "master/core/protect/protection.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/deferred.h"
#include "master/core/session/session.h"

typedef struct kvp_lease {
    kvp_heapnode_t applied; /* entry in tenant->leases; its key is the last revocation that the client has applied */
    kvp_list_t link; /* link in protect->leases, by rising until_ns */
    kvp_session_t *session;
    uint64_t until_ns;
    uint64_t told_seq; /* number of the revocation to confirm next: the tenant's last revocation at told_ns */
    uint64_t told_ns; /* time at which told_seq was set */
} kvp_lease_t;
/* kvp_revoke makes all clients drop the key's cached location: called when an object is removed or superseded, not
 * when it is evicted. kvp_revoke_all makes them drop all locations of the tenant. */
void kvp_revoke(kvp_tenant_t *t, kvp_digest_t digest);
void kvp_revoke_all(kvp_tenant_t *t);
/* kvp_lease_is_over returns true if no client can read from the locations that revocation `seq` took away. */
bool kvp_lease_is_over(const kvp_protect_t *prot, const kvp_tenant_t *t, uint64_t seq);
void kvp_lease_wait(kvp_protect_t *prot,
                    kvp_deferred_t *w); /* queues reply w, with the greatest revoke_seq, until no lease covers it */
/* kvp_lease_renew: the client has applied the revocations up to applied_seq. Renews or begins its lease; returns
 * false if it gets no lease. */
bool kvp_lease_renew(kvp_protect_t *prot, kvp_session_t *s, uint64_t applied_seq);
/* kvp_lease_news writes the revocations after applied_seq to `news`, which has room for KVP_REVOKED_MAX, and returns
 * it. Returns NULL if some of them are not in the ring any more. */
const kvp_digest_t *kvp_lease_news(const kvp_tenant_t *t, uint64_t applied_seq, kvp_digest_t *news, uint32_t *n_out);
/* kvp_lease_end: the session has ended. is_given_up: the client said so with Bye, so it reads nothing from now on. */
void kvp_lease_end(kvp_protect_t *prot, kvp_session_t *s, bool is_given_up);
void kvp_lease_tick(kvp_protect_t *prot);

#endif
