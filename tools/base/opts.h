/* SPDX-License-Identifier: Apache-2.0
 * Options of one verb from a table, for parsing and for --help. The daemons' table (common/daemon/conf.h) also
 * reads the environment and files, which a command line tool should not do. */
#ifndef KVP_TOOLS_BASE_OPTS_H
#define KVP_TOOLS_BASE_OPTS_H

#include "tools/base/cli.h"

typedef enum {
    KVP_CLI_FLAG, /* type of an option whose field is a bool */
    KVP_CLI_TEXT, /* type of an option whose field is a const char * */
    KVP_CLI_U64, /* type of an option whose field is a uint64_t */
    KVP_CLI_BYTES, /* type of an option for a size, whose field is a uint64_t; kvp_parse_bytes reads it */
    /* type of an option for a duration; the field is a uint64_t in ns; kvp_parse_duration_ns reads it */
    KVP_CLI_DURATION,
    /* type of an option with an optional duration, --name or --name=TIME; without TIME the field is 1 s */
    KVP_CLI_PERIOD,
    KVP_CLI_SHARE, /* type of an option for a share, whose field is a double above 0 and at most 1 */
} kvp_cli_opt_type_t;

typedef struct {
    const char *name; /* name of the option, without the leading dashes */
    kvp_cli_opt_type_t type;
    void *to; /* the field that the option sets; contains the default before parsing */
    const char *arg; /* name of the value in --help; NULL for a flag */
    const char *help;
    uint64_t min; /* smallest value of a U64, BYTES or DURATION option; ignored if max is 0 */
    uint64_t max;
} kvp_cli_opt_t;

/* kvp_cli_parse parses argv by the verb's table and the common options. If it returns KVP_EXIT_GO_ON, the operands are
 * in argv[*first_out..argc). Otherwise it returns the exit code, after --help or after printing the fault, such as
 * an operand of a verb without operands. */
int kvp_cli_parse(const kvp_cli_verb_t *verb, const kvp_cli_opt_t *opts, size_t opts_n, int argc, char **argv,
                  kvp_cli_common_t *common, int *first_out);

#endif
