/* SPDX-License-Identifier: Apache-2.0
 * The verb `bench`: options, the pool that it starts if none is named, and the figures of each round. round.c
 * measures, ops.c has the operations. */
#include "tools/base/cli.h"

#include "tools/bench/workers.h"
#include "tools/bench/key.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/base/node_addr.h"
#include "tools/base/procs.h"
#include "tools/base/report.h"

#include "common/clock.h"
#include "proto/segfmt.h"

#include <stdlib.h>
#include <string.h>

#define SET_BYTES (512ull << 20) /* default size of a set: more than any CPU cache holds */
#define VALUE_BYTES (2ull << 20)
#define KEYS 65536u /* default number of objects, of KEY_VALUE_BYTES each, if the operation moves no values */
#define KEY_VALUE_BYTES 64u
/* for a set whose size no option gives: limit of its objects, because small objects take long to put */
#define OBJECTS_MAX 131072u
#define KEY_BYTES 118u
#define BATCH 32u
#define VALUE_MAX (256ull << 20)
#define PIECES_MAX 1024u
#define RATE_MAX 100000000u
#define WAYS_MAX 64u
#define POOL_NODE_MIN (64ull << 20)

typedef struct {
    const kvp_cli_verb_t *verb;
    kvp_cli_common_t common;
    kvp_bench_conf_t conf;
    const char *op, *node_listen;
    uint64_t nodes, rounds, round_ns, set_bytes, keys, key_bytes, size, pieces, batch, threads, processes, rate;
    bool is_warm, is_step;
    kvp_local_pool_t local;
    char master[KVP_HOSTPORT_TEXT_MAX];
    char ways[WAYS_MAX]; /* transports by which the pool's nodes are reached, such as "shm" or "rdma,tcp" */
} bench_t;

static bool
moves_data(const bench_t *b)
{
    return (b->conf.op->flags & KVP_BENCH_MOVES) != 0;
}

/* ---- checks of the options ---- */

static int
check_conf(const bench_t *b)
{
    const kvp_bench_conf_t *c = &b->conf;
    const bool is_batch = (c->op->flags & KVP_BENCH_BATCH) != 0;
    const char *what = NULL;
    if (b->batch > 1 && !is_batch) what = "--batch is for operations of several objects a call";
    if (b->pieces > 1 && !(is_batch && moves_data(b))) what = "--pieces is for batch_put and batch_get";
    if (c->absent > 0 && (c->op->flags & KVP_BENCH_ASKS) == 0) what = "--absent is for operations that only ask";
    if (c->does_evict && (c->op->flags & KVP_BENCH_PUTS) == 0) what = "--evict is for puts";
    if (b->is_warm && c->is_cold) what = "--warm or --cold, not both";
    if (b->set_bytes > 0 && b->keys > 0) what = "--set or --keys, not both";
    if (c->value_bytes % c->pieces != 0) what = "--size is not a multiple of --pieces";
    return what == NULL ? KVP_EXIT_DONE : kvp_cli_complain(b->verb, KVP_EXIT_USAGE, "--op %s: %s", c->op->name, what);
}

/* settle_set sets the number of objects of each process, rounded up to whole batches for all its threads. */
static int
settle_set(bench_t *b)
{
    kvp_bench_conf_t *c = &b->conf;
    const uint64_t step = (uint64_t)c->batch * c->threads, set = b->set_bytes > 0 ? b->set_bytes : SET_BYTES;
    uint64_t n = b->keys;
    if (n == 0) n = moves_data(b) || b->set_bytes > 0 ? (set + c->value_bytes - 1) / c->value_bytes : KEYS;
    if (b->keys == 0 && b->set_bytes == 0) n = kvp_min_u64(n, OBJECTS_MAX);
    n = (n + c->processes - 1) / c->processes;
    c->objects = kvp_max_u64(1, (n + step - 1) / step) * step;
    if (c->objects > KVP_BENCH_OBJECTS_MAX || c->objects * c->processes > KVP_BENCH_SET_MAX / c->value_bytes)
        return kvp_cli_complain(b->verb, KVP_EXIT_USAGE, "a set of more than 64 GiB, or of 2^31 objects a process");
    return KVP_EXIT_DONE;
}

