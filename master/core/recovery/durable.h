/* SPDX-License-Identifier: Apache-2.0
 * Continues the answers, orders and commits that wait for a position of the log. */
#ifndef KVP_MASTER_CORE_RECOVERY_DURABLE_H
#define KVP_MASTER_CORE_RECOVERY_DURABLE_H

#include "common/base.h"

typedef struct kvp_master kvp_master_t;

/* kvp_durable_written: a part of the log, up to the position, survives a crash of this process. kvp_durable_synced:
 * this part survives a crash of the machine. kvp_durable_unsynced: a sync failed, and bytes before the position may be
 * lost. kvp_durable_wants_sync returns true if an answer or a snapshot in the log waits for a sync. kvp_durable_tick
 * continues unfinished work: it handles commits that have become durable, records the oldest open put attempt from time
 * to time, and continues a snapshot. */
void kvp_durable_written(kvp_master_t *m, uint64_t end);
void kvp_durable_synced(kvp_master_t *m, uint64_t end);
void kvp_durable_unsynced(kvp_master_t *m, uint64_t end);
bool kvp_durable_wants_sync(const kvp_master_t *m);
void kvp_durable_tick(kvp_master_t *m);

#endif
