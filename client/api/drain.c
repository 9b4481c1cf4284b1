/* SPDX-License-Identifier: Apache-2.0
 * kvpool_drain: moves the objects of a node to other nodes, and reports the progress as JSON. */
#include "client/api/pool.h"

#include "common/jsonw.h"
#include "proto/explained.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

const char *
kvp_drain_state(const Kvp__Pb__DrainReply *msg)
{
    static const char *const states[] = {"none", "running", "done"};

    return states[kvp_min_u64(msg->state, KVP_ARRAY_LEN(states) - 1)];
}

void
kvp_drain_write_wait(kvp_jsonw_t *w, const Kvp__Pb__DrainReply *msg)
{
    char why[KVP_DRAIN_WHY_MAX];

    kvp_jsonw_text(w, "waits_for", kvp_drain_why(msg, why));
}

static void
write_progress(kvp_jsonw_t *w, const Kvp__Pb__DrainReply *msg)
{
    kvp_jsonw_open(w, NULL, '{');
    kvp_jsonw_text(w, "state", kvp_drain_state(msg));
    kvp_jsonw_bool(w, "is_durable", msg->is_durable);
    kvp_jsonw_u64(w, "left_objects", msg->left_objects);
    kvp_jsonw_u64(w, "left_bytes", msg->left_bytes);
    kvp_jsonw_bool(w, "with_ssd", msg->with_ssd);
    kvp_jsonw_u64(w, "ssd_objects", msg->ssd_objects);
    kvp_jsonw_u64(w, "ssd_bytes", msg->ssd_bytes);
    kvp_jsonw_u64(w, "moved_objects", msg->moved_objects);
    kvp_jsonw_u64(w, "moved_bytes", msg->moved_bytes);
    kvp_jsonw_u64(w, "evicted_objects", msg->evicted_objects);
    kvp_jsonw_u64(w, "evicted_bytes", msg->evicted_bytes);
    kvp_jsonw_u64(w, "limit_bytes_per_s", msg->bytes_per_s);
    kvp_jsonw_bool(w, "no_evict", msg->no_evict);
    kvp_jsonw_u64(w, "run_ms", msg->run_ms);
    kvp_jsonw_u64(w, "held_objects", msg->held);
    kvp_jsonw_text(w, "held_by", msg->held_by);
    kvp_jsonw_u64(w, "no_room_objects", msg->no_room);
    kvp_jsonw_u64(w, "no_room_bytes", msg->no_room_bytes);
    kvp_jsonw_u64(w, "no_node_objects", msg->no_node);
    kvp_jsonw_u64(w, "unfinished_objects", msg->unfinished);
    kvp_jsonw_u64(w, "unread_objects", msg->unread);
    kvp_jsonw_u64(w, "failed_copies", msg->failed);
    kvp_jsonw_text(w, "last_failure", kvp_drain_failure(msg));
    kvp_drain_write_wait(w, msg);
    kvp_jsonw_close(w, '}');
}

static kvp_err_t
read_drain(const kvp_query_t *query, const kvp_frame_t *answer)
{
    Kvp__Pb__DrainReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__drain_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    if (err == KVP_OK) write_progress(query->arg, msg);
    kvp_pb_free(&pb, msg);
    return err;
}

int
kvpool_drain(kvpool_t *pool, const kvpool_drain_t *drain, char *buf, size_t cap, size_t *len_out,
             const kvpool_opts_t *opts)
{
    Kvp__Pb__Drain head = KVP__PB__DRAIN__INIT;
    kvp_query_t query = {.opcode = KVP_OP_DRAIN, .head = &head, .read = read_drain};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (drain == NULL || drain->struct_size != sizeof *drain || drain->node == NULL || drain->no_evict > 2 ||
        len_out == NULL || (buf == NULL && cap > 0))
        return kvp_call_end(&call, KVP_INVALID);
    head.node = (char *)drain->node;
    head.what = drain->what;
    head.no_evict = drain->no_evict == 1;
    head.evict = drain->no_evict == 2;
    head.with_ssd = drain->keep_ssd == 0;
    head.deadline_ms = drain->deadline_ms;
    head.bytes_per_s = drain->bytes_per_s;
    return kvp_call_end(&call, kvp_query_run_text(&call, &query, buf, cap, len_out));
}
