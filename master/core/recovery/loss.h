/* SPDX-License-Identifier: Apache-2.0
 * Segments whose node has disconnected, and their objects. */
#ifndef KVP_MASTER_CORE_RECOVERY_LOSS_H
#define KVP_MASTER_CORE_RECOVERY_LOSS_H

#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;

void kvp_segments_lost(kvp_master_t *m, kvp_session_t *node);
void kvp_segment_drop(kvp_master_t *m, kvp_segment_t *g);
void kvp_lost_node_is_back(kvp_master_t *m, const char *name); /* a node mounts memory with this name */
void kvp_segment_tick(kvp_master_t *m);
/* kvp_copy_lose removes the copy in this extent from its object, and retires the extent. The object is removed with
 * its last copy. */
void kvp_copy_lose(kvp_master_t *m, const kvp_chunk_t *c, uint32_t slot);
/* kvp_copy_unreadable drops a copy, if it still exists, because its node reported that no reader would accept it. */
void kvp_copy_unreadable(kvp_master_t *m, kvp_digest_t digest, uint64_t generation);

#endif
