/* SPDX-License-Identifier: Apache-2.0
 * Lists of models and tokens that servers send the router, in two pieces, which must read as in one. What the scanner
 * takes for an object is an object to json-c as well. */
#include "conductor/router/models.h"
#include "conductor/router/tokens.h"
#include "tests/fuzz/fuzz_check.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
on_listed(void *arg, const char *name, kvp_model_kind_t kind)
{
    uint64_t *sum = arg;

    check(name[0] != '\0' && strlen(name) <= KVP_JSONSCAN_TEXT_MAX && kind != KVP_MODEL_NONE);
    *sum = *sum * 31 + strlen(name) * 4 + (uint64_t)kind;
}

static bool
read_list(const char *text, size_t len, size_t first, uint64_t *sum)
{
    kvp_models_list_t list;

    *sum = 0;
    kvp_models_list_init(&list, on_listed, sum);
    return kvp_models_list_feed(&list, text, first) && kvp_models_list_feed(&list, text + first, len - first) &&
           kvp_jsonscan_is_whole(&list.scan);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;
    uint64_t whole, cut;
    kvp_tokenized_t tokens;

    if (size == 0 || size > 1u << 16) return 0;
    const size_t len = size - 1;
    const bool is_list = read_list(text, len, len, &whole);

    check(read_list(text, len, data[0] % (len + 1), &cut) == is_list && (!is_list || cut == whole));
    kvp_tokenized_init(&tokens, 1 + data[0] % 4, 0);
    if (kvp_tokenized_feed(&tokens, text, len) && kvp_tokenized_is_whole(&tokens))
        check(tokens.hashes.len == tokens.tokens_n / (1 + data[0] % 4) * sizeof(uint64_t));
    kvp_tokenized_fini(&tokens);
    if (is_list) {
        json_tokener *tokener = json_tokener_new_ex(2 * (int)KVP_JSONSCAN_DEPTH_MAX);
        json_object *root = tokener == NULL ? NULL : json_tokener_parse_ex(tokener, text, (int)len);

        /* json-c refuses escapes that the scanner, which keeps none, passes. */
        check(memchr(text, '\\', len) != NULL || memchr(text, '\0', len) != NULL ||
              json_object_is_type(root, json_type_object));
        json_object_put(root);
        json_tokener_free(tokener);
    }
    return 0;
}
