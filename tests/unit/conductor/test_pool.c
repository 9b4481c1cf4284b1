/* SPDX-License-Identifier: Apache-2.0
 * The pool's events from the master's log to answers, against a model: random records of what is committed, moved and
 * gone become events, these become parts of blocks, and engines' events tell where blocks stand. Each answer is what
 * the model says, and each digest what the conductor has summed up itself. */
#include "conductor/events/apply.h"
#include "conductor/index/chain.h"
#include "conductor/index/match.h"
#include "conductor/pool/joinlog.h"
#include "conductor/pool/pool.h"
#include "master/events/stream.h"
#include "proto/connkey.h"
#include "tests/transport/sanitizer.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4u
#define PROMPTS 5u
#define DEPTH 6u
#define JOINS 2u /* prefixes of keys; each with an engine */
#define RANKS 2u
#define GROUPS 2u /* of the engine's cache; the second one is of no prefix */
#define CPU 1u
#define DISK 2u

static const char *const prefixes[JOINS] = {"run@tiny", "tiny"};
static const uint32_t ranks_of[JOINS] = {2, 1};

typedef struct {
    kvp_epoch_t epoch;
    kvp_index_t *ix;
    kvp_spaces_t *spaces;
    kvp_view_t *views[JOINS];
    kvp_applier_t appliers[JOINS];
    kvp_pools_t *pools;
    kvp_disk_t *disk; /* NULL = places are not kept */
    kvp_join_t *joins[JOINS];
    kvp_roster_t *roster;
    kvp_match_scratch_t *scratch;
    kvp_stream_t *stream;
    kvp_event_batch_t batch;
    kvp_decoder_t decoder;
    kvp_pool_source_t source, other;
    uint64_t rng, version, wanted;
    uint8_t at[JOINS][PROMPTS][DEPTH][RANKS][GROUPS]; /* media of each object */
    bool is_known[JOINS][PROMPTS][DEPTH], is_held[JOINS][PROMPTS][DEPTH]; /* by the engine */
    bool is_deaf; /* the conductor follows another source */
} rig_t;

static uint64_t
draw(rig_t *g, uint64_t n)
{
    g->rng = g->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (g->rng >> 33) % n;
}

static uint64_t
hash_of(uint32_t join, uint32_t prompt, uint32_t block)
{
    return ((uint64_t)join + 1) * 0x9e3779b97f4a7c15ull ^
           (uint64_t)(prompt * DEPTH + block + 1) * 0xff51afd7ed558ccdull;
}

/* ---- the pool's side */
static void
on_event(void *arg, const kvp_event_t *event)
{
    rig_t *g = arg;

    kvp_pools_take(g->pools, &g->source, event);
}

static void
on_skip(void *arg, kvp_skip_t why)
{
    (void)arg;
    fail_msg("an event is skipped: %d", (int)why);
}

static void
deliver(rig_t *g)
{
    const kvp_decode_ops_t ops = {on_event, on_skip, g};
    kvp_buf_t payload;
    uint32_t rank;

    kvp_buf_init(&payload, 0);
    kvp_event_payload(&g->batch, 1, &payload);
    assert_true(kvp_decode(&g->decoder, payload.data, payload.len, &ops, &rank));
    kvp_buf_fini(&payload);
}

