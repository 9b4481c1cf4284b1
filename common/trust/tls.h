/* SPDX-License-Identifier: Apache-2.0
 * TLS 1.3 for control connections (ADR 0053): one OpenSSL connection over buffers in memory, without a socket. The
 * owner moves the encrypted bytes. One thread may seal and take while another thread feeds and opens; other calls for
 * a connection need one thread. No call blocks, except on the files of certificates. */
#ifndef KVP_COMMON_TRUST_TLS_H
#define KVP_COMMON_TRUST_TLS_H

#include "common/buf.h"
#include "common/trust/creds.h"
#include "common/trust/identity.h"

#define KVP_TLS_WHY_MAX 240u
#define KVP_TLS_RECORD_MAX 16384u /* longest plain text of a record, in bytes */

typedef struct kvp_tls kvp_tls_t;
typedef struct kvp_tls_server kvp_tls_server_t;

#pragma GCC visibility push(default)

/* kvp_tls_client makes a connection of a client to a peer with the role `role` (KVP_MAY_NOTHING = any daemon's), and
 * with the name `name` (NULL = any). The peer's cluster is that of the own certificate, if there is one. NULL: no
 * memory. A fault of the files (a CA is needed; a certificate and its key are not) is the result of the connection's
 * first call. */
kvp_tls_t *kvp_tls_client(const kvp_creds_t *files, kvp_authrole_t role, const char *name);

/* kvp_tls_server_create reads the files of a server of the role `role`: CA, certificate and key. The paths are
 * borrowed. INVALID, NOMEM; why_out (KVP_TLS_WHY_MAX bytes) is then the reason. kvp_tls_server_who returns the identity
 * of the own certificate. kvp_tls_server_destroy accepts NULL. */
kvp_err_t kvp_tls_server_create(const kvp_creds_t *files, kvp_authrole_t role, kvp_tls_server_t **server_out,
                                char *why_out) KVP_MUST_USE;
const kvp_identity_t *kvp_tls_server_who(const kvp_tls_server_t *server);
/* kvp_tls_server_loads returns how often the files were read without an error. Any thread may call it. */
uint64_t kvp_tls_server_loads(const kvp_tls_server_t *s);
void kvp_tls_server_destroy(kvp_tls_server_t *server);

/* kvp_tls_server_accept makes a connection of the server; NULL: no memory. kvp_tls_destroy accepts NULL. At most once a
 * second kvp_tls_server_accept checks whether the files have changed, and reads them again. After an error the files
 * read before stay in use; why_out (KVP_TLS_WHY_MAX bytes) has the reason once for each change of the files, and is ""
 * otherwise. */
kvp_tls_t *kvp_tls_server_accept(kvp_tls_server_t *server, uint64_t now_ns, char *why_out);

/* kvp_tls_server_refresh reads the files again as kvp_tls_server_accept does, if there is a revocation list. It returns
 * when to call again; UINT64_MAX = never. kvp_tls_server_has_revoked returns whether the list has the certificate that
 * proved the identity; it does not block, and may return false while another thread reads the files. */
uint64_t kvp_tls_server_refresh(kvp_tls_server_t *server, uint64_t now_ns, char *why_out);
bool kvp_tls_server_has_revoked(kvp_tls_server_t *server, const kvp_identity_t *who);
void kvp_tls_destroy(kvp_tls_t *tls);

/* kvp_tls_step continues the handshake: OK (finished), EAGAIN (feed more bytes), or a lasting error: DENIED or EXPIRED
 * (a certificate was refused, by this side or by the peer), PROTO (the bytes are not TLS, or of a version that is not
 * accepted), INVALID (this side's files), NOMEM. Take and send the encrypted bytes after each step, also after an
 * error. */
kvp_err_t kvp_tls_step(kvp_tls_t *tls) KVP_MUST_USE;
bool kvp_tls_is_done(const kvp_tls_t *tls);

/* kvp_tls_feed gives the connection encrypted bytes that were received: OK, NOMEM. kvp_tls_held returns how many of
 * them were not handled yet; more than 0 after an error. */
kvp_err_t kvp_tls_feed(kvp_tls_t *tls, const void *bytes, size_t len) KVP_MUST_USE;
size_t kvp_tls_held(kvp_tls_t *tls);

/* kvp_tls_open decrypts up to cap bytes: OK (*n_out > 0), EAGAIN (feed more), DISCONNECTED (the peer has ended), or
 * the errors of kvp_tls_step. */
kvp_err_t kvp_tls_open(kvp_tls_t *tls, void *plain, size_t cap, size_t *n_out) KVP_MUST_USE;

/* kvp_tls_seal encrypts len bytes, after the handshake: OK or a lasting error. kvp_tls_take moves up to cap encrypted
 * bytes to `to` and returns their number; 0 = none are left to send. kvp_tls_take_all appends all of them to a buffer
 * without a limit, whose err is then the error; an empty buffer is exchanged for them. */
kvp_err_t kvp_tls_seal(kvp_tls_t *tls, const void *plain, size_t len) KVP_MUST_USE;
size_t kvp_tls_take(kvp_tls_t *tls, void *to, size_t cap);
void kvp_tls_take_all(kvp_tls_t *tls, kvp_buf_t *to);

/* kvp_tls_why returns the reason of the last error for people; "" = none. kvp_tls_peer returns the identity that the
 * peer's certificate proves, after the handshake. Without a valid one the identity has no role, and a reason. */
const char *kvp_tls_why(const kvp_tls_t *tls);
const kvp_identity_t *kvp_tls_peer(const kvp_tls_t *tls);

/* kvp_tls_is_hello returns true if the first bytes of a connection (3 at least) begin a handshake of TLS. No frame of
 * the length that is accepted before a Hello begins with these bytes. */
bool kvp_tls_is_hello(const uint8_t *bytes, size_t len);

#pragma GCC visibility pop

#endif
