/* SPDX-License-Identifier: Apache-2.0
 * Makes the certificates of a pool (ADR 0053): a CA in a folder, and certificates of this CA for daemons and users. EC
 * P-256 keys without a passphrase. The functions block on files, and never replace a file. */
#ifndef KVP_COMMON_TRUST_CERTS_H
#define KVP_COMMON_TRUST_CERTS_H

#include "common/trust/identity.h"

#define KVP_CERTS_WHY_MAX 256u
#define KVP_CERTS_PATH_MAX 512u

#pragma GCC visibility push(default)

/* kvp_certs_make makes a certificate of the role and the name, signed by the CA in the folder, and its key:
 * DIR/ROLE-NAME.pem and DIR/ROLE-NAME.key (mode 0600); an engine's slash becomes a hyphen. hosts: names and addresses
 * with commas between, by which clients of an HTTP port with TLS know it; "" = none. With KVP_MAY_NOTHING it
 * makes the folder (mode 0700) and in it ca.pem and ca.key of a new CA for the cluster `name`. Both paths are written
 * to path_out (KVP_CERTS_PATH_MAX bytes) without their ends. is_replaced: the files take the place of earlier ones.
 * INVALID: a name is not valid; NOT_FOUND: the folder has no CA; SYS: also if there is such a file, unless is_replaced;
 * NOMEM. why_out (KVP_CERTS_WHY_MAX bytes) is the reason; after OK a warning, or "". */
kvp_err_t kvp_certs_make(const char *dir, kvp_authrole_t role, const char *name, const char *hosts, uint64_t ttl_s,
                         bool is_replaced, char *path_out, char *why_out) KVP_MUST_USE;

#pragma GCC visibility pop

#endif
