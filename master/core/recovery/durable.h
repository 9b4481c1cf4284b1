/* SPDX-License-Identifier: Apache-2.0
 * Positions of the log that were reached, and what waited for them. */
#ifndef KVP_MASTER_CORE_RECOVERY_DURABLE_H
#define KVP_MASTER_CORE_RECOVERY_DURABLE_H

#include "common/base.h"

typedef struct kvp_master kvp_master_t;

/* kvp_durable_written: the log survives this process up to the position; kvp_durable_synced: the
 * machine; kvp_durable_unsynced: a sync failed, and bytes before the position may be lost.
 * kvp_durable_wants_sync: an answer or a base waits for a sync. kvp_durable_tick continues what the
 * last step left, records OLDEST now and then, and continues a base. */
void kvp_durable_written(kvp_master_t *m, uint64_t end);
void kvp_durable_synced(kvp_master_t *m, uint64_t end);
void kvp_durable_unsynced(kvp_master_t *m, uint64_t end);
bool kvp_durable_wants_sync(const kvp_master_t *m);
void kvp_durable_tick(kvp_master_t *m);

#endif