static void
make_record(rig_t *g, uint32_t j, uint32_t p, uint32_t b, uint32_t r, uint32_t group, bool is_gone, kvp_jrec_any_t *rec)
{
    const uint8_t at = g->at[j][p][b][r][group];
    const kvp_digest_t digest = {(uint64_t)((((j * PROMPTS + p) * DEPTH + b) * RANKS + r) * GROUPS + group) + 1, 7};
    char key[256];
    static const char *const forms[JOINS] = {
        "%s@tp_rank:%u@pcp0@dcp0@pp_rank:0@group:%u@%048u%016llx",
        "%s@pcp0@dcp0@head_or_tp_rank:%u@pp_rank:0@group:%u@cache_role:kv@cache_family:default@%048u%016llx"};
    const int len =
        snprintf(key, sizeof key, forms[j], prefixes[j], r, group, 1u, (unsigned long long)hash_of(j, p, b));

    memset(rec, 0, sizeof *rec);
    if (is_gone) {
        rec->gone = (kvp_jrec_gone_t){
            .digest = digest, .version = g->version, .why = KVP_GONE_EVICTED, .key_len = (uint16_t)len};
        memcpy(kvp_jrec_gone_key(rec), key, (size_t)len);
        (void)kvp_jrec_seal(rec, KVP_JREC_GONE, 0);
        return;
    }
    rec->commit = (kvp_jrec_commit_t){.digest = digest, .version = ++g->version, .len = 1, .key_len = (uint16_t)len};
    if ((at & CPU) != 0) kvp_jrec_places(rec)[rec->commit.places_n++].slot = 1;
    if ((at & DISK) != 0) kvp_jrec_places(rec)[rec->commit.places_n++].chunk = KVP_JREC_TIER;
    memcpy(kvp_jrec_key(rec), key, (size_t)len);
    (void)kvp_jrec_seal(rec, KVP_JREC_COMMIT, 0);
}

/* All that is there, as to a subscriber that has come late. */
static void
snapshot(rig_t *g)
{
    kvp_jrec_any_t rec;

    kvp_pools_drop(g->pools, &g->source);
    g->is_deaf = false;
    for (uint32_t i = 0; i < JOINS * PROMPTS * DEPTH * RANKS * GROUPS; i++) {
        const uint32_t group = i % GROUPS, r = i / GROUPS % RANKS, b = i / GROUPS / RANKS % DEPTH,
                       p = i / GROUPS / RANKS / DEPTH % PROMPTS, j = i / GROUPS / RANKS / DEPTH / PROMPTS;

        if (g->at[j][p][b][r][group] == 0) continue;
        make_record(g, j, p, b, r, group, false, &rec);
        kvp_stream_take(g->stream, &rec, KVP_STREAM_SNAPSHOT, 1, &g->batch);
    }
    deliver(g);
}

static void
bump(rig_t *g)
{
    kvp_jrec_any_t rec = {.tenant = {.epoch = 1, .min_version = ++g->version}};

    (void)kvp_jrec_seal(&rec, KVP_JREC_TENANT, 0);
    kvp_stream_take(g->stream, &rec, KVP_STREAM_LIVE, 1, &g->batch);
    deliver(g);
    memset(g->at, 0, sizeof g->at);
}

static void
change(rig_t *g)
{
    const uint32_t j = (uint32_t)draw(g, JOINS), p = (uint32_t)draw(g, PROMPTS), b = (uint32_t)draw(g, DEPTH),
                   r = (uint32_t)draw(g, ranks_of[j]), group = (uint32_t)draw(g, GROUPS);
    uint8_t *at = &g->at[j][p][b][r][group];
    const uint8_t now = (uint8_t)(draw(g, 4) == 0 ? 0 : 1 + draw(g, 3));
    kvp_jrec_any_t rec;

    if (now == 0 && *at == 0) return;
    *at = now;
    make_record(g, j, p, b, r, group, now == 0, &rec);
    kvp_stream_take(g->stream, &rec, KVP_STREAM_LIVE, 1, &g->batch);
    if (draw(g, 3) > 0) return; /* several go together */
    deliver(g);
}

/* ---- the engines' side */
static void
tokens_of(uint32_t p, uint32_t n, uint32_t *tokens)
{
    for (uint32_t i = 0; i < n * BLOCK; i++)
        tokens[i] = p * 1000 + i;
}

