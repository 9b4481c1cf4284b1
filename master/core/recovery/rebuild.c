/* SPDX-License-Identifier: Apache-2.0
 * Adopts memory that this master does not know: the node reports the SEALED extents, and the newest valid objects are
 * adopted. The segment counts as lost until the report is over: it serves no read and accepts no put.
 *
 * Design notes.
 * - Clients wrote the descriptors. A record that contradicts the key, the geometry or the order is refused, and its
 *   node makes it DEAD. Versions are generations, so the greatest version of a key is the newest, in any order of
 *   nodes, and extents of one version are copies.
 * - An earlier master may have granted the space between adopted extents to a writer that still lives. This space is
 *   retired under generations of this term, with the owner KVP_OWNER_ANY (any earlier writer): one more extent in
 *   quarantine.
 * - A refused extent stays SEALED until its node has read the answer. So the last page is empty: a node that sends it
 *   has carried out all answers, and no put is placed in the segment before.
 * - Pages are small, and the work that remains at the end is done in slices: no step is long, for any amount. */
#include "master/core/recovery/rebuild.h"

#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "common/recpool.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/slab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/journal.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/protect/lease.h"
#include "master/core/put/attempt.h"
#include "master/core/recovery/adopt.h"
#include "master/core/recovery/enter.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/recheck.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "master/core/space/drop.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_MAX 256u /* limit of the records in a page with descriptors */
#define PAGE_WORDS_MAX 1024u /* limit of the state words in a page of memory from the log */
#define KEY_OFFSET_BITS 40u /* number of bits for an offset in a chunk's area of long keys */
#define CLOSE_RECORDS 8u /* making a chunk's allocator costs as much of the budget as this many records */

/* A long key of an adopted object. Long keys come unordered: space is allocated when all of a chunk are known. */
typedef struct {
    kvp_heapnode_t node; /* heap entry in report->keys: by chunk, then by offset in the chunk's area of long keys */
    uint32_t number; /* number of this record in report->key_pool */
    uint32_t oid;
    uint32_t slot; /* slot of the object's extent */
    uint32_t bytes;
} long_key_t;

struct kvp_report {
    kvp_session_t *node;
    uint32_t chunk; /* chunk of the last adopted record */
    uint32_t closed; /* after the report's last page: number of chunks that are closed already */
    uint32_t slot; /* for memory from the log: next slot of the walk that compares it with the report */
    /* for memory from the log: objects from this generation on are reported with descriptors; 0 = none */
    uint64_t since;
    bool is_busy; /* flag: a page was received, and is answered after its deferred work */
    bool is_last; /* flag: this page is the report's last, so the report covers every chunk */
    kvp_frame_hdr_t ask; /* header of this page, for its answer */
    uint32_t ask_n;
    uint8_t verdicts[PAGE_WORDS_MAX]; /* the answer: for each record of the page 0, or KVP_RETIRE_DEAD */
    kvp_heap_t keys; /* heap of long keys whose space is not allocated yet */
    kvp_recpool_t key_pool;
};

/* ---- lifetime */
uint64_t
kvp_report_since(const kvp_segment_t *g)
{
    return g->report->since;
}

void
kvp_report_begin(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *node)
{
    const bool is_lacking = g->is_restored && m->log.is_lacking && kvp_gone_is_rebuilding(&m->prot);

    g->report = kvp_core_alloc(1, sizeof *g->report);
    g->report->node = node;
    if (is_lacking) g->report->since = KVP_RULE(OLDEST_KNOWN) ? kvp_max_u64(m->log.oldest, 1) : 1;
    kvp_recpool_init(&g->report->key_pool, sizeof(long_key_t), offsetof(long_key_t, oid), UINT32_MAX);
    m->reports++;
    m->peers.rebuilds += !g->is_restored;
}

void
kvp_report_free(kvp_master_t *m, kvp_segment_t *g)
{
    if (g->report == NULL) return;
    m->reports--;
    m->peers.rebuilds -= !g->is_restored;
    m->closing -= g->report->is_busy;
    kvp_heap_fini(&g->report->keys);
    kvp_place_free_pool_later(&m->space, &g->report->key_pool);
    free(g->report);
    g->report = NULL;
}

