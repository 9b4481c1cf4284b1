/* SPDX-License-Identifier: Apache-2.0
 * Retire records: extents that have lost their object, until their node has reported them free. */
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

/* limit of a silent client's abandoned extents that leave quarantine when the client reports its writes as drained */
#define KVP_ABANDONED_MAX 16u
/* number of counters of extents that may be readable; bits of the key's digest select the counter */
#define KVP_NOT_DEAD_KEYS (1u << 16)
#define KVP_RETIRE_REQS_MAX 8u /* limit of a node's unanswered Retire orders; further records wait */

typedef enum {
    KVP_RT_QUEUED, /* no Retire was sent yet */
    KVP_RT_SENT,
    KVP_RT_DEAD, /* the extent is unreadable, but not yet free */
    KVP_RT_HELD, /* the extent is free, and reserved for the put that claimed it */
} kvp_retire_state_t;

typedef struct kvp_retire {
    kvp_list_t link; /* segment->retires */
    kvp_list_t queue; /* link in segment->unsent, segment->sent or space->held_back */
    kvp_list_t claimed; /* claim->records */
    kvp_list_t abandoned; /* session->abandoned */
    kvp_chunk_t *chunk;
    uint32_t slot;
    uint32_t number;
    uint32_t long_key_slot;
    kvp_retire_state_t state;
    uint32_t *not_dead; /* the counter in space->not_dead, chosen by the removed key's id, that counts this extent: it
                           may still be readable although its key was removed; NULL = not counted */
    kvp_digest_t digest; /* digest of the removed object's key */
    uint64_t version; /* version of the removed object; 0 = the removal is not recorded in the log */
    uint64_t attempt; /* id of the put attempt that was aborted because its client was silent; 0 = none */
    uint64_t generation;
    uint64_t owner; /* incarnation of a writer that may still write to the extent; 0 = none */
    uint64_t bytes;
    /* request id of the last Retire with this record: record numbers are reused, request ids are not */
    uint64_t sent_in;
    kvp_claim_t *claim;
    kvp_deferred_t *deferred; /* deferred reply that waits until the extent is unreadable; NULL = none */
    uint64_t after; /* log position: the Retire order is sent once the log is written, though perhaps not synced, up to
                       it; 0 = at once */
} kvp_retire_t;

typedef struct kvp_retire_req {
    kvp_list_t link; /* session->retire_reqs */
    uint64_t request_id;
    uint64_t sent_ns;
    uint64_t sent_stall_ns; /* total stall time of the master's own loop when the order was sent */
    uint32_t n;
    /* numbers of the retire records, owned; a record that was freed since has another sent_in, or does not exist */
    uint32_t *numbers;
} kvp_retire_req_t;

/* Queues the segment for sending orders to its node. */
static inline void
kvp_retire_want_sending(kvp_space_t *sp, kvp_segment_t *g)
{
    if (g->node != NULL && kvp_list_is_empty(&g->sending)) kvp_list_add_tail(&sp->sending, &g->sending);
}

kvp_retire_t *kvp_retire_place(kvp_space_t *sp, const kvp_place_t *at, uint64_t owner, kvp_deferred_t *deferred);
/* kvp_retire_gap retires an extent that was just allocated over space which an earlier master may have granted. The
 * extent becomes free when no writer of an earlier term can write any more. */
void kvp_retire_gap(kvp_space_t *sp, kvp_chunk_t *c, uint32_t slot);
/* kvp_retire_stage makes the record of an extent into which the node will load an object from its tier. The record
 * belongs to no client, and a Retire is sent only if the load fails. kvp_retire_stage_done frees the record, because
 * an object owns the extent now. kvp_retire_stage_failed retires the extent. */
kvp_retire_t *kvp_retire_stage(kvp_space_t *sp, const kvp_place_t *at);
void kvp_retire_stage_done(kvp_space_t *sp, kvp_retire_t *r);
void kvp_retire_stage_failed(kvp_space_t *sp, kvp_retire_t *r, kvp_deferred_t *deferred);
/* kvp_retire_hold_back delays the record's order until the present end of the log is written. kvp_retire_release
 * queues the orders that waited for log positions up to `to`, which is written now. Returns false if the step's
 * budget was used up before all were queued. */
void kvp_retire_hold_back(kvp_space_t *sp, kvp_retire_t *r);
bool kvp_retire_release(kvp_space_t *sp, uint64_t to);
void kvp_retire_flush(kvp_space_t *sp); /* sends Retire orders and orders of checks */
void kvp_retire_lost(kvp_session_t *node); /* forgets the node's unanswered orders */
bool kvp_retire_is_late(const kvp_space_t *sp, const kvp_session_t *node); /* an answer to a Retire is overdue */
void kvp_retire_resend(kvp_space_t *sp, kvp_segment_t *g); /* queues unanswered records again */
void kvp_retire_void(kvp_space_t *sp,
                     kvp_retire_t *r); /* frees the extent, for which no order was sent: its slot is empty */
void kvp_retire_forget(kvp_space_t *sp, kvp_retire_t *r); /* frees the record with its removed segment */
/* kvp_retire_set_dead and kvp_retire_set_free apply the node's answer. Extents of a claimed window stay
 * reserved until all of them are free: then the claim is put on space->claims_ready, which kvp_put_windows_free
 * handles. kvp_retire_unclaim releases the window's extents. */
void kvp_retire_set_dead(kvp_space_t *sp, kvp_retire_t *r);
void kvp_retire_set_free(kvp_space_t *sp, kvp_retire_t *r);
void kvp_retire_unclaim(kvp_space_t *sp, kvp_claim_t *claim);
kvp_retire_req_t *kvp_retire_req_find(kvp_session_t *node, uint64_t request_id); /* NULL = none */
void kvp_retire_req_free(kvp_session_t *node, kvp_retire_req_t *req);
/* kvp_retire_of_key records that the extent was served under the key with this id in the index. kvp_retire_is_readable
 * returns true if a retired extent of the key, or of another key with the same counter, may still be readable. */
void kvp_retire_of_key(kvp_space_t *sp, kvp_retire_t *r, uint64_t id);
bool kvp_retire_is_readable(const kvp_space_t *sp, kvp_digest_t digest);
/* kvp_retire_abandoned records that the extent belonged to an aborted attempt of a living but silent client.
 * kvp_retire_drained ends the quarantine of the attempt's extents, because the client reports that none of the
 * attempt's writes is in progress. */
void kvp_retire_abandoned(kvp_retire_t *r, kvp_session_t *s, uint64_t attempt);
void kvp_retire_drained(kvp_space_t *sp, kvp_session_t *s, uint64_t attempt);
kvp_retire_t *kvp_retire_of(const kvp_space_t *sp, const kvp_chunk_t *c, uint32_t slot); /* NULL = not retiring */

#endif