static void
engine_event(rig_t *g)
{
    const uint32_t j = (uint32_t)draw(g, JOINS), p = (uint32_t)draw(g, PROMPTS), n = (uint32_t)(1 + draw(g, DEPTH));
    const bool is_stored = draw(g, 3) > 0, is_connectors = is_stored && draw(g, 4) == 0;
    uint64_t hashes[DEPTH];
    uint32_t tokens[DEPTH * BLOCK];
    kvp_event_t ev = {.kind = is_stored ? KVP_EVENT_STORED : KVP_EVENT_REMOVED,
                      .hashes = hashes,
                      .n = n,
                      .outside_from = n,
                      .tokens = tokens,
                      .tokens_n = n * BLOCK,
                      .medium = is_connectors ? (kvp_text_t){"cpu", 3} : (kvp_text_t){NULL, 0}};

    tokens_of(p, n, tokens);
    for (uint32_t b = 0; b < n; b++) {
        hashes[b] = hash_of(j, p, b);
        if (is_stored) g->is_known[j][p][b] = true;
        if (!is_connectors) g->is_held[j][p][b] = is_stored;
    }
    if (is_stored) /* copies are counted: here there is one at most */
        for (uint32_t b = 0; b < n; b++)
            for (uint32_t slot = 0; slot < KVP_SLOTS_MAX && !is_connectors; slot++)
                while (kvp_view_remove(g->views[j], slot, hashes[b]))
                    continue;
    kvp_events_apply_one(&g->appliers[j], &ev);
}

/* ---- answers */
static bool
is_there(const rig_t *g, uint32_t j, uint32_t p, uint32_t b, uint8_t media)
{
    for (uint32_t r = 0; r < ranks_of[j]; r++)
        if (g->is_deaf || (g->at[j][p][b][r][0] & media) == 0) return false;
    return g->is_known[j][p][b];
}

static void
check_join(const rig_t *g, uint32_t j, uint32_t p, const kvp_answer_t *a)
{
    uint32_t run = 0, cpu = 0, disk = 0;

    while (run < DEPTH && (g->is_held[j][p][run] || is_there(g, j, p, run, CPU | DISK)))
        run++;
    while (cpu < DEPTH && is_there(g, j, p, cpu, CPU))
        cpu++;
    while (disk < DEPTH && is_there(g, j, p, disk, DISK))
        disk++;
    assert_int_equal(a->run, run);
    for (uint32_t i = 0; i < a->media_n; i++) {
        if (strcmp(a->media[i].name, "CPU") == 0) assert_int_equal(a->media[i].run, cpu);
        if (strcmp(a->media[i].name, "DISK") == 0) assert_int_equal(a->media[i].run, disk);
        assert_true(a->media[i].name[0] != '\0');
    }
}

static void
question(rig_t *g)
{
    const uint32_t p = (uint32_t)draw(g, PROMPTS);
    uint32_t tokens[DEPTH * BLOCK], n;
    uint64_t hashes[DEPTH];
    kvp_question_t q = {.tenant = "default", .model = "m", .block_size = BLOCK, .hashes = hashes, .n = DEPTH};
    const kvp_answer_t *answers;

    if (g->batch.n > 0) deliver(g);
    tokens_of(p, DEPTH, tokens);
    for (uint32_t i = 0; i < DEPTH; i++)
        hashes[i] = kvp_chain_next(i == 0 ? NULL : &hashes[i - 1], tokens + i * BLOCK, BLOCK, 0);
    q.space = kvp_spaces_find(g->spaces, &(kvp_namespace_t){"m", "default", "", "", BLOCK});
    kvp_epoch_reader_t *reader = kvp_epoch_enter(&g->epoch);
    assert_true(kvp_match(g->ix, g->roster, &q, g->scratch, &answers, &n));
    assert_int_equal(n, JOINS);
    for (uint32_t j = 0; j < JOINS; j++)
        check_join(g, j, p, &answers[j]);
    kvp_epoch_leave(reader);
}

static void
digest(rig_t *g)
{
    if (g->batch.n > 0) deliver(g);
    kvp_stream_digests(g->stream, 1, &g->batch);
    if (g->batch.n > 0) deliver(g);
    assert_int_equal(g->source.drifts, 0);
}

/* Another master begins to tell: the backend is that one's, and empty; what the first one tells is ignored until it
 * begins anew. */
static void
other_source(rig_t *g)
{
    static const char key[] = "nobody's";
    const uint64_t hash = 5;
    kvp_event_t ev = {.kind = KVP_EVENT_DIGEST,
                      .is_standard = true,
                      .backend = {"b", 1},
                      .tenant = {"nobody", 6},
                      .object_key = {key, sizeof key - 1},
                      .hashes = &hash,
                      .n = 1};

    if (g->batch.n > 0) deliver(g);
    kvp_pools_drop(g->pools, &g->other);
    kvp_pools_take(g->pools, &g->other, &ev);
    for (uint32_t i = 0; i < 3; i++)
        question(g); /* a digest, or what is gone, is no beginning */
    ev.kind = KVP_EVENT_STORED;
    kvp_pools_take(g->pools, &g->other, &ev);
    g->is_deaf = true;
}

