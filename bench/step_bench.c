/* SPDX-License-Identifier: Apache-2.0
 * The longest step of the master's core, in this process, under many changes: puts, evictions, removals, bumps, lost
 * clients and nodes, a report to a master without state. `step_bench [-c] [-r RUNS] [KEYS ...]`, by default 3 runs of
 * 1000000 keys. Exits with 1 if a step took more than 2 ms in every run. With -c, as in the test, the limit is on the
 * records that a step touches, and time has no limit. tests/world surrounds the core; only steps of the core are
 * measured, in processor time of the thread, so other programs do not count. */
#include "tests/world/report.h"

#include "common/clock.h"
#include "common/pages.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern const char *malloc_conf;
__attribute__((visibility("default"))) const char *malloc_conf = "background_thread:true"; /* as the master's is */

#define STEP_NS 20000u /* time that passes between two inputs */
#define LONG_NS 2000000u /* a step that takes longer is too long */
#define GRACE_NS SEC
#define SEED 1u
#define VALUE_BYTES 256u
#define CHUNK_BYTES (64ull << 20)
#define BATCH 64u
#define RUNS 3u
#define RECORDS_MOST 2048u /* records that a step may touch, for one message and for deferred work */

typedef struct {
    uint64_t n, total_ns, most_ns, over;
    uint64_t most_at, most_work, most_faults; /* of the longest step: its number, touched records, page faults */
    uint64_t records_most; /* of any */
} steps_t;

/* The steps after one input are the same in every run. So the least time of a step over several runs is the step's
 * own time; the rest of a run's time is the machine's. Shared by the processes of the runs. */
#define TRACE_STEPS (1u << 23)
typedef struct {
    uint64_t n; /* steps of a run */
    uint32_t least_ns[TRACE_STEPS];
} trace_t;

typedef struct {
    uint64_t ns, faults; /* of this thread, so far */
} spent_t;

typedef struct {
    world_t *w;
    peer_t *node, *client;
    uint64_t size_bytes, chunk_bytes; /* of the memory that start_node mounts */
    steps_t steps;
    trace_t *trace;
    spent_t begin; /* of the step under way */
    uint64_t step, work; /* steps of this run so far; touched records */
    uint64_t over; /* long steps so far */
    bool is_quiet; /* nothing is printed */
    bool is_counting; /* records are held to records_most, not time */
    uint64_t records_most;
} bench_t;

/* ---- steps */
static spent_t
spent(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_THREAD, &usage) != 0) kvp_panic("getrusage: %m");
    return (spent_t){kvp_thread_ns(), (uint64_t)usage.ru_minflt};
}

static void
count(bench_t *b)
{
    uint64_t ns = kvp_thread_ns() - b->begin.ns;
    steps_t *steps = &b->steps;
    uint32_t *least = &b->trace->least_ns[b->step];
    uint64_t work;

    if (b->step++ == TRACE_STEPS) kvp_panic("more than %u steps", TRACE_STEPS);
    if (*least == 0 || ns < *least) *least = (uint32_t)kvp_min_u64(ns, UINT32_MAX);
    work = world_stats(b->w).work;
    steps->n++;
    steps->total_ns += *least;
    steps->over += *least > LONG_NS;
    if (*least > steps->most_ns) {
        steps->most_ns = *least;
        steps->most_at = b->step;
        steps->most_work = work - b->work;
        steps->most_faults = spent().faults - b->begin.faults;
    }
    steps->records_most = kvp_max_u64(steps->records_most, work - b->work);
    b->work = work;
}

static void
print_steps(bench_t *b, const char *what)
{
    const steps_t *s = &b->steps;

    if (!b->is_quiet)
        printf("  %-46s %8.1f us at most (step %lu: %lu records, %lu page faults), %7.2f on average, %lu of %lu steps "
               "above 2 "
               "ms, %.2f s\n",
               what, (double)s->most_ns / 1e3, (unsigned long)s->most_at, (unsigned long)s->most_work,
               (unsigned long)s->most_faults, (double)s->total_ns / 1e3 / (double)s->n, (unsigned long)s->over,
               (unsigned long)s->n, (double)s->total_ns / 1e9);
    if (b->is_counting && s->records_most > b->records_most) {
        printf("  %s: a step touched %lu records\n", what, (unsigned long)s->records_most);
        b->over++;
    }
    if (!b->is_counting) b->over += s->over;
    b->steps = (steps_t){0};
}

