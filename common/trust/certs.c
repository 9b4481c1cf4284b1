/* SPDX-License-Identifier: Apache-2.0 */
#include "common/trust/certs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SERIAL_BYTES 16
#define NAMES_MAX 2048u /* longest text of the alternative names */
#define HOST_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-*"
/* a certificate is valid from this long before its creation on, because the clocks of hosts differ */
#define BACK_S 300

static KVP_PRINTF(3, 4) kvp_err_t fail_cert(char *why_out, kvp_err_t err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(why_out, KVP_CERTS_WHY_MAX, fmt, args);
    va_end(args);
    ERR_clear_error();
    return err;
}

static bool
add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509_EXTENSION *ext;
    X509V3_CTX ctx;
    bool is_added;

    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    is_added = ext != NULL && X509_add_ext(cert, ext, -1) == 1;
    X509_EXTENSION_free(ext);
    return is_added;
}

/* Makes a certificate without extensions, not signed. NULL: OpenSSL has no memory or no random bytes. */
static X509 *
make_cert(EVP_PKEY *key, const char *common_name, time_t end)
{
    uint8_t serial[SERIAL_BYTES];
    X509 *cert = X509_new();
    BIGNUM *number = NULL;
    X509_NAME *name;

    if (cert == NULL || RAND_bytes(serial, sizeof serial) != 1) goto fail;
    serial[0] &= 0x7f;
    number = BN_bin2bn(serial, sizeof serial, NULL);
    if (number == NULL || BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) == NULL) goto fail;
    name = X509_get_subject_name(cert);
    if (X509_set_version(cert, X509_VERSION_3) != 1 || X509_set_pubkey(cert, key) != 1 ||
        X509_time_adj_ex(X509_getm_notBefore(cert), 0, -BACK_S, NULL) == NULL ||
        ASN1_TIME_set(X509_getm_notAfter(cert), end) == NULL ||
        X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_ASC, (const uint8_t *)common_name, -1, -1, 0) != 1)
        goto fail;
    BN_free(number);
    return cert;
fail:
    BN_free(number);
    X509_free(cert);
    return NULL;
}

/* Writes a key (mode 0600) or, if key is NULL, the certificate to a new file. is_replaced: the file takes the place of
 * an earlier one. */
static kvp_err_t
write_pem(const char *path, const char *end, bool is_replaced, EVP_PKEY *key, X509 *cert, char *why_out)
{
    char name[KVP_CERTS_PATH_MAX + 16], last[KVP_CERTS_PATH_MAX + 8];
    int fd, rc;
    FILE *file;

    snprintf(last, sizeof last, "%s.%s", path, end);
    snprintf(name, sizeof name, "%s%s", last, is_replaced ? ".new" : "");
    if (is_replaced) (void)unlink(name);
    fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, key != NULL ? 0600 : 0644);
    file = fd < 0 ? NULL : fdopen(fd, "w");
    if (file == NULL)
        return fail_cert(why_out, KVP_SYS, "cannot make %.160s: %s%s", name, strerror(errno),
                         errno == EEXIST ? "; --replace makes another one in its place" : "");
    rc = key != NULL ? PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) : PEM_write_X509(file, cert);
    if (fclose(file) != 0 || rc != 1)
        return fail_cert(why_out, KVP_SYS, "cannot write %.160s: %s", name, strerror(errno));
    if (is_replaced && rename(name, last) != 0)
        return fail_cert(why_out, KVP_SYS, "cannot replace %.160s: %s", last, strerror(errno));
    return KVP_OK;
}

static kvp_err_t
read_ca(const char *dir, X509 **cert_out, EVP_PKEY **key_out, char *why_out)
{
    char path[KVP_CERTS_PATH_MAX + 8];
    FILE *file;

    *cert_out = NULL;
    *key_out = NULL;
    snprintf(path, sizeof path, "%s/ca.pem", dir);
    file = fopen(path, "re");
    if (file != NULL) {
        *cert_out = PEM_read_X509(file, NULL, NULL, NULL);
        fclose(file);
        snprintf(path, sizeof path, "%s/ca.key", dir);
        file = fopen(path, "re");
    }
    if (file == NULL) return fail_cert(why_out, KVP_NOT_FOUND, "cannot open %.160s: %s", path, strerror(errno));
    *key_out = PEM_read_PrivateKey(file, NULL, NULL, NULL);
    fclose(file);
    if (*cert_out == NULL || *key_out == NULL || X509_check_private_key(*cert_out, *key_out) != 1)
        return fail_cert(why_out, KVP_INVALID, "%.160s and its ca.pem are not a CA and its key", path);
    return KVP_OK;
}

