/* SPDX-License-Identifier: Apache-2.0
 * The index against a naive one: random events of several publishers, media and groups, and after some of them
 * questions about random prompts. Prompts are paths in a small tree, so that publishers share beginnings. */
#include "conductor/events/apply.h"
#include "conductor/index/chain.h"
#include "conductor/index/match.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4u
#define DEPTH 10u
#define WAYS 3u /* children of a block */
#define PUBLISHERS 5u /* of three instances */
#define MEDIA 3u
#define GROUPS 2u

static const char *const media[MEDIA] = {"GPU", "cpu", "Disk"};
static const char *const shown[MEDIA] = {"GPU", "CPU", "DISK"};

/* A place in a prompt: which child at each depth. */
typedef struct {
    uint8_t way[DEPTH];
    uint32_t n;
} path_t;

/* The naive one: counts of each place by its number in base WAYS + 1. */
#define PLACES 1048576u
typedef struct {
    uint16_t count[MEDIA][GROUPS][PLACES];
    uint8_t is_known[PLACES]; /* it was told where its hash stands */
} naive_t;

typedef struct {
    uint64_t rng;
    kvp_epoch_t epoch;
    kvp_index_t *ix;
    kvp_spaces_t *spaces;
    kvp_match_scratch_t *scratch;
    kvp_roster_t *roster;
    kvp_view_t *views[PUBLISHERS];
    kvp_applier_t appliers[PUBLISHERS];
    naive_t *naive[PUBLISHERS];
} rig_t;

static uint64_t
draw(rig_t *g, uint64_t n)
{
    g->rng += 0x9e3779b97f4a7c15ull;
    uint64_t z = g->rng;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (z ^ z >> 31) % n;
}

static uint32_t
place_of(const path_t *p, uint32_t n)
{
    uint32_t number = 0;

    for (uint32_t i = 0; i < n; i++)
        number = number * (WAYS + 1) + p->way[i] + 1;
    return number % PLACES;
}

/* The engine's own hash: whatever it is, a place has one. */
static uint64_t
engine_hash(uint32_t publisher, uint32_t place)
{
    return (publisher + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)place * 0xff51afd7ed558ccdull;
}

static void
tokens_of(const path_t *p, uint32_t from, uint32_t to, uint32_t *tokens)
{
    for (uint32_t i = from; i < to; i++)
        for (uint32_t k = 0; k < BLOCK; k++)
            tokens[(i - from) * BLOCK + k] = i * 100 + p->way[i] * 10 + k;
}

static path_t
some_path(rig_t *g)
{
    path_t p = {.n = (uint32_t)(1 + draw(g, DEPTH))};

    for (uint32_t i = 0; i < p.n; i++)
        p.way[i] = (uint8_t)(draw(g, 4) == 0 ? 1 + draw(g, WAYS - 1) : 0);
    return p;
}

/* ---- events */
static void
event(rig_t *g)
{
    const uint32_t who = (uint32_t)draw(g, PUBLISHERS), m = (uint32_t)draw(g, MEDIA), group = (uint32_t)draw(g, GROUPS);
    const path_t p = some_path(g);
    const uint32_t from = (uint32_t)draw(g, p.n);
    uint32_t tokens[DEPTH * BLOCK];
    uint64_t hashes[DEPTH];
    naive_t *naive = g->naive[who];
    kvp_event_t ev = {.hashes = hashes, .group = group, .medium = {media[m], strlen(media[m])}, .tells_salt = true};

    for (uint32_t i = from; i < p.n; i++)
        hashes[i - from] = engine_hash(who, place_of(&p, i + 1));
    ev.n = ev.outside_from = p.n - from;
    if (draw(g, 400) == 0) {
        ev.kind = KVP_EVENT_CLEARED;
        memset(naive->count[0], 0, sizeof naive->count[0]);
    } else if (draw(g, 600) == 0) {
        kvp_events_drop(&g->appliers[who]);
        memset(naive->count, 0, sizeof naive->count);
        return;
    } else if (draw(g, 5) < 2) {
        ev.kind = KVP_EVENT_REMOVED;
        for (uint32_t i = from; i < p.n; i++) {
            uint16_t *count = &naive->count[m][group][place_of(&p, i + 1)];

            if (*count > 0) --*count;
        }
    } else {
        ev.kind = KVP_EVENT_STORED;
        ev.has_parent = from > 0;
        ev.parent = from > 0 ? engine_hash(who, place_of(&p, from)) : 0;
        tokens_of(&p, from, p.n, tokens);
        ev.tokens = tokens;
        ev.tokens_n = (p.n - from) * BLOCK;
        for (uint32_t i = from; i < p.n && (from == 0 || naive->is_known[place_of(&p, from)]); i++) {
            naive->count[m][group][place_of(&p, i + 1)]++;
            naive->is_known[place_of(&p, i + 1)] = 1;
        }
    }
    kvp_events_apply_one(&g->appliers[who], &ev);
}

