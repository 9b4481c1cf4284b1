/* SPDX-License-Identifier: Apache-2.0 */
#include "common/daemon/http_tokens.h"

#include "common/clock.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define REFRESH_NS KVP_NS_PER_S
#define OWN_BYTES 24u /* number of random bytes in the token that this process makes for its own requests */
#define AUDIT_PATH_MAX 120 /* most characters of a path in the audit */

/* The rule with the longest fitting path counts. A path that ends with a slash covers all paths below it. method NULL:
 * all methods. */
static const struct {
    const char *method, *path;
    kvp_authrole_t role; /* KVP_MAY_NOTHING: needs no token */
} rules[] = {
    {"GET", "/", KVP_MAY_NOTHING},
    {"GET", "/health", KVP_MAY_NOTHING},
    {"GET", "/healthcheck", KVP_MAY_NOTHING},
    {"GET", "/ready", KVP_MAY_NOTHING},
    {"POST", "/query", KVP_MAY_READ},
    {"POST", "/query_by_hash", KVP_MAY_READ},
    {"POST", "/route", KVP_MAY_READ},
    {"POST", "/route/done", KVP_MAY_READ},
    {"GET", "/explain", KVP_MAY_ADMIN}, /* of any tenant */
    {"GET", "/global_view", KVP_MAY_ADMIN},
    {NULL, "/api/", KVP_MAY_WRITE},
};

kvp_err_t
kvp_http_tokens_open(kvp_http_tokens_t *t, const char *path, bool has_metrics, kvp_authrole_t rest)
{
    char why[KVP_TOKENS_WHY_MAX];
    uint64_t random[OWN_BYTES / 8];
    kvp_err_t err;

    *t = (kvp_http_tokens_t){.file = path, .has_metrics = has_metrics, .rest = rest};
    if (path == NULL && has_metrics) {
        kvp_log_error("http", "--metrics-token needs tokens: --tokens FILE");
        return KVP_INVALID;
    }
    if (path == NULL) return KVP_OK;
    pthread_mutex_init(&t->lock, NULL);
    for (size_t i = 0; i < KVP_ARRAY_LEN(random); i++)
        random[i] = kvp_random_u64();
    snprintf(t->own, sizeof t->own, "Bearer %016llx%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1], (unsigned long long)random[2]);
    err = kvp_tokenfile_load(path, time(NULL), &t->stamp, &t->tokens, why);
    if (err != KVP_OK) kvp_log_error("http", "the token file: %s file=%s", why, path);
    return err;
}

void
kvp_http_tokens_close(kvp_http_tokens_t *t)
{
    if (t->file != NULL) pthread_mutex_destroy(&t->lock);
    kvp_tokenfile_destroy(t->tokens);
    t->tokens = NULL;
    t->file = NULL;
}

/* The caller holds the lock. */
static void
refresh_tokens(kvp_http_tokens_t *t)
{
    const uint64_t now_ns = kvp_now_ns();
    char why[KVP_TOKENS_WHY_MAX];
    kvp_tokenfile_t *tokens = NULL;

    if (now_ns - t->checked_ns < REFRESH_NS) return;
    t->checked_ns = now_ns;
    if (kvp_tokenfile_load(t->file, time(NULL), &t->stamp, &tokens, why) != KVP_OK) {
        kvp_log_error("http", "the token file is not valid, the tokens read before stay in force: %s file=%s", why,
                      t->file);
    } else if (tokens != NULL) {
        kvp_tokenfile_destroy(t->tokens);
        t->tokens = tokens;
    }
}

static kvp_authrole_t
find_role(const kvp_http_tokens_t *t, const char *method, const char *path)
{
    kvp_authrole_t role = t->rest != KVP_MAY_NOTHING   ? t->rest
                          : strcmp(method, "GET") == 0 ? KVP_MAY_MONITOR
                                                       : KVP_MAY_WRITE;
    size_t longest = 0;

    if (strcmp(path, "/metrics") == 0) return t->has_metrics ? KVP_MAY_MONITOR : KVP_MAY_NOTHING;
    for (size_t i = 0; i < KVP_ARRAY_LEN(rules); i++) {
        const size_t len = strlen(rules[i].path);
        const bool covers = len > 1 && rules[i].path[len - 1] == '/' && strncmp(path, rules[i].path, len) == 0;

        if (len < longest || (rules[i].method != NULL && strcmp(method, rules[i].method) != 0)) continue;
        if (!covers && strcmp(path, rules[i].path) != 0) continue;
        role = rules[i].role;
        longest = len;
    }
    return role;
}

/* Compares all bytes, so that the time of the comparison does not show how many bytes are right. */
static bool
is_own(const kvp_http_tokens_t *t, const char *authorization)
{
    const size_t len = strlen(t->own);
    unsigned differ = 0;

    if (strlen(authorization) != len) return false;
    for (size_t i = 0; i < len; i++)
        differ |= (unsigned char)authorization[i] ^ (unsigned char)t->own[i];
    return differ == 0;
}

unsigned
kvp_http_tokens_check(kvp_http_tokens_t *t, const char *method, const char *path, const char *authorization,
                      const char *from, char why_out[KVP_IDENTITY_WHY_MAX])
{
    const char *asked = strcmp(method, "HEAD") == 0 ? "GET" : method;
    kvp_authrole_t role;
    kvp_identity_t who = {.role = KVP_MAY_NOTHING};
    unsigned status = 401;
    uint32_t missed;

    if (t->file == NULL) return 0;
    role = find_role(t, asked, path);
    if (role == KVP_MAY_NOTHING || (authorization != NULL && is_own(t, authorization))) return 0;
    pthread_mutex_lock(&t->lock);
    refresh_tokens(t);
    if (authorization == NULL || strncasecmp(authorization, "Bearer ", 7) != 0)
        kvp_identity_refuse(&who, KVP_DENIED, "no token: send the header Authorization: Bearer TOKEN");
    else
        kvp_tokenfile_find(t->tokens, authorization + 7, strlen(authorization + 7), (uint64_t)time(NULL), &who);
    pthread_mutex_unlock(&t->lock);
    if (kvp_authrole_is_client(who.role)) {
        status = 403;
        if (who.role != KVP_MAY_ADMIN && strncmp(path, "/api/", 5) == 0 && who.name[0] != '\0')
            snprintf(who.why, sizeof who.why, "this port serves the default tenant, not %.60s", who.name);
        else if (!kvp_authrole_covers(who.role, role))
            snprintf(who.why, sizeof who.why, "the role %s may not do this; it needs the role %s",
                     kvp_authrole_name(who.role), kvp_authrole_name(role));
        else
            return 0;
    } else if (who.role != KVP_MAY_NOTHING) {
        status = 403;
        snprintf(who.why, sizeof who.why, "a token of the role %s is not for HTTP", kvp_authrole_name(who.role));
    }
    memcpy(why_out, who.why, sizeof who.why);
    if (kvp_log_audit_ok(&missed))
        kvp_log_write(
            KVP_LOG_WARN, "audit", "refused who=%s role=%s tenant=%s from=%s what=%s %.*s result=%u cause=%s missed=%u",
            who.id, kvp_authrole_name(who.role), who.name, from, asked, AUDIT_PATH_MAX, path, status, who.why, missed);
    return status;
}
