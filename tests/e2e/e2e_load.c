/* SPDX-License-Identifier: Apache-2.0
 * e2e_load: threads on one handle that put, get, replace and check objects until standard input ends, every byte
 * verified. Prints {"ready":true}, a line of JSON for each line read (what happened since the last one; "peek" begins
 * no new count), and a last one at the end. Several of these processes share a board file, from which readers learn
 * what was put.
 *
 * putters   write a stream of ever new keys sSTREAM/INDEX, and force-remove some recent ones (--remove-pct) getters
 * read recent keys of all streams churners  put version after version under a fixed set of keys, each removed before
 * the next is put upserters put version after version over a fixed set of keys, with nothing removed in between
 * checkers  get those keys: a version is whole, not older than what was acknowledged before, and not older than what
 *           the same thread has seen; they ask the master each time, or (--known 1) go where the object is known to be.
 *           With --seen 0 what was seen does not count: it may not be acknowledged yet, and is undone where a master
 * dies that had not logged it probers   ask whether recent keys of all streams are there, and do nothing else */
#include "tests/e2e/e2e_util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEY_CAP 64

typedef struct {
    const char *master, *host_id, *transports, *board, *prefix;
    uint64_t putters, getters, churners, upserters, checkers, probers; /* threads */
    uint64_t batch, min_bytes, max_bytes;
    uint64_t streams, stream_base; /* all, over all processes; the first one of this process */
    uint64_t window; /* getters and probers: how far back */
    uint64_t keys; /* of churners, upserters and checkers */
    uint64_t remove_pct;
    uint64_t deadline_ms;
    uint64_t seed;
    uint64_t memory_bytes; /* > 0: an embedded node */
    uint64_t get_verify;
    uint64_t replicas, pause_ms; /* putters; between two batches */
    uint64_t wait; /* upserters */
    uint64_t known, seen; /* checkers */
} options_t;

typedef struct {
    uint64_t calls, bytes, wrong, late;
    double max_ms;
    e2e_counts_t results;
    e2e_counts_t removes;
    char first_wrong[256];
} tally_t;

typedef struct worker worker_t;
typedef void (*role_fn)(worker_t *w);

struct worker {
    pthread_t thread;
    role_fn role;
    uint64_t index; /* among the threads of its role */
    uint64_t rng;
    uint8_t *arena; /* registered: batch pieces of max_bytes */
    pthread_mutex_t lock;
    tally_t tally; /* guarded by lock; since the last mark */
    kvpool_item_t *items; /* of the batch at hand, as are the following */
    kvpool_iov_t *iovs;
    int *results;
    char (*names)[KEY_CAP];
    uint64_t *hashes;
    uint64_t *wanted; /* floors when the call began */
    uint64_t *picked; /* checkers: which keys those are */
    uint64_t *seen; /* checkers: by key, the newest version that this thread has read */
};

static options_t opt = {
    .prefix = "",
    .batch = 8,
    .min_bytes = 4096,
    .max_bytes = 4096,
    .streams = 1,
    .window = 64,
    .keys = 64,
    .deadline_ms = 5000,
    .seed = 1,
    .seen = 1,
};
static kvpool_t *pool;
static _Atomic uint64_t *board; /* by stream: keys begun */
static _Atomic uint64_t *floors; /* by key: the oldest version that a reader may see; behind the streams on the board */
static _Atomic bool is_stopping;

/* ---- options: --name value */
static const struct {
    const char *name;
    const char **text;
    uint64_t *number;
} flags[] = {
    {"--master", &opt.master, NULL},
    {"--host-id", &opt.host_id, NULL},
    {"--transports", &opt.transports, NULL},
    {"--board", &opt.board, NULL},
    {"--prefix", &opt.prefix, NULL},
    {"--putters", NULL, &opt.putters},
    {"--getters", NULL, &opt.getters},
    {"--churners", NULL, &opt.churners},
    {"--upserters", NULL, &opt.upserters},
    {"--checkers", NULL, &opt.checkers},
    {"--probers", NULL, &opt.probers},
    {"--batch", NULL, &opt.batch},
    {"--min-bytes", NULL, &opt.min_bytes},
    {"--max-bytes", NULL, &opt.max_bytes},
    {"--streams", NULL, &opt.streams},
    {"--stream-base", NULL, &opt.stream_base},
    {"--window", NULL, &opt.window},
    {"--keys", NULL, &opt.keys},
    {"--remove-pct", NULL, &opt.remove_pct},
    {"--deadline-ms", NULL, &opt.deadline_ms},
    {"--seed", NULL, &opt.seed},
    {"--memory-bytes", NULL, &opt.memory_bytes},
    {"--verify", NULL, &opt.get_verify},
    {"--replicas", NULL, &opt.replicas},
    {"--pause-ms", NULL, &opt.pause_ms},
    {"--wait", NULL, &opt.wait},
    {"--known", NULL, &opt.known},
    {"--seen", NULL, &opt.seen},
};

