/* SPDX-License-Identifier: Apache-2.0
 * Extents between "retired" and "free": DEAD is stored, and the extent waits for a quiesce that began afterwards, and
 * for the proof that its writer cannot store any more.
 *
 * Design notes. Rounds of quiesce overlap, up to KVP_NODE_ROUNDS_MAX, so that a send stuck for a second delays only the
 * extents that were retired before it ended. The end of a round is also the end of every earlier round: all sends that
 * began before the later round are over. A master that lost the connection asks again for missed answers, so extents
 * are found by their slot. */
#include "node/core/priv.h"

#include "common/mutate.h"
#include "proto/segfmt.h"

#include <stdlib.h>

#define BLOCK_EXTENTS 512u

typedef struct block {
    struct block *next;
    kvp_node_extent_t extents[BLOCK_EXTENTS];
} block_t;

static kvp_node_extent_t *
extent_of(kvp_list_t *link)
{
    return kvp_list_entry(link, kvp_node_extent_t, link);
}

static kvp_list_t *
table_at(const kvp_node_core_t *core, const kvp_wire_slot_t *slot)
{
    uint64_t h = ((uint64_t)slot->chunk << 32 | slot->slot) * 0x9E3779B97F4A7C15ull;

    return &core->table[h >> 32 & (core->table_n - 1)];
}

/* extent_find finds an extent on its way to free by its slot, except an extent that the current RETIRE has already
 * named. */
static kvp_node_extent_t *
extent_find(const kvp_node_core_t *core, const kvp_wire_slot_t *slot)
{
    kvp_list_foreach (link, table_at(core, slot)) {
        kvp_node_extent_t *e = kvp_list_entry(link, kvp_node_extent_t, of_slot);

        if (e->slot.chunk == slot->chunk && e->slot.slot == slot->slot && e->slot.generation == slot->generation &&
            e->is_answered)
            return e;
    }
    return NULL;
}

static bool
add_block(kvp_node_core_t *core)
{
    block_t *block = malloc(sizeof *block);

    if (block == NULL) return false;
    block->next = core->blocks;
    core->blocks = block;
    core->extents_cap += BLOCK_EXTENTS;
    for (size_t i = 0; i < BLOCK_EXTENTS; i++) {
        kvp_list_init(&block->extents[i].link);
        kvp_list_add_tail(&core->unused, &block->extents[i].link);
    }
    return true;
}

static bool
grow_table(kvp_node_core_t *core)
{
    uint64_t old_n = core->table_n;
    kvp_list_t *old = core->table;
    kvp_list_t *grown;

    if (old_n >= core->extents_cap) return true;
    core->table_n = old_n == 0 ? BLOCK_EXTENTS : old_n * 2;
    grown = malloc(core->table_n * sizeof *grown);
    if (grown == NULL) {
        core->table_n = old_n;
        return false;
    }
    core->table = grown;
    for (uint64_t i = 0; i < core->table_n; i++)
        kvp_list_init(&grown[i]);
    for (uint64_t i = 0; i < old_n; i++) {
        kvp_list_foreach_safe (link, next, &old[i]) {
            kvp_node_extent_t *e = kvp_list_entry(link, kvp_node_extent_t, of_slot);
            kvp_list_del(link);
            kvp_list_add_tail(table_at(core, &e->slot), link);
        }
    }
    free(old);
    return true;
}

/* Allocates all memory before anything is stored, so that a RETIRE is carried out completely or not at all. */
static kvp_err_t
reserve_room(kvp_node_core_t *core, uint32_t n)
{
    if (n > core->batch_cap) {
        kvp_node_extent_t **batch = realloc(core->batch, n * sizeof(*batch));

        if (batch == NULL) return KVP_NOMEM;
        core->batch = batch;
        core->batch_cap = n;
    }
    if (core->cuts_n + n > core->cuts_cap) {
        uint64_t *cuts = realloc(core->cuts, (core->cuts_n + n) * sizeof *cuts);

        if (cuts == NULL) return KVP_NOMEM;
        core->cuts = cuts;
        core->cuts_cap = core->cuts_n + n;
    }
    while (core->extents_cap - core->extents_n < n) {
        if (!add_block(core)) return KVP_NOMEM;
    }
    return grow_table(core) ? KVP_OK : KVP_NOMEM;
}

/* extent_take adds an extent to those on their way to free, in memory that reserve_room has allocated. */
static kvp_node_extent_t *
extent_take(kvp_node_core_t *core, const kvp_wire_slot_t *slot)
{
    kvp_node_extent_t *e = extent_of(core->unused.next);

    e->slot = *slot;
    e->round = core->rounds_begun + 1;
    e->is_quiesced = false;
    kvp_list_init(&e->of_owner);
    kvp_list_init(&e->of_slot);
    kvp_list_add_tail(table_at(core, slot), &e->of_slot);
    kvp_list_del(&e->link);
    kvp_list_add_tail(&core->quiescing, &e->link);
    core->extents_n++;
    core->stats.quiescing++;
    core->is_round_wanted = true;
    return e;
}

