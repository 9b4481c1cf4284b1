/* SPDX-License-Identifier: Apache-2.0
 * The verb `node`: lists the nodes (ls), moves the objects of one to other nodes (drain), and ends that (undrain). */
#include "tools/base/cli.h"

#include "common/waits.h"
#include "tools/base/json_out.h"
#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define POLL_NS (200 * KVP_NS_PER_MS)
#define LINE_NS (5 * KVP_NS_PER_S) /* the time between two lines of progress */
/* a drain is stuck if no object has left for this long and --grace has ended */
#define STUCK_NS (10 * KVP_NS_PER_S)
#define GRACE_MAX_NS (30ull * 86400 * 1000000000)
#define TEXT_MAX (64u << 10)

typedef struct {
    const kvp_cli_verb_t *verb;
    kvp_cli_common_t common;
    kvpool_drain_t what;
    kvpool_t *pool;
} drain_t;

/* Asks the master. The caller releases *progress_out. */
static int
ask_drain(drain_t *d, struct json_object **progress_out)
{
    const kvpool_opts_t opts = kvp_cli_call_opts(&d->common, 0);
    char text[TEXT_MAX];
    size_t len;
    const int err = kvpool_drain(d->pool, &d->what, text, sizeof text, &len, &opts);

    if (err != KVPOOL_OK) return err;
    *progress_out = json_tokener_parse(text);
    return *progress_out == NULL ? KVPOOL_NOMEM : KVPOOL_OK;
}

/* Returns the number of objects left to move: in memory, and, if the drain also empties the SSD, those that only the
 * SSD has. */
static uint64_t
left_of(struct json_object *p, const char *memory_key, const char *ssd_key)
{
    const bool has_ssd = json_object_get_boolean(kvp_json_get(p, "with_ssd"));

    return kvp_json_get_u64(p, memory_key) + (has_ssd ? kvp_json_get_u64(p, ssd_key) : 0);
}

static uint64_t
moved_per_s(struct json_object *p)
{
    return kvp_json_get_u64(p, "moved_bytes") / (kvp_json_get_u64(p, "run_ms") / 1000 + 1);
}

static void
print_line(const drain_t *d, struct json_object *p)
{
    char left[KVP_BYTES_TEXT_MAX], rate[KVP_BYTES_TEXT_MAX];
    const uint64_t left_bytes = left_of(p, "left_bytes", "ssd_bytes"), per_s = moved_per_s(p);

    if (d->common.is_json) return;
    fprintf(stderr, "left %" PRIu64 " objects, %s; %s/s", left_of(p, "left_objects", "ssd_objects"),
            kvp_format_bytes(left_bytes, left), kvp_format_bytes(per_s, rate));
    if (per_s > 0) fprintf(stderr, ", about %" PRIu64 " s", left_bytes / per_s);
    fprintf(stderr, "\n");
}

