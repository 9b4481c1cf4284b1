/* SPDX-License-Identifier: Apache-2.0
 * The verb `rebalance`: moves objects of the tenant from nodes that are fuller than the mean to emptier ones, until all
 * are nearly as full. It lists the objects in pages, and lets the master move single ones (kvpool_task_begin). */
#include "tools/base/cli.h"

#include "common/waits.h"
#include "tools/base/json_out.h"
#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EVEN 0.05 /* the pool counts as even if the used part of each node's memory is within 0.05 of the mean */
/* objects are moved until each node is this near to the mean, by the figures of the last stat and the moves since */
#define AIM 0.04
#define PAGE 512u
#define TASKS 64u /* moves under way */
/* if a move takes longer, because a client holds the object, it is not waited for */
#define TASK_NS (10 * KVP_NS_PER_S)
#define POLL_NS (10 * KVP_NS_PER_MS)
#define RATE (200ull * 1000 * 1000)

typedef struct {
    uint32_t id;
    double size, used;
} filled_t;

typedef struct {
    const kvp_cli_verb_t *verb;
    kvp_cli_common_t common;
    kvpool_t *pool;
    filled_t *nodes;
    size_t nodes_n;
    double mean; /* used part of the memory of all nodes together */
    kvpool_key_t keys[PAGE]; /* copies, owned */
    size_t keys_n;
    uint64_t tasks[TASKS];
    size_t tasks_n;
    uint64_t rate, began_ns, moved, moved_bytes, failed, held;
} rebalance_t;

/* Reads how full the nodes are. Returns KVP_EXIT_DONE, or the exit code after a message. */
static int
read_nodes(rebalance_t *r)
{
    struct json_object *stat = NULL, *rows;
    double size = 0, used = 0;
    const int err = kvp_json_stat(r->pool, 0, &stat);
    int code = KVP_EXIT_DONE;

    if (err != KVPOOL_OK) return kvp_cli_fail(r->verb, "stat", err);
    r->nodes_n = 0;
    for (size_t i = 0, n = kvp_json_get_list(stat, "segments", &rows); i < n && code == KVP_EXIT_DONE; i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        const filled_t node = {.id = (uint32_t)kvp_json_get_u64(row, "segment_id"),
                               .size = (double)kvp_json_get_u64(row, "size_bytes"),
                               .used = (double)kvp_json_get_u64(row, "used_bytes")};

        if (strcmp(kvp_json_get_text(row, "drain"), "running") == 0)
            code = kvp_cli_complain(r->verb, KVP_EXIT_REFUSED, "%s is being drained: try again when that is done",
                                    kvp_json_get_text(row, "node"));
        if (strcmp(kvp_json_get_text(row, "state"), "up") != 0 || node.size == 0) continue;
        r->nodes = kvp_cli_realloc(r->nodes, r->nodes_n + 1, sizeof *r->nodes);
        r->nodes[r->nodes_n++] = node;
        size += node.size;
        used += node.used;
    }
    json_object_put(stat);
    r->mean = size > 0 ? used / size : 0;
    return code;
}

static bool
is_even(const rebalance_t *r, double within)
{
    for (size_t i = 0; i < r->nodes_n; i++)
        if (fabs(r->nodes[i].used / r->nodes[i].size - r->mean) > within) return false;
    return true;
}

/* Waits for the moves under way. */
static void
wait_for_tasks(rebalance_t *r)
{
    const kvpool_opts_t opts = kvp_cli_call_opts(&r->common, 0);
    const struct timespec pause = kvp_timespec(POLL_NS);
    const uint64_t due_ns = kvp_now_ns() + TASK_NS;

    for (size_t i = 0; i < r->tasks_n; i++) {
        kvpool_task_t task = {.struct_size = sizeof task};
        int err = kvpool_task_ask(r->pool, r->tasks[i], &opts, &task);

        while (err == KVPOOL_OK && task.state <= KVPOOL_TASK_RUNS && kvp_now_ns() < due_ns) {
            nanosleep(&pause, NULL);
            err = kvpool_task_ask(r->pool, r->tasks[i], &opts, &task);
        }
        r->moved += err == KVPOOL_OK && task.state == KVPOOL_TASK_DONE;
        r->failed += err != KVPOOL_OK || task.state == KVPOOL_TASK_FAILED;
        r->held += err == KVPOOL_OK && task.state <= KVPOOL_TASK_RUNS;
    }
    r->tasks_n = 0;
}

/* Sleeps if more bytes were moved than the rate allows. */
static void
keep_rate(const rebalance_t *r)
{
    const uint64_t due_ns = r->began_ns + (uint64_t)((double)r->moved_bytes / (double)r->rate * (double)KVP_NS_PER_S);
    const uint64_t now_ns = kvp_now_ns();
    const struct timespec pause = kvp_timespec(due_ns > now_ns ? due_ns - now_ns : 0);

    nanosleep(&pause, NULL);
}

