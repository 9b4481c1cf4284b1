/* SPDX-License-Identifier: Apache-2.0
 * Orders to nodes about their SSD tiers, and the queues of writes and loads. ADR 0029. */
#ifndef KVP_MASTER_CORE_SPACE_TIER_H
#define KVP_MASTER_CORE_SPACE_TIER_H

#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"
#include "master/core/space/moving.h"
#include "master/core/space/space.h"
#include "proto/frame.h"

#define KVP_DEMOTES_MAX (64ull << 20) /* bytes of unanswered writes of one node */

/* kvp_tier_demote writes an object with one place to the tier of its node. kvp_tier_stage loads an
 * object that is in no memory that is up; false: impossible now. who is informed at the end; NULL =
 * no waiter. */
void kvp_tier_demote(kvp_space_t *sp, uint32_t oid);
bool kvp_tier_stage(kvp_space_t *sp, uint32_t oid, kvp_stage_waiter_t *who);
/* kvp_tier_place_stages gives the first loads their extents, as far as there is room.
 * kvp_tier_may_place: the bytes of loads that may have extents at a time. kvp_tier_load_waits_ns:
 * since when loads wait without any getting room. */
void kvp_tier_place_stages(kvp_space_t *sp, kvp_segment_t *g);
bool kvp_tier_may_place(const kvp_segment_t *g, uint64_t bytes);
uint64_t kvp_tier_load_waits_ns(const kvp_space_t *sp, kvp_segment_t *g);
void kvp_tier_tick(kvp_space_t *sp); /* loads that found no room in time */

/* kvp_tier_flush sends as many orders as allowed. kvp_tier_lost: the segment's node has
 * disconnected, and will not answer. kvp_tier_answered: an answer to DEMOTE, STAGE or DROP; lost_out
 * gets the oids of objects without any copy left (room for KVP_TIER_BATCH), and their number is
 * returned; UINT32_MAX: an answer to no order. */
#define KVP_TIER_BATCH 1024u
void kvp_tier_flush(kvp_space_t *sp);
/* The tier's node reports its contents; during a full report (is_unknown) removals are remembered. */
void kvp_tier_report_begin(kvp_space_t *sp, kvp_segment_t *t);
void kvp_tier_report_over(kvp_space_t *sp, kvp_segment_t *t);
void kvp_tier_lost(kvp_space_t *sp, kvp_segment_t *g);
uint32_t kvp_tier_answered(kvp_space_t *sp, kvp_session_t *s, const kvp_frame_t *f, uint32_t *lost_out);

#endif
