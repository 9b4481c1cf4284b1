/* SPDX-License-Identifier: Apache-2.0
 * Segments: mounting, loss and return of their node, unmounting, and dropping what a node took with it. Dropping walks
 * the chunks in slices; until an object's turn comes it is not served because its segment is not.
 */
#include "master/core/state.h"

#include "common/mutate.h"
#include "common/pages.h"

#include <stdio.h>
#include <stdlib.h>

#define UUID_BYTES 16u
#define CHUNKS_MAX 65536u
#define CHUNK_BYTES_MIN (64u << 10)
#define CHUNK_BYTES_MAX (64ull << 30)
#define UNMOUNT_WAIT_MAX_MS 60000u
#define REPORT_WHOLE 2u /* in MountReply */

kvp_segment_t *
kvp_segment_find(kvp_master_t *m, uint32_t id)
{
    kvp_list_foreach (pos, &m->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->id == id) return g;
    }
    return NULL;
}

static kvp_segment_t *
find_name(kvp_master_t *m, const char *name)
{
    kvp_list_foreach (pos, &m->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (!g->is_dropped && strcmp(g->name, name) == 0) return g;
    }
    return NULL;
}

/* ---- the list of those that take puts; in no order */
static uint32_t
up_on_host(const kvp_master_t *m, uint32_t host)
{
    uint32_t n = 0;

    (void)kvp_umap_get(&m->up_hosts, host, &n);
    return n;
}

static void
up_add(kvp_master_t *m, kvp_segment_t *g)
{
    if (m->up_n == m->up_cap) {
        m->up_cap = m->up_cap == 0 ? 16 : m->up_cap * 2;
        m->up = realloc(m->up, m->up_cap * sizeof *m->up);
        if (m->up == NULL) kvp_panic("out of memory: %u segments", m->up_cap);
    }
    g->up_at = m->up_n;
    m->up[m->up_n++] = g;
    kvp_umap_set(&m->up_hosts, g->host, up_on_host(m, g->host) + 1);
    kvp_heap_add(&m->up_chunks, &g->up_chunk, UINT64_MAX - kvp_segment_chunk_bytes(g, 0));
}

static void
up_del(kvp_master_t *m, kvp_segment_t *g)
{
    uint32_t others = up_on_host(m, g->host) - 1;

    m->up[g->up_at] = m->up[--m->up_n];
    m->up[g->up_at]->up_at = g->up_at;
    if (others > 0)
        kvp_umap_set(&m->up_hosts, g->host, others);
    else
        (void)kvp_umap_del(&m->up_hosts, g->host);
    kvp_heap_del(&m->up_chunks, &g->up_chunk);
    m->slow_n -= g->is_slow;
    g->is_slow = false;
}

uint64_t
kvp_segment_longest_chunk(const kvp_master_t *m)
{
    const kvp_heapnode_t *longest = kvp_heap_least(&m->up_chunks);

    return longest == NULL ? 0 : UINT64_MAX - longest->key;
}

/* The one place where a segment's state changes: the pool's totals and the list of those that take puts follow. */
static void
set_state(kvp_master_t *m, kvp_segment_t *g, uint32_t state)
{
    bool was_counted = g->state != 0 && g->state != KVP_SEG_LOST;
    bool is_counted = state != KVP_SEG_LOST;
    uint64_t sign = (uint64_t)is_counted - (uint64_t)was_counted; /* 1, 0, or all ones */

    m->st.size_bytes += sign * g->size_bytes;
    m->st.used_bytes += sign * g->used_bytes;
    m->st.retiring_bytes += sign * g->retiring_bytes;
    m->st.quarantine_bytes += sign * g->quarantine_bytes;
    m->st.segments += sign;
    m->lost_n += (uint32_t)(state == KVP_SEG_LOST) - (uint32_t)(g->state == KVP_SEG_LOST);
    if (g->state == KVP_SEG_UP && state != KVP_SEG_UP) up_del(m, g);
    if (g->state != KVP_SEG_UP && state == KVP_SEG_UP) up_add(m, g);
    g->state = state;
    if (g->aside.n > 0) m->has_aside = true;
    if (state == KVP_SEG_LOST && !g->is_dropped) kvp_owed_expect(m, g->objects);
    kvp_master_space_news(m);
}

