/* SPDX-License-Identifier: Apache-2.0
 * Placement: chooses the segment and the chunk for a new extent. Of two randomly drawn segments the emptier one is
 * tried first, then the other, then all. Inside a segment the search takes the tightest fit in the first few chunks
 * that have a free extent of sufficient length; a tree over the chunks finds them. The holes of a full pool have all
 * lengths, and the first hole of sufficient length is rarely the best. */
#include "master/core/space/place.h"

#include "common/list.h"
#include "common/mutate.h"
#include "common/recpool.h"
#include "proto/segfmt.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/catalog/record.h"
#include "master/core/session/session.h"
#include "master/core/space/claim.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "master/core/space/space.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdlib.h>

#define FITS_MAX 8u /* limit of the chunks in which an allocation looks for the tightest free extent */
#define BLOCK_RECORDS 64u /* freeing one memory block costs as much of the budget as handling this many records */
/* limit of the free extents that one allocation skips, because they are promised to other puts or have unsafe slots */
#define PROMISED_MAX 16u

/* ---- room: leaf i of the tree, at room[leaves + i], is the longest free extent of chunk i in units; an inner node i
 * is the greater of nodes 2i and 2i + 1. Lengths are rounded to extents before they are compared, so a length that
 * fits by the tree really fits. */
static uint32_t
room_of(const kvp_segment_t *g, uint32_t index)
{
    const kvp_slab_t *slab = g->chunks[index].slab;
    uint64_t longest = slab == NULL ? kvp_segment_chunk_bytes(g, index) : kvp_slab_largest_free(slab);

    return (uint32_t)(longest / KVP_SLAB_UNIT);
}

static uint32_t
greater_child(const uint32_t *room, uint32_t node)
{
    return room[2 * node] > room[2 * node + 1] ? room[2 * node] : room[2 * node + 1];
}

void
kvp_place_room_init(kvp_segment_t *g)
{
    g->room_leaves = 1;
    while (g->room_leaves < g->chunk_n)
        g->room_leaves *= 2;
    g->room = kvp_core_alloc(2 * (size_t)g->room_leaves, sizeof *g->room);
    for (uint32_t i = 0; i < g->chunk_n; i++)
        g->room[g->room_leaves + i] = (uint32_t)(kvp_segment_chunk_bytes(g, i) / KVP_SLAB_UNIT);
    for (uint32_t node = g->room_leaves - 1; node > 0; node--)
        g->room[node] = greater_child(g->room, node);
}

void
kvp_place_room_changed(kvp_chunk_t *c)
{
    uint32_t *room = c->segment->room;
    uint32_t node = c->segment->room_leaves + c->index;

    room[node] = room_of(c->segment, c->index);
    for (node /= 2; node > 0; node /= 2) {
        uint32_t most = greater_child(room, node);

        if (room[node] == most) return;
        room[node] = most;
    }
}

void
kvp_place_memory_changed(kvp_space_t *sp, kvp_chunk_t *c)
{
    uint64_t now = (c->slab == NULL ? 0 : kvp_slab_memory_bytes(c->slab)) +
                   (c->long_keys == NULL ? 0 : kvp_slab_memory_bytes(c->long_keys));

    sp->slab_bytes += now - c->memory_bytes;
    c->memory_bytes = now;
}

/* ---- freeing the memory of removed chunks and pools in slices */
static kvp_deferred_free_t *
add_free(kvp_space_t *sp)
{
    kvp_deferred_free_t *later = kvp_core_alloc(1, sizeof *later);

    kvp_list_add_tail(&sp->deferred_frees, &later->link);
    return later;
}

static void
free_later(kvp_space_t *sp, kvp_slab_t **slab)
{
    if (*slab == NULL) return;
    add_free(sp)->slab = *slab;
    *slab = NULL;
}

void
kvp_place_free_pool_later(kvp_space_t *sp, kvp_recpool_t *pool)
{
    add_free(sp)->pool = *pool;
    *pool = (kvp_recpool_t){0};
}

