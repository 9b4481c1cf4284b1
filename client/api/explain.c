/* SPDX-License-Identifier: Apache-2.0
 * kvpool_explain: where an object is, or why it is not there, as JSON. */
#include "client/api/pool.h"

#include "client/memory/segments.h"
#include "common/jsonw.h"
#include "proto/explained.h"
#include "proto/pb.h"
#include "proto/wire.h"

#define TEXT_MAX (1u << 20)

typedef struct {
    Kvp__Pb__ExplainReply *msg; /* the master's answer, in `pb` */
    kvp_pb_t pb;
} explain_t;

static const char *
find_transport(void *peers, const Kvp__Pb__ObjectCopy *copy)
{
    return kvp_peers_transport(peers, copy->segment_id, copy->host_id, copy->transports, "");
}

static kvp_err_t
read_explained(const kvp_query_t *query, const kvp_frame_t *answer)
{
    explain_t *x = query->arg;

    x->msg = kvp_pb_unpack(&x->pb, &kvp__pb__explain_reply__descriptor, answer);
    if (x->msg == NULL) return x->pb.err;
    return x->msg->err > 0 ? KVP_PROTO : x->msg->err;
}

int
kvpool_explain(kvpool_t *pool, const void *key, size_t key_len, char *buf, size_t cap, size_t *len_out,
               const kvpool_opts_t *opts)
{
    Kvp__Pb__Explain head = KVP__PB__EXPLAIN__INIT;
    explain_t x = {0};
    kvp_query_t query = {.opcode = KVP_OP_EXPLAIN, .head = &head, .read = read_explained, .arg = &x};
    kvp_apicall_t call;
    kvp_link_t *link;
    kvp_buf_t text;
    kvp_jsonw_t w;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (len_out == NULL || (buf == NULL && cap > 0)) return kvp_call_end(&call, KVP_INVALID);
    if (!kvp_key_is_legal(key, key_len)) return kvp_call_end(&call, KVP_BAD_KEY);
    call.asks_state = true;
    head.key = (ProtobufCBinaryData){key_len, (uint8_t *)key};
    head.all_tenants = (call.flags & KVPOOL_ALL_TENANTS) != 0;
    kvp_buf_init(&text, TEXT_MAX);
    kvp_jsonw_init(&w, &text);
    err = kvp_query_run(&call, &query);
    if (err == KVP_OK) err = kvp_call_hold(&call, &link);
    if (err == KVP_OK) {
        kvp_explained_write(&w, key, key_len, x.msg, find_transport, link->peers);
        kvp_session_rele(pool->session, link);
        err = kvp_jsonw_give(&text, buf, cap, len_out);
    }
    if (x.msg != NULL) kvp_pb_free(&x.pb, x.msg);
    kvp_buf_fini(&text);
    return kvp_call_end(&call, err);
}