kvp_segment_t *
kvp_report_by(const kvp_master_t *m, const kvp_session_t *node)
{
    if (m->reports == 0) return NULL;
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->report != NULL && g->report->node == node) return g;
    }
    return NULL;
}

/* Discards an incomplete report and drops the segment: the next report starts from the beginning. */
static void
give_up(kvp_master_t *m, kvp_segment_t *g)
{
    kvp_report_free(m, g);
    kvp_segment_drop(m, g);
}

/* Returns the index of the memory in the list of interrupted reports; cut_n = it is not in the list. A node that has
 * sent its last page cannot know whether the page arrived, and so whether a put was placed in its memory: at the next
 * mount it states that a put is possible. With this list the master knows that none was placed. Memory that does not
 * fit in the list is created again, which is safe, but its objects are lost. */
static uint32_t
cut_at(const kvp_master_t *m, const uint8_t uuid[16])
{
    uint32_t i = 0;

    while (i < m->cut_n && memcmp(m->cut[i], uuid, sizeof m->cut[i]) != 0)
        i++;
    return i;
}

bool
kvp_report_was_cut(const kvp_master_t *m, const uint8_t uuid[16])
{
    return cut_at(m, uuid) < m->cut_n && KVP_RULE(REPORT_AGAIN);
}

static void
note_cut(kvp_master_t *m, const kvp_segment_t *g)
{
    uint32_t i = m->cut_n < KVP_CUT_REPORTS_MAX ? m->cut_n : m->cut_seq++ % KVP_CUT_REPORTS_MAX;

    if (kvp_report_was_cut(m, g->uuid)) return;
    memcpy(m->cut[i], g->uuid, sizeof m->cut[i]);
    if (i == m->cut_n) m->cut_n++;
}

static void
forget_cut(kvp_master_t *m, const kvp_segment_t *g)
{
    uint32_t i = cut_at(m, g->uuid);

    if (i < m->cut_n) memmove(m->cut[i], m->cut[--m->cut_n], sizeof m->cut[i]);
}

void
kvp_report_lost(kvp_master_t *m, const kvp_session_t *node)
{
    kvp_segment_t *g = kvp_report_by(m, node);

    if (g == NULL) return;
    if (g->is_restored) { /* memory from the log: the log has its objects, so they stay */
        kvp_report_free(m, g);
        return;
    }
    note_cut(m, g);
    give_up(m, g);
}

/* The node reported invalid or contradictory records: its memory must be created again. */
static void
spoil_segment(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *s, const char *why)
{
    memcpy(m->bad_reports[m->bad_reports_at++ % KVP_BAD_REPORTS_MAX], g->uuid, sizeof g->uuid);
    give_up(m, g);
    kvp_session_close(&m->peers, s, why);
}

/* ---- space to which an old writer might still write */
/* Retires the space from the chunk's tail up to `to` as a single extent, because the chunk may have no more slots
 * than were in use. */
static kvp_err_t
fill_unclaimed(kvp_master_t *m, kvp_chunk_t *c, uint64_t to)
{
    const uint64_t from = kvp_slab_tail(c->slab);
    kvp_err_t err = KVP_OK;
    uint32_t slot;

    if (from >= to) return KVP_OK;
    err = kvp_slab_adopt(c->slab, KVP_SLAB_NONE, from, to - from, 0, &slot);
    if (err == KVP_OK) kvp_retire_gap(&m->space, c, slot);
    return err;
}

/* Moves an unclaimed extent to another slot number, because a reported extent has this slot number. */
static kvp_err_t
evacuate_slot(const kvp_master_t *m, kvp_chunk_t *c, uint32_t slot)
{
    kvp_retire_t *r = kvp_retire_of(&m->space, c, slot);

    if (!kvp_slab_is_allocated(c->slab, slot)) return KVP_OK;
    if (r == NULL || r->owner != KVP_OWNER_ANY) return KVP_INVALID; /* the slot was reported twice */
    return kvp_slab_move(c->slab, slot, &r->slot);
}