/* ---- questions */
static bool
has(const naive_t *naive, uint32_t m, uint32_t place)
{
    return naive->count[m][0][place] > 0 || naive->count[m][1][place] > 0;
}

static void
check_answer(const naive_t *naive, const path_t *p, const kvp_answer_t *a)
{
    uint32_t run = 0, of[MEDIA] = {0};

    while (run < p->n && (has(naive, 0, place_of(p, run + 1)) || has(naive, 1, place_of(p, run + 1)) ||
                          has(naive, 2, place_of(p, run + 1))))
        run++;
    for (uint32_t m = 0; m < MEDIA; m++)
        while (of[m] < p->n && has(naive, m, place_of(p, of[m] + 1)))
            of[m]++;
    assert_int_equal(a->run, run);
    for (uint32_t m = 0; m < MEDIA; m++)
        for (uint32_t i = 0; i < a->media_n; i++)
            if (strcmp(a->media[i].name, shown[m]) == 0) assert_int_equal(a->media[i].run, of[m]);
}

static void
question(rig_t *g)
{
    const path_t p = some_path(g);
    const kvp_namespace_t space = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = BLOCK};
    uint32_t tokens[DEPTH * BLOCK], n;
    uint64_t hashes[DEPTH];
    kvp_question_t q = {.tenant = "t", .model = "m", .block_size = BLOCK, .hashes = hashes, .n = p.n};
    const kvp_answer_t *answers;

    tokens_of(&p, 0, p.n, tokens);
    for (uint32_t i = 0; i < p.n; i++)
        hashes[i] = kvp_chain_next(i == 0 ? NULL : &hashes[i - 1], tokens + i * BLOCK, BLOCK, 7);
    q.space = kvp_spaces_find(g->spaces, &space);
    kvp_epoch_reader_t *reader = kvp_epoch_enter(&g->epoch);
    assert_true(kvp_match(g->ix, g->roster, &q, g->scratch, &answers, &n));
    assert_int_equal(n, PUBLISHERS);
    for (uint32_t i = 0; i < n; i++)
        check_answer(g->naive[i], &p, &answers[i]);
    kvp_epoch_leave(reader);
}

static void
open_rig(rig_t *g, uint64_t seed)
{
    static const char *const instances[PUBLISHERS] = {"a", "a", "b", "b", "c"};
    const kvp_namespace_t terms = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = BLOCK};

    memset(g, 0, sizeof *g);
    g->rng = seed;
    kvp_epoch_init(&g->epoch);
    g->spaces = kvp_spaces_create(&g->epoch);
    g->ix = kvp_index_create(&g->epoch, g->spaces, seed, 1 << 20);
    assert_int_equal(kvp_spaces_name(g->spaces, &(kvp_namespace_t){"m", "t", "", "", BLOCK}), 0);
    g->scratch = kvp_scratch_create();
    g->roster = calloc(1, sizeof *g->roster + PUBLISHERS * sizeof(kvp_roster_row_t));
    g->roster->n = PUBLISHERS;
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        g->views[i] = kvp_view_create(g->ix, seed, 1 << 20);
        g->naive[i] = calloc(1, sizeof(naive_t));
        kvp_applier_init(&g->appliers[i], g->ix, g->spaces, g->views[i], &terms, 0, 7);
        g->roster->members[i] =
            (kvp_roster_row_t){instances[i], "t", "m", BLOCK, i, g->views[i], "", "", "", 0, {NULL}};
    }
}

static void
close_rig(rig_t *g)
{
    kvp_index_stats_t stats;

    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        kvp_applier_fini(&g->appliers[i]);
        kvp_view_destroy(g->views[i]);
        free(g->naive[i]);
    }
    kvp_index_stats(g->ix, &stats);
    assert_int_equal(stats.blocks, 0);
    kvp_epoch_fini(&g->epoch);
    kvp_index_destroy(g->ix);
    kvp_spaces_destroy(g->spaces);
    kvp_scratch_destroy(g->scratch);
    free(g->roster);
}

