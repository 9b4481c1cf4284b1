/* SPDX-License-Identifier: Apache-2.0
 * verify.h - the environment's choice of what a handle verifies. For kvpool_open and kvpool_p2p_open.
 */
#ifndef KVP_CLIENT_API_VERIFY_H
#define KVP_CLIENT_API_VERIFY_H

#include "common/base.h"

/* kvp_verify_read sets *verify to the KVPOOL_VERIFY_* named in $KVPOOL_VERIFY. Without the
 * variable, or with "auto", it leaves *verify unchanged. INVALID for any other value; detail then
 * has the reason, cut to cap bytes, or the log if detail is NULL. */
kvp_err_t kvp_verify_read(char *detail, size_t cap, uint32_t *verify) KVP_MUST_USE;

#endif
