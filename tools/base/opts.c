/* SPDX-License-Identifier: Apache-2.0
 * Parsing of options. The rows of the verb and the common rows form one getopt_long table, with equal indices. */
#include "tools/base/opts.h"

#include "tools/base/report.h"

#include "common/hostid.h"
#include "common/parse.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTS_MAX 48
#define COMMON_N 8
#define MASTERS_MAX 16
#define LOCAL_FROM 5 /* index of the first common option that verbs which use no pool have as well */
#define DAY_NS 86400000000000ull
#define DEADLINE_DEFAULT_NS 5000000000ull
#define DEADLINE_MAX_NS DAY_NS

/* Fills the rows with the verb's options and the common ones. Returns their number. */
static size_t
build_rows(const kvp_cli_verb_t *verb, kvp_cli_opt_t rows[OPTS_MAX], const kvp_cli_opt_t *opts, size_t n,
           kvp_cli_common_t *common, bool *is_help)
{
    const kvp_cli_opt_t shared[COMMON_N] = {
        {"master", KVP_CLI_TEXT, &common->master, "HOST:PORT",
         "the pool's master, or several separated by commas, or etcd://HOST:PORT;HOST:PORT, where they are registered "
         "(KVPOOL_MASTER, default 127.0.0.1:50051)",
         0, 0},
        {"cluster", KVP_CLI_TEXT, &common->cluster, "NAME",
         "with etcd://: the --cluster of the masters (KVPOOL_CLUSTER, MC_STORE_CLUSTER_ID, default kvpool)", 0, 0},
        {"deadline", KVP_CLI_DURATION, &common->deadline_ns, "TIME", "the deadline of each call (default 5s)", 1000000,
         DEADLINE_MAX_NS},
        {"transports", KVP_CLI_TEXT, &common->transports, "LIST",
         "a list of shm, rdma, tcp in the order of preference (KVPOOL_TRANSPORTS, default: all that work here)", 0, 0},
        {"host-id", KVP_CLI_TEXT, &common->host_id, "ID",
         "this host's id, by which hosts are told apart (default: the machine's id)", 0, 0},
        {"tenant", KVP_CLI_TEXT, &common->tenant, "NAME", "the tenant that the command acts for (default: default)", 0,
         0},
        {"json", KVP_CLI_FLAG, &common->is_json, NULL, "one JSON object instead of text", 0, 0},
        {"help", KVP_CLI_FLAG, is_help, NULL, "this text", 0, 0},
    };
    if (n > OPTS_MAX - COMMON_N) kvp_panic("a verb has more than %d options", OPTS_MAX - COMMON_N);
    if (n > 0) memcpy(rows, opts, n * sizeof(*opts));
    const bool is_local = strcmp(verb->name, "token") == 0 || strcmp(verb->name, "cert") == 0;
    const size_t from = is_local ? LOCAL_FROM : 0;
    memcpy(rows + n, shared + from, sizeof(shared) - from * sizeof(*shared));
    return n + COMMON_N - from;
}

static void
print_help(const kvp_cli_verb_t *verb, const kvp_cli_opt_t *rows, size_t n)
{
    printf("usage: kvpool %s [options]%s%s\n\n%s\n\n", verb->name, *verb->operands != '\0' ? " " : "", verb->operands,
           verb->summary);
    for (size_t i = 0; i < n; i++) {
        const kvp_cli_opt_t *row = &rows[i];
        char left[64];
        snprintf(left, sizeof(left), "--%s%s%s", row->name,
                 row->type == KVP_CLI_PERIOD ? "[="
                 : row->arg != NULL          ? " "
                                             : "",
                 row->arg != NULL ? row->arg : "");
        printf("  %-26s %s\n", left, row->help);
    }
    printf("\nexit code: 0 done, 1 miss or refused, 2 usage, 3 pool unreachable\n");
}

static kvp_err_t
set_share(const char *text, double *to)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value <= 0 || value > 1) return KVP_INVALID;
    *to = value;
    return KVP_OK;
}

static kvp_err_t
set_value(const kvp_cli_opt_t *row, const char *text)
{
    uint64_t value = 0;
    kvp_err_t err = KVP_OK;
    switch (row->type) {
    case KVP_CLI_FLAG:
        *(bool *)row->to = true;
        return KVP_OK;
    case KVP_CLI_TEXT:
        *(const char **)row->to = text;
        return KVP_OK;
    case KVP_CLI_SHARE:
        return set_share(text, row->to);
    case KVP_CLI_U64:
        err = kvp_parse_u64(text, &value);
        break;
    case KVP_CLI_BYTES:
        err = kvp_parse_bytes(text, &value);
        break;
    case KVP_CLI_DURATION:
    case KVP_CLI_PERIOD:
        err = kvp_parse_duration_ns(text, &value);
        break;
    }
    if (err == KVP_OK && row->max != 0 && (value < row->min || value > row->max)) err = KVP_INVALID;
    if (err == KVP_OK) *(uint64_t *)row->to = value;
    return err;
}

