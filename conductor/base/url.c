/* SPDX-License-Identifier: Apache-2.0
 * See url.h. */
#include "conductor/base/url.h"

#include <stdio.h>
#include <string.h>

static size_t
scheme_len(const char *text, size_t len)
{
    if (len > 7 && memcmp(text, "http://", 7) == 0) return 7;
    return len > 8 && memcmp(text, "https://", 8) == 0 ? 8 : 0;
}

kvp_err_t
kvp_url_split(const char *url, kvp_hostport_t *at_out, const char **path_out)
{
    const size_t scheme = scheme_len(url, strlen(url));
    const char *host = url + scheme, *end = host[0] == '[' ? strchrnul(host, ']') : host;
    const char *port = end + strcspn(end, ":/"), *path = port + strcspn(port, "/");
    const char *usual = scheme == 8 ? ":443" : ":80";
    char text[KVP_HOSTPORT_TEXT_MAX];
    const int n = snprintf(text, sizeof text, "%.*s%s", (int)(path - host), host, port == path ? usual : "");

    if (scheme == 0 || n >= (int)sizeof text || kvp_parse_hostport(text, at_out) != KVP_OK || at_out->port == 0)
        return KVP_INVALID;
    *path_out = path;
    return KVP_OK;
}

kvp_err_t
kvp_base_url(const char *text, size_t len, char *out, size_t cap)
{
    const size_t scheme = scheme_len(text, len);
    kvp_hostport_t at;
    const char *path;

    while (len > scheme && text[len - 1] == '/')
        len--;
    if (len > scheme + 3 && memcmp(text + len - 3, "/v1", 3) == 0) len -= 3;
    if (scheme == 0 || len == scheme || len >= cap) return KVP_INVALID;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 0x7f || strchr("\"\\?#@,", text[i]) != NULL)
            return KVP_INVALID;
    memmove(out, text, len); /* memmove, because out and text may overlap */
    out[len] = '\0';
    return kvp_url_split(out, &at, &path);
}
