/* SPDX-License-Identifier: Apache-2.0
 * Memory that comes from the log: its node tells which slots are SEALED, and under which generations.
 */
#ifndef KVP_MASTER_CORE_RECOVERY_RECHECK_H
#define KVP_MASTER_CORE_RECOVERY_RECHECK_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "proto/wire.h"

/* kvp_recheck_word: that extent is one that the log has, or that is on its way out; else its node is to make it DEAD.
 * kvp_recheck_lose: the log has a copy there, and its node has not.
 * kvp_recheck_close: everything of the chunk was told. Drops what the log has and its node has not, and retires what is nobody's.
 * *slot is where it goes on, 0 to begin with; EAGAIN where *left, of records, does not reach to the end; CORRUPT: what was told overlaps. */
bool kvp_recheck_word(kvp_master_t *m, kvp_chunk_t *c, const kvp_wire_extent_t *told);
void kvp_recheck_lose(kvp_master_t *m, kvp_chunk_t *c, uint32_t slot);
kvp_err_t kvp_recheck_close(kvp_master_t *m, kvp_chunk_t *c, uint32_t *slot, uint32_t *left) KVP_MUST_USE;

#endif
