/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The client learns what was evicted as a node does: from the extents that RETIRE names. `at` says, for each slot of
 *   each chunk, which object lies there.
 * - The rank of an object is asked of a Fenwick tree over the order of uses. Its places are given out one a use; when they
 *   are used up the live objects are numbered anew.
 */
#include "bench/churn.h"

#include "common/clock.h"
#include "common/segfmt.h"
#include "master/core/master.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB 1024ull
#define NODE_CONN 1u
#define CLIENT_CONN 2u
#define OP_NS 100000u /* that an operation takes in the pool's time */
#define BEAT_NS 1000000000u
#define PLACES (1u << 20) /* in the order of uses */
#define NONE UINT32_MAX

const churn_mix_t churn_one = {.name = "one", .sizes = {976 * KIB}};
const churn_mix_t churn_three = {.name = "three", .sizes = {976 * KIB, 3198 * KIB, 643 * KIB}};
const churn_mix_t churn_any = {.name = "any", .least = 4 * KIB, .most = 4096 * KIB};

typedef struct {
    uint64_t number; /* makes its key */
    uint64_t len;
    uint32_t used; /* place in the order of uses */
} object_t;

typedef struct {
    kvp_master_t *m;
    const churn_conf_t *conf;
    const churn_mix_t *mix;
    churn_result_t *result;
    uint64_t now_ns, beat_ns, core_ns, rng, request_seq, number_seq;
    kvp_buf_t in, out;

    kvp_chunk_geo_t geo;
    uint32_t chunks_n;
    uint32_t **at; /* a slot's place in objects; NONE = nothing of ours */
    uint32_t *slots_high; /* a chunk's: one above the highest slot ever granted */

    object_t *objects; /* live ones, in no order */
    struct {
        uint32_t chunk, slot;
    } * places; /* of these */
    uint32_t n, cap;
    uint64_t live_bytes;
    uint32_t removing; /* place in objects; NONE */
    double evicted_bytes, ranks, young;

    uint64_t tree[PLACES + 1]; /* bytes by place in the order of uses, from 1 on */
    uint32_t used_seq;

    int32_t put_err;
    kvp_wire_loc_t granted;
} churn_t;

static uint64_t
draw(churn_t *c)
{
    c->rng ^= c->rng << 13;
    c->rng ^= c->rng >> 7;
    c->rng ^= c->rng << 17;
    return c->rng * 0x2545f4914f6cdd1dull >> 11;
}

static void *
take(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL) kvp_panic("out of memory: %zu of %zu bytes", n, size);
    return p;
}

/* A PoolKey of 118 bytes. */
static uint32_t
make_key(char *key, uint64_t number)
{
    return (uint32_t)snprintf(key, KVP_KEY_MAX, "llama-8b@tp_rank:%u@pcp0@dcp0@pp_rank:0@group:00000001@%064llx",
                              (unsigned)(number % 8), (unsigned long long)(number * 0x9e3779b97f4a7c15ull));
}

static kvp_digest_t
digest_of(uint64_t number)
{
    char key[KVP_KEY_MAX];
    uint32_t len = make_key(key, number);

    return kvp_key_digest(1, 0, key, len);
}

/* ---- the order of uses */
static void
tree_add(churn_t *c, uint32_t place, uint64_t bytes)
{
    for (uint32_t i = place + 1; i <= PLACES; i += i & -i)
        c->tree[i] += bytes;
}

static uint64_t
tree_below(const churn_t *c, uint32_t place)
{
    uint64_t bytes = 0;

    for (uint32_t i = place; i > 0; i -= i & -i)
        bytes += c->tree[i];
    return bytes;
}

static int
compare_used(const void *a, const void *b)
{
    const object_t *const *x = a, *const *y = b;

    return (*x)->used < (*y)->used ? -1 : 1;
}

static void
renumber(churn_t *c)
{
    object_t **order = take(c->n, sizeof *order);

    for (uint32_t i = 0; i < c->n; i++)
        order[i] = &c->objects[i];
    qsort(order, c->n, sizeof *order, compare_used);
    memset(c->tree, 0, sizeof c->tree);
    for (c->used_seq = 0; c->used_seq < c->n; c->used_seq++) {
        order[c->used_seq]->used = c->used_seq;
        tree_add(c, c->used_seq, order[c->used_seq]->len);
    }
    free(order);
}

