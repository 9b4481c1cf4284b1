/* SPDX-License-Identifier: Apache-2.0
 * One connection of tcp's serving side, and its lane: one thread with the connections that it serves. Internal to
 * serve.c (lanes, fences, quiesce) and conn.c (hello, requests, answers); answer.c chooses the next bytes to send.
 *
 * Design notes.
 * - A connection touches exported memory only inside kvp_tcp_conn_turn, under its lane's lock, with system calls that
 *   do not block. So a thread that holds the lock knows that no copy is under way, and can end the connection for good.
 * - A connection receives a request, then sends the answer, then receives the next request. So an idle connection has
 *   no buffers, and a busy connection has one set of fixed size (kvp_tcp_work_t), whatever the peer sends.
 * - Only the lane's thread frees connections, after its current events: an event never names freed memory. */
#ifndef KVP_TRANSPORT_TCP_CONN_H
#define KVP_TRANSPORT_TCP_CONN_H

#include "net/epoll.h"
#include "transport/exports.h"
#include "transport/tcp/sock.h"
#include "transport/tcp/wire.h"
#include "transport/local.h"
#include "common/hash.h"
#include "common/list.h"
#include "common/log.h"

#define KVP_TCP_HELLO_MAX 256u
#define KVP_TCP_RX_BYTES (32u << 10)
#define KVP_TCP_STAGE_BYTES (16u << 10)
#define KVP_TCP_NOT_STAGED UINT32_MAX

/* One READ of a request, with its key translated to an address. */
typedef struct {
    const uint8_t *at;
    uint64_t len;
    const kvp_mr_t *mr;
    uint32_t staged_at; /* the offset of the loaded bytes in `stage`; KVP_TCP_NOT_STAGED = not loaded there */
    bool is_after; /* the READ has the flag AFTER_PRIOR */
    bool has_sum; /* the READ has the flag KVP_DATA_SUM: 8 bytes of checksum follow its data in the answer */
} kvp_tcp_read_t;

/* The destination of the current WRITE's body. */
typedef struct {
    uint8_t *at; /* the address of the body's next byte */
    const uint8_t *guard; /* the address of the guard word; NULL = the WRITE has no guard */
    uint64_t guard_word;
    const kvp_mr_t *mr;
    const kvp_mr_t *guard_mr;
} kvp_tcp_land_t;

/* The buffers of a connection while a request or its answer is under way. */
typedef struct kvp_tcp_work {
    struct kvp_tcp_work *next; /* the next entry in lane->spare, the lane's list of unused sets of buffers */
    uint32_t rx_at, rx_len; /* the received bytes that are not yet decoded, in rx */
    uint32_t ops_n; /* the number of operations decoded so far */
    kvp_tcp_land_t land;
    uint64_t began_ns; /* the time of the request's first operation */
    uint64_t bytes; /* the bytes of the request's accepted READs and WRITEs */

    /* The fields from here on describe the answer. */
    uint32_t head_len, head_sent;
    uint32_t op; /* the index of the READ being sent, of which `off` bytes were sent */
    uint64_t off;
    /* the checksum state of the READ being sent; NULL until a READ requests a checksum */
    kvp_sum_state_t *summing;
    uint64_t sum; /* the checksum of the READ being sent, valid after all its data was sent */
    uint32_t stage_len, staged_n; /* bytes used in `stage`; READs in `stage` that were not sent in full */

    kvp_data_rep_t rep; /* the head of the answer is sent from memory: rep and the statuses after it */
    int32_t status[KVP_DATA_OPS_MAX + 1];
    kvp_tcp_read_t reads[KVP_DATA_OPS_MAX];
    _Alignas(8) uint8_t stage[KVP_TCP_STAGE_BYTES];
    uint8_t rx[KVP_TCP_RX_BYTES];
} kvp_tcp_work_t;

typedef enum {
    KVP_TCP_CONN_HELLO, /* the connection waits for the peer's hello */
    KVP_TCP_CONN_REFUSED, /* the hello was refused; waits for the peer's close or the time limit */
    KVP_TCP_CONN_REQUEST,
    KVP_TCP_CONN_ANSWER,
    KVP_TCP_CONN_CLOSED, /* the connection has ended: it is on lane->dead and touches no memory */
} kvp_tcp_conn_state_t;

struct kvp_tcp_lane;

