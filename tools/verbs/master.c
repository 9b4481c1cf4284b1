/* SPDX-License-Identifier: Apache-2.0
 * The verb `master`: the masters of a pool. ls: lists them. switch: the leading master hands its leadership to a
 * standby that has the whole log. */
#include "tools/base/cli.h"

#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <string.h>

int
kvp_cli_master(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    kvpool_switched_t switched;
    kvp_cli_common_t common;
    kvpool_conf_t conf;
    int first, err;
    int code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    if (argc - first == 1 && strcmp(argv[first], "ls") == 0) return kvp_cli_list_part(verb, &common, "masters");
    if (argc - first != 1 || strcmp(argv[first], "switch") != 0)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "say what: ls or switch");
    conf = kvp_cli_conf(&common);
    conf.detail = common.detail;
    conf.detail_cap = sizeof common.detail;
    err = kvpool_master_switch(&conf, &switched);
    if (err != KVPOOL_OK) {
        code = kvp_cli_fail_why(verb, &common, "switch", err);
        /* DEADLINE: the leader has stepped down, and no other master has taken over in time */
        return err == KVPOOL_DEADLINE ? KVP_EXIT_UNREACHABLE : code;
    }
    kvp_table_t *report = kvp_report_create();
    kvp_report_text(report, "from", "led before", switched.from);
    kvp_report_text(report, "to", "leads now", switched.to);
    kvp_report_count(report, "term", "term", switched.term);
    kvp_report_real(report, "elapsed_ms", "took (ms)", (double)switched.took_us / 1e3, 1);
    kvp_report_print(report, common.is_json);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
