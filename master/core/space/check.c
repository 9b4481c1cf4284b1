/* SPDX-License-Identifier: Apache-2.0
 * CHECK orders to nodes. A place stays in its segment's buffer of checks until the node has answered, also while the
 * node is disconnected: so no check of a hard-pinned object is lost. The buffer has hardly more places than the segment
 * has extents: a slot is granted again only after the node has answered a RETIRE, and by then it must have answered the
 * CHECK before that. If a copy was removed before the answer, no committed object has its generation. */
#include "master/core/space/check.h"

#include "master/core/base/ctx.h"
#include "master/core/catalog/replica.h"
#include "master/core/session/session.h"
#include "master/core/space/retire.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#define CHECK_BATCH 512u

static uint32_t
checks_n(const kvp_segment_t *g)
{
    return (uint32_t)(g->checks.len / sizeof(kvp_wire_check_t));
}

static bool
may_wait(const kvp_segment_t *g, uint64_t generation)
{
    const kvp_wire_check_t *waiting = (const kvp_wire_check_t *)g->checks.data;
    uint32_t n = checks_n(g);

    if (g->state == KVP_SEG_LOST || g->report != NULL || n >= KVP_CHECKS_MAX) return false;
    while (n > 0 && waiting[n - 1].generation != generation)
        n--;
    return n == 0;
}

static void
check_place(kvp_space_t *sp, const kvp_obj_t *o, const kvp_place_t *at)
{
    kvp_segment_t *g = kvp_place_chunk(sp->cat, at)->segment;
    kvp_wire_check_t rec = {
        .slot = at->slot,
        .generation = at->generation,
        .version = kvp_obj_version(o),
        .digest = kvp_obj_digest_of(sp->cat, o),
        .len = kvp_obj_len(sp->cat, o),
    };
    kvp_wire_loc_t loc;

    kvp_place_wire(sp->cat, at, &loc);
    rec.chunk = loc.chunk;
    rec.offset = loc.offset;
    kvp_ctx_spend(sp->ctx, 1);
    kvp_buf_append(&g->checks, &rec, sizeof rec);
    if (g->checks.err != KVP_OK) kvp_panic("out of memory: %u checks", checks_n(g));
    kvp_retire_want_sending(sp, g);
}

void
kvp_check_all(kvp_space_t *sp, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(sp->cat, o, places);

    for (uint32_t i = 0; i < n; i++)
        check_place(sp, o, &places[i]);
}

uint32_t
kvp_check_find(const kvp_space_t *sp, kvp_digest_t digest, uint64_t generation, kvp_place_t places[KVP_REPLICAS_MAX],
               uint32_t *n_out, uint32_t *at_out)
{
    uint32_t oid = kvp_objindex_find(sp->cat->index, digest), n;
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(sp->cat->index, oid);

    kvp_ctx_spend(sp->ctx, 1);
    if (o == NULL || o->state != KVP_OBJ_COMMITTED) return KVP_OID_NONE;
    n = kvp_obj_places(sp->cat, o, places);
    for (uint32_t i = 0; i < n; i++) {
        if (places[i].generation != generation) continue;
        *n_out = n;
        *at_out = i;
        return oid;
    }
    return KVP_OID_NONE;
}

bool
kvp_check_told(kvp_space_t *sp, const kvp_tenant_t *tenant, const kvp_wire_unreadable_t *told)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n, at, oid = kvp_check_find(sp, told->digest, told->generation, places, &n, &at);
    const kvp_obj_t *o;

    if (oid == KVP_OID_NONE) return false;
    o = kvp_obj(sp->cat->index, oid);
    if (kvp_obj_tenant(sp->cat, o) != tenant ||
        !may_wait(kvp_place_chunk(sp->cat, &places[at])->segment, told->generation))
        return false;
    check_place(sp, o, &places[at]);
    return true;
}

/* ---- orders */
void
kvp_check_send(kvp_space_t *sp, kvp_segment_t *g)
{
    Kvp__Pb__Retire msg = KVP__PB__RETIRE__INIT;
    kvp_buf_t *out = &g->node->out;

    if (!kvp_check_is_due(g) || g->report != NULL) return;
    g->checks_asked_n = msg.n = (uint32_t)kvp_min_u64(checks_n(g), CHECK_BATCH);
    g->check_request = ++sp->peers->request_seq;
    msg.term = sp->ctx->term;
    msg.segment_id = g->id;
    kvp_pb_frame(out, KVP_OP_CHECK, 0, g->check_request, &msg.base, g->checks.data, msg.n * sizeof(kvp_wire_check_t));
    kvp_session_dirty(sp->peers, g->node);
    kvp_ctx_spend(sp->ctx, 1);
}

void
kvp_check_answered(kvp_space_t *sp, kvp_segment_t *g)
{
    kvp_buf_consume(&g->checks, g->checks_asked_n * sizeof(kvp_wire_check_t));
    g->check_request = 0;
    if (kvp_check_is_due(g)) kvp_retire_want_sending(sp, g);
}
