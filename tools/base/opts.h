/* SPDX-License-Identifier: Apache-2.0
 * Options of one verb from a table, for parsing and for --help. The daemons' table
 * (common/daemon/conf.h) also reads the environment and files; a command line tool wants neither. */
#ifndef KVP_TOOLS_BASE_OPTS_H
#define KVP_TOOLS_BASE_OPTS_H

#include "tools/base/cli.h"

typedef enum {
    KVP_CLI_FLAG, /* bool */
    KVP_CLI_TEXT, /* const char * */
    KVP_CLI_U64, /* uint64_t */
    KVP_CLI_BYTES, /* uint64_t; kvp_parse_bytes */
    KVP_CLI_DURATION, /* uint64_t nanoseconds; kvp_parse_duration_ns */
    KVP_CLI_SHARE, /* double, above 0, at most 1 */
} kvp_cli_opt_type_t;

typedef struct {
    const char *name; /* without the dashes */
    kvp_cli_opt_type_t type;
    void *to; /* holds the default before parsing */
    const char *arg; /* name of the value in --help; NULL for a flag */
    const char *help;
    uint64_t min; /* U64, BYTES, DURATION; max 0 = no bounds */
    uint64_t max;
} kvp_cli_opt_t;

/* kvp_cli_parse reads argv by the verb's table and the common one. KVP_EXIT_GO_ON leaves the
 * operands in argv[*first_out..argc). Otherwise returns the exit code: after --help, or after
 * printing the fault, such as an operand of a verb that takes none. */
int kvp_cli_parse(const kvp_cli_verb_t *verb, const kvp_cli_opt_t *opts, size_t opts_n, int argc, char **argv,
                  kvp_cli_common_t *common, int *first_out);

#endif
