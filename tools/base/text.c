/* SPDX-License-Identifier: Apache-2.0
 * Texts for people: sizes (report.h), and names of any bytes (cli.h). */
#include "tools/base/cli.h"
#include "tools/base/report.h"

#include <string.h>

const char *
kvp_format_bytes(uint64_t bytes, char dst[KVP_BYTES_TEXT_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < KVP_ARRAY_LEN(units)) {
        value /= 1024;
        unit++;
    }
    const bool is_whole = bytes % (1ull << (10 * unit)) == 0;
    snprintf(dst, KVP_BYTES_TEXT_MAX, "%.*f %s", is_whole ? 0 : 2, value, units[unit]);
    return dst;
}

/* Returns whether byte i is a part of a control character. Those from U+0080 to U+009F move the cursor of many
 * terminals as well; in UTF-8 they have two bytes. */
static bool
is_control(const unsigned char *c, size_t i, size_t len)
{
    if (c[i] == 0xc2) return i + 1 < len && c[i + 1] >= 0x80 && c[i + 1] < 0xa0;
    return c[i] < 0x20 || c[i] == 0x7f || (i > 0 && c[i - 1] == 0xc2 && c[i] >= 0x80 && c[i] < 0xa0);
}

const char *
kvp_cli_quote(const void *text, size_t len, char *dst, size_t cap)
{
    const unsigned char *c = text;
    size_t at = 0;
    for (size_t i = 0; i < len && at + 5 <= cap; i++) {
        if (c[i] == '\\')
            at += (size_t)snprintf(dst + at, cap - at, "\\\\");
        else if (is_control(c, i, len))
            at += (size_t)snprintf(dst + at, cap - at, "\\x%02x", c[i]);
        else
            dst[at++] = (char)c[i];
    }
    dst[at] = '\0';
    return dst;
}
