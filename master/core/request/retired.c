/* SPDX-License-Identifier: Apache-2.0
 * Nodes' messages about extents that are being retired (answers to Retire, and Freed), and about extents that no
 * reader would accept (answers to Check). */
#include "master/core/request/request.h"

#include "common/mutate.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/put/queue.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/space/check.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

/* Sets the extent free. If all space that a waiting put has claimed is free now, the put gets this space before any
 * other extent becomes free. */
static void
set_free(kvp_master_t *m, kvp_retire_t *r)
{
    kvp_retire_set_free(&m->space, r);
    if (!kvp_list_is_empty(&m->space.claims_ready)) kvp_put_windows_free(&m->puts);
}

static bool
is_waited_for(const kvp_retire_t *r, const kvp_session_t *node)
{
    return (r->state == KVP_RT_SENT || r->state == KVP_RT_DEAD) && r->chunk->segment->node == node;
}

/* Returns true if the node has not answered an earlier Check, though nodes answer in order. If a node freed extents
 * and answered no Check, the number of waiting checks would grow without limit. */
static bool
has_left_out(const kvp_session_t *s, uint64_t request_id)
{
    kvp_list_foreach (pos, &s->segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, of_node);

        if (g->check_request != 0 && g->check_request < request_id) return true;
    }
    return false;
}

void
kvp_retire_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    kvp_retire_req_t *req = kvp_retire_req_find(s, f->hdr.request_id);

    if (has_left_out(s, f->hdr.request_id)) {
        kvp_session_close(&m->peers, s, "a Check not answered");
        return;
    }
    if (req == NULL || f->tail_len != req->n) {
        kvp_session_close(&m->peers, s, "an answer to no Retire");
        return;
    }
    for (uint32_t i = 0; i < req->n; i++) {
        kvp_retire_t *r = kvp_ptab_get(&m->space.retires, req->numbers[i]);

        if (r == NULL || r->sent_in != req->request_id || !is_waited_for(r, s)) continue;
        if ((f->tail[i] & KVP_RETIRE_FREE) != 0 || !KVP_RULE(FREE_BEFORE_REUSE))
            set_free(m, r);
        else if ((f->tail[i] & KVP_RETIRE_DEAD) != 0)
            kvp_retire_set_dead(&m->space, r);
        else
            /* the Retire is sent again when the node reconnects */
            kvp_session_close(&m->peers, s, "a Retire not obeyed");
    }
    kvp_retire_req_free(s, req);
}

/* Handles the answer to a Check. The answer for a segment that was dropped meanwhile is ignored. */
void
kvp_on_check_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    kvp_list_foreach (pos, &s->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, of_node);
        const kvp_wire_check_t *checks = (const kvp_wire_check_t *)g->checks.data;

        if (g->check_request == 0 || g->check_request != f->hdr.request_id) continue;
        if (f->tail_len != g->checks_asked_n) {
            /* the Check is sent again when the node reconnects */
            kvp_session_close(&m->peers, s, "a Check not answered");
            return;
        }
        for (uint32_t i = 0; i < g->checks_asked_n; i++)
            if ((f->tail[i] & KVP_RETIRE_DEAD) != 0) kvp_copy_unreadable(m, checks[i].digest, checks[i].generation);
        kvp_check_answered(&m->space, g);
        return;
    }
}

void
kvp_on_freed(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__Freed *msg;
    const kvp_wire_slot_t *slots = NULL;
    kvp_segment_t *g;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__freed__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_PLACES_MAX) slots = kvp_rd_array(&rd, msg->n, sizeof *slots);
    if (slots == NULL) {
        kvp_session_close(&m->peers, s, "malformed Freed");
        kvp_pb_free(&pb, msg);
        return;
    }
    g = kvp_segment_find(&m->space, msg->segment_id);
    for (uint32_t i = 0; g != NULL && g->node == s && i < msg->n; i++) {
        kvp_retire_t *r;

        if (slots[i].chunk >= g->chunk_n) continue;
        r = kvp_retire_of(&m->space, &g->chunks[slots[i].chunk], slots[i].slot);
        if (r != NULL && r->generation == slots[i].generation && r->state == KVP_RT_DEAD) set_free(m, r);
    }
    kvp_pb_free(&pb, msg);
}
