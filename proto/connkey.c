/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/connkey.h"

#include <string.h>

static int
nibble(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool
read_hex(kvp_connkey_t *out)
{
    if (out->hex_len < 16 || out->hex_len % 2 != 0) return false;
    out->hash = 0;
    for (size_t i = 0; i < out->hex_len; i++) {
        if (nibble(out->hex[i]) < 0) return false;
        out->hash = out->hash << 4 | (unsigned)nibble(out->hex[i]);
    }
    return true;
}

/* What follows the ranks: the number of a group, or nothing. */
static bool
read_group(const char *at, const char *end, uint32_t *out)
{
    static const char name[] = "@group:";
    uint64_t number = 0;

    *out = 0;
    if (at == end) return true;
    if ((size_t)(end - at) < sizeof name || memcmp(at, name, sizeof name - 1) != 0) return false;
    at += sizeof name - 1;
    if (*at == '0' && at + 1 != end) return false;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9' || number > UINT32_MAX / 10) return false;
        number = number * 10 + (unsigned)(*at - '0');
    }
    *out = (uint32_t)number;
    return number <= UINT32_MAX;
}

bool
kvp_connkey_read(const char *key, size_t len, kvp_connkey_t *out)
{
    static const char first[] = "@tp_rank:";
    const char *at = memmem(key, len, first, sizeof first - 1), *last = memrchr(key, '@', len), *group;

    if (at == NULL || last <= at) return false;
    *out = (kvp_connkey_t){.prefix_len = (size_t)(at - key), .ranks = at + 1, .hex = last + 1};
    out->hex_len = (size_t)(key + len - out->hex);
    group = memmem(at + 1, (size_t)(last - at - 1), "@group:", 7);
    out->ranks_len = (size_t)(group == NULL ? last + 1 - out->ranks : group - out->ranks);
    return read_group(group == NULL ? last : group, last, &out->group) && read_hex(out);
}