static bool
free_part(kvp_deferred_free_t *later)
{
    return later->slab == NULL ? kvp_recpool_fini_some(&later->pool, 1) : kvp_slab_destroy_some(later->slab, 1);
}

void
kvp_place_chunk_fini(kvp_space_t *sp, kvp_chunk_t *c)
{
    kvp_place_forget_sealed(c);
    free_later(sp, &c->slab);
    free_later(sp, &c->long_keys);
    kvp_place_memory_changed(sp, c);
}

void
kvp_place_free_some(kvp_space_t *sp)
{
    while (!kvp_list_is_empty(&sp->deferred_frees)) {
        kvp_deferred_free_t *later = kvp_list_first(&sp->deferred_frees, kvp_deferred_free_t, link);

        if (sp->ctx->slice_left < BLOCK_RECORDS) return;
        kvp_ctx_spend(sp->ctx, BLOCK_RECORDS);
        if (!free_part(later)) continue;
        kvp_list_del(&later->link);
        free(later);
    }
}

/* Returns the first chunk from index `from` on with a free extent of that many units; NULL = none. */
static kvp_chunk_t *
room_find(kvp_space_t *sp, kvp_segment_t *g, uint32_t from, uint32_t units)
{
    uint32_t node = g->room_leaves + from;

    if (from >= g->chunk_n) return NULL;
    while (g->room[node] < units) {
        while ((node & 1) != 0)
            node /= 2; /* search in the tree: after a last child, continue after its parent */
        if (node == 0) return NULL;
        node++;
    }
    while (node < g->room_leaves)
        node = g->room[2 * node] >= units ? 2 * node : 2 * node + 1;
    return kvp_segment_chunk(sp, g, node - g->room_leaves);
}

/* ---- free extents that are promised to a waiting put; room for long keys */
static bool
is_skipped(const kvp_chunk_t *c, uint32_t slot, uint32_t mine)
{
    uint32_t owner = kvp_slab_owner(c->slab, slot);

    return owner == KVP_SLAB_NONE || owner == mine;
}

static bool
is_in_claim_of(const kvp_space_t *sp, const kvp_chunk_t *c, uint32_t neighbour, uint64_t from, uint64_t to)
{
    const kvp_retire_t *r = kvp_retire_of(sp, c, neighbour);

    return r != NULL && r->claim != NULL && from < r->claim->to && r->claim->from < to;
}

/* Returns true if a free extent is part of the window of a waiting put. A window may contain free space. Free
 * neighbours are merged, so beside free space in a window lies an extent of the window that is not free yet. So it is
 * sufficient to check, on each side, the next extent that is neither free nor owned by `mine`. */
bool
kvp_place_is_promised(const kvp_space_t *sp, const kvp_chunk_t *c, uint32_t slot, uint32_t mine)
{
    uint64_t from = kvp_slab_offset(c->slab, slot), to = from + kvp_slab_len(c->slab, slot);
    uint32_t prev = kvp_slab_prev(c->slab, slot), next = kvp_slab_next(c->slab, slot);

    while (prev != KVP_SLAB_NONE && is_skipped(c, prev, mine))
        prev = kvp_slab_prev(c->slab, prev);
    while (next != KVP_SLAB_NONE && is_skipped(c, next, mine))
        next = kvp_slab_next(c->slab, next);
    return is_in_claim_of(sp, c, prev, from, to) || is_in_claim_of(sp, c, next, from, to);
}

bool
kvp_place_has_key_room(const kvp_chunk_t *c, uint16_t key_len)
{
    if (key_len <= KVP_KEY_CELL_BYTES) return true;
    if (c->unclaimed > 0) return false; /* an old writer might still write a key there */
    return c->long_keys == NULL || kvp_slab_can_fit(c->long_keys, key_len);
}