/* Begins to move the object to the emptiest node, if its only copy is on a node that is fuller than the mean. */
static void
move_object(rebalance_t *r, const kvpool_key_t *key, const kvpool_place_t *place)
{
    const kvpool_opts_t opts = kvp_cli_call_opts(&r->common, 0);
    filled_t *from = NULL, *to = &r->nodes[0];
    const double len = (double)place->len;

    for (size_t i = 0; i < r->nodes_n; i++) {
        if (place->copies == 1 && r->nodes[i].id == place->segments[0]) from = &r->nodes[i];
        if (r->nodes[i].used / r->nodes[i].size < to->used / to->size) to = &r->nodes[i];
    }
    /* a move that would carry a node past the mean is not made, so no object moves twice */
    if (from == NULL || (from->used - len) / from->size < r->mean || (to->used + len) / to->size > r->mean) return;
    keep_rate(r);
    if (kvpool_task_begin(r->pool, key->data, key->len, from->id, &to->id, 1, &opts, &r->tasks[r->tasks_n]) !=
        KVPOOL_OK) {
        r->failed++;
        return;
    }
    from->used -= len;
    to->used += len;
    r->moved_bytes += place->len;
    if (++r->tasks_n == TASKS) wait_for_tasks(r);
}

static int
note_key(void *arg, const void *key, size_t key_len, uint64_t len)
{
    rebalance_t *r = arg;
    void *copy = kvp_cli_alloc(1, key_len);

    (void)len;
    memcpy(copy, key, key_len);
    r->keys[r->keys_n++] = (kvpool_key_t){.data = copy, .len = key_len};
    return 0;
}

/* Looks at the next page of objects. */
static int
move_page(rebalance_t *r, uint64_t *cursor)
{
    const kvpool_opts_t opts = kvp_cli_call_opts(&r->common, 0);
    kvpool_place_t *places = kvp_cli_alloc(PAGE, sizeof *places);
    int results[PAGE];
    int err = kvpool_list(r->pool, "", 0, PAGE, cursor, note_key, r, &opts);

    if (err == KVPOOL_OK) err = kvpool_batch_locate(r->pool, r->keys, r->keys_n, &opts, places, results);
    for (size_t i = 0; i < r->keys_n; i++) {
        if (err == KVPOOL_OK && results[i] == KVPOOL_OK && !is_even(r, AIM)) move_object(r, &r->keys[i], &places[i]);
        free((void *)r->keys[i].data);
    }
    r->keys_n = 0;
    free(places);
    wait_for_tasks(r);
    return err;
}

/* Walks over all objects, repeatedly while that improves the balance. Returns the exit code. */
static int
move_until_even(rebalance_t *r)
{
    uint64_t cursor = 0, had_moved = 0;
    int code = read_nodes(r);

    while (code == KVP_EXIT_DONE && !is_even(r, EVEN)) {
        const int err = move_page(r, &cursor);

        if (err != KVPOOL_OK) return kvp_cli_fail_why(r->verb, &r->common, "the objects", err);
        if (cursor == 0 && r->moved == had_moved)
            return kvp_cli_complain(r->verb, KVP_EXIT_REFUSED,
                                    "the nodes are not even, and no object of this tenant can be moved to change that "
                                    "(%" PRIu64 " failed, %" PRIu64 " are held by clients)",
                                    r->failed, r->held);
        if (cursor == 0) had_moved = r->moved;
        code = read_nodes(r);
    }
    return code;
}

int
kvp_cli_rebalance(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    rebalance_t r = {.verb = verb, .rate = RATE, .began_ns = kvp_now_ns()};
    const kvp_cli_opt_t opts[] = {
        {"rate", KVP_CLI_BYTES, &r.rate, "BYTES", "limit of the bytes a second (default 200 MB)", 1, 1ull << 40},
    };
    kvp_table_t *report;
    int first, code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &r.common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    if (argc != first) return kvp_cli_complain(verb, KVP_EXIT_USAGE, "rebalance takes no names");
    code = kvp_cli_open(verb, &r.common, &r.pool);
    if (code != KVP_EXIT_DONE) return code;
    code = move_until_even(&r);
    kvpool_free(r.pool);
    free(r.nodes);
    if (code != KVP_EXIT_DONE) return code;
    report = kvp_report_create();
    kvp_report_count(report, "moved_objects", "moved objects", r.moved);
    kvp_report_bytes(report, "moved_bytes", "moved", r.moved_bytes);
    kvp_report_count(report, "failed", "not moved", r.failed);
    kvp_report_count(report, "held", "still moving, held by clients", r.held);
    kvp_report_print(report, r.common.is_json);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
