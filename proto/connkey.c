/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/connkey.h"

#include <string.h>

static int
read_nibble(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool
read_hex(const char *at, const char *end, kvp_connkey_t *out)
{
    out->hex = at;
    out->hex_len = (size_t)(end - at);
    if (out->hex_len < 16 || out->hex_len % 2 != 0) return false;
    out->hash = 0;
    for (; at < end; at++) {
        if (read_nibble(*at) < 0) return false;
        out->hash = out->hash << 4 | (unsigned)read_nibble(*at);
    }
    return true;
}

/* Reads a decimal number without leading zeros. */
static bool
read_number(const char *at, const char *end, uint32_t *out)
{
    uint64_t number = 0;

    if (at == end || (*at == '0' && at + 1 != end)) return false;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9' || number > UINT32_MAX / 10) return false;
        number = number * 10 + (unsigned)(*at - '0');
    }
    *out = (uint32_t)number;
    return number < KVP_CONNKEY_NONE;
}

static bool
begins_with(const char *at, const char *end, const char *text)
{
    return (size_t)(end - at) >= strlen(text) && memcmp(at, text, strlen(text)) == 0;
}

/* Reads one segment of a key: the text between two "@". A segment with an unknown name is ignored here; it stays part
 * of the object's identity (out->ranks). */
static bool
read_segment(const char *at, const char *end, kvp_connkey_t *out)
{
#define READ(name, text)                                                                                               \
    if (begins_with(at, end, text)) return read_number(at + sizeof text - 1, end, &out->name);
    KVP_CONNKEY_NUMBERS(READ)
#undef READ
    if (!begins_with(at, end, "group:")) return true;
    if (out->more != NULL) return false;
    out->ranks_len = (size_t)(at - 1 - out->ranks);
    out->more = end;
    return read_number(at + 6, end, &out->group);
}

static const char *
segment_end(const char *at, const char *end)
{
    const char *stop = memchr(at, '@', (size_t)(end - at));

    return stop == NULL ? end : stop;
}

/* Returns where the ranks begin in a key, after the prefix and its "@"; NULL = no ranks. In a vllm-ascend key they
 * begin two ranks (pcp, dcp) before "head_or_tp_rank", by which the key is known. */
static const char *
find_ranks(const char *key, size_t len, bool *is_ascend_out)
{
    static const char vllm[] = "@tp_rank:", ascend[] = "@head_or_tp_rank:";
    const char *at = memmem(key, len, vllm, sizeof vllm - 1), *dcp, *pcp;

    *is_ascend_out = at == NULL;
    if (at != NULL) return at + 1;
    at = memmem(key, len, ascend, sizeof ascend - 1);
    dcp = at == NULL ? NULL : memrchr(key, '@', (size_t)(at - key));
    pcp = dcp == NULL ? NULL : memrchr(key, '@', (size_t)(dcp - key));
    return pcp != NULL && pcp > key && begins_with(dcp, at, "@dcp") && begins_with(pcp, dcp, "@pcp") ? pcp + 1 : NULL;
}

/* Reads the hash and the layer's number of an older vllm-ascend key, in which the number follows the hash. */
static bool
read_layer_behind(const char *key, const char **last, const char **end, kvp_connkey_t *out)
{
    const char *hash = memrchr(key, '@', (size_t)(*last - key));
    kvp_connkey_t found;

    if (hash == NULL || hash < out->ranks || !read_hex(hash + 1, *last, &found) ||
        !read_number(*last + 1, *end, &out->layer_id))
        return false;
    out->more = *last;
    out->more_len = (size_t)(*end - *last);
    out->ranks_len = (size_t)(hash - out->ranks);
    *end = *last;
    *last = hash;
    return true;
}

bool
kvp_connkey_read(const char *key, size_t len, kvp_connkey_t *out)
{
    const char *last = memrchr(key, '@', len), *end = key + len, *model;
    bool is_ascend, is_layer_behind;
    const char *ranks = find_ranks(key, len, &is_ascend);

    if (ranks == NULL || last < ranks) return false;
    *out = (kvp_connkey_t){.prefix_len = (size_t)(ranks - 1 - key), .ranks = ranks};
#define NONE(name, text) out->name = KVP_CONNKEY_NONE;
    KVP_CONNKEY_NUMBERS(NONE)
#undef NONE
    model = memrchr(key, '@', out->prefix_len);
    out->model_at = model == NULL ? 0 : (size_t)(model + 1 - key);
    is_layer_behind = is_ascend && read_layer_behind(key, &last, &end, out);
    for (const char *at = ranks; at < last; at = segment_end(at, last) + 1)
        if (!read_segment(at, segment_end(at, last), out)) return false;
    if (!read_hex(last + 1, end, out)) return false;
    if (is_layer_behind) return out->group == 0;
    if (out->more == NULL) out->ranks_len = (size_t)(last + !is_ascend - ranks);
    if (out->more != NULL) out->more_len = (size_t)(last - out->more);
    return true;
}