/* ---- adopting one extent */
static bool
is_key_in_place(const kvp_chunk_t *c, const kvp_told_t *t)
{
    if (t->desc.key_len <= KVP_KEY_CELL_BYTES) return t->desc.key_off == kvp_key_cell_units(&c->geo, t->rec.slot);
    return (uint64_t)t->desc.key_off * 64 >= c->geo.long_keys_off;
}

static kvp_wire_group_t
group_of(const kvp_told_t *t)
{
    return (kvp_wire_group_t){t->desc.group, t->desc.group_n, t->desc.group_member};
}

/* Checks a reported record without the other records: its state, generation and version, its slot and extent against
 * the limits of its chunk, its group, and its key's place and hashes. */
static bool
is_sound(const kvp_master_t *m, const kvp_chunk_t *c, const kvp_told_t *t)
{
    const kvp_wire_group_t group = group_of(t);
    const kvp_desc_t *d = &t->desc;
    uint64_t extent = kvp_extent_bytes(d->len), generation = kvp_word_generation(t->rec.word);

    if (t->rec.slot >= c->geo.slots_max || kvp_word_state(t->rec.word) != KVP_DESC_SEALED) return false;
    if (generation == 0 || generation >= kvp_gen_make(m->ctx.term, 0) || d->version > generation) return false;
    if (d->offset % kvp_extent_align_bytes(d->len) != 0 || extent > c->bytes || d->offset > c->bytes - extent)
        return false;
    if (kvp_group_check_named(&group) != KVP_OK) return false;
    if (!is_key_in_place(c, t)) return false;
    return kvp_told_is_of_key(m, t);
}

/* Removes the copies of the key's object in memory that is being dropped, if the purge has not reached them yet. */
static void
shed_dropped(kvp_master_t *m, kvp_digest_t digest)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest), n;
    kvp_place_t places[KVP_REPLICAS_MAX];

    if (oid == KVP_OID_NONE || m->dropping == 0 || kvp_obj(m->cat.index, oid)->state != KVP_OBJ_COMMITTED) return;
    n = kvp_obj_places(&m->cat, kvp_obj(m->cat.index, oid), places);
    for (uint32_t i = n; i-- > 0;) {
        const kvp_chunk_t *c = kvp_place_chunk(&m->cat, &places[i]);

        if (c->segment->life == KVP_SEGMENT_DROPPED) kvp_copy_lose(m, c, places[i].slot);
    }
}

static bool
has_group_room(kvp_master_t *m, const kvp_tenant_t *tenant, const kvp_told_t *t)
{
    const kvp_wire_group_t group = group_of(t);
    uint32_t over = kvp_objindex_find(m->cat.index, t->desc.digest);

    return !kvp_group_is_named(&group) || kvp_group_may_adopt(&m->prot, tenant, &group, t->desc.version, over);
}

static void
note_long_key(kvp_report_t *r, const kvp_chunk_t *c, const kvp_told_t *t, uint32_t oid)
{
    uint64_t offset = (uint64_t)t->desc.key_off * 64 - c->geo.long_keys_off;
    uint32_t number;
    long_key_t *k;

    if (t->desc.key_len <= KVP_KEY_CELL_BYTES) return;
    number = kvp_recpool_take(&r->key_pool);
    if (number == KVP_RECPOOL_NONE) kvp_panic("out of memory: %u long keys", r->key_pool.n);
    k = kvp_recpool_at(&r->key_pool, number);
    *k = (long_key_t){
        .number = number,
        .oid = oid,
        .slot = t->rec.slot,
        .bytes = (uint32_t)kvp_extent_bytes(t->desc.key_len),
    };
    kvp_heap_add(&r->keys, &k->node, (uint64_t)c->index << KEY_OFFSET_BITS | offset);
}

static void
enter_copy(kvp_master_t *m, kvp_chunk_t *c, const kvp_told_t *t, const kvp_place_t *at, uint32_t oid)
{
    kvp_enter_copy(m, oid, at, t->desc.len);
    if (!c->segment->is_restored) note_long_key(c->segment->report, c, t, oid);
}