TEST(test_random_events_and_questions)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        rig_t g;

        open_rig(&g, seed);
        for (uint32_t i = 0; i < 100000; i++) {
            event(&g);
            if (draw(&g, 3) == 0) question(&g);
            if (draw(&g, 50) == 0) (void)kvp_view_sweep(g.views[draw(&g, PUBLISHERS)], 100);
            if (draw(&g, 20) == 0) kvp_epoch_collect(&g.epoch);
        }
        close_rig(&g);
    }
}

/* ---- the standard's events, each of which names its place in another way, parents before and after their children */
typedef struct {
    uint8_t is_told[PLACES], is_based[PLACES], is_held[PLACES]; /* is_based: an event told the depth */
    uint64_t id;
} standard_t;

static bool
has_depth(const standard_t *m, const path_t *p, uint32_t n)
{
    while (n > 1 && m->is_told[place_of(p, n)] && !m->is_based[place_of(p, n)])
        n--;
    return m->is_told[place_of(p, n)] && m->is_based[place_of(p, n)];
}

static void
hashes_of(const path_t *p, uint64_t hashes[DEPTH])
{
    uint32_t tokens[DEPTH * BLOCK];

    tokens_of(p, 0, p->n, tokens);
    for (uint32_t i = 0; i < p->n; i++)
        hashes[i] = kvp_chain_next(i == 0 ? NULL : &hashes[i - 1], tokens + i * BLOCK, BLOCK, 7);
}

static void
standard_event(rig_t *g, standard_t *m)
{
    const path_t p = some_path(g);
    const uint32_t from = (uint32_t)draw(g, p.n), form = (uint32_t)draw(g, 4);
    const bool is_removal = draw(g, 3) == 0;
    uint32_t tokens[DEPTH * BLOCK];
    uint64_t hashes[DEPTH];
    kvp_event_t ev = {.kind = is_removal ? KVP_EVENT_REMOVED : KVP_EVENT_STORED,
                      .is_standard = true,
                      .event_id = ++m->id,
                      .hashes = hashes + from,
                      .n = p.n - from,
                      .outside_from = p.n - from,
                      .has_parent = form > 0 && from > 0,
                      .base = form < 2 || from == 0 ? from : KVP_DEPTH_UNKNOWN,
                      .medium = {"cpu", 3}};

    hashes_of(&p, hashes);
    if (ev.has_parent) ev.parent = hashes[from - 1];
    if (draw(g, 2) == 0) {
        tokens_of(&p, from, p.n, tokens);
        ev.tokens = tokens;
        ev.tokens_n = ev.n * BLOCK;
    }
    for (uint32_t i = from; i < p.n; i++) {
        m->is_held[place_of(&p, i + 1)] = !is_removal;
        m->is_told[place_of(&p, i + 1)] |= !is_removal;
        m->is_based[place_of(&p, i + 1)] |= !is_removal && ev.base != KVP_DEPTH_UNKNOWN;
    }
    kvp_events_apply_one(&g->appliers[0], &ev);
}

static uint32_t
standard_run(rig_t *g, const uint64_t *hashes, size_t n)
{
    const kvp_namespace_t space = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = BLOCK};
    const kvp_question_t q = {"t", "m", "a", BLOCK, kvp_spaces_find(g->spaces, &space), hashes, n};
    kvp_epoch_reader_t *reader = kvp_epoch_enter(&g->epoch);
    const kvp_answer_t *answers;
    uint32_t run, answers_n;

    assert_true(kvp_match(g->ix, g->roster, &q, g->scratch, &answers, &answers_n));
    run = answers[0].run;
    kvp_epoch_leave(reader);
    return run;
}

/* A block matches by its hash whatever its event says of its place. It has its depth as soon as an event tells that, or
 * its parent has one. */
