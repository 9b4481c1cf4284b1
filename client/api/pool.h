/* SPDX-License-Identifier: Apache-2.0
 * The handle that kvpool_t points to, and the functions with which each call of the C API begins and ends. Only files
 * in client/api/ include this header. */
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
#include "common/jsonw.h"
#include "common/log.h"
#include "common/metrics.h"

#include "proto/kvpool.pb-c.h"

/* The calls whose times are measured. */
#define KVP_CLIENT_CALLS(X) X(put) X(get) X(batch_put) X(batch_get) X(exists) X(batch_is_exist) X(lookup) X(remove)
typedef enum {
#define KVP_CALL_KIND(name) KVP_CALL_##name,
    KVP_CLIENT_CALLS(KVP_CALL_KIND)
#undef KVP_CALL_KIND
        KVP_CALLS_N,
} kvp_call_kind_t;
extern const char *const kvp_call_names[KVP_CALLS_N];

typedef struct kvp_exporter kvp_exporter_t;

struct kvpool {
    kvp_forkguard_t guard;
    kvp_calls_t calls;
    pthread_mutex_t lock;

    kvp_mastersession_t *session;
    kvp_node_t *node; /* the node inside this process; NULL = none */
    kvp_regs_t regs;
    kvp_bounces_t bounces;
    kvp_scratch_pool_t scratches;
    kvp_counters_t counters;
    kvp_histogram_t calls_ns[KVP_CALLS_N];
    kvp_exporter_t *exporter; /* the port for Prometheus; NULL = none */
    _Atomic uint64_t attempts; /* the last attempt number that a put of this handle took */
    uint32_t deadline_ms;
    bool wants_sums; /* reads verify the checksum of the payload */
    bool is_state_only;
    kvp_list_t views; /* the open views of objects; guarded by lock */
    kvp_held_tickets_t held_tickets; /* tickets at the master of open views and reservations */
    uint32_t tenant;
    uint64_t drain_ns; /* limit of the time for which kvpool_close drains the embedded node; 0 = no drain */
    uint64_t slow_call_ns; /* limit of the time of a call, above which it is counted and logged as slow; 0 = no limit */
    kvp_log_limit_t slow_limit;
    uint32_t locations; /* most cached locations of objects, for reads without a question to the master; 0 = no cache */
};

typedef struct {
    kvpool_t *pool;
    kvp_scratch_t *scratch;
    uint64_t began_ns, deadline_ns;
    kvp_histogram_t *took; /* the call's time is added here at its end; NULL = not measured */
    uint32_t flags;
    uint32_t replicas;
    char *detail; /* the caller's buffer for the reason why the master refused; NULL = the caller wants no reason */
    size_t detail_cap;
    uint32_t segment; /* of a put: id of the segment that must take the object; 0 = any segment */
    const uint32_t *prefer; /* of a put: ids of prefer_n segments for its copies, if they have room; borrowed */
    uint32_t prefer_n;
    const kvpool_lineage_t *lineage; /* of a put of one object: its place in a sequence of blocks; NULL = none */
    uint32_t epoch; /* with KVPOOL_EPOCH: the epoch that the tenant must have */
    uint64_t join_until_ns; /* of a put: end of the wait for another client's put of the key; see client/core/putop.h */
    bool is_patient; /* the call waits for a master until deadline_ns, even if master_wait_ms is shorter */
    bool asks_state; /* the call is allowed on a handle with is_state_only */
    /* Times of the call's parts: move_ns is the time for the objects' bytes; node_ns is the part of it in which the
     * call waited for nodes. */
    uint32_t keys_n;
    uint64_t master_ns, move_ns, node_ns, retry_ns;
} kvp_apicall_t;

/* kvp_call_begin checks handle and options. Errors: INVALID, FORKED, CLOSED, NOMEM. After OK the caller ends the call
 * with kvp_call_end. It returns err, counts DEADLINE, and logs a slow call. After kvp_call_measure it also records the
 * call's time for this kind of call. */
