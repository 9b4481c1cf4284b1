/* SPDX-License-Identifier: Apache-2.0
 * TLS over memory buffers. Clients and servers keep what they have read from their files, and read the files again when
 * they have changed. A client checks the files before each connection, so that a renewed certificate is used at once.
 */
#include "common/trust/tls.h"

#include "common/clock.h"
#include "common/trust/x509.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define GROUPS "X25519:P-256"
#define CHAIN_MAX_BYTES (16u << 10) /* longest chain of certificates of a peer */
#define CHAIN_MAX_DEPTH 4
/* certificates beside the own one in its file are used; the peer refuses a chain that is not valid */
#define CHAIN_FLAGS                                                                                                    \
    (SSL_BUILD_CHAIN_FLAG_UNTRUSTED | SSL_BUILD_CHAIN_FLAG_NO_ROOT | SSL_BUILD_CHAIN_FLAG_IGNORE_ERROR |               \
     SSL_BUILD_CHAIN_FLAG_CLEAR_ERROR)
#define REFRESH_NS KVP_NS_PER_S
/* limit of the unsent answers to records of the peer: a peer above it does not read its connection, or attacks */
#define ANSWERED_MAX (16u << 10)
/* The name of the protocol in ALPN, so that a later release can have other protocols at the same port. */
static const uint8_t alpn[] = "\x08kvpool/1";

typedef uint8_t digest_t[32];

struct kvp_tls {
    SSL *ssl; /* NULL = OpenSSL could not make the connection; err is the reason */
    pthread_mutex_t lock; /* guards ssl, in and out, after the handshake */
    kvp_buf_t in, out; /* in: received encrypted bytes; out: encrypted bytes to send */
    size_t in_at, out_at; /* offsets of their first unread bytes */
    size_t answered; /* bytes in `out` that answer records of the peer, such as key updates */
    bool is_client, is_done;
    const char *peer_text; /* the peer's role, for people; static text */
    kvp_authrole_t role; /* of the peer, that a client wants */
    char name[KVP_IDENTITY_NAME_MAX + 1]; /* name that the peer must have, for a client; "" = any name */
    char cluster[KVP_IDENTITY_CLUSTER_MAX + 1]; /* of the own certificate; "" = none */
    kvp_identity_t peer;
    kvp_err_t err; /* lasting error */
    char why[KVP_TLS_WHY_MAX];
};

struct kvp_tls_server {
    kvp_creds_t files;
    kvp_authrole_t role;
    pthread_mutex_t lock; /* guards the fields below */
    SSL_CTX *ctx;
    kvp_identity_t who;
    uint64_t stamp, checked_ns;
    digest_t *revoked; /* the certificates of the revocation lists, in rising order; owned */
    size_t revoked_n;
    _Atomic uint64_t loads; /* number of times that the files were read without an error */
};

/* ---- reasons */
/* Returns OpenSSL's first reason, and empties its queue. */
static const char *
first_reason(unsigned long *code_out)
{
    const char *text;

    *code_out = ERR_get_error();
    ERR_clear_error();
    if (ERR_SYSTEM_ERROR(*code_out)) return strerror(ERR_GET_REASON(*code_out));
    text = ERR_reason_error_string(*code_out);
    return text == NULL ? "unknown error" : text;
}

static KVP_PRINTF(3, 4) kvp_err_t fail_tls(kvp_tls_t *t, kvp_err_t err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(t->why, sizeof t->why, fmt, args);
    va_end(args);
    t->err = err;
    return err;
}

static bool
is_of_another_ca(long verdict)
{
    return verdict == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN || verdict == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT ||
           verdict == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT || verdict == X509_V_ERR_CERT_SIGNATURE_FAILURE ||
           verdict == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
           verdict == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE;
}