static kvp_err_t
key_alloc(kvp_chunk_t *c, uint16_t key_len, kvp_place_t *at)
{
    uint64_t offset;
    kvp_err_t err;

    at->long_key_slot = KVP_SLAB_NONE;
    if (key_len <= KVP_KEY_CELL_BYTES) return KVP_OK;
    if (!kvp_place_has_key_room(c, key_len)) return KVP_NO_SPACE;
    if (c->long_keys == NULL) {
        err = kvp_slab_create(c->geo.long_keys_bytes, c->geo.slots_max, &c->long_keys);
        if (err != KVP_OK) return err;
    }
    err = kvp_slab_alloc(c->long_keys, key_len, 0, &at->long_key_slot, &offset);
    return err == KVP_OK ? KVP_OK : KVP_NO_SPACE;
}

/* ---- slots to which old writers may still write. A writer that an earlier master granted a slot may sleep between its
 * check of the slot's state word and its write of the slot's descriptor. After it wakes, its write destroys the
 * descriptor of the object that uses the slot then. So while a chunk has unclaimed extents, only slots that were SEALED
 * in the node's report are used again. */
void
kvp_place_note_sealed(kvp_chunk_t *c, uint32_t slot)
{
    if (c->sealed == NULL) c->sealed = kvp_core_alloc((c->geo.slots_max + 7) / 8, 1);
    c->sealed[slot / 8] = (uint8_t)(c->sealed[slot / 8] | 1u << slot % 8);
}

void
kvp_place_forget_sealed(kvp_chunk_t *c)
{
    free(c->sealed);
    c->sealed = NULL;
}

static bool
is_slot_ours(const kvp_chunk_t *c, uint32_t slot)
{
    if (c->unclaimed == 0 || !KVP_RULE(OLD_SLOTS_WAIT)) return true;
    return kvp_place_is_sealed(c, slot);
}

/* Allocates an extent. The best fit may be promised to another put, or an old writer may still write to its slot:
 * then the extent is set aside while the next best fit is tried, and freed at the end. */
static kvp_err_t
slab_alloc(const kvp_space_t *sp, const kvp_chunk_t *c, uint64_t len, uint32_t oid, uint32_t *slot_out)
{
    uint32_t parked[PROMISED_MAX], n = 0;
    uint64_t offset;
    kvp_err_t err;

    for (;;) {
        err = kvp_slab_alloc(c->slab, len, oid, slot_out, &offset);
        if (err != KVP_OK) break;
        if (is_slot_ours(c, *slot_out) && !kvp_place_is_promised(sp, c, *slot_out, oid)) break;
        parked[n++] = *slot_out;
        err = KVP_NO_SPACE;
        if (n == PROMISED_MAX) break;
    }
    while (n > 0)
        kvp_slab_free(c->slab, parked[--n]);
    return err;
}

/* ---- ownership of chunks: a chunk belongs to the tenant of its first object until the chunk is empty again */
void
kvp_owner_tell(kvp_space_t *sp, const kvp_chunk_t *c)
{
    kvp_session_t *node = c->segment->node;
    Kvp__Pb__Owner msg = KVP__PB__OWNER__INIT;

    if (node == NULL || (c->tenant->id != 0 && c->tenant->name[0] == '\0')) return;
    msg.uuid = (ProtobufCBinaryData){sizeof c->segment->uuid, c->segment->uuid};
    msg.chunk = c->index;
    msg.tenant = c->tenant->name;
    kvp_pb_frame(&node->out, KVP_OP_OWNER, KVP_FRAME_ONEWAY, 0, &msg.base, NULL, 0);
    kvp_session_dirty(sp->peers, node);
}

