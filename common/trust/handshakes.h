/* SPDX-License-Identifier: Apache-2.0
 * Handshakes of TLS at a server, in threads of their own (ADR 0053): public-key operations and slow peers do not delay
 * the loop. The loop adds accepted connections, and takes them when their handshake has ended. */
#ifndef KVP_COMMON_TRUST_HANDSHAKES_H
#define KVP_COMMON_TRUST_HANDSHAKES_H

#include "common/trust/tls.h"

#include <sys/socket.h>

#define KVP_HANDSHAKES_MAX 256u /* most connections at once */
#define KVP_HANDSHAKES_A_HOST 32u /* most connections of one address */
#define KVP_HANDSHAKES_PEER_MAX 80u

typedef struct kvp_handshakes kvp_handshakes_t;

/* A handshake that has ended. */
typedef struct {
    kvp_err_t err; /* OK, or the errors of kvp_tls_step and DEADLINE, DISCONNECTED */
    /* the connection; owned by the taker. After an error the taker shuts the connection down, and closes it when the
     * peer has closed it or a short time has passed. To close a socket with unread bytes could discard the alert that
     * reports the reason to the peer. */
    int fd;
    kvp_tls_t *tls; /* owned by the taker; NULL = the peer does not speak TLS, and its bytes were not read */
    char peer[KVP_HANDSHAKES_PEER_MAX]; /* address of the peer, for people */
    char why[KVP_TLS_WHY_MAX]; /* the reason of an error, for people */
    kvp_identity_t who; /* after an error: the identity in the refused certificate; id "" = not known */
    _Atomic int state; /* this field and the fields below are used by handshakes.c only */
    struct sockaddr_storage from;
    uint64_t until_ns;
} kvp_handshake_t;

/* kvp_handshakes_start starts two threads for a server of the role `role`. `wake` is called in these threads when a
 * handshake has ended. INVALID (files), NOMEM, SYS; why_out (KVP_TLS_WHY_MAX bytes) is the reason.
 * kvp_handshakes_stop ends the threads and closes all connections that were not taken; it accepts NULL. */
kvp_err_t kvp_handshakes_start(const kvp_creds_t *files, kvp_authrole_t role, void (*wake)(void *arg), void *arg,
                               kvp_handshakes_t **out, char *why_out) KVP_MUST_USE;
void kvp_handshakes_stop(kvp_handshakes_t *h);

/* kvp_handshakes_add takes the connection fd, non-blocking, and begins its handshake, which ends within 5 s. LIMIT: too
 * many handshakes in all, or from this address; fd then stays with the caller. */
kvp_err_t kvp_handshakes_add(kvp_handshakes_t *h, int fd) KVP_MUST_USE;

/* kvp_handshakes_take moves a finished handshake to the caller; false = there is none. */
bool kvp_handshakes_take(kvp_handshakes_t *h, kvp_handshake_t *out);

/* kvp_handshakes_who returns the identity of the own certificate. */
const kvp_identity_t *kvp_handshakes_who(const kvp_handshakes_t *h);

/* kvp_handshakes_has_revoked returns whether the revocation list has the certificate that proved the identity. The
 * list is read again within 2 s after its file has changed. Does not block. h may be NULL. */
bool kvp_handshakes_has_revoked(const kvp_handshakes_t *h, const kvp_identity_t *who);

#endif