/* make_conf converts the options to round.c's configuration. */
static int
make_conf(bench_t *b)
{
    kvp_bench_conf_t *c = &b->conf;
    c->op = kvp_bench_op_find(b->op);
    if (c->op == NULL) return kvp_cli_complain(b->verb, KVP_EXIT_USAGE, "--op is one of %s", kvp_bench_op_names());
    c->value_bytes = b->size > 0 ? b->size : moves_data(b) ? VALUE_BYTES : KEY_VALUE_BYTES;
    c->pieces = (uint32_t)b->pieces;
    c->key_bytes = (uint32_t)b->key_bytes;
    c->batch = (uint32_t)(b->batch > 0 ? b->batch : (c->op->flags & KVP_BENCH_BATCH) != 0 ? BATCH : 1);
    c->threads = (uint32_t)b->threads;
    c->processes = (uint32_t)b->processes;
    c->calls_per_s = (double)b->rate;
    c->round_ns = b->round_ns;
    c->run = kvp_random_u64();
    const int code = check_conf(b);
    return code == KVP_EXIT_DONE ? settle_set(b) : code;
}

static int
parse_options(bench_t *b, int argc, char **argv)
{
    const kvp_cli_opt_t opts[] = {
        {"op", KVP_CLI_TEXT, &b->op, "NAME", kvp_bench_op_names(), 0, 0},
        {"size", KVP_CLI_BYTES, &b->size, "SIZE", "of an object (default 2MiB; where no bytes move: 64)", 1, VALUE_MAX},
        {"pieces", KVP_CLI_U64, &b->pieces, "N", "that an object's memory lies in (default 1)", 1, PIECES_MAX},
        {"batch", KVP_CLI_U64, &b->batch, "N", "objects a call (default 32)", 1, KVPOOL_BATCH_MAX},
        {"key-bytes", KVP_CLI_U64, &b->key_bytes, "N", "of a key (default 118)", KVP_BENCH_KEY_MIN, KVPOOL_KEY_MAX},
        {"threads", KVP_CLI_U64, &b->threads, "N", "of each process, on one handle (default 1)", 1,
         KVP_BENCH_THREADS_MAX},
        {"processes", KVP_CLI_U64, &b->processes, "N", "each with a handle of its own (default 1)", 1,
         KVP_BENCH_PROCESSES_MAX},
        {"rate", KVP_CLI_U64, &b->rate, "N",
         "calls a second of all together, due at fixed times; latency counts "
         "from these (default: each call follows the last one)",
         1, RATE_MAX},
        {"seconds", KVP_CLI_DURATION, &b->round_ns, "TIME", "of a round, such as 3s (the default) or 500ms", 1000000,
         3600000000000ull},
        {"rounds", KVP_CLI_U64, &b->rounds, "N", "rounds, a line each (default 1)", 1, 1000000},
        {"warm", KVP_CLI_FLAG, &b->is_warm, NULL, "everything was gone over before (the default)", 0, 0},
        {"cold", KVP_CLI_FLAG, &b->conf.is_cold, NULL, "only first passes of a new handle over the pool's memory", 0,
         0},
        {"evict", KVP_CLI_FLAG, &b->conf.does_evict, NULL, "put into a full pool", 0, 0},
        {"set", KVP_CLI_BYTES, &b->set_bytes, "SIZE",
         "values gone over (default 512MiB, more than caches hold, of at most 131072 objects)", 1, KVP_BENCH_SET_MAX},
        {"keys", KVP_CLI_U64, &b->keys, "N", "objects gone over, instead of --set (default 65536 where no bytes move)",
         1, KVP_BENCH_OBJECTS_MAX},
        {"absent", KVP_CLI_SHARE, &b->conf.absent, "SHARE", "of keys that are asked for and not present (default none)",
         0, 0},
        {"step", KVP_CLI_FLAG, &b->is_step, NULL,
         "say \"ready\" on standard error, then wait for a line on standard "
         "input before each round",
         0, 0},
        {"nodes", KVP_CLI_U64, &b->nodes, "N", "of the started pool (default 1)", 1, KVP_PROCS_NODES_MAX},
        KVP_CLI_NODE_LISTEN(&b->node_listen),
    };
    int first;
    return kvp_cli_parse(b->verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &b->common, &first);
}

