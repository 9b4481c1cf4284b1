/* SPDX-License-Identifier: Apache-2.0
 * The memory ranges that a handle's user registered. A batch call holds the ranges that it touches;
 * unregister waits for the last hold. Any thread. */
#ifndef KVP_TRANSPORT_REGS_H
#define KVP_TRANSPORT_REGS_H

#include "transport/counters.h"
#include "transport/gpu/device.h"
#include "transport/transport.h"

#include <pthread.h>

typedef struct kvp_reg kvp_reg_t;

typedef struct {
    const kvp_transport_ops_t *transports[KVP_TRANSPORTS_MAX]; /* transports that get loans of the memory */
    size_t transports_n;
    pthread_rwlock_t lock;
    kvp_reg_t **sorted; /* by address, never overlapping; guarded by lock */
    size_t n;
    size_t cap;
    _Atomic size_t devices_n; /* ranges of device memory */
    bool bounces_devices; /* device memory is never lent; set before the first registration */
    pthread_mutex_t idle_lock; /* a leaf, only for waiting */
    pthread_cond_t idle;
} kvp_regs_t;

void kvp_regs_init(kvp_regs_t *regs, const kvp_transport_ops_t *const *transports, size_t transports_n);
void kvp_regs_fini(kvp_regs_t *regs); /* with no range held */

/* kvp_regs_add: INVALID for an empty, wrapping or overlapping range; NOMEM. mem NULL: the host's.
 * kvp_regs_del takes the start of a range (else NOT_REGISTERED): it refuses new holds, and returns
 * after the last hold. */
kvp_err_t kvp_regs_add(kvp_regs_t *regs, void *addr, size_t len, const kvp_devmem_t *mem) KVP_MUST_USE;
kvp_err_t kvp_regs_del(kvp_regs_t *regs, void *addr) KVP_MUST_USE;

/* Holding: begin, then hold for each piece, then end; by one thread, without blocking in between.
 * Each hold that set is_new_out needs one rele later. A piece must lie in one range. */
typedef struct {
    const kvp_regs_t *regs;
    kvp_reg_t *last;
} kvp_regs_cursor_t;

void kvp_regs_begin(kvp_regs_t *regs, kvp_regs_cursor_t *cursor);
kvp_reg_t *kvp_regs_hold(kvp_regs_cursor_t *cursor, const void *addr, size_t len, bool *is_new_out);
void kvp_regs_end(kvp_regs_t *regs);
void kvp_regs_rele(kvp_regs_t *regs, kvp_reg_t *reg);

/* The holds of a call. The zero value is empty. keep records a hold, and releases it without memory
 * for the record: NOMEM. rele_all releases all, and leaves the zero value. */
typedef struct {
    kvp_reg_t **regs;
    size_t n;
    size_t cap;
} kvp_regs_held_t;

kvp_err_t kvp_regs_keep(kvp_regs_t *regs, kvp_regs_held_t *held, kvp_reg_t *reg) KVP_MUST_USE;
void kvp_regs_rele_all(kvp_regs_t *regs, kvp_regs_held_t *held);

/* kvp_reg_mem returns what a range that is held is made of; borrowed. kvp_regs_find_mem the same by
 * address, of a range that the caller holds; NULL where the memory is the host's or not registered.
 * kvp_regs_have_devices: a guess, without a lock. */
const kvp_devmem_t *kvp_reg_mem(const kvp_reg_t *reg);
/* kvp_reg_is_gpu_direct returns whether some transport accesses the device memory in place, to
 * read, or (is_get) to write: for writes the device must make arrived bytes visible. */
bool kvp_reg_is_gpu_direct(const kvp_reg_t *reg, bool is_get);
const kvp_devmem_t *kvp_regs_find_mem(kvp_regs_t *regs, const void *addr);
bool kvp_regs_have_devices(const kvp_regs_t *regs);

#endif