/* ---- life */
static void
on_wanted(void *arg, const kvp_pool_source_t *source, bool is_drift)
{
    (void)is_drift;
    rig_t *g = arg;

    (void)source;
    g->wanted++;
}

/* What was learnt is in the file, and joins have what the file says. */
static void
flush(rig_t *g)
{
    kvp_pools_flush(g->pools);
    if (g->disk != NULL) assert_true(kvp_disk_finish(g->disk, 10000));
}

static void
open_rig_of(rig_t *g, uint64_t seed, const char *dir, uint32_t blocks_max)
{
    const kvp_namespace_t terms = {.model = "m", .tenant = "default", .salt = "", .lora = "", .block_size = BLOCK};

    memset(g, 0, sizeof *g);
    g->rng = seed;
    g->version = 1;
    kvp_epoch_init(&g->epoch);
    g->spaces = kvp_spaces_create(&g->epoch);
    g->ix = kvp_index_create(&g->epoch, g->spaces, seed, blocks_max);
    g->scratch = kvp_scratch_create();
    g->pools = kvp_pools_create(g->ix, g->spaces, on_wanted, g, 1 << 20);
    g->disk = dir == NULL ? NULL : kvp_disk_create(dir);
    if (dir != NULL) assert_true(kvp_pools_open(g->pools, g->disk, dir));
    g->stream = kvp_stream_create("b", seed % 2 == 0, seed);
    kvp_decoder_init(&g->decoder);
    g->roster = calloc(1, sizeof *g->roster + JOINS * sizeof(kvp_roster_row_t));
    for (uint32_t j = 0; j < JOINS; j++) {
        g->joins[j] = kvp_pools_join(g->pools, "b", prefixes[j], ranks_of[j], &terms);
        assert_ptr_equal(kvp_pools_join(g->pools, "b", prefixes[j], ranks_of[j], &terms), g->joins[j]);
        g->views[j] = kvp_view_create(g->ix, seed, 1 << 20);
        kvp_applier_init(&g->appliers[j], g->ix, g->spaces, g->views[j], &terms, 0, 0);
        g->appliers[j].joins[g->appliers[j].joins_n++] = g->joins[j];
        g->roster->members[g->roster->n++] =
            (kvp_roster_row_t){"i", "default", "m", BLOCK, j, g->views[j], "", "", "", 1, {kvp_join_view(g->joins[j])}};
    }
    assert_int_equal(g->wanted, JOINS);
    flush(g);
}

static void
open_rig(rig_t *g, uint64_t seed, const char *dir)
{
    open_rig_of(g, seed, dir, 1 << 20);
}

static void
close_rig(rig_t *g)
{
    kvp_index_stats_t stats;

    for (uint32_t j = 0; j < JOINS; j++) {
        kvp_applier_fini(&g->appliers[j]);
        kvp_view_destroy(g->views[j]);
        kvp_join_leave(g->joins[j]);
        kvp_join_leave(g->joins[j]);
    }
    kvp_pools_sweep(g->pools, UINT32_MAX);
    kvp_index_stats(g->ix, &stats);
    assert_int_equal(stats.blocks, 0);
    kvp_pools_destroy(g->pools);
    kvp_disk_destroy(g->disk);
    kvp_stream_destroy(g->stream);
    kvp_decoder_fini(&g->decoder);
    kvp_buf_fini(&g->batch.bytes);
    kvp_epoch_fini(&g->epoch);
    kvp_index_destroy(g->ix);
    kvp_spaces_destroy(g->spaces);
    kvp_scratch_destroy(g->scratch);
    free(g->roster);
}

