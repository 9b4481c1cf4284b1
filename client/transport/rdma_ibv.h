/* SPDX-License-Identifier: Apache-2.0
 * The two halves of kvp_verbs_ops over librdmacm and libibverbs: this machine's devices with the memory that is registered
 * with them (rdma_ibv_dev.c), and what connects them to others and moves bytes (rdma_ibv.c).
 */
#ifndef KVP_CLIENT_RDMA_IBV_H
#define KVP_CLIENT_RDMA_IBV_H

#include "client/transport/rdma_dev.h"
#include "client/transport/rdma_libs.h"

typedef struct {
    kvp_rdma_dev_t base;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *no_cq; /* of queue pairs that only serve: nothing is ever put there */
} kvp_ibv_dev_t;

/* As the slots of kvp_verbs_ops with these names. */
kvp_err_t kvp_ibv_devs_open(const kvp_rdma_want_t *want, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                            const char **why_out);
void kvp_ibv_devs_close(void);
kvp_err_t kvp_ibv_reg(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
                      kvp_rdma_reg_t **reg_out);
void kvp_ibv_dereg(kvp_rdma_reg_t *reg);

/* The rest is for those who have devices open. kvp_ibv_libs returns the libraries' calls. */
const kvp_rdma_libs_t *kvp_ibv_libs(void);
/* kvp_ibv_dev_at returns the i-th device that is open, NULL behind the last; dev_find the one that a connection leads over,
 * NULL where it is not ours. */
kvp_ibv_dev_t *kvp_ibv_dev_at(size_t i);
kvp_ibv_dev_t *kvp_ibv_dev_find(const struct rdma_cm_id *id);
/* kvp_ibv_are_wished: the user named devices, or a GID. */
bool kvp_ibv_are_wished(void);
/* kvp_ibv_err translates errno. */
kvp_err_t kvp_ibv_err(void);

#endif