/* say_wanted writes the kind of value that the option expects, with its bounds if it has some. */
static const char *
say_wanted(const kvp_cli_opt_t *row, char *dst, size_t cap)
{
    char low[KVP_BYTES_TEXT_MAX], high[KVP_BYTES_TEXT_MAX];
    if (row->type == KVP_CLI_SHARE)
        snprintf(dst, cap, "a share above 0 and at most 1, such as 0.25");
    else if (row->type == KVP_CLI_BYTES)
        snprintf(dst, cap, "a size from %s to %s, such as 64KiB or 2GiB", kvp_format_bytes(row->min, low),
                 kvp_format_bytes(row->max, high));
    else if (row->type == KVP_CLI_DURATION || row->type == KVP_CLI_PERIOD)
        snprintf(dst, cap, "a time from %.6g s to %.6g %s, such as 500ms or 5s", (double)row->min / 1e9,
                 (double)row->max / (row->max < DAY_NS ? 1e9 : DAY_NS), row->max < DAY_NS ? "s" : "days");
    else if (row->max != 0)
        snprintf(dst, cap, "a whole number from %llu to %llu", (unsigned long long)row->min,
                 (unsigned long long)row->max);
    else
        snprintf(dst, cap, "a whole number");
    return dst;
}

static int
check_common(const kvp_cli_verb_t *verb, kvp_cli_common_t *common)
{
    kvp_hostport_t at[MASTERS_MAX];
    const bool is_etcd =
        common->master != NULL && strncmp(common->master, KVP_ETCD_SCHEME, strlen(KVP_ETCD_SCHEME)) == 0;
    common->masters_n = is_etcd ? SIZE_MAX : 1;
    if (common->master != NULL && !is_etcd &&
        kvp_parse_hostports(common->master, at, MASTERS_MAX, &common->masters_n) != KVP_OK)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "\"%s\" is not HOST:PORT[,HOST:PORT]", common->master);
    if (common->transports != NULL && *common->transports == '\0')
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--transports does not take \"\", but some of shm, rdma, tcp");
    if (common->host_id != NULL && (*common->host_id == '\0' || strlen(common->host_id) > KVP_HOST_ID_MAX))
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--host-id does not take \"%s\", but from 1 to %d bytes",
                                common->host_id, KVP_HOST_ID_MAX);
    return KVP_EXIT_GO_ON;
}

int
kvp_cli_parse(const kvp_cli_verb_t *verb, const kvp_cli_opt_t *opts, size_t opts_n, int argc, char **argv,
              kvp_cli_common_t *common, int *first_out)
{
    kvp_cli_opt_t rows[OPTS_MAX];
    bool is_help = false;
    struct option longs[OPTS_MAX + 1];
    const char *master = getenv("KVPOOL_MASTER");
    /* An empty KVPOOL_MASTER counts as unset; an empty value of --master is an error. */
    *common = (kvp_cli_common_t){.master = master != NULL && *master != '\0' ? master : NULL,
                                 .deadline_ns = DEADLINE_DEFAULT_NS};
    const size_t n = build_rows(verb, rows, opts, opts_n, common, &is_help);
    for (size_t i = 0; i < n; i++)
        longs[i] = (struct option){rows[i].name,
                                   rows[i].type == KVP_CLI_FLAG     ? no_argument
                                   : rows[i].type == KVP_CLI_PERIOD ? optional_argument
                                                                    : required_argument,
                                   NULL, 0};
    longs[n] = (struct option){NULL, 0, NULL, 0};

    opterr = 0;
    optind = 0; /* optind 0 instead of 1 also resets the state of glibc's getopt from an earlier call */
    for (;;) {
        int at = -1;
        int c = getopt_long(argc, argv, ":h", longs, &at);
        if (c == -1) break;
        if (c == 'h') is_help = true;
        if (c == ':') return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s wants a value", argv[optind - 1]);
        if (c == '?' && optopt != 0)
            return kvp_cli_complain(verb, KVP_EXIT_USAGE,
                                    "unknown option -%c; options have two dashes, and -- comes before a key that "
                                    "begins with a dash; see --help",
                                    optopt);
        if (c == '?') return kvp_cli_complain(verb, KVP_EXIT_USAGE, "unknown option %s; see --help", argv[optind - 1]);
        const char *given = c == 0 && optarg == NULL && rows[at].type == KVP_CLI_PERIOD ? "1s" : optarg;
        if (c == 0 && set_value(&rows[at], given) != KVP_OK) {
            char wanted[160];
            return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--%s does not take \"%s\", but %s", rows[at].name, given,
                                    say_wanted(&rows[at], wanted, sizeof(wanted)));
        }
    }
    if (is_help) {
        print_help(verb, rows, n);
        return kvp_cli_flush(verb, KVP_EXIT_DONE);
    }
    *first_out = optind;
    const int code = check_common(verb, common);
    if (code != KVP_EXIT_GO_ON || *verb->operands != '\0' || optind == argc) return code;
    return kvp_cli_complain(verb, KVP_EXIT_USAGE, "takes no operand");
}