TEST(test_random_records_and_questions)
{
    for (uint64_t seed = 1; seed <= (IS_SANITIZED ? 1 : 4); seed++) {
        static rig_t g;

        open_rig(&g, seed, NULL);
        for (uint32_t i = 0; i < 100000; i++) {
            change(&g);
            if (draw(&g, 8) == 0) engine_event(&g);
            if (draw(&g, 3) == 0) question(&g);
            if (draw(&g, 200) == 0) digest(&g);
            if (draw(&g, 1000) == 0) bump(&g);
            if (draw(&g, 2000) == 0) other_source(&g);
            if (draw(&g, g.is_deaf ? 100 : 2000) == 0) snapshot(&g);
            if (draw(&g, 5000) == 0) kvp_events_drop(&g.appliers[0]), memset(g.is_held[0], 0, sizeof g.is_held[0]);
            if (draw(&g, 50) == 0) kvp_pools_sweep(g.pools, 100);
            if (draw(&g, 20) == 0) kvp_epoch_collect(&g.epoch);
        }
        assert_true(g.source.digests > 100 && g.source.stored > 1000);
        close_rig(&g);
    }
}

/* What was learnt outlives a conductor, to the last whole record. */
TEST(test_places_are_kept)
{
    char dir[] = "/tmp/kvp-joins-XXXXXX", path[64];
    struct stat file;
    static rig_t g;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/joins", dir);
    for (uint32_t turn = 0; turn < 3; turn++) {
        open_rig(&g, 9, dir);
        for (uint32_t j = 0; turn > 0 && j < JOINS; j++)
            for (uint32_t p = 0; p < PROMPTS; p++)
                for (uint32_t b = 0; b < DEPTH; b++)
                    g.is_known[j][p][b] =
                        turn == 1 || j * PROMPTS * DEPTH + p * DEPTH + b + 1 < JOINS * PROMPTS * DEPTH;
        for (uint32_t j = 0; turn == 0 && j < JOINS; j++)
            for (uint32_t p = 0; p < PROMPTS; p++) {
                uint32_t tokens[DEPTH * BLOCK];
                uint64_t hashes[DEPTH];
                const kvp_event_t ev = {.kind = KVP_EVENT_STORED,
                                        .hashes = hashes,
                                        .n = DEPTH,
                                        .outside_from = DEPTH,
                                        .tokens = tokens,
                                        .tokens_n = DEPTH * BLOCK};

                tokens_of(p, DEPTH, tokens);
                for (uint32_t b = 0; b < DEPTH; b++)
                    hashes[b] = hash_of(j, p, b), g.is_known[j][p][b] = g.is_held[j][p][b] = true;
                kvp_events_apply_one(&g.appliers[j], &ev);
            }
        memset(g.at, CPU, sizeof g.at);
        snapshot(&g);
        for (uint32_t i = 0; i < 50; i++)
            question(&g);
        flush(&g);
        close_rig(&g);
        assert_int_equal(stat(path, &file), 0);
        if (turn == 1) assert_int_equal(truncate(path, file.st_size - 1), 0);
    }
    unlink(path);
    rmdir(dir);
}

typedef struct {
    bool seen[10000];
    uint32_t others; /* places of other joins than the first */
    const kvp_joinlog_t *log;
} loaded_t;

static void
begin_load(void *arg)
{
    (void)arg;
}

static void
load_place(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    loaded_t *l = arg;

    l->others += strcmp(join->prefix, "p0") != 0;
    l->seen[place->key] = true;
}

static void
end_load(void *arg, bool is_whole)
{
    (void)arg;
    assert_true(is_whole);
}

static bool
keep_first_join(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    const loaded_t *l = arg;

    (void)place;
    return l->log == NULL || !kvp_joinlog_is_crowded(l->log) || strcmp(join->prefix, "p0") == 0;
}

/* Fails if a place is missing that was added before, during or after a rewrite, or if the rewrite keeps what it is to
 * drop. */
