/* SPDX-License-Identifier: Apache-2.0
 * The parts of kvp_verbs_ops over librdmacm and libibverbs: this machine's devices (ibv_dev.c), the
 * registered memory (ibv_mem.c), connections and transfers (ibv.c). */
#ifndef KVP_TRANSPORT_RDMA_VERBS_IBV_H
#define KVP_TRANSPORT_RDMA_VERBS_IBV_H

#include "transport/rdma/verbs/dev.h"
#include "transport/rdma/verbs/libs.h"
#include "common/list.h"
#include "transport/rdma/verbs/select.h"

typedef struct {
    kvp_rdma_dev_t base;
    struct ibv_context *ctx; /* NULL: removed and closed; the next fields as well */
    struct ibv_pd *pd;
    struct ibv_cq *no_cq; /* completion queue of serving queue pairs, always empty */
    kvp_list_t regs; /* its registrations, */
    kvp_list_t missing; /* registrations to make, or make again, on the device */
    uint32_t uses; /* by ids, and by calls: it is let go after the last */
    bool is_leaving; /* a thread closes the device */
    bool is_dead; /* its context is of no use any more */
    bool is_refused; /* another device returned under the name; logged */
} kvp_ibv_dev_t;

/* As the slots of kvp_verbs_ops with these names. */
kvp_err_t kvp_ibv_devs_open(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                            const char **why_out);
void kvp_ibv_devs_close(void);
void kvp_ibv_devs_look(void);
kvp_err_t kvp_ibv_reg(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
                      kvp_rdma_reg_t **reg_out);
void kvp_ibv_dereg(kvp_rdma_reg_t *reg);

/* The functions below need open devices. kvp_ibv_libs returns the libraries' calls. */
const kvp_rdma_libs_t *kvp_ibv_libs(void);
/* kvp_ibv_dev_at returns the i-th open device, NULL after the last. kvp_ibv_dev_hold returns the
 * device of a connection, and keeps it open until kvp_ibv_dev_rele; NULL if it is not ours, or
 * removed. kvp_ibv_dev_pin holds any device; false: removed. kvp_ibv_dev_gone handles a removal
 * event. kvp_ibv_dev_is_dead returns whether a held device was removed or has failed for good since
 * it was last made ready; kvp_ibv_dev_has_gone whether the device was removed, after a failure on
 * it. */
kvp_ibv_dev_t *kvp_ibv_dev_at(size_t i);
kvp_ibv_dev_t *kvp_ibv_dev_hold(const struct rdma_cm_id *id);
bool kvp_ibv_dev_pin(kvp_ibv_dev_t *dev);
void kvp_ibv_dev_rele(kvp_ibv_dev_t *dev);
void kvp_ibv_dev_gone(const struct rdma_cm_id *id);
bool kvp_ibv_dev_is_dead(kvp_ibv_dev_t *dev);
bool kvp_ibv_dev_has_gone(kvp_ibv_dev_t *dev);
/* ibv_mem.c, for a device that is removed or returns. kvp_ibv_regs_drop deregisters all memory of
 * the device; kvp_ibv_regs_make registers it again (false: the device cannot be used now);
 * kvp_ibv_regs_are_missing returns whether registrations are missing. The first two take long, and
 * are called without the devices' lock. */
void kvp_ibv_regs_drop(kvp_ibv_dev_t *dev);
bool kvp_ibv_regs_are_missing(const kvp_ibv_dev_t *dev);
bool kvp_ibv_regs_make(kvp_ibv_dev_t *dev);
/* kvp_ibv_are_wished: the user named devices, or a GID. */
bool kvp_ibv_are_wished(void);
/* kvp_ibv_err translates errno. */
kvp_err_t kvp_ibv_err(void);

/* kvp_rdma_port_info fills in the properties of an active port, at its best address or at the
 * address of one GID. Returns false if the port is not active, or has no address that a peer could
 * reach; why then has the reason and the remedy. */
bool kvp_rdma_port_info(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gid_index,
                        kvp_rdma_info_t *info_out, char *why, size_t cap);

/* kvp_rdma_port_is_up returns whether a message of an id on the device can arrive, so that its
 * connection can be made or ended now: the port is active and its network interface is up. Also
 * true for a removed device, which sends nothing. */
bool kvp_rdma_port_is_up(const kvp_rdma_libs_t *libs, const struct rdma_cm_id *id, const kvp_rdma_info_t *dev);

/* kvp_rdma_is_present returns whether the machine still has an open device. */
bool kvp_rdma_is_present(const struct ibv_context *ctx);

/* kvp_rdma_disconnect_later takes an id without a queue pair off its channel, to be ended by a
 * later call of left_end; false: it could not be taken. left_end has a thread of its own end those
 * that may be left now. */
bool kvp_rdma_disconnect_later(const kvp_rdma_libs_t *libs, struct rdma_cm_id *id, const kvp_rdma_info_t *dev)
    KVP_MUST_USE;
void kvp_rdma_left_end(const kvp_rdma_libs_t *libs);

#endif
