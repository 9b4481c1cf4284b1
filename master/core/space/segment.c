/* SPDX-License-Identifier: Apache-2.0
 * Segments: their records, their states, and the list of segments that accept puts. request/mount.c mounts segments,
 * and recovery/loss.c handles a segment whose node is disconnected. */
#include "master/core/space/segment.h"

#include "common/list.h"
#include "common/mutate.h"
#include "common/pages.h"
#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/session/session.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/space.h"
#include "master/core/space/tiered.h"
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES_MIN (64u << 10)
#define CHUNK_BYTES_MAX (64ull << 30)

kvp_segment_t *
kvp_segment_find(kvp_space_t *sp, uint32_t id)
{
    kvp_list_foreach (pos, &sp->cat->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->id == id) return g;
    }
    return NULL;
}

/* ---- the unordered list of segments that accept puts */
static uint32_t
up_on_host(const kvp_space_t *sp, uint32_t host)
{
    uint32_t n = 0;

    (void)kvp_umap_get(&sp->cat->up_hosts, host, &n);
    return n;
}

static void
up_add(kvp_space_t *sp, kvp_segment_t *g)
{
    if (sp->cat->up_n == sp->cat->up_cap) {
        sp->cat->up_cap = sp->cat->up_cap == 0 ? 16 : sp->cat->up_cap * 2;
        sp->cat->up = realloc(sp->cat->up, sp->cat->up_cap * sizeof *sp->cat->up);
        if (sp->cat->up == NULL) kvp_panic("out of memory: %u segments", sp->cat->up_cap);
    }
    g->up_at = sp->cat->up_n;
    sp->cat->up[sp->cat->up_n++] = g;
    sp->cat->coming_bytes += g->retiring_bytes - g->quarantine_bytes;
    kvp_umap_set(&sp->cat->up_hosts, g->host, up_on_host(sp, g->host) + 1);
    kvp_heap_add(&sp->cat->up_chunks, &g->up_chunk, UINT64_MAX - kvp_segment_chunk_bytes(g, 0));
}

static void
up_del(kvp_space_t *sp, kvp_segment_t *g)
{
    uint32_t others = up_on_host(sp, g->host) - 1;

    sp->cat->up[g->up_at] = sp->cat->up[--sp->cat->up_n];
    sp->cat->up[g->up_at]->up_at = g->up_at;
    sp->cat->coming_bytes -= g->retiring_bytes - g->quarantine_bytes;
    if (others > 0)
        kvp_umap_set(&sp->cat->up_hosts, g->host, others);
    else
        (void)kvp_umap_del(&sp->cat->up_hosts, g->host);
    kvp_heap_del(&sp->cat->up_chunks, &g->up_chunk);
    sp->cat->slow_n -= g->is_slow;
    g->is_slow = false;
}

uint64_t
kvp_segment_longest_chunk(const kvp_space_t *sp)
{
    const kvp_heapnode_t *longest = kvp_heap_least(&sp->cat->up_chunks);

    return longest == NULL ? 0 : UINT64_MAX - longest->key;
}

void
kvp_segment_resize(kvp_space_t *sp, kvp_segment_t *t, uint64_t bytes)
{
    if (t->state != 0 && t->state != KVP_SEG_LOST) sp->ctx->st.tier_size_bytes += bytes - t->size_bytes;
    t->size_bytes = bytes;
}

