/* SPDX-License-Identifier: Apache-2.0
 * See registration.h. */
#include "conductor/base/registration.h"

#include "common/parse.h"
#include "conductor/base/event.h"
#include "conductor/base/url.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

/* ---- reading fields of a JSON object */
static json_object *
find_member(json_object *in, const char *name)
{
    json_object *value = NULL;

    return json_object_object_get_ex(in, name, &value) ? value : NULL;
}

static bool
is_plain(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == '"' || *text == '\\' || *text == 0x7f) return false;
    return true;
}

bool
kvp_json_text(json_object *in, const char *name, const char *fallback, char *out, size_t max, char why[160])
{
    json_object *value = find_member(in, name);
    const char *text = fallback;

    if (value != NULL && !json_object_is_type(value, json_type_string)) {
        snprintf(why, 160, "%s is not a string", name);
        return false;
    }
    if (value != NULL) text = json_object_get_string(value);
    if (text == NULL || (fallback == NULL && text[0] == '\0')) {
        snprintf(why, 160, "%s is missing", name);
        return false;
    }
    if (strlen(text) > max || (value != NULL && (size_t)json_object_get_string_len(value) != strlen(text)) ||
        !is_plain(text)) {
        snprintf(why, 160, "%s has more than %zu bytes, or a quote, a backslash or a control character", name, max);
        return false;
    }
    strcpy(out, text);
    return true;
}

