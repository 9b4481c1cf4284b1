/* SPDX-License-Identifier: Apache-2.0
 * What the verbs of `kvpool` share: exit codes, the options that every verb takes, opening the pool, complaints. The
 * tool uses the pool through client/kvpool.h alone. Main thread only, but for the workers that replay and bench start.
 */
#ifndef KVP_TOOLS_BASE_CLI_H
#define KVP_TOOLS_BASE_CLI_H

#include "client/kvpool.h"

#include "common/base.h"

#define KVP_CLI_CONDUCTOR "127.0.0.1:13333" /* default address of a conductor */

#define KVP_EXIT_DONE 0
#define KVP_EXIT_REFUSED 1 /* a miss, or a refusal by the pool */
#define KVP_EXIT_USAGE 2
#define KVP_EXIT_UNREACHABLE 3
#define KVP_EXIT_GO_ON (-1) /* of kvp_cli_parse: no exit yet */

typedef struct kvp_cli_verb {
    const char *name;
    const char *operands; /* of the usage line; "" = none */
    const char *summary; /* one line of `kvpool --help` */
    int (*run)(const struct kvp_cli_verb *verb, int argc, char **argv); /* argv[0] is the verb; returns an exit code */
} kvp_cli_verb_t;

/* The options of every verb. Texts are borrowed from argv and the environment; NULL = the library's default. */
typedef struct {
    const char *master, *cluster;
    const char *transports;
    const char *host_id;
    uint64_t deadline_ns;
    const char *tenant; /* name; NULL = the default tenant */
    size_t masters_n; /* in the list; SIZE_MAX = etcd knows */
    uint32_t locations, verify; /* as in kvpool_conf_t; no options */
    bool state_only;
    bool is_json;
    char detail[512]; /* the master's reason of a refusal, or why there is no session; kvp_cli_call_opts points there */
} kvp_cli_common_t;

/* The verbs, a file a family. */
int kvp_cli_put(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_get(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_exists(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_rm(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_bump(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_ls(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_stat(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_snapshot(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_fsck(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_doctor(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_up(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_master(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_bench(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_replay(const kvp_cli_verb_t *verb, int argc, char **argv);

/* kvp_cli_conf makes a handle's configuration from the common options. */
kvpool_conf_t kvp_cli_conf(const kvp_cli_common_t *common);

/* kvp_cli_open opens the pool of the common options. On failure it prints the reason in one line,
 * and returns the exit code; KVP_EXIT_DONE sets *pool_out, for kvpool_free. */
int kvp_cli_open(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t **pool_out);

/* kvp_cli_exit_code is the exit code that an error of the library stands for. */
int kvp_cli_exit_code(int err);

/* kvp_cli_call_opts is a call's options with these flags, which leave the reason of a refusal in common. */
kvpool_opts_t kvp_cli_call_opts(kvp_cli_common_t *common, uint32_t flags);

/* kvp_cli_fail writes one line, "kvpool VERB: WHAT: sentence (NAME)", and returns the error's exit
 * code. kvp_cli_fail_why adds the reason in common, if any; with --json the line is {"error": NAME,
 * "detail": REASON}, on standard output, for `get` on standard error. kvp_cli_complain writes
 * "kvpool VERB: ..." and returns code. */
int kvp_cli_fail(const kvp_cli_verb_t *verb, const char *what, int err);
int kvp_cli_fail_why(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *what, int err);
int kvp_cli_complain(const kvp_cli_verb_t *verb, int code, const char *fmt, ...) KVP_PRINTF(3, 4);

/* kvp_cli_flush flushes standard output: text that a full disk or a closed pipe swallowed is not success. Returns code,
 * or KVP_EXIT_REFUSED after a complaint. */
int kvp_cli_flush(const kvp_cli_verb_t *verb, int code);

/* kvp_cli_apart runs fn(arg, answer) in a child, on a copy of the answer's size bytes, and copies
 * the result back: for devices that this process must not open before it forks workers. Any result
 * but DONE was printed already. */
int kvp_cli_apart(const kvp_cli_verb_t *verb, void (*fn)(const void *arg, void *answer), const void *arg, void *answer,
                  size_t size);

/* kvp_cli_alloc is calloc, kvp_cli_realloc realloc of n members, that end the program with a message instead of NULL.
 * kvp_cli_quote writes text with control characters and backslashes escaped, cut to fit cap, and returns dst. */
void *kvp_cli_alloc(size_t n, size_t size);
void *kvp_cli_realloc(void *p, size_t n, size_t size);
void kvp_cli_no_memory(void) __attribute__((noreturn));
const char *kvp_cli_quote(const void *text, size_t len, char *dst, size_t cap);

#endif
