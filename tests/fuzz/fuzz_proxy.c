/* SPDX-License-Identifier: Apache-2.0
 * What clients and servers send the proxy and the router. The first byte says what the rest is: a body (what is taken
 * makes copies, and a question for the router, that are JSON again, with the fields of it, and no other reader of JSON
 * finds in them a field that a copy drops), or a server's metrics. */
#include "conductor/proxy/copies.h"
#include "conductor/proxy/question.h"
#include "conductor/router/load.h"
#include "proto/connkey.h"
#include "tests/fuzz/fuzz_check.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What another reader of JSON finds in a copy. It ends a name at a zero, so it is not asked about names with one. */
static void
read_copy(const kvp_buf_t *copy, bool is_prefill, bool has_params)
{
    static const char *const changed[] = {"max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of"};
    json_tokener *tokener = json_tokener_new_ex(2 * (int)KVP_BODY_DEPTH_MAX);
    json_object *root, *value;

    check(tokener != NULL && copy->err == KVP_OK);
    root = json_tokener_parse_ex(tokener, (const char *)copy->data, (int)copy->len);
    if (json_object_is_type(root, json_type_object)) {
        const bool is_there = json_object_object_get_ex(root, "kv_transfer_params", &value);

        check(is_there == has_params && (!is_there || json_object_get_int(value) == 77));
        for (size_t i = 0; is_prefill && i < KVP_ARRAY_LEN(changed); i++)
            check(!json_object_object_get_ex(root, changed[i], &value) || json_object_get_int(value) == 1);
        if (is_prefill) {
            check(json_object_object_get_ex(root, "stream", &value) && !json_object_get_boolean(value));
            check(!json_object_object_get_ex(root, "stream_options", &value));
            check(!json_object_object_get_ex(root, "use_beam_search", &value));
        }
    }
    json_object_put(root);
    json_tokener_free(tokener);
}

/* No copy has a field that it drops, however its sender wrote the name, nor a second one of a field that it sets. */
static void
copies(const kvp_body_t *in)
{
    static const char zero[] = "\\u0000";
    kvp_buf_t copy;

    (void)kvp_has_several_prompts(in);
    (void)kvp_has_several_choices(in);
    kvp_buf_init(&copy, 0);
    for (uint32_t i = 0; i < 4; i++) {
        const char *params = (i & 1) != 0 ? "77" : NULL;

        kvp_buf_reset(&copy);
        if ((i & 2) != 0)
            kvp_copy_for_prefill(in, params, &copy);
        else
            kvp_copy_for_decode(in, params, &copy);
        if (memmem(copy.data, copy.len, zero, sizeof zero - 1) == NULL) read_copy(&copy, (i & 2) != 0, params != NULL);
    }
    kvp_buf_fini(&copy);
}

static void
body(const char *text, size_t len)
{
    static const char *const none[] = {NULL}, *const some[] = {"stream", "max_tokens", NULL};
    static kvp_server_rank_t ranks[KVP_FLEET_RANKS_MAX];
    static kvp_body_t in, out;
    const char *why = NULL, *value;
    kvp_routed_t told;
    size_t value_len;
    kvp_buf_t copy;

    if (!kvp_body_read(text, len, &in, &why)) {
        check(why != NULL);
        return;
    }
    copies(&in);
    kvp_buf_init(&copy, 0);
    kvp_body_copy(&in, none, "", &copy);
    check(kvp_body_read((const char *)copy.data, copy.len, &out, &why) && out.n == in.n);
    for (uint32_t i = 0; i < in.n; i++)
        check(in.fields[i].value_len == out.fields[i].value_len &&
              memcmp(text + in.fields[i].value, copy.data + out.fields[i].value, in.fields[i].value_len) == 0);
    kvp_buf_reset(&copy);
    kvp_question_write(&in, "", NULL, 0, &copy);
    check(kvp_body_read((const char *)copy.data, copy.len, &out, &why));
    check(kvp_ranks_read(text, len, ranks) <= KVP_FLEET_RANKS_MAX);
    if (kvp_told_read(text, len, &told)) check(strlen(told.url) > 0);
    if (in.n < KVP_BODY_FIELDS_MAX) {
        kvp_buf_reset(&copy);
        kvp_body_copy(&in, some, "\"stream\":false", &copy);
        check(kvp_body_read((const char *)copy.data, copy.len, &out, &why));
        value = kvp_body_find(&out, "stream", &value_len);
        check(value != NULL && value_len == 5 && kvp_body_find(&out, "max_tokens", &value_len) == NULL);
    }
    kvp_buf_fini(&copy);
}

static void
metrics(const uint8_t *data, size_t size)
{
    uint32_t running[KVP_LOAD_RANKS_MAX], waiting[KVP_LOAD_RANKS_MAX];
    char *text = malloc(size + 1);
    kvp_connkey_t key;

    check(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    check(kvp_load_parse(text, running, waiting) <= KVP_LOAD_RANKS_MAX);
    if (kvp_connkey_read(text, size, &key))
        check(key.prefix_len + key.ranks_len + key.more_len + key.hex_len < size && key.model_at <= key.prefix_len);
    free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if ((data[0] & 1) == 0)
        body((const char *)data + 1, size - 1);
    else
        metrics(data + 1, size - 1);
    return 0;
}