/* Makes the object a candidate for eviction. Until its segment is up, it is on the segment's list of parked objects,
 * from which it moves to the common list then. */
static void
list_parked(kvp_master_t *m, uint32_t oid)
{
    uint32_t unit = kvp_victim_unit(&m->cat, oid);
    const kvp_obj_t *o = kvp_obj(m->cat.index, unit);
    kvp_segment_t *g = kvp_obj_chunk(&m->cat, o)->segment;

    kvp_victim_used(&m->prot, unit);
    if (o->list != KVP_OBJLIST_LRU || g->report == NULL || g->is_restored) return;
    kvp_victim_removed(&m->prot, unit);
    kvp_objlist_push_young(m->cat.index, &g->parked, unit);
}

static void
adopt_in_group(kvp_master_t *m, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want)
{
    uint32_t old = kvp_group_displaced(&m->prot, t, want);

    if (old != KVP_OID_NONE) {
        kvp_revoke(t, kvp_obj_digest(m->cat.index, kvp_obj(m->cat.index, old), m->ctx.conf.digest_seed, t->id));
        kvp_obj_drop(&m->space, old, KVP_CAUSE_REPLACED, 0, NULL);
    }
    kvp_group_adopt(&m->prot, t, oid, want);
}

static void
enter_record(kvp_master_t *m, kvp_chunk_t *c, const kvp_told_t *t, const kvp_place_t *at)
{
    const kvp_wire_group_t group = group_of(t);
    kvp_attempt_t *replacement = kvp_told_make_way(m, t);
    uint32_t oid = kvp_enter_object(m, &t->desc, t->key, t->lineage);

    enter_copy(m, c, t, at, oid);
    if (kvp_group_is_named(&group)) adopt_in_group(m, c->tenant, oid, &group);
    list_parked(m, oid);
    kvp_record_commit(&m->cat, oid, t->desc.digest);
    if (replacement != NULL) kvp_attempt_stage(&m->cat, replacement, oid);
}

/* Allocates the reported extent after the earlier ones: unknown memory is reported by rising offset. */
static bool
place_behind(kvp_master_t *m, kvp_chunk_t *c, const kvp_told_t *t, kvp_place_t *at)
{
    if (fill_unclaimed(m, c, t->desc.offset) != KVP_OK || evacuate_slot(m, c, t->rec.slot) != KVP_OK) return false;
    return kvp_slab_adopt(c->slab, t->rec.slot, t->desc.offset, kvp_extent_bytes(t->desc.len), 0, &at->slot) == KVP_OK;
}

/* Allocates the reported extent among the extents of the log. A copy of the log in this slot is stale: drops it. */
static bool
place_among(kvp_master_t *m, kvp_chunk_t *c, const kvp_told_t *t, kvp_place_t *at)
{
    const kvp_jrec_place_t place = {
        .generation = at->generation,
        .offset = t->desc.offset,
        .chunk = c->index,
        .slot = t->rec.slot,
        .key_off = t->desc.key_off,
    };
    uint32_t owner = kvp_slab_owner(c->slab, t->rec.slot);

    if (!kvp_slab_is_open(c->slab)) return false;
    if (owner != KVP_SLAB_NONE && (owner & KVP_RETIRING_BIT) != 0)
        kvp_retire_void(&m->space, kvp_retire_of(&m->space, c, t->rec.slot));
    else if (owner != KVP_SLAB_NONE)
        kvp_recheck_lose(m, c, t->rec.slot);
    if (!kvp_enter_chunk(m, c, t->desc.tenant)) return false;
    return kvp_enter_place(c, &place, t->desc.len, t->desc.key_len, at) == KVP_OK;
}

