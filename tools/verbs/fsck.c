/* SPDX-License-Identifier: Apache-2.0
 * The verbs snapshot and fsck. snapshot makes the master begin a new log with its whole state. fsck checks whether the
 * pool's objects can be read: it gets every key of a running pool once, and runs kvpool-master --check on the log of
 * a stopped pool.
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

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_KEYS 256u
#define NOT_CHECKED 2 /* exit code of fsck if the pool could not be checked */

/* ---- the verb snapshot ---- */

int
kvp_cli_snapshot(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    uint64_t wait_ns = 60 * KVP_NS_PER_S;
    const kvp_cli_opt_t opts[] = {{"wait", KVP_CLI_DURATION, &wait_ns, "TIME", "for it to be on the disk (default 60s)",
                                   1000000, 86400 * KVP_NS_PER_S}};
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    kvpool_snapshot_t snapshot;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    kvpool_opts_t how = kvp_cli_call_opts(&common, 0);
    how.deadline_ms = (uint32_t)(wait_ns / KVP_NS_PER_MS);
    const uint64_t began_ns = kvp_now_ns();
    int err = kvpool_snapshot(pool, &how, &snapshot);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "snapshot", err);
    kvp_table_t *report = kvp_report_create();
    kvp_report_real(report, "elapsed_ms", "took (ms)", (double)(kvp_now_ns() - began_ns) / 1e6, 1);
    kvp_report_count(report, "objects", "objects", snapshot.objects);
    kvp_report_bytes(report, "log_bytes", "log", snapshot.log_bytes);
    kvp_report_print(report, common.is_json);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}

/* ---- fsck of a stopped pool ---- */

static int
check_log(const kvp_cli_verb_t *verb, const char *data_dir, bool is_repairing, bool is_json)
{
    char program[1024];
    /* All options of kvpool-master are given, so that no environment variable can change one. */
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

typedef struct {
    const kvp_cli_verb_t *verb;
    const kvp_cli_common_t *common;
    kvpool_t *pool;
    bool is_repairing;
    found_t *page;
    size_t page_n;
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
    int err = kvp_cli_fetch(w->pool, key->bytes, key->len, &value, len_out);
    free(value);
    return err;
}

/* Checks whether the key's object can be read, and counts the result. Returns an error only if fsck cannot continue
 * with other keys. */
static int
check_key(walk_t *w, const found_t *key)
{
    const kvpool_opts_t force = {.struct_size = sizeof(force), .flags = KVPOOL_FORCE};
    size_t len = 0;
    const int first = read_key(w, key, &len);
    const bool is_lost = first == KVPOOL_STALE || first == KVPOOL_CORRUPT;
    int err = is_of_the_key(first) ? read_key(w, key, &len) : first;
    if (err == KVPOOL_OK) w->bytes += len;
    if (err == KVPOOL_NOT_FOUND && !is_lost) {
        w->gone++;
        return KVPOOL_OK;
    }
    if (err != KVPOOL_NOT_FOUND && !is_of_the_key(err)) return err;
    *(is_lost ? &w->unreadable : &w->away) += 1;
    (void)kvp_cli_fail_key(w->verb, w->common, key->bytes, key->len, first);
    if (is_lost && w->is_repairing && err != KVPOOL_NOT_FOUND)
        w->removed += kvpool_remove(w->pool, key->bytes, key->len, &force) == KVPOOL_OK;
    return KVPOOL_OK;
}

static int
walk_keys(walk_t *w)
{
    uint64_t cursor = 0;
    int err = kvp_json_stat(w->pool, 0, &w->before);
    do {
        w->page_n = 0;
        if (err == KVPOOL_OK) err = kvpool_list(w->pool, "", 0, PAGE_KEYS, &cursor, keep_key, w, NULL);
        for (size_t i = 0; i < w->page_n && err == KVPOOL_OK; i++)
            err = check_key(w, &w->page[i]);
        w->listed += w->page_n;
    } while (err == KVPOOL_OK && cursor != 0);
    return err == KVPOOL_OK ? kvp_json_stat(w->pool, 0, &w->after) : err;
}

/* ---- comparison with the master's figures ---- */

static uint64_t
of_tenant(struct json_object *stat, const char *name)
{
    return kvp_json_find_u64(json_object_array_get_idx(kvp_json_get(stat, "tenants"), 0), name);
}

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
