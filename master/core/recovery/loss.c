/* SPDX-License-Identifier: Apache-2.0
 * Segments whose node has disconnected or is slow. While the node may reconnect, nothing is removed; later the
 * segment is dropped by a walk over its chunks, in slices. Objects that the walk has not reached yet are not served,
 * because their segment is not. */
#include "master/core/recovery/loss.h"

#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/eviction.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/lease.h"
#include "master/core/put/attempt.h"
#include "master/core/recovery/rebuild.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/space/check.h"
#include "master/core/space/drop.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "master/core/space/tier.h"
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>

/* Revokes the cached locations of all tenants. Objects of a lost segment may be evicted and put again elsewhere, but
 * the node cannot make the old copies DEAD. Clients might still read the old memory, so cached locations end now. */
static void
revoke_everything(kvp_master_t *m)
{
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL) kvp_revoke_all(t);
    }
}

/* Returns true if a client may have cached a location in the node's segments. A drained segment has none: all words of
 * its extents are DEAD. */
static bool
may_be_known(const kvp_session_t *node)
{
    kvp_list_foreach (pos, &node->segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, of_node);

        if (g->is_tier) continue; /* clients read a tier's objects only after a load into memory */
        if (g->drain == NULL || g->is_restored || g->used_bytes > 0) return true;
    }
    return false;
}

void
kvp_segments_lost(kvp_master_t *m, kvp_session_t *node)
{
    if (may_be_known(node) && KVP_RULE(REVOKE_OF_LOST)) revoke_everything(m);
    kvp_report_lost(m, node);
    while (!kvp_list_is_empty(&node->segments)) {
        kvp_segment_t *g = kvp_list_first(&node->segments, kvp_segment_t, of_node);

        kvp_tier_lost(&m->space, g);
        kvp_segment_detach(g);
        g->lost_ns = m->ctx.now_ns;
        g->lost_stall_ns = m->ctx.stall_ns;
        g->unmount_conn = 0;
        kvp_segment_set_state(&m->space, g, KVP_SEG_LOST);
        (void)kvp_evict_leave_segment(&m->evict, g);
    }
}

void
kvp_segment_drop(kvp_master_t *m, kvp_segment_t *g)
{
    kvp_session_t *s = kvp_session_find(&m->peers, g->unmount_conn);

    if (g->life == KVP_SEGMENT_DROPPED) return;
    g->life = KVP_SEGMENT_DROPPED;
    kvp_record_segment_over(&m->cat, g);
    m->dropped_term = m->ctx.term;
    m->cat.known_bytes -= g->is_tier ? 0 : g->size_bytes;
    kvp_segment_set_state(&m->space, g, KVP_SEG_LOST);
    (void)kvp_evict_leave_segment(&m->evict, g);
    kvp_tier_lost(&m->space, g);
    kvp_segment_detach(g);
    g->purge_slot = KVP_SLAB_NONE;
    m->dropping++;
    if (s != NULL) kvp_reply_plain(&m->peers, s, &g->unmount_ask, KVP_OK, "");
    g->unmount_conn = 0;
}

void
kvp_copy_lose(kvp_master_t *m, const kvp_chunk_t *c, uint32_t slot)
{
    uint32_t oid = kvp_slab_owner(c->slab, slot), i, n;
    kvp_place_t places[KVP_REPLICAS_MAX];

    n = kvp_obj_places(&m->cat, kvp_obj(m->cat.index, oid), places);
    i = kvp_place_at(places, c, slot);
    if (kvp_obj(m->cat.index, oid)->state != KVP_OBJ_COMMITTED) {
        kvp_attempt_lose_copy(&m->puts, oid, &places[i]);
    } else if (n > 1) {
        kvp_obj_del_place(&m->space, oid, &places[i]);
        (void)kvp_retire_place(&m->space, &places[i], 0, NULL);
        if (c->segment->life != KVP_SEGMENT_DROPPED) kvp_record_again(&m->cat, oid);
    } else if (kvp_obj_tier(&m->cat, kvp_obj(m->cat.index, oid)) != NULL) {
        kvp_obj_leave_memory(&m->space, oid);
    } else {
        m->ctx.st.purged++;
        kvp_obj_lose(&m->space, oid, KVP_CAUSE_LOST_NODE);
    }
}

void
kvp_copy_unreadable(kvp_master_t *m, kvp_digest_t digest, uint64_t generation)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n, at, oid = kvp_check_find(&m->space, digest, generation, places, &n, &at);

    if (oid == KVP_OID_NONE) return; /* the object was removed meanwhile */
    m->ctx.st.unreadable++;
    if (n > 1)
        kvp_obj_drop_copy(&m->space, oid, &places[at], NULL);
    else if (kvp_obj_tier(&m->cat, kvp_obj(m->cat.index, oid)) != NULL)
        kvp_obj_leave_memory(&m->space, oid);
    else
        kvp_obj_drop(&m->space, oid, KVP_CAUSE_UNREADABLE, 0, NULL);
    kvp_ctx_space_news(&m->ctx);
}

/* Drops the object of one extent. The extent itself is not freed, because the whole chunk is dropped. */
static void
purge_extent(kvp_master_t *m, kvp_chunk_t *c, uint32_t slot)
{
    if (!kvp_slab_is_allocated(c->slab, slot)) return;
    if (kvp_retire_of(&m->space, c, slot) == NULL) kvp_copy_lose(m, c, slot);
    kvp_retire_forget(&m->space, kvp_retire_of(&m->space, c, slot));
}

