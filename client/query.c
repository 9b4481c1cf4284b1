/* SPDX-License-Identifier: Apache-2.0
 * Questions that are one message and one answer.
 */
#include "client/pool.h"

#include "client/core/op.h"

kvp_err_t
kvp_query_run(kvp_apicall_t *call, const kvp_query_t *query)
{
    kvp_session_t *session = call->pool->session;
    kvp_scratch_t *s = call->scratch;
    bool was_cut = false;

    for (;;) {
        kvp_link_t *link;
        kvp_frame_t answer;
        kvp_err_t err = kvp_session_hold(session, call->deadline_ns, &link);

        if (err != KVP_OK) return err;
        kvp_buf_reset(&s->out);
        query->build(query->arg, kvp_conn_hello(link->conn)->digest_seed, &s->out);
        err = kvp_conn_call(link->conn, &s->out, call->deadline_ns, &s->in, &answer);
        if (err == KVP_OK) err = query->read(query->arg, &answer, was_cut);
        if (kvp_op_is_session_loss(err) || err == KVP_PROTO) kvp_conn_break(link->conn);
        kvp_session_rele(session, link);
        if (!kvp_op_is_session_loss(err)) return err;
        was_cut = true;
    }
}
