/* SPDX-License-Identifier: Apache-2.0
 * The eviction order of a list. A policy sees uses and names candidates; it does not know extents,
 * tickets or space. The caller parks a named candidate that cannot be evicted now: it removes the
 * candidate, and brings it back later. */
#ifndef KVP_MASTER_CORE_PROTECT_POLICY_H
#define KVP_MASTER_CORE_PROTECT_POLICY_H

#include "master/core/catalog/index.h"

typedef struct {
    const char *name;
    /* used: committed, read, or put again. removed: no candidate any more; legal for a
     * non-candidate. back: a removed object without a use since returns to the place of its last
     * use, or near to it. */
    void (*used)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    void (*removed)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    void (*back)(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
    /* victim returns the first candidate, or the next one after `after`; KVP_OID_NONE at the end. */
    uint32_t (*victim)(kvp_objindex_t *ix, const kvp_objlist_t *list, uint32_t after);
} kvp_policy_ops_t;

extern const kvp_policy_ops_t kvp_policy_lru;

#endif
