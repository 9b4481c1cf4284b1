/* SPDX-License-Identifier: Apache-2.0
 * A base of the log: all present objects are recorded again, so that older files may go. */
#ifndef KVP_MASTER_CORE_RECOVERY_LOGBASE_H
#define KVP_MASTER_CORE_RECOVERY_LOGBASE_H

#include "common/base.h"

typedef struct kvp_master kvp_master_t;

/* kvp_logbase_begin: all present objects again, with is_anew if no earlier record is valid any more.
 * kvp_logbase_run records the next slice of a base, within the step's budget; kvp_logbase_may_run:
 * it would record something. kvp_logbase_take_from returns once the position of a durable base, and
 * UINT64_MAX without news; kvp_logbase_forgotten: the files before it are removed, file_bytes are
 * left. */
void kvp_logbase_begin(kvp_master_t *m, bool is_anew);
void kvp_logbase_run(kvp_master_t *m);
bool kvp_logbase_may_run(const kvp_master_t *m);
uint64_t kvp_logbase_take_from(kvp_master_t *m);
void kvp_logbase_forgotten(kvp_master_t *m, uint64_t file_bytes);

#endif
