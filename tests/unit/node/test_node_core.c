/* SPDX-License-Identifier: Apache-2.0
 * The node's decisions: terms, fences, RETIRE, quiesce, quarantine. Descriptor words are an array here. */
#include "node/core/node.h"

#include "proto/segfmt.h"
#include "tests/cases.h"

#include <string.h>

#define CHUNKS 2u
#define SLOTS 64u
#define LAST_SLOTS 32u
#define SEGMENT 7u
#define TERM 3u
#define GEN(seq) kvp_gen_make(TERM, seq)

typedef struct {
    uint64_t words[CHUNKS][SLOTS];
    uint32_t limits[CHUNKS]; /* slots that were touched */
    kvp_desc_t descs[CHUNKS][SLOTS]; /* len 0 = broken */
    uint32_t fences;
    uint64_t raced; /* a store that another process makes between the next load and its cas; 0 = none */
    kvp_node_core_t *core;
} fixture_t;

static uint64_t
word_load(void *arg, uint32_t chunk, uint32_t slot)
{
    fixture_t *f = arg;
    uint64_t now = f->words[chunk][slot];

    if (f->raced != 0) f->words[chunk][slot] = f->raced;
    f->raced = 0;
    return now;
}

static bool
word_cas(void *arg, uint32_t chunk, uint32_t slot, uint64_t expect, uint64_t next)
{
    fixture_t *f = arg;

    if (f->words[chunk][slot] != expect) return false;
    f->words[chunk][slot] = next;
    return true;
}

static void
word_fence(void *arg)
{
    ((fixture_t *)arg)->fences++;
}

static uint32_t
word_limit(void *arg, uint32_t chunk)
{
    return ((fixture_t *)arg)->limits[chunk];
}

static bool
read_desc(void *arg, uint32_t chunk, uint32_t slot, kvp_desc_t *desc_out, uint8_t *key_out)
{
    fixture_t *f = arg;

    *desc_out = f->descs[chunk][slot];
    memset(key_out, (int)slot, desc_out->key_len);
    return desc_out->len != 0;
}

static const kvp_node_words_ops_t words = {
    .load = word_load, .cas = word_cas, .fence = word_fence, .limit = word_limit, .read = read_desc};

static int
setup(void **state)
{
    static fixture_t f;
    kvp_node_core_conf_t conf = {.words = &words, .words_arg = &f, .max_attachments = 4};

    memset(&f, 0, sizeof f);
    f.core = kvp_node_core_create(&conf);
    assert_non_null(f.core);
    assert_int_equal(kvp_node_core_see_term(f.core, TERM), KVP_OK);
    assert_int_equal(kvp_node_core_set_segment(f.core, CHUNKS, SLOTS, LAST_SLOTS), KVP_OK);
    kvp_node_core_set_id(f.core, SEGMENT);
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    kvp_node_core_destroy(((fixture_t *)*state)->core);
    return 0;
}

static kvp_err_t
fence_one(const fixture_t *f, uint32_t term, uint64_t incarnation, uint64_t live_min)
{
    return kvp_node_core_fence(f->core, term, kvp_idrange_one(incarnation), live_min);
}

static kvp_wire_slot_t
slot_of(uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t owner)
{
    return (kvp_wire_slot_t){.chunk = chunk, .slot = slot, .generation = generation, .owner = owner};
}

/* take_cuts obeys what is asked before a quiesce, and returns how many writers were named. */
static uint32_t
take_cuts(fixture_t *f, uint64_t *last_out)
{
    uint32_t n = 0;

    while (kvp_node_core_take_cut(f->core, last_out))
        n++;
    return n;
}

/* retire_one carries out a RETIRE of one extent whose quiesce is over at once, and returns what is answered. */
static uint8_t
retire_one(fixture_t *f, kvp_wire_slot_t slot)
{
    uint64_t round, writer;
    uint8_t flags;

    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, &slot, 1), KVP_OK);
    (void)take_cuts(f, &writer);
    while (kvp_node_core_take_quiesce(f->core, &round))
        kvp_node_core_quiesced(f->core, round);
    kvp_node_core_retire_answer(f->core, &flags, 1);
    return flags;
}

/* begin_retire does so up to the answer, and returns the quiesce that is under way then. */
static uint64_t
begin_retire(fixture_t *f, kvp_wire_slot_t slot)
{
    uint64_t round, writer;
    uint8_t flags;

    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, &slot, 1), KVP_OK);
    (void)take_cuts(f, &writer);
    assert_true(kvp_node_core_take_quiesce(f->core, &round));
    kvp_node_core_retire_answer(f->core, &flags, 1);
    assert_int_equal(flags, KVP_RETIRE_DEAD);
    return round;
}

static uint32_t
freed(fixture_t *f)
{
    kvp_wire_slot_t slots[SLOTS];

    return kvp_node_core_take_freed(f->core, slots, SLOTS);
}

static kvp_node_core_stats_t
stats(const fixture_t *f)
{
    kvp_node_core_stats_t s;

    kvp_node_core_stats(f->core, &s);
    return s;
}

/* A process and one attachment of it that has memory to write. */
typedef struct {
    kvp_node_proc_t proc;
    kvp_node_att_t att;
} writer_t;

static void
attach_writer(fixture_t *f, writer_t *w, uint64_t incarnation)
{
    kvp_node_proc_init(&w->proc);
    kvp_node_att_init(&w->att);
    assert_int_equal(kvp_node_core_attach(f->core, &w->att, incarnation, &w->proc), KVP_OK);
    assert_int_equal(kvp_node_core_open_write(f->core, &w->att), KVP_OK);
}