static void
on_input(void *arg, bool is_over)
{
    bench_t *b = arg;

    if (is_over) {
        count(b);
        return;
    }
    b->w->now += STEP_NS;
    b->begin = spent();
}

/* ---- lifecycle */
static peer_t *
greet(bench_t *b, uint32_t role, const char *host)
{
    peer_t *p = peer_open(b->w);

    p->is_silent = true;
    assert_int_equal(peer_hello(p, role, "bench", host), KVP_OK);
    return p;
}

/* Opens a master of the term; a term above 1 means an earlier master. The step counters continue. */
static void
bench_open(bench_t *b, uint32_t term, uint64_t size_bytes, uint64_t chunk_bytes)
{
    kvp_master_conf_t conf = {.digest_seed = SEED,
                              .departed_bytes = 64ull << 20, /* the default */
                              .seed = 1,
                              .term = term,
                              .had_master = term > 1,
                              .node_grace_ns = GRACE_NS,
                              .session_ttl_ns = UINT64_MAX / 4};

    b->w = world_open(&conf);
    b->w->check_every = 0;
    b->w->on_input = on_input;
    b->w->hook_arg = b;
    b->work = 0;
    b->records_most = RECORDS_MOST;
    b->size_bytes = size_bytes;
    b->chunk_bytes = chunk_bytes;
    b->client = greet(b, KVP_ROLE_CLIENT, "bench");
    b->steps = (steps_t){0};
}

static void
bench_close(bench_t *b)
{
    world_close(b->w);
}

/* Runs all due work. */
static void
settle(bench_t *b)
{
    while (b->w->tick_ns <= b->w->now)
        world_tick(b->w);
}

static void
hang_up(bench_t *b, peer_t *p)
{
    peer_forget(p);
    settle(b);
}

/* ---- questions */
static void
take_answer(bench_t *b, peer_t *p, uint64_t id)
{
    reply_t *r;

    settle(b);
    r = peer_reply(p, id);
    if (r != NULL) reply_free(r); /* else it waits */
}

static void
ask(bench_t *b, peer_t *p, uint8_t op, const void *head, const void *tail, size_t tail_len)
{
    take_answer(b, p, peer_send(p, op, 0, head, tail, tail_len));
}

static uint32_t
key_of(uint64_t i, char key[KVP_KEY_MAX])
{
    return (uint32_t)snprintf(key, KVP_KEY_MAX, "llama-8b@tp_rank:%u@pp_rank:0@group:00000001@%032lx",
                              (unsigned)(i % 8), (unsigned long)(i * 0x9e3779b97f4a7c15ull));
}

static kvp_digest_t
digest_at(uint64_t i)
{
    char key[KVP_KEY_MAX];
    uint32_t len = key_of(i, key);

    return kvp_key_digest(SEED, 0, key, len);
}

/* Begins puts of keys from..from + n, and returns the first attempt's number. */
static uint64_t
begin_puts(bench_t *b, peer_t *c, uint64_t from, uint32_t n, uint64_t value_bytes)
{
    static char keys[KVP_PLACES_MAX][KVP_KEY_MAX];
    put_t puts[KVP_PLACES_MAX];

    for (uint32_t i = 0; i < n; i++)
        puts[i] = (put_t){.key = keys[i], .len = value_bytes, .key_len = key_of(from + i, keys[i])};
    take_answer(b, c, put_begin(c, puts, n, 10000));
    return puts[0].attempt;
}

static void
commit_puts(bench_t *b, peer_t *c, uint64_t attempt, uint32_t n)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t recs[KVP_PLACES_MAX];

    for (uint32_t i = 0; i < n; i++)
        recs[i] = (kvp_wire_commit_t){.attempt = attempt + i, .replicas = 1};
    head.n = n;
    ask(b, c, KVP_OP_PUT_COMMIT, &head.base, recs, n * sizeof *recs);
}

