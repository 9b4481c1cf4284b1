/* SPDX-License-Identifier: Apache-2.0
 * The verbs snapshot and fsck. snapshot makes the master begin a new log with its whole state. fsck checks whether the
 * pool's objects can be read: it gets every key of a running pool once, and runs kvpool-master --check on the log of
 * a stopped pool. On a terminal both show their progress.
 *
 * Design notes. The pool changes during the check, so a fault is reported only after a second look: an unreadable
 * key is got again, and figures count as wrong only if they differ by more than the changes during the check. The
 * get itself reports an unreadable key to the master, and the master drops the key if the node confirms this. So a
 * key that is missing at the second look counts as unreadable, too. */
#include "tools/verbs/key.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/base/procs.h"
#include "tools/base/report.h"
#include "tools/base/tty.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_KEYS 256u
#define POLL_MS 100
#define NOT_CHECKED 2 /* exit code of fsck if the pool could not be checked */

/* ---- the verb snapshot ---- */

typedef struct {
    kvpool_t *pool;
    kvpool_opts_t how;
    kvpool_snapshot_t snapshot;
    int err;
    uint64_t took_ns;
    atomic_bool is_over;
} snapshot_t;

static void *
run_snapshot(void *arg)
{
    snapshot_t *s = arg;
    const uint64_t began_ns = kvp_now_ns();
    s->err = kvpool_snapshot(s->pool, &s->how, &s->snapshot);
    s->took_ns = kvp_now_ns() - began_ns;
    atomic_store(&s->is_over, true);
    return NULL;
}

/* Requests the snapshot in a second thread. Meanwhile it shows the number of records that the master has written, at
 * most the number of the pool's objects. */
static void
show_snapshot(snapshot_t *s)
{
    kvp_progress_t progress = {0};
    struct json_object *stat = NULL;
    pthread_t thread;
    uint64_t first = 0;
    bool is_first = true;

    if (pthread_create(&thread, NULL, run_snapshot, s) != 0) kvp_cli_no_memory();
    while (!atomic_load(&s->is_over)) {
        if (kvp_json_stat(s->pool, 0, &stat) == KVPOOL_OK) {
            const uint64_t objects = kvp_json_find_u64(stat, "objects"), now = kvp_json_find_u64(stat, "log_records");
            if (is_first) first = now;
            is_first = false;
            kvp_progress_show(&progress, "objects written", kvp_min_u64(now - kvp_min_u64(now, first), objects),
                              objects);
            json_object_put(stat);
        }
        (void)poll(NULL, 0, POLL_MS);
    }
    kvp_progress_end(&progress);
    (void)pthread_join(thread, NULL);
}

int
kvp_cli_snapshot(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    uint64_t wait_ns = 60 * KVP_NS_PER_S;
    const kvp_cli_opt_t opts[] = {{"wait", KVP_CLI_DURATION, &wait_ns, "TIME", "for it to be on the disk (default 60s)",
                                   1000000, 86400 * KVP_NS_PER_S}};
    kvp_cli_common_t common;
    snapshot_t s = {0};
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &s.pool);
    if (code != KVP_EXIT_DONE) return code;
    s.how = kvp_cli_call_opts(&common, 0);
    s.how.deadline_ms = (uint32_t)(wait_ns / KVP_NS_PER_MS);
    if (isatty(STDERR_FILENO) == 1)
        show_snapshot(&s);
    else
        (void)run_snapshot(&s);
    kvpool_free(s.pool);
    if (s.err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "snapshot", s.err);
    kvp_table_t *report = kvp_report_create();
    kvp_report_real(report, "elapsed_ms", "took (ms)", (double)s.took_ns / 1e6, 1);
    kvp_report_count(report, "objects", "objects", s.snapshot.objects);
    kvp_report_bytes(report, "log_bytes", "log", s.snapshot.log_bytes);
    kvp_report_print(report, common.is_json);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}

/* ---- fsck of a stopped pool ---- */

