/* SPDX-License-Identifier: Apache-2.0
 * The SSD tiers of nodes: what is on its way between memory and a tier, and what a tier is to drop. ADR 0029.
 *
 * A tier is a segment (kvp_segment_t.is_tier) that is mounted under its node's name with KVP_TIER_SUFFIX behind it. Its chunks stand for one
 * tenant each; they have no memory, and are made with the first object that is on the tier alone.
 */
#ifndef KVP_MASTER_CORE_SPACE_TIER_H
#define KVP_MASTER_CORE_SPACE_TIER_H

#include "common/list.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/session/session.h"
#include "master/core/space/space.h"
#include "proto/frame.h"

typedef struct kvp_deferred kvp_deferred_t;

#define KVP_TIER_SUFFIX "/ssd"
#define KVP_DEMOTES_MAX (64ull << 20) /* bytes that one node is to write and has not answered for */

/* Somebody waits until stages are over: put on space->staged then. */
typedef struct {
    kvp_list_t ready;
    uint32_t left;
} kvp_stage_wait_t;

typedef struct kvp_stage_waiter {
    kvp_list_t link; /* of the stage */
    kvp_stage_wait_t *wait;
} kvp_stage_waiter_t;

/* kvp_tier_link: a segment was made; memory and tier of one node find one another. kvp_tier_free: the tier's record goes, nothing is on it. */
void kvp_tier_link(kvp_space_t *sp, kvp_segment_t *g);
void kvp_tier_free(kvp_space_t *sp, kvp_segment_t *t);
bool kvp_tier_is_name(const char *name);

/* kvp_obj_leave_memory: the object is on a tier, and its extents retire. kvp_obj_enter_tier: it is on that tier alone, has no place yet, and is that
 * tenant's (the log says so). kvp_tier_forget: it is on no tier any more, nobody is told, and one that was on a tier alone has no tenant then. */
void kvp_obj_leave_memory(kvp_space_t *sp, uint32_t oid);
void kvp_obj_enter_tier(kvp_space_t *sp, uint32_t oid, kvp_segment_t *t, kvp_tenant_t *tenant, uint64_t len);
void kvp_tier_forget(kvp_space_t *sp, kvp_obj_t *o);
/* kvp_tier_leave: the object is on its way out: its tier drops it (is_told: knows that), and what is under way for it is for nobody. The deferred
 * reply counts that; NULL = none. */
void kvp_tier_leave(kvp_space_t *sp, kvp_obj_t *o, bool is_told, kvp_deferred_t *deferred);
/* kvp_tier_drop has the tier drop that version, and older ones. */
void kvp_tier_drop(kvp_space_t *sp, kvp_segment_t *t, kvp_digest_t digest, uint64_t version, kvp_deferred_t *deferred);

/* kvp_tier_demote has an object in one place written to the tier of its node. kvp_tier_stage has one that is in no memory that is up read into
 * memory of its node; false: that cannot be now. who is told when it is over; NULL = nobody. */
void kvp_tier_demote(kvp_space_t *sp, uint32_t oid);
bool kvp_tier_stage(kvp_space_t *sp, uint32_t oid, kvp_stage_waiter_t *who);
/* kvp_tier_stage_room: bytes that the first stages there wait for; 0 = none does. */
uint64_t kvp_tier_stage_room(kvp_space_t *sp, kvp_segment_t *g, kvp_tenant_t **tenant_out);
void kvp_tier_tick(kvp_space_t *sp); /* stages that found no room in time */

/* Orders. kvp_tier_send: as many as may go; kvp_tier_is_due: there are some, or stages that wait for room. kvp_tier_resend: its node is back.
 * kvp_tier_lost: it is gone, and will not answer. kvp_tier_answer: an answer to DEMOTE, STAGE or DROP; lost_out takes oids of objects that are nowhere any
 * more (room for KVP_TIER_BATCH), and returns how many; UINT32_MAX: it is an answer to nothing. */
#define KVP_TIER_BATCH 256u
void kvp_tier_send(kvp_space_t *sp, kvp_segment_t *g);
bool kvp_tier_is_due(const kvp_segment_t *g);
bool kvp_tier_is_writing(const kvp_segment_t *g); /* a DEMOTE is out, or about to be */
void kvp_tier_resend(kvp_space_t *sp, kvp_segment_t *g);
void kvp_tier_lost(kvp_space_t *sp, kvp_segment_t *g);
uint32_t kvp_tier_answer(kvp_space_t *sp, kvp_session_t *s, const kvp_frame_t *f, uint32_t *lost_out);

#endif
