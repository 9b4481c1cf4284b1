/* SPDX-License-Identifier: Apache-2.0
 * See asked.h. */
#include "conductor/router/asked.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#define EXCLUDE_MAX 64u

bool
kvp_asked_read_names(json_object *in, kvp_asked_t *q, char why[160])
{
    if (!json_object_is_type(in, json_type_object)) {
        snprintf(why, 160, "the body is not an object");
        return false;
    }
    return kvp_json_text(in, "model", NULL, q->model, KVP_NAME_TEXT_MAX, why) && kvp_json_lora(in, q->lora, why) &&
           kvp_json_text(in, "tenant_id", "default", q->tenant, KVP_NAME_TEXT_MAX, why) &&
           kvp_json_text(in, "instance_id", "", q->instance, KVP_NAME_TEXT_MAX, why);
}

bool
kvp_asked_read(json_object *in, kvp_asked_t *q, char why[160])
{
    bool is_ok = kvp_asked_read_names(in, q, why) && kvp_json_salt(in, q->salt, why) &&
                 kvp_json_text(in, "session_id", "", q->session, KVP_SESSION_NAME_MAX, why) &&
                 kvp_json_text(in, "role", "", q->role, KVP_NAME_TEXT_MAX, why);
    if (is_ok && json_object_object_get_ex(in, "block_size", NULL))
        is_ok = kvp_json_u32(in, "block_size", UINT64_MAX, 1, KVP_TOKENS_MAX, &q->block_size, why);
    if (!is_ok) return false;
    if (q->role[0] != '\0' && strcmp(q->role, "prefill") != 0 && strcmp(q->role, "decode") != 0) {
        snprintf(why, 160, "role is neither prefill nor decode");
        return false;
    }
    if (!json_object_object_get_ex(in, "exclude", &q->exclude)) return true;
    is_ok = json_object_is_type(q->exclude, json_type_array) && json_object_array_length(q->exclude) <= EXCLUDE_MAX;
    for (size_t i = 0; is_ok && i < json_object_array_length(q->exclude); i++)
        is_ok = json_object_is_type(json_object_array_get_idx(q->exclude, i), json_type_string);
    if (!is_ok) snprintf(why, 160, "exclude is no array of at most %u names of instances", EXCLUDE_MAX);
    return is_ok;
}

bool
kvp_asked_may_serve(const kvp_asked_t *q, const kvp_roster_row_t *m)
{
    for (size_t i = 0; q->exclude != NULL && i < json_object_array_length(q->exclude); i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(q->exclude, i));

        if (strcmp(name, m->instance) == 0 || (m->url[0] != '\0' && strcmp(name, m->url) == 0)) return false;
    }
    return q->role[0] == '\0' || m->role[0] == '\0' || strcmp(m->role, "both") == 0 || strcmp(m->role, q->role) == 0;
}
