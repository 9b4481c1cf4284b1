/* SPDX-License-Identifier: Apache-2.0
 * See round.h. Every thread owns a range of whole batches in the set. Keys, items and registered memory are made
 * before, so that a leg only calls the library and reads the clock. */
#include "tools/bench/round.h"

#include "tools/bench/key.h"
#include "tools/bench/pace.h"
#include "tools/bench/set.h"
#include "tools/base/json_out.h"
#include "tools/base/tty.h"

#include "common/clock.h"
#include "proto/segfmt.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define POOL_SLACK_BYTES (64ull << 20)
/* least space of an object: a chunk has one object slot for each 256 bytes (fewer if it exceeds 4 GiB: kvp_chunk_geo)
 */
#define SLOT_BYTES 256u
#define PATHS_MAX 8u /* limit of the transports of a handle */
/* Time limits of the preparation; longer rounds have longer ones. A set must be whole, a pass of puts need not. */
#define FILL_MIN_NS (20 * KVP_NS_PER_S)
#define FILL_ROUNDS 10u
#define PUTS_MIN_NS (2 * KVP_NS_PER_S)
#define WAKE_EARLY_NS 60000u /* waiting threads wake this long before a call is due, as timers may be late */

typedef struct {
    kvp_bench_t *bench;
    pthread_t thread;
    uint32_t number;
    size_t first; /* first object of the thread, which owns bench->per_thread objects */
    size_t at; /* index of the thread's next batch in its range */
    size_t batches_done; /* number of batches done in this leg */
    uint64_t budget_ns;
    kvp_bench_pace_t pace;
    int error;
    int *results;
    kvp_bench_leg_t leg;
} worker_t;

struct kvp_bench {
    const kvp_cli_verb_t *verb;
    kvp_cli_common_t common;
    kvp_bench_conf_t conf;
    uint32_t process;
    kvpool_t *pool;
    bool is_fresh; /* a flag: no leg has used the handle */
    bool has_put; /* a flag: the set's keys have been put, so puts need new keys */
    size_t per_thread;
    kvp_bench_set_t set;
    worker_t *workers;
    pthread_barrier_t start;
};

static bool
has_flag(const kvp_bench_conf_t *conf, uint32_t flag)
{
    return (conf->op->flags & flag) != 0;
}

bool
kvp_bench_is_one_pass(const kvp_bench_conf_t *conf)
{
    return conf->is_cold || has_flag(conf, KVP_BENCH_PUTS | KVP_BENCH_REMOVES);
}

uint64_t
kvp_bench_set_bytes(const kvp_bench_conf_t *conf)
{
    const uint64_t each = kvp_max_u64(kvp_extent_bytes(conf->value_bytes), SLOT_BYTES);
    return (uint64_t)((double)(conf->objects * conf->processes) * (1 - conf->absent)) * each;
}

const char *
kvp_bench_explain(const kvp_bench_conf_t *conf, int err)
{
    if (err == KVPOOL_NOTSUP && has_flag(conf, KVP_BENCH_SHARED))
        return "this operation needs memory that this host shares with a node: by shm, not over the network";
    if (err == KVPOOL_NOT_FOUND)
        return "a part of the set was evicted or removed: the pool is too small for the set, or others use the pool as "
               "well";
    if (err == KVPOOL_DEADLINE)
        return "a call moves more than this path does in its time: give a longer --deadline, or a smaller --batch or "
               "--size";
    return NULL;
}

uint64_t
kvp_bench_pool_bytes(const kvp_bench_conf_t *conf)
{
    const uint64_t set = kvp_bench_set_bytes(conf);
    /* The pool frees the space of removed or replaced objects with a delay, so it needs room for a second set. */
    const bool is_twice = has_flag(conf, KVP_BENCH_WRITES) && !conf->does_evict;
    return kvp_align_up((is_twice ? 2 * set : set) + POOL_SLACK_BYTES, 4096);
}

/* ---- one call and its results ---- */

static void
count_error(worker_t *w, int err)
{
    w->leg.errors++;
    if (w->leg.first_error == KVPOOL_OK) w->leg.first_error = err;
}

