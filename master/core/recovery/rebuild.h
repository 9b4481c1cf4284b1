/* SPDX-License-Identifier: Apache-2.0
 * Nodes' reports of memory that the core does not know. */
#ifndef KVP_MASTER_CORE_RECOVERY_REBUILD_H
#define KVP_MASTER_CORE_RECOVERY_REBUILD_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;

#define KVP_UNCLAIMED_WAIT_NS KVP_MS(3000) /* for the word of older writers, after a report */

/* kvp_report_lost: the node will send nothing more; its reported objects are dropped.
 * kvp_report_slice does some of the remaining work after the last page.
 * kvp_report_was_cut: the last report of the memory did not reach its end, so it may begin again in
 * the same term. */
void kvp_report_begin(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *node);
uint64_t kvp_report_since(const kvp_segment_t *g); /* descriptors are reported from this generation on; 0 = none */
void kvp_on_report(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_report_lost(kvp_master_t *m, const kvp_session_t *node);
bool kvp_report_was_cut(const kvp_master_t *m, const uint8_t uuid[16]);
void kvp_report_slice(kvp_master_t *m, kvp_segment_t *g, uint32_t *left);
void kvp_report_free(kvp_master_t *m, kvp_segment_t *g);
kvp_segment_t *kvp_report_by(const kvp_master_t *m,
                             const kvp_session_t *node); /* whose report the node is sending, or NULL */

#endif
