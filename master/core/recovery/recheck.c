/* SPDX-License-Identifier: Apache-2.0
 * Compares a segment from the log with the state words that its node reports. The segment is served meanwhile: a reader
 * checks the state word itself.
 *
 * Design notes.
 * - A SEALED extent that is not in the log was never acknowledged, or was removed: its node makes it DEAD before a put
 *   is placed over it. Its state word is older than this term's grants, since puts are placed here only afterwards.
 * - An extent in the log that is not SEALED was retired by an order whose record was lost with the log's end, and no
 *   client has a promise about it. A later put at the place may be missing as well.
 * - If the log's end may be missing (a standby takes over), SEALED extents from the log's OLDEST generation on that are
 *   not in the log were committed since, or are being put: they are reported with descriptors and adopted (rebuild.c).
 *   They may overlap extents of the log that the node does not have: allocators are open until all words of the segment
 *   are reported.
 * - An earlier master may have granted the space between to a writer: it is retired as after any report (rebuild.c). */
#include "master/core/recovery/recheck.h"

#include "common/mutate.h"
#include "master/core/base/ptab.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/leaving.h"
#include "master/core/recovery/enter.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/state.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "proto/segfmt.h"

#define SLOTS_A_RECORD 16u /* examining this many slots costs as much of the budget as handling one record */

/* Returns true if the log has a copy with this generation in the slot. If an earlier master had begun to move the
 * object from there, the copy goes on leaving; one in a draining segment is the drain's. */
static bool
is_copy_at(kvp_master_t *m, const kvp_chunk_t *c, uint32_t slot, uint64_t generation)
{
    uint32_t oid = c->slab == NULL ? KVP_SLAB_NONE : kvp_slab_owner(c->slab, slot), at;
    kvp_place_t places[KVP_REPLICAS_MAX];
    const kvp_objext_t *ext;

    if (oid == KVP_SLAB_NONE) return false;
    ext = kvp_obj_ext(m->cat.index, kvp_obj(m->cat.index, oid));
    (void)kvp_obj_places(&m->cat, kvp_obj(m->cat.index, oid), places);
    at = kvp_place_at(places, c, slot);
    if (places[at].generation != generation) return false;
    if (ext != NULL && ext->leaving == generation && c->segment->drain == NULL)
        (void)kvp_leaving_begin(&m->prot, oid, &places[at], UINT64_MAX);
    return true;
}

bool
kvp_recheck_word(kvp_master_t *m, kvp_chunk_t *c, const kvp_wire_extent_t *told)
{
    uint64_t generation = kvp_word_generation(told->word);
    const kvp_retire_t *r;

    if (told->slot >= c->geo.slots_max || kvp_word_state(told->word) != KVP_DESC_SEALED) return false;
    r = kvp_retire_of(&m->space, c, told->slot);
    if (r != NULL && r->generation != generation) return false;
    if (r != NULL) {
        kvp_place_note_sealed(c, told->slot);
        return true;
    }
    if (!is_copy_at(m, c, told->slot, generation)) return !KVP_RULE(LOG_KNOWS);
    kvp_place_note_sealed(c, told->slot);
    return true;
}

static void
give_to_anybody(kvp_master_t *m, kvp_chunk_t *c)
{
    uint32_t i = 0;

    if (kvp_enter_chunk(m, c, 0)) return;
    while (kvp_ptab_get(&m->cat.tenants, i) == NULL)
        i++;
    kvp_place_chunk_take(&m->space, c, kvp_ptab_get(&m->cat.tenants, i));
}

/* Retires all free space of the chunk. Returns false if the budget is used up. */
static bool
take_rest(kvp_master_t *m, kvp_chunk_t *c, uint32_t *left)
{
    uint32_t slot;

    if (c->tenant == NULL) give_to_anybody(m, c); /* the chunk will be empty soon, so any tenant can be its owner */
    for (; kvp_slab_largest_free(c->slab) > 0; --*left) {
        if (*left == 0) return false;
        kvp_ctx_spend(&m->ctx, 1);
        (void)kvp_slab_take_free(c->slab, 0, &slot);
        kvp_retire_gap(&m->space, c, slot);
    }
    return true;
}

void
kvp_recheck_lose(kvp_master_t *m, kvp_chunk_t *c, uint32_t slot)
{
    kvp_retire_t *r;

    kvp_copy_lose(m, c, slot);
    if (!kvp_slab_is_open(c->slab)) return;
    r = kvp_retire_of(&m->space, c, slot);
    if (r != NULL) /* the node reported that the slot is not SEALED: its space is part of the unowned space */
        kvp_retire_void(&m->space, r);
}

kvp_err_t
kvp_recheck_close(kvp_master_t *m, kvp_chunk_t *c, uint32_t *slot, uint32_t *left)
{
    kvp_err_t err = KVP_OK;

    if (c->slab == NULL && kvp_slab_create(c->bytes, c->geo.slots_max, &c->slab) != KVP_OK)
        kvp_panic("out of memory: allocator of a chunk");
    for (uint32_t looked = 0; *slot < kvp_slab_slots_high(c->slab); ++*slot) {
        uint32_t owner = kvp_slab_owner(c->slab, *slot);

        if (*left == 0) return KVP_EAGAIN;
        *left -= ++looked % SLOTS_A_RECORD == 0;
        if (owner == KVP_SLAB_NONE || kvp_place_is_sealed(c, *slot)) continue;
        if ((owner & KVP_RETIRING_BIT) == 0) kvp_recheck_lose(m, c, *slot);
        /* a reported extent may lie in this space, so its retire record is freed; take_rest retires free space */
        else if (kvp_slab_is_open(c->slab))
            kvp_retire_void(&m->space, kvp_retire_of(&m->space, c, *slot));
    }
    if (kvp_slab_is_open(c->slab)) err = kvp_enter_close_chunk(c);
    if (err != KVP_OK) return err;
    if (!take_rest(m, c, left)) return KVP_EAGAIN;
    if (c->unclaimed == 0) kvp_place_forget_sealed(c);
    kvp_place_room_changed(c);
    kvp_place_memory_changed(&m->space, c);
    return KVP_OK;
}
