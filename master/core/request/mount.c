/* SPDX-License-Identifier: Apache-2.0
 * Mount, Unmount, Segments: nodes mount memory, and clients ask for the list of segments. */
#include "master/core/protect/gone.h"
#include "master/core/request/request.h"

#include "common/buf.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/evict/drain.h"
#include "master/core/evict/eviction.h"
#include "master/core/log/journal.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/rebuild.h"
#include "master/core/recovery/state.h"
#include "master/core/recovery/term.h"
#include "master/core/session/session.h"
#include "master/core/space/segment.h"
#include "master/core/space/tier.h"
#include "master/core/space/tiered.h"
#include "proto/frame.h"
#include "proto/jrec.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#define UUID_BYTES 16u
#define UNMOUNT_WAIT_MAX_MS 60000u
#define REPORT_WORDS 1u /* MountReply.report: the node must report state words */
#define REPORT_WHOLE 2u /* MountReply.report: the node must report whole descriptors */

/* ---- mounting */
static kvp_segment_t *
find_name(kvp_master_t *m, const char *name)
{
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->life != KVP_SEGMENT_DROPPED && strcmp(g->name, name) == 0) return g;
    }
    return NULL;
}

static kvp_segment_t *
find_uuid(const kvp_master_t *m, const uint8_t *uuid)
{
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (memcmp(g->uuid, uuid, UUID_BYTES) == 0) return g;
    }
    return NULL;
}

static const char *
mount_refusal(const Kvp__Pb__Mount *msg)
{
    if (msg->name[0] == '\0' || strlen(msg->name) > KVP_NAME_MAX) return "bad segment name";
    if (msg->uuid.len != UUID_BYTES) return "uuid is not 16 bytes";
    if (msg->is_tier != kvp_tier_is_name(msg->name))
        return "a tier is named as its node, with /ssd behind it, and nothing else is";
    if (msg->away.len != 0 && (msg->away.len != KVP_TIER_AWAY_BYTES || !msg->is_tier)) return "bad slots of a tier";
    if (strlen(msg->addr) > 319 || strlen(msg->unix_path) > 107 || strlen(msg->transports) > KVP_NAME_MAX ||
        strlen(msg->protection) > KVP_NAME_MAX)
        return "address is too long";
    if (msg->term > KVP_TERM_MAX || msg->mounted_term > msg->term) return "no such term";
    return kvp_segment_refusal(msg);
}

static void
replace_text(char **at, const char *text)
{
    free(*at);
    *at = strdup(text);
    if (*at == NULL) kvp_panic("out of memory: an address");
}

static void
set_addresses(kvp_segment_t *g, const Kvp__Pb__Mount *msg)
{
    g->is_kept = msg->is_kept;
    g->can_copy = msg->can_copy != 0;
    replace_text(&g->addr, msg->addr);
    replace_text(&g->unix_path, msg->unix_path);
    replace_text(&g->transports, msg->transports);
    replace_text(&g->protection, msg->protection);
}

static bool
had_bad_report(const kvp_master_t *m, const uint8_t *uuid)
{
    for (uint32_t i = 0; i < KVP_BAD_REPORTS_MAX; i++)
        if (memcmp(m->bad_reports[i], uuid, UUID_BYTES) == 0) return true;
    return false;
}

/* Mounts memory that this master does not know. If it is not new, it belongs to an older term, and the node must
 * report its contents. Memory that was mounted in this term and forgotten may have grants of this term, so it must be
 * created again, unless its report of this term was interrupted. The same holds for memory that comes so late that
 * the removals meanwhile are forgotten, and if bumps were forgotten since its last mount. */
static void
mount_unknown(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Mount *msg, Kvp__Pb__MountReply *reply)
{
    kvp_segment_t *old = find_name(m, msg->name), *g;
    bool is_older =
        (msg->mounted_term != 0 && msg->mounted_term < m->ctx.term) || kvp_report_was_cut(m, msg->uuid.data);
    bool is_kept = msg->mounted_term >= m->cat.forgotten_term;
    bool is_believed = is_older && is_kept && kvp_gone_is_rebuilding(&m->prot) && !had_bad_report(m, msg->uuid.data);

    if (!msg->is_fresh && !is_believed && KVP_RULE(RESET_OF_STRANGE_MEMORY)) {
        reply->is_reset = true;
        return;
    }
    if (old != NULL) kvp_segment_drop(m, old);
    g = kvp_segment_make(&m->space, 0, msg, s->host_id);
    g->mounted_term = is_believed ? msg->mounted_term : m->ctx.term;
    kvp_record_segment(&m->cat, g);
    set_addresses(g, msg);
    reply->segment_id = g->id;
    if (!is_believed) {
        kvp_segment_attach(&m->space, g, s, KVP_SEG_UP);
        return;
    }
    kvp_segment_set_state(&m->space, g, KVP_SEG_LOST);
    kvp_report_begin(m, g, s);
    reply->report = REPORT_WHOLE;
}

