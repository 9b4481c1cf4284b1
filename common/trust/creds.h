/* SPDX-License-Identifier: Apache-2.0
 * The credentials of this process towards masters (ADR 0051). Any thread; the functions read files. */
#ifndef KVP_COMMON_TRUST_CREDS_H
#define KVP_COMMON_TRUST_CREDS_H

#include "common/base.h"

#define KVP_CREDS_TOKEN_MAX 64u /* longest token in a message, in bytes */
#define KVP_CREDS_WHY_MAX 200u

/* kvp_creds_token reads the token in the file $KVPOOL_TOKEN_FILE: its first line. *len_out is 0 if the variable is not
 * set, and on a TCP connection without TLS, unless KVPOOL_INSECURE_TOKENS is "yes". INVALID: no file, a file that other
 * users may read, or no token in it; why_out (KVP_CREDS_WHY_MAX bytes) is then the reason for people. */
kvp_err_t kvp_creds_token(bool is_protected, char token_out[KVP_CREDS_TOKEN_MAX], size_t *len_out, char *why_out)
    KVP_MUST_USE;

/* kvp_creds_set overrides $KVPOOL_TOKEN_FILE with a daemon's option; NULL = option not given. NOMEM. Call it before
 * threads start. */
kvp_err_t kvp_creds_set(const char *token_file) KVP_MUST_USE;

#endif
