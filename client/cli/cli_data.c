/* SPDX-License-Identifier: Apache-2.0
 * put, get, exists, rm, ls: a value's life. A value is held in memory whole, bounded by the pool's chunk size.
 */
#include "client/cli/cli.h"

#include "client/cli/cli_opts.h"
#include "client/cli/json_out.h"
#include "client/cli/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_FIRST_BYTES (64u << 10)
#define VALUE_MAX_DEFAULT (256ull << 20) /* where no segment tells its chunk size */
#define GET_TRIES 4
#define LIST_PAGE 1000u
#define QUOTED_MAX (4 * KVPOOL_KEY_MAX + 1)

static int
one_key(const kvp_cli_verb_t *verb, int argc, int first)
{
    if (argc - first == 1) return KVP_EXIT_GO_ON;
    return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s; see --help",
                            argc == first ? "a key is missing" : "one key only");
}

/* fail_key complains about a key; in JSON the error goes to standard output as well. */
static int
fail_key(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *key, int err)
{
    char quoted[QUOTED_MAX];
    if (common->is_json) {
        struct json_object *line = json_object_new_object();
        kvp_json_add_key(line, key, strlen(key));
        json_object_object_add(line, "error", json_object_new_string(kvpool_errname(err)));
        kvp_json_line(line, strcmp(verb->name, "get") == 0 ? stderr : stdout);
        return kvp_cli_flush(verb, kvp_cli_exit_code(err));
    }
    return kvp_cli_fail(verb, kvp_cli_quote(key, strlen(key), quoted, sizeof(quoted)), err);
}

/* say_bytes reports a value that was moved; without --json success is silent. */
static void
say_bytes(const kvp_cli_common_t *common, const char *key, size_t len, FILE *to)
{
    if (!common->is_json) return;
    struct json_object *line = json_object_new_object();
    kvp_json_add_key(line, key, strlen(key));
    json_object_object_add(line, "size_bytes", json_object_new_uint64(len));
    kvp_json_line(line, to);
}

/* ---- put ---- */

static uint64_t
value_max(kvpool_t *pool)
{
    struct json_object *stat;
    if (kvp_json_stat(pool, &stat) != KVPOOL_OK) return VALUE_MAX_DEFAULT;
    uint64_t chunk = kvp_json_max_u64(stat, "chunk_bytes");
    json_object_put(stat);
    return chunk > 0 ? chunk : VALUE_MAX_DEFAULT;
}

/* read_all reads fd to its end. TOO_LARGE beyond max, SYS with errno set. *value_out is returned to free. */
static int
read_all(int fd, uint64_t max, uint8_t **value_out, size_t *len_out)
{
    size_t cap = VALUE_FIRST_BYTES, len = 0;
    uint8_t *value = kvp_cli_alloc(cap, 1);
    for (;;) {
        if (len == cap) {
            cap *= 2;
            value = kvp_cli_realloc(value, cap, 1);
        }
        ssize_t n = read(fd, value + len, cap - len);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) break;
        if (n > 0) len += (size_t)n;
        if (n < 0 || len > max) {
            free(value);
            return n < 0 ? KVPOOL_SYS : KVPOOL_TOO_LARGE;
        }
    }
    *value_out = value;
    *len_out = len;
    return KVPOOL_OK;
}

static int
put_from(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, const char *key, int fd)
{
    uint8_t *value = NULL;
    size_t len = 0;
    int err = read_all(fd, value_max(pool), &value, &len);
    if (err == KVPOOL_SYS) return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "reading the value: %s", strerror(errno));
    if (err == KVPOOL_OK && len == 0) {
        free(value);
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s: the value is empty; values have at least one byte", key);
    }
    if (err == KVPOOL_OK) err = kvpool_put(pool, key, strlen(key), value, len, NULL);
    free(value);
    if (err != KVPOOL_OK) return fail_key(verb, common, key, err);
    say_bytes(common, key, len, stdout);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}

int
kvp_cli_put(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    const char *file = NULL;
    const kvp_cli_opt_t opts[] = {{"file", KVP_CLI_TEXT, &file, "FILE", "read this instead of standard input", 0, 0}};
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    int first, fd = STDIN_FILENO;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON) code = one_key(verb, argc, first);
    if (code != KVP_EXIT_GO_ON) return code;
    if (file != NULL) fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s: %s", file, strerror(errno));
    code = kvp_cli_open(verb, &common, &pool);
    if (code == KVP_EXIT_DONE) code = put_from(verb, &common, pool, argv[first], fd);
    kvpool_free(pool);
    if (fd != STDIN_FILENO) close(fd);
    return code;
}