/* ---- mounting */
static const char *
mount_refusal(const Kvp__Pb__Mount *msg)
{
    if (msg->name[0] == '\0' || strlen(msg->name) > KVP_NAME_MAX) return "bad segment name";
    if (msg->uuid.len != UUID_BYTES) return "uuid is not 16 bytes";
    if (strlen(msg->addr) > 319 || strlen(msg->unix_path) > 107 || strlen(msg->transports) > KVP_NAME_MAX)
        return "address is too long";
    if (msg->chunk_bytes < CHUNK_BYTES_MIN || msg->chunk_bytes > CHUNK_BYTES_MAX || msg->chunk_bytes % 4096 != 0)
        return "chunk size out of range";
    if (msg->term > KVP_TERM_MAX || msg->mounted_term > msg->term) return "no such term";
    if (msg->size_bytes < CHUNK_BYTES_MIN || msg->size_bytes % 4096 != 0) return "segment size out of range";
    if ((msg->size_bytes - 1) / msg->chunk_bytes >= CHUNKS_MAX) return "too many chunks";
    return NULL;
}

kvp_chunk_t *
kvp_segment_chunk(kvp_master_t *m, kvp_segment_t *g, uint32_t index)
{
    kvp_chunk_t *c = &g->chunks[index];

    if (c->segment != NULL) return c;
    c->segment = g;
    c->index = index;
    c->bytes = kvp_segment_chunk_bytes(g, index);
    kvp_chunk_geo(c->bytes, &c->geo);
    c->number = kvp_ptab_add(&m->chunks, c);
    return c;
}

static uint32_t
host_number(kvp_master_t *m, const char *host_id)
{
    kvp_list_foreach (pos, &m->segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (strcmp(g->host_id, host_id) == 0) return g->host;
    }
    return ++m->host_seq;
}

static kvp_segment_t *
make_segment(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Mount *msg)
{
    kvp_segment_t *g = kvp_core_alloc(1, sizeof *g);

    g->id = ++m->segment_seq;
    g->host = host_number(m, s->host_id);
    kvp_list_init(&g->of_node);
    kvp_list_init(&g->retires);
    kvp_list_init(&g->unsent);
    kvp_list_init(&g->sending);
    kvp_list_init(&g->sent);
    kvp_list_init(&g->claims);
    kvp_objlist_init(&g->aside, KVP_OBJLIST_ASIDE);
    memcpy(g->uuid, msg->uuid.data, UUID_BYTES);
    g->epoch = msg->epoch;
    snprintf(g->name, sizeof g->name, "%s", msg->name);
    snprintf(g->host_id, sizeof g->host_id, "%s", s->host_id);
    g->size_bytes = msg->size_bytes;
    g->chunk_bytes = msg->chunk_bytes;
    g->chunk_n = (uint32_t)((g->size_bytes - 1) / g->chunk_bytes + 1);
    g->chunks = kvp_pages_alloc(g->chunk_n * sizeof *g->chunks); /* touched as they are used */
    if (g->chunks == NULL) kvp_panic("out of memory: %u chunks", g->chunk_n);
    m->chunks_n += g->chunk_n;
    m->known_bytes += g->size_bytes;
    kvp_place_room_init(g);
    kvp_list_add_tail(&m->segments, &g->link);
    return g;
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
    replace_text(&g->addr, msg->addr);
    replace_text(&g->unix_path, msg->unix_path);
    replace_text(&g->transports, msg->transports);
}

void
kvp_segment_up(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *s)
{
    bool is_first = s->segments_n == 0;

    g->node = s;
    s->segments_n++;
    kvp_list_add_tail(&s->segments, &g->of_node);
    set_state(m, g, KVP_SEG_UP);
    kvp_fence_tell(m, s, 0); /* who died while it was away */
    kvp_retire_resend(m, g);
    if (is_first) kvp_owed_greet(m, s);
}

static bool
is_spoiled(const kvp_master_t *m, const uint8_t *uuid)
{
    for (uint32_t i = 0; i < KVP_SPOILED_MAX; i++)
        if (memcmp(m->spoiled[i], uuid, UUID_BYTES) == 0) return true;
    return false;
}

