/* SPDX-License-Identifier: Apache-2.0
 * Every thread owns a run of whole batches of the set: their keys, items and registered memory are made once, so that a
 * round does nothing but call the library and look at the clock.
 */
#include "client/cli/bench.h"

#include "client/cli/cli.h"
#include "client/cli/pattern.h"

#include "common/clock.h"
#include "common/slab.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KEY_CAP 80
#define POOL_SLACK_BYTES (64ull << 20)

typedef struct {
    kvp_bench_t *bench;
    pthread_t thread;
    size_t first; /* object; the thread owns bench->per_thread of them */
    size_t at; /* next batch of its own */
    size_t batches_done; /* in this round */
    uint64_t puts; /* batches put since the start: makes new keys */
    uint64_t begun_ns, ended_ns;
    int error;
    int *results;
    kvp_bench_round_t round;
} worker_t;

struct kvp_bench {
    kvp_bench_conf_t conf;
    kvpool_t *pool;
    uint64_t run; /* sets this run's new keys apart */
    size_t objects, per_thread, stride;
    uint8_t *memory;
    size_t memory_bytes;
    char (*texts)[KEY_CAP];
    kvpool_key_t *keys;
    kvpool_item_t *items;
    kvpool_iov_t *iov;
    worker_t *workers;
    pthread_barrier_t start;
};

uint64_t
kvp_bench_objects(const kvp_bench_conf_t *conf)
{
    const uint64_t step = (uint64_t)conf->batch * conf->threads;
    const uint64_t n = (conf->set_bytes + conf->value_bytes - 1) / conf->value_bytes;
    return kvp_max_u64(1, (n + step - 1) / step) * step;
}

uint64_t
kvp_bench_pool_bytes(const kvp_bench_conf_t *conf)
{
    const uint64_t set = kvp_bench_objects(conf) * kvp_slab_extent_bytes(conf->value_bytes);
    return kvp_align_up((conf->op == KVP_BENCH_PUT ? 2 * set : set) + POOL_SLACK_BYTES, 4096);
}

/* ---- keys and contents ---- */

static void
set_key(kvp_bench_t *b, size_t i)
{
    b->keys[i].data = b->texts[i];
    b->keys[i].len = strlen(b->texts[i]);
    b->items[i].key = b->keys[i];
}

/* name_objects gives the set its keys. They are the same in every run, and so are the contents: a pool that is there
 * already may hold them. */
static void
name_objects(kvp_bench_t *b)
{
    for (size_t i = 0; i < b->objects; i++) {
        snprintf(b->texts[i], KEY_CAP, "kvpool-bench/%llu/%zu", (unsigned long long)b->conf.value_bytes, i);
        b->iov[i] = (kvpool_iov_t){b->memory + i * b->stride, b->conf.value_bytes};
        b->items[i] = (kvpool_item_t){.iov = &b->iov[i], .iov_n = 1};
        set_key(b, i);
    }
}

static void
name_new(worker_t *w, size_t first)
{
    kvp_bench_t *b = w->bench;
    for (size_t i = first; i < first + b->conf.batch; i++) {
        snprintf(b->texts[i], KEY_CAP, "kvpool-bench/%016llx/%zu/%llu", (unsigned long long)b->run, i,
                 (unsigned long long)w->puts);
        set_key(b, i);
    }
    w->puts++;
}

static void
fill(kvp_bench_t *b)
{
    for (size_t i = 0; i < b->objects; i++)
        kvp_pattern_fill(b->memory + i * b->stride, b->conf.value_bytes, b->conf.value_bytes, i);
}

static uint64_t
count_wrong(const kvp_bench_t *b, size_t first, size_t n)
{
    uint64_t wrong = 0;
    for (size_t i = first; i < first + n; i++)
        wrong += kvp_pattern_wrong(b->memory + i * b->stride, b->conf.value_bytes, b->conf.value_bytes, i);
    return wrong;
}

/* ---- one call ---- */

static void
judge(worker_t *w, size_t n, int good, uint64_t bytes_each)
{
    for (size_t i = 0; i < n; i++) {
        if (w->results[i] == good) {
            w->round.objects++;
            w->round.bytes += bytes_each;
        } else {
            w->round.errors++;
            if (w->round.first_error == KVPOOL_OK) w->round.first_error = w->results[i];
        }
    }
}

