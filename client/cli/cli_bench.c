/* SPDX-License-Identifier: Apache-2.0
 * bench: options, the pool that it starts where none is named, one line a round. The measuring is bench.c's.
 */
#include "client/cli/cli.h"

#include "client/cli/bench.h"
#include "client/cli/cli_opts.h"
#include "client/cli/procs.h"
#include "client/cli/report.h"

#include "common/slab.h"

#include <stdlib.h>
#include <string.h>

#define COLD_SET_BYTES (512ull << 20) /* more than any cache holds */
#define DATA_BYTES (2ull << 20) /* default sizes */
#define NAME_BYTES 4096u
#define VALUE_MAX (256ull << 20)
#define POOL_NODE_MIN (64ull << 20)

typedef struct {
    const kvp_cli_verb_t *verb;
    kvp_cli_common_t common;
    kvp_bench_conf_t conf;
    const char *op;
    uint64_t nodes, rounds, set_bytes, size, batch, threads;
    bool is_warm, is_cold, is_step;
    kvp_local_t local;
    char master[KVP_HOSTPORT_TEXT_MAX];
} bench_t;

static const char *const op_names[] = {
    [KVP_BENCH_GET] = "get",
    [KVP_BENCH_PUT] = "put",
    [KVP_BENCH_EXISTS] = "exists",
    [KVP_BENCH_LOOKUP] = "lookup",
};

static bool
moves_data(const kvp_bench_conf_t *conf)
{
    return conf->op == KVP_BENCH_GET || conf->op == KVP_BENCH_PUT;
}

/* settle turns the options into what bench.c wants. */
static int
settle(bench_t *b)
{
    size_t op = 0;
    while (op < KVP_ARRAY_LEN(op_names) && strcmp(b->op, op_names[op]) != 0)
        op++;
    if (op == KVP_ARRAY_LEN(op_names))
        return kvp_cli_complain(b->verb, KVP_EXIT_USAGE, "--op is one of get, put, exists, lookup");
    if (b->is_warm && b->is_cold) return kvp_cli_complain(b->verb, KVP_EXIT_USAGE, "--warm or --cold, not both");
    kvp_bench_conf_t *c = &b->conf;
    c->op = (kvp_bench_op_t)op;
    c->value_bytes = b->size > 0 ? b->size : moves_data(c) ? DATA_BYTES : NAME_BYTES;
    c->batch = (uint32_t)b->batch;
    c->threads = (uint32_t)b->threads;
    if (b->set_bytes > 0)
        c->set_bytes = b->set_bytes;
    else
        c->set_bytes = moves_data(c) && !b->is_warm ? COLD_SET_BYTES : 1;
    if (kvp_bench_objects(c) <= KVP_BENCH_SET_MAX / c->value_bytes) return KVP_EXIT_DONE;
    return kvp_cli_complain(b->verb, KVP_EXIT_USAGE, "a set of more than 64 GiB");
}

static int
start_pool(bench_t *b)
{
    kvp_local_conf_t conf = {.listen = "127.0.0.1:0", .nodes = (uint32_t)b->nodes};
    /* Each node gets more than its share: placement is not even to the byte. */
    const uint64_t share = kvp_bench_pool_bytes(&b->conf) / b->nodes;
    for (uint32_t i = 0; i < conf.nodes; i++)
        conf.memory_bytes[i] = kvp_align_up(b->nodes == 1 ? share : share + share / 4 + POOL_NODE_MIN, 4096);
    conf.extent_bytes = kvp_slab_extent_bytes(b->conf.value_bytes);
    if (kvp_local_start(&b->local, &conf) != KVP_OK) return KVP_EXIT_UNREACHABLE;
    memcpy(b->master, b->local.master.listen, sizeof(b->master));
    b->common.master = b->master;
    return KVP_EXIT_DONE;
}

static void
say_line(const bench_t *b, uint64_t number, const kvp_bench_round_t *r)
{
    const double ns = (double)r->elapsed_ns;
    printf("%3llu", (unsigned long long)number);
    if (moves_data(&b->conf)) printf("  %8.3f GB/s", (double)r->bytes / ns);
    printf("  %10.0f objects/s  p50 %.1f us  p99 %.1f us  errors %llu  wrong bytes %llu\n",
           (double)r->objects / (ns / 1e9), (double)kvp_hist_quantile(&r->call, 0.5) / 1e3,
           (double)kvp_hist_quantile(&r->call, 0.99) / 1e3, (unsigned long long)r->errors,
           (unsigned long long)r->wrong_bytes);
}