/* Converts OpenSSL's error into an error of kvpool with its reason. */
static kvp_err_t
note_fault(kvp_tls_t *t)
{
    const long verdict = SSL_get_verify_result(t->ssl);
    unsigned long code;
    const char *text = first_reason(&code);
    const int reason = ERR_GET_REASON(code), alert = reason - SSL_AD_REASON_OFFSET; /* alert of the peer */

    if (ERR_GET_LIB(code) == ERR_LIB_SSL && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
        return fail_tls(t, verdict == X509_V_ERR_CERT_HAS_EXPIRED ? KVP_EXPIRED : KVP_DENIED,
                        "the certificate of the %s is refused: %s%s", t->peer_text,
                        X509_verify_cert_error_string(verdict),
                        is_of_another_ca(verdict) ? "; it is not of the CA here (--tls-ca, KVPOOL_TLS_CA)" : "");
    if (ERR_GET_LIB(code) != ERR_LIB_SSL) return fail_tls(t, KVP_PROTO, "TLS failed: %s", text);
    if (alert == SSL_AD_CERTIFICATE_EXPIRED)
        return fail_tls(t, KVP_EXPIRED, "the %s refuses this side's certificate: it has expired", t->peer_text);
    if ((alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_CERTIFICATE_UNKNOWN) || alert == SSL_AD_UNKNOWN_CA ||
        alert == SSL_AD_ACCESS_DENIED)
        return fail_tls(t, KVP_DENIED, "the %s refuses this side's certificate: %s", t->peer_text,
                        alert == SSL_AD_UNKNOWN_CA            ? "it is of another CA"
                        : alert == SSL_AD_CERTIFICATE_REVOKED ? "it was revoked; make another one (kvpool cert)"
                                                              : text);
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST || reason == SSL_R_PACKET_LENGTH_TOO_LONG)
        return fail_tls(t, KVP_PROTO, "the %s does not speak TLS: %s", t->peer_text, text);
    return fail_tls(t, KVP_PROTO, "TLS failed: %s", text);
}

/* ---- identities of peers */
/* Reads the peer's certificate after the handshake, and compares the cluster. NOT_FOUND: the peer has none. */
static kvp_err_t
check_peer(kvp_tls_t *t)
{
    X509 *cert = SSL_get0_peer_certificate(t->ssl);
    kvp_identity_t *who = &t->peer;

    if (cert == NULL) return KVP_NOT_FOUND;
    kvp_x509_identity(cert, who);
    if (who->role == KVP_MAY_NOTHING) return KVP_DENIED;
    if (t->cluster[0] != '\0' && strcmp(who->cluster, t->cluster) != 0) {
        char cluster[sizeof who->cluster];

        memcpy(cluster, who->cluster, sizeof cluster);
        kvp_identity_refuse(who, KVP_DENIED, "the certificate is of the cluster %.40s, not %.40s", cluster, t->cluster);
        return KVP_DENIED;
    }
    return KVP_OK;
}

/* Called by OpenSSL for each certificate of the peer, and for each error. If the certificate is refused although its
 * issuer's signature is right, it stores the certificate's identity, for the log. */
static int
note_refused(int is_valid, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    kvp_tls_t *t = ssl == NULL ? NULL : SSL_get_app_data(ssl);
    X509 *cert = X509_STORE_CTX_get_current_cert(store), *issuer = X509_STORE_CTX_get0_current_issuer(store);

    if (is_valid || t == NULL || cert == NULL || X509_STORE_CTX_get_error_depth(store) != 0) return is_valid;
    if (issuer == NULL && sk_X509_num(X509_STORE_CTX_get0_chain(store)) > 1)
        issuer = sk_X509_value(X509_STORE_CTX_get0_chain(store), 1);
    if (issuer == NULL || X509_verify(cert, X509_get0_pubkey(issuer)) != 1) return is_valid;
    kvp_x509_identity(cert, &t->peer);
    t->peer.role = KVP_MAY_NOTHING;
    return is_valid;
}

