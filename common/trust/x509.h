/* SPDX-License-Identifier: Apache-2.0
 * What a certificate says of its owner. Pure functions; any thread. For the files of libkvpool-tls alone. */
#ifndef KVP_COMMON_TRUST_X509_H
#define KVP_COMMON_TRUST_X509_H

#include "common/trust/identity.h"

#include <openssl/x509.h>

#define KVP_X509_DIGEST 32u /* bytes of a certificate's name */

/* kvp_x509_name names a certificate: the SHA-256 of the digest of its issuer and of its serial number. */
void kvp_x509_name(const X509_NAME *issuer, const ASN1_INTEGER *serial, uint8_t out[KVP_X509_DIGEST]);

/* kvp_x509_identity reads the identity from the only URI among the alternative names of a certificate; the others are
 * names of hosts. Without such a URI the identity has no role, and a reason. */
void kvp_x509_identity(X509 *cert, kvp_identity_t *who_out);

#endif