/* judge_results counts the results of the objects. Finding an object that was never put counts as an error. */
static void
judge_results(worker_t *w, size_t first, size_t n)
{
    const kvp_bench_conf_t *conf = &w->bench->conf;
    for (size_t i = 0; i < n; i++) {
        const int want = !kvp_bench_is_absent(first + i, conf->absent), got = w->results[i];
        if (got == want) {
            w->leg.objects++;
            if (has_flag(conf, KVP_BENCH_MOVES)) w->leg.bytes += conf->value_bytes;
        } else {
            count_error(w, got < 0 ? got : got == 0 ? KVPOOL_NOT_FOUND : KVPOOL_INTERNAL);
        }
    }
}

/* wait_until sleeps until shortly before the time, then spins and yields the processor to other threads. */
static void
wait_until(uint64_t at_ns)
{
    if (kvp_now_ns() + WAKE_EARLY_NS < at_ns) {
        const uint64_t wake = at_ns - WAKE_EARLY_NS;
        const struct timespec at = {(time_t)(wake / KVP_NS_PER_S), (long)(wake % KVP_NS_PER_S)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    while (kvp_now_ns() < at_ns)
        sched_yield();
}

static int
run_call(worker_t *w, size_t first, uint64_t due_ns)
{
    kvp_bench_t *b = w->bench;
    const kvp_bench_call_t c = {
        .pool = b->pool,
        .items = b->set.items != NULL ? b->set.items + first : NULL,
        .keys = b->set.keys + first,
        .n = b->conf.batch,
        .results = w->results,
    };
    const uint64_t begun = kvp_now_ns();
    int err = b->conf.op->call(&c);
    w->leg.ended_ns = kvp_now_ns();
    if (err != KVPOOL_OK) return err;
    kvp_hist_add(&w->leg.service, w->leg.ended_ns - begun);
    kvp_hist_add(&w->leg.call, w->leg.ended_ns - kvp_min_u64(due_ns, begun));
    w->leg.calls++;
    judge_results(w, first, c.n);
    return KVPOOL_OK;
}

static size_t
batches_each(const kvp_bench_t *b)
{
    return b->per_thread / b->conf.batch;
}

static int
next_call(worker_t *w, uint64_t due_ns)
{
    const size_t first = w->first + w->at * w->bench->conf.batch;
    w->at = (w->at + 1) % batches_each(w->bench);
    w->batches_done++;
    return run_call(w, first, due_ns);
}

/* ---- a leg: the timed part ---- */

/* rest_turn waits for the end of the last call's interval in an open loop (calls at a fixed rate), so that the next
 * leg's first call is not too early. */
static void
rest_turn(worker_t *w)
{
    const uint64_t end_ns = w->leg.begun_ns + kvp_min_u64(kvp_bench_pace_end(&w->pace, w->batches_done), w->budget_ns);
    wait_until(end_ns);
    w->leg.ended_ns = kvp_max_u64(w->leg.ended_ns, end_ns);
}

static void *
worker_main(void *arg)
{
    worker_t *w = arg;
    const bool is_one_pass = kvp_bench_is_one_pass(&w->bench->conf), is_open = w->pace.interval_ns > 0;
    prctl(PR_SET_TIMERSLACK, 1ul);
    pthread_barrier_wait(&w->bench->start);
    w->leg.begun_ns = w->leg.ended_ns = kvp_now_ns();
    do {
        const uint64_t due = kvp_bench_pace_next(&w->pace, w->leg.ended_ns - w->leg.begun_ns);
        if (due >= w->budget_ns) break;
        if (is_open) wait_until(w->leg.begun_ns + due);
        w->error = next_call(w, w->leg.begun_ns + due);
    } while (w->error == KVPOOL_OK && (!is_one_pass || w->batches_done < batches_each(w->bench)));
    if (is_open && w->error == KVPOOL_OK) rest_turn(w);
    return NULL;
}

/* run_workers starts all threads at one barrier and waits for their end. */
static void
run_workers(kvp_bench_t *b)
{
    uint32_t started = 0;
    pthread_barrier_init(&b->start, NULL, b->conf.threads);
    for (; started < b->conf.threads; started++)
        if (pthread_create(&b->workers[started].thread, NULL, worker_main, &b->workers[started]) != 0) break;
    /* Threads that already wait at the barrier cannot be ended if another thread cannot be started, so the program
     * ends. */
    if (started < b->conf.threads) kvp_cli_no_memory();
    for (uint32_t i = 0; i < started; i++)
        pthread_join(b->workers[i].thread, NULL);
    pthread_barrier_destroy(&b->start);
}

/* verify_get checks the bytes that the thread read in this leg; the memory was poisoned before the leg. */
static void
verify_get(worker_t *w)
{
    kvp_bench_t *b = w->bench;
    const size_t all = batches_each(b), seen = kvp_min_u64(w->batches_done, all);
    for (size_t back = 1; back <= seen; back++) {
        const size_t batch = (w->at + all - back) % all;
        w->leg.wrong_bytes += kvp_bench_set_wrong(&b->set, w->first + batch * b->conf.batch, b->conf.batch);
    }
}

/* verify_put reads the thread's last batch back; the memory is overwritten before this get, and refilled after. */
static int
verify_put(worker_t *w)
{
    kvp_bench_t *b = w->bench;
    const size_t n = b->conf.batch, first = w->first + (w->at + batches_each(b) - 1) % batches_each(b) * n;
    if (w->batches_done == 0) return KVPOOL_OK;
    kvp_bench_set_poison(&b->set, first, n);
    int err = kvpool_batch_get(b->pool, b->set.items + first, n, NULL, w->results);
    for (size_t i = 0; i < n && err == KVPOOL_OK; i++) {
        if (w->results[i] == KVPOOL_OK)
            w->leg.wrong_bytes += kvp_bench_set_wrong(&b->set, first + i, 1);
        else
            count_error(w, w->results[i]);
    }
    kvp_bench_set_fill(&b->set, first, n);
    return err;
}

static int
verify_leg(worker_t *w)
{
    const kvp_bench_conf_t *conf = &w->bench->conf;
    if (has_flag(conf, KVP_BENCH_WRITES)) return verify_put(w);
    if (has_flag(conf, KVP_BENCH_MOVES) && w->leg.errors == 0) verify_get(w);
    return KVPOOL_OK;
}

void
kvp_bench_leg_init(kvp_bench_leg_t *leg)
{
    memset(leg, 0, sizeof(*leg));
    kvp_hist_init(&leg->call);
    kvp_hist_init(&leg->service);
}

void
kvp_bench_leg_add(kvp_bench_leg_t *sum, const kvp_bench_leg_t *leg)
{
    sum->calls += leg->calls;
    sum->objects += leg->objects;
    sum->bytes += leg->bytes;
    sum->errors += leg->errors;
    sum->wrong_bytes += leg->wrong_bytes;
    sum->counts.known += leg->counts.known;
    sum->counts.work_requests += leg->counts.work_requests;
    sum->counts.doorbells += leg->counts.doorbells;
    sum->counts.signaled_completions += leg->counts.signaled_completions;
    sum->counts.system_calls += leg->counts.system_calls;
    if (sum->first_error == KVPOOL_OK) sum->first_error = leg->first_error;
    kvp_hist_merge(&sum->call, &leg->call);
    kvp_hist_merge(&sum->service, &leg->service);
}

/* add_handle_counts adds the handle's counters multiplied by `times`. The value -1, before a leg, subtracts the
 * earlier counts. */
static int
add_handle_counts(kvp_bench_t *b, kvp_bench_counts_t *counts, int times)
{
    kvp_json_path_t paths[PATHS_MAX];
    struct json_object *stat;
    if (!has_flag(&b->conf, KVP_BENCH_MOVES)) return KVPOOL_OK;
    int err = kvp_json_stat(b->pool, 0, &stat);
    if (err != KVPOOL_OK) return err;
    counts->known += (uint64_t)times * kvp_json_find_u64(stat, "known_location_gets");
    const size_t n = kvp_json_paths(stat, paths, PATHS_MAX);
    for (size_t i = 0; i < n; i++) {
        counts->work_requests += (uint64_t)times * paths[i].work_requests;
        counts->doorbells += (uint64_t)times * paths[i].doorbells;
        counts->signaled_completions += (uint64_t)times * paths[i].signaled_completions;
        counts->system_calls += (uint64_t)times * paths[i].system_calls;
    }
    json_object_put(stat);
    return KVPOOL_OK;
}

int
kvp_bench_leg(kvp_bench_t *b, uint64_t budget_ns, kvp_bench_leg_t *leg_out)
{
    const uint32_t all = b->conf.threads * b->conf.processes;
    kvp_bench_leg_init(leg_out);
    leg_out->begun_ns = UINT64_MAX;
    int err = add_handle_counts(b, &leg_out->counts, -1);
    if (err != KVPOOL_OK) return err;
    for (uint32_t i = 0; i < b->conf.threads; i++) {
        worker_t *w = &b->workers[i];
        kvp_bench_leg_init(&w->leg);
        kvp_bench_pace_init(&w->pace, b->conf.calls_per_s, b->process * b->conf.threads + i, all);
        w->batches_done = 0;
        w->budget_ns = budget_ns;
    }
    run_workers(b);
    err = add_handle_counts(b, &leg_out->counts, 1);
    for (uint32_t i = 0; i < b->conf.threads; i++) {
        worker_t *w = &b->workers[i];
        leg_out->begun_ns = kvp_min_u64(leg_out->begun_ns, w->leg.begun_ns);
        leg_out->ended_ns = kvp_max_u64(leg_out->ended_ns, w->leg.ended_ns);
        if (err == KVPOOL_OK) err = w->error;
        if (err == KVPOOL_OK) err = verify_leg(w);
        kvp_bench_leg_add(leg_out, &w->leg);
    }
    b->is_fresh = false;
    b->has_put = true;
    return err;
}

/* ---- preparation of the pool and the set ---- */

static int
put_set(kvp_bench_t *b)
{
    const uint64_t limit_ns = kvp_max_u64(FILL_MIN_NS, FILL_ROUNDS * b->conf.round_ns);
    const int err = kvp_bench_set_put(&b->set, b->pool, b->conf.batch, kvp_now_ns() + limit_ns);
    if (b->set.late_at > 0)
        (void)kvp_cli_complain(b->verb, KVP_EXIT_REFUSED,
                               "putting the set was stopped after %llu s, at %zu of %llu objects: give fewer --keys, a "
                               "smaller --set, or more --seconds",
                               (unsigned long long)(limit_ns / KVP_NS_PER_S), b->set.late_at,
                               (unsigned long long)b->conf.objects);
    return err;
}

static int
open_handle(kvp_bench_t *b)
{
    int code = kvp_cli_open(b->verb, &b->common, &b->pool);
    if (code != KVP_EXIT_DONE) return code;
    b->is_fresh = true;
    int err = kvpool_register(b->pool, b->set.memory, b->set.memory_bytes);
    return err == KVPOOL_OK ? KVP_EXIT_DONE : kvp_cli_fail(b->verb, "registering memory", err);
}

static void
close_handle(kvp_bench_t *b)
{
    if (b->pool == NULL) return;
    (void)kvpool_unregister(b->pool, b->set.memory); /* fails, harmlessly, if registering failed before */
    kvpool_free(b->pool);
    b->pool = NULL;
}

int
kvp_bench_prepare(kvp_bench_t *b)
{
    int err = KVPOOL_OK;
    if (b->conf.is_cold && !b->is_fresh) {
        close_handle(b);
        if (open_handle(b) != KVP_EXIT_DONE) return KVPOOL_UNREACHABLE;
    }
    if (has_flag(&b->conf, KVP_BENCH_PUTS) && b->has_put) kvp_bench_set_rename(&b->set);
    if (has_flag(&b->conf, KVP_BENCH_MOVES) && !has_flag(&b->conf, KVP_BENCH_WRITES))
        kvp_bench_set_poison(&b->set, 0, b->conf.objects);
    if (has_flag(&b->conf, KVP_BENCH_REMOVES)) err = put_set(b);
    for (uint32_t i = 0; i < b->conf.threads && kvp_bench_is_one_pass(&b->conf); i++)
        b->workers[i].at = 0;
    return err;
}

/* run_pass makes one untimed pass over the whole set, or over as much as the time limit allows. */
static int
run_pass(kvp_bench_t *b)
{
    const uint64_t min_ns = has_flag(&b->conf, KVP_BENCH_PUTS) ? PUTS_MIN_NS : FILL_MIN_NS;
    const uint64_t begun_ns = kvp_now_ns(), end_ns = begun_ns + kvp_max_u64(min_ns, b->conf.round_ns);
    const size_t all = b->conf.threads * batches_each(b);
    kvp_progress_t progress = {0};
    size_t done = 0;
    int err = KVPOOL_OK;
    for (uint32_t i = 0; i < b->conf.threads && err == KVPOOL_OK; i++) {
        worker_t *w = &b->workers[i];
        kvp_bench_leg_init(&w->leg);
        for (size_t n = 0; n < batches_each(b) && err == KVPOOL_OK && kvp_now_ns() < end_ns; n++) {
            err = next_call(w, UINT64_MAX);
            if (b->process == 0) kvp_progress_show(&progress, "calls of the first pass", ++done, all);
        }
        if (err == KVPOOL_OK) err = w->leg.first_error;
    }
    kvp_progress_end(&progress);
    if (b->process == 0 && err == KVPOOL_OK && done < all)
        (void)kvp_cli_complain(b->verb, KVP_EXIT_DONE,
                               "a pass before the first round was stopped at %zu of %zu calls, after %.1f s", done, all,
                               (double)(end_ns - begun_ns) / 1e9);
    b->has_put = true;
    return err;
}

/* warm_up puts the set and, if a leg may make several passes, makes an untimed pass, so that all memory is
 * mapped. For puts it makes only two passes with different keys, which write a started pool's memory once. */
static int
warm_up(kvp_bench_t *b, uint64_t *fill_ns_out)
{
    const uint64_t begun = kvp_now_ns();
    int err;
    *fill_ns_out = 0;
    if (!has_flag(&b->conf, KVP_BENCH_PUTS)) {
        err = put_set(b);
        *fill_ns_out = kvp_now_ns() - begun;
        return err == KVPOOL_OK && !kvp_bench_is_one_pass(&b->conf) ? run_pass(b) : err;
    }
    err = run_pass(b);
    if (err != KVPOOL_OK) return err;
    kvp_bench_set_rename(&b->set);
    return run_pass(b);
}

static void
make_workers(kvp_bench_t *b)
{
    b->workers = kvp_cli_alloc(b->conf.threads, sizeof(*b->workers));
    for (uint32_t i = 0; i < b->conf.threads; i++) {
        b->workers[i].bench = b;
        b->workers[i].first = i * b->per_thread;
        b->workers[i].results = kvp_cli_alloc(b->conf.batch, sizeof(int));
    }
}

int
kvp_bench_open(const kvp_cli_verb_t *verb, const kvp_bench_conf_t *conf, const kvp_cli_common_t *common,
               uint32_t process, kvp_bench_t **bench_out, uint64_t *fill_ns_out)
{
    kvp_bench_t *b = kvp_cli_alloc(1, sizeof(*b));
    int code = KVP_EXIT_DONE;
    *b = (kvp_bench_t){.verb = verb, .common = *common, .conf = *conf, .process = process};
    /* Only operations with KVP_BENCH_KNOWN use cached locations. For all others the cache is off, because it would
     * change what is measured. */
    if (!has_flag(conf, KVP_BENCH_KNOWN)) b->common.locations = UINT32_MAX;
    b->per_thread = conf->objects / conf->threads;
    make_workers(b);
    int err = kvp_bench_set_init(&b->set, conf, process);
    if (err == KVPOOL_OK) code = open_handle(b);
    if (err == KVPOOL_OK && code == KVP_EXIT_DONE) err = warm_up(b, fill_ns_out);
    if (err != KVPOOL_OK) {
        code = kvp_cli_fail(verb, "setting up", err);
        if (kvp_bench_explain(conf, err) != NULL && b->set.late_at == 0)
            code = kvp_cli_complain(verb, code, "%s", kvp_bench_explain(conf, err));
    }
    if (code != KVP_EXIT_DONE) {
        kvp_bench_close(b);
        return code;
    }
    b->is_fresh = false;
    *bench_out = b;
    return KVP_EXIT_DONE;
}

void
kvp_bench_close(kvp_bench_t *b)
{
    if (b == NULL) return;
    close_handle(b);
    for (uint32_t i = 0; i < b->conf.threads; i++)
        free(b->workers[i].results);
    free(b->workers);
    kvp_bench_set_fini(&b->set);
    free(b);
}
