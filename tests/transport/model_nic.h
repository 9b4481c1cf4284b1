/* SPDX-License-Identifier: Apache-2.0
 * The model NIC: a verbs stack behind the seam of transport/rdma/verbs/dev.h, all in one process, without a device. It
 * does late, torn, out of order, twice or not at all whatever verbs leave open, as a seed says, and nothing else.
 *
 * It has no threads and no clock: what is under way moves on inside model_nic_step, and inside the poll, arm and
 * cm_next of whoever asks. One mutex is around all of it, so any thread may call anything here that the seam lets it
 * call.
 *
 * Design notes.
 *   WRITE: departs (its bytes are taken), is acknowledged, and lands in pieces of 64 bytes; the acknowledgement may
 * come before any piece, and pieces come in any order. Writes of a queue pair land one after the other, unless
 * is_relaxed. READ: moves piece by piece, READs of a queue pair in any order to one another and to later WRITEs. Its
 * first piece makes every earlier WRITE of the queue pair land. With the fence a request departs after all earlier
 * READs ended. Who closes or dies: what departed may still land in part, until the other side has closed too. What was
 * acknowledged is in memory when dereg or the responder's id_close returns: the adapter posted it ahead of its answer
 * to these. 8 aligned bytes of registered remote memory are never torn. Device memory is local only: a dma-buf is a
 * file, whose position says where it begins, and which is empty once it was revoked; peer memory is found anew with
 * each access. What is not there any more ends the request (NO_MEMORY). */
#ifndef KVP_TESTS_TRANSPORT_MODEL_NIC_H
#define KVP_TESTS_TRANSPORT_MODEL_NIC_H

#include "transport/rdma/verbs/dev.h"

#define MODEL_NIC_DEVS_MAX 16u
#define MODEL_NIC_WR_MAX 512u
#define MODEL_NIC_INLINE_MAX 256u

extern const kvp_verbs_ops_t kvp_verbs_model;

/* Numbers that are 0 get the value in brackets. Device i has the address 10.99.i.1, from 1; of a loopback the first one
 * has 127.0.0.1, where daemons listen. */
typedef struct {
    uint32_t devs_n; /* [1] */
    uint32_t max_reads; /* [16] */
    uint64_t max_msg_bytes; /* [1 GiB] */
    uint64_t max_reg_bytes; /* [1 TiB] */
    uint64_t memlock_bytes; /* [no bound] of all registrations of a device together */
    uint32_t retry_steps; /* [32] tries on a path that is down, or of a peer that is gone, until NO_ANSWER */
    uint32_t forgets_per_mille; /* READs that end well by chance, and bring nothing: what soft RoCE does */
    bool is_soft; /* the devices say that they are no adapters */
    bool is_relaxed; /* WRITEs of one queue pair land in any order */
    bool is_loopback;
    bool has_no_dmabuf; /* they are not registered */
    uint8_t *(*peer_memory)(const void *addr,
                            size_t len); /* where adapters find a device's memory by the address that the
                                                              process knows; NULL: it is none. [there is no such way] */
    void (*on_reg)(
        kvp_rdma_access_t access); /* before each registration, by its thread, which may call anything. [nothing] */
    void (*on_dereg)(kvp_rdma_access_t access); /* before each ends, likewise. [nothing] */
    bool reuses_keys; /* the key of a registration is that of the last one that ended: what a peer that was restarted
                         does */
} model_nic_conf_t;

/* Since reset; of all queue pairs. */
typedef struct {
    uint64_t posts; /* doorbells */
    uint64_t requests;
    uint64_t inlines;
    uint64_t fenced;
    uint64_t signaled; /* requests that asked for a completion */
    uint64_t completions; /* polled */
    uint64_t failures; /* among these */
    uint64_t arms;
} model_nic_counts_t;

/* model_nic_reset ends everything and starts anew; conf NULL = all defaults. Returns how many ids, registrations,
 * channels and calls of devs_open had been left open: a test wants 0. */
size_t model_nic_reset(uint64_t seed, const model_nic_conf_t *conf) KVP_MUST_USE;
/* model_nic_step lets one thing happen; false = nothing is under way, or it is paused. settle: until then. */
bool model_nic_step(void);
void model_nic_settle(void);
/* While paused nothing happens at all: a fabric that is stuck. */
void model_nic_pause(bool is_paused);
/* model_nic_path takes the way between two devices (from 0, both directions) down, or up again; at first all are up. */
void model_nic_path(uint32_t dev_a, uint32_t dev_b, bool is_up);
/* model_nic_silence: every connection that is there now on both devices (from 0: of the asking side, of the other)
 * shows nothing more to who asked: no completion, no failure; that it would take its adapter a millisecond to give up
 * the peer is what it says now. What departed may land; new connections are sound. */
void model_nic_silence(uint32_t asking_dev, uint32_t serving_dev);
/* model_nic_remove takes a device (from 0) from the machine. Its ids do nothing more and are the caller's to close:
 * they hear GONE or, where nobody tells them, nothing. model_nic_uses: so many are not closed yet; a kernel waits for
 * them. model_nic_return gives it back once there are none; devs_look notices both. */
void model_nic_remove(uint32_t dev, bool is_told);
size_t model_nic_uses(uint32_t dev);
size_t model_nic_regs(void); /* of all devices */
void model_nic_return(uint32_t dev);
/* model_nic_refuse_post: the next post takes nothing, and fails. */
void model_nic_refuse_post(void);
/* model_nic_refuse_memory: memory of ours that begins there is taken by no device that comes back. */
void model_nic_refuse_memory(const void *addr);
/* model_nic_kill: the process with that channel dies. Its ids do nothing more and are still the caller's to close;
 * peers learn of it (GONE) unless the machine died with it (is_silent). */
void model_nic_kill(kvp_rdma_cm_t *cm, bool is_silent);
void model_nic_counts(model_nic_counts_t *counts_out);

#endif
