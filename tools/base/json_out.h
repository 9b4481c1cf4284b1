/* SPDX-License-Identifier: Apache-2.0
 * Small helpers around json-c: a key as JSON, one object a line, and members of an answer.
 */
#ifndef KVP_TOOLS_BASE_JSON_OUT_H
#define KVP_TOOLS_BASE_JSON_OUT_H

#include "client/kvpool.h"
#include "common/base.h"

#include <json-c/json.h>

#include <stdio.h>

/* kvp_json_add_key adds the member "key", or "key_hex" where the bytes are not UTF-8. */
void kvp_json_add_key(struct json_object *to, const void *key, size_t len);

/* kvp_json_line writes the object on one line and releases it. */
void kvp_json_line(struct json_object *taken, FILE *to);

/* kvp_json_get, kvp_json_get_text and kvp_json_get_u64 return a member of an object: NULL, "" or 0
 * without one. kvp_json_get_list returns the length of a member that is an array, else 0; *list_out
 * is borrowed. */
struct json_object *kvp_json_get(struct json_object *of, const char *name);
const char *kvp_json_get_text(struct json_object *of, const char *name);
uint64_t kvp_json_get_u64(struct json_object *of, const char *name);
size_t kvp_json_get_list(struct json_object *of, const char *name, struct json_object **list_out);

/* kvp_json_find_u64 looks for a number of that name, the outermost first; 0 where there is none. */
uint64_t kvp_json_find_u64(struct json_object *in, const char *name);

/* kvp_json_max_u64 is the greatest number of the name anywhere inside; 0 without one. */
uint64_t kvp_json_max_u64(struct json_object *in, const char *name);

/* The traffic of a handle by one transport. */
typedef struct {
    char name[16];
    uint64_t reads, read_bytes, writes, written_bytes;
    uint64_t work_requests, doorbells, signaled_completions, system_calls; /* 0 where they are not counted */
} kvp_json_path_t;

/* kvp_json_paths reads the handle's part of the figures: up to max transports. Returns how many. */
size_t kvp_json_paths(struct json_object *stat, kvp_json_path_t *paths_out, size_t max);

/* kvp_json_stat asks the pool for its figures. *stat_out is returned to json_object_put. */
int kvp_json_stat(kvpool_t *pool, struct json_object **stat_out);

#endif
