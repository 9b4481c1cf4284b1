/* SPDX-License-Identifier: Apache-2.0 */
#include "master/shell/authn.h"

#include "common/hash.h"
#include "common/parse.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CERTIFICATE_GRACE_S 86400u /* a session may last this long after the end of its certificate */

/* Reads a text UID=ROLE:TENANT; without :TENANT the tenant is the default one. */
static bool
read_user(const char *text, kvp_authn_user_t *to)
{
    char uid[16], role[16];
    const char *tenant;
    uint64_t number;

    if (sscanf(text, "%15[0-9]=%15[a-z]", uid, role) != 2 || kvp_parse_u64(uid, &number) != KVP_OK) return false;
    tenant = text + strlen(uid) + 1 + strlen(role);
    if (number >= UINT32_MAX || kvp_authrole_parse(role, &to->who.role) != KVP_OK) return false;
    if (*tenant != '\0' && *tenant++ != ':') return false;
    if (*tenant == '\0' && kvp_authrole_is_client(to->who.role)) tenant = "default"; /* a daemon needs a name */
    if (kvp_identity_set_name(&to->who, tenant, strlen(tenant)) != NULL) return false;
    to->uid = (uid_t)number;
    to->who.proof = KVP_BY_USER;
    snprintf(to->who.id, sizeof to->who.id, "uid:%u", (unsigned)number);
    return true;
}

kvp_err_t
kvp_authn_open(kvp_authn_t *a, const kvp_authn_conf_t *conf)
{
    kvp_err_t err = KVP_OK;

    *a = (kvp_authn_t){.conf = *conf};
    if (conf->users.count > KVP_AUTHN_USERS_MAX) {
        kvp_log_error("master", "--map-uid: more than %u users", KVP_AUTHN_USERS_MAX);
        return KVP_LIMIT;
    }
    for (size_t i = 0; i < conf->users.count; i++) {
        if (read_user(conf->users.items[i], &a->users[i])) continue;
        kvp_log_error("master", "--map-uid takes UID=ROLE:TENANT: a number, a role, and a tenant or none value=%s",
                      conf->users.items[i]);
        return KVP_INVALID;
    }
    if (conf->token_file != NULL)
        err = kvp_tokenfile_load(conf->token_file, time(NULL), &a->stamp, &a->tokens, a->load_why);
    if (err != KVP_OK) kvp_log_error("master", "--tokens: %s file=%s", a->load_why, conf->token_file);
    return err;
}

void
kvp_authn_close(kvp_authn_t *a)
{
    kvp_tokenfile_destroy(a->tokens);
    kvp_tokenfile_destroy(a->loaded);
    a->tokens = a->loaded = NULL;
}

static bool
is_unix(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;

    return getsockname(fd, (struct sockaddr *)&at, &len) == 0 && at.ss_family == AF_UNIX;
}

static void
find_user(const kvp_authn_t *a, int fd, kvp_identity_t *who_out)
{
    socklen_t len = sizeof(struct ucred);
    struct ucred peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
        kvp_identity_refuse(who_out, KVP_DENIED, "the kernel does not report the peer's user");
        return;
    }
    for (size_t i = 0; i < a->conf.users.count; i++) {
        if (a->users[i].uid != peer.uid) continue;
        *who_out = a->users[i].who;
        return;
    }
    if (peer.uid != 0 && peer.uid != geteuid()) {
        kvp_identity_refuse(who_out, KVP_DENIED, "no --map-uid for the user %u, and no token", (unsigned)peer.uid);
        return;
    }
    *who_out = (kvp_identity_t){.role = KVP_MAY_ADMIN, .proof = KVP_BY_USER, .is_owner = true};
    snprintf(who_out->id, sizeof who_out->id, "uid:%u", (unsigned)peer.uid);
}