static void
purge_chunk(kvp_master_t *m, kvp_chunk_t *c)
{
    if (c->segment == NULL) return; /* the chunk was never used */
    if (c->tenant != NULL) c->tenant->given_up_term = m->ctx.term;
    kvp_place_chunk_leave(&m->space, c);
    kvp_ptab_del(&m->cat.chunks, c->number);
    kvp_place_chunk_fini(&m->space, c);
}

/* Removes the objects of a dropped tier, which it finds by a walk over all objects. Returns true at the end. */
static bool
purge_tier(kvp_master_t *m, kvp_segment_t *t, uint32_t *left)
{
    uint32_t oid;

    while ((oid = kvp_objindex_walk(m->cat.index, &t->ssd.purge_oid, KVP_OID_NONE, left)) != KVP_OID_NONE) {
        kvp_obj_t *o = kvp_obj(m->cat.index, oid);
        const kvp_segment_t *g = o->is_on_tier == 0 ? NULL : kvp_obj_chunk(&m->cat, o)->segment;

        if (m->ctx.slice_left == 0) {
            t->ssd.purge_oid = oid;
            return false;
        }
        if (g == t) {
            kvp_obj_lose(&m->space, oid, KVP_CAUSE_LOST_SSD);
        } else if (g != NULL && g->tier == t) {
            o->is_on_tier = 0;
            kvp_record_again(&m->cat, oid);
        }
    }
    return t->ssd.purge_oid >= kvp_obj_limit(m->cat.index);
}

/* Purges a slice of a dropped segment. Returns true when the segment is empty and no put waits for a part of it. The
 * physical order of the extents does not change meanwhile, because its allocators free nothing. */
static bool
purge_slice(kvp_master_t *m, kvp_segment_t *g, uint32_t *left)
{
    if (!kvp_evict_leave_segment(&m->evict, g)) return false;
    for (; g->purge_chunk < g->chunk_n; g->purge_chunk++) {
        kvp_chunk_t *c = &g->chunks[g->purge_chunk];

        if (*left == 0) return false;
        --*left;
        if (c->slab != NULL && g->purge_slot == KVP_SLAB_NONE) g->purge_slot = kvp_slab_first(c->slab);
        while (g->purge_slot != KVP_SLAB_NONE) {
            if (*left == 0 || m->ctx.slice_left == 0) return false;
            --*left;
            purge_extent(m, c, g->purge_slot);
            g->purge_slot = kvp_slab_next(c->slab, g->purge_slot);
        }
        purge_chunk(m, c);
    }
    return true;
}

/* Marks the segment as slow while its node's answers to Retire orders are overdue. If new puts skip the segment, or
 * the segment is not UP, waiting puts give up their claims to space in the segment, and search other segments. */
static void
watch_node(kvp_master_t *m, kvp_segment_t *g, uint32_t *left)
{
    bool is_slow = g->state == KVP_SEG_UP && kvp_retire_is_late(&m->space, g->node);

    if (is_slow != g->is_slow) {
        g->is_slow = is_slow;
        m->cat.slow_n += is_slow ? 1 : UINT32_MAX;
        kvp_ctx_space_news(&m->ctx);
    }
    if (kvp_segment_is_passed_over(&m->cat, g) || g->state != KVP_SEG_UP) (void)kvp_evict_leave_segment(&m->evict, g);
    if (g->state != KVP_SEG_LOST && !kvp_segment_is_passed_over(&m->cat, g) && !kvp_victims_back(&m->prot, g, left))
        m->space.has_parked = true;
}

static bool
is_grace_over(const kvp_master_t *m, const kvp_segment_t *g)
{
    return m->ctx.now_ns - g->lost_ns >= m->ctx.conf.node_grace_ns + (m->ctx.stall_ns - g->lost_stall_ns);
}

void
kvp_lost_node_is_back(kvp_master_t *m, const char *name)
{
    for (uint32_t i = 0; i < KVP_LOST_NODES_MAX; i++)
        if (strcmp(m->lost_nodes[i].name, name) == 0) m->lost_nodes[i].name[0] = '\0';
}

static void
note_lost_node(kvp_master_t *m, const char *name)
{
    kvp_lost_node_t *lost = &m->lost_nodes[m->lost_nodes_at++ % KVP_LOST_NODES_MAX];

    snprintf(lost->name, sizeof lost->name, "%s", name);
    lost->dropped_ns = m->ctx.now_ns;
}

void
kvp_segment_tick(kvp_master_t *m)
{
    uint32_t left = m->ctx.slice_left / 2; /* a purged extent may cost as much as two records */

    m->space.has_parked = false;
    m->puts.is_leaving = false;
    kvp_list_foreach_safe (pos, tmp, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->report != NULL) {
            kvp_report_slice(m, g, &left);
            continue;
        }
        if (g->life != KVP_SEGMENT_DROPPED && !g->is_tier) watch_node(m, g, &left);
        if (g->life == KVP_SEGMENT_DROPPED) {
            if (!(g->is_tier ? purge_tier(m, g, &left) : purge_slice(m, g, &left))) continue;
            m->dropping--;
            kvp_report_free(m, g);
            kvp_segment_free(&m->space, g);
        } else if (g->state == KVP_SEG_LOST && !g->is_tier && is_grace_over(m, g)) {
            kvp_ctx_note(&m->ctx, "segment %s is dropped: its node did not come back", g->name);
            if (g->drain == NULL || g->objects > 0) note_lost_node(m, g->name);
            kvp_segment_drop(m, g);
        } else if (g->unmount_conn != 0 && (g->held == 0 || m->ctx.now_ns >= g->unmount_due_ns)) {
            kvp_segment_drop(m, g);
        }
    }
}
