/* SPDX-License-Identifier: Apache-2.0
 * Who may ask what of a daemon's HTTP port (ADR 0051): one table of paths and roles for all daemons, and the tokens
 * that prove the roles. Any thread may call kvp_http_tokens_check. */
#ifndef KVP_COMMON_DAEMON_HTTP_TOKENS_H
#define KVP_COMMON_DAEMON_HTTP_TOKENS_H

#include "common/log.h"
#include "common/trust/tokens.h"

#include <pthread.h>

#define KVP_HTTP_TOKEN_HEADER_MAX 64u

typedef struct {
    const char *file; /* path of the token file; NULL = every request is allowed; borrowed */
    bool has_metrics; /* flag: /metrics needs a token as well */
    kvp_authrole_t rest; /* role that paths without a rule need; KVP_MAY_NOTHING = monitor for GET, else writer */
    pthread_mutex_t lock; /* guards the fields below */
    kvp_tokenfile_t *tokens;
    kvp_tokenfile_stamp_t stamp;
    uint64_t checked_ns; /* when the file was last looked at */
    char own[KVP_HTTP_TOKEN_HEADER_MAX]; /* value of Authorization for this process's requests to itself */
} kvp_http_tokens_t;

/* kvp_http_tokens_open reads the file; path NULL: nothing needs a token. INVALID, LIMIT, NOMEM, SYS, logged.
 * kvp_http_tokens_close may be called for a zeroed struct. */
kvp_err_t kvp_http_tokens_open(kvp_http_tokens_t *t, const char *path, bool has_metrics, kvp_authrole_t rest)
    KVP_MUST_USE;
void kvp_http_tokens_close(kvp_http_tokens_t *t);

/* kvp_http_tokens_check returns 0 if the request is allowed, else the status of the refusal: 401 (no valid token) or
 * 403 (the role does not permit it). A refusal sets why_out for people and writes a line to the audit. authorization:
 * value of the header; NULL = none. from: address of the peer. The file is read again when it has changed; after an
 * error the earlier tokens stay valid. */
unsigned kvp_http_tokens_check(kvp_http_tokens_t *t, const char *method, const char *path, const char *authorization,
                               const char *from, char why_out[KVP_IDENTITY_WHY_MAX]);

#endif
