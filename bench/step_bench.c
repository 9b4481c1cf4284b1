/* SPDX-License-Identifier: Apache-2.0
 * The longest step of the master's core, in this process, while many keys come and go: puts, evictions, removals, bumps,
 * clients and nodes that are lost. What counts is the processor's time of the thread, so that other programs do not. The
 * node is one of a few lines, which frees at once what it is told to. `step_bench [KEYS ...]`, by default 1000000.
 */
#include "common/hash.h"
#include "common/segfmt.h"
#include "master/core/master.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VALUE_BYTES 256u
#define CHUNK_BYTES (64ull << 20)
#define BATCH 64u
#define STEP_NS 20000u /* that pass between two inputs */
#define LONG_NS 2000000u
#define GRACE_NS 1000000000ull
#define SEED 1u

typedef struct {
    uint64_t n, total_ns, most_ns, over;
} steps_t;

typedef struct {
    kvp_master_t *core;
    uint64_t now_ns, requests, attempts, conns;
    uint64_t node, client;
    uint32_t mounts;
    uint64_t size_bytes;
    kvp_buf_t out, in;
    steps_t steps;
} bench_t;

static uint64_t
cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- steps */
static void
count(bench_t *b, uint64_t ns)
{
    b->steps.n++;
    b->steps.total_ns += ns;
    b->steps.over += ns > LONG_NS;
    if (ns > b->steps.most_ns) b->steps.most_ns = ns;
}

static void
print(bench_t *b, const char *what)
{
    printf("  %-44s %9.1f us at most, %7.2f us on average, %lu of %lu steps above 2 ms\n", what,
           (double)b->steps.most_ns / 1e3, (double)b->steps.total_ns / 1e3 / (double)b->steps.n,
           (unsigned long)b->steps.over, (unsigned long)b->steps.n);
    b->steps = (steps_t){0};
}

static void
tick(bench_t *b)
{
    uint64_t begin = cpu_ns();

    b->now_ns += STEP_NS;
    kvp_master_on_tick(b->core, b->now_ns);
    count(b, cpu_ns() - begin);
}

static void
send(bench_t *b, uint64_t conn, const kvp_buf_t *bytes)
{
    kvp_frame_t frame;
    uint64_t begin;
    size_t used;

    if (kvp_frame_parse(bytes->data, bytes->len, &frame, &used) != KVP_OK || used != bytes->len)
        kvp_panic("a frame of our own is malformed");
    b->now_ns += STEP_NS;
    begin = cpu_ns();
    kvp_master_on_frame(b->core, conn, &frame, b->now_ns);
    count(b, cpu_ns() - begin);
}

/* ---- a node that obeys at once */
static void
obey(bench_t *b, const kvp_frame_t *order)
{
    Kvp__Pb__Reply head = KVP__PB__REPLY__INIT;
    uint8_t *flags;
    size_t n = order->tail_len / sizeof(kvp_wire_slot_t), at;

    kvp_buf_reset(&b->in);
    kvp_pb_frame_begin(&b->in, order->hdr.opcode, KVP_FRAME_REPLY, order->hdr.request_id, &head.base, &at);
    flags = kvp_buf_extend(&b->in, n);
    if (flags != NULL) memset(flags, KVP_RETIRE_DEAD | KVP_RETIRE_FREE, n);
    kvp_frame_end(&b->in, at);
    send(b, b->node, &b->in);
}

static void
hear(bench_t *b, uint64_t conn, const kvp_buf_t *bytes)
{
    kvp_frame_t frame;
    size_t used;

    for (size_t at = 0; conn == b->node && at < bytes->len; at += used) {
        if (kvp_frame_parse(bytes->data + at, bytes->len - at, &frame, &used) != KVP_OK || used == 0)
            kvp_panic("a malformed frame");
        if (frame.hdr.opcode == KVP_OP_RETIRE && (frame.hdr.flags & KVP_FRAME_REPLY) == 0) obey(b, &frame);
    }
}

