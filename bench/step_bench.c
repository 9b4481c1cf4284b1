/* SPDX-License-Identifier: Apache-2.0
 * The longest step of the master's core, in this process, while many keys come and go: puts, evictions, removals, bumps,
 * clients and nodes that are lost, a report to a master that knows nothing. `step_bench [-r RUNS] [KEYS ...]`, by default 3
 * runs of 1000000 keys. Exits with 1 where a step took more than 2 ms in every run.
 */
#include "bench/step_world.h"

#include "common/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern const char *malloc_conf;
__attribute__((visibility("default"))) const char *malloc_conf = "background_thread:true"; /* as the master's is */

#define VALUE_BYTES 256u
#define CHUNK_BYTES (64ull << 20)
#define BATCH 64u
#define RUNS 3u

/* ---- questions */
/* Begins puts of keys from..from + n, and returns the first attempt's number. */
static uint64_t
begin_puts(bench_t *b, uint64_t conn, uint64_t from, uint32_t n, uint64_t value_bytes)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    kvp_wire_put_t *recs = calloc(n, sizeof *recs);
    uint64_t first = b->attempts + 1;
    kvp_buf_t tail;
    uint32_t at = 0;

    kvp_buf_init(&tail, 0);
    kvp_buf_extend(&tail, n * sizeof *recs);
    for (uint32_t i = 0; recs != NULL && i < n; i++) {
        char key[KVP_KEY_MAX];
        uint32_t len = key_of(from + i, key);

        recs[i] = (kvp_wire_put_t){kvp_key_digest(SEED, 0, key, len), value_bytes, ++b->attempts, at, len};
        kvp_buf_append(&tail, key, len);
        at += len;
    }
    if (recs == NULL || tail.err != KVP_OK) kvp_panic("out of memory");
    memcpy(tail.data, recs, n * sizeof *recs);
    head.n = n;
    head.wait_ms = 10000;
    ask(b, conn, KVP_OP_PUT_BEGIN, &head.base, tail.data, tail.len);
    kvp_buf_fini(&tail);
    free(recs);
    return first;
}

static void
commit_puts(bench_t *b, uint64_t conn, uint64_t attempt, uint32_t n)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t *recs = calloc(n, sizeof *recs);

    if (recs == NULL) kvp_panic("out of memory");
    for (uint32_t i = 0; i < n; i++)
        recs[i] = (kvp_wire_commit_t){.attempt = attempt + i, .replicas = 1};
    head.n = n;
    ask(b, conn, KVP_OP_PUT_COMMIT, &head.base, recs, n * sizeof *recs);
    free(recs);
}

static void
put(bench_t *b, uint64_t from, uint64_t n, uint32_t batch)
{
    for (uint64_t i = 0; i < n; i += batch) {
        uint32_t some = (uint32_t)kvp_min_u64(batch, n - i);

        commit_puts(b, b->client, begin_puts(b, b->client, from + i, some, VALUE_BYTES), some);
    }
}

static void
ask_digests(bench_t *b, uint64_t conn, uint8_t op, const void *head, uint64_t from, uint32_t n)
{
    kvp_digest_t *digests = calloc(n, sizeof *digests);

    if (digests == NULL) kvp_panic("out of memory");
    for (uint32_t i = 0; i < n; i++)
        digests[i] = digest_of(from + i * 97);
    ask(b, conn, op, head, digests, n * sizeof *digests);
    free(digests);
}

static void
look(bench_t *b, uint64_t conn, uint64_t keys, uint32_t batch)
{
    Kvp__Pb__Exists exists = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Get get = KVP__PB__GET__INIT;

    exists.n = get.n = batch;
    for (uint64_t i = 0; i < 20; i++) {
        ask_digests(b, conn, KVP_OP_EXISTS, &exists.base, i * 12347 % (keys / 2), batch);
        ask_digests(b, conn, KVP_OP_GET, &get.base, i * 54321 % (keys / 2), batch);
    }
}

static void
reserve(bench_t *b, uint64_t conn, uint64_t keys)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;

    head.n = 4096;
    for (uint64_t i = 0; i < 64; i++)
        ask_digests(b, conn, KVP_OP_LOOKUP, &head.base, i * 4099 % (keys / 2), head.n);
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
            digests[k] = digest_of(from + i + k);
        ask(b, b->client, KVP_OP_REMOVE, &head.base, digests, head.n * sizeof *digests);
    }
}