static int
check_log(const kvp_cli_verb_t *verb, const char *data_dir, bool is_repairing, bool is_json)
{
    char program[1024];
    /* All options of kvpool-master are set here, so that no environment variable takes effect. */
    const char *const argv[] = {"kvpool-master",
                                "--check",
                                "--data-dir",
                                data_dir,
                                is_repairing ? "--repair=true" : "--repair=false",
                                is_json ? "--json=true" : "--json=false",
                                NULL};
    if (!kvp_proc_find(argv[0], program, sizeof(program)))
        return kvp_cli_complain(verb, NOT_CHECKED, "no program %s in KVPOOL_BIN_DIR, beside this one or in PATH",
                                argv[0]);
    execv(program, (char *const *)argv);
    return kvp_cli_complain(verb, NOT_CHECKED, "%s: %s", program, strerror(errno));
}

/* ---- fsck of a running pool ---- */

typedef struct {
    uint16_t len;
    uint8_t bytes[KVPOOL_KEY_MAX];
} found_t;

/* The findings for a node's memory or SSD. A key belongs to the place that its first copy had when the key was listed.
 */
typedef struct {
    uint64_t segment; /* 0 = all keys whose segment was not known when the check began */
    const char *node; /* borrowed from `before` */
    uint64_t keys, bytes, unreadable, away;
} place_t;

typedef struct {
    const kvp_cli_verb_t *verb;
    const kvp_cli_common_t *common;
    kvpool_t *pool;
    bool is_repairing;
    found_t *page;
    size_t page_n;
    place_t *places; /* the last element is for all keys without a known place */
    size_t places_n;
    kvp_progress_t progress;
    struct json_object *before, *after; /* the master's figures before and after the check; NULL = not read yet */
    uint64_t listed, bytes; /* number of listed keys; total size of the readable objects */
    uint64_t gone, unreadable, away, removed;
} walk_t;

static int
keep_key(void *arg, const void *key, size_t key_len, uint64_t len)
{
    walk_t *w = arg;
    found_t *found = &w->page[w->page_n++];
    (void)len;
    found->len = (uint16_t)key_len;
    memcpy(found->bytes, key, key_len);
    return 0;
}

static bool
is_of_the_key(int err)
{
    return err == KVPOOL_STALE || err == KVPOOL_CORRUPT || err == KVPOOL_NODE_LOST || err == KVPOOL_DEADLINE;
}

static int
read_key(walk_t *w, const found_t *key, size_t *len_out)
{
    uint8_t *value = NULL;
    int err = kvp_cli_fetch(w->pool, key->bytes, key->len, NULL, &value, len_out);
    free(value);
    return err;
}

/* Checks whether the key's object can be read, and counts the result. Returns an error only if fsck cannot continue
 * with other keys. */
static int
check_key(walk_t *w, const found_t *key, place_t *place)
{
    const kvpool_opts_t force = {.struct_size = sizeof(force), .flags = KVPOOL_FORCE};
    size_t len = 0;
    const int first = read_key(w, key, &len);
    const bool is_lost = first == KVPOOL_STALE || first == KVPOOL_CORRUPT;
    int err = is_of_the_key(first) ? read_key(w, key, &len) : first;
    if (err == KVPOOL_OK) w->bytes += len, place->bytes += len;
    place->keys++;
    if (err == KVPOOL_NOT_FOUND && !is_lost) {
        w->gone++;
        return KVPOOL_OK;
    }
    if (err != KVPOOL_NOT_FOUND && !is_of_the_key(err)) return err;
    *(is_lost ? &w->unreadable : &w->away) += 1;
    *(is_lost ? &place->unreadable : &place->away) += 1;
    kvp_progress_end(&w->progress);
    (void)kvp_cli_fail_key(w->verb, w->common, key->bytes, key->len, first);
    if (is_lost && w->is_repairing && err != KVPOOL_NOT_FOUND)
        w->removed += kvpool_remove(w->pool, key->bytes, key->len, &force) == KVPOOL_OK;
    return KVPOOL_OK;
}

static uint64_t
of_tenant(struct json_object *stat, const char *name)
{
    return kvp_json_find_u64(json_object_array_get_idx(kvp_json_get(stat, "tenants"), 0), name);
}

