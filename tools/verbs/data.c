/* SPDX-License-Identifier: Apache-2.0
 * The verbs get, exists and ls, which read the pool. A value, at most a chunk long, is in memory as a whole. */
#include "tools/verbs/key.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_FIRST_BYTES (64u << 10)
#define GET_TRIES 4
#define LIST_PAGE 1000u

/* ---- the verb get ---- */

/* Gets a value of unknown size. The get is repeated only if a larger value has replaced the value. */
int
kvp_cli_fetch(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts, uint8_t **value_out,
              size_t *len_out)
{
    size_t cap = VALUE_FIRST_BYTES, len = 0;
    uint8_t *value = kvp_cli_alloc(cap, 1);
    int err = KVPOOL_BUFFER_SMALL;
    (void)kvpool_size(pool, key, key_len, &len, NULL); /* no get is counted for this question */
    for (int tries = 0; err == KVPOOL_BUFFER_SMALL && tries < GET_TRIES; tries++) {
        if (len > cap) {
            free(value);
            value = malloc(len);
            if (value == NULL) return KVPOOL_NOMEM;
            cap = len;
        }
        err = kvpool_get(pool, key, key_len, value, cap, &len, opts);
    }
    if (err != KVPOOL_OK) {
        free(value);
        return err;
    }
    *value_out = value;
    *len_out = len;
    return KVPOOL_OK;
}

/* write_all writes the value to fd and closes it. An error of close is an error, too: a file system may report a
 * failed write only there. */
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
    if (code == KVP_EXIT_GO_ON) code = kvp_cli_one_key(verb, argc, first);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const kvpool_opts_t call = kvp_cli_call_opts(&common, 0);
    int err = kvp_cli_fetch(pool, argv[first], strlen(argv[first]), &call, &value, &len);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_key(verb, &common, argv[first], strlen(argv[first]), err);
    if (file != NULL) fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s: %s", file, strerror(errno));
    else
        code = write_all(verb, fd, file != NULL ? file : "standard output", value, len);
    /* the value's size goes to standard error, because standard output contains only the value */
    if (code == KVP_EXIT_DONE) kvp_cli_say_bytes(&common, argv[first], len, stderr);
    free(value);
    return code;
}

/* ---- the verb exists ---- */

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
            (void)kvp_cli_fail_key(verb, common, keys[i], strlen(keys[i]), found[i]);
        } else if (common->is_json) {
            struct json_object *line = json_object_new_object();
            kvp_json_add_key(line, keys[i], strlen(keys[i]));
            json_object_object_add(line, "exists", json_object_new_boolean(found[i]));
            kvp_json_line(line, stdout);
        } else {
            char quoted[KVP_CLI_QUOTED_MAX];
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
    const kvpool_opts_t call = kvp_cli_call_opts(&common, 0);
    int err = kvpool_batch_is_exist(pool, keys, (size_t)n, &call, found);
    code = err != KVPOOL_OK ? kvp_cli_fail_why(verb, &common, "exists", err)
                            : say_exists(verb, &common, argv + first, found, n);
    free(found);
    free(keys);
    kvpool_free(pool);
    return code;
}

/* ---- the verb ls ---- */

typedef struct {
    bool is_long;
    bool is_json;
    uint64_t left; /* number of keys that `kvpool ls` may still list */
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
    char quoted[KVP_CLI_QUOTED_MAX];
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
    common.state_only = common.masters_n == 1; /* a single named master is asked even if it does not lead */
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const char *prefix = first < argc ? argv[first] : "";
    ls.is_json = common.is_json;
    const kvpool_opts_t call = kvp_cli_call_opts(&common, 0);
    uint64_t cursor = 0;
    int err = KVPOOL_OK;
    while (ls.left > 0 && !ferror(stdout)) {
        const uint32_t page = (uint32_t)kvp_min_u64(ls.left, LIST_PAGE);
        err = kvpool_list(pool, prefix, strlen(prefix), page, &cursor, ls_one, &ls, &call);
        if (err != KVPOOL_OK || cursor == 0) break;
    }
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "list", err);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
