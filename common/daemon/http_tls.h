/* SPDX-License-Identifier: Apache-2.0
 * The certificate and the key of an HTTP server with TLS (ADR 0057), as texts for libmicrohttpd, whose own TLS library
 * makes the handshakes. */
#ifndef KVP_COMMON_DAEMON_HTTP_TLS_H
#define KVP_COMMON_DAEMON_HTTP_TLS_H

#include "common/trust/identity.h"

typedef struct {
    char *cert, *key; /* PEM; owned; NULL = the server has no TLS */
} kvp_http_tls_t;

/* kvp_http_tls_load reads the files that the process's credentials name, after the same checks as for control
 * connections: the certificate is of the role and of the CA, and the key is its own. INVALID: also if libmicrohttpd
 * has no TLS; NOMEM; logged. kvp_http_tls_free is legal on zeros. */
kvp_err_t kvp_http_tls_load(kvp_http_tls_t *tls, kvp_authrole_t role) KVP_MUST_USE;
void kvp_http_tls_free(kvp_http_tls_t *tls);

#endif