/* Checks that the server has the role and the name that the client wants. */
static kvp_err_t
check_server(kvp_tls_t *t)
{
    const kvp_identity_t *who = &t->peer;

    if (check_peer(t) != KVP_OK) return fail_tls(t, KVP_DENIED, "the %s: %s", t->peer_text, who->why);
    if (t->role == KVP_MAY_NOTHING ? kvp_authrole_is_client(who->role) : !kvp_authrole_is_daemon(who->role, t->role))
        return fail_tls(t, KVP_DENIED, "the certificate of the %s is of the role %s", t->peer_text,
                        kvp_authrole_name(who->role));
    if (t->name[0] != '\0' &&
        (who->role == t->role ? strcmp(t->name, who->name) != 0 : !kvp_identity_is_node(who, t->name)))
        return fail_tls(t, KVP_DENIED, "the %s has the certificate of %.60s, not of %.60s", t->peer_text,
                        who->node[0] != '\0' ? who->node : who->name, t->name);
    return KVP_OK;
}

/* ---- files */
/* Writes the reason of a fault, and OpenSSL's reason if there is one. Returns false. */
static KVP_PRINTF(2, 3) bool fail_file(char *why_out, const char *fmt, ...)
{
    unsigned long code;
    va_list args;
    size_t n;

    va_start(args, fmt);
    n = (size_t)vsnprintf(why_out, KVP_TLS_WHY_MAX, fmt, args);
    va_end(args);
    if (ERR_peek_error() != 0 && n < KVP_TLS_WHY_MAX)
        snprintf(why_out + n, KVP_TLS_WHY_MAX - n, ": %s", first_reason(&code));
    return false;
}

static bool
use_certificate(SSL_CTX *ctx, const kvp_creds_t *files, kvp_identity_t *who_out, char *why_out)
{
    struct stat st;

    if (files->tls_key == NULL) return fail_file(why_out, "a certificate without its key (--tls-key, KVPOOL_TLS_KEY)");
    if (stat(files->tls_key, &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)) != 0 && st.st_uid == geteuid())
        return fail_file(why_out, "other users may read the key %.120s: chmod 600", files->tls_key);
    if (SSL_CTX_use_certificate_chain_file(ctx, files->tls_cert) != 1)
        return fail_file(why_out, "the certificate %.120s", files->tls_cert);
    if (SSL_CTX_use_PrivateKey_file(ctx, files->tls_key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        return fail_file(why_out, "the key %.120s", files->tls_key);
    /* The chain is made once, without the root, which peers have. By itself OpenSSL makes it in each handshake. */
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_NO_AUTO_CHAIN);
    if (SSL_CTX_build_cert_chain(ctx, CHAIN_FLAGS) == 0)
        return fail_file(why_out, "the chain of the certificate %.120s", files->tls_cert);
    kvp_x509_identity(SSL_CTX_get0_certificate(ctx), who_out);
    return who_out->role != KVP_MAY_NOTHING || fail_file(why_out, "%.100s: %.120s", files->tls_cert, who_out->why);
}

static bool
use_files(SSL_CTX *ctx, const kvp_creds_t *files, kvp_identity_t *who_out, char *why_out)
{
    X509_LOOKUP *lookup;

    if (files->tls_ca == NULL) return fail_file(why_out, "TLS needs a CA (--tls-ca, KVPOOL_TLS_CA)");
    if (SSL_CTX_load_verify_file(ctx, files->tls_ca) != 1) return fail_file(why_out, "the CA %.120s", files->tls_ca);
    if (files->tls_cert != NULL && !use_certificate(ctx, files, who_out, why_out)) return false;
    if (files->tls_crl == NULL) return true;
    lookup = X509_STORE_add_lookup(SSL_CTX_get_cert_store(ctx), X509_LOOKUP_file());
    if (lookup == NULL || X509_load_crl_file(lookup, files->tls_crl, X509_FILETYPE_PEM) < 1)
        return fail_file(why_out, "the revocation list %.120s", files->tls_crl);
    return X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(ctx), X509_V_FLAG_CRL_CHECK) == 1;
}