/* ---- live objects */
static void
object_add(churn_t *c, uint64_t number, uint64_t len)
{
    uint32_t i = c->n;

    if (c->used_seq == PLACES) renumber(c);
    if (c->n == c->cap) {
        c->cap = c->cap == 0 ? 1024 : c->cap * 2;
        c->objects = realloc(c->objects, c->cap * sizeof *c->objects);
        c->places = realloc(c->places, c->cap * sizeof *c->places);
        if (c->objects == NULL || c->places == NULL) kvp_panic("out of memory: %u objects", c->cap);
    }
    c->n++;
    c->objects[i] = (object_t){number, len, c->used_seq++};
    c->places[i].chunk = c->granted.chunk;
    c->places[i].slot = c->granted.slot;
    c->at[c->granted.chunk][c->granted.slot] = i;
    c->slots_high[c->granted.chunk] = (uint32_t)kvp_max_u64(c->slots_high[c->granted.chunk], c->granted.slot + 1ull);
    c->live_bytes += len;
    tree_add(c, c->objects[i].used, len);
}

static void
object_del(churn_t *c, uint32_t i)
{
    uint32_t last = --c->n;

    c->live_bytes -= c->objects[i].len;
    tree_add(c, c->objects[i].used, -c->objects[i].len);
    c->at[c->places[i].chunk][c->places[i].slot] = NONE;
    if (i == last) return;
    c->objects[i] = c->objects[last];
    c->places[i] = c->places[last];
    c->at[c->places[i].chunk][c->places[i].slot] = i;
}

static void
object_evicted(churn_t *c, uint32_t i)
{
    const object_t *o = &c->objects[i];
    double rank = (double)tree_below(c, o->used) / (double)c->live_bytes;

    c->result->evictions++;
    c->evicted_bytes += (double)o->len;
    c->ranks += rank * (double)o->len;
    if (rank > 0.5) c->young += (double)o->len;
}

/* ---- frames */
static void pump(churn_t *c);

static void
give(churn_t *c, uint64_t conn)
{
    kvp_frame_t f;
    uint64_t begin;
    size_t used;

    if (c->in.err != KVP_OK || kvp_frame_parse(c->in.data, c->in.len, &f, &used) != KVP_OK || used == 0)
        kvp_panic("a frame of our own is malformed");
    begin = kvp_thread_ns();
    kvp_master_on_frame(c->m, conn, &f, c->now_ns);
    c->core_ns += kvp_thread_ns() - begin;
}

static void
send(churn_t *c, uint64_t conn, uint8_t op, uint8_t flags, const void *head, const void *tail, size_t tail_len)
{
    size_t at;

    kvp_buf_reset(&c->in);
    kvp_pb_frame_begin(&c->in, op, flags, ++c->request_seq, head, &at);
    kvp_buf_append(&c->in, tail, tail_len);
    kvp_frame_end(&c->in, at);
    give(c, conn);
    pump(c);
}

/* The node: everything is dead and free at once. */
static void
on_retire(churn_t *c, const kvp_frame_t *f)
{
    const kvp_wire_slot_t *slots = (const kvp_wire_slot_t *)f->tail;
    size_t n = f->tail_len / sizeof *slots, at;
    Kvp__Pb__Reply head = KVP__PB__REPLY__INIT;
    uint8_t *flags;

    for (size_t k = 0; k < n; k++) {
        uint32_t i = c->at[slots[k].chunk][slots[k].slot];

        if (i == NONE) continue;
        if (i != c->removing) object_evicted(c, i);
        object_del(c, i);
    }
    kvp_buf_reset(&c->in);
    kvp_pb_frame_begin(&c->in, KVP_OP_RETIRE, KVP_FRAME_REPLY, f->hdr.request_id, &head.base, &at);
    flags = kvp_buf_extend(&c->in, n);
    if (flags != NULL) memset(flags, KVP_RETIRE_DEAD | KVP_RETIRE_FREE, n);
    kvp_frame_end(&c->in, at);
    give(c, NODE_CONN);
}

static void
on_places(churn_t *c, const kvp_frame_t *f)
{
    const kvp_wire_obj_t *obj = (const kvp_wire_obj_t *)f->tail;

    if (f->tail_len < sizeof *obj) kvp_panic("a put is answered with nothing");
    c->put_err = obj->err;
    if (obj->err == KVP_OK) c->granted = *(const kvp_wire_loc_t *)(obj + 1);
}

static void
on_frame(churn_t *c, const kvp_frame_t *f)
{
    if (f->hdr.opcode == KVP_OP_RETIRE) on_retire(c, f);
    if (f->hdr.opcode == KVP_OP_PUT_BEGIN) on_places(c, f);
}

