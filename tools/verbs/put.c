/* SPDX-License-Identifier: Apache-2.0
 * The verb put: stores one value from standard input or a file. The value is held in memory as a whole; its size
 * is at most the pool's chunk size. */
#include "tools/verbs/key.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"

#include "common/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_FIRST_BYTES (64u << 10)
#define VALUE_MAX_DEFAULT (256ull << 20) /* limit of a value's size if no node reports its chunk size */
#define REPLICAS_MAX 8u
#define MEMBERS_MAX 4096u

typedef struct {
    const char *file;
    const char *pin;
    const char *group_text;
    uint64_t replicas;
    bool is_upsert;
    bool waits;

    kvpool_group_t group; /* the group that was parsed from group_text */
    kvpool_opts_t opts;
} put_t;

/* ---- parsing of options ---- */

/* read_group parses NAME/MEMBERS/NUMBER from the end, because the name may contain slashes. The name is borrowed. */
static kvp_err_t
read_group(const char *text, kvpool_group_t *group_out)
{
    char members[8];
    uint64_t members_n, number;
    const char *last = strrchr(text, '/');
    const char *mid = last == NULL ? NULL : memrchr(text, '/', (size_t)(last - text));
    const size_t members_len = mid == NULL ? 0 : (size_t)(last - mid - 1);
    if (mid == NULL || members_len >= sizeof(members)) return KVP_INVALID;
    memcpy(members, mid + 1, members_len);
    members[members_len] = '\0';
    if (kvp_parse_u64(members, &members_n) != KVP_OK || kvp_parse_u64(last + 1, &number) != KVP_OK) return KVP_INVALID;
    if (mid == text || mid - text > KVPOOL_KEY_MAX || members_n > MEMBERS_MAX) return KVP_INVALID;
    if (members_n == 0 ? number > 0 : number >= members_n) return KVP_INVALID;
    *group_out = (kvpool_group_t){
        .id = {text, (size_t)(mid - text)},
        .members = (uint32_t)members_n,
        .member = (uint32_t)number,
    };
    return KVP_OK;
}

static kvp_err_t
read_pin(const char *text, uint32_t *flag_out)
{
    if (strcmp(text, "soft") != 0 && strcmp(text, "hard") != 0) return KVP_INVALID;
    *flag_out = strcmp(text, "soft") == 0 ? KVPOOL_PIN_SOFT : KVPOOL_PIN_HARD;
    return KVP_OK;
}

/* make_opts converts the command line to the library's options. */
static int
make_opts(const kvp_cli_verb_t *verb, kvp_cli_common_t *common, put_t *put)
{
    uint32_t pin = 0;
    if (put->pin != NULL && read_pin(put->pin, &pin) != KVP_OK)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--pin does not take \"%s\", but soft or hard", put->pin);
    if (put->group_text != NULL && read_group(put->group_text, &put->group) != KVP_OK)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE,
                                "--group does not take \"%s\", but NAME/MEMBERS/NUMBER: at most %u members, numbered "
                                "from 0; with 0 members the number is 0",
                                put->group_text, MEMBERS_MAX);
    if (put->waits && !put->is_upsert)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--wait waits for the old value to be gone: with --upsert only");
    put->opts = kvp_cli_call_opts(common, pin | (put->is_upsert ? KVPOOL_UPSERT : KVPOOL_REPORT_ALREADY) |
                                              (put->waits ? KVPOOL_WAIT : 0));
    put->opts.replicas = (uint32_t)put->replicas;
    return KVP_EXIT_GO_ON;
}

/* ---- reading and storing the value ---- */

static uint64_t
value_max(kvpool_t *pool)
{
    struct json_object *stat;
    if (kvp_json_stat(pool, 0, &stat) != KVPOOL_OK) return VALUE_MAX_DEFAULT;
    uint64_t chunk = kvp_json_max_u64(stat, "chunk_bytes");
    json_object_put(stat);
    return chunk > 0 ? chunk : VALUE_MAX_DEFAULT;
}

/* read_all reads fd to its end. TOO_LARGE if there are more than max bytes, SYS with errno set. The caller frees
 * *value_out. */
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

