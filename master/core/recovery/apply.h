/* SPDX-License-Identifier: Apache-2.0
 * What a log says, entered in the catalog.
 */
#ifndef KVP_MASTER_CORE_RECOVERY_APPLY_H
#define KVP_MASTER_CORE_RECOVERY_APPLY_H

#include "master/core/base/ctx.h"
#include "proto/jrec.h"

/* kvp_apply enters one record, of a master of that term or before. CORRUPT: no master would have written it there. kvp_apply_end: there are
 * no more; what is entered is as if all nodes had just gone away. CORRUPT: it does not fit together. kvp_apply_forget: nothing of it is
 * true, but the bumps. */
kvp_err_t kvp_apply(kvp_master_t *m, kvp_jrec_any_t *rec, uint32_t term) KVP_MUST_USE;
kvp_err_t kvp_apply_end(kvp_master_t *m) KVP_MUST_USE;
void kvp_apply_forget(kvp_master_t *m);

#endif
