/* SPDX-License-Identifier: Apache-2.0
 * The verb `replay`: options, the pool that it starts if none is named, and the figures. play.c plays the workload. */
#include "tools/base/cli.h"

#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/replay/lru_sim.h"
#include "tools/base/node_addr.h"
#include "tools/base/procs.h"
#include "tools/replay/play.h"
#include "tools/base/report.h"
#include "tools/base/tty.h"
#include "tools/replay/trace.h"

#include "common/clock.h"
#include "proto/segfmt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUESTS_MAX (16u << 20)
#define NODE_BYTES_MIN (64u << 10)
#define NODE_BYTES_STEP 4096u
#define BLOCK_BYTES_MAX (256ull << 20)
#define LRU_SHARE_MIN 0.997 /* smallest share of the LRU simulation's hits that --policy-check accepts */

typedef struct {
    const kvp_cli_verb_t *verb;
    kvp_cli_common_t common;
    const char *trace;
    const char *node_listen;
    uint64_t block_bytes;
    double capacity;
    uint64_t nodes;
    uint64_t limit; /* most requests to play; 0 = the whole trace */
    uint64_t clients;
    uint64_t rate;
    bool is_policy_check;
    kvp_workload_t workload;
    size_t distinct;
    int stop_fd; /* a descriptor that is readable after a stop signal */
    kvp_local_pool_t local; /* the pool that this run has started; all zero = none */
    char master[KVP_HOSTPORT_TEXT_MAX];
    uint64_t size_bytes; /* size of the pool in bytes */
    uint64_t capacity_blocks;
    uint64_t lru_hits;
    size_t tenths; /* number of tenths of the run that were reported so far */
    bool is_tty;
    kvp_progress_t progress;
    kvp_replay_result_t result;
} replay_t;

/* ---- loading the workload ---- */

static int
load_workload(replay_t *r)
{
    char why[KVP_TRACE_WHY_MAX];
    if (r->trace == NULL) return kvp_cli_complain(r->verb, KVP_EXIT_USAGE, "a trace is missing: --trace FILE");
    kvp_err_t err = kvp_trace_load(r->trace, r->limit > 0 ? r->limit : REQUESTS_MAX, &r->workload, why);
    if (err != KVP_OK) return kvp_cli_complain(r->verb, KVP_EXIT_USAGE, "%s: %s", r->trace, why);
    err = kvp_workload_distinct(&r->workload, &r->distinct);
    if (err != KVP_OK) return kvp_cli_fail(r->verb, "counting blocks", err);
    if (r->distinct == 0) return kvp_cli_complain(r->verb, KVP_EXIT_USAGE, "the workload has no blocks");
    return KVP_EXIT_DONE;
}

/* ---- starting or measuring the pool ---- */

/* Opens and closes the pool once, so that wrong options and variables are reported before the replay, as in all
 * verbs. */
static int
try_open(const replay_t *r)
{
    kvpool_t *pool = NULL;
    int code = kvp_cli_open(r->verb, &r->common, &pool);
    if (code == KVP_EXIT_DONE) kvpool_free(pool);
    return code;
}

/* start_pool starts a master and nodes with room for exactly the share --capacity of the distinct blocks, except that
 * the memory of each node is rounded up to pages. */
static int
start_pool(replay_t *r)
{
    const uint64_t extent = kvp_extent_bytes(r->block_bytes);
    const uint64_t blocks = kvp_max_u64(1, (uint64_t)((double)r->distinct * r->capacity));
    char listen[KVP_HOSTPORT_TEXT_MAX];
    kvp_local_conf_t conf = {.listen = "127.0.0.1:0",
                             .nodes = (uint32_t)kvp_min_u64(r->nodes, blocks),
                             .node_listen = listen,
                             .is_insecure = true}; /* its objects have no content of anybody */
    const int code = kvp_cli_node_listen(r->verb, &r->common, r->node_listen, listen);
    if (code != KVP_EXIT_DONE) return code;
    for (uint32_t i = 0; i < conf.nodes; i++) {
        const uint64_t share = blocks / conf.nodes + (i < blocks % conf.nodes);
        conf.memory_bytes[i] = kvp_max_u64(NODE_BYTES_MIN, kvp_align_up(share * extent, NODE_BYTES_STEP));
        r->size_bytes += conf.memory_bytes[i];
        r->capacity_blocks += conf.memory_bytes[i] / extent;
    }
    conf.extent_bytes = extent;
    if (kvp_local_start(&r->local, &conf) != KVP_OK) return KVP_EXIT_UNREACHABLE;
    memcpy(r->master, r->local.master.listen, sizeof(r->master));
    r->common.master = r->master;
    return try_open(r);
}