/* Orders to the node and their answers, until nothing moves. */
static void
pump(churn_t *c)
{
    uint64_t conn;
    bool is_last;

    for (;;) {
        size_t at = 0, used;
        kvp_buf_t bytes;
        kvp_frame_t f;

        kvp_buf_reset(&c->out);
        if (!kvp_master_take_output(c->m, &conn, &c->out, &is_last)) {
            if (!kvp_master_has_work(c->m)) return;
            kvp_master_on_tick(c->m, c->now_ns);
            continue;
        }
        if (is_last) kvp_panic("a connection is closed: %s", kvp_master_take_note(c->m));
        bytes = c->out;
        for (; at < bytes.len; at += used) {
            if (kvp_frame_parse(bytes.data + at, bytes.len - at, &f, &used) != KVP_OK || used == 0)
                kvp_panic("a frame of the master is malformed");
            on_frame(c, &f);
        }
    }
}

/* The node has something to say only while something is evicted. */
static void
beat(churn_t *c)
{
    Kvp__Pb__Heartbeat head = KVP__PB__HEARTBEAT__INIT;

    if (c->now_ns < c->beat_ns) return;
    c->beat_ns = c->now_ns + BEAT_NS;
    send(c, NODE_CONN, KVP_OP_HEARTBEAT, 0, &head.base, NULL, 0);
}

static void
pass_time(churn_t *c)
{
    c->now_ns += OP_NS;
    beat(c);
    if (c->now_ns >= kvp_master_due(c->m)) kvp_master_on_tick(c->m, c->now_ns);
    pump(c);
}

/* ---- operations */
static uint64_t
draw_len(churn_t *c)
{
    uint64_t n = 0;

    while (n < CHURN_SIZES_MAX && c->mix->sizes[n] != 0)
        n++;
    if (n > 0) return c->mix->sizes[draw(c) % n];
    return (uint64_t)((double)c->mix->least *
                      exp2((double)draw(c) * 0x1p-53 * log2((double)c->mix->most / (double)c->mix->least)));
}

static void
put(churn_t *c)
{
    Kvp__Pb__PutBegin begin = KVP__PB__PUT_BEGIN__INIT;
    Kvp__Pb__PutCommit end = KVP__PB__PUT_COMMIT__INIT;
    uint64_t number = ++c->number_seq, len = draw_len(c);
    struct {
        kvp_wire_put_t rec;
        char key[KVP_KEY_MAX];
    } tail;
    kvp_wire_commit_t commit = {.attempt = number, .sum = 1, .replicas = 1};

    pass_time(c);
    tail.rec = (kvp_wire_put_t){.len = len, .attempt = number, .key_len = make_key(tail.key, number)};
    tail.rec.digest = kvp_key_digest(1, 0, tail.key, tail.rec.key_len);
    begin.n = end.n = 1;
    c->put_err = KVP_IN_PROGRESS;
    send(c, CLIENT_CONN, KVP_OP_PUT_BEGIN, 0, &begin.base, &tail, sizeof tail.rec + tail.rec.key_len);
    if (c->put_err != KVP_OK) kvp_panic("a put of %lu bytes: %s", (unsigned long)len, kvp_err_name(c->put_err));
    send(c, CLIENT_CONN, KVP_OP_PUT_COMMIT, 0, &end.base, &commit, sizeof commit);
    object_add(c, number, len);
    c->result->puts++;
}

static void
put_until_full(churn_t *c)
{
    uint64_t before = c->result->evictions;

    while (c->result->evictions == before)
        put(c);
}

static void
remove_one(churn_t *c)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    uint32_t n = c->n;
    kvp_digest_t digest;

    pass_time(c);
    c->removing = (uint32_t)(draw(c) % c->n);
    digest = digest_of(c->objects[c->removing].number);
    head.n = 1;
    send(c, CLIENT_CONN, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
    c->removing = NONE;
    if (c->n != n - 1) kvp_panic("%u objects went with a removal", n - c->n);
}

static void
use_one(churn_t *c)
{
    object_t *o = &c->objects[draw(c) % c->n];
    kvp_wire_used_t used = {.digest = digest_of(o->number), .reads = 1};
    Kvp__Pb__Used head = KVP__PB__USED__INIT;

    pass_time(c);
    if (c->used_seq == PLACES) renumber(c);
    tree_add(c, o->used, -o->len);
    o->used = c->used_seq++;
    tree_add(c, o->used, o->len);
    head.n = 1;
    send(c, CLIENT_CONN, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, &used, sizeof used);
}