bool
kvp_json_u32(json_object *in, const char *name, uint64_t fallback, uint32_t min, uint32_t max, uint32_t *out,
             char why[160])
{
    json_object *value = find_member(in, name);
    int64_t number = (int64_t)fallback;

    if (value == NULL && fallback > max) {
        snprintf(why, 160, "%s is missing", name);
        return false;
    }
    if (value != NULL) number = json_object_is_type(value, json_type_int) ? json_object_get_int64(value) : -1;
    if (number < min || number > max) {
        snprintf(why, 160, "%s is not a whole number from %u to %u", name, min, max);
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

bool
kvp_json_lora(json_object *in, char out[KVP_NAME_TEXT_MAX + 1], char why[160])
{
    json_object *id = find_member(in, "lora_id");

    if (!kvp_json_text(in, "lora_name", "", out, KVP_NAME_TEXT_MAX, why)) return false;
    if (id == NULL) return true;
    if (out[0] != '\0') {
        snprintf(why, 160, "lora_name and the deprecated lora_id are both given");
        return false;
    }
    if (!json_object_is_type(id, json_type_int) || json_object_get_int64(id) < 0) {
        snprintf(why, 160, "lora_id is not a whole number");
        return false;
    }
    snprintf(out, KVP_NAME_TEXT_MAX + 1, "%lld", (long long)json_object_get_int64(id));
    return true;
}

bool
kvp_json_salt(json_object *in, char out[KVP_NAME_TEXT_MAX + 1], char why[160])
{
    const size_t tag = sizeof KVP_SALT_TAG - 1;

    if (!kvp_json_text(in, "cache_salt", "", out, KVP_NAME_TEXT_MAX, why)) return false;
    if (strncmp(out, KVP_SALT_TAG, tag) == 0) memmove(out, out + tag, strlen(out) - tag + 1);
    return true;
}

/* ---- reading and writing a registration */
static bool
read_key(json_object *in, kvp_registration_t *r, char why[160])
{
    const bool is_shared = json_object_get_boolean(find_member(in, "shared"));

    return kvp_json_text(in, "instance_id", NULL, r->instance, KVP_NAME_TEXT_MAX, why) &&
           kvp_json_text(in, "tenant_id", "default", r->tenant, KVP_NAME_TEXT_MAX, why) &&
           kvp_json_u32(in, "dp_rank", is_shared ? 0 : UINT64_MAX, 0, KVP_RANK_MAX, &r->rank, why);
}

static bool
read_backends(json_object *in, kvp_registration_t *r, char why[160])
{
    json_object *list = find_member(in, "backends");

    if (list == NULL) return true;
    if (!json_object_is_type(list, json_type_array) || json_object_array_length(list) > KVP_BACKENDS_MAX ||
        r->is_shared) {
        snprintf(why, 160, "backends is not an array of at most %u, or of one that is shared itself", KVP_BACKENDS_MAX);
        return false;
    }
    for (; r->backends_n < json_object_array_length(list); r->backends_n++) {
        kvp_backend_name_t *b = &r->backends[r->backends_n];
        json_object *one = json_object_array_get_idx(list, r->backends_n);

        if (!json_object_is_type(one, json_type_object)) {
            snprintf(why, 160, "a backend is not an object");
            return false;
        }
        if (!kvp_json_text(one, "backend_id", "kvpool", b->backend, KVP_NAME_TEXT_MAX, why) ||
            !kvp_json_text(one, "key_prefix", NULL, b->prefix, KVP_URL_TEXT_MAX, why) ||
            !kvp_json_u32(one, "ranks", 1, 1, KVP_PARTS_MAX, &b->ranks, why))
            return false;
        if (b->backend[0] == '\0') {
            snprintf(why, 160, "a backend_id is empty");
            return false;
        }
    }
    return true;
}

/* Reads the fields beside the key. A publisher of a pool's events (`shared`) has no model, block size and rank of
 * its own. */
static bool
read_rest(json_object *in, kvp_registration_t *r, char why[160])
{
    json_object *shared = find_member(in, "shared");

    if (shared != NULL && !json_object_is_type(shared, json_type_boolean)) {
        snprintf(why, 160, "shared is neither true nor false");
        return false;
    }
    r->is_shared = json_object_get_boolean(shared);
    if (!kvp_json_text(in, "endpoint", NULL, r->endpoint, KVP_URL_TEXT_MAX, why) ||
        !kvp_json_text(in, "replay_endpoint", "", r->replay_endpoint, KVP_URL_TEXT_MAX, why) ||
        !kvp_json_text(in, "type", NULL, r->type, KVP_NAME_TEXT_MAX, why) ||
        !kvp_json_text(in, "modelname", r->is_shared ? "" : NULL, r->model, KVP_NAME_TEXT_MAX, why) ||
        !kvp_json_lora(in, r->lora, why) ||
        !kvp_json_u32(in, "block_size", r->is_shared ? 1 : UINT64_MAX, 1, KVP_TOKENS_MAX, &r->block_size, why) ||
        !kvp_json_text(in, "additionalsalt", "", r->salt, KVP_NAME_TEXT_MAX, why) ||
        !kvp_json_text(in, "url", "", r->url, KVP_URL_TEXT_MAX, why) ||
        !kvp_json_text(in, "role", "", r->role, KVP_NAME_TEXT_MAX, why) || !read_backends(in, r, why))
        return false;
    if (!kvp_is_zmq_endpoint(r->endpoint) ||
        (r->replay_endpoint[0] != '\0' && !kvp_is_zmq_endpoint(r->replay_endpoint))) {
        snprintf(why, 160, "an endpoint is neither tcp://HOST:PORT nor ipc://NAME");
        return false;
    }
    if (r->url[0] != '\0' && kvp_base_url(r->url, strlen(r->url), r->url, sizeof r->url) != KVP_OK) {
        snprintf(why, 160, "url is not http://HOST:PORT");
        return false;
    }
    if (r->role[0] != '\0' && strcmp(r->role, "prefill") != 0 && strcmp(r->role, "decode") != 0 &&
        strcmp(r->role, "both") != 0) {
        snprintf(why, 160, "role is none of prefill, decode and both");
        return false;
    }
    return true;
}

bool
kvp_registration_read(json_object *in, bool key_only, kvp_registration_t *out, char why[160])
{
    memset(out, 0, sizeof *out);
    if (!json_object_is_type(in, json_type_object)) {
        snprintf(why, 160, "the body is not an object");
        return false;
    }
    return read_key(in, out, why) && (key_only || read_rest(in, out, why));
}

void
kvp_registration_write(const kvp_registration_t *r, kvp_jsonw_t *w)
{
    kvp_jsonw_text(w, "endpoint", r->endpoint);
    kvp_jsonw_text(w, "replay_endpoint", r->replay_endpoint);
    kvp_jsonw_text(w, "type", r->type);
    kvp_jsonw_text(w, "modelname", r->model);
    kvp_jsonw_text(w, "lora_name", r->lora);
    kvp_jsonw_text(w, "tenant_id", r->tenant);
    kvp_jsonw_text(w, "instance_id", r->instance);
    kvp_jsonw_u64(w, "block_size", r->block_size);
    kvp_jsonw_u64(w, "dp_rank", r->rank);
    kvp_jsonw_text(w, "additionalsalt", r->salt);
    kvp_jsonw_text(w, "url", r->url);
    kvp_jsonw_text(w, "role", r->role);
    if (r->is_shared) kvp_jsonw_bool(w, "shared", true);
    if (r->backends_n == 0) return;
    kvp_jsonw_open(w, "backends", '[');
    for (uint32_t i = 0; i < r->backends_n; i++) {
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "backend_id", r->backends[i].backend);
        kvp_jsonw_text(w, "key_prefix", r->backends[i].prefix);
        kvp_jsonw_u64(w, "ranks", r->backends[i].ranks);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

bool
kvp_registration_is_same_key(const kvp_registration_t *a, const kvp_registration_t *b)
{
    return a->rank == b->rank && strcmp(a->instance, b->instance) == 0 && strcmp(a->tenant, b->tenant) == 0;
}