/* Makes the settings of a side from its files. NULL: why_out is the reason. */
static SSL_CTX *
make_ctx(const SSL_METHOD *method, const kvp_creds_t *files, kvp_identity_t *who_out, char *why_out)
{
    SSL_CTX *ctx = SSL_CTX_new(method);

    ERR_clear_error();
    *who_out = (kvp_identity_t){.role = KVP_MAY_NOTHING};
    if (ctx == NULL || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(ctx, CIPHERS) != 1 || SSL_CTX_set1_groups_list(ctx, GROUPS) != 1) {
        (void)fail_file(why_out, "OpenSSL lacks TLS 1.3");
    } else if (use_files(ctx, files, who_out, why_out)) {
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, note_refused);
        SSL_CTX_set_verify_depth(ctx, CHAIN_MAX_DEPTH);
        SSL_CTX_set_max_cert_list(ctx, CHAIN_MAX_BYTES);
        SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
        (void)SSL_CTX_set_num_tickets(ctx, 0); /* sessions are not resumed: each connection proves its identity */
        (void)SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
        return ctx;
    }
    ERR_clear_error();
    SSL_CTX_free(ctx);
    return NULL;
}

/* Returns a number that differs if one of the files has changed. */
static uint64_t
stamp_files(const kvp_creds_t *files)
{
    const char *const paths[] = {files->tls_ca, files->tls_cert, files->tls_key, files->tls_crl};
    uint64_t stamp = 1;
    struct stat st;

    for (size_t i = 0; i < KVP_ARRAY_LEN(paths); i++) {
        if (paths[i] == NULL || stat(paths[i], &st) != 0) memset(&st, paths[i] == NULL ? 0 : 1, sizeof st);
        stamp = stamp * 1000003 + (uint64_t)st.st_dev;
        stamp = stamp * 1000003 + (uint64_t)st.st_ino;
        stamp = stamp * 1000003 + (uint64_t)st.st_size;
        stamp = stamp * 1000003 + (uint64_t)st.st_mtim.tv_sec * KVP_NS_PER_S + (uint64_t)st.st_mtim.tv_nsec;
    }
    return stamp;
}

/* Returns the settings for this process's connections as a client, to be freed: the kept ones, unless a file has
 * changed. After a fork the lock may never be free: then the files are read, and nothing is kept. */
static SSL_CTX *
client_ctx(const kvp_creds_t *files, kvp_identity_t *who_out, char *why_out)
{
    static struct {
        pthread_mutex_t lock; /* guards the fields below */
        SSL_CTX *ctx; /* NULL = nothing is kept */
        kvp_identity_t who;
        uint64_t stamp;
    } kept = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const uint64_t stamp = stamp_files(files);
    const bool is_locked = pthread_mutex_trylock(&kept.lock) == 0;
    SSL_CTX *ctx = NULL;

    if (is_locked && kept.ctx != NULL && kept.stamp == stamp) {
        ctx = kept.ctx;
        (void)SSL_CTX_up_ref(ctx);
        *who_out = kept.who;
    } else if ((ctx = make_ctx(TLS_client_method(), files, who_out, why_out)) != NULL) {
        (void)SSL_CTX_set_alpn_protos(ctx, alpn, sizeof alpn - 1);
        if (is_locked) {
            SSL_CTX_free(kept.ctx);
            (void)SSL_CTX_up_ref(ctx);
            kept.ctx = ctx;
            kept.who = *who_out;
            kept.stamp = stamp;
        }
    }
    if (is_locked) pthread_mutex_unlock(&kept.lock);
    return ctx;
}

/* ---- connections */
/* OpenSSL reads from `in` and writes to `out`. Its own BIO of memory would clear and copy each byte once more. */
static int
read_in(BIO *bio, char *to, int cap)
{
    kvp_tls_t *t = BIO_get_data(bio);
    const size_t n = kvp_min_u64(t->in.len - t->in_at, (uint64_t)cap);

    BIO_clear_retry_flags(bio);
    if (n == 0) {
        BIO_set_retry_read(bio); /* more bytes may follow */
        return -1;
    }
    memcpy(to, t->in.data + t->in_at, n);
    t->in_at += n;
    return (int)n;
}

