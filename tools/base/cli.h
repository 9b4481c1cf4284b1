/* SPDX-License-Identifier: Apache-2.0
 * Common parts of the verbs of `kvpool`: exit codes, the options of every verb, opening the pool, error messages.
 * The tool uses the pool only through client/kvpool.h. Only the main thread calls these functions, except for the
 * workers that replay and bench start. */
#ifndef KVP_TOOLS_BASE_CLI_H
#define KVP_TOOLS_BASE_CLI_H

#include "client/kvpool.h"

#include "common/base.h"

#define KVP_CLI_CONDUCTOR "127.0.0.1:13333" /* default address of a conductor's HTTP port */

#define KVP_EXIT_DONE 0
#define KVP_EXIT_REFUSED 1 /* exit code for a miss, or for a refusal by the pool */
#define KVP_EXIT_USAGE 2
#define KVP_EXIT_UNREACHABLE 3
#define KVP_EXIT_GO_ON (-1) /* result of kvp_cli_parse: the verb continues and does not exit */

typedef struct kvp_cli_verb {
    const char *name;
    const char *operands; /* names of the verb's operands in the usage line; "" = none */
    const char *summary; /* line about the verb in `kvpool --help` */
    /* runs the verb; argv[0] is the verb's name; returns an exit code */
    int (*run)(const struct kvp_cli_verb *verb, int argc, char **argv);
} kvp_cli_verb_t;

/* Values of the options that every verb has. Texts are borrowed from argv and the environment; NULL = the
 * library's default. */
typedef struct {
    const char *master, *cluster;
    const char *transports;
    const char *host_id;
    uint64_t deadline_ns;
    const char *tenant; /* name of the tenant; NULL = the default tenant */
    size_t masters_n; /* number of masters in the list; SIZE_MAX = etcd lists the masters */
    uint32_t locations, verify; /* values for kvpool_conf_t that no option sets */
    bool state_only;
    bool is_json;
    /* text of the master's reason for a refusal, or of the reason why there is no session; filled through
     * kvp_cli_call_opts */
    char detail[512];
} kvp_cli_common_t;

/* The functions of the verbs. Related verbs share a file. */
int kvp_cli_put(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_get(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_exists(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_rm(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_bump(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_where(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_why(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_move(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_rebalance(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_ls(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_top(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_stat(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_snapshot(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_fsck(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_doctor(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_up(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_master(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_curve(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_session(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_node(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_token(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_cert(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_whoami(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_bench(const kvp_cli_verb_t *verb, int argc, char **argv);
int kvp_cli_replay(const kvp_cli_verb_t *verb, int argc, char **argv);

/* kvp_cli_list_part prints a list of kvpool_stat, "masters" or "segments" (the nodes), and returns the exit code. */
int kvp_cli_list_part(const kvp_cli_verb_t *verb, kvp_cli_common_t *common, const char *part);

/* kvp_cli_conf returns a handle's configuration for the common options. */
kvpool_conf_t kvp_cli_conf(const kvp_cli_common_t *common);

/* kvp_cli_open opens the pool of the common options. On success it returns KVP_EXIT_DONE, and the caller frees
 * *pool_out with kvpool_free. On failure it prints the reason in one line and returns the exit code. */
int kvp_cli_open(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t **pool_out);

/* kvp_cli_exit_code returns the exit code for an error of the library. */
int kvp_cli_exit_code(int err);

/* kvp_cli_call_opts returns options of a call with the given flags. With these options the reason of a refusal is
 * stored in common->detail. */
kvpool_opts_t kvp_cli_call_opts(kvp_cli_common_t *common, uint32_t flags);

/* kvp_cli_fail prints one line, "kvpool VERB: WHAT: sentence (NAME)", and returns the error's exit code.
 * kvp_cli_fail_why adds the reason in common->detail, if any. With --json the line is {"error": NAME, "detail": REASON}
 * on standard output; for `get` on standard error. kvp_cli_complain prints "kvpool VERB: ..." and returns code. */
int kvp_cli_fail(const kvp_cli_verb_t *verb, const char *what, int err);
int kvp_cli_fail_why(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *what, int err);
int kvp_cli_complain(const kvp_cli_verb_t *verb, int code, const char *fmt, ...) KVP_PRINTF(3, 4);

/* kvp_cli_flush flushes standard output. It returns code, or KVP_EXIT_REFUSED after an error message if the output
 * could not be written (full disk, closed pipe). */
int kvp_cli_flush(const kvp_cli_verb_t *verb, int code);

/* kvp_cli_apart runs fn(arg, answer) in a child process and copies the answer (size bytes) back. It is for code
 * that opens devices: this process must not open devices before it forks workers. If the result is not
 * KVP_EXIT_DONE, the error has been printed. */
int kvp_cli_apart(const kvp_cli_verb_t *verb, void (*fn)(const void *arg, void *answer), const void *arg, void *answer,
                  size_t size);

/* kvp_cli_alloc and kvp_cli_realloc (for n members) work as calloc and realloc, but end the program with a message
 * if there is no memory. kvp_cli_quote writes text to dst with control characters and backslashes escaped, cut to
 * cap, and returns dst. */
void *kvp_cli_alloc(size_t n, size_t size);
void *kvp_cli_realloc(void *p, size_t n, size_t size);
void kvp_cli_no_memory(void) __attribute__((noreturn));
const char *kvp_cli_quote(const void *text, size_t len, char *dst, size_t cap);

#endif