TEST(test_standard_events_in_any_order)
{
    static standard_t m;
    rig_t g;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        memset(&m, 0, sizeof m);
        open_rig(&g, seed);
        for (uint32_t i = 0; i < 500; i++) {
            const path_t p = some_path(&g);
            const uint32_t at = (uint32_t)draw(&g, p.n);
            uint64_t hashes[DEPTH];
            uint32_t run = 0;

            standard_event(&g, &m);
            hashes_of(&p, hashes);
            while (run < p.n && m.is_held[place_of(&p, run + 1)])
                run++;
            assert_int_equal(standard_run(&g, hashes, p.n), run);
            /* Asked for as a first block it is one only while nobody knows better. */
            assert_int_equal(standard_run(&g, hashes + at, 1),
                             m.is_held[place_of(&p, at + 1)] && (at == 0 || !has_depth(&m, &p, at + 1)));
        }
        assert_int_equal(g.appliers[0].done.skips[KVP_SKIP_parent], 0);
        close_rig(&g);
    }
}

/* ---- streams of the standard's events: by salt, backend and medium */
#define SALTS 2u
#define BACKENDS 40u /* more than there are slots; few hold anything at a time */
#define NEAR 3u

typedef struct {
    uint64_t id;
    bool is_held[DEPTH];
} stream_t;

static stream_t streams[SALTS][BACKENDS][MEDIA];

static void
stream_event(rig_t *g, uint32_t round)
{
    const uint32_t salt = (uint32_t)draw(g, SALTS), backend = (round + (uint32_t)draw(g, NEAR)) % BACKENDS,
                   medium = (uint32_t)draw(g, MEDIA), from = (uint32_t)draw(g, DEPTH),
                   n = (uint32_t)draw(g, DEPTH - from);
    stream_t *s = &streams[salt][backend][medium];
    const bool is_gap = s->id > 0 && draw(g, 30) == 0, is_other = draw(g, 30) == 0;
    const char name[2] = {(char)('!' + backend), 0};
    uint64_t hashes[DEPTH];
    kvp_event_t ev = {.kind = draw(g, 20) == 0 ? KVP_EVENT_CLEARED
                              : draw(g, 3)     ? KVP_EVENT_STORED
                                               : KVP_EVENT_REMOVED,
                      .is_standard = true,
                      .event_id = s->id += 1 + is_gap,
                      .hashes = hashes + from,
                      .n = n,
                      .outside_from = n,
                      .base = from,
                      .block_size = is_other ? BLOCK + 1 : BLOCK,
                      .additional_salt = {salt == 0 ? NULL : "s", salt},
                      .backend = {name, 1},
                      .medium = {media[medium], strlen(media[medium])}};

    for (uint32_t i = 0; i < DEPTH; i++)
        hashes[i] = 100 + i;
    kvp_events_apply_one(&g->appliers[0], &ev);
    if (is_other) { /* another block size is another stream, of which nothing is here */
        s->id -= 1 + is_gap;
        return;
    }
    if (is_gap || ev.kind == KVP_EVENT_CLEARED) memset(s->is_held, 0, sizeof s->is_held);
    for (uint32_t i = from; i < from + n && ev.kind != KVP_EVENT_CLEARED; i++)
        s->is_held[i] = ev.kind == KVP_EVENT_STORED;
}

static void
check_streams(rig_t *g)
{
    const uint32_t salt = (uint32_t)draw(g, SALTS);
    const kvp_namespace_t space = {
        .model = "m", .tenant = "t", .salt = salt == 0 ? "" : "s", .lora = "", .block_size = BLOCK};
    uint64_t hashes[DEPTH];
    const kvp_question_t q = {"t", "m", "a", BLOCK, kvp_spaces_find(g->spaces, &space), hashes, DEPTH};
    const kvp_answer_t *answers;
    uint32_t n;

    for (uint32_t i = 0; i < DEPTH; i++)
        hashes[i] = 100 + i;
    kvp_epoch_reader_t *reader = kvp_epoch_enter(&g->epoch);
    assert_true(kvp_match(g->ix, g->roster, &q, g->scratch, &answers, &n));
    for (uint32_t k = 0; k < answers[0].media_n; k++) {
        uint32_t m = 0, run = 0;
        bool is_held = true;

        while (strcmp(shown[m], answers[0].media[k].name) != 0)
            m++;
        while (run < DEPTH && is_held) {
            is_held = false;
            for (uint32_t b = 0; b < BACKENDS; b++)
                is_held |= streams[salt][b][m].is_held[run];
            run += is_held;
        }
        assert_int_equal(answers[0].media[k].run, run);
    }
    kvp_epoch_leave(reader);
}