void
kvp_place_chunk_take(kvp_space_t *sp, kvp_chunk_t *c, kvp_tenant_t *t)
{
    if (c->tenant != NULL) return;
    c->tenant = t;
    if (c->taker != NULL) sp->has_take_news = true;
    t->refs++;
    t->chunk_bytes += c->bytes;
    c->segment->owned_bytes += c->bytes;
    sp->cat->owned_bytes += c->bytes;
    sp->cat->owned_chunks++;
    kvp_owner_tell(sp, c);
    if (t->chunks++ > 0) return;
    if (t->name[0] != '\0') kvp_record_tenant(sp->cat, t);
    kvp_list_add_tail(&sp->cat->owners, &t->owning);
    sp->cat->owners_n++;
}

void
kvp_place_chunk_leave(kvp_space_t *sp, kvp_chunk_t *c)
{
    kvp_tenant_t *t = c->tenant;

    if (t == NULL) return;
    c->tenant = NULL;
    t->chunk_bytes -= c->bytes;
    c->segment->owned_bytes -= c->bytes;
    sp->cat->owned_bytes -= c->bytes;
    sp->cat->owned_chunks--;
    if (c->slab != NULL) t->used_bytes -= kvp_slab_used_bytes(c->slab);
    if (--t->chunks == 0) {
        kvp_list_del(&t->owning);
        sp->cat->owners_n--;
    }
    kvp_tenant_rele(sp->cat, t);
}

uint32_t
kvp_place_elsewhere(const kvp_space_t *sp, const kvp_tenant_t *t)
{
    const kvp_master_stats_t *st = &sp->ctx->st;
    const uint64_t own = t->chunk_bytes - t->used_bytes, unowned = sp->cat->known_bytes - sp->cat->owned_bytes;
    const uint64_t free = st->size_bytes - kvp_min_u64(st->used_bytes, st->size_bytes);

    /* the free memory of a draining node is not available to any tenant */
    if (sp->cat->owners_n < 2 || sp->drains_n > 0 || free <= own + unowned || st->size_bytes < 8) return 0;
    return (uint32_t)kvp_min_u64((free - own - unowned) / (st->size_bytes / 8), 7);
}

/* Allocates an extent in the chunk, and space for the object's long key. */
static kvp_err_t
extent_alloc(kvp_space_t *sp, kvp_chunk_t *c, kvp_tenant_t *t, uint32_t oid, uint64_t len, kvp_place_t *at)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);

    if (!kvp_place_is_open_to(c, t)) return KVP_NO_SPACE;
    if (sp->cat->gen_seq >= KVP_GEN_SEQ_MAX) return KVP_NO_SPACE;
    if (c->slab == NULL && kvp_slab_create(c->bytes, c->geo.slots_max, &c->slab) != KVP_OK)
        kvp_panic("out of memory: allocator of a chunk");
    at->chunk = c->number;
    if (slab_alloc(sp, c, len, oid, &at->slot) != KVP_OK) return KVP_NO_SPACE;
    if (key_alloc(c, kvp_obj_key_len(sp->cat->index, o), at) != KVP_OK) {
        kvp_slab_free(c->slab, at->slot);
        return KVP_NO_SPACE;
    }
    kvp_place_chunk_take(sp, c, t);
    kvp_place_room_changed(c);
    kvp_place_memory_changed(sp, c);
    kvp_ctx_spend(sp->ctx, 1);
    sp->cat->gen_seq += KVP_RULE(FRESH_GENERATION) || sp->cat->gen_seq == 0;
    kvp_pool_granted(sp->peers);
    at->generation = kvp_gen_make(sp->ctx->term, sp->cat->gen_seq);
    c->segment->objects++;
    t->used_bytes += kvp_slab_len(c->slab, at->slot);
    c->segment->used_bytes += kvp_slab_len(c->slab, at->slot);
    sp->ctx->st.used_bytes += kvp_slab_len(c->slab, at->slot);
    return KVP_OK;
}

