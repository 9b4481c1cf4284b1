/* SPDX-License-Identifier: Apache-2.0
 * See headers.h. */
#include "conductor/proxy/headers.h"

#include <string.h>
#include <strings.h>

bool
kvp_headers_next(const kvp_buf_t *list, size_t *at, const char **name_out, const char **value_out)
{
    if (*at >= list->len) return false;
    *name_out = (const char *)list->data + *at;
    if (*at + strlen(*name_out) + 1 >= list->len) return false;
    *value_out = *name_out + strlen(*name_out) + 1;
    *at += strlen(*name_out) + strlen(*value_out) + 2;
    return true;
}

const char *
kvp_headers_find(const kvp_buf_t *list, const char *name)
{
    const char *found, *value;

    for (size_t at = 0; kvp_headers_next(list, &at, &found, &value);)
        if (strcasecmp(found, name) == 0) return value;
    return NULL;
}

/* Returns whether the name is an element of the comma-separated value, ignoring case. */
static bool
is_element(const char *value, const char *name)
{
    for (;;) {
        value += strspn(value, ", \t");
        const size_t len = strcspn(value, ", \t");

        if (len == 0) return false;
        if (len == strlen(name) && strncasecmp(value, name, len) == 0) return true;
        value += len;
    }
}

bool
kvp_headers_passes(const kvp_buf_t *list, const char *name)
{
    static const char *const kept[] = {"Connection",   "Keep-Alive",        "Proxy-Connection", "Proxy-Authenticate",
                                       "Trailer",      "Transfer-Encoding", "Upgrade",          "Content-Length",
                                       "Content-Type", "X-Request-Id"};
    const char *found, *value;

    for (size_t i = 0; i < KVP_ARRAY_LEN(kept); i++)
        if (strcasecmp(name, kept[i]) == 0) return false;
    if (strncasecmp(name, "Access-Control-", 15) == 0) return false;
    for (size_t at = 0; kvp_headers_next(list, &at, &found, &value);)
        if (strcasecmp(found, "Connection") == 0 && is_element(value, name)) return false;
    return true;
}
