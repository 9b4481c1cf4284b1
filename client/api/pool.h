/* SPDX-License-Identifier: Apache-2.0
 * The handle behind kvpool_t, and the common beginning and end of all calls of the C API. Included
 * in api/ only. */
#ifndef KVP_CLIENT_API_POOL_H
#define KVP_CLIENT_API_POOL_H

#include "net/calls.h"
#include "client/core/op.h"
#include "client/control/tickets.h"
#include "client/kvpool.h"
#include "node/node.h"
#include "transport/regs.h"
#include "client/data/scratch.h"
#include "client/control/session.h"
#include "client/data/bounced.h"
#include "common/clock.h"
#include "common/forkguard.h"

struct kvpool {
    kvp_forkguard_t guard;
    kvp_calls_t calls;
    pthread_mutex_t lock;

    kvp_mastersession_t *session;
    kvp_node_t *node; /* embedded; NULL = none */
    kvp_regs_t regs;
    kvp_bounces_t bounces;
    kvp_scratch_pool_t scratches;
    kvp_counters_t counters;
    _Atomic uint64_t attempts; /* the last attempt number given out */
    uint32_t deadline_ms;
    bool wants_sums; /* verify payload */
    bool is_state_only;
    kvp_list_t views; /* given out; guarded by lock */
    kvp_held_tickets_t held_tickets; /* what views and reservations have at the master */
    uint32_t tenant;
    uint32_t locations; /* kept for reads without a message; 0 = none */
};

typedef struct {
    kvpool_t *pool;
    kvp_scratch_t *scratch;
    uint64_t deadline_ns;
    uint32_t flags;
    uint32_t replicas;
    char *detail; /* the caller's, for the master's reason of a refusal; NULL = not wanted */
    size_t detail_cap;
    uint32_t segment; /* of a put; 0 = any */
    const kvpool_lineage_t *lineage; /* of a put of one object; NULL = none */
    uint64_t join_until_ns; /* of a put: see client/core/putop.h */
    bool is_patient; /* waits for a master until its deadline, whatever the handle's master_wait_ms */
    bool asks_state; /* allowed on a handle that is_state_only */
} kvp_apicall_t;

/* kvp_call_begin checks handle and options: INVALID, FORKED, CLOSED, NOMEM. After OK the call is ended by kvp_call_end,
 * which returns err (and counts it). */
kvp_err_t kvp_call_begin(kvpool_t *pool, const kvpool_opts_t *opts, kvp_apicall_t *call_out) KVP_MUST_USE;
kvp_err_t kvp_call_end(kvp_apicall_t *call, kvp_err_t err);

/* kvp_call_hold is kvp_session_hold, or _hold_soon, for a call. NOT_LEADER: the handle is not for such calls. */
kvp_err_t kvp_call_hold(const kvp_apicall_t *call, kvp_link_t **link_out) KVP_MUST_USE;

/* kvp_call_ask sends scratch->out as a question, and waits for the master as kvp_call_hold does:
 * errors of kvp_conn_call. The answer is in scratch->in; the reason of a refusal is kept. */
kvp_err_t kvp_call_ask(kvp_apicall_t *call, kvp_link_t *link, kvp_frame_t *answer_out) KVP_MUST_USE;

/* kvp_views_end takes back every view that was given out, before the session goes. */
void kvp_views_end(kvpool_t *pool);

static inline bool
kvp_key_is_legal(const void *key, size_t len)
{
    return key != NULL && len > 0 && len <= KVPOOL_KEY_MAX;
}

/* kvp_keys_check: BAD_KEY if a key is invalid. */
kvp_err_t kvp_keys_check(const kvpool_key_t *keys, size_t n) KVP_MUST_USE;

/* kvp_link_session describes the session of a link to a core. */
kvp_op_session_t kvp_link_session(const kvpool_t *pool, const kvp_link_t *link);

/* One question to the master, repeated in the next session after a loss. The keys' digests follow
 * the head. */
typedef struct kvp_query {
    uint8_t opcode;
    const void *head; /* a message; NULL = an empty one */
    const kvpool_key_t *keys;
    const uint32_t *at; /* which of the keys; NULL = the first n */
    uint32_t n;
    kvp_err_t (*read)(const struct kvp_query *query, const kvp_frame_t *answer); /* takes the answer apart */
    void *arg; /* read's */

    /* Of the last try. */
    bool was_cut; /* an earlier one may have been carried out */
    uint64_t incarnation;
    uint64_t asked_ns; /* by kvp_boot_ns */
    const kvp_digest_t *digests; /* where they lie in the question */
} kvp_query_t;
kvp_err_t kvp_query_run(kvp_apicall_t *call, kvp_query_t *query) KVP_MUST_USE;

/* kvp_query_at returns the place of the i-th key of the question among the caller's keys. */
static inline uint32_t
kvp_query_at(const kvp_query_t *query, uint32_t i)
{
    return query->at != NULL ? query->at[i] : i;
}

/* kvp_call_release ends the tickets of the id (control/tickets.h): true if they belonged to the
 * present session. */
bool kvp_call_release(kvp_apicall_t *call, uint64_t id);

#endif
