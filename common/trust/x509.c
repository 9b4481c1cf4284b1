/* SPDX-License-Identifier: Apache-2.0 */
#include "common/trust/x509.h"

#include <openssl/evp.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void
kvp_x509_name(const X509_NAME *issuer, const ASN1_INTEGER *serial, uint8_t out[KVP_X509_DIGEST])
{
    uint8_t text[KVP_X509_DIGEST + 64] = {0};
    const size_t len = kvp_min_u64((uint64_t)ASN1_STRING_length(serial), 64);

    (void)X509_NAME_digest(issuer, EVP_sha256(), text, NULL);
    memcpy(text + KVP_X509_DIGEST, ASN1_STRING_get0_data(serial), len);
    (void)EVP_Digest(text, KVP_X509_DIGEST + len, out, NULL, EVP_sha256(), NULL);
}

/* Returns the only URI among the alternative names of a certificate; NULL: there is none, or more than one, or a name
 * that is neither a URI nor of a host. Names of hosts are for clients of HTTP ports. */
static const GENERAL_NAME *
find_uri(const GENERAL_NAMES *names)
{
    const GENERAL_NAME *found = NULL;

    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);

        if (name->type == GEN_DNS || name->type == GEN_IPADD) continue;
        if (name->type != GEN_URI || found != NULL) return NULL;
        found = name;
    }
    return found;
}

void
kvp_x509_identity(X509 *cert, kvp_identity_t *who_out)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    const GENERAL_NAME *name = find_uri(names);
    const ASN1_INTEGER *serial = X509_get0_serialNumber(cert);
    const char *why = "it is not one name kvpool://CLUSTER/ROLE/NAME as subject alternative name";
    kvp_err_t err = KVP_INVALID;
    struct tm end;

    *who_out = (kvp_identity_t){.role = KVP_MAY_NOTHING};
    if (name != NULL)
        err = kvp_identity_parse_uri((const char *)ASN1_STRING_get0_data(name->d.ia5),
                                     (size_t)ASN1_STRING_length(name->d.ia5), who_out, &why);
    GENERAL_NAMES_free(names);
    if (err != KVP_OK) kvp_identity_refuse(who_out, KVP_DENIED, "the name in the certificate: %s", why);
    for (int i = 0; i < ASN1_STRING_length(serial) && i < (int)KVP_IDENTITY_ID_MAX / 2; i++)
        snprintf(who_out->id + 2 * i, 3, "%02x", ASN1_STRING_get0_data(serial)[i]);
    kvp_x509_name(X509_get_issuer_name(cert), serial, who_out->digest);
    if (ASN1_TIME_to_tm(X509_get0_notAfter(cert), &end) == 1) who_out->end_s = (uint64_t)timegm(&end);
}
