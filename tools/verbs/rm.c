/* SPDX-License-Identifier: Apache-2.0
 * The verbs rm, which removes keys, and bump, which makes all objects of a tenant unfindable at once. */
#include "tools/verbs/key.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/base/report.h"
#include "tools/base/tty.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <inttypes.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_KEYS 1024u
#define EXAMPLES 5u
#define MATCH_STEPS 1000000u
#define TENANT_TEXT_MAX 600u

/* ---- a preview of the objects to remove, and a question to the user ---- */
typedef struct {
    pcre2_code *pattern; /* NULL = every key */
    pcre2_match_data *match;
    pcre2_match_context *limits;
    struct json_object *examples; /* the first matching keys */
    uint64_t seen, keys, bytes;
    int err; /* of the pattern */
    kvp_progress_t progress;
} sweep_t;

static int
count_key(void *arg, const void *key, size_t key_len, uint64_t len)
{
    sweep_t *s = arg;

    s->seen++;
    if (s->pattern != NULL) {
        const int rc = pcre2_match(s->pattern, key, key_len, 0, 0, s->match, s->limits);
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) s->err = KVPOOL_BAD_PATTERN; /* too many steps for one key */
        if (rc < 0) return 0;
    }
    s->keys++;
    s->bytes += len;
    if (json_object_array_length(s->examples) < EXAMPLES) {
        struct json_object *example = json_object_new_object();

        kvp_json_add_key(example, key, key_len);
        json_object_array_add(s->examples, example);
    }
    return 0;
}

static void
report_sweep(const sweep_t *s, bool is_json)
{
    char quoted[KVP_CLI_QUOTED_MAX];

    if (is_json) {
        struct json_object *line = json_object_new_object();

        json_object_object_add(line, "would_remove", json_object_new_uint64(s->keys));
        json_object_object_add(line, "size_bytes", json_object_new_uint64(s->bytes));
        json_object_object_add(line, "examples", json_object_get(s->examples));
        kvp_json_line(line, stdout);
        return;
    }
    kvp_table_t *report = kvp_report_create();
    kvp_report_count(report, "would_remove", "would be removed", s->keys);
    kvp_report_bytes(report, "size_bytes", "bytes", s->bytes);
    kvp_report_print(report, false);
    for (size_t i = 0; i < json_object_array_length(s->examples); i++) {
        struct json_object *example = json_object_array_get_idx(s->examples, i), *key = kvp_json_get(example, "key");

        if (key == NULL) key = kvp_json_get(example, "key_hex");
        printf("  %s %s\n", i == 0 ? "such as" : "       ",
               kvp_cli_quote(json_object_get_string(key), strlen(json_object_get_string(key)), quoted, sizeof quoted));
    }
}

/* Counts the keys of the tenant that match the regex (NULL = all), and prints their number, bytes and examples. The
 * pattern is compiled as the master compiles it. */
static int
show_sweep(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, const char *regex)
{
    sweep_t s = {.examples = json_object_new_array(), .limits = pcre2_match_context_create(NULL)};
    PCRE2_SIZE at = 0;
    uint64_t cursor = 0;
    int err = KVPOOL_OK, fault = 0;

    if (regex != NULL)
        s.pattern = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_NEVER_BACKSLASH_C | PCRE2_NEVER_UTF,
                                  &fault, &at, NULL);
    s.match = pcre2_match_data_create(1, NULL);
    if (s.limits == NULL || s.match == NULL) kvp_cli_no_memory();
    pcre2_set_match_limit(s.limits, MATCH_STEPS);
    if (regex != NULL && s.pattern == NULL) err = KVPOOL_BAD_PATTERN;
    while (err == KVPOOL_OK) {
        err = kvpool_list(pool, "", 0, PAGE_KEYS, &cursor, count_key, &s, NULL);
        if (err == KVPOOL_OK) err = s.err;
        kvp_progress_show(&s.progress, "keys seen", s.seen, 0);
        if (cursor == 0) break;
    }
    kvp_progress_end(&s.progress);
    if (err == KVPOOL_OK) report_sweep(&s, common->is_json);
    json_object_put(s.examples);
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.limits);
    pcre2_code_free(s.pattern);
    return err == KVPOOL_OK ? kvp_cli_flush(verb, KVP_EXIT_DONE) : kvp_cli_fail_why(verb, common, "--dry-run", err);
}

/* Asks before all objects of the tenant, or those that match the regex, are removed. Returns KVP_EXIT_GO_ON or the exit
 * code. */
static int
ask_before(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, const char *regex)
{
    char tenant[TENANT_TEXT_MAX], bytes[KVP_BYTES_TEXT_MAX], pattern[KVP_CLI_QUOTED_MAX];
    const char *name = common->tenant == NULL ? "default" : common->tenant;
    struct json_object *stat = NULL, *own;
    bool is_yes = false;

    if (!kvp_cli_can_ask()) return KVP_EXIT_GO_ON; /* scripts are not asked */
    kvp_cli_quote(name, strlen(name), tenant, sizeof tenant);
    if (regex != NULL) {
        is_yes = kvp_cli_confirm("This removes the keys of tenant %s that match %s (--dry-run shows them).", tenant,
                                 kvp_cli_quote(regex, strlen(regex), pattern, sizeof pattern));
    } else {
        const int err = kvp_json_stat(pool, 0, &stat);
        if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, common, "stat", err);
        own = json_object_array_get_idx(kvp_json_get(stat, "tenants"), 0); /* the handle's own tenant */
        is_yes = kvp_cli_confirm("This removes all %" PRIu64 " objects of tenant %s, %s in memory.",
                                 kvp_json_find_u64(own, "objects"), tenant,
                                 kvp_format_bytes(kvp_json_find_u64(own, "used_bytes"), bytes));
        json_object_put(stat);
    }
    return is_yes ? KVP_EXIT_GO_ON : kvp_cli_complain(verb, KVP_EXIT_REFUSED, "nothing was removed");
}