/* ---- get ---- */

/* fetch gets the value into memory of the right size: the first guess saves small values a second message. */
static int
fetch(kvpool_t *pool, const char *key, uint8_t **value_out, size_t *len_out)
{
    size_t cap = VALUE_FIRST_BYTES, len = 0;
    uint8_t *value = kvp_cli_alloc(cap, 1);
    int err = KVPOOL_BUFFER_SMALL;
    for (int tries = 0; err == KVPOOL_BUFFER_SMALL && tries < GET_TRIES; tries++) {
        if (len > cap) {
            free(value);
            value = malloc(len);
            if (value == NULL) return KVPOOL_NOMEM;
            cap = len;
        }
        err = kvpool_get(pool, key, strlen(key), value, cap, &len, NULL);
    }
    if (err != KVPOOL_OK) {
        free(value);
        return err;
    }
    *value_out = value;
    *len_out = len;
    return KVPOOL_OK;
}

/* write_all writes to fd; a close that reports a late write error is one too. */
static int
write_all(const kvp_cli_verb_t *verb, int fd, const char *name, const uint8_t *value, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, value + at, len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "%s: %s", name, strerror(errno));
        at += (size_t)n;
    }
    if (close(fd) != 0) return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "%s: %s", name, strerror(errno));
    return KVP_EXIT_DONE;
}

int
kvp_cli_get(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    const char *file = NULL;
    const kvp_cli_opt_t opts[] = {
        {"file", KVP_CLI_TEXT, &file, "FILE", "write this instead of standard output; untouched on a miss", 0, 0}};
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    uint8_t *value = NULL;
    size_t len = 0;
    int first, fd = STDOUT_FILENO;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON) code = one_key(verb, argc, first);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    int err = fetch(pool, argv[first], &value, &len);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return fail_key(verb, &common, argv[first], err);
    if (file != NULL) fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s: %s", file, strerror(errno));
    else
        code = write_all(verb, fd, file != NULL ? file : "standard output", value, len);
    /* Standard output belongs to the bytes alone. */
    if (code == KVP_EXIT_DONE) say_bytes(&common, argv[first], len, stderr);
    free(value);
    return code;
}

/* ---- exists ---- */

static int
say_exists(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, char **keys, const int *found, int n)
{
    int code = KVP_EXIT_DONE;
    for (int i = 0; i < n; i++) {
        const int exit_code = found[i] < 0    ? kvp_cli_exit_code(found[i])
                              : found[i] == 0 ? KVP_EXIT_REFUSED
                                              : KVP_EXIT_DONE;
        if (exit_code > code) code = exit_code;
        if (found[i] < 0) {
            (void)fail_key(verb, common, keys[i], found[i]);
        } else if (common->is_json) {
            struct json_object *line = json_object_new_object();
            kvp_json_add_key(line, keys[i], strlen(keys[i]));
            json_object_object_add(line, "exists", json_object_new_boolean(found[i]));
            kvp_json_line(line, stdout);
        } else {
            char quoted[QUOTED_MAX];
            printf("%s %s\n", found[i] ? "yes" : "no ",
                   kvp_cli_quote(keys[i], strlen(keys[i]), quoted, sizeof(quoted)));
        }
    }
    return kvp_cli_flush(verb, code);
}

int
kvp_cli_exists(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    int first;
    int code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON && first == argc) code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "a key is missing");
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const int n = argc - first;
    kvpool_key_t *keys = kvp_cli_alloc((size_t)n, sizeof(*keys));
    int *found = kvp_cli_alloc((size_t)n, sizeof(*found));
    for (int i = 0; i < n; i++)
        keys[i] = (kvpool_key_t){argv[first + i], strlen(argv[first + i])};
    int err = kvpool_batch_is_exist(pool, keys, (size_t)n, NULL, found);
    code = err != KVPOOL_OK ? kvp_cli_fail(verb, "exists", err) : say_exists(verb, &common, argv + first, found, n);
    free(found);
    free(keys);
    kvpool_free(pool);
    return code;
}

/* ---- rm ---- */

typedef struct {
    const char *regex;
    bool is_all;
    bool is_force;
} rm_conf_t;