/* What is cleared, or has a gap in its numbers, is one stream alone. Backends that have left make room for others. */
TEST(test_each_stream_is_cleared_alone)
{
    rig_t g;

    open_rig(&g, 5);
    for (uint32_t i = 0; i < 60000; i++) {
        const uint32_t round = i / 1500;

        if (i % 1500 == 0) { /* the next backends; what the ones before held goes */
            memset(streams, 0, sizeof streams);
            kvp_events_drop(&g.appliers[0]);
        }
        stream_event(&g, NEAR * round);
        if (draw(&g, 2) == 0) check_streams(&g);
        if (draw(&g, 50) == 0) (void)kvp_view_sweep(g.views[0], 100);
        if (draw(&g, 20) == 0) kvp_epoch_collect(&g.epoch);
    }
    assert_int_equal(g.appliers[0].done.skips[KVP_SKIP_too_many], 0);
    close_rig(&g);
}

/* ---- views alone: several hashes of several groups at few blocks */
#define HASHES 5u
#define BLOCKS 3u
#define VIEWS 2u

typedef struct {
    uint32_t block, count; /* of each entry */
} held_t;

/* KVP_MEDIA_MAX = there is none. */
static uint32_t
medium_named(const kvp_view_t *view, const char *name)
{
    for (uint32_t i = 0; i < KVP_MEDIA_MAX; i++)
        if (kvp_view_medium(view, i) != NULL && strcmp(kvp_view_medium(view, i)->name, name) == 0) return i;
    return KVP_MEDIA_MAX;
}

static bool
is_held(const kvp_index_t *ix, const kvp_view_t *view, uint32_t medium, uint32_t block)
{
    const uint64_t hash = 100 + block;
    const kvp_medium_t *of = medium == KVP_MEDIA_MAX ? NULL : kvp_view_medium(view, medium);
    uint32_t set;

    if (of == NULL) return false;
    kvp_index_find(ix, 0, block, &hash, 1, &set);
    const kvp_set_t *holders = kvp_sets_get(kvp_index_sets(ix), set);
    for (uint32_t i = 0; holders != NULL && i < holders->n; i++)
        if (holders->holders[i] == atomic_load(&of->holder)) return true;
    return false;
}

static void
change_view(rig_t *g, kvp_view_t *view, held_t model[MEDIA * GROUPS][HASHES])
{
    const uint32_t medium = (uint32_t)draw(g, MEDIA), group = (uint32_t)draw(g, GROUPS),
                   hash = (uint32_t)draw(g, HASHES);
    const uint32_t slot = kvp_view_slot(view, media[medium], strlen(media[medium]), group),
                   block = (uint32_t)draw(g, BLOCKS);
    held_t *e = &model[medium * GROUPS + group][hash];
    uint32_t clears = draw(g, 20) == 0 ? UINT8_MAX : 1; /* as many as there are generations */

    switch (draw(g, 20)) {
    case 0:
        for (; clears > 0; clears--)
            kvp_view_clear(view, shown[medium]);
        memset(model[medium * GROUPS], 0, GROUPS * sizeof model[0]);
        break;
    case 1:
        (void)kvp_view_sweep(view, (uint32_t)draw(g, 300));
        break;
    case 2:
        kvp_view_forget(view);
        break;
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
        assert_int_equal(kvp_view_remove(view, slot, hash), e->count > 0);
        e->count -= e->count > 0;
        break;
    default:
        kvp_view_store(view, slot, hash, kvp_index_use(g->ix, 0, 100 + block, block), true);
        e->count = e->block == block ? e->count + 1 : 1;
        e->block = block;
    }
}

/* A medium holds exactly the blocks at which one of its entries stands, whatever else stands there or stood there. */
TEST(test_views_hold_what_their_entries_say)
{
    static held_t model[VIEWS][MEDIA * GROUPS][HASHES];
    kvp_index_stats_t stats;
    rig_t g;

    open_rig(&g, 3);
    for (uint32_t n = 0; n < 200000; n++) {
        const uint32_t who = (uint32_t)draw(&g, VIEWS);

        change_view(&g, g.views[who], model[who]);
        if (draw(&g, 20) == 0) kvp_epoch_collect(&g.epoch);
        if (draw(&g, 4) != 0) continue;
        kvp_epoch_reader_t *reader = kvp_epoch_enter(&g.epoch);
        for (uint32_t m = 0; m < MEDIA; m++)
            for (uint32_t b = 0; b < BLOCKS; b++) {
                uint32_t count = 0;

                for (uint32_t i = 0; i < GROUPS * HASHES; i++) {
                    const held_t *e = &model[who][m * GROUPS + i % GROUPS][i / GROUPS];

                    if (e->block == b) count += e->count;
                }
                assert_int_equal(is_held(g.ix, g.views[who], medium_named(g.views[who], shown[m]), b), count > 0);
            }
        kvp_epoch_leave(reader);
    }
    kvp_index_stats(g.ix, &stats);
    assert_int_equal(stats.left_out, 0);
    close_rig(&g);
}

