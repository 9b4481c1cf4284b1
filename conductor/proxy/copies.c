/* SPDX-License-Identifier: Apache-2.0
 * See copies.h. */
#include "conductor/proxy/copies.h"

#include <string.h>

static const char *const choices[] = {"n", "best_of"};

static bool
is_text(const kvp_body_t *body, uint32_t field, const char *text)
{
    const kvp_body_field_t *f = &body->fields[field];

    return f->value_len == strlen(text) && memcmp(body->text + f->value, text, f->value_len) == 0;
}

bool
kvp_has_several_prompts(const kvp_body_t *request)
{
    bool has_prompt = false, has_embeds = false;

    for (uint32_t i = 0; i < request->n; i++) {
        const bool is_prompt = kvp_body_is_named(request, i, "prompt");

        if ((!is_prompt && !kvp_body_is_named(request, i, "prompt_embeds")) || is_text(request, i, "null")) continue;
        if (kvp_body_is_list_of_several(request, i)) return true;
        has_prompt |= is_prompt;
        has_embeds |= !is_prompt;
    }
    return has_prompt && has_embeds;
}

bool
kvp_has_several_choices(const kvp_body_t *request)
{
    for (uint32_t i = 0; i < request->n; i++) {
        if (is_text(request, i, "null")) continue;
        for (size_t k = 0; k < KVP_ARRAY_LEN(choices); k++)
            if (kvp_body_is_named(request, i, choices[k]) && !is_text(request, i, "1")) return true;
        if (kvp_body_is_named(request, i, "use_beam_search") && !is_text(request, i, "false")) return true;
    }
    return false;
}

static void
append_text(kvp_buf_t *out, const char *text)
{
    kvp_buf_append(out, text, strlen(text));
}

static void
append_params(kvp_buf_t *out, const char *params)
{
    if (params == NULL) return;
    append_text(out, "\"kv_transfer_params\":");
    append_text(out, params);
}

static void
copy_with(const kvp_body_t *request, const char *const *without, kvp_buf_t *more, kvp_buf_t *out)
{
    kvp_buf_append(more, "", 1);
    if (more->err == KVP_OK)
        kvp_body_copy(request, without, (const char *)more->data, out);
    else
        out->err = more->err;
    kvp_buf_fini(more);
}

void
kvp_copy_for_prefill(const kvp_body_t *request, const char *params, kvp_buf_t *out)
{
    static const char *const without[] = {
        "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options", "kv_transfer_params", "n",
        "best_of",    "use_beam_search",       NULL};
    kvp_buf_t more = {.len = 0};
    size_t len;

    append_text(&more, "\"max_tokens\":1,\"max_completion_tokens\":1,\"min_tokens\":1,\"stream\":false");
    for (size_t i = 0; i < KVP_ARRAY_LEN(choices); i++) {
        if (kvp_body_find(request, choices[i], &len) == NULL) continue;
        append_text(&more, ",\"");
        append_text(&more, choices[i]);
        append_text(&more, "\":1");
    }
    if (params != NULL) append_text(&more, ",");
    append_params(&more, params);
    copy_with(request, without, &more, out);
}

void
kvp_copy_for_decode(const kvp_body_t *request, const char *params, kvp_buf_t *out)
{
    static const char *const without[] = {"kv_transfer_params", NULL};
    kvp_buf_t more = {.len = 0};

    append_params(&more, params);
    copy_with(request, without, &more, out);
}
