/* SPDX-License-Identifier: Apache-2.0
 * The rdma of an endpoint, if any: an instance of the transport with a listener of its own, and the
 * thread that admits peers. The adapters move the data. */
#ifndef KVP_P2P_RDMA_H
#define KVP_P2P_RDMA_H

#include "transport/transport.h"
#include "common/parse.h"

#include <pthread.h>
#include <stdatomic.h>

/* The zero value is none. */
typedef struct {
    kvp_tp_t *tp; /* NULL = none */
    uint16_t port;
    void (*tend)(void *arg); /* called every second or so */
    void *arg;
    _Atomic bool is_stopping;
    bool has_thread;
    pthread_t thread;
} kvp_p2p_rdma_t;

/* kvp_p2p_rdma_open listens at the host, at a port of its own choice: NOTSUP (this build or machine
 * has no rdma), INVALID (an unreadable selection of devices), UNREACHABLE, SYS, NOMEM. why then has
 * the cause, in a sentence. */
kvp_err_t kvp_p2p_rdma_open(kvp_p2p_rdma_t *rdma, const kvp_tp_conf_t *conf, const char *host, char *why,
                            size_t why_cap) KVP_MUST_USE;
/* kvp_p2p_rdma_start begins to admit peers; kvp_p2p_rdma_stop ends that. kvp_p2p_rdma_close undoes
 * open, with no memory and no connections left. The latter two are legal on any partial state. */
kvp_err_t kvp_p2p_rdma_start(kvp_p2p_rdma_t *rdma, void (*tend)(void *arg), void *arg) KVP_MUST_USE;
void kvp_p2p_rdma_stop(kvp_p2p_rdma_t *rdma);
void kvp_p2p_rdma_close(kvp_p2p_rdma_t *rdma);

#endif
