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

kvp_err_t
kvp_query_run(kvp_apicall_t *call, const kvp_query_t *query)
{
    kvp_session_t *at = call->pool->session;
    kvp_scratch_t *s = call->scratch;
    bool was_cut = false;

    for (;;) {
        kvp_op_session_t session;
        kvp_link_t *link;
        kvp_frame_t answer;
        kvp_err_t err = kvp_session_hold(at, call->deadline_ns, &link);

        if (err != KVP_OK) return err;
        kvp_buf_reset(&s->out);
        session = kvp_link_session(call->pool, link);
        query->build(query->arg, &session, &s->out);
        kvp_count(&call->pool->counters.master_calls, 1);
        kvp_session_queue_used(link);
        err = kvp_conn_call(link->conn, &s->out, call->deadline_ns, &s->in, &answer);
        if (err == KVP_OK) kvp_call_detail(call, &answer);
        if (err == KVP_OK) err = query->read(query->arg, &answer, was_cut);
        if (kvp_op_is_session_loss(err) || err == KVP_PROTO) kvp_conn_break(link->conn);
        kvp_session_rele(at, link);
        if (!kvp_op_is_session_loss(err)) return err;
        was_cut = true;
    }
}
