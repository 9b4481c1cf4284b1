/* SPDX-License-Identifier: Apache-2.0
 * Answers that wait until extents are dead (unreadable), leases have ended, or the log is durable. */
#ifndef KVP_MASTER_CORE_PROTECT_DEFERRED_H
#define KVP_MASTER_CORE_PROTECT_DEFERRED_H

#include "common/list.h"
#include "master/core/protect/protection.h"
#include "master/core/base/heap.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

typedef struct kvp_deferred kvp_deferred_t;

/* longest wait of a removal's answer for unreadable extents, from the time when the removal is durable; while leases of
 * the previous master run, there is no limit */
#define KVP_DEFERRED_MS 50u
#define KVP_DEFERRED_MAX 1024u /* limit of a client's unanswered removals, upserts and bumps */
#define KVP_DEFERRED_KEYS_MAX (1u << 20) /* limit of the keys in these requests */

/* One deferred reply waits for another deferred reply. */
typedef struct {
    kvp_list_t of_first; /* link in first->followers */
    kvp_list_t of_repeat; /* link in repeat->behind */
    kvp_deferred_t *repeat;
} kvp_follow_t;

struct kvp_deferred {
    kvp_list_t link; /* session->deferred, by rising id */
    uint64_t id; /* number of this reply among all deferred replies of its session */
    kvp_list_t leases; /* link in tenant->deferred */
    kvp_heapnode_t due; /* entry in protect->deferred */
    kvp_list_t durable; /* link in protect->on_log[needs_sync] */
    /* Lists of kvp_follow_t. followers: the replies that wait for this reply; behind: the replies for which it waits */
    kvp_list_t followers, behind;
    uint64_t after; /* log position after the records that must be durable before the reply */
    kvp_session_t *session; /* NULL = the reply was sent or has no receiver */
    kvp_frame_hdr_t ask; /* header of the request: REMOVE, PUT_COMMIT, PUT_ABORT, REMOVE_MANY or BUMP */
    uint64_t revoke_seq;
    /* number of this request's retire records that are not dead; plus 1 until it has dropped all its objects */
    uint32_t left;
    bool is_dead_awaited, is_lease_awaited, is_durable_awaited;
    bool needs_sync; /* flag: a crash of the machine would lose the promise unless the log is synced */
    uint32_t n;
    int32_t *results; /* results for the keys of REMOVE, PUT_COMMIT or PUT_ABORT, owned */
    kvp_err_t err; /* result of REMOVE_MANY or BUMP */
    uint64_t removed, held;
    uint32_t wait_ms, epoch; /* for BUMP */
};

/* kvp_deferred_open makes the answer to a request that drops n named objects: `results` has an entry for each. Call
 * kvp_deferred_may_open before; false: the client has too many unanswered requests. Each retire record (an extent that
 * is being freed) of the request counts in `left`. kvp_deferred_arm is called when all objects are dropped and revoked.
 * The answer is sent when all extents are dead or the time limit has passed, and with `wait` also only when no lease
 * covers the objects any more. */
bool kvp_deferred_may_open(const kvp_session_t *s, uint32_t n);
kvp_deferred_t *kvp_deferred_open(kvp_session_t *s, const kvp_frame_hdr_t *ask, uint32_t n);
void kvp_deferred_arm(kvp_protect_t *prot, kvp_deferred_t *w, bool wait);
void kvp_deferred_dead(kvp_protect_t *prot, kvp_deferred_t *w); /* one retire record is dead */
void kvp_deferred_revoked(kvp_protect_t *prot, kvp_deferred_t *w); /* no lease covers the objects any more */
/* kvp_deferred_release: the log is written, or synced, up to the position, so the answers that wait for this position
 * continue. While the log refuses writes, answers that wait for a later position become LOG_FAILED: their requests may
 * still take effect when the log is written again. Returns false if the step's budget was used up before the end. */
bool kvp_deferred_release(kvp_protect_t *prot, bool is_synced, uint64_t to);
/* kvp_deferred_find returns the deferred reply with this id; NULL = it was sent. kvp_deferred_line_up makes w wait
 * until `first`, an earlier reply of the same session, is sent. */
kvp_deferred_t *kvp_deferred_find(const kvp_session_t *s, uint64_t id);
void kvp_deferred_line_up(kvp_deferred_t *w, kvp_deferred_t *first);
void kvp_deferred_end_all(kvp_protect_t *prot, kvp_session_t *s);
void kvp_deferred_tick(kvp_protect_t *prot);

#endif