static int
call(worker_t *w, size_t first)
{
    kvp_bench_t *b = w->bench;
    const size_t n = b->conf.batch;
    kvpool_lookup_t lookup;
    int err, good = KVPOOL_OK;
    if (b->conf.op == KVP_BENCH_PUT) name_new(w, first);
    const uint64_t begun = kvp_now_ns();
    switch (b->conf.op) {
    case KVP_BENCH_GET:
        err = kvpool_batch_get(b->pool, b->items + first, n, NULL, w->results);
        break;
    case KVP_BENCH_PUT:
        err = kvpool_batch_put(b->pool, b->items + first, n, NULL, w->results);
        break;
    case KVP_BENCH_EXISTS:
        good = 1;
        err = kvpool_batch_is_exist(b->pool, b->keys + first, n, NULL, w->results);
        break;
    default:
        good = 1;
        err = kvpool_longest_prefix(b->pool, b->keys + first, n, 0, NULL, &lookup);
        if (err == KVPOOL_OK) err = kvpool_lookup_release(b->pool, &lookup);
        for (size_t i = 0; i < n; i++)
            w->results[i] = err == KVPOOL_OK && i < lookup.found;
    }
    kvp_hist_add(&w->round.call, kvp_now_ns() - begun);
    if (err != KVPOOL_OK) return err;
    w->round.calls++;
    judge(w, n, good, b->conf.op == KVP_BENCH_GET || b->conf.op == KVP_BENCH_PUT ? b->conf.value_bytes : 0);
    return KVPOOL_OK;
}

static int
next_call(worker_t *w)
{
    const size_t batches = w->bench->per_thread / w->bench->conf.batch;
    const size_t first = w->first + w->at * w->bench->conf.batch;
    w->at = (w->at + 1) % batches;
    w->batches_done++;
    return call(w, first);
}

/* ---- rounds ---- */

static void
round_init(kvp_bench_round_t *round)
{
    memset(round, 0, sizeof(*round));
    kvp_hist_init(&round->call);
}

static void *
worker_main(void *arg)
{
    worker_t *w = arg;
    pthread_barrier_wait(&w->bench->start);
    w->begun_ns = kvp_now_ns();
    do {
        w->error = next_call(w);
        w->ended_ns = kvp_now_ns();
    } while (w->error == KVPOOL_OK && w->ended_ns - w->begun_ns < w->bench->conf.round_ns);
    return NULL;
}

/* verify_gets looks at what this round read; the memory was poisoned before it. */
static void
verify_gets(worker_t *w)
{
    kvp_bench_t *b = w->bench;
    const size_t batches = b->per_thread / b->conf.batch, seen = kvp_min_u64(w->batches_done, batches);
    for (size_t back = 1; back <= seen; back++) {
        const size_t batch = (w->at + batches - back) % batches;
        w->round.wrong_bytes += count_wrong(b, w->first + batch * b->conf.batch, b->conf.batch);
    }
}

/* verify_put reads the last batch of this round again; what it was put from is spoiled and thereby restored. */
static int
verify_put(worker_t *w)
{
    kvp_bench_t *b = w->bench;
    const size_t batches = b->per_thread / b->conf.batch, n = b->conf.batch;
    const size_t first = w->first + (w->at + batches - 1) % batches * n;
    for (size_t i = first; i < first + n; i++)
        kvp_pattern_poison(b->memory + i * b->stride, b->conf.value_bytes);
    int err = kvpool_batch_get(b->pool, b->items + first, n, NULL, w->results);
    if (err != KVPOOL_OK) return err;
    for (size_t i = 0; i < n; i++) {
        if (w->results[i] == KVPOOL_OK) {
            w->round.wrong_bytes += count_wrong(b, first + i, 1);
        } else {
            w->round.errors++;
            if (w->round.first_error == KVPOOL_OK) w->round.first_error = w->results[i];
        }
        kvp_pattern_fill(b->memory + (first + i) * b->stride, b->conf.value_bytes, b->conf.value_bytes, first + i);
    }
    return KVPOOL_OK;
}

static void
add_round(kvp_bench_round_t *sum, const kvp_bench_round_t *r)
{
    sum->calls += r->calls;
    sum->objects += r->objects;
    sum->bytes += r->bytes;
    sum->errors += r->errors;
    sum->wrong_bytes += r->wrong_bytes;
    if (sum->first_error == KVPOOL_OK) sum->first_error = r->first_error;
    kvp_hist_merge(&sum->call, &r->call);
}

/* run_workers starts all threads behind one barrier and waits for them. */
static void
run_workers(kvp_bench_t *b)
{
    uint32_t started = 0;
    pthread_barrier_init(&b->start, NULL, b->conf.threads);
    for (; started < b->conf.threads; started++)
        if (pthread_create(&b->workers[started].thread, NULL, worker_main, &b->workers[started]) != 0) break;
    /* Those that wait at the barrier for a thread that will never come cannot be taken back. */
    if (started < b->conf.threads) kvp_cli_no_memory();
    for (uint32_t i = 0; i < started; i++)
        pthread_join(b->workers[i].thread, NULL);
    pthread_barrier_destroy(&b->start);
}

