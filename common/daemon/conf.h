/* SPDX-License-Identifier: Apache-2.0
 * Options of a program, declared in one table. An option may be given as `--lease-ttl 10s` or `--lease-ttl=10s`,
 * as KVPOOL_LEASE_TTL in the environment, or as `lease-ttl = 10s` in the file that --config names. The first of
 * these sources wins, then the default. Every program also has --config, --log-level, --log-format, --print-config,
 * --version and --help. Used once, at the start of main. */
#ifndef KVP_COMMON_DAEMON_CONF_H
#define KVP_COMMON_DAEMON_CONF_H

#include "common/list.h"
#include "common/parse.h"

#include <stdio.h>

#define KVP_CONF_LINE_MAX 4096u /* longest line of a config file, in bytes */
#define KVP_CONF_FILE_MAX (1u << 20) /* longest config file, in bytes */

typedef enum {
    KVP_OPT_STRING, /* type of an option whose field is a const char *; NULL = unset */
    KVP_OPT_BOOL, /* type of an option whose field is a bool; the flag alone, without a value, means true */
    KVP_OPT_U64, /* type of an option whose field is a uint64_t */
    KVP_OPT_BYTES, /* type of an option for a size, whose field is a uint64_t; kvp_parse_bytes reads it */
    /* type of an option for a size of memory, whose field is a uint64_t: a size as in KVP_OPT_BYTES, or "N%" of
     * the memory of the machine or of its control group, whichever is smaller */
    KVP_OPT_MEMORY,
    /* type of an option for a duration; the field is a uint64_t in ns; kvp_parse_duration_ns reads it */
    KVP_OPT_DURATION_NS,
    KVP_OPT_HOSTPORT, /* type of an option for an address, whose field is a kvp_hostport_t; "none" = unset */
    KVP_OPT_ENUM, /* type of an option with fixed choices; the field is an int, the index of the text in the choices */
    /* type of an option for a list, whose field is a kvp_strings_t. The flag may be given several times; in the
     * environment commas separate the items. A source of higher precedence replaces the whole list. */
    KVP_OPT_STRINGS,
} kvp_opt_type_t;

typedef struct {
    const char **items; /* texts of the list; borrowed from the kvp_conf_t */
    size_t count;
} kvp_strings_t;

typedef struct {
    const char *name; /* name of the option, such as "lease-ttl" */
    kvp_opt_type_t type;
    size_t offset; /* offset of the option's field in the program's settings struct */
    const char *fallback; /* default value, in the form in which a user would write it; NULL leaves the field zero */
    const char *help; /* text of the option in --help: one sentence */
    const char *metavar; /* name of the value in --help, such as "DIR:SIZE"; NULL = depends on the type */
    const char *choices; /* values of an ENUM option, such as "none|lru|tinylfu" */
    uint64_t min; /* smallest value of an option with a number; max: the largest value, 0 = no limit */
    uint64_t max;
    bool is_required;
} kvp_opt_t;

/* KVP_OPT begins the row of an option of the type KVP_OPT_<kind>, whose value goes to `field` of the settings.
 * KVP_OPT_TEXT does so for a STRING with a metavar. */
#define KVP_OPT(kind, option, settings, field)                                                                         \
    .name = option, .type = KVP_OPT_##kind, .offset = offsetof(settings, field)
#define KVP_OPT_TEXT(option, settings, field, value) KVP_OPT(STRING, option, settings, field), .metavar = value

/* The options of a program, and texts about it. kvp_conf_t borrows this struct, which is usually static in main.c. */
typedef struct {
    const char *program; /* name of the program, such as "kvpool-master" */
    const char *summary; /* sentence about the program for --help */
    const char *operands; /* names of the operands after the options, such as "KEY"; NULL = no operands */
    const kvp_opt_t *opts;
    size_t opt_count;
} kvp_conf_spec_t;

typedef struct {
    const kvp_conf_spec_t *spec;
    FILE *out; /* stream for --help and the like; kvp_conf_init sets standard output */
    FILE *err; /* stream for complaints about the options; kvp_conf_init sets standard error */
    int argc; /* number of operands; argv: the operands, borrowed from the program's argv */
    char **argv;
    const char *config_path; /* path of the config file; NULL = none */
    int log_level; /* value of the option --log-level, a kvp_log_level_t */
    int log_format; /* value of the option --log-format, a kvp_log_format_t */
    uint8_t *sources; /* for each option, the source that set it (flag, file, ...); the built-in options come last */
    kvp_list_t memory; /* list of allocated memory for texts in the settings */
} kvp_conf_t;

/* kvp_conf_init prepares conf and cannot fail. kvp_conf_fini frees all texts to which the settings point. */
void kvp_conf_init(kvp_conf_t *conf, const kvp_conf_spec_t *spec);
void kvp_conf_fini(kvp_conf_t *conf);

/* kvp_conf_parse fills settings (zeroed by the caller) and sets the level and format of the log. It returns
 * KVP_CONF_RUN, or an exit code for main: 0 after --help, --version or --print-config; 2 after printing a line on
 * conf->err that names the wrong flag, variable or file:line. An empty variable counts as unset. The array argv is
 * overwritten. An invalid default in the table panics. */
#define KVP_CONF_RUN (-1)
#define KVP_CONF_USAGE 2
int kvp_conf_parse(kvp_conf_t *conf, int argc, char **argv, void *settings) KVP_MUST_USE;

/* kvp_conf_parse_text parses the text of a config file, which is not trusted: lines `name = value`; a comment
 * begins with # at the start of a line or after a space. Options that a flag or variable has set are not changed.
 * origin names the text in complaints. INVALID or NOMEM; settings may then be partly filled. */
kvp_err_t kvp_conf_parse_text(kvp_conf_t *conf, const char *text, size_t len, const char *origin, void *settings)
    KVP_MUST_USE;

/* kvp_conf_help prints the text of --help. kvp_conf_print prints a config file of all options. */
void kvp_conf_help(const kvp_conf_spec_t *spec, FILE *to);
void kvp_conf_print(const kvp_conf_spec_t *spec, FILE *to);

#endif
