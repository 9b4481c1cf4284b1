/* SPDX-License-Identifier: Apache-2.0
 * Which object of a list goes first. A policy sees uses and names candidates; it does not know extents, tickets or space.
 * Objects under a ticket are kept from it by the caller: they are removed, and used again when the ticket ends.
 */
#ifndef KVP_MASTER_CORE_POLICY_H
#define KVP_MASTER_CORE_POLICY_H

#include "master/core/objindex.h"

typedef struct {
    const char *name;
    /* used: committed, read, or put again. removed: no candidate any more; legal for one that is none. */
    void (*used)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    void (*removed)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    /* victim returns the first candidate, or the one that follows after; KVP_OID_NONE at the end. */
    uint32_t (*victim)(kvp_objindex_t *ix, const kvp_objlist_t *list, uint32_t after);
} kvp_policy_ops_t;

extern const kvp_policy_ops_t kvp_policy_lru;

#endif
