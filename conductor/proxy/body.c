/* SPDX-License-Identifier: Apache-2.0
 * See body.h.
 */
#include "conductor/proxy/body.h"

#include "common/utf8.h"

#include <string.h>

typedef struct {
    const char *text;
    size_t len, at;
    const char *why;
} scan_t;

static bool
fail(scan_t *s, const char *why)
{
    s->why = why;
    return false;
}

static int
peek(const scan_t *s)
{
    return s->at < s->len ? (unsigned char)s->text[s->at] : -1;
}

static void
skip_blanks(scan_t *s)
{
    while (s->at < s->len && strchr(" \t\r\n", s->text[s->at]) != NULL && s->text[s->at] != '\0')
        s->at++;
}

static bool
is_hex(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* From one quote behind the other. */
static bool
string(scan_t *s)
{
    for (s->at++; s->at < s->len; s->at++) {
        const unsigned char c = (unsigned char)s->text[s->at];

        if (c == '"') {
            s->at++;
            return true;
        }
        if (c < 0x20) return fail(s, "a control character in a string");
        if (c != '\\') continue;
        s->at++;
        if (peek(s) == 'u') {
            for (uint32_t i = 1; i <= 4; i++)
                if (s->at + i >= s->len || !is_hex((unsigned char)s->text[s->at + i]))
                    return fail(s, "a bad escape in a string");
            s->at += 4;
        } else if (peek(s) < 0 || strchr("\"\\/bfnrt", peek(s)) == NULL) {
            return fail(s, "a bad escape in a string");
        }
    }
    return fail(s, "a string has no end");
}

static bool
digits(scan_t *s)
{
    const size_t from = s->at;

    while (peek(s) >= '0' && peek(s) <= '9')
        s->at++;
    return s->at > from;
}

static bool
number(scan_t *s)
{
    if (peek(s) == '-') s->at++;
    if (peek(s) == '0')
        s->at++;
    else if (!digits(s))
        return fail(s, "a bad number");
    if (peek(s) == '.') {
        s->at++;
        if (!digits(s)) return fail(s, "a bad number");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') s->at++;
        if (!digits(s)) return fail(s, "a bad number");
    }
    return true;
}

static bool
word(scan_t *s, const char *w)
{
    if (s->len - s->at < strlen(w) || memcmp(s->text + s->at, w, strlen(w)) != 0)
        return fail(s, "a value that is none");
    s->at += strlen(w);
    return true;
}

static bool
scalar(scan_t *s)
{
    switch (peek(s)) {
    case '"':
        return string(s);
    case 't':
        return word(s, "true");
    case 'f':
        return word(s, "false");
    case 'n':
        return word(s, "null");
    default:
        return number(s);
    }
}

/* A name and its colon. */
static bool
field_name(scan_t *s)
{
    skip_blanks(s);
    if (peek(s) != '"') return fail(s, "a field without a name");
    if (!string(s)) return false;
    skip_blanks(s);
    if (peek(s) != ':') return fail(s, "a field without a colon");
    s->at++;
    return true;
}

/* One value, without recursion: what is open stands in a word of bits, 1 for an object. */
static bool
value(scan_t *s)
{
    uint64_t open = 0;
    uint32_t depth = 0;

    for (;;) {
        skip_blanks(s);
        const int c = peek(s);

        if (c == '{' || c == '[') {
            if (depth == KVP_BODY_DEPTH_MAX) return fail(s, "too many levels");
            open = open << 1 | (c == '{');
            depth++;
            s->at++;
            skip_blanks(s);
            if (peek(s) != (c == '{' ? '}' : ']')) {
                if (c == '{' && !field_name(s)) return false;
                continue;
            }
            s->at++;
            depth--;
            open >>= 1;
        } else if (!scalar(s)) {
            return false;
        }
        for (;;) { /* behind a value */
            if (depth == 0) return true;
            skip_blanks(s);
            if (peek(s) == ',') {
                s->at++;
                if ((open & 1) != 0 && !field_name(s)) return false;
                break;
            }
            if (peek(s) != ((open & 1) != 0 ? '}' : ']')) return fail(s, "neither a comma nor an end behind a value");
            s->at++;
            depth--;
            open >>= 1;
        }
    }
}

static bool
field(scan_t *s, kvp_body_t *out)
{
    kvp_body_field_t *f = &out->fields[out->n];

    if (out->n == KVP_BODY_FIELDS_MAX) return fail(s, "too many fields");
    skip_blanks(s);
    f->name = s->at + 1;
    if (!field_name(s)) return false;
    f->name_len = (size_t)((const char *)memrchr(s->text + f->name, '"', s->at - f->name) - (s->text + f->name));
    skip_blanks(s);
    f->value = s->at;
    if (!value(s)) return false;
    f->value_len = s->at - f->value;
    out->n++;
    return true;
}

static bool
object(scan_t *s, kvp_body_t *out)
{
    skip_blanks(s);
    if (peek(s) != '{') return fail(s, "it is no object");
    s->at++;
    skip_blanks(s);
    if (peek(s) == '}') {
        s->at++;
    } else {
        for (;;) {
            if (!field(s, out)) return false;
            skip_blanks(s);
            if (peek(s) != ',') break;
            s->at++;
        }
        if (peek(s) != '}') return fail(s, "neither a comma nor an end behind a value");
        s->at++;
    }
    skip_blanks(s);
    return s->at == s->len || fail(s, "more stands behind it");
}

bool
kvp_body_read(const char *text, size_t len, kvp_body_t *out, const char **why_out)
{
    scan_t s = {.text = text, .len = len, .why = "it is not UTF-8"};

    out->text = text;
    out->len = len;
    out->n = 0;
    if (kvp_is_utf8(text, len) && object(&s, out)) return true;
    *why_out = len == 0 ? "it is empty" : s.why;
    return false;
}

static uint32_t
read_hex(const char *digits)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < 4; i++)
        n = n << 4 | (uint32_t)(digits[i] <= '9' ? digits[i] - '0' : (digits[i] | 0x20) - 'a' + 10);
    return n;
}

/* The next character of a checked string, which *at moves past. Characters above 127 come as their bytes, or as the
 * number of their escape: no name that is looked for has any. */
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
kvp_body_is_list_of_several(const char *text, size_t len)
{
    scan_t s = {.text = text, .len = len};

    if (peek(&s) != '[') return false;
    s.at++;
    skip_blanks(&s);
    if (peek(&s) == '-' || (peek(&s) >= '0' && peek(&s) <= '9') || !value(&s)) return false;
    skip_blanks(&s);
    return peek(&s) == ',';
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