kvp_err_t kvp_call_begin(kvpool_t *pool, const kvpool_opts_t *opts, kvp_apicall_t *call_out) KVP_MUST_USE;
kvp_err_t kvp_call_end(kvp_apicall_t *call, kvp_err_t err);
static inline void
kvp_call_measure(kvp_apicall_t *call, kvp_call_kind_t kind)
{
    call->took = &call->pool->calls_ns[kind];
}

/* kvp_call_hold waits for a session with the master and holds its link for the call: kvp_session_hold if the call is
 * patient, else kvp_session_hold_soon. NOT_LEADER: the handle is is_state_only, and the call needs a leader. */
kvp_err_t kvp_call_hold(kvp_apicall_t *call, kvp_link_t **link_out) KVP_MUST_USE;

/* kvp_call_ask sends the message in scratch->out to the master and waits for the answer, as long as kvp_call_hold
 * would wait. Errors of kvp_conn_call. The answer is in scratch->in; the master's reason for a refusal goes to
 * call->detail. */
kvp_err_t kvp_call_ask(kvp_apicall_t *call, kvp_link_t *link, kvp_frame_t *answer_out) KVP_MUST_USE;

/* kvp_views_end ends every view that is still open. kvpool_close calls it before it destroys the session. */
void kvp_views_end(kvpool_t *pool);

static inline bool
kvp_key_is_legal(const void *key, size_t len)
{
    return key != NULL && len > 0 && len <= KVPOOL_KEY_MAX;
}

/* kvp_keys_check returns BAD_KEY if one of the keys is empty or too long. */
kvp_err_t kvp_keys_check(const kvpool_key_t *keys, size_t n) KVP_MUST_USE;

/* kvp_link_session returns what a put or get state machine must know of the link's session: incarnation, term,
 * tenant, cached locations. */
kvp_op_session_t kvp_link_session(const kvpool_t *pool, const kvp_link_t *link);

/* One question to the master. If the session is lost, kvp_query_run asks again in the next session. In the message
 * the digests of the keys follow the head. */
typedef struct kvp_query {
    uint8_t opcode;
    const void *head; /* the message's head; NULL = an empty head */
    const kvpool_key_t *keys;
    const uint32_t *at; /* indices of the keys to ask about; NULL = the first n keys */
    uint32_t n;
    kvp_err_t (*read)(const struct kvp_query *query, const kvp_frame_t *answer); /* decodes the answer */
    void *arg; /* argument for the function read */

    /* Fields that kvp_query_run sets for the last attempt. */
    bool was_cut; /* a session was lost after an earlier attempt, which the master may have carried out */
    uint64_t incarnation;
    uint64_t asked_ns; /* time at which the question was built, by kvp_boot_ns */
    const kvp_digest_t *digests; /* the keys' digests inside the question's message */
} kvp_query_t;
kvp_err_t kvp_query_run(kvp_apicall_t *call, kvp_query_t *query) KVP_MUST_USE;
/* kvp_query_run_text runs a query whose `read` writes JSON to `arg`, a kvp_jsonw_t, and copies the text to buf. Errors:
 * those of kvp_query_run and of kvp_jsonw_give. */
kvp_err_t kvp_query_run_text(kvp_apicall_t *call, kvp_query_t *query, char *buf, size_t cap, size_t *len_out)
    KVP_MUST_USE;

/* kvp_query_at returns the place of the i-th key of the question among the caller's keys. */
static inline uint32_t
kvp_query_at(const kvp_query_t *query, uint32_t i)
{
    return query->at != NULL ? query->at[i] : i;
}

/* kvp_drain_state (drain.c) returns the name of a drain's state: "none", "running" or "done". */
const char *kvp_drain_state(const Kvp__Pb__DrainReply *msg);

/* kvp_drain_write_wait (drain.c) writes the member "waits_for": the reason why a drain cannot continue, and a remedy;
 * "" = it continues. */
void kvp_drain_write_wait(kvp_jsonw_t *w, const Kvp__Pb__DrainReply *msg);

/* kvp_call_release releases the tickets that were recorded under the id (control/tickets.h). Returns true if the
 * tickets belonged to the current session and the release reached its connection. */
bool kvp_call_release(kvp_apicall_t *call, uint64_t id);

#endif
