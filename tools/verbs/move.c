/* SPDX-License-Identifier: Apache-2.0
 * The verbs copy and move: an object is copied to the memory of other nodes, or moved to one of them. */
#include "tools/verbs/key.h"

#include "common/waits.h"
#include "tools/base/json_out.h"
#include "tools/base/opts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_NS (20 * KVP_NS_PER_MS)

/* Looks up the segments of the nodes with these names, and stops at the first name without a node. Returns the number
 * of segments found. */
static size_t
find_segments(struct json_object *stat, char **names, size_t n, uint32_t *segments)
{
    struct json_object *rows;
    const size_t rows_n = kvp_json_get_list(stat, "segments", &rows);

    for (size_t i = 0; i < n; i++) {
        segments[i] = 0;
        for (size_t k = 0; k < rows_n; k++) {
            struct json_object *row = json_object_array_get_idx(rows, k);

            if (strcmp(kvp_json_get_text(row, "node"), names[i]) == 0)
                segments[i] = (uint32_t)kvp_json_get_u64(row, "segment_id");
        }
        if (segments[i] == 0) return i;
    }
    return n;
}

/* Waits until the task is over. */
static int
wait_for_task(kvpool_t *pool, kvp_cli_common_t *common, uint64_t id, kvpool_task_t *task)
{
    const kvpool_opts_t opts = kvp_cli_call_opts(common, 0);
    const struct timespec pause = kvp_timespec(POLL_NS);
    int err = kvpool_task_ask(pool, id, &opts, task);

    while (err == KVPOOL_OK && task->state <= KVPOOL_TASK_RUNS) {
        nanosleep(&pause, NULL);
        err = kvpool_task_ask(pool, id, &opts, task);
    }
    return err;
}

/* Returns an explanation of a task's failure; "" = the name of the failure is clear enough. */
static const char *
failure_text(int failure)
{
    switch (failure) {
    case KVPOOL_NOT_FOUND:
        return "the object was removed, replaced or evicted meanwhile";
    case KVPOOL_NO_SPACE:
        return "a node to which the object is to go has no free memory";
    case KVPOOL_NO_SEGMENT:
        return "a node to which the object is to go has stopped answering, has left the pool, or is being drained";
    case KVPOOL_NODE_LOST:
        return "a node to which the object is to go cannot read it: the node that has it may not answer";
    default:
        return "";
    }
}

int
kvp_cli_move(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    const bool is_move = strcmp(verb->name, "move") == 0;
    uint32_t segments[KVPOOL_COPIES_MAX];
    kvpool_task_t task = {.struct_size = sizeof task};
    struct json_object *stat = NULL;
    kvpool_t *pool = NULL;
    kvp_cli_common_t common;
    kvpool_opts_t opts;
    size_t n, found = 0;
    uint64_t id = 0;
    char **names;
    int first, err, code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    n = argc - first > 1 ? (size_t)(argc - first - 1) : 0;
    if (is_move ? n != 2 : n == 0 || n > KVPOOL_COPIES_MAX)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE,
                                is_move ? "name a key, the node that it leaves, and the node to which it goes"
                                        : "name a key, and 1 to 8 nodes");
    names = &argv[first + 1];
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    opts = kvp_cli_call_opts(&common, 0);
    err = kvp_json_stat(pool, 0, &stat);
    if (err == KVPOOL_OK) found = find_segments(stat, names, n, segments);
    json_object_put(stat);
    if (err == KVPOOL_OK && found < n) {
        kvpool_free(pool);
        return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "there is no node %s: see kvpool node ls", names[found]);
    }
    if (err == KVPOOL_OK)
        err = kvpool_task_begin(pool, argv[first], strlen(argv[first]), is_move ? segments[0] : 0,
                                is_move ? &segments[1] : segments, is_move ? 1 : n, &opts, &id);
    if (err == KVPOOL_OK) err = wait_for_task(pool, &common, id, &task);
    if (err == KVPOOL_OK && task.state == KVPOOL_TASK_FAILED) {
        err = task.failure;
        snprintf(common.detail, sizeof common.detail, "%s", failure_text(err));
    }
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, argv[first], err);
    if (common.is_json) printf("{\"state\": \"done\"}\n");
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