TEST(test_a_rewrite_misses_no_place)
{
    char dir[] = "/tmp/kvp-joins-XXXXXX", path[64], prefix[16];
    static loaded_t l;
    const kvp_joinlog_ops_t ops = {begin_load, load_place, end_load, keep_first_join, &l};
    rig_t g;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/joins", dir);
    open_rig_of(&g, 1, NULL, 1 << 20);
    kvp_disk_t *disk = kvp_disk_create(dir);
    kvp_joinlog_t *log = kvp_joinlog_open(disk, dir, g.spaces, &ops);
    const uint32_t space = kvp_spaces_name(g.spaces, &(kvp_namespace_t){"m", "t", "", "", BLOCK});

    assert_non_null(log);
    kvp_spaces_hold(g.spaces, space);
    l.log = log;
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(l.seen); i++) {
        snprintf(prefix, sizeof prefix, "p%u", i < 4200 ? i : 0);
        kvp_joinlog_add(log, &(kvp_joinlog_join_t){"b", prefix, 1, space},
                        &(kvp_joinlog_place_t){.key = i, .hash = i, .space = space, .depth = 1});
        if (i % 10 != 0) continue;
        kvp_joinlog_flush(log);
        kvp_disk_reap(disk);
    }
    for (uint32_t i = 0; i < 3; i++) { /* the rewrite may not have begun yet; then the last records */
        kvp_joinlog_flush(log);
        assert_true(kvp_disk_finish(disk, 10000));
    }
    kvp_joinlog_close(log);
    l.log = NULL;
    log = kvp_joinlog_open(disk, dir, g.spaces, &ops);
    assert_non_null(log);
    kvp_joinlog_load(log);
    kvp_joinlog_flush(log);
    assert_true(kvp_disk_finish(disk, 10000));
    assert_true(l.seen[0]);
    for (uint32_t i = 4200; i < KVP_ARRAY_LEN(l.seen); i++)
        assert_true(l.seen[i]);
    assert_true(l.others < 4095);
    kvp_joinlog_close(log);
    kvp_disk_destroy(disk);
    kvp_spaces_release(g.spaces, space);
    close_rig(&g);
    unlink(path);
    rmdir(dir);
}

static bool
make_room(void *arg)
{
    rig_t *g = arg;

    for (uint32_t j = 0; j < JOINS; j++)
        kvp_view_forget(g->views[j]);
    kvp_pools_forget(g->pools);
    return true;
}

/* Places of what the pool does not hold make room, too. */
TEST(test_room)
{
    uint32_t tokens[BLOCK];
    static rig_t g;

    open_rig_of(&g, 3, NULL, 1000);
    g.appliers[0].make_room = make_room;
    g.appliers[0].arg = &g;
    for (uint64_t n = 1; n <= 3000; n++) {
        kvp_event_t ev = {
            .kind = KVP_EVENT_STORED, .hashes = &n, .n = 1, .outside_from = 1, .tokens = tokens, .tokens_n = BLOCK};

        for (uint32_t i = 0; i < BLOCK; i++)
            tokens[i] = (uint32_t)n;
        kvp_events_apply_one(&g.appliers[0], &ev);
        ev.kind = KVP_EVENT_REMOVED;
        kvp_events_apply_one(&g.appliers[0], &ev);
        kvp_epoch_collect(&g.epoch);
    }
    assert_int_equal(g.appliers[0].done.skips[KVP_SKIP_too_many], 0);
    assert_int_equal(g.appliers[0].done.stored, 3000);
    close_rig(&g);
}

/* A pool's event clears its own medium; one without a medium clears both. */
TEST(test_cleared_is_of_a_medium)
{
    kvp_event_t ev = {.kind = KVP_EVENT_CLEARED,
                      .is_standard = true,
                      .backend = {"b", 1},
                      .tenant = {"default", 7},
                      .medium = {"cpu", 3}};
    static rig_t g;

    for (uint32_t turn = 0; turn < 3; turn++) {
        open_rig(&g, 10, NULL);
        memset(g.at, CPU | DISK, sizeof g.at);
        for (uint32_t i = 0; i < 200; i++)
            engine_event(&g);
        snapshot(&g);
        ev.medium = turn == 0 ? (kvp_text_t){"CPU", 3} : turn == 1 ? (kvp_text_t){"disk", 4} : (kvp_text_t){NULL, 0};
        kvp_pools_take(g.pools, &g.source, &ev);
        memset(g.at, turn == 0 ? DISK : turn == 1 ? CPU : 0, sizeof g.at);
        for (uint32_t i = 0; i < 50; i++)
            question(&g);
        for (uint32_t j = 0; j < JOINS; j++) {
            kvp_buf_t text;
            kvp_jsonw_t w;

            kvp_buf_init(&text, 0);
            kvp_jsonw_init(&w, &text);
            kvp_jsonw_open(&w, NULL, '{');
            kvp_join_write(g.joins[j], &w);
            kvp_jsonw_close(&w, '}');
            kvp_buf_append(&text, "", 1);
            char *blocks = strstr((char *)text.data, "\"blocks\":");
            assert_int_equal(strtoul(blocks + 9, NULL, 10), turn == 2 ? 0 : PROMPTS * DEPTH * GROUPS);
            kvp_buf_fini(&text);
        }
        close_rig(&g);
    }
}

