/* SPDX-License-Identifier: Apache-2.0
 * The beginning of every control connection of a client, and questions with one answer on a
 * connection that a single thread owns. Blocking, with a deadline. */
#ifndef KVP_NET_HELLO_H
#define KVP_NET_HELLO_H

#include "net/framed.h"
#include "common/hostid.h"

/* The pool that a node's memory was made for. */
typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term; /* the highest term that the node obeys in the pool; 0 = the node has no pool */
} kvp_known_pool_t;

typedef struct {
    const char *name;
    const char *host_id;
    const char *tenant; /* name of the tenant, in a Hello to a master; NULL = the default tenant */
    uint32_t role; /* kvp_role_t; 0 = client */
    uint64_t incarnation; /* to a master: of the session before, or 0; to a node: the one that the master gave */
    const uint8_t *pool_id; /* 16 bytes to a node, NULL to a master */
    const kvp_known_pool_t *known; /* of a node to a master; NULL or term 0 = it has no memory */
    bool is_state_only; /* to a master, which need not lead: LIST, SEGMENTS and STATUS alone are asked */
    int pidfd; /* rides beside the Hello on a Unix connection to a node; -1 = none */
} kvp_hello_ask_t;

typedef struct {
    uint32_t term;
    uint64_t incarnation;
    uint64_t digest_seed;
    uint8_t pool_id[16];
    char host_id[KVP_HOST_ID_MAX + 1];
    char unix_path[108]; /* empty = none */
    uint32_t heartbeat_ms;
    uint32_t session_ttl_ms;
    uint32_t lease_ttl_ms;
    char detail[160]; /* why it was refused; set on any outcome */
} kvp_hello_reply_t;

/* kvp_hello introduces this client: OK, the peer's refusal (VERSION, FENCED, INVALID ...),
 * DEADLINE, DISCONNECTED or PROTO. reply_out->detail gives people the cause. */
kvp_err_t kvp_hello(kvp_framed_t *c, const kvp_hello_ask_t *ask, uint64_t deadline_ns, kvp_hello_reply_t *reply_out)
    KVP_MUST_USE;

/* kvp_exchange sends what is queued in c->out and waits for the answer to request_id; other answers are dropped. The
 * frame is borrowed until the next use of c. After DEADLINE the same call goes on waiting; after DISCONNECTED or PROTO
 * the connection is of no more use. */
kvp_err_t kvp_exchange(kvp_framed_t *c, uint64_t request_id, uint64_t deadline_ns, kvp_frame_t *frame_out) KVP_MUST_USE;

#endif