/* One connection of the serving side. All fields are guarded by lane->lock. */
typedef struct {
    kvp_list_t on_lane; /* link in the list lane->conns or lane->dead */
    kvp_list_t on_run; /* link in lane->run: the connection may make progress now */
    /* link in lane->busy: the last turn ended in the middle of an operation (is_within_op in conn.c) */
    kvp_list_t on_busy;
    kvp_list_t on_hello; /* link in lane->hellos: connections whose hello is not accepted yet, oldest first */
    struct kvp_tcp_lane *lane;
    int fd;
    kvp_tcp_conn_state_t state;
    bool can_recv, can_send; /* the socket may have bytes, or room (edge-triggered): true until a call would block */
    bool has_hup; /* an end of file or an error is pending on the socket */
    bool is_over; /* max_conns was reached before this connection, so its hello is refused */
    uint64_t incarnation; /* the peer's incarnation; 0 until the peer's hello was read */
    uint64_t hello_until_ns;

    uint64_t op_serial; /* the number of the current operation on this connection */
    uint64_t busy_serial; /* op_serial at the time when the connection was put on lane->busy */
    uint64_t busy_seq; /* number that orders the connections on lane->busy */

    kvp_data_dec_t dec;
    kvp_tcp_work_t *work; /* the connection's buffers; NULL while it is idle */
    uint32_t hello_len;
    uint8_t hello[KVP_TCP_HELLO_MAX];
} kvp_tcp_conn_t;

/* The state that all lanes of a server share. struct kvp_tcp_server (serve.c) has the lanes. */
typedef struct {
    kvp_exports_t exports;
    uint8_t pool_id[16];
    pthread_mutex_t peers_lock; /* guards `fenced`; taken inside a lane's lock */
    kvp_idset_t fenced; /* the fenced incarnations; guarded by peers_lock */
    _Atomic uint32_t conns_n;
    kvp_log_limit_t refused_lines;
    kvp_served_t *served; /* counts of answered requests; borrowed; NULL = not wanted */
} kvp_tcp_shared_t;

typedef struct kvp_tcp_lane {
    kvp_tcp_shared_t *shared;
    pthread_mutex_t lock;
    /* the number of other threads that wait for the lane's lock; the lane's thread yields to them */
    _Atomic uint32_t outsiders;
    kvp_epoll_t epoll; /* set of the lane's sockets; tags: a connection, or the server for the listening socket */
    kvp_list_t conns; /* the connections that have not ended; lock guards this field and all below */
    kvp_list_t dead;
    kvp_list_t run;
    kvp_list_t busy; /* connections that stopped within an operation, in the order of busy_seq */
    kvp_list_t hellos;
    kvp_list_t quiesces; /* quiesce calls that wait for entries of busy, in the order of their seq */
    uint64_t seq; /* busy_seq of the connection that was last put on busy */
    kvp_tcp_work_t *spare;
    uint32_t spare_n;
} kvp_tcp_lane_t;

/* kvp_tcp_conn_turn does all that the connection can do now, up to about 2 MiB. Returns true if it can do more. */
bool kvp_tcp_conn_turn(kvp_tcp_conn_t *conn);

/* kvp_tcp_conn_kill ends the connection, which touches no memory any more. The lane's thread later closes its socket
 * and frees it. */
void kvp_tcp_conn_kill(kvp_tcp_conn_t *conn);

/* kvp_tcp_work_free frees a spare set of buffers. */
void kvp_tcp_work_free(kvp_tcp_work_t *work);

/* kvp_tcp_conn_uses returns whether an unfinished operation of the connection uses mr's memory. */
bool kvp_tcp_conn_uses(const kvp_tcp_conn_t *conn, const kvp_mr_t *mr);

#define KVP_TCP_CALL_BYTES (1u << 20) /* the most bytes that one system call moves into or out of exported memory */

/* kvp_tcp_answer_begin makes the head of the answer, after all operations of the request were decoded. */
void kvp_tcp_answer_begin(kvp_tcp_conn_t *conn);

/* kvp_tcp_answer_gather collects the next bytes of the answer to send, at most KVP_TCP_CALL_BYTES.
 * kvp_tcp_answer_took records how many of these bytes were sent. */
void kvp_tcp_answer_gather(kvp_tcp_conn_t *conn, kvp_tcp_gather_t *g);
void kvp_tcp_answer_took(kvp_tcp_conn_t *conn, size_t n);

/* kvp_tcp_answer_is_over returns whether the whole answer was sent. */
bool kvp_tcp_answer_is_over(const kvp_tcp_conn_t *conn);

#endif
