/* SPDX-License-Identifier: Apache-2.0
 * verify.h - reads from the environment which checksums a handle verifies. kvpool_open and kvpool_p2p_open use it. */
#ifndef KVP_CLIENT_API_VERIFY_H
#define KVP_CLIENT_API_VERIFY_H

#include "common/base.h"

/* kvp_verify_read sets *verify to the KVPOOL_VERIFY_* value that $KVPOOL_VERIFY names. Without the variable, or with
 * "auto", it leaves *verify unchanged. For any other value it returns INVALID and writes the reason to detail, cut to
 * cap bytes, or to the log if detail is NULL. */
kvp_err_t kvp_verify_read(char *detail, size_t cap, uint32_t *verify) KVP_MUST_USE;

#endif