static void
set_option(const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (strcmp(flags[i].name, name) != 0) continue;
        if (flags[i].text != NULL)
            *flags[i].text = value;
        else
            *flags[i].number = strtoull(value, NULL, 10);
        return;
    }
    e2e_die("unknown option %s", name);
}

/* ---- counting */
static void
note_call(worker_t *w, uint64_t begun_ns, const int *results, size_t n)
{
    double ms = (double)(int64_t)(e2e_runnable_ns() - begun_ns) / 1e6; /* of two clocks: a short one may be negative */

    pthread_mutex_lock(&w->lock);
    w->tally.calls++;
    for (size_t i = 0; i < n; i++)
        e2e_count(&w->tally.results, results[i]);
    if (ms > w->tally.max_ms) w->tally.max_ms = ms;
    if (ms > (double)opt.deadline_ms) w->tally.late++;
    pthread_mutex_unlock(&w->lock);
}

static void
note_remove(worker_t *w, int err)
{
    pthread_mutex_lock(&w->lock);
    e2e_count(&w->tally.removes, err);
    pthread_mutex_unlock(&w->lock);
}

static void
note_bytes(worker_t *w, uint64_t bytes)
{
    pthread_mutex_lock(&w->lock);
    w->tally.bytes += bytes;
    pthread_mutex_unlock(&w->lock);
}

static void
note_wrong(worker_t *w, const char *name, const char *what, uint64_t len, uint64_t at, uint64_t version,
           uint64_t wanted)
{
    pthread_mutex_lock(&w->lock);
    if (w->tally.wrong++ == 0)
        snprintf(w->tally.first_wrong, sizeof w->tally.first_wrong,
                 "%s: %s, length %llu at %llu version %llu wanted %llu", name, what, (unsigned long long)len,
                 (unsigned long long)at, (unsigned long long)version, (unsigned long long)wanted);
    pthread_mutex_unlock(&w->lock);
}

static void
merge(tally_t *into, const tally_t *from)
{
    into->calls += from->calls;
    into->bytes += from->bytes;
    into->late += from->late;
    if (into->wrong == 0 && from->wrong > 0) memcpy(into->first_wrong, from->first_wrong, sizeof into->first_wrong);
    into->wrong += from->wrong;
    if (from->max_ms > into->max_ms) into->max_ms = from->max_ms;
    for (int i = 0; i < E2E_ERRORS; i++) {
        into->results.by_err[i] += from->results.by_err[i];
        into->removes.by_err[i] += from->removes.by_err[i];
    }
}

/* ---- one batch */
static uint8_t *
piece(worker_t *w, size_t i)
{
    return w->arena + i * opt.max_bytes;
}

static void
set_item(worker_t *w, size_t i, size_t len)
{
    w->hashes[i] = e2e_hash(w->names[i], strlen(w->names[i]));
    w->iovs[i] = (kvpool_iov_t){piece(w, i), len};
    w->items[i] = (kvpool_item_t){.key = {w->names[i], strlen(w->names[i])}, .iov = &w->iovs[i], .iov_n = 1};
}

/* A whole batch that was refused counts as such for each of its objects. */
static void
run_batch(worker_t *w, size_t n, bool is_put, uint32_t how)
{
    kvpool_opts_t o = {
        .struct_size = sizeof o,
        .deadline_ms = (uint32_t)opt.deadline_ms,
        .flags = how,
        .replicas = is_put ? (uint32_t)opt.replicas : 0,
    };
    uint64_t begun_ns = e2e_runnable_ns();
    int err = is_put ? kvpool_batch_put(pool, w->items, n, &o, w->results)
                     : kvpool_batch_get(pool, w->items, n, &o, w->results);

    for (size_t i = 0; i < n && err != KVPOOL_OK; i++)
        w->results[i] = err;
    note_call(w, begun_ns, w->results, n);
}

