/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The client learns of evictions as a node does: from the extents that RETIRE names. `at` has the
 *   object of each slot of each chunk.
 * - A Fenwick tree over the order of uses gives the rank of an object. Each use takes the next
 *   place in the tree; when the places are used up, the live objects are renumbered. */
#include "bench/churn.h"

#include "common/clock.h"
#include "tests/world/world.h"

#include <math.h>
#include <stdio.h>

#define OP_NS 100000u /* that an operation takes in the pool's time */
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
    world_t *w;
    peer_t *client;
    const churn_conf_t *conf;
    const churn_mix_t *mix;
    churn_result_t *result;
    uint64_t core_ns, begin_ns, number_seq;

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
} churn_t;

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
object_add(churn_t *c, uint64_t number, uint64_t len, const kvp_wire_loc_t *at)
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
    c->places[i].chunk = at->chunk;
    c->places[i].slot = at->slot;
    c->at[at->chunk][at->slot] = i;
    c->slots_high[at->chunk] = (uint32_t)kvp_max_u64(c->slots_high[at->chunk], at->slot + 1ull);
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

/* ---- callbacks of the simulated world */
static void
on_retire(void *arg, mem_t *mem, const kvp_wire_slot_t *slot)
{
    churn_t *c = arg;
    uint32_t i = c->at[slot->chunk][slot->slot];

    (void)mem;
    if (i == NONE) return;
    if (i != c->removing) object_evicted(c, i);
    object_del(c, i);
}

static void
on_input(void *arg, bool is_over)
{
    churn_t *c = arg;

    if (is_over)
        c->core_ns += kvp_thread_ns() - c->begin_ns;
    else
        c->begin_ns = kvp_thread_ns();
}

/* ---- operations */
static uint64_t
draw_len(churn_t *c)
{
    uint64_t n = 0;

    while (n < CHURN_SIZES_MAX && c->mix->sizes[n] != 0)
        n++;
    if (n > 0) return c->mix->sizes[world_below(c->w, n)];
    return (uint64_t)((double)c->mix->least *
                      exp2((double)world_random(c->w) * 0x1p-56 * log2((double)c->mix->most / (double)c->mix->least)));
}

static void
put_one(churn_t *c)
{
    uint64_t number = ++c->number_seq, len = draw_len(c), attempt = 0;
    kvp_wire_loc_t at = {0};
    char key[KVP_KEY_MAX];

    world_advance(c->w, OP_NS);
    (void)make_key(key, number);
    assert_int_equal(put_place(c->client, key, len, &attempt, &at), KVP_OK);
    assert_int_equal(commit(c->client, attempt, 1), KVP_OK);
    object_add(c, number, len, &at);
    c->result->puts++;
}

static void
put_until_full(churn_t *c)
{
    uint64_t before = c->result->evictions;

    while (c->result->evictions == before)
        put_one(c);
}

static void
remove_one(churn_t *c)
{
    uint32_t n = c->n;
    char key[KVP_KEY_MAX];

    world_advance(c->w, OP_NS);
    c->removing = (uint32_t)world_below(c->w, c->n);
    (void)make_key(key, c->objects[c->removing].number);
    assert_int_equal(remove_key(c->client, key, false), KVP_OK);
    c->removing = NONE;
    assert_int_equal(c->n, n - 1); /* no other object was removed */
}

static void
use_one(churn_t *c)
{
    object_t *o = &c->objects[world_below(c->w, c->n)];
    kvp_wire_used_t used = {.reads = 1};
    Kvp__Pb__Used head = KVP__PB__USED__INIT;
    char key[KVP_KEY_MAX];

    world_advance(c->w, OP_NS);
    if (c->used_seq == PLACES) renumber(c);
    tree_add(c, o->used, -o->len);
    o->used = c->used_seq++;
    tree_add(c, o->used, o->len);
    (void)make_key(key, o->number);
    used.digest = digest_of(c->w, key);
    head.n = 1;
    (void)peer_send(c->client, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, &used, sizeof used);
}

/* ---- a run */
static void
churn_open(churn_t *c)
{
    kvp_chunk_geo_t geo;

    c->w = world_open(
        &(kvp_master_conf_t){.digest_seed = 1, .seed = c->conf->seed, .term = 1, .departed_bytes = 64ull << 20});
    c->w->check_every = 0;
    c->w->on_retire = on_retire;
    c->w->on_input = on_input;
    c->w->hook_arg = c;
    kvp_chunk_geo(c->conf->chunk_bytes, &geo);
    c->chunks_n = (uint32_t)((c->conf->size_bytes - 1) / c->conf->chunk_bytes + 1);
    c->at = take(c->chunks_n, sizeof *c->at);
    c->slots_high = take(c->chunks_n, sizeof *c->slots_high);
    for (uint32_t i = 0; i < c->chunks_n; i++) {
        c->at[i] = take(geo.slots_max, sizeof **c->at);
        memset(c->at[i], 0xff, geo.slots_max * sizeof **c->at);
    }
    (void)node_open(c->w, mem_make(c->w, "node", c->conf->size_bytes, c->conf->chunk_bytes));
    c->client = client_open(c->w);
}

static void
churn_close(churn_t *c)
{
    c->w->on_retire = NULL; /* what goes from now on is not evicted */
    world_close(c->w);
    for (uint32_t i = 0; i < c->chunks_n; i++)
        free(c->at[i]);
    free(c->at);
    free(c->slots_high);
    free(c->objects);
    free(c->places);
    free(c);
}

/* Descriptors and key cells are two areas, each used from its beginning; untouched pages cost nothing. */
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
    kvp_master_stats_t st = world_stats(c->w);

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