static void
print_progress(const drain_t *d, struct json_object *p)
{
    static const struct {
        const char *key, *label;
        bool is_bytes, is_always;
    } rows[] = {
        {"left_objects", "left objects", false, true},
        {"left_bytes", "left", true, true},
        {"ssd_objects", "objects on its SSD alone", false, false},
        {"ssd_bytes", "on its SSD alone", true, false},
        {"moved_objects", "moved objects", false, true},
        {"moved_bytes", "moved", true, true},
        {"evicted_objects", "evicted objects", false, true},
        {"evicted_bytes", "evicted", true, true},
        {"held_objects", "held by clients", false, false},
        {"no_room_objects", "without room elsewhere", false, false},
        {"no_room_bytes", "bytes missing", true, false},
        {"no_node_objects", "without a node to go to", false, false},
        {"unfinished_objects", "being put", false, false},
        {"unread_objects", "on an SSD that cannot be read", false, false},
        {"failed_copies", "failed copies", false, false},
    };
    kvp_table_t *report;

    if (d->common.is_json) {
        kvp_json_line(json_object_get(p), stdout); /* kvp_json_line releases this reference */
        return;
    }
    report = kvp_report_create();
    kvp_report_text(report, "state", "state", kvp_json_get_text(p, "state"));
    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++) {
        const uint64_t value = kvp_json_get_u64(p, rows[i].key);

        if (value == 0 && !rows[i].is_always) continue;
        if (rows[i].is_bytes)
            kvp_report_bytes(report, rows[i].key, rows[i].label, value);
        else
            kvp_report_count(report, rows[i].key, rows[i].label, value);
    }
    if (strcmp(kvp_json_get_text(p, "state"), "running") == 0 && moved_per_s(p) > 0) {
        kvp_report_bytes(report, "moved_per_s", "moved a second", moved_per_s(p));
        kvp_report_count(report, "seconds_left", "seconds left, about",
                         left_of(p, "left_bytes", "ssd_bytes") / moved_per_s(p));
    }
    if (kvp_json_get_u64(p, "failed_copies") > 0)
        kvp_report_text(report, "last_failure", "last failure", kvp_json_get_text(p, "last_failure"));
    if (*kvp_json_get_text(p, "held_by") != '\0')
        kvp_report_text(report, "held_by", "held by", kvp_json_get_text(p, "held_by"));
    kvp_report_print(report, false);
    if (*kvp_json_get_text(p, "waits_for") != '\0') printf("waits: %s\n", kvp_json_get_text(p, "waits_for"));
}

/* Prints why the drain cannot continue. Returns the exit code. */
static int
complain_stuck(const drain_t *d, struct json_object *p)
{
    const char *why = kvp_json_get_text(p, "waits_for");

    return kvp_cli_complain(d->verb, KVP_EXIT_REFUSED, "the drain of %s is stuck: %s", d->what.node,
                            *why != '\0' ? why : "no object has left for a while, and the master knows no reason");
}

/* Waits until the drain is over. Returns the exit code; *p_inout is the last progress. */
static int
wait_for_drain(drain_t *d, struct json_object **p_inout)
{
    const struct timespec pause = kvp_timespec(POLL_NS);
    const uint64_t stuck_ns = STUCK_NS + d->what.deadline_ms * KVP_NS_PER_MS;
    uint64_t line_ns = kvp_now_ns() + LINE_NS, moved_ns = kvp_now_ns(), had_left = UINT64_MAX;

    d->what.what = KVPOOL_DRAIN_ASK;
    for (;;) {
        struct json_object *p = *p_inout;
        const uint64_t now_ns = kvp_now_ns(), left = left_of(p, "left_objects", "ssd_objects");
        int err;

        if (strcmp(kvp_json_get_text(p, "state"), "none") == 0)
            return kvp_cli_complain(d->verb, KVP_EXIT_REFUSED, "the drain of %s was ended by `node undrain`",
                                    d->what.node);
        if (strcmp(kvp_json_get_text(p, "state"), "done") == 0 &&
            json_object_get_boolean(kvp_json_get(p, "is_durable")))
            return KVP_EXIT_DONE;
        if (left != had_left) moved_ns = now_ns;
        had_left = left;
        if (now_ns - moved_ns > stuck_ns) return complain_stuck(d, p);
        if (now_ns >= line_ns) {
            print_line(d, p);
            line_ns = now_ns + LINE_NS;
        }
        nanosleep(&pause, NULL);
        err = ask_drain(d, &p);
        if (err != KVPOOL_OK) return kvp_cli_fail_why(d->verb, &d->common, d->what.node, err);
        json_object_put(*p_inout);
        *p_inout = p;
    }
}