static int
write_out(BIO *bio, const char *bytes, int len)
{
    kvp_tls_t *t = BIO_get_data(bio);

    kvp_buf_append(&t->out, bytes, (size_t)len);
    return t->out.err == KVP_OK ? len : -1;
}

static long
control_bio(BIO *bio, int what, long arg, void *to)
{
    (void)bio;
    (void)arg;
    (void)to;
    return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_method;

static void
make_bio_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvpool");

    if (m == NULL || BIO_meth_set_read(m, read_in) != 1 || BIO_meth_set_write(m, write_out) != 1 ||
        BIO_meth_set_ctrl(m, control_bio) != 1)
        BIO_meth_free(m);
    else
        bio_method = m;
}

static BIO *
make_bio(kvp_tls_t *t)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    BIO *bio;

    pthread_once(&once, make_bio_method);
    bio = bio_method == NULL ? NULL : BIO_new(bio_method);
    if (bio == NULL) return NULL;
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    return bio;
}

static kvp_tls_t *
tls_create(SSL_CTX *ctx, bool is_client, kvp_authrole_t role, const char *cluster)
{
    kvp_tls_t *t = calloc(1, sizeof *t);
    BIO *bio;

    if (t == NULL) return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->is_client = is_client;
    t->peer_text = !is_client ? "client" : role == KVP_MAY_NOTHING ? "daemon" : kvp_authrole_name(role);
    t->role = role;
    snprintf(t->cluster, sizeof t->cluster, "%s", cluster);
    if (ctx == NULL) return t;
    t->ssl = SSL_new(ctx);
    bio = make_bio(t);
    if (t->ssl != NULL) SSL_set_app_data(t->ssl, t);
    if (t->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        fail_tls(t, KVP_NOMEM, "out of memory");
        return t;
    }
    SSL_set_bio(t->ssl, bio, bio);
    if (is_client)
        SSL_set_connect_state(t->ssl);
    else
        SSL_set_accept_state(t->ssl);
    return t;
}

