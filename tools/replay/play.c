/* SPDX-License-Identifier: Apache-2.0
 * See play.h. Clients take requests in order from one counter; with one client the pool sees exactly the trace's
 * order. A client's memory holds one batch of blocks; a longer request is moved in several batches. */
#include "tools/replay/play.h"

#include "tools/base/cli.h"
#include "tools/base/pattern.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BATCH_BYTES (64ull << 20)
#define KEY_CAP 136
#define PROGRESS_MS 200

/* Format of keys: as long and as similar to one another as the keys of engines' connectors. */
#define KEY_FORMAT "deepseek-ai/DeepSeek-V3.1@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@%016llx%032d%016llx"

typedef struct {
    const kvp_replay_conf_t *conf;
    _Atomic size_t next; /* index of the next request that a client takes */
    _Atomic size_t done;
    _Atomic uint64_t blocks; /* number of blocks in the started requests */
    uint64_t begun_ns;
    _Atomic int error; /* the first error that stops the run; KVPOOL_OK = none */
    pthread_mutex_t lock;
    pthread_cond_t ended; /* signalled when a client has ended; used with lock, on CLOCK_MONOTONIC */
    uint32_t running; /* number of running clients; guarded by lock */
} run_t;

typedef struct {
    run_t *run;
    kvpool_t *pool;
    pthread_t thread;
    bool is_started;
    uint8_t *memory; /* registered memory of the client, for batch_n blocks */
    size_t memory_bytes;
    size_t batch_n;
    size_t stride;
    char (*texts)[KEY_CAP]; /* texts of the current request's keys */
    kvpool_key_t *keys;
    kvpool_item_t *items; /* items of the current batch; iov and results belong to it, too */
    kvpool_iov_t *iov;
    int *results;
    kvp_replay_result_t result;
} client_t;

static void
stop_run(run_t *run, int err)
{
    int none = KVPOOL_OK;
    atomic_compare_exchange_strong(&run->error, &none, err);
}

/* ---- one request: look up, get, put ---- */

static void
make_keys(client_t *c, const uint64_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(c->texts[i], KEY_CAP, KEY_FORMAT, (unsigned long long)c->run->conf->salt, 0,
                           (unsigned long long)ids[i]);
        c->keys[i] = (kvpool_key_t){c->texts[i], (size_t)len};
    }
}

static void
make_batch(client_t *c, size_t at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        c->iov[i] = (kvpool_iov_t){c->memory + i * c->stride, c->run->conf->block_bytes};
        c->items[i] = (kvpool_item_t){.key = c->keys[at + i], .iov = &c->iov[i], .iov_n = 1};
    }
}

static void
judge_get(client_t *c, const uint64_t *ids, size_t n)
{
    kvp_replay_result_t *r = &c->result;
    const uint64_t block_bytes = c->run->conf->block_bytes;
    for (size_t i = 0; i < n; i++) {
        uint8_t *block = c->memory + i * c->stride;
        if (c->results[i] != KVPOOL_OK) {
            r->gets_failed++;
            if (r->first_get_error == KVPOOL_OK) r->first_get_error = c->results[i];
            continue;
        }
        const uint64_t wrong = c->items[i].len != block_bytes
                                   ? block_bytes
                                   : kvp_pattern_wrong(block, block_bytes, c->run->conf->salt, ids[i]);
        r->wrong_bytes += wrong;
        r->wrong_blocks += wrong > 0;
        r->hits += wrong == 0;
        r->get_bytes += block_bytes;
        /* The same block may be read to this place again, so the place is poisoned: bytes that a get does not
         * write must not look right. */
        kvp_pattern_poison(block, block_bytes);
    }
}

static void
judge_put(client_t *c, size_t n)
{
    kvp_replay_result_t *r = &c->result;
    for (size_t i = 0; i < n; i++) {
        const int err = c->results[i];
        if (err == KVPOOL_OK || err == KVPOOL_ALREADY) {
            r->puts_done++;
        } else if (err == KVPOOL_IN_PROGRESS) {
            r->puts_in_progress++;
        } else {
            if (r->first_put_error == KVPOOL_OK) r->first_put_error = err;
            if (err == KVPOOL_NO_SPACE || err == KVPOOL_RETRY_AFTER)
                r->puts_refused++;
            else
                r->puts_failed++;
        }
    }
}

