/* SPDX-License-Identifier: Apache-2.0
 * The credentials of this process towards masters (ADR 0051). Any thread; the functions read files. */
#ifndef KVP_COMMON_TRUST_CREDS_H
#define KVP_COMMON_TRUST_CREDS_H

#include "common/base.h"
#include "common/parse.h"

#define KVP_CREDS_TOKEN_MAX 64u /* longest token in a message, in bytes */
#define KVP_CREDS_WHY_MAX 200u

/* Files with this process's credentials; NULL = none. Those for TLS are PEM files. */
typedef struct {
    const char *token_file;
    const char *tls_ca; /* the certificates of authorities that this process trusts */
    const char *tls_cert, *tls_key; /* the own certificate, and its key of mode 0600 */
    const char *tls_crl; /* list of revoked certificates */
    bool has_http_tls; /* flag of a daemon: its HTTP port has TLS */
    bool is_insecure; /* flag of a daemon: ports may be open to other hosts without TLS or tokens (kvp_may_listen) */
} kvp_creds_t;

/* kvp_creds_token reads the token in the file $KVPOOL_TOKEN_FILE: its first line. *len_out is 0 if the variable is not
 * set, and on a TCP connection without TLS, unless KVPOOL_INSECURE_TOKENS is "yes". INVALID: no file, a file that other
 * users may read, or no token in it; why_out (KVP_CREDS_WHY_MAX bytes) is then the reason for people. */
kvp_err_t kvp_creds_token(bool is_protected, char token_out[KVP_CREDS_TOKEN_MAX], size_t *len_out, char *why_out)
    KVP_MUST_USE;

/* kvp_creds_withhold returns true if there is a token that kvp_creds_token does not return, because the connection is
 * TCP without TLS. */
bool kvp_creds_withhold(bool is_protected);

/* kvp_creds_tls fills creds_out with the files that $KVPOOL_TLS_CA, $KVPOOL_TLS_CERT, $KVPOOL_TLS_KEY and
 * $KVPOOL_TLS_CRL name; the texts are borrowed from the environment. False: none of the first two is set, so this
 * process uses no TLS. */
bool kvp_creds_tls(kvp_creds_t *creds_out);

/* kvp_creds_are_certificate returns true if a certificate is this process's identity: there is one, and no token. Such
 * a process does not move from TCP to a Unix socket, where it would have the identity of its user. */
bool kvp_creds_are_certificate(void);

/* kvp_creds_set overrides the variables with a daemon's options; NULL = option not given. NOMEM. Call it before
 * threads start. */
kvp_err_t kvp_creds_set(const kvp_creds_t *options) KVP_MUST_USE;

/* kvp_may_listen refuses an address that other hosts reach and that nothing protects, unless is_insecure: the user has
 * accepted that, by --insecure or by the program that he runs. $KVPOOL_SECURITY=required refuses it in any case. option
 * and fix are for people: the address's option, and what protects the port. host "" = the port is closed. INVALID,
 * logged. */
kvp_err_t kvp_may_listen(const char *option, const kvp_hostport_t *at, bool is_protected, const char *fix,
                         bool is_insecure) KVP_MUST_USE;

/* kvp_protection_of returns what protects a port, in a word for people: by, such as "tls"; if by is NULL, "loopback"
 * (only this host reaches the port) or "unprotected"; "closed" if the host is "". Such words for each plane (control,
 * http, data) make a text of at most KVP_PROTECTION_MAX bytes. */
#define KVP_PROTECTION_MAX 80u
const char *kvp_protection_of(const kvp_hostport_t *at, const char *by);
/* kvp_protection_of_http returns the same for an HTTP port. An HTTP server requests no client certificate, so TLS
 * counts only together with tokens. */
const char *kvp_protection_of_http(const kvp_hostport_t *at, bool has_tokens, bool has_tls);

#endif
