/* SPDX-License-Identifier: Apache-2.0
 * Which object of a list goes first. A policy sees uses and names candidates; it does not know extents, tickets or space.
 * What cannot go just now is parked by the caller when it is named: removed, and brought back when it can.
 */
#ifndef KVP_MASTER_CORE_PROTECT_POLICY_H
#define KVP_MASTER_CORE_PROTECT_POLICY_H

#include "master/core/catalog/index.h"

typedef struct {
    const char *name;
    /* used: committed, read, or put again. removed: no candidate any more; legal for one that is none. back: one that was
     * removed and not used since, at the place that its last use gives, or near to it. */
    void (*used)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    void (*removed)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    void (*back)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    /* victim returns the first candidate, or the one that follows after; KVP_OID_NONE at the end. */
    uint32_t (*victim)(kvp_objindex_t *ix, const kvp_objlist_t *list, uint32_t after);
} kvp_policy_ops_t;

extern const kvp_policy_ops_t kvp_policy_lru;

#endif
