/* SPDX-License-Identifier: Apache-2.0
 * See jsonscan.h. */
#include "conductor/base/jsonscan.h"

#include <ctype.h>
#include <string.h>

/* Parser states: the kinds of token that are legal next, outside strings and literals. */
enum { FIRST, VALUE, VALUE_OR_END, KEY, KEY_OR_END, COLON, AFTER, WHOLE };
enum { BETWEEN, IN_STRING, IN_ESCAPE, IN_HEX, IN_WORD };

static bool
is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool
is_in_object(const kvp_jsonscan_t *s)
{
    return s->depth > 0 && (s->objects >> (s->depth - 1) & 1) != 0;
}

static const char *
skip_digits(const char *at)
{
    while (*at >= '0' && *at <= '9')
        at++;
    return at;
}

static bool
is_number(const char *text)
{
    const char *digits = text + (*text == '-'), *at = skip_digits(digits);

    if (at == digits || (*digits == '0' && at > digits + 1)) return false;
    if (*at == '.') {
        digits = at + 1;
        at = skip_digits(digits);
        if (at == digits) return false;
    }
    if (*at == 'e' || *at == 'E') {
        digits = at + 1 + (at[1] == '+' || at[1] == '-');
        at = skip_digits(digits);
        if (at == digits) return false;
    }
    return *at == '\0';
}

static void
begin_text(kvp_jsonscan_t *s, uint8_t mode)
{
    s->text_len = 0;
    s->is_cut = s->has_escape = false;
    s->mode = mode;
    s->begin = s->at;
}

static void
add_text(kvp_jsonscan_t *s, char c)
{
    if (s->text_len < KVP_JSONSCAN_TEXT_MAX)
        s->text[s->text_len++] = c;
    else
        s->is_cut = true;
}

static bool
end_word(kvp_jsonscan_t *s)
{
    s->mode = BETWEEN;
    s->state = AFTER;
    s->end = s->at;
    s->text[s->text_len] = '\0';
    if (s->is_cut || !(is_number(s->text) || strcmp(s->text, "null") == 0 || strcmp(s->text, "true") == 0 ||
                       strcmp(s->text, "false") == 0))
        return false;
    return s->on(s->arg, s, KVP_JSON_WORD);
}

static bool
end_string(kvp_jsonscan_t *s)
{
    s->mode = BETWEEN;
    s->end = s->at + 1;
    s->text[s->text_len] = '\0';
    if (s->state != KEY && s->state != KEY_OR_END) {
        s->state = AFTER;
        return s->on(s->arg, s, KVP_JSON_STRING);
    }
    s->state = COLON;
    if (s->depth <= KVP_JSONSCAN_KEYS) {
        char *key = s->keys[s->depth - 1];

        key[0] = '\0';
        if (s->text_len <= KVP_JSONSCAN_KEY_MAX) memcpy(key, s->text, s->text_len + 1);
    }
    return s->on(s->arg, s, KVP_JSON_KEY);
}

static bool
open_container(kvp_jsonscan_t *s, bool is_object)
{
    if (s->depth == KVP_JSONSCAN_DEPTH_MAX || (s->state == FIRST && !is_object)) return false;
    s->text_len = is_object;
    s->begin = s->at;
    if (!s->on(s->arg, s, KVP_JSON_BEGIN)) return false;
    s->objects = (s->objects & ~(1ull << s->depth)) | (uint64_t)is_object << s->depth;
    if (s->depth < KVP_JSONSCAN_KEYS) s->keys[s->depth][0] = '\0';
    s->depth++;
    s->state = is_object ? KEY_OR_END : VALUE_OR_END;
    return true;
}

static bool
close_container(kvp_jsonscan_t *s, bool is_object)
{
    if (s->depth == 0 || is_in_object(s) != is_object) return false;
    if (s->state != AFTER && s->state != (is_object ? KEY_OR_END : VALUE_OR_END)) return false;
    s->depth--;
    s->end = s->at + 1;
    s->state = s->depth == 0 ? WHOLE : AFTER;
    return s->on(s->arg, s, KVP_JSON_END);
}

/* Processes a character outside strings, numbers and literals. Returns false for an error, or to end the scan. */
static bool
take_between(kvp_jsonscan_t *s, char c)
{
    const bool may_be_value = s->state == FIRST || s->state == VALUE || s->state == VALUE_OR_END;

    if (is_blank(c)) return true;
    switch (c) {
    case '{':
    case '[':
        return may_be_value && open_container(s, c == '{');
    case '}':
    case ']':
        return close_container(s, c == '}');
    case ',':
        if (s->state != AFTER) return false;
        s->state = is_in_object(s) ? KEY : VALUE;
        return true;
    case ':':
        if (s->state != COLON) return false;
        s->state = VALUE;
        return true;
    case '"':
        if (s->state == FIRST || !(may_be_value || s->state == KEY || s->state == KEY_OR_END)) return false;
        begin_text(s, IN_STRING);
        return true;
    default:
        if (s->state == FIRST || !may_be_value) return false;
        begin_text(s, IN_WORD);
        add_text(s, c);
        return true;
    }
}

static bool
is_plain(char c)
{
    return (unsigned char)c >= 0x20 && c != '"' && c != '\\';
}

static bool
take_escape(kvp_jsonscan_t *s, char c)
{
    add_text(s, c);
    s->hex = c == 'u' ? 4 : 0;
    s->mode = c == 'u' ? IN_HEX : IN_STRING;
    return c != '\0' && strchr("\"\\/bfnrtu", c) != NULL;
}

static bool
take_char(kvp_jsonscan_t *s, char c)
{
    switch (s->mode) {
    case IN_STRING:
        if (c == '"') return end_string(s);
        add_text(s, c);
        if (is_plain(c)) return true;
        s->mode = IN_ESCAPE;
        s->has_escape = true;
        return c == '\\';
    case IN_ESCAPE:
        return take_escape(s, c);
    case IN_HEX:
        add_text(s, c);
        if (--s->hex == 0) s->mode = IN_STRING;
        return isxdigit((unsigned char)c) != 0;
    case IN_WORD:
        if (!is_blank(c) && c != ',' && c != ']' && c != '}') {
            add_text(s, c);
            return is_plain(c);
        }
        return end_word(s) && take_between(s, c);
    default:
        return take_between(s, c);
    }
}

void
kvp_jsonscan_init(kvp_jsonscan_t *s, kvp_jsonscan_fn on, void *arg)
{
    memset(s, 0, sizeof *s);
    s->on = on;
    s->arg = arg;
}

/* Returns true for a character that changes no parser state, as most do: plain ones in a string, digits in a number. */
static bool
is_inert(const kvp_jsonscan_t *s, char c)
{
    return s->mode == IN_STRING ? is_plain(c) : s->mode == IN_WORD && c >= '0' && c <= '9';
}

bool
kvp_jsonscan_feed(kvp_jsonscan_t *s, const char *bytes, size_t len)
{
    const char *end = bytes + len;

    for (; bytes < end; bytes++, s->at++) {
        if (!take_char(s, *bytes)) return false;
        for (; bytes + 1 < end && is_inert(s, bytes[1]); bytes++, s->at++)
            add_text(s, bytes[1]);
    }
    return true;
}

bool
kvp_jsonscan_is_whole(const kvp_jsonscan_t *s)
{
    return s->state == WHOLE;
}

bool
kvp_jsonscan_is_at(const kvp_jsonscan_t *s, const char *const *keys, uint32_t n)
{
    if (s->depth != n) return false;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(s->keys[i], keys[i]) != 0) return false;
    return true;
}