/* ---- output of the figures ---- */

static void
say_line(const bench_t *b, uint64_t number, const kvp_bench_leg_t *sum)
{
    const double ns = (double)sum->ended_ns;
    printf("%3llu", (unsigned long long)number);
    if (moves_data(b)) printf("  %8.3f GB/s", (double)sum->bytes / ns);
    printf("  %10.0f objects/s  p50 %.1f us  p99 %.1f us  errors %llu  wrong bytes %llu\n",
           (double)sum->objects / (ns / 1e9), (double)kvp_hist_quantile(&sum->call, 0.5) / 1e3,
           (double)kvp_hist_quantile(&sum->call, 0.99) / 1e3, (unsigned long long)sum->errors,
           (unsigned long long)sum->wrong_bytes);
}

static void
report_work(const bench_t *b, kvp_table_t *to, uint64_t number)
{
    const kvp_bench_conf_t *c = &b->conf;
    kvp_report_text(to, "op", "operation", c->op->name);
    kvp_report_text(to, "transports", "nodes reached by", b->ways);
    kvp_report_count(to, "round", NULL, number);
    kvp_report_bytes(to, "size_bytes", "object", c->value_bytes);
    kvp_report_count(to, "pieces", "pieces an object", c->pieces);
    kvp_report_count(to, "key_bytes", "bytes of a key", c->key_bytes);
    kvp_report_count(to, "batch", "objects a call", c->batch);
    kvp_report_count(to, "threads", "threads", c->threads);
    kvp_report_count(to, "processes", "processes", c->processes);
    kvp_report_count(to, "set_objects", "objects in all", c->objects * c->processes);
    kvp_report_bytes(to, "set_bytes", "set", c->objects * c->processes * c->value_bytes);
    kvp_report_real(to, "absent", c->absent > 0 ? "share absent" : NULL, c->absent, 3);
    kvp_report_text(to, "pass", "pass", c->is_cold ? "cold" : "warm");
    kvp_report_text(to, "loop", "loop", c->calls_per_s > 0 ? "open" : "closed");
    if (c->calls_per_s > 0) kvp_report_real(to, "calls_due_per_s", "calls due/s", c->calls_per_s, 0);
}

/* Adds the RDMA counters to the report. All other transports count no work requests. */
static void
report_requests(kvp_table_t *to, const kvp_bench_counts_t *counts)
{
    if (counts->work_requests == 0) return;
    kvp_report_count(to, "work_requests", "work requests", counts->work_requests);
    kvp_report_count(to, "doorbells", "doorbells", counts->doorbells);
    kvp_report_count(to, "signaled_completions", "completions asked for", counts->signaled_completions);
    kvp_report_count(to, "system_calls", "system calls of ours", counts->system_calls);
}

static void
report_round(const bench_t *b, kvp_table_t *to, const kvp_bench_leg_t *sum, uint64_t fill_ns)
{
    const double seconds = (double)sum->ended_ns / 1e9;
    kvp_report_real(to, "fill_s", fill_ns > 0 ? "putting the set, seconds" : NULL, (double)fill_ns / 1e9, 3);
    kvp_report_real(to, "elapsed_s", "seconds", seconds, 3);
    kvp_report_count(to, "calls", "calls", sum->calls);
    kvp_report_real(to, "calls_per_s", "calls/s", (double)sum->calls / seconds, 0);
    kvp_report_real(to, "gb_per_s", moves_data(b) ? "GB/s" : NULL, (double)sum->bytes / (double)sum->ended_ns, 3);
    kvp_report_real(to, "objects_per_s", "objects/s", (double)sum->objects / seconds, 0);
    kvp_report_latency(to, "call", &sum->call);
    if (b->conf.calls_per_s > 0) kvp_report_latency(to, "service", &sum->service);
    if ((b->conf.op->flags & KVP_BENCH_KNOWN) != 0)
        kvp_report_count(to, "known_objects", "got with no message", sum->counts.known);
    report_requests(to, &sum->counts);
    kvp_report_count(to, "errors", "errors", sum->errors);
    if (sum->errors > 0) kvp_report_text(to, "first_error", "first error", kvpool_errname(sum->first_error));
    kvp_report_count(to, "wrong_bytes", "wrong bytes", sum->wrong_bytes);
}