/* Fails if salts and adapters that are not held any more keep their namespaces. */
TEST(test_salts_and_adapters_come_and_go)
{
    const uint32_t tokens[BLOCK] = {1};
    static rig_t g;
    char name[16];

    open_rig_of(&g, 3, NULL, 1000);
    g.appliers[0].make_room = make_room;
    g.appliers[0].arg = &g;
    for (uint64_t n = 1; n <= 100000; n++) {
        const size_t len = (size_t)snprintf(name, sizeof name, "%u", (unsigned)n);
        kvp_event_t ev = {
            .kind = KVP_EVENT_STORED, .hashes = &n, .n = 1, .outside_from = 1, .tokens = tokens, .tokens_n = BLOCK};

        *(n % 2 == 0 ? &ev.salt : &ev.lora) = (kvp_text_t){name, len};
        kvp_events_apply_one(&g.appliers[0], &ev);
        ev.kind = KVP_EVENT_REMOVED;
        kvp_events_apply_one(&g.appliers[0], &ev);
        kvp_epoch_collect(&g.epoch);
        if (n % 10000 != 0) continue;
        kvp_spaces_sweep(g.spaces, UINT32_MAX);
        kvp_spaces_sweep(g.spaces, UINT32_MAX); /* adapters of what the first one freed */
    }
    assert_int_equal(g.appliers[0].done.skips[KVP_SKIP_too_many], 0);
    assert_int_equal(g.appliers[0].done.stored, 100000);
    close_rig(&g);
}

static void
take_key(rig_t *g, kvp_event_kind_t kind, const char *key)
{
    static kvp_pool_source_t source;
    const kvp_event_t ev = {.kind = kind,
                            .medium = {"cpu", 3},
                            .tenant = {"default", 7},
                            .backend = {"b", 1},
                            .object_key = {key, strlen(key)}};

    kvp_pools_take(g->pools, &source, &ev);
}

/* Fails if names of ranks in keys of objects that have left leave no room for other ranks. */
TEST(test_names_of_ranks_come_and_go)
{
    static rig_t g;
    char key[128];

    open_rig(&g, 3, NULL);
    snprintf(key, sizeof key, "%s@tp_rank:0@0123456789abcdef", prefixes[0]);
    take_key(&g, KVP_EVENT_STORED, key);
    for (uint32_t i = 1; i < 1000; i++) {
        snprintf(key, sizeof key, "%s@tp_rank:%u@0123456789abcd00", prefixes[0], i);
        take_key(&g, KVP_EVENT_STORED, key);
        take_key(&g, KVP_EVENT_REMOVED, key);
    }
    for (uint32_t i = 0; i < ranks_of[0]; i++) {
        snprintf(key, sizeof key, "%s@tp_rank:%u@0123456789abcdef", prefixes[0], i + 5000 * (i > 0));
        take_key(&g, KVP_EVENT_STORED, key);
    }
    assert_int_equal(kvp_join_unjoined(g.joins[0]), 1); /* all parts of the block are there */
    close_rig(&g);
}

