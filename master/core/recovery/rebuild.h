/* SPDX-License-Identifier: Apache-2.0
 * Nodes' reports of memory that this master does not know, or knows only from the log. */
#ifndef KVP_MASTER_CORE_RECOVERY_REBUILD_H
#define KVP_MASTER_CORE_RECOVERY_REBUILD_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;

/* after a node's report, puts wait up to this time for older writers to give up space, before objects are evicted */
#define KVP_UNCLAIMED_WAIT_NS KVP_MS(3000)

/* kvp_report_lost: the node has disconnected during a report; its reported objects are dropped, unless the log has
 * them. kvp_report_slice does a slice of the remaining work after a page. kvp_report_was_cut returns true if the last
 * report of the memory was interrupted, so that it may begin again in the same term. */
void kvp_report_begin(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *node);
uint64_t
kvp_report_since(const kvp_segment_t *g); /* for memory restored from the log: the node's report has descriptors of
                                             objects from this generation on; 0 = state words only */
void kvp_on_report(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_report_lost(kvp_master_t *m, const kvp_session_t *node);
bool kvp_report_was_cut(const kvp_master_t *m, const uint8_t uuid[16]);
void kvp_report_slice(kvp_master_t *m, kvp_segment_t *g, uint32_t *left);
void kvp_report_free(kvp_master_t *m, kvp_segment_t *g);
kvp_segment_t *kvp_report_by(const kvp_master_t *m,
                             const kvp_session_t *node); /* the segment whose report the node is sending, or NULL */

#endif