kvp_tls_t *
kvp_tls_client(const kvp_creds_t *files, kvp_authrole_t role, const char *name)
{
    char why[KVP_TLS_WHY_MAX];
    kvp_identity_t who;
    SSL_CTX *ctx = client_ctx(files, &who, why);
    kvp_tls_t *t = tls_create(ctx, true, role, who.cluster);

    SSL_CTX_free(ctx); /* the connection has a reference */
    if (t == NULL) return NULL;
    if (ctx == NULL) fail_tls(t, KVP_INVALID, "%s", why);
    if (name != NULL) snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

void
kvp_tls_destroy(kvp_tls_t *tls)
{
    if (tls == NULL) return;
    SSL_free(tls->ssl);
    ERR_clear_error();
    kvp_buf_fini(&tls->in);
    kvp_buf_fini(&tls->out);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

/* Converts the result of a call of OpenSSL. */
static kvp_err_t
convert_result(kvp_tls_t *t, int rc)
{
    switch (SSL_get_error(t->ssl, rc)) {
    case SSL_ERROR_NONE:
        return KVP_OK;
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return KVP_EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return KVP_DISCONNECTED;
    default:
        return note_fault(t);
    }
}

kvp_err_t
kvp_tls_step(kvp_tls_t *tls)
{
    kvp_err_t err;

    if (tls->err != KVP_OK) return tls->err;
    if (tls->is_done) return KVP_OK;
    ERR_clear_error();
    err = convert_result(tls, SSL_do_handshake(tls->ssl));
    if (err == KVP_DISCONNECTED) err = fail_tls(tls, KVP_PROTO, "the peer ended TLS in the handshake");
    if (err != KVP_OK) return err;
    if (tls->is_client)
        err = check_server(tls);
    else
        kvp_ignore(check_peer(tls), "the first message gets the refusal, or has a token");
    tls->is_done = err == KVP_OK;
    return err;
}

bool
kvp_tls_is_done(const kvp_tls_t *tls)
{
    return tls->is_done;
}

kvp_err_t
kvp_tls_feed(kvp_tls_t *tls, const void *bytes, size_t len)
{
    kvp_err_t err;

    pthread_mutex_lock(&tls->lock);
    err = tls->err;
    if (err == KVP_OK) kvp_buf_append(&tls->in, bytes, len);
    if (err == KVP_OK && tls->in.err != KVP_OK) err = fail_tls(tls, KVP_NOMEM, "out of memory");
    pthread_mutex_unlock(&tls->lock);
    return err;
}

size_t
kvp_tls_held(kvp_tls_t *tls)
{
    size_t n;

    pthread_mutex_lock(&tls->lock);
    n = tls->err != KVP_OK ? 1 : tls->in.len - tls->in_at + (size_t)SSL_pending(tls->ssl);
    pthread_mutex_unlock(&tls->lock);
    return n;
}

/* Decrypts into `plain`. A call of OpenSSL that would find nothing to read costs as much as a short record. */
static kvp_err_t
open_some(kvp_tls_t *t, void *plain, size_t cap, size_t *n_out)
{
    const size_t had = t->out.len;

    if (t->in_at < t->in.len || SSL_pending(t->ssl) > 0) {
        const kvp_err_t err = convert_result(t, SSL_read_ex(t->ssl, plain, cap, n_out));

        t->answered += t->out.len - had;
        if (t->answered <= ANSWERED_MAX) return err;
        return fail_tls(t, KVP_PROTO, "the %s asks for too many key updates", t->peer_text);
    }
    kvp_buf_fini(&t->in); /* an idle connection has no buffer */
    t->in_at = 0;
    return (SSL_get_shutdown(t->ssl) & SSL_RECEIVED_SHUTDOWN) != 0 ? KVP_DISCONNECTED : KVP_EAGAIN;
}

kvp_err_t
kvp_tls_open(kvp_tls_t *tls, void *plain, size_t cap, size_t *n_out)
{
    size_t done = 0, n;
    kvp_err_t err;

    pthread_mutex_lock(&tls->lock);
    err = tls->err;
    ERR_clear_error();
    while (err == KVP_OK && done < cap) {
        err = open_some(tls, (char *)plain + done, cap - done, &n);
        if (err == KVP_OK) done += n;
    }
    pthread_mutex_unlock(&tls->lock);
    if (done == 0) return err;
    *n_out = done;
    return KVP_OK;
}

kvp_err_t
kvp_tls_seal(kvp_tls_t *tls, const void *plain, size_t len)
{
    kvp_err_t err;
    size_t n;

    pthread_mutex_lock(&tls->lock);
    err = tls->err;
    ERR_clear_error();
    /* A buffer in memory takes everything, so there are no partial writes. */
    if (err == KVP_OK && len > 0) err = convert_result(tls, SSL_write_ex(tls->ssl, plain, len, &n));
    if (err == KVP_EAGAIN || tls->out.err != KVP_OK) err = fail_tls(tls, KVP_NOMEM, "out of memory");
    pthread_mutex_unlock(&tls->lock);
    return err;
}

size_t
kvp_tls_take(kvp_tls_t *tls, void *to, size_t cap)
{
    size_t n;

    pthread_mutex_lock(&tls->lock);
    n = kvp_min_u64(tls->out.len - tls->out_at, cap);
    if (n > 0) memcpy(to, tls->out.data + tls->out_at, n);
    tls->out_at += n;
    if (tls->out_at == tls->out.len) {
        kvp_buf_reset(&tls->out);
        tls->out_at = 0;
        tls->answered = 0;
    }
    pthread_mutex_unlock(&tls->lock);
    return n;
}

void
kvp_tls_take_all(kvp_tls_t *tls, kvp_buf_t *to)
{
    pthread_mutex_lock(&tls->lock);
    tls->answered = 0;
    if (to->len == 0 && tls->out_at == 0) {
        kvp_buf_fini(to);
        kvp_buf_swap(to, &tls->out);
    } else {
        kvp_buf_append(to, tls->out.data + tls->out_at, tls->out.len - tls->out_at);
        kvp_buf_fini(&tls->out);
        tls->out_at = 0;
    }
    pthread_mutex_unlock(&tls->lock);
}

const char *
kvp_tls_why(const kvp_tls_t *tls)
{
    return tls->why;
}

const kvp_identity_t *
kvp_tls_peer(const kvp_tls_t *tls)
{
    return &tls->peer;
}

bool
kvp_tls_is_hello(const uint8_t *bytes, size_t len)
{
    return len >= 3 && bytes[0] == 0x16 && bytes[1] == 3 && bytes[2] >= 1 && bytes[2] <= 4;
}

/* ---- servers */
static int
choose_protocol(SSL *ssl, const uint8_t **out, uint8_t *out_len, const uint8_t *in, unsigned in_len, void *arg)
{
    uint8_t *chosen;

    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, out_len, alpn, sizeof alpn - 1, in, in_len) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int
compare_digests(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(digest_t));
}

/* Appends the certificates of a revocation list; NULL is an empty one. Returns false if there is no memory. */
static bool
add_revoked(X509_CRL *crl, digest_t **list_io, size_t *n_io)
{
    STACK_OF(X509_REVOKED) *entries = crl == NULL ? NULL : X509_CRL_get_REVOKED(crl);
    const int n = sk_X509_REVOKED_num(entries);
    digest_t *list;

    if (n <= 0) return true;
    list = realloc(*list_io, (*n_io + (size_t)n) * sizeof *list);
    if (list == NULL) return false;
    *list_io = list;
    for (int i = 0; i < n; i++)
        kvp_x509_name(X509_CRL_get_issuer(crl), X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(entries, i)),
                      list[(*n_io)++]);
    return true;
}

