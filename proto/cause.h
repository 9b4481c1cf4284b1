/* SPDX-License-Identifier: Apache-2.0
 * Why a key's object is where it is, or is not there. The master counts misses by these causes, and returns one in
 * the answer to EXPLAIN. */
#ifndef KVP_PROTO_CAUSE_H
#define KVP_PROTO_CAUSE_H

#include "common/base.h"

/* X(identifier, number on the wire and in the log, stable name) for each cause. */
#define KVP_CAUSES(X)                                                                                                  \
    X(NOT_KNOWN, 0, "not_known") /* the master has no trace of the key */                                              \
    X(PRESENT, 1, "present") /* the object can be read */                                                              \
    X(BEING_PUT, 2, "being_put") /* a client's put of the key is not committed yet */                                  \
    X(GROUP_INCOMPLETE, 3, "group_incomplete") /* not all members of the object's group are committed */               \
    X(NODE_AWAY, 4, "node_away") /* the object is on a node that is disconnected */                                    \
    X(LOADING, 5, "loading") /* the object is being read from an SSD into memory */                                    \
    X(REMOVED, 6, "removed") /* a client removed the object */                                                         \
    X(BUMPED, 7, "bumped") /* a client bumped the tenant, which invalidated all its objects */                         \
    X(REPLACED, 8, "replaced") /* a newer put of the key replaced the object */                                        \
    X(EVICTED, 9, "evicted") /* evicted from memory on a node without SSDs */                                          \
    X(EVICTED_UNWRITTEN, 10, "evicted_unwritten") /* evicted from memory before the SSD had the object */              \
    X(EVICTED_UNUSED, 11, "evicted_unused") /* evicted; not written to an SSD, because no client had asked for it */   \
    X(EVICTED_MEMORY_ONLY, 12, "evicted_memory_only") /* evicted; groups, pins and copies are not written to SSDs */   \
    X(EVICTED_FROM_SSD, 13, "evicted_from_ssd")                                                                        \
    X(GROUP_ENDED, 14, "group_ended") /* dropped, because the rest of its group never came or was removed */           \
    X(LOST_NODE, 15, "lost_node") /* the node with the only copy ended or lost its memory */                           \
    X(LOST_SSD, 16, "lost_ssd") /* the SSD with the only copy failed, or its record was damaged */                     \
    X(UNREADABLE, 17, "unreadable") /* the node reported that no reader would accept the copy */                       \
    X(GIVEN_UP, 18, "given_up") /* the writer aborted its put, or was silent */                                        \
    X(REFUSED, 19, "refused") /* the master refused the put */                                                         \
    X(EVICTED_FOR_DRAIN, 20, "evicted_for_drain") /* evicted to make room for a draining node's objects */

typedef enum {
#define KVP_CAUSE_ENUM(id, number, name) KVP_CAUSE_##id = (number),
    KVP_CAUSES(KVP_CAUSE_ENUM)
#undef KVP_CAUSE_ENUM
} kvp_cause_t;

#define KVP_CAUSES_N 21u /* number of causes; their numbers are below it */

/* kvp_cause_is_eviction returns true if the object was evicted from memory, and not only from an SSD. */
static inline bool
kvp_cause_is_eviction(uint32_t cause)
{
    return (cause >= KVP_CAUSE_EVICTED && cause <= KVP_CAUSE_EVICTED_MEMORY_ONLY) ||
           cause == KVP_CAUSE_EVICTED_FOR_DRAIN;
}

/* kvp_cause_name returns the cause's stable name, such as "evicted"; "unknown" for a number that is no cause. */
const char *kvp_cause_name(uint32_t cause);

#endif