/* Takes the outputs, and goes on until the core has nothing to do. */
static void
settle(bench_t *b)
{
    kvp_buf_t bytes;
    uint64_t conn;
    bool is_last;

    kvp_buf_init(&bytes, 0);
    for (;;) {
        while (kvp_master_take_output(b->core, &conn, &bytes, &is_last)) {
            hear(b, conn, &bytes);
            kvp_buf_reset(&bytes);
            if (is_last) kvp_panic("the core closes a connection: %s", kvp_master_take_note(b->core));
        }
        if (!kvp_master_has_work(b->core) && kvp_master_due(b->core) > b->now_ns) break;
        tick(b);
    }
    kvp_buf_fini(&bytes);
}

static void
pass(bench_t *b, uint64_t ns)
{
    for (uint64_t end = b->now_ns + ns; b->now_ns < end; settle(b)) {
        b->now_ns = kvp_max_u64(b->now_ns, kvp_min_u64(end, kvp_master_due(b->core)));
        tick(b);
    }
}

/* ---- questions */
static void
ask(bench_t *b, uint64_t conn, uint8_t op, const void *head, const void *tail, size_t tail_len)
{
    size_t at;

    kvp_buf_reset(&b->out);
    kvp_pb_frame_begin(&b->out, op, 0, ++b->requests, head, &at);
    kvp_buf_append(&b->out, tail, tail_len);
    kvp_frame_end(&b->out, at);
    send(b, conn, &b->out);
    settle(b);
}

static uint64_t
greet(bench_t *b, uint32_t role)
{
    Kvp__Pb__Hello head = KVP__PB__HELLO__INIT;

    head.version = head.version_min = KVP_PROTO_VERSION;
    head.role = role;
    head.name = head.host_id = (char *)"bench";
    kvp_master_on_connect(b->core, ++b->conns, b->now_ns);
    ask(b, b->conns, KVP_OP_HELLO, &head.base, NULL, 0);
    return b->conns;
}

static void
hang_up(bench_t *b, uint64_t conn)
{
    uint64_t begin = cpu_ns();

    kvp_master_on_close(b->core, conn, b->now_ns);
    count(b, cpu_ns() - begin);
    settle(b);
}

static void
start_node(bench_t *b)
{
    Kvp__Pb__Mount head = KVP__PB__MOUNT__INIT;
    uint8_t uuid[16] = {0};

    memcpy(uuid, &b->mounts, sizeof b->mounts);
    b->mounts++;
    b->node = greet(b, KVP_ROLE_NODE);
    head.name = (char *)"node";
    head.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    head.epoch = b->mounts;
    head.is_fresh = true;
    head.size_bytes = b->size_bytes;
    head.chunk_bytes = CHUNK_BYTES;
    head.addr = head.unix_path = head.transports = (char *)"";
    ask(b, b->node, KVP_OP_MOUNT, &head.base, NULL, 0);
}

static uint32_t
key_of(uint64_t i, char key[KVP_KEY_MAX])
{
    return (uint32_t)snprintf(key, KVP_KEY_MAX, "llama-8b@tp_rank:%u@pp_rank:0@group:00000001@%032lx",
                              (unsigned)(i % 8), (unsigned long)(i * 0x9e3779b97f4a7c15ull));
}

static kvp_digest_t
digest_of(uint64_t i)
{
    char key[KVP_KEY_MAX];
    uint32_t len = key_of(i, key);

    return kvp_key_digest(SEED, 0, key, len);
}

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
remove_many(bench_t *b, const char *pattern)
{
    Kvp__Pb__RemoveMany head = KVP__PB__REMOVE_MANY__INIT;

    head.pattern = (char *)pattern;
    head.force = true;
    ask(b, b->client, KVP_OP_REMOVE_MANY, &head.base, NULL, 0);
}

