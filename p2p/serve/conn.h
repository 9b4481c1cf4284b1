/* SPDX-License-Identifier: Apache-2.0
 * One control connection of an endpoint's serving side, shared by serve.c (the event loop) and conn.c (requests and
 * answers). Only the loop's thread uses it. */
#ifndef KVP_P2P_SERVE_CONN_H
#define KVP_P2P_SERVE_CONN_H

#include "net/framed.h"
#include "p2p/serve/serve.h"
#include "common/hash.h"
#include "common/log.h"
#include "p2p/base/ranges.h"
#include "transport/bounce.h"

#define KVP_P2P_BOUNCES_MAX 64u /* most bounce buffers of an endpoint for its peers; a refused peer asks again */

typedef struct {
    kvp_list_t link; /* entry in the list of idle bounce buffers */
    kvp_bounce_t *bounce;
    uint64_t token;
} kvp_p2p_bounce_t;

/* kvp_p2p_bounce_takes returns true if each piece of the move lies within the peer's bounce buffer. */
bool kvp_p2p_bounce_takes(const kvp_peer_moves_t *moves);

/* A PEER_MOVE request that is being carried out, slice by slice. The pullers' threads help with a pull; the server's
 * loop does everything else. */
typedef struct {
    uint64_t request_id;
    kvp_peer_move_t kind;
    uint32_t n, at; /* the job's number of pieces, and the index of its current piece; `at` is not used by a pull */
    uint64_t off; /* offset in the current piece */
    kvp_peer_piece_t *pieces; /* the pieces of the request; NULL = no job */
    kvp_peer_moved_t *moved;
    kvp_sum_state_t *sum;
    kvp_p2p_pull_t pull;
    bool is_waiting; /* other threads copy the last slices of the pull; the last thread signals wake_fd */
} kvp_p2p_job_t;

typedef enum {
    KVP_P2P_CONN_RAW, /* a TCP connection whose first bytes were not read yet */
    KVP_P2P_CONN_CONTROL,
    KVP_P2P_CONN_REFUSED, /* the connection was refused, and stays open until the peer closes it */
    KVP_P2P_CONN_CLOSED, /* closed, in the server's list `dead` */
} kvp_p2p_conn_state_t;

typedef struct {
    kvp_list_t link; /* the connection's entry in the server's list `conns` or `dead` */
    kvp_list_t on_jobs; /* the connection's entry in the server's list `jobs` or `waiting` */
    kvp_list_t on_hellos; /* the connection's entry in the server's list `hellos`, oldest first, until Hello arrives */
    kvp_framed_t io;
    uint64_t since_ns;
    uint64_t incarnation; /* incarnation of the peer's endpoint; 0 = no Hello yet */
    uint64_t rdma_conn; /* incarnation of the peer's RDMA connection, which ends with this connection; 0 = none */
    kvp_cma_proc_t proc;
    kvp_p2p_bounce_t *bounce; /* the bounce buffer that the peer has; NULL = none */
    kvp_p2p_job_t job;
    kvp_p2p_conn_state_t state;
    bool is_over; /* the server has too many connections and refuses this connection */
} kvp_p2p_conn_t;

/* The fields of the server that connections use. */
typedef struct {
    kvp_p2p_server_conf_t conf;
    char unix_path[KVP_PEER_UNIX_MAX]; /* path of the server's Unix socket; empty = none */
    int wake_fd; /* the loop's eventfd */
    kvp_bounces_t bounces; /* memory of the bounce buffers that peers use */
    kvp_list_t idle_bounces; /* registered bounce buffers that no peer has */
    pthread_mutex_t notes_lock; /* leaf lock: its holder takes no other lock */
    kvp_list_t notes; /* received messages of applications; notes_lock guards notes and notes_n */
    uint32_t notes_n;
} kvp_p2p_shared_t;

/* kvp_p2p_bounce_give takes a bounce buffer back from a peer. is_quiet: no byte from this peer can reach the buffer any
 * more. Otherwise the buffer is unregistered first, which waits for such bytes. kvp_p2p_bounces_fini frees the idle
 * buffers; the peers have given back all others. */
void kvp_p2p_bounce_give(kvp_p2p_shared_t *shared, kvp_p2p_bounce_t *bounce, bool is_quiet);
void kvp_p2p_bounces_fini(kvp_p2p_shared_t *shared);

/* kvp_p2p_conn_on_frame answers one request, or begins a job. PROTO and other errors end the connection; *why_out is
 * the reason as text. */
kvp_err_t kvp_p2p_conn_on_frame(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame,
                                const char **why_out) KVP_MUST_USE;

/* kvp_p2p_conn_work does one slice of the connection's job. After the last slice it queues the answer. */
void kvp_p2p_conn_work(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn);
/* kvp_p2p_job_stop stops the job, if any. False: a thread still works on the job, and neither the job nor the memory
 * that it uses may be freed. */
bool kvp_p2p_job_stop(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job);
void kvp_p2p_job_drop(kvp_p2p_job_t *job); /* frees a stopped job */

/* kvp_p2p_conn_end_rdma ends the peer's RDMA connection that belongs to this control connection. This is necessary
 * because a network adapter sends nothing when its host vanishes. */
void kvp_p2p_conn_end_rdma(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn);

static inline bool
kvp_p2p_conn_has_job(const kvp_p2p_conn_t *conn)
{
    return conn->job.pieces != NULL;
}

#endif
