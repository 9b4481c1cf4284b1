/* SPDX-License-Identifier: Apache-2.0
 * The registrations of an endpoint: ranges of its process's memory that peers may read and write. Each registration
 * has a new token, and a key for each transport. Any thread may call. */
#ifndef KVP_P2P_BASE_RANGES_H
#define KVP_P2P_BASE_RANGES_H

#include "client/kvpool_p2p.h"
#include "p2p/base/wire.h"
#include "transport/regs.h"

typedef struct {
    uint8_t *base;
    size_t len;
    uint64_t token;
    /* the memory is a bounce buffer of the library; the answer to a peer that asks for the range with the lowest
     * address is never a bounce buffer */
    bool is_bounce;
    bool is_device; /* device memory: peers reach it only through a bounce buffer, no transport does */
    kvp_mr_t *mr; /* registration with the TCP transport; NULL for device memory */
    kvp_mr_t *rdma_mr; /* registration with the RDMA transport; NULL = RDMA does not reach the range */
} kvp_p2p_range_t;

typedef struct {
    kvp_tp_t *tp; /* the TCP transport; borrowed; lives longer than this struct */
    kvp_tp_t *rdma; /* the RDMA transport; NULL = none */
    bool needs_rdma; /* memory that RDMA cannot register is refused */
    /* incarnation number in all RDMA keys that allow writing. All peers get the same number, because a peer that knows
     * a range may write it. The number itself is never sent */
    uint64_t writers;
    kvp_regs_t regs; /* the ranges of `sorted`, with reference counts that delay unregistering */
    pthread_mutex_t lock; /* a thread that holds this lock takes no other lock than the one of `regs` */
    _Atomic bool has_had_devices; /* device memory was registered at some time */
    kvp_p2p_range_t *sorted; /* the ranges, sorted by address, never overlapping; guarded by lock */
    size_t n;
    size_t cap;
} kvp_p2p_ranges_t;

/* kvp_p2p_ranges_init makes an empty set. rdma may be NULL. needs_rdma: kvp_p2p_ranges_add fails if RDMA refuses a
 * range; else the range works without RDMA. */
void kvp_p2p_ranges_init(kvp_p2p_ranges_t *ranges, kvp_tp_t *tp, kvp_tp_t *rdma, bool needs_rdma);
void kvp_p2p_ranges_fini(kvp_p2p_ranges_t *ranges); /* no range is held any more */

/* kvp_p2p_ranges_add registers memory under a token that the caller chose at random, never 0. Errors: INVALID (empty,
 * wrapping, overlapping, not mapped, on several devices), NOMEM, and those of a required RDMA registration.
 * is_bounce: the memory is a bounce buffer of the library; the answer to a peer that asks for the range with the
 * lowest address is never a bounce buffer. */
kvp_err_t kvp_p2p_ranges_add(kvp_p2p_ranges_t *ranges, void *addr, size_t len, uint64_t token, bool is_bounce)
    KVP_MUST_USE;

/* kvp_p2p_ranges_del unregisters the range that begins at addr; NOT_REGISTERED if there is none. From the beginning
 * of the call no peer begins a transfer with the range. When the call returns, no thread of this process and no
 * network adapter touches the range for a peer. */
kvp_err_t kvp_p2p_ranges_del(kvp_p2p_ranges_t *ranges, void *addr) KVP_MUST_USE;

/* kvp_p2p_ranges_del_all unregisters each range that has a byte of [addr, addr + len); there may be none. */
void kvp_p2p_ranges_del_all(kvp_p2p_ranges_t *ranges, const void *addr, size_t len);

/* kvp_p2p_ranges_find returns the range that contains the place `at`. NOT_REGISTERED: no range, a range that ends
 * earlier, or another token. NOMEM. NOTSUP: RDMA does not reach the range, or only a bounce buffer reaches it and the
 * peer did not ask for a bounce buffer. */
kvp_err_t kvp_p2p_ranges_find(kvp_p2p_ranges_t *ranges, const kvp_peer_find_t *find, const kvp_peer_at_t *at,
                              uint64_t incarnation, kvp_peer_range_t *range_out) KVP_MUST_USE;

/* kvp_p2p_ranges_device returns true and the device of some range, or false if no range is device memory. */
bool kvp_p2p_ranges_device(kvp_p2p_ranges_t *ranges, kvp_devmem_t *mem_out);

/* kvp_p2p_ranges_hold keeps the range that contains `at` registered until kvp_p2p_ranges_rele, for a short time. NULL:
 * no range has the token of `at`, the asked kind of memory (device or host) and all bytes of `at`. */
kvp_reg_t *kvp_p2p_ranges_hold(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at, bool is_device);
void kvp_p2p_ranges_rele(kvp_p2p_ranges_t *ranges, kvp_reg_t *reg);

/* Holding the ranges of many pieces: kvp_p2p_ranges_begin, then kvp_p2p_ranges_hold_next for each piece, then
 * kvp_p2p_ranges_end, without blocking in between. Each *is_new_out that is true needs one kvp_p2p_ranges_rele. */
void kvp_p2p_ranges_begin(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor);
kvp_reg_t *kvp_p2p_ranges_hold_next(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvp_peer_at_t *at,
                                    bool is_device, bool *is_new_out);
void kvp_p2p_ranges_end(kvp_p2p_ranges_t *ranges);

/* kvp_p2p_ranges_hold_local keeps the registered parts of the local memory of ops registered until kvp_regs_rele_all:
 * each range that a piece touches, possibly none or many. NOMEM; NOT_REGISTERED: device memory that is not registered
 * completely, or a piece that begins in a range and ends in unregistered memory; INVALID: unmapped memory. */
kvp_err_t kvp_p2p_ranges_hold_local(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n,
                                    kvp_regs_held_t *held_out) KVP_MUST_USE;

/* kvp_p2p_ranges_have_device sets *has_out to true if some local memory of ops is device memory, including a held
 * range that is being unregistered. NOT_REGISTERED: some device memory has no registration. */
kvp_err_t kvp_p2p_ranges_have_device(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n, bool *has_out)
    KVP_MUST_USE;

/* kvp_p2p_ranges_mem returns the device of held memory; NULL: host memory, or unknown memory. */
const kvp_devmem_t *kvp_p2p_ranges_mem(kvp_p2p_ranges_t *ranges, const void *addr);

/* kvp_p2p_ranges_cover sets covered_out[i] to true if the local memory of ops[i] lies in one registered range. */
void kvp_p2p_ranges_cover(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *const *ops, uint32_t n, bool *covered_out);

#endif