kvp_err_t
kvp_place_alloc_in(kvp_space_t *sp, kvp_chunk_t *c, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_tenant_t *t = kvp_attempt_of(sp->cat, o)->tenant;
    uint64_t len = kvp_obj_len(sp->cat, o);
    kvp_place_t at;

    if (extent_alloc(sp, c, t, oid, len, &at) != KVP_OK) return KVP_NO_SPACE;
    kvp_obj_add_place(sp->cat, oid, &at, kvp_slab_len(c->slab, at.slot) - len);
    t->put_bytes += kvp_slab_len(c->slab, at.slot);
    t->ahead_more = kvp_min_u64(t->ahead_more + len, t->used_bytes);
    sp->cat->placing = t;
    return KVP_OK;
}

static bool
is_named(const kvp_wish_t *wish, uint32_t segment_id)
{
    for (uint32_t i = 0; i < wish->avoid_n; i++)
        if (wish->avoid[i] == segment_id) return true;
    return false;
}

/* Returns true if the wish avoids the segment, and at least one segment that accepts puts is not avoided. */
static bool
is_avoided(const kvp_space_t *sp, const kvp_wish_t *wish, const kvp_segment_t *g)
{
    if (wish->avoid_n == 0 || !is_named(wish, g->id)) return false;
    for (uint32_t i = 0; i < sp->cat->up_n; i++)
        if (!is_named(wish, sp->cat->up[i]->id)) return true;
    return false;
}

/* Returns true if a further copy may lie in segment g. Each copy lies in another segment, and on another host as long
 * as there is a host without a copy. */
static bool
is_apart(const kvp_space_t *sp, const kvp_segment_t *const *taken, uint32_t taken_n, const kvp_segment_t *g)
{
    bool is_beside = false;
    uint32_t hosts_n = 0;

    for (uint32_t i = 0; i < taken_n; i++) {
        bool is_first = taken[i]->state == KVP_SEG_UP;

        if (taken[i] == g) return false;
        is_beside |= taken[i]->host == g->host;
        for (uint32_t k = 0; k < i; k++)
            is_first &= taken[k]->host != taken[i]->host || taken[k]->state != KVP_SEG_UP;
        hosts_n += is_first;
    }
    return !is_beside || hosts_n >= sp->cat->up_hosts.n;
}

bool
kvp_place_may_lie(const kvp_space_t *sp, const kvp_attempt_t *a, const kvp_wish_t *wish, const kvp_segment_t *g)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    const kvp_segment_t *taken[KVP_REPLICAS_MAX];
    uint32_t n, taken_n = 0;

    if (wish->only != 0 && wish->only != g->id) return false;
    if (wish->only == 0 && is_avoided(sp, wish, g)) return false;
    if (a->copies == 1 || !KVP_RULE(REPLICAS_APART)) return true;
    n = kvp_obj_places(sp->cat, kvp_obj(sp->cat->index, a->oid), places);
    for (uint32_t i = 0; i < n; i++)
        taken[taken_n++] = kvp_place_chunk(sp->cat, &places[i])->segment;
    kvp_list_foreach (pos, &a->claims) {
        const kvp_claim_t *k = kvp_list_entry(pos, kvp_claim_t, of_attempt);

        if (k->chunk != NULL && taken_n < KVP_REPLICAS_MAX) taken[taken_n++] = k->chunk->segment;
    }
    return is_apart(sp, taken, taken_n, g);
}

/* Returns the chunk with the tightest fit among the first few chunks with room; NULL = none. */
static kvp_chunk_t *
find_tightest(kvp_space_t *sp, kvp_segment_t *g, const kvp_tenant_t *t, uint64_t len)
{
    uint64_t extent = kvp_extent_bytes(len), least = UINT64_MAX;
    kvp_chunk_t *best = NULL, *c;

    for (uint32_t n = 0, from = 0;
         n < FITS_MAX && (c = room_find(sp, g, from, (uint32_t)(extent / KVP_SLAB_UNIT))) != NULL; n++) {
        uint64_t fit;

        from = c->index + 1;
        if (!kvp_place_is_open_to(c, t)) continue;
        fit = c->slab == NULL ? c->bytes : kvp_slab_best_fit(c->slab, len);
        if (fit >= least) continue;
        best = c;
        least = fit;
        if (fit == extent) break;
    }
    return best;
}