static void
put_keys(bench_t *b, uint64_t from, uint64_t n, uint32_t batch)
{
    for (uint64_t i = 0; i < n; i += batch) {
        uint32_t some = (uint32_t)kvp_min_u64(batch, n - i);

        commit_puts(b, b->client, begin_puts(b, b->client, from + i, some, VALUE_BYTES), some);
    }
}

static void
ask_digests(bench_t *b, peer_t *c, uint8_t op, const void *head, uint64_t from, uint32_t n)
{
    kvp_digest_t *digests = calloc(n, sizeof *digests);

    for (uint32_t i = 0; i < n; i++)
        digests[i] = digest_at(from + i * 97);
    ask(b, c, op, head, digests, n * sizeof *digests);
    free(digests);
}

static void
look(bench_t *b, peer_t *c, uint64_t keys, uint32_t batch)
{
    Kvp__Pb__Exists exists = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Get get = KVP__PB__GET__INIT;

    exists.n = get.n = batch;
    for (uint64_t i = 0; i < 20; i++) {
        ask_digests(b, c, KVP_OP_EXISTS, &exists.base, i * 12347 % (keys / 2), batch);
        ask_digests(b, c, KVP_OP_GET, &get.base, i * 54321 % (keys / 2), batch);
    }
}

static void
reserve(bench_t *b, peer_t *c, uint64_t keys)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;

    head.n = 4096;
    for (uint64_t i = 0; i < 64; i++)
        ask_digests(b, c, KVP_OP_LOOKUP, &head.base, i * 4099 % (keys / 2), head.n);
}

static void
remove_keys(bench_t *b, uint64_t from, uint64_t n)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digests[KVP_PLACES_MAX];

    head.force = true;
    for (uint64_t i = 0; i < n; i += head.n) {
        head.n = (uint32_t)kvp_min_u64(KVP_PLACES_MAX, n - i);
        for (uint32_t k = 0; k < head.n; k++)
            digests[k] = digest_at(from + i + k);
        ask(b, b->client, KVP_OP_REMOVE, &head.base, digests, head.n * sizeof *digests);
    }
}

static void
remove_all(bench_t *b, const char *pattern)
{
    take_answer(b, b->client, remove_many(b->client, pattern, true));
}

static void
list_and_status(bench_t *b)
{
    Kvp__Pb__List list = KVP__PB__LIST__INIT;
    Kvp__Pb__Status status = KVP__PB__STATUS__INIT;

    list.prefix = (ProtobufCBinaryData){4, (uint8_t *)(char *)"none"};
    ask(b, b->client, KVP_OP_LIST, &list.base, NULL, 0);
    list.prefix.len = 0;
    ask(b, b->client, KVP_OP_LIST, &list.base, NULL, 0);
    ask(b, b->client, KVP_OP_STATUS, &status.base, NULL, 0);
}

/* ---- a node's memory */
/* mount: of b->node. The memory is new, or of the term before: then the master wants a report of it. */
static void
mount(bench_t *b, const char *name, bool is_fresh)
{
    mem_t *mem = mem_make(b->w, name, b->size_bytes, b->chunk_bytes);

    b->node->mem = mem;
    mem->is_fresh = is_fresh;
    mem->term = is_fresh ? 0 : b->w->conf.term;
    mem->mounted_term = is_fresh ? 0 : b->w->conf.term - 1;
    assert_int_equal(node_ask_mount(b->node).err, KVP_OK);
    settle(b);
}

static void
start_node(bench_t *b, const char *name, bool is_fresh)
{
    b->node = greet(b, KVP_ROLE_NODE, name);
    mount(b, name, is_fresh);
}

#define PAGE_RECORDS 256u
#define GAP_EVERY 10u /* one object of GAP_EVERY is missing */
#define TOLD_BYTES 512u /* memory of each reported object */
#define LONG_KEY_LEN 180u

/* Slots and places of long keys are in no order, as churn leaves them: i times an odd number, modulo a power of two. */
static uint32_t
scatter(uint64_t i, uint32_t n)
{
    return (uint32_t)(i * 0x9e3779b1u) & (n - 1);
}

