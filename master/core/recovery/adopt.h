/* SPDX-License-Identifier: Apache-2.0
 * Objects that a node reports and this master does not know: whether they are adopted, and how they enter the index. */
#ifndef KVP_MASTER_CORE_RECOVERY_ADOPT_H
#define KVP_MASTER_CORE_RECOVERY_ADOPT_H

#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/put/attempt.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

/* One parsed record of a report page. */
typedef struct {
    kvp_wire_extent_t rec; /* used only for an object in memory */
    kvp_desc_t desc; /* the object's descriptor; for an object on a tier, without the fields of an extent */
    const uint8_t *key;
    const kvp_wire_lineage_t *lineage; /* NULL = no lineage, or an unknown one: descriptors in memory have none */
} kvp_told_t;

/* kvp_told_is_of_key returns true if the record's digest and second hash belong to its key. kvp_told_is_wanted
 * returns true if the index has no newer version and the reported version was not removed. *joins_out is the object
 * that has this version already, so that the record is a further copy; KVP_OID_NONE = none. This is also right for
 * two keys with one digest: while one of them existed, or was being put, the other was refused. kvp_told_make_way
 * removes older or unfinished objects from the index. If an upsert of the key is in progress, it stays to replace the
 * reported object, and is returned (for kvp_attempt_stage); else NULL. A put in progress of the key ends, because the
 * key is committed now: its client asks again, and gets ALREADY. */
bool kvp_told_is_of_key(const kvp_master_t *m, const kvp_told_t *t);
bool kvp_told_is_wanted(kvp_master_t *m, const kvp_segment_t *g, const kvp_told_t *t, uint32_t *joins_out);
kvp_attempt_t *kvp_told_make_way(kvp_master_t *m, const kvp_told_t *t);

#endif