static bool
adopt_record(kvp_master_t *m, kvp_chunk_t *c, const kvp_told_t *t)
{
    kvp_place_t at = {
        .chunk = c->number,
        .slot = t->rec.slot,
        .generation = kvp_word_generation(t->rec.word),
        .long_key_slot = KVP_SLAB_NONE,
    };
    const bool is_among = c->segment->is_restored;
    uint32_t joins;

    if (!is_sound(m, c, t) || (!is_among && t->desc.offset < kvp_slab_tail(c->slab))) return false;
    if (is_among) {
        kvp_enter_open_chunk(c, false);
        kvp_place_room_changed(c);
    }
    if (!kvp_enter_chunk(m, c, t->desc.tenant)) return false;
    shed_dropped(m, t->desc.digest);
    if (!kvp_told_is_wanted(m, c->segment, t, &joins)) return false;
    if (joins == KVP_OID_NONE && t->desc.version < m->log.oldest && KVP_RULE(OLDEST_KNOWN)) return false;
    if (joins == KVP_OID_NONE && !has_group_room(m, c->tenant, t)) return false;
    if (!(is_among ? place_among(m, c, t, &at) : place_behind(m, c, t, &at))) return false;
    kvp_place_note_sealed(c, at.slot);
    if (joins != KVP_OID_NONE) {
        bool was_in_memory = !kvp_obj_is_on_tier_alone(&m->cat, kvp_obj(m->cat.index, joins));

        enter_copy(m, c, t, &at, joins);
        if (!was_in_memory) list_parked(m, joins);
        kvp_record_again(&m->cat, joins);
    } else {
        enter_record(m, c, t, &at);
    }
    return true;
}

/* ---- finishing one chunk */
static void
open_chunk(kvp_chunk_t *c)
{
    if (c->slab == NULL && kvp_slab_create(c->bytes, c->geo.slots_max, &c->slab) != KVP_OK)
        kvp_panic("out of memory: allocator of a chunk");
}

/* Allocates the space of a long key. If its space overlaps the space of another key, the copy is dropped. */
static void
adopt_long_key(kvp_master_t *m, kvp_chunk_t *c, const long_key_t *k)
{
    uint64_t offset = k->node.key & ((1ull << KEY_OFFSET_BITS) - 1);
    uint32_t slot;

    if (c->long_keys == NULL && kvp_slab_create(c->geo.long_keys_bytes, c->geo.slots_max, &c->long_keys) != KVP_OK)
        kvp_panic("out of memory: allocator of long keys");
    if (kvp_slab_owner(c->slab, k->slot) != k->oid) return; /* the object was removed meanwhile */
    if (kvp_slab_adopt(c->long_keys, KVP_SLAB_NONE, offset, k->bytes, 0, &slot) == KVP_OK) {
        kvp_copy_set_long_key(&m->cat, k->oid, c, k->slot, slot);
        kvp_record_again(&m->cat, k->oid);
    } else {
        kvp_copy_lose(m, c, k->slot);
    }
}

/* Allocates the space of long keys in finished chunks. Returns false if the budget is used up before the end. */
static bool
adopt_long_keys(kvp_master_t *m, kvp_segment_t *g, uint32_t *left)
{
    kvp_report_t *r = g->report;
    kvp_heapnode_t *first;

    while ((first = kvp_heap_least(&r->keys)) != NULL) {
        long_key_t *k = kvp_heap_entry(first, long_key_t, node);
        uint32_t chunk = (uint32_t)(first->key >> KEY_OFFSET_BITS);

        if (chunk == r->chunk && !r->is_last) return true;
        if (*left == 0) return false;
        --*left;
        kvp_ctx_spend(&m->ctx, 1);
        kvp_heap_del(&r->keys, first);
        adopt_long_key(m, &g->chunks[chunk], k);
        kvp_recpool_give(&r->key_pool, k->number);
    }
    return true;
}

/* Retires the space after the last extent of a chunk, or the whole chunk if it has no extents. */
static kvp_err_t
close_chunk(kvp_master_t *m, kvp_chunk_t *c)
{
    kvp_err_t err;

    open_chunk(c);
    /* The default tenant becomes the owner of an empty chunk, because a retired extent needs one for a short time. */
    if (c->tenant == NULL && !kvp_enter_chunk(m, c, 0)) return KVP_LIMIT;
    err = fill_unclaimed(m, c, kvp_slab_region_bytes(c->slab));
    if (c->unclaimed == 0) kvp_place_forget_sealed(c);
    kvp_place_room_changed(c);
    return err;
}

