/* SPDX-License-Identifier: Apache-2.0
 * TASK: copies or moves one object, and reports how far that is. */
#include "master/core/request/request.h"

#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/evict/tasks.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/space/segment.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

static bool
has_copy_in(const kvp_master_t *m, const kvp_obj_t *o, uint32_t segment)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = kvp_obj_places(&m->cat, o, places);

    return kvp_place_in(&m->cat, places, n, segment) < n;
}

/* Returns the reason why the segment cannot take a copy of so many bytes; NULL = it can. */
static const char *
target_refusal(const kvp_master_t *m, const kvp_segment_t *g, uint64_t bytes)
{
    if (g == NULL || g->is_tier) return "the node to which the object is to go is not there";
    if (g->drain != NULL) return "the node to which the object is to go is being drained";
    if (g->state != KVP_SEG_UP) return "the node to which the object is to go does not answer, or is being unmounted";
    if (g->chunk_bytes < kvp_extent_bytes(bytes))
        return "the node to which the object is to go has chunks (--chunk-bytes) that are smaller than the object";
    return kvp_task_can_go_to(&m->evict, g) ? NULL : "the node to which the object is to go cannot make copies now";
}

/* Checks a request for a task. Returns OK and the object, or an error and its reason. */
static kvp_err_t
check_task(kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Task *msg, uint32_t *oid_out, const char **why_out)
{
    const kvp_obj_t *o = NULL;

    *why_out = "a key has 1 to 1024 bytes";
    if (msg->key.len == 0 || msg->key.len > KVP_KEY_MAX) return KVP_BAD_KEY;
    *why_out = "name 1 to 8 different nodes, other than the one that the object is to leave";
    if (msg->n_to == 0 || msg->n_to > KVP_REPLICAS_MAX) return KVP_INVALID;
    for (size_t i = 0; i < msg->n_to; i++) {
        if (msg->to[i] == msg->from) return KVP_INVALID;
        for (size_t k = 0; k < i; k++)
            if (msg->to[k] == msg->to[i]) return KVP_INVALID;
    }
    *why_out = "no committed object of that key is in memory";
    *oid_out = kvp_objindex_find(m->cat.index,
                                 kvp_key_digest(m->ctx.conf.digest_seed, s->tenant->id, msg->key.data, msg->key.len));
    if (*oid_out != KVP_OID_NONE) o = kvp_obj(m->cat.index, *oid_out);
    if (o == NULL || o->state != KVP_OBJ_COMMITTED || kvp_obj_owner(&m->cat, o) != s->tenant ||
        !kvp_obj_has_key(m->cat.index, o, msg->key.data, msg->key.len) ||
        kvp_obj_version(o) <= s->tenant->min_version || o->chunk == KVP_OBJ_CHUNK_NONE)
        return KVP_NOT_FOUND;
    for (size_t i = 0; i < msg->n_to; i++) {
        *why_out = target_refusal(m, kvp_segment_find(&m->space, msg->to[i]), kvp_obj_len(&m->cat, o));
        if (*why_out != NULL) return KVP_NO_SEGMENT;
    }
    *why_out = "the object has no copy on the node that it is to leave";
    if (msg->from != 0 && !has_copy_in(m, o, msg->from)) return KVP_NO_SEGMENT;
    *why_out = "the master's log cannot be written, or is behind";
    return kvp_journal_refusal(&m->log);
}

static kvp_err_t
begin_task(kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Task *msg, uint64_t *id_out, const char **why_out)
{
    uint32_t oid;
    kvp_err_t err = check_task(m, s, msg, &oid, why_out);

    if (err == KVP_LOG_FAILED) *why_out = m->ctx.log_failure;
    if (err != KVP_OK) return err;
    *why_out = "too many tasks are unfinished";
    return kvp_task_begin(&m->evict, oid, msg->from, msg->to, (uint32_t)msg->n_to, id_out);
}

void
kvp_on_task(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__TaskReply reply = KVP__PB__TASK_REPLY__INIT;
    const kvp_task_t *task;
    const char *why = "";
    Kvp__Pb__Task *msg;
    uint64_t id;
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__task__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Task");
        return;
    }
    id = msg->task;
    if (id == 0) reply.err = begin_task(m, s, msg, &id, &why);
    task = reply.err == KVP_OK ? kvp_task_find(&m->evict, id, s->tenant->id) : NULL;
    if (reply.err == KVP_OK && task == NULL) {
        reply.err = KVP_NOT_FOUND;
        why = "no such task: another master began it, or many others came after it";
    }
    reply.detail = (char *)why;
    if (task != NULL) {
        reply.detail = (char *)"";
        reply.task = task->id;
        reply.state = task->state;
        reply.is_move = task->from != 0;
        reply.failure = task->err;
        reply.created_ago_ms = (m->ctx.now_ns - task->created_ns) / KVP_MS(1);
        reply.changed_ago_ms = (m->ctx.now_ns - task->changed_ns) / KVP_MS(1);
    }
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}