static int
rm_keys(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, const kvpool_opts_t *opts,
        char **keys, int n)
{
    int code = KVP_EXIT_DONE;
    for (int i = 0; i < n; i++) {
        int err = kvpool_remove(pool, keys[i], strlen(keys[i]), opts);
        if (err != KVPOOL_OK) {
            int exit_code = fail_key(verb, common, keys[i], err);
            if (exit_code > code) code = exit_code;
        } else if (common->is_json) {
            struct json_object *line = json_object_new_object();
            kvp_json_add_key(line, keys[i], strlen(keys[i]));
            json_object_object_add(line, "removed", json_object_new_boolean(1));
            kvp_json_line(line, stdout);
        }
    }
    return kvp_cli_flush(verb, code);
}

static int
rm_many(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, const kvpool_opts_t *opts,
        const rm_conf_t *conf)
{
    uint64_t removed = 0, held = 0;
    int err = conf->is_all ? kvpool_remove_all(pool, opts, &removed, &held)
                           : kvpool_remove_by_regex(pool, conf->regex, opts, &removed, &held);
    if (err != KVPOOL_OK) return kvp_cli_fail(verb, conf->is_all ? "--all" : conf->regex, err);
    kvp_report_t *report = kvp_report_create();
    kvp_report_count(report, "removed", "removed", removed);
    kvp_report_count(report, "held", "held, and so kept", held);
    if (common->is_json)
        kvp_report_json(report, stdout);
    else
        kvp_report_table(report, stdout);
    kvp_report_destroy(report);
    return kvp_cli_flush(verb, held > 0 ? KVP_EXIT_REFUSED : KVP_EXIT_DONE);
}

int
kvp_cli_rm(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    rm_conf_t conf = {.regex = NULL};
    const kvp_cli_opt_t opts[] = {
        {"regex", KVP_CLI_TEXT, &conf.regex, "PATTERN", "every key that the PCRE2 pattern matches somewhere", 0, 0},
        {"all", KVP_CLI_FLAG, &conf.is_all, NULL, "every key", 0, 0},
        {"force", KVP_CLI_FLAG, &conf.is_force, NULL, "also what readers or reservations hold", 0, 0},
    };
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON && (first < argc) + (conf.regex != NULL) + conf.is_all != 1)
        code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "give keys, or --regex, or --all");
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const kvpool_opts_t force = {.struct_size = sizeof(force), .flags = conf.is_force ? KVPOOL_FORCE : 0};
    code = first < argc ? rm_keys(verb, &common, pool, &force, argv + first, argc - first)
                        : rm_many(verb, &common, pool, &force, &conf);
    kvpool_free(pool);
    return code;
}

/* ---- ls ---- */

typedef struct {
    bool is_long;
    bool is_json;
    uint64_t left; /* keys that may still be listed */
} ls_t;

static int
ls_one(void *arg, const void *key, size_t key_len, uint64_t len)
{
    ls_t *ls = arg;
    ls->left--;
    if (ls->is_json) {
        struct json_object *line = json_object_new_object();
        kvp_json_add_key(line, key, key_len);
        json_object_object_add(line, "size_bytes", json_object_new_uint64(len));
        kvp_json_line(line, stdout);
        return ferror(stdout);
    }
    char quoted[QUOTED_MAX];
    if (ls->is_long) printf("%12llu  ", (unsigned long long)len);
    puts(kvp_cli_quote(key, key_len, quoted, sizeof(quoted)));
    return ferror(stdout);
}

int
kvp_cli_ls(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    ls_t ls = {.left = UINT64_MAX};
    const kvp_cli_opt_t opts[] = {
        {"limit", KVP_CLI_U64, &ls.left, "N", "at most N keys", 0, 0},
        {"long", KVP_CLI_FLAG, &ls.is_long, NULL, "with the size of each value in bytes", 0, 0},
    };
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON && argc - first > 1) code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "one prefix only");
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const char *prefix = first < argc ? argv[first] : "";
    ls.is_json = common.is_json;
    uint64_t cursor = 0;
    int err = KVPOOL_OK;
    while (ls.left > 0 && !ferror(stdout)) {
        const uint32_t page = (uint32_t)kvp_min_u64(ls.left, LIST_PAGE);
        err = kvpool_list(pool, prefix, strlen(prefix), page, &cursor, ls_one, &ls, NULL);
        if (err != KVPOOL_OK || cursor == 0) break;
    }
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail(verb, "list", err);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