/* ---- a run */
static void
greet(churn_t *c, uint64_t conn, uint32_t role, const char *name)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;

    hello.version = KVP_PROTO_VERSION;
    hello.version_min = KVP_PROTO_VERSION_MIN;
    hello.role = role;
    hello.name = hello.host_id = (char *)name;
    kvp_master_on_connect(c->m, conn, c->now_ns);
    send(c, conn, KVP_OP_HELLO, 0, &hello.base, NULL, 0);
}

static void
mount(churn_t *c)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    uint8_t uuid[16] = {1};

    msg.name = (char *)"node";
    msg.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    msg.epoch = 1;
    msg.size_bytes = c->conf->size_bytes;
    msg.chunk_bytes = c->conf->chunk_bytes;
    msg.addr = msg.unix_path = (char *)"";
    msg.transports = (char *)"shm";
    msg.is_fresh = true;
    send(c, NODE_CONN, KVP_OP_MOUNT, 0, &msg.base, NULL, 0);
}

static void
churn_open(churn_t *c)
{
    kvp_master_conf_t conf = {.digest_seed = 1, .seed = c->conf->seed, .term = 1, .host_id = "master", .unix_path = ""};

    if (kvp_master_create(&conf, c->now_ns, &c->m) != KVP_OK) kvp_panic("no master");
    kvp_chunk_geo(c->conf->chunk_bytes, &c->geo);
    c->chunks_n = (uint32_t)((c->conf->size_bytes - 1) / c->conf->chunk_bytes + 1);
    c->at = take(c->chunks_n, sizeof *c->at);
    c->slots_high = take(c->chunks_n, sizeof *c->slots_high);
    for (uint32_t i = 0; i < c->chunks_n; i++) {
        c->at[i] = take(c->geo.slots_max, sizeof **c->at);
        memset(c->at[i], 0xff, c->geo.slots_max * sizeof **c->at);
    }
    greet(c, NODE_CONN, KVP_ROLE_NODE, "node");
    greet(c, CLIENT_CONN, KVP_ROLE_CLIENT, "client");
    mount(c);
}

static void
churn_close(churn_t *c)
{
    kvp_master_destroy(c->m);
    for (uint32_t i = 0; i < c->chunks_n; i++)
        free(c->at[i]);
    free(c->at);
    free(c->slots_high);
    free(c->objects);
    free(c->places);
    kvp_buf_fini(&c->in);
    kvp_buf_fini(&c->out);
    free(c);
}

/* Descriptors and key cells are two areas, each of which is in use from its beginning; pages that nobody touched cost
 * nothing. */
static uint64_t
metadata_bytes(const churn_t *c)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->chunks_n; i++)
        bytes += kvp_align_up(kvp_desc_off(c->slots_high[i]), 4096) +
                 kvp_align_up((uint64_t)c->slots_high[i] * KVP_KEY_CELL_BYTES, 4096);
    return bytes;
}

static void
sample(churn_t *c)
{
    double share = (double)c->live_bytes / (double)(c->conf->size_bytes + metadata_bytes(c));

    c->result->mean += share;
    if (share < c->result->least) c->result->least = share;
}

static void
finish(churn_t *c, uint64_t samples)
{
    churn_result_t *r = c->result;
    double mounted = (double)(c->conf->size_bytes + metadata_bytes(c));
    kvp_master_stats_t st;

    kvp_master_stats(c->m, &st);
    r->mean /= (double)samples;
    r->metadata = (double)metadata_bytes(c) / mounted;
    r->free = (double)(st.size_bytes - st.used_bytes) / mounted;
    r->rank_mean = c->ranks / c->evicted_bytes;
    r->young = c->young / c->evicted_bytes;
    r->put_ns = (double)c->core_ns / (double)r->puts;
}

void
churn_run(const churn_conf_t *conf, const churn_mix_t *mix, churn_result_t *result_out)
{
    churn_t *c = take(1, sizeof *c);
    uint64_t samples = 0;

    *result_out = (churn_result_t){.least = 1};
    c->conf = conf;
    c->mix = mix;
    c->result = result_out;
    c->now_ns = 1;
    c->rng = conf->seed * 2 + 1;
    c->removing = NONE;
    churn_open(c);
    put_until_full(c);
    for (uint64_t i = 0; i < conf->steps; i++) {
        remove_one(c);
        use_one(c);
        put_until_full(c);
        if (i < conf->steps / 2) continue;
        sample(c);
        samples++;
    }
    finish(c, samples);
    churn_close(c);
}