/* Makes a place for each node and each SSD of the master's figures. */
static void
make_places(walk_t *w)
{
    struct json_object *lists[2];
    const size_t nodes = kvp_json_get_list(w->before, "segments", &lists[0]);
    const size_t all = nodes + kvp_json_get_list(w->before, "tiers", &lists[1]);

    w->places = kvp_cli_alloc(all + 1, sizeof(*w->places));
    for (w->places_n = 0; w->places_n < all; w->places_n++) {
        const size_t i = w->places_n;
        struct json_object *from = json_object_array_get_idx(lists[i >= nodes], i >= nodes ? i - nodes : i);
        w->places[i].segment = kvp_json_get_u64(from, "segment_id");
        w->places[i].node = kvp_json_get_text(from, "node");
    }
    w->places[w->places_n++].node = "unknown";
}

static place_t *
find_place(walk_t *w, const kvpool_place_t *at, int located)
{
    const uint64_t segment = located != KVPOOL_OK ? 0 : at->copies > 0 ? at->segments[0] : at->tier;
    size_t i = 0;
    while (i + 1 < w->places_n && w->places[i].segment != segment)
        i++;
    return &w->places[i];
}

/* Checks the keys of a page. */
static int
check_page(walk_t *w)
{
    kvpool_key_t keys[PAGE_KEYS];
    kvpool_place_t at[PAGE_KEYS];
    int located[PAGE_KEYS];
    for (size_t i = 0; i < w->page_n; i++)
        keys[i] = (kvpool_key_t){.data = w->page[i].bytes, .len = w->page[i].len};
    int err = kvpool_batch_locate(w->pool, keys, w->page_n, NULL, at, located);
    for (size_t i = 0; i < w->page_n && err == KVPOOL_OK; i++) {
        err = check_key(w, &w->page[i], find_place(w, &at[i], located[i]));
        kvp_progress_show(&w->progress, "keys", w->listed + i + 1, of_tenant(w->before, "objects"));
    }
    return err;
}

static int
walk_keys(walk_t *w)
{
    uint64_t cursor = 0;
    int err = kvp_json_stat(w->pool, 0, &w->before);
    if (err == KVPOOL_OK) make_places(w);
    do {
        w->page_n = 0;
        if (err == KVPOOL_OK) err = kvpool_list(w->pool, "", 0, PAGE_KEYS, &cursor, keep_key, w, NULL);
        if (err == KVPOOL_OK) err = check_page(w);
        w->listed += w->page_n;
    } while (err == KVPOOL_OK && cursor != 0);
    kvp_progress_end(&w->progress);
    return err == KVPOOL_OK ? kvp_json_stat(w->pool, 0, &w->after) : err;
}

/* ---- comparison with the master's figures ---- */

/* Returns whether a node's memory (segment) is not available. Its objects may not be listed then. */
static bool
is_any_away(struct json_object *stat)
{
    return kvp_json_find_u64(kvp_json_get(stat, "pool"), "segments") <
           json_object_array_length(kvp_json_get(stat, "segments"));
}

static uint64_t
count_changes(const walk_t *w)
{
    static const char *const counters[] = {"commits", "removes", "evictions", "bumped",
                                           "purged",  "adopted", "unreadable"};
    uint64_t n = 0;
    for (size_t i = 0; i < KVP_ARRAY_LEN(counters); i++)
        n += kvp_json_find_u64(w->after, counters[i]) - kvp_json_find_u64(w->before, counters[i]);
    return n;
}

/* Returns whether the master's figures are consistent with the listed objects. Members of incomplete groups are
 * not listed. */
static bool
do_figures_agree(const walk_t *w)
{
    const uint64_t a = of_tenant(w->before, "objects"), b = of_tenant(w->after, "objects"), more = count_changes(w);
    if (w->listed > kvp_max_u64(a, b) + more) return false;
    if (more == 0 && w->bytes > of_tenant(w->after, "used_bytes")) return false;
    if (is_any_away(w->before) || is_any_away(w->after) || kvp_json_find_u64(w->after, "groups") > 0) return true;
    return w->listed + more >= kvp_min_u64(a, b);
}