static int
load_blocks(client_t *c, const uint64_t *ids, size_t n)
{
    for (size_t at = 0; at < n; at += c->batch_n) {
        const size_t batch = kvp_min_u64(c->batch_n, n - at);
        make_batch(c, at, batch);
        const uint64_t begun = kvp_now_ns();
        int err = kvpool_batch_get(c->pool, c->items, batch, NULL, c->results);
        const uint64_t took = kvp_now_ns() - begun;
        if (err != KVPOOL_OK) return err;
        kvp_hist_add(&c->result.get, took);
        c->result.get_ns += took;
        judge_get(c, ids + at, batch);
    }
    return KVPOOL_OK;
}

static int
store_blocks(client_t *c, const uint64_t *ids, size_t from, size_t n)
{
    const kvp_replay_conf_t *conf = c->run->conf;
    for (size_t at = from; at < n; at += c->batch_n) {
        const size_t batch = kvp_min_u64(c->batch_n, n - at);
        make_batch(c, at, batch);
        for (size_t i = 0; i < batch; i++)
            kvp_pattern_fill(c->memory + i * c->stride, conf->block_bytes, conf->salt, ids[at + i]);
        const uint64_t begun = kvp_now_ns();
        int err = kvpool_batch_put(c->pool, c->items, batch, NULL, c->results);
        const uint64_t took = kvp_now_ns() - begun;
        if (err != KVPOOL_OK) return err;
        kvp_hist_add(&c->result.put, took);
        c->result.put_ns += took;
        judge_put(c, batch);
    }
    return KVPOOL_OK;
}

static int
play_request(client_t *c, const kvp_request_t *request)
{
    const uint64_t *ids = c->run->conf->workload->ids + request->ids_at;
    const size_t n = request->ids_n;
    kvpool_lookup_t lookup;
    c->result.requests++;
    c->result.blocks += n;
    if (n == 0) return KVPOOL_OK;
    make_keys(c, ids, n);
    const uint64_t begun = kvp_now_ns();
    int err = kvpool_longest_prefix(c->pool, c->keys, n, 0, NULL, NULL, &lookup);
    const uint64_t took = kvp_now_ns() - begun;
    if (err != KVPOOL_OK) return err;
    kvp_hist_add(&c->result.lookup, took);
    c->result.lookup_ns += took;
    c->result.found_not_granted += lookup.found - lookup.granted;
    err = load_blocks(c, ids, lookup.granted);
    if (err == KVPOOL_OK) err = store_blocks(c, ids, lookup.granted, n);
    int released = kvpool_lookup_release(c->pool, &lookup);
    return err != KVPOOL_OK ? err : released;
}

/* Waits until the request's turn at the configured rate. */
static void
wait_turn(run_t *run, const kvp_request_t *request)
{
    const uint64_t before = atomic_fetch_add(&run->blocks, request->ids_n), now_ns = kvp_now_ns();
    const uint64_t due_ns = run->begun_ns + (uint64_t)((double)before * 1e9 / (double)run->conf->rate);
    if (due_ns <= now_ns) return;
    const struct timespec left = {.tv_sec = (time_t)((due_ns - now_ns) / KVP_NS_PER_S),
                                  .tv_nsec = (long)((due_ns - now_ns) % KVP_NS_PER_S)};
    nanosleep(&left, NULL);
}

/* ---- one client ---- */

/* longest_of returns the number of blocks in the longest request. */
static size_t
longest_of(const kvp_workload_t *workload)
{
    size_t longest = 0;
    for (size_t i = 0; i < workload->requests_n; i++)
        longest = kvp_max_u64(longest, workload->requests[i].ids_n);
    return longest;
}

