/* SPDX-License-Identifier: Apache-2.0
 * Strict parsers: a text is accepted as a whole or refused, and no value wraps around. */
#include "common/parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HTTPS "https://"

typedef struct {
    const char *name;
    uint64_t scale;
} unit_t;

static const unit_t byte_units[] = {
    {"", 1},
    {"b", 1},
    {"kb", 1000},
    {"mb", 1000000},
    {"gb", 1000000000},
    {"tb", 1000000000000},
    {"kib", 1ull << 10},
    {"mib", 1ull << 20},
    {"gib", 1ull << 30},
    {"tib", 1ull << 40},
};

static const unit_t duration_units[] = {
    {"ns", 1},          {"us", 1000},         {"ms", 1000000},       {"s", 1000000000},
    {"m", 60000000000}, {"h", 3600000000000}, {"d", 86400000000000},
};

/* parse_digits reads the number at the beginning of the text. *end_out is the first character after the number. */
static kvp_err_t
parse_digits(const char *text, uint64_t *value_out, const char **end_out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, 10u, &value)) return KVP_INVALID;
        if (__builtin_add_overflow(value, (unsigned)(*at - '0'), &value)) return KVP_INVALID;
    }
    if (at == text) return KVP_INVALID;
    *value_out = value;
    *end_out = at;
    return KVP_OK;
}

static kvp_err_t
parse_scaled(const char *text, const unit_t *units, size_t n, uint64_t *value_out)
{
    uint64_t value;
    const char *unit;
    kvp_err_t err = parse_digits(text, &value, &unit);
    if (err != KVP_OK) return err;
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(unit, units[i].name) != 0) continue;
        if (__builtin_mul_overflow(value, units[i].scale, &value)) return KVP_INVALID;
        *value_out = value;
        return KVP_OK;
    }
    return KVP_INVALID;
}

kvp_err_t
kvp_parse_u64(const char *text, uint64_t *value_out)
{
    uint64_t value;
    const char *end;
    kvp_err_t err = parse_digits(text, &value, &end);
    if (err != KVP_OK) return err;
    if (*end != '\0') return KVP_INVALID;
    *value_out = value;
    return KVP_OK;
}

kvp_err_t
kvp_parse_bytes(const char *text, uint64_t *bytes_out)
{
    return parse_scaled(text, byte_units, KVP_ARRAY_LEN(byte_units), bytes_out);
}

kvp_err_t
kvp_parse_duration_ns(const char *text, uint64_t *ns_out)
{
    if (strcmp(text, "0") == 0) {
        *ns_out = 0;
        return KVP_OK;
    }
    return parse_scaled(text, duration_units, KVP_ARRAY_LEN(duration_units), ns_out);
}

static bool
is_host_char(char c, bool is_bracketed)
{
    bool is_alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (is_alnum || c == '.') return true;
    return is_bracketed ? c == ':' || c == '%' : c == '-' || c == '_';
}

/* parse_hostport_span reads an address from the len bytes at text. */
static kvp_err_t
parse_hostport_span(const char *text, size_t len, kvp_hostport_t *at_out)
{
    kvp_hostport_t at = {0};
    const char *colon = memrchr(text, ':', len);
    if (colon == NULL) return KVP_INVALID;
    const char *host = text;
    size_t host_len = (size_t)(colon - text);
    size_t port_len = len - host_len - 1;

    bool is_bracketed = host_len >= 2 && host[0] == '[' && host[host_len - 1] == ']';
    if (is_bracketed) {
        host++;
        host_len -= 2;
    }
    if (host_len == 0 || host_len >= sizeof(at.host)) return KVP_INVALID;
    for (size_t i = 0; i < host_len; i++) {
        if (!is_host_char(host[i], is_bracketed)) return KVP_INVALID;
    }
    if (is_bracketed && memchr(host, ':', host_len) == NULL) return KVP_INVALID;
    memcpy(at.host, host, host_len);

    char digits[6] = {0};
    uint64_t port;
    if (port_len == 0 || port_len >= sizeof(digits)) return KVP_INVALID;
    memcpy(digits, colon + 1, port_len);
    kvp_err_t err = kvp_parse_u64(digits, &port);
    if (err != KVP_OK) return err;
    if (port > UINT16_MAX) return KVP_INVALID;
    at.port = (uint16_t)port;
    *at_out = at;
    return KVP_OK;
}

kvp_err_t
kvp_parse_hostport(const char *text, kvp_hostport_t *at_out)
{
    return parse_hostport_span(text, strlen(text), at_out);
}

kvp_err_t
kvp_parse_hostports(const char *text, kvp_hostport_t *at_out, size_t max, size_t *n_out)
{
    size_t n = 0;
    for (const char *at = text;;) {
        size_t len = strcspn(at, ",");
        if (n == max) return KVP_LIMIT;
        kvp_err_t err = parse_hostport_span(at, len, &at_out[n]);
        if (err != KVP_OK) return err;
        n++;
        if (at[len] == '\0') break;
        at += len + 1;
    }
    *n_out = n;
    return KVP_OK;
}

const char *
kvp_format_hostport(const kvp_hostport_t *at, char dst[KVP_HOSTPORT_TEXT_MAX])
{
    bool is_ipv6 = strchr(at->host, ':') != NULL;
    snprintf(dst, KVP_HOSTPORT_TEXT_MAX, "%s%s%s:%u", is_ipv6 ? "[" : "", at->host, is_ipv6 ? "]" : "", at->port);
    return dst;
}

kvp_err_t
kvp_parse_http(const char *text, kvp_hostport_t *at_out, bool *has_tls_out)
{
    const bool has_tls = strncmp(text, HTTPS, strlen(HTTPS)) == 0;
    const kvp_err_t err = kvp_parse_hostport(text + (has_tls ? strlen(HTTPS) : 0), at_out);

    if (err == KVP_OK) *has_tls_out = has_tls;
    return err;
}

const char *
kvp_format_http(const kvp_hostport_t *at, bool has_tls, char dst[KVP_HTTP_TEXT_MAX])
{
    strcpy(dst, has_tls ? HTTPS : "");
    kvp_format_hostport(at, dst + strlen(dst));
    return dst;
}

bool
kvp_hostport_is_loopback(const kvp_hostport_t *at)
{
    return strncmp(at->host, "127.", 4) == 0 || strcmp(at->host, "::1") == 0 || strcmp(at->host, "localhost") == 0;
}

const char *
kvp_listen_fix(int no)
{
    switch (no) {
    case EADDRINUSE:
        return " (another program listens there: stop it, or choose another port with --listen; 0 = any free port)";
    case EADDRNOTAVAIL:
        return " (no network interface of this host has this address: with --listen choose an address that `ip "
               "address` shows)";
    case EACCES:
        return " (ports below 1024 are the administrator's: choose another one with --listen)";
    default:
        return "";
    }
}

bool
kvp_is_listed(const char *list, const char *name)
{
    const size_t len = strlen(name);
    for (const char *at = list; *at != '\0';) {
        const size_t n = strcspn(at, ",");
        if (n == len && memcmp(at, name, len) == 0) return true;
        at += n;
        at += *at == ',';
    }
    return false;
}

bool
kvp_is_zmq_endpoint(const char *text)
{
    const char *colon = strrchr(text, ':'), *port = colon == NULL ? text : colon + 1;
    uint64_t number;

    if (strncmp(text, "ipc://", 6) == 0) return text[6] != '\0';
    if (strncmp(text, "tcp://", 6) != 0 || port < text + 8) return false;
    return strcmp(port, "*") == 0 || (kvp_parse_u64(port, &number) == KVP_OK && number <= UINT16_MAX);
}