void
kvp_segment_set_state(kvp_space_t *sp, kvp_segment_t *g, uint32_t state)
{
    if (g->drain != NULL && state == KVP_SEG_UP && KVP_RULE(DRAIN_NO_PUTS)) state = KVP_SEG_DRAINING;
    bool was_counted = g->state != 0 && g->state != KVP_SEG_LOST;
    bool is_counted = state != KVP_SEG_LOST;
    /* sign of the segment's bytes in the pool's totals: 1 = added, all ones (-1) = subtracted, 0 = unchanged */
    uint64_t sign = (uint64_t)is_counted - (uint64_t)was_counted;

    if (g->is_tier) { /* a tier accepts no puts, and is not counted as memory */
        sp->ctx->st.tier_size_bytes += sign * g->size_bytes;
        g->state = state;
        return;
    }
    sp->ctx->st.size_bytes += sign * g->size_bytes;
    sp->ctx->st.used_bytes += sign * g->used_bytes;
    sp->ctx->st.retiring_bytes += sign * g->retiring_bytes;
    sp->ctx->st.quarantine_bytes += sign * g->quarantine_bytes;
    sp->ctx->st.segments += sign;
    sp->cat->lost_n += (uint32_t)(state == KVP_SEG_LOST) - (uint32_t)(g->state == KVP_SEG_LOST);
    if (g->state == KVP_SEG_UP && state != KVP_SEG_UP) up_del(sp, g);
    if (g->state != KVP_SEG_UP && state == KVP_SEG_UP) up_add(sp, g);
    g->state = state;
    if (g->parked.n > 0) sp->has_parked = true;
    kvp_ctx_space_news(sp->ctx);
}

void
kvp_segment_drain(kvp_space_t *sp, kvp_segment_t *g, uint32_t flags, uint64_t bytes_per_s)
{
    sp->drains_n -= g->drain != NULL;
    sp->drains_n += flags != 0;
    if (flags == 0) {
        free(g->drain);
        g->drain = NULL;
        if (g->state == KVP_SEG_DRAINING && g->unmount_conn == 0 && !g->is_restored)
            kvp_segment_set_state(sp, g, KVP_SEG_UP);
        return;
    }
    if (g->drain == NULL) {
        g->drain = kvp_core_alloc(1, sizeof *g->drain);
        g->drain->began_ns = sp->ctx->now_ns;
        g->drain->deadline_ns = UINT64_MAX;
    }
    g->drain->flags = flags;
    g->drain->bytes_per_s = bytes_per_s;
    g->drain->next_ns = g->drain->pause_ns = 0;
    if (g->state == KVP_SEG_UP) kvp_segment_set_state(sp, g, KVP_SEG_UP);
}

kvp_chunk_t *
kvp_segment_chunk(kvp_space_t *sp, kvp_segment_t *g, uint32_t index)
{
    kvp_chunk_t *c = &g->chunks[index];

    if (c->segment != NULL) return c;
    c->segment = g;
    c->index = index;
    c->bytes = kvp_segment_chunk_bytes(g, index);
    kvp_chunk_geo(c->bytes, &c->geo);
    c->number = kvp_ptab_add(&sp->cat->chunks, c);
    return c;
}

static uint32_t
host_number(kvp_space_t *sp, const char *host_id)
{
    kvp_list_foreach (pos, &sp->cat->segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (strcmp(g->host_id, host_id) == 0) return g->host;
    }
    return ++sp->cat->host_seq;
}

const char *
kvp_segment_refusal(const Kvp__Pb__Mount *like)
{
    if (like->is_tier) return like->size_bytes == 0 ? "a tier of no bytes" : NULL;
    if (like->chunk_bytes < CHUNK_BYTES_MIN || like->chunk_bytes > CHUNK_BYTES_MAX || like->chunk_bytes % 4096 != 0)
        return "chunk size out of range";
    if (like->size_bytes < CHUNK_BYTES_MIN || like->size_bytes % 4096 != 0) return "segment size out of range";
    if (kvp_segment_chunk_n(like) > KVP_SEGMENT_CHUNKS_MAX) return "too many chunks";
    return NULL;
}