/* Replaces the certificates that are revoked by those of the lists in ctx. Returns false if there is no memory. */
static bool
note_revoked(kvp_tls_server_t *s, SSL_CTX *ctx)
{
    STACK_OF(X509_OBJECT) *objects = X509_STORE_get0_objects(SSL_CTX_get_cert_store(ctx));
    digest_t *list = NULL;
    size_t n = 0;

    for (int i = 0; i < sk_X509_OBJECT_num(objects); i++)
        if (!add_revoked(X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(objects, i)), &list, &n)) {
            free(list);
            return false;
        }
    if (n > 0) qsort(list, n, sizeof *list, compare_digests);
    free(s->revoked);
    s->revoked = list;
    s->revoked_n = n;
    return true;
}

/* Returns whether the CA that this side trusts signed the own certificate. The certificate may have expired. */
static bool
is_of_own_ca(SSL_CTX *ctx)
{
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    STACK_OF(X509) *chain = NULL;
    bool is_own = false;

    (void)SSL_CTX_get0_chain_certs(ctx, &chain);
    if (check != NULL &&
        X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(ctx), SSL_CTX_get0_certificate(ctx), chain) == 1) {
        X509_STORE_CTX_set_flags(check, X509_V_FLAG_NO_CHECK_TIME);
        is_own = X509_verify_cert(check) == 1 || !is_of_another_ca(X509_STORE_CTX_get_error(check));
    }
    X509_STORE_CTX_free(check);
    ERR_clear_error();
    return is_own;
}