/* Memory that we do not know, and that is not new, is of an older term: what is in it is asked for. Grants of this term
 * might be out for it where it was mounted in this term, and forgotten: only new memory is surely nobody's then, unless its
 * report of this term was cut. The same where so much time has passed that what was removed meanwhile is not known any
 * more. */
static void
mount_unknown(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Mount *msg, Kvp__Pb__MountReply *reply)
{
    kvp_segment_t *old = find_name(m, msg->name), *g;
    bool is_older = (msg->mounted_term != 0 && msg->mounted_term < m->term) || kvp_report_was_cut(m, msg->uuid.data);
    bool is_believed = is_older && kvp_owed_is_rebuilding(m) && !is_spoiled(m, msg->uuid.data);

    if (!msg->is_fresh && !is_believed && KVP_RULE(RESET_OF_STRANGE_MEMORY)) {
        reply->is_reset = true;
        return;
    }
    if (old != NULL) kvp_segment_drop(m, old);
    g = make_segment(m, s, msg);
    set_addresses(g, msg);
    reply->segment_id = g->id;
    if (!is_believed) {
        kvp_segment_up(m, g, s);
        return;
    }
    set_state(m, g, KVP_SEG_LOST);
    kvp_report_begin(m, g, s);
    reply->report = REPORT_WHOLE;
}

static kvp_err_t
mount(kvp_master_t *m, kvp_session_t *s, const Kvp__Pb__Mount *msg, Kvp__Pb__MountReply *reply)
{
    kvp_segment_t *g = find_name(m, msg->name);
    bool is_known = g != NULL && memcmp(g->uuid, msg->uuid.data, UUID_BYTES) == 0 && g->epoch == msg->epoch &&
                    g->size_bytes == msg->size_bytes && g->chunk_bytes == msg->chunk_bytes;

    if (g != NULL && ((g->node != NULL && g->node != s) || g->report != NULL)) {
        reply->detail = (char *)"a node of that name is connected";
        return KVP_SEGMENT_EXISTS;
    }
    if (!is_known && m->chunks_n + (msg->size_bytes - 1) / msg->chunk_bytes >= KVP_OBJ_CHUNK_NONE) {
        reply->detail = (char *)"too many chunks in the pool";
        return KVP_LIMIT;
    }
    if ((g == NULL || g->node != s) && s->segments_n >= KVP_NODE_SEGMENTS_MAX) {
        reply->detail = (char *)"too many segments of one node";
        return KVP_LIMIT;
    }
    if (!is_known && kvp_report_by(m, s) != NULL) {
        reply->detail = (char *)"this node reports another segment";
        return KVP_IN_PROGRESS;
    }
    if (!is_known) {
        mount_unknown(m, s, msg, reply);
        return KVP_OK;
    }
    if (g->node == NULL) {
        set_addresses(g, msg);
        kvp_segment_up(m, g, s);
    }
    reply->segment_id = g->id;
    return KVP_OK;
}

/* Memory of this very term that this master has neither now nor had and dropped: another one served the pool in it, of which
 * the nodes that named the pool, or an old copy of the data directory, did not know. */
static bool
is_of_a_twin(const kvp_master_t *m, const Kvp__Pb__Mount *msg)
{
    if (msg->is_fresh || msg->mounted_term != m->term || m->dropped_term == m->term) return false;
    kvp_list_foreach (pos, &m->segments)
        if (memcmp(kvp_list_entry(pos, kvp_segment_t, link)->uuid, msg->uuid.data, UUID_BYTES) == 0) return false;
    return !kvp_report_was_cut(m, msg->uuid.data);
}

void
kvp_on_mount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__MountReply reply = KVP__PB__MOUNT_REPLY__INIT;
    Kvp__Pb__Mount *msg;
    const char *why;
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__mount__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(m, s, "malformed Mount");
        return;
    }
    why = mount_refusal(msg);
    if (why == NULL && (msg->term > m->term || is_of_a_twin(m, msg)) && KVP_RULE(TERM_CHECK) &&
        kvp_master_outdated(m, msg->term)) {
        kvp_pb_free(&pb, msg);
        return;
    }
    if (why != NULL) {
        reply.err = KVP_INVALID;
        reply.detail = (char *)why;
    } else {
        reply.err = mount(m, s, msg, &reply);
    }
    reply.term = m->term;
    out = kvp_reply_begin(m, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}