static int
client_open(client_t *c)
{
    const kvp_replay_conf_t *conf = c->run->conf;
    const size_t longest = kvp_max_u64(longest_of(conf->workload), 1);
    c->stride = kvp_align_up(conf->block_bytes, 64);
    c->batch_n = kvp_max_u64(1, kvp_min_u64(longest, BATCH_BYTES / c->stride));
    c->memory_bytes = c->batch_n * c->stride;
    c->texts = kvp_cli_alloc(longest, sizeof(*c->texts));
    c->keys = kvp_cli_alloc(longest, sizeof(*c->keys));
    c->items = kvp_cli_alloc(c->batch_n, sizeof(*c->items));
    c->iov = kvp_cli_alloc(c->batch_n, sizeof(*c->iov));
    c->results = kvp_cli_alloc(c->batch_n, sizeof(*c->results));
    void *memory =
        mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return KVPOOL_NOMEM;
    c->memory = memory;
    kvp_pattern_poison(c->memory, c->memory_bytes);
    int err = kvpool_open(conf->pool, &c->pool);
    if (err != KVPOOL_OK) return err;
    return kvpool_register(c->pool, c->memory, c->memory_bytes);
}

static void
client_init(client_t *c, run_t *run)
{
    memset(c, 0, sizeof(*c));
    c->run = run;
    kvp_hist_init(&c->result.lookup);
    kvp_hist_init(&c->result.get);
    kvp_hist_init(&c->result.put);
}

/* count_moved reads the traffic of the handle's transports. This shows how many blocks were new, because a put
 * does not report whether the block existed before. */
static void
count_moved(client_t *c)
{
    kvp_replay_result_t *r = &c->result;
    struct json_object *stat;
    if (c->pool == NULL || kvp_json_stat(c->pool, 0, &stat) != KVPOOL_OK) return;
    r->paths_n = kvp_json_paths(stat, r->paths, KVP_REPLAY_PATHS_MAX);
    json_object_put(stat);
    for (size_t i = 0; i < r->paths_n; i++) {
        r->puts_new += r->paths[i].writes;
        r->put_bytes += r->paths[i].written_bytes;
    }
}

static void
client_fini(client_t *c)
{
    kvpool_free(c->pool);
    if (c->memory != NULL) munmap(c->memory, c->memory_bytes);
    free(c->results);
    free(c->iov);
    free(c->items);
    free(c->keys);
    free(c->texts);
}

