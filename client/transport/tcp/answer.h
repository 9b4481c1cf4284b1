/* SPDX-License-Identifier: Apache-2.0
 * The answer that a serving connection is sending. Internal to conn.c.
 */
#ifndef KVP_CLIENT_TRANSPORT_TCP_ANSWER_H
#define KVP_CLIENT_TRANSPORT_TCP_ANSWER_H

#include "client/transport/tcp/conn.h"

#include <sys/uio.h>

#define KVP_TCP_CALL_BYTES (1u << 20) /* of one system call into or out of exported memory */
#define KVP_TCP_SEND_IOVS 128u

typedef struct {
    struct iovec iov[KVP_TCP_SEND_IOVS];
    size_t n;
    size_t bytes;
} kvp_tcp_gather_t;

/* kvp_tcp_answer_begin makes the head, once every operation of the request was decoded. */
void kvp_tcp_answer_begin(kvp_tcp_conn_t *conn);

/* kvp_tcp_answer_gather collects what may be sent next, at most KVP_TCP_CALL_BYTES; kvp_tcp_answer_took says how much of
 * that was sent. */
void kvp_tcp_answer_gather(kvp_tcp_conn_t *conn, kvp_tcp_gather_t *g);
void kvp_tcp_answer_took(kvp_tcp_conn_t *conn, size_t n);

/* kvp_tcp_answer_is_over says whether all of it was sent. */
bool kvp_tcp_answer_is_over(const kvp_tcp_conn_t *conn);

#endif