/* Mounts memory whose contents are known. Memory from the log is served at once, and accepts puts after its node has
 * reported its state words. */
static void
mount_known(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Mount *msg, kvp_segment_t *g, Kvp__Pb__MountReply *reply)
{
    set_addresses(g, msg);
    if (g->drain != NULL && (g->drain->flags & KVP_JREC_DRAIN_UNTIL_MOUNT) != 0) kvp_drain_end(&m->evict, g);
    if (g->is_restored) {
        kvp_segment_attach(&m->space, g, s, KVP_SEG_DRAINING);
        kvp_report_begin(m, g, s);
        reply->report = REPORT_WORDS;
        reply->since = kvp_report_since(g);
        return;
    }
    g->mounted_term = m->ctx.term;
    kvp_segment_attach(&m->space, g, s, KVP_SEG_UP);
}

/* Sets the hash slots of the tier whose devices hang. An object with its only copy there is a miss, until the node
 * mounts the tier without them. */
static void
set_away(kvp_segment_t *t, const Kvp__Pb__Mount *msg)
{
    memset(t->ssd.away, 0, sizeof t->ssd.away);
    t->ssd.has_away = msg->away.len == sizeof t->ssd.away;
    if (t->ssd.has_away) memcpy(t->ssd.away, msg->away.data, sizeof t->ssd.away);
    t->ssd.stalled_devices = msg->stalled_devices;
}

/* Mounts a tier. The node must report its contents if this master knows them only from the log, or has lost
 * orders to drop objects; with whole records if neither this master nor a log knows them. Reported records that are
 * neither known nor adopted are dropped. */
static void
mount_tier(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Mount *msg, kvp_segment_t *old, Kvp__Pb__MountReply *reply)
{
    bool is_known = old != NULL && old->is_tier && memcmp(old->uuid, msg->uuid.data, UUID_BYTES) == 0;
    kvp_segment_t *t = is_known ? old : NULL;

    if (old != NULL && !is_known) kvp_segment_drop(m, old);
    if (t == NULL) {
        t = kvp_segment_make(&m->space, 0, msg, s->host_id);
        t->ssd.is_unknown = t->ssd.has_lost_drops = true;
        kvp_record_segment(&m->cat, t);
    }
    set_addresses(t, msg);
    set_away(t, msg);
    kvp_segment_resize(&m->space, t, msg->size_bytes);
    reply->segment_id = t->id;
    if (t->node == s) {
        kvp_segment_set_state(&m->space, t, KVP_SEG_UP);
        return;
    }
    t->ssd.is_unknown = t->ssd.is_unknown && kvp_gone_is_rebuilding(&m->prot);
    if ((t->is_restored || t->ssd.has_lost_drops) && KVP_RULE(TIER_REPORT)) {
        reply->report = t->ssd.is_unknown ? REPORT_WHOLE : REPORT_WORDS;
        kvp_tier_report_begin(&m->space, t);
    }
    kvp_segment_attach(&m->space, t, s, KVP_SEG_UP);
}

/* Returns the reason why n more chunks are too many; NULL = they are not. Chunks cost memory even while empty. */
static const char *
too_many_chunks(const kvp_master_t *m, const kvp_session_t *s, uint64_t n)
{
    if (m->cat.chunks_n + n > KVP_POOL_CHUNKS_MAX) return "too many chunks in the pool";
    kvp_list_foreach (pos, &s->segments)
        n += kvp_list_entry(pos, kvp_segment_t, of_node)->chunk_n;
    return n > KVP_SEGMENT_CHUNKS_MAX ? "too many chunks of one node" : NULL;
}