TEST(test_keys_that_are_none)
{
    static const char *const bad[] = {"",
                                      "a",
                                      "@tp_rank:",
                                      "m@tp_rank:0@",
                                      "m@tp_rank:0@pcp0@0123456789abcde",
                                      "m@tp_rank:0@0123456789abcdefg",
                                      "m@tp_rank:0@group:x@0123456789abcdef",
                                      "m@tp_rank:0@group:4294967296@0123456789abcdef",
                                      "0123456789abcdef",
                                      "m@tp_rank:0@group:00@0123456789abcdef",
                                      "m@tp_rank:0@group:0@0123456789ABCDEF",
                                      "m@tp_rank:0@group:0@group:0@0123456789abcdef",
                                      "@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@0123456789abcdef",
                                      "m@head_or_tp_rank:0@pp_rank:0@0123456789abcdef",
                                      "m@pcp0@head_or_tp_rank:0@pp_rank:0@0123456789abcdef",
                                      "m@pcp0@dcp0@head_or_tp_rank:x@pp_rank:0@0123456789abcdef",
                                      "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@hash",
                                      "m@pcp0@dcp0@head_or_tp_rank:0@7@0123456789abcde",
                                      "m@pcp0@dcp0@head_or_tp_rank:0@0123456789abcdef@7x"};
    static const char good[] = "p@m@tp_rank:1@pcp0@dcp0@pp_rank:2@group:3@ffffffffffffffff0123456789abcdef";
    kvp_connkey_t parts;

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        assert_false(kvp_connkey_read(bad[i], strlen(bad[i]), &parts));
    assert_true(kvp_connkey_read(good, strlen(good), &parts));
    assert_int_equal(parts.prefix_len, 3);
    assert_int_equal(parts.model_at, 2);
    assert_int_equal(parts.group, 3);
    assert_int_equal(parts.hash, 0x0123456789abcdefull);
    assert_memory_equal(parts.ranks, "tp_rank:1@pcp0@dcp0@pp_rank:2", parts.ranks_len);
    assert_int_equal(parts.ranks_len, strlen("tp_rank:1@pcp0@dcp0@pp_rank:2"));
}

/* vllm-ascend's keys, of its versions: what the block is, and which part of it the object is. */
TEST(test_keys_of_vllm_ascend)
{
    static const struct {
        const char *key, *part;
        uint32_t head, pp, group, layer;
    } good[] = {{"m/q@pcp1@dcp2@head_or_tp_rank:3@pp_rank:4@ab0123456789abcdef",
                 "pcp1@dcp2@head_or_tp_rank:3@pp_rank:4", 3, 4, 0, KVP_CONNKEY_NONE},
                {"m/q@pcp1@dcp2@head_or_tp_rank:3@pp_rank:4@group:5@cache_role:kv@cache_family:c4@ab0123456789abcdef",
                 "pcp1@dcp2@head_or_tp_rank:3@pp_rank:4@cache_role:kv@cache_family:c4", 3, 4, 5, KVP_CONNKEY_NONE},
                {"m/q@pcp1@dcp2@head_or_tp_rank:3@group:5@cache_role:kv@cache_family:c4@layer_id:6@ab0123456789abcdef",
                 "pcp1@dcp2@head_or_tp_rank:3@cache_role:kv@cache_family:c4@layer_id:6", 3, KVP_CONNKEY_NONE, 5, 6},
                {"m/q@pcp1@dcp2@head_or_tp_rank:3@ab0123456789abcdef@6", "pcp1@dcp2@head_or_tp_rank:3@6", 3,
                 KVP_CONNKEY_NONE, 0, 6}};

    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++) {
        kvp_connkey_t parts;
        char part[256];

        assert_true(kvp_connkey_read(good[i].key, strlen(good[i].key), &parts));
        assert_true(parts.prefix_len == 3 && parts.model_at == 0 && parts.hash == 0x0123456789abcdefull);
        assert_true(parts.hex_len == 18 && parts.pcp_rank == 1 && parts.dcp_rank == 2 &&
                    parts.tp_rank == KVP_CONNKEY_NONE);
        assert_true(parts.head_or_tp_rank == good[i].head && parts.pp_rank == good[i].pp);
        assert_true(parts.group == good[i].group && parts.layer_id == good[i].layer);
        snprintf(part, sizeof part, "%.*s%.*s", (int)parts.ranks_len, parts.ranks, (int)parts.more_len,
                 parts.more_len > 0 ? parts.more : "");
        assert_string_equal(part, good[i].part);
    }
}

TEST_MAIN()
