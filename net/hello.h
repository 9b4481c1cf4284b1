/* SPDX-License-Identifier: Apache-2.0
 * The Hello that begins every control connection of a client, and questions with one answer on a connection that a
 * single thread owns. The calls block until a deadline. */
#ifndef KVP_NET_HELLO_H
#define KVP_NET_HELLO_H

#include "net/framed.h"
#include "common/hostid.h"

/* The pool for which a node's memory was created. */
typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term; /* the highest term that the node has accepted in the pool; 0 = the node has no pool */
} kvp_known_pool_t;

typedef struct {
    const char *name;
    const char *host_id;
    const char *tenant; /* name of the tenant, in a Hello to a master; NULL = the default tenant */
    uint32_t role; /* a kvp_role_t; 0 = client */
    /* to a master: the incarnation of the previous session, or 0; to a node: the incarnation that the master gave */
    uint64_t incarnation;
    const uint8_t *pool_id; /* id of the pool: 16 bytes in a Hello to a node; NULL in a Hello to a master */
    /* in a Hello of a node to a master: the pool of the node's memory; NULL or term 0 = the node has no memory */
    const kvp_known_pool_t *known;
    bool is_state_only; /* in a Hello to a master that need not lead: the session only asks LIST, SEGMENTS and STATUS */
    bool is_probe; /* in a Hello to a master: the session's puts evict nothing, and its gets are not counted */
    int pidfd; /* pidfd of this process, sent with the Hello on a Unix connection to a node; -1 = none */
} kvp_hello_ask_t;

typedef struct {
    uint32_t term;
    uint64_t incarnation;
    uint64_t digest_seed;
    uint8_t pool_id[16];
    char host_id[KVP_HOST_ID_MAX + 1];
    char unix_path[108]; /* Unix socket of the other side; empty = none */
    uint32_t heartbeat_ms;
    uint32_t session_ttl_ms;
    uint32_t lease_ttl_ms;
    char tenant[129]; /* tenant of the session, if the master requires identities */
    char rights[240]; /* the proved role and id; "" = the master requires no identity */
    char detail[200]; /* cause for people: why the Hello was refused or not answered; "" = none */
} kvp_hello_reply_t;

/* kvp_hello sends Hello and waits for the answer. Returns OK, the peer's refusal (VERSION, FENCED, INVALID, DENIED,
 * EXPIRED and others; after DENIED the reply has host_id and unix_path), DEADLINE, DISCONNECTED or PROTO.
 * reply_out->detail is the cause, for people. */
kvp_err_t kvp_hello(kvp_framed_t *c, const kvp_hello_ask_t *ask, uint64_t deadline_ns, kvp_hello_reply_t *reply_out)
    KVP_MUST_USE;

/* kvp_exchange sends the bytes queued in c->out and waits for the answer to request_id; other answers are dropped.
 * The frame is borrowed until the next use of c. After DEADLINE the caller may wait again with the same call. After
 * DISCONNECTED or PROTO the connection cannot be used any more. */
kvp_err_t kvp_exchange(kvp_framed_t *c, uint64_t request_id, uint64_t deadline_ns, kvp_frame_t *frame_out) KVP_MUST_USE;

#endif
