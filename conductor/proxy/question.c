/* SPDX-License-Identifier: Apache-2.0
 * See question.h. */
#include "conductor/proxy/question.h"

#include "common/jsonw.h"
#include "common/parse.h"
#include "conductor/proxy/copies.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static bool
copy_field(kvp_jsonw_t *w, const kvp_body_t *request, const char *name, const char *as)
{
    size_t len;
    const char *value = kvp_body_find(request, name, &len);

    if (value == NULL) return false;
    kvp_jsonw_part(w, as, &(kvp_buf_t){.data = (uint8_t *)value, .len = len});
    return true;
}

/* Writes the hash of the session's name. The router needs only a key, and the hash needs no JSON escapes, whatever
 * the name contains. */
static void
write_session(kvp_jsonw_t *w, const char *name, size_t len)
{
    char text[17];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)XXH3_64bits(name, len));
    kvp_jsonw_text(w, "session_id", text);
}

static bool
is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Returns the prompt; a list of one prompt counts as this prompt. NULL = the request has no prompt. */
static const char *
find_prompt(const kvp_body_t *request, size_t *len_out)
{
    const char *value = kvp_body_find(request, "prompt", len_out), *at = value;
    size_t len = value == NULL ? 0 : *len_out;

    if (len < 2 || value[0] != '[' || kvp_has_several_prompts(request)) return value;
    for (at++, len -= 2; len > 0 && is_blank(*at); at++)
        len--;
    while (len > 0 && is_blank(at[len - 1]))
        len--;
    if (len == 0 || (*at != '"' && *at != '[')) return value; /* the prompt is an array of token numbers */
    *len_out = len;
    return at;
}

/* Returns true if the prompt is an array of token numbers. */
static bool
is_tokens(const char *value, size_t len)
{
    size_t i = 1;

    if (len == 0 || value[0] != '[') return false;
    while (i < len && is_blank(value[i]))
        i++;
    return i < len && value[i] >= '0' && value[i] <= '9';
}

void
kvp_question_write(const kvp_body_t *request, const char *session, const char *const *exclude, uint32_t exclude_n,
                   kvp_buf_t *out)
{
    static const char *const same[] = {"model",
                                       "messages",
                                       "cache_salt",
                                       "tools",
                                       "chat_template",
                                       "chat_template_kwargs",
                                       "add_special_tokens",
                                       "add_generation_prompt",
                                       "continue_final_message"};
    kvp_jsonw_t w;
    const char *value;
    size_t len;

    kvp_jsonw_init(&w, out);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "role", "prefill");
    for (size_t i = 0; i < KVP_ARRAY_LEN(same); i++)
        (void)copy_field(&w, request, same[i], same[i]);
    value = find_prompt(request, &len);
    if (value != NULL)
        kvp_jsonw_part(&w, is_tokens(value, len) ? "token_ids" : "prompt",
                       &(kvp_buf_t){.data = (uint8_t *)value, .len = len});
    if (session[0] != '\0')
        write_session(&w, session, strlen(session));
    else if ((value = kvp_body_find(request, "user", &len)) != NULL)
        write_session(&w, value, len);
    kvp_jsonw_open(&w, "exclude", '[');
    for (uint32_t i = 0; i < exclude_n; i++)
        kvp_jsonw_text(&w, NULL, exclude[i]);
    kvp_jsonw_close(&w, ']');
    kvp_jsonw_close(&w, '}');
}

static uint64_t
read_number(const kvp_body_t *told, const char *name)
{
    size_t len;
    const char *value = kvp_body_find(told, name, &len);
    char text[24];
    uint64_t out;

    if (value == NULL || len >= sizeof text) return 0;
    snprintf(text, sizeof text, "%.*s", (int)len, value);
    return kvp_parse_u64(text, &out) == KVP_OK ? out : 0;
}

/* Copies a string field of 1 to max bytes. Returns false if there is none, or if it contains escapes; the ids of
 * engines and the URLs of added servers have none. */
static bool
copy_text(const kvp_body_t *told, const char *name, char *out, size_t max)
{
    size_t len;
    const char *value = kvp_body_find(told, name, &len);

    if (value == NULL || value[0] != '"' || len <= 2 || len - 2 > max || memchr(value, '\\', len) != NULL) return false;
    memcpy(out, value + 1, len - 2);
    out[len - 2] = '\0';
    return true;
}

bool
kvp_told_read(const char *text, size_t len, kvp_routed_t *out)
{
    kvp_body_t told;
    const char *why;

    if (!kvp_body_read(text, len, &told, &why) || !copy_text(&told, "url", out->url, KVP_FLEET_URL_MAX)) return false;
    const uint64_t rank = read_number(&told, "dp_rank");
    out->route = read_number(&told, "route_id");
    out->rank = read_number(&told, "dp_ranks") > 1 || rank > 0 ? (int64_t)kvp_min_u64(rank, UINT32_MAX) : -1;
    return true;
}

static uint32_t
find_rank(const kvp_server_rank_t *ranks, uint32_t n, uint64_t rank)
{
    uint32_t i = 0;

    while (i < n && ranks[i].rank != rank)
        i++;
    return i;
}

uint32_t
kvp_ranks_read(const char *text, size_t len, kvp_server_rank_t ranks_out[KVP_FLEET_RANKS_MAX])
{
    kvp_body_t all, one;
    uint32_t n = 0;
    const char *why;

    if (!kvp_body_read(text, len, &all, &why)) return 0;
    for (uint32_t i = 0; i < all.n; i++) {
        const kvp_body_field_t *f = &all.fields[i];
        kvp_server_rank_t r = {.open = 0};
        char name[16];
        uint64_t rank;

        if (f->name_len >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)f->name_len, text + f->name);
        if (kvp_parse_u64(name, &rank) != KVP_OK || rank >= UINT32_MAX ||
            !kvp_body_read(text + f->value, f->value_len, &one, &why) ||
            !copy_text(&one, "engine_id", r.engine, KVP_FLEET_ENGINE_MAX))
            continue;
        r.rank = (uint32_t)rank;
        const uint32_t at = find_rank(ranks_out, n, rank);
        ranks_out[at] = r;
        n += at == n;
    }
    return n;
}