/* ---- words */
TEST_WITH(test_retire_makes_every_state_dead, setup, teardown)
{
    fixture_t *f = *state;
    const uint64_t before[] = {0, kvp_word_make(GEN(5), KVP_DESC_WRITING), kvp_word_make(GEN(5), KVP_DESC_SEALED),
                               kvp_word_make(GEN(5), KVP_DESC_DEAD), kvp_word_make(GEN(4), KVP_DESC_SEALED)};

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(before); i++) {
        f->words[1][i] = before[i];
        assert_int_equal(retire_one(f, slot_of(1, i, GEN(5), 0)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
        assert_int_equal(f->words[1][i], kvp_word_make(GEN(5), KVP_DESC_DEAD));
        /* A store of the old writer, however late, is lost. */
        assert_false(kvp_word_may_become(f->words[1][i], kvp_word_make(GEN(5), KVP_DESC_WRITING)));
        assert_false(kvp_word_may_become(f->words[1][i], kvp_word_make(GEN(5), KVP_DESC_SEALED)));
    }
    assert_int_equal(f->fences, KVP_ARRAY_LEN(before));
}

TEST_WITH(test_check_tells_what_no_reader_accepts, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_check_t sound = {
        .chunk = 1, .slot = 2, .generation = GEN(5), .version = GEN(4), .digest = {7, 8}, .offset = 4096, .len = 100};
    kvp_wire_check_t checks[10];
    uint8_t flags[10];

    f->descs[1][2] = (kvp_desc_t){.word = kvp_word_make(GEN(5), KVP_DESC_SEALED),
                                  .version = GEN(4),
                                  .digest = {7, 8},
                                  .offset = 4096,
                                  .len = 100};
    f->words[1][2] = f->descs[1][2].word;
    for (int i = 0; i < 10; i++)
        checks[i] = sound;
    checks[1].slot = 3;
    checks[2].generation++;
    checks[3].version++;
    checks[4].digest.hi++;
    checks[5].offset++;
    checks[6].len++;
    checks[7].chunk = CHUNKS;
    checks[8].slot = SLOTS;
    assert_int_equal(kvp_node_core_check(f->core, TERM, SEGMENT, checks, 10, flags), KVP_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(flags[i], i == 0 || i == 9 ? 0 : KVP_RETIRE_DEAD);
    for (int state_of = KVP_DESC_FREE; state_of <= KVP_DESC_DEAD; state_of++) {
        f->descs[1][2].word = kvp_word_make(GEN(5), (kvp_desc_state_t)state_of);
        assert_int_equal(kvp_node_core_check(f->core, TERM, SEGMENT, &sound, 1, flags), KVP_OK);
        assert_int_equal(flags[0], state_of == KVP_DESC_SEALED ? 0 : KVP_RETIRE_DEAD);
    }
    assert_int_equal(f->words[1][2], kvp_word_make(GEN(5), KVP_DESC_SEALED)); /* nothing is stored */
    assert_int_equal(kvp_node_core_check(f->core, TERM - 1, SEGMENT, &sound, 1, flags), KVP_STALE_TERM);
    assert_int_equal(kvp_node_core_check(f->core, TERM, SEGMENT + 1, &sound, 1, flags), KVP_NO_SEGMENT);
}

TEST_WITH(test_retire_leaves_a_newer_generation_alone, setup, teardown)
{
    fixture_t *f = *state;

    f->words[0][3] = kvp_word_make(GEN(9), KVP_DESC_SEALED);
    assert_int_equal(retire_one(f, slot_of(0, 3, GEN(8), 0)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    assert_int_equal(f->words[0][3], kvp_word_make(GEN(9), KVP_DESC_SEALED));
}

TEST_WITH(test_retire_wins_over_a_racing_seal, setup, teardown)
{
    fixture_t *f = *state;

    f->words[0][0] = kvp_word_make(GEN(2), KVP_DESC_WRITING);
    f->raced = kvp_word_make(GEN(2), KVP_DESC_SEALED);
    assert_int_equal(retire_one(f, slot_of(0, 0, GEN(2), 0)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    assert_int_equal(f->words[0][0], kvp_word_make(GEN(2), KVP_DESC_DEAD));
}

TEST_WITH(test_retire_out_of_range_does_nothing, setup, teardown)
{
    fixture_t *f = *state;
    const kvp_wire_slot_t bad[] = {
        slot_of(CHUNKS, 0, GEN(1), 0),
        slot_of(0, SLOTS, GEN(1), 0),
        slot_of(1, LAST_SLOTS, GEN(1), 0),
        slot_of(0, 0, UINT64_MAX, 0),
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        kvp_wire_slot_t both[] = {slot_of(0, 1, GEN(1), 0), bad[i]};
        assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, both, 2), KVP_INVALID);
    }
    assert_int_equal(f->words[0][1], 0);
    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT + 1, bad, 0), KVP_NO_SEGMENT);
}

/* ---- quiesce */
TEST_WITH(test_extent_is_free_only_after_a_quiesce_that_began_later, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t a = slot_of(0, 0, GEN(1), 0), b = slot_of(0, 1, GEN(2), 0), out;
    uint64_t first, second;

    first = begin_retire(f, a);

    /* b is stored while the first round is under way: that one says nothing about b. */
    second = begin_retire(f, b);
    kvp_node_core_quiesced(f->core, first);
    assert_int_equal(kvp_node_core_take_freed(f->core, &out, 1), 1);
    assert_int_equal(out.slot, a.slot);
    assert_int_equal(freed(f), 0);
    kvp_node_core_quiesced(f->core, second);
    assert_int_equal(kvp_node_core_take_freed(f->core, &out, 1), 1);
    assert_memory_equal(&out, &b, sizeof b);
    assert_false(kvp_node_core_take_quiesce(f->core, &first));
}

TEST_WITH(test_rounds_are_bounded_and_go_on_when_one_ends, setup, teardown)
{
    fixture_t *f = *state;
    uint64_t rounds[KVP_NODE_ROUNDS_MAX], more;
    uint8_t flags;

    for (uint32_t i = 0; i < KVP_NODE_ROUNDS_MAX + 2; i++) {
        kvp_wire_slot_t slot = slot_of(0, i, GEN(i + 1), 0);
        assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, &slot, 1), KVP_OK);
        assert_int_equal(kvp_node_core_take_quiesce(f->core, i < KVP_NODE_ROUNDS_MAX ? &rounds[i] : &more),
                         i < KVP_NODE_ROUNDS_MAX);
        kvp_node_core_retire_answer(f->core, &flags, 1);
    }
    kvp_node_core_quiesced(f->core, rounds[0]);
    assert_true(kvp_node_core_take_quiesce(f->core, &more));
    assert_int_equal(freed(f), 1);
    kvp_node_core_quiesced(f->core, more);
    assert_int_equal(freed(f), KVP_NODE_ROUNDS_MAX + 1);
    assert_int_equal(stats(f).quiescing, 0);
}

/* On paths that nobody guards, the end of the writer's connections is what a quiesce can vouch for. */
TEST_WITH(test_retire_cuts_writers_before_the_quiesce, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t slots[] = {slot_of(0, 0, GEN(1), 0), slot_of(0, 1, GEN(2), 70), slot_of(0, 2, GEN(3), 70),
                               slot_of(0, 3, GEN(4), KVP_OWNER_ANY), slot_of(0, 4, GEN(5), 71)};
    uint64_t writer, round;
    uint8_t flags[KVP_ARRAY_LEN(slots)];

    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, slots, 1), KVP_OK);
    assert_int_equal(take_cuts(f, &writer), 0);
    kvp_node_core_retire_answer(f->core, flags, 1);
    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, slots, KVP_ARRAY_LEN(slots)), KVP_OK);
    assert_false(kvp_node_core_take_quiesce(f->core, &round));
    assert_true(kvp_node_core_take_cut(f->core, &writer));
    assert_int_equal(writer, 71);
    assert_false(kvp_node_core_take_quiesce(f->core, &round));
    assert_int_equal(take_cuts(f, &writer), 1);
    assert_int_equal(writer, 70);
    assert_true(kvp_node_core_take_quiesce(f->core, &round));
    kvp_node_core_retire_answer(f->core, flags, KVP_ARRAY_LEN(slots));
    kvp_node_core_quiesced(f->core, round);
    assert_int_equal(freed(f), KVP_ARRAY_LEN(slots));
}

/* A RETIRE that was carried out while the memory goes is forgotten, and so is whom it would have cut. */
TEST_WITH(test_cuts_go_with_the_memory, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t slot = slot_of(0, 0, GEN(1), 70);
    uint64_t writer;

    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, &slot, 1), KVP_OK);
    kvp_node_core_drop_segment(f->core);
    assert_int_equal(take_cuts(f, &writer), 0);
}