/* ---- going away */
static void
detach(kvp_segment_t *g)
{
    if (g->node != NULL) g->node->segments_n--;
    g->node = NULL;
    kvp_list_del(&g->of_node);
    kvp_list_del(&g->sending);
}

/* What lies in a lost segment can be evicted and put again elsewhere while no DEAD reaches its memory, which clients may
 * still read: known locations end here, and not with their descriptors. */
static void
revoke_everything(kvp_master_t *m)
{
    for (uint32_t i = 0; i < m->tenants.limit; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&m->tenants, i);

        if (t != NULL) (void)kvp_revoke_all(t);
    }
}

void
kvp_segments_lost(kvp_master_t *m, kvp_session_t *node)
{
    if (!kvp_list_is_empty(&node->segments) && KVP_RULE(REVOKE_OF_LOST)) revoke_everything(m);
    kvp_report_lost(m, node);
    while (!kvp_list_is_empty(&node->segments)) {
        kvp_segment_t *g = kvp_list_first(&node->segments, kvp_segment_t, of_node);

        detach(g);
        g->lost_ns = m->now_ns;
        g->lost_stall_ns = m->stall_ns;
        g->unmount_conn = 0;
        set_state(m, g, KVP_SEG_LOST);
        (void)kvp_put_leave_segment(m, g);
    }
}

void
kvp_segment_drop(kvp_master_t *m, kvp_segment_t *g)
{
    kvp_session_t *s = kvp_session_find(m, g->unmount_conn);

    if (g->is_dropped) return;
    g->is_dropped = true;
    m->dropped_term = m->term;
    m->known_bytes -= g->size_bytes;
    set_state(m, g, KVP_SEG_LOST);
    (void)kvp_put_leave_segment(m, g);
    detach(g);
    g->purge_slot = KVP_SLAB_NONE;
    m->dropping++;
    if (s != NULL) kvp_reply_plain(m, s, &g->unmount_ask, KVP_OK, "");
    g->unmount_conn = 0;
}

void
kvp_segment_free(kvp_master_t *m, kvp_segment_t *g)
{
    kvp_report_free(m, g);
    kvp_list_del(&g->link);
    kvp_pages_free(g->chunks, g->chunk_n * sizeof *g->chunks);
    m->chunks_n -= g->chunk_n;
    m->lost_n -= g->state == KVP_SEG_LOST;
    free(g->room);
    free(g->addr);
    free(g->unix_path);
    free(g->transports);
    free(g);
}

/* Drops what lies in one extent. Its own extent is not given back: the whole chunk goes. */
static void
purge_extent(kvp_master_t *m, kvp_chunk_t *c, uint32_t slot)
{
    if (!kvp_slab_is_allocated(c->slab, slot)) return;
    if (kvp_retire_of(m, c, slot) == NULL) kvp_copy_lose(m, c, slot);
    kvp_retire_forget(m, kvp_retire_of(m, c, slot));
}

static void
purge_chunk(kvp_master_t *m, kvp_chunk_t *c)
{
    if (c->segment == NULL) return; /* it was never used */
    kvp_place_chunk_leave(m, c);
    kvp_ptab_del(&m->chunks, c->number);
    kvp_place_chunk_fini(m, c);
}

/* True when everything in the segment is gone, and no put waits for a part of it. Physical order is stable meanwhile: nothing is freed in its allocators. */
static bool
purge_slice(kvp_master_t *m, kvp_segment_t *g, uint32_t *left)
{
    if (!kvp_put_leave_segment(m, g)) return false;
    for (; g->purge_chunk < g->chunk_n; g->purge_chunk++) {
        kvp_chunk_t *c = &g->chunks[g->purge_chunk];

        if (*left == 0) return false;
        --*left;
        if (c->slab != NULL && g->purge_slot == KVP_SLAB_NONE) g->purge_slot = kvp_slab_first(c->slab);
        while (g->purge_slot != KVP_SLAB_NONE) {
            if (*left == 0 || m->slice_left == 0) return false;
            --*left;
            purge_extent(m, c, g->purge_slot);
            g->purge_slot = kvp_slab_next(c->slab, g->purge_slot);
        }
        purge_chunk(m, c);
    }
    return true;
}

