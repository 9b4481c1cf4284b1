/* SPDX-License-Identifier: Apache-2.0 */
#include "common/utf8.h"

#include <stdio.h>
#include <string.h>

size_t
kvp_utf8_step(const void *text, size_t len)
{
    static const struct {
        uint8_t mask, lead, bytes;
        uint32_t min;
    } forms[] = {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};
    const uint8_t *bytes = text;
    for (size_t f = 0; f < KVP_ARRAY_LEN(forms); f++) {
        if ((bytes[0] & forms[f].mask) != forms[f].lead) continue;
        if (forms[f].bytes > len) return 0;
        uint32_t point = bytes[0] & (uint8_t)~forms[f].mask;
        for (size_t i = 1; i < forms[f].bytes; i++) {
            if ((bytes[i] & 0xc0) != 0x80) return 0;
            point = point << 6 | (bytes[i] & 0x3fu);
        }
        const bool is_valid = point >= forms[f].min && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
        return is_valid ? forms[f].bytes : 0;
    }
    return 0;
}

bool
kvp_is_utf8(const void *text, size_t len)
{
    const uint8_t *bytes = text;
    for (size_t at = 0; at < len;) {
        size_t step = kvp_utf8_step(bytes + at, len - at);
        if (step == 0) return false;
        at += step;
    }
    return true;
}

size_t
kvp_utf8_escape(const char *text, size_t len, char escaped[KVP_ESCAPED_MAX], size_t *used_out)
{
    const unsigned char first = (unsigned char)text[0];
    const size_t used = kvp_utf8_step(text, len);
    const bool is_c1 = used == 2 && first == 0xc2 && (unsigned char)text[1] < 0xa0; /* U+0080 to U+009F */

    *used_out = used == 0 ? 1 : used;
    if (first == '"' || first == '\\') return (size_t)snprintf(escaped, KVP_ESCAPED_MAX, "\\%c", first);
    if (first == '\n') return (size_t)snprintf(escaped, KVP_ESCAPED_MAX, "\\n");
    if (first == '\t') return (size_t)snprintf(escaped, KVP_ESCAPED_MAX, "\\t");
    if (used == 0 || first < 0x20 || first == 0x7f || is_c1)
        return (size_t)snprintf(escaped, KVP_ESCAPED_MAX, "\\u%04x",
                                used == 0 ? 0xfffdu
                                : is_c1   ? (unsigned char)text[1]
                                          : first);
    memcpy(escaped, text, used);
    return used;
}