/* The options of both verbs. */
#define OPT_DRY_RUN(to)                                                                                                \
    {                                                                                                                  \
        "dry-run", KVP_CLI_FLAG, to, NULL, "only show how many keys and bytes that is, with examples", 0, 0            \
    }
#define OPT_YES(to)                                                                                                    \
    {                                                                                                                  \
        "yes", KVP_CLI_FLAG, to, NULL, "do not ask on a terminal before many keys are removed", 0, 0                   \
    }

/* ---- the verb rm ---- */

static int
rm_keys(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, const kvpool_opts_t *opts,
        char **keys, int n)
{
    int code = KVP_EXIT_DONE;
    for (int i = 0; i < n; i++) {
        int err = kvpool_remove(pool, keys[i], strlen(keys[i]), opts);
        if (err != KVPOOL_OK) {
            int exit_code = kvp_cli_fail_key(verb, common, keys[i], strlen(keys[i]), err);
            if (exit_code > code) code = exit_code;
        } else if (common->is_json) {
            struct json_object *line = json_object_new_object();
            kvp_json_add_key(line, keys[i], strlen(keys[i]));
            json_object_object_add(line, "removed", json_object_new_boolean(1));
            kvp_json_line(line, stdout);
        }
    }
    return kvp_cli_flush(verb, code);
}

/* Removes all keys that match the regex; NULL = every key. */
static int
rm_many(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, const kvpool_opts_t *opts,
        const char *regex)
{
    uint64_t removed = 0, held = 0;
    int err = regex == NULL ? kvpool_remove_all(pool, opts, &removed, &held)
                            : kvpool_remove_by_regex(pool, regex, opts, &removed, &held);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, common, regex == NULL ? "--all" : regex, err);
    kvp_table_t *report = kvp_report_create();
    kvp_report_count(report, "removed", "removed", removed);
    kvp_report_count(report, "held", "held, and so kept", held);
    kvp_report_print(report, common->is_json);
    return kvp_cli_flush(verb, held > 0 ? KVP_EXIT_REFUSED : KVP_EXIT_DONE);
}

int
kvp_cli_rm(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    const char *regex = NULL;
    bool is_all = false, is_force = false, waits = false, is_dry = false, is_yes = false;
    const kvp_cli_opt_t opts[] = {
        {"regex", KVP_CLI_TEXT, &regex, "PATTERN", "every key that the PCRE2 pattern matches somewhere", 0, 0},
        {"all", KVP_CLI_FLAG, &is_all, NULL, "every key", 0, 0},
        {"force", KVP_CLI_FLAG, &is_force, NULL, "also objects that readers or reservations hold", 0, 0},
        {"wait", KVP_CLI_FLAG, &waits, NULL, "return when no client can read it any more", 0, 0},
        OPT_DRY_RUN(&is_dry),
        OPT_YES(&is_yes),
    };
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    const bool has_keys = code == KVP_EXIT_GO_ON && first < argc;
    if (code == KVP_EXIT_GO_ON && has_keys + (regex != NULL) + is_all != 1)
        code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "give keys, or --regex, or --all");
    if (code == KVP_EXIT_GO_ON && waits && !has_keys)
        code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "--wait is for keys");
    if (code == KVP_EXIT_GO_ON && is_dry && has_keys)
        code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "--dry-run is for --all and --regex");
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    code = is_dry               ? show_sweep(verb, &common, pool, regex)
           : has_keys || is_yes ? KVP_EXIT_GO_ON
                                : ask_before(verb, &common, pool, regex);
    if (code != KVP_EXIT_GO_ON) {
        kvpool_free(pool);
        return code;
    }
    const kvpool_opts_t how = kvp_cli_call_opts(&common, (is_force ? KVPOOL_FORCE : 0) | (waits ? KVPOOL_WAIT : 0));
    code = has_keys ? rm_keys(verb, &common, pool, &how, argv + first, argc - first)
                    : rm_many(verb, &common, pool, &how, regex);
    kvpool_free(pool);
    return code;
}

/* ---- the verb bump ---- */

int
kvp_cli_bump(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    uint32_t epoch = 0;
    bool is_dry = false, is_yes = false;
    const kvp_cli_opt_t opts[] = {OPT_DRY_RUN(&is_dry), OPT_YES(&is_yes)};
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    code = is_dry   ? show_sweep(verb, &common, pool, NULL)
           : is_yes ? KVP_EXIT_GO_ON
                    : ask_before(verb, &common, pool, NULL);
    if (code != KVP_EXIT_GO_ON) {
        kvpool_free(pool);
        return code;
    }
    const kvpool_opts_t how = kvp_cli_call_opts(&common, 0);
    int err = kvpool_bump(pool, &how, &epoch);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "bump", err);
    kvp_table_t *report = kvp_report_create();
    kvp_report_text(report, "tenant", "tenant", common.tenant == NULL ? "default" : common.tenant);
    kvp_report_count(report, "epoch", "epoch", epoch);
    kvp_report_print(report, common.is_json);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
