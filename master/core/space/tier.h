/* SPDX-License-Identifier: Apache-2.0
 * Orders to nodes about their SSD tiers, and what is to be written there and read from there. ADR 0029.
 */
#ifndef KVP_MASTER_CORE_SPACE_TIER_H
#define KVP_MASTER_CORE_SPACE_TIER_H

#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"
#include "master/core/space/moving.h"
#include "master/core/space/space.h"
#include "proto/frame.h"

#define KVP_DEMOTES_MAX (64ull << 20) /* bytes that one node is to write and has not answered for */

/* kvp_tier_demote has an object in one place written to the tier of its node. kvp_tier_stage has one that is in no memory that is up read into
 * memory of its node; false: that cannot be now. who is told when it is over; NULL = nobody. */
void kvp_tier_demote(kvp_space_t *sp, uint32_t oid);
bool kvp_tier_stage(kvp_space_t *sp, uint32_t oid, kvp_stage_waiter_t *who);
/* kvp_tier_place_stages gives the first stages their extents, as far as there is room. kvp_tier_may_place: so
 * many bytes of loads may have extents at a time. kvp_tier_load_waits_ns: loads wait, and none got room for so long. */
void kvp_tier_place_stages(kvp_space_t *sp, kvp_segment_t *g);
bool kvp_tier_may_place(const kvp_segment_t *g, uint64_t bytes);
uint64_t kvp_tier_load_waits_ns(const kvp_space_t *sp, kvp_segment_t *g);
void kvp_tier_tick(kvp_space_t *sp); /* stages that found no room in time */

/* kvp_tier_flush sends as many orders as may go. kvp_tier_lost: the segment's node is gone, and will not answer. kvp_tier_answer: an answer to DEMOTE, STAGE
 * or DROP; lost_out takes oids of objects that are nowhere any more (room for KVP_TIER_BATCH), and returns how many; UINT32_MAX: it is an
 * answer to nothing. */
#define KVP_TIER_BATCH 1024u
void kvp_tier_flush(kvp_space_t *sp);
/* The tier's node tells what it has; as long as it does so whole (is_unknown), what is gone is kept in mind. */
void kvp_tier_report_begin(kvp_space_t *sp, kvp_segment_t *t);
void kvp_tier_report_over(kvp_space_t *sp, kvp_segment_t *t);
void kvp_tier_lost(kvp_space_t *sp, kvp_segment_t *g);
uint32_t kvp_tier_answer(kvp_space_t *sp, kvp_session_t *s, const kvp_frame_t *f, uint32_t *lost_out);

#endif