static void
say_round(const bench_t *b, uint64_t number, const kvp_bench_round_t *r)
{
    const double seconds = (double)r->elapsed_ns / 1e9;
    kvp_report_t *to = kvp_report_create();
    kvp_report_text(to, "op", "operation", b->op);
    kvp_report_count(to, "round", NULL, number);
    kvp_report_bytes(to, "size_bytes", "object", b->conf.value_bytes);
    kvp_report_count(to, "batch", "objects a call", b->conf.batch);
    kvp_report_count(to, "threads", "threads", b->conf.threads);
    kvp_report_bytes(to, "set_bytes", "set", kvp_bench_objects(&b->conf) * b->conf.value_bytes);
    kvp_report_real(to, "elapsed_s", "seconds", seconds, 3);
    kvp_report_count(to, "calls", "calls", r->calls);
    kvp_report_real(to, "gb_per_s", moves_data(&b->conf) ? "GB/s" : NULL, (double)r->bytes / (double)r->elapsed_ns, 3);
    kvp_report_real(to, "objects_per_s", "objects/s", (double)r->objects / seconds, 0);
    kvp_report_latency(to, "call", &r->call);
    kvp_report_count(to, "errors", "errors", r->errors);
    if (r->errors > 0) kvp_report_text(to, "first_error", "first error", kvpool_errname(r->first_error));
    kvp_report_count(to, "wrong_bytes", "wrong bytes", r->wrong_bytes);
    if (b->common.is_json)
        kvp_report_json(to, stdout);
    else if (b->rounds == 1)
        kvp_report_table(to, stdout);
    else
        say_line(b, number, r);
    kvp_report_destroy(to);
    fflush(stdout);
}

/* may_go waits for a line where another program sets the pace. */
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
run_rounds(bench_t *b, kvp_bench_t *bench)
{
    kvp_bench_round_t *round = kvp_cli_alloc(1, sizeof(*round));
    int code = KVP_EXIT_DONE;
    for (uint64_t i = 1; i <= b->rounds && may_go(b); i++) {
        int err = kvp_bench_round(bench, round);
        say_round(b, i, round);
        if (round->errors + round->wrong_bytes > 0) code = KVP_EXIT_REFUSED;
        if (err == KVPOOL_OK) continue;
        code = kvp_cli_fail(b->verb, b->op, err);
        break;
    }
    free(round);
    return kvp_cli_flush(b->verb, code);
}

static int
measure(bench_t *b)
{
    kvpool_t *pool = NULL;
    kvp_bench_t *bench = NULL;
    int code = b->common.master == NULL ? start_pool(b) : KVP_EXIT_DONE;
    if (code == KVP_EXIT_DONE) code = kvp_cli_open(b->verb, &b->common, &pool);
    if (code == KVP_EXIT_DONE) {
        int err = kvp_bench_open(&b->conf, pool, &bench);
        if (err != KVPOOL_OK) code = kvp_cli_fail(b->verb, "setting up", err);
    }
    if (code == KVP_EXIT_DONE) {
        /* Where another program sets the pace, it must know when setting up is over. */
        if (b->is_step) fprintf(stderr, "ready\n");
        code = run_rounds(b, bench);
    }
    kvp_bench_close(bench);
    kvpool_free(pool);
    if (kvp_local_stop(&b->local) > 0 && code == KVP_EXIT_DONE) code = KVP_EXIT_REFUSED;
    return code;
}

int
kvp_cli_bench(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    bench_t b = {.verb = verb, .op = "get", .nodes = 1, .rounds = 1, .batch = 32, .threads = 1};
    b.conf.round_ns = 3000000000ull;
    const kvp_cli_opt_t opts[] = {
        {"op", KVP_CLI_TEXT, &b.op, "NAME", "get, put, exists or lookup (default get)", 0, 0},
        {"size", KVP_CLI_BYTES, &b.size, "SIZE", "of an object (default 2MiB; exists, lookup: 4KiB)", 1, VALUE_MAX},
        {"batch", KVP_CLI_U64, &b.batch, "N", "objects a call (default 32)", 1, KVPOOL_BATCH_MAX},
        {"threads", KVP_CLI_U64, &b.threads, "N", "on one handle (default 1)", 1, KVP_BENCH_THREADS_MAX},
        {"seconds", KVP_CLI_DURATION, &b.conf.round_ns, "TIME", "of a round, such as 3s (the default) or 500ms",
         1000000, 3600000000000ull},
        {"rounds", KVP_CLI_U64, &b.rounds, "N", "rounds, a line each (default 1)", 1, 1000000},
        {"cold", KVP_CLI_FLAG, &b.is_cold, NULL, "a set of 512 MiB, more than caches hold (the default)", 0, 0},
        {"warm", KVP_CLI_FLAG, &b.is_warm, NULL, "one batch a thread, again and again", 0, 0},
        {"set", KVP_CLI_BYTES, &b.set_bytes, "SIZE", "a set of that size", 1, KVP_BENCH_SET_MAX},
        {"step", KVP_CLI_FLAG, &b.is_step, NULL,
         "say \"ready\" on standard error, then wait for a line on standard "
         "input before each round",
         0, 0},
        {"nodes", KVP_CLI_U64, &b.nodes, "N", "of the started pool (default 1)", 1, KVP_PROCS_NODES_MAX},
    };
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &b.common, &first);
    if (code == KVP_EXIT_GO_ON && first < argc) code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "takes no operand");
    if (code != KVP_EXIT_GO_ON) return code;
    code = settle(&b);
    return code == KVP_EXIT_DONE ? measure(&b) : code;
}