static void
say_round(const bench_t *b, uint64_t number, const kvp_bench_leg_t *sum, uint64_t fill_ns)
{
    if (b->common.is_json || b->rounds == 1) {
        kvp_table_t *to = kvp_report_create();
        report_work(b, to, number);
        report_round(b, to, sum, fill_ns);
        kvp_report_print(to, b->common.is_json);
    } else {
        say_line(b, number, sum);
    }
    fflush(stdout);
}

/* ---- running the bench ---- */

static int
start_pool(bench_t *b)
{
    char listen[KVP_HOSTPORT_TEXT_MAX];
    kvp_local_conf_t conf = {.listen = "127.0.0.1:0",
                             .nodes = (uint32_t)b->nodes,
                             .node_listen = listen,
                             .is_insecure = true}; /* its objects have no content of anybody */
    const int code = kvp_cli_node_listen(b->verb, &b->common, b->node_listen, listen);
    if (code != KVP_EXIT_DONE) return code;
    /* Each node gets more than its share of the memory, because objects are not spread evenly. */
    const uint64_t share = kvp_bench_pool_bytes(&b->conf) / b->nodes;
    for (uint32_t i = 0; i < conf.nodes; i++)
        conf.memory_bytes[i] = kvp_align_up(b->nodes == 1 ? share : share + share / 4 + POOL_NODE_MIN, 4096);
    conf.extent_bytes = kvp_extent_bytes(b->conf.value_bytes);
    if (kvp_local_start(&b->local, &conf) != KVP_OK) return KVP_EXIT_UNREACHABLE;
    memcpy(b->master, b->local.master.listen, sizeof(b->master));
    b->common.master = b->master;
    return KVP_EXIT_DONE;
}

/* The result of reading the pool's state in a child process. */
typedef struct {
    int code; /* exit code of reading the pool; KVP_EXIT_DONE = continue */
    uint64_t size_bytes;
    char ways[WAYS_MAX];
} look_t;

/* note_ways lists each transport by which a node is reached once, in the order of the nodes. */
static void
note_ways(look_t *look, struct json_object *stat)
{
    struct json_object *segments;
    const size_t n = kvp_json_get_list(stat, "segments", &segments);
    for (size_t i = 0; i < n; i++) {
        const char *way = kvp_json_get_text(json_object_array_get_idx(segments, i), "transport");
        const size_t len = strlen(look->ways);
        if (strstr(look->ways, way) != NULL) continue;
        snprintf(look->ways + len, sizeof(look->ways) - len, "%s%s", len > 0 ? "," : "", way);
    }
}

static void
look_in_child(const void *arg, void *answer)
{
    const bench_t *b = arg;
    look_t *to = answer;
    kvpool_t *pool = NULL;
    struct json_object *stat;
    to->code = kvp_cli_open(b->verb, &b->common, &pool);
    if (to->code != KVP_EXIT_DONE) return;
    int err = kvp_json_stat(pool, 0, &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) {
        to->code = kvp_cli_fail(b->verb, "stat", err);
        return;
    }
    to->size_bytes = kvp_json_find_u64(stat, "size_bytes");
    note_ways(to, stat);
    json_object_put(stat);
}

/* look_at_pool reads the pool's size and transports. It refuses a set larger than the pool, because its first
 * objects would be evicted before they are read. Puts that should evict need no room, and a pool that bench
 * started has the right size. */