static kvp_err_t
alloc_in_segment(kvp_space_t *sp, kvp_segment_t *g, const kvp_attempt_t *a, const kvp_wish_t *wish)
{
    uint32_t oid = a->oid;
    uint32_t units = (uint32_t)(kvp_extent_bytes(a->bytes) / KVP_SLAB_UNIT);
    kvp_chunk_t *c;

    if (kvp_segment_is_passed_over(sp->cat, g) || !kvp_place_may_lie(sp, a, wish, g)) return KVP_NO_SPACE;
    c = find_tightest(sp, g, a->tenant, a->bytes);
    if (c != NULL && kvp_place_alloc_in(sp, c, oid) == KVP_OK) return KVP_OK;
    /* A chunk with room may still refuse: its slots or its area for long keys are used up, or the free extent is
     * promised to another put. */
    for (uint32_t from = 0; (c = room_find(sp, g, from, units)) != NULL; from = c->index + 1)
        if (kvp_place_alloc_in(sp, c, oid) == KVP_OK) return KVP_OK;
    return KVP_NO_SPACE;
}

static bool
is_emptier(const kvp_segment_t *a, const kvp_segment_t *b)
{
    /* Compares the used share of each segment, because segments differ in size. */
    return (unsigned __int128)a->used_bytes * b->size_bytes < (unsigned __int128)b->used_bytes * a->size_bytes;
}

/* Tries the preferred segments of the client, if they accept puts. */
static kvp_err_t
alloc_preferred(kvp_space_t *sp, const kvp_attempt_t *a, const kvp_wish_t *wish)
{
    for (uint32_t i = 0; i < wish->prefer_n; i++) {
        kvp_segment_t *g = kvp_segment_find(sp, wish->prefer[i]);

        if (g == NULL || g->up_at >= sp->cat->up_n || sp->cat->up[g->up_at] != g) continue;
        if (alloc_in_segment(sp, g, a, wish) == KVP_OK) return KVP_OK;
    }
    return KVP_NO_SPACE;
}

kvp_err_t
kvp_place_alloc(kvp_space_t *sp, const kvp_attempt_t *a, const kvp_wish_t *wish)
{
    kvp_segment_t *first, *second;

    if (sp->cat->up_n == 0) return KVP_NO_SPACE;
    if (alloc_preferred(sp, a, wish) == KVP_OK) return KVP_OK;
    first = sp->cat->up[kvp_ctx_random(sp->ctx) % sp->cat->up_n];
    second = sp->cat->up[kvp_ctx_random(sp->ctx) % sp->cat->up_n];
    if (is_emptier(second, first)) {
        kvp_segment_t *swap = first;

        first = second;
        second = swap;
    }
    if (alloc_in_segment(sp, first, a, wish) == KVP_OK) return KVP_OK;
    if (second != first && alloc_in_segment(sp, second, a, wish) == KVP_OK) return KVP_OK;
    for (uint32_t i = 0; i < sp->cat->up_n; i++)
        if (sp->cat->up[i] != first && sp->cat->up[i] != second &&
            alloc_in_segment(sp, sp->cat->up[i], a, wish) == KVP_OK)
            return KVP_OK;
    return KVP_NO_SPACE;
}

kvp_err_t
kvp_place_alloc_stage(kvp_space_t *sp, kvp_segment_t *g, uint32_t oid, kvp_place_t *at_out)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_tenant_t *t = kvp_obj_tenant(sp->cat, o);
    uint64_t len = kvp_obj_len(sp->cat, o);
    kvp_chunk_t *c = find_tightest(sp, g, t, len);

    return c == NULL ? KVP_NO_SPACE : extent_alloc(sp, c, t, oid, len, at_out);
}