static struct json_object *
list_places(const walk_t *w)
{
    struct json_object *list = json_object_new_array();
    for (const place_t *p = w->places; p < w->places + w->places_n; p++) {
        if (p->keys == 0) continue;
        struct json_object *row = json_object_new_object();
        json_object_object_add(row, "node", json_object_new_string(p->node));
        json_object_object_add(row, "keys", json_object_new_uint64(p->keys));
        json_object_object_add(row, "read_bytes", json_object_new_uint64(p->bytes));
        json_object_object_add(row, "unreadable", json_object_new_uint64(p->unreadable));
        json_object_object_add(row, "away", json_object_new_uint64(p->away));
        json_object_array_add(list, row);
    }
    return list;
}

static int
report_walk(const walk_t *w, uint64_t began_ns)
{
    const char *verdict = w->unreadable > 0     ? "unreadable"
                          : w->away > 0         ? "away"
                          : do_figures_agree(w) ? "clean"
                                                : "figures";
    kvp_table_t *r = kvp_report_create();
    kvp_report_text(r, "verdict", "verdict", verdict);
    kvp_report_count(r, "keys", "keys seen", w->listed);
    kvp_report_bytes(r, "read_bytes", "bytes read", w->bytes);
    kvp_report_count(r, "objects", "objects, by the master's count", of_tenant(w->after, "objects"));
    kvp_report_bytes(r, "used_bytes", "bytes, by the master's count", of_tenant(w->after, "used_bytes"));
    kvp_report_count(r, "gone", "removed or evicted meanwhile", w->gone);
    kvp_report_count(r, "unreadable", "that nobody can read", w->unreadable);
    kvp_report_count(r, "away", "of which the node does not answer", w->away);
    kvp_report_count(r, "removed", "removed by --repair", w->removed);
    kvp_report_real(r, "elapsed_ms", "took (ms)", (double)(kvp_now_ns() - began_ns) / 1e6, 1);
    kvp_report_list(r, "nodes", list_places(w));
    kvp_report_print(r, w->common->is_json);
    return kvp_cli_flush(w->verb, strcmp(verdict, "clean") == 0 ? KVP_EXIT_DONE : KVP_EXIT_REFUSED);
}

static int
check_pool(const kvp_cli_verb_t *verb, kvp_cli_common_t *common, bool is_repairing, bool is_deep)
{
    walk_t w = {.verb = verb, .common = common, .is_repairing = is_repairing};
    const uint64_t began_ns = kvp_now_ns();
    common->locations = UINT32_MAX; /* no cached locations, so that the master is asked for each key */
    common->verify = is_deep ? KVPOOL_VERIFY_PAYLOAD : KVPOOL_VERIFY_AUTO;
    int code = kvp_cli_open(verb, common, &w.pool);
    if (code != KVP_EXIT_DONE) return code == KVP_EXIT_REFUSED ? NOT_CHECKED : code;
    w.page = kvp_cli_alloc(PAGE_KEYS, sizeof(*w.page));
    const int err = walk_keys(&w);
    code = err == KVPOOL_OK ? report_walk(&w, began_ns)
                            : kvp_cli_fail_why(verb, common, "the check could not be ended", err);
    if (err != KVPOOL_OK && code == KVP_EXIT_REFUSED) code = NOT_CHECKED;
    json_object_put(w.before);
    json_object_put(w.after);
    free(w.places);
    free(w.page);
    kvpool_free(w.pool);
    return code;
}

int
kvp_cli_fsck(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    const char *data_dir = NULL;
    bool is_repairing = false, is_deep = false;
    const kvp_cli_opt_t opts[] = {
        {"data-dir", KVP_CLI_TEXT, &data_dir, "DIR",
         "the log of a pool whose master is stopped, in place of a running pool", 0, 0},
        {"deep", KVP_CLI_FLAG, &is_deep, NULL,
         "checksums on every transport, not only where bytes may be spoilt on the way", 0, 0},
        {"repair", KVP_CLI_FLAG, &is_repairing, NULL,
         "remove keys that no client can read; of a log, set the damaged part aside", 0, 0},
    };
    kvp_cli_common_t common;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    if (data_dir == NULL) return check_pool(verb, &common, is_repairing, is_deep);
    if (is_deep) return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--deep is for a running pool");
    return check_log(verb, data_dir, is_repairing, common.is_json);
}
