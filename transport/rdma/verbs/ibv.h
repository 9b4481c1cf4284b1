/* SPDX-License-Identifier: Apache-2.0
 * The parts of kvp_verbs_ops over librdmacm and libibverbs: this machine's devices (ibv_dev.c), the memory that is
 * registered with them (ibv_mem.c), and what connects them to others and moves bytes (ibv.c).
 */
#ifndef KVP_TRANSPORT_RDMA_VERBS_IBV_H
#define KVP_TRANSPORT_RDMA_VERBS_IBV_H

#include "transport/rdma/verbs/dev.h"
#include "transport/rdma/verbs/libs.h"
#include "common/list.h"
#include "transport/rdma/verbs/select.h"

typedef struct {
    kvp_rdma_dev_t base;
    struct ibv_context *ctx; /* NULL: it is gone, and let go; what follows as well */
    struct ibv_pd *pd;
    struct ibv_cq *no_cq; /* of queue pairs that only serve: nothing is ever put there */
    kvp_list_t regs; /* its registrations, */
    kvp_list_t missing; /* and those that are to be made, or made again, with it */
    uint32_t uses; /* by ids, and by calls: it is let go after the last */
    bool is_leaving; /* a thread lets it go */
    bool is_dead; /* its context is of no use any more */
    bool is_refused; /* what came back under its name is another one: it was said */
} kvp_ibv_dev_t;

/* As the slots of kvp_verbs_ops with these names. */
kvp_err_t kvp_ibv_devs_open(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                            const char **why_out);
void kvp_ibv_devs_close(void);
void kvp_ibv_devs_look(void);
kvp_err_t kvp_ibv_reg(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
                      kvp_rdma_reg_t **reg_out);
void kvp_ibv_dereg(kvp_rdma_reg_t *reg);

/* The rest is for those who have devices open. kvp_ibv_libs returns the libraries' calls. */
const kvp_rdma_libs_t *kvp_ibv_libs(void);
/* kvp_ibv_dev_at returns the i-th device that is open, NULL behind the last. dev_hold gives the one that a connection leads
 * over, and it is not let go before rele; NULL where it is not ours, or gone. pin holds any; false: it is gone. dev_gone: an event
 * says that it was removed. dev_is_dead looks whether one that is held was removed or has failed for good since it was last made
 * ready, dev_has_gone whether it is gone at all, after something failed with it. */
kvp_ibv_dev_t *kvp_ibv_dev_at(size_t i);
kvp_ibv_dev_t *kvp_ibv_dev_hold(const struct rdma_cm_id *id);
bool kvp_ibv_dev_pin(kvp_ibv_dev_t *dev);
void kvp_ibv_dev_rele(kvp_ibv_dev_t *dev);
void kvp_ibv_dev_gone(const struct rdma_cm_id *id);
bool kvp_ibv_dev_is_dead(kvp_ibv_dev_t *dev);
bool kvp_ibv_dev_has_gone(kvp_ibv_dev_t *dev);
/* ibv_mem.c, for the device that goes or comes back: regs_drop deregisters all that is registered with it; regs_make
 * registers it again (false: the device cannot be used, not now), what are_missing says there is. Both take long, and are
 * called without the devices' lock. */
void kvp_ibv_regs_drop(kvp_ibv_dev_t *dev);
bool kvp_ibv_regs_are_missing(const kvp_ibv_dev_t *dev);
bool kvp_ibv_regs_make(kvp_ibv_dev_t *dev);
/* kvp_ibv_are_wished: the user named devices, or a GID. */
bool kvp_ibv_are_wished(void);
/* kvp_ibv_err translates errno. */
kvp_err_t kvp_ibv_err(void);

/* kvp_rdma_port_info fills in what is known of an active port, at its best address or that of one GID. False where it is
 * not active or has no address by which a peer could reach it: why, and what helps, is put in words. */
bool kvp_rdma_port_info(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gid_index,
                        kvp_rdma_info_t *info_out, char *why, size_t cap);

/* kvp_rdma_port_is_up says whether anything that an id on that device sends can arrive, and so whether its connection is made
 * or ended now: the port is active, and its network interface up; or its device was removed, so that it sends nothing. */
bool kvp_rdma_port_is_up(const kvp_rdma_libs_t *libs, const struct rdma_cm_id *id, const kvp_rdma_info_t *dev);

/* kvp_rdma_is_present says whether a device that is open is still among those of the machine. */
bool kvp_rdma_is_present(const struct ibv_context *ctx);

/* kvp_rdma_disconnect_later takes an id without a queue pair off its channel, to be ended by a later call of left_end; false: it
 * could not be taken. left_end has a thread of its own end those that may be left now. */
bool kvp_rdma_disconnect_later(const kvp_rdma_libs_t *libs, struct rdma_cm_id *id, const kvp_rdma_info_t *dev)
    KVP_MUST_USE;
void kvp_rdma_left_end(const kvp_rdma_libs_t *libs);

#endif
