/* SPDX-License-Identifier: Apache-2.0
 * One control connection of an endpoint's serving side: shared by serve.c (the loop) and conn.c
 * (requests and answers). All of it belongs to the loop's thread. */
#ifndef KVP_P2P_SERVE_CONN_H
#define KVP_P2P_SERVE_CONN_H

#include "net/framed.h"
#include "p2p/serve/serve.h"
#include "common/hash.h"
#include "common/log.h"
#include "p2p/base/ranges.h"
#include "transport/bounce.h"

#define KVP_P2P_BOUNCES_MAX 64u /* of an endpoint; a refused peer asks again */

typedef struct {
    kvp_list_t link; /* of the idle ones */
    kvp_bounce_t *bounce;
    uint64_t token;
} kvp_p2p_bounce_t;

/* kvp_p2p_bounce_takes: the pieces of such a move lie in the bounce buffer. */
bool kvp_p2p_bounce_takes(const kvp_peer_moves_t *moves);

/* A PEER_MOVE that is being worked off, slice by slice: a pull by the pullers, too, all else by the loop. */
typedef struct {
    uint64_t request_id;
    kvp_peer_move_t kind;
    uint32_t n, at; /* pieces, and the one at hand, but of a pull */
    uint64_t off; /* in it */
    kvp_peer_piece_t *pieces; /* NULL = no job */
    kvp_peer_moved_t *moved;
    kvp_sum_state_t *sum;
    kvp_p2p_pull_t pull;
    bool is_waiting; /* threads work on slices; wake_fd signals the end */
} kvp_p2p_job_t;

typedef enum {
    KVP_P2P_CONN_RAW, /* by TCP, and its first bytes are still unread */
    KVP_P2P_CONN_CONTROL,
    KVP_P2P_CONN_REFUSED, /* stays until the peer closes it */
    KVP_P2P_CONN_CLOSED, /* on the server's dead */
} kvp_p2p_conn_state_t;

typedef struct {
    kvp_list_t link; /* the server's conns, or its dead */
    kvp_list_t on_jobs; /* the server's jobs or waiting */
    kvp_list_t on_hellos; /* in the server's hellos, oldest first, until Hello has arrived */
    kvp_framed_t io;
    uint64_t since_ns;
    uint64_t incarnation; /* 0 until Hello */
    uint64_t rdma_conn; /* incarnation of the asker's rdma connection, which ends with this one; 0 = none stated */
    kvp_cma_proc_t proc;
    kvp_p2p_bounce_t *bounce; /* NULL = none */
    kvp_p2p_job_t job;
    kvp_p2p_conn_state_t state;
    bool is_over; /* over the maximum: to be refused */
} kvp_p2p_conn_t;

/* The server's parts that connections use. */
typedef struct {
    kvp_p2p_server_conf_t conf;
    char unix_path[KVP_PEER_UNIX_MAX]; /* empty = none */
    int wake_fd; /* the loop's eventfd */
    kvp_bounces_t bounces; /* memory of the bounce buffers that peers use */
    kvp_list_t idle_bounces; /* registered */
    pthread_mutex_t notes_lock; /* a leaf */
    kvp_list_t notes; /* both guarded by notes_lock */
    uint32_t notes_n;
} kvp_p2p_shared_t;

/* kvp_p2p_bounce_give takes a bounce buffer back; is_quiet: no byte of its peer can land in it any
 * more. Otherwise it is unregistered first, which waits for such bytes. kvp_p2p_bounces_fini: all
 * were given back. */
void kvp_p2p_bounce_give(kvp_p2p_shared_t *shared, kvp_p2p_bounce_t *bounce, bool is_quiet);
void kvp_p2p_bounces_fini(kvp_p2p_shared_t *shared);

/* kvp_p2p_conn_on_frame answers one request, or begins a job: PROTO and other errors end the
 * connection, with the reason in *why_out. */
kvp_err_t kvp_p2p_conn_on_frame(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame,
                                const char **why_out) KVP_MUST_USE;

/* kvp_p2p_conn_work does a slice of the job; once it is over its answer is queued. */
void kvp_p2p_conn_work(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn);
/* kvp_p2p_job_stop stops a job, if any. False: a thread still works on it, and neither the job nor
 * the connection's memory in use may be freed. */
bool kvp_p2p_job_stop(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job);
void kvp_p2p_job_drop(kvp_p2p_job_t *job); /* that was stopped */

/* kvp_p2p_conn_end_rdma ends the rdma connection of this control connection: its adapter sends
 * nothing when its host vanishes. */
void kvp_p2p_conn_end_rdma(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn);

static inline bool
kvp_p2p_conn_has_job(const kvp_p2p_conn_t *conn)
{
    return conn->job.pieces != NULL;
}

#endif