void
kvp_authn_find(kvp_authn_t *a, int fd, const kvp_tls_t *tls, const void *token, size_t len, kvp_identity_t *who_out)
{
    const bool is_local = is_unix(fd);

    *who_out = (kvp_identity_t){.role = KVP_MAY_NOTHING};
    if (!is_local && tls == NULL && a->conf.has_tls)
        kvp_identity_refuse(who_out, KVP_DENIED, "this master accepts only TLS: set KVPOOL_TLS_CA to the pool's CA%s",
                            len > 0 ? ", and replace the token, which others may have read" : "");
    else if (len > 0 && !is_local && tls == NULL && !a->conf.allows_plain_tokens)
        kvp_identity_refuse(who_out, KVP_DENIED,
                            "a token on a connection that is not encrypted: others may have read it, so replace it");
    else if (len > 0)
        kvp_tokenfile_find(a->tokens, token, len, (uint64_t)time(NULL), who_out);
    else if (is_local)
        find_user(a, fd, who_out);
    else if (tls != NULL)
        *who_out = *kvp_tls_peer(tls);
    if (who_out->role == KVP_MAY_NOTHING && who_out->err == KVP_OK)
        kvp_identity_refuse(who_out, KVP_DENIED, "no %stoken: the pool asks for an identity (%sKVPOOL_TOKEN_FILE)",
                            tls == NULL ? "" : "certificate and no ",
                            tls == NULL ? "" : "KVPOOL_TLS_CERT and KVPOOL_TLS_KEY, or ");
    if (who_out->role == KVP_MAY_NOTHING && len > 0) who_out->proof = KVP_BY_TOKEN;
}

/* ---- reading the file again */
static void
on_load(uv_work_t *work)
{
    kvp_authn_t *a = work->data;

    a->load_err = kvp_tokenfile_load(a->conf.token_file, time(NULL), &a->stamp, &a->loaded, a->load_why);
}

static void
on_loaded(uv_work_t *work, int status)
{
    kvp_authn_t *a = work->data;

    (void)status;
    a->is_loading = false;
    if (a->load_err != KVP_OK) {
        kvp_log_error("master", "the token file is not valid, the tokens read before stay in force: %s file=%s",
                      a->load_why, a->conf.token_file);
    } else if (a->loaded != NULL) {
        kvp_tokenfile_destroy(a->tokens);
        a->tokens = a->loaded;
        a->loaded = NULL;
        a->version++;
        kvp_log_info("master", "the token file was read again tokens=%zu file=%s", kvp_tokenfile_count(a->tokens),
                     a->conf.token_file);
    }
}

void
kvp_authn_refresh(kvp_authn_t *a, uv_loop_t *uv)
{
    if (a->conf.token_file == NULL || a->is_loading) return;
    a->is_loading = true;
    a->work.data = a;
    (void)uv_queue_work(uv, &a->work, on_load, on_loaded);
}

const char *
kvp_authn_is_valid(const kvp_authn_t *a, const kvp_identity_t *who)
{
    if (who->role == KVP_MAY_NOTHING) return NULL;
    if (who->proof == KVP_BY_CERTIFICATE && who->end_s + CERTIFICATE_GRACE_S <= (uint64_t)time(NULL))
        return "the certificate ended a day ago";
    if (who->proof != KVP_BY_TOKEN) return NULL;
    if (who->end_s != 0 && who->end_s <= (uint64_t)time(NULL)) return "the token has ended";
    return kvp_tokenfile_has(a->tokens, who) ? NULL : "the token was deleted or changed";
}

void
kvp_authn_audit(const kvp_identity_t *who, const char *from, const char *what, const char *object, const char *tenant,
                kvp_err_t err, const char *why)
{
    uint32_t missed;

    if (!kvp_log_audit_ok(&missed)) return;
    kvp_log_write(err == KVP_OK ? KVP_LOG_INFO : KVP_LOG_WARN, "audit",
                  "%s who=%s role=%s tenant=%s from=%s what=%s result=%s object=%s cause=%s missed=%u",
                  err == KVP_OK ? "allowed" : "refused", who == NULL ? "" : who->id,
                  kvp_authrole_name(who == NULL ? KVP_MAY_NOTHING : who->role), tenant, from, what, kvp_err_name(err),
                  object, why, missed);
}
