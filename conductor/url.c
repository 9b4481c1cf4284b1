/* SPDX-License-Identifier: Apache-2.0
 * See url.h.
 */
#include "conductor/url.h"

#include "common/parse.h"

#include <string.h>

static size_t
scheme_len(const char *text, size_t len)
{
    if (len > 7 && memcmp(text, "http://", 7) == 0) return 7;
    return len > 8 && memcmp(text, "https://", 8) == 0 ? 8 : 0;
}

const char *
kvp_url_host_end(const char *url)
{
    const char *host = url + scheme_len(url, strlen(url)), *end;

    if (host[0] != '[') return host + strcspn(host, ":/");
    end = strchr(host, ']');
    return end == NULL ? host : end + 1;
}

static bool
has_good_port(const char *host_end)
{
    char port[8];
    const size_t len = strcspn(host_end, "/");
    uint64_t number;

    if (len == 0) return true;
    if (host_end[0] != ':' || len > sizeof port) return false;
    memcpy(port, host_end + 1, len - 1);
    port[len - 1] = '\0';
    return kvp_parse_u64(port, &number) == KVP_OK && number > 0 && number <= UINT16_MAX;
}

kvp_err_t
kvp_base_url(const char *text, size_t len, char *out, size_t cap)
{
    const size_t scheme = scheme_len(text, len);
    const char *end;

    while (len > scheme && text[len - 1] == '/')
        len--;
    if (len > scheme + 3 && memcmp(text + len - 3, "/v1", 3) == 0) len -= 3;
    if (scheme == 0 || len == scheme || len >= cap) return KVP_INVALID;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 0x7f || strchr("\"\\?#@,", text[i]) != NULL)
            return KVP_INVALID;
    memmove(out, text, len); /* out may be text */
    out[len] = '\0';
    end = kvp_url_host_end(out);
    return end > out + scheme && has_good_port(end) ? KVP_OK : KVP_INVALID;
}