/* Returns how many bytes of objects fit on the SSD tiers. At most a ninth of a tier is overhead. */
static uint64_t
tiers_hold(struct json_object *stat)
{
    struct json_object *tiers;
    const size_t n = kvp_json_get_list(stat, "tiers", &tiers);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += kvp_json_find_u64(json_object_array_get_idx(tiers, i), "size_bytes") / 9 * 8;
    return bytes;
}

/* measure_pool reads the size of an existing pool. */
static int
measure_pool(replay_t *r)
{
    kvpool_t *pool = NULL;
    struct json_object *stat;
    int code = kvp_cli_open(r->verb, &r->common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    int err = kvp_json_stat(pool, 0, &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail(r->verb, "stat", err);
    r->size_bytes = kvp_json_find_u64(stat, "size_bytes");
    r->capacity_blocks =
        kvp_max_u64(r->size_bytes / kvp_extent_bytes(r->block_bytes), tiers_hold(stat) / r->block_bytes);
    json_object_put(stat);
    if (r->capacity_blocks > 0) return KVP_EXIT_DONE;
    return kvp_cli_complain(r->verb, KVP_EXIT_REFUSED, "the pool has no memory for a block");
}

/* ---- the run and the LRU simulation ---- */

static int
simulate_lru(replay_t *r)
{
    kvp_lru_sim_t *sim;
    /* The simulated capacity is at most the number of distinct blocks: a larger cache behaves the same. */
    const uint32_t capacity = (uint32_t)kvp_min_u64(r->capacity_blocks, r->distinct);
    kvp_err_t err = kvp_lru_sim_create(capacity, &sim);
    if (err != KVP_OK) return kvp_cli_fail(r->verb, "simulating LRU", err);
    for (size_t i = 0; i < r->workload.requests_n; i++) {
        const kvp_request_t *request = &r->workload.requests[i];
        r->lru_hits += kvp_lru_sim_request(sim, r->workload.ids + request->ids_at, request->ids_n);
    }
    kvp_lru_sim_destroy(sim);
    return KVP_EXIT_DONE;
}

static bool
show_progress(void *arg, size_t done)
{
    replay_t *r = arg;
    const size_t total = r->workload.requests_n;
    const size_t tenths = done * 10 / total;
    kvp_progress_show(&r->progress, "requests", done, total);
    if (!r->is_tty && tenths > r->tenths) fprintf(stderr, "%zu %%: %zu of %zu requests\n", tenths * 10, done, total);
    r->tenths = tenths;
    return !kvp_stop_has_come(r->stop_fd);
}

static int
run_clients(replay_t *r)
{
    const kvpool_conf_t pool = kvp_cli_conf(&r->common);
    const kvp_replay_conf_t conf = {
        .workload = &r->workload,
        .pool = &pool,
        .block_bytes = r->block_bytes,
        /* In a pool that was not started here, keys get a random salt: blocks of an earlier run are then no hits. */
        .salt = r->local.nodes_n > 0 ? 0 : kvp_random_u64(),
        .clients = (uint32_t)r->clients,
        .rate = r->rate,
        .progress = show_progress,
        .arg = r,
    };
    r->is_tty = isatty(STDERR_FILENO) == 1;
    int err = kvp_replay_run(&conf, &r->result);
    kvp_progress_end(&r->progress);
    if (err == KVPOOL_OK) return KVP_EXIT_DONE;
    char what[64];
    snprintf(what, sizeof(what), "stopped at request %llu", (unsigned long long)r->result.requests);
    return kvp_cli_fail(r->verb, what, err);
}

/* ---- output of the figures ---- */

static double
ratio_of(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void
report_workload(const replay_t *r, kvp_table_t *to)
{
    kvp_report_section(to, "workload");
    kvp_report_text(to, "workload", "requests from", r->trace);
    kvp_report_count(to, "requests", "requests", r->result.requests);
    kvp_report_count(to, "blocks", "blocks", r->result.blocks);
    kvp_report_count(to, "distinct_blocks", "distinct blocks", r->distinct);
    kvp_report_bytes(to, "block_bytes", "block", r->block_bytes);
    kvp_report_bytes(to, "pool_size_bytes", "pool", r->size_bytes);
    kvp_report_count(to, "capacity_blocks", "pool in blocks", r->capacity_blocks);
}

static void
report_hits(const replay_t *r, kvp_table_t *to)
{
    const double blocks = (double)r->result.blocks;
    kvp_report_section(to, "hits");
    kvp_report_real(to, "hit_ratio", "prefix hit ratio", ratio_of((double)r->result.hits, blocks), 4);
    kvp_report_real(to, "lru_hit_ratio", "simulated LRU", ratio_of((double)r->lru_hits, blocks), 4);
    kvp_report_real(to, "hit_to_lru_ratio", "hits to LRU's", ratio_of((double)r->result.hits, (double)r->lru_hits), 4);
    kvp_report_count(to, "puts_new", "blocks stored", r->result.puts_new);
    kvp_report_count(to, "puts_already", "blocks there already",
                     r->result.puts_done - kvp_min_u64(r->result.puts_new, r->result.puts_done));
    kvp_report_count(to, "found_not_granted_blocks", "found, not reserved", r->result.found_not_granted);
}

/* report_paths reports the transports that moved bytes, with their shares: "shm", or "shm 80 %, tcp 20 %". */
static void
report_paths(const kvp_replay_result_t *s, kvp_table_t *to)
{
    char text[80] = "none";
    uint64_t all = 0;
    for (size_t i = 0; i < s->paths_n; i++)
        all += s->paths[i].read_bytes + s->paths[i].written_bytes;
    for (size_t i = 0, at = 0; i < s->paths_n; i++) {
        const uint64_t moved = s->paths[i].read_bytes + s->paths[i].written_bytes;
        if (moved == 0) continue;
        const int n = snprintf(text + at, sizeof(text) - at, "%s%s %.0f %%", at > 0 ? ", " : "", s->paths[i].name,
                               100 * ratio_of((double)moved, (double)all));
        at = kvp_min_u64(at + (size_t)n, sizeof(text) - 1);
    }
    kvp_report_text(to, "transports", "moved by", text);
}

static void
report_speed(const replay_t *r, kvp_table_t *to)
{
    const kvp_replay_result_t *s = &r->result;
    const double seconds = (double)s->elapsed_ns / 1e9;
    kvp_report_section(to, "speed");
    kvp_report_real(to, "elapsed_s", "seconds", seconds, 3);
    kvp_report_real(to, "blocks_per_s", "blocks/s", ratio_of((double)s->blocks, seconds), 0);
    kvp_report_real(to, "lookups_per_s", "look-ups/s in calls",
                    ratio_of((double)s->lookup.count, (double)s->lookup_ns / 1e9), 0);
    kvp_report_real(to, "get_gb_per_s", "GB/s out in calls", ratio_of((double)s->get_bytes, (double)s->get_ns), 3);
    kvp_report_real(to, "put_gb_per_s", "GB/s in in calls", ratio_of((double)s->put_bytes, (double)s->put_ns), 3);
    report_paths(s, to);
    kvp_report_bytes(to, "get_bytes", "bytes out", s->get_bytes);
    kvp_report_bytes(to, "put_bytes", "bytes in", s->put_bytes);
    kvp_report_latency(to, "lookup", &s->lookup);
    kvp_report_latency(to, "get", &s->get);
    kvp_report_latency(to, "put", &s->put);
}

static void
report_faults(const replay_t *r, kvp_table_t *to)
{
    const kvp_replay_result_t *s = &r->result;
    kvp_report_section(to, "faults");
    kvp_report_count(to, "wrong_bytes", "wrong bytes", s->wrong_bytes);
    kvp_report_count(to, "wrong_blocks", "wrong blocks", s->wrong_blocks);
    kvp_report_count(to, "get_failed_after_lookup", "gets failed after lookup", s->gets_failed);
    kvp_report_count(to, "puts_refused", "puts refused", s->puts_refused);
    kvp_report_count(to, "puts_failed", "puts failed otherwise", s->puts_failed);
    kvp_report_count(to, "puts_in_progress", "puts left to others", s->puts_in_progress);
    if (s->first_get_error != KVPOOL_OK)
        kvp_report_text(to, "first_get_error", "first failed get", kvpool_errname(s->first_get_error));
    if (s->first_put_error != KVPOOL_OK)
        kvp_report_text(to, "first_put_error", "first failed put", kvpool_errname(s->first_put_error));
}

static int
judge_result(const replay_t *r)
{
    const kvp_replay_result_t *s = &r->result;
    if (s->wrong_bytes + s->gets_failed + s->puts_refused + s->puts_failed > 0) return KVP_EXIT_REFUSED;
    if (!r->is_policy_check || (double)s->hits >= LRU_SHARE_MIN * (double)r->lru_hits) return KVP_EXIT_DONE;
    return kvp_cli_complain(r->verb, KVP_EXIT_REFUSED, "fewer than %.3f of simulated LRU's hits", LRU_SHARE_MIN);
}

static int
report_run(const replay_t *r)
{
    kvp_table_t *to = kvp_report_create();
    report_workload(r, to);
    report_hits(r, to);
    report_speed(r, to);
    report_faults(r, to);
    kvp_report_print(to, r->common.is_json);
    return kvp_cli_flush(r->verb, judge_result(r));
}

/* ---- options and the order of the steps ---- */

static int
parse_options(replay_t *r, int argc, char **argv)
{
    const kvp_cli_opt_t opts[] = {
        {"trace", KVP_CLI_TEXT, &r->trace, "FILE", "the trace to play, as JSON lines", 0, 0},
        {"block-bytes", KVP_CLI_BYTES, &r->block_bytes, "SIZE", "of one 512-token block (default 64KiB)", 1,
         BLOCK_BYTES_MAX},
        {"capacity", KVP_CLI_SHARE, &r->capacity, "SHARE",
         "of the distinct blocks that the started pool holds "
         "(default 0.1)",
         0, 0},
        {"nodes", KVP_CLI_U64, &r->nodes, "N", "of the started pool (default 2)", 1, KVP_PROCS_NODES_MAX},
        KVP_CLI_NODE_LISTEN(&r->node_listen),
        {"limit", KVP_CLI_U64, &r->limit, "N", "first requests only", 1, REQUESTS_MAX},
        {"clients", KVP_CLI_U64, &r->clients, "N", "threads, each with a handle (default 1: the trace's order)", 1,
         KVP_REPLAY_CLIENTS_MAX},
        {"rate", KVP_CLI_U64, &r->rate, "N", "blocks a second, at most", 1, UINT32_MAX},
        {"policy-check", KVP_CLI_FLAG, &r->is_policy_check, NULL, "fail below 0.997 of simulated LRU's hits", 0, 0},
    };
    int first;
    return kvp_cli_parse(r->verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &r->common, &first);
}

static int
replay_trace(replay_t *r)
{
    r->stop_fd = kvp_stop_catch();
    if (r->stop_fd < 0) return kvp_cli_complain(r->verb, KVP_EXIT_REFUSED, "signals: %s", strerror(errno));
    /* A pool that is named in the environment is used, as if it were named by --master. */
    int code = r->common.master != NULL ? measure_pool(r) : start_pool(r);
    if (code == KVP_EXIT_DONE) code = simulate_lru(r);
    if (code == KVP_EXIT_DONE) code = run_clients(r);
    const kvp_proc_t *dead = kvp_local_dead(&r->local);
    if (dead != NULL) code = kvp_cli_complain(r->verb, KVP_EXIT_REFUSED, "%s died during the run", dead->name);
    /* The figures are printed even if the run was aborted, because they show how far it came. */
    if (r->result.requests > 0) {
        int judged = report_run(r);
        if (code == KVP_EXIT_DONE) code = judged;
    }
    if (kvp_local_stop(&r->local) > 0 && code == KVP_EXIT_DONE) code = KVP_EXIT_REFUSED;
    close(r->stop_fd);
    return code;
}

int
kvp_cli_replay(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    replay_t *r = kvp_cli_alloc(1, sizeof(*r));
    *r = (replay_t){.verb = verb, .block_bytes = 65536, .capacity = 0.1, .nodes = 2, .clients = 1};
    int code = parse_options(r, argc, argv);
    if (code == KVP_EXIT_GO_ON) code = load_workload(r);
    if (code == KVP_EXIT_DONE && r->workload.requests_n > 0) code = replay_trace(r);
    kvp_workload_fini(&r->workload);
    free(r);
    return code;
}
