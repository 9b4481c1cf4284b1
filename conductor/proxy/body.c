/* SPDX-License-Identifier: Apache-2.0
 * See body.h. */
#include "conductor/proxy/body.h"

#include "common/utf8.h"

#include <string.h>

static bool
on_value(void *arg, const kvp_jsonscan_t *s, kvp_json_event_t event)
{
    kvp_body_t *b = arg;
    kvp_body_field_t *f = &b->fields[b->n];

    if (s->depth == 2 && event != KVP_JSON_END && event != KVP_JSON_KEY) f->elements++;
    if (s->depth != 1) return true;
    if (event == KVP_JSON_KEY) {
        if (b->n == KVP_BODY_FIELDS_MAX) return false;
        *f = (kvp_body_field_t){.name = s->begin + 1, .name_len = s->end - s->begin - 2};
        return true;
    }
    if (event != KVP_JSON_END) f->value = s->begin;
    if (event == KVP_JSON_BEGIN) return true;
    f->value_len = s->end - f->value;
    b->n++;
    return true;
}

bool
kvp_body_read(const char *text, size_t len, kvp_body_t *out, const char **why_out)
{
    kvp_jsonscan_t s;

    out->text = text;
    out->n = 0;
    kvp_jsonscan_init(&s, on_value, out);
    *why_out = len == 0                            ? "it is empty"
               : !kvp_is_utf8(text, len)           ? "it is not UTF-8"
               : !kvp_jsonscan_feed(&s, text, len) ? "it is no object in JSON, or is too deep, or has too many fields"
               : !kvp_jsonscan_is_whole(&s)        ? "it has no end"
                                                   : NULL;
    return *why_out == NULL;
}

static uint32_t
read_hex(const char *digits)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < 4; i++)
        n = n << 4 | (uint32_t)(digits[i] <= '9' ? digits[i] - '0' : (digits[i] | 0x20) - 'a' + 10);
    return n;
}

/* Returns the next character of a checked JSON string, and moves *at past it. A character above 127 is returned as
 * its bytes, or as the number of its escape; this is harmless, because all names that callers look for are ASCII. */
static uint32_t
next_character(const char *text, size_t *at)
{
    static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
    const char c = text[(*at)++];
    const char *letter;

    if (c != '\\') return (unsigned char)c;
    const char escape = text[(*at)++];
    if (escape == 'u') {
        *at += 4;
        return read_hex(text + *at - 4);
    }
    letter = strchr(letters, escape);
    return (unsigned char)(letter == NULL ? escape : meant[letter - letters]);
}

bool
kvp_body_is_named(const kvp_body_t *body, uint32_t field, const char *name)
{
    const kvp_body_field_t *f = &body->fields[field];
    const size_t end = f->name + f->name_len;
    size_t at = f->name;

    for (; *name != '\0' && at < end; name++)
        if (next_character(body->text, &at) != (unsigned char)*name) return false;
    return *name == '\0' && at == end;
}

bool
kvp_body_is_list_of_several(const kvp_body_t *body, uint32_t field)
{
    const kvp_body_field_t *f = &body->fields[field];
    const char *at = body->text + f->value;

    if (*at++ != '[' || f->elements < 2) return false;
    while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')
        at++;
    return *at != '-' && (*at < '0' || *at > '9');
}

const char *
kvp_body_find(const kvp_body_t *body, const char *name, size_t *len_out)
{
    for (uint32_t i = body->n; i-- > 0;) {
        if (!kvp_body_is_named(body, i, name)) continue;
        *len_out = body->fields[i].value_len;
        return body->text + body->fields[i].value;
    }
    return NULL;
}

void
kvp_body_copy(const kvp_body_t *body, const char *const *without, const char *more, kvp_buf_t *out)
{
    bool has_any = false;

    kvp_buf_append(out, "{", 1);
    for (uint32_t i = 0; i < body->n; i++) {
        const kvp_body_field_t *f = &body->fields[i];
        bool is_left_out = false;

        for (const char *const *name = without; *name != NULL; name++)
            is_left_out |= kvp_body_is_named(body, i, *name);
        if (is_left_out) continue;
        if (has_any) kvp_buf_append(out, ",", 1);
        kvp_buf_append(out, "\"", 1);
        kvp_buf_append(out, body->text + f->name, f->name_len);
        kvp_buf_append(out, "\":", 2);
        kvp_buf_append(out, body->text + f->value, f->value_len);
        has_any = true;
    }
    if (has_any && more[0] != '\0') kvp_buf_append(out, ",", 1);
    kvp_buf_append(out, more, strlen(more));
    kvp_buf_append(out, "}", 1);
}
