/* SPDX-License-Identifier: Apache-2.0
 * Applies a log's records to the catalog. */
#ifndef KVP_MASTER_CORE_RECOVERY_APPLY_H
#define KVP_MASTER_CORE_RECOVERY_APPLY_H

#include "master/core/base/ctx.h"
#include "proto/jrec.h"

typedef struct kvp_master kvp_master_t;

/* kvp_apply applies one record, which a master of the term or an earlier one wrote. CORRUPT: no master would have
 * written the record at this place. kvp_apply_end is called after the last record: the state is then as if all nodes
 * had just disconnected. CORRUPT: the records contradict each other. kvp_apply_forget discards the objects, the
 * segments and the unused tenants of the records. The bumps, the noted removals and OLDEST stay. */
kvp_err_t kvp_apply(kvp_master_t *m, kvp_jrec_any_t *rec, uint32_t term) KVP_MUST_USE;
kvp_err_t kvp_apply_end(kvp_master_t *m) KVP_MUST_USE;
void kvp_apply_forget(kvp_master_t *m);

#endif
