/* SPDX-License-Identifier: Apache-2.0
 * The command `kvpool`. This file has the table of verbs; base/cli.c has the functions that all verbs share. */
#include "tools/base/cli.h"

#include "common/rlimits.h"
#include "common/stdfd.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const kvp_cli_verb_t verbs[] = {
    {"up", "", "a whole pool on this host, until it is interrupted", kvp_cli_up},
    {"put", "KEY", "store standard input, or a file, under a key", kvp_cli_put},
    {"get", "KEY", "write a value to standard output, or to a file", kvp_cli_get},
    {"exists", "KEY...", "show which keys are present", kvp_cli_exists},
    {"rm", "KEY... | --regex PATTERN | --all", "remove keys", kvp_cli_rm},
    {"bump", "", "make all objects of the tenant unfindable, in one step", kvp_cli_bump},
    {"where", "KEY", "show the copies of an object: nodes, tier, age, pin, group", kvp_cli_where},
    {"why", "KEY", "show why the pool does not have a key, and what helps", kvp_cli_why},
    {"copy", "KEY NODE...", "copy an object to the memory of other nodes, too", kvp_cli_move},
    {"move", "KEY FROM TO", "move an object from one node's memory to another's", kvp_cli_move},
    {"rebalance", "", "move objects from full nodes to emptier ones, until all are nearly as full", kvp_cli_rebalance},
    {"ls", "[PREFIX]", "list keys", kvp_cli_ls},
    {"stat", "", "the state of the pool: nodes, memory, objects, hits, and faults", kvp_cli_stat},
    {"top", "", "a live view of rates, hit ratio, latencies, nodes and faults, on a terminal", kvp_cli_top},
    {"curve", "", "show the hit ratio that less or more memory would give", kvp_cli_curve},
    {"doctor", "", "find faults of this machine or the pool, and name the fixes", kvp_cli_doctor},
    {"snapshot", "", "make the master write a new base of its log and remove older files", kvp_cli_snapshot},
    {"fsck", "",
     "check that all objects of a pool can be read (exit 1: not all, 2: not checked), or the log of a stopped pool",
     kvp_cli_fsck},
    {"master", "ls | switch", "list the masters, or make the leading one hand over", kvp_cli_master},
    {"node", "ls | drain NAME | undrain NAME", "list the nodes, or move the objects of one to the others",
     kvp_cli_node},
    {"session", "ls | end ID", "list the sessions of clients and nodes, or end one", kvp_cli_session},
    {"token", "create", "make a token for a client, an engine, a node or a master", kvp_cli_token},
    {"cert", "init DIR | master NAME | node NAME | conductor NAME | engine TENANT NODE | user TENANT ROLE",
     "make certificates for TLS", kvp_cli_cert},
    {"whoami", "", "show the role and the tenant that the master gives to this client", kvp_cli_whoami},
    {"bench", "", "throughput and latency of one operation", kvp_cli_bench},
    {"replay", "", "replay a trace, with every byte verified", kvp_cli_replay},
};

#define NAME_MAX_LEN 32u

static void
print_usage(FILE *to)
{
    fprintf(to, "usage: kvpool VERB [options] ...\n\nA pool of KV-cache blocks, from the command line.\n\n");
    for (size_t i = 0; i < KVP_ARRAY_LEN(verbs); i++)
        fprintf(to, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(to, "\nkvpool VERB --help lists the verb's options. Every verb takes --master HOST:PORT (or "
                "KVPOOL_MASTER),\n--deadline, --transports, --tenant and --json.\nexit code: 0 done, 1 miss or "
                "refused, 2 usage, 3 pool unreachable\n");
}

/* Returns the edit distance of two names: the number of letters to insert, delete or replace. Only the first
 * NAME_MAX_LEN letters count. */
static size_t
edit_distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_LEN + 1];
    const size_t n = strnlen(b, NAME_MAX_LEN);

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; i < NAME_MAX_LEN && a[i] != '\0'; i++) {
        size_t before = row[0]++;

        for (size_t j = 0; j < n; j++) {
            const size_t change = before + (a[i] != b[j]);

            before = row[j + 1];
            row[j + 1] = change < before + 1 ? change : before + 1;
            if (row[j] + 1 < row[j + 1]) row[j + 1] = row[j] + 1;
        }
    }
    return row[n];
}

