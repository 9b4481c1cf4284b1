/* SPDX-License-Identifier: Apache-2.0
 * Questions that are one message and one answer.
 */
#include "client/api/pool.h"

#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>

kvp_op_session_t
kvp_link_session(const kvpool_t *pool, const kvp_link_t *link)
{
    const kvp_hello_reply_t *hello = kvp_conn_hello(link->conn);

    return (kvp_op_session_t){
        .incarnation = hello->incarnation,
        .digest_seed = hello->digest_seed,
        .term = hello->term,
        .tenant = pool->tenant,
        .known = link->locs == NULL ? NULL : kvp_locations_known(link->locs),
        .boot_ns = link->locs == NULL ? 0 : kvp_boot_ns(),
    };
}

void
kvp_call_detail(const kvp_apicall_t *call, const kvp_frame_t *answer)
{
    Kvp__Pb__Reply *msg;
    kvp_pb_t pb;

    if (call->detail == NULL) return;
    msg =
        kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, answer); /* the first two fields of every answer are its own */
    if (msg != NULL && msg->detail[0] != '\0') snprintf(call->detail, call->detail_cap, "%s", msg->detail);
    kvp_pb_free(&pb, msg);
}

static void
build(kvp_query_t *query, const kvp_op_session_t *session, kvp_buf_t *out)
{
    kvp_digest_t *digests;
    size_t at;

    kvp_buf_reset(out);
    kvp_pb_frame_begin(out, query->opcode, 0, 0, query->head, &at);
    digests = (kvp_digest_t *)kvp_buf_extend(out, query->n * sizeof *digests);
    for (uint32_t i = 0; i < query->n && digests != NULL; i++) {
        const kvpool_key_t *key = &query->keys[query->at != NULL ? query->at[i] : i];

        digests[i] = kvp_op_digest(session, key->data, key->len);
    }
    kvp_frame_end(out, at);
    query->incarnation = session->incarnation;
    query->asked_ns = kvp_boot_ns();
    query->digests = digests;
}

kvp_err_t
kvp_query_run(kvp_apicall_t *call, kvp_query_t *query)
{
    kvp_session_t *at = call->pool->session;
    kvp_scratch_t *s = call->scratch;

    for (;;) {
        kvp_op_session_t session;
        kvp_link_t *link;
        kvp_frame_t answer;
        kvp_err_t err = kvp_session_hold(at, call->deadline_ns, &link);

        if (err != KVP_OK) return err;
        session = kvp_link_session(call->pool, link);
        build(query, &session, &s->out);
        kvp_count(&call->pool->counters.master_calls, 1);
        kvp_session_queue_used(link);
        err = kvp_conn_call(link->conn, &s->out, call->deadline_ns, &s->in, &answer);
        if (err == KVP_OK) kvp_call_detail(call, &answer);
        if (err == KVP_OK) err = query->read(query, &answer);
        if (kvp_op_is_session_loss(err) || err == KVP_PROTO) kvp_conn_break(link->conn);
        kvp_session_rele(at, link);
        if (!kvp_op_is_session_loss(err)) return err;
        query->was_cut = true;
    }
}

/* Whether there is a session or not, from now on it is presented in none. */
bool
kvp_call_release(kvp_apicall_t *call, uint64_t id)
{
    kvp_held_tickets_t *held_tickets = &call->pool->held_tickets;
    kvp_buf_t *tickets = &call->scratch->in;
    kvp_link_t *link;
    bool is_held;

    kvp_buf_reset(tickets);
    if (kvp_session_hold(call->pool->session, 0, &link) != KVP_OK) {
        (void)kvp_held_tickets_release(held_tickets, id, 0, tickets);
        return false;
    }
    is_held = kvp_held_tickets_release(held_tickets, id, kvp_conn_hello(link->conn)->incarnation, tickets);
    kvp_held_tickets_give_back(link->conn, tickets, &call->scratch->out);
    is_held &= !kvp_conn_is_broken(link->conn);
    kvp_session_rele(call->pool->session, link);
    return is_held;
}
