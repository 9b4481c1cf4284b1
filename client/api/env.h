/* SPDX-License-Identifier: Apache-2.0
 * env.h - reads from the environment how the library logs, which calls are slow and which checksums a handle verifies.
 * kvpool_open and kvpool_p2p_open use it. */
#ifndef KVP_CLIENT_API_ENV_H
#define KVP_CLIENT_API_ENV_H

#include "common/base.h"

/* The functions return INVALID for a value that they do not know, and write the reason to detail, cut to cap bytes, or
 * to the log if detail is NULL. */

/* kvp_env_log sets the format of this process's log to the one that $KVPOOL_LOG_FORMAT names, or to text. */
kvp_err_t kvp_env_log(char *detail, size_t cap) KVP_MUST_USE;

/* kvp_env_slow_call sets *ns_out to the time that $KVPOOL_SLOW_CALL names, or to 1 s. */
kvp_err_t kvp_env_slow_call(char *detail, size_t cap, uint64_t *ns_out) KVP_MUST_USE;

/* kvp_env_verify sets *verify to the KVPOOL_VERIFY_* value that $KVPOOL_VERIFY names. Without the variable, or with
 * "auto", it leaves *verify unchanged. */
kvp_err_t kvp_env_verify(char *detail, size_t cap, uint32_t *verify) KVP_MUST_USE;

#endif
