/* SPDX-License-Identifier: Apache-2.0
 * The verbs token and whoami: makes tokens, and shows what the master knows about this client. */
#include "tools/base/cli.h"

#include "common/clock.h"
#include "common/trust/tokens.h"
#include "tools/base/json_out.h"
#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TTL_MAX_NS (3650ull * 86400 * 1000000000)

/* Refuses an id that the token file has already. A missing file has no ids. */
static int
check_id(const kvp_cli_verb_t *verb, const char *path, const char *id)
{
    kvp_tokenfile_stamp_t stamp = {.inode = 0};
    char why[KVP_TOKENS_WHY_MAX];
    kvp_tokenfile_t *tokens = NULL;
    bool has_id;

    if (access(path, F_OK) != 0) return KVP_EXIT_DONE;
    if (kvp_tokenfile_load(path, time(NULL), &stamp, &tokens, why) != KVP_OK)
        return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "%s: %s", path, why);
    has_id = kvp_tokenfile_has_id(tokens, id);
    kvp_tokenfile_destroy(tokens);
    return !has_id
               ? KVP_EXIT_DONE
               : kvp_cli_complain(verb, KVP_EXIT_REFUSED, "%s has a token %s already: choose another --id", path, id);
}

/* Appends the line to the token file, which is created for this user alone. */
static int
append_line(const kvp_cli_verb_t *verb, const char *path, const char *line)
{
    const size_t len = strlen(line);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int code = KVP_EXIT_DONE;

    if (fd < 0 || write(fd, line, len) != (ssize_t)len || fsync(fd) != 0)
        code = kvp_cli_complain(verb, KVP_EXIT_REFUSED, "cannot write %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return code;
}

int
kvp_cli_token(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    const char *role_text = NULL, *file = NULL, *name = NULL, *id = NULL;
    uint64_t ttl_ns = 0;
    const kvp_cli_opt_t opts[] = {
        {"file", KVP_CLI_TEXT, &file, "FILE", "the token file of the masters, to which the line is appended", 0, 0},
        {"role", KVP_CLI_TEXT, &role_text, "ROLE", "monitor, reader, writer, engine, admin, node, master or conductor",
         0, 0},
        {"name", KVP_CLI_TEXT, &name, "NAME",
         "of the node, master or conductor; of an engine beside --tenant: its node", 0, 0},
        {"id", KVP_CLI_TEXT, &id, "ID", "the token's name in the file and in the audit (default: a new one)", 0, 0},
        {"ttl", KVP_CLI_DURATION, &ttl_ns, "TIME", "how long the token is valid, such as 30d (default: without end)",
         1000000000, TTL_MAX_NS},
    };
    char token[KVP_TOKEN_TEXT_LEN + 1], line[512], own_id[32], both[512];
    const time_t now = time(NULL);
    kvp_cli_common_t common;
    kvp_authrole_t role;
    int first, code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    if (argc - first != 1 || strcmp(argv[first], "create") != 0)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "say what: create");
    if (file == NULL) return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--file FILE is missing: the masters' token file");
    if (role_text == NULL || kvp_authrole_parse(role_text, &role) != KVP_OK)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE,
                                "--role is monitor, reader, writer, engine, admin, node, master or conductor");
    if ((kvp_authrole_is_client(role) && role != KVP_IS_ENGINE) != (name == NULL))
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s",
                                name == NULL ? "--name NAME is missing: the daemon's name"
                                             : "this role has a --tenant, and no --name");
    const char *tenant = common.tenant == NULL || common.tenant[0] == '\0' ? "default" : common.tenant;
    snprintf(both, sizeof both, "%s/%s", tenant, name == NULL ? "" : name);
    if (name == NULL) name = tenant;
    if (role == KVP_IS_ENGINE) name = both;
    if (id == NULL) snprintf(own_id, sizeof own_id, "t%llx", (unsigned long long)kvp_random_u64());
    kvp_identity_t who = {.role = role};
    const char *fault = kvp_identity_set_name(&who, name, strlen(name));
    if (fault != NULL) return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s", fault);
    const uint64_t end_s = ttl_ns == 0 ? 0 : (uint64_t)now + ttl_ns / 1000000000;
    const kvp_err_t err = kvp_token_create(id == NULL ? own_id : id, role, name, end_s, token, line, sizeof line);
    if (err == KVP_INVALID)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--id has 1 to 64 characters of A-Za-z0-9.-_~:@+");
    if (err != KVP_OK) return kvp_cli_fail(verb, "token", err);
    code = check_id(verb, file, id == NULL ? own_id : id);
    if (code != KVP_EXIT_DONE) return code;
    if (common.is_json) {
        struct json_object *out = json_object_new_object();

        json_object_object_add(out, "token", json_object_new_string(token));
        json_object_object_add(out, "id", json_object_new_string(id == NULL ? own_id : id));
        kvp_json_line(out, stdout);
    } else {
        printf("%s\n", token);
    }
    /* The token is printed before the file gets it, so that the file never has a token that no user has seen. */
    code = kvp_cli_flush(verb, KVP_EXIT_DONE);
    return code != KVP_EXIT_DONE ? code : append_line(verb, file, line);
}

int
kvp_cli_whoami(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    struct json_object *stat = NULL, *client;
    kvp_cli_common_t common;
    kvpool_t *pool;
    int first, code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const int err = kvp_json_stat(pool, 0, &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "whoami", err);
    client = kvp_json_get(stat, "client");
    const char *rights = kvp_json_get_text(client, "rights"), *blank = strchr(rights, ' ');
    kvp_table_t *report = kvp_report_create();
    char role[32];
    snprintf(role, sizeof role, "%.*s", blank == NULL ? 0 : (int)(blank - rights), rights);
    kvp_report_text(report, "role", "role", rights[0] == '\0' ? "any: the master asks for no identity" : role);
    kvp_report_text(report, "id", "proved by", blank == NULL ? "" : blank + 1);
    kvp_report_text(report, "tenant", "tenant", kvp_json_get_text(client, "tenant"));
    kvp_report_print(report, common.is_json);
    json_object_put(stat);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
