/* SPDX-License-Identifier: Apache-2.0
 * Helpers for JSON output. Keys are any bytes and JSON is UTF-8. So a key that is not UTF-8 is written in
 * hexadecimal under another member name, which no reader can confuse with a plain key. */
#include "tools/base/json_out.h"

#include "tools/base/cli.h"
#include "common/utf8.h"

#include <stdlib.h>
#include <string.h>

#define STAT_FIRST_BYTES 65536u
#define STAT_MAX_BYTES (64u << 20)

void
kvp_json_add_key(struct json_object *to, const void *key, size_t len)
{
    if (kvp_is_utf8(key, len)) {
        json_object_object_add(to, "key", json_object_new_string_len(key, (int)len));
        return;
    }
    char hex[2 * KVPOOL_KEY_MAX + 1];
    const size_t n = kvp_min_u64(len, KVPOOL_KEY_MAX);
    for (size_t i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)key)[i]);
    json_object_object_add(to, "key_hex", json_object_new_string_len(hex, (int)(2 * n)));
}

void
kvp_json_line(struct json_object *taken, FILE *to)
{
    fprintf(to, "%s\n", json_object_to_json_string_ext(taken, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(taken);
}

static void
read_path(struct json_object *from, kvp_json_path_t *path)
{
    snprintf(path->name, sizeof(path->name), "%s", kvp_json_get_text(from, "name"));
    path->reads = kvp_json_find_u64(from, "reads");
    path->read_bytes = kvp_json_find_u64(from, "read_bytes");
    path->writes = kvp_json_find_u64(from, "writes");
    path->written_bytes = kvp_json_find_u64(from, "written_bytes");
    path->work_requests = kvp_json_find_u64(from, "work_requests");
    path->doorbells = kvp_json_find_u64(from, "doorbells");
    path->signaled_completions = kvp_json_find_u64(from, "signaled_completions");
    path->system_calls = kvp_json_find_u64(from, "system_calls");
}

size_t
kvp_json_paths(struct json_object *stat, kvp_json_path_t *paths_out, size_t max)
{
    struct json_object *list;
    const size_t n = kvp_min_u64(kvp_json_get_list(kvp_json_get(stat, "client"), "transports", &list), max);
    for (size_t i = 0; i < n; i++)
        read_path(json_object_array_get_idx(list, i), &paths_out[i]);
    return n;
}

int
kvp_json_stat(kvpool_t *pool, uint32_t flags, struct json_object **stat_out)
{
    const kvpool_opts_t opts = {.struct_size = sizeof opts, .flags = flags};
    size_t cap = STAT_FIRST_BYTES, len = 0;
    char *text = kvp_cli_alloc(cap, 1);
    int err = kvpool_stat(pool, text, cap, &len, &opts);
    /* The pool's answer may grow between two calls, so the call is repeated with a larger buffer, a limited number
     * of times. */
    for (int tries = 0; err == KVPOOL_BUFFER_SMALL && tries < 4 && len < STAT_MAX_BYTES; tries++) {
        cap = len + len / 4 + 1;
        text = kvp_cli_realloc(text, cap, 1);
        err = kvpool_stat(pool, text, cap, &len, &opts);
    }
    if (err == KVPOOL_OK) {
        *stat_out = json_tokener_parse(text);
        if (*stat_out == NULL) err = KVPOOL_INTERNAL;
    }
    free(text);
    return err;
}
