/* SPDX-License-Identifier: Apache-2.0
 * Memory from the log: its node reports the SEALED slots, and their generations. */
#ifndef KVP_MASTER_CORE_RECOVERY_RECHECK_H
#define KVP_MASTER_CORE_RECOVERY_RECHECK_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

/* kvp_recheck_word: the extent is in the log, or on its way out; else its node has to make it DEAD.
 * kvp_recheck_lose: the log has a copy there, and its node does not. kvp_recheck_close: the chunk's
 * report is complete. Drops the log's extents that its node does not have, and retires unowned
 * space. *slot is the next slot, initially 0; EAGAIN if *left, of records, does not suffice;
 * CORRUPT: reported extents overlap. */
bool kvp_recheck_word(kvp_master_t *m, kvp_chunk_t *c, const kvp_wire_extent_t *told);
void kvp_recheck_lose(kvp_master_t *m, kvp_chunk_t *c, uint32_t slot);
kvp_err_t kvp_recheck_close(kvp_master_t *m, kvp_chunk_t *c, uint32_t *slot, uint32_t *left) KVP_MUST_USE;

#endif