static int
look_at_pool(bench_t *b, bool is_own)
{
    const uint64_t needs = kvp_bench_set_bytes(&b->conf);
    char set[KVP_BYTES_TEXT_MAX], size[KVP_BYTES_TEXT_MAX];
    look_t found = {.code = KVP_EXIT_REFUSED};
    /* The pool is read in a child process: this process forks the workers, which could not use RDMA devices opened
     * before the fork. */
    const int code = kvp_cli_apart(b->verb, look_in_child, b, &found, sizeof(found));
    if (code != KVP_EXIT_DONE || found.code != KVP_EXIT_DONE) return code != KVP_EXIT_DONE ? code : found.code;
    memcpy(b->ways, found.ways, sizeof(b->ways));
    if (is_own || b->conf.does_evict || needs <= found.size_bytes) return KVP_EXIT_DONE;
    return kvp_cli_complain(b->verb, KVP_EXIT_REFUSED,
                            "the set takes %s, and the pool has %s: give a smaller --set, or fewer --keys",
                            kvp_format_bytes(needs, set), kvp_format_bytes(found.size_bytes, size));
}

/* may_go waits for a line on standard input before each round, if another program controls the rounds. It returns
 * false at the end of the input. */
static bool
may_go(const bench_t *b)
{
    int c;
    if (!b->is_step) return true;
    do
        c = getchar();
    while (c != '\n' && c != EOF);
    return c == '\n';
}

static int
run_rounds(bench_t *b, kvp_bench_workers_t *workers)
{
    kvp_bench_leg_t *sum = kvp_cli_alloc(1, sizeof(*sum));
    int code = KVP_EXIT_DONE;
    /* The controlling program waits for this line, which means that preparation is complete. */
    if (b->is_step) fprintf(stderr, "ready\n");
    for (uint64_t i = 1; i <= b->rounds && may_go(b); i++) {
        const int got = kvp_bench_workers_round(workers, b->round_ns, sum);
        if (sum->ended_ns > 0) say_round(b, i, sum, kvp_bench_workers_fill_ns(workers));
        if (sum->errors + sum->wrong_bytes > 0) code = KVP_EXIT_REFUSED;
        const char *why = sum->errors > 0 ? kvp_bench_explain(&b->conf, sum->first_error) : NULL;
        if (why != NULL) code = kvp_cli_complain(b->verb, code, "%s", why);
        if (got == KVP_EXIT_DONE) continue;
        code = got;
        break;
    }
    free(sum);
    return kvp_cli_flush(b->verb, code);
}

static int
measure_rounds(bench_t *b)
{
    kvp_bench_workers_t *workers = NULL;
    const bool is_own = b->common.master == NULL;
    int code = is_own ? start_pool(b) : KVP_EXIT_DONE;
    if (code == KVP_EXIT_DONE) code = look_at_pool(b, is_own);
    if (code == KVP_EXIT_DONE) {
        code = kvp_bench_workers_open(b->verb, &b->conf, &b->common, &workers);
        if (code == KVP_EXIT_DONE) code = run_rounds(b, workers);
        /* In a pool that bench did not start, the objects of the bench are removed again, if the pool is still
         * reachable. */
        const int left = kvp_bench_workers_close(workers, !is_own && code != KVP_EXIT_UNREACHABLE);
        if (code == KVP_EXIT_DONE) code = left;
    }
    if (kvp_local_stop(&b->local) > 0 && code == KVP_EXIT_DONE) code = KVP_EXIT_REFUSED;
    return code;
}

int
kvp_cli_bench(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    bench_t b = {.verb = verb, .op = "batch_get", .round_ns = 3 * KVP_NS_PER_S};
    b.nodes = b.rounds = b.pieces = b.threads = b.processes = 1;
    b.key_bytes = KEY_BYTES;
    int code = parse_options(&b, argc, argv);
    if (code != KVP_EXIT_GO_ON) return code;
    code = make_conf(&b);
    return code == KVP_EXIT_DONE ? measure_rounds(&b) : code;
}
