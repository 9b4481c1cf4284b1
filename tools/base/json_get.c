/* SPDX-License-Identifier: Apache-2.0
 * Access to the members of a JSON object. See json_out.h. */
#include "tools/base/json_out.h"

#include <string.h>

struct json_object *
kvp_json_get(struct json_object *of, const char *name)
{
    struct json_object *found;
    return json_object_object_get_ex(of, name, &found) ? found : NULL;
}

const char *
kvp_json_get_text(struct json_object *of, const char *name)
{
    const char *text = json_object_get_string(kvp_json_get(of, name));
    return text == NULL ? "" : text;
}

uint64_t
kvp_json_get_u64(struct json_object *of, const char *name)
{
    return json_object_get_uint64(kvp_json_get(of, name));
}

size_t
kvp_json_get_list(struct json_object *of, const char *name, struct json_object **list_out)
{
    *list_out = kvp_json_get(of, name);
    return json_object_is_type(*list_out, json_type_array) ? json_object_array_length(*list_out) : 0;
}

uint64_t
kvp_json_find_u64(struct json_object *in, const char *name)
{
    struct json_object *found;
    if (!json_object_is_type(in, json_type_object)) return 0;
    if (json_object_object_get_ex(in, name, &found)) return json_object_get_uint64(found);
    json_object_object_foreach(in, key, member)
    {
        (void)key;
        uint64_t value = kvp_json_find_u64(member, name);
        if (value != 0) return value;
    }
    return 0;
}

uint64_t
kvp_json_max_u64(struct json_object *in, const char *name)
{
    uint64_t max = 0;
    if (json_object_is_type(in, json_type_array))
        for (size_t i = 0; i < json_object_array_length(in); i++)
            max = kvp_max_u64(max, kvp_json_max_u64(json_object_array_get_idx(in, i), name));
    if (!json_object_is_type(in, json_type_object)) return max;
    json_object_object_foreach(in, key, member)
    {
        const bool is_it = strcmp(key, name) == 0;
        max = kvp_max_u64(max, is_it ? json_object_get_uint64(member) : kvp_json_max_u64(member, name));
    }
    return max;
}

struct json_object *
kvp_json_pick(struct json_object *rows, const char *const *names, size_t n)
{
    struct json_object *picked = json_object_new_array();
    const size_t rows_n = json_object_is_type(rows, json_type_array) ? json_object_array_length(rows) : 0;

    for (size_t i = 0; i < rows_n; i++) {
        struct json_object *row = json_object_new_object();

        for (size_t c = 0; c < n; c++)
            json_object_object_add(row, names[c],
                                   json_object_get(kvp_json_get(json_object_array_get_idx(rows, i), names[c])));
        json_object_array_add(picked, row);
    }
    return picked;
}
