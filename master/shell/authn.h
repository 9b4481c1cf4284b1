/* SPDX-License-Identifier: Apache-2.0
 * Finds the identity of a peer: by the token that the peer sends, by its certificate, or by the user that the kernel
 * reports for a Unix socket (ADR 0051). The table of tokens is read again when its file changes. All functions belong
 * to the loop's thread; files are read in a thread of libuv's pool. */
#ifndef KVP_MASTER_SHELL_AUTHN_H
#define KVP_MASTER_SHELL_AUTHN_H

#include "common/daemon/conf.h"
#include "common/log.h"
#include "common/trust/tls.h"
#include "common/trust/tokens.h"

#include <sys/types.h>
#include <uv.h>

#define KVP_AUTHN_USERS_MAX 64u

typedef struct {
    const char *token_file; /* path of the token file; NULL = no tokens; borrowed */
    kvp_strings_t users; /* texts UID=ROLE:TENANT; borrowed */
    bool has_metrics_token; /* flag: /metrics needs a token, too */
    bool has_tls; /* flag: TCP connections are encrypted, and a certificate may prove an identity */
    bool allows_plain_tokens; /* flag: tokens are accepted on TCP connections without TLS */
} kvp_authn_conf_t;

typedef struct {
    uid_t uid;
    kvp_identity_t who;
} kvp_authn_user_t;

typedef struct {
    kvp_authn_conf_t conf;
    kvp_authn_user_t users[KVP_AUTHN_USERS_MAX];
    kvp_tokenfile_t *tokens; /* NULL = no token file */
    uint64_t version; /* rises with each change of the table */

    uv_work_t work;
    bool is_loading; /* flag: the fields below belong to the pool's thread */
    kvp_tokenfile_stamp_t stamp;
    kvp_tokenfile_t *loaded;
    kvp_err_t load_err;
    char load_why[KVP_TOKENS_WHY_MAX];
} kvp_authn_t;

/* kvp_authn_open reads the token file and the users. INVALID, LIMIT, NOMEM, SYS, logged. kvp_authn_close may be called
 * for a zeroed struct, and after uv_run has returned. */
kvp_err_t kvp_authn_open(kvp_authn_t *a, const kvp_authn_conf_t *conf) KVP_MUST_USE;
void kvp_authn_close(kvp_authn_t *a);

/* kvp_authn_find fills who_out with the identity of the peer at fd, which sent the token (len bytes; 0 = none). tls:
 * the connection's TLS; NULL = it is not encrypted. If the peer has a token and a certificate, the token is its
 * identity. */
void kvp_authn_find(kvp_authn_t *a, int fd, const kvp_tls_t *tls, const void *token, size_t len,
                    kvp_identity_t *who_out);

/* kvp_authn_refresh reads the token file again in a thread of uv's pool, if it has changed. After an error, which is
 * logged, the earlier table stays in use. */
void kvp_authn_refresh(kvp_authn_t *a, uv_loop_t *uv);

/* kvp_authn_is_valid returns NULL while the identity is valid, else the reason why it has ended. */
const char *kvp_authn_is_valid(const kvp_authn_t *a, const kvp_identity_t *who);

/* kvp_authn_audit writes a line to the audit: the peer's identity and address, the request, its object, and the result.
 * The limit is 50 lines at once and 50 a second; the next line after a gap has the number of omitted lines. */
void kvp_authn_audit(const kvp_identity_t *who, const char *from, const char *what, const char *object,
                     const char *tenant, kvp_err_t err, const char *why);

#endif