static void
name_of_stream(char *to, uint64_t stream, uint64_t index)
{
    snprintf(to, KEY_CAP, "%ss%llu/%llu", opt.prefix, (unsigned long long)stream, (unsigned long long)index);
}

static int
remove_one(worker_t *w, const char *name, uint32_t how)
{
    kvpool_opts_t o = {.struct_size = sizeof o, .deadline_ms = (uint32_t)opt.deadline_ms, .flags = how};
    int err = kvpool_remove(pool, name, strlen(name), &o);

    note_remove(w, err);
    return err;
}

/* ---- roles */
static void
put_role(worker_t *w)
{
    const uint64_t stream = opt.stream_base + w->index;
    uint64_t next = atomic_load(&board[stream]);
    char victim[KEY_CAP];

    while (!is_stopping) {
        uint64_t bytes = 0;

        usleep((useconds_t)opt.pause_ms * 1000);
        for (size_t i = 0; i < opt.batch; i++) {
            size_t len;

            name_of_stream(w->names[i], stream, next + i);
            set_item(w, i, 0);
            len = e2e_size(w->hashes[i], 0, opt.min_bytes, opt.max_bytes);
            w->iovs[i].len = len;
            e2e_fill(piece(w, i), len, w->hashes[i], 0);
        }
        next += opt.batch;
        run_batch(w, opt.batch, true, 0);
        atomic_store(&board[stream], next);
        for (size_t i = 0; i < opt.batch; i++)
            if (w->results[i] == KVPOOL_OK) bytes += w->iovs[i].len;
        note_bytes(w, bytes);
        for (size_t i = 0; i < opt.batch && opt.remove_pct > 0; i++) {
            if (e2e_random(&w->rng) % 100 >= opt.remove_pct) continue;
            name_of_stream(victim, stream, next - 1 - e2e_random(&w->rng) % (next < opt.window ? next : opt.window));
            (void)remove_one(w, victim, KVPOOL_FORCE);
        }
    }
}

/* Judges what was read, and returns its version, 0 where it is none. */
static uint64_t
check_read(worker_t *w, size_t i, uint64_t floor, bool is_versioned)
{
    size_t at, len = w->items[i].len;
    uint64_t version = 0;
    bool is_ok =
        len >= E2E_MIN_BYTES && len <= opt.max_bytes && e2e_check(piece(w, i), len, w->hashes[i], &version, &at);

    if (len < E2E_MIN_BYTES || len > opt.max_bytes) {
        note_wrong(w, w->names[i], "length", len, 0, 0, floor);
    } else if (!is_ok) {
        note_wrong(w, w->names[i], "bytes", len, at, version, floor);
    } else if (is_versioned ? version < floor : version != 0) {
        note_wrong(w, w->names[i], "version", len, 0, version, floor);
    } else if (len != e2e_size(w->hashes[i], version, opt.min_bytes, opt.max_bytes)) {
        note_wrong(w, w->names[i], "length of its version", len, 0, version, floor);
    } else {
        note_bytes(w, len);
        return version;
    }
    return 0;
}

static void
pick_recent(worker_t *w, size_t i)
{
    uint64_t stream = e2e_random(&w->rng) % opt.streams, end = atomic_load(&board[stream]);
    uint64_t back = e2e_random(&w->rng) % opt.window;

    name_of_stream(w->names[i], stream, end > back ? end - 1 - back : 0);
    set_item(w, i, opt.max_bytes);
}

static void
probe_role(worker_t *w)
{
    kvpool_opts_t o = {.struct_size = sizeof o, .deadline_ms = (uint32_t)opt.deadline_ms};
    kvpool_key_t keys[256];
    const size_t n = opt.batch < 256 ? opt.batch : 256;

    while (!is_stopping) {
        uint64_t begun_ns = e2e_runnable_ns();
        int err;

        for (size_t i = 0; i < n; i++) {
            pick_recent(w, i);
            keys[i] = w->items[i].key;
        }
        err = kvpool_batch_is_exist(pool, keys, n, &o, w->results);
        note_call(w, begun_ns, &err, 1);
    }
}