int
kvp_bench_round(kvp_bench_t *b, kvp_bench_round_t *round_out)
{
    uint64_t begun = UINT64_MAX, ended = 0;
    int err = KVPOOL_OK;
    round_init(round_out);
    if (b->conf.op == KVP_BENCH_GET) kvp_pattern_poison(b->memory, b->memory_bytes);
    for (uint32_t i = 0; i < b->conf.threads; i++) {
        round_init(&b->workers[i].round);
        b->workers[i].batches_done = 0;
    }
    run_workers(b);
    for (uint32_t i = 0; i < b->conf.threads; i++) {
        worker_t *w = &b->workers[i];
        begun = kvp_min_u64(begun, w->begun_ns);
        ended = kvp_max_u64(ended, w->ended_ns);
        if (err == KVPOOL_OK) err = w->error;
        if (b->conf.op == KVP_BENCH_GET && w->round.errors == 0) verify_gets(w);
        if (b->conf.op == KVP_BENCH_PUT && err == KVPOOL_OK) err = verify_put(w);
        add_round(round_out, &w->round);
    }
    round_out->elapsed_ns = ended - begun;
    return err;
}

/* ---- setting up ---- */

/* pass goes over the whole set once, in the calling thread. */
static int
pass(kvp_bench_t *b)
{
    for (uint32_t i = 0; i < b->conf.threads; i++) {
        worker_t *w = &b->workers[i];
        for (size_t batch = 0; batch < b->per_thread / b->conf.batch; batch++) {
            int err = next_call(w);
            if (err == KVPOOL_OK) err = w->round.first_error;
            if (err != KVPOOL_OK) return err < 0 ? err : KVPOOL_NOT_FOUND;
        }
    }
    return KVPOOL_OK;
}

static int
put_set(kvp_bench_t *b)
{
    int *results = b->workers[0].results;
    for (size_t at = 0; at < b->objects; at += b->conf.batch) {
        int err = kvpool_batch_put(b->pool, b->items + at, b->conf.batch, NULL, results);
        if (err != KVPOOL_OK) return err;
        for (size_t i = 0; i < b->conf.batch; i++)
            if (results[i] != KVPOOL_OK && results[i] != KVPOOL_ALREADY) return results[i];
    }
    return KVPOOL_OK;
}

static void
make_workers(kvp_bench_t *b)
{
    b->workers = kvp_cli_alloc(b->conf.threads, sizeof(*b->workers));
    for (uint32_t i = 0; i < b->conf.threads; i++) {
        b->workers[i].bench = b;
        b->workers[i].first = i * b->per_thread;
        b->workers[i].results = kvp_cli_alloc(b->conf.batch, sizeof(int));
        round_init(&b->workers[i].round);
    }
}

static int
prepare(kvp_bench_t *b)
{
    int err = kvpool_register(b->pool, b->memory, b->memory_bytes);
    if (err != KVPOOL_OK) return err;
    fill(b);
    if (b->conf.op != KVP_BENCH_PUT) {
        err = put_set(b);
        return err == KVPOOL_OK ? pass(b) : err;
    }
    /* Twice, so that the pool is full and every page of it was touched. */
    err = pass(b);
    return err == KVPOOL_OK ? pass(b) : err;
}

int
kvp_bench_open(const kvp_bench_conf_t *conf, kvpool_t *pool, kvp_bench_t **bench_out)
{
    kvp_bench_t *b = kvp_cli_alloc(1, sizeof(*b));
    b->conf = *conf;
    b->pool = pool;
    b->run = kvp_random_u64();
    b->objects = kvp_bench_objects(conf);
    b->per_thread = b->objects / conf->threads;
    b->stride = kvp_align_up(conf->value_bytes, 64);
    b->memory_bytes = b->objects * b->stride;
    b->texts = kvp_cli_alloc(b->objects, sizeof(*b->texts));
    b->keys = kvp_cli_alloc(b->objects, sizeof(*b->keys));
    b->items = kvp_cli_alloc(b->objects, sizeof(*b->items));
    b->iov = kvp_cli_alloc(b->objects, sizeof(*b->iov));
    make_workers(b);
    void *memory =
        mmap(NULL, b->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    int err = memory == MAP_FAILED ? KVPOOL_NOMEM : KVPOOL_OK;
    if (err == KVPOOL_OK) {
        b->memory = memory;
        name_objects(b);
        err = prepare(b);
    }
    if (err != KVPOOL_OK) {
        kvp_bench_close(b);
        return err;
    }
    *bench_out = b;
    return KVPOOL_OK;
}

void
kvp_bench_close(kvp_bench_t *b)
{
    if (b == NULL) return;
    if (b->memory != NULL) {
        /* What is not registered, because registering failed, is no error here. */
        (void)kvpool_unregister(b->pool, b->memory);
        munmap(b->memory, b->memory_bytes);
    }
    for (uint32_t i = 0; i < b->conf.threads; i++)
        free(b->workers[i].results);
    free(b->workers);
    free(b->iov);
    free(b->items);
    free(b->keys);
    free(b->texts);
    free(b);
}
