/* SPDX-License-Identifier: Apache-2.0
 * Questions while the index changes: what a publisher holds all the time is found all the time, what nobody ever held
 * is never found, and nothing else is wrong in memory (ThreadSanitizer looks on). */
#include "conductor/events/apply.h"
#include "conductor/index/chain.h"
#include "conductor/index/match.h"
#include "tests/cases.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 2u
#define DEPTH 24u
#define READERS 2u
#define PUBLISHERS 3u /* the first one holds its prompt always */
#define EVENTS 60000u

typedef struct {
    kvp_epoch_t epoch;
    kvp_index_t *ix;
    kvp_spaces_t *spaces;
    kvp_roster_t *roster;
    kvp_applier_t appliers[PUBLISHERS];
    kvp_view_t *views[PUBLISHERS];
    _Atomic bool is_over;
    _Atomic uint64_t wrong, questions, others;
} rig_t;

/* Tokens of prompt `which`: the first half is common to all but the last one, which nobody holds. */
static void
tokens_of(uint32_t which, uint32_t *tokens)
{
    for (uint32_t i = 0; i < DEPTH * BLOCK; i++)
        tokens[i] = which == 99 ? 1000000 + i : i < DEPTH * BLOCK / 2 ? i : which * 1000 + i;
}

static void
hashes_of(uint32_t which, uint64_t *hashes)
{
    uint32_t tokens[DEPTH * BLOCK];

    tokens_of(which, tokens);
    for (uint32_t i = 0; i < DEPTH; i++)
        hashes[i] = kvp_chain_next(i == 0 ? NULL : &hashes[i - 1], tokens + i * BLOCK, BLOCK, 0);
}

static void
event(rig_t *g, uint32_t publisher, uint32_t which, kvp_event_kind_t kind)
{
    uint32_t tokens[DEPTH * BLOCK];
    uint64_t hashes[DEPTH];

    tokens_of(which, tokens);
    hashes_of(which, hashes); /* engines' own hashes may be anything */
    const kvp_event_t ev = {.kind = kind,
                            .hashes = hashes,
                            .n = DEPTH,
                            .tokens = tokens,
                            .tokens_n = DEPTH * BLOCK,
                            .outside_from = DEPTH,
                            .tells_salt = true};

    kvp_events_apply_one(&g->appliers[publisher], &ev);
}

static void *
reader(void *arg)
{
    const kvp_namespace_t space = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = BLOCK};
    kvp_match_scratch_t *scratch = kvp_scratch_create();
    rig_t *g = arg;
    uint64_t always[DEPTH], never[DEPTH], sometimes[DEPTH];

    hashes_of(0, always);
    hashes_of(99, never);
    for (uint32_t turn = 0; !atomic_load(&g->is_over); turn++) {
        kvp_question_t q = {
            .tenant = "t", .model = "m", .block_size = BLOCK, .space = kvp_spaces_find(g->spaces, &space), .n = DEPTH};
        kvp_epoch_reader_t *in = kvp_epoch_enter(&g->epoch);
        const kvp_answer_t *a;
        uint32_t n;

        hashes_of(1 + turn % 40, sometimes);
        q.hashes = always;
        if (!kvp_match(g->ix, g->roster, &q, scratch, &a, &n) || n != PUBLISHERS || a[0].run != DEPTH)
            atomic_fetch_add(&g->wrong, 1);
        q.hashes = never;
        if (!kvp_match(g->ix, g->roster, &q, scratch, &a, &n) || a[0].run + a[1].run + a[2].run != 0)
            atomic_fetch_add(&g->wrong, 1);
        q.hashes = sometimes;
        if (!kvp_match(g->ix, g->roster, &q, scratch, &a, &n) || a[0].run != DEPTH / 2 || a[1].run > DEPTH)
            atomic_fetch_add(&g->wrong, 1);
        atomic_fetch_add(&g->others, a[1].run > DEPTH / 2);
        kvp_epoch_leave(in);
        atomic_fetch_add(&g->questions, 1);
    }
    kvp_scratch_destroy(scratch);
    return NULL;
}

TEST(test_questions_while_it_changes)
{
    const kvp_namespace_t terms = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = BLOCK};
    static const char *const names[] = {"a", "b", "c"};
    pthread_t threads[READERS];
    uint64_t rng = 1;
    rig_t *g = calloc(1, sizeof *g);

    kvp_epoch_init(&g->epoch);
    g->spaces = kvp_spaces_create(&g->epoch);
    g->ix = kvp_index_create(&g->epoch, g->spaces, 1, 1 << 20);
    g->roster = calloc(1, sizeof *g->roster + PUBLISHERS * sizeof(kvp_roster_row_t));
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        g->views[i] = kvp_view_create(g->ix, 1, 200);
        kvp_applier_init(&g->appliers[i], g->ix, g->spaces, g->views[i], &terms, 0, 0);
        g->roster->members[g->roster->n++] =
            (kvp_roster_row_t){names[i], "t", "m", BLOCK, 0, g->views[i], "", "", "", 0, {NULL}};
    }
    event(g, 0, 0, KVP_EVENT_STORED);
    for (uint32_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reader, g), 0);
    for (uint32_t i = 0; i < EVENTS || atomic_load(&g->questions) < 1000; i++) {
        const uint32_t who = 1 + (rng >> 33) % (PUBLISHERS - 1), which = 1 + (uint32_t)(rng >> 40) % 40;

        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        event(g, who, which, rng >> 63 == 0 ? KVP_EVENT_STORED : KVP_EVENT_REMOVED);
        if (i % 500 == 0) kvp_events_drop(&g->appliers[who]);
        (void)kvp_view_sweep(g->views[who], 50);
        kvp_epoch_collect(&g->epoch);
    }
    atomic_store(&g->is_over, true);
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(g->wrong, 0);
    assert_true(g->others > 0);
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        kvp_applier_fini(&g->appliers[i]);
        kvp_view_destroy(g->views[i]);
    }
    kvp_epoch_fini(&g->epoch);
    kvp_index_destroy(g->ix);
    kvp_spaces_destroy(g->spaces);
    free(g->roster);
    free(g);
}

TEST_MAIN()
