/* SPDX-License-Identifier: Apache-2.0
 * kvpool_sessions: lists the sessions of a master as JSON, or ends one. */
#include "client/api/pool.h"

#include "common/jsonw.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <inttypes.h>
#include <stdio.h>

static void
write_session(kvp_jsonw_t *w, const Kvp__Pb__SessionInfo *s)
{
    char id[17];

    snprintf(id, sizeof id, "%016" PRIx64, s->incarnation);
    kvp_jsonw_open(w, NULL, '{');
    kvp_jsonw_text(w, "id", id);
    kvp_jsonw_text(w, "role", s->role == KVP_ROLE_NODE ? "node" : "client");
    kvp_jsonw_text(w, "name", s->name);
    kvp_jsonw_text(w, "host_id", s->host_id);
    kvp_jsonw_text(w, "tenant", s->role == KVP_ROLE_NODE || s->tenant[0] != '\0' ? s->tenant : "default");
    kvp_jsonw_text(w, "identity", s->rights);
    kvp_jsonw_u64(w, "silent_ms", s->silent_ms);
    kvp_jsonw_close(w, '}');
}

static kvp_err_t
read_sessions(const kvp_query_t *query, const kvp_frame_t *answer)
{
    Kvp__Pb__SessionsReply *msg;
    kvp_jsonw_t *w = query->arg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__sessions_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    if (err == KVP_OK) {
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_u64(w, "next", msg->cursor);
        kvp_jsonw_open(w, "sessions", '[');
        for (size_t i = 0; i < msg->n_sessions; i++)
            write_session(w, msg->sessions[i]);
        kvp_jsonw_close(w, ']');
        kvp_jsonw_close(w, '}');
    }
    kvp_pb_free(&pb, msg);
    return err;
}

int
kvpool_sessions(kvpool_t *pool, uint64_t end, uint32_t from, char *buf, size_t cap, size_t *len_out,
                const kvpool_opts_t *opts)
{
    Kvp__Pb__Sessions head = KVP__PB__SESSIONS__INIT;
    kvp_query_t query = {.opcode = KVP_OP_SESSIONS, .head = &head, .read = read_sessions};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (len_out == NULL || (buf == NULL && cap > 0)) return kvp_call_end(&call, KVP_INVALID);
    head.end = end;
    head.cursor = from;
    return kvp_call_end(&call, kvp_query_run_text(&call, &query, buf, cap, len_out));
}