/* ---- quarantine */
TEST_WITH(test_owner_without_shared_memory_needs_no_proof, setup, teardown)
{
    fixture_t *f = *state;
    kvp_node_att_t remote;
    writer_t reader;

    kvp_node_att_init(&remote);
    assert_int_equal(kvp_node_core_attach(f->core, &remote, 50, NULL), KVP_OK);
    assert_int_equal(kvp_node_core_open_write(f->core, &remote), KVP_INVALID);
    kvp_node_proc_init(&reader.proc);
    kvp_node_att_init(&reader.att);
    assert_int_equal(kvp_node_core_attach(f->core, &reader.att, 51, &reader.proc), KVP_OK);
    assert_int_equal(retire_one(f, slot_of(0, 0, GEN(1), 50)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    assert_int_equal(retire_one(f, slot_of(0, 1, GEN(1), 51)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    kvp_node_core_detach(f->core, &remote);
    kvp_node_core_detach(f->core, &reader.att);
    assert_ptr_equal(kvp_node_core_take_idle(f->core), &reader.proc);
}

TEST_WITH(test_quarantine_lasts_until_the_process_is_dead, setup, teardown)
{
    fixture_t *f = *state;
    writer_t w;

    attach_writer(f, &w, 60);
    assert_int_equal(retire_one(f, slot_of(0, 0, GEN(1), 60)), KVP_RETIRE_DEAD);
    assert_int_equal(retire_one(f, slot_of(0, 1, GEN(1), 61)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    assert_int_equal(stats(f).quarantined, 1);

    /* Neither the fence nor the end of the connection proves anything about a mapping. */
    assert_int_equal(fence_one(f, TERM, 60, 0), KVP_OK);
    assert_ptr_equal(kvp_node_core_take_close(f->core), &w.att);
    kvp_node_core_detach(f->core, &w.att);
    assert_null(kvp_node_core_take_idle(f->core));
    assert_int_equal(freed(f), 0);
    assert_int_equal(retire_one(f, slot_of(0, 2, GEN(1), 60)), KVP_RETIRE_DEAD);

    kvp_node_core_process_dead(f->core, &w.proc);
    assert_int_equal(freed(f), 2);
    assert_int_equal(stats(f).quarantined, 0);
    assert_ptr_equal(kvp_node_core_take_idle(f->core), &w.proc);
    assert_null(kvp_node_core_take_idle(f->core));
}

TEST_WITH(test_dead_process_cannot_become_a_writer, setup, teardown)
{
    fixture_t *f = *state;
    kvp_node_att_t late;
    writer_t w;

    attach_writer(f, &w, 60);
    kvp_node_core_process_dead(f->core, &w.proc);
    /* Its last requests may still lie in the socket. */
    assert_int_equal(kvp_node_core_open_write(f->core, &w.att), KVP_INVALID);
    kvp_node_att_init(&late);
    assert_int_equal(kvp_node_core_attach(f->core, &late, 60, &w.proc), KVP_INVALID);
    kvp_node_core_detach(f->core, &w.att);
    assert_ptr_equal(kvp_node_core_take_idle(f->core), &w.proc);
}

TEST_WITH(test_drained_is_believed_of_the_same_process_only, setup, teardown)
{
    fixture_t *f = *state;
    writer_t w, other;
    kvp_node_att_t again;

    attach_writer(f, &w, 60);
    attach_writer(f, &other, 70);
    assert_int_equal(retire_one(f, slot_of(0, 0, GEN(1), 60)), KVP_RETIRE_DEAD);
    kvp_node_core_detach(f->core, &w.att);

    assert_int_equal(kvp_node_core_drained(f->core, &other.att, 60), KVP_OK); /* of which that one has nothing */
    assert_int_equal(freed(f), 0);

    kvp_node_att_init(&again);
    assert_int_equal(kvp_node_core_attach(f->core, &again, 61, &w.proc), KVP_OK);
    assert_int_equal(kvp_node_core_drained(f->core, &again, 60), KVP_OK);
    assert_int_equal(freed(f), 1);
    assert_int_equal(retire_one(f, slot_of(0, 1, GEN(1), 60)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);

    kvp_node_core_detach(f->core, &again);
    assert_ptr_equal(kvp_node_core_take_idle(f->core), &w.proc);
    kvp_node_core_process_dead(f->core, &other.proc);
    kvp_node_core_detach(f->core, &other.att);
}

TEST_WITH(test_drained_ends_the_attachments_of_that_incarnation, setup, teardown)
{
    fixture_t *f = *state;
    kvp_node_att_t remote;
    writer_t w;

    attach_writer(f, &w, 60);
    assert_int_equal(kvp_node_core_drained(f->core, &w.att, 60), KVP_OK);
    assert_int_equal(kvp_node_core_open_write(f->core, &w.att), KVP_INVALID);
    assert_ptr_equal(kvp_node_core_take_close(f->core), &w.att);
    assert_null(kvp_node_core_take_close(f->core));
    kvp_node_core_detach(f->core, &w.att);
    assert_ptr_equal(kvp_node_core_take_idle(f->core), &w.proc);

    kvp_node_att_init(&remote);
    assert_int_equal(kvp_node_core_attach(f->core, &remote, 62, NULL), KVP_OK);
    assert_int_equal(kvp_node_core_drained(f->core, &remote, 62), KVP_INVALID);
    kvp_node_core_detach(f->core, &remote);
}

/* From this host or another one, of whichever process. */
TEST_WITH(test_last_attachment_of_an_incarnation_is_told, setup, teardown)
{
    fixture_t *f = *state;
    kvp_node_att_t remote, other, never;
    writer_t w;

    kvp_node_att_init(&remote);
    kvp_node_att_init(&other);
    kvp_node_att_init(&never);
    attach_writer(f, &w, 60);
    assert_int_equal(kvp_node_core_attach(f->core, &remote, 60, NULL), KVP_OK);
    assert_int_equal(kvp_node_core_attach(f->core, &other, 61, NULL), KVP_OK);
    assert_false(kvp_node_core_detach(f->core, &w.att));
    assert_false(kvp_node_core_detach(f->core, &w.att)); /* which is none any more */
    assert_true(kvp_node_core_detach(f->core, &other));
    assert_true(kvp_node_core_detach(f->core, &remote));
    assert_false(kvp_node_core_detach(f->core, &never));
    assert_int_equal(kvp_node_core_attach(f->core, &remote, 60, NULL), KVP_OK);
    assert_true(kvp_node_core_detach(f->core, &remote));
    kvp_node_core_process_dead(f->core, &w.proc);
}

TEST_WITH(test_incarnations_that_a_process_leaves_are_bounded, setup, teardown)
{
    fixture_t *f = *state;
    writer_t w;

    kvp_node_proc_init(&w.proc);
    kvp_node_att_init(&w.att);
    for (uint64_t i = 1; i <= KVP_NODE_LEFT_MAX; i++) {
        assert_int_equal(kvp_node_core_attach(f->core, &w.att, i, &w.proc), KVP_OK);
        assert_int_equal(kvp_node_core_open_write(f->core, &w.att), KVP_OK);
        kvp_node_core_detach(f->core, &w.att);
    }
    assert_int_equal(kvp_node_core_attach(f->core, &w.att, 5000, &w.proc), KVP_OK);
    assert_int_equal(kvp_node_core_open_write(f->core, &w.att), KVP_LIMIT);
    assert_int_equal(kvp_node_core_drained(f->core, &w.att, 1), KVP_OK);
    assert_int_equal(kvp_node_core_open_write(f->core, &w.att), KVP_OK);
    kvp_node_core_process_dead(f->core, &w.proc);
    kvp_node_core_detach(f->core, &w.att);
    assert_ptr_equal(kvp_node_core_take_idle(f->core), &w.proc);
}

/* The master has the word of that writer: the proof is awaited no longer, whether the quiesce is over or not. */
TEST_WITH(test_extent_asked_again_without_its_owner_is_freed, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t slot = slot_of(0, 1, GEN(1), 60);
    uint64_t round;
    uint8_t flags;
    writer_t w;

    attach_writer(f, &w, 60);
    assert_int_equal(retire_one(f, slot_of(0, 0, GEN(1), 60)), KVP_RETIRE_DEAD);
    round = begin_retire(f, slot);
    slot.owner = 0;
    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, &slot, 1), KVP_OK);
    kvp_node_core_retire_answer(f->core, &flags, 1);
    assert_int_equal(flags, KVP_RETIRE_DEAD);
    assert_int_equal(freed(f), 0);
    kvp_node_core_quiesced(f->core, round);
    assert_int_equal(freed(f), 1);

    assert_int_equal(stats(f).quarantined, 1);
    assert_int_equal(retire_one(f, slot_of(0, 0, GEN(1), 0)), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    assert_int_equal(stats(f).quarantined, 0);
    assert_int_equal(freed(f), 0); /* the answer has said it */
    kvp_node_core_process_dead(f->core, &w.proc);
    assert_int_equal(freed(f), 0);
    kvp_node_core_detach(f->core, &w.att);
}

/* ---- the master's connection */

TEST_WITH(test_many_extents_on_their_way, setup, teardown)
{
    fixture_t *f = *state;
    static uint8_t flags[SLOTS];
    kvp_wire_slot_t slots[SLOTS];
    writer_t w;

    attach_writer(f, &w, 60);
    /* Many generations of the same slots: more extents than slots are refused in the end, not kept. */
    for (uint64_t g = 1;; g++) {
        uint64_t round, writer;
        for (uint32_t i = 0; i < SLOTS; i++)
            slots[i] = slot_of(0, i, GEN(g), 60);
        if (kvp_node_core_retire(f->core, TERM, SEGMENT, slots, SLOTS) == KVP_LIMIT) break;
        assert_true(g < 10);
        assert_int_equal(take_cuts(f, &writer), 1);
        while (kvp_node_core_take_quiesce(f->core, &round))
            kvp_node_core_quiesced(f->core, round);
        kvp_node_core_retire_answer(f->core, flags, SLOTS);
    }
    assert_true(stats(f).quarantined > CHUNKS * SLOTS);
    kvp_node_core_process_dead(f->core, &w.proc);
    while (freed(f) > 0)
        continue;
    assert_int_equal(stats(f).quarantined, 0);
    kvp_node_core_detach(f->core, &w.att);
}

/* ---- terms and fences */
TEST_WITH(test_term_never_falls, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t slot = slot_of(0, 0, GEN(1), 0);
    uint8_t flags;

    assert_int_equal(kvp_node_core_see_term(f->core, TERM - 1), KVP_STALE_TERM);
    assert_int_equal(kvp_node_core_see_term(f->core, 0), KVP_INVALID);
    assert_int_equal(kvp_node_core_see_term(f->core, KVP_TERM_MAX + 1), KVP_INVALID);
    assert_int_equal(kvp_node_core_retire(f->core, TERM - 1, SEGMENT, &slot, 1), KVP_STALE_TERM);
    assert_int_equal(f->words[0][0], 0);
    assert_int_equal(fence_one(f, TERM - 1, 60, 50), KVP_STALE_TERM);
    assert_false(kvp_node_core_is_fenced(f->core, 60));
    assert_false(kvp_node_core_is_fenced(f->core, 1));

    /* An order of a higher term is obeyed, and those of the old one no more. */
    assert_int_equal(kvp_node_core_retire(f->core, TERM + 1, SEGMENT, &slot, 1), KVP_OK);
    kvp_node_core_retire_answer(f->core, &flags, 1);
    assert_int_equal(kvp_node_core_term(f->core), TERM + 1);
    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, &slot, 1), KVP_STALE_TERM);
    kvp_node_core_link_lost(f->core);
    kvp_node_core_drop_segment(f->core);
    assert_int_equal(kvp_node_core_term(f->core), TERM + 1);
}

TEST_WITH(test_fenced_and_older_clients_are_refused, setup, teardown)
{
    fixture_t *f = *state;
    kvp_node_att_t atts[3];

    for (uint64_t i = 0; i < 3; i++) {
        kvp_node_att_init(&atts[i]);
        assert_int_equal(kvp_node_core_attach(f->core, &atts[i], 10 * (i + 1), NULL), KVP_OK);
    }
    assert_int_equal(fence_one(f, TERM, 20, 0), KVP_OK);
    assert_ptr_equal(kvp_node_core_take_close(f->core), &atts[1]);
    assert_null(kvp_node_core_take_close(f->core));
    kvp_node_core_detach(f->core, &atts[1]);
    assert_int_equal(kvp_node_core_attach(f->core, &atts[1], 20, NULL), KVP_FENCED);

    assert_int_equal(fence_one(f, TERM, 40, 30), KVP_OK);
    assert_ptr_equal(kvp_node_core_take_close(f->core), &atts[0]);
    assert_null(kvp_node_core_take_close(f->core));
    assert_true(kvp_node_core_is_fenced(f->core, 29));
    assert_false(kvp_node_core_is_fenced(f->core, 30));
    assert_true(kvp_node_core_is_fenced(f->core, 40));
    assert_int_equal(fence_one(f, TERM, 0, 12), KVP_OK); /* live_min does not fall */
    assert_true(kvp_node_core_is_fenced(f->core, 29));
    /* What live_min covers is not listed. */
    assert_int_equal(kvp_node_core_fenced(f->core)->n, 1);
    kvp_node_core_detach(f->core, &atts[0]);
    kvp_node_core_detach(f->core, &atts[2]);
}

TEST_WITH(test_fences_in_any_order, setup, teardown)
{
    fixture_t *f = *state;

    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(fence_one(f, TERM, 1 + i * 77 % 211, 0), KVP_OK);
    for (uint64_t i = 0; i < 200; i++)
        assert_true(kvp_node_core_is_fenced(f->core, 1 + i * 77 % 211));
    assert_in_range(kvp_node_core_fenced(f->core)->n, 1, 12); /* 11 were left out */
    assert_int_equal(fence_one(f, TERM, 0, 1000), KVP_OK);
    assert_int_equal(kvp_node_core_fenced(f->core)->n, 0);
}

TEST_WITH(test_attachments_are_bounded, setup, teardown)
{
    fixture_t *f = *state;
    kvp_node_att_t atts[5];

    for (uint64_t i = 0; i < 5; i++) {
        kvp_node_att_init(&atts[i]);
        assert_int_equal(kvp_node_core_attach(f->core, &atts[i], i + 1, NULL), i < 4 ? KVP_OK : KVP_BUSY);
    }
    kvp_node_core_detach(f->core, &atts[4]);
    assert_int_equal(stats(f).attached, 4);
    assert_int_equal(stats(f).refused, 1);
    for (uint64_t i = 0; i < 4; i++)
        kvp_node_core_detach(f->core, &atts[i]);
    assert_int_equal(kvp_node_core_attach(f->core, &atts[0], 0, NULL), KVP_INVALID);
}

/* ---- reset */
TEST_WITH(test_dropped_memory_ends_quarantine_and_attachments, setup, teardown)
{
    fixture_t *f = *state;
    writer_t w;
    uint64_t round;
    kvp_wire_slot_t slot = slot_of(0, 5, GEN(1), 0);

    attach_writer(f, &w, 60);
    assert_int_equal(retire_one(f, slot_of(0, 0, GEN(1), 60)), KVP_RETIRE_DEAD);
    round = begin_retire(f, slot);

    kvp_node_core_drop_segment(f->core);
    assert_ptr_equal(kvp_node_core_take_close(f->core), &w.att);
    kvp_node_core_detach(f->core, &w.att);
    assert_ptr_equal(kvp_node_core_take_idle(f->core), &w.proc);
    kvp_node_core_quiesced(f->core, round); /* late, and of nothing */
    assert_int_equal(freed(f), 0);
    assert_int_equal(stats(f).quarantined, 0);
    assert_int_equal(stats(f).quiescing, 0);

    assert_int_equal(fence_one(f, TERM, 80, 0), KVP_OK);
    assert_int_equal(kvp_node_core_set_segment(f->core, 1, SLOTS, SLOTS), KVP_OK);
    kvp_node_core_set_id(f->core, SEGMENT + 1);
    assert_int_equal(kvp_node_core_retire(f->core, TERM, SEGMENT, &slot, 1), KVP_NO_SEGMENT);
    assert_true(kvp_node_core_is_fenced(f->core, 80));
    kvp_node_core_forget_pool(f->core);
    assert_false(kvp_node_core_is_fenced(f->core, 80));
    assert_int_equal(kvp_node_core_see_term(f->core, 1), KVP_OK);
}

/* ---- a term rises */
#define NEXT (TERM + 1)
#define OLD_CLIENT(n) (((uint64_t)TERM << KVP_INCARNATION_SEQ_BITS) + (n))

static void
seal_at(fixture_t *f, uint32_t chunk, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t len)
{
    f->words[chunk][slot] = kvp_word_make(generation, KVP_DESC_SEALED);
    f->descs[chunk][slot] = (kvp_desc_t){.version = generation, .offset = offset, .len = len, .key_len = 3};
    if (f->limits[chunk] <= slot) f->limits[chunk] = slot + 1;
}

static void
rise(fixture_t *f)
{
    uint64_t live_min;

    kvp_node_core_link_lost(f->core);
    assert_int_equal(kvp_node_core_see_term(f->core, NEXT), KVP_OK);
    assert_true(kvp_node_core_take_fence(f->core, &live_min));
    assert_int_equal(live_min, (uint64_t)NEXT << KVP_INCARNATION_SEQ_BITS);
    assert_false(kvp_node_core_take_fence(f->core, &live_min));
    kvp_node_core_set_id(f->core, SEGMENT);
}

static uint8_t
retire_any(fixture_t *f, uint32_t slot)
{
    kvp_wire_slot_t rec = slot_of(0, slot, kvp_gen_make(NEXT, 1 + slot), KVP_OWNER_ANY);
    uint64_t round;
    uint8_t flags;

    assert_int_equal(kvp_node_core_retire(f->core, NEXT, SEGMENT, &rec, 1), KVP_OK);
    while (kvp_node_core_take_quiesce(f->core, &round))
        kvp_node_core_quiesced(f->core, round);
    kvp_node_core_retire_answer(f->core, &flags, 1);
    return flags;
}

TEST_WITH(test_rising_term_revokes_what_is_not_sealed, setup, teardown)
{
    fixture_t *f = *state;
    const uint64_t dead = kvp_word_make(kvp_gen_make(NEXT, 0), KVP_DESC_DEAD);
    kvp_node_att_t att;

    kvp_node_att_init(&att);
    assert_int_equal(kvp_node_core_attach(f->core, &att, OLD_CLIENT(1), NULL), KVP_OK);
    seal_at(f, 0, 3, GEN(1), 0, 64);
    f->words[0][1] = kvp_word_make(GEN(2), KVP_DESC_WRITING);
    f->words[0][2] = kvp_word_make(GEN(2), KVP_DESC_DEAD);
    assert_int_equal(kvp_node_core_mounted_term(f->core), TERM);
    rise(f);
    assert_int_equal(f->words[0][3], kvp_word_make(GEN(1), KVP_DESC_SEALED));
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(f->words[0][i], dead);
    assert_int_equal(f->words[0][4], 0); /* beyond what was touched */
    assert_int_equal(stats(f).revoked, 1);
    assert_int_equal(f->fences, 1);
    assert_ptr_equal(kvp_node_core_take_close(f->core), &att);
    kvp_node_core_detach(f->core, &att);
    assert_int_equal(kvp_node_core_attach(f->core, &att, OLD_CLIENT(9), NULL), KVP_FENCED);
    /* The same term again changes nothing. */
    f->words[0][1] = kvp_word_make(kvp_gen_make(NEXT, 1), KVP_DESC_WRITING);
    assert_int_equal(kvp_node_core_see_term(f->core, NEXT), KVP_OK);
    assert_int_equal(f->words[0][1], kvp_word_make(kvp_gen_make(NEXT, 1), KVP_DESC_WRITING));
}

/* A higher term is obeyed when all was gone over, however many slices that takes; meanwhile neither term is. */
TEST_WITH(test_rising_term_is_obeyed_after_its_last_slice, setup, teardown)
{
    fixture_t *f = *state;
    const uint64_t dead = kvp_word_make(kvp_gen_make(NEXT, 0), KVP_DESC_DEAD);
    kvp_wire_slot_t rec = slot_of(0, 0, kvp_gen_make(NEXT, 1), 0);
    kvp_node_core_conf_t conf = {.words = &words, .words_arg = f, .max_attachments = 4, .sweep_slots = 2};
    kvp_node_core_t *whole = f->core;
    uint32_t slices = 2; /* the first, and the last */
    kvp_node_att_t att;

    f->core = kvp_node_core_create(&conf);
    assert_non_null(f->core);
    assert_int_equal(kvp_node_core_see_term(f->core, TERM), KVP_OK);
    assert_int_equal(kvp_node_core_set_segment(f->core, CHUNKS, SLOTS, LAST_SLOTS), KVP_OK);
    kvp_node_core_set_id(f->core, SEGMENT);
    kvp_node_att_init(&att);
    seal_at(f, 0, 4, GEN(1), 0, 64);
    seal_at(f, 1, 0, GEN(7), 0, 64);
    f->words[0][3] = kvp_word_make(GEN(2), KVP_DESC_WRITING);

    assert_int_equal(kvp_node_core_see_term(f->core, NEXT), KVP_EAGAIN);
    assert_int_equal(f->words[0][1], dead);
    assert_int_not_equal(f->words[0][3], dead);
    assert_int_equal(kvp_node_core_see_term(f->core, NEXT), KVP_EAGAIN);
    assert_int_equal(kvp_node_core_see_term(f->core, TERM), KVP_STALE_TERM);
    assert_int_equal(kvp_node_core_term(f->core), NEXT); /* what a master that lost its log is told */
    assert_int_equal(kvp_node_core_retire(f->core, NEXT, SEGMENT, &rec, 1), KVP_EAGAIN);
    assert_int_equal(fence_one(f, NEXT, 60, 0), KVP_EAGAIN);
    assert_int_equal(kvp_node_core_attach(f->core, &att, OLD_CLIENT(1), NULL), KVP_FENCED); /* that is so at once */
    assert_int_equal(kvp_node_core_attach(f->core, &att, ((uint64_t)NEXT << KVP_INCARNATION_SEQ_BITS) + 1, NULL),
                     KVP_BUSY);
    while (kvp_node_core_sweep(f->core))
        slices++;
    assert_int_equal(slices, 3); /* of six slots */
    assert_int_equal(f->words[0][3], dead);
    assert_int_equal(f->words[0][4], kvp_word_make(GEN(1), KVP_DESC_SEALED));
    assert_int_equal(f->words[1][0], kvp_word_make(GEN(7), KVP_DESC_SEALED));
    assert_int_equal(kvp_node_core_see_term(f->core, NEXT), KVP_OK);
    assert_int_equal(kvp_node_core_retire(f->core, NEXT, SEGMENT, &rec, 1), KVP_OK);

    /* A still higher one begins anew, wherever the one before had come to. */
    assert_int_equal(kvp_node_core_see_term(f->core, NEXT + 1), KVP_EAGAIN);
    assert_int_equal(kvp_node_core_see_term(f->core, NEXT + 2), KVP_EAGAIN);
    while (kvp_node_core_sweep(f->core))
        continue;
    assert_int_equal(kvp_node_core_see_term(f->core, NEXT + 1), KVP_STALE_TERM);
    assert_int_equal(f->words[0][0], kvp_word_make(kvp_gen_make(NEXT + 2, 0), KVP_DESC_DEAD));
    kvp_node_core_destroy(f->core);
    f->core = whole;
}

TEST_WITH(test_space_of_older_terms_waits_for_all_their_writers, setup, teardown)
{
    fixture_t *f = *state;
    writer_t a, b, fresh;

    attach_writer(f, &a, OLD_CLIENT(1));
    attach_writer(f, &b, OLD_CLIENT(2));
    rise(f);
    while (kvp_node_core_take_close(f->core) != NULL)
        continue;
    kvp_node_core_detach(f->core, &a.att);
    kvp_node_core_detach(f->core, &b.att);
    attach_writer(f, &fresh, ((uint64_t)NEXT << KVP_INCARNATION_SEQ_BITS) + 1); /* no writer of an earlier term */
    assert_int_equal(retire_any(f, 0), KVP_RETIRE_DEAD);
    kvp_node_core_process_dead(f->core, &a.proc);
    assert_int_equal(freed(f), 0);

    /* A grant in a slot that had never been touched is begun, and finished, only now. */
    f->words[0][7] = kvp_word_make(GEN(9), KVP_DESC_SEALED);
    f->words[0][8] = kvp_word_make(kvp_gen_make(NEXT, 5), KVP_DESC_WRITING);
    f->limits[0] = 9;
    kvp_node_core_process_dead(f->core, &b.proc);
    assert_int_equal(freed(f), 1);
    assert_int_equal(f->words[0][7], kvp_word_make(kvp_gen_make(NEXT, 0), KVP_DESC_DEAD));
    assert_int_equal(f->words[0][8], kvp_word_make(kvp_gen_make(NEXT, 5), KVP_DESC_WRITING));
    assert_int_equal(retire_any(f, 1), KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    kvp_node_core_process_dead(f->core, &fresh.proc);
    kvp_node_core_detach(f->core, &fresh.att);
    while (kvp_node_core_take_idle(f->core) != NULL)
        continue;
}

/* ---- REPORT */
static kvp_node_page_t
next_page(fixture_t *f, kvp_buf_t *tail)
{
    kvp_node_page_t page;

    kvp_buf_reset(tail);
    assert_int_equal(kvp_node_core_report_page(f->core, tail, &page), KVP_OK);
    return page;
}

TEST_WITH(test_report_is_sorted_and_keeps_the_newer_of_two, setup, teardown)
{
    fixture_t *f = *state;
    uint8_t keep[8] = {0}, refuse[8] = {KVP_RETIRE_DEAD};
    const kvp_wire_extent_t *rec;
    kvp_node_page_t page;
    kvp_buf_t tail;

    kvp_buf_init(&tail, 0);
    seal_at(f, 0, 5, GEN(1), 128, 64);
    seal_at(f, 0, 2, GEN(2), 256, 64);
    seal_at(f, 0, 3, GEN(3), 0, 100);
    seal_at(f, 0, 4, GEN(1), 64, 64); /* under the one before */
    seal_at(f, 0, 6, GEN(4), 300, 0); /* broken */
    seal_at(f, 1, 0, GEN(7), 0, 64);
    rise(f);
    assert_int_equal(kvp_node_core_report_page(f->core, &tail, &page), KVP_INVALID);
    assert_int_equal(kvp_node_core_report_begin(f->core, UINT64_MAX), KVP_OK);
    page = next_page(f, &tail);
    assert_int_equal(page.n, 3);
    assert_false(page.is_last);
    rec = (const kvp_wire_extent_t *)tail.data;
    assert_int_equal(rec[0].slot, 3);
    assert_int_equal(rec[1].slot, 5);
    assert_int_equal(rec[2].slot, 2);
    assert_int_equal(kvp_word_state(f->words[0][4]), KVP_DESC_DEAD);
    assert_int_equal(kvp_word_state(f->words[0][6]), KVP_DESC_DEAD);
    assert_int_equal(kvp_node_core_report_page(f->core, &tail, &page), KVP_INVALID); /* not answered */
    assert_int_equal(kvp_node_core_report_answer(f->core, keep, 2), KVP_PROTO);
    assert_int_equal(kvp_node_core_report_answer(f->core, refuse, 3), KVP_OK);
    assert_int_equal(kvp_word_state(f->words[0][3]), KVP_DESC_DEAD);
    assert_int_equal(kvp_word_state(f->words[0][5]), KVP_DESC_SEALED);
    page = next_page(f, &tail);
    assert_int_equal(page.n, 1);
    assert_false(page.is_last); /* its answer may be lost, and with it what is to be made DEAD */
    assert_int_equal(kvp_node_core_report_answer(f->core, refuse, 1), KVP_OK);
    assert_int_equal(kvp_word_state(f->words[1][0]), KVP_DESC_DEAD);
    page = next_page(f, &tail);
    assert_int_equal(page.n, 0);
    assert_true(page.is_last);
    assert_int_equal(kvp_node_core_report_answer(f->core, keep, 0), KVP_OK);
    kvp_node_core_link_lost(f->core);
    assert_int_equal(kvp_node_core_report_page(f->core, &tail, &page), KVP_INVALID);
    kvp_buf_fini(&tail);
}

/* ---- random histories against a model */
#define PROCS 3u
#define ATTS 2u /* a process */
#define INCARNATIONS 4u
#define STEPS 20000u

typedef struct {
    fixture_t *f;
    uint64_t seed;
    kvp_node_proc_t procs[PROCS];
    bool is_idle[PROCS]; /* the core has given it back */
    kvp_node_att_t atts[PROCS][ATTS];
    bool may_store[PROCS][INCARNATIONS];
    uint64_t generation;
    uint64_t rounds_begun;
    uint64_t rounds[KVP_NODE_ROUNDS_MAX]; /* running; 0 = none */
    uint64_t best_round; /* highest that is over */
    struct {
        uint64_t generation; /* 0 = not on its way */
        uint64_t round; /* the last one that began before its DEAD */
        uint64_t owner;
        uint32_t waits_for; /* processes, a bit each, that could store when it was retired */
    } extents[SLOTS];
} model_t;

static uint32_t
chance(model_t *m, uint32_t n)
{
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->seed >> 33) % n;
}

/* check_free: whatever the core calls free must be so in the model. */
static void
check_free(model_t *m, uint32_t slot, uint64_t generation)
{
    assert_int_equal(m->extents[slot].generation, generation);
    assert_true(m->extents[slot].round < m->best_round);
    assert_int_equal(m->extents[slot].waits_for, 0);
    m->extents[slot].generation = 0;
}

static void
prove(model_t *m, uint32_t p, uint64_t incarnation)
{
    m->may_store[p][incarnation] = false;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (m->extents[i].owner == incarnation) m->extents[i].waits_for &= ~(1u << p);
}

static void
collect(model_t *m)
{
    kvp_wire_slot_t slots[SLOTS];
    uint32_t n = kvp_node_core_take_freed(m->f->core, slots, SLOTS);
    kvp_node_proc_t *proc;
    kvp_node_att_t *att;

    for (uint32_t i = 0; i < n; i++)
        check_free(m, slots[i].slot, slots[i].generation);
    while ((att = kvp_node_core_take_close(m->f->core)) != NULL)
        kvp_node_core_detach(m->f->core, att);
    while ((proc = kvp_node_core_take_idle(m->f->core)) != NULL)
        m->is_idle[proc - m->procs] = true;
}

static void
step_attach(model_t *m)
{
    uint32_t p = chance(m, PROCS), incarnation = 1 + chance(m, INCARNATIONS - 1);
    kvp_node_att_t *att = &m->atts[p][chance(m, ATTS)];

    if (att->presence != NULL) {
        kvp_node_core_detach(m->f->core, att);
        return;
    }
    if (m->is_idle[p]) {
        kvp_node_proc_init(&m->procs[p]);
        memset(m->may_store[p], 0, sizeof m->may_store[p]);
    }
    if (kvp_node_core_attach(m->f->core, att, incarnation, &m->procs[p]) != KVP_OK) return;
    m->is_idle[p] = false;
    if (chance(m, 3) == 0) return;
    assert_int_equal(kvp_node_core_open_write(m->f->core, att), KVP_OK);
    m->may_store[p][incarnation] = true;
}

static void
step_prove(model_t *m)
{
    uint32_t p = chance(m, PROCS), incarnation = 1 + chance(m, INCARNATIONS - 1);
    kvp_node_att_t *att = &m->atts[p][0];

    if (att->presence != NULL && chance(m, 4) != 0) {
        if (kvp_node_core_drained(m->f->core, att, incarnation) == KVP_OK) prove(m, p, incarnation);
    } else if (!m->is_idle[p]) {
        kvp_node_core_process_dead(m->f->core, &m->procs[p]);
        for (uint64_t i = 0; i < INCARNATIONS; i++)
            prove(m, p, i);
        for (uint32_t i = 0; i < ATTS; i++)
            kvp_node_core_detach(m->f->core, &m->atts[p][i]);
    }
}

static void
end_a_round(model_t *m)
{
    uint64_t *round = &m->rounds[chance(m, KVP_NODE_ROUNDS_MAX)];

    if (*round == 0) return;
    m->best_round = *round > m->best_round ? *round : m->best_round;
    kvp_node_core_quiesced(m->f->core, *round);
    *round = 0;
}

static void
begin_rounds(model_t *m)
{
    uint64_t writer;

    (void)take_cuts(m->f, &writer);
    for (uint32_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
        if (m->rounds[i] != 0) continue;
        if (!kvp_node_core_take_quiesce(m->f->core, &m->rounds[i])) return;
        m->rounds_begun = m->rounds[i];
    }
}

/* One extent in a new generation, or one that is on its way asked for again. */
static void
step_retire(model_t *m)
{
    uint32_t slot = chance(m, SLOTS);
    kvp_wire_slot_t wire = slot_of(0, slot, m->extents[slot].generation, m->extents[slot].owner);
    uint8_t flags;

    if (wire.generation == 0) {
        wire = slot_of(0, slot, GEN(++m->generation), chance(m, INCARNATIONS));
        m->extents[slot].generation = wire.generation;
        m->extents[slot].round = m->rounds_begun;
        m->extents[slot].owner = wire.owner;
        m->extents[slot].waits_for = 0;
        for (uint32_t p = 0; wire.owner != 0 && p < PROCS; p++)
            m->extents[slot].waits_for |= (uint32_t)m->may_store[p][wire.owner] << p;
    }
    assert_int_equal(kvp_node_core_retire(m->f->core, TERM, SEGMENT, &wire, 1), KVP_OK);
    begin_rounds(m);
    if (chance(m, 2) == 0) end_a_round(m);
    kvp_node_core_retire_answer(m->f->core, &flags, 1);
    assert_true((flags & KVP_RETIRE_DEAD) != 0);
    if ((flags & KVP_RETIRE_FREE) != 0) check_free(m, slot, wire.generation);
}

static void
settle(model_t *m)
{
    for (uint32_t p = 0; p < PROCS; p++) {
        if (m->is_idle[p]) continue;
        kvp_node_core_process_dead(m->f->core, &m->procs[p]);
        for (uint64_t i = 0; i < INCARNATIONS; i++)
            prove(m, p, i);
        for (uint32_t i = 0; i < ATTS; i++)
            kvp_node_core_detach(m->f->core, &m->atts[p][i]);
    }
    for (uint32_t i = 0; i < 1000; i++) {
        begin_rounds(m);
        end_a_round(m);
    }
    collect(m);
}

TEST_WITH(test_random_histories_keep_the_rules, setup, teardown)
{
    static model_t m;

    m = (model_t){.f = *state, .seed = 20240607};
    for (uint32_t p = 0; p < PROCS; p++) {
        kvp_node_proc_init(&m.procs[p]);
        m.is_idle[p] = true;
        for (uint32_t i = 0; i < ATTS; i++)
            kvp_node_att_init(&m.atts[p][i]);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        switch (chance(&m, 8)) {
        case 0:
        case 1:
            step_attach(&m);
            break;
        case 2:
            if (chance(&m, 4) == 0) step_prove(&m);
            break;
        case 3:
            kvp_node_core_link_lost(m.f->core);
            kvp_node_core_set_id(m.f->core, SEGMENT);
            break;
        case 4:
            end_a_round(&m);
            begin_rounds(&m);
            break;
        default:
            step_retire(&m);
            break;
        }
        collect(&m);
    }
    settle(&m);
    /* Nothing is left once everybody is gone. */
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(m.extents[i].generation, 0);
    for (uint32_t p = 0; p < PROCS; p++)
        assert_true(m.is_idle[p]);
    assert_int_equal(stats(m.f).quarantined, 0);
    assert_int_equal(stats(m.f).quiescing, 0);
    assert_int_equal(stats(m.f).attached, 0);
    assert_true(m.generation > STEPS / 50);
}

/* ---- the next process */
/* A core that comes after f's, over the same words. */
static kvp_node_core_t *
next_core(fixture_t *f, kvp_buf_t *state)
{
    kvp_node_core_conf_t by = {.words = &words, .words_arg = f, .max_attachments = 4};
    kvp_node_core_t *next = kvp_node_core_create(&by);

    kvp_buf_init(state, 0);
    kvp_node_core_save(f->core, state);
    assert_int_equal(kvp_node_core_set_segment(next, CHUNKS, SLOTS, LAST_SLOTS), KVP_OK);
    assert_int_equal(kvp_node_core_restore(next, state->data, state->len), KVP_OK);
    return next;
}

static void
become(fixture_t *f, kvp_node_core_t *next, kvp_buf_t *state)
{
    kvp_node_core_restored(next);
    kvp_node_core_destroy(f->core);
    f->core = next;
    kvp_buf_fini(state);
}

TEST_WITH(test_next_process_knows_terms_fences_and_writers, setup, teardown)
{
    fixture_t *f = *state;
    uint64_t seq = (uint64_t)TERM << KVP_INCARNATION_SEQ_BITS;
    kvp_node_core_t *next;
    kvp_node_proc_t proc;
    kvp_node_att_t att;
    kvp_buf_t saved;
    writer_t w;

    (void)kvp_node_core_take_changed(f->core);
    attach_writer(f, &w, seq + 9);
    assert_false(kvp_node_core_take_changed(f->core));
    assert_int_equal(fence_one(f, TERM, seq + 20, seq + 5), KVP_OK);
    assert_true(kvp_node_core_take_changed(f->core));
    (void)kvp_node_core_detach(f->core, &w.att);
    next = next_core(f, &saved);
    kvp_node_core_process_dead(f->core, &w.proc);
    kvp_node_proc_init(&proc);
    kvp_node_att_init(&att);
    assert_int_equal(kvp_node_core_restore_writer(next, &proc, seq + 9), KVP_OK);
    assert_int_equal(kvp_node_core_restore_writer(next, &proc, seq + 9), KVP_OK);
    become(f, next, &saved);

    assert_int_equal(kvp_node_core_term(f->core), TERM);
    assert_int_equal(kvp_node_core_mounted_term(f->core), TERM);
    assert_int_equal(kvp_node_core_see_term(f->core, TERM - 1), KVP_STALE_TERM);
    assert_true(kvp_node_core_is_fenced(f->core, seq + 20) && kvp_node_core_is_fenced(f->core, seq + 4));
    assert_false(kvp_node_core_is_fenced(f->core, seq + 21) || kvp_node_core_is_fenced(f->core, seq + 5));
    kvp_node_core_set_id(f->core, SEGMENT);
    f->words[0][3] = kvp_word_make(GEN(5), KVP_DESC_WRITING);
    assert_int_equal(retire_one(f, slot_of(0, 3, GEN(5), seq + 9)), KVP_RETIRE_DEAD);
    assert_int_equal(freed(f), 0);
    /* It may attach again, and give its word. */
    assert_int_equal(kvp_node_core_attach(f->core, &att, seq + 9, &proc), KVP_OK);
    assert_int_equal(freed(f), 0);
    (void)kvp_node_core_detach(f->core, &att);
    kvp_node_core_process_dead(f->core, &proc);
    assert_int_equal(freed(f), 1);
}

static void
count_writer(void *arg, kvp_node_proc_t *proc, uint64_t incarnation)
{
    assert_non_null(proc);
    *(uint64_t *)arg += incarnation;
}

/* A term that was seen, and its sweep was under way: the next process goes over all again before it obeys, and the old
 * writers count. */
TEST_WITH(test_next_process_sweeps_for_the_term_that_was_seen, setup, teardown)
{
    fixture_t *f = *state;
    uint64_t old = ((uint64_t)TERM << KVP_INCARNATION_SEQ_BITS) + 1, sum = 0;
    kvp_node_core_conf_t slow = {.words = &words, .words_arg = f, .max_attachments = 4, .sweep_slots = 1};
    kvp_node_core_t *next;
    kvp_node_proc_t proc;
    kvp_buf_t saved;

    kvp_node_core_destroy(f->core);
    f->core = kvp_node_core_create(&slow);
    assert_int_equal(kvp_node_core_see_term(f->core, TERM), KVP_OK);
    assert_int_equal(kvp_node_core_set_segment(f->core, CHUNKS, SLOTS, LAST_SLOTS), KVP_OK);
    f->limits[0] = 10;
    f->words[0][8] = kvp_word_make(GEN(2), KVP_DESC_WRITING);
    f->words[0][9] = kvp_word_make(GEN(3), KVP_DESC_SEALED);
    assert_int_equal(kvp_node_core_see_term(f->core, TERM + 1), KVP_EAGAIN);
    next = next_core(f, &saved);
    kvp_node_proc_init(&proc);
    assert_int_equal(kvp_node_core_restore_writer(next, &proc, old), KVP_OK);
    become(f, next, &saved);
    assert_int_equal(kvp_node_core_term(f->core), TERM + 1);
    while (kvp_node_core_sweep(f->core))
        continue;
    assert_int_equal(f->words[0][8], kvp_word_make(kvp_gen_make(TERM + 1, 0), KVP_DESC_DEAD));
    assert_int_equal(f->words[0][9], kvp_word_make(GEN(3), KVP_DESC_SEALED));
    kvp_node_core_set_id(f->core, SEGMENT);
    kvp_node_core_each_writer(f->core, count_writer, &sum);
    assert_int_equal(sum, old);
    kvp_wire_slot_t gap = slot_of(0, 20, kvp_gen_make(TERM + 1, 7), KVP_OWNER_ANY);
    uint64_t round;
    uint8_t flags;
    assert_int_equal(kvp_node_core_retire(f->core, TERM + 1, SEGMENT, &gap, 1), KVP_OK);
    assert_true(kvp_node_core_take_quiesce(f->core, &round));
    kvp_node_core_quiesced(f->core, round);
    kvp_node_core_retire_answer(f->core, &flags, 1);
    assert_int_equal(flags, KVP_RETIRE_DEAD);
    kvp_node_core_process_dead(f->core, &proc);
    while (kvp_node_core_sweep(f->core))
        continue;
    assert_int_equal(freed(f), 1);
}

TEST_WITH(test_broken_state_is_not_restored, setup, teardown)
{
    fixture_t *f = *state;
    kvp_node_core_t *next;
    kvp_buf_t saved;
    uint64_t sealed, broken;

    assert_int_equal(fence_one(f, TERM, 77, 5), KVP_OK);
    next = next_core(f, &saved);
    for (size_t len = 0; len < saved.len; len++)
        assert_int_equal(kvp_node_core_restore(next, saved.data, len), KVP_PROTO);
    for (size_t at = 3; at < 20; at += 4) { /* terms, chunks */
        saved.data[at] ^= 0xff;
        assert_int_equal(kvp_node_core_restore(next, saved.data, saved.len), KVP_PROTO);
        saved.data[at] ^= 0xff;
    }
    memset(saved.data + 40, 0xff, 4); /* swept: more than there are slots */
    assert_int_equal(kvp_node_core_restore(next, saved.data, saved.len), KVP_PROTO);
    kvp_node_core_destroy(next);
    kvp_buf_fini(&saved);
    f->limits[1] = 4;
    f->words[1][0] = kvp_word_make(GEN(1), KVP_DESC_SEALED);
    f->descs[1][0].len = 1;
    f->words[1][1] = kvp_word_make(GEN(2), KVP_DESC_SEALED); /* with a descriptor that is broken */
    f->words[1][2] = kvp_word_make(kvp_gen_make(TERM + 1, 0), KVP_DESC_SEALED); /* of a term that was not yet */
    f->descs[1][2].len = 1;
    f->words[1][3] = kvp_word_make(GEN(4), KVP_DESC_WRITING);
    kvp_node_core_audit(f->core, &sealed, &broken);
    assert_int_equal(sealed, 3);
    assert_int_equal(broken, 2);
    assert_int_equal(f->words[1][0], kvp_word_make(GEN(1), KVP_DESC_SEALED));
    assert_int_equal(f->words[1][1], kvp_word_make(GEN(2), KVP_DESC_DEAD));
    assert_int_equal(kvp_word_state(f->words[1][2]), KVP_DESC_DEAD);
    assert_int_equal(f->words[1][3], kvp_word_make(GEN(4), KVP_DESC_WRITING));
}

TEST(test_what_is_no_copy_of_the_object)
{
    const char key[] = "key";
    const kvp_digest_t digest = {1, 2};
    const kvp_wire_copy_t rec = {.digest = digest,
                                 .version = 7,
                                 .len = 100,
                                 .sum = 11,
                                 .key_sum = kvp_sum(key, 3),
                                 .generation = 9,
                                 .offset = 4096,
                                 .key_off = 5,
                                 .key_len = 3};
    kvp_desc_t good = {.word = kvp_word_make(9, KVP_DESC_SEALED),
                       .version = 7,
                       .digest = digest,
                       .offset = 4096,
                       .len = 100,
                       .key_off = 5,
                       .key_len = 3};
    kvp_wire_copy_t no_sum = rec;
    kvp_desc_t bad;

    kvp_desc_seal(&good);
    assert_true(kvp_node_copy_is_good(&rec, &good, key, 11));
    assert_false(kvp_node_copy_is_good(&rec, &good, key, 12));
    assert_false(kvp_node_copy_is_good(&rec, &good, "kez", 11));
    no_sum.sum = 0;
    assert_true(kvp_node_copy_is_good(&no_sum, &good, key, 12));
#define BAD(field, value)                                                                                              \
    bad = good;                                                                                                        \
    bad.field = value;                                                                                                 \
    kvp_desc_seal(&bad);                                                                                               \
    assert_false(kvp_node_copy_is_good(&rec, &bad, key, 11))
    BAD(word, kvp_word_make(9, KVP_DESC_DEAD));
    BAD(word, kvp_word_make(9, KVP_DESC_WRITING));
    BAD(word, kvp_word_make(10, KVP_DESC_SEALED));
    BAD(version, 8);
    BAD(digest.hi, 3);
    BAD(offset, 0);
    BAD(len, 99);
    BAD(key_off, 6);
    BAD(key_len, 2);
#undef BAD
    bad = good;
    bad.tenant = 1; /* its second line is damaged */
    assert_false(kvp_node_copy_is_good(&rec, &bad, key, 11));
}

TEST_MAIN()
