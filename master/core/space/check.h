/* SPDX-License-Identifier: Apache-2.0
 * CHECK: the master asks a node whether any reader would accept certain copies of committed objects. A client may
 * commit bytes that it never wrote, and a reader may report any object as unreadable; the node can check it. */
#ifndef KVP_MASTER_CORE_SPACE_CHECK_H
#define KVP_MASTER_CORE_SPACE_CHECK_H

#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/space.h"
#include "proto/wire.h"

/* while this many places of a segment wait for checks, readers' reports about the segment are refused */
#define KVP_CHECKS_MAX 256u

/* kvp_check_all queues a check of every copy of the object, whatever the number of waiting checks. kvp_check_told
 * queues a check of the copy that the tenant's reader reported as unreadable; false, without effect, if there is no
 * such copy, or it waits already, or the limit is reached, or its segment is not served. kvp_check_find returns the
 * committed object with a copy of this generation, and the copy's index in `places`; KVP_OID_NONE = none. */
void kvp_check_all(kvp_space_t *sp, uint32_t oid);
bool kvp_check_told(kvp_space_t *sp, const kvp_tenant_t *tenant, const kvp_wire_unreadable_t *told);
uint32_t kvp_check_find(const kvp_space_t *sp, kvp_digest_t digest, uint64_t generation,
                        kvp_place_t places[KVP_REPLICAS_MAX], uint32_t *n_out, uint32_t *at_out);

/* A segment has at most one unanswered order of checks, for the places at the front of its queue: kvp_check_answered
 * removes them. kvp_check_is_due: the next order may be sent. kvp_check_send sends it, unless the node is reporting. */
static inline bool
kvp_check_is_due(const kvp_segment_t *g)
{
    return g->checks.len > 0 && g->check_request == 0;
}
void kvp_check_send(kvp_space_t *sp, kvp_segment_t *g);
void kvp_check_answered(kvp_space_t *sp, kvp_segment_t *g);

#endif