/* Object number i of the memory. */
static void
tell(const kvp_chunk_geo_t *geo, uint32_t per_chunk, uint64_t i, extent_t *out)
{
    uint32_t at = (uint32_t)(i % per_chunk);
    kvp_desc_t *d = &out->desc;

    out->rec = (kvp_wire_extent_t){.chunk = (uint32_t)(i / per_chunk), .slot = scatter(at, per_chunk)};
    *d = (kvp_desc_t){.len = TOLD_BYTES, .offset = (uint64_t)at * TOLD_BYTES, .term = 1};
    d->key_len = (uint16_t)key_of(i, out->key);
    d->key_off = kvp_key_cell_units(geo, out->rec.slot);
    if (i % 4 == 0) {
        memset(out->key + d->key_len, '+', LONG_KEY_LEN - d->key_len);
        d->key_len = LONG_KEY_LEN;
        d->key_off = (uint32_t)(geo->long_keys_off / 64) + scatter(at / 4, per_chunk / 4) * 3;
    }
    d->version = kvp_gen_make(1, i + 1);
    d->word = out->rec.word = kvp_word_make(d->version, KVP_DESC_SEALED);
    d->digest = kvp_key_digest(SEED, 0, out->key, d->key_len);
    d->key_hash2 = kvp_key_hash2(SEED, 0, out->key, d->key_len);
    kvp_desc_seal(d);
}

/* The node reports n objects, one in four with a long key, like a full pool. */
static void
report(bench_t *b, uint64_t n)
{
    static extent_t page[PAGE_RECORDS];
    uint32_t per_chunk = (uint32_t)(b->chunk_bytes / TOLD_BYTES);
    kvp_chunk_geo_t geo;

    kvp_chunk_geo(b->chunk_bytes, &geo);
    for (uint64_t i = 0, told = 0; told < n;) {
        uint32_t some = 0;

        for (; some < PAGE_RECORDS && told < n; i++) {
            if (i % GAP_EVERY == 0) continue;
            tell(&geo, per_chunk, i, &page[some++]);
            told++;
        }
        assert_true(report_take(b->node, report_send(b->node, page, some, false), page, some));
        settle(b);
    }
    assert_true(report_end(b->node));
    settle(b);
}

/* ---- the inputs */
/* What a client did not end, and was not answered. */
static void
begin_many(bench_t *b, peer_t *c, uint64_t from)
{
    for (uint64_t i = 0; i < 28000; i += 500)
        begin_puts(b, c, from + i, 500, VALUE_BYTES);
}

/* Reservations of clients that have used up their share of the pool. For a master that stood still,
 * all reservations end at the same time. */
static void
reservations_end(bench_t *b, uint64_t keys)
{
    peer_t *clients[4];

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(clients); i++) {
        clients[i] = greet(b, KVP_ROLE_CLIENT, "bench");
        reserve(b, clients[i], keys);
    }
    assert_true(world_stats(b->w).reserved_bytes > 4 * RECORDS_MOST * VALUE_BYTES);
    b->steps = (steps_t){0};
    world_jump(b->w, 11 * SEC);
    settle(b);
    assert_int_equal(world_stats(b->w).reserved_bytes, 0);
    print_steps(b, "reservations of four clients end at once");
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(clients); i++)
        hang_up(b, clients[i]);
}

static void
holds_end(bench_t *b, uint64_t keys)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;
    peer_t *c = greet(b, KVP_ROLE_CLIENT, "bench");
    uint64_t held;

    look(b, c, keys, KVP_PLACES_MAX);
    held = world_stats(b->w).held_bytes;
    b->steps = (steps_t){0};
    head.n = KVP_ARRAY_LEN(c->tickets);
    (void)peer_send(c, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &head.base, c->tickets, sizeof c->tickets);
    settle(b);
    assert_true(held - world_stats(b->w).held_bytes > 2 * RECORDS_MOST * VALUE_BYTES);
    print_steps(b, "8000 holds are released by one message");
    hang_up(b, c);
}

