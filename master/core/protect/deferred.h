/* SPDX-License-Identifier: Apache-2.0
 * Answers that wait for dead, or for leases.
 */
#ifndef KVP_MASTER_CORE_PROTECT_DEFERRED_H
#define KVP_MASTER_CORE_PROTECT_DEFERRED_H

#include "common/list.h"
#include "master/core/protect/protection.h"
#include "master/core/base/heap.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

typedef struct kvp_deferred kvp_deferred_t;

#define KVP_DEFERRED_MS 50u /* a removal answers after that, dead or not */
#define KVP_DEFERRED_MAX 1024u /* of a client: removals, upserts and bumps that are not answered, */
#define KVP_DEFERRED_KEYS_MAX (1u << 20) /* and keys in them */

/* One deferred reply waits for another one. */
typedef struct {
    kvp_list_t of_first; /* first->followers */
    kvp_list_t of_repeat; /* repeat->behind */
    kvp_deferred_t *repeat;
} kvp_follow_t;

struct kvp_deferred {
    kvp_list_t link; /* session->deferred, by rising id */
    uint64_t id; /* of all in its session's life */
    kvp_list_t leases; /* tenant->deferred */
    kvp_heapnode_t due; /* protect->deferred */
    kvp_list_t durable; /* protect->on_log[needs_sync] */
    kvp_list_t followers, behind; /* kvp_follow_t: replies that repeat this one; the replies before it */
    uint64_t after; /* its promise is written before this position of the journal */
    kvp_session_t *session; /* NULL = answered, or no receiver */
    kvp_frame_hdr_t ask; /* REMOVE, PUT_COMMIT, PUT_ABORT, REMOVE_MANY or BUMP */
    uint64_t revoke_seq;
    uint32_t left; /* records not dead yet; the request itself counts one */
    bool is_dead_awaited, is_lease_awaited, is_durable_awaited;
    bool needs_sync; /* without a sync of the log its promise would be lost with the machine */
    uint32_t n;
    int32_t *results; /* owned: REMOVE, PUT_COMMIT, PUT_ABORT */
    kvp_err_t err; /* REMOVE_MANY, BUMP, as the rest */
    uint64_t removed, held;
    uint32_t wait_ms, epoch; /* BUMP */
};

/* kvp_deferred_open makes the answer to a request that drops n named objects: results has a place
 * for each. Retire records that get the deferred reply count in it; kvp_deferred_arm is called when
 * everything was dropped and revoked, and the answer goes out when all is dead, or has had time to
 * be, and with `wait` when no lease names it any more. Before: may_open, or the client has too many
 * of them. */
bool kvp_deferred_may_open(const kvp_session_t *s, uint32_t n);
kvp_deferred_t *kvp_deferred_open(kvp_session_t *s, const kvp_frame_hdr_t *ask, uint32_t n);
void kvp_deferred_arm(kvp_protect_t *prot, kvp_deferred_t *w, bool wait);
void kvp_deferred_dead(kvp_protect_t *prot, kvp_deferred_t *w); /* one record less */
void kvp_deferred_revoked(kvp_protect_t *prot, kvp_deferred_t *w); /* no lease stands in its way */
/* kvp_deferred_release: the log is written, or synced, up to the position, so answers that wait for
 * this go on. While writes are refused, all others are answered LOG_FAILED: their requests may still
 * take effect, when the log is written again. False: the step's budget is used up before all were
 * released. */
bool kvp_deferred_release(kvp_protect_t *prot, bool is_synced, uint64_t to);
/* kvp_deferred_find: NULL where it has been answered. kvp_deferred_line_up: w is answered after
 * first, which is another of its session. */
kvp_deferred_t *kvp_deferred_find(const kvp_session_t *s, uint64_t id);
void kvp_deferred_line_up(kvp_deferred_t *w, kvp_deferred_t *first);
void kvp_deferred_end_all(kvp_protect_t *prot, kvp_session_t *s);
void kvp_deferred_tick(kvp_protect_t *prot);

#endif