kvp_segment_t *
kvp_segment_make(kvp_space_t *sp, uint32_t id, const Kvp__Pb__Mount *like, const char *host_id)
{
    kvp_segment_t *g = kvp_core_alloc(1, sizeof *g);

    g->id = id != 0 ? id : sp->cat->segment_seq + 1;
    sp->cat->segment_seq = g->id;
    g->host = host_number(sp, host_id);
    kvp_list_init(&g->of_node);
    kvp_list_init(&g->retires);
    kvp_list_init(&g->unsent);
    kvp_list_init(&g->sending);
    kvp_list_init(&g->sent);
    kvp_list_init(&g->claims);
    kvp_list_init(&g->demotes);
    kvp_list_init(&g->placed);
    kvp_list_init(&g->stages);
    kvp_list_init(&g->copies);
    kvp_list_init(&g->ssd.drops);
    kvp_list_init(&g->orders);
    kvp_list_init(&g->ssd.tenants);
    kvp_buf_init(&g->checks, SIZE_MAX);
    kvp_objlist_init(&g->parked, KVP_OBJLIST_PARKED);
    memcpy(g->uuid, like->uuid.data, sizeof g->uuid);
    g->epoch = like->epoch;
    snprintf(g->name, sizeof g->name, "%s", like->name);
    snprintf(g->host_id, sizeof g->host_id, "%s", host_id);
    g->size_bytes = like->size_bytes;
    g->chunk_bytes = like->chunk_bytes;
    g->is_tier = like->is_tier;
    g->chunk_n = (uint32_t)kvp_segment_chunk_n(like);
    /* each page of the array of chunks takes memory only at the first use of a chunk in it */
    if (g->chunk_n > 0) g->chunks = kvp_pages_alloc(g->chunk_n * sizeof *g->chunks);
    if (g->chunks == NULL && !g->is_tier) kvp_panic("out of memory: %u chunks", g->chunk_n);
    sp->cat->chunks_n += g->chunk_n;
    sp->cat->known_bytes += g->is_tier ? 0 : g->size_bytes;
    kvp_place_room_init(g);
    kvp_list_add_tail(&sp->cat->segments, &g->link);
    kvp_tier_link(sp, g);
    return g;
}

void
kvp_segment_attach(kvp_space_t *sp, kvp_segment_t *g, kvp_session_t *s, uint32_t state)
{
    g->node = s;
    s->segments_n++;
    kvp_list_add_tail(&s->segments, &g->of_node);
    kvp_segment_set_state(sp, g, state);
    kvp_fence_tell(sp->peers, s, 0, 0); /* reports clients that died while the node was disconnected */
    kvp_retire_resend(sp, g);
    if (kvp_tier_is_due(g)) kvp_retire_want_sending(sp, g);
    for (uint32_t i = 0; i < g->chunk_n; i++)
        if (g->chunks[i].tenant != NULL && g->chunks[i].tenant->id != 0) kvp_owner_tell(sp, &g->chunks[i]);
}

/* ---- removal of segments */
void
kvp_segment_detach(kvp_segment_t *g)
{
    if (g->node != NULL) g->node->segments_n--;
    g->node = NULL;
    kvp_list_del(&g->of_node);
    kvp_list_del(&g->sending);
}

void
kvp_segment_free(kvp_space_t *sp, kvp_segment_t *g)
{
    const uint32_t ended = sp->cat->ended_n++ % KVP_ENDED_SEGMENTS;

    sp->cat->ended[ended].id = g->id;
    memcpy(sp->cat->ended[ended].name, g->name, sizeof g->name);
    kvp_list_del(&g->link);
    if (g->is_tier) kvp_tier_free(sp, g);
    if (g->chunks != NULL) kvp_pages_free(g->chunks, g->chunk_n * sizeof *g->chunks);
    sp->cat->chunks_n -= g->chunk_n;
    sp->cat->lost_n -= !g->is_tier && g->state == KVP_SEG_LOST;
    kvp_buf_fini(&g->checks);
    sp->drains_n -= g->drain != NULL;
    free(g->drain);
    free(g->room);
    free(g->addr);
    free(g->unix_path);
    free(g->transports);
    free(g->protection);
    free(g);
}