static void
lose_clients(bench_t *b, uint64_t keys)
{
    peer_t *c = greet(b, KVP_ROLE_CLIENT, "bench");
    uint64_t held = world_stats(b->w).held_bytes;

    reserve(b, c, keys);
    print_steps(b, "look-ups that reserve, of 4096");
    hang_up(b, c);
    print_steps(b, "a client with reservations is lost");
    c = greet(b, KVP_ROLE_CLIENT, "bench");
    begin_many(b, c, 2 * keys);
    print_steps(b, "28000 puts are begun");
    hang_up(b, c);
    assert_int_equal(world_stats(b->w).attempts, 0);
    print_steps(b, "a client with 28000 unfinished puts is lost");
    c = greet(b, KVP_ROLE_CLIENT, "bench");
    look(b, c, keys, KVP_PLACES_MAX);
    b->steps = (steps_t){0};
    hang_up(b, c);
    assert_int_equal(world_stats(b->w).held_bytes, held);
    print_steps(b, "a client with 10000 objects held is lost");
    if (!b->is_counting) return;
    holds_end(b, keys);
    reservations_end(b, keys);
}

static void
keys_come_and_go(bench_t *b, uint64_t keys)
{
    Kvp__Pb__Bump bump = KVP__PB__BUMP__INIT;
    uint64_t more;

    bench_open(b, 1, kvp_align_up(keys * VALUE_BYTES + CHUNK_BYTES, CHUNK_BYTES) + CHUNK_BYTES, CHUNK_BYTES);
    start_node(b, "node", true);
    b->steps = (steps_t){0};

    put_keys(b, 0, keys, BATCH);
    print_steps(b, "put, 64 in a message");
    look(b, b->client, keys, KVP_PLACES_MAX);
    print_steps(b, "exists and get, 512 in a message");
    list_and_status(b);
    print_steps(b, "list, status");
    lose_clients(b, keys);
    more = b->size_bytes / VALUE_BYTES;
    put_keys(b, 4 * keys, more / 4, BATCH);
    print_steps(b, "put until the pool is full, and on");
    for (uint64_t i = 0; i < 8; i++)
        commit_puts(b, b->client, begin_puts(b, b->client, 8 * keys + i, 1, CHUNK_BYTES / 2), 1);
    if (b->is_counting) assert_true(world_stats(b->w).evict_window > 16 * RECORDS_MOST);
    print_steps(b, "put of 32 MiB where there is only 256 B");
    remove_all(b, "tp_rank:3@");
    print_steps(b, "remove an eighth by pattern");
    bump.is_all = true;
    ask(b, b->client, KVP_OP_BUMP, &bump.base, NULL, 0);
    print_steps(b, "bump");
    if (world_stats(b->w).objects != 0)
        kvp_panic("%lu objects outlive a bump", (unsigned long)world_stats(b->w).objects);
    put_keys(b, 0, keys, KVP_PLACES_MAX);
    print_steps(b, "put, 512 in a message");
    remove_all(b, "");
    print_steps(b, "remove all");
    put_keys(b, 0, keys, BATCH);
    print_steps(b, "put again, 64 in a message");
    hang_up(b, b->node);
    world_advance(b->w, 2 * GRACE_NS);
    print_steps(b, "the node is lost");
    if (world_stats(b->w).objects != 0)
        kvp_panic("%lu objects outlive their node", (unsigned long)world_stats(b->w).objects);
    start_node(b, "node", true);
    print_steps(b, "a node comes");
    bench_close(b);
}

/* Puts that wait for windows in a pool that is full, whose node does not answer and is lost then. */
static void
windows_are_lost(bench_t *b, uint64_t keys)
{
    bench_open(b, 1, CHUNK_BYTES, CHUNK_BYTES);
    start_node(b, "node", true);
    put_keys(b, 0, CHUNK_BYTES / VALUE_BYTES, BATCH);
    b->steps = (steps_t){0};
    b->node->policy = NODE_MUTE;
    begin_many(b, b->client, 2 * keys);
    print_steps(b, "28000 puts wait for a node that does not answer");
    hang_up(b, b->node);
    print_steps(b, "it is lost");
    b->records_most = RECORDS_MOST;
    hang_up(b, b->client);
    print_steps(b, "and so is their client");
    bench_close(b);
}

