/* SPDX-License-Identifier: Apache-2.0
 * Options of a program from one table: `--lease-ttl 10s` or `--lease-ttl=10s`, KVPOOL_LEASE_TTL in the environment, and
 * `lease-ttl = 10s` in the file that --config names; the first of these that is given wins, then the default. Every
 * program also has --config, --log-level, --print-config, --version and --help. Runs once, at the start of main.
 */
#ifndef KVP_COMMON_DAEMON_CONF_H
#define KVP_COMMON_DAEMON_CONF_H

#include "common/list.h"
#include "common/parse.h"

#include <stdio.h>

#define KVP_CONF_LINE_MAX 4096u /* bytes of a line of a file */
#define KVP_CONF_FILE_MAX (1u << 20) /* bytes of a file */

typedef enum {
    KVP_OPT_STRING, /* const char *; NULL = unset */
    KVP_OPT_BOOL, /* bool; a flag without a value means true */
    KVP_OPT_U64, /* uint64_t */
    KVP_OPT_BYTES, /* uint64_t; kvp_parse_bytes */
    /* uint64_t; the same, or "N%" of the memory of the machine or of its control group, whichever
     * is smaller */
    KVP_OPT_MEMORY,
    KVP_OPT_DURATION_NS, /* uint64_t; kvp_parse_duration_ns */
    KVP_OPT_HOSTPORT, /* kvp_hostport_t; "none" = unset */
    KVP_OPT_ENUM, /* int: index of the text among the choices */
    KVP_OPT_STRINGS, /* kvp_strings_t; given several times, in the environment separated by commas. One source
                      * replaces another's list as a whole. */
} kvp_opt_type_t;

typedef struct {
    const char **items; /* borrowed from the kvp_conf_t */
    size_t count;
} kvp_strings_t;

typedef struct {
    const char *name; /* "lease-ttl" */
    kvp_opt_type_t type;
    size_t offset; /* of the field in the program's settings */
    const char *fallback; /* default, in the form that a user would write; NULL leaves the field zero */
    const char *help; /* one sentence */
    const char *metavar; /* how --help names the value, "DIR:SIZE"; NULL = by type */
    const char *choices; /* ENUM: "none|lru|tinylfu" */
    uint64_t min; /* U64, BYTES, DURATION_NS: bounds; max 0 = none */
    uint64_t max;
    bool is_required;
} kvp_opt_t;

/* The table of options and the texts about the program. kvp_conf_t borrows the struct; usually
 * static in main.c. */
typedef struct {
    const char *program; /* "kvpool-master" */
    const char *summary; /* one sentence for --help */
    const char *operands; /* operands after the options, such as "KEY"; NULL = the program takes none */
    const kvp_opt_t *opts;
    size_t opt_count;
} kvp_conf_spec_t;

typedef struct {
    const kvp_conf_spec_t *spec;
    FILE *out; /* --help and the like; standard output after init */
    FILE *err; /* what is wrong with the options; standard error after init */
    int argc; /* operands, borrowed from the program's argv */
    char **argv;
    const char *config_path; /* NULL = none */
    int log_level; /* kvp_log_level_t */
    uint8_t *sources; /* source of each option's value, the built-in options last */
    kvp_list_t memory; /* memory of the settings' texts */
} kvp_conf_t;

/* kvp_conf_init cannot fail. fini frees every text that the settings point to. */
void kvp_conf_init(kvp_conf_t *conf, const kvp_conf_spec_t *spec);
void kvp_conf_fini(kvp_conf_t *conf);

/* kvp_conf_parse fills settings (zeroed by the caller), sets the log level and returns KVP_CONF_RUN, or the exit code
 * with which main is to return: 0 after --help, --version and --print-config, 2 after a line on conf->err that names
 * the flag, variable or file:line at fault. A variable that is empty counts as unset. The array argv is overwritten.
 * A default that the table itself gets wrong panics. */
#define KVP_CONF_RUN (-1)
#define KVP_CONF_USAGE 2
int kvp_conf_parse(kvp_conf_t *conf, int argc, char **argv, void *settings) KVP_MUST_USE;

/* kvp_conf_parse_text reads the text of a config file, of which nothing is trusted: lines `name = value`, with # at the
 * start of a line or after a space beginning a comment. What a flag or variable has set stays. origin names the text in
 * complaints. INVALID or NOMEM; settings may be half filled then. */
kvp_err_t kvp_conf_parse_text(kvp_conf_t *conf, const char *text, size_t len, const char *origin, void *settings)
    KVP_MUST_USE;

/* kvp_conf_help writes --help; kvp_conf_print a config file with every option, its help and its default. */
void kvp_conf_help(const kvp_conf_spec_t *spec, FILE *to);
void kvp_conf_print(const kvp_conf_spec_t *spec, FILE *to);

#endif
