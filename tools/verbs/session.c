/* SPDX-License-Identifier: Apache-2.0
 * The verb `session`: lists the sessions of the leading master (ls), and ends one (end). */
#include "tools/base/cli.h"

#include "tools/base/json_out.h"
#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (256u << 10)

/* Requests one page of the list, or ends a session. The caller releases *page_out. */
static int
ask_master(kvpool_t *pool, kvp_cli_common_t *common, uint64_t end, uint32_t from, struct json_object **page_out)
{
    const kvpool_opts_t opts = kvp_cli_call_opts(common, 0);
    char *text = malloc(TEXT_MAX);
    size_t len;
    int err = text == NULL ? KVPOOL_NOMEM : kvpool_sessions(pool, end, from, text, TEXT_MAX, &len, &opts);

    if (err == KVPOOL_OK) {
        *page_out = json_tokener_parse(text);
        if (*page_out == NULL) err = KVPOOL_NOMEM;
    }
    free(text);
    return err;
}

/* Adds the sessions of all pages to the list. */
static int
collect_pages(kvpool_t *pool, kvp_cli_common_t *common, struct json_object *list)
{
    uint64_t from = 0;

    do {
        struct json_object *page, *sessions;
        const int err = ask_master(pool, common, 0, (uint32_t)from, &page);

        if (err != KVPOOL_OK) return err;
        sessions = kvp_json_get(page, "sessions");
        for (size_t i = 0; i < json_object_array_length(sessions); i++)
            json_object_array_add(list, json_object_get(json_object_array_get_idx(sessions, i)));
        from = kvp_json_get_u64(page, "next");
        json_object_put(page);
    } while (from != 0);
    return KVPOOL_OK;
}

/* Reads the number of a session, as `session ls` prints it. Returns false if it is not one. */
static bool
read_id(const char *text, uint64_t *id_out)
{
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *id_out = strtoull(text, NULL, 16);
    return *id_out != 0;
}

int
kvp_cli_session(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    struct json_object *list = NULL, *page = NULL;
    kvp_table_t *report;
    kvp_cli_common_t common;
    kvpool_t *pool;
    uint64_t end = 0;
    int first, err, code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    if (argc - first == 2 && strcmp(argv[first], "end") == 0) {
        if (!read_id(argv[first + 1], &end))
            return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%.40s is no session: the ids of `session ls` have 16 digits",
                                    argv[first + 1]);
    } else if (argc - first != 1 || strcmp(argv[first], "ls") != 0) {
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "say what: ls or end ID");
    }
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    list = json_object_new_array();
    err = end != 0 ? ask_master(pool, &common, end, 0, &page) : collect_pages(pool, &common, list);
    kvpool_free(pool);
    json_object_put(page);
    if (err != KVPOOL_OK) {
        json_object_put(list);
        return kvp_cli_fail_why(verb, &common, "session", err);
    }
    report = kvp_report_create();
    if (end != 0)
        kvp_report_text(report, "ended", "ended", argv[first + 1]);
    else
        kvp_report_count(report, "count", NULL, json_object_array_length(list));
    if (end == 0)
        kvp_report_list(report, "sessions", list);
    else
        json_object_put(list);
    kvp_report_print(report, common.is_json);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
