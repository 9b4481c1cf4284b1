/* SPDX-License-Identifier: Apache-2.0
 * Extents on their way out: from the loss of their object until their node has reported them free. */
#ifndef KVP_MASTER_CORE_SPACE_RETIRE_H
#define KVP_MASTER_CORE_SPACE_RETIRE_H

#include "common/list.h"
#include "master/core/space/space.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/claim.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

typedef struct kvp_deferred kvp_deferred_t;

#define KVP_ABANDONED_MAX 16u /* extents taken from a silent client, which its own word can still free early */
#define KVP_NOT_DEAD_KEYS (1u << 16) /* counters; by a part of the digest */
#define KVP_RETIRE_REQS_MAX 8u /* orders that a node has not answered; the rest waits here */

typedef enum {
    KVP_RT_QUEUED, /* Retire never sent */
    KVP_RT_SENT,
    KVP_RT_DEAD, /* unreadable; not yet free */
    KVP_RT_HELD, /* free, and kept for the put that claimed it */
} kvp_retire_state_t;

typedef struct kvp_retire {
    kvp_list_t link; /* segment->retires */
    kvp_list_t queue; /* segment->unsent, or ->sent */
    kvp_list_t claimed; /* claim->records */
    kvp_list_t abandoned; /* session->abandoned */
    kvp_chunk_t *chunk;
    uint32_t slot;
    uint32_t number;
    uint32_t long_key_slot;
    kvp_retire_state_t state;
    uint32_t *not_dead; /* counter of its key's readable extents; NULL = it was never served */
    kvp_digest_t digest; /* the removed object, */
    uint64_t version; /* of this version; 0 = nothing that the log would record */
    uint64_t attempt; /* that abandoned the extent; 0 = none did */
    uint64_t generation;
    uint64_t owner; /* incarnation of a writer that may still store; 0 = none */
    uint64_t bytes;
    uint64_t sent_in; /* request of its last Retire: record numbers are reused, requests are not */
    kvp_claim_t *claim;
    kvp_deferred_t *deferred; /* counts down when it is dead */
    uint64_t after; /* sent when the log is written up to here; 0 = at once */
} kvp_retire_t;

typedef struct kvp_retire_req {
    kvp_list_t link; /* session->retire_reqs */
    uint64_t request_id;
    uint64_t sent_ns;
    uint64_t sent_stall_ns; /* the master's own stalls, when it was sent */
    uint32_t n;
    uint32_t *numbers; /* owned: retire records; a record freed since has another sent_in, or none */
} kvp_retire_req_t;

/* An order might have to go out there. */
static inline void
kvp_retire_want_sending(kvp_space_t *sp, kvp_segment_t *g)
{
    if (g->node != NULL && kvp_list_is_empty(&g->sending)) kvp_list_add_tail(&sp->sending, &g->sending);
}

kvp_retire_t *kvp_retire_place(kvp_space_t *sp, const kvp_place_t *at, uint64_t owner, kvp_deferred_t *deferred);
/* kvp_retire_gap retires an extent that was just allocated over space which a master before may
 * have granted: until all who could write then are done. */
void kvp_retire_gap(kvp_space_t *sp, kvp_chunk_t *c, uint32_t slot);
/* kvp_retire_stage makes the record of an extent that its node will fill from its tier: it has no
 * owner, and is sent only after a failure. kvp_retire_stage_done: the extent is an object's now;
 * the record is freed. */
kvp_retire_t *kvp_retire_stage(kvp_space_t *sp, const kvp_place_t *at);
void kvp_retire_stage_done(kvp_space_t *sp, kvp_retire_t *r);
void kvp_retire_stage_failed(kvp_space_t *sp, kvp_retire_t *r, kvp_deferred_t *deferred);
/* kvp_retire_hold_back: its order waits until the records so far are written. kvp_retire_release:
 * the log is written up to the position, so these orders go out. False: the step's budget is used up
 * before all were released. */
void kvp_retire_hold_back(kvp_space_t *sp, kvp_retire_t *r);
bool kvp_retire_release(kvp_space_t *sp, uint64_t to);
void kvp_retire_flush(kvp_space_t *sp); /* checks as well */
void kvp_retire_lost(kvp_session_t *node); /* its orders will not be answered */
bool kvp_retire_is_late(const kvp_space_t *sp, const kvp_session_t *node); /* one of its answers is overdue */
void kvp_retire_resend(kvp_space_t *sp, kvp_segment_t *g); /* all that is not free goes out (again) */
void kvp_retire_void(kvp_space_t *sp,
                     kvp_retire_t *r); /* its node reported that no object is there; no order was sent yet */
void kvp_retire_forget(kvp_space_t *sp, kvp_retire_t *r); /* its segment is removed */
/* By its node's answer. Extents claimed by a put are not freed before all of them are free: then
 * the claim is put on space->claims_ready, an event that kvp_put_windows_free drains.
 * kvp_retire_unclaim releases the window. */
void kvp_retire_set_dead(kvp_space_t *sp, kvp_retire_t *r);
void kvp_retire_set_free(kvp_space_t *sp, kvp_retire_t *r);
void kvp_retire_unclaim(kvp_space_t *sp, kvp_claim_t *claim);
kvp_retire_req_t *kvp_retire_req_find(kvp_session_t *node, uint64_t request_id); /* NULL = none */
void kvp_retire_req_free(kvp_session_t *node, kvp_retire_req_t *req);
/* kvp_retire_of_key: the extent was served under that key, by its id in the index. kvp_retire_is_readable: some extent
 * that was may not be dead yet; also for a key with which that one shares a counter. */
void kvp_retire_of_key(kvp_space_t *sp, kvp_retire_t *r, uint64_t id);
bool kvp_retire_is_readable(const kvp_space_t *sp, kvp_digest_t digest);
/* kvp_retire_abandoned keeps in mind that the extent was that attempt's, whose client lives;
 * kvp_retire_drained: by its word nothing of the attempt is under way, so that the node need not
 * wait for its end. */
void kvp_retire_abandoned(kvp_retire_t *r, kvp_session_t *s, uint64_t attempt);
void kvp_retire_drained(kvp_space_t *sp, kvp_session_t *s, uint64_t attempt);
kvp_retire_t *kvp_retire_of(const kvp_space_t *sp, const kvp_chunk_t *c, uint32_t slot); /* NULL = not retiring */

#endif
