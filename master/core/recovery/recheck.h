/* SPDX-License-Identifier: Apache-2.0
 * Compares memory from the log with the SEALED slots and generations that its node reports. */
#ifndef KVP_MASTER_CORE_RECOVERY_RECHECK_H
#define KVP_MASTER_CORE_RECOVERY_RECHECK_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

/* kvp_recheck_word returns true if the reported extent is in the log, or is being retired; else its node must make it
 * DEAD. kvp_recheck_lose drops the copy that the log has in a slot, because the node does not have it.
 * kvp_recheck_close finishes a chunk whose report is complete: it drops the log's extents that the node does not
 * have, and retires unowned space. *slot is the next slot, initially 0; EAGAIN if the budget *left, in records, is
 * used up; CORRUPT: reported extents overlap; LIMIT, NOMEM. */
bool kvp_recheck_word(kvp_master_t *m, kvp_chunk_t *c, const kvp_wire_extent_t *told);
void kvp_recheck_lose(kvp_master_t *m, kvp_chunk_t *c, uint32_t slot);
kvp_err_t kvp_recheck_close(kvp_master_t *m, kvp_chunk_t *c, uint32_t *slot, uint32_t *left) KVP_MUST_USE;

#endif
