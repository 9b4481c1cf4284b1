/* SPDX-License-Identifier: Apache-2.0
 * One control connection of an endpoint's serving side: what p2p_serve.c (the loop) and p2p_serve_conn.c (what is asked, and
 * answered) share. All of it belongs to the loop's thread.
 */
#ifndef KVP_CLIENT_P2P_SERVE_CONN_H
#define KVP_CLIENT_P2P_SERVE_CONN_H

#include "client/framed.h"
#include "client/p2p/p2p_serve.h"
#include "common/hash.h"
#include "common/log.h"

/* A PEER_MOVE that is being worked off, slice by slice. */
typedef struct {
    uint64_t request_id;
    kvp_peer_move_t kind;
    uint64_t deadline_ns;
    uint32_t n, at; /* pieces, and the one at hand */
    uint64_t off; /* in it */
    kvp_peer_piece_t *pieces; /* NULL = there is none */
    kvp_peer_moved_t *moved;
    kvp_sum_state_t *sum;
} kvp_p2p_job_t;

typedef struct {
    kvp_list_t link; /* the server's conns, or its dead */
    kvp_list_t on_jobs; /* the server's jobs */
    kvp_list_t on_hellos; /* the server's hellos, oldest first, until Hello was said */
    kvp_framed_t io;
    uint64_t since_ns;
    uint64_t incarnation; /* 0 until Hello */
    kvp_cma_proc_t proc;
    kvp_p2p_job_t job;
    bool is_unix;
    bool is_raw; /* its first bytes are still unread */
    bool is_over; /* beyond the maximum: to be refused */
    bool is_closed; /* on the server's dead */
    bool is_leaving; /* refused: until it closes */
} kvp_p2p_conn_t;

/* What connections need of their server. */
typedef struct {
    kvp_p2p_server_conf_t conf;
    char unix_path[KVP_PEER_UNIX_MAX]; /* empty = none */
    pthread_mutex_t notes_lock; /* a leaf */
    kvp_list_t notes; /* both guarded by notes_lock */
    uint32_t notes_n;
} kvp_p2p_shared_t;

/* kvp_p2p_conn_on_frame answers one request, or begins a job: PROTO and others end the connection; *why_out then says why. */
kvp_err_t kvp_p2p_conn_on_frame(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame,
                                const char **why_out) KVP_MUST_USE;

/* kvp_p2p_conn_work does a slice of the job; once it is over its answer is queued. */
void kvp_p2p_conn_work(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn);
void kvp_p2p_job_drop(kvp_p2p_job_t *job);

static inline bool
kvp_p2p_conn_has_job(const kvp_p2p_conn_t *conn)
{
    return conn->job.pieces != NULL;
}

#endif
