/* SPDX-License-Identifier: Apache-2.0
 * The endpoint of kvpool_p2p_t: the common beginning and end of its calls. Included by p2p*.c only. */
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
    _Atomic bool is_given_up; /* closing: waiting calls return */

    kvp_peer_hello_t me; /* constant: peers read me.proc.nonce */
    uint32_t deadline_ms;
    uint16_t port;
    bool has_parts; /* maps, ranges, pullers, bounces, lanes and uncuts are open */
    kvp_names_t *names;
    kvp_tp_t *tp;
    kvp_p2p_rdma_t rdma;
    kvp_tp_t *shm; /* for memory that peers map, theirs and ours; until the endpoint is freed, as */
    bool has_owns;
    kvp_p2p_owns_t owns;
    kvp_p2p_maps_t maps;
    kvp_p2p_ranges_t ranges;
    kvp_p2p_pullers_t pullers;
    kvp_bounces_t bounces; /* for local memory of devices */
    kvp_p2p_server_t *server;
    kvp_p2p_lanes_t lanes;
    kvp_p2p_uncuts_t uncuts;
    kvp_p2p_async_t *async;
    _Atomic uint64_t transfers, failed, cma_bytes, mapped_bytes, rdma_bytes, tcp_bytes, connects;
};

/* kvp_p2p_run is kvpool_p2p_transfer, within a call that was begun, with local memory that the caller holds
 * (kvp_p2p_ranges_hold_local), and not counted. */
kvp_err_t kvp_p2p_run(kvpool_p2p_t *p2p, const kvp_hostport_t *peer, const kvp_p2p_transfer_t *transfer) KVP_MUST_USE;

/* kvp_p2p_count records the result of a transfer, once each, also of a refused one. */
void kvp_p2p_count(kvpool_p2p_t *p2p, kvp_err_t err);

/* kvp_p2p_enter begins a call: INVALID, FORKED, CLOSED; after OK kvp_p2p_leave ends it, and returns err. */
kvp_err_t kvp_p2p_enter(kvpool_p2p_t *p2p) KVP_MUST_USE;
kvp_err_t kvp_p2p_leave(kvpool_p2p_t *p2p, kvp_err_t err);
/* kvp_p2p_deadline is when a call that begins now is late; deadline_ms 0 = the endpoint's. */
uint64_t kvp_p2p_deadline(const kvpool_p2p_t *p2p, uint32_t deadline_ms);
/* kvp_p2p_check: INVALID for a transfer that no peer can do; *where_out is the peer. */
kvp_err_t kvp_p2p_check(const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n, kvp_hostport_t *where_out)
    KVP_MUST_USE;

/* Transfers in the background (async.c). Threads are started as they are needed; stop ends them,
 * once no call is under way. */
kvp_err_t kvp_p2p_async_create(kvpool_p2p_t *p2p, kvp_p2p_async_t **async_out) KVP_MUST_USE;
void kvp_p2p_async_destroy(kvp_p2p_async_t *async);

#endif
