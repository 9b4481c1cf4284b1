/* SPDX-License-Identifier: Apache-2.0 */
#include "common/http_guard.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

typedef struct {
    const char *text;
    size_t len;
} span_t;

static void
set_once(kvp_http_guard_t *guard, const char **slot, const char *value)
{
    if (*slot != NULL) guard->has_twice = true;
    *slot = value;
}

static span_t
trim_value(const char *text)
{
    span_t s = {.text = text + strspn(text, " \t")};

    s.len = strlen(s.text);
    while (s.len > 0 && strchr(" \t", s.text[s.len - 1]) != NULL)
        s.len--;
    return s;
}

static bool
is_equal(span_t a, span_t b)
{
    return a.len == b.len && strncasecmp(a.text, b.text, a.len) == 0;
}

void
kvp_http_guard_header(kvp_http_guard_t *guard, const char *name, const char *value)
{
    if (value == NULL) value = "";
    if (strcasecmp(name, "Host") == 0) set_once(guard, &guard->host, value);
    if (strcasecmp(name, "Origin") == 0) set_once(guard, &guard->origin, value);
    if (strcasecmp(name, "Sec-Fetch-Site") == 0) {
        guard->has_site = true;
        guard->is_cross_site |= is_equal(trim_value(value), trim_value("cross-site"));
    }
    if (strcasecmp(name, "Sec-Fetch-Dest") == 0) guard->is_visit = is_equal(trim_value(value), trim_value("document"));
}

/* Removes the default port from an address, because browsers omit it in an origin. */
static span_t
cut_port(span_t at, const char *port)
{
    const size_t n = strlen(port);

    if (at.len > n && strncmp(at.text + at.len - n, port, n) == 0) at.len -= n;
    return at;
}

static bool
is_own_origin(const char *origin, const char *host)
{
    static const struct {
        const char *scheme, *port;
    } schemes[] = {{"http://", ":80"}, {"https://", ":443"}};
    const span_t from = trim_value(origin);

    for (size_t i = 0; host != NULL && i < KVP_ARRAY_LEN(schemes); i++) {
        const size_t n = strlen(schemes[i].scheme);
        const span_t rest = {from.text + n, from.len - n};

        if (from.len <= n || strncasecmp(from.text, schemes[i].scheme, n) != 0) continue;
        return is_equal(cut_port(rest, schemes[i].port), cut_port(trim_value(host), schemes[i].port));
    }
    return false;
}

/* Returns whether the host is an IP address as in a URL, "localhost", or (not from a browser) a name of one label.
 * A port may follow. */
static bool
is_local_name(const char *host, bool is_browser)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr addr;
    span_t name = trim_value(host);
    const bool is_v6 = name.len > 0 && name.text[0] == '[';
    const char *end = memchr(name.text, is_v6 ? ']' : ':', name.len);
    const char *port = is_v6 && end != NULL ? end + 1 : end;

    if (is_v6 && end == NULL) return false;
    if (port != NULL && port < name.text + name.len &&
        (*port != ':' || strspn(port + 1, "0123456789") < (size_t)(name.text + name.len - port) - 1))
        return false;
    if (is_v6) name.text++;
    if (end != NULL) name.len = (size_t)(end - name.text);
    if (name.len >= sizeof text) return false;
    memcpy(text, name.text, name.len);
    text[name.len] = '\0';
    if (inet_pton(is_v6 ? AF_INET6 : AF_INET, text, &addr) == 1) return true;
    if (is_v6) return false;
    return strcasecmp(text, "localhost") == 0 || (!is_browser && strchr(text, '.') == NULL);
}

const char *
kvp_http_guard_check(const kvp_http_guard_t *guard, bool is_loopback, bool is_page)
{
    if (guard->has_twice) return "the request has two Host or two Origin headers";
    if (guard->is_cross_site && !(is_page && guard->is_visit))
        return "a web page of another site asks (Sec-Fetch-Site); this port is not for web pages";
    if (guard->origin != NULL && !is_own_origin(guard->origin, guard->host))
        return "a web page of another origin asks (Origin is not this server); this port is not for web pages";
    if (is_loopback && guard->host != NULL && !is_local_name(guard->host, guard->origin != NULL || guard->has_site))
        return "this server listens at a loopback address, where Host has to be an IP address or localhost; to use a "
               "name, let it listen at another address";
    return NULL;
}