/* A block whose users and holders contradict each other is left out and counted, and the view that met it is made
 * again. */
TEST(test_a_damaged_block_is_left_out)
{
    const uint64_t hash = 100;
    kvp_index_stats_t index;
    kvp_view_stats_t view;
    rig_t g;
    uint32_t set;

    open_rig(&g, 4);
    const uint32_t slot = kvp_view_slot(g.views[0], "GPU", 3, 0), block = kvp_index_use(g.ix, 0, hash, 0),
                   stray = kvp_index_holder(g.ix);
    kvp_view_store(g.views[0], slot, 7, block, true);
    assert_true(kvp_index_add(g.ix, block, stray));
    assert_false(kvp_index_add(g.ix, block, stray));
    assert_true(kvp_view_remove(g.views[0], slot, 7));
    kvp_view_forget(g.views[0]);
    kvp_view_stats(g.views[0], &view);
    kvp_index_stats(g.ix, &index);
    assert_true(view.is_damaged && index.left_out == 1 && index.blocks == 0);
    kvp_index_find(g.ix, 0, 0, &hash, 1, &set);
    assert_int_equal(set, KVP_SET_NONE);
    assert_false(kvp_index_rele(g.ix, block)); /* nor is a use that nobody has a reason to end */
    kvp_view_repair(g.views[0]);
    kvp_view_stats(g.views[0], &view);
    assert_false(view.is_damaged);
    kvp_view_store(g.views[0], slot, 7, kvp_index_use(g.ix, 0, hash, 0), true);
    kvp_index_find(g.ix, 0, 0, &hash, 1, &set);
    assert_true(set != KVP_SET_NONE);
    close_rig(&g);
}

/* Fails if namespaces that nothing is in any more keep their numbers, or if one number means two namespaces to its
 * holder. */
TEST(test_namespaces_come_and_go)
{
    const kvp_namespace_t kept_space = {"m", "kept", "", "kept-adapter", BLOCK};
    char name[32];
    rig_t g;

    open_rig(&g, 1);
    const uint32_t kept = kvp_spaces_name(g.spaces, &kept_space);
    const uint32_t kept_block = kvp_index_use(g.ix, kept, 1, 0);
    for (uint32_t i = 0; i < KVP_SPACES_MAX + 100000; i++) {
        snprintf(name, sizeof name, "%u", i);
        const kvp_namespace_t space = {"m", "t", i % 2 == 0 ? name : "", i % 2 == 0 ? "" : name, BLOCK};
        const uint32_t number = kvp_spaces_name(g.spaces, &space);

        assert_int_not_equal(number, KVP_SPACE_NONE);
        assert_int_not_equal(number, kept);
        assert_int_equal(kvp_spaces_find(g.spaces, &space), number);
        assert_true(kvp_spaces_has_lora(g.spaces, "m", name) == (i % 2 == 1));
        assert_true(kvp_index_rele(g.ix, kvp_index_use(g.ix, number, i, 0)));
        if (i % 1000 == 0) kvp_epoch_collect(&g.epoch);
        if (i != 100000) continue; /* from here on names themselves make room */
        kvp_spaces_sweep(g.spaces, KVP_SPACES_MAX);
        kvp_spaces_sweep(g.spaces, KVP_SPACES_MAX); /* adapters of what the first one freed */
        kvp_epoch_collect(&g.epoch);
        assert_int_equal(kvp_spaces_find(g.spaces, &space), KVP_SPACE_NONE);
    }
    assert_int_equal(kvp_spaces_find(g.spaces, &kept_space), kept);
    assert_true(kvp_spaces_has_lora(g.spaces, "m", "kept-adapter"));
    assert_true(kvp_index_rele(g.ix, kept_block));
    close_rig(&g);
}

