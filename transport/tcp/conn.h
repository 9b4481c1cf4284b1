/* SPDX-License-Identifier: Apache-2.0
 * One serving connection of tcp, and its lane. Internal to serve.c (lanes, fences, quiesce) and
 * conn.c (hello, requests, answers; answer.c chooses the next bytes to send).
 *
 * Design notes.
 * - A connection touches exported memory only inside kvp_tcp_conn_turn, under its lane's lock, with
 *   system calls that do not block. A thread with the lock knows that no copy is under way, and can
 *   end the connection for good.
 * - A lane receives a request, then sends its answer, then receives the next, never both. So an
 *   idle connection holds no buffers and a busy one a fixed set (kvp_tcp_work_t), whatever a peer
 *   claims.
 * - Only the lane's thread frees connections, after its current events: an event never names freed
 *   memory. */
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

/* One READ of a request, resolved. */
typedef struct {
    const uint8_t *at;
    uint64_t len;
    const kvp_mr_t *mr;
    uint32_t staged_at; /* offset of its bytes in `stage`, once loaded */
    bool is_after; /* AFTER_PRIOR */
    bool has_sum; /* KVP_DATA_SUM: 8 bytes follow */
} kvp_tcp_read_t;

/* Where the body of the WRITE at hand goes. */
typedef struct {
    uint8_t *at; /* of its next byte */
    const uint8_t *guard; /* NULL = unguarded */
    uint64_t guard_word;
    const kvp_mr_t *mr;
    const kvp_mr_t *guard_mr;
} kvp_tcp_land_t;

/* What a connection needs while a request or its answer is under way. */
typedef struct kvp_tcp_work {
    struct kvp_tcp_work *next; /* in the lane's spare list */
    uint32_t rx_at, rx_len; /* received and not yet decoded */
    uint32_t ops_n; /* operations decoded so far */
    kvp_tcp_land_t land;

    /* the answer */
    uint32_t head_len, head_sent;
    uint32_t op; /* the READ being sent, and how much of it is */
    uint64_t off;
    kvp_sum_state_t *summing; /* sum of the sent bytes of the READ; NULL = no sum requested so far */
    uint64_t sum; /* valid after all bytes were sent */
    uint32_t stage_len, staged_n; /* staged_n: READs staged and not sent in full */

    kvp_data_rep_t rep; /* rep and status are sent as they lie here */
    int32_t status[KVP_DATA_OPS_MAX + 1];
    kvp_tcp_read_t reads[KVP_DATA_OPS_MAX];
    _Alignas(8) uint8_t stage[KVP_TCP_STAGE_BYTES];
    uint8_t rx[KVP_TCP_RX_BYTES];
} kvp_tcp_work_t;

typedef enum {
    KVP_TCP_CONN_HELLO, /* its first frame is awaited */
    KVP_TCP_CONN_REFUSED, /* refusal sent; waits for the peer's close, or for its time limit */
    KVP_TCP_CONN_REQUEST,
    KVP_TCP_CONN_ANSWER,
    KVP_TCP_CONN_CLOSED, /* on lane->dead, touches nothing */
} kvp_tcp_conn_state_t;

struct kvp_tcp_lane;

/* Guarded by lane->lock. */
typedef struct {
    kvp_list_t on_lane; /* lane->conns or lane->dead */
    kvp_list_t on_run; /* lane->run: may make progress now */
    kvp_list_t on_busy; /* lane->busy: between turns the connection is within an operation that it will continue */
    kvp_list_t on_hello; /* lane->hellos, oldest first */
    struct kvp_tcp_lane *lane;
    int fd;
    kvp_tcp_conn_state_t state;
    bool can_recv, can_send; /* edge-triggered: true until a call would block */
    bool has_hup; /* end of file or an error is there to be read */
    bool is_over; /* over max_conns: to be refused */
    uint64_t incarnation; /* 0 until told */
    uint64_t hello_until_ns;

    uint64_t op_serial; /* of the operation at hand */
    uint64_t busy_serial; /* serial of its entry in lane->busy */
    uint64_t busy_seq; /* place in the lane's order */

    kvp_data_dec_t dec;
    kvp_tcp_work_t *work; /* NULL while idle */
    uint32_t hello_len;
    uint8_t hello[KVP_TCP_HELLO_MAX];
} kvp_tcp_conn_t;

/* What lanes share; the lists of lanes are in serve.c. */
typedef struct {
    kvp_exports_t exports;
    uint8_t pool_id[16];
    pthread_mutex_t peers_lock; /* inside a lane's lock */
    kvp_idset_t fenced; /* guarded by peers_lock */
    _Atomic uint32_t conns_n;
    kvp_log_limit_t refused_lines;
} kvp_tcp_shared_t;

typedef struct kvp_tcp_lane {
    kvp_tcp_shared_t *shared;
    pthread_mutex_t lock;
    _Atomic uint32_t outsiders; /* other threads that wait for the lock */
    kvp_epoll_t epoll; /* the tag of a connection is itself, that of the listener the server */
    kvp_list_t conns; /* all below guarded by lock */
    kvp_list_t dead;
    kvp_list_t run;
    kvp_list_t busy; /* in the order of busy_seq */
    kvp_list_t hellos;
    kvp_list_t quiesces; /* in the order of their seq */
    uint64_t seq; /* the last given */
    kvp_tcp_work_t *spare;
    uint32_t spare_n;
} kvp_tcp_lane_t;

/* kvp_tcp_conn_turn does what the connection can do now, up to a share of bytes; true where more is left to do. */
bool kvp_tcp_conn_turn(kvp_tcp_conn_t *conn);

/* kvp_tcp_conn_kill ends the connection: it touches no memory afterwards. The lane's thread closes
 * and frees it. */
void kvp_tcp_conn_kill(kvp_tcp_conn_t *conn);

/* kvp_tcp_work_free frees a spare set of buffers. */
void kvp_tcp_work_free(kvp_tcp_work_t *work);

/* kvp_tcp_conn_uses returns whether the connection holds an address in mr's memory. */
bool kvp_tcp_conn_uses(const kvp_tcp_conn_t *conn, const kvp_mr_t *mr);

#define KVP_TCP_CALL_BYTES (1u << 20) /* of one system call into or out of exported memory */

/* kvp_tcp_answer_begin makes the head, once every operation of the request was decoded. */
void kvp_tcp_answer_begin(kvp_tcp_conn_t *conn);

/* kvp_tcp_answer_gather collects the next bytes to send, at most KVP_TCP_CALL_BYTES;
 * kvp_tcp_answer_took records how many were sent. */
void kvp_tcp_answer_gather(kvp_tcp_conn_t *conn, kvp_tcp_gather_t *g);
void kvp_tcp_answer_took(kvp_tcp_conn_t *conn, size_t n);

/* kvp_tcp_answer_is_over returns whether the whole answer was sent. */
bool kvp_tcp_answer_is_over(const kvp_tcp_conn_t *conn);

#endif