/* extent_move moves an extent to another list, and counts quarantined extents. */
static void
extent_move(kvp_node_core_t *core, kvp_node_extent_t *e, kvp_list_t *to)
{
    kvp_list_del(&e->link);
    kvp_list_add_tail(to, &e->link);
    if (to == &core->quarantined) core->stats.quarantined++;
}

static void
extent_release(kvp_node_core_t *core, kvp_node_extent_t *e)
{
    kvp_list_del(&e->of_owner);
    kvp_list_del(&e->of_slot);
    kvp_list_del(&e->link);
    kvp_list_add_head(&core->unused, &e->link);
    core->extents_n--;
}

static bool
is_free(const kvp_node_extent_t *e)
{
    return e->is_quiesced && kvp_list_is_empty(&e->of_owner);
}

static kvp_err_t
check_slots(const kvp_node_core_t *core, const kvp_wire_slot_t *slots, uint32_t n)
{
    uint64_t slots_all = (uint64_t)core->chunk_n * core->slots;

    for (uint32_t i = 0; i < n; i++) {
        if (slots[i].chunk >= core->chunk_n || slots[i].slot >= kvp_node_slots_of(core, slots[i].chunk))
            return KVP_INVALID;
        if (slots[i].generation > kvp_gen_make(KVP_TERM_MAX, KVP_GEN_SEQ_MAX)) return KVP_INVALID;
    }
    /* A correct master names each slot once, so more extents on their way to free than slots are the master's error. */
    return n > KVP_BATCH_MAX || core->extents_n > slots_all ? KVP_LIMIT : KVP_OK;
}

/* owner_of returns the owner whose proof the extent waits for; NULL = the extent needs no proof. */
static kvp_node_owner_t *
owner_of(kvp_node_core_t *core, const kvp_wire_slot_t *slot)
{
    if (!KVP_RULE(QUARANTINE)) return NULL;
    if (slot->owner == 0) return NULL;
    if (slot->owner == KVP_OWNER_ANY) return core->old_owners > 0 || core->is_late_due ? &core->any : NULL;
    return kvp_node_owner_find(core, slot->owner);
}

/* disown_extent ends an extent's wait for a proof, because the writer is proved to be over, or has itself stated that
 * it has no store under way there. */
static void
disown_extent(kvp_node_core_t *core, kvp_node_extent_t *e)
{
    if (kvp_list_is_empty(&e->of_owner)) return;
    kvp_list_del(&e->of_owner);
    if (!e->is_quiesced) return;
    core->stats.quarantined--;
    extent_move(core, e, &core->freed);
}

/* enter_extent adds a DEAD extent to the extents on their way to free, or finds it among them. */
static kvp_node_extent_t *
enter_extent(kvp_node_core_t *core, const kvp_wire_slot_t *slot)
{
    kvp_node_extent_t *e = extent_find(core, slot);
    kvp_node_owner_t *owner = owner_of(core, slot);

    if (e != NULL && slot->owner == 0) disown_extent(core, e);
    if (e == NULL) {
        e = extent_take(core, slot);
        if (owner != NULL) kvp_list_add_tail(&owner->waiting, &e->of_owner);
    }
    e->is_answered = false;
    return e;
}

/* want_cut records a writer whose connections must end. It compares with the last: a put's extents are adjacent. */
static void
want_cut(kvp_node_core_t *core, uint64_t owner)
{
    if (owner == 0 || owner == KVP_OWNER_ANY) return;
    if (core->cuts_n > 0 && core->cuts[core->cuts_n - 1] == owner) return;
    core->cuts[core->cuts_n++] = owner;
}

kvp_err_t
kvp_node_core_retire(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_slot_t *slots,
                     uint32_t n)
{
    kvp_err_t err = kvp_node_core_see_term(core, term);

    if (err != KVP_OK) return err;
    if (core->segment != KVP_NODE_SEGMENT_MOUNTED || segment_id != core->segment_id) return KVP_NO_SEGMENT;
    err = check_slots(core, slots, n);
    if (err != KVP_OK) return err;
    err = reserve_room(core, n);
    if (err != KVP_OK) return err;

    for (uint32_t i = 0; i < n; i++) {
        core->batch[i] = kvp_node_kill(core, slots[i].chunk, slots[i].slot, slots[i].generation)
                             ? enter_extent(core, &slots[i])
                             : NULL;
        want_cut(core, slots[i].owner);
    }
    core->conf.words->fence(core->conf.words_arg);
    core->batch_n = n;
    core->stats.retires += n;
    return KVP_OK;
}

