/* SPDX-License-Identifier: Apache-2.0
 * The endpoint that kvpool_p2p_t points to, and the functions with which each call of the peer-to-peer API begins and
 * ends. Only the .c files of p2p/ itself include this header. */
#ifndef KVP_P2P_ENDPOINT_H
#define KVP_P2P_ENDPOINT_H

#include "net/calls.h"
#include "p2p/ask/move.h"
#include "p2p/rdma.h"
#include "p2p/serve/serve.h"
#include "common/forkguard.h"

typedef struct kvp_p2p_async kvp_p2p_async_t;

struct kvpool_p2p {
    kvp_forkguard_t guard;
    kvp_calls_t calls;
    _Atomic bool is_given_up; /* set while the endpoint is being closed: waiting calls return CLOSED */

    kvp_peer_hello_t me; /* our Hello to peers; constant, because peers read me.proc.nonce from our memory */
    uint32_t deadline_ms;
    uint16_t port;
    bool has_parts; /* maps, ranges, pullers, bounces, lanes and uncuts are initialized */
    kvp_names_t *names;
    kvp_tp_t *tp;
    kvp_p2p_rdma_t rdma;
    kvp_tp_t *shm; /* transport for shared memory; like owns, it lives until the endpoint is freed */
    bool has_owns;
    kvp_p2p_owns_t owns;
    kvp_p2p_maps_t maps;
    kvp_p2p_ranges_t ranges;
    kvp_p2p_pullers_t pullers;
    kvp_bounces_t bounces; /* bounce buffers for local memory of devices */
    kvp_p2p_server_t *server;
    kvp_p2p_lanes_t lanes;
    kvp_p2p_uncuts_t uncuts;
    kvp_p2p_async_t *async;
    _Atomic uint64_t transfers, failed, cma_bytes, mapped_bytes, rdma_bytes, tcp_bytes, connects;
};

/* kvp_p2p_run carries out a transfer inside a begun call, as kvpool_p2p_transfer does. The caller holds the local
 * memory (kvp_p2p_ranges_hold_local) and counts the result with kvp_p2p_count. */
kvp_err_t kvp_p2p_run(kvpool_p2p_t *p2p, const kvp_hostport_t *peer, const kvp_p2p_transfer_t *transfer) KVP_MUST_USE;

/* kvp_p2p_count counts the result of a transfer in the statistics. It is called once for each transfer, also for a
 * refused one. */
void kvp_p2p_count(kvpool_p2p_t *p2p, kvp_err_t err);

/* kvp_p2p_enter begins a call. Errors: INVALID, FORKED, CLOSED. After OK the caller ends the call with kvp_p2p_leave,
 * which returns err. */
kvp_err_t kvp_p2p_enter(kvpool_p2p_t *p2p) KVP_MUST_USE;
kvp_err_t kvp_p2p_leave(kvpool_p2p_t *p2p, kvp_err_t err);
/* kvp_p2p_deadline returns the time of the deadline of a call that begins now; deadline_ms 0 = the endpoint's
 * default. */
uint64_t kvp_p2p_deadline(const kvpool_p2p_t *p2p, uint32_t deadline_ms);
/* kvp_p2p_check returns INVALID for a transfer that no peer can carry out; *where_out is the address of the peer. */
kvp_err_t kvp_p2p_check(const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n, kvp_hostport_t *where_out)
    KVP_MUST_USE;

/* Transfers in the background (async.c). Threads start when work arrives. kvp_p2p_async_destroy ends the threads; no
 * call may be running then. */
kvp_err_t kvp_p2p_async_create(kvpool_p2p_t *p2p, kvp_p2p_async_t **async_out) KVP_MUST_USE;
void kvp_p2p_async_destroy(kvp_p2p_async_t *async);

#endif
