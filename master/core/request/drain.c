/* SPDX-License-Identifier: Apache-2.0
 * DRAIN: empties the memory of a node, ends that, and reports its progress. */
#include "master/core/request/request.h"

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/evict/drain.h"
#include "master/core/protect/ticket.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "proto/frame.h"
#include "proto/jrec.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>

#define HOLDER_MAX (2u * KVP_NAME_MAX + 64u)

static kvp_segment_t *
find_memory(kvp_master_t *m, const char *name)
{
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (!g->is_tier && g->life == KVP_SEGMENT_STAYS && strcmp(g->name, name) == 0) return g;
    }
    return NULL;
}

static kvp_err_t
drain_refusal(const kvp_master_t *m, const kvp_session_t *s, const kvp_segment_t *g, uint32_t what,
              const char **why_out)
{
    kvp_err_t err = what == KVP_DRAIN_ASK ? KVP_OK : kvp_journal_refusal(&m->log);

    *why_out = "no node of that name: see kvpool node ls";
    if (g == NULL) return KVP_NO_SEGMENT;
    *why_out = "a node drains itself only";
    if (s->role == KVP_ROLE_NODE && g->node != s) return KVP_INVALID;
    *why_out = "what is asked for is not known";
    if (what > KVP_DRAIN_END) return KVP_INVALID;
    *why_out = "the node is being unmounted";
    if (what != KVP_DRAIN_ASK && g->unmount_conn != 0) return KVP_IN_PROGRESS;
    *why_out = err == KVP_LOG_FAILED ? m->ctx.log_failure : "the master's log cannot be written, or is behind";
    return err;
}

/* Returns true if the memory or the SSD has no object. The objects of a restored segment are those in the log while its
 * node is away, and the log may lack its end: then the segment may have others. */
static bool
is_empty(const kvp_master_t *m, const kvp_segment_t *g)
{
    return g->objects == 0 && (!g->is_restored || (g->node == NULL && !m->log.is_lacking));
}

void
kvp_drain_describe(const kvp_master_t *m, const kvp_segment_t *g, Kvp__Pb__DrainReply *reply)
{
    const kvp_drain_t *d = g->drain;
    const bool has_ssd = g->tier != NULL && g->tier->life == KVP_SEGMENT_STAYS;

    reply->left_objects = g->objects;
    reply->left_bytes = g->used_bytes - g->retiring_bytes;
    if (has_ssd) {
        reply->ssd_objects = g->tier->objects;
        reply->ssd_bytes = g->tier->used_bytes;
    }
    reply->is_away = g->node == NULL;
    reply->is_durable = kvp_drain_is_durable(&m->space, g);
    if (d == NULL) return;
    reply->with_ssd = (d->flags & KVP_JREC_DRAIN_SSD) != 0;
    reply->state =
        is_empty(m, g) && (!has_ssd || !reply->with_ssd || is_empty(m, g->tier)) ? KVP_DRAIN_DONE : KVP_DRAIN_RUNS;
    reply->no_evict = (d->flags & KVP_JREC_DRAIN_NO_EVICT) != 0;
    reply->moved_objects = d->moved;
    reply->moved_bytes = d->moved_bytes;
    reply->evicted_objects = d->evicted;
    reply->evicted_bytes = d->evicted_bytes;
    reply->bytes_per_s = d->bytes_per_s == 0 ? KVP_DRAIN_BYTES_PER_S : d->bytes_per_s;
    reply->run_ms = (m->ctx.now_ns - d->began_ns) / KVP_MS(1);
    reply->failed = d->failed;
    reply->last_error = d->last_error;
    /* these counts are of the last walk; the objects that it counted have left since then */
    if (reply->state == KVP_DRAIN_DONE) return;
    reply->held = d->stayed[KVP_STAYS_HELD];
    reply->no_room = d->stayed[KVP_STAYS_NO_ROOM];
    reply->no_room_bytes = d->had_no_room_bytes;
    reply->no_node = d->stayed[KVP_STAYS_NO_NODE];
    reply->unfinished = d->stayed[KVP_STAYS_UNFINISHED];
    reply->unread = d->stayed[KVP_STAYS_UNREAD];
}

/* Writes one of the clients that hold objects of the segment: its name, host, and id in `kvpool session ls`. */
static void
name_holder(const kvp_master_t *m, const kvp_segment_t *g, char text[HOLDER_MAX])
{
    const kvp_session_t *s = kvp_ticket_holder(&m->prot, g->drain->held_oid);

    if (s != NULL)
        snprintf(text, HOLDER_MAX, "%s on host %s, session %016llx", s->name, s->host_id,
                 (unsigned long long)s->incarnation);
}

/* Begins the drain, or changes the options of the running one that the message names. */
static void
begin_drain(kvp_master_t *m, kvp_segment_t *g, const Kvp__Pb__Drain *msg)
{
    const kvp_drain_t *d = g->drain;
    /* bounded, so that no sum of times overflows */
    const uint64_t wait_ms = kvp_min_u64(msg->deadline_ms, 1ull << 40);
    const bool had_no_evict = d != NULL && (d->flags & KVP_JREC_DRAIN_NO_EVICT) != 0;
    uint64_t bytes_per_s = msg->bytes_per_s, deadline_ns = m->ctx.now_ns + KVP_MS(wait_ms);

    if (bytes_per_s == 0 && d != NULL) bytes_per_s = d->bytes_per_s;
    if (msg->deadline_ms == 0) deadline_ns = d == NULL ? UINT64_MAX : d->deadline_ns;
    kvp_drain_begin(&m->evict, g,
                    (msg->no_evict || (had_no_evict && !msg->evict) ? KVP_JREC_DRAIN_NO_EVICT : 0) |
                        (msg->until_mount ? KVP_JREC_DRAIN_UNTIL_MOUNT : 0) | (msg->with_ssd ? KVP_JREC_DRAIN_SSD : 0),
                    bytes_per_s, deadline_ns);
}

static void
carry_out(kvp_master_t *m, kvp_segment_t *g, const Kvp__Pb__Drain *msg)
{
    const bool goes_on = msg->until_mount && g->drain != NULL && (g->drain->flags & KVP_JREC_DRAIN_UNTIL_MOUNT) == 0;

    if (msg->what == KVP_DRAIN_BEGIN && !goes_on)
        begin_drain(m, g, msg);
    else if (msg->what == KVP_DRAIN_END)
        kvp_drain_end(&m->evict, g);
}

void
kvp_on_drain(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__DrainReply reply = KVP__PB__DRAIN_REPLY__INIT;
    Kvp__Pb__Drain *msg;
    kvp_segment_t *g;
    char holder[HOLDER_MAX] = "";
    const char *why;
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__drain__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Drain");
        return;
    }
    g = find_memory(m, msg->node);
    reply.err = drain_refusal(m, s, g, msg->what, &why);
    if (msg->what != KVP_DRAIN_ASK) {
        kvp_session_audit(&m->peers, s, KVP_OP_DRAIN, reply.err, reply.err == KVP_OK ? "" : why);
        kvp_session_audit_object(&m->peers, "%s%s", msg->node, msg->what == KVP_DRAIN_END ? " end" : "");
    }
    if (reply.err == KVP_OK) {
        carry_out(m, g, msg);
        kvp_drain_describe(m, g, &reply);
        if (reply.held > 0) name_holder(m, g, holder);
        reply.held_by = holder;
    } else {
        reply.detail = (char *)why;
    }
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}
