/* SPDX-License-Identifier: Apache-2.0
 * `kvpool`: the pool from the command line. The verb table; what all verbs share is in base/cli.c.
 */
#include "client/cli/base/cli.h"

#include "common/rlimits.h"
#include "common/stdfd.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const kvp_cli_verb_t verbs[] = {
    {"up", "", "a whole pool on this host, until it is interrupted", kvp_cli_up},
    {"put", "KEY", "store standard input, or a file, under a key", kvp_cli_put},
    {"get", "KEY", "write a value to standard output, or to a file", kvp_cli_get},
    {"exists", "KEY...", "say whether keys are there", kvp_cli_exists},
    {"rm", "KEY... | --regex PATTERN | --all", "remove keys", kvp_cli_rm},
    {"bump", "", "make all that the tenant has put unfindable, in one step", kvp_cli_bump},
    {"ls", "[PREFIX]", "list keys", kvp_cli_ls},
    {"stat", "", "how the pool is: nodes, memory, objects, hits, and what is wrong", kvp_cli_stat},
    {"doctor", "", "what is wrong with this machine or the pool, and what helps", kvp_cli_doctor},
    {"snapshot", "", "have the master write its log anew, so that files before it go", kvp_cli_snapshot},
    {"fsck", "",
     "whether all that a pool says it has can be read (1: not all, 2: could not be checked); of a stopped one, its log",
     kvp_cli_fsck},
    {"master", "switch", "have the master that leads give up its lead to another one", kvp_cli_master},
    {"bench", "", "throughput and latency of one operation", kvp_cli_bench},
    {"replay", "", "replay a trace, with every byte verified", kvp_cli_replay},
};

static void
usage(FILE *to)
{
    fprintf(to, "usage: kvpool VERB [options] ...\n\nA pool of KV-cache blocks, from the command line.\n\n");
    for (size_t i = 0; i < KVP_ARRAY_LEN(verbs); i++)
        fprintf(to, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(to,
            "\nkvpool VERB --help tells the verb's options. Every verb takes --master HOST:PORT (or KVPOOL_MASTER),\n"
            "--deadline, --transports, --tenant and --json.\n"
            "exit code: 0 done, 1 miss or refused, 2 usage, 3 pool unreachable\n");
}

int
main(int argc, char **argv)
{
    kvp_stdfd_hold();
    kvp_limit_survive_file_size();
    /* A reader that went away is a write error with a message, not a silent death. */
    signal(SIGPIPE, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        usage(stdout);
        return fflush(stdout) == 0 ? KVP_EXIT_DONE : KVP_EXIT_REFUSED;
    }
    if (strcmp(name, "--version") == 0) {
        printf("kvpool %s\n", kvpool_version());
        return fflush(stdout) == 0 ? KVP_EXIT_DONE : KVP_EXIT_REFUSED;
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(verbs); i++)
        if (strcmp(name, verbs[i].name) == 0) return verbs[i].run(&verbs[i], argc - 1, argv + 1);
    if (argc > 1) {
        fprintf(stderr, "kvpool: no verb \"%s\"; see kvpool --help\n", name);
    } else {
        usage(stderr);
    }
    return KVP_EXIT_USAGE;
}
