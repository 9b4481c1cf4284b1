/* SPDX-License-Identifier: Apache-2.0
 * The identity of a peer: its role and its name, as a certificate, a token or the kernel proves them (ADR 0051). Pure
 * functions; any thread. */
#ifndef KVP_COMMON_TRUST_IDENTITY_H
#define KVP_COMMON_TRUST_IDENTITY_H

#include "common/base.h"

#define KVP_IDENTITY_NAME_MAX 128u
#define KVP_IDENTITY_ID_MAX 64u
#define KVP_IDENTITY_CLUSTER_MAX 64u
#define KVP_IDENTITY_WHY_MAX 160u

/* The roles. Each of the first four may do what the roles before it may do. */
typedef enum {
    KVP_MAY_NOTHING, /* no role: the peer has proved no identity */
    KVP_MAY_MONITOR, /* role of a program that reads figures */
    KVP_MAY_READ, /* role of a client that reads its tenant's objects */
    KVP_MAY_WRITE, /* role of a client that also puts and removes its tenant's objects */
    KVP_MAY_ADMIN, /* role of a client that may do everything, for every tenant */
    KVP_IS_NODE, /* role of the node whose name the identity has */
    KVP_IS_MASTER, /* role of a master of the pool */
    KVP_IS_CONDUCTOR, /* role of a conductor */
} kvp_authrole_t;

/* What proved an identity. */
typedef enum {
    KVP_BY_NOTHING,
    KVP_BY_USER, /* the kernel reported the process's user, on a Unix socket */
    KVP_BY_TOKEN,
    KVP_BY_CERTIFICATE,
} kvp_authproof_t;

typedef struct {
    kvp_authrole_t role; /* KVP_MAY_NOTHING = the peer has no identity; `err` and `why` are the reason */
    kvp_authproof_t proof;
    bool is_owner; /* flag: the daemon's own user, or root: it may also act as a node or as a master */
    kvp_err_t err; /* DENIED or EXPIRED, if the peer has no identity */
    char why[KVP_IDENTITY_WHY_MAX]; /* the reason for people, if the peer has no identity */
    char cluster[KVP_IDENTITY_CLUSTER_MAX + 1]; /* name of the pool in a certificate; "" otherwise */
    char name[KVP_IDENTITY_NAME_MAX + 1]; /* a daemon's name, or a client's tenant; "" = the default tenant */
    char id[KVP_IDENTITY_ID_MAX + 1]; /* id of the token, serial number of the certificate, or "uid:N" */
    uint8_t digest[32]; /* SHA-256 of the token, or of a certificate's issuer and serial number; zero for a user */
    uint64_t end_s; /* when the identity ends, in seconds since 1970; 0 = it has no end */
} kvp_identity_t;

/* kvp_authrole_name returns the name of a role, such as "writer". kvp_authrole_parse reads one; INVALID. */
const char *kvp_authrole_name(kvp_authrole_t role);
kvp_err_t kvp_authrole_parse(const char *text, kvp_authrole_t *role_out) KVP_MUST_USE;

/* kvp_authrole_is_client returns true for the roles whose name is a tenant. */
bool kvp_authrole_is_client(kvp_authrole_t role);

/* kvp_authrole_covers returns true if a client with the role `has` may do what needs the role `needed`, a role of
 * clients. No client covers KVP_MAY_NOTHING: a request without a named role is refused. A node may read, to copy
 * objects. */
bool kvp_authrole_covers(kvp_authrole_t has, kvp_authrole_t needed);

/* kvp_identity_parse_uri reads the URI of a certificate, kvpool://CLUSTER/ROLE/NAME, of len bytes. The names have
 * letters, digits and ".-_~:@+". The tenant "default" becomes "". INVALID; why_out is then the reason, static text. */
kvp_err_t kvp_identity_parse_uri(const char *uri, size_t len, kvp_identity_t *who_out, const char **why_out)
    KVP_MUST_USE;

/* kvp_identity_refuse makes `who` an identity of no role, with an error and its reason. */
void kvp_identity_refuse(kvp_identity_t *who, kvp_err_t err, const char *fmt, ...) KVP_PRINTF(3, 4);

/* kvp_identity_check_name returns NULL if the name is valid in a URI and in a token file, else the reason. */
const char *kvp_identity_check_name(const char *name, size_t len);

#endif