static kvp_err_t
mount_segment(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Mount *msg, Kvp__Pb__MountReply *reply)
{
    kvp_segment_t *g = find_name(m, msg->name);
    bool is_known = g != NULL && memcmp(g->uuid, msg->uuid.data, UUID_BYTES) == 0 && g->epoch == msg->epoch &&
                    g->size_bytes == msg->size_bytes && g->chunk_bytes == msg->chunk_bytes;

    if (g != NULL && ((g->node != NULL && g->node != s) || g->report != NULL)) {
        reply->detail = (char *)"a node of that name is connected";
        return KVP_SEGMENT_EXISTS;
    }
    const char *why = is_known || msg->is_tier ? NULL : too_many_chunks(m, s, kvp_segment_chunk_n(msg));
    if (why != NULL) {
        reply->detail = (char *)why;
        return KVP_LIMIT;
    }
    if ((g == NULL || g->node != s) && s->segments_n >= KVP_NODE_SEGMENTS_MAX) {
        reply->detail = (char *)"too many segments of one node";
        return KVP_LIMIT;
    }
    if (msg->is_tier) {
        mount_tier(m, s, msg, g, reply);
        return KVP_OK;
    }
    if ((!is_known || g->is_restored) && kvp_report_by(m, s) != NULL) {
        reply->detail = (char *)"this node reports another segment";
        return KVP_IN_PROGRESS;
    }
    if (!is_known) {
        mount_unknown(m, s, msg, reply);
        return KVP_OK;
    }
    if (g->node == NULL) mount_known(m, s, msg, g, reply);
    reply->segment_id = g->id;
    return KVP_OK;
}

/* Returns true if the memory was mounted in this very term, but not by this master: another master served the pool in
 * this term, unknown to the nodes that gave this pool its identity, or after an old copy of the data directory was
 * restored. */
static bool
is_of_a_twin(const kvp_master_t *m, const Kvp__Pb__Mount *msg)
{
    if (m->ctx.conf.is_elected) return false; /* etcd assigns no term twice */
    if (msg->is_tier || msg->is_fresh || msg->mounted_term != m->ctx.term || m->dropped_term == m->ctx.term)
        return false;
    return find_uuid(m, msg->uuid.data) == NULL && !kvp_report_was_cut(m, msg->uuid.data);
}

/* Returns true if masters of this pool have used the memory. A complete log contains all memory that they have used. */
static bool
is_used_memory(kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Mount *msg)
{
    const kvp_segment_t *named = find_name(m, msg->name), *g = find_uuid(m, msg->uuid.data);

    if (msg->is_tier || msg->is_fresh || msg->mounted_term == 0) return false;
    if (named != NULL && named->node != NULL && named->node != s) return false;
    return g != NULL || !m->base.is_relied_on;
}

/* Returns true if the identity may mount memory of this name: the name in its Hello, with "/ssd" added for a tier. */
static bool
is_own_name(const kvp_session_t *s, const Kvp__Pb__Mount *msg)
{
    const size_t n = strlen(s->name);

    if (s->who == NULL || s->who->is_owner) return true;
    if (strncmp(msg->name, s->name, n) != 0) return false;
    return msg->name[n] == '\0' || (msg->is_tier && strcmp(msg->name + n, "/ssd") == 0);
}

void
kvp_on_mount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__MountReply reply = KVP__PB__MOUNT_REPLY__INIT;
    Kvp__Pb__Mount *msg;
    const char *why;
    char refused[KVP_TERM_WHY_MAX];
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__mount__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Mount");
        return;
    }
    why = mount_refusal(msg);
    if (why != NULL) reply.err = KVP_INVALID;
    if (why == NULL && !is_own_name(s, msg)) {
        reply.err = KVP_DENIED;
        why = "the identity is of a node with another name";
        kvp_session_audit(&m->peers, s, KVP_OP_MOUNT, reply.err, why);
    }
    if (why == NULL && (msg->term > m->ctx.term || is_of_a_twin(m, msg)) && KVP_RULE(TERM_CHECK)) {
        reply.err =
            is_used_memory(m, s, msg) ? kvp_term_raise(m, msg->term, refused) : kvp_term_refuse(m, msg->term, refused);
        if (reply.err == KVP_OK) {
            kvp_pb_free(&pb, msg);
            return;
        }
        why = refused;
    }
    if (why != NULL) {
        reply.detail = (char *)why;
    } else {
        reply.err = mount_segment(m, s, msg, &reply);
        if (reply.err == KVP_OK && reply.segment_id != 0) kvp_lost_node_is_back(m, msg->name);
    }
    reply.term = m->ctx.term;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}