/* store_value puts the value as a batch of one, because only the batch call supports groups. */
static int
store_value(kvpool_t *pool, const put_t *put, const char *key, uint8_t *value, size_t len)
{
    kvpool_iov_t iov = {value, len};
    kvpool_item_t item = {.key = {key, strlen(key)}, .iov = &iov, .iov_n = 1};
    int result = KVPOOL_OK;
    if (put->group_text != NULL) item.group = &put->group;
    int err = kvpool_register(pool, value, len);
    if (err != KVPOOL_OK) return err;
    err = kvpool_batch_put(pool, &item, 1, &put->opts, &result);
    if (err == KVPOOL_OK) err = result;
    int undone = kvpool_unregister(pool, value);
    return err != KVPOOL_OK ? err : undone;
}

/* say_put prints whether this value was stored, or the key already had a value, and the size of the present value. */
static int
say_put(const kvp_cli_verb_t *verb, kvp_cli_common_t *common, kvpool_t *pool, const char *key, size_t len,
        bool is_already)
{
    char quoted[KVP_CLI_QUOTED_MAX], size[32] = "";
    const kvpool_opts_t opts = kvp_cli_call_opts(common, 0);
    /* An earlier value may have been evicted or removed since the put, so its size may be unknown. */
    const bool has_size = !is_already || kvpool_size(pool, key, strlen(key), &len, &opts) == KVPOOL_OK;
    if (common->is_json) {
        struct json_object *line = json_object_new_object();
        kvp_json_add_key(line, key, strlen(key));
        json_object_object_add(line, "stored", json_object_new_boolean(!is_already));
        json_object_object_add(line, "already", json_object_new_boolean(is_already));
        if (has_size) json_object_object_add(line, "size_bytes", json_object_new_uint64(len));
        kvp_json_line(line, stdout);
    }
    if (!is_already) return kvp_cli_flush(verb, KVP_EXIT_DONE);
    if (has_size) snprintf(size, sizeof(size), " of %zu bytes", len);
    kvp_cli_complain(verb, KVP_EXIT_DONE, "%s: the key has a value%s already, which stays; --upsert replaces it",
                     kvp_cli_quote(key, strlen(key), quoted, sizeof(quoted)), size);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}

static int
put_from(const kvp_cli_verb_t *verb, kvp_cli_common_t *common, kvpool_t *pool, const put_t *put, const char *key,
         int fd)
{
    uint8_t *value = NULL;
    size_t len = 0;
    int err = read_all(fd, value_max(pool), &value, &len);
    if (err == KVPOOL_SYS) return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "reading the value: %s", strerror(errno));
    if (err == KVPOOL_OK && len == 0) {
        free(value);
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s: the value is empty; values have at least one byte", key);
    }
    if (err == KVPOOL_OK) err = store_value(pool, put, key, value, len);
    free(value);
    if (err != KVPOOL_OK && err != KVPOOL_ALREADY) return kvp_cli_fail_key(verb, common, key, strlen(key), err);
    return say_put(verb, common, pool, key, len, err == KVPOOL_ALREADY);
}

/* ---- the verb put ---- */

int
kvp_cli_put(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    put_t put = {.replicas = 1};
    const kvp_cli_opt_t opts[] = {
        {"file", KVP_CLI_TEXT, &put.file, "FILE", "read this instead of standard input", 0, 0},
        {"upsert", KVP_CLI_FLAG, &put.is_upsert, NULL, "replace a present value", 0, 0},
        {"wait", KVP_CLI_FLAG, &put.waits, NULL, "with --upsert: until nobody can get the old value any more", 0, 0},
        {"replicas", KVP_CLI_U64, &put.replicas, "N",
         "copies, each on a host of its own, or a node where hosts are fewer (default 1)", 1, REPLICAS_MAX},
        {"pin", KVP_CLI_TEXT, &put.pin, "KIND", "soft: evicted after all that is not pinned; hard: never", 0, 0},
        {"group", KVP_CLI_TEXT, &put.group_text, "NAME/MEMBERS/NUMBER",
         "this is member NUMBER, from 0 on, of so many: found once all are there, evicted together (MEMBERS 0: evicted "
         "together, no more)",
         0, 0},
    };
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    int first, fd = STDIN_FILENO;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON) code = kvp_cli_one_key(verb, argc, first);
    if (code == KVP_EXIT_GO_ON) code = make_opts(verb, &common, &put);
    if (code != KVP_EXIT_GO_ON) return code;
    if (put.file != NULL) fd = open(put.file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s: %s", put.file, strerror(errno));
    code = kvp_cli_open(verb, &common, &pool);
    if (code == KVP_EXIT_DONE) code = put_from(verb, &common, pool, &put, argv[first], fd);
    kvpool_free(pool);
    if (fd != STDIN_FILENO) close(fd);
    return code;
}
