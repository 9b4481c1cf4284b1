/* SPDX-License-Identifier: Apache-2.0
 * An object of which a node tells and this master knows nothing: whether it is wanted, and how it takes its place in the index.
 */
#ifndef KVP_MASTER_CORE_RECOVERY_ADOPT_H
#define KVP_MASTER_CORE_RECOVERY_ADOPT_H

#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/put/attempt.h"
#include "proto/wire.h"

/* One record of a page, taken apart. */
typedef struct {
    kvp_wire_extent_t rec; /* in memory alone */
    kvp_desc_t desc; /* of what is on a tier: only what it says of the object */
    const uint8_t *key;
    const kvp_wire_lineage_t *lineage; /* NULL = none, or nobody knows it: descriptors do not say */
} kvp_told_t;

/* kvp_told_is_of_key: digest and second hash are the key's. kvp_told_is_wanted: the index knows nothing newer, and it is not gone. *joins_out is
 * the object that has this version already; KVP_OID_NONE = none. Of two keys with one digest as well: while one of them was there, or was
 * being put, the other was refused.
 * kvp_told_make_way takes what is older, or unfinished, out of the index. An upsert of that key under way stays, to replace what is found
 * now: it is returned (kvp_attempt_stage), else NULL. A put under way is one of what is committed: its client asks again, and is told.
 * kvp_told_enter makes the object, which lies nowhere yet. */
bool kvp_told_is_of_key(const kvp_master_t *m, const kvp_told_t *t);
bool kvp_told_is_wanted(kvp_master_t *m, const kvp_segment_t *g, const kvp_told_t *t, uint32_t *joins_out);
kvp_attempt_t *kvp_told_make_way(kvp_master_t *m, const kvp_told_t *t);
uint32_t kvp_told_enter(kvp_master_t *m, const kvp_told_t *t);

#endif
