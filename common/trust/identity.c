/* SPDX-License-Identifier: Apache-2.0 */
#include "common/trust/identity.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SCHEME "kvpool://"

static const char *const role_names[] = {
    [KVP_MAY_NOTHING] = "none", [KVP_MAY_MONITOR] = "monitor",    [KVP_MAY_READ] = "reader",
    [KVP_MAY_WRITE] = "writer", [KVP_MAY_ADMIN] = "admin",        [KVP_IS_NODE] = "node",
    [KVP_IS_MASTER] = "master", [KVP_IS_CONDUCTOR] = "conductor", [KVP_IS_ENGINE] = "engine"};

const char *
kvp_authrole_name(kvp_authrole_t role)
{
    return (size_t)role < KVP_ARRAY_LEN(role_names) ? role_names[role] : "none";
}

kvp_err_t
kvp_authrole_parse(const char *text, kvp_authrole_t *role_out)
{
    for (size_t i = KVP_MAY_MONITOR; i < KVP_ARRAY_LEN(role_names); i++) {
        if (strcmp(text, role_names[i]) != 0) continue;
        *role_out = (kvp_authrole_t)i;
        return KVP_OK;
    }
    return KVP_INVALID;
}

bool
kvp_authrole_is_client(kvp_authrole_t role)
{
    return (role >= KVP_MAY_MONITOR && role <= KVP_MAY_ADMIN) || role == KVP_IS_ENGINE;
}

bool
kvp_authrole_is_daemon(kvp_authrole_t has, kvp_authrole_t wanted)
{
    return has == wanted || (has == KVP_IS_ENGINE && wanted == KVP_IS_NODE);
}

bool
kvp_authrole_covers(kvp_authrole_t has, kvp_authrole_t needed)
{
    if (has == KVP_IS_NODE) has = KVP_MAY_READ;
    if (has == KVP_IS_ENGINE) has = KVP_MAY_WRITE;
    return needed != KVP_MAY_NOTHING && kvp_authrole_is_client(has) && has >= needed;
}

const char *
kvp_identity_check_name(const char *name, size_t len)
{
    if (len == 0) return "the name is empty";
    if (len > KVP_IDENTITY_NAME_MAX) return "the name is longer than 128 bytes";
    for (size_t i = 0; i < len; i++) {
        const char c = name[i];
        const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

        if (c == '\0') return "the name has a NUL byte";
        if (!is_word && strchr(".-_~:@+", c) == NULL) return "the name has a character other than A-Za-z0-9.-_~:@+";
    }
    return NULL;
}

const char *
kvp_identity_set_name(kvp_identity_t *who, const char *text, size_t len)
{
    const char *slash = who->role == KVP_IS_ENGINE ? memchr(text, '/', len) : NULL;
    const size_t n = slash == NULL ? len : (size_t)(slash - text);
    const char *why = kvp_identity_check_name(text, n);

    if (why == NULL && who->role == KVP_IS_ENGINE)
        why = slash == NULL ? "an engine's name is TENANT/NODE" : kvp_identity_check_name(slash + 1, len - n - 1);
    if (why != NULL) return why;
    snprintf(who->name, sizeof who->name, "%.*s", (int)n, text);
    if (kvp_authrole_is_client(who->role) && strcmp(who->name, "default") == 0) who->name[0] = '\0';
    if (slash != NULL) snprintf(who->node, sizeof who->node, "%.*s", (int)(len - n - 1), slash + 1);
    return NULL;
}

bool
kvp_identity_is_node(const kvp_identity_t *who, const char *name)
{
    const size_t n = strlen(who->node);

    if (who->role != KVP_IS_ENGINE) return who->role == KVP_IS_NODE && strcmp(who->name, name) == 0;
    if (name[0] == '[') return strncmp(name + 1, who->node, n) == 0 && strncmp(name + 1 + n, "]:", 2) == 0;
    return strncmp(name, who->node, n) == 0 && (name[n] == '\0' || name[n] == ':');
}

/* Takes the text up to the next slash, or to the end, as the next part of a URI. */
static size_t
take_part(const char **at, const char *end, const char **part_out)
{
    const char *from = *at, *slash = memchr(from, '/', (size_t)(end - from));
    const char *to = slash == NULL ? end : slash;

    *part_out = from;
    *at = slash == NULL ? end : slash + 1;
    return (size_t)(to - from);
}

kvp_err_t
kvp_identity_parse_uri(const char *uri, size_t len, kvp_identity_t *who_out, const char **why_out)
{
    const char *at = uri + strlen(SCHEME), *end = uri + len, *part;
    kvp_identity_t who = {.proof = KVP_BY_CERTIFICATE};
    char role[16];
    size_t n;

    *why_out = "it does not begin with kvpool://";
    if (len < strlen(SCHEME) || memcmp(uri, SCHEME, strlen(SCHEME)) != 0) return KVP_INVALID;
    n = take_part(&at, end, &part);
    *why_out = kvp_identity_check_name(part, n);
    if (*why_out == NULL && n > KVP_IDENTITY_CLUSTER_MAX) *why_out = "the cluster's name is longer than 64 bytes";
    if (*why_out != NULL) return KVP_INVALID;
    memcpy(who.cluster, part, n);
    n = take_part(&at, end, &part);
    *why_out = "it has an unknown role";
    if (n >= sizeof role) return KVP_INVALID;
    memcpy(role, part, n);
    role[n] = '\0';
    if (strlen(role) != n || kvp_authrole_parse(role, &who.role) != KVP_OK) return KVP_INVALID;
    *why_out = kvp_identity_set_name(&who, at, (size_t)(end - at));
    if (*why_out != NULL) return KVP_INVALID;
    *who_out = who;
    return KVP_OK;
}

void
kvp_identity_refuse(kvp_identity_t *who, kvp_err_t err, const char *fmt, ...)
{
    va_list args;

    who->role = KVP_MAY_NOTHING;
    who->err = err;
    va_start(args, fmt);
    vsnprintf(who->why, sizeof who->why, fmt, args);
    va_end(args);
}
