/* SPDX-License-Identifier: Apache-2.0
 * The parts of kvp_verbs_ops over librdmacm and libibverbs: the devices of this machine (ibv_dev.c), registered
 * memory (ibv_mem.c), connections and transfers (ibv.c). */
#ifndef KVP_TRANSPORT_RDMA_VERBS_IBV_H
#define KVP_TRANSPORT_RDMA_VERBS_IBV_H

#include "transport/rdma/verbs/dev.h"
#include "transport/rdma/verbs/libs.h"
#include "common/list.h"
#include "transport/rdma/verbs/select.h"

typedef struct {
    kvp_rdma_dev_t base;
    /* the context of the device; NULL: the device is removed and closed, and pd and no_cq are NULL as well */
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *no_cq; /* an always empty completion queue, for queue pairs that only serve */
    kvp_list_t regs; /* the registrations on the device */
    kvp_list_t missing; /* registrations still to make on the device, for the first time or after its return */
    uint32_t uses; /* the number of ids and calls that use the device; a removed device is closed after the last */
    bool is_leaving; /* a thread is closing the device */
    bool is_dead; /* the device's context is unusable for good */
    bool is_refused; /* a device with other properties returned under this name, which was logged */
} kvp_ibv_dev_t;

/* The slots of kvp_verbs_ops for devices and memory, under the slots' names. */
kvp_err_t kvp_ibv_devs_open(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                            const char **why_out);
void kvp_ibv_devs_close(void);
void kvp_ibv_devs_look(void);
kvp_err_t kvp_ibv_reg(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
                      kvp_rdma_reg_t **reg_out);
void kvp_ibv_dereg(kvp_rdma_reg_t *reg);

/* The functions below need open devices. kvp_ibv_libs returns the functions of the libraries. */
const kvp_rdma_libs_t *kvp_ibv_libs(void);
/* kvp_ibv_dev_at returns the i-th open device, NULL after the last. kvp_ibv_dev_hold returns the device of a
 * connection, and keeps it open until kvp_ibv_dev_rele; NULL: it is not one of ours, or was removed. kvp_ibv_dev_pin
 * keeps any device open until kvp_ibv_dev_rele, and returns false if it was removed. kvp_ibv_dev_gone handles a removal
 * event. kvp_ibv_dev_is_dead returns whether a held device was removed or has failed for good since it was last made
 * ready. kvp_ibv_dev_has_gone returns, after a failure on the device, whether the device was removed. */
kvp_ibv_dev_t *kvp_ibv_dev_at(size_t i);
kvp_ibv_dev_t *kvp_ibv_dev_hold(const struct rdma_cm_id *id);
bool kvp_ibv_dev_pin(kvp_ibv_dev_t *dev);
void kvp_ibv_dev_rele(kvp_ibv_dev_t *dev);
void kvp_ibv_dev_gone(const struct rdma_cm_id *id);
bool kvp_ibv_dev_is_dead(kvp_ibv_dev_t *dev);
bool kvp_ibv_dev_has_gone(kvp_ibv_dev_t *dev);
/* Functions of ibv_mem.c for a device that is removed or returns. kvp_ibv_regs_drop deregisters all memory of the
 * device. kvp_ibv_regs_make registers all memory again (false: the device cannot be used now). kvp_ibv_regs_are_missing
 * returns whether registrations are missing. drop and make take long, and are called without the devices' lock. */
void kvp_ibv_regs_drop(kvp_ibv_dev_t *dev);
bool kvp_ibv_regs_are_missing(const kvp_ibv_dev_t *dev);
bool kvp_ibv_regs_make(kvp_ibv_dev_t *dev);
/* kvp_ibv_are_wished returns whether the user selected RDMA devices or a GID. */
bool kvp_ibv_are_wished(void);
/* kvp_ibv_err translates errno to a kvp_err_t. */
kvp_err_t kvp_ibv_err(void);

/* kvp_rdma_port_info fills in the properties of an active port, with its best address or the address of one GID.
 * Returns false if the port is not active, or has no address that a peer could reach; why then has the reason and the
 * remedy. */
bool kvp_rdma_port_info(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gid_index,
                        kvp_rdma_info_t *info_out, char *why, size_t cap);

/* kvp_rdma_port_is_up returns whether messages that make or end the id's connection can be sent now: the port is active
 * and its network interface is up. Also true for a removed device, which sends nothing. */
bool kvp_rdma_port_is_up(const kvp_rdma_libs_t *libs, const struct rdma_cm_id *id, const kvp_rdma_info_t *dev);

/* kvp_rdma_is_present returns whether the machine still has the open device. */
bool kvp_rdma_is_present(const struct ibv_context *ctx);

/* kvp_rdma_disconnect_later parks an id without a queue pair, to be destroyed by a later call of kvp_rdma_left_end;
 * false: it could not be parked. kvp_rdma_left_end starts a thread that destroys the parked ids whose port is up. */
bool kvp_rdma_disconnect_later(const kvp_rdma_libs_t *libs, struct rdma_cm_id *id, const kvp_rdma_info_t *dev)
    KVP_MUST_USE;
void kvp_rdma_left_end(const kvp_rdma_libs_t *libs);

#endif
