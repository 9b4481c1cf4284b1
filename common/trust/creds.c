/* SPDX-License-Identifier: Apache-2.0 */
#include "common/trust/creds.h"

#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHY_SHORT 64u

static kvp_err_t
read_token(int fd, char *token_out, size_t *len_out, char *why_out)
{
    char text[KVP_CREDS_TOKEN_MAX + 2];
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        snprintf(why_out, WHY_SHORT, "not a file");
        return KVP_INVALID;
    }
    if ((st.st_mode & (S_IRGRP | S_IROTH | S_IWGRP | S_IWOTH)) != 0 && st.st_uid == geteuid()) {
        snprintf(why_out, WHY_SHORT, "other users may read it: chmod 600");
        return KVP_INVALID;
    }
    n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    *len_out = strcspn(text, "\r\n");
    if (*len_out == 0 || *len_out > KVP_CREDS_TOKEN_MAX || strncmp(text, "kvp_", 4) != 0) {
        snprintf(why_out, WHY_SHORT, "its first line is not a token (kvp_ and 43 characters)");
        *len_out = 0;
        return KVP_INVALID;
    }
    memcpy(token_out, text, *len_out);
    return KVP_OK;
}

bool
kvp_creds_withhold(bool is_protected)
{
    const char *path = getenv("KVPOOL_TOKEN_FILE"), *plain = getenv("KVPOOL_INSECURE_TOKENS");

    return !is_protected && path != NULL && path[0] != '\0' && (plain == NULL || strcmp(plain, "yes") != 0);
}

kvp_err_t
kvp_creds_token(bool is_protected, char token_out[KVP_CREDS_TOKEN_MAX], size_t *len_out, char *why_out)
{
    const char *path = getenv("KVPOOL_TOKEN_FILE");
    char why[WHY_SHORT];
    kvp_err_t err;
    int fd;

    *len_out = 0;
    if (path == NULL || path[0] == '\0') return KVP_OK;
    if (kvp_creds_withhold(is_protected)) return KVP_OK;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        snprintf(why_out, KVP_CREDS_WHY_MAX, "KVPOOL_TOKEN_FILE: cannot open %.80s: %.60s", path, strerror(errno));
        return KVP_INVALID;
    }
    err = read_token(fd, token_out, len_out, why);
    close(fd);
    if (err != KVP_OK) snprintf(why_out, KVP_CREDS_WHY_MAX, "KVPOOL_TOKEN_FILE: %.80s: %.60s", path, why);
    return err;
}

static const char *
find_path(const char *name)
{
    const char *path = getenv(name);

    return path == NULL || path[0] == '\0' ? NULL : path;
}

bool
kvp_creds_tls(kvp_creds_t *creds_out)
{
    *creds_out = (kvp_creds_t){.tls_ca = find_path("KVPOOL_TLS_CA"),
                               .tls_cert = find_path("KVPOOL_TLS_CERT"),
                               .tls_key = find_path("KVPOOL_TLS_KEY"),
                               .tls_crl = find_path("KVPOOL_TLS_CRL")};
    return creds_out->tls_ca != NULL || creds_out->tls_cert != NULL;
}

bool
kvp_creds_are_certificate(void)
{
    return find_path("KVPOOL_TLS_CERT") != NULL && find_path("KVPOOL_TOKEN_FILE") == NULL;
}

static bool
set_path(const char *name, const char *path)
{
    return path == NULL || setenv(name, path, 1) == 0;
}

kvp_err_t
kvp_creds_set(const kvp_creds_t *options)
{
    const bool is_set = set_path("KVPOOL_TOKEN_FILE", options->token_file) &&
                        set_path("KVPOOL_TLS_CA", options->tls_ca) && set_path("KVPOOL_TLS_CERT", options->tls_cert) &&
                        set_path("KVPOOL_TLS_KEY", options->tls_key) && set_path("KVPOOL_TLS_CRL", options->tls_crl);

    return is_set ? KVP_OK : KVP_NOMEM;
}

kvp_err_t
kvp_may_listen(const char *option, const kvp_hostport_t *at, bool is_protected, const char *fix, bool is_insecure)
{
    const char *wanted = getenv("KVPOOL_SECURITY");
    const bool is_required = wanted != NULL && wanted[0] != '\0';
    char text[KVP_HOSTPORT_TEXT_MAX];

    if (is_required && strcmp(wanted, "required") != 0) {
        kvp_log_error("security", "KVPOOL_SECURITY is \"required\" or not set, not %s", wanted);
        return KVP_INVALID;
    }
    if (at->host[0] == '\0' || is_protected || kvp_hostport_is_loopback(at)) return KVP_OK;
    if (is_insecure && !is_required) return KVP_OK;
    kvp_log_error("security", "%s%s %s is not protected, and other hosts reach it. Give %s, or a loopback address%s",
                  is_required ? "KVPOOL_SECURITY=required: " : "", option, kvp_format_hostport(at, text), fix,
                  is_required ? "" : ", or --insecure in a network where every host may use the port");
    return KVP_INVALID;
}

const char *
kvp_protection_of(const kvp_hostport_t *at, const char *by)
{
    if (at->host[0] == '\0') return "closed";
    if (by != NULL) return by;
    return kvp_hostport_is_loopback(at) ? "loopback" : "unprotected";
}

const char *
kvp_protection_of_http(const kvp_hostport_t *at, bool has_tokens, bool has_tls)
{
    return kvp_protection_of(at, !has_tokens ? NULL : has_tls ? "tls" : "tokens");
}
