/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/step_world.h"

#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- steps */
typedef struct {
    uint64_t ns, faults; /* of this thread, so far */
} spent_t;

static spent_t
spent(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_THREAD, &usage) != 0) kvp_panic("getrusage: %m");
    return (spent_t){kvp_thread_ns(), (uint64_t)usage.ru_minflt};
}

static void
count(bench_t *b, spent_t begin)
{
    uint64_t ns = kvp_thread_ns() - begin.ns;
    steps_t *steps = &b->steps;
    uint32_t *least = &b->trace->least_ns[b->step];
    kvp_master_stats_t st;

    if (b->step++ == TRACE_STEPS) kvp_panic("more than %u steps", TRACE_STEPS);
    if (*least == 0 || ns < *least) *least = (uint32_t)kvp_min_u64(ns, UINT32_MAX);
    kvp_master_stats(b->core, &st);
    steps->n++;
    steps->total_ns += *least;
    steps->over += *least > LONG_NS;
    if (*least > steps->most_ns) {
        steps->most_ns = *least;
        steps->most_at = b->step;
        steps->most_work = st.work - b->work;
        steps->most_faults = spent().faults - begin.faults;
    }
    b->work = st.work;
}

void
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
    b->over += b->steps.over;
    b->steps = (steps_t){0};
}

static void
tick(bench_t *b)
{
    spent_t begin = spent();

    b->now_ns += STEP_NS;
    kvp_master_on_tick(b->core, b->now_ns);
    count(b, begin);
}

static void
send(bench_t *b, uint64_t conn, const kvp_buf_t *bytes)
{
    kvp_frame_t frame;
    spent_t begin;
    size_t used;

    if (kvp_frame_parse(bytes->data, bytes->len, &frame, &used) != KVP_OK || used != bytes->len)
        kvp_panic("a frame of our own is malformed");
    b->now_ns += STEP_NS;
    begin = spent();
    kvp_master_on_frame(b->core, conn, &frame, b->now_ns);
    count(b, begin);
}

/* ---- lifecycle */
void
bench_open(bench_t *b, uint32_t term)
{
    kvp_master_conf_t conf = {.digest_seed = SEED,
                              .seed = 1,
                              .term = term,
                              .had_master = term > 1,
                              .host_id = "bench",
                              .node_grace_ns = GRACE_NS,
                              .session_ttl_ns = UINT64_MAX / 4};

    *b = (bench_t){
        .now_ns = 1, .term = term, .trace = b->trace, .step = b->step, .over = b->over, .is_quiet = b->is_quiet};
    kvp_buf_init(&b->out, 0);
    kvp_buf_init(&b->in, 0);
    kvp_buf_init(&b->answer, 0);
    if (kvp_master_create(&conf, b->now_ns, &b->core) != KVP_OK) kvp_panic("no master");
    b->client = greet(b, KVP_ROLE_CLIENT, "bench");
}

void
bench_close(bench_t *b)
{
    kvp_master_destroy(b->core);
    kvp_buf_fini(&b->out);
    kvp_buf_fini(&b->in);
    kvp_buf_fini(&b->answer);
}

uint64_t
bench_objects(const bench_t *b)
{
    kvp_master_stats_t st;

    kvp_master_stats(b->core, &st);
    return st.objects;
}

/* ---- a node that obeys at once */
static void
obey(bench_t *b, uint64_t conn, const kvp_frame_t *order)
{
    Kvp__Pb__Reply head = KVP__PB__REPLY__INIT;
    uint8_t *flags;
    size_t n = order->tail_len / sizeof(kvp_wire_slot_t), at;

    kvp_buf_reset(&b->in);
    kvp_pb_frame_begin(&b->in, order->hdr.opcode, KVP_FRAME_REPLY, order->hdr.request_id, &head.base, &at);
    flags = kvp_buf_extend(&b->in, n);
    if (flags != NULL) memset(flags, KVP_RETIRE_DEAD | KVP_RETIRE_FREE, n);
    kvp_frame_end(&b->in, at);
    send(b, conn, &b->in);
}

static void
hear(bench_t *b, uint64_t conn, const kvp_buf_t *bytes)
{
    kvp_frame_t frame;
    size_t used;

    for (size_t at = 0; conn == b->node && at < bytes->len; at += used) {
        if (kvp_frame_parse(bytes->data + at, bytes->len - at, &frame, &used) != KVP_OK || used == 0)
            kvp_panic("a malformed frame");
        if ((frame.hdr.flags & KVP_FRAME_REPLY) != 0) {
            kvp_buf_reset(&b->answer);
            kvp_buf_append(&b->answer, bytes->data + at, used);
        } else if (frame.hdr.opcode == KVP_OP_RETIRE && !b->is_mute) {
            obey(b, conn, &frame);
        }
    }
}

void
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

void
pass(bench_t *b, uint64_t ns)
{
    for (uint64_t end = b->now_ns + ns; b->now_ns < end; settle(b)) {
        b->now_ns = kvp_max_u64(b->now_ns, kvp_min_u64(end, kvp_master_due(b->core)));
        tick(b);
    }
}

/* ---- questions */
void
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