static int
run_drain(drain_t *d, bool has_wait)
{
    const uint32_t what = d->what.what;
    const bool keeps_ssd = d->what.keep_ssd != 0;
    const bool has_change = keeps_ssd || d->what.no_evict != 0 || d->what.deadline_ms > 0 || d->what.bytes_per_s > 0;
    struct json_object *p = NULL;
    bool was_draining = false;
    int err, code = kvp_cli_open(d->verb, &d->common, &d->pool);

    if (code != KVP_EXIT_DONE) return code;
    d->what.what = KVPOOL_DRAIN_ASK;
    err = ask_drain(d, &p);
    if (err == KVPOOL_OK) was_draining = strcmp(kvp_json_get_text(p, "state"), "none") != 0;
    if (was_draining && !keeps_ssd) d->what.keep_ssd = !json_object_get_boolean(kvp_json_get(p, "with_ssd"));
    /* `drain` without an option to change reports the progress of a running drain */
    if (err == KVPOOL_OK && (what == KVPOOL_DRAIN_END || !was_draining || has_change)) {
        json_object_put(p);
        p = NULL;
        d->what.what = what;
        err = ask_drain(d, &p);
    }
    if (err == KVPOOL_OK && has_wait) code = wait_for_drain(d, &p);
    if (err == KVPOOL_OK && code == KVP_EXIT_DONE && what == KVPOOL_DRAIN_END && !d->common.is_json)
        printf("%s %s\n", d->what.node, was_draining ? "accepts new objects again" : "was not draining");
    else if (err == KVPOOL_OK && code == KVP_EXIT_DONE)
        print_progress(d, p);
    json_object_put(p);
    kvpool_free(d->pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(d->verb, &d->common, d->what.node, err);
    return kvp_cli_flush(d->verb, code);
}

int
kvp_cli_node(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    bool has_wait = false, keeps_ssd = false, has_no_evict = false, has_evict = false;
    uint64_t grace_ns = 0, rate = 0;
    const kvp_cli_opt_t opts[] = {
        {"wait", KVP_CLI_FLAG, &has_wait, NULL, "drain: wait until no object is left", 0, 0},
        {"grace", KVP_CLI_DURATION, &grace_ns, "TIME",
         "drain: after this time move objects even if clients hold them (default: never)", KVP_NS_PER_MS, GRACE_MAX_NS},
        {"keep-ssd", KVP_CLI_FLAG, &keeps_ssd, NULL, "drain: do not move objects that only the node's SSD has", 0, 0},
        {"no-evict", KVP_CLI_FLAG, &has_no_evict, NULL, "drain: evict nothing, and wait if no memory is free elsewhere",
         0, 0},
        {"evict", KVP_CLI_FLAG, &has_evict, NULL,
         "drain: evict if no memory is free elsewhere (default; ends --no-evict)", 0, 0},
        {"rate", KVP_CLI_BYTES, &rate, "BYTES", "drain: limit of the bytes a second of all drains (default 200 MiB)", 1,
         1ull << 40},
    };
    drain_t d = {.verb = verb, .what = {.struct_size = sizeof d.what}};
    int first;
    const int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &d.common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    if (argc - first == 1 && strcmp(argv[first], "ls") == 0) return kvp_cli_list_part(verb, &d.common, "segments");
    if (argc - first != 2 || (strcmp(argv[first], "drain") != 0 && strcmp(argv[first], "undrain") != 0))
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "say what: ls, drain NAME or undrain NAME");
    d.what.node = argv[first + 1];
    d.what.what = strcmp(argv[first], "drain") == 0 ? KVPOOL_DRAIN_BEGIN : KVPOOL_DRAIN_END;
    d.what.no_evict = has_no_evict ? 1 : has_evict ? 2 : 0;
    d.what.keep_ssd = keeps_ssd;
    d.what.deadline_ms = grace_ns / KVP_NS_PER_MS;
    d.what.bytes_per_s = rate;
    if (d.what.what == KVPOOL_DRAIN_END && (has_wait || grace_ns > 0 || keeps_ssd || d.what.no_evict != 0 || rate > 0))
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "undrain has no options of drain");
    if (has_evict && has_no_evict)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--evict and --no-evict exclude each other");
    return run_drain(&d, has_wait);
}
