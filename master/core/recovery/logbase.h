/* SPDX-License-Identifier: Apache-2.0
 * A base of the log: all present objects are recorded again, so that older log files can be removed. */
#ifndef KVP_MASTER_CORE_RECOVERY_LOGBASE_H
#define KVP_MASTER_CORE_RECOVERY_LOGBASE_H

#include "common/base.h"

typedef struct kvp_master kvp_master_t;

/* kvp_logbase_begin begins to record all present objects again; is_anew: no earlier record is valid any more.
 * kvp_logbase_run records the next slice of a base, within the step's budget; kvp_logbase_may_run returns true if it
 * would record something. kvp_logbase_take_from returns the position of a durable base, once, so that older files can
 * be removed; UINT64_MAX = no new one. kvp_logbase_forgotten: the files before it are removed, and file_bytes bytes
 * of files are left. */
void kvp_logbase_begin(kvp_master_t *m, bool is_anew);
void kvp_logbase_run(kvp_master_t *m);
bool kvp_logbase_may_run(const kvp_master_t *m);
uint64_t kvp_logbase_take_from(kvp_master_t *m);
void kvp_logbase_forgotten(kvp_master_t *m, uint64_t file_bytes);

#endif