/* Appends the names and addresses of hosts to the alternative names, in OpenSSL's form. */
static bool
add_hosts(char names[NAMES_MAX], const char *hosts)
{
    for (const char *at = hosts; at[0] != '\0';) {
        const size_t len = strcspn(at, ","), had = strlen(names);
        char host[INET6_ADDRSTRLEN + 208], addr[16];

        snprintf(host, sizeof host, "%.*s", (int)len, at);
        const bool is_addr = inet_pton(AF_INET, host, addr) == 1 || inet_pton(AF_INET6, host, addr) == 1;
        if (len == 0 || len >= sizeof host || had + len + 8 > NAMES_MAX || (!is_addr && strspn(host, HOST_CHARS) < len))
            return false;
        snprintf(names + had, NAMES_MAX - had, ",%s:%s", is_addr ? "IP" : "DNS", host);
        at += len + (at[len] == ',');
    }
    return true;
}

/* Adds the extensions and signs: a certificate of the CA for the names, or, if names is NULL, the CA itself. */
static bool
finish_cert(X509 *cert, X509 *ca, EVP_PKEY *ca_key, const char *names)
{
    const bool is_ca = names == NULL;

    return X509_set_issuer_name(cert, X509_get_subject_name(ca)) == 1 &&
           add_extension(cert, ca, NID_basic_constraints, is_ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
           add_extension(cert, ca, NID_key_usage,
                         is_ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
           add_extension(cert, ca, NID_subject_key_identifier, "hash") &&
           (is_ca || (add_extension(cert, ca, NID_subject_alt_name, names) &&
                      add_extension(cert, ca, NID_ext_key_usage, "serverAuth,clientAuth") &&
                      add_extension(cert, ca, NID_authority_key_identifier, "keyid"))) &&
           X509_sign(cert, ca_key, EVP_sha256()) > 0;
}

kvp_err_t
kvp_certs_make(const char *dir, kvp_authrole_t role, const char *name, const char *hosts, uint64_t ttl_s,
               bool is_replaced, char *path_out, char *why_out)
{
    const bool is_ca = role == KVP_MAY_NOTHING;
    kvp_identity_t who = {.role = role};
    const char *fault = kvp_identity_set_name(&who, name, strlen(name));
    char cluster[KVP_IDENTITY_CLUSTER_MAX + 1], names[NAMES_MAX];
    X509 *ca = NULL, *cert = NULL;
    EVP_PKEY *ca_key = NULL, *key = NULL;
    kvp_err_t err = KVP_OK;

    if (fault == NULL && is_ca && strlen(name) > KVP_IDENTITY_CLUSTER_MAX) fault = "the name is longer than 64 bytes";
    if (fault == NULL && strlen(dir) + strlen(name) + 24 > KVP_CERTS_PATH_MAX) fault = "the path is too long";
    if (fault != NULL) return fail_cert(why_out, KVP_INVALID, "%s", fault);
    if (is_ca && mkdir(dir, 0700) != 0 && errno != EEXIST)
        return fail_cert(why_out, KVP_SYS, "cannot make %.160s: %s", dir, strerror(errno));
    if (!is_ca) err = read_ca(dir, &ca, &ca_key, why_out);
    if (err != KVP_OK) goto out;
    err = fail_cert(why_out, KVP_INVALID, "the certificate of the CA in %.160s has no valid name of a cluster", dir);
    if (!is_ca && (X509_NAME_get_text_by_NID(X509_get_subject_name(ca), NID_commonName, cluster, sizeof cluster) <= 0 ||
                   kvp_identity_check_name(cluster, strlen(cluster)) != NULL))
        goto out;
    if (!is_ca) snprintf(names, sizeof names, "URI:kvpool://%s/%s/%s", cluster, kvp_authrole_name(role), name);
    err = fail_cert(why_out, KVP_INVALID, "--host: names and addresses of hosts, with commas between");
    if (!is_ca && !add_hosts(names, hosts)) goto out;
    if (is_ca)
        snprintf(path_out, KVP_CERTS_PATH_MAX, "%s/ca", dir);
    else
        snprintf(path_out, KVP_CERTS_PATH_MAX, "%s/%s-%s%s%s", dir, kvp_authrole_name(role),
                 who.name[0] == '\0' ? "default" : who.name, who.node[0] == '\0' ? "" : "-", who.node);
    err = fail_cert(why_out, KVP_NOMEM, "out of memory");
    key = EVP_EC_gen("P-256");
    if (key != NULL) cert = make_cert(key, is_ca ? name : kvp_authrole_name(role), time(NULL) + (time_t)ttl_s);
    if (cert != NULL && finish_cert(cert, is_ca ? cert : ca, is_ca ? key : ca_key, is_ca ? NULL : names))
        err = write_pem(path_out, "key", is_replaced, key, NULL, why_out);
    if (err == KVP_OK) err = write_pem(path_out, "pem", is_replaced, NULL, cert, why_out);
    if (err == KVP_OK && ASN1_TIME_compare(X509_get0_notAfter(is_ca ? cert : ca), X509_get0_notAfter(cert)) < 0)
        (void)fail_cert(why_out, KVP_OK, "the CA ends before this certificate, which is refused from then on");
    else if (err == KVP_OK)
        why_out[0] = '\0';
out:
    X509_free(ca);
    X509_free(cert);
    EVP_PKEY_free(ca_key);
    EVP_PKEY_free(key);
    ERR_clear_error();
    return err;
}
