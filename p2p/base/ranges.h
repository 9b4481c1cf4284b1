/* SPDX-License-Identifier: Apache-2.0
 * The registrations of an endpoint's owner: ranges of its memory that peers may read and write,
 * each under a token, new with every registration, and with a key of each transport. Any thread. */
#ifndef KVP_P2P_BASE_RANGES_H
#define KVP_P2P_BASE_RANGES_H

#include "client/kvpool_p2p.h"
#include "p2p/base/wire.h"
#include "transport/regs.h"

typedef struct {
    uint8_t *base;
    size_t len;
    uint64_t token;
    bool is_bounce; /* a bounce buffer: hidden from peers that do not know it */
    bool is_device; /* no transport reaches it: reached through a bounce buffer alone */
    kvp_mr_t *mr; /* NULL of a device's memory */
    kvp_mr_t *rdma_mr; /* NULL = not reached by rdma */
} kvp_p2p_range_t;

typedef struct {
    kvp_tp_t *tp; /* borrowed; outlives this */
    kvp_tp_t *rdma; /* the rdma instance; NULL = none */
    bool needs_rdma; /* memory that rdma does not take is refused */
    uint64_t
        /* incarnation of rdma's write keys: one for all peers, since a peer that knows a range may
         * write it. Never sent */
        writers;
    kvp_regs_t regs; /* present holds of the ranges */
    pthread_mutex_t lock; /* a leaf but for the regs' */
    _Atomic bool has_had_devices; /* device memory was registered once */
    kvp_p2p_range_t *sorted; /* by address, never overlapping; guarded by lock */
    size_t n;
    size_t cap;
} kvp_p2p_ranges_t;

/* rdma may be NULL. needs_rdma: add fails if rdma refuses a range; else the range works without
 * rdma. */
void kvp_p2p_ranges_init(kvp_p2p_ranges_t *ranges, kvp_tp_t *tp, kvp_tp_t *rdma, bool needs_rdma);
void kvp_p2p_ranges_fini(kvp_p2p_ranges_t *ranges); /* without holds */

/* kvp_p2p_ranges_add registers under a token that the caller has drawn, never 0: INVALID (empty,
 * wrapping, overlapping, not mapped, of several devices), NOMEM, and the errors of a required rdma
 * registration. is_bounce: the memory is the library's, and is not reported as the first range. */
kvp_err_t kvp_p2p_ranges_add(kvp_p2p_ranges_t *ranges, void *addr, size_t len, uint64_t token, bool is_bounce)
    KVP_MUST_USE;

/* kvp_p2p_ranges_del takes the start of a range, else NOT_REGISTERED. From its beginning on no peer
 * begins a transfer with the range; at its return no thread of this process, and no adapter,
 * touches it for a peer. */
kvp_err_t kvp_p2p_ranges_del(kvp_p2p_ranges_t *ranges, void *addr) KVP_MUST_USE;

/* kvp_p2p_ranges_del_all does the same with each range that has a byte of [addr, addr + len); there
 * may be none. */
void kvp_p2p_ranges_del_all(kvp_p2p_ranges_t *ranges, const void *addr, size_t len);

/* kvp_p2p_ranges_find returns the range of a place in find: OK, NOT_REGISTERED (no range, a range
 * that ends earlier, or another token), NOMEM, NOTSUP (rdma does not reach the range, or only a
 * bounce buffer does, and none is wanted). */
kvp_err_t kvp_p2p_ranges_find(kvp_p2p_ranges_t *ranges, const kvp_peer_find_t *find, const kvp_peer_at_t *at,
                              uint64_t incarnation, kvp_peer_range_t *range_out) KVP_MUST_USE;

/* kvp_p2p_ranges_device returns the device of some range; false: no device memory. */
bool kvp_p2p_ranges_device(kvp_p2p_ranges_t *ranges, kvp_devmem_t *mem_out);

/* kvp_p2p_ranges_hold keeps a range registered until rele, for a moment's work. NULL: the bytes are
 * not all in one range of the token and kind (a device's, or the host's). */
kvp_reg_t *kvp_p2p_ranges_hold(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at, bool is_device);
void kvp_p2p_ranges_rele(kvp_p2p_ranges_t *ranges, kvp_reg_t *reg);

/* The same for many pieces: begin, then hold_next for each, then end, without blocking in between.
 * Each hold_next that set is_new_out needs one rele. */
void kvp_p2p_ranges_begin(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor);
kvp_reg_t *kvp_p2p_ranges_hold_next(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvp_peer_at_t *at,
                                    bool is_device, bool *is_new_out);
void kvp_p2p_ranges_end(kvp_p2p_ranges_t *ranges);

/* kvp_p2p_ranges_hold_local keeps the registered parts of the local memory of ops registered until
 * kvp_regs_rele_all: each range that a piece touches, possibly none or many. NOMEM, NOT_REGISTERED
 * (device memory that is not registered in full; a piece that begins in a range and ends in
 * unregistered memory), INVALID (unmapped memory). */
kvp_err_t kvp_p2p_ranges_hold_local(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n,
                                    kvp_regs_held_t *held_out) KVP_MUST_USE;

/* kvp_p2p_ranges_have_device returns whether some local memory of ops is a device's, including a
 * held range that is being unregistered. NOT_REGISTERED: some is, without a registration. */
kvp_err_t kvp_p2p_ranges_have_device(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n, bool *has_out)
    KVP_MUST_USE;

/* kvp_p2p_ranges_mem returns the device of held memory; NULL: the host's, or unknown. */
const kvp_devmem_t *kvp_p2p_ranges_mem(kvp_p2p_ranges_t *ranges, const void *addr);

/* kvp_p2p_ranges_cover returns for each op whether its local memory lies in one registered range. */
void kvp_p2p_ranges_cover(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *const *ops, uint32_t n, bool *covered_out);

#endif
