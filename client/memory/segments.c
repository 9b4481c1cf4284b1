/* SPDX-License-Identifier: Apache-2.0
 * Sends SEGMENTS questions to the master: one question for each page of segments. */
#include "client/memory/segments.h"

#include "proto/pb.h"
#include "proto/wire.h"

#define UUID_BYTES 16u

/* Calls fn for each segment of a page. Sets *next_id_out to the first id of the next page, or to 0 after the last
 * page or if fn returned false. */
static kvp_err_t
read_page(const kvp_frame_t *frame, kvp_segments_fn fn, void *arg, uint32_t *next_id_out)
{
    Kvp__Pb__SegmentsReply *msg;
    bool is_ended = false;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__segments_reply__descriptor, frame);
    if (msg == NULL) return pb.err;
    err = msg->err > 0 ? KVP_PROTO : msg->err;
    for (size_t i = 0; err == KVP_OK && i < msg->n_segments && !is_ended; i++) {
        if (msg->segments[i]->uuid.len != UUID_BYTES) {
            err = KVP_PROTO;
            break;
        }
        is_ended = !fn(arg, msg->segments[i]);
    }
    *next_id_out = is_ended ? 0 : msg->next_id;
    kvp_pb_free(&pb, msg);
    return err;
}

static kvp_err_t
ask_page(kvp_conn_t *conn, Kvp__Pb__Segments *ask, uint64_t deadline_ns, kvp_segments_fn fn, void *arg,
         uint32_t *next_id_out)
{
    kvp_buf_t frame, reply;
    kvp_frame_t answer;
    kvp_err_t err;

    kvp_buf_init(&frame, 0);
    kvp_buf_init(&reply, 0);
    kvp_pb_frame(&frame, KVP_OP_SEGMENTS, 0, 0, &ask->base, NULL, 0);
    err = kvp_conn_call(conn, &frame, deadline_ns, &reply, &answer);
    if (err == KVP_OK) err = read_page(&answer, fn, arg, next_id_out);
    kvp_buf_fini(&frame);
    kvp_buf_fini(&reply);
    return err;
}

kvp_err_t
kvp_segments_find(kvp_conn_t *conn, uint32_t segment_id, uint64_t deadline_ns, kvp_segments_fn fn, void *arg)
{
    Kvp__Pb__Segments ask = KVP__PB__SEGMENTS__INIT;
    uint32_t next_id;

    ask.n_ids = 1;
    ask.ids = &segment_id;
    return ask_page(conn, &ask, deadline_ns, fn, arg, &next_id);
}

kvp_err_t
kvp_segments_walk(kvp_conn_t *conn, uint64_t deadline_ns, kvp_segments_fn fn, void *arg)
{
    Kvp__Pb__Segments ask = KVP__PB__SEGMENTS__INIT;
    uint32_t next_id = 0;
    kvp_err_t err;

    do {
        ask.from_id = next_id;
        err = ask_page(conn, &ask, deadline_ns, fn, arg, &next_id);
        if (next_id != 0 && next_id <= ask.from_id) return KVP_PROTO; /* else the walk would never end */
    } while (err == KVP_OK && next_id != 0);
    return err;
}