/* Reads the files if they have changed. After an error the files read before stay in use. */
static kvp_err_t
load_files(kvp_tls_server_t *s, char *why_out)
{
    const uint64_t stamp = stamp_files(&s->files);
    kvp_identity_t who;
    SSL_CTX *ctx;

    if (stamp == s->stamp) return KVP_OK;
    s->stamp = stamp;
    ctx = make_ctx(TLS_server_method(), &s->files, &who, why_out);
    if (ctx == NULL) return KVP_INVALID;
    if (s->files.tls_cert == NULL) {
        (void)fail_file(why_out, "a %s needs a certificate beside the CA (--tls-cert)", kvp_authrole_name(s->role));
    } else if (!kvp_authrole_is_daemon(who.role, s->role)) {
        (void)fail_file(why_out, "a %s needs a certificate of the role %s%s (--tls-cert): %.120s is of the role %s",
                        kvp_authrole_name(s->role), kvp_authrole_name(s->role),
                        s->role == KVP_IS_NODE ? " or engine" : "", s->files.tls_cert, kvp_authrole_name(who.role));
    } else if (s->ctx != NULL && (strcmp(who.cluster, s->who.cluster) != 0 || strcmp(who.name, s->who.name) != 0 ||
                                  strcmp(who.node, s->who.node) != 0)) {
        (void)fail_file(why_out, "the new certificate has another name: %.160s", s->files.tls_cert);
    } else if (!is_of_own_ca(ctx)) {
        (void)fail_file(why_out, "the certificate %.100s is not of the CA %.100s, so no peer would accept it",
                        s->files.tls_cert, s->files.tls_ca);
    } else if (!note_revoked(s, ctx)) {
        (void)fail_file(why_out, "out of memory");
    } else {
        SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
        SSL_CTX_free(s->ctx);
        s->ctx = ctx;
        s->who = who;
        s->loads++;
        return KVP_OK;
    }
    SSL_CTX_free(ctx);
    return KVP_INVALID;
}

kvp_err_t
kvp_tls_server_create(const kvp_creds_t *files, kvp_authrole_t role, kvp_tls_server_t **server_out, char *why_out)
{
    kvp_tls_server_t *s = calloc(1, sizeof *s);
    kvp_err_t err;

    if (s == NULL) return KVP_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    s->files = *files;
    s->role = role;
    err = load_files(s, why_out);
    if (err == KVP_OK)
        *server_out = s;
    else
        kvp_tls_server_destroy(s);
    return err;
}

uint64_t
kvp_tls_server_loads(const kvp_tls_server_t *s)
{
    return s->loads;
}

const kvp_identity_t *
kvp_tls_server_who(const kvp_tls_server_t *s)
{
    return &s->who;
}

void
kvp_tls_server_destroy(kvp_tls_server_t *s)
{
    if (s == NULL) return;
    SSL_CTX_free(s->ctx);
    free(s->revoked);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The caller holds the lock. */
static void
refresh_locked(kvp_tls_server_t *s, uint64_t now_ns, char *why_out)
{
    why_out[0] = '\0';
    if (now_ns - s->checked_ns < REFRESH_NS) return;
    s->checked_ns = now_ns;
    kvp_ignore(load_files(s, why_out), "the caller logs the reason");
}

kvp_tls_t *
kvp_tls_server_accept(kvp_tls_server_t *s, uint64_t now_ns, char *why_out)
{
    kvp_tls_t *t;

    pthread_mutex_lock(&s->lock);
    refresh_locked(s, now_ns, why_out);
    t = tls_create(s->ctx, false, KVP_MAY_NOTHING, s->who.cluster);
    pthread_mutex_unlock(&s->lock);
    return t;
}

uint64_t
kvp_tls_server_refresh(kvp_tls_server_t *s, uint64_t now_ns, char *why_out)
{
    why_out[0] = '\0';
    if (s->files.tls_crl == NULL) return UINT64_MAX;
    pthread_mutex_lock(&s->lock);
    refresh_locked(s, now_ns, why_out);
    pthread_mutex_unlock(&s->lock);
    return now_ns + REFRESH_NS;
}

bool
kvp_tls_server_has_revoked(kvp_tls_server_t *s, const kvp_identity_t *who)
{
    bool is_revoked;

    if (who->proof != KVP_BY_CERTIFICATE || s->files.tls_crl == NULL) return false;
    /* another thread reads the files now: a later call will find the certificate */
    if (pthread_mutex_trylock(&s->lock) != 0) return false;
    is_revoked =
        s->revoked_n > 0 && bsearch(who->digest, s->revoked, s->revoked_n, sizeof *s->revoked, compare_digests) != NULL;
    pthread_mutex_unlock(&s->lock);
    return is_revoked;
}
