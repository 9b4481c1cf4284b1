/* SPDX-License-Identifier: Apache-2.0
 * The memory ranges that the user of a handle registered. A batch call holds the ranges that it uses, and kvp_regs_del
 * waits until no call holds the range. Any thread. */
#ifndef KVP_TRANSPORT_REGS_H
#define KVP_TRANSPORT_REGS_H

#include "transport/counters.h"
#include "transport/gpu/device.h"
#include "transport/transport.h"

#include <pthread.h>

typedef struct kvp_reg kvp_reg_t;

typedef struct {
    const kvp_transport_ops_t *transports[KVP_TRANSPORTS_MAX]; /* the transports to which registered memory is lent */
    size_t transports_n;
    pthread_rwlock_t lock;
    kvp_reg_t **sorted; /* the ranges sorted by address, which never overlap; guarded by lock */
    size_t n;
    size_t cap;
    _Atomic size_t devices_n; /* the number of registered ranges of device memory */
    /* device memory goes through bounce buffers and is never lent; set before the first registration */
    bool bounces_devices;
    pthread_mutex_t idle_lock; /* the mutex of `idle`; no other lock is taken while it is held */
    pthread_cond_t idle;
} kvp_regs_t;

void kvp_regs_init(kvp_regs_t *regs, const kvp_transport_ops_t *const *transports, size_t transports_n);
void kvp_regs_fini(kvp_regs_t *regs); /* ends all loans and frees the ranges; no range may be held */

/* kvp_regs_add registers a range. INVALID: the range is empty, wraps around or overlaps another range. NOMEM. mem
 * NULL: host memory. kvp_regs_del unregisters the range that starts at addr (else NOT_REGISTERED): it refuses new
 * holds, and returns after the last hold is released. */
kvp_err_t kvp_regs_add(kvp_regs_t *regs, void *addr, size_t len, const kvp_devmem_t *mem) KVP_MUST_USE;
kvp_err_t kvp_regs_del(kvp_regs_t *regs, void *addr) KVP_MUST_USE;

/* A cursor for holding ranges: call kvp_regs_begin, then kvp_regs_hold for each piece, then kvp_regs_end, in one
 * thread and without blocking in between. kvp_regs_hold sets is_new_out for the first hold of a range; each such hold
 * needs one kvp_regs_rele. A piece must lie within one range. */
typedef struct {
    const kvp_regs_t *regs;
    kvp_reg_t *last;
} kvp_regs_cursor_t;

void kvp_regs_begin(kvp_regs_t *regs, kvp_regs_cursor_t *cursor);
kvp_reg_t *kvp_regs_hold(kvp_regs_cursor_t *cursor, const void *addr, size_t len, bool *is_new_out);
void kvp_regs_end(kvp_regs_t *regs);
void kvp_regs_rele(kvp_regs_t *regs, kvp_reg_t *reg);

/* The holds of one call. The zero value is empty. kvp_regs_keep records a hold; if there is no memory for the record,
 * it releases the hold and returns NOMEM. kvp_regs_rele_all releases all holds, and leaves the zero value. */
typedef struct {
    kvp_reg_t **regs;
    size_t n;
    size_t cap;
} kvp_regs_held_t;

kvp_err_t kvp_regs_keep(kvp_regs_t *regs, kvp_regs_held_t *held, kvp_reg_t *reg) KVP_MUST_USE;
void kvp_regs_rele_all(kvp_regs_t *regs, kvp_regs_held_t *held);

/* kvp_reg_mem returns the kind and device of a held range's memory; borrowed. kvp_regs_find_mem returns the same for an
 * address in a range that the caller holds; NULL if the memory is host memory or not registered. kvp_regs_have_devices
 * returns whether some range is device memory; it takes no lock, so the answer may be out of date. */
const kvp_devmem_t *kvp_reg_mem(const kvp_reg_t *reg);
/* kvp_reg_is_gpu_direct returns whether some transport accesses the device memory without a bounce buffer, to read
 * the memory or (is_get) to write it. For writes the device must be able to make arrived bytes visible. */
bool kvp_reg_is_gpu_direct(const kvp_reg_t *reg, bool is_get);
const kvp_devmem_t *kvp_regs_find_mem(kvp_regs_t *regs, const void *addr);
bool kvp_regs_have_devices(const kvp_regs_t *regs);

#endif
