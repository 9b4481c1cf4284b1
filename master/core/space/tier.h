/* SPDX-License-Identifier: Apache-2.0
 * Orders to nodes about their SSD tiers, and the queues of writes and loads. ADR 0029. */
#ifndef KVP_MASTER_CORE_SPACE_TIER_H
#define KVP_MASTER_CORE_SPACE_TIER_H

#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"
#include "master/core/space/moving.h"
#include "master/core/space/space.h"
#include "proto/frame.h"

#define KVP_DEMOTES_MAX (64ull << 20) /* limit of the bytes being written from one segment to its tier */

/* kvp_tier_demote queues the write of an object, which must have one place, to the tier of its node. kvp_tier_stage
 * queues the load of an object without a copy in connected memory, or joins its load in progress; false: no load is
 * possible now. `who` is informed at the load's end; NULL = no waiter. */
void kvp_tier_demote(kvp_space_t *sp, uint32_t oid);
bool kvp_tier_stage(kvp_space_t *sp, uint32_t oid, kvp_stage_waiter_t *who);
/* kvp_tier_place_stages gives the first waiting loads their extents, as long as there is room. kvp_tier_may_place
 * returns true if all unfinished loads with an extent may have this many bytes together. kvp_tier_load_waits_ns returns
 * the time for which loads have waited and none got room. */
void kvp_tier_place_stages(kvp_space_t *sp, kvp_segment_t *g);
bool kvp_tier_may_place(const kvp_segment_t *g, uint64_t bytes);
uint64_t kvp_tier_load_waits_ns(const kvp_space_t *sp, kvp_segment_t *g);
void kvp_tier_tick(kvp_space_t *sp); /* fails loads that got no extent in time */

/* kvp_tier_flush sends as many orders as allowed. kvp_tier_lost: the segment's node has disconnected, and will not
 * answer. kvp_tier_answered handles an answer to DEMOTE, STAGE, COPY or DROP: it writes to lost_out (room for
 * KVP_TIER_BATCH) the oids of objects without any copy left, and returns their number; UINT32_MAX: no such order. */
#define KVP_TIER_BATCH 1024u
void kvp_tier_flush(kvp_space_t *sp);
/* kvp_tier_report_begin: the tier's node begins to report the tier's contents; during a first report (is_unknown) the
 * master remembers removals. kvp_tier_report_over: the report has ended. */
void kvp_tier_report_begin(kvp_space_t *sp, kvp_segment_t *t);
void kvp_tier_report_over(kvp_space_t *sp, kvp_segment_t *t);
void kvp_tier_lost(kvp_space_t *sp, kvp_segment_t *g);
uint32_t kvp_tier_answered(kvp_space_t *sp, kvp_session_t *s, const kvp_frame_t *f, uint32_t *lost_out);

#endif