/* ---- pages */
static bool
take_told(kvp_master_t *m, kvp_rd_t *rd, kvp_segment_t *g, const kvp_wire_extent_t *rec, kvp_told_t *t_out)
{
    const uint8_t *desc = kvp_rd_array(rd, sizeof(kvp_desc_t), 1);
    const kvp_chunk_t *c;

    if (rec == NULL || desc == NULL || rec->chunk >= g->chunk_n) return false;
    t_out->rec = *rec;
    memcpy(&t_out->desc, desc, sizeof t_out->desc);
    if (t_out->desc.key_len > KVP_KEY_MAX) return false;
    t_out->key = kvp_rd_array(rd, kvp_align_up(t_out->desc.key_len, 8), 1);
    if (t_out->key == NULL) return false;
    c = kvp_segment_chunk(&m->space, g, rec->chunk);
    /* A record with a wrong descriptor gets state word 0, not SEALED: it is refused, and the page stays valid. */
    if (t_out->desc.word != rec->word ||
        kvp_desc_verify(desc, sizeof t_out->desc, &c->geo, c->bytes, &t_out->desc) != KVP_OK)
        t_out->rec.word = 0;
    return true;
}

static void
note_name(kvp_master_t *m, const char *name)
{
    kvp_tenant_t *t = strlen(name) > KVP_TENANT_NAME_MAX ? NULL : kvp_tenant_find(&m->cat, kvp_tenant_id(name));

    if (t != NULL) kvp_enter_name(m, t, name);
}

/* Adopts the records of a page. Returns false if it breaks the protocol, or its chunks are not in rising order. */
static bool
take_page(kvp_master_t *m, kvp_segment_t *g, const Kvp__Pb__Report *msg, const kvp_frame_t *f)
{
    kvp_report_t *r = g->report;
    kvp_rd_t rd;
    kvp_told_t t = {.lineage = NULL};

    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (!msg->is_whole || msg->n > (msg->is_last ? 0 : PAGE_MAX)) return false;
    for (uint32_t i = 0; i < msg->n; i++) {
        if (!take_told(m, &rd, g, kvp_rd_array(&rd, 1, sizeof t.rec), &t) || t.rec.chunk < r->chunk) return false;
        if (r->chunk < t.rec.chunk) kvp_place_room_changed(kvp_segment_chunk(&m->space, g, r->chunk));
        r->chunk = t.rec.chunk;
        open_chunk(&g->chunks[r->chunk]);
        r->verdicts[i] = (uint8_t)(adopt_record(m, &g->chunks[r->chunk], &t) ? 0 : KVP_RETIRE_DEAD);
    }
    kvp_place_room_changed(kvp_segment_chunk(&m->space, g, r->chunk));
    note_name(m, msg->tenant);
    return true;
}

/* Checks a page for memory from the log: state words, and also the descriptors of objects that the log may lack. */
static bool
take_words(kvp_master_t *m, kvp_segment_t *g, const Kvp__Pb__Report *msg, const kvp_frame_t *f)
{
    const uint64_t since = g->report->since;
    const kvp_wire_extent_t *told;
    kvp_told_t t = {.lineage = NULL};
    kvp_rd_t rd;

    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg->is_whole || msg->n > (msg->is_last ? 0 : PAGE_WORDS_MAX)) return false;
    for (uint32_t i = 0; i < msg->n; i++) {
        told = kvp_rd_array(&rd, 1, sizeof *told);
        if (told == NULL || told->chunk >= g->chunk_n) return false;
        const bool is_whole = since > 0 && kvp_word_generation(told->word) >= since;
        kvp_chunk_t *c = kvp_segment_chunk(&m->space, g, told->chunk);

        if (is_whole && !take_told(m, &rd, g, told, &t)) return false;
        bool is_kept = kvp_recheck_word(m, c, told) || (is_whole && KVP_RULE(LACK_ADOPTED) && adopt_record(m, c, &t));
        g->report->verdicts[i] = (uint8_t)(is_kept ? 0 : KVP_RETIRE_DEAD);
    }
    return true;
}

