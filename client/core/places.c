/* SPDX-License-Identifier: Apache-2.0
 * Decodes answers in place: only the head is unpacked, the records are checked and used inside the frame. */
#include "client/core/places.h"

#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

static kvp_err_t
check_objs(const kvp_places_t *p)
{
    uint64_t locs = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        const kvp_wire_obj_t *o = &p->objs[i];

        if (kvp_op_peer_err(o->err) == KVP_PROTO || o->nloc > KVP_REPLICAS_MAX) return KVP_PROTO;
        locs += o->nloc;
    }
    return locs <= p->nloc ? KVP_OK : KVP_PROTO;
}

static kvp_err_t
read_tail(const kvp_frame_t *frame, bool has_lineages, bool has_tiers, kvp_places_t *p)
{
    kvp_rd_t rd;

    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    p->objs = kvp_rd_array(&rd, p->n, sizeof *p->objs);
    p->locs = kvp_rd_array(&rd, p->nloc, sizeof *p->locs);
    if (has_lineages) p->lineages = kvp_rd_array(&rd, p->n, sizeof *p->lineages);
    if (has_tiers) p->tiers = kvp_rd_array(&rd, p->n, sizeof *p->tiers);
    return rd.is_bad ? KVP_PROTO : check_objs(p);
}

kvp_err_t
kvp_places_read(const kvp_frame_t *frame, uint32_t n, kvp_places_t *places_out)
{
    Kvp__Pb__Places *head;
    bool has_lineages, has_tiers;
    kvp_places_t p;
    kvp_pb_t pb;
    kvp_err_t err;

    head = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, frame);
    if (head == NULL) return pb.err;
    err = kvp_op_peer_err(head->err);
    p = (kvp_places_t){
        .n = head->n,
        .nloc = head->nloc,
        .ticket = head->ticket,
        .retry_ms = head->retry_ms,
        .ns_epoch = head->ns_epoch,
        .is_leased = head->is_leased,
        .revoke_seq = head->revoke_seq,
    };
    has_lineages = head->has_lineages;
    has_tiers = head->has_tiers;
    kvp_pb_free(&pb, head);
    if (err != KVP_OK) return err;
    if (p.n != n) return KVP_PROTO;
    err = read_tail(frame, has_lineages, has_tiers, &p);
    if (err == KVP_OK) *places_out = p;
    return err;
}

kvp_err_t
kvp_reply_read(const kvp_frame_t *answer, uint32_t n, size_t size, const void **records_out)
{
    Kvp__Pb__Reply *msg;
    kvp_pb_t pb;
    kvp_rd_t rd;
    kvp_err_t err;
    uint32_t told;

    msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    told = msg->n;
    kvp_pb_free(&pb, msg);
    if (err != KVP_OK) return err;
    kvp_rd_init(&rd, answer->tail, answer->tail_len);
    *records_out = kvp_rd_array(&rd, n, size);
    return told == n && !rd.is_bad ? KVP_OK : KVP_PROTO;
}