static uint64_t
objects(const bench_t *b)
{
    kvp_master_stats_t st;

    kvp_master_stats(b->core, &st);
    return st.objects;
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
static void
lose_clients(bench_t *b, uint64_t keys)
{
    uint64_t conn = greet(b, KVP_ROLE_CLIENT);

    reserve(b, conn, keys);
    print(b, "look-ups that reserve, of 4096");
    hang_up(b, conn);
    print(b, "a client with reservations is lost");
    conn = greet(b, KVP_ROLE_CLIENT);
    for (uint64_t i = 0; i < 60000; i += 500)
        begin_puts(b, conn, 2 * keys + i, 500, VALUE_BYTES);
    b->steps = (steps_t){0};
    hang_up(b, conn);
    print(b, "a client with 60000 unfinished puts is lost");
    conn = greet(b, KVP_ROLE_CLIENT);
    look(b, conn, keys, KVP_PLACES_MAX);
    b->steps = (steps_t){0};
    hang_up(b, conn);
    print(b, "a client with 10000 objects held is lost");
}

static void
run(uint64_t keys)
{
    kvp_master_conf_t conf = {.digest_seed = SEED,
                              .seed = 1,
                              .term = 1,
                              .host_id = "bench",
                              .node_grace_ns = GRACE_NS,
                              .session_ttl_ns = UINT64_MAX / 4};
    bench_t b = {.now_ns = 1};
    Kvp__Pb__Bump bump = KVP__PB__BUMP__INIT;
    uint64_t more;

    kvp_buf_init(&b.out, 0);
    kvp_buf_init(&b.in, 0);
    b.size_bytes = kvp_align_up(keys * VALUE_BYTES + (64ull << 20), CHUNK_BYTES) + CHUNK_BYTES;
    if (kvp_master_create(&conf, b.now_ns, &b.core) != KVP_OK) kvp_panic("no master");
    start_node(&b);
    b.client = greet(&b, KVP_ROLE_CLIENT);
    printf("%lu keys\n", (unsigned long)keys);
    b.steps = (steps_t){0};

    put(&b, 0, keys, BATCH);
    print(&b, "put, 64 in a message");
    look(&b, b.client, keys, KVP_PLACES_MAX);
    print(&b, "exists and get, 512 in a message");
    list_and_status(&b);
    print(&b, "list, status");
    lose_clients(&b, keys);
    more = b.size_bytes / VALUE_BYTES;
    put(&b, 4 * keys, more / 4, BATCH);
    print(&b, "put until the pool is full, and on");
    for (uint64_t i = 0; i < 8; i++)
        commit_puts(&b, b.client, begin_puts(&b, b.client, 8 * keys + i, 1, CHUNK_BYTES / 2), 1);
    print(&b, "put of 32 MiB where there is only 256 B");
    remove_many(&b, "tp_rank:3@");
    print(&b, "remove an eighth by pattern");
    ask(&b, b.client, KVP_OP_BUMP, &bump.base, NULL, 0);
    print(&b, "bump");
    if (objects(&b) != 0) kvp_panic("%lu objects outlive a bump", (unsigned long)objects(&b));
    put(&b, 0, keys, KVP_PLACES_MAX);
    print(&b, "put, 512 in a message");
    remove_many(&b, "");
    print(&b, "remove all");
    put(&b, 0, keys, BATCH);
    b.steps = (steps_t){0};
    hang_up(&b, b.node);
    pass(&b, 2 * GRACE_NS);
    print(&b, "the node is lost");
    if (objects(&b) != 0) kvp_panic("%lu objects outlive their node", (unsigned long)objects(&b));
    start_node(&b);
    print(&b, "a node comes");

    kvp_master_destroy(b.core);
    kvp_buf_fini(&b.out);
    kvp_buf_fini(&b.in);
}

int
main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++)
        run(strtoull(argv[i], NULL, 10));
    if (argc == 1) run(1000000);
    return 0;
}
