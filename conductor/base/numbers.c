/* SPDX-License-Identifier: Apache-2.0
 * See numbers.h. */
#include "conductor/base/numbers.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const uint8_t *at, *end;
} cursor_t;

static void
skip_blanks(cursor_t *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

/* Returns the position after the JSON string that begins at `at`. */
static const uint8_t *
string_end(const uint8_t *at, const uint8_t *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\') at++;
    return at < end ? at + 1 : end;
}

/* Returns the beginning of the array in the field `name` of the root object; NULL = no such array. Fields of
 * nested objects are ignored. */
static const uint8_t *
find_array(const kvp_buf_t *body, const char *name)
{
    const size_t len = strlen(name);
    cursor_t c = {body->data, body->data + body->len};
    int depth = 0;

    while (c.at < c.end) {
        const uint8_t *text = c.at;

        if (*c.at == '{' || *c.at == '[') depth++;
        if (*c.at == '}' || *c.at == ']') depth--;
        if (*c.at != '"') {
            c.at++;
            continue;
        }
        c.at = string_end(text, c.end);
        if (depth != 1 || (size_t)(c.at - text) != len + 2 || memcmp(text + 1, name, len) != 0) continue;
        skip_blanks(&c);
        if (c.at == c.end || *c.at != ':') continue;
        c.at++;
        skip_blanks(&c);
        if (c.at < c.end && *c.at == '[') return c.at;
    }
    return NULL;
}

static bool
read_number(cursor_t *c, uint64_t max, uint64_t *out)
{
    const uint8_t *begin = c->at;
    uint64_t value = 0;

    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        const uint64_t digit = (uint64_t)(*c->at - '0');

        if (value > (max - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *out = value;
    return c->at > begin && (c->at == begin + 1 || *begin != '0');
}

/* Appends the numbers of the array to `out`. Returns the position after the closing bracket; NULL = malformed. */
static const uint8_t *
read_array(cursor_t c, uint64_t max, kvp_buf_t *out)
{
    uint64_t value;

    c.at++;
    skip_blanks(&c);
    if (c.at < c.end && *c.at == ']') return c.at + 1;
    for (;;) {
        skip_blanks(&c);
        if (!read_number(&c, max, &value)) return NULL;
        kvp_buf_append(out, &value, sizeof value);
        skip_blanks(&c);
        if (c.at == c.end) return NULL;
        if (*c.at == ']') return c.at + 1;
        if (*c.at++ != ',') return NULL;
    }
}

bool
kvp_numbers_take(const kvp_buf_t *body, const char *name, uint64_t max, kvp_buf_t *rest, kvp_buf_t *numbers,
                 bool *is_found, char why[160])
{
    const uint8_t *begin = body->len == 0 ? NULL : find_array(body, name), *behind;

    *is_found = begin != NULL;
    if (begin == NULL) {
        kvp_buf_append(rest, body->data, body->len);
        return true;
    }
    behind = read_array((cursor_t){begin, body->data + body->len}, max, numbers);
    if (behind == NULL) {
        snprintf(why, 160, "%s is not an array of whole numbers from 0 to %llu", name, (unsigned long long)max);
        return false;
    }
    kvp_buf_append(rest, body->data, (size_t)(begin - body->data));
    kvp_buf_append(rest, "[]", 2);
    kvp_buf_append(rest, behind, (size_t)(body->data + body->len - behind));
    return true;
}
