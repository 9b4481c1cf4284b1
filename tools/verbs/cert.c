/* SPDX-License-Identifier: Apache-2.0
 * The verb cert: makes the CA of a pool, and certificates of this CA for its daemons and users. */
#include "tools/base/cli.h"

#include "common/trust/certs.h"
#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <stdio.h>
#include <string.h>

#define NS_PER_S 1000000000ull
#define DAY_NS (86400 * NS_PER_S)
#define NAME_MAX_BYTES 512u

/* Reads the role and the name of the certificate from the arguments. Returns false if the arguments are wrong. */
static bool
read_words(int n, char **words, kvp_authrole_t *role_out, char name_out[NAME_MAX_BYTES])
{
    const bool is_user = n == 3 && strcmp(words[0], "user") == 0, is_engine = n == 3 && strcmp(words[0], "engine") == 0;

    *role_out = KVP_MAY_NOTHING;
    if (n != 2 && !is_user && !is_engine) return false;
    snprintf(name_out, NAME_MAX_BYTES, "%s%s%s", words[1], is_engine ? "/" : "", is_engine ? words[2] : "");
    if (n == 2 && strcmp(words[0], "init") == 0) return true;
    return kvp_authrole_parse(words[is_user ? 2 : 0], role_out) == KVP_OK &&
           (*role_out == KVP_IS_ENGINE ? is_engine : kvp_authrole_is_client(*role_out) == is_user);
}

int
kvp_cli_cert(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    const char *dir = ".", *cluster = "kvpool", *hosts = "";
    uint64_t ttl_ns = 0;
    bool is_replaced = false;
    const kvp_cli_opt_t opts[] = {
        {"dir", KVP_CLI_TEXT, &dir, "DIR", "the folder with the CA, for all but init (default: this folder)", 0, 0},
        {"cluster", KVP_CLI_TEXT, &cluster, "NAME", "init: the pool's name in all certificates (default: kvpool)", 0,
         0},
        {"host", KVP_CLI_TEXT, &hosts, "HOST[,HOST]",
         "names and addresses of a daemon's HTTP port with TLS; not for init", 0, 0},
        {"ttl", KVP_CLI_DURATION, &ttl_ns, "TIME",
         "how long the certificate is valid, such as 30d (default: 365d, a CA 3650d)", NS_PER_S, 7300 * DAY_NS},
        {"replace", KVP_CLI_FLAG, &is_replaced, NULL, "replace existing files; not for init", 0, 0},
    };
    char name[NAME_MAX_BYTES], why[KVP_CERTS_WHY_MAX] = "", path[KVP_CERTS_PATH_MAX], file[KVP_CERTS_PATH_MAX + 8];
    kvp_cli_common_t common;
    kvp_authrole_t role;
    kvp_err_t err;
    int first, code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    if (!read_words(argc - first, argv + first, &role, name))
        return kvp_cli_complain(verb, KVP_EXIT_USAGE,
                                "say what: init DIR, master NAME, node NAME, conductor NAME, engine TENANT NODE, or "
                                "user TENANT ROLE with the role monitor, reader, writer or admin");
    const bool is_ca = role == KVP_MAY_NOTHING;
    if (is_ca && is_replaced)
        return kvp_cli_complain(
            verb, KVP_EXIT_USAGE,
            "--replace is not for a CA: all certificates would be of another CA. Use another folder");
    if (ttl_ns == 0) ttl_ns = (is_ca ? 3650 : 365) * DAY_NS;
    err = kvp_certs_make(is_ca ? name : dir, role, is_ca ? cluster : name, hosts, ttl_ns / NS_PER_S, is_replaced, path,
                         why);
    if (err != KVP_OK) return kvp_cli_complain(verb, err == KVP_INVALID ? KVP_EXIT_USAGE : KVP_EXIT_REFUSED, "%s", why);
    if (why[0] != '\0') fprintf(stderr, "%s: warning: %s\n", verb->name, why);
    kvp_table_t *report = kvp_report_create();
    snprintf(file, sizeof file, "%s.pem", path);
    kvp_report_text(report, "cert", "certificate", file);
    snprintf(file, sizeof file, "%s.key", path);
    kvp_report_text(report, "key", "key", file);
    kvp_report_print(report, common.is_json);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
