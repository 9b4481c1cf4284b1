/* SPDX-License-Identifier: Apache-2.0
 * Design note. The RDMA listener has another port than the endpoint. RDMA connections of the machine take their ports
 * from the same space as RDMA listeners, so a number that is free for TCP may be in use there. Peers get the port in
 * the Hello. */
#include "p2p/rdma.h"

#include "net/wake.h"
#include "transport/all/registry.h"
#include "transport/rdma/verbs/select.h"
#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BACK_OFF_NS (10 * KVP_NS_PER_MS)

kvp_err_t
kvp_p2p_rdma_open(kvp_p2p_rdma_t *rdma, const kvp_tp_conf_t *conf, const char *host, char *why, size_t why_cap)
{
    const kvp_transport_ops_t *ops;
    kvp_hostport_t at = {.port = 0}, bound;
    size_t n;
    kvp_err_t err = kvp_rdma_select(getenv("KVPOOL_RDMA_DEVICE"), getenv("KVPOOL_RDMA_GID_INDEX"), why, why_cap);

    if (err == KVP_OK) err = kvp_transports_parse("rdma", &ops, 1, &n, why, why_cap);
    if (err != KVP_OK) return err;
    snprintf(why, why_cap, "no peer can come by it at %s", host);
    if (strlen(host) >= sizeof at.host) return KVP_INVALID;
    snprintf(at.host, sizeof at.host, "%s", host);
    err = kvp_tp_create(ops, conf, &rdma->tp);
    if (err == KVP_OK) err = ops->listen(rdma->tp, &at, &bound);
    if (err == KVP_OK)
        rdma->port = bound.port;
    else
        kvp_p2p_rdma_close(rdma);
    return err;
}

static void *
serve_rdma(void *arg)
{
    kvp_p2p_rdma_t *rdma = arg;
    struct timespec back_off = {.tv_nsec = BACK_OFF_NS};

    while (!atomic_load(&rdma->is_stopping)) {
        if (rdma->tp->ops->serve(rdma->tp, 0, -1) != KVP_OK) nanosleep(&back_off, NULL);
        rdma->tend(rdma->arg);
    }
    return NULL;
}

kvp_err_t
kvp_p2p_rdma_start(kvp_p2p_rdma_t *rdma, void (*tend)(void *arg), void *arg)
{
    kvp_err_t err;

    if (rdma->tp == NULL) return KVP_OK;
    rdma->tend = tend;
    rdma->arg = arg;
    err = kvp_thread_start(&rdma->thread, "kvpool-peers-r", serve_rdma, rdma);
    rdma->has_thread = err == KVP_OK;
    return err;
}

void
kvp_p2p_rdma_stop(kvp_p2p_rdma_t *rdma)
{
    if (!rdma->has_thread) return;
    atomic_store(&rdma->is_stopping, true);
    rdma->tp->ops->wake(rdma->tp);
    pthread_join(rdma->thread, NULL);
    rdma->has_thread = false;
}

void
kvp_p2p_rdma_close(kvp_p2p_rdma_t *rdma)
{
    if (rdma->tp != NULL) kvp_tp_destroy(rdma->tp);
    rdma->tp = NULL;
    rdma->port = 0;
}
