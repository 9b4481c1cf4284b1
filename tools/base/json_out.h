/* SPDX-License-Identifier: Apache-2.0
 * Small helpers around json-c: keys as JSON, output of one object on a line, and access to members of an answer. */
#ifndef KVP_TOOLS_BASE_JSON_OUT_H
#define KVP_TOOLS_BASE_JSON_OUT_H

#include "client/kvpool.h"
#include "common/base.h"

#include <json-c/json.h>

#include <stdio.h>

/* kvp_json_add_key adds the key as the member "key", or in hexadecimal as "key_hex" if its bytes are not UTF-8. */
void kvp_json_add_key(struct json_object *to, const void *key, size_t len);

/* kvp_json_line prints the object on one line and releases it. */
void kvp_json_line(struct json_object *taken, FILE *to);

/* kvp_json_get, kvp_json_get_text and kvp_json_get_u64 return a member of an object; NULL, "" or 0 if there is
 * none. kvp_json_get_list returns the length of a member that is an array, else 0; *list_out is borrowed. */
struct json_object *kvp_json_get(struct json_object *of, const char *name);
const char *kvp_json_get_text(struct json_object *of, const char *name);
uint64_t kvp_json_get_u64(struct json_object *of, const char *name);
size_t kvp_json_get_list(struct json_object *of, const char *name, struct json_object **list_out);

/* kvp_json_pick returns a list of new objects, which have only the named members of each row. The caller owns the list.
 */
struct json_object *kvp_json_pick(struct json_object *rows, const char *const *names, size_t n);

/* kvp_json_find_u64 returns the member with that name of the object itself, or else the first nonzero one of its
 * nested objects (not in arrays); 0 if there is none. */
uint64_t kvp_json_find_u64(struct json_object *in, const char *name);

/* kvp_json_max_u64 returns the greatest number with that name in the object and all nested objects and arrays. */
uint64_t kvp_json_max_u64(struct json_object *in, const char *name);

/* Counters of a pool handle's traffic over one transport. */
typedef struct {
    char name[16];
    uint64_t reads, read_bytes, writes, written_bytes;
    /* RDMA counters; 0 if the transport does not count them */
    uint64_t work_requests, doorbells, signaled_completions, system_calls;
} kvp_json_path_t;

/* kvp_json_paths reads the handle's transports, at most max, from the pool's figures. It returns their number. */
size_t kvp_json_paths(struct json_object *stat, kvp_json_path_t *paths_out, size_t max);

/* kvp_json_stat requests the pool's figures; flags: 0, or KVPOOL_CURVES and others of kvpool_stat. The caller releases
 * *stat_out with json_object_put. */
int kvp_json_stat(kvpool_t *pool, uint32_t flags, struct json_object **stat_out);

#endif