static void
on_page(kvp_master_t *m, kvp_session_t *s, kvp_segment_t *g, const Kvp__Pb__Report *msg, const kvp_frame_t *f)
{
    kvp_report_t *r = g->report;
    uint32_t nothing_more = 0; /* a budget of 0: the page is answered at once if no long keys are left to adopt */

    if (r->is_busy || !(g->is_restored ? take_words(m, g, msg, f) : take_page(m, g, msg, f))) {
        spoil_segment(m, g, s, "a report that breaks the rules");
        return;
    }
    kvp_ctx_spend(&m->ctx, msg->n);
    r->is_busy = true;
    r->is_last = msg->is_last;
    r->ask = f->hdr;
    r->ask_n = msg->n;
    m->closing++;
    if (!r->is_last) kvp_report_slice(m, g, &nothing_more);
}

void
kvp_on_report(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    kvp_segment_t *g = kvp_report_by(m, s);
    Kvp__Pb__Report *msg;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__report__descriptor, f);
    if (msg == NULL)
        kvp_session_close(&m->peers, s, "malformed Report");
    else if (g == NULL || msg->uuid.len != sizeof g->uuid || memcmp(msg->uuid.data, g->uuid, sizeof g->uuid) != 0)
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_NO_SEGMENT, "no report was asked for");
    else
        on_page(m, s, g, msg, f);
    kvp_pb_free(&pb, msg);
}

/* After the last page of a node's report: closes the segment's chunks, which retires the space that no reported extent
 * has. Returns false if there is more to do, or if the report was invalid. */
static bool
close_chunks(kvp_master_t *m, kvp_segment_t *g, uint32_t *left)
{
    kvp_report_t *r = g->report;

    for (; r->closed < g->chunk_n; r->closed++) {
        kvp_chunk_t *c = kvp_segment_chunk(&m->space, g, r->closed);

        if (*left < CLOSE_RECORDS) return false;
        *left -= CLOSE_RECORDS;
        kvp_err_t err = g->is_restored ? kvp_recheck_close(m, c, &r->slot, left) : close_chunk(m, c);

        if (err == KVP_EAGAIN) return false;
        r->slot = 0;
        if (err == KVP_OK) continue;
        spoil_segment(m, g, r->node, "a report that leaves no slots");
        return false;
    }
    return true;
}

/* The comparison with the node's report is over: the segment is like any other segment now. */
static void
end_recheck(kvp_master_t *m, kvp_segment_t *g)
{
    g->is_restored = false;
    g->mounted_term = m->ctx.term;
    kvp_record_segment(&m->cat, g);
    for (uint32_t i = 0; i < g->chunk_n; i++)
        if (g->chunks[i].unclaimed == 0) kvp_place_forget_sealed(&g->chunks[i]);
    if (g->unmount_conn == 0) kvp_segment_set_state(&m->space, g, KVP_SEG_UP);
}

void
kvp_report_slice(kvp_master_t *m, kvp_segment_t *g, uint32_t *left)
{
    kvp_report_t *r = g->report;
    kvp_session_t *s = r->node;

    if (!r->is_busy || !adopt_long_keys(m, g, left)) return;
    if (!r->is_last) {
        r->is_busy = false;
        m->closing--;
        kvp_reply_results(&m->peers, s, &r->ask, r->verdicts, r->ask_n, sizeof *r->verdicts);
        return;
    }
    if (!close_chunks(m, g, left)) return;
    kvp_reply_results(&m->peers, s, &r->ask, NULL, 0, sizeof(uint8_t));
    kvp_report_free(m, g);
    forget_cut(m, g);
    m->space.unclaimed_due_ns = m->ctx.now_ns + KVP_UNCLAIMED_WAIT_NS;
    kvp_takeover_reported(&m->peers);
    if (g->is_restored)
        end_recheck(m, g);
    else
        kvp_segment_attach(&m->space, g, s, KVP_SEG_UP);
}