static void
get_role(worker_t *w)
{
    while (!is_stopping) {
        for (size_t i = 0; i < opt.batch; i++)
            pick_recent(w, i);
        run_batch(w, opt.batch, false, 0);
        for (size_t i = 0; i < opt.batch; i++)
            if (w->results[i] == KVPOOL_OK) (void)check_read(w, i, 0, false);
    }
}

static void
name_of_key(char *to, uint64_t key)
{
    snprintf(to, KEY_CAP, "%sv/%llu", opt.prefix, (unsigned long long)key);
}

/* Puts the next version of one key and removes it. What failed half way is removed until it is known to be gone. */
static void
churn_one(worker_t *w, uint64_t key, uint64_t version)
{
    size_t len;

    name_of_key(w->names[0], key);
    set_item(w, 0, 0);
    len = e2e_size(w->hashes[0], version, opt.min_bytes, opt.max_bytes);
    w->iovs[0].len = len;
    e2e_fill(piece(w, 0), len, w->hashes[0], version);
    run_batch(w, 1, true, 0);
    if (w->results[0] == KVPOOL_OK) {
        note_bytes(w, len);
        atomic_store(&floors[key], version);
    }
    while (!is_stopping) {
        int err = remove_one(w, w->names[0], version / 2 % 2 == 0 ? KVPOOL_FORCE : 0);

        if (err == KVPOOL_OK || err == KVPOOL_NOT_FOUND) break;
    }
    if (!is_stopping) atomic_store(&floors[key], version + 1);
}

static void
churn_role(worker_t *w)
{
    const uint64_t stream = opt.stream_base + w->index;

    while (!is_stopping)
        for (uint64_t key = stream; key < opt.keys && !is_stopping; key += opt.streams)
            churn_one(w, key, atomic_load(&floors[key]) + 1);
}

/* Puts the next version over the one that is there. One that failed may be there or not, and is put again. */
static void
upsert_role(worker_t *w)
{
    const uint64_t stream = opt.stream_base + w->index;

    for (uint64_t key = stream; !is_stopping; key = key + opt.streams < opt.keys ? key + opt.streams : stream) {
        uint64_t version = atomic_load(&floors[key]) + 1;
        size_t len;

        name_of_key(w->names[0], key);
        set_item(w, 0, 0);
        len = e2e_size(w->hashes[0], version, opt.min_bytes, opt.max_bytes);
        w->iovs[0].len = len;
        e2e_fill(piece(w, 0), len, w->hashes[0], version);
        run_batch(w, 1, true, KVPOOL_UPSERT | (opt.wait != 0 ? KVPOOL_WAIT : 0));
        if (w->results[0] != KVPOOL_OK) continue;
        note_bytes(w, len);
        atomic_store(&floors[key], version);
    }
}

static void
check_role(worker_t *w)
{
    while (!is_stopping) {
        for (size_t i = 0; i < opt.batch; i++) {
            uint64_t key = e2e_random(&w->rng) % opt.keys, floor = atomic_load(&floors[key]);

            name_of_key(w->names[i], key);
            set_item(w, i, opt.max_bytes);
            w->picked[i] = key;
            w->wanted[i] = floor > w->seen[key] ? floor : w->seen[key];
        }
        run_batch(w, opt.batch, false, opt.known != 0 ? 0 : KVPOOL_FRESH);
        for (size_t i = 0; i < opt.batch; i++) {
            uint64_t *seen = &w->seen[w->picked[i]], version;

            if (w->results[i] != KVPOOL_OK) continue;
            version = check_read(w, i, w->wanted[i], true);
            if (opt.seen != 0 && version > *seen) *seen = version;
        }
    }
}

/* ---- threads */
static void *
run_worker(void *arg)
{
    worker_t *w = arg;

    w->role(w);
    return NULL;
}

static void
start_worker(worker_t *w, role_fn role, uint64_t index, uint64_t seed)
{
    const size_t arena_bytes = opt.batch * opt.max_bytes;
    int err;

    w->role = role;
    w->index = index;
    w->rng = seed;
    w->arena = e2e_alloc(arena_bytes);
    w->items = e2e_alloc(opt.batch * sizeof *w->items);
    w->iovs = e2e_alloc(opt.batch * sizeof *w->iovs);
    w->results = e2e_alloc(opt.batch * sizeof *w->results);
    w->names = e2e_alloc(opt.batch * sizeof *w->names);
    w->hashes = e2e_alloc(opt.batch * sizeof *w->hashes);
    w->wanted = e2e_alloc(opt.batch * sizeof *w->wanted);
    w->picked = e2e_alloc(opt.batch * sizeof *w->picked);
    w->seen = e2e_alloc(opt.keys * sizeof *w->seen);
    pthread_mutex_init(&w->lock, NULL);
    err = kvpool_register(pool, w->arena, arena_bytes);
    if (err != KVPOOL_OK) e2e_die("cannot register: %s", kvpool_errname(err));
    if (pthread_create(&w->thread, NULL, run_worker, w) != 0) e2e_die("no thread");
}