void
kvp_node_core_retire_answer(kvp_node_core_t *core, uint8_t *flags, uint32_t n)
{
    if (n != core->batch_n) kvp_panic("node: answer for %u of %u extents", n, core->batch_n);
    for (uint32_t i = 0; i < n; i++) {
        kvp_node_extent_t *e = core->batch[i];

        flags[i] = KVP_RETIRE_DEAD;
        if (e != NULL && !is_free(e)) {
            e->is_answered = true;
            continue;
        }
        flags[i] |= KVP_RETIRE_FREE;
        core->stats.freed++;
        if (e != NULL) extent_release(core, e);
    }
    core->batch_n = 0;
}

/* ---- CHECK: extents that are committed but perhaps were never written */
static bool
is_readable(const kvp_node_core_t *core, const kvp_wire_check_t *c)
{
    kvp_expect_t expect = {
        .generation = c->generation, .version = c->version, .digest = c->digest, .offset = c->offset, .len = c->len};
    uint8_t key[KVP_KEY_MAX];
    kvp_desc_t desc;

    if (!KVP_RULE(CHECK_SOUND)) return false;
    if (c->chunk >= core->chunk_n || c->slot >= kvp_node_slots_of(core, c->chunk)) return false;
    if (!core->conf.words->read(core->conf.words_arg, c->chunk, c->slot, &desc, key)) return false;
    expect.key_hash2 = desc.key_hash2;
    return kvp_desc_accept(&desc, &expect) == KVP_OK;
}

kvp_err_t
kvp_node_core_check(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_check_t *checks,
                    uint32_t n, uint8_t *flags)
{
    kvp_err_t err = kvp_node_core_see_term(core, term);

    if (err != KVP_OK) return err;
    if (core->segment != KVP_NODE_SEGMENT_MOUNTED || segment_id != core->segment_id) return KVP_NO_SEGMENT;
    if (n > KVP_BATCH_MAX) return KVP_LIMIT;
    for (uint32_t i = 0; i < n; i++)
        flags[i] = (uint8_t)(is_readable(core, &checks[i]) ? 0 : KVP_RETIRE_DEAD);
    return KVP_OK;
}

bool
kvp_node_core_take_cut(kvp_node_core_t *core, uint64_t *incarnation_out)
{
    if (core->cuts_n == 0) return false;
    *incarnation_out = core->cuts[--core->cuts_n];
    return true;
}

bool
kvp_node_core_take_quiesce(kvp_node_core_t *core, uint64_t *round_out)
{
    if (!core->is_round_wanted || core->rounds_running == KVP_NODE_ROUNDS_MAX) return false;
    if (core->cuts_n > 0) return false;
    core->is_round_wanted = false;
    core->rounds_running++;
    *round_out = ++core->rounds_begun;
    return true;
}

void
kvp_node_core_quiesced(kvp_node_core_t *core, uint64_t round)
{
    core->rounds_running--;
    while (!kvp_list_is_empty(&core->quiescing)) {
        kvp_node_extent_t *e = extent_of(core->quiescing.next);

        if (e->round > round) break;
        e->is_quiesced = true;
        core->stats.quiescing--;
        extent_move(core, e, is_free(e) ? &core->freed : &core->quarantined);
    }
}

void
kvp_node_extents_proved(kvp_node_core_t *core, kvp_node_owner_t *owner)
{
    kvp_list_foreach_safe (link, next, &owner->waiting)
        disown_extent(core, kvp_list_entry(link, kvp_node_extent_t, of_owner));
}

uint32_t
kvp_node_core_take_freed(kvp_node_core_t *core, kvp_wire_slot_t *slots, uint32_t max)
{
    uint32_t n = 0;

    kvp_list_foreach_safe (link, next, &core->freed) {
        kvp_node_extent_t *e = extent_of(link);

        if (n == max) break;
        if (!e->is_answered) continue; /* left out: the answer to the open RETIRE reports this extent */
        slots[n++] = e->slot;
        extent_release(core, e);
    }
    core->stats.freed += n;
    return n;
}

static void
drop_list(kvp_node_core_t *core, kvp_list_t *list)
{
    while (!kvp_list_is_empty(list))
        extent_release(core, extent_of(list->next));
}

void
kvp_node_extents_drop(kvp_node_core_t *core)
{
    drop_list(core, &core->quiescing);
    drop_list(core, &core->quarantined);
    drop_list(core, &core->freed);
    core->stats.quiescing = 0;
    core->stats.quarantined = 0;
    core->is_round_wanted = false;
    core->batch_n = 0;
    core->cuts_n = 0;
}

void
kvp_node_extents_fini(kvp_node_core_t *core)
{
    kvp_node_extents_drop(core);
    while (core->blocks != NULL) {
        block_t *block = core->blocks;

        core->blocks = block->next;
        free(block);
    }
    free(core->batch);
    free(core->cuts);
    free(core->table);
}
