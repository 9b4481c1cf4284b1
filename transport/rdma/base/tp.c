/* SPDX-License-Identifier: Apache-2.0
 * Functions for both sides of an rdma instance: addresses, and registrations with all devices. */
#include "transport/rdma/base/tp.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

kvp_err_t
kvp_rdma_addr(const kvp_hostport_t *at, struct sockaddr_storage *addr_out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found;
    char port[8];

    snprintf(port, sizeof port, "%u", at->port);
    if (getaddrinfo(at->host, port, &hints, &found) != 0) return KVP_UNREACHABLE;
    memset(addr_out, 0, sizeof *addr_out);
    memcpy(addr_out, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return KVP_OK;
}

uint64_t
kvp_rdma_epoch(const kvp_rdma_tp_t *tp)
{
    uint64_t epoch = tp->epoch;

    for (size_t i = 0; i < tp->devs_n; i++)
        epoch += tp->devs[i]->life;
    return epoch;
}

void
kvp_rdma_regs_drop(const kvp_rdma_tp_t *tp, kvp_rdma_reg_t *regs[KVP_RDMA_RAILS_MAX])
{
    for (size_t i = 0; i < tp->devs_n; i++) {
        if (regs[i] != NULL) tp->verbs->dereg(regs[i]);
        regs[i] = NULL;
    }
}

kvp_err_t
kvp_rdma_regs_make(const kvp_rdma_tp_t *tp, void *addr, size_t len, kvp_rdma_access_t access,
                   kvp_rdma_reg_t *regs_out[KVP_RDMA_RAILS_MAX])
{
    /* Threads that register at the same time begin with different devices, so that they do not queue at one device. */
    uint64_t first = kvp_sum(&addr, sizeof addr);

    memset(regs_out, 0, KVP_RDMA_RAILS_MAX * sizeof(kvp_rdma_reg_t *));
    for (size_t n = 0; n < tp->devs_n; n++) {
        size_t i = (first + n) % tp->devs_n;
        kvp_err_t err = tp->verbs->reg(tp->devs[i], addr, len, access, -1, &regs_out[i]);

        if (err == KVP_OK) continue;
        regs_out[i] = NULL;
        kvp_rdma_regs_drop(tp, regs_out);
        return err;
    }
    return KVP_OK;
}
