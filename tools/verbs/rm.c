/* SPDX-License-Identifier: Apache-2.0
 * The verbs rm, which removes keys, and bump, which makes all objects of a tenant unfindable at once. */
#include "tools/verbs/key.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/base/report.h"

#include <string.h>

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
    bool is_all = false, is_force = false, waits = false;
    const kvp_cli_opt_t opts[] = {
        {"regex", KVP_CLI_TEXT, &regex, "PATTERN", "every key that the PCRE2 pattern matches somewhere", 0, 0},
        {"all", KVP_CLI_FLAG, &is_all, NULL, "every key", 0, 0},
        {"force", KVP_CLI_FLAG, &is_force, NULL, "also objects that readers or reservations hold", 0, 0},
        {"wait", KVP_CLI_FLAG, &waits, NULL, "return when no client can read it any more", 0, 0},
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
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
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
    int first;
    int code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
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