/* Windows in a segment that is passed over are given up: others get their puts done meanwhile. */
static void
watch_node(kvp_master_t *m, kvp_segment_t *g, uint32_t *left)
{
    bool is_slow = g->state == KVP_SEG_UP && kvp_retire_is_late(m, g->node);

    if (is_slow != g->is_slow) {
        g->is_slow = is_slow;
        m->slow_n += is_slow ? 1 : UINT32_MAX;
        if (is_slow) kvp_owed_expect(m, g->objects);
        kvp_master_space_news(m);
    }
    if (kvp_segment_is_passed_over(m, g) || g->state != KVP_SEG_UP) (void)kvp_put_leave_segment(m, g);
    if (!kvp_segment_is_passed_over(m, g) && !kvp_victims_back(m, g, left)) m->has_aside = true;
}

static bool
is_grace_over(const kvp_master_t *m, const kvp_segment_t *g)
{
    return m->now_ns - g->lost_ns >= m->conf.node_grace_ns + (m->stall_ns - g->lost_stall_ns);
}

void
kvp_segment_tick(kvp_master_t *m)
{
    uint32_t left = m->slice_left / 2; /* an extent may cost two records */

    m->has_aside = false;
    m->is_leaving = false;
    kvp_list_foreach_safe (pos, tmp, &m->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->report != NULL) {
            (void)kvp_report_slice(m, g, &left);
            continue;
        }
        if (!g->is_dropped) watch_node(m, g, &left);
        if (g->is_dropped) {
            if (!purge_slice(m, g, &left)) continue;
            m->dropping--;
            kvp_segment_free(m, g);
        } else if (g->state == KVP_SEG_LOST && is_grace_over(m, g)) {
            kvp_master_note(m, "segment %s is dropped: its node did not come back", g->name);
            kvp_segment_drop(m, g);
        } else if (g->unmount_conn != 0 && (g->held == 0 || m->now_ns >= g->unmount_due_ns)) {
            kvp_segment_drop(m, g);
        }
    }
}

void
kvp_on_unmount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__Unmount *msg;
    kvp_segment_t *g;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__unmount__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(m, s, "malformed Unmount");
        return;
    }
    g = kvp_segment_find(m, msg->segment_id);
    if (g == NULL || g->node != s) {
        kvp_reply_plain(m, s, &f->hdr, KVP_NO_SEGMENT, "no such segment of this node");
    } else if (g->unmount_conn != 0) {
        kvp_reply_plain(m, s, &f->hdr, KVP_IN_PROGRESS, "being unmounted");
    } else {
        /* Draining: readers finish, nothing new is put. The rest is done by the tick. */
        set_state(m, g, KVP_SEG_DRAINING);
        (void)kvp_put_leave_segment(m, g);
        g->unmount_conn = s->conn;
        g->unmount_ask = f->hdr;
        g->unmount_due_ns = m->now_ns + KVP_MS(kvp_min_u64(msg->wait_ms, UNMOUNT_WAIT_MAX_MS));
    }
    kvp_pb_free(&pb, msg);
}

/* ---- telling clients */
static void
describe(const kvp_segment_t *g, Kvp__Pb__SegmentInfo *info)
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
    info->size_bytes = g->size_bytes;
    info->chunk_bytes = g->chunk_bytes;
    info->chunk_n = g->chunk_n;
    info->state = g->state;
    info->used_bytes = g->used_bytes;
    info->objects = g->objects;
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
        kvp_session_close(m, s, "malformed Segments");
        kvp_pb_free(&pb, msg);
        return;
    }
    kvp_list_foreach (pos, &m->segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->is_dropped || !is_wanted(msg, g->id)) continue;
        if (reply.n_segments == KVP_SEGMENTS_MAX) {
            reply.next_id = g->id;
            break;
        }
        list[reply.n_segments] = &infos[reply.n_segments];
        describe(g, list[reply.n_segments++]);
    }
    reply.segments = list;
    reply.term = m->term;
    out = kvp_reply_begin(m, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}