void
kvp_on_unmount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__Unmount *msg;
    kvp_segment_t *g;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__unmount__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Unmount");
        return;
    }
    g = kvp_segment_find(&m->space, msg->segment_id);
    if (g == NULL || g->node != s) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_NO_SEGMENT, "no such segment of this node");
    } else if (g->unmount_conn != 0) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_IN_PROGRESS, "being unmounted");
    } else if (msg->is_kept && !g->is_tier) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_INVALID, "what is in memory is not kept");
    } else if (msg->is_kept) {
        /* the tier's objects stay on its SSDs; the node stays connected and continues to drop removed objects */
        kvp_segment_set_state(&m->space, g, KVP_SEG_LOST);
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_OK, "");
    } else {
        /* Draining: readers finish, and no put is placed here. kvp_segment_tick then drops the segment. */
        kvp_segment_set_state(&m->space, g, KVP_SEG_DRAINING);
        (void)kvp_evict_leave_segment(&m->evict, g);
        g->unmount_conn = s->conn;
        g->unmount_ask = f->hdr;
        g->unmount_due_ns = m->ctx.now_ns + KVP_MS(kvp_min_u64(msg->wait_ms, UNMOUNT_WAIT_MAX_MS));
    }
    kvp_pb_free(&pb, msg);
}

/* ---- the list of segments for clients */
static void
describe_segment(const kvp_segment_t *g, bool is_resting, Kvp__Pb__SegmentInfo *info)
{
    kvp__pb__segment_info__init(info);
    info->segment_id = g->id;
    info->node = (char *)g->name;
    info->host_id = (char *)g->host_id;
    info->node_incarnation = g->epoch;
    info->uuid = (ProtobufCBinaryData){UUID_BYTES, (uint8_t *)g->uuid};
    info->addr = g->addr;
    info->unix_path = g->unix_path;
    info->transports = g->transports;
    info->protection = g->protection;
    info->size_bytes = g->size_bytes;
    info->chunk_bytes = g->chunk_bytes;
    info->chunk_n = g->chunk_n;
    info->state =
        /* a standby takes the state from the log, because no node is connected to it */
        is_resting && g->life == KVP_SEGMENT_STAYS ? KVP_SEG_UP : kvp_segment_shown_state(g);
    info->used_bytes = g->used_bytes;
    info->objects = g->objects;
    info->evictions = g->evictions;
    info->is_tier = g->is_tier;
    info->stalled_devices = g->ssd.stalled_devices;
}

static bool
is_wanted(const Kvp__Pb__Segments *msg, uint32_t id)
{
    if (msg->n_ids == 0) return id >= msg->from_id;
    for (size_t i = 0; i < msg->n_ids; i++)
        if (msg->ids[i] == id) return true;
    return false;
}

void
kvp_on_segments(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__SegmentsReply reply = KVP__PB__SEGMENTS_REPLY__INIT;
    Kvp__Pb__SegmentInfo infos[KVP_SEGMENTS_MAX], *list[KVP_SEGMENTS_MAX];
    Kvp__Pb__Segments *msg;
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__segments__descriptor, f);
    if (msg == NULL || msg->n_ids > KVP_SEGMENTS_MAX) {
        kvp_session_close(&m->peers, s, "malformed Segments");
        kvp_pb_free(&pb, msg);
        return;
    }
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->life == KVP_SEGMENT_DROPPED || !is_wanted(msg, g->id)) continue;
        if (reply.n_segments == KVP_SEGMENTS_MAX) {
            reply.next_id = g->id;
            break;
        }
        list[reply.n_segments] = &infos[reply.n_segments];
        describe_segment(g, m->log.is_resting, list[reply.n_segments]);
        if (g->drain != NULL) {
            list[reply.n_segments]->drain = kvp_core_alloc(1, sizeof(Kvp__Pb__DrainReply));
            kvp__pb__drain_reply__init(list[reply.n_segments]->drain);
            kvp_drain_describe(m, g, list[reply.n_segments]->drain);
        }
        if (!kvp_session_sees_all(s)) list[reply.n_segments]->used_bytes = list[reply.n_segments]->objects = 0;
        reply.n_segments++;
    }
    reply.segments = list;
    reply.term = m->ctx.term;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    for (size_t i = 0; i < reply.n_segments; i++)
        free(list[i]->drain);
    kvp_pb_free(&pb, msg);
}
