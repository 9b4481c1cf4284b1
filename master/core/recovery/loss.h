/* SPDX-License-Identifier: Apache-2.0
 * Segments whose node is absent, and their objects. */
#ifndef KVP_MASTER_CORE_RECOVERY_LOSS_H
#define KVP_MASTER_CORE_RECOVERY_LOSS_H

#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;

void kvp_segments_lost(kvp_master_t *m, kvp_session_t *node);
void kvp_segment_drop(kvp_master_t *m, kvp_segment_t *g);
void kvp_lost_node_is_back(kvp_master_t *m, const char *name); /* a node mounts memory of the name */
void kvp_segment_tick(kvp_master_t *m);
/* kvp_copy_lose takes the copy in that extent from its object, which goes with its last one. The extent is retired. */
void kvp_copy_lose(kvp_master_t *m, const kvp_chunk_t *c, uint32_t slot);
/* kvp_copy_unreadable drops the copy, if it still exists: its node reported that no reader would
 * accept it. */
void kvp_copy_unreadable(kvp_master_t *m, kvp_digest_t digest, uint64_t generation);

#endif
