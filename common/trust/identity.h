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
    KVP_IS_ENGINE, /* role of a client that puts, and that lends memory to the pool */
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
    /* of an engine: name of the node as which it may lend memory (kvp_identity_is_node) */
    char node[KVP_IDENTITY_NAME_MAX + 1];
    char id[KVP_IDENTITY_ID_MAX + 1]; /* id of the token, serial number of the certificate, or "uid:N" */
    uint8_t digest[32]; /* SHA-256 of the token, or of a certificate's issuer and serial number; zero for a user */
    uint64_t end_s; /* time at which the identity expires, in seconds since 1970; 0 = never */
} kvp_identity_t;

/* kvp_authrole_name returns the name of a role, such as "writer". kvp_authrole_parse reads one; INVALID. */
const char *kvp_authrole_name(kvp_authrole_t role);
kvp_err_t kvp_authrole_parse(const char *text, kvp_authrole_t *role_out) KVP_MUST_USE;

/* kvp_authrole_is_client returns true for the roles whose name is a tenant. kvp_authrole_is_daemon returns true if a
 * process with the role `has` may serve as a daemon of the role `wanted`: an engine serves as a node. */
bool kvp_authrole_is_client(kvp_authrole_t role);
bool kvp_authrole_is_daemon(kvp_authrole_t has, kvp_authrole_t wanted);

/* kvp_authrole_covers returns true if a client with the role `has` may do what needs the role `needed`, a role of
 * clients. No client covers KVP_MAY_NOTHING: a request without a named role is refused. A node may read, to copy
 * objects. An engine may write. */
bool kvp_authrole_covers(kvp_authrole_t has, kvp_authrole_t needed);

/* kvp_identity_set_name sets the name to len bytes of text: letters, digits and ".-_~:@+". The tenant "default" becomes
 * "". The text of an engine is TENANT/NODE. Returns NULL, or the reason why the role may not have this name. */
const char *kvp_identity_set_name(kvp_identity_t *who, const char *text, size_t len) KVP_MUST_USE;

/* kvp_identity_is_node returns true if the identity may lend memory as the node `name`: a node under its own name, an
 * engine of the node N as N, as N:ANY and as [N]:ANY, because the engines of a host differ in their ports. */
bool kvp_identity_is_node(const kvp_identity_t *who, const char *name);

/* kvp_identity_parse_uri reads the URI of a certificate, kvpool://CLUSTER/ROLE/NAME, of len bytes. INVALID; why_out is
 * then the reason, static text. */
kvp_err_t kvp_identity_parse_uri(const char *uri, size_t len, kvp_identity_t *who_out, const char **why_out)
    KVP_MUST_USE;

/* kvp_identity_refuse makes `who` an identity of no role, with an error and its reason. */
void kvp_identity_refuse(kvp_identity_t *who, kvp_err_t err, const char *fmt, ...) KVP_PRINTF(3, 4);

/* kvp_identity_check_name returns NULL if the name is a valid part of a URI and of a token file, else the reason. */
const char *kvp_identity_check_name(const char *name, size_t len);

#endif