static const kvp_cli_verb_t *
verb_named(const char *name)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(verbs); i++)
        if (strcmp(name, verbs[i].name) == 0) return &verbs[i];
    return NULL;
}

static int
complain_of_verb(const char *name)
{
    static const struct {
        const char *name, *verb;
    } others[] = {{"delete", "rm"},  {"del", "rm"},      {"remove", "rm"},           {"list", "ls"},
                  {"set", "put"},    {"status", "stat"}, {"info", "stat"},           {"start", "up"},
                  {"check", "fsck"}, {"has", "exists"},  {"switch", "master switch"}};
    const char *near = NULL;
    if (name[0] == '-') {
        fprintf(stderr, "kvpool: unknown option %s: options have two dashes; see kvpool --help\n", name);
        return KVP_EXIT_USAGE;
    }
    size_t best = 3; /* a verb at an edit distance of three or more is not suggested */

    for (size_t i = 0; i < KVP_ARRAY_LEN(verbs); i++) {
        const size_t d = edit_distance(name, verbs[i].name);

        if (d < best && d < strlen(verbs[i].name)) {
            best = d;
            near = verbs[i].name;
        }
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(others); i++)
        if (strcmp(name, others[i].name) == 0) near = others[i].verb;
    if (near != NULL)
        fprintf(stderr, "kvpool: no verb \"%s\"; did you mean \"%s\"? See kvpool --help\n", name, near);
    else
        fprintf(stderr, "kvpool: no verb \"%s\"; see kvpool --help\n", name);
    return KVP_EXIT_USAGE;
}

/* Returns the verb's index in argv, after any options; argc if there is no verb. Only the verb knows which of its
 * own options have values. So here an option before the name of a verb, or before another option, counts as an
 * option without a value. */
static int
find_verb(int argc, char **argv)
{
    int at = 1;

    while (at < argc && argv[at][0] == '-' && argv[at][1] == '-' && argv[at][2] != '\0') {
        const bool is_alone = strchr(argv[at], '=') != NULL || strcmp(argv[at], "--json") == 0 ||
                              (strcmp(argv[at], "--tenant") != 0 && strcmp(argv[at], "--cluster") != 0 &&
                               at + 1 < argc && (argv[at + 1][0] == '-' || verb_named(argv[at + 1]) != NULL));

        at += is_alone ? 1 : 2;
    }
    return at < argc ? at : argc;
}

int
main(int argc, char **argv)
{
    kvp_stdfd_hold();
    kvp_limit_survive_file_size();
    /* SIGPIPE, which would end the program silently, is ignored: if the reader of a pipe has closed
     * it, a write fails with a message. */
    signal(SIGPIPE, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return fflush(stdout) == 0 ? KVP_EXIT_DONE : KVP_EXIT_REFUSED;
    }
    if (strcmp(name, "--version") == 0) {
        printf("kvpool %s\n", kvpool_version());
        return fflush(stdout) == 0 ? KVP_EXIT_DONE : KVP_EXIT_REFUSED;
    }
    const int at = find_verb(argc, argv);
    if (at < argc) {
        char *verb = argv[at];
        /* moves the verb before the options, because a verb accepts options only after its name */
        memmove(argv + 2, argv + 1, (size_t)(at - 1) * sizeof(*argv));
        argv[1] = verb;
        const kvp_cli_verb_t *found = verb_named(verb);
        return found != NULL ? found->run(found, argc - 1, argv + 1) : complain_of_verb(verb);
    }
    print_usage(stderr);
    if (argc > 1) fprintf(stderr, "kvpool: a verb is missing\n");
    return KVP_EXIT_USAGE;
}
