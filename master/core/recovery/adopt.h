/* SPDX-License-Identifier: Apache-2.0
 * A reported object that this master does not know: whether it is wanted, and how it enters the
 * index. */
#ifndef KVP_MASTER_CORE_RECOVERY_ADOPT_H
#define KVP_MASTER_CORE_RECOVERY_ADOPT_H

#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/put/attempt.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

/* One parsed record of a page. */
typedef struct {
    kvp_wire_extent_t rec; /* in memory alone */
    kvp_desc_t desc; /* of an object on a tier: only the object's own fields */
    const uint8_t *key;
    const kvp_wire_lineage_t *lineage; /* NULL = none, or unknown: descriptors have no lineage */
} kvp_told_t;

/* kvp_told_is_of_key: digest and second hash are the key's. kvp_told_is_wanted: the index has
 * nothing newer, and the version was not removed. *joins_out is the object that has this version
 * already; KVP_OID_NONE = none. The same holds for two keys with one digest: while one of them
 * existed, or was being put, the other was refused. kvp_told_make_way removes older or unfinished
 * objects from the index. An upsert of the key under way stays, to replace the reported object: it
 * is returned (kvp_attempt_stage), else NULL. A put under way is one of a committed key now: its
 * client asks again, and gets ALREADY. */
bool kvp_told_is_of_key(const kvp_master_t *m, const kvp_told_t *t);
bool kvp_told_is_wanted(kvp_master_t *m, const kvp_segment_t *g, const kvp_told_t *t, uint32_t *joins_out);
kvp_attempt_t *kvp_told_make_way(kvp_master_t *m, const kvp_told_t *t);

#endif