/* Other puts wait until their deadline. */
static void
puts_are_due(bench_t *b, uint64_t keys)
{
    bench_open(b, 1, CHUNK_BYTES, CHUNK_BYTES);
    start_node(b, "node", true);
    put_keys(b, 0, CHUNK_BYTES / VALUE_BYTES, BATCH);
    b->node->policy = NODE_MUTE;
    begin_many(b, b->client, 2 * keys);
    assert_true(world_stats(b->w).pending_puts > 8 * RECORDS_MOST);
    b->steps = (steps_t){0};
    world_advance(b->w, 11 * SEC);
    assert_int_equal(world_stats(b->w).pending_puts, 0);
    print_steps(b, "28000 puts have waited for too long");
    bench_close(b);
}

/* Whose answers come all at once. */
static void
node_is_slow(bench_t *b)
{
    enum { KEYS = 20000 };

    bench_open(b, 1, CHUNK_BYTES, CHUNK_BYTES);
    start_node(b, "node", true);
    put_keys(b, 0, KEYS, BATCH);
    b->node->policy = NODE_DEAD_ONLY;
    b->steps = (steps_t){0};
    remove_all(b, "");
    assert_int_equal(world_stats(b->w).retiring_bytes, KEYS * VALUE_BYTES);
    node_free_all(b->node);
    settle(b);
    assert_int_equal(world_stats(b->w).used_bytes, 0);
    print_steps(b, "all is removed, and free later");
    bench_close(b);
}

/* Evicts all objects of another tenant from the chunk. */
static void
chunk_is_taken(bench_t *b)
{
    enum { CHUNKS = 4 };
    peer_t *c;

    bench_open(b, 1, CHUNKS * MIB, MIB);
    start_node(b, "node", true);
    c = peer_open(b->w);
    c->is_silent = true;
    c->tenant = 1;
    assert_int_equal(peer_hello(c, KVP_ROLE_CLIENT, "bench", "bench"), KVP_OK);
    put_fast(b->client, "idle", 6, 3 * MIB / VALUE_BYTES);
    b->steps = (steps_t){0};
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(put_wait(c, key_name("mine", i), 64 * KIB, 2000), KVP_OK);
    assert_true(world_stats(b->w).chunks_taken > 0);
    assert_true(world_stats(b->w).evictions > RECORDS_MOST);
    print_steps(b, "chunks of another tenant are taken");
    bench_close(b);
}

/* As many chunks as a segment can have. */
static void
open_with_most_chunks(bench_t *b)
{
    bench_open(b, 2, 64 * KIB << 16, 64 * KIB);
}

static void
lose_all_chunks(bench_t *b)
{
    hang_up(b, b->node);
    world_advance(b->w, 2 * GRACE_NS);
    print_steps(b, "and lost");
    bench_close(b);
}

static void
chunks_come_and_go(bench_t *b)
{
    open_with_most_chunks(b);
    start_node(b, "node", true);
    print_steps(b, "a segment of 65536 chunks is mounted");
    lose_all_chunks(b);
    open_with_most_chunks(b);
    start_node(b, "node", false);
    report(b, 1000);
    print_steps(b, "one such is reported");
    lose_all_chunks(b);
}

/* Many segments, each on a host with others. */
static void
segments_come_and_go(bench_t *b)
{
    enum { NODES = 64, SEGMENTS = 64 };
    char host[16], name[32];

    bench_open(b, 1, 64 * KIB, 64 * KIB);
    for (uint32_t i = 0; i < NODES; i++) {
        snprintf(host, sizeof host, "host %u", i);
        b->node = greet(b, KVP_ROLE_NODE, host);
        for (uint32_t k = 0; k < SEGMENTS; k++) {
            snprintf(name, sizeof name, "segment %u of %u", k, i);
            mount(b, name, true);
        }
    }
    print_steps(b, "64 nodes come, with 64 segments each");
    hang_up(b, b->node);
    world_advance(b->w, 2 * GRACE_NS);
    print_steps(b, "and one of them is lost");
    bench_close(b);
}