uint64_t
greet(bench_t *b, uint32_t role, const char *host_id)
{
    Kvp__Pb__Hello head = KVP__PB__HELLO__INIT;
    uint64_t conn = ++b->conns;

    head.version = head.version_min = KVP_PROTO_VERSION;
    head.role = role;
    head.name = (char *)"bench";
    head.host_id = (char *)host_id;
    kvp_master_on_connect(b->core, conn, b->now_ns);
    ask(b, conn, KVP_OP_HELLO, &head.base, NULL, 0);
    return conn;
}

void
hang_up(bench_t *b, uint64_t conn)
{
    spent_t begin = spent();

    kvp_master_on_close(b->core, conn, b->now_ns);
    count(b, begin);
    settle(b);
}

/* ---- keys */
uint32_t
key_of(uint64_t i, char key[KVP_KEY_MAX])
{
    return (uint32_t)snprintf(key, KVP_KEY_MAX, "llama-8b@tp_rank:%u@pp_rank:0@group:00000001@%032lx",
                              (unsigned)(i % 8), (unsigned long)(i * 0x9e3779b97f4a7c15ull));
}

kvp_digest_t
digest_of(uint64_t i)
{
    char key[KVP_KEY_MAX];
    uint32_t len = key_of(i, key);

    return kvp_key_digest(SEED, 0, key, len);
}

/* ---- a node's memory */
static void
uuid_of(const bench_t *b, uint8_t uuid[16])
{
    memset(uuid, 0, 16);
    memcpy(uuid, &b->mounts, sizeof b->mounts);
}

void
mount(bench_t *b, const char *name, bool is_fresh)
{
    Kvp__Pb__Mount head = KVP__PB__MOUNT__INIT;
    uint8_t uuid[16];

    b->mounts++;
    uuid_of(b, uuid);
    head.name = (char *)name;
    head.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    head.epoch = b->mounts;
    head.is_fresh = is_fresh;
    head.term = is_fresh ? 0 : b->term;
    head.mounted_term = is_fresh ? 0 : b->term - 1;
    head.size_bytes = b->size_bytes;
    head.chunk_bytes = b->chunk_bytes;
    head.addr = head.unix_path = head.transports = (char *)"";
    ask(b, b->node, KVP_OP_MOUNT, &head.base, NULL, 0);
}

void
start_node(bench_t *b, const char *name, bool is_fresh)
{
    b->node = greet(b, KVP_ROLE_NODE, name);
    mount(b, name, is_fresh);
}

#define PAGE_RECORDS 256u
#define GAP_EVERY 10u /* one in so many is missing */

/* Slots and places of long keys are in no order, as churn leaves them: i times an odd number, modulo a power of two. */
static uint32_t
scatter(uint64_t i, uint32_t n)
{
    return (uint32_t)(i * 0x9e3779b1u) & (n - 1);
}

/* Appends object number i of the memory to a page. */
static void
tell(const kvp_chunk_geo_t *geo, uint32_t per_chunk, uint64_t i, kvp_buf_t *page)
{
    uint32_t at = (uint32_t)(i % per_chunk);
    kvp_wire_extent_t rec = {.chunk = (uint32_t)(i / per_chunk), .slot = scatter(at, per_chunk)};
    kvp_desc_t desc = {.len = TOLD_BYTES, .offset = (uint64_t)at * TOLD_BYTES, .term = 1};
    char key[KVP_KEY_MAX];
    uint32_t len = key_of(i, key);

    desc.key_off = kvp_key_cell_units(geo, rec.slot);
    if (i % 4 == 0) {
        memset(key + len, '+', LONG_KEY_LEN - len);
        len = LONG_KEY_LEN;
        desc.key_off = (uint32_t)(geo->long_keys_off / 64) + scatter(at / 4, per_chunk / 4) * 3;
    }
    desc.version = kvp_gen_make(1, i + 1);
    desc.word = rec.word = kvp_word_make(desc.version, KVP_DESC_SEALED);
    desc.digest = kvp_key_digest(SEED, 0, key, len);
    desc.key_hash2 = kvp_key_hash2(SEED, 0, key, len);
    desc.key_len = (uint16_t)len;
    kvp_desc_seal(&desc);
    kvp_buf_append(page, &rec, sizeof rec);
    kvp_buf_append(page, &desc, sizeof desc);
    kvp_buf_append(page, key, kvp_align_up(len, 8));
}

void
report(bench_t *b, uint64_t n)
{
    Kvp__Pb__Report head = KVP__PB__REPORT__INIT;
    uint32_t per_chunk = (uint32_t)(b->chunk_bytes / TOLD_BYTES);
    kvp_chunk_geo_t geo;
    uint8_t uuid[16];
    kvp_buf_t page;

    kvp_chunk_geo(b->chunk_bytes, &geo);
    uuid_of(b, uuid);
    head.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    head.is_whole = true;
    kvp_buf_init(&page, 0);
    for (uint64_t i = 0, told = 0; !head.is_last; head.n = 0) {
        kvp_buf_reset(&page);
        for (; head.n < PAGE_RECORDS && told < n; i++) {
            if (i % GAP_EVERY == 0) continue;
            tell(&geo, per_chunk, i, &page);
            head.n++;
            told++;
        }
        head.is_last = head.n == 0; /* the last page tells of nothing */
        ask(b, b->node, KVP_OP_REPORT, &head.base, page.data, page.len);
    }
    kvp_buf_fini(&page);
}