static size_t
start_workers(worker_t *workers)
{
    const struct {
        role_fn role;
        uint64_t n;
    } roles[] = {{put_role, opt.putters},      {get_role, opt.getters},    {churn_role, opt.churners},
                 {upsert_role, opt.upserters}, {check_role, opt.checkers}, {probe_role, opt.probers}};
    uint64_t seed = opt.seed * 1000003u;
    size_t n = 0;

    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++)
        for (uint64_t i = 0; i < roles[r].n; i++)
            start_worker(&workers[n++], roles[r].role, i, ++seed);
    return n;
}

/* ---- reports */
static void
print_tally(const char *name, worker_t *workers, size_t n, const char *stat)
{
    const bool is_peek = strcmp(name, "peek") == 0;
    tally_t sum = {0};

    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&workers[i].lock);
        merge(&sum, &workers[i].tally);
        if (!is_peek) memset(&workers[i].tally, 0, sizeof workers[i].tally);
        pthread_mutex_unlock(&workers[i].lock);
    }
    printf("{\"mark\":");
    e2e_json_text(stdout, name);
    printf(",\"calls\":%llu,\"bytes\":%llu,\"wrong\":%llu,\"late\":%llu,\"max_ms\":%.1f,\"first_wrong\":",
           (unsigned long long)sum.calls, (unsigned long long)sum.bytes, (unsigned long long)sum.wrong,
           (unsigned long long)sum.late, sum.max_ms);
    e2e_json_text(stdout, sum.first_wrong);
    printf(",\"results\":");
    e2e_json_counts(stdout, &sum.results);
    printf(",\"removes\":");
    e2e_json_counts(stdout, &sum.removes);
    if (stat != NULL) printf(",\"stat\":%s", stat);
    printf("}\n");
    fflush(stdout);
}

/* Runs until standard input ends; each line of it asks for a report. */
static void
follow_input(worker_t *workers, size_t n)
{
    char line[256];

    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        print_tally(line, workers, n, NULL);
    }
}

static void
open_board(void)
{
    const size_t bytes = (opt.streams + opt.keys) * sizeof *board;
    int fd;

    if (opt.board == NULL) {
        board = e2e_alloc(bytes);
    } else {
        fd = open(opt.board, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) e2e_die("cannot open the board: %s", strerror(errno));
        board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (board == MAP_FAILED) e2e_die("cannot map the board");
        close(fd);
    }
    floors = board + opt.streams;
}

int
main(int argc, char **argv)
{
    static char stat[1 << 20];
    kvpool_conf_t conf = {.struct_size = sizeof conf};
    worker_t *workers;
    size_t n, len;
    int err;

    for (int i = 1; i + 1 < argc; i += 2)
        set_option(argv[i], argv[i + 1]);
    open_board();
    conf.master = opt.master;
    conf.host_id = opt.host_id;
    conf.transports = opt.transports;
    conf.memory_bytes = opt.memory_bytes;
    conf.verify = opt.get_verify != 0 ? KVPOOL_VERIFY_PAYLOAD : KVPOOL_VERIFY_AUTO;
    err = kvpool_open(&conf, &pool);
    if (err != KVPOOL_OK) e2e_die("cannot open the pool: %s", kvpool_errname(err));
    printf("{\"ready\":true}\n");
    fflush(stdout);

    workers = e2e_alloc((opt.putters + opt.getters + opt.churners + opt.upserters + opt.checkers + opt.probers) *
                        sizeof *workers);
    n = start_workers(workers);
    follow_input(workers, n);
    is_stopping = true;
    for (size_t i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    err = kvpool_stat(pool, stat, sizeof stat, &len, NULL);
    print_tally("end", workers, n, err == KVPOOL_OK ? stat : NULL);
    kvpool_free(pool);
    return 0;
}