static void *
client_main(void *arg)
{
    client_t *c = arg;
    run_t *run = c->run;
    const kvp_workload_t *workload = run->conf->workload;
    while (atomic_load(&run->error) == KVPOOL_OK) {
        const size_t i = atomic_fetch_add(&run->next, 1);
        if (i >= workload->requests_n) break;
        if (run->conf->rate > 0) wait_turn(run, &workload->requests[i]);
        int err = play_request(c, &workload->requests[i]);
        if (err != KVPOOL_OK) stop_run(run, err);
        atomic_fetch_add(&run->done, 1);
    }
    pthread_mutex_lock(&run->lock);
    run->running--;
    pthread_cond_signal(&run->ended);
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

/* ---- the run of all clients ---- */

static void
add_result(kvp_replay_result_t *sum, const kvp_replay_result_t *r)
{
    sum->requests += r->requests;
    sum->blocks += r->blocks;
    sum->hits += r->hits;
    sum->found_not_granted += r->found_not_granted;
    sum->gets_failed += r->gets_failed;
    sum->wrong_blocks += r->wrong_blocks;
    sum->wrong_bytes += r->wrong_bytes;
    sum->puts_done += r->puts_done;
    sum->puts_new += r->puts_new;
    sum->puts_in_progress += r->puts_in_progress;
    sum->puts_refused += r->puts_refused;
    sum->puts_failed += r->puts_failed;
    sum->get_bytes += r->get_bytes;
    sum->put_bytes += r->put_bytes;
    sum->get_ns += r->get_ns;
    sum->put_ns += r->put_ns;
    sum->lookup_ns += r->lookup_ns;
    if (sum->first_get_error == KVPOOL_OK) sum->first_get_error = r->first_get_error;
    if (sum->first_put_error == KVPOOL_OK) sum->first_put_error = r->first_put_error;
    /* The traffic is summed by index, because all clients have the same transports in the same order. */
    sum->paths_n = kvp_max_u64(sum->paths_n, r->paths_n);
    for (size_t i = 0; i < r->paths_n; i++) {
        memcpy(sum->paths[i].name, r->paths[i].name, sizeof(r->paths[i].name));
        sum->paths[i].read_bytes += r->paths[i].read_bytes;
        sum->paths[i].written_bytes += r->paths[i].written_bytes;
    }
    kvp_hist_merge(&sum->lookup, &r->lookup);
    kvp_hist_merge(&sum->get, &r->get);
    kvp_hist_merge(&sum->put, &r->put);
}

static void
run_init(run_t *run, const kvp_replay_conf_t *conf)
{
    pthread_condattr_t by_monotonic;
    memset(run, 0, sizeof(*run));
    run->conf = conf;
    pthread_mutex_init(&run->lock, NULL);
    pthread_condattr_init(&by_monotonic);
    pthread_condattr_setclock(&by_monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&run->ended, &by_monotonic);
    pthread_condattr_destroy(&by_monotonic);
}

static void
run_fini(run_t *run)
{
    pthread_cond_destroy(&run->ended);
    pthread_mutex_destroy(&run->lock);
}

static int
start_client(client_t *c)
{
    run_t *run = c->run;
    pthread_mutex_lock(&run->lock);
    c->is_started = pthread_create(&c->thread, NULL, client_main, c) == 0;
    run->running += c->is_started;
    pthread_mutex_unlock(&run->lock);
    return c->is_started ? KVPOOL_OK : KVPOOL_NOMEM;
}

/* watch_run calls the progress function until all clients have ended. */
static void
watch_run(run_t *run)
{
    const kvp_replay_conf_t *conf = run->conf;
    pthread_mutex_lock(&run->lock);
    while (run->running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += PROGRESS_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (pthread_cond_timedwait(&run->ended, &run->lock, &until) != ETIMEDOUT) continue;
        pthread_mutex_unlock(&run->lock);
        if (!conf->progress(conf->arg, atomic_load(&run->done))) stop_run(run, KVPOOL_CANCELLED);
        pthread_mutex_lock(&run->lock);
    }
    pthread_mutex_unlock(&run->lock);
}

int
kvp_replay_run(const kvp_replay_conf_t *conf, kvp_replay_result_t *result_out)
{
    run_t run;
    client_t *clients = kvp_cli_alloc(conf->clients, sizeof(*clients));
    run_init(&run, conf);
    memset(result_out, 0, sizeof(*result_out));
    kvp_hist_init(&result_out->lookup);
    kvp_hist_init(&result_out->get);
    kvp_hist_init(&result_out->put);
    for (uint32_t i = 0; i < conf->clients; i++)
        client_init(&clients[i], &run);
    for (uint32_t i = 0; i < conf->clients && run.error == KVPOOL_OK; i++) {
        int err = client_open(&clients[i]);
        if (err != KVPOOL_OK) stop_run(&run, err);
    }
    const uint64_t begun = run.begun_ns = kvp_now_ns();
    for (uint32_t i = 0; i < conf->clients && run.error == KVPOOL_OK; i++) {
        int err = start_client(&clients[i]);
        if (err != KVPOOL_OK) stop_run(&run, err);
    }
    watch_run(&run);
    result_out->elapsed_ns = kvp_now_ns() - begun;
    (void)conf->progress(conf->arg, atomic_load(&run.done));
    for (uint32_t i = 0; i < conf->clients; i++) {
        if (clients[i].is_started) pthread_join(clients[i].thread, NULL);
        count_moved(&clients[i]);
        add_result(result_out, &clients[i].result);
        client_fini(&clients[i]);
    }
    free(clients);
    run_fini(&run);
    return run.error;
}
