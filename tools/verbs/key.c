/* SPDX-License-Identifier: Apache-2.0
 * See key.h. A key on the command line is a text without NUL. A key from the pool may be any bytes
 * (tools/base/json_out.c). */
#include "tools/verbs/key.h"

#include "tools/base/json_out.h"

#include <string.h>

int
kvp_cli_one_key(const kvp_cli_verb_t *verb, int argc, int first)
{
    if (argc - first == 1) return KVP_EXIT_GO_ON;
    return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s; see --help",
                            argc == first ? "a key is missing" : "one key only");
}

int
kvp_cli_fail_key(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const void *key, size_t len, int err)
{
    char quoted[KVP_CLI_QUOTED_MAX];
    if (common->is_json) {
        struct json_object *line = json_object_new_object();
        kvp_json_add_key(line, key, len);
        json_object_object_add(line, "error", json_object_new_string(kvpool_errname(err)));
        if (common->detail[0] != '\0') json_object_object_add(line, "detail", json_object_new_string(common->detail));
        kvp_json_line(line, strcmp(verb->name, "get") == 0 ? stderr : stdout);
        return kvp_cli_flush(verb, kvp_cli_exit_code(err));
    }
    return kvp_cli_fail_why(verb, common, kvp_cli_quote(key, len, quoted, sizeof(quoted)), err);
}

void
kvp_cli_say_bytes(const kvp_cli_common_t *common, const char *key, size_t len, FILE *to)
{
    if (!common->is_json) return;
    struct json_object *line = json_object_new_object();
    kvp_json_add_key(line, key, strlen(key));
    json_object_object_add(line, "size_bytes", json_object_new_uint64(len));
    kvp_json_line(line, to);
}