/* What lies on a lost node is removed. */
static void
lost_keys_are_removed(bench_t *b, uint64_t keys)
{
    bench_open(b, 1, kvp_align_up(keys * VALUE_BYTES, CHUNK_BYTES) + CHUNK_BYTES, CHUNK_BYTES);
    start_node(b, "lost", true);
    put_keys(b, 0, kvp_min_u64(keys, 250000), BATCH);
    hang_up(b, b->node);
    b->steps = (steps_t){0};
    b->records_most = RECORDS_MOST + 16 * KVP_PLACES_MAX; /* bounded by the message */
    remove_keys(b, 0, kvp_min_u64(keys, 100000));
    print_steps(b, "remove what lies on a lost node, 512 in a message");
    remove_all(b, "");
    print_steps(b, "and by pattern");
    b->records_most = RECORDS_MOST;
    bench_close(b);
}

static void
index_is_rebuilt(bench_t *b, uint64_t keys)
{
    bench_open(b, 2, kvp_align_up(keys * TOLD_BYTES / 10 * 12, CHUNK_BYTES) + CHUNK_BYTES, CHUNK_BYTES);
    start_node(b, "node", false);
    report(b, keys);
    print_steps(b, "a node reports to a master that knows nothing");
    if (world_stats(b->w).objects != keys)
        kvp_panic("%lu objects were adopted", (unsigned long)world_stats(b->w).objects);
    hang_up(b, b->node);
    world_advance(b->w, 2 * GRACE_NS);
    print_steps(b, "and is lost");
    bench_close(b);
}

/* Returns how many steps were long. */
static uint64_t
run(trace_t *trace, uint64_t keys, bool is_quiet, bool is_counting)
{
    bench_t b = {.trace = trace, .is_quiet = is_quiet, .is_counting = is_counting};

    if (kvp_pages_stock_start() != KVP_OK) kvp_panic("no stock of pages"); /* as in the master */
    keys_come_and_go(&b, keys);
    windows_are_lost(&b, keys);
    if (is_counting) {
        puts_are_due(&b, keys);
        node_is_slow(&b);
        chunk_is_taken(&b);
    }
    chunks_come_and_go(&b);
    segments_come_and_go(&b);
    lost_keys_are_removed(&b, keys);
    index_is_rebuilt(&b, keys / 10);
    if (trace->n != 0 && trace->n != b.step)
        kvp_panic("one run has %lu steps, another %lu", (unsigned long)trace->n, (unsigned long)b.step);
    trace->n = b.step;
    kvp_pages_stock_stop();
    return b.over;
}

/* Each run has a process of its own, so that none begins with the memory of another. True where no step was long. */
static bool
run_all(uint64_t keys, uint64_t runs, bool is_counting)
{
    trace_t *trace = mmap(NULL, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;

    if (trace == MAP_FAILED) kvp_panic("out of memory: times of steps");
    printf("%lu keys, the least of %lu runs\n", (unsigned long)keys, (unsigned long)runs);
    for (uint64_t i = 0; i < runs && (status == 0 || WIFEXITED(status)); i++) {
        pid_t pid = fork();

        if (pid == 0) exit(run(trace, keys, i + 1 < runs, is_counting) == 0 ? 0 : 1);
        if (pid < 0 || waitpid(pid, &status, 0) != pid) kvp_panic("no process for a run: %m");
    }
    munmap(trace, sizeof *trace);
    return status == 0;
}

int
main(int argc, char **argv)
{
    uint64_t runs = RUNS;
    bool is_ok = true, is_counting = false;
    int opt;

    setvbuf(stdout, NULL, _IOLBF, 0);
    /* a broken rule of the world aborts, because no cmocka test is running that could fail */
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    while ((opt = getopt(argc, argv, "cr:")) == 'r' || opt == 'c') {
        if (opt == 'r') runs = strtoull(optarg, NULL, 10);
        if (opt == 'c') is_counting = true;
    }
    if (opt != -1 || runs == 0) {
        fprintf(stderr, "usage: step_bench [-c] [-r RUNS] [KEYS ...]\n");
        return 2;
    }
    for (int i = optind; i < argc; i++)
        is_ok &= run_all(strtoull(argv[i], NULL, 10), runs, is_counting);
    if (optind == argc) is_ok = run_all(1000000, runs, is_counting);
    return is_ok ? 0 : 1;
}
