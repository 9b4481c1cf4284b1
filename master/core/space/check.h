/* SPDX-License-Identifier: Apache-2.0
 * CHECK: copies of committed objects for which the master asks their nodes whether any reader would
 * accept them. A client may commit bytes that it never wrote, and a reader may report any object as
 * unreadable; the node knows. */
#ifndef KVP_MASTER_CORE_SPACE_CHECK_H
#define KVP_MASTER_CORE_SPACE_CHECK_H

#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/space.h"
#include "proto/wire.h"

#define KVP_CHECKS_MAX 256u /* places of a segment that wait for a reader's word */

/* kvp_check_all: checks every copy of the object, in addition to all waiting ones. kvp_check_told:
 * checks the copy of the generation that a reader reported; false, without effect, if it waits
 * already, or its segment is not served. kvp_check_find: returns the committed object with a copy
 * of the generation, and its index among the places; KVP_OID_NONE = none. */
void kvp_check_all(kvp_space_t *sp, uint32_t oid);
bool kvp_check_told(kvp_space_t *sp, const kvp_tenant_t *tenant, const kvp_wire_unreadable_t *told);
uint32_t kvp_check_find(const kvp_space_t *sp, kvp_digest_t digest, uint64_t generation,
                        kvp_place_t places[KVP_REPLICAS_MAX], uint32_t *n_out, uint32_t *at_out);

/* One order is under way at a time, for the first waiting places: kvp_check_answered finishes them.
 * kvp_check_is_due: another order may be sent, which kvp_check_send does if the node is ready for
 * it. */
static inline bool
kvp_check_is_due(const kvp_segment_t *g)
{
    return g->checks.len > 0 && g->check_request == 0;
}
void kvp_check_send(kvp_space_t *sp, kvp_segment_t *g);
void kvp_check_answered(kvp_space_t *sp, kvp_segment_t *g);

#endif