/* Fails if a publisher's streams are refused after some, or if a gap or a copy in one of the last ones is not seen. */
TEST(test_streams_come_and_go)
{
    const uint64_t half = KVP_STREAMS_MIN / 2;
    kvp_streams_t s = {.young = {.cap = 0}};

    for (uint64_t i = 0; i < 100000; i++) {
        assert_int_equal(kvp_streams_step(&s, i, i % 3), KVP_STREAM_FIRST);
        assert_int_equal(kvp_streams_step(&s, i, i % 3), KVP_STREAM_SEEN);
        assert_int_equal(kvp_streams_step(&s, i, 7), KVP_STREAM_GAP);
        assert_true(s.young.n + s.old.n <= 2 * KVP_STREAMS_MIN);
        if (i < half) continue;
        assert_int_equal(kvp_streams_step(&s, i - half + 1, 7), KVP_STREAM_SEEN); /* it is heard again, so it stays */
        assert_int_equal(kvp_streams_step(&s, i - half + 1, 8), KVP_STREAM_NEXT);
    }
    kvp_streams_fini(&s);
}

/* Fails if media that hold nothing are not freed, or if a medium that holds a block is. */
TEST(test_media_come_and_go)
{
    rig_t g;
    char name[16];

    open_rig(&g, 6);
    kvp_view_t *view = g.views[0];
    for (uint32_t i = 0; i < 100000; i++) {
        snprintf(name, sizeof name, "M%u", i);
        const uint32_t slot = kvp_view_slot(view, name, strlen(name), i % 2 == 0 ? 0 : KVP_GROUP_BACKENDS | i);

        assert_int_not_equal(slot, KVP_SLOTS_MAX);
        kvp_view_store(view, slot, i, kvp_index_use(g.ix, 0, 100 + i % BLOCKS, i % BLOCKS), true);
        assert_true(is_held(g.ix, view, medium_named(view, name), i % BLOCKS));
        if (i != 7) assert_true(kvp_view_remove(view, slot, i)); /* this one stays */
        if (i >= 7) assert_true(is_held(g.ix, view, medium_named(view, "M7"), 7 % BLOCKS));
        if (i % 100 != 0) continue;
        (void)kvp_view_sweep(view, UINT32_MAX);
        kvp_epoch_collect(&g.epoch);
    }
    for (uint32_t i = 0; i < 8; i++) { /* these hold a block each */
        const uint32_t slot = kvp_view_slot(view, &"abcdefgh"[i], 1, 0);

        assert_true((slot == KVP_SLOTS_MAX) == (i == 7));
        if (i < 7) kvp_view_store(view, slot, i, kvp_index_use(g.ix, 0, 100, 0), true);
    }
    kvp_view_clear(view, "C");
    assert_int_not_equal(kvp_view_slot(view, "h", 1, 0), KVP_SLOTS_MAX);
    close_rig(&g);
}

static void
apply_stored(rig_t *g, const char *salt, uint64_t id, uint64_t hash)
{
    uint64_t hashes[1] = {hash};
    const kvp_event_t ev = {.kind = hash == 0 ? KVP_EVENT_CLEARED : KVP_EVENT_STORED,
                            .is_standard = true,
                            .event_id = id,
                            .additional_salt = {salt, strlen(salt)},
                            .backend = {"b", 1},
                            .medium = {"cpu", 3},
                            .hashes = hashes,
                            .n = 1,
                            .outside_from = 1};

    kvp_events_apply_one(&g->appliers[0], &ev);
}

/* Fails if a stream that was forgotten keeps blocks of before a gap when it comes back, or if a new stream counts as a
 * gap. */
TEST(test_a_forgotten_stream_comes_back)
{
    kvp_view_stats_t view;
    char salt[16];
    rig_t g;

    open_rig(&g, 7);
    apply_stored(&g, "kept", 1, 11);
    apply_stored(&g, "kept", 2, 12);
    apply_stored(&g, "other", 5, 13);
    for (uint32_t i = 0; i < 2 * KVP_STREAMS_MIN; i++) {
        snprintf(salt, sizeof salt, "%u", i);
        apply_stored(&g, salt, 0, 0);
    }
    kvp_view_stats(g.views[0], &view);
    assert_true(view.resident == 3 && g.appliers[0].done.gaps == 0);
    apply_stored(&g, "kept", 9, 14);
    kvp_view_stats(g.views[0], &view);
    assert_true(view.resident == 2 && g.appliers[0].done.gaps == 1);
    close_rig(&g);
}

TEST_MAIN()
