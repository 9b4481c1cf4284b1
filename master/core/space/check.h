/* SPDX-License-Identifier: Apache-2.0
 * CHECK: copies of committed objects of which their nodes are asked whether any reader would accept them. A client may commit
 * what it never wrote, and a reader may say so of anything; the node knows.
 */
#ifndef KVP_MASTER_CORE_SPACE_CHECK_H
#define KVP_MASTER_CORE_SPACE_CHECK_H

#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/space.h"
#include "proto/wire.h"

#define KVP_CHECKS_MAX 256u /* places of a segment that wait for a reader's word */

/* kvp_check_all: every copy of that object, whatever else waits. kvp_check_told: the copy of that generation, as a reader has
 * said; where it waits already, or its segment is not served, nothing happens: false. kvp_check_find: the committed object that has
 * a copy of that generation, and where among its places; KVP_OID_NONE = none. */
void kvp_check_all(kvp_space_t *sp, uint32_t oid);
bool kvp_check_told(kvp_space_t *sp, const kvp_tenant_t *tenant, const kvp_wire_unreadable_t *told);
uint32_t kvp_check_find(const kvp_space_t *sp, kvp_digest_t digest, uint64_t generation,
                        kvp_place_t places[KVP_REPLICAS_MAX], uint32_t *n_out, uint32_t *at_out);

/* One order is out at a time, of the first places that wait: kvp_check_answered, those are done with. kvp_check_is_due: another one may
 * go, which kvp_check_send sends where the node is ready for it. */
static inline bool
kvp_check_is_due(const kvp_segment_t *g)
{
    return g->checks.len > 0 && g->check_request == 0;
}
void kvp_check_send(kvp_space_t *sp, kvp_segment_t *g);
void kvp_check_answered(kvp_space_t *sp, kvp_segment_t *g);

#endif