static void
remove_many(bench_t *b, const char *pattern)
{
    Kvp__Pb__RemoveMany head = KVP__PB__REMOVE_MANY__INIT;

    head.pattern = (char *)pattern;
    head.force = true;
    ask(b, b->client, KVP_OP_REMOVE_MANY, &head.base, NULL, 0);
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

/* ---- what is done */
/* What a client did not end, and was not answered. */
static void
begin_many(bench_t *b, uint64_t conn, uint64_t from)
{
    for (uint64_t i = 0; i < 60000; i += 500)
        begin_puts(b, conn, from + i, 500, VALUE_BYTES);
}

static void
lose_clients(bench_t *b, uint64_t keys)
{
    uint64_t conn = greet(b, KVP_ROLE_CLIENT, "bench");

    reserve(b, conn, keys);
    print_steps(b, "look-ups that reserve, of 4096");
    hang_up(b, conn);
    print_steps(b, "a client with reservations is lost");
    conn = greet(b, KVP_ROLE_CLIENT, "bench");
    begin_many(b, conn, 2 * keys);
    print_steps(b, "60000 puts are begun");
    hang_up(b, conn);
    print_steps(b, "a client with 60000 unfinished puts is lost");
    conn = greet(b, KVP_ROLE_CLIENT, "bench");
    look(b, conn, keys, KVP_PLACES_MAX);
    b->steps = (steps_t){0};
    hang_up(b, conn);
    print_steps(b, "a client with 10000 objects held is lost");
}

static void
keys_come_and_go(bench_t *b, uint64_t keys)
{
    Kvp__Pb__Bump bump = KVP__PB__BUMP__INIT;
    uint64_t more;

    bench_open(b, 1);
    b->chunk_bytes = CHUNK_BYTES;
    b->size_bytes = kvp_align_up(keys * VALUE_BYTES + (64ull << 20), CHUNK_BYTES) + CHUNK_BYTES;
    start_node(b, "node", true);
    b->steps = (steps_t){0};

    put(b, 0, keys, BATCH);
    print_steps(b, "put, 64 in a message");
    look(b, b->client, keys, KVP_PLACES_MAX);
    print_steps(b, "exists and get, 512 in a message");
    list_and_status(b);
    print_steps(b, "list, status");
    lose_clients(b, keys);
    more = b->size_bytes / VALUE_BYTES;
    put(b, 4 * keys, more / 4, BATCH);
    print_steps(b, "put until the pool is full, and on");
    for (uint64_t i = 0; i < 8; i++)
        commit_puts(b, b->client, begin_puts(b, b->client, 8 * keys + i, 1, CHUNK_BYTES / 2), 1);
    print_steps(b, "put of 32 MiB where there is only 256 B");
    remove_many(b, "tp_rank:3@");
    print_steps(b, "remove an eighth by pattern");
    ask(b, b->client, KVP_OP_BUMP, &bump.base, NULL, 0);
    print_steps(b, "bump");
    if (bench_objects(b) != 0) kvp_panic("%lu objects outlive a bump", (unsigned long)bench_objects(b));
    put(b, 0, keys, KVP_PLACES_MAX);
    print_steps(b, "put, 512 in a message");
    remove_many(b, "");
    print_steps(b, "remove all");
    put(b, 0, keys, BATCH);
    print_steps(b, "put again, 64 in a message");
    hang_up(b, b->node);
    pass(b, 2 * GRACE_NS);
    print_steps(b, "the node is lost");
    if (bench_objects(b) != 0) kvp_panic("%lu objects outlive their node", (unsigned long)bench_objects(b));
    start_node(b, "node", true);
    print_steps(b, "a node comes");
    bench_close(b);
}

/* Puts that wait for windows in a pool that is full, whose node does not answer and is lost then. */
static void
windows_are_lost(bench_t *b, uint64_t keys)
{
    bench_open(b, 1);
    b->chunk_bytes = CHUNK_BYTES;
    b->size_bytes = CHUNK_BYTES;
    start_node(b, "node", true);
    put(b, 0, CHUNK_BYTES / VALUE_BYTES, BATCH);
    b->steps = (steps_t){0};
    b->is_mute = true;
    begin_many(b, b->client, 2 * keys);
    print_steps(b, "60000 puts wait for a node that does not answer");
    hang_up(b, b->node);
    print_steps(b, "it is lost");
    hang_up(b, b->client);
    print_steps(b, "and so is their client");
    bench_close(b);
}

/* As many chunks as a segment can have. */
static void
open_with_most_chunks(bench_t *b)
{
    bench_open(b, 2);
    b->chunk_bytes = 64u << 10;
    b->size_bytes = b->chunk_bytes << 16;
    b->steps = (steps_t){0};
}

static void
lose_all_chunks(bench_t *b)
{
    hang_up(b, b->node);
    pass(b, 2 * GRACE_NS);
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

    bench_open(b, 1);
    b->size_bytes = b->chunk_bytes = 64u << 10;
    b->steps = (steps_t){0};
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
    pass(b, 2 * GRACE_NS);
    print_steps(b, "and one of them is lost");
    bench_close(b);
}

/* Another node is told the tombstones of the one that is lost. */
static void
tombstones_are_told(bench_t *b, uint64_t keys)
{
    bench_open(b, 1);
    b->chunk_bytes = CHUNK_BYTES;
    b->size_bytes = kvp_align_up(keys * VALUE_BYTES, CHUNK_BYTES) + CHUNK_BYTES;
    start_node(b, "lost", true);
    put(b, 0, kvp_min_u64(keys, 250000), BATCH);
    hang_up(b, b->node);
    b->steps = (steps_t){0};
    remove_keys(b, 0, kvp_min_u64(keys, 100000));
    print_steps(b, "remove what lies on a lost node, 512 in a message");
    remove_many(b, "");
    print_steps(b, "and by pattern");
    start_node(b, "other", true);
    print_steps(b, "another node comes, and is told");
    bench_close(b);
}

static void
index_is_rebuilt(bench_t *b, uint64_t keys)
{
    bench_open(b, 2);
    b->chunk_bytes = CHUNK_BYTES;
    b->size_bytes = kvp_align_up(keys * TOLD_BYTES / 10 * 12, CHUNK_BYTES) + CHUNK_BYTES;
    b->steps = (steps_t){0};
    start_node(b, "node", false);
    report(b, keys);
    print_steps(b, "a node reports to a master that knows nothing");
    if (bench_objects(b) != keys) kvp_panic("%lu objects were adopted", (unsigned long)bench_objects(b));
    hang_up(b, b->node);
    pass(b, 2 * GRACE_NS);
    print_steps(b, "and is lost");
    bench_close(b);
}

/* Returns how many steps were long. */
static uint64_t
run(trace_t *trace, uint64_t keys, bool is_quiet)
{
    bench_t b = {.trace = trace, .is_quiet = is_quiet};

    if (kvp_pages_stock_start() != KVP_OK) kvp_panic("no stock of pages"); /* as the master has one */
    keys_come_and_go(&b, keys);
    windows_are_lost(&b, keys);
    chunks_come_and_go(&b);
    segments_come_and_go(&b);
    tombstones_are_told(&b, keys);
    index_is_rebuilt(&b, keys / 10);
    if (trace->n != 0 && trace->n != b.step)
        kvp_panic("one run has %lu steps, another %lu", (unsigned long)trace->n, (unsigned long)b.step);
    trace->n = b.step;
    kvp_pages_stock_stop();
    return b.over;
}

/* Each run has a process of its own, so that none begins with the memory of another. True where no step was long. */
static bool
run_all(uint64_t keys, uint64_t runs)
{
    trace_t *trace = mmap(NULL, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;

    if (trace == MAP_FAILED) kvp_panic("out of memory: times of steps");
    printf("%lu keys, the least of %lu runs\n", (unsigned long)keys, (unsigned long)runs);
    for (uint64_t i = 0; i < runs && (status == 0 || WIFEXITED(status)); i++) {
        pid_t pid = fork();

        if (pid == 0) exit(run(trace, keys, i + 1 < runs) == 0 ? 0 : 1);
        if (pid < 0 || waitpid(pid, &status, 0) != pid) kvp_panic("no process for a run: %m");
    }
    munmap(trace, sizeof *trace);
    return status == 0;
}

int
main(int argc, char **argv)
{
    uint64_t runs = RUNS;
    bool is_ok = true;
    int opt;

    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((opt = getopt(argc, argv, "r:")) == 'r')
        runs = strtoull(optarg, NULL, 10);
    if (opt != -1 || runs == 0) {
        fprintf(stderr, "usage: step_bench [-r RUNS] [KEYS ...]\n");
        return 2;
    }
    for (int i = optind; i < argc; i++)
        is_ok &= run_all(strtoull(argv[i], NULL, 10), runs);
    if (optind == argc) is_ok = run_all(1000000, runs);
    return is_ok ? 0 : 1;
}
