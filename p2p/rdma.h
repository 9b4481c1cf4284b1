/* SPDX-License-Identifier: Apache-2.0
 * The RDMA of an endpoint, if the machine has it: an instance of the transport with a listener of its own, and the
 * thread that accepts connections of peers. Network adapters move the data. */
#ifndef KVP_P2P_RDMA_H
#define KVP_P2P_RDMA_H

#include "transport/transport.h"
#include "common/parse.h"

#include <pthread.h>
#include <stdatomic.h>

/* A zeroed struct means no RDMA. */
typedef struct {
    kvp_tp_t *tp; /* the transport instance; NULL = no RDMA */
    uint16_t port;
    void (*tend)(void *arg); /* the thread calls it about every second */
    void *arg;
    _Atomic bool is_stopping;
    bool has_thread;
    pthread_t thread;
} kvp_p2p_rdma_t;

/* kvp_p2p_rdma_open listens at the host, on a port that it chooses. Errors: NOTSUP (this build or machine has no
 * RDMA), INVALID (an unreadable selection of devices), UNREACHABLE, SYS, NOMEM. On error `why` gets a sentence with
 * the cause. */
kvp_err_t kvp_p2p_rdma_open(kvp_p2p_rdma_t *rdma, const kvp_tp_conf_t *conf, const char *host, char *why,
                            size_t why_cap) KVP_MUST_USE;
/* kvp_p2p_rdma_start starts the thread that accepts peers, and kvp_p2p_rdma_stop ends it. kvp_p2p_rdma_close undoes
 * open; no registered memory and no connections are left then. Stop and close may be called on a partly opened
 * struct. */
kvp_err_t kvp_p2p_rdma_start(kvp_p2p_rdma_t *rdma, void (*tend)(void *arg), void *arg) KVP_MUST_USE;
void kvp_p2p_rdma_stop(kvp_p2p_rdma_t *rdma);
void kvp_p2p_rdma_close(kvp_p2p_rdma_t *rdma);

#endif
